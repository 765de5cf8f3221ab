"""The reduced network against OpenDSS and dense algebra; κ_Kron; norms of a large feeder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Line
from dp_powerflow.grid.reduction import (
    LineProjector,
    is_symmetric,
    kron_amplification,
    norm_bound,
    weighted_impedance_norm,
)
from dp_powerflow.lowlevel import Network
from support.feeder_reference import opendss_with_wye_equivalents
from support.random_networks import solve
from support.synthetic import write_synthetic

FEEDERS = ["ieee13", "ieee123", "ieee123_dss/IEEE123Master.dss", "ieee13_dss/IEEE13Nodeckt.dss"]


@pytest.fixture(params=FEEDERS)
def feeder(request: pytest.FixtureRequest) -> Feeder:
    name = str(request.param)
    if name.endswith(".dss"):
        cases: Path = request.getfixturevalue("foreign_cases")
        return open_feeder(cases / name)
    return open_feeder(name)


def with_changed_line(feeder: Feeder, line: Line, change: np.ndarray) -> Feeder:
    at = sp.csc_array(
        (np.ones(len(line.nodes)), (line.nodes, range(len(line.nodes)))),
        shape=(len(feeder.nodes), len(line.nodes)),
    )
    return replace(feeder, y=sp.csc_array(feeder.y + at @ change @ at.T))


def test_voltages_agree_with_opendss_at_every_node(feeder: Feeder) -> None:
    network = Network(feeder)
    v = network.all_nodes(solve(network, -feeder.nominal_injection[feeder.retained]))
    assert np.abs(v - opendss_with_wye_equivalents(feeder)).max() < 1e-7


def test_offset_b_is_the_slack_column_of_the_reduced_matrix_not_of_the_full_one(feeder: Feeder) -> None:
    network = Network(feeder)
    assert np.allclose(network.b, network.y_reduced[:, network.n :] @ feeder.v_slack, rtol=1e-9)
    # Paper correction 1: no retained node is a neighbour of the source, so the printed formula gives zero.
    printed = feeder.y[network.retained, :][:, feeder.slack] @ feeder.v_slack
    assert np.linalg.norm(printed) == 0.0
    assert np.linalg.norm(network.b) > 1.0


def test_reduction_equals_the_dense_schur_complement(ieee13: Feeder) -> None:
    network = Network(ieee13)
    full = ieee13.y.toarray()
    kept, gone = network.kept, network.zero_injection
    schur = full[np.ix_(kept, kept)] - full[np.ix_(kept, gone)] @ np.linalg.solve(
        full[np.ix_(gone, gone)], full[np.ix_(gone, kept)]
    )
    assert np.allclose(network.y_reduced, schur[: network.n], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.01, -0.5, 3.0, np.exp(0.2j) - 1.0])
def test_changing_any_line_by_low_rank_equals_reducing_again(feeder: Feeder, scale: complex) -> None:
    network = Network(feeder)
    for line in feeder.lines[:: max(1, len(feeder.lines) // 25)]:
        change = network.line_change(line, scale * line.primitive)
        again = Network(with_changed_line(feeder, line, scale * line.primitive))
        moved = again.y - network.y
        assert np.linalg.norm(change.change_of_y() - moved) <= 1e-9 * np.linalg.norm(again.y)
        moved_b = again.b - network.b
        assert np.linalg.norm(change.change_of_b(feeder.v_slack) - moved_b) <= 1e-9 * np.linalg.norm(again.b)


def test_lines_and_the_rest_add_up_to_the_whole(ieee123: Feeder) -> None:
    """Opening every line must leave nothing between buses that only lines join."""
    y = ieee123.y.toarray()
    for line in ieee123.lines:
        y[np.ix_(line.nodes, line.nodes)] -= line.primitive
    a, b = ieee123.node_index["1.1"], ieee123.node_index["7.1"]
    assert abs(ieee123.y[a, b]) > 1.0
    assert abs(y[a, b]) < 1e-9


def test_a_singular_interior_is_refused_with_advice(ieee13: Feeder) -> None:
    y = ieee13.y.tolil()
    node = ieee13.zero_injection[0]
    y[node, :] = 0.0
    y[:, node] = 0.0
    with pytest.raises(FeederError, match="singular"):
        Network(replace(ieee13, y=sp.csc_array(y)))


def test_zero_injection_voltages_are_not_bounded_by_the_retained_ones(ieee123: Feeder) -> None:
    """Rows of Φ sum to more than one, so limits that the retained nodes keep do not carry over."""
    network = Network(ieee123)
    sums = np.abs(network.solve_zz(network.y_zk.toarray())).sum(axis=1)
    assert sums.max() == pytest.approx(2.3247, abs=1e-3)
    assert np.median(sums) > 1.2


def dense_psi(network: Network) -> np.ndarray:
    y = network.feeder.y.toarray()
    gone, kept = network.zero_injection, network.kept
    phi = -np.linalg.solve(y[np.ix_(gone, gone)], y[np.ix_(gone, kept)])
    return np.vstack([np.eye(len(kept)), phi])


def test_exact_kappa_is_the_squared_norm_of_psi(ieee123: Feeder) -> None:
    network = Network(ieee123)
    kappa = kron_amplification(network)
    assert kappa.exact == pytest.approx(np.linalg.norm(dense_psi(network), 2) ** 2, rel=1e-6)
    assert kappa.exact == pytest.approx(7.77, rel=0.01)  # paper correction 2
    sigma_min = np.linalg.svd(network.y, compute_uv=False)[-1]
    assert 1.0 / network.impedance_norm == pytest.approx(sigma_min, rel=1e-8)


def test_printed_kappa_is_astronomical_on_ieee123(ieee123: Feeder) -> None:
    assert kron_amplification(Network(ieee123)).paper == pytest.approx(1.2e29, rel=0.1)  # paper correction 2


@pytest.mark.parametrize("radius", [1e-4, 0.5, 3.0])
def test_bound_holds_for_random_changes_of_many_lines(ieee123: Feeder, radius: float) -> None:
    network = Network(ieee123)
    kappa = kron_amplification(network).bound(radius)
    rng = np.random.default_rng(1)
    worst = 0.0
    for trial in range(12):
        change = sp.lil_array(ieee123.y.shape, dtype=np.complex128)
        chosen = rng.choice(len(ieee123.lines), 1 if trial % 2 else 20, replace=False)
        for k in chosen:
            line = ieee123.lines[k]
            scaled = line.primitive * rng.normal() / np.linalg.norm(line.primitive)
            for row, i in enumerate(line.nodes):
                for column, j in enumerate(line.nodes):
                    change[i, j] += scaled[row, column]
        change = sp.csc_array(change)
        change = change * (radius / sp.linalg.norm(change))
        moved = Network(replace(ieee123, y=sp.csc_array(ieee123.y + change))).y_reduced - network.y_reduced
        worst = max(worst, float(np.linalg.norm(moved)))
    # Rounding of two reductions of a matrix with entries of 1e6 leaves about 1e-7.
    assert worst <= kappa * radius + 1e-6
    assert worst > 0.05 * radius


def test_no_bound_is_given_beyond_its_radius(ieee123: Feeder) -> None:
    kappa = kron_amplification(Network(ieee123))
    with pytest.raises(FeederError, match="no bound"):
        kappa.bound(kappa.largest_radius)
    assert kappa.bound(0.0) == kappa.exact


def test_a_coupling_to_the_floating_winding_would_break_the_exact_figure(ieee123: Feeder) -> None:
    """Why the bound is for lines only: 1e-4 on bus 610's common mode moves Y by far more than κ·1e-4."""
    network = Network(ieee123)
    i = int(network.retained[0])
    change = sp.lil_array(ieee123.y.shape, dtype=np.complex128)
    for phase in (1, 2, 3):
        j = ieee123.node_index[f"610.{phase}"]
        change[i, j] = change[j, i] = 1e-4 / np.sqrt(6.0)
    moved = (
        Network(replace(ieee123, y=sp.csc_array(ieee123.y + sp.csc_array(change)))).y_reduced
        - network.y_reduced
    )
    assert np.linalg.norm(moved) > 10 * kron_amplification(network).exact * 1e-4


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


