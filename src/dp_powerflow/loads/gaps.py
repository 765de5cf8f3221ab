"""How gaps within one customer are filled, and how many entries each part of the rule filled.

No other customer's readings are ever used: replacing a customer must change one record, its own.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import astuple, dataclass, field

import numpy as np

from dp_powerflow.loads.declared import GapRule
from dp_powerflow.loads.history import MINUTES_PER_DAY, SATURDAY
from dp_powerflow.units import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class GapCounts:
    """Readings filled, by part of the rule; `clock_change` counts the skipped hours of 23-hour days."""

    linear_short: int = 0
    similar_day: int = 0
    linear_long: int = 0
    clock_change: int = 0
    across_days: int = field(default=0, compare=False)

    def __add__(self, other: GapCounts) -> GapCounts:
        return GapCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def fill_gaps(values: FloatArray, days: tuple[dt.date, ...], skipped: IntArray, rule: GapRule) -> GapCounts:
    """Fill the NaN entries of one customer in place.

    Parameters
    ----------
    values
        (day, step) consecutive days, at least one entry that is not NaN.
    days
        The days.
    skipped
        Flat positions that the clock jumped over; filled like any gap, counted apart.
    rule
        The rule.

    Returns
    -------
    GapCounts
        How many entries each part of the rule filled.
    """
    flat = values.reshape(-1)
    missing = np.isnan(flat)
    if not missing.any():
        return GapCounts()
    by_clock = np.zeros(flat.size, dtype=bool)
    by_clock[skipped] = missing[skipped]
    short = _short_gaps(missing, rule.short_gap_minutes * values.shape[1] // MINUTES_PER_DAY)
    present = np.flatnonzero(~missing)
    readings = flat[present]
    todo = np.flatnonzero(short)
    flat[todo] = np.interp(todo, present, readings)
    long = missing & ~short
    if long.any():
        _fill_from_similar_days(values, ~missing.reshape(values.shape), days, rule.similar_day_limit)
    rest = np.isnan(flat)
    todo = np.flatnonzero(rest)
    flat[todo] = np.interp(todo, present, readings)
    counted = ~by_clock
    return GapCounts(
        linear_short=int(np.count_nonzero(short & counted)),
        similar_day=int(np.count_nonzero(long & ~rest & counted)),
        linear_long=int(np.count_nonzero(rest & counted)),
        clock_change=int(np.count_nonzero(by_clock)),
        across_days=int(np.count_nonzero(missing & ~_within_a_day(short, values.shape[1]))),
    )


def _short_gaps(missing: BoolArray, longest: int) -> BoolArray:
    """Entries of gaps of at most `longest` steps with a reading on both sides."""
    short = np.zeros(missing.size, dtype=bool)
    for start, end in _runs(missing):
        if end - start <= longest and start > 0 and end < missing.size:
            short[start:end] = True
    return short


def _within_a_day(short: BoolArray, steps: int) -> BoolArray:
    """Entries of short gaps whose neighbours on both sides are readings of the same day."""
    within = np.zeros(short.size, dtype=bool)
    for start, end in _runs(short):
        within[start:end] = (start - 1) // steps == end // steps
    return within


def _runs(flags: BoolArray) -> IntArray:
    """(run, 2) first position of each run of true entries, and the position after its last."""
    padded = np.concatenate([[False], flags, [False]]).astype(np.int8)
    return np.flatnonzero(np.diff(padded)).reshape(-1, 2)


def _fill_from_similar_days(
    values: FloatArray, read: BoolArray, days: tuple[dt.date, ...], limit: int
) -> None:
    """Fill NaN entries from readings (never from filled entries) of similar days, in place."""
    weekend = np.array([day.weekday() >= SATURDAY for day in days])
    for kind in (weekend, ~weekend):
        position = np.flatnonzero(kind)  # days are consecutive, so positions measure distance in days
        if position.size == 0:
            continue
        block, have = values[position], read[position]
        rows = np.arange(position.size)[:, None]
        before = np.maximum.accumulate(np.where(have, rows, -1), axis=0)
        after = np.minimum.accumulate(np.where(have, rows, position.size)[::-1], axis=0)[::-1]
        day, step = np.nonzero(np.isnan(block))
        total, found = np.zeros(day.size), np.zeros(day.size)
        for nearest in (before[day, step], after[day, step]):
            inside = (nearest >= 0) & (nearest < position.size)
            donor = np.where(inside, nearest, 0)
            near = inside & (np.abs(position[donor] - position[day]) <= limit)
            total += np.where(near, block[donor, step], 0.0)
            found += near
        filled = found > 0
        block[day[filled], step[filled]] = total[filled] / found[filled]
        values[position] = block
