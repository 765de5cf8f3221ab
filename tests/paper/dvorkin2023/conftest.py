"""Cases of the published experiments."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2023.cases import matpower_case, radial_case
from dp_powerflow_paper.dvorkin2023.records import PowerRecords, wind_records
from dp_powerflow_paper.dvorkin2023.restored import DispatchCase
from dp_powerflow_paper.radial import RadialNetwork

Capacities = tuple[DispatchCase, FloatArray]


@pytest.fixture(scope="session")
def reference() -> Path:
    """Directory of the reference cases."""
    path = Path(os.environ.get("DP_POWERFLOW_REFERENCE", "reference"))
    if not path.is_dir():
        pytest.skip("the reference cases are not here: set DP_POWERFLOW_REFERENCE to their directory")
    return path


@pytest.fixture(scope="session")
def turbine(reference: Path) -> PowerRecords:
    """1,000 records of the published turbine."""
    return wind_records(reference)


@pytest.fixture(scope="session")
def rts(reference: Path) -> Capacities:
    """The grid of the published experiment, and its capacities."""
    return matpower_case(reference / "rts73" / "pglib_opf_case73_ieee_rts.m")


@pytest.fixture(scope="session")
def feeder_case() -> Capacities:
    """A radial feeder of fifteen nodes with three generators, and its capacities."""
    generator = np.random.default_rng(0)
    start = np.array([generator.integers(max(0, k - 3), k + 1) for k in range(14)])
    ends = np.arange(1, 15)
    network = RadialNetwork(start, ends, np.full(14, 0.01), np.full(14, 0.01))
    demand = np.concatenate([[0.0], generator.uniform(0.02, 0.1, 14)])
    return radial_case(network, demand, np.array([4, 8, 12]), count=30)
