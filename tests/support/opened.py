"""Published feeders that tests look at and do not change: read once by a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder


@cache
def opened_once(source: str | Path, *, drop_islanded: bool = False) -> Feeder:
    """The feeder of a file or a name; large ones take seconds to read."""
    return open_feeder(source, drop_islanded=drop_islanded)
