"""The structured estimator (default): two rounds in a smooth basis.

Log load of a day is modelled as ξ = m + s ∘ B·c: a mean m, a smooth profile s of how the residual spread
varies over the day, and coefficients c of the cosine basis B. Their covariance is constant over frequency
bands on the diagonal, with full correlations among the K lowest frequencies. Few numbers, so little noise
on each.

Round 1 (a fifth of the budget) finds the scale of things: the mean on 8 coefficients, the log energy of
every band, the profile, and how heavy the tail of the energies is. Round 2 uses them to re-centre and
whiten, so that its clip radii are public constants of order one whatever the data are: the mean on 16
coefficients, the energy of every band, and the K × K second moment clipped in Frobenius norm per record.
The rest is free post-processing.

A contribution is an average over the record's own days, so a record with many days is clipped as a whole
and one with one day the same way. Each depends on that record and on values released before; sensitivities
are those of `privacy.queries`: 2R for means, √2·R for energies and second moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import exp, log
from dp_powerflow._bits.linear import gram, norms, product
from dp_powerflow.model.estimators import (
    PRIOR_LOG_ENERGY_VARIANCE,
    PRIOR_PROFILE_STD,
    PRIOR_TAIL,
    PROFILE_CAP,
    PROFILE_MEAN_WEIGHT,
    PROFILE_MIN_LEVEL,
    PROFILE_RADIUS,
    ROUND_1,
    ROUND_1_SHARES,
    TAIL_THRESHOLDS,
    Contribution,
    GaussianEstimate,
    PublicFacts,
    Records,
    StructuredPlan,
    ask_averages,
    band_means,
    from_coefficients,
    interpolate_bands,
    prior_log_energy,
    prior_mean_std,
    symmetric_to_vector,
    synthesis_matrix,
    to_coefficients,
    vector_to_symmetric,
)
from dp_powerflow.model.estimators.plain import (
    Bands,
    Block,
    Offset,
    block_covariance,
    energy_around_mean,
    signal_share,
)
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import FloatArray, IntArray

PROFILE_RANGE = (0.1, 10.0)  # a released profile of variance ratios is cut to this range
_EULER, _LOG_2 = 0.5772156649015329, 0.6931471805599453
_TINY = 1e-12  # energy that counts as none, before a log


@dataclass(frozen=True, eq=False)
class Frame:
    """What round 1 released of one class: the frame in which round 2 looks.

    mean (T,), mean_variance (coarse,) of its error, scale (T,) the spread profile s, width (T,) the
    standard deviation of each coefficient, log_energy_variance its error squared.
    """

    mean: FloatArray
    mean_variance: FloatArray
    scale: FloatArray
    width: FloatArray
    log_energy_variance: float

    def coefficients(self, days: FloatArray, count: int | None = None) -> FloatArray:
        """Days (..., T) → the lowest `count` whitened coefficients (..., count), or all."""
        return to_coefficients((days - self.mean) / self.scale, count) / self.width[:count]


def estimate_structured(
    groups: Sequence[Records], plan: StructuredPlan, session: Session
) -> list[GaussianEstimate]:
    """Fit one Gaussian to each group of records; each record is in exactly one group.

    Parameters
    ----------
    groups
        PRIVATE. The classes, fitted in lockstep: each query is asked of all of them for one charge.
    plan
        Public constants.
    session
        Spends the budget and keeps the costs.
    """
    frames = _round_1(groups, plan, session)
    tail = _tail(groups, frames, plan, session)
    return _round_2(groups, frames, tail, plan, session)


def _shrink(value: FloatArray, noise_variance: float, prior_variance: FloatArray) -> FloatArray:
    """Posterior mean of a Gaussian with mean zero, seen through Gaussian noise."""
    return value * prior_variance / (prior_variance + noise_variance)


# --- round 1 ---------------------------------------------------------------------------------------------
def coarse_mean_contribution(plan: StructuredPlan) -> Contribution:
    """A record's mean day on the lowest coefficients, around the public centre; BALL of half the range."""

    def contribution(days: FloatArray) -> FloatArray:
        inside = np.clip(days, plan.log_low, plan.log_high).mean(axis=1) - plan.centre
        return to_coefficients(inside, plan.coarse_mean)

    return contribution


