"""The feeders of a fleet: which there are, what they are called in public, and the config of each release.

A feeder's *key* is how the data owner calls it: the path of its file from the first wildcard of the glob on,
without the ending. Keys are PRIVATE: they stay in the config and in the private state directory. Public names
are declared, or numbers in the order of a keyed hash of the key, which says nothing. A name once given stays
with its key, whatever is added to the fleet later.

Every feeder is a secret of its own, with an account of its own. The ledger asks of every new network whether
it continues an account or is unrelated to all others. Within a fleet the list of feeders answers: they are
different networks. That is not enough for feeders of the same frame (the same nodes and connections), which
are most likely versions of one network: the config must name them in `same_frame`. The list says nothing
about networks that are not in it: those charged outside the fleet, and those of feeders that it used to list,
whose files may have been exported again under other names. About them only the data owner can answer, in the
config.
"""

from __future__ import annotations

import glob
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from dp_powerflow._names import alike
from dp_powerflow.config import Config, Section
from dp_powerflow.errors import ConfigError, Lines, PrivacyError, printable
from dp_powerflow.fleet.config import OF_THE_FLEET, FleetConfig, Override, is_named, parse_feeder_config
from dp_powerflow.fleet.names import partition, release_id_of
from dp_powerflow.fleet.publishing import shelf_of
from dp_powerflow.grid.sources import BUILT_IN, SIMBENCH
from dp_powerflow.manifest.model import policy_of, registered
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Unrelated, spelled, unrelated_line
from dp_powerflow.privacy.state import PrivateState

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

    @property
    def directory(self) -> str:
        """Name of its directory in the corpus."""
        return partition(self.name)


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


def public_names(
    config: FleetConfig, state: PrivateState, keys: Iterable[str], registers: Registers
) -> dict[str, str]:
    """Key → public name: the one it has already, a declared one, or the next number."""
    fleet = config.fleet
    given = {key: entry.name for key, entry in (registers.earlier | registers.own).items()}
    for key, name in fleet.names.items():
        if given.setdefault(key, name) != name:
            raise ConfigError(
                f"the feeder '{key}' has the public name '{given[key]}' already; remove it from fleet.names"
            )
    taken = set(given.values())
    if len(taken) < len(given):
        raise ConfigError("a public name of fleet.names belongs to another feeder already; choose another")
    numbers = (name for k in itertools.count(1) if (name := f"feeder-{k:04d}") not in taken)
    new = [key for key in keys if key not in given]
    for key in sorted(new, key=lambda key: _order(state, fleet.id, key)):
        given[key] = next(numbers)
    return {key: given[key] for key in keys}


def _order(state: PrivateState, fleet_id: str, key: str) -> str:
    return state.identity("order of the feeders", [fleet_id.encode(), b"\0", key.encode()])


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


@dataclass(frozen=True)
class Registers:
    """PRIVATE. Key → what is kept of a feeder: by this fleet, and by the one that it continues."""

    own: dict[str, Registered]
    earlier: dict[str, Registered]


