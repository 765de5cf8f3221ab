"""Releases that benchmarks make, and earlier commits that they are compared with."""

from __future__ import annotations

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

OLD = """
[feeder]
source = "ieee123"
[loads]
kind = "simulated"
load_points = 1000
days = 60
[model]
epsilon = 4.0
[nodes]
load_class = "residential"
scale_factor = 0.05
[network]
mode = "true-network"
bound = "full-support"
radius = 1e-7
epsilon = 5.0
delta = 1e-3
calibration_days = 20
require_evidence = false
[release]
id = "bench"
days = {days}
output = "out"
state = "state"
insecure_seed = 1
"""
"""Days one by one, a load per node, on the frozen true network."""

_NEW = """
[feeder]
source = "{feeder}"
[loads]
kind = "simulated"
homes_only = true
load_points = {homes}
days = 56
step_minutes = 15
[model]
epsilon = 1.0
delta = 1e-5
bounds = [0.005, 1.0]
power_factor = 0.97
estimator = "history"
[nodes]
load_class = "residential"
kw_per_customer = 1.745
[network]
mode = "twin-network"
epsilon = 1.0
change = 0.05
id = "twin-1"
released = "all"
[release]
id = "bench"
days = {days}
output = "out"
state = "state"
epsilon_cap = 2.0
insecure_seed = 1
"""


def old(days: int) -> str:
    """Config of the old workload."""
    return OLD.format(days=days)


def new(days: int, *, feeder: str = "ieee123", homes: int = 2000) -> str:
    """Config of what the defaults make: persistent customers on a twin, controls act, all nodes and loads."""
    return _NEW.format(days=days, feeder=feeder, homes=homes)


def archived(commit: str, folder: Path) -> Path:
    """The package as it was at a commit, in a folder that is made; where to import it from."""
    folder.mkdir()
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=REPOSITORY, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder / "src"
