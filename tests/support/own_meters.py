"""A release on meter data of one's own: a file of readings and a service map, with a mistake if wanted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config, parse_config
from dp_powerflow.units import FloatArray
from support.own_config import CIRCUIT, write_meters, write_services
from support.small import raw_config

FIRST = dt.date(2024, 3, 4)
STEPS, DAYS, CUSTOMERS = 24, 3, 100
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
        write_meters(folder / "meters.csv", self.in_file, self.readings, FIRST)
        rows = ((name, f"p{i}") for i, name in enumerate(self.listed))
        write_services(folder / "services.csv", rows, scales=self.scales)
        raw = raw_config("meters")
        raw["model"]["use_scale"] = self.scales
        chosen = {name: {**values, **sections.get(name, {})} for name, values in raw.items()}
        return parse_config(chosen, base=folder)
