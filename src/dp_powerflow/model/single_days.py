"""Estimators of single days: the loop that they share, and the two estimators.

**Structured** (default): two rounds in a smooth basis.

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
and one with one day the same way. Each depends on that record and on values released before. Sensitivities,
from `privacy.queries`: 2R for means, √2·R for energies and second moments.

**Plain**: mean and second moment of days, Gaussian noise, split for the least expected KL.

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
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, log, log1
from dp_powerflow._bits.linear import eigh, gram, is_positive_definite, norms, product
from dp_powerflow.model.estimators import (
    Ask,
    Bounds,
    Cell,
    Estimator,
    Records,
    Seen,
    Steps,
    fit_together,
    symmetric_to_vector,
    vector_to_symmetric,
)
from dp_powerflow.model.law import ClassModel, GaussianComponent, ReactiveModel
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import FloatArray, IntArray


@dataclass(frozen=True)
class PublicFacts:
    """What an estimator may know before it asks.

    Parameters
    ----------
    records
        Public number of records (per class; an even split if the class is private).
    n_steps
        Steps per day T.
    rho
        Budget of the fit (zCDP).
    log_low, log_high
        Declared public bounds of log load [log kW].
    """

    records: float
    n_steps: int
    rho: float
    log_low: float
    log_high: float

    @property
    def centre(self) -> float:
        """Middle of the bounds [log kW]."""
        return (self.log_low + self.log_high) / 2

    @property
    def half_range(self) -> float:
        """Half the distance of the bounds [log kW]."""
        return (self.log_high - self.log_low) / 2


# --- basis, bands, prior, and what is free after the noise -------------------------------------------------
# The basis is the orthonormal cosine transform of a day. Its coefficients are divided by √T, so that the sum
# of their squares is the mean square over the day and a coefficient means the same at 24 as at 96 steps.


def shrunk(seen: Seen, prior_variance: FloatArray | float) -> FloatArray:
    """Posterior mean of a Gaussian with mean zero, seen through Gaussian noise."""
    result: FloatArray = seen.value * prior_variance / (prior_variance + seen.variance)
    return result


def positive_part(matrix: FloatArray, floor: float) -> FloatArray:
    """Nearest symmetric matrix (Frobenius) with eigenvalues at least `floor`; any finite matrix will do."""
    symmetric = (matrix + matrix.T) / 2
    if is_positive_definite(symmetric - floor * np.eye(len(symmetric))):
        return symmetric
    values, vectors = eigh(symmetric)
    result = product(vectors * np.maximum(values, floor), vectors.T)
    return (result + result.T) / 2


def with_floor(part: GaussianComponent, floor: float) -> GaussianComponent:
    """Raise the eigenvalues to a public floor and take the added variance out of the mean load.

    Adding variance φ to log load multiplies the mean load by exp(φ/2); subtracting φ/2 from the log mean
    undoes it (paper correction 14). Free post-processing.
    """
    floored = positive_part(part.covariance, floor)
    added = np.diag(floored) - np.diag(part.covariance)
    return replace(part, mean=part.mean - np.maximum(added, 0.0) / 2, covariance=floored)


def within_bounds(part: GaussianComponent, log_low: float, log_high: float) -> GaussianComponent:
    """Make an estimate respect what the declared bounds imply, whatever the noise did. Free post-processing.

    A load within [p_min, p_max] has a log mean between their logs, a standard deviation of its log of at
    most half their distance (Popoviciu), and a mean of at most p_max.
    """
    half = (log_high - log_low) / 2
    std = np.sqrt(np.maximum(np.diag(part.covariance), 1e-300))
    shrink = np.minimum(1.0, half / std)
    covariance = part.covariance * np.outer(shrink, shrink)
    mean = np.clip(part.mean, log_low, log_high)
    return replace(part, mean=np.minimum(mean, log_high - np.diag(covariance) / 2), covariance=covariance)


def finished(part: GaussianComponent, margins: Bounds, floor: float) -> GaussianComponent:
    """An estimate within the declared margins [kW], with the floor of its eigenvalues."""
    return with_floor(within_bounds(part, log1(margins[0]), log1(margins[1])), floor)


def posterior_energy(
    seen: FloatArray, noise_variance: FloatArray, prior_log_mean: float, prior_log_variance: float
) -> FloatArray:
    """Posterior mean of positive numbers seen through Gaussian noise, under a lognormal prior.

    The variance ê with the least expected KL(true ‖ released) is the posterior mean of the true variance:
    E[e/ê + log ê] is least at ê = E[e]. By quadrature on a grid of log e; elementwise.
    """
    log_grid = prior_log_mean + np.sqrt(prior_log_variance) * np.linspace(-5, 5, 401)
    grid = exp(log_grid)
    log_weight = -((log_grid - prior_log_mean) ** 2) / (2 * prior_log_variance) - (
        seen[:, None] - grid
    ) ** 2 / (2 * noise_variance[:, None])
    weight = exp(log_weight - log_weight.max(axis=1, keepdims=True))
    energy: FloatArray = product(weight, grid) / weight.sum(axis=1)
    return energy


def prior_mean_std(half_range: float, size: int) -> FloatArray:
    """Prior standard deviation of the mean's coefficients (size,) [log kW]: level, then shape."""
    return np.concatenate([[half_range / 2], 0.4 / np.arange(1, size)])


