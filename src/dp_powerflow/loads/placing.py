"""PRIVATE. Kernels that put readings on the grid of customers and slots, in the order of the file.

A reading whose customer is −1 is somebody else's: it is neither put anywhere nor counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dp_powerflow._bits.elementary import kernel
from dp_powerflow.units import BoolArray, FloatArray, IntArray

OUTSIDE, OFF_GRID, SKIPPED = -1, -2, -3
ACCEPTED, NO_VALUE, NOT_FINITE = 0, 1, 2
"""Places of a tally; after them come those of stamps without a slot: outside, off the grid, skipped."""
TALLIES = 6
_EXACT = 1 << 50  # seconds that a product tells apart

Codes = NDArray[np.int32]
"""Indices of customers."""
Counts = NDArray[np.uint8] | NDArray[np.uint32]


@kernel
def whole_seconds(micros: IntArray, out: IntArray) -> None:
    """Stamps [µs] → [s], rounded down; a fraction of a second stays off any grid of minutes."""
    for i in range(micros.size):
        second = micros[i] // 1_000_000
        if second * 1_000_000 != micros[i] and second % 60 == 0:
            second += 1
        out[i] = second


@kernel
def _steps_and_rest(seconds: int, step_s: int, per_step: float) -> tuple[int, int]:
    """Whole steps in a time, rounded down, and what is left; a product is faster than a division."""
    if abs(seconds) > _EXACT:
        return seconds // step_s, seconds % step_s
    steps = int(np.floor(seconds * per_step))
    rest = seconds - steps * step_s
    if rest < 0:
        return steps - 1, rest + step_s
    if rest >= step_s:
        return steps + 1, rest - step_s
    return steps, rest


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
    seconds: IntArray, origin_s: int, step_s: int, shift: int, slot_of_instant: IntArray, out: IntArray
) -> None:
    """Slots of instants [s since 1970 UTC]; labels lie `shift` steps after the start of their interval."""
    for i in range(seconds.size):
        instant, rest = _steps_and_rest(seconds[i] - origin_s, step_s, 1.0 / step_s)
        out[i] = _slot(instant - shift, rest != 0, slot_of_instant)


@kernel
def slots_of_wall_times(
    seconds: IntArray,
    second_time: BoolArray,
    origin_and_step_s: tuple[int, int],
    shift: int,
    tables: tuple[IntArray, BoolArray, IntArray],
    out: IntArray,
) -> None:
    """Slots of wall-clock stamps [s, as if UTC]; the tables are those of a `TimeGrid`."""
    origin_s, step_s = origin_and_step_s
    instant_of_wall, first_skipped, slot_of_instant = tables
    for i in range(seconds.size):
        wall, rest = _steps_and_rest(seconds[i] - origin_s, step_s, 1.0 / step_s)
        off_grid = rest != 0
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


@kernel
def are_shown_twice(
    seconds: IntArray, origin_s: int, step_s: int, instant_of_wall: IntArray, out: BoolArray
) -> None:
    """Whether the clock shows stamps [s, as if UTC] twice."""
    for i in range(seconds.size):
        wall, _ = _steps_and_rest(seconds[i] - origin_s, step_s, 1.0 / step_s)
        out[i] = 0 <= wall < instant_of_wall.shape[0] and instant_of_wall[wall, 1] >= 0


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


@kernel
def to_means(sums: FloatArray, counts: Counts, found: IntArray) -> None:
    """Sums (customer, slot) → means, in place, NaN where there is none; counts readings and slots read."""
    for i in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            found[0] += counts[i, k]
            found[1] += counts[i, k] > 0
            sums[i, k] = sums[i, k] / counts[i, k] if counts[i, k] else np.nan
