"""From stamps to steps of local days, through clock changes, and the readings of all customers on that grid.

A local day has the same number of steps whatever the clock does. On a 23-hour day the steps of the
skipped hour have no reading; on a 25-hour day the steps of the doubled hour have two, kept apart in
extra slots until they are averaged. So duplicated stamps are not mistaken for a clock change.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dp_powerflow._bits.elementary import kernel
from dp_powerflow.almanac.calendar import YEARS
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import zone
from dp_powerflow.loads.history import MINUTES_PER_DAY
from dp_powerflow.units import BoolArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# PRIVATE. Kernels that put readings on the grid of customers and slots, in the order of the file.
#
# A reading whose customer is −1 is not listed: it is neither put anywhere nor counted.


OUTSIDE, OFF_GRID, SKIPPED = -1, -2, -3
"""In place of a slot: not in the days asked for, not on a multiple of the step, jumped over by the clock."""
ACCEPTED, NO_VALUE, NOT_FINITE = 0, 1, 2
"""Places of a tally; after them come stamps without a slot: outside, off the grid, skipped."""
TALLIES = 6

Codes = NDArray[np.int32]
"""Indices of customers."""
Counts = NDArray[np.uint8] | NDArray[np.uint32]


def whole_seconds(micros: IntArray) -> IntArray:
    """Stamps [µs] → [s], rounded down; a fraction of a second stays off any grid of minutes."""
    seconds = micros // 1_000_000
    return np.asarray(seconds + ((seconds * 1_000_000 != micros) & (seconds % 60 == 0)))


@kernel
def _slot(instant: int, off_grid: bool, slot_of_instant: IntArray) -> int:
    if instant < 0 or instant >= slot_of_instant.size:
        return OUTSIDE
    if off_grid:
        return OFF_GRID
    slot: int = slot_of_instant[instant]
    return slot


@kernel
def slots_of_instants(
    seconds: IntArray, origin_s: int, step_s: int, shift: int, slot_of_instant: IntArray
) -> IntArray:
    """Slots of instants [s since 1970 UTC]; labels lie `shift` steps after the start of their interval."""
    out = np.empty(seconds.size, dtype=np.int64)
    for i in range(seconds.size):
        after = seconds[i] - origin_s
        out[i] = _slot(after // step_s - shift, after % step_s != 0, slot_of_instant)
    return out


@kernel
def slots_of_wall_times(
    seconds: IntArray,
    second_time: BoolArray,
    origin_and_step_s: tuple[int, int],
    shift: int,
    tables: tuple[IntArray, BoolArray, IntArray],
) -> IntArray:
    """Slots of wall-clock stamps [s, as if UTC]; the tables are a `TimeGrid`'s."""
    out = np.empty(seconds.size, dtype=np.int64)
    origin_s, step_s = origin_and_step_s
    instant_of_wall, first_skipped, slot_of_instant = tables
    for i in range(seconds.size):
        wall, off_grid = (seconds[i] - origin_s) // step_s, (seconds[i] - origin_s) % step_s != 0
        if wall < 0 or wall >= instant_of_wall.shape[0]:
            out[i] = OUTSIDE
            continue
        instant = instant_of_wall[wall, 0]
        if second_time[i] and instant_of_wall[wall, 1] >= 0:
            instant = instant_of_wall[wall, 1]
        if shift and first_skipped[wall]:
            # the clock never shows the end of the interval before a jump, but some meters write it
            instant = instant_of_wall[wall - 1, 0] + 1
        if instant < 0 and not off_grid:
            out[i] = SKIPPED
        else:
            out[i] = _slot(instant - shift, off_grid, slot_of_instant)
    return out


