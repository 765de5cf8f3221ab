"""What the corpus of a fleet is called on disk: its file, the directories of its feeders, their releases."""

from __future__ import annotations

import os
import re
from pathlib import Path

FLEET_FILE = "fleet.json"


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


def is_fleet(path: str | os.PathLike[str]) -> bool:
    """Whether a directory is the corpus of a fleet, finished or not."""
    directory = Path(path)
    return (directory / FLEET_FILE).is_file() or (
        directory.is_dir() and any(directory.glob(f"{partition('')}*"))
    )
