"""INTERNAL. A forecast of the next day, trained on drawn histories and tested on real ones.

Ridge regression of the 24 hourly log loads of a day on those of the day before, of the same day of the week
before, the mean of the seven days before, and whether it and the day before are weekends.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow.units import BoolArray, FloatArray, IntArray

WEEK = 7
_PENALTY = 10.0
_MOST_ROWS = 6000

Rows = tuple[FloatArray, FloatArray]
"""(row, feature) and (row, hour)."""


def customer_days(log_load: FloatArray, weekend: BoolArray, rng: np.random.Generator) -> Rows:
    """At most 6,000 days of customers, drawn at random; `log_load` is (customer, day, hour)."""
    n, days, _ = log_load.shape
    who, when = (axis.ravel() for axis in np.meshgrid(np.arange(n), np.arange(WEEK, days), indexing="ij"))
    chosen = rng.permutation(who.size)[:_MOST_ROWS]
    return _rows(log_load, weekend, who[chosen], when[chosen])


def feeder_days(log_load: FloatArray, weekend: BoolArray) -> Rows:
    """All days of feeders; `log_load` is (feeder, day, hour)."""
    n, days, _ = log_load.shape
    who, when = np.meshgrid(np.arange(n), np.arange(WEEK, days), indexing="ij")
    return _rows(log_load, weekend, who.ravel(), when.ravel())


def forecast_error(trained: Rows, tested: Rows) -> float:
    """Root mean square error on `tested` of the forecast that `trained` gives."""
    features, target = trained
    centre, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    unit, middle = (features - centre) / spread, target.mean(axis=0)
    gram = unit.T @ unit + _PENALTY * np.eye(unit.shape[1])
    weights = np.linalg.solve(gram, unit.T @ (target - middle))
    forecast = (tested[0] - centre) / spread @ weights + middle
    return float(np.sqrt(np.mean((forecast - tested[1]) ** 2)))


def _rows(log_load: FloatArray, weekend: BoolArray, who: IntArray, when: IntArray) -> Rows:
    before = log_load[who[:, None], when[:, None] - np.arange(1, WEEK + 1)]
    calendar = np.column_stack([weekend[when], weekend[when - 1]]).astype(np.float64)
    features = np.hstack([before[:, 0], before[:, -1], before.mean(axis=1), calendar])
    return features, log_load[who, when]
