"""Many independent copies of a process of the ladder, day by day.

The noise of a day is a function of (key, purpose, day), that of levels of a day or more of (key, purpose, run
of days): the copies have the same values whichever days are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.elementary import kernel
from dp_powerflow._bits.short_normal import short_normal
from dp_powerflow.model.history.ladder import MARGIN, Ladder
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

_TAPS = MARGIN + 1


class DayNoise(NamedTuple):
    """All that the copies of one day are sums of.

    Attributes
    ----------
    white : (step, copy), of the first level.
    within : (cell, copy), of levels between a step and a day, each with the `MARGIN` cells after the day.
    slow : (4 per level, copy), of levels of a day or more.
    white_weight : amplitude of the first level.
    spacings, first_cell, weights : (level,), (level,), (level, 4, step) of `within`.
    slow_weights : (4 per level, step) of `slow`, on this day.
    """

    white: FloatArray
    within: FloatArray
    slow: FloatArray
    white_weight: float
    spacings: IntArray
    first_cell: IntArray
    weights: FloatArray
    slow_weights: FloatArray


@dataclass(frozen=True, eq=False)
class Process:
    """Independent copies of one process.

    Parameters
    ----------
    ladder, amplitudes
        Of the process.
    copies
        How many; the values depend on it.
    key, purpose
        Of the streams.
    """

    ladder: Ladder
    amplitudes: FloatArray
    copies: int
    key: StreamKey
    purpose: str

    def courses(self, first: int, days: int) -> FloatArray:
        """(copy, day, step) of some consecutive days."""
        out = np.empty((days, self.ladder.n_steps, self.copies))
        for day, noise in zip(out, self.days(first, days), strict=True):
            add_levels(noise, day)
        return np.ascontiguousarray(out.transpose(2, 0, 1))

    def days(self, first: int, days: int) -> Iterator[DayNoise]:
        """The noise of some consecutive days; each is gone when the next is asked for."""
        steps, levels = self.ladder.n_steps, self._within
        now, following = (np.empty((int(self._cells.sum()), self.copies)) for _ in range(2))
        white, white_next = (np.empty((steps, self.copies)) for _ in range(2))
        slow, first_rows = self._slow_noise(first, days)
        self._fill_day(first, now, white)
        for day in range(first, first + days):
            self._fill_day(day + 1, following, white_next if day + 1 < first + days else None)
            for start, cells in zip(self._first_cell, self._cells, strict=True):
                now[start + cells - MARGIN : start + cells] = following[start : start + MARGIN]
            rows, weights = self._slow_of(day, first_rows)
            yield DayNoise(
                white, now, slow[rows], float(self.amplitudes[0]),
                np.array([self.ladder.spacings[level] for level in levels], dtype=np.int64),
                self._first_cell, self._weights, weights,
            )  # fmt: skip
            now, following, white, white_next = following, now, white_next, white

    @cached_property
    def _within(self) -> tuple[int, ...]:
        """Levels between a step and a day."""
        return tuple(k for k, each in enumerate(self.ladder.spacings) if 1 < each < self.ladder.n_steps)

    @cached_property
    def _slow(self) -> tuple[int, ...]:
        """Levels of a day or more."""
        return tuple(range(1 + len(self._within), len(self.ladder.spacings)))

    @cached_property
    def _cells(self) -> IntArray:
        """(level within a day,) cells of a day and of the margin."""
        cells = [self.ladder.n_steps // self.ladder.spacings[level] + MARGIN for level in self._within]
        return np.array(cells, dtype=np.int64)

    @cached_property
    def _first_cell(self) -> IntArray:
        return np.asarray(np.cumsum(self._cells) - self._cells, dtype=np.int64)

    @cached_property
    def _weights(self) -> FloatArray:
        """(level within a day, 4, step) with the amplitudes; those of a cell, then zeros."""
        weights = np.zeros((len(self._within), _TAPS, self.ladder.n_steps))
        for row, level in zip(weights, self._within, strict=True):
            row[:, : self.ladder.spacings[level]] = self.amplitudes[level] * self.ladder.weights[level]
        return weights

    @cached_property
    def _slow_days(self) -> IntArray:
        """(level of a day or more,) its spacing [days]."""
        return np.array(
            [self.ladder.spacings[level] // self.ladder.n_steps for level in self._slow], dtype=np.int64
        )

    def _fill_day(self, day: int, within: FloatArray, white: FloatArray | None) -> None:
        """Draw the noise of one day, the margins left out; that of the first level comes last."""
        generator = self.key.stream(self.purpose, day).generator
        for start, cells in zip(self._first_cell, self._cells, strict=True):
            short_normal(generator, within[start : start + cells - MARGIN])
        if white is not None:
            short_normal(generator, white)

    def _slow_noise(self, first: int, days: int) -> tuple[FloatArray, IntArray]:
        """(cell, copy) of the runs of days that some days need; (level,) row that cell 0 would have."""
        spacing = self._slow_days
        if not spacing.size:
            return np.empty((0, self.copies)), spacing
        run = int(np.lcm.reduce(spacing))
        per_run = run // spacing
        last = int(np.max(((first + days - 1) // spacing + MARGIN) * spacing)) // run
        runs = range(first // run, last + 1)
        first_rows = np.cumsum(per_run * len(runs)) - per_run * len(runs)
        noise = np.empty((int(np.sum(per_run)) * len(runs), self.copies))
        for number, index in enumerate(runs):
            generator = self.key.stream(f"slow/{self.purpose}", index).generator
            for start, cells in zip(first_rows + number * per_run, per_run, strict=True):
                short_normal(generator, noise[start : start + cells])
        return noise, np.asarray(first_rows - runs[0] * per_run, dtype=np.int64)

    def _slow_of(self, day: int, first_rows: IntArray) -> tuple[IntArray, FloatArray]:
        """Rows of the slow noise that a day is a sum of, and what they weigh (row, step)."""
        steps, spacing = self.ladder.n_steps, self._slow_days
        rows = (first_rows + day // spacing)[:, None] + np.arange(_TAPS)
        weights = np.empty((len(spacing), _TAPS, steps))
        for row, level, phase in zip(weights, self._slow, day % spacing, strict=True):
            own = self.ladder.weights[level][:, phase * steps : (phase + 1) * steps]
            row[:] = self.amplitudes[level] * own
        return rows.reshape(-1), weights.reshape(-1, steps)


@kernel
def add_levels(noise: DayNoise, out: FloatArray) -> None:
    """All copies of one day into `out` (step, copy)."""
    for t in range(out.shape[0]):
        row, white = out[t], noise.white[t]
        for i in range(row.size):
            row[i] = noise.white_weight * white[i]
        for level in range(noise.spacings.size):
            cell = noise.first_cell[level] + t // noise.spacings[level]
            _add_four(noise.within, cell, noise.weights[level, :, t % noise.spacings[level]], row)
        for first in range(0, noise.slow.shape[0], _TAPS):
            _add_four(noise.slow, first, noise.slow_weights[first : first + _TAPS, t], row)


@kernel
def _add_four(cells: FloatArray, first: int, weights: FloatArray, row: FloatArray) -> None:
    """Add what four cells after one another weigh."""
    a, b, c, d = weights[0], weights[1], weights[2], weights[3]
    one, two, three, four = cells[first], cells[first + 1], cells[first + 2], cells[first + 3]
    for i in range(row.size):
        row[i] += (a * one[i] + b * two[i]) + (c * three[i] + d * four[i])
