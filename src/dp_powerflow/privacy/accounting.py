"""Adding up costs and stating them as (ε, δ): zCDP for the loads, Gaussian DP for the network.

**zCDP.** The discrete Gaussian of scale σ on integer sums of L2 sensitivity Δ is Δ²/2σ²-zCDP, the same figure
as the continuous one, in any dimension and also when a later query is chosen after seeing an earlier answer
(Canonne, Kamath, Steinke, arXiv 2004.00010v4, Theorem 14; Bun and Steinke 2016, Lemma 7). The conversion is
Proposition 12 there, minimised over the order; `dp_accounting` uses it on a fixed grid of orders, and the
tests hold the two together.

**Gaussian DP.** μ-GDP means: neighbours are no easier to tell apart than N(0, 1) from N(μ, 1) (Dong, Roth,
Su, arXiv 1905.02383v3). It is equivalent to the whole curve of Corollary 2.13 there (the analytic Gaussian
mechanism of Balle and Wang, arXiv 1805.06530v2, Theorem 8),

    δ(ε; μ) = Φ(−ε/μ + μ/2) − exp(ε)·Φ(−ε/μ − μ/2),

and composes as μ² = Σ μᵢ² (Corollary 3.3). Nothing is lost by adding up in μ² and converting at the end; the
conversions are exact, rounded to the safe side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from scipy import optimize

from dp_powerflow._bits.elementary import exp1, expm11, log1
from dp_powerflow._bits.normal import log_ndtr1
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import QueryCost

_SLACK = 1e-9  # relative; far above the error of the roots, far below what a guarantee is read to
_MIN_MU, _MAX_MU = 1e-5, 1e3  # where the formula is accurate to `_SLACK`; also all that makes sense


def rho_to_epsilon(rho: float, delta: float) -> float:
    """Smallest ε for which ρ-zCDP implies (ε, δ)-DP by Proposition 12 of CKS.

    Every order α > 1 gives a valid ε, so an imperfect minimisation can only overstate the cost.
    """
    if rho < 0 or not 0 < delta < 1:
        raise PrivacyError("rho must be at least 0 and delta between 0 and 1 to state a guarantee")
    if rho == 0:
        return 0.0

    def epsilon_at(log_order_minus_1: float) -> float:
        excess = exp1(log_order_minus_1)
        order = 1 + excess
        return rho * order + log1(excess / order) - log1(delta * order) / excess

    # The classical conversion ρ + 2√(ρ ln 1/δ) has α − 1 = √(ln(1/δ)/ρ); the optimum is close to it.
    near = 0.5 * log1(log1(1 / delta) / rho)
    found = optimize.minimize_scalar(epsilon_at, bounds=(near - 5, near + 5), method="bounded")
    return max(0.0, float(min(found.fun, epsilon_at(near))))


def epsilon_to_rho(epsilon: float, delta: float) -> float:
    """Largest ρ for which `rho_to_epsilon` stays within ε."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyError("epsilon must be positive and finite to be turned into a zCDP budget")
    high = 1.0
    while rho_to_epsilon(high, delta) < epsilon:
        high *= 2
    root = optimize.brentq(lambda rho: rho_to_epsilon(rho, delta) - epsilon, 1e-12, high, xtol=1e-15)
    rho = float(root) * (1 - 1e-6)  # the root is only known to its tolerance; stay on the safe side
    if rho_to_epsilon(rho, delta) > epsilon:
        raise PrivacyError("epsilon is too small for a zCDP budget at this delta; raise epsilon or delta")
    return rho


def total_rho(costs: Iterable[QueryCost]) -> float:
    """ρ of all queries together.

    Queries on every record add up. Queries on public cohorts compose in parallel: a record's cohort is
    public and fixed, so a neighbour replaces a record inside one cohort and every other cohort is
    untouched; the dearest cohort counts. All queries must be about the same unit of privacy.
    """
    costs = tuple(costs)
    if len({cost.unit for cost in costs}) > 1:
        raise PrivacyError("costs of different units of privacy cannot be added; fit one unit at a time")
    per_cohort: dict[str | None, float] = defaultdict(float)
    for cost in costs:
        per_cohort[cost.cohort] += cost.rho
    shared = per_cohort.pop(None, 0.0)
    return shared + max(per_cohort.values(), default=0.0)


def gdp_delta(epsilon: float, mu: float) -> float:
    """δ of μ-GDP at ε ≥ 0."""
    if not (math.isfinite(epsilon) and epsilon >= 0 and math.isfinite(mu) and mu >= 0):
        raise PrivacyError("epsilon and mu must be at least 0 and finite to state a guarantee")
    return exp1(_log_delta(epsilon, mu)) if mu > 0 else 0.0


def gdp_epsilon(mu: float, delta: float) -> float:
    """Smallest ε of μ-GDP at δ, rounded up."""
    _check_delta(delta)
    if not 0 <= mu <= _MAX_MU:
        raise PrivacyError(f"mu must lie between 0 and {_MAX_MU:g} to state a guarantee")
    mu = max(mu, _MIN_MU)  # a larger μ promises less: safe
    log_delta = log1(delta)
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
    log_delta = log1(delta)
    low, high = log1(_MIN_MU), log1(_MAX_MU)

    def excess(log_mu: float) -> float:
        return _log_delta(epsilon, exp1(log_mu)) - log_delta

    if excess(low) > 0 or excess(high) < 0:
        raise PrivacyError("epsilon is too small or too large for Gaussian DP at this delta; change either")
    return exp1(float(optimize.brentq(excess, low, high, xtol=1e-14))) * (1 - _SLACK)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise PrivacyError("delta must lie between 0 and 1 to state a guarantee; 1e-5 is a common choice")


def _log_delta(epsilon: float, mu: float) -> float:
    """log δ, both terms in logarithms: neither exp(ε) overflows nor a tail underflows."""
    first = log_ndtr1(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr1(-mu / 2 - epsilon / mu)
    ratio = -expm11(min(second - first, 0.0))
    return first + log1(ratio) if ratio > 0 else -math.inf
