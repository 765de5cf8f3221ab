"""PRIVATE. What one customer, with all its days, adds to each query of the history model.

Every function takes log loads (customer, day, step), cut to the declared bounds, and what was released
before, and gives one vector per customer; `privacy.queries` clips it. A vector is divided by its clip radius,
so that every query has the radius one and classes with different radii can be asked together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import exp, kernel, log
from dp_powerflow._bits.linear import norms, product
from dp_powerflow.model.history.ladder import Ladder, energies
from dp_powerflow.model.history.numbers import fourier
from dp_powerflow.units import BoolArray, FloatArray, IntArray

LOWEST, HIGHEST, BINS = -4.5, 3.2, 32
"""Log of load over the customer's mean: range and number of the bins of the histogram."""
BASE_SHARE = 0.1
"""A customer's base is the load that this share of its readings does not pass."""
MOST_PEAK = 3.2
"""Largest log of peak over mean that is told apart."""
LEAST_BASE = -4.0
"""Smallest log of base over mean that is told apart."""
_AT_FLOOR = 1e-9  # how near to the lower bound a log load counts as the bound


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


def bin_edges() -> FloatArray:
    """(BINS + 1,) [log of load over mean]."""
    return np.asarray(LOWEST + (HIGHEST - LOWEST) / BINS * np.arange(BINS + 1), dtype=np.float64)


def log_level(days: FloatArray) -> FloatArray:
    """(customer,) log of the mean load."""
    flat = exp(days).reshape(len(days), -1)
    return log(np.sum(flat, axis=1) / max(flat.shape[1], 1))


def traits(days: FloatArray) -> FloatArray:
    """(customer, 3): log level, log of peak over mean, log of base over mean; the last two within limits."""
    if not len(days):
        return np.empty((0, 3))
    level = log_level(days)
    flat = days.reshape(len(days), -1)
    place = int(BASE_SHARE * (flat.shape[1] - 1))
    base = np.partition(flat, place, axis=1)[:, place] - level
    peak = flat.max(axis=1) - level
    return np.column_stack([level, np.clip(peak, 0.0, MOST_PEAK), np.clip(base, LEAST_BASE, 0.0)])


def coarse_traits(days: FloatArray, centre: FloatArray, radius: float) -> FloatArray:
    """Traits around public centres."""
    return (traits(days) - centre) / radius


def distance_of_level(days: FloatArray, centre: float, most: float) -> FloatArray:
    """How far a customer's log level lies from a released centre, at most `most`; not negative."""
    return np.minimum(np.abs(log_level(days) - centre), most)[:, None] / most


def place_of_level(days: FloatArray, centre: float, reach: float, middle: float, radius: float) -> FloatArray:
    """Log level around a centre, cut at `reach`, and its size."""
    place = np.clip((log_level(days) - centre) / reach, -1.0, 1.0)
    return np.column_stack([place, np.abs(place) - middle]) / radius


def bin_of(values: FloatArray, edges: FloatArray) -> FloatArray:
    """(customer, bin): one in the bin that holds the value, the outermost hold what lies outside."""
    count = edges.size - 1
    inside = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, count - 1)
    return np.eye(count)[inside]


def histogram(days: FloatArray, log_floor: float, radius: float) -> FloatArray:
    """(customer, 1 + BINS): share of the readings at the floor, and in every bin of load over mean."""
    shares = np.zeros((len(days), 1 + BINS))
    if len(days):
        flat = np.ascontiguousarray(days).reshape(len(days), -1)
        _count(flat, log_level(days), log_floor, shares)
        shares /= flat.shape[1]
    return shares / radius


@kernel
def _count(flat: FloatArray, level: FloatArray, log_floor: float, out: FloatArray) -> None:
    per_unit = BINS / (HIGHEST - LOWEST)
    for i in range(flat.shape[0]):
        for k in range(flat.shape[1]):
            if flat[i, k] <= log_floor + _AT_FLOOR:
                out[i, 0] += 1.0
            else:
                place = int(np.floor((flat[i, k] - level[i] - LOWEST) * per_unit))
                out[i, 1 + min(max(place, 0), BINS - 1)] += 1.0


def scores(days: FloatArray, known: Scores) -> FloatArray:
    """(customer, day, step) normal scores."""
    out = np.empty(days.shape)
    if len(days):
        flat = np.ascontiguousarray(days).reshape(len(days), -1)
        _score(flat, log_level(days), known.edges, known.at_floor, known.log_floor, out.reshape(flat.shape))
    return out


@kernel
def _score(
    flat: FloatArray,
    level: FloatArray,
    edges: FloatArray,
    at_floor: float,
    log_floor: float,
    out: FloatArray,
) -> None:
    per_unit = BINS / (HIGHEST - LOWEST)
    for i in range(flat.shape[0]):
        for k in range(flat.shape[1]):
            if flat[i, k] <= log_floor + _AT_FLOOR:
                out[i, k] = at_floor
                continue
            place = min(max(0.0, (flat[i, k] - level[i] - LOWEST) * per_unit), BINS - 1e-9)  # nan: 0
            lower = int(place)
            out[i, k] = edges[lower] + (place - lower) * (edges[lower + 1] - edges[lower])


