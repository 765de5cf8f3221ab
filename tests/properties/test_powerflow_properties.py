"""Random feeders and loads: what the solver calls solved satisfies the power-flow equations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.lowlevel import VoltVar
from dp_powerflow.powerflow.devices import CATEGORY_A, CATEGORY_B
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.dense import DenseSolver
from support.small_feeders import feeder_of

TOLERANCE = 1e-9
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def random_feeder(seed: int, n: int, *, meshed: bool, switches: bool) -> Feeder:
    """n nodes of one phase behind an ideal source; loads at some, PV at some, zero injection at the rest."""
    rng = np.random.default_rng(seed)

    def impedance(low: float, high: float) -> complex:
        return complex(rng.uniform(low, high) * np.exp(1j * rng.uniform(0.1, 1.4)))

    branches = []
    order = np.concatenate([[n], rng.permutation(n)])
    for k in range(1, n + 1):
        z = impedance(0.002, 0.05)
        if switches and rng.random() < 0.2:
            z = 1e-7
        branches.append((int(order[k]), int(order[rng.integers(max(0, k - 4), k)]), z))
    for _ in range(n // 3 + 1 if meshed else 0):
        i, j = rng.choice(n + 1, 2, replace=False)
        branches.append((int(i), int(j), impedance(0.01, 0.1)))
    shunts = [(k, 1j * value) for k, value in enumerate(rng.uniform(0.0, 0.01, n))]
    loaded = rng.permutation(n)[: max(1, n // 2)]
    power = rng.uniform(0.05, 1.0, len(loaded)) * rng.choice([0.3, 1.0, 3.0]) / n
    loads = [(int(k), p * (1.0 + 0.4j)) for k, p in zip(loaded, power, strict=True)]
    source = np.array([rng.uniform(0.95, 1.05) + 0.0j])
    pv = [(int(k), 0.05) for k in rng.permutation(n)[: n // 4]]
    return replace(feeder_of(n + 1, branches, loads, shunts=shunts, pv=pv), v_slack=source)


def random_powers(
    feeder: Feeder, seed: int, snapshots: int, scale: float
) -> tuple[ComplexArray, ComplexArray]:
    rng = np.random.default_rng(seed)
    nominal = -feeder.nominal_injection[feeder.retained]
    load = scale * nominal * rng.uniform(0.0, 2.0, (snapshots, len(nominal)))
    has_pv = np.isin(feeder.retained, feeder.pv_shares.indices)
    generation = has_pv * rng.uniform(0.0, 0.09, (snapshots, len(nominal))) + 0j
    return np.ascontiguousarray(load), np.ascontiguousarray(generation)


def equation_error(
    feeder: Feeder, v: ComplexArray, load: ComplexArray, generation: ComplexArray, voltvar: VoltVar | None
) -> tuple[np.ndarray, np.ndarray]:
    """|v∘conj(Y·v) − s| at all energised nodes from the feeder's own matrix, and its rounding floor."""
    n = len(feeder.nodes)
    everywhere = np.zeros((len(v), n), dtype=np.complex128)
    everywhere[:, feeder.energised], everywhere[:, feeder.slack] = v, feeder.v_slack
    s = np.zeros((len(v), n), dtype=np.complex128)
    u = np.abs(everywhere[:, feeder.retained])
    turned = generation if voltvar is None else voltvar.rotation(u) * generation
    s[:, feeder.retained] = turned - load
    y = feeder.y.toarray()
    error = abs(everywhere * np.conj(everywhere @ y.T) - s)
    # The solver's own floor is 4.4e-16·(|Y|·|w|)∘|w|; evaluating Y·v here rounds once more.
    floor = 1e-15 * abs(y).sum(axis=1) * np.ones((len(v), 1))
    return error[:, feeder.energised], floor[:, feeder.energised]


@MANY
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    meshed=st.booleans(),
    switches=st.booleans(),
    turned=st.booleans(),
    scale=st.sampled_from([0.0, 0.5, 2.0, 20.0]),
    snapshots=st.integers(1, 40),
)
def test_solved_snapshots_satisfy_the_equations(
    seed: int, n: int, meshed: bool, switches: bool, turned: bool, scale: float, snapshots: int
) -> None:
    feeder = random_feeder(seed, n, meshed=meshed, switches=switches)
    load, generation = random_powers(feeder, seed, snapshots, scale)
    voltvar = _random_voltvar(feeder, seed) if turned else None
    solution = BatchSolver(feeder, tolerance=TOLERANCE, voltvar=voltvar).solve(load, generation, nodes="all")
    good = solution.converged
    np.testing.assert_array_equal(np.isnan(solution.v).any(axis=1), ~good)
    error, floor = equation_error(feeder, solution.v[good], load[good], generation[good], voltvar)
    assert (error <= TOLERANCE + floor).all()
    np.testing.assert_allclose(
        solution.mismatch[good], error.max(axis=1), rtol=0, atol=floor.max(initial=0.0)
    )


@pytest.mark.slow
@MANY
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 30),
    meshed=st.booleans(),
    turned=st.booleans(),
    scale=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_whatever_the_plain_fixed_point_solves_is_solved_alike(
    seed: int, n: int, meshed: bool, turned: bool, scale: float
) -> None:
    feeder = random_feeder(seed, n, meshed=meshed, switches=False)
    load, generation = random_powers(feeder, seed, 20, scale)
    voltvar = _random_voltvar(feeder, seed) if turned else None
    reference = DenseSolver(feeder, tolerance=1e-11, voltvar=voltvar).solve(load, generation)
    solution = BatchSolver(feeder, tolerance=1e-11, voltvar=voltvar).solve(load, generation)
    solved = reference.converged
    assert solution.converged[solved].all()
    # The voltage moves by the mismatch over the distance to the nose, which may be small.
    np.testing.assert_allclose(solution.v[solved], reference.v[solved], rtol=0, atol=1e-5)
    close = np.median(abs(solution.v[solved] - reference.v[solved])) if solved.any() else 0.0
    assert close < 1e-9


@MANY
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 30), lower=st.floats(0.0, 0.99))
def test_every_load_below_a_solvable_one_is_solvable(seed: int, n: int, lower: float) -> None:
    """Along a ray of loads the branch from no load has one end: the solver has no gaps before it."""
    feeder = random_feeder(seed, n, meshed=False, switches=False)
    load, _ = random_powers(feeder, seed, 1, 1.0)
    scale = np.geomspace(1.0, 300.0, 24)[:, None]
    solver = BatchSolver(feeder)
    outer = solver.solve(load * scale)
    inner = solver.solve(lower * load * scale)
    assert inner.converged[outer.converged].all()
    count = int(outer.converged.sum())
    assert outer.converged[:count].all()


def _random_voltvar(feeder: Feeder, seed: int) -> VoltVar:
    has_pv = np.isin(feeder.retained, feeder.pv_shares.indices)
    choice = np.random.default_rng(seed).integers(0, 2, len(has_pv))
    return VoltVar((CATEGORY_A, CATEGORY_B), np.where(has_pv, choice, -1))
