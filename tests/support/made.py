"""Finished releases that tests look at and do not change: one of each kind per run of pytest.

The fixtures `true_release`, `twin_release`, `operated_release`, `history_release` and `fleet_release` of
`conftest.py` make them when they are first asked for, for all workers of a run together. A test that tampers
with one copies it.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.config import Config
from dp_powerflow.fleet.feeders import FleetConfig
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.loads.simulate import calendar_of
from dp_powerflow.pipeline.release import run_release
from support import small
from support.fleet_small import KEYS, on_twins, write_feeders
from support.here import Here
from support.small import TABLES, raw_config, small_config

TWIN: dict[str, Any] = {**TABLES, "epsilon": 1.0, "delta": 0.0, "transformers": True, "capacitors": True}
OPERATED: dict[str, Any] = {
    **small.TWIN,
    **{"epsilon": 1.0, "delta": 0.0},
    "also_publish": ["loads", "head", "states", "connections"],
}
HISTORY = raw_config("history")


@dataclass(frozen=True)
class _Finished:
    """What was made in `folder`: `out` and `state`."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "out"

    @property
    def state(self) -> Path:
        return self.folder / "state"


@dataclass(frozen=True)
class Released(_Finished):
    """A finished release, and its config."""

    config: Config

    def copied(self, folder: Path) -> Path:
        """The release in another folder, to be changed."""
        return Path(shutil.copytree(self.path, folder / "copy"))


@dataclass(frozen=True)
class ReleasedFleet(_Finished):
    """A finished fleet, and its config."""

    config: FleetConfig


def true_config(folder: Path, **sections: dict[str, Any]) -> Config:
    """IEEE 13 as it is, frozen; some keys of some sections replaced."""
    return small_config(folder, **{**sections, "release": {"days": 40, **sections.get("release", {})}})


def twin_config(folder: Path, **sections: dict[str, Any]) -> Config:
    """A twin of IEEE 13 whose controls are frozen, published with its loads; some keys replaced."""
    network = {**TWIN, **sections.get("network", {})}
    return true_config(folder, **{**sections, "network": network})


def operated_config(folder: Path, **sections: dict[str, Any]) -> Config:
    """A twin of IEEE 13 as operated, at half of the nominal load; some keys replaced."""
    network = {**OPERATED, **sections.pop("network", {})}
    nodes = {"kw_per_customer": 2.2, **sections.pop("nodes", {})}
    release = {"days": 8, **sections.pop("release", {})}
    return small_config(folder, network=network, nodes=nodes, release=release, **sections)


def history_config(folder: Path, **sections: dict[str, Any]) -> Config:
    """Customers who persist, weather that moves them, on a frozen twin; some keys replaced."""
    given = {name: {**values, **sections.pop(name, {})} for name, values in HISTORY.items()}
    return small_config(folder, **given, **sections)


def write_weather(folder: Path, released_c: float = 5.0, metered_shift: float = 0.0) -> None:
    """The simulated temperature on the days of the meters, one temperature on the days of the release."""
    before, first = dt.date(2022, 12, 31), HISTORY["release"]["first_day"]
    days = tuple(before + dt.timedelta(days=k) for k in range(HISTORY["loads"]["days"] + 1))
    metered = calendar_of(days, seed=0).temperature + metered_shift
    rows = [f"{day},{value:.3f}" for day, value in zip(days, metered.tolist(), strict=True)]
    rows += [f"{first + dt.timedelta(days=k)},{released_c}" for k in range(-1, 10)]
    folder.mkdir(exist_ok=True)
    (folder / "weather.csv").write_text("\n".join(["date,air", *rows]) + "\n")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder in which something is made once for all workers of a run."""
    base = factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made"
    root.mkdir(exist_ok=True)
    folder, finished = root / name, root / f"{name}.finished"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


CONFIGS: dict[str, Callable[[Path], Config]] = {
    "true": true_config,
    "twin": twin_config,
    "operated": operated_config,
    "history": history_config,
}


def made_release(factory: pytest.TempPathFactory, kind: str) -> Released:
    """A release of a kind."""

    def make(folder: Path) -> None:
        if kind == "history":
            write_weather(folder)
        run_release(CONFIGS[kind](folder), workers=1)

    folder = once(factory, kind, make)
    return Released(folder, CONFIGS[kind](folder))


def made_fleet(factory: pytest.TempPathFactory) -> ReleasedFleet:
    """Two feeders of the small fleet, on twins."""
    two = {"feeders": [f"feeders/{key}.dss" for key in KEYS[:2]]}

    def make(folder: Path) -> None:
        write_feeders(folder)
        run_fleet(on_twins(folder, fleet=two), engine=Here())

    folder = once(factory, "fleet", make)
    return ReleasedFleet(folder, on_twins(folder, fleet=two))
