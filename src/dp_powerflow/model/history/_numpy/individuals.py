"""Counterparts of the kernels of `model.history.individuals`: all customers at once, each with a search.

A customer's numbers depend on its own alone, so they are those of one customer after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow._bits._numpy import vectors
from dp_powerflow.model.history import individuals as of
from dp_powerflow.model.history._numpy.calibrate import interpolated
from dp_powerflow.model.history.contributions import BASE_SHARE
from dp_powerflow.model.history.halving import CELLS, HALVINGS, MOST_LOOKS
from dp_powerflow.model.history.population import HIGHEST_SCORE, LOWEST_SCORE, SCORES
from dp_powerflow.units import BoolArray, FloatArray, IntArray

_PER_UNIT = (SCORES - 1) / (HIGHEST_SCORE - LOWEST_SCORE)
Values = Callable[[IntArray, Any], FloatArray]
"""Values of a function of some customers, each at its own place."""


def _loads_at(table: FloatArray, score: FloatArray) -> FloatArray:
    return interpolated(table, (score - LOWEST_SCORE) * _PER_UNIT)


def _expected_loads(
    table: FloatArray, mean: FloatArray, std: FloatArray, quadrature: tuple[FloatArray, FloatArray]
) -> FloatArray:
    """(customer,) mean over the day of the expected load; one table (score,), or (customer, score)."""
    nodes, weights = quadrature
    scores = (mean[:, :, None] + std[:, :, None] * nodes).reshape(len(mean), -1)
    terms = np.tile(weights, mean.shape[1]) * _loads_at(table, scores)
    return np.asarray(vectors.added(terms) / mean.shape[1])


@dataclass(frozen=True, eq=False)
class _Search:
    """What halvings find where functions rise through zero, as `halving` says, for every customer at once.

    Attributes
    ----------
    low, high : of all customers.
    rounding : how far off a value may be.
    looks : values looked at before an interval is halved in earnest.
    """

    low: float
    high: float
    rounding: float
    looks: int

    def found(self, near: FloatArray, slope: Any, values: Values) -> FloatArray:
        """(customer,) places of zeros.

        Parameters
        ----------
        near : where to look first, as a share of the interval.
        slope : a guess of how values change from one cell to the next.
        """
        out = np.full(near.size, np.nan)
        self._look(near, np.broadcast_to(slope, near.shape), values, out)
        left = np.flatnonzero(out != out)
        if left.size:
            out[left] = self._halved(left, values)
        return out

    def _look(self, near: FloatArray, slope: FloatArray, values: Values, out: FloatArray) -> None:
        width = (self.high - self.low) / CELLS
        who, inside = np.arange(near.size), near * CELLS
        inside = np.minimum(np.where(inside > 1.0, inside, 1.0), CELLS - 1.0)
        place = before = inside.astype(np.int64)
        low, high = np.zeros(who.size, dtype=np.int64), np.full(who.size, CELLS)
        under, over = np.full(who.size, -np.inf), np.full(who.size, np.inf)
        value_before = np.zeros(who.size)
        for _ in range(self.looks if who.size else 0):
            value = values(who, place * width + self.low)
            below = value < 0.0
            low, under = np.where(below, place, low), np.where(below, value, under)
            high, over = np.where(below, high, place), np.where(below, over, value)
            apart = place - before
            slope = np.where(apart == 0, slope, (value - value_before) / apart)
            to = place - value / slope
            to = np.where((low < to) & (to < high), to, (low + high) / 2)
            before, value_before = place, value
            place = np.minimum(np.maximum(low + 1, to.astype(np.int64)), high - 1)
            sure = self._sure(low, high, under, over)
            out[who[sure]] = ((low * width + self.low) + (high * width + self.low))[sure] / 2
            on = high - low > 1
            who, place, before, low, high = who[on], place[on], before[on], low[on], high[on]
            under, over, slope, value_before = under[on], over[on], slope[on], value_before[on]
            if not who.size:
                return

    def _sure(self, low: IntArray, high: IntArray, under: FloatArray, over: FloatArray) -> BoolArray:
        below = (low == 0) | (under < -self.rounding)
        return np.asarray((high - low == 1) & below & ((high == CELLS) | (over > self.rounding)))

    def _halved(self, who: IntArray, values: Values) -> FloatArray:
        low, high = np.full(who.size, self.low), np.full(who.size, self.high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = values(who, middle) < 0.0
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray((low + high) / 2)


def _offsets(
    table: FloatArray,
    shape: FloatArray,
    std: FloatArray,
    nodes: FloatArray,
    weights: FloatArray,
    out: FloatArray,
) -> None:
    rising = table[0] >= 0.0 and table[-1] < np.inf and bool(np.all(table[1:] >= table[:-1]))
    rounding = 1e-15 * (shape.shape[1] * nodes.size + 16)

    def excess(who: IntArray, offset: FloatArray) -> FloatArray:
        return _expected_loads(table, shape[who] + offset[:, None], std[who], (nodes, weights)) - 1.0

    search = _Search(-4.0, 4.0, rounding, MOST_LOOKS if rising else 0)
    out[:] = search.found((out + 4.0) / 8.0, 8.0 / CELLS, excess)


def _scores_below(mean: FloatArray, std: FloatArray, share: float) -> FloatArray:
    """(customer,) score that a share of all steps lies below."""
    size, wanted = mean.shape[1], share * mean.shape[1]
    centre, quantile = vectors.added(mean) / size, vectors.ndtri(np.float64(share))
    apart = mean - centre[:, None]
    spread = np.sqrt(vectors.added(std * std + apart * apart) / size)
    density = vectors.exp(-quantile * quantile / 2) / 2.5066282746310002
    whole = HIGHEST_SCORE - LOWEST_SCORE

    def excess(who: IntArray, score: FloatArray) -> FloatArray:
        below = vectors.added(vectors.ndtr((score[:, None] - mean[who]) / std[who]))
        return np.asarray(below - wanted)

    search = _Search(LOWEST_SCORE, HIGHEST_SCORE, 8e-15 * size + 4e-16 * size * size, MOST_LOOKS)
    near = (centre + quantile * spread - LOWEST_SCORE) / whole
    return search.found(near, size * density / spread * (whole / CELLS), excess)


def _bend(
    table: FloatArray,
    mean: FloatArray,
    std: FloatArray,
    log_peak: FloatArray,
    log_base: FloatArray,
    n_days: float,
    quadrature: tuple[FloatArray, FloatArray],
    out: FloatArray,
) -> None:
    log, exp = vectors.log, vectors.exp
    share = 1 - of.EXPECTED_PASSES / (n_days * mean.shape[1])
    at_peak = _loads_at(table, _scores_below(mean, std, share))
    at_base = _loads_at(table, _scores_below(mean, std, BASE_SHARE))
    log_top, log_bottom = log(table / of.TOP), log(np.maximum(table, 1e-9) / of.BOTTOM)
    bent, scale = np.empty_like(out), np.ones(len(mean))
    for _ in range(of._ROUNDS):
        moved = log(_between(scale, of._SCALE))
        peak, base = np.maximum(log_peak, of._LEAST_PEAK) + moved, log_base + moved
        top = log(np.maximum(exp(peak) / of.TOP, 1.05)) / log(np.maximum(at_peak / of.TOP, 1.01))
        under = np.minimum(log(np.maximum(at_base, 1e-4) / of.BOTTOM), -0.05)
        bottom = np.minimum(base - log(np.float64(of.BOTTOM)), -0.05) / under
        top, bottom = _between(top, of._BEND)[:, None], _between(bottom, of._BASE_BEND)[:, None]
        most, least = exp(peak)[:, None], (of.STANDBY * exp(base))[:, None]
        above = np.minimum(of.TOP * exp(log_top * top), most)
        below = np.maximum(of.BOTTOM * exp(log_bottom * bottom), least)
        middle = np.minimum(table, most)
        bent = np.where(table > of.TOP, above, np.where(table < of.BOTTOM, below, middle))
        scale = _expected_loads(bent, mean + 0.0, std, quadrature)
    out[:] = log(bent / scale[:, None])


def _between(x: FloatArray, ends: tuple[float, float]) -> FloatArray:
    return np.asarray(np.minimum(np.maximum(x, ends[0]), ends[1]))