def profile_contribution(plan: StructuredPlan, width: FloatArray) -> Contribution:
    """Smooth terms of a record's high-pass variance over the day, whitened; BALL.

    Entry 0 is its mean variance, weighted down, the others its course. A record's variance counts up to
    `PROFILE_CAP` times the expected one, so that restless records weigh more, as they do in the covariance,
    but not without limit.
    """
    weight = np.concatenate([[PROFILE_MEAN_WEIGHT], np.ones(plan.profile_terms)])
    high = plan.n_steps - plan.high_pass

    def contribution(days: FloatArray) -> FloatArray:
        coefficients = to_coefficients(days) / width
        coefficients[..., : plan.high_pass] = 0.0
        variance = (from_coefficients(coefficients) ** 2).mean(axis=1) / high
        capped = variance / np.maximum(variance.mean(axis=-1, keepdims=True) / PROFILE_CAP, 1.0)
        terms: FloatArray = to_coefficients(capped, plan.profile_terms + 1) * weight
        return terms

    return contribution


def log_energy_contribution(plan: StructuredPlan, mean: FloatArray) -> Contribution:
    """Log energy of a record in each band, around the public prior; BALL."""
    prior = prior_log_energy(plan.edges)

    def contribution(days: FloatArray) -> FloatArray:
        energy = (to_coefficients(days - mean) ** 2).mean(axis=1)
        return log(np.maximum(band_means(energy, plan.edges), _TINY)) - prior

    return contribution


def _round_1(groups: Sequence[Records], plan: StructuredPlan, session: Session) -> list[Frame]:
    budget = {name: plan.rho * ROUND_1 * share for name, share in ROUND_1_SHARES.items()}
    terms = plan.profile_terms + 1
    averages, noise = ask_averages(
        session,
        Query("mean, round 1", plan.coarse_mean, plan.half_range, Region.BALL, budget["mean"], "log kW"),
        groups,
        [coarse_mean_contribution(plan)] * len(groups),
    )
    prior = prior_mean_std(plan.half_range, plan.coarse_mean) ** 2
    means = [
        plan.centre + from_coefficients(_shrink(average, variance, prior), plan.n_steps)
        for average, variance in zip(averages, noise, strict=True)
    ]
    mean_variances = [prior * variance / (prior + variance) for variance in noise]

    averages, noise = ask_averages(
        session,
        plan.log_energy_query("log band energies, round 1", budget["energy"]),
        groups,
        [log_energy_contribution(plan, mean) for mean in means],
    )
    widths = [
        whitening_widths(average, variance, plan) for average, variance in zip(averages, noise, strict=True)
    ]
    errors = [log_energy_error(variance) for variance in noise]

    averages, noise = ask_averages(
        session,
        Query("spread profile, round 1", terms, PROFILE_RADIUS, Region.BALL, budget["profile"]),
        groups,
        [profile_contribution(plan, width) for width in widths],
    )
    scales = [
        _profile(average, variance, plan.n_steps) for average, variance in zip(averages, noise, strict=True)
    ]
    return [Frame(*parts) for parts in zip(means, mean_variances, scales, widths, errors, strict=True)]


def tail_contribution(plan: StructuredPlan, frame: Frame) -> Contribution:
    """One in the interval between thresholds that holds a record's whitened energy; ORTHANT, norm ≤ 1."""
    thresholds = np.array([plan.radius_bands(tail) for tail in TAIL_THRESHOLDS])
    energies = bands_contribution(plan, frame)

    def contribution(days: FloatArray) -> FloatArray:
        exceeded = norms(energies(days))[:, None] > thresholds
        interval: FloatArray = -np.diff(exceeded.astype(np.float64), axis=1, append=0.0)
        return interval

    return contribution


