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

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import exp, log
from dp_powerflow._bits.linear import eigh, gram, norms, product
from dp_powerflow.model.estimators import (
    Ask,
    Contribution,
    GaussianEstimate,
    PublicFacts,
    Records,
    Seen,
    Steps,
    band_edges,
    band_means,
    band_of,
    fit_together,
    from_coefficients,
    interpolate_bands,
    prior_mean_std,
    shrunk,
    symmetric_to_vector,
    synthesis_matrix,
    to_coefficients,
    vector_to_symmetric,
)
from dp_powerflow.model.partition import DayEstimator
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import FloatArray, IntArray

PROFILE_TERMS = 6
PROFILE_CAP = 3.0  # a record's residual variance counts up to this many times the expected one
PROFILE_MEAN_WEIGHT = 0.25  # of the mean variance beside its smooth terms; it is needed less precisely
PROFILE_MIN_LEVEL = 0.3  # the released mean variance is taken to be at least this
PROFILE_RADIUS = 1.2
PRIOR_PROFILE_STD = 0.4
PRIOR_LOG_ENERGY_VARIANCE = 1.0
PRIOR_WHITENED_STD = 0.5  # of the log of a band's whitened energy, besides the noise of round 1

TAIL_THRESHOLDS = (2.0, 3.5, 6.0, 12.0)  # energy of a record over what round 1 leads to expect
PRIOR_TAIL = (0.10, 0.03, 0.008, 0.002)  # share of records above each

ROUND_1 = 0.2
ROUND_1_SHARES = {"mean": 0.35, "profile": 0.15, "energy": 0.35, "tail": 0.15}
MAX_BLOCK_SHARE = 0.4  # of round 2
_BLOCK_SIZES = (0, 2, 3, 4, 6, 8, 12, 16)
_USUAL_TAIL = 3.0


def prior_log_energy(edges: tuple[int, ...]) -> FloatArray:
    """Prior log variance (band,) of a coefficient around the mean: falls like k^−1.5 to a noise level."""
    centre = np.maximum((np.asarray(edges[:-1]) + np.asarray(edges[1:]) - 1) / 2, 0.5)
    return log(0.1 / (centre * np.sqrt(centre)) + 1e-4)


