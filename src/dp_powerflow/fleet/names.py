"""What the corpus of a fleet is called on disk, and what a run of it tells.

Events hold public names, so that whoever listens may show them. That a feeder failed is INTERNAL.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from dp_powerflow.corpus.storage import RemotePath, loading, location

FLEET_FILE = "fleet.json"
PAGE_FILE = "fleet.html"


def partition(name: str) -> str:
    """Directory of a feeder, in the form that readers of partitioned data sets know."""
    return f"feeder={name}"


def release_id_of(fleet_id: str, name: str) -> str:
    """Id of a feeder's release, or of its twin; neither fleet nor name has an underscore."""
    return f"{fleet_id}_{name}"


def feeder_of(directory: str) -> str | None:
    """Public name of the feeder whose directory this is; None if it is of no feeder."""
    prefix = partition("")
    return directory.removeprefix(prefix) if directory.startswith(prefix) else None


def is_release_of(release_id: str, fleet_id: str, name: str) -> bool:
    """Whether a release is that of this feeder of this fleet."""
    return release_id == release_id_of(fleet_id, name)


def is_fleet(path: str | os.PathLike[str] | RemotePath) -> bool:
    """Whether a directory or a URL is the corpus of a fleet, finished or not."""
    place = location(path)
    if isinstance(place, RemotePath):
        with loading(place):
            there = place.children()
        return FLEET_FILE in there or any(feeder_of(item) is not None for item in there)
    return (place / FLEET_FILE).is_file() or (place.is_dir() and any(place.glob(f"{partition('')}*")))


FeederState = Literal["waiting", "checking", "checked", "paid", "solving", "released", "failed"]
"""In the order in which a feeder goes through them; the last two are ends."""
STATES: tuple[FeederState, ...] = get_args(FeederState)
ENDS: tuple[FeederState, ...] = ("released", "failed")


@dataclass(frozen=True)
class FeederEvent:
    """The feeder of a public name is in a state now."""

    name: str
    state: FeederState


class OnEvent(Protocol):
    """Hears events; one at a time, from the thread that runs the fleet."""

    def __call__(self, event: FeederEvent, /) -> None: ...


def hear_nothing(_: FeederEvent) -> None:
    """For a run that nobody watches."""


def counted(on_progress: Callable[[int, int], None]) -> OnEvent:
    """Hears events, and tells how many feeders are released or failed, and of how many."""
    ended: dict[str, bool] = {}

    def hear(event: FeederEvent) -> None:
        before, now = ended.get(event.name, False), event.state in ENDS
        ended[event.name] = now
        if now != before:
            on_progress(sum(ended.values()), len(ended))

    return hear
