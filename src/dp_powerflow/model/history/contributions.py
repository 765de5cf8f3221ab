"""PRIVATE. What one customer, with all its days, adds to the queries of the history model.

Functions take customers, their log loads cut to the declared bounds, and what was released before, and give
one vector per customer; `estimate` divides it by its radius and `privacy.queries` clips it. What several
queries ask about is found once.

Kernels go over the log loads of some customers once, one customer after the other. They hold one customer's
values at a time and give the bits that array operations over all of them would: sums over days are in the
order of days, sums over what lies in a row are NumPy's (`_bits.linear`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import exp1, kernel, log, log1
from dp_powerflow._bits.linear import norms, product, row_squares, row_sum
from dp_powerflow.model.estimators import CustomerChunk
from dp_powerflow.model.history.numbers import Ladder, fourier
from dp_powerflow.units import BoolArray, FloatArray, IntArray

BASE_SHARE = 0.1
"""A customer's base is the load that this share of its readings does not pass."""
MOST_PEAK = 3.2
"""Largest log of peak over mean that is told apart."""
LEAST_BASE = -4.0
"""Smallest log of base over mean that is told apart."""
LOWEST, HIGHEST, BINS = -4.5, 3.2, 32
"""Log of load over the customer's mean: range and number of the bins of the histogram."""
_AT_FLOOR = 1e-9  # how near to the lower bound a log load counts as the bound
_PER_UNIT = BINS / (HIGHEST - LOWEST)

ScoreTable = tuple[FloatArray, float, float]


@dataclass(frozen=True, eq=False)
class Scores:
    """Released map from log of load over the customer's mean to normal scores.

    Parameters
    ----------
    edges
        (BINS + 1,) score at every edge of the histogram.
    at_floor
        Score of a load at the lower bound.
    log_floor
        Lower bound [log kW].
    """

    edges: FloatArray
    at_floor: float
    log_floor: float

    @property
    def table(self) -> ScoreTable:
        """For a kernel."""
        return self.edges, self.at_floor, self.log_floor


@dataclass(frozen=True, eq=False)
class Baseline:
    """What is taken away from scores before a customer's own process is measured.

    Parameters
    ----------
    scores
        The map to scores.
    off
        (day,) weight of the contrast on every day of the history.
    contrast
        (step,) of days off.
    """

    scores: Scores
    off: FloatArray
    contrast: FloatArray

    @property
    def taken(self) -> FloatArray:
        """(day, step) taken away in addition to a customer's mean day."""
        return self.off[:, None] * self.contrast


@dataclass(frozen=True, eq=False, repr=False)
class ProcessFigures:
    """PRIVATE. A customer's own process, of mean square one: what is left of its scores, over their size.

    Parameters
    ----------
    size
        (customer,) of what is left.
    variance
        (customer, step) of the process, over the days.
    daily
        (customer, day) means.
    """

    size: FloatArray
    variance: FloatArray
    daily: FloatArray


def bin_edges() -> FloatArray:
    """(BINS + 1,) [log of load over mean]."""
    return np.asarray(LOWEST + (HIGHEST - LOWEST) / BINS * np.arange(BINS + 1), dtype=np.float64)


def _extremes(days: CustomerChunk) -> FloatArray:
    """(customer, 3) log of the mean load, of the peak and of the base."""

    def find() -> FloatArray:
        log_load = days.log_load
        found = np.empty((len(log_load), 3))
        place = int(BASE_SHARE * (log_load[0].size - 1)) if len(log_load) else 0
        _levels_and_extremes(log_load, place, found)
        return found

    return days.once("extremes", find)


def log_level(days: CustomerChunk) -> FloatArray:
    """(customer,) log of the mean load."""
    return np.ascontiguousarray(_extremes(days)[:, 0])


def traits(days: CustomerChunk) -> FloatArray:
    """(customer, 3): log level, log of peak over mean, log of base over mean; the last two within limits."""
    level, peak, base = _extremes(days).T
    return np.column_stack(
        [level, np.clip(peak - level, 0.0, MOST_PEAK), np.clip(base - level, LEAST_BASE, 0.0)]
    )


def bin_of(values: FloatArray, edges: FloatArray) -> FloatArray:
    """(customer, bin): one in the bin that holds the value, the outermost hold what lies outside."""
    count = edges.size - 1
    inside = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, count - 1)
    return np.eye(count)[inside]


def histogram(days: CustomerChunk, log_floor: float) -> FloatArray:
    """(customer, 1 + BINS): share of the readings at the floor, and in every bin of load over mean."""
    log_load = days.log_load
    shares = np.zeros((len(log_load), 1 + BINS))
    _count(log_load, log_level(days), log_floor, shares)
    result: FloatArray = shares / max(log_load.shape[1] * log_load.shape[2], 1)
    return result


