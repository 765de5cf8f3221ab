"""What an estimator is given and returns, and the free post-processing all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dp_powerflow._bits.elementary import exp
from dp_powerflow._bits.linear import eigh, is_positive_definite, product
from dp_powerflow.privacy.queries import Query, Session
from dp_powerflow.units import FloatArray

Contribution = Callable[[FloatArray], FloatArray]
"""Records (record, day, step) → what each adds to a sum (record, dimension)."""

_CHUNK_VALUES = 1 << 19  # 4 MB of float64 at a time


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """PRIVATE. Log loads of the records of one class (for reactive load: p and q side by side).

    Parameters
    ----------
    log_load
        (record, day, step) [log kW, or log of kW per public scale]. With unit `load-point` a record is a
        load point with all its days; with `load-point-day` every record has one day.
    count
        Number of records: public, or a released noisy count if the class of a record is private.
    """

    log_load: FloatArray
    count: float

    @property
    def n_steps(self) -> int:
        return int(self.log_load.shape[-1])

    def contributions(self, of: Contribution, *, values_per_step: int = 1) -> Iterator[FloatArray]:
        """Contributions (record, dimension), chunk by chunk.

        `values_per_step` sizes the chunks: how many numbers `of` makes of one step of a record.
        """
        n_records, n_days, n_steps = self.log_load.shape
        size = max(1, _CHUNK_VALUES // (n_steps * max(n_days, values_per_step)))
        for start in range(0, n_records, size):
            yield of(self.log_load[start : start + size])

    def __repr__(self) -> str:
        return f"Records({self.log_load.shape[1]} days × {self.n_steps} steps, PRIVATE)"


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
