"""log|det| of many snapshots against dense linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow._bits.elementary import joined
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.lowlevel import Network
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, injection, real_form
from dp_powerflow.units import ComplexArray
from support.jacobian_networks import RandomNetwork, random_network


def singular_values(y: ComplexArray, v: ComplexArray, s: ComplexArray) -> Any:
    """All singular values of M̃: (snapshot, 2n)."""
    return np.linalg.svd(real_form(y, *diagonal_terms(v, s)), compute_uv=False)


networks = st.builds(
    random_network,
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 14),
    loops=st.integers(0, 3),
    retained_share=st.sampled_from([0.1, 0.5, 1.0]),
)


@settings(max_examples=40, deadline=None)
@given(network=networks, seed=st.integers(0, 10**6), size=st.floats(0.0, 300.0))
def test_arbitrary_voltages_and_injections_agree_with_dense_algebra(
    network: RandomNetwork, seed: int, size: float
) -> None:
    # Far from any operating point, through collapse and beyond: the sign of det M̃ differs between rows.
    rng = np.random.default_rng(seed)
    shape = (11, network.n)
    angle, size_v = rng.uniform(0, 6, shape), rng.uniform(0.5, 1.3, shape)
    v = joined(size_v * np.cos(angle), size_v * np.sin(angle))
    s = joined(size * rng.standard_normal(shape), size * rng.standard_normal(shape))
    found = JacobianBatch(network.full, network.retained, threads=1).log_abs_det(v, s)
    expected = singular_values(network.y, v, s)
    safe = expected[:, -1] > 1e-3
    assert np.allclose(found[safe], np.sum(np.log(expected), axis=1)[safe], rtol=0, atol=1e-7)


def test_ieee123_agrees_with_dense_algebra_on_factors_of_its_solver_too(ieee123: Feeder) -> None:
    solver, network = BatchSolver(ieee123), Network(ieee123)
    load: ComplexArray = -ieee123.nominal_injection[ieee123.retained] * np.linspace(0.1, 1.2, 13)[:, None]
    v = solver.solve(load).v
    expected = np.sum(np.log(singular_values(network.y, v, -load)), axis=1)
    for factors in (None, solver.plans.factors):
        found = JacobianBatch.from_feeder(ieee123, factors=factors).log_abs_det(v, -load)
        assert np.allclose(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("short_of", [0.0, 1e-12])
@pytest.mark.parametrize("dense_up_to", [0, 300])
def test_a_vanishing_pivot_falls_back_on_pivoting(short_of: float, dense_up_to: int) -> None:
    # At every node c = conj(s) is the node's own admittance: the first pivot block is singular, M̃ is not.
    network = random_network(4, 8, retained_share=1.0)
    v = np.ones((2, network.n), dtype=np.complex128)
    s = (np.tile(np.conj(network.full.diagonal()), (2, 1)) * (1.0 - short_of)).astype(np.complex128)
    s[1] *= 0.01
    batch = JacobianBatch(network.full, network.retained, dense_up_to=dense_up_to)
    expected = np.sum(np.log(singular_values(network.y, v, s)), axis=1)
    assert np.allclose(batch.log_abs_det(v, s), expected, rtol=0, atol=1e-8)


def test_a_snapshot_that_is_not_a_number_stays_so_and_spoils_no_other() -> None:
    network = random_network(5, 10)
    batch = JacobianBatch(network.full, network.retained)
    v, s = network.operating_point(np.random.default_rng(0), 10, 0.5)
    clean = batch.log_abs_det(v, s)
    v[4, 0] = np.nan
    s[7, -1] = np.inf
    spoilt = batch.log_abs_det(v, s)
    assert np.array_equal(np.flatnonzero(np.isnan(spoilt)), [4, 7])
    assert np.array_equal(np.delete(spoilt, [4, 7]), np.delete(clean, [4, 7]))


def test_result_of_a_snapshot_does_not_depend_on_its_batch_or_on_threads() -> None:
    network = random_network(6, 10, loops=1)
    v, s = network.operating_point(np.random.default_rng(0), 2000, 0.5)
    one, three = (JacobianBatch(network.full, network.retained, threads=count) for count in (1, 3))
    together = one.log_abs_det(v, s)
    assert np.array_equal(together, three.log_abs_det(v, s))
    assert np.array_equal(together[5:6], one.log_abs_det(v[5:6], s[5:6]))


def test_determinant_predicts_how_volume_changes() -> None:
    # Independent of any SVD: log|det J| from the batch against a finite-difference Jacobian of F̃.
    network = random_network(9, 7, loops=1)
    v, s = network.operating_point(np.random.default_rng(0), 1, 0.5)
    n, step = network.n, 1e-6
    columns = []
    for direction in np.concatenate([np.eye(n), 1j * np.eye(n)]):
        change = (
            injection(network.y, network.b, v[0] + step * direction)
            - injection(network.y, network.b, v[0] - step * direction)
        ) / (2 * step)
        columns.append(np.r_[change.real, change.imag])
    expected = np.linalg.slogdet(np.array(columns))[1]
    found = JacobianBatch(network.full, network.retained).log_abs_det(v, s)[0]
    assert found + 2.0 * np.sum(np.log(np.abs(v[0]))) == pytest.approx(expected, abs=1e-6)


def test_empty_batches_give_empty_results_and_wrong_shapes_are_refused() -> None:
    network = random_network(2, 6)
    batch = JacobianBatch(network.full, network.retained)
    empty, good = np.empty((0, network.n), dtype=np.complex128), np.ones((3, network.n), dtype=np.complex128)
    assert batch.log_abs_det(empty, empty).shape == (0,)
    assert batch.sigma_min_lower_bound(empty, empty).shape == (0,)
    with pytest.raises(PowerFlowError, match="s has shape"):
        batch.log_abs_det(good, good[:, 1:])
    with pytest.raises(PowerFlowError, match="same number of snapshots"):
        batch.log_abs_det(good, good[:2])
    with pytest.raises(PowerFlowError, match="same number of snapshots"):
        batch.sigma_min_lower_bound(good, good, good[:2])
    with pytest.raises(PowerFlowError, match="no retained node"):
        JacobianBatch(network.full, network.retained[:0])
    with pytest.raises(PowerFlowError, match="threads"):
        JacobianBatch(network.full, network.retained, threads=0)
