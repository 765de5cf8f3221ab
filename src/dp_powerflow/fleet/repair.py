"""Repair of a fleet: what its owner asks beside making what is missing. INTERNAL.

A feeder is called by its key or by its public name. Taking one out removes it from the corpus and nothing
else: its account, its charges and its name stay, and copies of what was published stay published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dp_powerflow.errors import ConfigError
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.feeders import (
    FleetFeeder,
    damaged,
    read_register,
    replace_register,
)
from dp_powerflow.fleet.publishing import Shelf
from dp_powerflow.pipeline.modes.base import INTERNAL
from dp_powerflow.privacy.state import PrivateState

FAILURES_FILE = "failures.json"


@dataclass(frozen=True)
class Repair:
    """What a run of a fleet may do beside making what is missing.

    Attributes
    ----------
    retry : feeders that may begin a new attempt, if they were begun with another file or other settings.
    retry_failed : whether all feeders that failed in the last run may.
    restore : feeders that were withdrawn and are to be made again.
    """

    retry: tuple[str, ...] = ()
    retry_failed: bool = False
    restore: tuple[str, ...] = ()

    def retried(
        self, config: FleetConfig, state: PrivateState, feeders: Sequence[FleetFeeder], shelf: Shelf
    ) -> set[str]:
        """Keys of the feeders that may begin a new attempt.

        Raises
        ------
        ConfigError : a feeder that is named is not there, or is released already.
        """
        keys = _keys_of(self.retry, {feeder.key: feeder.name for feeder in feeders})
        for feeder in feeders:
            if feeder.key in keys and shelf.has(feeder.name):
                raise ConfigError(
                    f"feeder '{feeder.name}' is released; to replace it, first take it out with --withdraw "
                    f"{feeder.name}, then run with --restore {feeder.name} --retry {feeder.name}"
                )
        failed = {item["feeder"] for item in read_failures(state, config.fleet.id)}
        return keys | (failed if self.retry_failed else set())


AS_IT_IS = Repair()


def restore(config: FleetConfig, state: PrivateState, wanted: Collection[str]) -> None:
    """Let withdrawn feeders be made again, with their names and ids; nothing is made yet.

    Raises
    ------
    ConfigError : a feeder was not withdrawn.
    """
    if not wanted:
        return
    kept = read_register(state, config.fleet.id)
    keys = _keys_of(wanted, {key: entry.name for key, entry in kept.items()})
    present = sorted(kept[key].name for key in keys if not kept[key].withdrawn)
    if present:
        raise ConfigError(f"feeder '{present[0]}' was not withdrawn; leave it out of --restore")
    kept |= {key: replace(kept[key], withdrawn=False) for key in keys}
    replace_register(state, config.fleet.id, kept)


def withdraw(
    config: FleetConfig, state: PrivateState, wanted: Collection[str], remove: Callable[[str], None]
) -> tuple[str, ...]:
    """Take feeders out of a fleet: out of the corpus, and out of what is made. Public names of them.

    Parameters
    ----------
    remove : removes the feeder of a public name from the corpus, if it is there.

    Raises
    ------
    ConfigError : a feeder was never part of the fleet.
    """
    fleet_id, kept = config.fleet.id, read_register(state, config.fleet.id)
    keys = _keys_of(wanted, {key: entry.name for key, entry in kept.items()})
    kept |= {key: replace(kept[key], withdrawn=True) for key in keys}
    replace_register(state, fleet_id, kept)  # first: a run that is killed now is finished by the next one
    left = [item for item in read_failures(state, fleet_id) if item["feeder"] not in keys]
    keep_failures(state, fleet_id, left)
    return remove_withdrawn(config, state, remove)


def remove_withdrawn(
    config: FleetConfig, state: PrivateState, remove: Callable[[str], None]
) -> tuple[str, ...]:
    """Remove whatever was withdrawn from the corpus; also what a killed run has left. Public names."""
    entries = read_register(state, config.fleet.id).values()
    names = sorted(entry.name for entry in entries if entry.withdrawn)
    for name in names:
        remove(name)
    return tuple(names)


def read_names(state: PrivateState, fleet_id: str) -> set[str]:
    """Public names of all feeders that a fleet ever had."""
    return {entry.name for entry in read_register(state, fleet_id).values()}


def read_failures(state: PrivateState, fleet_id: str) -> list[dict[str, str]]:
    """INTERNAL. Feeders that failed in the last run: key, public name and why.

    Raises
    ------
    PrivacyError : the file is damaged.
    """
    stored = state.read_internal(fleet_id, FAILURES_FILE)
    if stored is None:
        return []
    try:
        failed = list(json.loads(stored)["failed"])
        if not all(isinstance(item[key], str) for item in failed for key in ("feeder", *item)):
            raise ValueError
    except (ValueError, LookupError, TypeError, RecursionError):
        raise damaged(FAILURES_FILE, fleet_id) from None
    return failed


def keep_failures(state: PrivateState, fleet_id: str, failed: Sequence[Mapping[str, str]]) -> None:
    """INTERNAL. Keep them."""
    content = {"marking": INTERNAL, "fleet": fleet_id, "failed": list(failed)}
    state.write_internal(fleet_id, FAILURES_FILE, json.dumps(content, indent=1, ensure_ascii=False).encode())


def _keys_of(wanted: Iterable[str], names: Mapping[str, str]) -> set[str]:
    """Keys of feeders that are called by key or by public name."""
    key_of = {name: key for key, name in names.items()}
    found = set()
    for called in wanted:
        keys = {key_of.get(called), called if called in names else None} - {None}
        if len(keys) > 1:
            raise ConfigError(
                f"'{called}' is the key of one feeder and the name of another; use its other name"
            )
        if not keys:
            raise ConfigError(
                f"the fleet has no feeder '{called}'; give its public name, or its path from the first "
                "wildcard on, without the extension"
            )
        found |= keys
    return {key for key in found if key is not None}
