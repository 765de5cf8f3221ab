"""A stationary process over any number of days as a sum of moving averages of white noise.

Level j of the ladder is white noise at spacing h_j, smoothed by a cubic B-spline of that spacing: it varies
over about h_j and is forgotten after 4·h_j. The first level is white noise itself. Spacings double from one
step up to a third of a day, then are one day, two days, and so on. A process with amplitudes a_j is the sum
of a_j times independent levels, so any window of it needs the noise of that window and of a margin after it.

The spacings divide a day or are whole days, so the noise of a level is numbered by days, or by runs of days.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dp_powerflow.units import FloatArray

MARGIN = 3
"""Cells after its own that a step of a smoothed level depends on."""
LONGEST_DAYS = 16
"""Longest spacing [days]."""
_PERIODS = 3  # fewest cells of the longest spacing that a history must hold


@dataclass(frozen=True)
class Ladder:
    """Spacings of the levels.

    Parameters
    ----------
    n_steps
        T, steps per day.
    spacings
        (level,) [steps], ascending from 1.
    """

    n_steps: int
    spacings: tuple[int, ...]

    @classmethod
    def of(cls, n_steps: int, n_days: int) -> Ladder:
        """The levels that a history of so many days can tell apart."""
        spacings = [1]
        while n_steps % (2 * spacings[-1]) == 0 and n_steps // (2 * spacings[-1]) >= _PERIODS:
            spacings.append(2 * spacings[-1])
        days = 1
        while days <= LONGEST_DAYS and (days == 1 or _PERIODS * days <= n_days):
            if days * n_steps > spacings[-1]:
                spacings.append(days * n_steps)
            days *= 2
        return cls(n_steps, tuple(spacings))

    @cached_property
    def weights(self) -> tuple[FloatArray, ...]:
        """(level,) of (4, spacing): what cells 0 to 3 after a step's own weigh in it; mean variance one.

        A step at position x of cell c is Σ_j weights[j, x]·noise[c + j]. The first level has (1, 1).
        """
        return tuple(_spline(spacing) for spacing in self.spacings)

    def autocovariance(self, level: int, lags: int) -> FloatArray:
        """(lag,) of a level, up to `lags`, averaged over the positions within a cell."""
        spacing = self.spacings[level]
        taps = self.weights[level][::-1].reshape(-1)
        found = np.zeros(lags + 1)
        for lag in range(min(taps.size, lags + 1)):
            found[lag] = np.sum(taps[lag:] * taps[: taps.size - lag]) / spacing
        return found


def _spline(spacing: int) -> FloatArray:
    """Cubic B-spline at the middles of the steps of four cells (4, spacing), the last cell first."""
    if spacing == 1:
        return np.ones((1, 1))
    x = np.abs((np.arange(-2 * spacing, 2 * spacing) + 0.5) / spacing)
    inner, outer = 2 / 3 - x * x + x * x * x / 2, (2 - x) * (2 - x) * (2 - x) / 6
    taps = np.where(x < 1, inner, outer)
    taps = taps / np.sqrt(np.sum(taps * taps) / spacing)
    return np.ascontiguousarray(taps.reshape(4, spacing)[::-1])
