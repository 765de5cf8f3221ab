"""The plain estimator: mean and second moment of days, Gaussian noise, split for the least expected KL.

The paper's DP-GMM for one component (Liu, Scaglione, Peisert, arXiv 2506.03467): every entry of the mean and
of the covariance receives noise, and the budget is split so that the expected KL(true ‖ released) is least.
T(T+1)/2 noisy entries make it useless for user-level privacy at T = 96; it is here as the reference the
structured estimator is measured against, and for short horizons.

Two numbers are asked first, for a small share of the budget: the level of the log loads, and their spread
around it. Days are then measured from the level in units of the spread, so that the clip is where days end,
wherever the declared bounds are. A clip around the middle of the bounds would draw every day of a class that
does not lie there towards it, and the mean load with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import log1
from dp_powerflow._bits.linear import gram
from dp_powerflow.model.estimators import (
    Ask,
    Contribution,
    GaussianEstimate,
    PublicFacts,
    Records,
    Steps,
    fit_together,
    posterior_energy,
    symmetric_to_vector,
    vector_to_symmetric,
    with_floor,
)
from dp_powerflow.model.partition import DayEstimator
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import FloatArray

LEVEL_SHARE = 0.1  # of the budget
SPREAD_SHARE = 0.05  # likewise
REFERENCE_VARIANCE = 0.3  # public guess of the spread of log load
REFERENCE_CORRELATION = 0.7  # between any two steps, likewise
REFERENCE_LOG_VARIANCE = 1.0  # of the log of the spread around the guess
CLIPS = ((3.8415, 0.0870), (5.0239, 0.0445), (6.6349, 0.0181), (10.8276, 0.0019))
"""Quantiles q of χ² of one degree at 95, 97.5, 99 and 99.9 %, and E[(χ² − q)₊], what a clip there loses."""
MIN_VARIANCE = 1e-3


@dataclass(frozen=True)
class MomentPlan:
    """Public constants of the queries for mean and second moment of days.

    Parameters
    ----------
    radius
        Clip radius of a day [L2].
    precision
        Eigenvalues (T,) of the inverse of a public reference covariance, in the same unit.
    rho
        Budget of both queries.
    """

    radius: float
    precision: FloatArray
    rho: float

    @property
    def _roots(self) -> tuple[float, float]:
        """√a and √b of the expected KL a/ρ_m + b/ρ_s, for one record.

        With noise of variance v_m on the mean and v_s on a diagonal entry of the second moment, to second
        order KL = ½·v_m·tr(Σ⁻¹) + ⅛·v_s·[(tr Σ⁻¹)² + tr Σ⁻²]; v = Δ²/(2ρn²). Σ is a public reference, never
        the data's.
        """
        trace = float(self.precision.sum())
        squared = self.radius * self.radius
        a = 0.5 * 4 * squared / 2 * trace
        b = 0.125 * 2 * squared * squared / 2 * (trace * trace + float((self.precision**2).sum()))
        return math.sqrt(a), math.sqrt(b)

    def split(self) -> tuple[float, float]:
        """ρ for the mean and for the second moment: KL is least at ρ_m : ρ_s = √a : √b."""
        mean, moment = self._roots
        share = mean / (mean + moment)
        return self.rho * share, self.rho * (1 - share)

    def expected_kl(self, records: float) -> float:
        """Of the noise alone, to second order [nats]."""
        root = sum(self._roots)
        return root * root / (self.rho * records * records)

    def outweighs(self, variance: float, records: float) -> bool:
        """Whether the noise on the covariance's eigenvalues exceeds a variance."""
        noise = self.radius * self.radius / (math.sqrt(self.split()[1]) * records)
        return noise * math.sqrt(self.precision.size) > variance


def reference_precision(n_steps: int, variance: float) -> FloatArray:
    """Eigenvalues (T,) of the inverse of the reference covariance (equal correlations)."""
    eigenvalues = np.full(n_steps, variance * (1 - REFERENCE_CORRELATION))
    eigenvalues[0] += variance * REFERENCE_CORRELATION * n_steps
    return 1 / eigenvalues


