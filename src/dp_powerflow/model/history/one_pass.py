"""PRIVATE. Kernels that go over the log loads of some customers once, one customer after the other.

They hold one customer's values at a time and give the bits that array operations over all of them would:
sums over days are in the order of days, sums over what lies in a row are NumPy's (`_bits.linear`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from dp_powerflow._bits.elementary import exp1, kernel, log1
from dp_powerflow._bits.linear import row_squares, row_sum
from dp_powerflow.model.history.numbers import least_squares_above_zero
from dp_powerflow.units import BoolArray, FloatArray, IntArray

LOWEST, HIGHEST, BINS = -4.5, 3.2, 32
"""Log of load over the customer's mean: range and number of the bins of the histogram."""
_AT_FLOOR = 1e-9  # how near to the lower bound a log load counts as the bound
_CELLS = 1024
_PER_UNIT = BINS / (HIGHEST - LOWEST)


@kernel
def levels_and_extremes(log_load: FloatArray, place: int, out: FloatArray) -> None:
    """(customer, 3): log of the mean load, largest log load, and the one at a place in ascending order."""
    n, days, steps = log_load.shape
    load, rest = np.empty(days * steps), np.empty(days * steps)
    for i in range(n):
        own = log_load[i].reshape(-1)
        for k in range(own.size):
            load[k] = exp1(own[k])
        out[i, 0] = log1(row_sum(load, 0, own.size) / own.size)
        peak = own[0]
        for k in range(own.size):
            peak = max(peak, own[k])
        out[i, 1] = peak
        rest[:] = own
        out[i, 2] = _smallest(rest, place)


@kernel
def _smallest(values: FloatArray, place: int) -> float:
    """The value at a place in ascending order; `values` are overwritten.

    Cells of equal width are counted and the one that holds the place is looked at again. Which cell a value
    is in grows with the value, so rounding does no harm.
    """
    size = values.size
    counts = np.empty(_CELLS, dtype=np.int64)
    while True:
        low, high = values[0], values[0]
        for k in range(1, size):
            low, high = min(low, values[k]), max(high, values[k])
        if not low < high:
            return float(low)
        per_unit = (_CELLS - 1) / (high - low)
        counts[:] = 0
        for k in range(size):
            counts[int((values[k] - low) * per_unit)] += 1
        cell = 0
        while place >= counts[cell]:
            place -= counts[cell]
            cell += 1
        kept = 0
        for k in range(size):
            if int((values[k] - low) * per_unit) == cell:
                values[kept] = values[k]
                kept += 1
        size = kept


@kernel
def count(log_load: FloatArray, level: FloatArray, log_floor: float, out: FloatArray) -> None:
    """(customer, 1 + bin) readings at the floor, and in every bin of load over mean."""
    for i in range(log_load.shape[0]):
        own = log_load[i].reshape(-1)
        for k in range(own.size):
            if own[k] <= log_floor + _AT_FLOOR:
                out[i, 0] += 1.0
            else:
                place = int(np.floor((own[k] - level[i] - LOWEST) * _PER_UNIT))
                out[i, 1 + min(max(place, 0), BINS - 1)] += 1.0


@kernel
def _score(
    own: FloatArray, level: float, edges: FloatArray, at_floor: float, log_floor: float, out: FloatArray
) -> None:
    """Scores of one customer."""
    for k in range(own.size):
        if own[k] <= log_floor + _AT_FLOOR:
            out[k] = at_floor
            continue
        place = min(max(0.0, (own[k] - level - LOWEST) * _PER_UNIT), BINS - 1e-9)  # nan: 0
        lower = int(place)
        out[k] = edges[lower] + (place - lower) * (edges[lower + 1] - edges[lower])


@kernel
def score(
    log_load: FloatArray,
    level: FloatArray,
    edges: FloatArray,
    at_floor: float,
    log_floor: float,
    out: FloatArray,
) -> None:
    """(customer, day, step) scores."""
    for i in range(log_load.shape[0]):
        _score(log_load[i].reshape(-1), level[i], edges, at_floor, log_floor, out[i].reshape(-1))


@kernel
def sum_over_days(
    log_load: FloatArray,
    level: FloatArray,
    edges: FloatArray,
    at_floor: float,
    log_floor: float,
    chosen: BoolArray,
    out: FloatArray,
) -> None:
    """(customer, 2, step) sums of the scores over the days that are chosen (day,), and over the others."""
    n, days, steps = log_load.shape
    own = np.empty(steps)
    out[:] = 0.0
    for i in range(n):
        for d in range(days):
            _score(log_load[i, d], level[i], edges, at_floor, log_floor, own)
            total = out[i, 0 if chosen[d] else 1]
            for t in range(steps):
                total[t] += own[t]


@kernel
def _residual(
    log_load: FloatArray,
    level: float,
    edges: FloatArray,
    at_floor: float,
    log_floor: float,
    mean: FloatArray,
    taken: FloatArray,
    out: FloatArray,
) -> None:
    """Scores of one customer (day, step) about its mean day (step,) and what else is taken (day, step)."""
    for d in range(log_load.shape[0]):
        own = out[d]
        _score(log_load[d], level, edges, at_floor, log_floor, own)
        for t in range(own.size):
            own[t] = own[t] - mean[t] - taken[d, t]


