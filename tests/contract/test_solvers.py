"""The dense reference against the batched solver, and OpenDSS over a random year on IEEE 123."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.dense import DenseSolver
from support.feeder_reference import opendss_voltages

HOURS = 8760


def year_of_loads(feeder: Feeder, hours: int = HOURS) -> ComplexArray:
    """Complex (hour, retained): seasons, days, customers of their own, 5 % to 150 % of nominal."""
    rng = np.random.default_rng(8760)
    t = np.arange(hours)[:, None]
    course = 0.65 - 0.25 * np.cos(2 * np.pi * t / 24.0) + 0.15 * np.cos(2 * np.pi * t / HOURS)
    factors = np.clip(course * rng.lognormal(-0.08, 0.4, (hours, len(feeder.loads))), 0.05, 1.5)
    shares = sp.csr_array(feeder.load_shares)[feeder.retained]
    return np.ascontiguousarray((shares @ (factors * feeder.nominal_load).T).T)


def test_the_reference_agrees_at_all_nodes_marks_an_overload_and_refuses_nan(ieee123: Feeder) -> None:
    load, dense = year_of_loads(ieee123, 48), DenseSolver(ieee123)
    load[2] *= 100.0
    solution, batch = (
        each.solve(1.5 * load, 0.5 * load, nodes="all") for each in (dense, BatchSolver(ieee123))
    )
    np.testing.assert_array_equal(solution.converged, np.arange(48) != 2)
    np.testing.assert_allclose(solution.v, batch.v, rtol=0, atol=1e-7)
    assert np.isnan(solution.v[2]).all()
    load[1, 0] = np.nan
    with pytest.raises(PowerFlowError, match="NaN"):
        dense.solve(load)


@pytest.mark.campaign
def test_opendss_agrees_on_every_hour_of_a_random_year(ieee123: Feeder) -> None:
    load = year_of_loads(ieee123)
    ours = BatchSolver(ieee123).solve(load, nodes="all")
    assert ours.converged.all()
    assert abs(ours.v - opendss_voltages(ieee123, load)[:, ieee123.energised]).max() <= 1e-7