def to_coefficients(days: FloatArray, count: int | None = None) -> FloatArray:
    """Days (..., T) → the lowest `count` coefficients (..., count), or all."""
    n_steps = days.shape[-1]
    return product(days, _analysis(n_steps, n_steps if count is None else count))


def from_coefficients(coefficients: FloatArray, n_steps: int | None = None) -> FloatArray:
    """Inverse of `to_coefficients`; missing high coefficients (..., k < T) count as zero."""
    count = coefficients.shape[-1]
    return product(coefficients, synthesis_matrix(count if n_steps is None else n_steps)[:, :count].T)


@cache
def synthesis_matrix(n_steps: int) -> FloatArray:
    """Matrix B (T, T) with day = B·coefficients: 1 and √2·cos(πk(t + ½)/T)."""
    # The angle is 2π·m/4T with m = k·(2t + 1); integers fold it into the first quarter without error.
    m = np.outer(2 * np.arange(n_steps) + 1, np.arange(n_steps)) % (4 * n_steps)
    m = np.minimum(m, 4 * n_steps - m)
    sign = np.where(m > n_steps, -1.0, 1.0)
    quarter = np.minimum(m, 2 * n_steps - m)
    matrix: FloatArray = sign * math.sqrt(2.0) * cos(quarter * (math.pi / (2 * n_steps)))
    matrix[:, 0] = 1.0
    matrix.flags.writeable = False
    return matrix


@cache
def _analysis(n_steps: int, count: int) -> FloatArray:
    """Matrix (T, count) with coefficients = day·matrix."""
    matrix = np.ascontiguousarray(synthesis_matrix(n_steps)[:, :count] / n_steps)
    matrix.flags.writeable = False
    return matrix


