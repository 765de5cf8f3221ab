"""PRIVATE. The records of a fit, read some at a time: a history is never held a second time.

Log loads are made where they are read and forgotten afterwards. What was found of some customers is
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
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, kernel, log, log1
from dp_powerflow._bits.linear import eigh, is_positive_definite, product
from dp_powerflow._threads import in_order
from dp_powerflow.model.law import GaussianComponent
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.queries import Query, Session
from dp_powerflow.units import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.model.options import FitOptions, HistoryFacts

Contribution = Callable[[FloatArray], FloatArray]
"""Records (record, day, step) → what each adds to a sum (record, dimension)."""
Bounds = tuple[float, float]
Found = TypeVar("Found")

_CHUNK_VALUES = 1 << 19  # 4 MB of float64 at a time


@dataclass(frozen=True, eq=False, repr=False)
class LogLoads:
    """PRIVATE. Records of a history: log loads of some load points, as arrays when they are asked for.

    Parameters
    ----------
    load_kw
        (load point, day, step) [kW] of the whole history.
    points
        Load points that are chosen.
    scale_kw
        (load point,) of the whole history, that loads are divided by; ones for none.
    by_day
        Whether every day of a load point is a record.
    bounds
        What loads are cut to [kW, or per scale].
    rows
        The chosen records; None for all.
    """

    load_kw: FloatArray
    points: IntArray
    scale_kw: FloatArray
    by_day: bool
    bounds: Bounds
    rows: IntArray | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(record, day, step)."""
        _, days, steps = self.load_kw.shape
        return len(self._rows), 1 if self.by_day else days, steps

    @property
    def _rows(self) -> IntArray:
        every = len(self.points) * (self.load_kw.shape[1] if self.by_day else 1)
        return np.arange(every) if self.rows is None else self.rows

    def __getitem__(self, key: slice | IntArray | BoolArray) -> FloatArray:
        rows, every = self._rows[key], np.arange(self.load_kw.shape[1])
        point, day = np.divmod(rows, every.size) if self.by_day else (rows, rows)
        days = day[:, None] if self.by_day else np.tile(every, (len(rows), 1))
        points = self.points[point]
        out = np.empty((*days.shape, self.load_kw.shape[2]))
        _logs(self.load_kw, points, days, self.scale_kw[points], self.bounds, out)
        return out


@kernel
def _logs(
    load: FloatArray, points: IntArray, days: IntArray, scale: FloatArray, bounds: Bounds, out: FloatArray
) -> None:
    for i in range(points.size):
        for k in range(days.shape[1]):
            source, target = load[points[i], days[i, k]], out[i, k]
            for t in range(target.size):
                target[t] = min(max(source[t] / scale[i], bounds[0]), bounds[1])
            for t in range(target.size):
                target[t] = log1(target[t])


