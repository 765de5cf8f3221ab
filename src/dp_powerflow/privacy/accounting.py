"""Adding up costs in zCDP and stating them as (ε, δ).

The discrete Gaussian of scale σ on integer sums of L2 sensitivity Δ is Δ²/2σ²-zCDP, the same figure as the
continuous one, in any dimension and also when a later query is chosen after seeing an earlier answer
(Canonne, Kamath, Steinke, arXiv 2004.00010v4, Theorem 14; Bun and Steinke 2016, Lemma 7). The conversion is
Proposition 12 there, minimised over the order; `dp_accounting` uses it on a fixed grid of orders, and the
tests hold the two together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import dp_accounting
from scipy import optimize

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import QueryCost


def rho_to_epsilon(rho: float, delta: float) -> float:
    """Smallest ε for which ρ-zCDP implies (ε, δ)-DP by Proposition 12 of CKS.

    Every order α > 1 gives a valid ε, so an imperfect minimisation can only overstate the cost.
    """
    if rho < 0 or not 0 < delta < 1:
        raise PrivacyError("rho must be at least 0 and delta between 0 and 1 to state a guarantee")
    if rho == 0:
        return 0.0

    def epsilon_at(log_order_minus_1: float) -> float:
        excess = math.exp(log_order_minus_1)
        order = 1 + excess
        return rho * order + math.log(excess / order) - math.log(delta * order) / excess

    # The classical conversion ρ + 2√(ρ ln 1/δ) has α − 1 = √(ln(1/δ)/ρ); the optimum is close to it.
    near = 0.5 * math.log(math.log(1 / delta) / rho)
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


def gaussian_epsilon(rho: float, delta: float) -> float:
    """ε of the *continuous* Gaussian mechanism with the same ρ, exact (dp_accounting).

    For comparison: it shows how much of the stated ε is the conversion's. It is not claimed, since the
    noise is discrete.
    """
    return float(dp_accounting.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta))
