"""What a release may spend, what each query spent, and how costs add up to (ε, δ).

Neighbours are *replace-one*: two histories with the same public number of load points, one record of which
holds different values. The record is the unit of privacy:

- `load-point` (default): all days of one load point. A load point sums the customers of one service, so
  replacing one customer changes one load point and the guarantee covers every customer behind it.
- `load-point-day`: one day of one load point, the paper's unit. A customer with d days is d records; their
  whole history is protected d² times less in ρ.

Public facts (class labels, scales, calendar days) belong to a record's slot and are equal in neighbours.
Costs add up in zCDP for the loads, in Gaussian DP for the network.

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

**Pure and Gaussian together.** Pure ε adds up, and stays out of Gaussian accounts: ε = 1 would become 6.2 at
δ = 1e-6 there. Where both touch the same secret, `composed_epsilon` composes the distributions of the privacy
loss: every ε-DP mechanism is a post-processing of randomised response with the same ε (Kairouz, Oh and
Viswanath, arXiv 1311.0776), every μ-GDP mechanism one of N(μ, 1) against N(0, 1).
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
from enum import StrEnum
from fractions import Fraction
from typing import Any

from dp_powerflow._bits.elementary import exp1, expm11, log1
from dp_powerflow._bits.linear import log_ndtr1
from dp_powerflow.errors import PrivacyError

ADJACENCY = "replace-one, public number of load points"
_SLACK = 1e-9  # relative; far above the error of the roots, far below what a guarantee is read to
_LOSS_STEPS = 2**15  # of the composed epsilon: the grid of a mixed privacy-loss distribution
LEAST_EPSILON, MOST_EPSILON, LEAST_DELTA = 1e-3, 1e6, 1e-30
"""Of a budget: where conversions to ρ and back are accurate; also all that makes sense."""
_MIN_MU, _MAX_MU = 1e-5, 1e3  # where the formula is accurate to `_SLACK`; also all that makes sense


class PrivacyUnit(StrEnum):
    """What one record is."""

    LOAD_POINT = "load-point"
    LOAD_POINT_DAY = "load-point-day"


@dataclass(frozen=True)
class Neighbours:
    """The networks that a promise makes hard to tell apart, in words of public constants.

    Figures about different neighbours are never added up or compared. What the ledger and the manifest keep
    are the words, so neighbours are the same if their words are.

    Parameters
    ----------
    words
        What changes by how much, such as ``"one line, admittance scaled by up to 1 %"``.
    """

    words: str

    def __post_init__(self) -> None:
        if not self.words.strip():
            raise PrivacyError("neighbours need words; say what changes by how much")

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Budget:
    """The most a fit may spend: (ε, δ)-differential privacy for one unit.

    Parameters
    ----------
    epsilon, delta
        Total over everything the fit releases.
    unit
        The record that is protected.
    """

    epsilon: float
    delta: float = 1e-5
    unit: PrivacyUnit = PrivacyUnit.LOAD_POINT

    def __post_init__(self) -> None:
        if not LEAST_EPSILON <= self.epsilon <= MOST_EPSILON:
            raise PrivacyError(
                f"epsilon must lie between {LEAST_EPSILON:g} and {MOST_EPSILON:g}; 1 is a common choice",
                code="epsilon-limit",
            )
        if not LEAST_DELTA <= self.delta < 1:
            raise PrivacyError(
                f"delta must be at least {LEAST_DELTA:g} and below 1; 1e-5 is a common choice",
                code="delta-limit",
            )
        object.__setattr__(self, "unit", PrivacyUnit(self.unit))


@dataclass(frozen=True)
class QueryCost:
    """The cost of one noisy sum: discrete Gaussian noise on integers, ρ = Δ²/2σ² of zCDP.

    Parameters
    ----------
    query
        What was asked, such as ``"mean, round 1"``.
    unit
        The record whose replacement is bounded.
    cohort
        Public class the query was restricted to, or None if every record entered. Costs of different
        cohorts do not add (see `total_rho`), because a record's cohort is public and fixed.
    dimension
        Number of integers released.
    region
        Where one record's contribution lies; decides the sensitivity (see `queries.Region`).
    sensitivity_squared
        Bound on the squared L2 change of the integer sum, rounding included; an exact integer.
    grid_step
        Size of one grid unit in the natural unit of the query.
    natural_unit
        Unit of the query, such as ``"log kW"``.
    sigma
        Noise scale in grid units, an integer.
    """

    query: str
    unit: PrivacyUnit
    cohort: str | None
    dimension: int
    region: str
    sensitivity_squared: int
    grid_step: float
    natural_unit: str
    sigma: int

    @property
    def sensitivity_grid(self) -> float:
        """L2 sensitivity in grid units."""
        return math.sqrt(self.sensitivity_squared)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity in the natural unit of the sum."""
        return self.sensitivity_grid * self.grid_step

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each released sum, in the natural unit."""
        return self.sigma * self.grid_step

    @property
    def rho(self) -> float:
        """ρ of zero-concentrated differential privacy (CKS, Theorem 14 in v4)."""
        return self.sensitivity_squared / (2 * self.sigma**2)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a manifest: the fields and the figures derived from them."""
        return asdict(self) | {
            "unit": str(self.unit),
            "sensitivity_grid": self.sensitivity_grid,
            "sensitivity": self.sensitivity,
            "noise_std": self.noise_std,
            "rho": self.rho,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> QueryCost:
        """Inverse of `to_dict`; derived figures are recomputed, not trusted.

        Raises
        ------
        PrivacyError
            If a figure is of another type, or no cost has it.
        """
        names = cls.__dataclass_fields__
        kept = {name: fields[name] for name in names}
        counts = [kept[name] for name in ("dimension", "sensitivity_squared", "sigma")]
        words = [kept[name] for name in ("query", "region", "natural_unit")]
        step, cohort = kept["grid_step"], kept["cohort"]
        if not (
            all(type(count) is int and count > 0 for count in counts)
            and (type(step) is float and 0 < step < math.inf)
            and all(isinstance(word, str) for word in words)
            and (cohort is None or isinstance(cohort, str))
        ):
            raise PrivacyError("the record of a query's cost is damaged; get the file again")
        return cls(**(kept | {"unit": PrivacyUnit(kept["unit"])}))


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
    from scipy.optimize import minimize_scalar  # slow to import

    found = minimize_scalar(epsilon_at, bounds=(near - 5, near + 5), method="bounded")
    return max(0.0, min(float(found.fun), epsilon_at(near)))


@functools.lru_cache(maxsize=4096)
def epsilon_to_rho(epsilon: float, delta: float) -> float:
    """Largest ρ for which `rho_to_epsilon` stays within ε."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyError("epsilon must be positive and finite to be turned into a zCDP budget")
    root = _root(lambda rho: rho_to_epsilon(rho, delta) - epsilon, 1e-12, None, 1e-15)
    rho = root * (1 - 1e-6)  # the root is only known to its tolerance; stay on the safe side
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
    return _root(lambda epsilon: log_delta - _log_delta(epsilon, mu), 0.0, None, 1e-14) * (1 + _SLACK)


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
    return exp1(_root(excess, low, high, 1e-14)) * (1 - _SLACK)


def _root(excess: Callable[[float], float], low: float, high: float | None, tolerance: float) -> float:
    """Where a growing function is 0; without an upper end, one is looked for."""
    if high is None:
        high = 1.0
        while excess(high) < 0:
            high *= 2
    from scipy.optimize import brentq  # slow to import

    return float(brentq(excess, low, high, xtol=tolerance))


@functools.lru_cache(maxsize=4096)
def composed_epsilon(pure: tuple[float, ...], mu: float, delta: float) -> float:
    """ε at δ of pure mechanisms and Gaussian ones that touched the same secret.

    Only pure: their sum, for every δ. Only Gaussian: the exact conversion. Both: by privacy-loss
    distributions (`dp_accounting`), never above the sum of the two and never below either. That figure is
    rounded up to four significant digits, far coarser than what processors differ in.

    Parameters
    ----------
    pure
        ε of every pure mechanism, ascending.
    mu
        μ of all Gaussian mechanisms together.
    delta
        May be 0 if there is no Gaussian one.
    """
    added = float(sum(map(Fraction, pure)))
    if mu == 0:
        return added
    if delta == 0:
        raise PrivacyError(
            "Gaussian noise has no epsilon at delta 0; give the cap a delta above 0, or draw Laplace noise"
        )
    gaussian = gdp_epsilon(mu, delta)
    if added == 0:
        return gaussian
    return max(added, gaussian, min(added + gaussian, _mixed_epsilon(pure, mu, delta, added + gaussian)))


def _mixed_epsilon(pure: tuple[float, ...], mu: float, delta: float, bound: float) -> float:
    """By privacy-loss distributions, every one rounded to the safe side."""
    from dp_accounting.pld import common, privacy_loss_distribution  # slow to import, rarely needed

    step = 2.0 ** math.frexp(bound / _LOSS_STEPS)[1]  # of the loss; a power of two, so that ε = 1 is on it
    loss = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sensitivity=max(mu, _MIN_MU), value_discretization_interval=step
    )
    for epsilon, times in Counter(pure).items():
        one = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=step
        )
        loss = loss.compose(one.self_compose(times))
    found = float(loss.get_epsilon_for_delta(delta))
    if not math.isfinite(found):
        return math.inf
    return float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(found))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise PrivacyError(
            "delta must lie between 0 and 1 to state a guarantee; 1e-5 is a common choice", code="delta-limit"
        )


def _log_delta(epsilon: float, mu: float) -> float:
    """log δ, both terms in logarithms: neither exp(ε) overflows nor a tail underflows."""
    first = log_ndtr1(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr1(-mu / 2 - epsilon / mu)
    ratio = -expm11(min(second - first, 0.0))
    return first + log1(ratio) if ratio > 0 else -math.inf
