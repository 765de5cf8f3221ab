"""PRIVATE. Kernels that go over the log loads of some customers once, one customer after the other.

They hold one customer's values at a time and give the bits that array operations over all of them would:
sums over days are in the order of days, sums over what lies in a row are NumPy's (`_bits.sums`).
"""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import exp1, kernel, log1
from dp_powerflow._bits.sums import row_squares, row_sum
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