def test_norm_bound_is_above_the_norm_and_near_it() -> None:
    rng = np.random.default_rng(1)
    for shape in ((60, 400), (400, 60), (350, 350)):
        a = rng.normal(size=shape) + 1j * rng.normal(size=shape)
        norm = np.linalg.norm(a, 2)
        bound = norm_bound(partial(np.matmul, a), partial(np.matmul, a.conj().T), shape, dense_up_to=0)
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
    phi = dense_psi(network)[n_k:]
    found = norm_bound(
        lambda x: network.solve_zz(network.y_zk @ x),
        lambda x: network.y_zk.conj().T @ network.solve_zz(x, "H"),
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
    assert np.allclose(network.impedance_sums(np.ones(network.n)), np.abs(z).sum(axis=1), rtol=1e-8)
    norm = np.linalg.norm(z, 2)
    assert norm <= network.impedance_norm <= 1.01 * norm


def test_symmetry_is_told_up_to_rounding(ieee123: Feeder) -> None:
    assert is_symmetric(ieee123.y)
    changed = ieee123.y.tolil()
    i, j = (int(k) for k in np.argwhere(np.triu(np.abs(ieee123.y.toarray()), 1) > 0)[0])
    changed[i, j] *= 1.0 + 1e-12
    assert not is_symmetric(changed.tocsc())
