"""A release on meter data of one's own: a file of readings and a service map, with a mistake if wanted."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config, parse_config
from dp_powerflow.units import FloatArray
from support.own_config import CIRCUIT

FIRST = dt.date(2024, 3, 4)
STEPS, DAYS, CUSTOMERS = 24, 3, 100
SCALE_KW = 10.0
TWIN: dict[str, Any] = {"mode": "twin-network", "id": "t1", "epsilon": 4.0, "change": 0.05}


def good_readings() -> FloatArray:
    """(customer, day, step) [kW] of households: the scale tells their level within a tenth."""
    rng = np.random.default_rng(11)
    level = 0.5 * np.exp(0.1 * rng.standard_normal((CUSTOMERS, 1, 1)))
    day = 1.0 + 0.6 * np.sin(np.linspace(0.0, 2 * np.pi, STEPS, endpoint=False))
    readings: FloatArray = level * day * np.exp(0.3 * rng.standard_normal((CUSTOMERS, DAYS, STEPS)))
    return readings


def names() -> list[str]:
    """Customers that no message may name."""
    return [f"secret-{100 + i}" for i in range(CUSTOMERS)]


@dataclass
class OwnMeters:
    """The files, before they are written: change what is to be wrong.

    Attributes
    ----------
    in_file, listed : customers of the meter file and of the service map.
    readings : as they are written; NaN leaves the row out.
    scales : whether the service map has public scales.
    """

    in_file: list[str] = field(default_factory=names)
    listed: list[str] = field(default_factory=names)
    readings: FloatArray = field(default_factory=good_readings)
    scales: bool = True

    def config(self, folder: Path, **sections: Mapping[str, Any]) -> Config:
        """Write the files and the config."""
        (folder / "net.dss").write_text(CIRCUIT)
        self._write_meters(folder / "meters.csv")
        with (folder / "services.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["customer", "load_point", *["scale_kw"] * self.scales])
            writer.writerows([name, f"p{i}", *[SCALE_KW] * self.scales] for i, name in enumerate(self.listed))
        raw: dict[str, dict[str, Any]] = {
            "feeder": {"source": "net.dss"},
            "loads": {
                **{"kind": "long", "path": "meters.csv", "services": "services.csv", "step_minutes": 60},
                **{"first_day": FIRST, "last_day": FIRST + dt.timedelta(days=DAYS - 1)},
            },
            "model": {"epsilon": 4.0, "bounds": (0.001, 3.0), "use_scale": self.scales},
            "network": TWIN,
            "release": {"id": "own", "days": 2, "output": "out", "state": "state", "insecure_seed": 7},
        }
        return parse_config(
            {name: {**values, **sections.get(name, {})} for name, values in raw.items()}, base=folder
        )

    def _write_meters(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["customer", "time", "active"])
            for (i, day, step), value in np.ndenumerate(self.readings):
                if not np.isnan(value):
                    moment = dt.datetime.combine(FIRST, dt.time(step)) + dt.timedelta(days=day)
                    writer.writerow([self.in_file[i], moment.isoformat(), f"{value:.9g}"])