def band_edges(n_steps: int) -> tuple[int, ...]:
    """Edges of the frequency bands: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, …, T (13 bands at T = 96)."""
    edges = [0, 1, 2, 3]
    octave = 4
    while octave < n_steps:
        edges += [octave, octave * 3 // 2]
        octave *= 2
    return (*(edge for edge in edges if edge < n_steps), n_steps)


def band_of(edges: tuple[int, ...]) -> IntArray:
    """Band index (T,) of every coefficient."""
    return np.repeat(np.arange(len(edges) - 1), np.diff(edges))


def band_means(energy: FloatArray, edges: tuple[int, ...]) -> FloatArray:
    """Mean of (..., T) over each band → (..., band)."""
    sums: FloatArray = np.add.reduceat(energy, edges[:-1], axis=-1)
    return sums / np.diff(edges)


def interpolate_bands(values: FloatArray, edges: tuple[int, ...]) -> FloatArray:
    """Values (band,) → (T,), linear in the log of frequency between the bands' centres.

    A spectrum falls within a band too; a staircase of log energies would miss that.
    """
    low, high = np.asarray(edges[:-1]), np.asarray(edges[1:])
    if low.size == 1:
        return np.full(edges[-1], values[0])
    centres = log((low + high) / 2)
    at = log(np.arange(0.5, edges[-1]))
    upper = np.clip(np.searchsorted(centres, at), 1, low.size - 1)
    share = np.clip((at - centres[upper - 1]) / (centres[upper] - centres[upper - 1]), 0.0, 1.0)
    result: FloatArray = (1 - share) * values[upper - 1] + share * values[upper]
    return result


class DayEstimator(Estimator):
    """Fits Gaussians of single days to the classes of a cell: the loop that such estimators share."""

    @abstractmethod
    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianComponent]:
        """One Gaussian per group; spends at most `facts.rho` of the session."""

    @abstractmethod
    def prior_would_do(self, facts: PublicFacts) -> bool:
        """Whether, by public figures alone, the budget is too small for the data to matter."""

    def laws(self, cell: Cell) -> list[tuple[GaussianComponent, ...]]:
        """Of the log load of every class, within its declared bounds."""
        facts = PublicFacts(cell.records, cell.facts.n_steps, cell.rho, *cell.log_bounds)
        if self.prior_would_do(facts):
            cell.notes.append(
                f"{facts.records:.0f} records of {', '.join(cell.names)} are too few for this epsilon: the "
                "noise outweighs the data and the public prior would do as well; raise epsilon or pool "
                "classes"
            )
        bases = self.estimate(cell.groups, facts, cell.session)
        floor = cell.options.variance_floor
        return [(finished(base, own, floor),) for base, own in zip(bases, cell.margins, strict=True)]

    def classes(self, cell: Cell) -> list[ClassModel]:
        """The laws of active load, with the reactive load that is declared."""
        reactive = cell.options.reactive
        covariance = reactive.covariance(cell.facts.n_steps, cell.facts.step_minutes)
        classes, laws = [], self.laws(cell)
        for name, weight, own, parts in zip(cell.names, cell.weights, cell.margins, laws, strict=True):
            # p̄: released mean load over the day
            reference = float(sum(part.weight * part.mean_load.mean() for part in parts))
            q = ReactiveModel(reactive.tan_theta(name), reactive.spread, reference, covariance)
            classes.append(ClassModel(name, weight, parts, own, q))
        return classes


# --- structured -------------------------------------------------------------------------------------------
PROFILE_TERMS = 6
PROFILE_CAP = 3.0  # a record's residual variance counts up to this many times the expected one
PROFILE_MEAN_WEIGHT = 0.25  # of the mean variance next to its smooth terms; it is needed less precisely
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
    def radius_mean(self) -> float:
        """Round 2: whitened mean, expected norm at most √F."""
        return 1.2 * math.sqrt(self.fine_mean)

    @property
    def band_weight(self) -> FloatArray:
        """Weights (band,) of the band energies: N^¼ makes Σ N_b·(error_b)² least for a given noise."""
        return np.sqrt(np.sqrt(np.diff(self.edges)))

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
def coarse_mean_contribution(plan: StructuredPlan, days: FloatArray) -> FloatArray:
    """A record's mean day on the lowest coefficients, around the public centre; BALL of half the range."""
    inside = np.clip(days, plan.log_low, plan.log_high).mean(axis=1) - plan.centre
    return to_coefficients(inside, plan.coarse_mean)


def profile_contribution(plan: StructuredPlan, width: FloatArray, days: FloatArray) -> FloatArray:
    """Smooth terms of a record's high-pass variance over the day, whitened; BALL.

    Entry 0 is its mean variance, weighted down, the others its course. A record's variance counts up to
    `PROFILE_CAP` times the expected one, so that restless records weigh more, as they do in the covariance,
    but not without limit.
    """
    weight = np.concatenate([[PROFILE_MEAN_WEIGHT], np.ones(plan.profile_terms)])
    coefficients = to_coefficients(days) / width
    coefficients[..., : plan.high_pass] = 0.0
    variance = (from_coefficients(coefficients) ** 2).mean(axis=1) / (plan.n_steps - plan.high_pass)
    capped = variance / np.maximum(variance.mean(axis=-1, keepdims=True) / PROFILE_CAP, 1.0)
    terms: FloatArray = to_coefficients(capped, plan.profile_terms + 1) * weight
    return terms


