"""Synthetic feeders, and what a large feeder needs of its network without a dense matrix."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.grid.reduction import (
    LineProjector,
    is_symmetric,
    kron_amplification,
    norm_bound,
    sigma_min,
    weighted_impedance_norm,
)
from dp_powerflow.lowlevel import Network
from support.synthetic import write_synthetic


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Feeder:
    return open_feeder(write_synthetic(tmp_path_factory.mktemp("feeder") / "thousand.dss", 1000))


def rotated(spectrum: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A matrix with these singular values in random directions."""
    m = len(spectrum)
    q, _ = np.linalg.qr(rng.normal(size=(m, m)) + 1j * rng.normal(size=(m, m)))
    return np.asarray(spectrum[:, None] * q)


def test_norm_bound_fails_no_more_often_than_it_says() -> None:
    """Few steps and a spectrum that is hard for Lanczos: many values just below the largest."""
    rng = np.random.default_rng(0)
    spectrum = np.concatenate([[1.0], np.linspace(0.0, 0.97, 39)])
    failure, trials = 0.2, 400
    below = raw = 0
    for _ in range(trials):
        a = rotated(spectrum, rng)
        maps = partial(np.matmul, a), partial(np.matmul, a.conj().T)
        bound, certain = (
            norm_bound(*maps, (40, 40), failure=each, steps=5, dense_up_to=0) for each in (failure, 1e12)
        )
        below += bound < 1.0
        raw += certain < 1.0
    assert raw == trials  # what Lanczos gives by itself is no bound
    assert below <= failure * trials


@pytest.mark.parametrize("shape", [(60, 400), (400, 60), (350, 350)])
def test_norm_bound_is_above_the_norm_and_near_it(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    norm = np.linalg.norm(a, 2)
    bound = norm_bound(lambda x: a @ x, lambda x: a.conj().T @ x, shape, dense_up_to=0)
    assert norm <= bound <= 1.01 * norm


def test_norm_bound_of_exhausted_krylov_space_is_the_norm() -> None:
    a = np.diag([3.0, 2.0, 2.0, 2.0, 1.0]).astype(complex)
    bound = norm_bound(lambda x: a @ x, lambda x: a.conj().T @ x, (5, 5), dense_up_to=0)
    assert bound == pytest.approx(3.0, rel=1e-8)
    assert norm_bound(lambda x: a @ x, lambda x: a @ x, (0, 5)) == 0.0


def test_lanczos_bound_covers_the_dense_norms_of_ieee123(ieee123: Feeder) -> None:
    """κ's norms and ‖Y⁻¹‖ on a network whose condition number is 9e12."""
    network = Network(ieee123)
    n, n_z, n_k = network.n, len(network.zero_injection), len(network.kept)
    y = ieee123.y.toarray()
    phi = np.linalg.solve(
        y[np.ix_(network.zero_injection, network.zero_injection)],
        y[np.ix_(network.zero_injection, network.kept)],
    )
    found = norm_bound(
        lambda x: network.solve_zz(network.y_zk @ x),
        lambda x: network.y_zk.conj().T @ np.conj(network.solve_zz(np.conj(x), transpose=True)),
        (n_z, n_k),
        steps=60,
        dense_up_to=0,
    )
    dense = np.linalg.norm(phi, 2)
    assert dense <= found * (1.0 + 1e-9) <= 1.05 * dense
    z = np.linalg.norm(np.linalg.inv(network.y), 2)
    found = norm_bound(
        network.solve, lambda x: network.solve(x, adjoint=True), (n, n), steps=60, dense_up_to=0
    )
    assert z * (1.0 - 1e-9) <= found <= 1.05 * z


def test_kappa_of_a_large_feeder_covers_the_dense_one(thousand: Feeder) -> None:
    network = Network(thousand)
    assert network.large
    found = kron_amplification(network)
    y = thousand.y.toarray()
    gone, kept = network.zero_injection, network.kept
    inverse = np.linalg.inv(y[np.ix_(gone, gone)])
    psi = np.hypot(1.0, np.linalg.norm(inverse @ y[np.ix_(gone, kept)], 2))
    project = LineProjector(thousand, gone)(np.eye(len(thousand.nodes), dtype=complex))
    h = np.linalg.norm(inverse @ project, 2)
    g = np.linalg.norm(project.T @ inverse @ project, 2)
    for bound, true in ((found.exact, psi**2), (found.growth, h), (found.reach, g)):
        assert true <= bound <= 1.01 * true
    assert 0.0 < found.failure <= 1e-11


def test_products_and_solves_agree_with_the_dense_network(ieee123: Feeder) -> None:
    dense, sparse = Network(ieee123), Network(ieee123, dense_up_to=0)
    assert sparse.large
    assert not dense.large
    rng = np.random.default_rng(2)
    x = rng.normal(size=(dense.n, 3)) + 1j * rng.normal(size=(dense.n, 3))
    y = dense.y
    z = np.linalg.inv(y)
    assert np.allclose(sparse.apply(x), y @ x, rtol=1e-7, atol=1e-7)
    assert np.allclose(sparse.solve(x), z @ x, rtol=1e-7)
    assert np.allclose(sparse.solve(x, adjoint=True), z.conj().T @ x, rtol=1e-7)
    assert np.allclose(sparse.rows.abs_sum, np.abs(y).sum(axis=1), rtol=1e-9)
    assert np.allclose(sparse.rows.diagonal, np.diag(y), rtol=1e-9)
    size = np.abs(y)
    assert sparse.rows.d_max == np.count_nonzero(size > 1e-9 * size.max(), axis=1).max()
    weights = rng.uniform(0.0, 1.0, dense.n)
    assert np.allclose(sparse.impedance_sums(weights), np.abs(z) @ weights, rtol=1e-7)
    assert weighted_impedance_norm(sparse, weights) >= np.linalg.norm(z * weights, 2) * (1.0 - 1e-9)


def test_columns_of_a_large_network_come_in_blocks(thousand: Feeder) -> None:
    """More columns than fit one block: their seams are right."""
    network = Network(thousand)
    y = network.y
    assert np.allclose(network.rows.diagonal, np.diag(y), rtol=1e-12)
    assert np.allclose(network.rows.abs_sum, np.abs(y).sum(axis=1), rtol=1e-12)
    z = np.linalg.inv(y)
    ones = np.ones(network.n)
    assert np.allclose(network.impedance_sums(ones), np.abs(z).sum(axis=1), rtol=1e-8)
    assert 1.0 / network.impedance_norm <= 1.0 / np.linalg.norm(z, 2) <= sigma_min(network) * (1.0 + 1e-9)


def test_symmetry_is_told_up_to_rounding(ieee123: Feeder) -> None:
    assert is_symmetric(ieee123.y)
    changed = ieee123.y.tolil()
    i, j = (int(k) for k in np.argwhere(np.triu(np.abs(ieee123.y.toarray()), 1) > 0)[0])
    changed[i, j] *= 1.0 + 1e-12
    assert not is_symmetric(changed.tocsc())