def shape_of(days: FloatArray, known: Scores) -> FloatArray:
    """(customer, step) mean day of the scores, about its own mean."""
    mean_day = scores(days, known).mean(axis=1)
    result: FloatArray = mean_day - mean_day.mean(axis=1, keepdims=True)
    return result


def shape_coefficients(days: FloatArray, known: Scores, mean_day: FloatArray, count: int) -> FloatArray:
    """(customer, count) Fourier coefficients of a customer's mean day about a released one."""
    n_steps = days.shape[2]
    basis = fourier(n_steps, (count + 1) // 2)[1 : 1 + count]
    result: FloatArray = product(shape_of(days, known) - mean_day, basis.T) / n_steps
    return result


def log_shape_size(days: FloatArray, known: Scores, mean_day: FloatArray, usual: float) -> FloatArray:
    """(customer, 1) log of the size of a customer's mean day about a released one, over a usual size."""
    about = shape_of(days, known) - mean_day
    size = norms(about) / np.sqrt(about.shape[1])
    return np.clip(log(np.maximum(size, 1e-6) / usual), -2.5, 1.0)[:, None]


def off_contrast(days: FloatArray, known: Scores, off: BoolArray, harmonics: int) -> FloatArray:
    """(customer, 1 + 2·harmonics) Fourier coefficients of days off less other days."""
    score = scores(days, known)
    if not len(score):
        return np.empty((0, 1 + 2 * harmonics))
    on_days_off, on_others = (np.ascontiguousarray(score[:, kind]) for kind in (off, ~off))
    contrast = on_days_off.mean(axis=1) - on_others.mean(axis=1)
    result: FloatArray = product(contrast, fourier(days.shape[2], harmonics).T) / days.shape[2]
    return result


@dataclass(frozen=True, eq=False)
class Frame:
    """What is taken away from scores before a customer's own process is looked at.

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

    def residual(self, days: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Process (customer, day, step) of mean square one, and its size (customer,)."""
        score = scores(days, self.scores)
        if not len(score):
            return score, np.empty(0)
        score -= score.mean(axis=1, keepdims=True)
        score -= self.off[:, None] * self.contrast
        flat = score.reshape(len(score), -1)
        size = np.sqrt(np.sum(flat * flat, axis=1) / flat.shape[1]) + 1e-3
        return score / size[:, None, None], size


def log_spread(days: FloatArray, frame: Frame, centre: float, most: float) -> FloatArray:
    """(customer, 1) log size of the process, around a centre."""
    return np.clip(log(frame.residual(days)[1]) - centre, -most, most)[:, None]


def spread_profile(days: FloatArray, frame: Frame, harmonics: int) -> FloatArray:
    """(customer, 2·harmonics) Fourier coefficients of the variance over the day."""
    process, _ = frame.residual(days)
    if not len(process):
        return np.empty((0, 2 * harmonics))
    variance = (process * process).mean(axis=1) - 1.0
    result: FloatArray = product(variance, fourier(days.shape[2], harmonics)[1:].T) / days.shape[2]
    return result


def daily_means(days: FloatArray, frame: Frame) -> FloatArray:
    """(customer, day) means of the process."""
    result: FloatArray = frame.residual(days)[0].mean(axis=2)
    return result


def process_energies(
    days: FloatArray, frame: Frame, shared: FloatArray, profile: FloatArray, ladder: Ladder
) -> FloatArray:
    """(customer, level) energies of the process without the shared factor (day, step); they add up to one."""
    process, _ = frame.residual(days)
    if not len(process):
        return np.empty((0, len(ladder.spacings)))
    found = energies((process - shared) / np.sqrt(profile), ladder)
    result: FloatArray = found / np.maximum(found.sum(axis=1, keepdims=True), 1e-12)
    return result


def rank_features(
    log_load: FloatArray, tables: FloatArray, probabilities: FloatArray, basis: FloatArray, times: FloatArray
) -> FloatArray:
    """(customer, function of rank × function of time): where loads lie among those of the model.

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
    n_records, _, n_steps = log_load.shape
    found = np.zeros((n_records, basis.shape[0], n_steps))
    if n_records:
        bin_of_step: IntArray = np.arange(n_steps) * len(tables) // n_steps
        _rank(np.ascontiguousarray(log_load), tables, probabilities, basis, bin_of_step, found)
    result: FloatArray = product(found, times.T).reshape(n_records, -1) / n_steps
    return result


@kernel
def _rank(
    log_load: FloatArray,
    tables: FloatArray,
    probabilities: FloatArray,
    basis: FloatArray,
    bin_of_step: IntArray,
    out: FloatArray,
) -> None:
    n_records, n_days, n_steps = log_load.shape
    last, points = probabilities.size - 1, basis.shape[1] - 1
    for i in range(n_records):
        for d in range(n_days):
            for t in range(n_steps):
                table, x = tables[bin_of_step[t]], log_load[i, d, t]
                lower = np.searchsorted(table, x, side="left")
                upper = np.searchsorted(table, x, side="right")
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
                for f in range(basis.shape[0]):
                    out[i, f, t] += basis[f, at] / n_days