def log_energy_contribution(plan: StructuredPlan, mean: FloatArray, days: FloatArray) -> FloatArray:
    """Log energy of a record in each band, around the public prior; BALL."""
    energy = (to_coefficients(days - mean) ** 2).mean(axis=1)
    return log(np.maximum(band_means(energy, plan.edges), _TINY)) - prior_log_energy(plan.edges)


def _round_1(plan: StructuredPlan) -> Steps[tuple[Whitening, float]]:
    """The frame of round 2, and how many times the expected energy a record may have before it is clipped."""
    rho = {name: plan.rho * ROUND_1 * share for name, share in ROUND_1_SHARES.items()}
    query = Query("mean, round 1", plan.coarse_mean, plan.half_range, Region.BALL, rho["mean"], "log kW")
    seen = yield Ask(query, partial(coarse_mean_contribution, plan))
    prior = prior_mean_std(plan.half_range, plan.coarse_mean) ** 2
    mean = plan.centre + from_coefficients(shrunk(seen, prior), plan.n_steps)
    mean_variance = prior * seen.variance / (prior + seen.variance)

    radius = math.sqrt(PRIOR_LOG_ENERGY_VARIANCE * plan.n_bands)  # one prior standard deviation per band
    query = Query("log band energies, round 1", plan.n_bands, radius, Region.BALL, rho["energy"], "log")
    seen = yield Ask(query, partial(log_energy_contribution, plan, mean))
    width, prior_energy = whitening_widths(seen, plan), PRIOR_LOG_ENERGY_VARIANCE
    log_energy_variance = prior_energy * seen.variance / (prior_energy + seen.variance)

    name, terms = "spread profile, round 1", plan.profile_terms + 1
    query = Query(name, terms, PROFILE_RADIUS, Region.BALL, rho["profile"])
    seen = yield Ask(query, partial(profile_contribution, plan, width))
    frame = Whitening(mean, mean_variance, _profile(seen, plan.n_steps), width, log_energy_variance)

    name, places = "tail of the energy, round 1", len(TAIL_THRESHOLDS)
    query = Query(name, places, 1.0, Region.ORTHANT, rho["tail"], "records")
    seen = yield Ask(query, partial(tail_contribution, plan, frame))
    prior = -np.diff(PRIOR_TAIL, append=0.0)
    in_interval = prior + shrunk(Seen(seen.value - prior, seen.noise), 4 * prior**2)
    return frame, plan.choose_tail(np.cumsum(in_interval[::-1])[::-1])


def tail_contribution(plan: StructuredPlan, frame: Whitening, days: FloatArray) -> FloatArray:
    """One in the interval between thresholds that holds a record's whitened energy; ORTHANT, norm ≤ 1."""
    thresholds = np.array([plan.radius_bands(tail) for tail in TAIL_THRESHOLDS])
    exceeded = norms(bands_contribution(plan, frame, days))[:, None] > thresholds
    interval: FloatArray = -np.diff(exceeded.astype(np.float64), axis=1, append=0.0)
    return interval


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
    return exp(interpolate_bands(prior_log_energy(plan.edges) + likely - bias / 2, plan.edges) / 2)


def _digamma_of_half(n: IntArray) -> FloatArray:
    """ψ(n/2), elementwise, from ψ(½) or ψ(1) by ψ(x + 1) = ψ(x) + 1/x."""
    return np.array(
        [
            (-_EULER - 2 * _LOG_2 if size % 2 else -_EULER) + sum(2 / k for k in range(2 - size % 2, size, 2))
            for size in n.tolist()
        ]
    )


# --- round 2 ---------------------------------------------------------------------------------------------
def fine_mean_contribution(plan: StructuredPlan, frame: Whitening, days: FloatArray) -> FloatArray:
    """A record's mean day in whitened coefficients; BALL."""
    return frame.coefficients(days.mean(axis=1), plan.fine_mean)


def bands_contribution(plan: StructuredPlan, frame: Whitening, days: FloatArray) -> FloatArray:
    """A record's whitened energy in each band, weighted; ORTHANT, all entries are ≥ 0."""
    return plan.band_weight * band_means((frame.coefficients(days) ** 2).mean(axis=1), plan.edges)


