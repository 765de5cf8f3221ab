"""The feeders of a fleet: which there are, what they are called in public, and the config of each release.

A feeder's *key* is how the data owner calls it: the path of its file from the first wildcard of the glob on,
without the ending. Keys are PRIVATE: they stay in the config and in the private state directory. Public names
are declared, or numbers in the order of a keyed hash of the key, which says nothing. A name once given stays
with its key, whatever is added to the fleet later.

Every feeder is a separate secret with a separate account. The ledger asks of every new network whether
it continues an account or is unrelated to all others. Within a fleet the list of feeders answers: they are
different networks. That is not enough for feeders of the same frame (the same nodes and connections), which
are most likely versions of one network: the config must name them in `same_frame`. The list says nothing
about networks that are not in it: those charged outside the fleet, and those of feeders that it used to list,
whose files may have been exported again under other names. About them only the data owner can answer, in the
config.

Its config is one TOML file; unknown keys are errors that name the nearest key. The sections are those of a
release (`config`). What differs: `[fleet]` stands in place of `[release]` and lists the feeders, `[feeder]`
holds what all feeders share, and `[overrides]` what some have of their own.
"""

from __future__ import annotations

import datetime as dt
import difflib
import glob
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationError, model_validator

from dp_powerflow._names import PUBLIC_RULE, alike
from dp_powerflow.config import (
    STATE_RULES,
    CalendarSection,
    Config,
    Count,
    LoadsSection,
    ModelSection,
    NodesSection,
    Positive,
    Probability,
    PublicationSection,
    PVSection,
    Reason,
    Section,
    StorageUrl,
    TrueNetwork,
    TwinNetwork,
    WeatherSection,
    absolute_sections,
    checked,
    named_by,
    path_or_url,
    read_toml,
    sentence_of,
)
from dp_powerflow.errors import ConfigError, Lines, PrivacyError, printable
from dp_powerflow.fleet.manifest import release_id_of
from dp_powerflow.fleet.publishing import shelf_of
from dp_powerflow.grid.quantities import Protect
from dp_powerflow.grid.sources import BUILT_IN, SIMBENCH
from dp_powerflow.manifest.model import policy_of, registered
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Unrelated, spelled, unrelated_line
from dp_powerflow.privacy.state import PrivateState

PublicName = Annotated[str, named_by(PUBLIC_RULE)]
OF_THE_FLEET = frozenset({"mode", "bound", "id"})
"""Keys of [network] that are the same for all feeders: accounts depend on them."""
_NOT_REMOVABLE = frozenset(f"network.{key}" for key in OF_THE_FLEET)


class SameFrame(Section):
    """Feeders that are different networks although they have the same nodes and connections.

    Attributes
    ----------
    feeders : their keys.
    reason : why, such as a standard design; the ledger records it.
    """

    feeders: Annotated[tuple[str, ...], Field(min_length=2)]
    reason: Annotated[str, Field(min_length=1, pattern=r"\S")]


class FleetSection(Section):
    """Which feeders, what is written and where.

    Attributes
    ----------
    feeders : globs of `.dss` and `.json` files, relative to the config file, and names of built-in feeders.
    names : public names of feeders, by their keys; the others are numbered.
    models : one load model of all customers, or one per feeder from the public column `feeder` of the
        service map.
    output : directory or URL of the corpus, such as `s3://bucket/fleet`.
    state : private directory of keys, ledger and internal reports; never publish it.
    continues : earlier fleet whose feeders these are: names and accounts go on.
    unrelated : why no feeder is a version of networks that were charged outside this fleet, or for feeders
        that it no longer lists: a table of accounts and reason, as in a release.
    same_frame : which feeders are different networks of the same structure, and why.
    continues_loads, unrelated_loads : the same for the customers, as in a release.
    """

    id: PublicName
    feeders: Annotated[tuple[str, ...], Field(min_length=1)]
    names: dict[str, PublicName] = Field(default_factory=dict)
    models: Literal["one", "per-feeder"] = "one"
    days: Count
    first_day: dt.date | None = None
    output: Annotated[Path | StorageUrl, PlainValidator(path_or_url)]
    state: Path
    epsilon_cap: Positive | None = None
    network_epsilon_cap: Positive | None = None
    network_delta_cap: Probability | None = None
    continues: PublicName | None = None
    unrelated: Reason = None
    same_frame: SameFrame | None = None
    continues_loads: str | None = None
    unrelated_loads: Reason = None
    insecure_seed: int | None = None

    rules = STATE_RULES

    @model_validator(mode="after")
    def _is_clear(self) -> FleetSection:
        if len(set(self.names.values())) < len(self.names):
            raise ValueError("two feeders have the same public name in fleet.names")
        if alike(self.names.values()):
            raise ValueError("two public names of fleet.names differ in case only; choose another")
        if self.continues == self.id:
            raise ValueError("a fleet cannot continue itself; run it again to finish it")
        return self


