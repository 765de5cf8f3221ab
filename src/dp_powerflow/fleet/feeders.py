"""The feeders of a fleet: which there are, what they are called in public, and the config of each release.

A feeder's *key* is how the data owner calls it: the path of its file from the first wildcard of the glob on,
without the ending. Keys are PRIVATE: they stay in the config and in the private state directory. Public names
are numbers in the order of a keyed hash of the key, which says nothing. A name once given stays with its key,
whatever is added to the fleet later.

Every feeder is a separate secret with a separate account. The ledger asks of every new network whether
it continues an account or is unrelated to all others. Within a fleet the list of feeders answers: they are
different networks. That is not enough for feeders of the same frame (the same nodes and connections), which
are most likely versions of one network: the config must name them in `same_frame`. The list says nothing
about networks that are not in it: charged outside the fleet, or of feeders that it used to list, whose
files may have been exported again under other names. About them only the data owner can answer, in the
config.

Its config is one TOML file; unknown keys are errors that name the nearest key. The sections are as in a
release (`config`). What differs: `[fleet]` stands in place of `[release]` and lists the feeders, `[feeder]`
holds what all feeders share, and `[overrides]` what one feeder has in place of that.
"""

from __future__ import annotations

import glob
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dp_powerflow._names import PUBLIC_RULE, alike
from dp_powerflow.config import (
    STATE_RULES,
    CalendarSection,
    Config,
    LoadsSection,
    ModelSection,
    NodesSection,
    Positive,
    PublicationSection,
    PVSection,
    Reason,
    Section,
    TrueNetwork,
    TwinNetwork,
    WeatherSection,
    WrittenSection,
    absolute_sections,
    checked,
    named_by,
    read_toml,
    sentence_of,
)
from dp_powerflow.config.mistakes import Forbidden
from dp_powerflow.errors import ConfigError, Lines, PrivacyError, printable
from dp_powerflow.fleet.manifest import release_id_of
from dp_powerflow.fleet.publishing import output_of
from dp_powerflow.grid.quantities import Protect
from dp_powerflow.manifest.model import policy_of, registered
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Unrelated, spelled, unrelated_line
from dp_powerflow.privacy.state import PrivateState

PublicName = Annotated[str, named_by(PUBLIC_RULE)]


class SameFrame(Section):
    """Feeders that are different networks although they have the same nodes and connections.

    Attributes
    ----------
    feeders : their keys.
    reason : why, such as a standard design; the ledger records it.
    """

    feeders: Annotated[tuple[str, ...], Field(min_length=2)]
    reason: Annotated[str, Field(min_length=1, pattern=r"\S")]


