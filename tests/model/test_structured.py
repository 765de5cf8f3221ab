from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2

from dp_powerflow.model.estimators import (
    PublicFacts,
    Records,
    band_edges,
    band_means,
    from_coefficients,
    interpolate_bands,
    positive_part,
    symmetric_to_vector,
    synthesis_matrix,
    to_coefficients,
    vector_to_symmetric,
    with_floor,
)
from dp_powerflow.model.plain import CLIPS, LEVEL_SHARE, SPREAD_SHARE, PlainPlan
from dp_powerflow.model.structured import Structured, StructuredPlan
from support.adversary import WatchedSession


def test_basis_round_trip_and_parseval() -> None:
    days = np.random.default_rng(0).standard_normal((5, 96))
    coefficients = to_coefficients(days)
    assert np.allclose(from_coefficients(coefficients), days)
    assert np.allclose((coefficients**2).sum(axis=1), (days**2).mean(axis=1))
    assert np.allclose(coefficients @ synthesis_matrix(96).T, days)


@pytest.mark.parametrize("steps", [2, 3, 4, 5, 6, 24, 48, 96, 144, 288])
def test_bands_cover_any_horizon(steps: int) -> None:
    edges = band_edges(steps)
    assert list(edges) == sorted(set(edges))
    assert edges[-1] == steps
    assert band_means(np.ones(steps), edges).tolist() == [1.0] * (len(edges) - 1)
    assert interpolate_bands(np.ones(len(edges) - 1), edges).tolist() == [1.0] * steps


def test_vectorised_matrix_keeps_the_frobenius_norm() -> None:
    root = np.random.default_rng(0).standard_normal((5, 5))
    matrix = root + root.T
    vector = symmetric_to_vector(matrix)
    assert np.linalg.norm(vector) == pytest.approx(np.linalg.norm(matrix))
    assert np.allclose(vector_to_symmetric(vector, 5), matrix)


def test_positive_part_leaves_a_good_matrix_alone_and_mends_a_bad_one() -> None:
    good = np.array([[2.0, 0.5], [0.5, 1.0]])
    assert np.allclose(positive_part(good, 1e-3), good)
    assert np.linalg.eigvalsh(positive_part(np.array([[1.0, 5.0], [5.0, -3.0]]), 0.1)).min() == pytest.approx(
        0.1
    )


def test_a_floor_on_the_variance_does_not_move_the_mean_load() -> None:
    mean, variance = np.array([0.3, -1.0, 2.0]), np.array([0.01, 0.5, 1e-6])
    raised = with_floor(mean, np.diag(variance), 0.1)
    assert np.diag(raised.covariance) == pytest.approx([0.1, 0.5, 0.1])
    assert raised.mean + np.diag(raised.covariance) / 2 == pytest.approx(mean + variance / 2)


def test_plan_depends_on_public_quantities_and_grows_with_the_budget() -> None:
    sizes = [StructuredPlan(n, 96, 0.03, -4.0, 4.0).block_size for n in (20, 100, 1000, 10_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 0
    assert sizes[-1] == 16
    assert Structured().prior_would_do(PublicFacts(20, 96, 0.03, -4.0, 4.0))
    assert not Structured().prior_would_do(PublicFacts(10_000, 96, 0.03, -4.0, 4.0))


def test_plain_split_is_the_least_expected_kl() -> None:
    """ρ_m : ρ_s = √a : √b minimises a/ρ_m + b/ρ_s; checked against a search."""
    plan = PlainPlan(1000, 8, 0.5, -2.0, 2.0).moments
    precision = plan.precision
    a = 0.5 * (2 * plan.radius) ** 2 / 2 * precision.sum()
    b = 0.125 * plan.radius**4 * (precision.sum() ** 2 + (precision**2).sum())
    shares = np.linspace(0.001, 0.999, 9999)
    best = shares[np.argmin(a / shares + b / (1 - shares))]
    assert plan.split()[0] / plan.rho == pytest.approx(best, abs=2e-4)
    assert sum(plan.split()) == pytest.approx(plan.rho)
    assert plan.rho == pytest.approx(0.5 * (1 - LEVEL_SHARE - SPREAD_SHARE))
    least = (a / best + b / (1 - best)) / plan.rho / 1000**2
    assert plan.expected_kl(1000) == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize(("share", "clip"), list(zip((0.95, 0.975, 0.99, 0.999), CLIPS, strict=True)))
def test_plain_clips_are_quantiles_of_chi_square(share: float, clip: tuple[float, float]) -> None:
    quantile, excess = clip
    law = chi2(1)
    assert quantile == pytest.approx(law.ppf(share), abs=1e-4)
    lost, _ = quad(lambda x: (x - quantile) * law.pdf(x), quantile, np.inf)
    assert excess == pytest.approx(lost, abs=1e-4)


def test_without_noise_worth_mentioning_the_model_is_recovered() -> None:
    """Days from a known structured law, a huge budget: mean, spread profile and correlations come back."""
    rng = np.random.default_rng(1)
    steps = 24
    t = np.arange(steps) / steps
    mean = 0.5 * np.cos(2 * np.pi * t)
    profile = 1 + 0.3 * np.sin(2 * np.pi * t)
    level = 0.6 * rng.standard_normal((4000, 1, 1))
    slope = 0.4 * (rng.standard_normal((4000, 1, 1)) + level) * np.cos(np.pi * (t + 0.5 / steps))
    days = mean + level + slope + 0.3 * profile * rng.standard_normal((4000, 3, steps))
    session = WatchedSession(rho=500.0)
    facts = PublicFacts(4000, steps, 500.0, -4.0, 4.0)
    (found,) = Structured(block=6).estimate([Records(days, 4000.0)], facts, session)
    flat = days.reshape(-1, steps)
    truth = np.cov(flat.T)
    assert np.abs(found.mean - flat.mean(axis=0)).max() < 0.05
    assert np.abs(found.covariance - truth).max() < 0.1 * truth.max()
    correlation = np.corrcoef(np.diag(found.covariance), np.diag(truth))[0, 1]
    assert correlation > 0.9
