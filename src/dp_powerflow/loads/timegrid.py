"""From stamps to steps of local days, through clock changes, and the readings of all customers on that grid.

A local day has the same number of steps whatever the clock does. On a 23-hour day the steps of the
skipped hour have no reading; on a 25-hour day the steps of the doubled hour have two, kept apart in
extra slots until they are averaged. So duplicated stamps are not mistaken for a clock change.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import zone
from dp_powerflow.loads.history import MINUTES_PER_DAY
from dp_powerflow.units import BoolArray, FloatArray, IntArray

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Misplaced(IntEnum):
    """Why a stamp has no slot; also the (negative) slot it gets."""

    OUTSIDE = -1  # not in the days asked for
    OFF_GRID = -2  # not on a multiple of the step
    SKIPPED = -3  # a wall-clock time that the clock jumped over


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

    def slots_of_instants(self, seconds: IntArray, label_is_end: bool) -> IntArray:
        """Slots of instants [s since 1970 UTC], or a `Misplaced` code.

        Parameters
        ----------
        seconds
            (reading,) stamps.
        label_is_end
            True if stamps name the end of their interval.
        """
        instant, rest = np.divmod(seconds - self.origin_s, 60 * self.step_minutes)
        return self._slots(instant - int(label_is_end), rest != 0)

    def slots_of_wall_times(self, seconds: IntArray, second_time: BoolArray, label_is_end: bool) -> IntArray:
        """Slots of wall-clock stamps [s, as if UTC], or a `Misplaced` code.

        Parameters
        ----------
        seconds
            (reading,) stamps.
        second_time
            (reading,) true if this is the later of the two times the clock shows an ambiguous stamp.
        label_is_end
            True if stamps name the end of their interval.
        """
        wall, rest = np.divmod(seconds - self.wall_origin_s, 60 * self.step_minutes)
        inside = (wall >= 0) & (wall < len(self.instant_of_wall))
        known = np.where(inside, wall, 0)
        first, second = self.instant_of_wall[known].T
        instant = np.where(second_time & (second >= 0), second, first)
        if label_is_end:
            # the clock never shows the end of the interval before a jump, but some meters write it
            before_jump = self.first_skipped[known]
            instant[before_jump] = self.instant_of_wall[known[before_jump] - 1, 0] + 1
        skipped = inside & (instant < 0)
        slots = self._slots(np.where(inside, instant - int(label_is_end), -1), rest != 0)
        slots[skipped & (rest == 0)] = Misplaced.SKIPPED
        return slots

    def is_ambiguous(self, seconds: IntArray) -> BoolArray:
        """True for wall-clock stamps [s, as if UTC] that the clock shows twice."""
        wall = (seconds - self.wall_origin_s) // (60 * self.step_minutes)
        inside = (wall >= 0) & (wall < len(self.instant_of_wall))
        ambiguous: BoolArray = inside & (self.instant_of_wall[np.where(inside, wall, 0), 1] >= 0)
        return ambiguous

    def _slots(self, instant: IntArray, off_grid: BoolArray) -> IntArray:
        outside = (instant < 0) | (instant >= len(self.slot_of_instant))
        slots = self.slot_of_instant[np.where(outside, 0, instant)]
        slots[outside] = Misplaced.OUTSIDE
        slots[off_grid & ~outside] = Misplaced.OFF_GRID
        return slots


def build_time_grid(time_zone: str, first_day: dt.date, last_day: dt.date, step_minutes: int) -> TimeGrid:
    """The slots of all local days from `first_day` to `last_day`, both included."""
    if last_day < first_day:
        raise LoadDataError(f"the last day {last_day} is before the first day {first_day}; swap them")
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
            "use a shorter step or a zone without clock changes such as 'UTC'"
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
    slot_of_instant = np.where((wall >= 0) & (wall < n_regular), wall, Misplaced.OUTSIDE).astype(np.int64)
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
        raise LoadDataError("the file does not cover one whole local day; check the time zone and the stamps")
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


@dataclass(eq=False)
class ReadingGrid:
    """Accumulates readings of one quantity; `finish` averages them.

    Readings are added batch by batch, so a file is never held whole: the memory is that of the result.
    """

    grid: TimeGrid
    n_customers: int
    _sums: FloatArray = field(init=False, repr=False)
    _counts: NDArray[np.uint32] = field(init=False, repr=False)
    _tally: Counter[str] = field(init=False, repr=False, default_factory=Counter)

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
        missing, infinite = np.isnan(values), np.isinf(values)
        good = (slots >= 0) & ~missing & ~infinite
        found = {
            "accepted": good,
            "no_value": missing,
            "not_finite": infinite,
            "outside_days": slots == Misplaced.OUTSIDE,
            "off_grid": slots == Misplaced.OFF_GRID,
            "skipped_hour": slots == Misplaced.SKIPPED,
        }
        self._tally.update({name: int(np.count_nonzero(flags)) for name, flags in found.items()})
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
        tally = ReadingCounts(**self._tally, duplicated=duplicated, doubled_hour=int(both.sum()))
        return values.reshape(self.n_customers, len(self.grid.days), -1), tally


def _mean_of_present(first: FloatArray, second: FloatArray) -> FloatArray:
    """Mean of two readings, or the one that is there, or NaN."""
    mean: FloatArray = np.where(
        np.isnan(first), second, np.where(np.isnan(second), first, (first + second) / 2)
    )
    return mean
