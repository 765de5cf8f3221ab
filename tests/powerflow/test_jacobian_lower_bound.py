"""The proved lower bound on σ_min: never above the true value, and near it where it should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow import Feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.lowlevel import Network
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import (
    SigmaBound,
    _smallest_of_two,
    diagonal_terms,
    real_form,
)
from dp_powerflow.units import ComplexArray
from support.jacobian_networks import random_network


def true_sigma(y: ComplexArray, a: ComplexArray, c: ComplexArray) -> Any:
    return np.linalg.svd(real_form(y, a, c), compute_uv=False)[:, -1]


def draw(rng: np.random.Generator, shape: int | tuple[int, ...], scale: float) -> Any:
    return scale * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 12),
    vectors=st.integers(1, 12),
    size=st.floats(0.0, 30.0),
    spread=st.floats(0.0, 10.0),
    with_voltvar=st.booleans(),
    local=st.booleans(),
)
def test_bound_never_exceeds_the_true_singular_value(
    seed: int, nodes: int, vectors: int, size: float, spread: float, with_voltvar: bool, local: bool
) -> None:
    network = random_network(seed, nodes, loops=seed % 3)
    rng = np.random.default_rng(seed)
    shape = (8, network.n)
    reference_c = draw(rng, network.n, size)
    reference_a = draw(rng, network.n, 0.3 * size) if with_voltvar else np.zeros(network.n, dtype=complex)
    # Changes of one node alone use the bound's far-field terms, changes of all its blocks.
    mask = (np.arange(network.n) == seed % network.n) if local else np.ones(network.n)
    c = reference_c + mask * draw(rng, shape, spread)
    a = reference_a + mask * (draw(rng, shape, 0.3 * spread) if with_voltvar else np.zeros(shape))
    bound = SigmaBound(network.y, reference_a, reference_c, vectors=vectors)(a, c)
    assert np.all(bound >= 0.0)
    assert np.all(bound <= true_sigma(network.y, a, c))


@pytest.mark.parametrize("seed", range(5))
def test_bound_survives_the_worst_change_of_a_given_size(seed: int) -> None:
    # The change that lowers σ_min fastest, to first order: random changes seldom find it.
    network = random_network(seed, 10, retained_share=1.0)
    c = np.full(network.n, 0.5 + 0.2j)
    zero = np.zeros_like(c)
    left, _, right = np.linalg.svd(real_form(network.y, zero, c))
    n = network.n
    u, x = left[:n, -1] + 1j * left[n:, -1], right[-1, :n] + 1j * right[-1, n:]
    worst = -u * x / np.maximum(np.abs(u * x), 1e-300)
    steps = np.array([0.01, 0.1, 0.3, 1.0, 3.0])
    changed = c + steps[:, None] * worst
    bound = SigmaBound(network.y, zero, c)(0.0 * changed, changed)
    truth = true_sigma(network.y, 0.0 * changed, changed)
    assert truth[0] < true_sigma(network.y, zero[None], c[None])[0]
    assert np.all(bound <= truth)
    assert bound[0] > 0.99 * truth[0]


def test_bound_at_the_reference_is_the_singular_value_but_for_rounding() -> None:
    network = random_network(1, 12, loops=2)
    c = draw(np.random.default_rng(0), (1, network.n), 1.0)
    zero = np.zeros_like(c)
    truth = true_sigma(network.y, zero, c)
    bound = SigmaBound(network.y, zero[0], c[0])(zero, c)
    assert np.all(bound < truth)
    assert np.all(bound > truth * (1 - 1e-7))


def ieee123_snapshots(feeder: Feeder, count: int) -> Any:
    network = Network(feeder)
    rng = np.random.default_rng(0)
    z = np.linalg.inv(network.y)
    w = -z @ network.b
    nominal = feeder.nominal_injection[feeder.retained]
    s = nominal * rng.lognormal(-0.3, 0.5, (count, network.n)) * rng.uniform(0.3, 1.2, (count, 1))
    v = np.tile(w, (count, 1))
    for _ in range(40):
        v = w + np.conj(s / v) @ z.T
    return v, s


@pytest.mark.slow
def test_bound_is_tight_on_ieee123(ieee123: Feeder) -> None:
    v, s = ieee123_snapshots(ieee123, 400)
    batch = JacobianBatch.from_feeder(ieee123)
    sigma = true_sigma(batch.y_reduced, *diagonal_terms(v, s))
    bound = batch.sigma_min_lower_bound(v, s)
    assert np.all(bound < sigma)
    assert np.median(1.0 - bound / sigma) < 0.004
    assert np.max(1.0 - bound / sigma) < 0.2
    # Weyl's inequality from the same reference is a hundred times coarser.
    a, c = diagonal_terms(v, s)
    mean = c.mean(axis=0)
    weyl = true_sigma(batch.y_reduced, 0 * a[:1], mean[None])[0] - np.max(np.abs(c - mean), axis=1)
    assert np.median(1.0 - weyl / sigma) > 100 * np.median(1.0 - bound / sigma)


def test_refinement_brings_the_smallest_bound_within_the_gap(ieee123: Feeder) -> None:
    v, s = ieee123_snapshots(ieee123, 300)
    batch = JacobianBatch.from_feeder(ieee123)
    sigma = true_sigma(batch.y_reduced, *diagonal_terms(v, s))
    coarse = batch.sigma_min_lower_bound(v, s)
    fine = batch.sigma_min_lower_bound(v, s, gap=1e-4)
    assert coarse.min() < (1 - 1e-4) * sigma.min()
    assert fine.min() >= (1 - 1e-4) * sigma.min()
    assert np.all(fine <= sigma)
    assert np.all(fine >= coarse)


def test_error_of_the_reduction_is_subtracted() -> None:
    network = random_network(1, 8)
    c = np.full((1, network.n), 0.3 + 0.1j)
    plain = SigmaBound(network.y, 0 * c[0], c[0])(0 * c, c)
    careful = SigmaBound(network.y, 0 * c[0], c[0], y_error=0.25)(0 * c, c)
    assert plain - careful == pytest.approx(0.25, rel=1e-9)
    change = np.full(network.n, 0.25)
    # A change of Y of that norm does not break the careful bound.
    assert careful <= true_sigma(network.y - np.diag(change), 0 * c, c)


def test_singular_reference_gives_zero_not_a_failure() -> None:
    y = np.array([[1.0 + 0.0j]])
    c = np.array([[1.0 + 0.0j], [0.9 + 0.0j]])
    bound = SigmaBound(y, np.zeros(1, dtype=complex), c[0])(0 * c, c)
    truth = true_sigma(y, 0 * c, c)
    assert bound[0] == 0.0
    assert bound[1] <= truth[1]


def test_not_a_number_stays_so() -> None:
    network = random_network(1, 5)
    c = np.full((3, network.n), 0.3 + 0.1j)
    bound = SigmaBound(network.y, 0 * c[0], c[0])
    c[1, 0] = np.nan
    assert np.array_equal(np.isnan(bound(0 * c, c)), [False, True, False])
    batch = JacobianBatch(network.full, network.retained)
    nothing = np.full((2, network.n), np.nan, dtype=np.complex128)
    assert np.isnan(batch.sigma_min_lower_bound(nothing, nothing)).all()


def test_no_vectors_are_refused() -> None:
    with pytest.raises(PowerFlowError, match="at least one vector"):
        SigmaBound(np.eye(2, dtype=complex), np.zeros(2, complex), np.zeros(2, complex), vectors=0)


@settings(max_examples=200, deadline=None)
@given(*[st.floats(-2.0, 5.0)] * 2, *[st.floats(0.0, 3.0)] * 2)
def test_two_by_two_bound_is_the_minimum_over_the_quadrant(
    alpha: float, delta: float, beta: float, gamma: float
) -> None:
    found = _smallest_of_two(*(np.array([x]) for x in (alpha, beta, gamma, delta)))[0]
    angle = np.linspace(0.0, np.pi / 2, 2001)
    x, y = np.cos(angle), np.sin(angle)
    first, second = np.maximum(alpha * x - beta * y, 0.0), np.maximum(delta * y - gamma * x, 0.0)
    reachable = np.min(np.hypot(first, second))
    assert found <= reachable + 1e-12
    if alpha > 0.0 and delta > 0.0 and alpha * delta > beta * gamma:
        assert found == pytest.approx(reachable, abs=0.02)