class SharedFeederSection(Section):
    """What all feeders share; `taps` is a folder with one CSV file per feeder, named by its key."""

    taps: Path | None = None
    base_mva: Positive = 1.0
    drop_islanded: bool = False


class FleetTwin(TwinNetwork):
    """As the section of a release; the ids of the twins begin with `id`, by default that of the fleet.

    What is protected is protected on the feeders that have it: a fleet is mixed.
    """

    id: PublicName | None = None  # type: ignore[assignment]
    protect: Protect = "if present"


FleetNetwork = Annotated[TrueNetwork | FleetTwin, Field(discriminator="mode")]


class Override(Section):
    """What is different for one feeder; checked together with what all share.

    Attributes
    ----------
    feeder, nodes, pv, network : keys of these sections, in place of the shared ones.
    remove : shared keys that the feeder goes without, as `network.capacitors`; `pv` is that whole section.
    continues_network : account of the network that this feeder is a version of, as in a release.
    """

    feeder: dict[str, Any] = Field(default_factory=dict)
    nodes: dict[str, Any] = Field(default_factory=dict)
    pv: dict[str, Any] = Field(default_factory=dict)
    network: dict[str, Any] = Field(default_factory=dict)
    remove: tuple[str, ...] = ()
    continues_network: str | None = None

    def removed(self, section: str) -> frozenset[str]:
        """Keys of a section that this feeder goes without."""
        named = (name.split(".", 1) for name in self.remove if "." in name)
        return frozenset(key for table, key in named if table == section)


def _removable(config: FleetConfig) -> dict[str, frozenset[str]]:
    """Section → its keys that a feeder may go without."""
    shared = {"feeder": config.feeder, "nodes": config.nodes, "network": config.network}
    found = {name: frozenset(type(section).model_fields) for name, section in shared.items()}
    return found | {"pv": frozenset(PVSection.model_fields)}


def _wrong_removal(key: str, name: str, override: Override, known: dict[str, frozenset[str]]) -> str | None:
    where = f"overrides of feeder '{key}'"
    section, _, inner = name.partition(".")
    if section == "network" and inner in OF_THE_FLEET:
        return f"{where} remove '{name}', which belongs to the fleet; put the feeder into a fleet of its own"
    if name != "pv" and inner not in known.get(section, ()):
        names = ["pv", *(f"{table}.{field}" for table, fields in known.items() for field in fields)]
        near = difflib.get_close_matches(name, sorted(set(names) - _NOT_REMOVABLE), n=1, cutoff=0.0)
        return f"{where} remove an unknown key '{name}'; did you mean '{near[0]}'?"
    set_too = {"feeder": override.feeder, "nodes": override.nodes, "pv": override.pv}
    if override.pv if name == "pv" else inner in set_too.get(section, override.network):
        return f"{where} both set and remove '{name}'; keep one of them"
    return None


