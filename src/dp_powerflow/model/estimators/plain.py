"""The plain estimator: clipped mean and second moment, Gaussian noise, split for the least expected KL.

The paper's DP-GMM for one component (Liu, Scaglione, Peisert, arXiv 2506.03467): every entry of the mean and
of the covariance receives noise, and the budget is split so that the expected KL(true ‖ released) is least.
T(T+1)/2 noisy entries make it useless for user-level privacy at T = 96; it is here as the reference the
structured estimator is measured against, and for short horizons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.linear import gram, within_ball
from dp_powerflow.model.estimators import (
    Contribution,
    GaussianEstimate,
    PublicFacts,
    Records,
    ask_averages,
    symmetric_to_vector,
    vector_to_symmetric,
    with_floor,
)
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import FloatArray

CLIP_SHARE = 0.5  # of the largest possible ‖ξ − centre‖; a day is rarely at its bound all day
REFERENCE_VARIANCE = 0.3  # public guess of the spread of log load, for the split only
REFERENCE_CORRELATION = 0.7  # between any two steps, likewise
MIN_VARIANCE = 1e-3


@dataclass(frozen=True)
class PlainPlan(PublicFacts):
    """Public constants of one plain fit; parameters as in `PublicFacts`."""

    @property
    def radius(self) -> float:
        """Clip radius of ξ − centre [log kW, L2]."""
        return CLIP_SHARE * (self.log_high - self.log_low) / 2 * math.sqrt(self.n_steps)

    def split(self) -> tuple[float, float]:
        """ρ for the mean and for the second moment.

        With noise of variance v_m on the mean and v_s on a diagonal entry of the second moment, to second
        order KL = ½·v_m·tr(Σ⁻¹) + ⅛·v_s·[(tr Σ⁻¹)² + tr Σ⁻²]; v = Δ²/(2ρn²), so KL = a/ρ_m + b/ρ_s, least
        at ρ_m : ρ_s = √a : √b. Σ is a public reference, never the data's.
        """
        precision = self._reference_precision()
        trace = float(precision.sum())
        squared = self.radius * self.radius
        a = 0.5 * 4 * squared / 2 * trace
        b = 0.125 * 2 * squared * squared / 2 * (trace * trace + float((precision**2).sum()))
        share = math.sqrt(a) / (math.sqrt(a) + math.sqrt(b))
        return self.rho * share, self.rho * (1 - share)

    def _reference_precision(self) -> FloatArray:
        """Eigenvalues (T,) of the inverse of the reference covariance (equal correlations)."""
        eigenvalues = np.full(self.n_steps, REFERENCE_VARIANCE * (1 - REFERENCE_CORRELATION))
        eigenvalues[0] += REFERENCE_VARIANCE * REFERENCE_CORRELATION * self.n_steps
        return 1 / eigenvalues

    @property
    def prior_would_do(self) -> bool:
        """True if, by public figures, the noise on a covariance entry exceeds the spread to be measured."""
        noise = self.radius * self.radius / (math.sqrt(self.split()[1]) * self.records)
        return noise * math.sqrt(self.n_steps) > REFERENCE_VARIANCE


def clipped_days(plan: PlainPlan, days: FloatArray) -> FloatArray:
    """Days (record, day, T) around the centre, each within the clip radius."""
    return within_ball(days - plan.centre, plan.radius)


def mean_contribution(plan: PlainPlan) -> Contribution:
    """Mean over a record's clipped days; BALL of the clip radius."""
    return lambda days: clipped_days(plan, days).mean(axis=1)


def moment_contribution(plan: PlainPlan) -> Contribution:
    """Mean over a record's days of the outer product of a clipped day with itself; PSD, radius squared."""

    def contribution(days: FloatArray) -> FloatArray:
        clipped = clipped_days(plan, days)
        return symmetric_to_vector(gram(clipped) / clipped.shape[1])

    return contribution


def estimate_plain(groups: Sequence[Records], plan: PlainPlan, session: Session) -> list[GaussianEstimate]:
    """Fit one Gaussian to each group of records; parameters as in `estimate_structured`."""
    rho_mean, rho_moment = plan.split()
    size, squared = plan.n_steps * (plan.n_steps + 1) // 2, plan.radius * plan.radius
    means, _ = ask_averages(
        session,
        Query("mean", plan.n_steps, plan.radius, Region.BALL, rho_mean, "log kW"),
        groups,
        [mean_contribution(plan)] * len(groups),
    )
    moments, _ = ask_averages(
        session,
        Query("second moment", size, squared, Region.PSD, rho_moment, "(log kW)²"),
        groups,
        [moment_contribution(plan)] * len(groups),
        values_per_step=plan.n_steps,
    )
    noise_std = session.costs[-1].noise_std
    estimates = []
    for group, mean, moment in zip(groups, means, moments, strict=True):
        # Symmetric noise moves eigenvalues by up to √2T of an off-diagonal's standard deviation (the edge
        # of the semicircle law); below that an eigenvalue is noise.
        edge = noise_std / group.count * math.sqrt(plan.n_steps)
        covariance = vector_to_symmetric(moment, plan.n_steps) - np.outer(mean, mean)
        estimates.append(with_floor(plan.centre + mean, covariance, MIN_VARIANCE + edge))
    return estimates


@dataclass(frozen=True)
class Plain:
    """Noise on every entry of mean and covariance: the paper's, for reference and short horizons."""

    name: str = "plain"

    def _plan(self, facts: PublicFacts) -> PlainPlan:
        return PlainPlan(**vars(facts))

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianEstimate]:
        return estimate_plain(groups, self._plan(facts), session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        return self._plan(facts).prior_would_do