@dataclass(frozen=True)
class StructuredPlan(PublicFacts):
    """Public constants of one structured fit; parameters as in `PublicFacts`, and one more.

    Parameters
    ----------
    block
        K, the number of low frequencies with a full covariance; None chooses it from `records` and `rho`.
    """

    block: int | None = None

    @property
    def coarse_mean(self) -> int:
        return min(8, self.n_steps)

    @property
    def fine_mean(self) -> int:
        return min(16, self.n_steps)

    @property
    def high_pass(self) -> int:
        """First coefficient that counts as residual when the spread profile is measured."""
        return min(16, self.n_steps // 2)

    @property
    def profile_terms(self) -> int:
        return min(PROFILE_TERMS, self.n_steps - 1)

    @property
    def edges(self) -> tuple[int, ...]:
        return band_edges(self.n_steps)

    @property
    def n_bands(self) -> int:
        return len(self.edges) - 1

    @property
    def band_weight(self) -> FloatArray:
        """Weights (band,) of the band energies: N^¼ makes Σ N_b·(error_b)² least for a given noise."""
        return np.sqrt(np.sqrt(np.diff(self.edges)))

    @property
    def radius_energy(self) -> float:
        """Round 1: log band energies, one prior standard deviation per band."""
        return math.sqrt(PRIOR_LOG_ENERGY_VARIANCE * self.n_bands)

    @property
    def radius_mean(self) -> float:
        """Round 2: whitened mean, expected norm at most √F."""
        return 1.2 * math.sqrt(self.fine_mean)

    def radius_bands(self, tail: float) -> float:
        """Round 2: weighted band energies of a record that has `tail` times the expected energy."""
        return tail * float(norms(self.band_weight))

    def radius_block(self, block: int, tail: float) -> float:
        """Round 2: Frobenius norm of a record's K × K second moment, near K if its days are alike."""
        return block * max(0.8, tail / 4)

    def choose_tail(self, shares_above: FloatArray) -> float:
        """The clip, among the thresholds, with the least expected loss, from the released tail.

        A clip at t loses the energy above it, Σ P(above)·width, and costs noise ∝ t².
        """
        shares_above = np.minimum.accumulate(np.clip(shares_above, 0.0, 1.0))
        edges = np.append(TAIL_THRESHOLDS, 2 * TAIL_THRESHOLDS[-1])
        lost = np.cumsum((shares_above * np.diff(edges))[::-1])[::-1]
        noise = np.array([self.bands_noise(tail) for tail in TAIL_THRESHOLDS])
        return TAIL_THRESHOLDS[int(np.argmin(0.25 * self.n_steps * lost**2 + noise))]

    def bands_noise(self, tail: float) -> float:
        """Expected KL of the noise on the band energies, when they get half of the budget."""
        variance = _square(self.radius_bands(tail) / self.records) / (0.5 * self.rho)
        return 0.25 * variance * float(np.sum(np.diff(self.edges) / self.band_weight**2))

    @property
    def block_size(self) -> int:
        """K: the largest block whose noise costs less than it is worth.

        The noise of the block costs KL ≈ ¼·E‖noise‖²_F nats; correlations were worth about 0.02 nats for each
        further frequency in simulated customers and SimBench profiles, both public.
        """
        if self.block is not None:
            return min(self.block, self.n_steps)
        fitting = [k for k in _BLOCK_SIZES if k <= self.n_steps and self._block_noise(k) <= 0.01 * k]
        return max(fitting)

    def _block_noise(self, block: int) -> float:
        rho = self.rho * (1 - ROUND_1) * MAX_BLOCK_SHARE
        variance = _square(self.radius_block(block, _USUAL_TAIL) / self.records) / rho
        return 0.25 * variance * block * (block - 1) / 2

    def round_2_shares(self, tail: float) -> dict[str, float]:
        """Shares of the whole budget for mean, bands and block.

        Expected KL is Σ a_i/ρ_i with public a_i, least at ρ_i ∝ √a_i; the block is capped, because shrinkage
        makes its noise cheaper than a_i says.
        """
        block = self.block_size
        mean = 0.5 * self.fine_mean * _square(2 * self.radius_mean)
        width = np.diff(self.edges)
        bands = 0.25 * float(np.sum(width / self.band_weight**2)) * 2 * _square(self.radius_bands(tail))
        full = 0.25 * block * (block - 1) / 2 * 2 * _square(self.radius_block(block, tail))
        roots = {"mean": math.sqrt(mean), "bands": math.sqrt(bands), "block": math.sqrt(full)}
        block_share = min(MAX_BLOCK_SHARE, roots["block"] / sum(roots.values()))
        rest = roots["mean"] + roots["bands"]
        round_2 = 1 - ROUND_1
        return {
            "mean": round_2 * (1 - block_share) * roots["mean"] / rest,
            "bands": round_2 * (1 - block_share) * roots["bands"] / rest,
            "block": round_2 * block_share,
        }


def _square(x: float) -> float:
    return x * x  # x**2 is the power function of the C library


PROFILE_RANGE = (0.1, 10.0)  # a released profile of variance ratios is cut to this range
_EULER, _LOG_2 = 0.5772156649015329, 0.6931471805599453
_TINY = 1e-12  # energy that counts as none, before a log


@dataclass(frozen=True, eq=False)
class Whitening:
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


def _round_1(plan: StructuredPlan) -> Steps[tuple[Whitening, float]]:
    """The frame of round 2, and how many times the expected energy a record may have before it is clipped."""
    rho = {name: plan.rho * ROUND_1 * share for name, share in ROUND_1_SHARES.items()}
    query = Query("mean, round 1", plan.coarse_mean, plan.half_range, Region.BALL, rho["mean"], "log kW")
    seen = yield Ask(query, coarse_mean_contribution(plan))
    prior = prior_mean_std(plan.half_range, plan.coarse_mean) ** 2
    mean = plan.centre + from_coefficients(shrunk(seen, prior), plan.n_steps)
    mean_variance = prior * seen.variance / (prior + seen.variance)

    name = "log band energies, round 1"
    query = Query(name, plan.n_bands, plan.radius_energy, Region.BALL, rho["energy"], "log")
    seen = yield Ask(query, log_energy_contribution(plan, mean))
    width, log_energy_variance = whitening_widths(seen, plan), log_energy_error(seen.variance)

    name, terms = "spread profile, round 1", plan.profile_terms + 1
    query = Query(name, terms, PROFILE_RADIUS, Region.BALL, rho["profile"])
    seen = yield Ask(query, profile_contribution(plan, width))
    frame = Whitening(mean, mean_variance, _profile(seen, plan.n_steps), width, log_energy_variance)

    name, places = "tail of the energy, round 1", len(TAIL_THRESHOLDS)
    query = Query(name, places, 1.0, Region.ORTHANT, rho["tail"], "records")
    seen = yield Ask(query, tail_contribution(plan, frame))
    prior = -np.diff(PRIOR_TAIL, append=0.0)
    in_interval = prior + shrunk(Seen(seen.value - prior, seen.noise), 4 * prior**2)
    return frame, plan.choose_tail(np.cumsum(in_interval[::-1])[::-1])


def tail_contribution(plan: StructuredPlan, frame: Whitening) -> Contribution:
    """One in the interval between thresholds that holds a record's whitened energy; ORTHANT, norm ≤ 1."""
    thresholds = np.array([plan.radius_bands(tail) for tail in TAIL_THRESHOLDS])
    energies = bands_contribution(plan, frame)

    def contribution(days: FloatArray) -> FloatArray:
        exceeded = norms(energies(days))[:, None] > thresholds
        interval: FloatArray = -np.diff(exceeded.astype(np.float64), axis=1, append=0.0)
        return interval

    return contribution


def _profile(seen: Seen, n_steps: int) -> FloatArray:
    """Spread profile s (T,) from the noisy mean and smooth terms of the variance."""
    terms = seen.value
    level = max(float(terms[0]) / PROFILE_MEAN_WEIGHT, PROFILE_MIN_LEVEL)
    relative_terms, variance = terms[1:] / level, seen.variance / (level * level)
    prior = PRIOR_PROFILE_STD * PRIOR_PROFILE_STD / np.arange(1, terms.size)
    likely = relative_terms * prior / (prior + variance)
    likely *= signal_share(float(np.sum(relative_terms**2)), likely.size * variance)
    relative = 1 + from_coefficients(np.concatenate([[0.0], likely]), n_steps)
    profile: FloatArray = np.sqrt(np.clip(relative, *PROFILE_RANGE))
    return profile


def whitening_widths(seen: Seen, plan: StructuredPlan) -> FloatArray:
    """Standard deviation (T,) of each coefficient from the noisy mean log energies."""
    likely = shrunk(seen, PRIOR_LOG_ENERGY_VARIANCE)
    # E[log χ²_N/N] is below 0. A record with many days has more degrees of freedom than its band is wide,
    # but its days are alike: half of the correction is within a factor 2 in either case; round 2 corrects.
    width = np.diff(plan.edges)
    bias = _digamma_of_half(width) - log(width / 2)
    log_variance = prior_log_energy(plan.edges) + likely - bias / 2
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
def fine_mean_contribution(plan: StructuredPlan, frame: Whitening) -> Contribution:
    """A record's mean day in whitened coefficients; BALL."""
    return lambda days: frame.coefficients(days.mean(axis=1), plan.fine_mean)


def bands_contribution(plan: StructuredPlan, frame: Whitening) -> Contribution:
    """A record's whitened energy in each band, weighted; ORTHANT, all entries are ≥ 0."""
    return lambda days: (
        plan.band_weight * band_means((frame.coefficients(days) ** 2).mean(axis=1), plan.edges)
    )


def block_contribution(block: int, frame: Whitening) -> Contribution:
    """A record's second moment of the K lowest whitened coefficients, averaged over its days; PSD."""

    def contribution(days: FloatArray) -> FloatArray:
        low = frame.coefficients(days, block)
        return symmetric_to_vector(gram(low) / low.shape[1])

    return contribution


def _round_2(plan: StructuredPlan, frame: Whitening, tail: float) -> Steps[GaussianEstimate]:
    rho = {name: plan.rho * share for name, share in plan.round_2_shares(tail).items()}
    block = plan.block_size
    query = Query("mean, round 2", plan.fine_mean, plan.radius_mean, Region.BALL, rho["mean"])
    fine = yield Ask(query, fine_mean_contribution(plan, frame))
    query = Query(
        "band energies, round 2", plan.n_bands, plan.radius_bands(tail), Region.ORTHANT, rho["bands"]
    )
    bands = yield Ask(query, bands_contribution(plan, frame))
    offset = _offset(fine, frame, plan)
    energy = energy_around_mean(Bands(bands, frame.log_energy_variance), offset, plan)
    covariance = np.diag(energy)
    if block >= 2:
        size, radius = block * (block + 1) // 2, plan.radius_block(block, tail)
        query = Query("low-frequency second moment, round 2", size, radius, Region.PSD, rho["block"])
        seen = yield Ask(query, block_contribution(block, frame))
        low = Block(vector_to_symmetric(seen.value, block), seen.variance, offset)
        covariance[:block, :block] = block_covariance(low, energy[:block])
    return _assemble(frame, offset.mean, covariance)


def _offset(seen: Seen, frame: Whitening, plan: StructuredPlan) -> Offset:
    """Correction of the mean in whitened coefficients (T,), and its error."""
    fine, coarse = plan.fine_mean, plan.coarse_mean
    known = (prior_mean_std(plan.half_range, fine) / frame.width[:fine]) ** 2
    known[:coarse] = frame.mean_variance / frame.width[:coarse] ** 2
    prior = np.maximum(known, 0.0025)  # round 1 clips, so its error is never just its noise
    found = (shrunk(seen, prior), prior * seen.variance / (prior + seen.variance), known)
    return Offset(*(np.append(part, np.zeros(plan.n_steps - fine)) for part in found))


def _assemble(frame: Whitening, shift: FloatArray, covariance: FloatArray) -> GaussianEstimate:
    synthesis = frame.scale[:, None] * synthesis_matrix(frame.mean.size) * frame.width
    full = product(product(synthesis, covariance), synthesis.T)
    return GaussianEstimate(frame.mean + product(synthesis, shift), (full + full.T) / 2)


@dataclass(frozen=True)
class Structured(DayEstimator):
    """Two rounds in a smooth basis (default); `block` overrides K."""

    block: int | None = None
    name: str = "structured"

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianEstimate]:
        plan = StructuredPlan(**vars(facts), block=self.block)
        found = fit_together([_round_1(plan) for _ in groups], groups, session)
        # One clip for all classes, since they share one charge: the class with the heaviest tail decides.
        tail = max(own for _, own in found)
        return fit_together([_round_2(plan, frame, tail) for frame, _ in found], groups, session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        """By public figures, the noise outweighs what the prior says about the spectrum."""
        plan = StructuredPlan(**vars(facts))
        return plan.bands_noise(_USUAL_TAIL) > 0.1 * plan.n_steps


# --- from noisy answers to variances ---------------------------------------------------------------------
MIN_EIGENVALUE = 0.05  # of a correlation matrix
PRIOR_FACTOR_STD = 1.0  # of the log of the factor that all bands share
_REACH = 5.0  # standard deviations that a grid covers
_FACTORS, _ENERGIES = 81, 1201  # points of the grids
_LEAST = 1e-300  # before a log or a division
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
    log_energy_variance
        Error of round 1's log energies, squared.
    """

    weighted: Seen
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
    seen = bands.weighted.value / weight - band_means(offset.square, edges)
    error = bands.weighted.variance / weight**2 + band_means(offset.square_variance, edges) / np.diff(edges)
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
    evidence = np.maximum(product(likelihood, prior), _LEAST)
    given_factor = product(likelihood * variance, prior) / evidence
    log_weight = log(evidence).sum(axis=0) - (factor - centre) ** 2 / (2 * shared)
    weight = exp(log_weight - log_weight.max())
    result: FloatArray = product(given_factor, weight) / weight.sum()
    return result


def signal_share(energy: float, noise_energy: float) -> float:
    """James and Stein's factor: the part of an energy that is not noise, at least 0; pure noise vanishes."""
    return max(0.0, 1.0 - noise_energy / max(energy, _NO_ENERGY))