def _tail(
    groups: Sequence[Records], frames: Sequence[Frame], plan: StructuredPlan, session: Session
) -> float:
    """How many times the expected energy a record may have before it is clipped."""
    rho, places = plan.rho * ROUND_1 * ROUND_1_SHARES["tail"], len(TAIL_THRESHOLDS)
    averages, noise = ask_averages(
        session,
        Query("tail of the energy, round 1", places, 1.0, Region.ORTHANT, rho, "records"),
        groups,
        [tail_contribution(plan, frame) for frame in frames],
    )
    prior = -np.diff(PRIOR_TAIL, append=0.0)
    above = [
        np.cumsum((prior + _shrink(average - prior, variance, 4 * prior**2))[::-1])[::-1]
        for average, variance in zip(averages, noise, strict=True)
    ]
    # One clip for all classes, since they share one charge: the class with the heaviest tail decides.
    return max(plan.choose_tail(shares) for shares in above)


def _profile(terms: FloatArray, noise_variance: float, n_steps: int) -> FloatArray:
    """Spread profile s (T,) from the noisy mean and smooth terms of the variance."""
    level = max(float(terms[0]) / PROFILE_MEAN_WEIGHT, PROFILE_MIN_LEVEL)
    relative_terms, variance = terms[1:] / level, noise_variance / (level * level)
    prior = PRIOR_PROFILE_STD * PRIOR_PROFILE_STD / np.arange(1, terms.size)
    shrunk = _shrink(relative_terms, variance, prior)
    shrunk *= signal_share(float(np.sum(relative_terms**2)), shrunk.size * variance)
    relative = 1 + from_coefficients(np.concatenate([[0.0], shrunk]), n_steps)
    profile: FloatArray = np.sqrt(np.clip(relative, *PROFILE_RANGE))
    return profile


def whitening_widths(log_energy: FloatArray, noise_variance: float, plan: StructuredPlan) -> FloatArray:
    """Standard deviation (T,) of each coefficient from the noisy mean log energies."""
    prior = np.full_like(log_energy, PRIOR_LOG_ENERGY_VARIANCE)
    shrunk = _shrink(log_energy, noise_variance, prior)
    # E[log χ²_N/N] is below 0. A record with many days has more degrees of freedom than its band is wide,
    # but its days are alike: half of the correction is within a factor 2 in either case; round 2 corrects.
    width = np.diff(plan.edges)
    bias = _digamma_of_half(width) - log(width / 2)
    log_variance = prior_log_energy(plan.edges) + shrunk - bias / 2
    return exp(interpolate_bands(log_variance, plan.edges) / 2)


def log_energy_error(noise_variance: float) -> float:
    """Variance of a released log energy around the true one, after shrinkage."""
    return PRIOR_LOG_ENERGY_VARIANCE * noise_variance / (PRIOR_LOG_ENERGY_VARIANCE + noise_variance)


def _digamma_of_half(n: IntArray) -> FloatArray:
    """ψ(n/2), elementwise, from ψ(½) or ψ(1) by ψ(x + 1) = ψ(x) + 1/x."""
    return np.array(
        [
            (-_EULER - 2 * _LOG_2 if size % 2 else -_EULER) + sum(2 / k for k in range(2 - size % 2, size, 2))
            for size in n.tolist()
        ]
    )


# --- round 2 ---------------------------------------------------------------------------------------------
def fine_mean_contribution(plan: StructuredPlan, frame: Frame) -> Contribution:
    """A record's mean day in whitened coefficients; BALL."""
    return lambda days: frame.coefficients(days.mean(axis=1), plan.fine_mean)


