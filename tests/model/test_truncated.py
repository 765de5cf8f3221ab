from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import truncate


def correlated(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size))
    return 0.3 * rng.standard_normal(size), root @ root.T + 0.3 * np.eye(size)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_probability_of_the_box_agrees_with_quadrature(size: int) -> None:
    mean, covariance = correlated(size)
    low, high = mean - 0.8, mean + 1.1
    exact = stats.multivariate_normal(mean, covariance).cdf(high, lower_limit=low)
    found = truncate(mean, covariance, low, high).probability(np.random.default_rng(1), 20_000)
    assert found.value == pytest.approx(exact, abs=5 * found.standard_error + 1e-5)
    assert found.standard_error < 0.01 * exact


def test_tiny_probability_is_found_with_small_relative_error() -> None:
    """Independent coordinates six standard deviations out: plain sampling would never see the box."""
    size = 8
    low, high = np.full(size, 5.0), np.full(size, 6.0)
    exact = (stats.norm.sf(5) - stats.norm.sf(6)) ** size
    found = truncate(np.zeros(size), np.eye(size), low, high).probability(np.random.default_rng(0), 1000)
    assert found.value == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("rejection", [True, False])
def test_draws_follow_the_truncated_law(rejection: bool) -> None:
    """Both methods against brute-force rejection written here."""
    mean, covariance = correlated(4, seed=3)
    low, high = mean - np.array([0.5, 1.0, 2.0, 0.8]), mean + np.array([2.0, 0.4, 0.7, 3.0])
    rng = np.random.default_rng(4)
    free = rng.multivariate_normal(mean, covariance, 400_000)
    brute = free[((free >= low) & (free <= high)).all(axis=1)]
    draws = truncate(mean, covariance, low, high).draw(rng, 20_000, rejection=rejection)
    assert draws.shape == (20_000, 4)
    assert np.all((draws >= low) & (draws <= high))
    for k in range(4):
        assert stats.ks_2samp(draws[:, k], brute[:, k]).pvalue > 1e-4
    direction = np.array([1.0, -1.0, 0.5, 2.0])
    assert stats.ks_2samp(draws @ direction, brute @ direction).pvalue > 1e-4


def test_impossible_margins_are_refused() -> None:
    with np.errstate(all="ignore"), pytest.raises(PrivacyError, match="widen"):
        truncate(np.zeros(3), np.eye(3), np.full(3, 1e200), np.full(3, 1.1e200))


def test_draws_deep_in_a_tail_are_exact() -> None:
    low, high = np.array([7.0, -9.0]), np.array([9.0, -7.5])
    draws = truncate(np.zeros(2), np.eye(2), low, high).draw(
        np.random.default_rng(0), 20_000, rejection=False
    )
    upper = stats.truncnorm(7.0, 9.0)
    lower = stats.truncnorm(-9.0, -7.5)
    assert stats.kstest(draws[:, 0], upper.cdf).pvalue > 1e-4
    assert stats.kstest(draws[:, 1], lower.cdf).pvalue > 1e-4