@kernel
def process_moments(
    log_load: FloatArray,
    level: FloatArray,
    scores: tuple[FloatArray, float, float],
    mean: FloatArray,
    taken: FloatArray,
    size: FloatArray,
    squares: FloatArray,
    daily: FloatArray,
) -> None:
    """Size (customer,) of the process, sums of its squares over days (customer, step), and daily means."""
    n, days, steps = log_load.shape
    process = np.empty((days, steps))
    row = process.reshape(-1)
    squares[:] = 0.0
    for i in range(n):
        _residual(log_load[i], level[i], scores[0], scores[1], scores[2], mean[i], taken, process)
        size[i] = np.sqrt(row_squares(row, 0, row.size) / row.size) + 1e-3
        for d in range(days):
            for t in range(steps):
                value = process[d, t] / size[i]
                process[d, t] = value
                squares[i, t] += value * value
            daily[i, d] = row_sum(row, d * steps, steps) / steps


@kernel
def process_left(
    log_load: FloatArray,
    level: FloatArray,
    scores: tuple[FloatArray, float, float],
    mean: FloatArray,
    taken: FloatArray,
    size: FloatArray,
    away: tuple[FloatArray, FloatArray],
    spacings: IntArray,
    whole_days: int,
    out: FloatArray,
) -> None:
    """(customer, spacing) variance of means over cells, of the process less (day, step) over (step,)."""
    n, days, steps = log_load.shape
    process = np.empty((days, steps))
    row = process.reshape(-1)
    for i in range(n):
        _residual(log_load[i], level[i], scores[0], scores[1], scores[2], mean[i], taken, process)
        for d in range(whole_days):
            for t in range(steps):
                process[d, t] = (process[d, t] / size[i] - away[0][d, t]) / away[1][t]
        cells, spacing = whole_days * steps, 1
        for j in range(spacings.size):
            ratio = spacings[j] // spacing
            if ratio > 1:
                cells //= ratio
                for k in range(cells):
                    row[k] = row_sum(row, k * ratio, ratio) / ratio
                spacing = spacings[j]
            out[i, j] = row_squares(row, 0, cells) / max(cells, 1)


def cells_of_tables(tables: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """Where in ascending tables (row, entry) to look: origin and cells per unit of a row, and in every cell
    the entries before it. A value in a cell lies among the entries of that cell."""
    low, high = tables[:, 0].copy(), tables[:, -1]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        per_unit = (_CELLS - 1) / (high - low)
    per_unit[~np.isfinite(per_unit)] = 0.0
    before = np.empty((len(tables), _CELLS + 1), dtype=np.int64)
    _entries_before(tables, low, per_unit, before)
    return low, per_unit, before


@kernel
def _cell(x: float, low: float, per_unit: float) -> int:
    return int(min(max(0.0, (x - low) * per_unit), _CELLS - 1.0))  # nan: 0


@kernel
def _entries_before(tables: FloatArray, low: FloatArray, per_unit: FloatArray, before: IntArray) -> None:
    for i in range(tables.shape[0]):
        entry = 0
        for cell in range(_CELLS):
            while entry < tables.shape[1] and _cell(tables[i, entry], low[i], per_unit[i]) < cell:
                entry += 1
            before[i, cell] = entry
        before[i, _CELLS] = tables.shape[1]


@kernel
def ranks(
    log_load: FloatArray,
    tables: FloatArray,
    cells: tuple[FloatArray, FloatArray, IntArray],
    probabilities: FloatArray,
    basis: FloatArray,
    bin_of_step: IntArray,
    out: FloatArray,
) -> None:
    """(customer, function, step) sums over days of functions (point, function) of the ranks of loads."""
    n_records, n_days, n_steps = log_load.shape
    last, points = probabilities.size - 1, basis.shape[0] - 1
    low, per_unit, before = cells
    for i in range(n_records):
        for d in range(n_days):
            for t in range(n_steps):
                row, x = bin_of_step[t], log_load[i, d, t]
                table = tables[row]
                cell = _cell(x, low[row], per_unit[row])
                lower, end = before[row, cell], before[row, cell + 1]
                while lower < end and table[lower] < x:
                    lower += 1
                upper = lower
                while upper < end and table[upper] <= x:
                    upper += 1
                if upper > lower:  # ties share the middle of their ranks
                    rank = (probabilities[lower] + probabilities[upper - 1]) / 2
                elif lower == 0:
                    rank = probabilities[0]
                elif lower > last:
                    rank = probabilities[last]
                else:
                    share = (x - table[lower - 1]) / (table[lower] - table[lower - 1])
                    rank = probabilities[lower - 1] + share * (
                        probabilities[lower] - probabilities[lower - 1]
                    )
                at = int(min(max(0.0, rank * points + 0.5), points))  # nan: 0
                for f in range(basis.shape[1]):
                    out[i, f, t] += basis[at, f]


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
