"""PRIVATE. What one customer, with all its days, adds to each query of the history model.

Every function takes customers, their log loads cut to the declared bounds, and what was released before, and
gives one vector per customer; `privacy.queries` clips it. A vector is divided by its clip radius, so that
every query has the radius one and classes with different radii can be asked together.

Log loads are gone over by the kernels of `one_pass`. What several queries ask about is found once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import log
from dp_powerflow._bits.linear import norms, product
from dp_powerflow.model.estimators import Customers
from dp_powerflow.model.history import one_pass
from dp_powerflow.model.history.numbers import fourier
from dp_powerflow.model.history.one_pass import BINS, HIGHEST, LOWEST, Ladder
from dp_powerflow.units import BoolArray, FloatArray, IntArray

BASE_SHARE = 0.1
"""A customer's base is the load that this share of its readings does not pass."""
MOST_PEAK = 3.2
"""Largest log of peak over mean that is told apart."""
LEAST_BASE = -4.0
"""Smallest log of base over mean that is told apart."""


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
    def table(self) -> tuple[FloatArray, float, float]:
        """For a kernel."""
        return self.edges, self.at_floor, self.log_floor


def bin_edges() -> FloatArray:
    """(BINS + 1,) [log of load over mean]."""
    return np.asarray(LOWEST + (HIGHEST - LOWEST) / BINS * np.arange(BINS + 1), dtype=np.float64)


def _extremes(days: Customers) -> FloatArray:
    """(customer, 3) log of the mean load, of the peak and of the base."""

    def find() -> FloatArray:
        log_load = days.log_load
        found = np.empty((len(log_load), 3))
        place = int(BASE_SHARE * (log_load[0].size - 1)) if len(log_load) else 0
        one_pass.levels_and_extremes(log_load, place, found)
        return found

    return days.once("extremes", find)


def log_level(days: Customers) -> FloatArray:
    """(customer,) log of the mean load."""
    return _extremes(days)[:, 0]


def traits(days: Customers) -> FloatArray:
    """(customer, 3): log level, log of peak over mean, log of base over mean; the last two within limits."""
    level, (_, peak, base) = log_level(days), _extremes(days).T
    return np.column_stack(
        [level, np.clip(peak - level, 0.0, MOST_PEAK), np.clip(base - level, LEAST_BASE, 0.0)]
    )


def coarse_traits(days: Customers, centre: FloatArray, radius: float) -> FloatArray:
    """Traits around public centres."""
    return (traits(days) - centre) / radius


def distance_of_level(days: Customers, centre: float, most: float) -> FloatArray:
    """How far a customer's log level lies from a released centre, at most `most`; not negative."""
    return np.minimum(np.abs(log_level(days) - centre), most)[:, None] / most


def place_of_level(days: Customers, centre: float, reach: float, middle: float, radius: float) -> FloatArray:
    """Log level around a centre, cut at `reach`, and its size."""
    place = np.clip((log_level(days) - centre) / reach, -1.0, 1.0)
    return np.column_stack([place, np.abs(place) - middle]) / radius


def bin_of(values: FloatArray, edges: FloatArray) -> FloatArray:
    """(customer, bin): one in the bin that holds the value, the outermost hold what lies outside."""
    count = edges.size - 1
    inside = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, count - 1)
    return np.eye(count)[inside]


def histogram(days: Customers, log_floor: float, radius: float) -> FloatArray:
    """(customer, 1 + BINS): share of the readings at the floor, and in every bin of load over mean."""
    log_load = days.log_load
    shares = np.zeros((len(log_load), 1 + BINS))
    one_pass.count(log_load, np.ascontiguousarray(log_level(days)), log_floor, shares)
    shares /= max(log_load.shape[1] * log_load.shape[2], 1)
    return shares / radius


def scores(log_load: FloatArray, known: Scores) -> FloatArray:
    """(customer, day, step) normal scores."""
    out = np.empty(log_load.shape)
    one_pass.score(log_load, np.ascontiguousarray(log_level(Customers(log_load))), *known.table, out)
    return out


