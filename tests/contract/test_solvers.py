"""One suite for every power-flow engine, and their agreement over a random year on IEEE 123."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.dense import DenseSolver
from support.feeder_reference import opendss_voltages

SOLVERS: dict[str, Callable[[Feeder], Solver]] = {
    "batch": BatchSolver,
    "reference": DenseSolver,
}
HOURS = 8760


@pytest.fixture(scope="module", params=SOLVERS)
def solver(request: pytest.FixtureRequest, ieee123: Feeder) -> Solver:
    return SOLVERS[request.param](ieee123)


def year_of_loads(feeder: Feeder, hours: int = HOURS) -> ComplexArray:
    """Complex (hour, retained): seasons, days, customers of their own, 5 % to 150 % of nominal."""
    rng = np.random.default_rng(8760)
    t = np.arange(hours)[:, None]
    course = 0.65 - 0.25 * np.cos(2 * np.pi * t / 24.0) + 0.15 * np.cos(2 * np.pi * t / HOURS)
    factors = np.clip(course * rng.lognormal(-0.08, 0.4, (hours, len(feeder.loads))), 0.05, 1.5)
    shares = sp.csr_array(feeder.load_shares)[feeder.retained]
    return np.ascontiguousarray((shares @ (factors * feeder.nominal_load).T).T)


def test_agrees_with_the_batched_solver(ieee123: Feeder, solver: Solver) -> None:
    load = year_of_loads(ieee123, 48)
    solution = solver.solve(load)
    assert solution.converged.all()
    assert solution.v.shape == load.shape
    np.testing.assert_allclose(solution.v, BatchSolver(ieee123).solve(load).v, rtol=0, atol=1e-7)


def test_reports_what_it_spent_and_measured(ieee123: Feeder, solver: Solver) -> None:
    solution = solver.solve(year_of_loads(ieee123, 8))
    assert solver.feeder is ieee123
    assert (solution.iterations > 0).all()
    assert ((solution.mismatch >= 0.0) & (solution.mismatch <= 1e-7)).all()


def test_gives_all_energised_nodes_if_asked(ieee123: Feeder, solver: Solver) -> None:
    load = year_of_loads(ieee123, 4)
    every = solver.solve(load, nodes="all").v
    assert every.shape == (4, len(ieee123.energised))
    at = np.searchsorted(ieee123.energised, ieee123.retained)
    np.testing.assert_allclose(every[:, at], solver.solve(load).v, rtol=0, atol=1e-8)


def test_generation_offsets_load(ieee123: Feeder, solver: Solver) -> None:
    load = year_of_loads(ieee123, 4)
    np.testing.assert_allclose(solver.solve(2.0 * load, load).v, solver.solve(load).v, rtol=0, atol=1e-7)


def test_writes_into_the_array_given(ieee123: Feeder, solver: Solver) -> None:
    load = year_of_loads(ieee123, 4)
    out = np.zeros_like(load)
    assert solver.solve(load, out=out).v is out
    np.testing.assert_allclose(out, solver.solve(load).v, rtol=0, atol=1e-8)


def test_marks_an_overload_and_solves_the_others(ieee123: Feeder, solver: Solver) -> None:
    load = year_of_loads(ieee123, 5)
    expected = solver.solve(load).v
    load[2] *= 100.0
    solution = solver.solve(load)
    np.testing.assert_array_equal(solution.converged, [True, True, False, True, True])
    assert np.isnan(solution.v[2]).all()
    others = solution.converged
    np.testing.assert_allclose(solution.v[others], expected[others], rtol=0, atol=1e-7)
    with pytest.raises(PowerFlowError, match="1 of 5"):
        solution.raise_if_failed()


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.05])
def test_refuses_figures_that_are_no_load(ieee123: Feeder, solver: Solver, value: float) -> None:
    load = year_of_loads(ieee123, 3)
    load[1, 0] = value
    with pytest.raises(PowerFlowError, match="1 of 3 snapshots"):
        solver.solve(load)


def test_refuses_the_wrong_shape(ieee123: Feeder, solver: Solver) -> None:
    with pytest.raises(PowerFlowError, match="shape"):
        solver.solve(np.zeros((3, 7), dtype=np.complex128))
    load = year_of_loads(ieee123, 3)
    with pytest.raises(PowerFlowError, match="snapshots"):
        solver.solve(load, load[:2])


@pytest.mark.slow
@pytest.mark.parametrize("hours", [1000, pytest.param(8760, marks=pytest.mark.campaign)])
def test_opendss_agrees_on_every_hour_of_a_random_year(ieee123: Feeder, hours: int) -> None:
    load = year_of_loads(ieee123, hours)
    ours = BatchSolver(ieee123).solve(load, nodes="all")
    assert ours.converged.all()
    assert abs(ours.v - opendss_voltages(ieee123, load)[:, ieee123.energised]).max() <= 1e-7
