"""σ_min and log|det| of many snapshots against dense linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.lowlevel import Network
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, injection, real_form
from dp_powerflow.units import ComplexArray
from support.jacobian_networks import RandomNetwork, random_network


def dense(y: ComplexArray, v: ComplexArray, s: ComplexArray, slope: ComplexArray | None = None) -> Any:
    """All singular values of M̃_eff: (snapshot, 2n)."""
    return np.linalg.svd(real_form(y, *diagonal_terms(v, s, slope)), compute_uv=False)


networks = st.builds(
    random_network,
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 14),
    loops=st.integers(0, 3),
    retained_share=st.sampled_from([0.1, 0.5, 1.0]),
)


@settings(max_examples=40, deadline=None)
@given(network=networks, seed=st.integers(0, 10**6), loading=st.sampled_from([0.0, 0.2, 0.8]))
def test_random_networks_agree_with_dense_svd(network: RandomNetwork, seed: int, loading: float) -> None:
    v, s = network.operating_point(np.random.default_rng(seed), 11, loading)
    found = JacobianBatch(network.full, network.retained, threads=1).summary(v, s)
    expected = dense(network.y, v, s)
    assert np.allclose(found.sigma_min, expected[:, -1], rtol=1e-7)
    assert np.allclose(found.log_abs_det, np.sum(np.log(expected), axis=1), rtol=0, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(network=networks, seed=st.integers(0, 10**6), size=st.floats(0.1, 300.0))
def test_arbitrary_voltages_injections_and_slopes_agree_with_dense_svd(
    network: RandomNetwork, seed: int, size: float
) -> None:
    # Far from any operating point, through collapse and beyond: the sign of det M̃ differs between rows.
    rng = np.random.default_rng(seed)

    def draw(scale: float) -> Any:
        return scale * (rng.standard_normal((9, network.n)) + 1j * rng.standard_normal((9, network.n)))

    v = np.exp(1j * rng.uniform(0, 6, (9, network.n))) * rng.uniform(0.5, 1.3, (9, network.n))
    s, slope = draw(size), draw(0.3 * size)
    found = JacobianBatch(network.full, network.retained, threads=1).summary(v, s, slope)
    expected = dense(network.y, v, s, slope)
    scale = expected[:, 0] * 1e-12
    assert np.all(np.abs(found.sigma_min - expected[:, -1]) <= 1e-7 * expected[:, -1] + scale)
    safe = expected[:, -1] > 1e-3
    log_det = np.sum(np.log(expected), axis=1)
    assert np.allclose(found.log_abs_det[safe], log_det[safe], rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ieee13", "ieee123"])
def test_built_in_feeders_agree_with_dense_svd(name: str, request: pytest.FixtureRequest) -> None:
    feeder = request.getfixturevalue(name)
    network = Network(feeder)
    rng = np.random.default_rng(0)
    z = np.linalg.inv(network.y)
    w = -z @ network.b
    s = feeder.nominal_injection[feeder.retained] * rng.lognormal(-0.2, 0.5, (13, network.n))
    v = np.tile(w, (13, 1))
    for _ in range(60):
        v = w + np.conj(s / v) @ z.T
    found = JacobianBatch.from_feeder(feeder).summary(v, s)
    expected = dense(network.y, v, s)
    assert np.allclose(found.sigma_min, expected[:, -1], rtol=1e-8)
    assert np.allclose(found.log_abs_det, np.sum(np.log(expected), axis=1), rtol=0, atol=1e-8)


def test_exact_pairs_of_singular_values_do_not_stall_the_iteration() -> None:
    network = random_network(11, 12, loops=1)
    v = np.ones((3, network.n), dtype=np.complex128)
    found = JacobianBatch(network.full, network.retained).sigma_min(v, 0.0 * v)
    assert np.allclose(found, np.linalg.svd(network.y, compute_uv=False)[-1], rtol=1e-12)


@pytest.mark.parametrize("loading", [0.0, 1e-6, 1e-3, 0.3, 0.8])
def test_near_pairs_are_certified_by_the_residual_and_not_by_dense_algebra(
    loading: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Early convergence loses orthogonality and repeats Ritz values; the residual must not be taken in.
    network = random_network(13, 40, retained_share=0.6)
    v, s = network.operating_point(np.random.default_rng(0), 16, loading)
    expected = dense(network.y, v, s)[:, -1]

    def refuse(*_: object) -> None:
        raise AssertionError("dense algebra was needed")

    monkeypatch.setattr(JacobianBatch, "_dense", refuse)
    found = JacobianBatch(network.full, network.retained).sigma_min(v, s)
    assert np.allclose(found, expected, rtol=1e-9)


def test_smallest_pair_may_belong_to_another_vector_than_that_of_y() -> None:
    # A large capacitive or inductive power at one node moves another singular value below the start vector's.
    network = random_network(21, 12)
    rng = np.random.default_rng(0)
    v = np.ones((64, network.n), dtype=np.complex128)
    s = 40.0 * rng.standard_normal((64, network.n)) * np.exp(1j * rng.uniform(0, 6, (64, network.n)))
    expected = dense(network.y, v, s)
    _, _, right = np.linalg.svd(real_form(network.y, *diagonal_terms(v, s)))
    of_y = np.linalg.svd(network.y)[2][-1].conj()
    plane = np.stack([np.r_[of_y.real, of_y.imag], np.r_[-of_y.imag, of_y.real]])
    overlap = np.linalg.norm(right[:, -1, :] @ plane.T, axis=1)
    assert np.min(overlap) < 0.1
    found = JacobianBatch(network.full, network.retained).sigma_min(v, s)
    assert np.allclose(found, expected[:, -1], rtol=1e-7)


@pytest.mark.parametrize("short_of", [0.0, 1e-12])
def test_a_vanishing_pivot_falls_back_on_dense_algebra(short_of: float) -> None:
    # At every node c = conj(s) is the node's own admittance: the first pivot block is singular, M̃ is not.
    network = random_network(4, 8, retained_share=1.0)
    v = np.ones((2, network.n), dtype=np.complex128)
    s = (np.tile(np.conj(network.full.diagonal()), (2, 1)) * (1.0 - short_of)).astype(np.complex128)
    s[1] *= 0.01
    batch = JacobianBatch(network.full, network.retained)
    found = batch.summary(v, s)
    expected = dense(network.y, v, s)
    assert np.allclose(found.sigma_min, expected[:, -1], rtol=1e-7)
    log_det = np.sum(np.log(expected), axis=1)
    assert np.allclose(found.log_abs_det, log_det, rtol=0, atol=1e-8)
    assert np.allclose(batch.log_abs_det(v, s), log_det, rtol=0, atol=1e-8)


def test_a_snapshot_that_is_not_a_number_stays_so_and_spoils_no_other() -> None:
    network = random_network(5, 10)
    batch = JacobianBatch(network.full, network.retained)
    v, s = network.operating_point(np.random.default_rng(0), 10, 0.5)
    clean = batch.summary(v, s)
    v[4, 0] = np.nan
    s[7, -1] = np.inf
    spoilt = batch.summary(v, s)
    bad = np.isin(np.arange(10), [4, 7])
    assert np.isnan(spoilt.sigma_min[bad]).all()
    assert np.isnan(spoilt.log_abs_det[bad]).all()
    assert np.array_equal(spoilt.sigma_min[~bad], clean.sigma_min[~bad])
    assert np.array_equal(spoilt.log_abs_det[~bad], clean.log_abs_det[~bad])
    assert np.isnan(batch.log_abs_det(v, s)[bad]).all()


def test_result_of_a_snapshot_does_not_depend_on_its_batch_or_on_threads() -> None:
    network = random_network(6, 10, loops=1)
    v, s = network.operating_point(np.random.default_rng(0), 2000, 0.5)
    one = JacobianBatch(network.full, network.retained, threads=1)
    three = JacobianBatch(network.full, network.retained, threads=3)
    together = one.summary(v, s)
    assert np.array_equal(together.sigma_min, three.sigma_min(v, s))
    assert np.array_equal(together.sigma_min[5:6], one.sigma_min(v[5:6], s[5:6]))
    assert np.array_equal(together.log_abs_det, three.log_abs_det(v, s))


def test_inverse_norm_is_the_reciprocal() -> None:
    network = random_network(8, 6)
    batch = JacobianBatch(network.full, network.retained)
    v, s = network.operating_point(np.random.default_rng(0), 4, 0.5)
    inverse = np.linalg.inv(real_form(network.y, *diagonal_terms(v, s)))
    assert np.allclose(1.0 / batch.sigma_min(v, s), np.linalg.norm(inverse, ord=2, axis=(1, 2)), rtol=1e-8)


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


def test_empty_batch_gives_empty_result() -> None:
    network = random_network(2, 5)
    empty = np.empty((0, network.n), dtype=np.complex128)
    batch = JacobianBatch(network.full, network.retained)
    assert batch.sigma_min(empty, empty).shape == (0,)
    assert batch.sigma_min_lower_bound(empty, empty).shape == (0,)


def test_wrong_shapes_are_refused() -> None:
    network = random_network(2, 6)
    batch = JacobianBatch(network.full, network.retained)
    good = np.ones((3, network.n), dtype=np.complex128)
    with pytest.raises(PowerFlowError, match="s has shape"):
        batch.sigma_min(good, good[:, 1:])
    with pytest.raises(PowerFlowError, match="same number of snapshots"):
        batch.sigma_min(good, good[:2])
    with pytest.raises(PowerFlowError, match="same number of snapshots"):
        batch.sigma_min(good, good, good[:2])
    with pytest.raises(PowerFlowError, match="no retained node"):
        JacobianBatch(network.full, network.retained[:0])
    with pytest.raises(PowerFlowError, match="threads"):
        JacobianBatch(network.full, network.retained, threads=0)