@kernel
def add_rows(
    own: Codes,
    slots: IntArray,
    values: FloatArray,
    start: int,
    sums: tuple[FloatArray, FloatArray],
    counts: tuple[Counts, Counts],
    tally: IntArray,
) -> int:
    """Add readings from `start` on to sums and counts (customer, slot) of regular and extra slots.

    Gives the first reading that was not added because its count is full, or the number of readings.
    """
    n_regular, most = sums[0].shape[1], np.iinfo(counts[0].dtype).max
    for i in range(start, values.size):
        if own[i] < 0:
            continue
        slot, value = slots[i], values[i]
        if slot < 0:
            tally[NOT_FINITE - slot] += 1
        if not np.isfinite(value):
            tally[NO_VALUE if np.isnan(value) else NOT_FINITE] += 1
        elif slot >= n_regular:
            if counts[1][own[i], slot - n_regular] == most:
                return i
            counts[1][own[i], slot - n_regular] += 1
            sums[1][own[i], slot - n_regular] += value
            tally[ACCEPTED] += 1
        elif slot >= 0:
            if counts[0][own[i], slot] == most:
                return i
            counts[0][own[i], slot] += 1
            sums[0][own[i], slot] += value
            tally[ACCEPTED] += 1
    return values.size


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EARLIEST_S, _LATEST_S = (
    int((dt.datetime(year, 1, 1, tzinfo=dt.UTC) - _EPOCH).total_seconds())
    for year in (YEARS[0], YEARS[-1] + 1)
)
"""Stamps of days that make sense [s since 1970]."""


@dataclass(frozen=True, eq=False)
class TimeGrid:
    """Slots of the steps of consecutive local days.

    A slot is `day · n_steps + step` for the first (or only) time the clock shows that step, and one of
    `n_regular … n_slots − 1` for the second time. Instants are counted in steps from the first local
    midnight.

    Parameters
    ----------
    days
        Consecutive local days.
    step_minutes
        Length of a step [min].
    origin_s
        First local midnight [s since 1970 UTC].
    slot_of_instant
        (instant,) slot.
    instant_of_wall
        (wall step, 2) instant at which the clock shows that wall step, the second column for a doubled
        hour; −1 where there is none. One row more than regular slots, for the end of the last day.
    first_skipped
        (wall step,) true where the clock jumps away from exactly this time; as the *end* of an interval it
        is a fair label.
    wall_origin_s
        First local midnight read as if it were UTC [s].
    """

    days: tuple[dt.date, ...]
    step_minutes: int
    origin_s: int
    slot_of_instant: IntArray
    instant_of_wall: IntArray
    first_skipped: BoolArray
    wall_origin_s: int

    @property
    def n_steps(self) -> int:
        return MINUTES_PER_DAY // self.step_minutes

    @property
    def n_regular(self) -> int:
        return len(self.days) * self.n_steps

    @property
    def n_slots(self) -> int:
        return self.n_regular + int(self.doubled.size)

    @property
    def doubled(self) -> IntArray:
        """Regular slot behind each extra slot (doubled hours of 25-hour days)."""
        return np.flatnonzero(self.instant_of_wall[: self.n_regular, 1] >= 0)

    @property
    def skipped(self) -> IntArray:
        """Regular slots that no instant reaches (skipped hours of 23-hour days)."""
        return np.flatnonzero(self.instant_of_wall[: self.n_regular, 0] < 0)

    def slots(self, seconds: IntArray, second_time: BoolArray | None, label_is_end: bool) -> IntArray:
        """Slots of stamps, or why there is none.

        Parameters
        ----------
        seconds
            (reading,) stamps: instants [s since 1970 UTC], or wall-clock times [s, as if UTC].
        second_time
            (reading,) true if this is the later of the two times that the clock shows an ambiguous stamp;
            None for instants.
        label_is_end
            True if stamps name the end of their interval.
        """
        step_s, shift = 60 * self.step_minutes, int(label_is_end)
        if second_time is None:
            return slots_of_instants(seconds, self.origin_s, step_s, shift, self.slot_of_instant)
        tables = self.instant_of_wall, self.first_skipped, self.slot_of_instant
        return slots_of_wall_times(seconds, second_time, (self.wall_origin_s, step_s), shift, tables)

    def is_ambiguous(self, seconds: IntArray) -> BoolArray:
        """True for wall-clock stamps [s, as if UTC] that the clock shows twice."""
        wall = (seconds - self.wall_origin_s) // (60 * self.step_minutes)
        twice = self.instant_of_wall[:, 1] >= 0
        inside = (wall >= 0) & (wall < twice.size)
        return np.asarray(inside & twice[np.where(inside, wall, 0)])


