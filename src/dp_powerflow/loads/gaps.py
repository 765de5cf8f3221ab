"""Filling gaps within one customer, by a stated rule.

1. A gap of at most `short_gap_minutes` with a reading on both sides: linear in time.
2. A longer one, step by step: the mean of the same step on the nearest earlier and the nearest later day
   of the same kind (working day or weekend) within `similar_day_limit` days, or the one of them there is.
3. What is left: linear in time between the nearest readings, constant beyond the first and last.

No other customer's readings are ever used: replacing a customer must change one record, its own.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.history import MINUTES_PER_DAY
from dp_powerflow.units import BoolArray, FloatArray, IntArray

SATURDAY = 5


@dataclass(frozen=True)
class GapRule:
    """Declared, PUBLIC.

    Parameters
    ----------
    short_gap_minutes
        Longest gap filled linearly in the first place [min].
    similar_day_limit
        How far away a similar day may be [days].
    max_missing_share
        A customer with a larger share of missing readings is rejected, and its load point with it.
    """

    short_gap_minutes: int = 60
    similar_day_limit: int = 28
    max_missing_share: float = 0.1

    def __post_init__(self) -> None:
        if self.short_gap_minutes < 0 or self.similar_day_limit < 0:
            raise LoadDataError("the limits of the gap rule must not be negative; correct them")
        if not 0.0 <= self.max_missing_share < 1.0:
            raise LoadDataError("max_missing_share must be at least 0 and below 1; correct it")


@dataclass(frozen=True)
class GapCounts:
    """Readings filled, by part of the rule; `clock_change` counts the skipped hours of 23-hour days."""

    linear_short: int = 0
    similar_day: int = 0
    linear_long: int = 0
    clock_change: int = 0
    across_days: int = field(default=0, compare=False)

    def __add__(self, other: GapCounts) -> GapCounts:
        return GapCounts(
            self.linear_short + other.linear_short,
            self.similar_day + other.similar_day,
            self.linear_long + other.linear_long,
            self.clock_change + other.clock_change,
            self.across_days + other.across_days,
        )


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
    edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(np.int8)))
    short = np.zeros(missing.size, dtype=bool)
    for start, end in edges.reshape(-1, 2):
        if end - start <= longest and start > 0 and end < missing.size:
            short[start:end] = True
    return short


def _within_a_day(short: BoolArray, steps: int) -> BoolArray:
    """Entries of short gaps whose neighbours on both sides are readings of the same day."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], short, [False]]).astype(np.int8)))
    within = np.zeros(short.size, dtype=bool)
    for start, end in edges.reshape(-1, 2):
        within[start:end] = (start - 1) // steps == end // steps
    return within


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
