"""What the corpus of a fleet is called on disk: its file, the directories of its feeders, their releases."""

from __future__ import annotations

import os
import re

from dp_powerflow.corpus.storage import RemotePath, loading, location

FLEET_FILE = "fleet.json"
PAGE_FILE = "fleet.html"


def partition(name: str) -> str:
    """Directory of a feeder, in the form that readers of partitioned data sets know."""
    return f"feeder={name}"


def release_id_of(fleet_id: str, name: str, attempt: int = 1) -> str:
    """Id of a feeder's release, or of its twin; neither fleet nor name has an underscore.

    Parameters
    ----------
    attempt : from the second on the id ends in its number.
    """
    return f"{fleet_id}_{name}" if attempt == 1 else f"{fleet_id}_{name}_{attempt}"


def attempt_of(release_id: str, fleet_id: str, name: str) -> int | None:
    """Which attempt at a feeder of a fleet a release is; None if it is something else."""
    first = re.escape(release_id_of(fleet_id, name))
    found = re.fullmatch(rf"{first}(?:_([2-9]|[1-9][0-9]+))?", release_id)
    return None if found is None else int(found[1] or 1)


def first_id_of(release_id: str) -> str:
    """Id of the first attempt at the feeder that a release, or a twin, is of."""
    return "_".join(release_id.split("_")[:2])


def feeder_of(directory: str) -> str | None:
    """Public name of the feeder whose directory this is; None if it is of no feeder."""
    prefix = partition("")
    return directory.removeprefix(prefix) if directory.startswith(prefix) else None


def is_release_of(release_id: str, fleet_id: str, name: str) -> bool:
    """Whether a release is an attempt at this feeder of this fleet."""
    return attempt_of(release_id, fleet_id, name) is not None


def is_fleet(path: str | os.PathLike[str] | RemotePath) -> bool:
    """Whether a directory or a URL is the corpus of a fleet, finished or not."""
    place = location(path)
    if isinstance(place, RemotePath):
        with loading(place):
            there = place.children()
        return FLEET_FILE in there or any(feeder_of(item) is not None for item in there)
    return (place / FLEET_FILE).is_file() or (place.is_dir() and any(place.glob(f"{partition('')}*")))