def build_time_grid(time_zone: str, first_day: dt.date, last_day: dt.date, step_minutes: int) -> TimeGrid:
    """The slots of all local days from `first_day` to `last_day`, both included."""
    if last_day < first_day:
        raise LoadDataError(
            f"the last day {last_day} is before the first day {first_day}; swap them", code="meters-days"
        )
    if not {first_day.year, last_day.year} <= set(YEARS):
        raise LoadDataError("the first or last day lies before 1900 or after 2199; correct it")
    tz = zone(time_zone)
    step_s = 60 * step_minutes
    days = tuple(first_day + dt.timedelta(days=i) for i in range((last_day - first_day).days + 1))
    origin_s = _seconds(dt.datetime.combine(first_day, dt.time(), tz))
    end_s = _seconds(dt.datetime.combine(last_day + dt.timedelta(days=1), dt.time(), tz))
    wall_origin_s = _seconds(dt.datetime.combine(first_day, dt.time(), dt.UTC))
    n_wall = len(days) * (MINUTES_PER_DAY // step_minutes)
    # one instant more than there are, for the label at the end of the last interval
    instants_s = origin_s + step_s * np.arange((end_s - origin_s) // step_s + 1)
    wall, rest = np.divmod(instants_s + _offsets_s(instants_s, tz) - wall_origin_s, step_s)
    if np.any(rest != 0):
        raise LoadDataError(
            f"the clock changes of '{time_zone}' are not a multiple of {step_minutes} min; "
            "use a shorter step or a zone without clock changes such as 'UTC'",
            code="time-zone",
        )
    instant_of_wall = np.full((n_wall + 1, 2), -1, dtype=np.int64)
    # a change at midnight can put an instant a little before the first or after the last day
    inside = np.flatnonzero((wall >= 0) & (wall <= n_wall))
    instant_of_wall[wall[inside][::-1], 0] = inside[::-1]
    later = inside[instant_of_wall[wall[inside], 0] != inside]
    instant_of_wall[wall[later], 1] = later
    slot_of_instant = _slots_of_instants(wall[:-1], instant_of_wall)
    absent = instant_of_wall[:, 0] < 0
    first_skipped = absent & ~np.concatenate([[True], absent[:-1]])
    return TimeGrid(
        days, step_minutes, origin_s, slot_of_instant, instant_of_wall, first_skipped, wall_origin_s
    )


def _slots_of_instants(wall: IntArray, instant_of_wall: IntArray) -> IntArray:
    """(instant,) slot of each instant, whose wall step is given; an extra one for its second time."""
    n_regular = len(instant_of_wall) - 1
    slot_of_instant = np.where((wall >= 0) & (wall < n_regular), wall, OUTSIDE).astype(np.int64)
    doubled = np.flatnonzero(instant_of_wall[:n_regular, 1] >= 0)
    slot_of_instant[instant_of_wall[doubled, 1]] = n_regular + np.arange(doubled.size)
    return slot_of_instant


def whole_days(
    time_zone: str, first_s: int, last_s: int, step_minutes: int, *, wall: bool, label_is_end: bool
) -> tuple[dt.date, dt.date]:
    """First and last local day that lie wholly within the readings.

    Parameters
    ----------
    first_s, last_s
        Earliest and latest stamp [s since 1970 UTC, or wall clock as if UTC where `wall`].
    """
    shift = 60 * step_minutes
    begin_s, end_s = (first_s - shift, last_s) if label_is_end else (first_s, last_s + shift)
    if not (begin_s >= _EARLIEST_S and end_s <= _LATEST_S):
        raise LoadDataError("some stamps lie before 1900 or after 2199; correct them")
    tz = zone(time_zone)
    begin, end = (
        moment.replace(tzinfo=tz) if wall else moment.astimezone(tz)
        for moment in (_EPOCH + dt.timedelta(seconds=s) for s in (begin_s, end_s))
    )
    # compare instants, not clock times: a clock change can skip midnight
    first, last = begin.date(), end.date() - dt.timedelta(days=1)
    if _seconds(begin) > _seconds(dt.datetime.combine(first, dt.time(), tz)):
        first += dt.timedelta(days=1)
    if last < first:
        raise LoadDataError(
            "the file does not cover one whole local day; check the time zone and the stamps",
            code="time-zone",
        )
    return first, last


def _offsets_s(instants_s: IntArray, tz: dt.tzinfo) -> IntArray:
    """Offset from UTC at each instant [s]."""
    offsets = (dt.datetime.fromtimestamp(s, tz).utcoffset() for s in instants_s.tolist())
    return np.array([0 if offset is None else int(offset.total_seconds()) for offset in offsets])


def _seconds(moment: dt.datetime) -> int:
    return int((moment - _EPOCH).total_seconds())


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

    accepted: int = 0
    no_value: int = 0
    not_finite: int = 0
    duplicated: int = 0
    outside_days: int = 0
    off_grid: int = 0
    skipped_hour: int = 0
    doubled_hour: int = 0


class ReadingGrid:
    """PRIVATE. Accumulates readings of one quantity; `finish` averages them.

    Readings are added batch by batch, so a file is never held whole: the memory is the result and a
    byte per step for how many readings it has (four, if a step has more than 255).

    Parameters
    ----------
    grid
        Slots of the days.
    n_customers
        Customers of the first axis.
    """

    def __init__(self, grid: TimeGrid, n_customers: int) -> None:
        self.grid = grid
        shapes = [(n_customers, grid.n_regular), (n_customers, grid.n_slots - grid.n_regular)]
        self._sums = (np.zeros(shapes[0]), np.zeros(shapes[1]))
        regular, extra = (np.zeros(shape, dtype=np.uint8) for shape in shapes)
        self._counts: tuple[Counts, Counts] = regular, extra
        self._tally = np.zeros(TALLIES, dtype=np.int64)

    def add(self, customers: Codes, slots: IntArray, values: FloatArray) -> None:
        """Add readings.

        Parameters
        ----------
        customers
            (reading,) index of the customer, −1 for a reading that does not count.
        slots
            (reading,) slot, or why there is none.
        values
            (reading,) any unit, NaN where there is no value.
        """
        start = 0
        while True:
            start = add_rows(customers, slots, values, start, self._sums, self._counts, self._tally)
            if start == values.size:
                return
            regular, extra = self._counts
            self._counts = regular.astype(np.uint32), extra.astype(np.uint32)

    def finish(self) -> tuple[FloatArray, ReadingCounts]:
        """(customer, day, step) mean reading, NaN where there is none, and the counts."""
        (means, second), doubled = self._sums, self.grid.doubled
        both = self._counts[0][:, doubled].astype(bool) & self._counts[1].astype(bool)
        duplicated = 0
        for sums, counts in zip(self._sums, self._counts, strict=True):
            for own, times in zip(sums, counts, strict=True):
                duplicated += int(times.sum()) - int(np.count_nonzero(times))
                with np.errstate(invalid="ignore"):  # without a reading it is 0/0, which is NaN
                    np.divide(own, times, out=own)
        first = means[:, doubled]
        either = np.where(np.isnan(first), second, first)
        means[:, doubled] = np.where(both, (first + second) / 2, either)
        accepted, no_value, not_finite, outside, off_grid, skipped = self._tally.tolist()
        read, clock = (accepted, no_value, not_finite, duplicated), (skipped, int(both.sum()))
        tally = ReadingCounts(*read, outside, off_grid, *clock)
        return means.reshape(len(means), len(self.grid.days), -1), tally
