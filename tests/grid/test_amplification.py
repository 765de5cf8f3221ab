"""κ_Kron: the printed figure, the exact one, and the bound for changes of lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow import Feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.reduction import kron_amplification, sigma_min, spectral_norm
from dp_powerflow.lowlevel import Network


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


def test_printed_kappa_is_astronomical_on_ieee123(ieee123: Feeder) -> None:
    assert kron_amplification(Network(ieee123)).paper == pytest.approx(1.2e29, rel=0.1)  # paper correction 2


def test_sigma_min_of_the_reduced_matrix(ieee123: Feeder, ieee13: Feeder) -> None:
    for feeder in (ieee123, ieee13):
        network = Network(feeder)
        assert sigma_min(network) == pytest.approx(np.linalg.svd(network.y, compute_uv=False)[-1], rel=1e-8)


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


@pytest.mark.parametrize("shape", [(3, 2), (40, 70), (200, 50), (1, 1), (0, 4)])
def test_spectral_norm_agrees_with_dense_svd(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    expected = np.linalg.norm(a, 2) if min(shape) else 0.0
    assert spectral_norm(lambda x: a @ x, lambda x: a.conj().T @ x, shape) == pytest.approx(
        expected, rel=1e-10
    )
