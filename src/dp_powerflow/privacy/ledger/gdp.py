"""Gaussian differential privacy ↔ (ε, δ), exact, rounded to the safe side.

μ-GDP means: neighbours are no easier to tell apart than N(0, 1) from N(μ, 1) (Dong, Roth, Su, arXiv
1905.02383v3). It is equivalent to the whole curve of Corollary 2.13 there (the analytic Gaussian mechanism
of Balle and Wang, arXiv 1805.06530v2, Theorem 8),

    δ(ε; μ) = Φ(−ε/μ + μ/2) − exp(ε)·Φ(−ε/μ − μ/2),

and composes as μ² = Σ μᵢ² (Corollary 3.3). Nothing is lost by adding up in μ² and converting at the end.
"""

from __future__ import annotations

import math

from scipy import optimize
from scipy.special import log_ndtr

from dp_powerflow.errors import PrivacyError

_SLACK = 1e-9  # relative; far above the error of the roots, far below what a guarantee is read to
_MIN_MU, _MAX_MU = 1e-5, 1e3  # where the formula is accurate to `_SLACK`; also all that makes sense


def gdp_delta(epsilon: float, mu: float) -> float:
    """δ of μ-GDP at ε ≥ 0."""
    if not (math.isfinite(epsilon) and epsilon >= 0 and math.isfinite(mu) and mu >= 0):
        raise PrivacyError("epsilon and mu must be at least 0 and finite to state a guarantee")
    return math.exp(_log_delta(epsilon, mu)) if mu > 0 else 0.0


def gdp_epsilon(mu: float, delta: float) -> float:
    """Smallest ε of μ-GDP at δ, rounded up."""
    _check_delta(delta)
    if not 0 <= mu <= _MAX_MU:
        raise PrivacyError(f"mu must lie between 0 and {_MAX_MU:g} to state a guarantee")
    mu = max(mu, _MIN_MU)  # a larger μ promises less: safe
    log_delta = math.log(delta)
    if _log_delta(0.0, mu) <= log_delta:
        return 0.0
    high = 1.0
    while _log_delta(high, mu) > log_delta:
        high *= 2
    root = optimize.brentq(lambda epsilon: _log_delta(epsilon, mu) - log_delta, 0.0, high, xtol=1e-14)
    return float(root) * (1 + _SLACK)


def gdp_mu(epsilon: float, delta: float) -> float:
    """Largest μ whose guarantee at δ stays within ε, rounded down."""
    _check_delta(delta)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyError("epsilon must be positive and finite to be turned into a mu of Gaussian DP")
    log_delta = math.log(delta)
    low, high = math.log(_MIN_MU), math.log(_MAX_MU)

    def excess(log_mu: float) -> float:
        return _log_delta(epsilon, math.exp(log_mu)) - log_delta

    if excess(low) > 0 or excess(high) < 0:
        raise PrivacyError("epsilon is too small or too large for Gaussian DP at this delta; change either")
    return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-14))) * (1 - _SLACK)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise PrivacyError("delta must lie between 0 and 1 to state a guarantee; 1e-5 is a common choice")


def _log_delta(epsilon: float, mu: float) -> float:
    """log δ, both terms in logarithms: neither exp(ε) overflows nor a tail underflows."""
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    ratio = -math.expm1(min(second - first, 0.0))
    return first + math.log(ratio) if ratio > 0 else -math.inf
