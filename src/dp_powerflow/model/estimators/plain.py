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

from dp_powerflow._bits.elementary import exp, log, log1
from dp_powerflow._bits.linear import eigh, gram, product
from dp_powerflow.model.estimators import (
    PRIOR_WHITENED_STD,
    Contribution,
    GaussianEstimate,
    PublicFacts,
    Records,
    StructuredPlan,
    ask_averages,
    band_means,
    band_of,
    posterior_energy,
    symmetric_to_vector,
    vector_to_symmetric,
    with_floor,
)
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

    @property
    def prior_would_do(self) -> bool:
        """True if, by public figures, the noise on a covariance entry exceeds the spread to be measured."""
        return self.moments.outweighs(1.0, self.records)


@dataclass(frozen=True)
class Frame:
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


def _frames(groups: Sequence[Records], plan: PlainPlan, session: Session) -> list[Frame]:
    half = plan.half_range
    averages, _ = ask_averages(
        session,
        Query("level", 1, half, Region.BALL, plan.rho * LEVEL_SHARE, "log kW"),
        groups,
        [level_contribution(plan)] * len(groups),
    )
    levels = [plan.centre + min(max(float(average[0]), -half), half) for average in averages]
    averages, noise = ask_averages(
        session,
        Query("spread", 1, half / 2, Region.BALL, plan.rho * SPREAD_SHARE, "log kW"),
        groups,
        [spread_contribution(plan, level) for level in levels],
    )
    guess = log1(REFERENCE_VARIANCE) / 2
    spreads = [
        posterior_energy(average + half / 2, np.array([variance]), guess, REFERENCE_LOG_VARIANCE)
        for average, variance in zip(averages, noise, strict=True)
    ]
    return [Frame(level, min(float(of[0]), half)) for level, of in zip(levels, spreads, strict=True)]


def mean_contribution(of_days: Contribution) -> Contribution:
    """Mean over a record's days; BALL of the clip radius."""
    return lambda days: of_days(days).mean(axis=1)


def moment_contribution(of_days: Contribution) -> Contribution:
    """Mean over a record's days of the outer product of a day with itself; PSD, radius squared."""

    def contribution(days: FloatArray) -> FloatArray:
        seen = of_days(days)
        return symmetric_to_vector(gram(seen) / seen.shape[1])

    return contribution


def _ask_moments(
    groups: Sequence[Records],
    frames: Sequence[Frame],
    plan: MomentPlan,
    session: Session,
) -> list[GaussianEstimate]:
    """One Gaussian per group, from its days in its frame (record, day, T)."""
    rho_mean, rho_moment = plan.split()
    n_steps = plan.precision.size
    size, squared = n_steps * (n_steps + 1) // 2, plan.radius * plan.radius
    means, _ = ask_averages(
        session,
        Query("mean", n_steps, plan.radius, Region.BALL, rho_mean),
        groups,
        [mean_contribution(frame.days) for frame in frames],
    )
    moments, _ = ask_averages(
        session,
        Query("second moment", size, squared, Region.PSD, rho_moment),
        groups,
        [moment_contribution(frame.days) for frame in frames],
        values_per_step=n_steps,
    )
    noise_std = session.costs[-1].noise_std
    estimates = []
    for group, frame, mean, moment in zip(groups, frames, means, moments, strict=True):
        # Symmetric noise moves eigenvalues by up to √2T of an off-diagonal's standard deviation (the edge
        # of the semicircle law); below that an eigenvalue is noise.
        edge = noise_std / group.count * math.sqrt(n_steps)
        covariance = vector_to_symmetric(moment, n_steps) - np.outer(mean, mean)
        square = frame.spread * frame.spread
        estimates.append(
            with_floor(frame.level + frame.spread * mean, square * covariance, MIN_VARIANCE + square * edge)
        )
    return estimates


def estimate_plain(groups: Sequence[Records], plan: PlainPlan, session: Session) -> list[GaussianEstimate]:
    """Fit one Gaussian to each group of records; parameters as in `estimate_structured`."""
    frames = _frames(groups, plan, session)
    return _ask_moments(groups, frames, plan.moments, session)


