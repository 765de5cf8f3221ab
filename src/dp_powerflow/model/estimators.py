"""PRIVATE. The records of a fit, read some at a time: a history is never held a second time.

Log loads are made where they are read and forgotten afterwards. What was found of some customers is
kept, because it is small: many queries ask about the same figures of a customer.

What an estimator is given and returns, and how classes are fitted side by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from dp_powerflow._bits.elementary import kernel, log1
from dp_powerflow._threads import in_order
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
_FEWEST_DAYS = 16  # that a record is taken to have: a second moment of one day has many numbers too


@dataclass(frozen=True, eq=False, repr=False)
class LogLoads:
    """PRIVATE. Records of a history: log loads of some load points, as arrays when they are asked for.

    Parameters
    ----------
    load_kw
        (record, day, step) [kW] of the whole history; a record may be one day.
    rows
        The chosen records.
    scale_kw
        (record,) of the whole history, that loads are divided by; ones for none.
    bounds
        What loads are cut to [kW, or per scale].
    """

    load_kw: FloatArray
    rows: IntArray
    scale_kw: FloatArray
    bounds: Bounds

    @property
    def shape(self) -> tuple[int, int, int]:
        """(record, day, step)."""
        _, days, steps = self.load_kw.shape
        return self.rows.size, days, steps

    def __getitem__(self, key: slice | IntArray | BoolArray) -> FloatArray:
        rows = self.rows[key]
        out = np.empty((rows.size, *self.shape[1:]))
        _logs(self.load_kw, rows, self.scale_kw, self.bounds, out)
        return out


@kernel
def _logs(load: FloatArray, rows: IntArray, scale: FloatArray, bounds: Bounds, out: FloatArray) -> None:
    for i in range(rows.size):
        for k in range(out.shape[1]):
            source, target = load[rows[i], k], out[i, k]
            for t in range(target.size):
                target[t] = min(max(source[t] / scale[rows[i]], bounds[0]), bounds[1])
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

    def contributions(self, of: Contribution) -> Iterator[FloatArray]:
        """Contributions (record, dimension), chunk by chunk, made on all cores."""
        yield from in_order(lambda part: of(self.log_load[part]), self._parts)

    def of_customers(self, of: Callable[[CustomerChunk], FloatArray]) -> Iterator[FloatArray]:
        """The same of a function of customers, whose figures are found once for all queries."""
        yield from in_order(of, self._customers)

    @property
    def _parts(self) -> list[slice]:
        n_records, n_days, n_steps = self.log_load.shape
        size = max(1, _CHUNK_VALUES // (n_steps * max(n_days, _FEWEST_DAYS)))
        return [slice(start, start + size) for start in range(0, n_records, size)]

    @cached_property
    def _customers(self) -> list[CustomerChunk]:
        return [CustomerChunk(lambda part=part: self.log_load[part]) for part in self._parts]  # type: ignore[misc]

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
    """

    query: Query
    of: Callable[[Any], FloatArray]
    scale: float = 1.0
    by_customer: bool = False

    def contributions(self, group: Records) -> Iterator[FloatArray]:
        """Of the records of a class, chunk by chunk."""
        return group.of_customers(self.of) if self.by_customer else group.contributions(self.of)


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
