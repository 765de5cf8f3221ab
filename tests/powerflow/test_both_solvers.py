"""What both solvers do alike: one load on a line, past its nose, batches of any size, refused nonsense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder, OperatedSolver, open_feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.operation import CONSTANT_POWER
from dp_powerflow.lowlevel import Solver, VoltVar
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.datasets import ActingSolver
from support.small_feeders import exact_voltage, feeder_of, largest_load, one_line
from support.sunny import pv_generation

SOLVERS: dict[str, Callable[..., Any]] = {"batch": BatchSolver, "operated": OperatedSolver}


@pytest.fixture(params=SOLVERS)
def solver_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return SOLVERS[request.param]


def test_one_line_has_its_closed_form(solver_of: Callable[..., Any]) -> None:
    z = 0.1 + 0.2j
    load = np.array([[0.3 + 0.1j], [0.0j], [0.5 - 0.2j], [0.01 + 0.4j]])
    solution = solver_of(one_line(z), tolerance=1e-13).solve(load)
    expected = [[exact_voltage(z, complex(s))] for s in load[:, 0]]
    np.testing.assert_allclose(solution.v, expected, rtol=0, atol=1e-12)


def test_past_the_nose_snapshots_are_marked_counted_and_nan(solver_of: Callable[..., Any]) -> None:
    z, direction = 0.1 + 0.2j, 1.0 + 0.4j
    limit = largest_load(z, direction)
    load = np.array([[0.5], [1.0001], [0.9], [3.0], [0.999], [1e6], [1e300]], complex) * limit * direction
    solution = solver_of(one_line(z)).solve(load.astype(np.complex128))
    np.testing.assert_array_equal(solution.converged, [True, False, True, False, True, False, False])
    assert np.isnan(solution.v[~solution.converged]).all()
    assert np.isfinite(solution.v[solution.converged]).all()
    with pytest.raises(PowerFlowError, match="4 of 7 snapshots"):
        solution.raise_if_failed()


@pytest.mark.parametrize("solver_of", [BatchSolver, ActingSolver])
def test_every_batch_size_is_solved(ieee13: Feeder, solver_of: Callable[..., Any]) -> None:
    load = -np.linspace(0.2, 1.0, 33)[:, None] * ieee13.nominal_injection[ieee13.retained]
    solver = solver_of(ieee13)
    whole = solver.solve(load).v
    for n in (0, 1, 15, 16, 17):
        np.testing.assert_array_equal(solver.solve(load[:n]).v, whole[:n])


READ_ONLY = np.zeros((3, 1), dtype=complex)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("load", "generation", "options", "says"),
    [
        (np.zeros((3, 2), dtype=complex), None, {}, r"load has shape \(3, 2\)"),
        (np.zeros(1, dtype=complex), None, {}, "load has shape"),
        (np.zeros((3, 1), dtype=np.int64), None, {}, "complex numbers"),
        (np.zeros((3, 1), dtype=complex), np.zeros((2, 1), dtype=complex), {}, "2 snapshots but load has 3"),
        (np.zeros((3, 1), dtype=complex), np.zeros((3, 2), dtype=complex), {}, "generation has shape"),
        (np.zeros((3, 1), dtype=complex), np.full((3, 1), np.nan + 0j), {}, "3 of 3 snapshots hold NaN"),
        (np.zeros((3, 1), dtype=complex), None, {"out": np.zeros((2, 1), dtype=complex)}, "shape"),
        (np.zeros((3, 1), dtype=complex), None, {"out": np.zeros((3, 1))}, "complex128"),
        (np.zeros((3, 1), dtype=complex), None, {"out": READ_ONLY}, "read-only"),
        (np.zeros((3, 1), dtype=complex), None, {"nodes": "some"}, "retained"),
    ],
)
def test_wrong_shapes_and_options_are_refused(
    solver_of: Callable[..., Any], load: Any, generation: Any, options: dict[str, Any], says: str
) -> None:
    feeder = feeder_of(2, [(0, 1, 0.1j)], [(0, 0.1 + 0.0j)], pv=[(0, 0.1)])
    with pytest.raises(PowerFlowError, match=says):
        solver_of(feeder).solve(load, generation, **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, bad) for kind in SOLVERS.values() for bad in ({"tolerance": np.nan}, {"threads": 0})),
        (OperatedSolver, {"steps": 0}),
        (OperatedSolver, {"controls": "off"}),
    ],
)
def test_bad_settings_are_refused(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(PowerFlowError):
        kind(one_line(), **options)


def rigid(feeder: Feeder) -> Feeder:
    """The feeder with loads of constant power at any voltage, as pandapower's are."""
    return replace(feeder, loads=tuple(replace(load, response=CONSTANT_POWER) for load in feeder.loads))


def loads_of(solver: Solver, count: int) -> ComplexArray:
    """Complex (snapshot, column) around half of the nominal load."""
    feeder = solver.feeder
    nodal = -feeder.nominal_injection[feeder.retained]
    nominal = feeder.nominal_load if solver.columns == "elements" else nodal
    return np.asarray(nominal * np.random.default_rng(0).uniform(0.2, 0.9, (count, len(nominal))))


@pytest.mark.parametrize(
    ("row", "value", "says"),
    [
        (slice(3, 4), np.nan, "1 of 20 snapshots hold NaN or infinite"),
        (slice(2, 4), complex(0.0, np.inf), "2 of 20 snapshots hold NaN"),
        (slice(3, 4), -0.0173 + 0.1j, "1 of 20 snapshots draw negative active power"),
    ],
)
def test_bad_loads_are_refused_by_count_and_not_shown(
    ieee123: Feeder, solver_of: Callable[..., Any], row: slice, value: complex, says: str
) -> None:
    solver = solver_of(ieee123)
    load = loads_of(solver, 20)
    load[row, 0] = value
    with pytest.raises(PowerFlowError, match=says) as caught:
        solver.solve(load)
    assert "0173" not in str(caught.value)


def test_overloads_end_and_the_rest_of_the_batch_is_solved(
    ieee123: Feeder, solver_of: Callable[..., Any]
) -> None:
    solver = solver_of(rigid(ieee123))
    load = loads_of(solver, 64)
    load[::8] *= 60.0
    solution = solver.solve(load)
    np.testing.assert_array_equal(np.flatnonzero(~solution.converged), np.arange(0, 64, 8))
    assert solution.iterations.max() < 500  # the last level is at most a 256th short of where it stops
    well = np.flatnonzero(solution.converged)
    np.testing.assert_array_equal(solver.solve(load[well]).v, solution.v[well])


def test_nodal_loads_of_experiments_are_solved_as_by_the_batch_solver_at_fixed_taps() -> None:
    feeder = open_feeder("ieee123-pv")
    load = -np.linspace(0.2, 1.1, 12)[:, None] * feeder.nominal_injection[feeder.retained]
    sun = pv_generation(feeder, np.linspace(0.0, 1.0, 12))
    voltvar = VoltVar.for_feeder(feeder)
    frozen = ActingSolver(feeder, controls="frozen", voltvar=voltvar).solve(load, sun)
    batch = BatchSolver(feeder, voltvar=voltvar).solve(load, sun)
    assert frozen.converged.all()
    assert np.abs(frozen.v - batch.v).max() < 1e-7
    acting = ActingSolver(feeder, controls="day", steps=12, voltvar=voltvar).solve(load, sun)
    assert len(np.unique(acting.taps, axis=0)) > 1
