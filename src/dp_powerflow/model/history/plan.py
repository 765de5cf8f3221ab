"""Public constants of the history model: shares of the budget, clip radii, and what noise they lead to.

Scores are standardised by construction, so the radii are of order one whatever the loads are; every centre
and every scale that is not is asked for first, coarsely. None of these figures follows from the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import GaussianEstimate, PublicFacts, Records
from dp_powerflow.model.history.one_pass import Ladder
from dp_powerflow.model.options import FitOptions, HistoryFacts
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, epsilon_to_rho
from dp_powerflow.privacy.queries import Session
from dp_powerflow.units import FloatArray

FEWEST_DAYS = 14
"""Days of meters: two weeks, so that every kind of day is there twice."""
FEWEST_STEPS = 8
"""Steps of a day."""

SHARES = {
    "coarse traits": 0.02,
    "coarse spread of levels": 0.01,
    "place of levels": 0.07,
    "levels": 0.03,
    "load over mean": 0.08,
    "peaks": 0.03,
    "bases": 0.03,
    "coarse mean day": 0.04,
    "size of mean days": 0.01,
    "mean day": 0.28,
    "bands of mean days": 0.08,
    "block of mean days": 0.05,
    "days off": 0.05,
    "size of the process": 0.03,
    "correlations of traits": 0.03,
    "profile of the process": 0.03,
    "shared factor": 0.12,
    "covariates": 0.06,
    "loadings": 0.02,
    "energies of the process": 0.06,
    "ranks": 0.20,
}
"""Weights in the budget for active load, of those queries that are asked."""

RADIUS_COARSE = 2.6  # at least; half the range of the bounds where that is more
CENTRE_PEAK, CENTRE_BASE = 1.6, -2.0
MOST_SPREAD = 2.0  # of log levels, as the mean distance from their centre
LEVEL_REACH = 1.5  # in coarse spreads
SPREADS = (0.35, 1.2)  # a coarse spread of log levels counts as lying between these
LEVEL_MIDDLE, RADIUS_LEVEL = 0.45, 1.15
LEVEL_BINS, TRAIT_BINS = 12, 8
PEAK_REACH, BASE_REACH = 1.4, 2.2
RADIUS_HISTOGRAM = 0.5
COARSE_COEFFICIENTS, RADIUS_COARSE_DAY = 8, 1.0
USUAL_SIZE, RADIUS_SIZE = 0.4, 2.5
BLOCK = 6
OFF_HARMONICS, RADIUS_OFF = 3, 0.4
CENTRE_SPREAD, MOST_LOG_SPREAD, RADIUS_SPREAD = -0.35, 0.8, 0.8
RADIUS_CORRELATIONS, MOST_DEVIATION = 2.0, 2.0
PROFILE_HARMONICS, RADIUS_PROFILE = 3, 0.6
RADIUS_FACTOR = 0.5  # times √D: root mean square of a customer's daily means
MOST_LOADING, RADIUS_LOADING = 4.0, 3.0
RADIUS_ENERGIES = 0.5
PRIOR_RANKS = 0.06  # of the coefficients of the density of ranks: the law is within a tenth before it
RADIUS_REACTIVE = 2.0  # log of the random part of q over the level, around its centre
CENTRE_REACTIVE = -2.0


@dataclass(frozen=True)
class History:
    """The estimator of whole histories; see `dp_powerflow.model.history`."""

    @property
    def name(self) -> str:
        return "history"

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianEstimate]:
        """A history is no Gaussian of days: `derive` asks for whole histories instead."""
        raise PrivacyError("the history model has no law of single days; draw histories from it")

    def prior_would_do(self, facts: PublicFacts) -> bool:
        """Whether the shape of the mean day would be off by half or more."""
        return errors_of_class(facts.records, FEWEST_DAYS, facts.rho)[0].too_large


@dataclass(frozen=True)
class PredictedError:
    """What noise will do to a figure, by public numbers.

    Attributes
    ----------
    what : the figure.
    error : root mean square of what noise adds, relative to the figure or its usual size; the largest of all
        spreads.
    usual : error from which on the model is of little use.
    between : where the error of eight in ten fits will lie, by fits to public stand-ins, however their levels
        spread; None of what no fit was made for.
    by_spread : root mean square of all that is wrong, for every spread of the levels of stand-ins.
    """

    what: str
    error: float
    usual: float
    between: tuple[float, float] | None = None
    by_spread: tuple[float, ...] = ()

    @property
    def too_large(self) -> bool:
        return self.error >= self.usual


_USUAL_FACTOR = 0.2  # size of the shared factor
_USUAL_DAY = 0.2  # size of the mean day of all customers


def noise_of(name: str, records: float, rho: float) -> float:
    """Standard deviation of the average of a query of radius one, where there are no covariates."""
    share = SHARES[name] / sum(weight for query, weight in SHARES.items() if query != "covariates")
    return 2.0 / math.sqrt(2 * share * rho) / records


def trust_in_shares(prior: FloatArray, noise: float) -> FloatArray:
    """(bin,) weight of noisy shares beside those of the normal law, which are right within a half."""
    usual = 0.5 * prior + 0.002
    usual = usual * usual
    result: FloatArray = usual / (usual + noise * noise)
    return result


def errors_of_class(records: float, n_days: int, rho: float) -> tuple[PredictedError, ...]:
    """Mean day and shared factor of a class with so many customers, by the noise of their queries."""
    day = USUAL_SIZE * noise_of("mean day", records, rho) * math.sqrt(2 * 8)
    factor = RADIUS_FACTOR * math.sqrt(n_days) * noise_of("shared factor", records, rho)
    return (
        PredictedError("shape of the mean day", day / _USUAL_DAY, 0.5),
        PredictedError("shared factor of a day", factor / _USUAL_FACTOR, 1.5),
    )


def check(n_days: int, n_steps: int, unit: PrivacyUnit) -> None:
    """Refuse what no history model can be fitted to; all of it is public.

    Raises
    ------
    PrivacyError
        Too few days, too long steps, or a unit of single days.
    """
    if unit is not PrivacyUnit.LOAD_POINT:
        raise PrivacyError(
            "a history model needs the unit load-point: it is about customers with all their days; use the "
            "structured estimator for single days"
        )
    if n_days < FEWEST_DAYS or n_steps < FEWEST_STEPS:
        raise PrivacyError(
            f"a history model needs at least {FEWEST_DAYS} days of at least {FEWEST_STEPS} steps; give more "
            "meter data, or use the structured estimator"
        )


@lru_cache(maxsize=16)
def ladder_of(n_steps: int, n_days: int) -> Ladder:
    """Of the process of a history of so many days."""
    return Ladder.of(n_steps, n_days)


def predicted_errors(facts: HistoryFacts, options: FitOptions, budget: Budget) -> tuple[PredictedError, ...]:
    """Of mean day and shared factor of the class with the fewest customers, before anything is spent."""
    rho = epsilon_to_rho(budget.epsilon, budget.delta)
    records = float(min(count for _, count in facts.load_points_of_class))
    if isinstance(options.classes, PrivateClasses):
        rho *= 1 - options.classes.share
        records /= options.classes.n_classes
    return errors_of_class(records, facts.n_days, rho)