def moment_of(days: FloatArray) -> FloatArray:
    """A record's second moment of (record, day, coefficient), averaged over its days; PSD."""
    return symmetric_to_vector(gram(days) / days.shape[1])


def _round_2(plan: StructuredPlan, frame: Whitening, tail: float) -> Steps[GaussianComponent]:
    rho = {name: plan.rho * share for name, share in plan.round_2_shares(tail).items()}
    block = plan.block_size
    query = Query("mean, round 2", plan.fine_mean, plan.radius_mean, Region.BALL, rho["mean"])
    fine = yield Ask(query, partial(fine_mean_contribution, plan, frame))
    query = Query(
        "band energies, round 2", plan.n_bands, plan.radius_bands(tail), Region.ORTHANT, rho["bands"]
    )
    bands = yield Ask(query, partial(bands_contribution, plan, frame))
    offset = _offset(fine, frame, plan)
    energy = energy_around_mean(bands, frame.log_energy_variance, offset, plan)
    covariance = np.diag(energy)
    if block >= 2:
        size, radius = block * (block + 1) // 2, plan.radius_block(block, tail)
        query = Query("low-frequency second moment, round 2", size, radius, Region.PSD, rho["block"])
        seen = yield Ask(query, lambda days: moment_of(frame.coefficients(days, block)))
        moment = vector_to_symmetric(seen.value, block)
        covariance[:block, :block] = block_covariance(moment, seen.variance, offset, energy[:block])
    synthesis = frame.scale[:, None] * synthesis_matrix(plan.n_steps) * frame.width
    full = product(product(synthesis, covariance), synthesis.T)
    return GaussianComponent(1.0, frame.mean + product(synthesis, offset.mean), (full + full.T) / 2)


def _offset(seen: Seen, frame: Whitening, plan: StructuredPlan) -> Offset:
    """Correction of the mean in whitened coefficients (T,), and its error."""
    fine, coarse = plan.fine_mean, plan.coarse_mean
    known = (prior_mean_std(plan.half_range, fine) / frame.width[:fine]) ** 2
    known[:coarse] = frame.mean_variance / frame.width[:coarse] ** 2
    prior = np.maximum(known, 0.0025)  # round 1 clips, so its error is never just its noise
    found = (shrunk(seen, prior), prior * seen.variance / (prior + seen.variance), known)
    return Offset(*(np.append(part, np.zeros(plan.n_steps - fine)) for part in found))


@dataclass(frozen=True)
class Structured(DayEstimator):
    """Two rounds in a smooth basis (default); `block` overrides K."""

    block: int | None = None
    name: str = "structured"

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianComponent]:
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


def energy_around_mean(
    bands: Seen, log_energy_variance: float, offset: Offset, plan: StructuredPlan
) -> FloatArray:
    """Whitened variance (T,) of each coefficient around the mean that is released.

    Parameters
    ----------
    bands
        Noisy whitened energies (band,) around the mean of round 1, with the plan's weights.
    log_energy_variance
        Error of round 1's log energies, squared.
    """
    weight, edges = plan.band_weight, plan.edges
    prior_variance = log_energy_variance + PRIOR_WHITENED_STD * PRIOR_WHITENED_STD
    seen = bands.value / weight - band_means(offset.square, edges)
    error = bands.variance / weight**2 + band_means(offset.square_variance, edges) / np.diff(edges)
    # Round 1 saw the error of its mean and the variance together.
    share = 1 / (1 + band_means(offset.prior_variance, edges))
    energy = share * posterior_variance(seen / share, error / share**2, prior_variance)
    return energy[band_of(edges)]


def block_covariance(
    moment: FloatArray, noise_variance: float, offset: Offset, energy: FloatArray
) -> FloatArray:
    """Covariance (K, K) with these variances and the correlations of the noisy second moment, shrunk.

    Parameters
    ----------
    moment
        (K, K) of the lowest frequencies around the mean of round 1, as asked.
    noise_variance
        Of a diagonal entry; off-diagonal ones have half of it.
    offset
        Of the mean (T,); what its error leaves on the off-diagonal entries is noise too.
    """
    size = len(moment)
    shift, own = offset.mean[:size], offset.variance[:size]
    square = shift**2
    error = np.outer(square, own) + np.outer(own, square) + np.outer(own, own)
    noise = size * (size - 1) / 2 * noise_variance + float(np.sum(error) - np.sum(np.diag(error)))
    off = moment - np.outer(shift, shift)
    np.fill_diagonal(off, 0.0)
    std = np.sqrt(energy)
    correlation = signal_share(float(np.sum(off**2)), noise) * off / np.outer(std, std)
    least = float(eigh(correlation)[0].min())
    # All of them are scaled down alike, so that the bands keep their variances.
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


