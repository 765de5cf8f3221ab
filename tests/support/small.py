"""A release small enough for tests: IEEE 13, hourly steps, a handful of simulated load points."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config, parse_config

RAW: dict[str, Any] = {
    "feeder": {"source": "ieee13"},
    "loads": {"kind": "simulated", "load_points": 80, "days": 6, "step_minutes": 60},
    "model": {"epsilon": 4.0, "bounds": [0.01, 2.0], "variance_floor": 0.01},
    "nodes": {"load_class": "residential"},
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


def small_config(folder: Path, **sections: dict[str, Any]) -> Config:
    """The small release in a folder, with some keys of some sections replaced."""
    raw = {name: other_section(values, sections.pop(name, {})) for name, values in RAW.items()}
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