@dataclass(frozen=True)
class Plain:
    """Noise on every entry of mean and covariance: the paper's, for reference and short horizons."""

    name: str = "plain"

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianEstimate]:
        return estimate_plain(groups, PlainPlan(**vars(facts)), session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        return PlainPlan(**vars(facts)).prior_would_do


MIN_ENERGY = 0.05  # whitened energies of reactive load are kept above this
MIN_EIGENVALUE = 0.05  # of a correlation matrix
PRIOR_FACTOR_STD = 1.0  # of the log of the factor that all bands share
_REACH = 5.0  # standard deviations that a grid covers
_FACTORS, _ENERGIES = 81, 1201  # points of the grids
_TINY = 1e-300  # before a log or a division
_NO_ENERGY = 1e-12  # energy that counts as none


@dataclass(frozen=True, eq=False)
class Offset:
    """Where the mean lies in the frame of round 1, in whitened coefficients (T,).

    Coefficients that round 2 does not ask for have zeros.

    Parameters
    ----------
    mean
        Its posterior mean.
    variance
        Its posterior variance.
    prior_variance
        Its variance by what was known before round 2.
    """

    mean: FloatArray
    variance: FloatArray
    prior_variance: FloatArray

    @property
    def square(self) -> FloatArray:
        """Posterior mean of the squared offset."""
        return self.mean**2 + self.variance

    @property
    def square_variance(self) -> FloatArray:
        """Posterior variance of the squared offset."""
        return 4 * self.mean**2 * self.variance + 2 * self.variance**2


@dataclass(frozen=True, eq=False)
class Bands:
    """Noisy whitened energies (band,) around the mean of round 1.

    Parameters
    ----------
    weighted
        As asked, with the plan's weights.
    noise_variance
        Of every entry.
    log_energy_variance
        Error of round 1's log energies, squared.
    """

    weighted: FloatArray
    noise_variance: float
    log_energy_variance: float

    @property
    def prior_variance(self) -> float:
        """Of the log of a band's energy around round 1's."""
        return self.log_energy_variance + PRIOR_WHITENED_STD * PRIOR_WHITENED_STD


@dataclass(frozen=True, eq=False)
class Block:
    """Noisy second moment (K, K) of the lowest frequencies around the mean of round 1.

    Parameters
    ----------
    moment
        As asked.
    noise_variance
        Of a diagonal entry; off-diagonal ones have half of it.
    offset
        Of the mean (T,).
    """

    moment: FloatArray
    noise_variance: float
    offset: Offset

    @property
    def noise_energy(self) -> float:
        """Expected energy of the noise on the off-diagonal entries."""
        size = len(self.moment)
        return size * (size - 1) / 2 * self.noise_variance

    @property
    def offset_energy(self) -> float:
        """Expected energy of what the error of the offset leaves on the off-diagonal entries."""
        size = len(self.moment)
        square, own = self.offset.mean[:size] ** 2, self.offset.variance[:size]
        error = np.outer(square, own) + np.outer(own, square) + np.outer(own, own)
        return float(np.sum(error) - np.sum(np.diag(error)))

    def shrunk(self, noise_energy: float) -> FloatArray:
        """Off-diagonal covariances (K, K), times the share of their energy that is no noise."""
        shift = self.offset.mean[: len(self.moment)]
        off = self.moment - np.outer(shift, shift)
        np.fill_diagonal(off, 0.0)
        result: FloatArray = signal_share(float(np.sum(off**2)), noise_energy) * off
        return result


def energy_around_mean(bands: Bands, offset: Offset, plan: StructuredPlan) -> FloatArray:
    """Whitened variance (T,) of each coefficient around the mean that is released."""
    weight, edges = plan.band_weight, plan.edges
    seen = bands.weighted / weight - band_means(offset.square, edges)
    error = bands.noise_variance / weight**2 + band_means(offset.square_variance, edges) / np.diff(edges)
    # Round 1 saw the error of its mean and the variance together.
    share = 1 / (1 + band_means(offset.prior_variance, edges))
    energy = share * posterior_variance(seen / share, error / share**2, bands.prior_variance)
    return energy[band_of(edges)]


def block_covariance(block: Block, energy: FloatArray) -> FloatArray:
    """Covariance (K, K) with these variances and the correlations of the noisy second moment, shrunk."""
    std = np.sqrt(energy)
    correlation = block.shrunk(block.noise_energy + block.offset_energy) / np.outer(std, std)
    least = float(eigh(correlation)[0].min())
    # All of them are scaled down alike, so that the variances stay those of the bands.
    scale = min(1.0, (1 - MIN_EIGENVALUE) / max(-least, _NO_ENERGY))
    covariance: FloatArray = np.diag(energy) + scale * correlation * np.outer(std, std)
    return covariance


def band_energy(bands: Bands, plan: StructuredPlan) -> FloatArray:
    """Whitened energy (T,) of each coefficient, around the mean of round 1."""
    weight = plan.band_weight
    # Round 1 averages logs, so the mean energy lies above it: the prior is centred at half its variance.
    spread = bands.prior_variance
    energy = posterior_energy(bands.weighted / weight, bands.noise_variance / weight**2, spread / 2, spread)
    per_step: FloatArray = np.maximum(energy, MIN_ENERGY)[band_of(plan.edges)]
    return per_step


def posterior_variance(seen: FloatArray, noise_variance: FloatArray, prior_variance: float) -> FloatArray:
    """Posterior mean of the variances of all bands (band,), seen through Gaussian noise.

    The log of a variance is normal around the log of a factor that all bands share, which is normal itself.
    The prior's mean is a constant, whatever its width: round 1 averages logs of customers who differ by
    `PRIOR_WHITENED_STD`, so it lies above 1. By quadrature over factor and variance.

    Parameters
    ----------
    seen, noise_variance
        Noisy variances (band,) and the variance of their noise.
    prior_variance
        Of the log of a variance around the factor.
    """
    shared = PRIOR_FACTOR_STD * PRIOR_FACTOR_STD
    centre = (PRIOR_WHITENED_STD * PRIOR_WHITENED_STD - prior_variance - shared) / 2
    factor = centre + PRIOR_FACTOR_STD * np.linspace(-_REACH, _REACH, _FACTORS)
    reach = _REACH * np.sqrt(prior_variance)
    log_variance = np.linspace(factor[0] - reach, factor[-1] + reach, _ENERGIES)
    variance = exp(log_variance)
    misfit = (seen[:, None] - variance) ** 2 / (2 * noise_variance[:, None])
    likelihood = exp(misfit.min(axis=1, keepdims=True) - misfit)
    prior = exp(-((log_variance[:, None] - factor) ** 2) / (2 * prior_variance))
    prior /= prior.sum(axis=0)
    evidence = np.maximum(product(likelihood, prior), _TINY)
    given_factor = product(likelihood * variance, prior) / evidence
    log_weight = log(evidence).sum(axis=0) - (factor - centre) ** 2 / (2 * shared)
    weight = exp(log_weight - log_weight.max())
    result: FloatArray = product(given_factor, weight) / weight.sum()
    return result


def signal_share(energy: float, noise_energy: float) -> float:
    """James and Stein's factor: the part of an energy that is not noise, at least 0; pure noise vanishes."""
    return max(0.0, 1.0 - noise_energy / max(energy, _NO_ENERGY))