class CustomerChunk:
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
        return "CustomerChunk(PRIVATE)"


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """PRIVATE. Log loads of the records of one class.

    Parameters
    ----------
    log_load
        (record, day, step) [log kW, or log of kW per public scale]. With unit `load-point` a record is a
        load point with all its days; with `load-point-day` every record has one day.
    count
        Number of records: public, or a released noisy count if the class of a record is private.
    """

    log_load: FloatArray | LogLoads
    count: float

    @property
    def n_steps(self) -> int:
        return int(self.log_load.shape[-1])

    def contributions(self, of: Contribution, *, values_per_step: int = 1) -> Iterator[FloatArray]:
        """Contributions (record, dimension), chunk by chunk, made on all cores.

        `values_per_step` sizes the chunks: how many numbers `of` makes of one step of a record.
        """
        yield from in_order(lambda part: of(self.log_load[part]), self._parts(values_per_step))

    def of_customers(self, of: Callable[[CustomerChunk], FloatArray]) -> Iterator[FloatArray]:
        """The same of a function of customers, whose figures are found once for all queries."""
        yield from in_order(of, self._customers)

    def _parts(self, values_per_step: int = 1) -> list[slice]:
        n_records, n_days, n_steps = self.log_load.shape
        size = max(1, _CHUNK_VALUES // (n_steps * max(n_days, values_per_step)))
        return [slice(start, start + size) for start in range(0, n_records, size)]

    @cached_property
    def _customers(self) -> list[CustomerChunk]:
        return [CustomerChunk(lambda part=part: self.log_load[part]) for part in self._parts()]  # type: ignore[misc]

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


@dataclass(frozen=True, eq=False)
class Cell:
    """Classes that are fitted in lockstep, and the session that pays for them.

    Parameters
    ----------
    facts, options
        Public size of the history, and public choices.
    names, weights
        Of every class: name, share of the load points.
    groups
        PRIVATE. The records of every class; each is in exactly one.
    records
        Public number of records per class.
    rho
        Budget.
    notes
        Public remarks are added here.
    """

    facts: HistoryFacts
    options: FitOptions
    names: tuple[str, ...]
    weights: tuple[float, ...]
    groups: list[Records]
    records: float
    rho: float
    session: Session
    notes: list[str]

    @property
    def margins(self) -> tuple[Bounds, ...]:
        """Declared bounds of every class [kW, or per public scale]."""
        return tuple(self.options.bounds_of(name) for name in self.names)

    @property
    def log_bounds(self) -> Bounds:
        """What log loads are cut to; they hold the margins of every class."""
        low, high = self.options.widest(self.names)
        return log1(low), log1(high)


class Estimator(ABC):
    """Fits the classes of a cell within its budget."""

    whole: ClassVar = False
    """Whether it reads whole histories and the facts of their days."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Stated in the model."""

    def check(self, facts: HistoryFacts, options: FitOptions, unit: PrivacyUnit) -> None:  # noqa: B027
        """Refuse what cannot be fitted; all of it is public, and nothing is asked before."""

    @abstractmethod
    def classes(self, cell: Cell) -> Sequence[Any]:
        """The classes, from what the session answers."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Average of a class over its records, the standard deviation of its noise, and the sum itself."""

    value: FloatArray
    noise: float
    total: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def variance(self) -> float:
        """Of the noise."""
        return self.noise * self.noise


@dataclass(frozen=True, eq=False)
class Ask:
    """What is asked of one class.

    Parameters
    ----------
    query
        The same for all classes.
    of
        What each record adds to the sum; of customers, where `by_customer` is set.
    scale
        What the answer is multiplied by; a class may have its own.
    values_per_step
        As of `Records.contributions`.
    """

    query: Query
    of: Callable[[Any], FloatArray]
    scale: float = 1.0
    by_customer: bool = False
    values_per_step: int = 1

    def contributions(self, group: Records) -> Iterator[FloatArray]:
        """Of the records of a class, chunk by chunk."""
        if self.by_customer:
            return group.of_customers(self.of)
        return group.contributions(self.of, values_per_step=self.values_per_step)


Steps = Generator[Ask, Seen, Found]
"""The fit of one class: it asks, sees the answer, asks the next, and gives what it has found."""


def fit_together(fits: Sequence[Steps[Found]], groups: Sequence[Records], session: Session) -> list[Found]:
    """Fit classes side by side: each query is asked of all of them, for one charge."""
    seen: list[Any] = [None] * len(groups)
    while True:
        asks, found = [], []
        for fit, answer in zip(fits, seen, strict=True):
            try:
                asks.append(fit.send(answer))
            except StopIteration as end:
                found.append(end.value)
        if found:
            return found
        both = list(zip(asks, groups, strict=True))
        sums = session.ask(asks[0].query, [ask.contributions(group) for ask, group in both])
        noise = session.costs[-1].noise_std
        seen = [
            Seen(total / group.count * ask.scale, noise / group.count * ask.scale, total)
            for total, (ask, group) in zip(sums, both, strict=True)
        ]


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
