"""A private release small enough for experiments: an OpenDSS file, long meter data, the sun of one day."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np

from support.small import write_toml

STEPS, DAYS, POINTS = 6, 5, 24
STEP_MINUTES = 24 * 60 // STEPS
SCALE_KW = 10.0

CIRCUIT = """Clear
New Circuit.own basekv=12.47 pu=1.02 R1=0.01 X1=0.05 R0=0.01 X0=0.05
New Linecode.thin nphases=3 r1=0.30 x1=0.60 r0=0.8 x0=1.9 c1=9 c0=4 units=km
New Line.l1 bus1=sourcebus bus2=a linecode=thin length=1.5 units=km
New Line.l2 bus1=a bus2=b linecode=thin length=1.0 units=km
New Line.l3 bus1=b bus2=c linecode=thin length=0.7 units=km
New Load.la bus1=a phases=3 kv=12.47 kw=300 kvar=90
New Load.lb bus1=b.1 phases=1 kv=7.2 kw=80 kvar=20
New Load.lc bus1=b.2 phases=1 kv=7.2 kw=60 kvar=20
New PVSystem.roof bus1=c phases=3 kv=12.47 kva=150 pmpp=120 irradiance=1
Set VoltageBases=[12.47]
CalcVoltageBases
"""

RAW: dict[str, dict[str, Any]] = {
    "feeder": {"source": "net.dss"},
    "loads": {
        "kind": "long",
        "path": "meters.csv",
        "services": "services.csv",
        "step_minutes": STEP_MINUTES,
        "first_day": dt.date(2024, 3, 1),
        "last_day": dt.date(2024, 3, 5),
    },
    "model": {"epsilon": 4.0, "bounds": [0.01, 3.0], "unit": "load-point", "power_factor": 0.9},
    "pv": {"irradiance": "sun.txt", "volt_var": "category B"},
    "network": {
        "mode": "true-network",
        "bound": "full-support",
        "radius": 1e-6,
        "epsilon": 50.0,
        "delta": 0.1,
        "calibration_days": 20,
    },
    "release": {"id": "own-1", "days": 5, "output": "out", "state": "state"},
}


def write_own(folder: Path, *, nodes: dict[int, str] | None = None, scales: bool = True) -> Path:
    """The files and the config in a folder; `nodes` says what some of the load points feed."""
    (folder / "net.dss").write_text(CIRCUIT)
    (folder / "sun.txt").write_text("\n".join(["0", "0.1", "0.7", "0.9", "0.3", "0"]))
    readings = 5.0 * np.exp(0.3 * np.random.default_rng(1).standard_normal((POINTS, DAYS, STEPS)))
    readings[7, :, 0] = 0.0  # a customer without load at night
    with (folder / "meters.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "time", "active"])
        for point, day, step in np.ndindex(readings.shape):
            hour = step * 24 // STEPS
            value = f"{readings[point, day, step]:.6f}"
            writer.writerow([f"c{point}", f"2024-03-{day + 1:02d} {hour:02d}:00", value])
    with (folder / "services.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "load_point", "node", *(["scale_kw"] if scales else [])])
        for point in range(POINTS):
            row = [f"c{point}", f"c{point}", (nodes or {}).get(point, "")]
            writer.writerow([*row, *([SCALE_KW] if scales else [])])
    return write_toml(folder / "own.toml", RAW)


def with_keys(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The config with some keys of some sections replaced."""
    return {name: {**values, **sections.get(name, {})} for name, values in RAW.items()}
