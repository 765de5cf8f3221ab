"""What the tests of the docs share: the built site, and folders in which blocks of pages run.

In a folder lies what the pages call `release`, `fleet.toml` and so on.
"""

from __future__ import annotations

import csv
import datetime as dt
import shutil
from pathlib import Path

import pytest

from dp_powerflow.config import read_config
from dp_powerflow.pipeline.release import run_release
from support.fleet_small import write_feeders
from support.pages_that_run import Site, build_site
from support.small import CONFIGS

_FIRST_DAY = dt.date(2023, 1, 1)


def make_operated(folder: Path) -> None:
    """A release on the twin of IEEE 13 with acting controls and weather: config, private state, release."""
    with (folder / "weather.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "t2m", "ghi"])
        for number in range(2 * 365):
            writer.writerow([_FIRST_DAY + dt.timedelta(number), 9 + number % 7, 100 + number % 11])
    shutil.copy(CONFIGS / "docs.toml", folder / "release.toml")
    run_release(read_config(folder / "release.toml"), workers=1)


def make_fleet(folder: Path) -> None:
    """Files of a small fleet on twins, not yet made."""
    write_feeders(folder, repaired=True)
    shutil.copy(CONFIGS / "docs-fleet.toml", folder / "fleet.toml")


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
