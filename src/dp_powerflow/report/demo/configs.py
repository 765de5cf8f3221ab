"""The configs of both releases of the demonstration.

The twin draws whole histories, which the true network cannot certify, so each has a load model of its own and
the customers pay for both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config, parse_config

SEED = 1
TWIN, PAPER, STATE, PAGE = "release", "paper", "private-state", "index.html"
Raw = dict[str, dict[str, Any]]

SHARED: Raw = {
    "feeder": {"source": "ieee123"},
    # About as many homes as the feeder has customers: each is one of them, hardly any stands for two.
    "loads": {
        "kind": "simulated",
        "homes_only": True,
        "load_points": 2400,
        "days": 56,
        "step_minutes": 15,
    },
}
MODEL = {"epsilon": 1.0, "delta": 1e-5, "bounds": [0.005, 1.0], "power_factor": 0.97}
EPSILON_CAP = 2.0
"""Of the customers: room for both load models."""
TWIN_RAW: Raw = {
    **SHARED,
    "model": {**MODEL, "estimator": "history"},
    "nodes": {"load_class": "residential", "kw_per_customer": 1.5},
    "network": {
        "mode": "twin-network",
        "epsilon": 1.0,
        "change": 0.05,
        "id": "twin-1",
        "released": "all",
    },
    "release": {
        "id": "demo",
        "days": 28,
        "output": TWIN,
        "state": STATE,
        "epsilon_cap": EPSILON_CAP,
        "insecure_seed": SEED,
    },
}
"""The twin: ε = 1 for a line whose R and X change by up to 5 %."""
PAPER_RAW: Raw = {
    **SHARED,
    # Independent days: all that the evidence on a true network covers.
    "model": {**MODEL, "estimator": "structured", "variance_floor": 1e-2},
    "nodes": {"load_class": "residential", "scale_factor": 0.2},
    "network": {
        "mode": "true-network",
        "bound": "paper",
        "radius": 1e-4,
        "epsilon": 100.0,
        "delta": 0.01,
        "calibration_days": 300,
        "require_evidence": False,
    },
    "release": {
        "id": PAPER,
        "days": 28,
        "output": PAPER,
        "state": STATE,
        "epsilon_cap": EPSILON_CAP,
        "insecure_seed": SEED,
    },
}
"""Algorithm 1 of the paper at its r. The policy is a target: the evidence does not support it.

Loads are light: homes are on or off, the tail of a Gaussian of their log load is long, and the evidence draws
from it without bounds. At a factor of 0.5 some of its 300 days have no power flow.
"""


def demo_config(folder: Path, raw: Raw = TWIN_RAW) -> Config:
    """The config of a release of the demonstration in a folder."""
    return parse_config(raw, base=folder.resolve())


def as_toml(raw: Raw) -> str:
    """A config as a file: sections of numbers, words and lists."""
    sections = (
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])
        for name, values in raw.items()
    )
    return "\n\n".join(sections) + "\n"
