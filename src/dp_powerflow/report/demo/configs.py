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
TAPS = "taps.csv"
TAPS_TEXT = """# declared: regulators of the public IEEE 123 at 63 % of its nominal load
transformer,winding,tap
reg1a,2,1.01875
reg2a,2,1.0
reg3a,2,1.00625
reg3c,2,1.0
reg4a,2,1.04375
reg4b,2,1.01875
reg4c,2,1.025
"""
HOMES_PER_POINT = 20
"""Homes behind a load point of the paper's release: about as many as are behind a node of the feeder."""
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
    "feeder": {**SHARED["feeder"], "taps": TAPS},
    # The same homes, summed: Algorithm 1 is fitted to the loads of buses.
    "loads": {
        **SHARED["loads"],
        "load_points": SHARED["loads"]["load_points"] // HOMES_PER_POINT,
        "homes_per_point": HOMES_PER_POINT,
    },
    # Independent days: all that the evidence on a true network covers. The mean of a load point is 0.073.
    "model": {**MODEL, "bounds": [0.01, 0.29], "estimator": "structured", "variance_floor": 1e-2},
    # The twin's load on average; 2.5 times the nominal load at the upper bound.
    "nodes": {"load_class": "residential", "scale_factor": 8.5},
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
        "continues_loads": "loads-1",
        "epsilon_cap": EPSILON_CAP,
        "insecure_seed": SEED,
    },
}
"""Algorithm 1 of the paper at its r. The policy is a target: the evidence does not support it.

A node is one draw. Single homes peak at 30 times their mean, which no feeder carries at every node; sums of
20 homes at 6 times, and 1 of 1,000 quarter hours passes the upper bound, 4 times the mean.
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
