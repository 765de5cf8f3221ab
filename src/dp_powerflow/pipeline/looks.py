"""Who has looked at what: settings under which something INTERNAL was shown, kept in the private state.

Choosing a setting by what private data show is a leak that no guarantee covers. It cannot be forbidden, so it
is recorded: a release states which settings differ from those of an earlier look. Looks count for the whole
state directory, since whoever changes a setting may change the release id too. Only public settings are kept;
of files, keyed hashes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.state import PrivateState

LOOKS_FILE = "looks.json"
_FORMAT = "dp-powerflow looks, format 1"
_NOT_SETTINGS: dict[str, set[str] | bool] = {
    "release": {
        *("id", "output", "state", "insecure_seed", "epsilon_cap", "network_epsilon_cap"),
        *("network_delta_cap", "continues_loads", "continues_network"),
    },
    "feeder": {"source"},
    "loads": {"path"},
    "publication": True,
}
"""Where things are, what may be spent, who publishes it: no choice that private data could have led to."""
_FILES = (
    *(("feeder", "taps"), ("feeder", "loads"), ("loads", "services"), ("loads", "classes")),
    *(("pv", "irradiance"), ("calendar", "holidays"), ("weather", "path")),
)


def record_look(config: Config, state: PrivateState, what: str) -> None:
    """Keep the settings under which something INTERNAL was shown; the same settings are kept once.

    Parameters
    ----------
    what : the command that showed it.
    """
    release_id, entry = config.release.id, {"by": what, "settings": _settings(config, state)}
    known = _read(state, release_id)
    if entry not in known:
        content = {"format": _FORMAT, "looks": [*known, entry]}
        state.write_internal(release_id, LOOKS_FILE, json.dumps(content, indent=1, sort_keys=True).encode())


def changed_settings(config: Config, state: PrivateState) -> tuple[str, ...]:
    """PUBLIC. Keys of the config whose values differ from those of any earlier look in this state directory.

    A key that a look did not know, from another version, is not compared. Of a section that is there in one
    and not in the other, or of another network mode, the section or `network.mode` is named alone.
    """
    return Looks.read(state).changed(config)


@dataclass(frozen=True, eq=False)
class Looks:
    """All looks of a state directory, read once for many releases."""

    state: PrivateState
    settings: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, state: PrivateState) -> Looks:
        """Those that the directory holds now."""
        kept = (release_id for release_id, names in state.internal_files() if LOOKS_FILE in names)
        return cls(state, tuple(look["settings"] for each in kept for look in _read(state, each)))

    def changed(self, config: Config) -> tuple[str, ...]:
        """As `changed_settings`."""
        if not self.settings:
            return ()
        now = _settings(config, self.state)
        return tuple(sorted(set().union(*(_differences(now, then) for then in self.settings))))


def _settings(config: Config, state: PrivateState) -> dict[str, Any]:
    """Section → key → value; None for a section that is not there."""
    settings: dict[str, Any] = config.model_dump(mode="json", exclude=_NOT_SETTINGS)
    for section, key in _FILES:
        path = (settings[section] or {}).get(key)
        if isinstance(path, str) and Path(path).is_file():
            settings[section][key] = state.identity(f"look at {section}.{key}", [Path(path).read_bytes()])
    return settings


def _differences(now: dict[str, Any], then: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    for section in now.keys() & then.keys():
        new, old = now[section], then[section]
        if new is None or old is None:
            found |= {section} if new != old else set()
        elif new.get("mode") != old.get("mode"):
            found.add(f"{section}.mode")
        else:
            found |= {f"{section}.{key}" for key in new.keys() & old.keys() if new[key] != old[key]}
    return found


def _is_settings(content: Any) -> bool:
    """Whether something that was read can be what `_settings` gives."""
    sections = content.values() if isinstance(content, dict) else [False]
    return all(section is None or isinstance(section, dict) for section in sections)


def _read(state: PrivateState, release_id: str) -> list[dict[str, Any]]:
    stored = state.read_internal(release_id, LOOKS_FILE)
    if stored is None:
        return []
    try:
        content = json.loads(stored)
        looks: list[dict[str, Any]] = content["looks"]
        if content["format"] != _FORMAT or not all(_is_settings(look["settings"]) for look in looks):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PrivacyError(
            f"{LOOKS_FILE} of release '{release_id}' in the private state is damaged; restore it from a "
            "backup; nothing was spent"
        ) from None
    return looks
