"""Folders in which blocks of the docs run, with what the pages call `release`, `fleet.toml` and so on."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path
from typing import Any

from dp_powerflow.config import read_config
from dp_powerflow.pipeline.release import run_release
from support import fleet_small
from support.small import RAW, write_toml

_FIRST_DAY = dt.date(2023, 1, 1)
_OPERATED: dict[str, dict[str, Any]] = {
    "feeder": RAW["feeder"],
    "loads": RAW["loads"],
    "model": RAW["model"],
    "nodes": {"load_class": "residential", "kw_per_customer": 10.0},
    "weather": {"path": "weather.csv", "temperature": "t2m", "irradiance": "ghi"},
    "network": {"mode": "twin-network", "epsilon": 1.0, "id": "t1", "change": 0.05, "released": "all"},
    "release": {"id": "docs", "days": 8, "output": "release", "state": "private-state", "insecure_seed": 7},
}


def make_operated(folder: Path) -> None:
    """A release on the twin of IEEE 13 with acting controls and weather: config, private state, release."""
    with (folder / "weather.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "t2m", "ghi"])
        for number in range(2 * 365):
            writer.writerow([_FIRST_DAY + dt.timedelta(number), 9 + number % 7, 100 + number % 11])
    config = write_toml(folder / "release.toml", _OPERATED)
    run_release(read_config(config), workers=1)


def make_fleet(folder: Path) -> None:
    """Files of a small fleet on twins, not yet made."""
    fleet_small.write_feeders(folder, repaired=True)
    two = fleet_small.KEYS[:2]
    listed = {
        "feeders": [f"feeders/{key}.dss" for key in two],
        "days": 8,
        "same_frame": {"feeders": list(two), "reason": "a standard design"},
    }
    raw = {
        **fleet_small.RAW,
        "fleet": {**fleet_small.RAW["fleet"], **listed},
        "network": fleet_small.TWIN,
        "nodes": {"load_class": "residential", "kw_per_customer": 20.0},
    }
    (folder / "fleet.toml").write_text(fleet_small.toml_of(raw), encoding="utf-8")