class FleetSection(WrittenSection):
    """Which feeders, what is written and where.

    Attributes
    ----------
    feeders : globs of `.dss` and `.json` files, relative to the config file.
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
    continues: PublicName | None = None
    unrelated: Reason = None
    same_frame: SameFrame | None = None

    rules = (
        *STATE_RULES,
        Forbidden(
            lambda fleet: fleet.continues == fleet.id,
            "a fleet cannot continue itself; run it again to finish it",
        ),
    )


class SharedFeederSection(Section):
    """What all feeders share."""

    base_mva: Positive = 1.0
    drop_islanded: bool = False


class FleetTwin(TwinNetwork):
    """As the section of a release; the ids of the twins begin with `id`, by default the id of the fleet.

    What is protected is protected on the feeders that have it: a fleet is mixed.
    """

    id: PublicName | None = None  # type: ignore[assignment]
    protect: Protect = "if present"


FleetNetwork = Annotated[TrueNetwork | FleetTwin, Field(discriminator="mode")]


class Override(Section):
    """What is different for one feeder; checked together with what all share.

    Attributes
    ----------
    feeder, nodes : keys of these sections, in place of the shared ones.
    continues_network : account of the network that this feeder is a version of, as in a release.
    """

    feeder: dict[str, Any] = Field(default_factory=dict)
    nodes: dict[str, Any] = Field(default_factory=dict)
    continues_network: str | None = None


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

    rules = (
        Forbidden(
            lambda config: config.loads.kind == "opendss-shapes",
            "loads.kind = 'opendss-shapes' belongs to one feeder; use 'long', 'wide' or 'simulated'",
        ),
    )

    @property
    def charged_under(self) -> str:
        """Under which id the customers were, or will be, charged for the load model."""
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


def _with_absolute_paths(config: FleetConfig, base: Path) -> FleetConfig:
    if set("*?[") & set(str(base)):
        raise ConfigError(f"the folder {base} of the fleet file has a wildcard in its name; rename it")
    sections = absolute_sections(config, base)
    feeders = tuple(str(base / item) for item in config.fleet.feeders)
    sections["fleet"] = sections["fleet"].model_copy(update={"feeders": feeders})
    overrides = dict(config.overrides)
    for key, own in overrides.items():
        paths = {k: base / own.feeder[k] for k in ("taps", "loads") if isinstance(own.feeder.get(k), str)}
        overrides[key] = own.model_copy(update={"feeder": {**own.feeder, **paths}})
    return config.model_copy(update={**sections, "overrides": overrides})


# --------------------------------------------------------------------------------------- names and accounts

REGISTER_FILE = "feeders.json"
_SHARED = ("feeder", "loads", "model", "nodes", "pv", "calendar", "weather", "publication")
_OF_A_RELEASE = {
    *("days", "first_day", "state", "keys", "insecure_seed"),
    *("epsilon_cap", "network_epsilon_cap", "network_delta_cap"),
}


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
    strangers = sorted(set(config.overrides) - found.keys())
    if strangers:
        raise ConfigError(
            f"overrides names the feeder '{strangers[0]}', which fleet.feeders does not list; name a feeder "
            "by its path from the first wildcard on, without the extension"
        )
    return dict(sorted(found.items()))


def _matches(item: str) -> Iterator[tuple[str, str]]:
    if not item.lower().endswith((".dss", ".json")):
        raise ConfigError(f"fleet.feeders lists '{item}'; list files, or globs that end in .dss or .json")
    parts = PurePath(item).parts
    fixed = next((k for k, part in enumerate(parts) if set("*?[") & set(part)), len(parts) - 1)
    paths = [] if "\0" in item else sorted(glob.glob(item, recursive=True))
    if not paths:
        raise ConfigError(f"no file matches '{item}' of fleet.feeders; correct the glob")
    for path in paths:
        yield PurePath(*PurePath(path).parts[fixed:]).with_suffix("").as_posix(), path


def _public_names(
    fleet_id: str, state: PrivateState, keys: Iterable[str], register: Mapping[str, Registered]
) -> dict[str, str]:
    """Key → public name: the one it has already, or the next number."""
    given = {key: entry.name for key, entry in register.items()}
    taken = set(given.values())
    if len(taken) < len(given):
        raise ConfigError("a feeder of fleet.continues has a name of this fleet; choose a new fleet.id")
    numbers = (name for k in itertools.count(1) if (name := f"feeder-{k:04d}") not in taken)

    def order(key: str) -> str:
        return state.identity("order of the feeders", [fleet_id.encode(), b"\0", key.encode()])

    new = sorted((key for key in keys if key not in given), key=order)
    return given | dict(zip(new, numbers, strict=False))


class Registered(BaseModel):
    """What the private state keeps of a feeder; a name once given is never given to another one.

    Attributes
    ----------
    name : its public name.
    charged_under : ids its network is charged under.
    """

    model_config = ConfigDict(strict=True, frozen=True, populate_by_name=True)
    name: str
    charged_under: list[str] = Field(alias="charged under")


_REGISTER = TypeAdapter(dict[str, Registered])


def read_register(state: PrivateState, fleet_id: str) -> dict[str, Registered]:
    """PRIVATE. What earlier runs of a fleet kept, by key.

    Raises
    ------
    PrivacyError : the file is damaged.
    """
    stored = state.read_internal(fleet_id, REGISTER_FILE)
    try:
        return {} if stored is None else _REGISTER.validate_json(stored)
    except ValidationError:
        raise PrivacyError(
            f"{REGISTER_FILE} of fleet '{fleet_id}' in the private state is damaged; restore it from a "
            "backup; nothing was spent",
            code="ledger-damaged",
        ) from None


def write_register(state: PrivateState, fleet_id: str, feeders: Iterable[FleetFeeder]) -> None:
    """Keep the names before anything is made under them; what was kept stays."""
    kept = read_register(state, fleet_id)
    for feeder in feeders:
        new = Registered.model_validate({"name": feeder.name, "charged under": []})
        before = kept.get(feeder.key, new)
        ids = sorted({*before.charged_under, feeder.charged_under})
        kept[feeder.key] = before.model_copy(update={"charged_under": ids})
    content = json.dumps(_REGISTER.dump_python(kept, by_alias=True), indent=1, sort_keys=True)
    state.write_internal(fleet_id, REGISTER_FILE, content.encode())


def feeder_config(config: FleetConfig, key: str, source: str, name: str, network: str | Unrelated) -> Config:
    """The config of one feeder's release: shared sections, its own keys in place of theirs, and what follows
    from the fleet.

    Parameters
    ----------
    network : the account that its network continues, or why it is none of those that are there.
    """
    fleet, own = config.fleet, config.overrides.get(key, Override())
    sections: dict[str, dict[str, Any]] = {
        section: getattr(config, section).model_dump(exclude_unset=True)
        for section in _SHARED
        if getattr(config, section) is not None
    }
    sections["network"] = config.network.model_dump()  # with the defaults of a fleet
    sections["feeder"] = {"source": source, **sections["feeder"], **own.feeder}  # it may name another file
    sections["nodes"] |= own.nodes
    sections["model"]["reuse"] = config.charged_under
    sections["release"] = fleet.model_dump(exclude_unset=True, include=_OF_A_RELEASE) | {
        "id": release_id_of(fleet.id, name),
        "output": output_of(fleet.output, fleet.id, name),
        "continues_network": network if isinstance(network, str) else None,
        "unrelated_network": network if isinstance(network, Unrelated) else None,
    }
    if "id" in sections["network"]:  # what is paid for once per feeder, such as a twin
        sections["network"]["id"] = release_id_of(sections["network"]["id"] or fleet.id, name)
    try:
        return Config.model_validate(sections)
    except ValidationError:
        raise ConfigError(Lines(f"of feeder '{printable(key)}', {sentence_of(sections, Config)}")) from None


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
    names = _public_names(fleet.id, state, sources, earlier | own)
    networks = _networks(config, ledger, own, earlier)
    _refuse_unexplained(config, sources, networks)
    unrelated = _unrelated_of(config, sources, networks)
    made = []
    for key, source in sources.items():
        network = networks.continued.get(key) or unrelated(key)
        made.append(FleetFeeder(key, names[key], feeder_config(config, key, source, names[key], network)))
    return tuple(sorted(made, key=lambda feeder: feeder.name))


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
    if not former and not outside:
        return
    account, key = min(former.items()) if former else (min(outside), "")
    charged = (
        f"feeder '{printable(key)}' was charged to account {account} and is no longer listed, while "
        f"'{printable(new[0])}' is new; list it again, or say what became of it"
        if former
        else f"the ledger has accounts of networks not of fleet '{fleet.id}': {spelled(outside)}; set "
        "fleet.continues to the earlier fleet whose feeders these are, or say what became of them"
    )
    raise PrivacyError(
        Lines(
            f"{charged}. If '{printable(new[0])}' is a new version, paste\n    "
            f"[overrides.{json.dumps(new[0])}]\n    continues_network = {json.dumps(account)}\n"
            "and if no feeder is a version of a network that is not listed, paste under [fleet], with the "
            f"reason,\n    {unrelated_line('unrelated', named | former.keys() | outside)}"
        ),
        code="request-changed" if former else None,
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