def bands_contribution(plan: StructuredPlan, frame: Frame) -> Contribution:
    """A record's whitened energy in each band, weighted; ORTHANT, all entries are ≥ 0."""
    return lambda days: (
        plan.band_weight * band_means((frame.coefficients(days) ** 2).mean(axis=1), plan.edges)
    )


def block_contribution(block: int, frame: Frame) -> Contribution:
    """A record's second moment of the K lowest whitened coefficients, averaged over its days; PSD."""

    def contribution(days: FloatArray) -> FloatArray:
        low = frame.coefficients(days, block)
        return symmetric_to_vector(gram(low) / low.shape[1])

    return contribution


def _round_2(
    groups: Sequence[Records],
    frames: Sequence[Frame],
    tail: float,
    plan: StructuredPlan,
    session: Session,
) -> list[GaussianEstimate]:
    budget = {name: plan.rho * share for name, share in plan.round_2_shares(tail).items()}
    block = plan.block_size
    fine, fine_noise = ask_averages(
        session,
        Query("mean, round 2", plan.fine_mean, plan.radius_mean, Region.BALL, budget["mean"]),
        groups,
        [fine_mean_contribution(plan, frame) for frame in frames],
    )
    bands, bands_noise = ask_averages(
        session,
        Query(
            "band energies, round 2", plan.n_bands, plan.radius_bands(tail), Region.ORTHANT, budget["bands"]
        ),
        groups,
        [bands_contribution(plan, frame) for frame in frames],
    )
    blocks: list[FloatArray] = [np.empty(0)] * len(groups)
    block_noise = [0.0] * len(groups)
    if block >= 2:
        size, radius = block * (block + 1) // 2, plan.radius_block(block, tail)
        blocks, block_noise = ask_averages(
            session,
            Query("low-frequency second moment, round 2", size, radius, Region.PSD, budget["block"]),
            groups,
            [block_contribution(block, frame) for frame in frames],
        )
    estimates = []
    for index, frame in enumerate(frames):
        offset = _offset(fine[index], fine_noise[index], frame, plan)
        seen = Bands(bands[index], bands_noise[index], frame.log_energy_variance)
        energy = energy_around_mean(seen, offset, plan)
        covariance = np.diag(energy)
        if block >= 2:
            moment = vector_to_symmetric(blocks[index], block)
            low = Block(moment, block_noise[index], offset)
            covariance[:block, :block] = block_covariance(low, energy[:block])
        estimates.append(_assemble(frame, offset.mean, covariance))
    return estimates


def _offset(average: FloatArray, noise_variance: float, frame: Frame, plan: StructuredPlan) -> Offset:
    """Correction of the mean in whitened coefficients (T,), and its error."""
    fine, coarse = plan.fine_mean, plan.coarse_mean
    known = (prior_mean_std(plan.half_range, fine) / frame.width[:fine]) ** 2
    known[:coarse] = frame.mean_variance / frame.width[:coarse] ** 2
    prior = np.maximum(known, 0.0025)  # round 1 clips, so its error is never just its noise
    shift = _shrink(average, noise_variance, prior)
    found = (shift, prior * noise_variance / (prior + noise_variance), known)
    return Offset(*(np.append(part, np.zeros(plan.n_steps - fine)) for part in found))


def _assemble(frame: Frame, shift: FloatArray, covariance: FloatArray) -> GaussianEstimate:
    synthesis = frame.scale[:, None] * synthesis_matrix(frame.mean.size) * frame.width
    full = product(product(synthesis, covariance), synthesis.T)
    return GaussianEstimate(frame.mean + product(synthesis, shift), (full + full.T) / 2)


@dataclass(frozen=True)
class Structured:
    """Two rounds in a smooth basis (default); `block` overrides K."""

    block: int | None = None
    name: str = "structured"

    def _plan(self, facts: PublicFacts) -> StructuredPlan:
        return StructuredPlan(**vars(facts), block=self.block)

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianEstimate]:
        return estimate_structured(groups, self._plan(facts), session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        return self._plan(facts).prior_would_do
