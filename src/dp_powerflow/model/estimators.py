"""PRIVATE. The records of a fit, looked at some at a time: a history is never held a second time.

Log loads are made where they are looked at and forgotten afterwards. What was found of some customers is
kept, because it is small: many queries ask about the same figures of a customer.

What an estimator is given and returns, and the free post-processing all of them share.

What an estimator in the frequencies of a day fixes before it sees data: basis, bands, prior and plan.

The basis is the orthonormal cosine transform of a day. Its coefficients are divided by √T, so that the sum of
their squares is the mean square over the day and a coefficient means the same at 24 as at 96 steps.

A plan is a function of public quantities only: the number of records, the number of steps, the budget and
the declared bounds of the load.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, kernel, log, log1
from dp_powerflow._bits.linear import eigh, is_positive_definite, product
from dp_powerflow._threads import in_order
from dp_powerflow.privacy.queries import Query, Session
from dp_powerflow.units import BoolArray, FloatArray, IntArray

Contribution = Callable[[FloatArray], FloatArray]
"""Records (record, day, step) → what each adds to a sum (record, dimension)."""
Found = TypeVar("Found")

_CHUNK_VALUES = 1 << 19  # 4 MB of float64 at a time


@dataclass(frozen=True, eq=False, repr=False)
class Chosen(ABC):
    """PRIVATE. Records of a history: some load points on some days, as arrays when they are asked for.

    Parameters
    ----------
    load_kw
        (load point, day, step) [kW] of the whole history.
    points, days
        Load points and days that are chosen.
    scale_kw
        (load point,) of the whole history, that loads are divided by; ones for none.
    by_day
        Whether every day of a load point is a record of its own.
    rows
        Records that are meant, of all that there are; None for all.
    """

    load_kw: FloatArray
    points: IntArray
    days: IntArray
    scale_kw: FloatArray
    by_day: bool
    rows: IntArray | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return len(self.points) * (len(self.days) if self.by_day else 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(record, day, step)."""
        return len(self), 1 if self.by_day else len(self.days), self.width

    @property
    def width(self) -> int:
        """Values of a day."""
        return int(self.load_kw.shape[2])

    def where(self, flags: BoolArray) -> Chosen:
        """The records that are flagged (record,)."""
        rows = np.arange(len(self)) if self.rows is None else self.rows
        return replace(self, rows=rows[flags])

    def __getitem__(self, key: Any) -> FloatArray:
        rows = np.arange(len(self)) if self.rows is None else self.rows
        chosen = rows[key]
        found = self._made(np.atleast_1d(chosen))
        return found if np.ndim(chosen) else found[0]

    def _made(self, rows: IntArray) -> FloatArray:
        if self.by_day:
            point, day = np.divmod(rows, len(self.days))
            return self.values(self.points[point], self.days[day][:, None])
        return self.values(self.points[rows], np.broadcast_to(self.days, (len(rows), len(self.days))))

    @abstractmethod
    def values(self, points: IntArray, days: IntArray) -> FloatArray:
        """(record, day, step) of load points (record,) on days (record, day)."""


@dataclass(frozen=True, eq=False, repr=False)
class LogLoads(Chosen):
    """PRIVATE. Log loads, cut to bounds [kW, or per scale]."""

    bounds: tuple[float, float]

    def values(self, points: IntArray, days: IntArray) -> FloatArray:
        out = np.empty((*days.shape, self.width))
        days = np.ascontiguousarray(days)
        _logs(self.load_kw, points, days, self.scale_kw[points], self.bounds[0], self.bounds[1], out)
        return out


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Chosen):
    """PRIVATE. p and q side by side (record, day, 2·step) [kW, kvar, or per scale]."""

    load_kvar: FloatArray

    @property
    def width(self) -> int:
        """Values of a day."""
        return 2 * int(self.load_kw.shape[2])

    def values(self, points: IntArray, days: IntArray) -> FloatArray:
        both = [array[points[:, None], days] for array in (self.load_kw, self.load_kvar)]
        return np.concatenate(both, axis=2) / self.scale_kw[points, None, None]


@kernel
def _logs(
    load: FloatArray,
    points: IntArray,
    days: IntArray,
    scale: FloatArray,
    low: float,
    high: float,
    out: FloatArray,
) -> None:
    for i in range(points.size):
        for k in range(days.shape[1]):
            source, target = load[points[i], days[i, k]], out[i, k]
            for t in range(target.size):
                target[t] = min(max(source[t] / scale[i], low), high)
            for t in range(target.size):
                target[t] = log1(target[t])


class Customers:
    """PRIVATE. Some customers with all their days: log loads on demand, and what was found of them.

    Parameters
    ----------
    loads
        (customer, day, step) log loads, or what gives them.
    """

    def __init__(self, loads: FloatArray | Callable[[], FloatArray]) -> None:
        self._loads = loads
        self._found: dict[Hashable, Any] = {}

    @property
    def log_load(self) -> FloatArray:
        """(customer, day, step), made anew where they are not held."""
        return self._loads() if callable(self._loads) else np.ascontiguousarray(self._loads)

    def once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """What `find` gives; it is called once for a key."""
        if key not in self._found:
            self._found[key] = find()
        found: Found = self._found[key]
        return found

    def __repr__(self) -> str:
        return "Customers(PRIVATE)"


@dataclass(frozen=True, eq=False)
class OfCustomers:
    """A contribution that is made of customers: of log loads it makes customers first."""

    of: Callable[[Customers], FloatArray]

    def __call__(self, log_load: FloatArray) -> FloatArray:
        return self.of(Customers(log_load))


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

    log_load: FloatArray | Chosen
    count: float

    @property
    def n_steps(self) -> int:
        return int(self.log_load.shape[-1])

    def contributions(self, of: Contribution, *, values_per_step: int = 1) -> Iterator[FloatArray]:
        """Contributions (record, dimension), chunk by chunk, made on all cores.

        `values_per_step` sizes the chunks: how many numbers `of` makes of one step of a record.
        """
        if isinstance(of, OfCustomers):
            yield from in_order(of.of, self._customers)
        else:
            yield from in_order(lambda part: of(self.log_load[part]), self._parts(values_per_step))

    def _parts(self, values_per_step: int = 1) -> list[slice]:
        n_records, n_days, n_steps = self.log_load.shape
        size = max(1, _CHUNK_VALUES // (n_steps * max(n_days, values_per_step)))
        return [slice(start, start + size) for start in range(0, n_records, size)]

    @cached_property
    def _customers(self) -> list[Customers]:
        return [Customers(lambda part=part: self.log_load[part]) for part in self._parts()]  # type: ignore[misc]

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
