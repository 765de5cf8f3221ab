"""Readings of all customers on a time grid, before any check: sums and counts per slot."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dp_powerflow.loads.timegrid import Misplaced, TimeGrid
from dp_powerflow.units import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class ReadingCounts:
    """How many readings of one quantity went where. Counts, never values.

    Parameters
    ----------
    accepted
        Readings with a slot and a finite value, duplicates included.
    no_value
        Rows or cells without a value.
    not_finite
        Values that are infinite.
    duplicated
        Readings beyond the first of the same customer and interval; they are averaged.
    outside_days
        Readings before the first or after the last day.
    off_grid
        Readings whose stamp is not a multiple of the step; they are left out.
    skipped_hour
        Readings stamped in an hour that the clock jumped over; they are left out.
    doubled_hour
        Steps of 25-hour days with a reading in both of the doubled hours; they are averaged.
    """

    accepted: int
    no_value: int
    not_finite: int
    duplicated: int
    outside_days: int
    off_grid: int
    skipped_hour: int
    doubled_hour: int


@dataclass(eq=False)
class ReadingGrid:
    """Accumulates readings of one quantity; `finish` averages them.

    Readings are added batch by batch, so a file is never held whole: the memory is that of the result.
    """

    grid: TimeGrid
    n_customers: int
    _sums: FloatArray = field(init=False, repr=False)
    _counts: NDArray[np.uint32] = field(init=False, repr=False)
    _tally: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._sums = np.zeros(self.n_customers * self.grid.n_slots)
        self._counts = np.zeros(self._sums.size, dtype=np.uint32)

    def add(self, customers: IntArray, slots: IntArray, values: FloatArray) -> None:
        """Add readings.

        Parameters
        ----------
        customers
            (reading,) index of the customer.
        slots
            (reading,) slot or `Misplaced` code.
        values
            (reading,) any unit, NaN where there is no value.
        """
        self._count("outside_days", slots == Misplaced.OUTSIDE)
        self._count("off_grid", slots == Misplaced.OFF_GRID)
        self._count("skipped_hour", slots == Misplaced.SKIPPED)
        missing, infinite = np.isnan(values), np.isinf(values)
        self._count("no_value", missing)
        self._count("not_finite", infinite)
        good = (slots >= 0) & ~missing & ~infinite
        self._count("accepted", good)
        flat = customers * self.grid.n_slots + slots
        if not good.all():
            flat, values = flat[good], values[good]
        np.add.at(self._sums, flat, values)
        np.add.at(self._counts, flat, np.uint32(1))

    def finish(self) -> tuple[FloatArray, ReadingCounts]:
        """(customer, day, step) mean reading, NaN where there is none, and the counts."""
        shape = (self.n_customers, self.grid.n_slots)
        sums, counts = self._sums.reshape(shape), self._counts.reshape(shape)
        duplicated = int(self._counts.sum(dtype=np.int64)) - int(np.count_nonzero(self._counts))
        with np.errstate(invalid="ignore"):  # 0/0 is NaN on purpose: no reading
            np.divide(sums, counts, out=sums)
        n, doubled = self.grid.n_regular, self.grid.doubled
        both = counts[:, doubled].astype(bool) & counts[:, n:].astype(bool)
        sums[:, doubled] = _mean_of_present(sums[:, doubled], sums[:, n:])
        values = np.ascontiguousarray(sums[:, :n])
        tally = {name: self._tally.get(name, 0) for name in ReadingCounts.__dataclass_fields__}
        tally |= {"duplicated": duplicated, "doubled_hour": int(both.sum())}
        return values.reshape(self.n_customers, len(self.grid.days), -1), ReadingCounts(**tally)

    def _count(self, name: str, flags: BoolArray) -> None:
        self._tally[name] = self._tally.get(name, 0) + int(np.count_nonzero(flags))


def _mean_of_present(first: FloatArray, second: FloatArray) -> FloatArray:
    """Mean of two readings, or the one that is there, or NaN."""
    mean: FloatArray = np.where(
        np.isnan(first), second, np.where(np.isnan(second), first, (first + second) / 2)
    )
    return mean
