"""PRIVATE. The records of a fit, looked at some at a time: a history is never held a second time.

Log loads are made where they are looked at and forgotten afterwards. What was found of some customers is
kept, because it is small: many queries ask about the same figures of a customer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from dp_powerflow._bits.elementary import kernel, log1
from dp_powerflow._threads import in_order
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
