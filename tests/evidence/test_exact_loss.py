"""The exact loss is the logarithm of a density that integrates to one."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow.lowlevel import ClassLaw, LoadLaw, nominal_law
from dp_powerflow_paper.losses import (
    Admittance,
    Loss,
    dg,
    full_support_loss,
    implied_load,
    log_abs_det,
    log_density_of_active,
    log_density_of_reactive,
    log_volume,
    manifold_loss,
)
from support.laws import draw
from support.random_networks import random_network, small_law, solve

ONE_NODE = Admittance(np.array([[4.0 - 9.0j]]), np.array([-4.0 + 9.0j]))


def one_node_law(*, random_q: bool) -> LoadLaw:
    of_class = ClassLaw.gaussian(np.array([-0.3]), np.array([[0.09]]), q_covariance=np.eye(1))
    return nominal_law(np.array([0.4 + 0.16j]), of_class, 0.05 / 0.4 if random_q else None)


def test_full_support_density_of_one_node_integrates_to_one() -> None:
    law = one_node_law(random_q=True)
    draws = solve(ONE_NODE, draw(law, 4000, np.random.default_rng(1)))[:, 0, 0]
    real = np.linspace(draws.real.min() - 0.05, draws.real.max() + 0.05, 900)
    imag = np.linspace(draws.imag.min() - 0.05, draws.imag.max() + 0.05, 900)
    v = (real[:, None] + 1j * imag[None, :]).reshape(-1, 1, 1)
    load = implied_load(ONE_NODE, v)
    log_f = log_density_of_active(law, load.real) + log_density_of_reactive(law, load.real, load.imag)
    constant = np.log(2 * np.pi * 0.3 * 0.05 * 0.4)  # standard deviations of log p and of q, scale of p
    volume = log_abs_det(ONE_NODE, v)[:, 0] + 2 * np.log(np.abs(v[:, 0, 0]))
    cell = (real[1] - real[0]) * (imag[1] - imag[0])
    assert np.exp(log_f + volume - constant).sum() * cell == pytest.approx(1.0, abs=2e-4)
    # Flipping the determinant visibly breaks it.
    assert abs(np.exp(log_f - volume - constant).sum() * cell - 1.0) > 0.5


def test_manifold_density_of_one_node_integrates_to_one_along_the_curve() -> None:
    """With the factor 1/√det(DGᵀDG); as printed (without the reciprocal) it does not."""
    law = one_node_law(random_q=False)
    p = 0.4 * np.exp(-0.3 + 0.3 * np.linspace(-7, 7, 4001))
    v = solve(ONE_NODE, (p * (1 + 0.4j))[:, None])
    arc = np.abs(np.diff(v[:, 0]))
    middle = solve(ONE_NODE, ((p[1:] + p[:-1]) / 2 * (1 + 0.4j))[:, None])
    log_f = log_density_of_active(law, implied_load(ONE_NODE, middle).real[:, None, :])
    log_f -= np.log(np.sqrt(2 * np.pi) * 0.3 * 0.4)
    volume = log_volume(dg(ONE_NODE.y, ONE_NODE.b, middle, law.tan_theta))
    assert np.sum(np.exp(log_f - volume) * arc) == pytest.approx(1.0, abs=1e-4)
    assert abs(np.sum(np.exp(log_f + volume) * arc) - 1.0) > 0.5


def test_loss_is_antisymmetric_and_zero_for_the_same_network(rng: np.random.Generator) -> None:
    network = random_network(3, rng)
    law = small_law(3, 2, rng, random_q=True)
    other = Admittance(network.y * 1.02, network.b * 1.02)
    v = solve(network, draw(law, 20, rng))
    forth, back = full_support_loss(law, network, other, v), full_support_loss(law, other, network, v)
    assert np.allclose(forth.total, -back.total)
    assert np.allclose(full_support_loss(law, network, network, v).total, 0.0)


def test_row_scaling_keeps_the_manifold_and_its_loss_satisfies_the_identity(rng: np.random.Generator) -> None:
    """Paper correction 4: scaling a row of Y and b by a real number moves every load along its own ray."""
    network = random_network(2, rng)
    law = small_law(2, 2, rng, random_q=False)
    factors = np.array([1.02, 0.99])
    other = Admittance(factors[:, None] * network.y, factors * network.b)
    v = solve(network, draw(law, 40_000, rng))
    loss: Loss = manifold_loss(law, network, other, v)
    ratio = np.exp(-loss.total)
    assert ratio.mean() == pytest.approx(1.0, abs=5 * ratio.std() / np.sqrt(len(ratio)))
