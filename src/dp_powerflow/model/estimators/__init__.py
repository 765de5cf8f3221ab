"""What an estimator is given and returns, and the free post-processing all of them share.

What an estimator in the frequencies of a day fixes before it sees data: basis, bands, prior and plan.

The basis is the orthonormal cosine transform of a day. Its coefficients are divided by √T, so that the sum of
their squares is the mean square over the day and a coefficient means the same at 24 as at 96 steps.

A plan is a function of public quantities only: the number of records, the number of steps, the budget and
the declared bounds of the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, log
from dp_powerflow._bits.linear import eigh, is_positive_definite, norms, product
from dp_powerflow.model.records import Contribution as Contribution
from dp_powerflow.model.records import Records as Records
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import FloatArray, IntArray


def symmetric_to_vector(matrices: FloatArray) -> FloatArray:
    """(..., K, K) symmetric → (..., K(K+1)/2), off-diagonals times √2: L2 norm = Frobenius norm."""
    size = matrices.shape[-1]
    rows, columns = np.triu_indices(size)
    weight = np.where(rows == columns, 1.0, np.sqrt(2.0))
    result: FloatArray = matrices[..., rows, columns] * weight
    return result


def vector_to_symmetric(vector: FloatArray, size: int) -> FloatArray:
    """Inverse of `symmetric_to_vector` for one vector (K(K+1)/2,)."""
    rows, columns = np.triu_indices(size)
    values = vector / np.where(rows == columns, 1.0, np.sqrt(2.0))
    matrix = np.zeros((size, size))
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return matrix


@dataclass(frozen=True, eq=False)
class GaussianEstimate:
    """A released Gaussian of log load.

    Parameters
    ----------
    mean
        (step,) [log kW].
    covariance
        (step, step), symmetric positive definite.
    """

    mean: FloatArray
    covariance: FloatArray


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


class Estimator(Protocol):
    """Fits one Gaussian per group of records within a budget."""

    @property
    def name(self) -> str:
        """Stated in the model."""

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianEstimate]:
        """One Gaussian per group; spends at most `facts.rho` of the session."""

    def prior_would_do(self, facts: PublicFacts) -> bool:
        """Whether, by public figures alone, the budget is too small for the data to matter."""


def ask_averages(
    session: Session,
    query: Query,
    groups: Sequence[Records],
    of: Sequence[Contribution],
    *,
    values_per_step: int = 1,
) -> tuple[list[FloatArray], list[float]]:
    """Averages over records, one per group, and the variance of their noise.

    `of` has one contribution per group; `values_per_step` is as in `Records.contributions`.
    """
    blocks = [
        group.contributions(f, values_per_step=values_per_step) for group, f in zip(groups, of, strict=True)
    ]
    averages = [total / group.count for total, group in zip(session.ask(query, blocks), groups, strict=True)]
    errors = [session.costs[-1].noise_std / group.count for group in groups]
    return averages, [error * error for error in errors]


def positive_part(matrix: FloatArray, floor: float) -> FloatArray:
    """Nearest symmetric matrix (Frobenius) with eigenvalues at least `floor`; any finite matrix will do."""
    symmetric = (matrix + matrix.T) / 2
    if is_positive_definite(symmetric - floor * np.eye(len(symmetric))):
        return symmetric
    values, vectors = eigh(symmetric)
    result = product(vectors * np.maximum(values, floor), vectors.T)
    return (result + result.T) / 2


def with_floor(mean: FloatArray, covariance: FloatArray, floor: float) -> GaussianEstimate:
    """Raise the eigenvalues to a public floor and take the added variance out of the mean load.

    Adding variance φ to log load multiplies the mean load by exp(φ/2); subtracting φ/2 from the log mean
    undoes it (paper correction 14). Free post-processing.
    """
    floored = positive_part(covariance, floor)
    added = np.diag(floored) - np.diag(covariance)
    return GaussianEstimate(mean - np.maximum(added, 0.0) / 2, floored)


def within_bounds(estimate: GaussianEstimate, log_low: float, log_high: float) -> GaussianEstimate:
    """Make an estimate respect what the declared bounds imply, whatever the noise did. Free post-processing.

    A load within [p_min, p_max] has a log mean between their logs, a standard deviation of its log of at
    most half their distance (Popoviciu), and a mean of at most p_max.
    """
    half = (log_high - log_low) / 2
    std = np.sqrt(np.maximum(np.diag(estimate.covariance), 1e-300))
    shrink = np.minimum(1.0, half / std)
    covariance = estimate.covariance * np.outer(shrink, shrink)
    mean = np.clip(estimate.mean, log_low, log_high)
    return GaussianEstimate(np.minimum(mean, log_high - np.diag(covariance) / 2), covariance)


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


def prior_mean_std(half_range: float, size: int) -> FloatArray:
    """Prior standard deviation of the mean's coefficients (size,) [log kW]: level, then shape."""
    return np.concatenate([[half_range / 2], 0.4 / np.arange(1, size)])


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

    def log_energy_query(self, name: str, rho: float) -> Query:
        """Asks for the log energies of all bands."""
        return Query(name, self.n_bands, self.radius_energy, Region.BALL, rho, "log")

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
        noise = np.array([self._bands_noise(tail) for tail in TAIL_THRESHOLDS])
        return TAIL_THRESHOLDS[int(np.argmin(0.25 * self.n_steps * lost**2 + noise))]

    def _bands_noise(self, tail: float) -> float:
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

    @property
    def prior_would_do(self) -> bool:
        """True if, by public figures, the noise outweighs what the prior says about the spectrum."""
        return self._bands_noise(_USUAL_TAIL) > 0.1 * self.n_steps


def _square(x: float) -> float:
    return x * x  # x**2 is the power function of the C library
