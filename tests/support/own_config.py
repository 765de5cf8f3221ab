"""A private release small enough for experiments: an OpenDSS file, long meter data, the sun of one day."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.units import FloatArray
from support.small import raw_config, write_toml
from support.small_circuits import script

STEPS, DAYS, POINTS = 6, 5, 24
SCALE_KW = 10.0

CIRCUIT = script("own")
RAW = raw_config("own")


def write_meters(path: Path, names: Sequence[str], readings: FloatArray, first: dt.date) -> None:
    """A long file of readings (customer, day, step); NaN leaves the row out."""
    minutes, begin = 24 * 60 // readings.shape[2], dt.datetime.combine(first, dt.time())
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "time", "active"])
        for (i, day, step), value in np.ndenumerate(readings):
            if not np.isnan(value):
                stamp = begin + dt.timedelta(days=day, minutes=step * minutes)
                writer.writerow([names[i], stamp.isoformat(), f"{value:.9g}"])


def write_services(path: Path, rows: Iterable[tuple[Any, ...]], *, scales: bool, nodes: bool = False) -> None:
    """A service map of rows of customer and load point, and node if wanted."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "load_point", *["node"] * nodes, *["scale_kw"] * scales])
        writer.writerows([*row, *[SCALE_KW] * scales] for row in rows)


def write_own(folder: Path, *, nodes: dict[int, str] | None = None, scales: bool = True) -> Path:
    """The files and the config in a folder; `nodes` says what some of the load points feed."""
    (folder / "net.dss").write_text(CIRCUIT)
    (folder / "sun.txt").write_text("\n".join(["0", "0.1", "0.7", "0.9", "0.3", "0"]))
    readings = 5.0 * np.exp(0.3 * np.random.default_rng(1).standard_normal((POINTS, DAYS, STEPS)))
    readings[7, :, 0] = 0.0  # a customer without load at night
    names = [f"c{point}" for point in range(POINTS)]
    write_meters(folder / "meters.csv", names, readings, RAW["loads"]["first_day"])
    rows = ((name, name, (nodes or {}).get(point, "")) for point, name in enumerate(names))
    write_services(folder / "services.csv", rows, scales=scales, nodes=True)
    return write_toml(folder / "own.toml", RAW)


def with_keys(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The config with some keys of some sections replaced."""
    return {name: {**values, **sections.get(name, {})} for name, values in RAW.items()}
