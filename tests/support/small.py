"""A release small enough for tests: IEEE 13, hourly steps, some hundred simulated load points.

No draw of it may lack a power-flow solution, whatever the key: there are enough load points for the noise of
the fit, and the nodes carry half of their nominal load. Over 200 keys of 700 days no node falls below 0.93
p.u., and with all loads doubled every snapshot still solves.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config, parse_config

RAW: dict[str, Any] = {
    "feeder": {"source": "ieee13"},
    "loads": {"kind": "simulated", "load_points": 400, "days": 6, "step_minutes": 60},
    "model": {"epsilon": 4.0, "bounds": [0.01, 2.0], "variance_floor": 0.01},
    # At most 0.4 of the nominal load, with every draw at the upper bound.
    "nodes": {"load_class": "residential", "scale_factor": 0.2},
    "network": {
        "mode": "true-network",
        "bound": "full-support",
        "radius": 1e-13,
        "epsilon": 1e6,
        "delta": 0.999,
        "calibration_days": 20,
        "require_evidence": False,
    },
    "release": {"id": "small", "days": 700, "output": "out", "state": "state", "insecure_seed": 7},
}


CORNERS = "dp_powerflow.pipeline.modes.true.refuse_unsolved_corners"
"""Refuses loads without solution beforehand; days of bound 'full-support' may pass the bounds it solves."""
READING = "dp_powerflow.pipeline.plan.check_reading"
"""Refuses a feeder that OpenDSS cannot solve, or solves otherwise."""


def small_config(folder: Path, **sections: dict[str, Any]) -> Config:
    """The small release in a folder, with some keys of some sections replaced.

    On a twin a load is the sum of a few customers, next to nothing for its lines.
    """
    base = RAW
    if sections.get("network", {}).get("mode") == "twin-network":
        base = RAW | {"nodes": {"load_class": "residential", "kw_per_customer": 10.0}}
    raw = {name: other_section(values, sections.pop(name, {})) for name, values in base.items()}
    return parse_config({**raw, **{name: values for name, values in sections.items() if values}}, base=folder)


def other_section(values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A section with some keys replaced; one of another network mode stands for itself."""
    return own if own.get("mode", values.get("mode")) != values.get("mode") else {**values, **own}


def tree_hash(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