def _mean_over(
    days: CustomerChunk, known: Scores, chosen: BoolArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """(customer, step) mean of the scores over the days that are chosen, all by default, and over others."""
    log_load = days.log_load
    chosen = np.ones(log_load.shape[1], dtype=np.bool_) if chosen is None else chosen
    sums = np.empty((len(log_load), 2, log_load.shape[2]))
    _sum_over_days(log_load, log_level(days), known.table, chosen, sums)
    count = int(np.count_nonzero(chosen))
    return sums[:, 0] / max(count, 1), sums[:, 1] / max(chosen.size - count, 1)


def mean_day(days: CustomerChunk, known: Scores) -> FloatArray:
    """(customer, step) mean of the scores over all days."""
    return days.once(("mean day", known), lambda: _mean_over(days, known)[0])


def shape_about(days: CustomerChunk, known: Scores, released: FloatArray) -> FloatArray:
    """(customer, step) mean day of the scores, about its own mean and a released one."""
    own = mean_day(days, known)
    result: FloatArray = own - own.mean(axis=1, keepdims=True) - released
    return result


def shape_coefficients(days: CustomerChunk, known: Scores, released: FloatArray, count: int) -> FloatArray:
    """(customer, count) Fourier coefficients of a customer's mean day about a released one."""
    n_steps = released.size
    basis = fourier(n_steps, (count + 1) // 2)[1 : 1 + count]
    result: FloatArray = product(shape_about(days, known, released), basis.T) / n_steps
    return result


def log_shape_size(days: CustomerChunk, known: Scores, released: FloatArray, usual: float) -> FloatArray:
    """(customer, 1) log of the size of a customer's mean day about a released one, over a usual size."""
    about = shape_about(days, known, released)
    size = norms(about) / np.sqrt(about.shape[1])
    return np.clip(log(np.maximum(size, 1e-6) / usual), -2.5, 1.0)[:, None]


def off_contrast(days: CustomerChunk, known: Scores, off: BoolArray, harmonics: int) -> FloatArray:
    """(customer, 1 + 2·harmonics) Fourier coefficients of days off less other days."""
    on_days_off, on_others = _mean_over(days, known, off)
    contrast = on_days_off - on_others
    n_steps = contrast.shape[1]
    result: FloatArray = product(contrast, fourier(n_steps, harmonics).T) / n_steps
    return result


def process_of(days: CustomerChunk, frame: Baseline) -> ProcessFigures:
    """The process of customers, in figures."""

    def find() -> ProcessFigures:
        log_load, scores = days.log_load, frame.scores
        n, n_days, n_steps = log_load.shape
        size, squares, daily = np.empty(n), np.empty((n, n_steps)), np.empty((n, n_days))
        away = mean_day(days, scores), frame.taken
        _process_moments(log_load, log_level(days), scores.table, away, (size, squares, daily))
        return ProcessFigures(size, squares / max(n_days, 1), daily)

    return days.once(("process", frame), find)


def log_spread(days: CustomerChunk, frame: Baseline, centre: float, most: float) -> FloatArray:
    """(customer, 1) log size of the process, around a centre."""
    return np.clip(log(process_of(days, frame).size) - centre, -most, most)[:, None]


def spread_profile(days: CustomerChunk, frame: Baseline, harmonics: int) -> FloatArray:
    """(customer, 2·harmonics) Fourier coefficients of the variance over the day."""
    variance = process_of(days, frame).variance - 1.0
    n_steps = variance.shape[1]
    result: FloatArray = product(variance, fourier(n_steps, harmonics)[1:].T) / n_steps
    return result


def process_energies(
    days: CustomerChunk, frame: Baseline, shared: FloatArray, profile: FloatArray, ladder: Ladder
) -> FloatArray:
    """(customer, level) energies of the process without the shared factor (day, step); they add up to one.

    The first entry is the variance within cells of the second spacing of the ladder, and so on; the last is
    the variance of means over the longest. Days beyond whole cells are left out.
    """
    log_load, scores, spacings = days.log_load, frame.scores, np.array(ladder.spacings)
    left = np.zeros((len(log_load), spacings.size + 1))
    away, less = (mean_day(days, scores), frame.taken), (np.ascontiguousarray(shared), np.sqrt(profile))
    size = process_of(days, frame).size
    _process_left(log_load, log_level(days), scores.table, away, size, less, spacings, left)
    found = np.maximum(-np.diff(left, axis=1), 0.0)
    result: FloatArray = found / np.maximum(found.sum(axis=1, keepdims=True), 1e-12)
    return result


def rank_features(
    log_load: FloatArray, tables: FloatArray, probabilities: FloatArray, basis: FloatArray, times: FloatArray
) -> FloatArray:
    """(customer, function of rank × function of time): where loads lie among the loads of the model.

    Parameters
    ----------
    log_load
        (customer, day, step).
    tables
        (time of day, quantile) of the model's log loads, at `probabilities`.
    basis
        (function, point) of rank at evenly spaced ranks from 0 to 1.
    times
        (function, step) of time.
    """
    n_records, n_days, n_steps = log_load.shape
    found = np.zeros((n_records, basis.shape[0], n_steps))
    per_day = np.ascontiguousarray(basis.T) / n_days
    _ranks(np.ascontiguousarray(log_load), tables, probabilities, per_day, found)
    result: FloatArray = product(found, times.T).reshape(n_records, -1) / n_steps
    return result


@kernel
def _levels_and_extremes(log_load: FloatArray, place: int, out: FloatArray) -> None:
    """(customer, 3): log of the mean load, largest log load, and the one at a place in ascending order."""
    n, days, steps = log_load.shape
    load = np.empty(days * steps)
    for i in range(n):
        own = log_load[i].reshape(-1)
        for k in range(own.size):
            load[k] = exp1(own[k])
        out[i, 0] = log1(row_sum(load, 0, own.size) / own.size)
        peak = own[0]
        for k in range(own.size):
            peak = max(peak, own[k])
        out[i, 1] = peak
        out[i, 2] = np.partition(own, place)[place]


@kernel
def _count(log_load: FloatArray, level: FloatArray, log_floor: float, out: FloatArray) -> None:
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
def _score(own: FloatArray, level: float, scores: ScoreTable, out: FloatArray) -> None:
    """Scores of one customer."""
    edges, at_floor, log_floor = scores
    for k in range(own.size):
        if own[k] <= log_floor + _AT_FLOOR:
            out[k] = at_floor
            continue
        place = min(max(0.0, (own[k] - level - LOWEST) * _PER_UNIT), BINS - 1e-9)  # nan: 0
        lower = int(place)
        out[k] = edges[lower] + (place - lower) * (edges[lower + 1] - edges[lower])


@kernel
def _sum_over_days(
    log_load: FloatArray, level: FloatArray, scores: ScoreTable, chosen: BoolArray, out: FloatArray
) -> None:
    """(customer, 2, step) sums of the scores over the days that are chosen (day,), and over the others."""
    n, days, steps = log_load.shape
    own = np.empty(steps)
    out[:] = 0.0
    for i in range(n):
        for d in range(days):
            _score(log_load[i, d], level[i], scores, own)
            total = out[i, 0 if chosen[d] else 1]
            for t in range(steps):
                total[t] += own[t]


@kernel
def _residual(
    log_load: FloatArray,
    level: float,
    scores: ScoreTable,
    away: tuple[FloatArray, FloatArray],
    out: FloatArray,
) -> None:
    """Scores of one customer (day, step) about its mean day (step,) and what else is taken (day, step)."""
    mean, taken = away
    for d in range(log_load.shape[0]):
        own = out[d]
        _score(log_load[d], level, scores, own)
        for t in range(own.size):
            own[t] = own[t] - mean[t] - taken[d, t]


@kernel
def _process_moments(
    log_load: FloatArray,
    level: FloatArray,
    scores: ScoreTable,
    away: tuple[FloatArray, FloatArray],
    out: tuple[FloatArray, FloatArray, FloatArray],
) -> None:
    """Size (customer,) of the process, sums of its squares over days (customer, step), and daily means."""
    size, squares, daily = out
    n, days, steps = log_load.shape
    process = np.empty((days, steps))
    row = process.reshape(-1)
    squares[:] = 0.0
    for i in range(n):
        _residual(log_load[i], level[i], scores, (away[0][i], away[1]), process)
        size[i] = np.sqrt(row_squares(row, 0, row.size) / row.size) + 1e-3
        for d in range(days):
            for t in range(steps):
                value = process[d, t] / size[i]
                process[d, t] = value
                squares[i, t] += value * value
            daily[i, d] = row_sum(row, d * steps, steps) / steps


@kernel
def _process_left(
    log_load: FloatArray,
    level: FloatArray,
    scores: ScoreTable,
    away: tuple[FloatArray, FloatArray],
    size: FloatArray,
    less: tuple[FloatArray, FloatArray],
    spacings: IntArray,
    out: FloatArray,
) -> None:
    """(customer, spacing) variance of means over cells, of the process less (day, step) over (step,)."""
    n, days, steps = log_load.shape
    longest = max(1, spacings[-1] // steps)
    whole_days = days // longest * longest
    process = np.empty((days, steps))
    row = process.reshape(-1)
    for i in range(n):
        _residual(log_load[i], level[i], scores, (away[0][i], away[1]), process)
        for d in range(whole_days):
            for t in range(steps):
                process[d, t] = (process[d, t] / size[i] - less[0][d, t]) / less[1][t]
        cells, spacing = whole_days * steps, 1
        for j in range(spacings.size):
            ratio = spacings[j] // spacing
            if ratio > 1:
                cells //= ratio
                for k in range(cells):
                    row[k] = row_sum(row, k * ratio, ratio) / ratio
                spacing = spacings[j]
            out[i, j] = row_squares(row, 0, cells) / max(cells, 1)


@kernel
def _ranks(
    log_load: FloatArray, tables: FloatArray, probabilities: FloatArray, basis: FloatArray, out: FloatArray
) -> None:
    """(customer, function, step) sums over days of functions (point, function) of the ranks of loads."""
    n_records, n_days, n_steps = log_load.shape
    last, points = probabilities.size - 1, basis.shape[0] - 1
    for i in range(n_records):
        for d in range(n_days):
            for t in range(n_steps):
                table, x = tables[t * tables.shape[0] // n_steps], log_load[i, d, t]
                lower = np.searchsorted(table, x)
                upper = lower
                while upper <= last and table[upper] <= x:
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
