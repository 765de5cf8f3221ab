"""INTERNAL. Filling gaps of meters: trained on drawn histories, tested on real ones.

Four hours of a customer are hidden, at one of six times of day. Ridge regression fills their log loads from
the four hours before and after, the same hours of the day before and of the day after, whether the day is a
weekend, and which of the six times it is.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow.fidelity.next_day import Rows, forecast_error
from dp_powerflow.units import BoolArray, FloatArray, IntArray

HIDDEN = 4
"""Hours of a gap, and of what is seen before and after it."""
HOURS = 24
STARTS = np.arange(0, HOURS, HIDDEN)
_MOST_ROWS = 6000


def gap_rows(log_load: FloatArray, weekend: BoolArray, rng: np.random.Generator) -> Rows:
    """At most 6,000 gaps, drawn at random; `log_load` is (customer, day, hour)."""
    n, days, _ = log_load.shape
    grids = np.meshgrid(np.arange(n), np.arange(1, days - 1), np.arange(len(STARTS)), indexing="ij")
    who, when, start = (axis.ravel() for axis in grids)
    chosen = rng.permutation(who.size)[:_MOST_ROWS]
    return _rows(log_load, weekend, who[chosen], when[chosen], start[chosen])


def gap_error(drawn: FloatArray, real: FloatArray, weekend: BoolArray, seed: int = 0) -> float:
    """INTERNAL. Root mean square error of filled gaps, trained on drawn, tested on real [log kW].

    Parameters
    ----------
    drawn, real
        Hourly loads (customer, day, hour) [kW].
    """
    sides = (
        gap_rows(np.log(load), weekend, np.random.default_rng([seed, 6, side]))
        for side, load in enumerate((drawn, real))
    )
    return forecast_error(*sides)


def _rows(log_load: FloatArray, weekend: BoolArray, who: IntArray, when: IntArray, start: IntArray) -> Rows:
    series = log_load.reshape(len(log_load), -1)
    first = when * HOURS + STARTS[start]
    stretch = np.arange(HIDDEN)

    def seen(away: int) -> FloatArray:
        hours: FloatArray = series[who[:, None], first[:, None] + stretch + away]
        return hours

    calendar = np.column_stack([weekend[when], start[:, None] == np.arange(len(STARTS))])
    around = [seen(away) for away in (-HIDDEN, HIDDEN, -HOURS, HOURS)]
    return np.hstack([*around, calendar.astype(np.float64)]), seen(0)
