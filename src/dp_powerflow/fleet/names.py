"""What the corpus of a fleet is called on disk: its file, the directories of its feeders, their releases."""

from __future__ import annotations

import os

from dp_powerflow.corpus.storage import RemotePath, loading, location

FLEET_FILE = "fleet.json"
PAGE_FILE = "fleet.html"


def partition(name: str) -> str:
    """Directory of a feeder, in the form that readers of partitioned data sets know."""
    return f"feeder={name}"


def feeder_of(directory: str) -> str | None:
    """Public name of the feeder whose directory this is; None if it is of no feeder."""
    prefix = partition("")
    return directory.removeprefix(prefix) if directory.startswith(prefix) else None


def release_id_of(fleet_id: str, name: str) -> str:
    """Id of a feeder's release; neither part has an underscore."""
    return f"{fleet_id}_{name}"


def is_release_of(release_id: str, fleet_id: str, name: str) -> bool:
    """Whether a release is the one of this feeder of this fleet."""
    return release_id == release_id_of(fleet_id, name)


def is_fleet(path: str | os.PathLike[str] | RemotePath) -> bool:
    """Whether a directory or a URL is the corpus of a fleet, finished or not."""
    place = location(path)
    if isinstance(place, RemotePath):
        with loading(place):
            there = place.children()
        return FLEET_FILE in there or any(feeder_of(item) is not None for item in there)
    return (place / FLEET_FILE).is_file() or (place.is_dir() and any(place.glob(f"{partition('')}*")))
