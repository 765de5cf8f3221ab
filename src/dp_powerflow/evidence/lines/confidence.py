"""Confidence bounds for shares and for means of values between 0 and 1, whatever their distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import FloatArray

_BISECTIONS = 60


def upper_share(hits: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Clopper–Pearson: the share is larger with probability at most α."""
    _check(trials, alpha)
    k = np.asarray(hits, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(k >= trials, 1.0, beta.isf(alpha, k + 1.0, trials - k))


def lower_share(hits: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Clopper–Pearson: the share is smaller with probability at most α."""
    return np.asarray(1.0 - upper_share(trials - np.asarray(hits, dtype=np.float64), trials, alpha))


def upper_mean(mean: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Upper bound of an expectation from the mean of independent values in [0, 1].

    Hoeffding (1963), Theorem 1: Pr[mean ≤ m] ≤ exp(−trials·kl(m, μ)) for m ≤ μ, with kl of two coins. The
    bound is the largest μ with trials·kl(mean, μ) ≤ log(1/α), rounded up.
    """
    _check(trials, alpha)
    m = np.clip(np.asarray(mean, dtype=np.float64), 0.0, 1.0)
    limit = -np.log(alpha) / trials
    low, high = m.copy(), np.ones_like(m)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        inside = _divergence(m, middle) <= limit
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.asarray(high)


def smallest_share(trials: int, alpha: float) -> float:
    """Upper bound of a share that never showed: no smaller δ can be claimed from so many trials."""
    _check(trials, alpha)
    return float(-np.expm1(np.log(alpha) / trials))


def _divergence(a: FloatArray, b: FloatArray) -> FloatArray:
    """kl(a, b) of two coins, b ≥ a."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = np.where(a > 0.0, a * np.log(a / b), 0.0)
        tails = np.where(a < 1.0, (1.0 - a) * np.log((1.0 - a) / (1.0 - b)), 0.0)
    return np.asarray(heads + tails)


def _check(trials: int, alpha: float) -> None:
    if trials < 1 or not 0.0 < alpha < 1.0:
        raise PrivacyError("a confidence bound needs at least one trial and an α between 0 and 1")