# --- plain ------------------------------------------------------------------------------------------------
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
        eigenvalues = np.full(self.n_steps, 1 - REFERENCE_CORRELATION)  # of equal correlations
        eigenvalues[0] += REFERENCE_CORRELATION * self.n_steps
        plans, losses = [], []
        for quantile, excess in CLIPS:
            square = 1 - REFERENCE_CORRELATION + REFERENCE_CORRELATION * quantile
            plans.append(MomentPlan(math.sqrt(square * self.n_steps), 1 / eigenvalues, rho))
            lost = REFERENCE_CORRELATION * excess
            losses.append(plans[-1].expected_kl(self.records) + 0.25 * self.n_steps * lost * lost)
        return plans[losses.index(min(losses))]


def spread_contribution(plan: PlainPlan, level: float, days: FloatArray) -> FloatArray:
    """A record's root mean square around the level, less a quarter of the range; BALL of that.

    Within bounds a standard deviation is at most half the range (Popoviciu). A record that is farther from
    the level counts as that far: the answer is a scale, so a clip moves no mean.
    """
    around = days - level
    square: FloatArray = (around * around).mean(axis=(1, 2))
    return (np.sqrt(square) - plan.half_range / 2)[:, None]


def _plain(plan: PlainPlan) -> Steps[GaussianComponent]:
    """Level and spread of a class, then mean and second moment of its days y = (ξ − level)/spread."""
    half, n_steps, moments = plan.half_range, plan.n_steps, plan.moments
    query = Query("level", 1, half, Region.BALL, plan.rho * LEVEL_SHARE, "log kW")
    seen = yield Ask(query, lambda days: (days - plan.centre).mean(axis=(1, 2))[:, None])
    level = plan.centre + min(max(float(seen.value[0]), -half), half)
    query = Query("spread", 1, half / 2, Region.BALL, plan.rho * SPREAD_SHARE, "log kW")
    seen = yield Ask(query, partial(spread_contribution, plan, level))
    guess, variance = log1(REFERENCE_VARIANCE) / 2, np.array([seen.variance])
    found = posterior_energy(seen.value + half / 2, variance, guess, REFERENCE_LOG_VARIANCE)
    spread = min(float(found[0]), half)

    rho_mean, rho_moment = moments.split()
    squared = moments.radius * moments.radius
    query = Query("mean", n_steps, moments.radius, Region.BALL, rho_mean)
    mean = yield Ask(query, lambda days: ((days - level) / spread).mean(axis=1))
    query = Query("second moment", n_steps * (n_steps + 1) // 2, squared, Region.PSD, rho_moment)
    moment = yield Ask(query, lambda days: moment_of((days - level) / spread))
    # Symmetric noise moves eigenvalues by up to √2T of an off-diagonal's standard deviation (the edge of the
    # semicircle law); below that an eigenvalue is noise.
    edge = moment.noise * math.sqrt(n_steps)
    covariance = vector_to_symmetric(moment.value, n_steps) - np.outer(mean.value, mean.value)
    square, centre = spread * spread, level + spread * mean.value
    return with_floor(GaussianComponent(1.0, centre, square * covariance), MIN_VARIANCE + square * edge)


@dataclass(frozen=True)
class Plain(DayEstimator):
    """Noise on every entry of mean and covariance: the paper's, for reference and short horizons."""

    name: str = "plain"

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianComponent]:
        plan = PlainPlan(**vars(facts))
        return fit_together([_plain(plan) for _ in groups], groups, session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        """By public figures, the noise on a covariance entry exceeds the spread to be measured."""
        plan = PlainPlan(**vars(facts))
        return plan.moments.outweighs(1.0, plan.records)
