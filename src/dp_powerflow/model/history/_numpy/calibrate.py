"""Counterparts of the kernels of `model.history.calibrate`."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits._numpy import vectors
from dp_powerflow.model.history.population import HIGHEST_SCORE, LOWEST_SCORE, SCORES
from dp_powerflow.units import FloatArray

_ROWS = 256
"""Rows of numbers made at once."""


def _add_below(grid: FloatArray, mean: FloatArray, std: FloatArray, out: FloatArray) -> None:
    stride = max(1, mean.shape[1] // 48)
    means, stds = mean[:, ::stride].reshape(-1, 1), std[:, ::stride].reshape(-1, 1)
    for first in range(0, len(means), _ROWS):
        some = slice(first, first + _ROWS)
        for below in vectors.ndtr((grid - means[some]) / stds[some]):
            out += below
    out /= len(means)


def _through(maps: FloatArray, scores: FloatArray) -> None:
    per_unit = (SCORES - 1) / (HIGHEST_SCORE - LOWEST_SCORE)
    scores[:] = interpolated(maps, (scores - LOWEST_SCORE) * per_unit)


def interpolated(table: FloatArray, place: FloatArray) -> FloatArray:
    """Linear between the entries of a table over the scores, ends held; the first entry at no number.

    One table (score,) for all places, or a table of its own (row, score) for every row of places.
    """
    inside = np.minimum(np.where(place > 0.0, place, 0.0), SCORES - 1.000001)
    lower = inside.astype(np.int64)
    at = lower if table.ndim == 1 else lower + np.arange(len(table))[:, None] * SCORES
    flat = table.reshape(-1)
    low = flat[at]
    return np.asarray(low + (inside - lower) * (flat[at + 1] - low))