def read_registers(config: FleetConfig, state: PrivateState) -> Registers:
    """PRIVATE. What this fleet and the one that it continues have kept.

    Raises
    ------
    ConfigError : nothing is kept of the fleet that it continues.
    """
    fleet = config.fleet
    earlier = {} if fleet.continues is None else read_register(state, fleet.continues)
    if fleet.continues is not None and not earlier:
        raise ConfigError(
            f"fleet.continues names the fleet '{fleet.continues}', which this private state does not know"
        )
    return Registers(read_register(state, fleet.id), earlier)


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
        return {key: _registered(item) for key, item in json.loads(stored).items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise PrivacyError(
            f"{REGISTER_FILE} of fleet '{fleet_id}' in the private state is damaged; restore it from a "
            "backup; nothing was spent",
            code="ledger-damaged",
        ) from None


def _registered(item: dict[str, Any]) -> Registered:
    name, charged = item["name"], item["charged under"]
    if not (isinstance(charged, list) and all(isinstance(text, str) for text in (name, *charged))):
        raise ValueError
    return Registered(name, tuple(charged))


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
    taps = None if "taps" in own.removed("feeder") else _taps(config, key)
    feeder = _shared(config.feeder, own.removed("feeder")) | {"source": source, "taps": taps}
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
    if config.calendar.model_fields_set:
        sections["calendar"] = config.calendar.model_dump()
    if config.weather is not None:
        sections["weather"] = config.weather.model_dump()
    if config.publication.model_fields_set:
        sections["publication"] = config.publication.model_dump()
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


def _taps(config: FleetConfig, key: str) -> Path | None:
    folder = config.feeder.taps
    path = None if folder is None else folder / f"{key}.csv"
    return path if path is not None and path.is_file() else None


def feeders_of(config: FleetConfig, state: PrivateState, ledger: Ledger) -> tuple[FleetFeeder, ...]:
    """The feeders of the fleet in the order of their public names. None of them is opened.

    Raises
    ------
    ConfigError : a glob matches nothing, or what the config says of a feeder is not usable.
    PrivacyError : the ledger has networks that the config does not relate to this fleet.
    """
    sources = find_sources(config)
    registers = read_registers(config, state)
    names = public_names(config, state, sources, registers)
    accounts = network_accounts(config, ledger)
    known = known_networks(config, accounts, registers)
    refuse_unexplained(config, sources, accounts, known)
    own = frozenset(account.name for account in accounts if account.fleet == config.fleet.id)
    unrelated = unrelated_of(config, sources, known, own)
    made, problems = [], []
    for key, source in sources.items():
        network = known.continued.get(key) or unrelated(key)
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
class Known:
    """PRIVATE. Key of a feeder, listed or not → account of its network.

    Attributes
    ----------
    continued : what an earlier fleet charged for it, or what the config says it continues.
    charged : all of that, and what this fleet charged for it.
    """

    continued: Mapping[str, str]
    charged: Mapping[str, str]

    def new(self, keys: Iterable[str]) -> list[str]:
        """Those feeders that will be made and have no account."""
        return sorted(key for key in keys if key not in self.charged)

    def of(self, keys: Iterable[str]) -> set[str]:
        """Accounts of those feeders that have one."""
        return {self.charged[key] for key in keys if key in self.charged}


def network_accounts(config: FleetConfig, ledger: Ledger) -> list[Account]:
    kind = registered(config.network.mode).account_kind
    return [account for account in ledger.summary().accounts if account.kind is kind]


def known_networks(config: FleetConfig, accounts: list[Account], registers: Registers) -> Known:
    fleet = config.fleet
    declared = {
        key: own.continues_network
        for key, own in config.overrides.items()
        if own.continues_network is not None
    }
    unknown = set(declared.values()) - {account.name for account in accounts}
    if unknown:
        raise PrivacyError(
            f"overrides let a feeder continue the account '{min(unknown)}', and the ledger has "
            f"{_list_of(accounts)} of that kind; name one of them"
        )
    earlier = (
        {}
        if fleet.continues is None
        else _charged_by(fleet.continues, _charged_ids(fleet.continues, registers.earlier), accounts)
    )
    continued = earlier | declared
    # Twins of another fleet may have the same ids; what this fleet pays is in its own accounts or in these.
    mine = [item for item in accounts if item.fleet == fleet.id or item.name in continued.values()]
    charged = _charged_by(fleet.id, _charged_ids(fleet.id, registers.own), mine)
    return Known(continued, charged | continued)


def _charged_ids(fleet_id: str, register: Mapping[str, Registered]) -> dict[str, set[str]]:
    """Key → ids that the network of the feeder may be charged under; the register may lack the last."""
    return {
        key: {*entry.charged_under, release_id_of(fleet_id, entry.name)} for key, entry in register.items()
    }


def _charged_by(
    fleet_id: str, charged_ids: Mapping[str, Collection[str]], accounts: list[Account]
) -> dict[str, str]:
    """Key → account that a fleet charged for the feeder of that key."""
    ordered = sorted(accounts, key=lambda account: account.fleet == fleet_id)  # its own accounts win
    account_of = {spend.release_id: account.name for account in ordered for spend in account.spends}
    return {
        key: account_of[charged]
        for key, ids in charged_ids.items()
        for charged in sorted(ids)
        if charged in account_of
    }


def refuse_unexplained(
    config: FleetConfig,
    keys: Collection[str],
    accounts: list[Account],
    known: Known,
) -> None:
    """A re-export of a network that was charged before must not start with a full budget."""
    fleet = config.fleet
    new = known.new(keys)
    if not new:
        return
    named = frozenset() if fleet.unrelated is None else fleet.unrelated.accounts
    unknown = named - {account.name for account in accounts}
    if unknown:
        raise PrivacyError(
            f"fleet.unrelated names {spelled(unknown)}, but the ledger has {_list_of(accounts)} of that "
            "kind; name existing accounts"
        )
    explained = known.of(keys) | named
    former = {account: key for key, account in known.charged.items() if account not in explained}
    # An account that this fleet opened and never charged has nothing to be used twice.
    others = {item.name for item in accounts if item.fleet != fleet.id or item.spends}
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


def unrelated_of(
    config: FleetConfig, keys: Collection[str], known: Known, own: frozenset[str]
) -> Callable[[str], Unrelated]:
    """What the ledger records when the account of a feeder's network is opened, by key.

    Accounts that this fleet opened need no names. Naming all of them for every feeder would take words and
    time that grow with the square of the fleet.

    Parameters
    ----------
    own : accounts that this fleet opened.
    """
    fleet, also, alike = config.fleet, config.fleet.unrelated, config.fleet.same_frame
    declared = frozenset() if also is None else also.accounts
    listed = frozenset(known.of(keys))
    reasons = [f"another feeder of fleet '{fleet.id}'"] + ([] if also is None else [also.reason])
    outside = listed - own
    other = Unrelated(outside | declared, "; ".join(reasons), fleet.id, outside - declared)
    if alike is None:
        return lambda _: other
    explained = frozenset(known.of(alike.feeders))
    named = outside | (listed & explained)
    unnamed = named - declared - explained
    reasons.append(f"same frame: {alike.reason}")
    same = Unrelated(named | declared, "; ".join(reasons), fleet.id, unnamed, same_frame=True)
    keys_alike = frozenset(alike.feeders)
    return lambda key: same if key in keys_alike else other


def _list_of(accounts: list[Account]) -> str:
    return spelled(account.name for account in accounts) or "none"
