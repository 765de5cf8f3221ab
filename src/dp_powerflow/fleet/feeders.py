"""The feeders of a fleet: which there are, what they are called in public, and the config of each release.

A feeder's *key* is how the data owner calls it: the path of its file from the first wildcard of the glob on,
without the ending. Keys are PRIVATE: they stay in the config and in the private state directory. Public names
are declared, or numbers in the order of a keyed hash of the key, which says nothing. A name once given stays
with its key, whatever is added to the fleet later.
"""

from __future__ import annotations

import glob
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from dp_powerflow._names import alike
from dp_powerflow.config import Config, Section
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.fleet.config import OF_THE_FLEET, FleetConfig, Override, is_named, parse_feeder_config
from dp_powerflow.fleet.names import partition, release_id_of
from dp_powerflow.fleet.publishing import shelf_of
from dp_powerflow.grid.sources import BUILT_IN, SIMBENCH
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.privacy.ledger.records import Unrelated
from dp_powerflow.privacy.state import PrivateState

REGISTER_FILE = "feeders.json"
_WITHDRAWN = "withdrawn"
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class FleetFeeder:
    """One feeder of a fleet.

    Attributes
    ----------
    key : PRIVATE, how the data owner calls it.
    name : its public name.
    config : the config of its release, which is written to where `Shelf.output_of` says.
    attempt : number of the release; twin and load model do not change with it (see `attempts`).
    account : PRIVATE. Account of the ledger that its network was charged to before this run.
    """

    key: str
    name: str
    config: Config
    attempt: int = 1
    account: str | None = None

    @property
    def release_id(self) -> str:
        return self.config.release.id

    @property
    def charged_under(self) -> str:
        """What the charge of its network is recorded under: its release, or its twin."""
        return mode_of(self.config).paid_by

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
    withdrawn : whether the data owner took it out of the fleet; it is not made again until restored.
    """

    name: str
    charged_under: tuple[str, ...]
    withdrawn: bool = False


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
        raise damaged(REGISTER_FILE, fleet_id) from None


def _registered(item: dict[str, Any]) -> Registered:
    name, charged = item["name"], tuple(item["charged under"])
    withdrawn = item.get(_WITHDRAWN, False)
    texts = all(isinstance(text, str) for text in (name, *charged)) and isinstance(
        item["charged under"], list
    )
    if not texts or not isinstance(withdrawn, bool):
        raise ValueError
    return Registered(name, charged, withdrawn)


def damaged(file: str, fleet_id: str) -> PrivacyError:
    """A file that is kept of a fleet cannot be read."""
    return PrivacyError(
        f"{file} of fleet '{fleet_id}' in the private state is damaged; restore it from a backup; nothing "
        "was spent"
    )


def write_register(state: PrivateState, fleet_id: str, feeders: Iterable[FleetFeeder]) -> None:
    """Keep the names before anything is made under them; what was kept stays."""
    kept = read_register(state, fleet_id)
    for feeder in feeders:
        entry = kept.get(feeder.key, Registered(feeder.name, ()))
        charged = tuple(sorted({*entry.charged_under, feeder.charged_under}))
        kept[feeder.key] = replace(entry, name=feeder.name, charged_under=charged)
    replace_register(state, fleet_id, kept)


def replace_register(state: PrivateState, fleet_id: str, entries: Mapping[str, Registered]) -> None:
    """Keep these entries, and no others."""
    content = {
        key: {"name": item.name, "charged under": item.charged_under}
        | ({_WITHDRAWN: True} if item.withdrawn else {})
        for key, item in entries.items()
    }
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
