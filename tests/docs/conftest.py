"""What the tests of the docs share: the built site, and folders in which blocks of pages run.

In a folder lies what the pages call `release`, `fleet.toml` and so on.
"""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.config import read_config
from dp_powerflow.pipeline.release import run_release
from support import fleet_small
from support.pages_that_run import Site, build_site
from support.small import RAW, write_toml

_FIRST_DAY = dt.date(2023, 1, 1)
_OPERATED: dict[str, dict[str, Any]] = {
    **{name: RAW[name] for name in ("feeder", "loads", "model")},
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


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site, built once."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the docs group is not installed: pip install --group docs")
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders by name; pages run in copies of them."""
    made = {"operated": make_operated, "fleet": make_fleet}
    folders = {name: tmp_path_factory.mktemp(name) for name in made}
    for name, make in made.items():
        make(folders[name])
    return folders
