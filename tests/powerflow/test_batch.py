"""The batched solver: right answers, honest mismatches, marked failures, refused nonsense."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.powerflow.factor import rounding_floor
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.dense import DenseSolver
from support.small_feeders import exact_voltage, feeder_of, largest_load, one_line


def random_loads(feeder: Feeder, n: int, seed: int = 0, scale: float = 1.0) -> ComplexArray:
    rng = np.random.default_rng(seed)
    course = rng.uniform(0.2, 1.2, (n, 1))
    factors = scale * course * rng.lognormal(-0.045, 0.3, (n, len(feeder.loads)))
    shares = sp.csr_array(feeder.load_shares)[feeder.retained]
    return np.ascontiguousarray((shares @ (factors * feeder.nominal_load).T).T)


def power_at_all_nodes(feeder: Feeder, v: ComplexArray) -> ComplexArray:
    """v∘conj(Y·v) at every energised node, from the feeder's own matrix."""
    everywhere = np.zeros((len(v), len(feeder.nodes)), dtype=np.complex128)
    everywhere[:, feeder.energised] = v
    everywhere[:, feeder.slack] = feeder.v_slack
    return np.asarray((everywhere * np.conj((feeder.y @ everywhere.T).T))[:, feeder.energised])


@pytest.fixture(scope="module")
def solver(ieee123: Feeder) -> BatchSolver:
    return BatchSolver(ieee123)


def test_the_power_balance_holds_at_every_node_of_ieee123(ieee123: Feeder, solver: BatchSolver) -> None:
    load = random_loads(ieee123, 300)
    solution = solver.solve(load, nodes="all")
    target = np.zeros((300, len(ieee123.energised)), dtype=np.complex128)
    target[:, np.searchsorted(ieee123.energised, ieee123.retained)] = -load
    measured = abs(power_at_all_nodes(ieee123, solution.v) - target).max(axis=1)
    assert solution.converged.all()
    # Rows of 1e-6 Ω switches (6e6 p.u.) cannot be evaluated better than this in double precision.
    floor = rounding_floor(solver.plans.factors.full, solver.plans.factors.w).max()
    assert (measured <= 1e-8 + floor).all()
    assert (solution.mismatch <= 1e-8 + floor).all()
    np.testing.assert_allclose(solution.mismatch, measured, rtol=0, atol=floor)


def test_a_snapshot_does_not_depend_on_its_batch_or_the_threads(ieee123: Feeder, solver: BatchSolver) -> None:
    load = random_loads(ieee123, 700)
    load[5] *= 2.5
    load[7] *= 30.0
    whole = solver.solve(load)
    alone = BatchSolver(ieee123, threads=1).solve(load)
    order = np.random.default_rng(1).permutation(700)
    shuffled = BatchSolver(ieee123, threads=2).solve(load[order])
    single = np.concatenate([solver.solve(load[k : k + 1]).v for k in range(12)])
    np.testing.assert_array_equal(whole.v, alone.v)
    np.testing.assert_array_equal(whole.v[order], shuffled.v)
    np.testing.assert_array_equal(whole.iterations[order], shuffled.iterations)
    np.testing.assert_array_equal(whole.v[:12], single)


def test_close_to_the_nose_newton_finds_the_high_voltage_solution() -> None:
    z, direction = 0.1 + 0.2j, 1.0 + 0.4j
    limit = largest_load(z, direction)
    shares = np.array([0.5, 0.9, 0.99, 0.999, 0.99999, 0.9999999])
    load = (shares * limit * direction)[:, None].astype(np.complex128)
    solution = BatchSolver(one_line(z), tolerance=1e-12).solve(load)
    assert solution.converged.all()
    expected = np.array([[exact_voltage(z, complex(s))] for s in load[:, 0]])
    # Near the nose the voltage error is the square root of the power error.
    np.testing.assert_allclose(solution.v, expected, rtol=0, atol=2e-6)
    assert (abs(solution.v[:, 0]) > 0.5).all()


def test_the_wye_equivalent_of_a_delta_load_may_be_negative() -> None:
    z = 0.05 + 0.05j
    feeder = feeder_of(3, [(0, 2, z), (1, 2, z)], [], delta=[(0, 1, 0.01 + 0.05j)], angles=[0.0, -120.0, 0.0])
    load = -feeder.nominal_injection[feeder.retained][None, :]
    assert load.real.min() < 0.0
    assert BatchSolver(feeder).solve(load).converged.all()


def test_a_feeder_without_nominal_load_starts_at_no_load() -> None:
    feeder = feeder_of(3, [(0, 1, 0.1j), (1, 2, 0.1j)], [(0, 0j), (1, 0j)])
    load = np.array([[0.3 + 0.1j, 0.2 + 0.1j]])
    np.testing.assert_allclose(
        BatchSolver(feeder).solve(load).v, DenseSolver(feeder).solve(load).v, rtol=0, atol=1e-8
    )


def test_a_nominal_load_beyond_the_nose_does_not_disturb_smaller_ones() -> None:
    feeder = one_line(nominal=50.0 + 10.0j)
    solution = BatchSolver(feeder).solve(np.array([[0.3 + 0.1j]]))
    np.testing.assert_allclose(solution.v[0, 0], exact_voltage(0.1 + 0.2j, 0.3 + 0.1j), rtol=0, atol=1e-8)