class FleetConfig(Section):
    """Everything about one fleet."""

    fleet: FleetSection
    feeder: SharedFeederSection = SharedFeederSection()
    loads: LoadsSection
    model: ModelSection
    nodes: NodesSection = NodesSection()
    pv: PVSection | None = None
    calendar: CalendarSection = CalendarSection()
    weather: WeatherSection | None = None
    publication: PublicationSection = PublicationSection()
    network: FleetNetwork
    overrides: dict[str, Override] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_meter_source(self) -> FleetConfig:
        if self.loads.kind == "opendss-shapes":
            raise ValueError(
                "loads.kind = 'opendss-shapes' belongs to one feeder; a fleet needs 'long', 'wide' or "
                "'simulated'"
            )
        if self.fleet.models == "per-feeder" and self.loads.services is None and self.model.reuse is None:
            raise ValueError("fleet.models = 'per-feeder' needs loads.services with a column 'feeder'")
        return self

    @model_validator(mode="after")
    def _removes_what_can_be_removed(self) -> FleetConfig:
        known = _removable(self)
        problems = [
            sentence
            for key, override in self.overrides.items()
            for name in override.remove
            if (sentence := _wrong_removal(key, name, override, known)) is not None
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def charged_under(self) -> str:
        """Under which id the customers were, or will be, charged for the load model or models."""
        return self.model.reuse or self.fleet.id


def read_fleet_config(path: Path) -> FleetConfig:
    """Read a TOML file; paths in it are relative to it."""
    raw = read_toml(path, "fleet file", "docs/how-to/fleet.md has an example")
    return parse_fleet_config(raw, base=path.resolve().parent, files_must_exist=True)


def parse_fleet_config(
    raw: dict[str, Any], base: Path = Path(), *, files_must_exist: bool = False
) -> FleetConfig:
    """Check a fleet's config given as a dictionary; parameters as in `parse_config`."""
    return _with_absolute_paths(checked(raw, FleetConfig, base if files_must_exist else None), base)


def parse_feeder_config(sections: dict[str, Any], key: str) -> Config:
    """Check the config of one feeder, made of shared sections and its own; paths in it are absolute."""
    try:
        return Config.model_validate(sections)
    except ValidationError:
        raise ConfigError(Lines(f"of feeder '{printable(key)}', {sentence_of(sections, Config)}")) from None


def _with_absolute_paths(config: FleetConfig, base: Path) -> FleetConfig:
    if set("*?[") & set(str(base)):
        raise ConfigError(f"the folder {base} of the fleet file has a wildcard in its name; rename it")

    def own(override: Override) -> Override:
        sections = {"feeder": dict(override.feeder), "pv": dict(override.pv)}
        for section, name in (("feeder", "taps"), ("feeder", "loads"), ("pv", "irradiance")):
            if isinstance(sections[section].get(name), str):
                sections[section][name] = base / sections[section][name]
        return override.model_copy(update=sections)

    sections = absolute_sections(config, base)
    feeders = tuple(item if is_named(item) else str(base / item) for item in config.fleet.feeders)
    sections["fleet"] = sections["fleet"].model_copy(update={"feeders": feeders})
    overrides = {key: own(override) for key, override in config.overrides.items()}
    return config.model_copy(update={**sections, "overrides": overrides})


def is_named(feeder: str) -> bool:
    """Whether an entry of `fleet.feeders` is the name of a feeder, not a path or a glob."""
    return not feeder.lower().endswith((".dss", ".json"))


# --------------------------------------------------------------------------------------- names and accounts

REGISTER_FILE = "feeders.json"
_WILDCARDS = frozenset("*?[")
_KEYS_NAMED = 5  # of feeders with the same problem


@dataclass(frozen=True)
class FleetFeeder:
    """One feeder of a fleet.

    Attributes
    ----------
    key : PRIVATE, how the data owner calls it.
    name : its public name.
    config : the config of its release, which is written to where `Shelf.output_of` says.
    """

    key: str
    name: str
    config: Config

    @property
    def release_id(self) -> str:
        return self.config.release.id

    @property
    def charged_under(self) -> str:
        """What the charge of its network is recorded under: its release, or its twin."""
        return policy_of(self.config).paid_by(self.release_id)


def find_sources(config: FleetConfig) -> dict[str, str]:
    """Key → source of every feeder that the config lists, in the order of keys."""
    found: dict[str, str] = {}
    for item in config.fleet.feeders:
        for key, source in _matches(item):
            if found.setdefault(key, source) != source:
                raise ConfigError(
                    f"two feeders of the fleet are called '{key}'; write the glob so that what follows its "
                    "first wildcard tells them apart, or rename a file"
                )
    if alike(found):
        raise ConfigError(
            f"{alike(found)} feeders have names that differ only in blanks or case; rename a file"
        )
    for what, keys in (("fleet.names", config.fleet.names), ("overrides", config.overrides)):
        strangers = sorted(set(keys) - found.keys())
        if strangers:
            raise ConfigError(
                f"{what} names the feeder '{strangers[0]}', which fleet.feeders does not list; name a "
                "feeder by its path from the first wildcard on, without the extension"
            )
    return dict(sorted(found.items()))


def source_files(config: FleetConfig) -> list[Path]:
    """Files of the feeders; those that come with the package have none."""
    return [Path(source) for source in find_sources(config).values() if not is_named(source)]


def _matches(item: str) -> Iterator[tuple[str, str]]:
    if is_named(item):
        if item.lower() not in BUILT_IN and not item.lower().startswith(SIMBENCH):
            raise ConfigError(
                f"fleet.feeders lists '{item}'; list globs that end in .dss or .json, {', '.join(BUILT_IN)} "
                "or simbench:CODE"
            )
        yield item, item
        return
    parts = PurePath(item).parts
    fixed = next((k for k, part in enumerate(parts) if _WILDCARDS & set(part)), len(parts) - 1)
    paths = [] if "\0" in item else sorted(glob.glob(item, recursive=True))
    if not paths:
        raise ConfigError(f"no file matches '{item}' of fleet.feeders; correct the glob")
    for path in paths:
        yield PurePath(*PurePath(path).parts[fixed:]).with_suffix("").as_posix(), path


def _public_names(
    config: FleetConfig, state: PrivateState, keys: Iterable[str], register: Mapping[str, Registered]
) -> dict[str, str]:
    """Key → public name: the one it has already, a declared one, or the next number."""
    fleet = config.fleet
    given = {key: entry.name for key, entry in register.items()}
    for key, name in fleet.names.items():
        if given.setdefault(key, name) != name:
            raise ConfigError(
                f"the feeder '{key}' has the public name '{given[key]}' already; remove it from fleet.names"
            )
    taken = set(given.values())
    if len(taken) < len(given):
        raise ConfigError("a public name of fleet.names belongs to another feeder already; choose another")
    numbers = (name for k in itertools.count(1) if (name := f"feeder-{k:04d}") not in taken)

    def order(key: str) -> str:
        return state.identity("order of the feeders", [fleet.id.encode(), b"\0", key.encode()])

    for key in sorted((key for key in keys if key not in given), key=order):
        given[key] = next(numbers)
    return given


@dataclass(frozen=True)
class Registered:
    """What the private state keeps of a feeder; a name once given is never given to another one.

    Attributes
    ----------
    name : its public name.
    charged_under : ids its network is charged under.
    """

    name: str
    charged_under: tuple[str, ...]


def read_register(state: PrivateState, fleet_id: str) -> dict[str, Registered]:
    """PRIVATE. What earlier runs of a fleet kept, by key.

    Raises
    ------
    PrivacyError : the file is damaged.
    """
    stored = state.read_internal(fleet_id, REGISTER_FILE)
    if stored is None:
        return {}
    try:
        found = {}
        for key, item in json.loads(stored).items():
            name, charged = item["name"], item["charged under"]
            if not (isinstance(charged, list) and all(isinstance(text, str) for text in (name, *charged))):
                raise ValueError
            found[key] = Registered(name, tuple(charged))
        return found
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise PrivacyError(
            f"{REGISTER_FILE} of fleet '{fleet_id}' in the private state is damaged; restore it from a "
            "backup; nothing was spent",
            code="ledger-damaged",
        ) from None


def write_register(state: PrivateState, fleet_id: str, feeders: Iterable[FleetFeeder]) -> None:
    """Keep the names before anything is made under them; what was kept stays."""
    kept = read_register(state, fleet_id)
    for feeder in feeders:
        entry = kept.get(feeder.key, Registered(feeder.name, ()))
        kept[feeder.key] = Registered(
            feeder.name, tuple(sorted({*entry.charged_under, feeder.charged_under}))
        )
    content = {key: {"name": item.name, "charged under": item.charged_under} for key, item in kept.items()}
    state.write_internal(fleet_id, REGISTER_FILE, json.dumps(content, indent=1, sort_keys=True).encode())


def feeder_config(config: FleetConfig, key: str, source: str, name: str, network: str | Unrelated) -> Config:
    """The config of one feeder's release: shared sections, its own keys, and what follows from the fleet.

    Parameters
    ----------
    network : the account that its network continues, or why it is none of those that are there.
    """
    fleet, own = config.fleet, config.overrides.get(key, Override())
    if OF_THE_FLEET & own.network.keys():
        raise ConfigError(
            f"overrides of feeder '{key}' change mode, bound or id of [network], which belong to the fleet; "
            "put the feeder into a fleet of its own"
        )
    feeder = _shared(config.feeder, own.removed("feeder"))
    taps = None if feeder["taps"] is None else feeder["taps"] / f"{key}.csv"
    feeder |= {"source": source, "taps": taps if taps is not None and taps.is_file() else None}
    sections: dict[str, Any] = {
        "feeder": feeder | own.feeder,
        "loads": config.loads.model_dump(),
        "model": config.model.model_dump() | {"reuse": config.charged_under},
        "nodes": config.nodes.model_dump(exclude_unset=True, exclude=set(own.removed("nodes"))) | own.nodes,
        "network": _shared(config.network, own.removed("network")) | own.network,
        "release": {
            "id": release_id_of(fleet.id, name),
            "days": fleet.days,
            "first_day": fleet.first_day,
            "output": shelf_of(fleet.output, fleet.id).output_of(name),
            "state": fleet.state,
            "epsilon_cap": fleet.epsilon_cap,
            "network_epsilon_cap": fleet.network_epsilon_cap,
            "network_delta_cap": fleet.network_delta_cap,
            "continues_network": network if isinstance(network, str) else None,
            "unrelated_network": network if isinstance(network, Unrelated) else None,
            "insecure_seed": fleet.insecure_seed,
        },
    }
    for section in ("calendar", "weather", "publication"):
        declared = getattr(config, section)
        if declared is not None and declared.model_fields_set:
            sections[section] = declared.model_dump()
    if (config.pv is not None or own.pv) and "pv" not in own.remove:
        shared = {} if config.pv is None else _shared(config.pv, own.removed("pv"))
        suns = {"irradiance", "latitude", "first_day_of_year"}
        if {"irradiance", "latitude"} & own.pv.keys():  # its own sun, instead of the fleet's
            shared = {key: value for key, value in shared.items() if key not in suns}
        sections["pv"] = shared | own.pv
    if "id" in sections["network"]:  # what is paid for once per feeder, such as a twin
        sections["network"]["id"] = release_id_of(sections["network"]["id"] or fleet.id, name)
    return parse_feeder_config(sections, key)


def _shared(section: Section, removed: Collection[str]) -> dict[str, Any]:
    """What a feeder takes from a shared section; keys that it goes without are as if nobody set them."""
    values, fields = section.model_dump(), type(section).model_fields
    for key in removed:
        del values[key]
        if not fields[key].is_required():
            values[key] = fields[key].get_default(call_default_factory=True)
    return values


def feeders_of(config: FleetConfig, state: PrivateState, ledger: Ledger) -> tuple[FleetFeeder, ...]:
    """The feeders of the fleet in the order of their public names. None of them is opened.

    Raises
    ------
    ConfigError : a glob matches nothing, or what the config says of a feeder is not usable.
    PrivacyError : the ledger has networks that the config does not relate to this fleet.
    """
    sources, fleet = find_sources(config), config.fleet
    own, earlier = read_register(state, fleet.id), dict[str, Registered]()
    if fleet.continues is not None:
        earlier = read_register(state, fleet.continues)
        if not earlier:
            raise ConfigError(
                f"fleet.continues names the fleet '{fleet.continues}', which this private state does not know"
            )
    names = _public_names(config, state, sources, earlier | own)
    networks = _networks(config, ledger, own, earlier)
    _refuse_unexplained(config, sources, networks)
    unrelated = _unrelated_of(config, sources, networks)
    made, problems = [], []
    for key, source in sources.items():
        network = networks.continued.get(key) or unrelated(key)
        try:
            made.append(FleetFeeder(key, names[key], feeder_config(config, key, source, names[key], network)))
        except ConfigError as error:
            problems.append((key, str(error)))
    if len(problems) == 1:
        raise ConfigError(Lines(problems[0][1]))
    if problems:
        raise ConfigError(_in_one_message(problems))
    return tuple(sorted(made, key=lambda feeder: feeder.name))


def _in_one_message(problems: Sequence[tuple[str, str]]) -> Lines:
    """Keys of feeders and sentences: those that differ in the key alone once, those of most feeders first."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for key, sentence in problems:
        alike.setdefault(sentence.replace(f"'{printable(key)}'", "''"), []).append((key, sentence))
    lines = ""
    for number, group in enumerate(sorted(alike.values(), key=len, reverse=True), start=1):
        keys = printable(", ".join(key for key, _ in group[:_KEYS_NAMED]))
        more = ", …" if len(group) > _KEYS_NAMED else ""
        noun = "feeder" if len(group) == 1 else "feeders"
        lines += f"\n  {number}. {len(group):,} {noun} ({keys}{more}): {group[0][1]}"
    return Lines(f"{len(problems):,} feeders have no usable config:{lines}")


# ------------------------------------------------------------------------------------ accounts of networks


@dataclass(frozen=True)
class _Networks:
    """PRIVATE. The accounts of networks of the fleet's kind, and the feeders that they are of.

    Attributes
    ----------
    accounts : all of the ledger, by name.
    continued : key of a feeder, listed or not → account that an earlier fleet charged for it, or that the
        config says it continues.
    charged : all of that, and what this fleet charged for it.
    """

    accounts: Mapping[str, Account]
    continued: Mapping[str, str]
    charged: Mapping[str, str]

    def of(self, keys: Iterable[str]) -> set[str]:
        """Accounts of those feeders that have one."""
        return {self.charged[key] for key in keys if key in self.charged}

    @property
    def listed(self) -> str:
        """Names of all accounts, in a sentence."""
        return spelled(self.accounts) or "none"


def _networks(
    config: FleetConfig, ledger: Ledger, own: Mapping[str, Registered], earlier: Mapping[str, Registered]
) -> _Networks:
    fleet, kind = config.fleet, registered(config.network.mode).account_kind
    accounts = {account.name: account for account in ledger.summary().accounts if account.kind is kind}
    continued = _charged_by(fleet.continues, earlier, accounts.values())
    for key, override in config.overrides.items():
        if override.continues_network is not None:
            continued[key] = override.continues_network
    # Twins of another fleet may have the same ids; what this fleet pays is in its own accounts or in these.
    mine = [item for item in accounts.values() if item.fleet == fleet.id or item.name in continued.values()]
    networks = _Networks(accounts, continued, _charged_by(fleet.id, own, mine) | continued)
    unknown = set(continued.values()) - accounts.keys()
    if unknown:
        raise PrivacyError(
            f"overrides let a feeder continue the account '{min(unknown)}', and the ledger has "
            f"{networks.listed} of that kind; name one of them"
        )
    return networks


def _charged_by(
    fleet_id: str | None, register: Mapping[str, Registered], accounts: Iterable[Account]
) -> dict[str, str]:
    """Key → account that a fleet charged for the feeder of that key."""
    ordered = sorted(accounts, key=lambda account: account.fleet == fleet_id)  # its own accounts win
    account_of = {spend.release_id: account.name for account in ordered for spend in account.spends}
    found = {}
    for key, entry in register.items():
        # The register may lack the id of the last charge.
        for charged in sorted({*entry.charged_under, release_id_of(fleet_id or "", entry.name)}):
            if charged in account_of:
                found[key] = account_of[charged]
    return found


def _refuse_unexplained(config: FleetConfig, keys: Collection[str], networks: _Networks) -> None:
    """A re-export of a network that was charged before must not start with a full budget."""
    fleet = config.fleet
    new = sorted(key for key in keys if key not in networks.charged)
    if not new:
        return
    named = frozenset() if fleet.unrelated is None else fleet.unrelated.accounts
    unknown = named - networks.accounts.keys()
    if unknown:
        raise PrivacyError(
            f"fleet.unrelated names {spelled(unknown)}, but the ledger has {networks.listed} of that "
            "kind; name existing accounts"
        )
    explained = networks.of(keys) | named
    former = {account: key for key, account in networks.charged.items() if account not in explained}
    # An account that this fleet opened and never charged has nothing to be used twice.
    others = {name for name, item in networks.accounts.items() if item.fleet != fleet.id or item.spends}
    outside = others - explained - former.keys()
    wanted = unrelated_line("unrelated", named | former.keys() | outside)
    if former:
        account, key = min(former.items())
        shown = printable(new[0])
        raise PrivacyError(
            Lines(
                f"feeder '{printable(key)}' was charged to account {account} and is no longer listed, while "
                f"'{shown}' is new; list it again, or say what became of it. If '{shown}' is its new "
                f"version, paste\n    [overrides.{json.dumps(new[0])}]\n    "
                f"continues_network = {json.dumps(account)}\n"
                f"and if no feeder is a version of it, paste under [fleet], with the reason,\n    {wanted}"
            ),
            code="request-changed",
        )
    if outside:
        raise PrivacyError(
            Lines(
                f"the ledger has accounts of networks not of fleet '{fleet.id}': {spelled(outside)}; set "
                "fleet.continues to the earlier fleet whose feeders these are, continues_network under "
                "overrides of a feeder, or, if no feeder is a version of those networks, paste under "
                f"[fleet], with the reason,\n    {wanted}"
            )
        )


def _unrelated_of(
    config: FleetConfig, keys: Collection[str], networks: _Networks
) -> Callable[[str], Unrelated]:
    """What the ledger records when the account of a feeder's network is opened, by key.

    Accounts that this fleet opened need no names. Naming all of them for every feeder would take words and
    time that grow with the square of the fleet.
    """
    fleet, also, alike = config.fleet, config.fleet.unrelated, config.fleet.same_frame
    declared = frozenset() if also is None else also.accounts
    listed = frozenset(networks.of(keys))
    reasons = [f"another feeder of fleet '{fleet.id}'"] + ([] if also is None else [also.reason])
    outside = frozenset(name for name in listed if networks.accounts[name].fleet != fleet.id)
    other = Unrelated(outside | declared, "; ".join(reasons), fleet.id, outside - declared)
    if alike is None:
        return lambda _: other
    explained = networks.of(alike.feeders)
    named = outside | (listed & explained)
    unnamed = named - declared - explained
    reasons.append(f"same frame: {alike.reason}")
    same = Unrelated(named | declared, "; ".join(reasons), fleet.id, unnamed, same_frame=True)
    keys_alike = frozenset(alike.feeders)
    return lambda key: same if key in keys_alike else other