def _mean_over(
    days: Customers, known: Scores, chosen: BoolArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """(customer, step) mean of the scores over the days that are chosen, all by default, and over others."""
    log_load = days.log_load
    kept = np.ones(log_load.shape[1], dtype=np.bool_) if chosen is None else chosen
    sums = np.empty((len(log_load), 2, log_load.shape[2]))
    level = np.ascontiguousarray(log_level(days))
    one_pass.sum_over_days(log_load, level, *known.table, kept, sums)
    count = int(np.count_nonzero(kept))
    return sums[:, 0] / max(count, 1), sums[:, 1] / max(kept.size - count, 1)


def mean_day(days: Customers, known: Scores) -> FloatArray:
    """(customer, step) mean of the scores over all days."""
    return days.once(("mean day", known), lambda: _mean_over(days, known)[0])


def shape_of(days: Customers, known: Scores) -> FloatArray:
    """(customer, step) mean day of the scores, about its own mean."""
    own = mean_day(days, known)
    result: FloatArray = own - own.mean(axis=1, keepdims=True)
    return result


def shape_coefficients(days: Customers, known: Scores, released: FloatArray, count: int) -> FloatArray:
    """(customer, count) Fourier coefficients of a customer's mean day about a released one."""
    n_steps = released.size
    basis = fourier(n_steps, (count + 1) // 2)[1 : 1 + count]
    result: FloatArray = product(shape_of(days, known) - released, basis.T) / n_steps
    return result


def log_shape_size(days: Customers, known: Scores, released: FloatArray, usual: float) -> FloatArray:
    """(customer, 1) log of the size of a customer's mean day about a released one, over a usual size."""
    about = shape_of(days, known) - released
    size = norms(about) / np.sqrt(about.shape[1])
    return np.clip(log(np.maximum(size, 1e-6) / usual), -2.5, 1.0)[:, None]


def off_contrast(days: Customers, known: Scores, off: BoolArray, harmonics: int) -> FloatArray:
    """(customer, 1 + 2·harmonics) Fourier coefficients of days off less other days."""
    on_days_off, on_others = _mean_over(days, known, off)
    contrast = on_days_off - on_others
    n_steps = contrast.shape[1]
    result: FloatArray = product(contrast, fourier(n_steps, harmonics).T) / n_steps
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

    @property
    def taken(self) -> FloatArray:
        """(day, step) taken away beside a customer's mean day."""
        return self.off[:, None] * self.contrast


@dataclass(frozen=True, eq=False, repr=False)
class Process:
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


def process_of(days: Customers, frame: Frame) -> Process:
    """The process of customers, in figures."""

    def find() -> Process:
        own = mean_day(days, frame.scores)
        log_load = days.log_load
        n, n_days, n_steps = log_load.shape
        found = Process(np.empty(n), np.empty((n, n_steps)), np.empty((n, n_days)))
        level, taken = np.ascontiguousarray(log_level(days)), frame.taken
        one_pass.process_moments(
            log_load, level, frame.scores.table, own, taken, found.size, found.variance, found.daily
        )
        np.divide(found.variance, max(n_days, 1), out=found.variance)
        return found

    return days.once(("process", frame), find)


def log_spread(days: Customers, frame: Frame, centre: float, most: float) -> FloatArray:
    """(customer, 1) log size of the process, around a centre."""
    return np.clip(log(process_of(days, frame).size) - centre, -most, most)[:, None]


def spread_profile(days: Customers, frame: Frame, harmonics: int) -> FloatArray:
    """(customer, 2·harmonics) Fourier coefficients of the variance over the day."""
    variance = process_of(days, frame).variance - 1.0
    n_steps = variance.shape[1]
    result: FloatArray = product(variance, fourier(n_steps, harmonics)[1:].T) / n_steps
    return result


def daily_means(days: Customers, frame: Frame) -> FloatArray:
    """(customer, day) means of the process."""
    return process_of(days, frame).daily


def process_energies(
    days: Customers, frame: Frame, shared: FloatArray, profile: FloatArray, ladder: Ladder
) -> FloatArray:
    """(customer, level) energies of the process without the shared factor (day, step); they add up to one.

    As in `ladder.energies`: what every doubling of the cells averages out.
    """
    own, size = mean_day(days, frame.scores), process_of(days, frame).size
    log_load = days.log_load
    spacings = np.array(ladder.spacings)
    longest = max(1, ladder.spacings[-1] // log_load.shape[2])
    left = np.zeros((len(log_load), spacings.size + 1))
    one_pass.process_left(
        log_load,
        np.ascontiguousarray(log_level(days)),
        frame.scores.table,
        own,
        frame.taken,
        size,
        (np.ascontiguousarray(shared), np.sqrt(profile)),
        spacings,
        log_load.shape[1] // longest * longest,
        left,
    )
    found = np.maximum(-np.diff(left, axis=1), 0.0)
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
    n_records, n_days, n_steps = log_load.shape
    found = np.zeros((n_records, basis.shape[0], n_steps))
    bin_of_step: IntArray = np.arange(n_steps) * len(tables) // n_steps
    per_day = np.ascontiguousarray(basis.T) / n_days
    cells = one_pass.cells_of_tables(tables)
    one_pass.ranks(np.ascontiguousarray(log_load), tables, cells, probabilities, per_day, bin_of_step, found)
    result: FloatArray = product(found, times.T).reshape(n_records, -1) / n_steps
    return result