@dataclass(frozen=True)
class PlainPlan(PublicFacts):
    """Public constants of one plain fit; parameters as in `PublicFacts`."""

    @property
    def moments(self) -> MomentPlan:
        """Mean and second moment in units of the spread, with the clip of the least expected KL.

        The mean square of a reference day over its steps is (1 − c) + c·χ², c the correlation of any two. A
        clip where χ² reaches q loses the share l = c·E[(χ² − q)₊] of the variance, ¼·T·l² in KL; a wider one
        has more noise. So the clip widens, and loses less, as records and budget grow.
        """
        rho = self.rho * (1 - LEVEL_SHARE - SPREAD_SHARE)
        precision = reference_precision(self.n_steps, 1.0)
        plans, losses = [], []
        for quantile, excess in CLIPS:
            square = 1 - REFERENCE_CORRELATION + REFERENCE_CORRELATION * quantile
            plans.append(MomentPlan(math.sqrt(square * self.n_steps), precision, rho))
            lost = REFERENCE_CORRELATION * excess
            losses.append(plans[-1].expected_kl(self.records) + 0.25 * self.n_steps * lost * lost)
        return plans[losses.index(min(losses))]


@dataclass(frozen=True)
class LogUnit:
    """What days are measured by: y = (ξ − level)/spread. Released, or public.

    Parameters
    ----------
    level
        Of the log loads [log kW].
    spread
        Their distance from it [log kW].
    """

    level: float
    spread: float

    def days(self, days: FloatArray) -> FloatArray:
        """Days (record, day, T) of log load in this frame."""
        return (days - self.level) / self.spread


def level_contribution(plan: PlainPlan) -> Contribution:
    """A record's mean over days and steps, around the middle of the bounds; BALL of half the range."""
    return lambda days: (days - plan.centre).mean(axis=(1, 2))[:, None]


def spread_contribution(plan: PlainPlan, level: float) -> Contribution:
    """A record's root mean square around the level, less a quarter of the range; BALL of that.

    Within bounds a standard deviation is at most half the range (Popoviciu). A record that is farther from
    the level counts as that far: the answer is a scale, so a clip moves no mean.
    """

    def contribution(days: FloatArray) -> FloatArray:
        around = days - level
        square: FloatArray = (around * around).mean(axis=(1, 2))
        return (np.sqrt(square) - plan.half_range / 2)[:, None]

    return contribution


def mean_contribution(of_days: Contribution) -> Contribution:
    """Mean over a record's days; BALL of the clip radius."""
    return lambda days: of_days(days).mean(axis=1)


def moment_contribution(of_days: Contribution) -> Contribution:
    """Mean over a record's days of the outer product of a day with itself; PSD, radius squared."""

    def contribution(days: FloatArray) -> FloatArray:
        seen = of_days(days)
        return symmetric_to_vector(gram(seen) / seen.shape[1])

    return contribution


def _plain(plan: PlainPlan) -> Steps[GaussianEstimate]:
    """Level and spread of a class, then mean and second moment of its days in these units."""
    half, n_steps, moments = plan.half_range, plan.n_steps, plan.moments
    query = Query("level", 1, half, Region.BALL, plan.rho * LEVEL_SHARE, "log kW")
    seen = yield Ask(query, level_contribution(plan))
    level = plan.centre + min(max(float(seen.value[0]), -half), half)
    query = Query("spread", 1, half / 2, Region.BALL, plan.rho * SPREAD_SHARE, "log kW")
    seen = yield Ask(query, spread_contribution(plan, level))
    guess, variance = log1(REFERENCE_VARIANCE) / 2, np.array([seen.variance])
    spread = posterior_energy(seen.value + half / 2, variance, guess, REFERENCE_LOG_VARIANCE)
    frame = LogUnit(level, min(float(spread[0]), half))

    rho_mean, rho_moment = moments.split()
    squared = moments.radius * moments.radius
    mean = yield Ask(
        Query("mean", n_steps, moments.radius, Region.BALL, rho_mean), mean_contribution(frame.days)
    )
    query = Query("second moment", n_steps * (n_steps + 1) // 2, squared, Region.PSD, rho_moment)
    moment = yield Ask(query, moment_contribution(frame.days), values_per_step=n_steps)
    # Symmetric noise moves eigenvalues by up to √2T of an off-diagonal's standard deviation (the edge of the
    # semicircle law); below that an eigenvalue is noise.
    edge = moment.noise * math.sqrt(n_steps)
    covariance = vector_to_symmetric(moment.value, n_steps) - np.outer(mean.value, mean.value)
    square = frame.spread * frame.spread
    centre = frame.level + frame.spread * mean.value
    return with_floor(centre, square * covariance, MIN_VARIANCE + square * edge)


@dataclass(frozen=True)
class Plain(DayEstimator):
    """Noise on every entry of mean and covariance: the paper's, for reference and short horizons."""

    name: str = "plain"

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianEstimate]:
        plan = PlainPlan(**vars(facts))
        return fit_together([_plain(plan) for _ in groups], groups, session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        """By public figures, the noise on a covariance entry exceeds the spread to be measured."""
        plan = PlainPlan(**vars(facts))
        return plan.moments.outweighs(1.0, plan.records)
