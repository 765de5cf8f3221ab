"""Customers for `load_model.py`: whole histories on one calendar, never resampled.

swiss      homes of `kwh_15min.parquet` in the folder that DP_POWERFLOW_SWISS names, seven weeks; those with a
           mean load between 0.05 and 8 kW, readings cut to 0.02 to 40 kW. Most meters count in steps of
           0.01 kWh, which is 0.04 kW.
simbench   the 80 profiles of SimBench that belong to a customer and not to a grid, per nominal power.
oedi       the 91 profiles of the folder that DP_POWERFLOW_OEDI names, relative to their nominal power.
(a file)   homes of any other file, `--meters`, by the same rules.
simulated  600 residential demo customers, seven weeks from Monday 2 January.

Of a year, seven weeks from the last Monday of October are taken, as the Swiss homes have them.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from pyarrow import csv

from dp_powerflow import LoadHistory, open_feeder
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.fidelity.metrics import Setting
from dp_powerflow.loads.history import SATURDAY
from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.lowlevel import simulate_load_history
from dp_powerflow.units import BoolArray, FloatArray
from dp_powerflow_paper.datasets import oedi_history, read_simbench

DAYS = 49
STEPS = 96
SWISS, OEDI = "DP_POWERFLOW_SWISS", "DP_POWERFLOW_OEDI"
_GRIDS = ("low voltage grid", "medium voltage grid", "high voltage grid")


@dataclass(frozen=True, eq=False)
class Customers:
    """A population.

    Parameters
    ----------
    name
        As on the command line.
    load_kw
        (customer, day, step) [kW, or per nominal kW], within the bounds.
    weekend
        (day,) Saturday or Sunday.
    bounds
        Declared (p_min, p_max).
    quantum_kw
        Resolution of the meters, None where there is none to speak of.
    """

    name: str
    load_kw: FloatArray
    weekend: BoolArray
    bounds: tuple[float, float]
    quantum_kw: float | None = None

    def setting(self, seed: int) -> Setting:
        """How its histories are compared."""
        return Setting(self.weekend, self.bounds[0], self.quantum_kw, seed)

    def halves(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Customers split at random: A is fitted, B is compared with."""
        order = np.random.default_rng(seed).permutation(len(self.load_kw))
        half = len(order) // 2
        return self.load_kw[order[:half]], self.load_kw[order[half : 2 * half]]


def swiss() -> Customers | None:
    folder = os.environ.get(SWISS)
    if folder is None:
        return None
    table = pq.read_table(Path(folder) / "kwh_15min.parquet")
    columns = [table.column(name).to_numpy() for name in table.column_names if name != "time"]
    load = 4 * np.array(columns, dtype=np.float64).reshape(len(columns), DAYS, STEPS)
    mean = load.mean(axis=(1, 2))
    bounds = (0.02, 40.0)
    kept = np.clip(load[(mean > 0.05) & (mean < 8.0)], *bounds)
    stamps = table.column("time").to_numpy()[::STEPS].astype("datetime64[D]").tolist()
    return Customers("swiss", kept, _weekend(tuple(stamps)), bounds, quantum_kw=0.04)


def meters(path: Path, quantity: str = "kWh", bounds: tuple[float, float] = (0.02, 40.0)) -> Customers:
    """Homes of a Parquet or CSV file: a column `time`, local, then one column per home, no gaps.

    As with the Swiss homes, those with a mean load between 0.05 and 8 kW are kept and readings cut to the
    bounds. Only whole days count.
    """
    table = pq.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    stamps = table.column("time").to_numpy().astype("datetime64[m]")
    step = int((stamps[1] - stamps[0]).astype(int))
    steps = 24 * 60 // step
    first = int(np.flatnonzero(stamps == stamps.astype("datetime64[D]"))[0])
    days = (len(stamps) - first) // steps
    rows = slice(first, first + days * steps)
    columns = [table.column(name).to_numpy()[rows] for name in table.column_names if name != "time"]
    load = np.array(columns, dtype=np.float64).reshape(len(columns), days, steps)
    if quantity == "kWh":
        load *= 60 / step
    mean = load.mean(axis=(1, 2))
    kept = np.clip(load[(mean > 0.05) & (mean < 8.0)], *bounds)
    dates = stamps[rows][::steps].astype("datetime64[D]").tolist()
    return Customers(path.stem, kept, _weekend(tuple(dates)), bounds, _quantum(load))


def _quantum(load_kw: FloatArray) -> float | None:
    """Resolution of the meters [kW]: the usual step between small readings; None below 5 W."""
    small = np.unique(np.round(load_kw[(load_kw > 0) & (load_kw < 1)], 6))
    step = float(np.median(np.diff(small))) if small.size > 1 else 0.0
    return step if step >= 0.005 else None


def simbench() -> Customers:
    history = read_simbench()
    own = [p for p, c in zip(history.load_points, history.class_label, strict=True) if c not in _GRIDS]
    return _seven_weeks("simbench", history.select(load_points=own), (1e-2, 1.0))


def oedi() -> Customers | None:
    folder = os.environ.get(OEDI)
    if folder is None:
        return None
    return _seven_weeks("oedi", oedi_history(Path(folder), open_feeder("ieee123")), (1e-2, 1.0))


def simulated() -> Customers:
    history = simulate_load_history(600, n_days=DAYS + 1, classes=DEMO_CLASSES[:1])
    bounds = (0.005, 50.0)
    return Customers(
        "simulated", np.clip(history.load_kw[:, 1:], *bounds), _weekend(history.days[1:]), bounds
    )


MAKERS: dict[str, Callable[[], Customers | None]] = {
    "swiss": swiss,
    "simbench": simbench,
    "oedi": oedi,
    "simulated": simulated,
}


def open_populations(names: list[str]) -> Iterator[Customers]:
    """The populations that are at hand, one after the other; says which are not."""
    for name in names:
        try:
            customers = MAKERS[name]()
        except (DpPowerflowError, OSError) as error:
            print(f"{name}: left out. {error}")
            continue
        if customers is None:
            print(f"{name}: left out; its folder is not named by {SWISS if name == 'swiss' else OEDI}.")
        else:
            yield customers


def _seven_weeks(name: str, history: LoadHistory, bounds: tuple[float, float]) -> Customers:
    """Seven weeks of autumn, relative to the public scale."""
    assert history.scale_kw is not None
    monday = dt.date(history.days[0].year, 10, 31)
    monday -= dt.timedelta(days=monday.weekday())
    first = history.days.index(monday)
    days = history.days[first : first + DAYS]
    load = history.load_kw[:, first : first + DAYS] / history.scale_kw[:, None, None]
    return Customers(name, np.clip(load, *bounds), _weekend(days), bounds)


def _weekend(days: tuple[dt.date, ...]) -> BoolArray:
    return np.array([day.weekday() >= SATURDAY for day in days])
