"""A stationary process over any number of days as a sum of moving averages of white noise.

Level j of the ladder is white noise at spacing h_j, smoothed by a cubic B-spline of that spacing: it varies
over about h_j and is forgotten after 4·h_j. The first level is white noise itself. Spacings double from one
step up to a third of a day, then are one day, two days, and so on. A process with amplitudes a_j is the sum
of a_j times independent levels, so any window of it needs the noise of that window and of a margin after it.

The spacings divide a day or are whole days, so the noise of a level is numbered by days, or by runs of days.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from dp_powerflow._bits.elementary import kernel
from dp_powerflow._bits.sums import row_sum
from dp_powerflow.model.history.numbers import least_squares_above_zero
from dp_powerflow.units import FloatArray, IntArray

MARGIN = 3
"""Cells after its own that a step of a smoothed level depends on."""
LONGEST_DAYS = 16
"""Longest spacing [days]."""
_RIDGE = 0.02  # keeps amplitudes that nothing tells apart small
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
        own = _autocovariance(self.spacings[level])[: lags + 1]
        return np.concatenate([own, np.zeros(lags + 1 - own.size)])

    def energies_of(self, covariance: FloatArray, n_days: int) -> FloatArray:
        """(level,) expected `energies` of a process with this autocovariance (lag,)."""
        left = [self._left(covariance, spacing, n_days) for spacing in self.spacings]
        return -np.diff(np.array([*left, 0.0]))

    def _left(self, covariance: FloatArray, spacing: int, n_days: int) -> float:
        """Variance of means over cells of one spacing, the mean over the days taken away."""
        of_days = n_days * self.n_steps
        if spacing < self.n_steps:
            apart = _cell_covariances(covariance, spacing, self.n_steps * np.arange(n_days))
            weight = np.array([n_days, *(2.0 * (n_days - day) for day in range(1, n_days))])
            lost = float(np.sum(weight * apart)) / (n_days * n_days)
            return max(float(apart[0]) - lost, 0.0)
        return max(_mean_variance(covariance, spacing) - _mean_variance(covariance, of_days), 0.0)

    @cached_property
    def _responses(self) -> dict[int, FloatArray]:
        return {}

    def response(self, n_days: int) -> FloatArray:
        """(level, level) expected energies, by column, of one level at amplitude one."""
        known = self._responses
        if n_days not in known:
            lags = n_days * self.n_steps
            columns = [
                self.energies_of(self.autocovariance(level, lags), n_days)
                for level in range(len(self.spacings))
            ]
            known[n_days] = np.array(columns).T
        return known[n_days]

    def amplitudes(self, energies: FloatArray, n_days: int) -> FloatArray:
        """(level,) whose squares add up to one, with expected energies nearest to these."""
        size = len(self.spacings)
        matrix = np.concatenate([self.response(n_days), _RIDGE * np.eye(size)])
        power = least_squares_above_zero(matrix, np.concatenate([energies, np.zeros(size)]))
        total = float(np.sum(power))
        return np.sqrt(power / total) if total > 0.0 else np.eye(size)[0]

    def covariance(self, amplitudes: FloatArray, lags: int) -> FloatArray:
        """(lag,) of the process with these amplitudes."""
        found = np.zeros(lags + 1)
        for level, amplitude in enumerate(amplitudes.tolist()):
            if amplitude > 0.0:
                found += amplitude * amplitude * self.autocovariance(level, lags)
        return found


def energies(process: FloatArray, ladder: Ladder) -> FloatArray:
    """(record, level) of processes (record, day, step): what every doubling of the cells averages out.

    The first entry is the variance within cells of the second spacing, and so on; the last is the variance
    of means over the longest. They add up to the mean square. Days beyond whole cells are left out.
    """
    n_records, n_days, n_steps = process.shape
    longest = max(1, ladder.spacings[-1] // n_steps)
    whole = np.ascontiguousarray(process[:, : n_days // longest * longest]).reshape(n_records, -1)
    left, spacing = [], 1
    for wider in ladder.spacings:
        if wider > spacing:
            whole = whole.reshape(n_records, -1, wider // spacing).mean(axis=2)
            spacing = wider
        left.append(np.sum(whole * whole, axis=1) / max(whole.shape[1], 1))
    left.append(np.zeros(n_records))
    # Contiguous by record: what NumPy adds up next must not depend on how many records there are.
    return np.ascontiguousarray(np.maximum(-np.diff(np.array(left), axis=0).T, 0.0))


def _mean_variance(covariance: FloatArray, length: int) -> float:
    """Variance of the mean of so many steps."""
    lag = np.arange(1, length)
    return float(covariance[0] + 2 * np.sum((1 - lag / length) * covariance[1:length])) / length


def _cell_covariances(covariance: FloatArray, spacing: int, apart: IntArray) -> FloatArray:
    """(pair,) covariance of the means of two cells whose starts lie `apart` (pair,) steps from each other."""
    shift = np.arange(1 - spacing, spacing)
    weight = (spacing - np.abs(shift)) / (spacing * spacing)
    found: FloatArray = np.sum(weight * covariance[np.abs(apart[:, None] + shift)], axis=1)
    return found


@lru_cache(maxsize=32)
def _autocovariance(spacing: int) -> FloatArray:
    """(lag,) of a level; zero beyond."""
    taps = _spline(spacing)[::-1].reshape(-1)
    found = np.empty(taps.size)
    _fill_autocovariance(taps, spacing, found)
    found.flags.writeable = False
    return found


@kernel
def _fill_autocovariance(taps: FloatArray, spacing: int, out: FloatArray) -> None:
    terms = np.empty(taps.size)
    for lag in range(taps.size):
        size = taps.size - lag
        for k in range(size):
            terms[k] = taps[lag + k] * taps[k]
        out[lag] = row_sum(terms, 0, size) / spacing


def _spline(spacing: int) -> FloatArray:
    """Cubic B-spline at the middles of the steps of four cells (4, spacing), the last cell first."""
    if spacing == 1:
        return np.ones((1, 1))
    x = np.abs((np.arange(-2 * spacing, 2 * spacing) + 0.5) / spacing)
    inner, outer = 2 / 3 - x * x + x * x * x / 2, (2 - x) * (2 - x) * (2 - x) / 6
    taps = np.where(x < 1, inner, outer)
    taps = taps / np.sqrt(np.sum(taps * taps) / spacing)
    return np.ascontiguousarray(taps.reshape(4, spacing)[::-1])
