"""Counterparts of the kernels of `model.history.one_pass` that the model's own customers go through."""

from __future__ import annotations

import numpy as np

from dp_powerflow.model.history.one_pass import _CELLS
from dp_powerflow.units import FloatArray, IntArray


def _entries_before(tables: FloatArray, low: FloatArray, per_unit: FloatArray, before: IntArray) -> None:
    scaled = (tables - low[:, None]) * per_unit[:, None]
    cells = np.minimum(np.where(scaled > 0.0, scaled, 0.0), _CELLS - 1.0).astype(np.int64)
    highest = np.maximum.accumulate(cells, axis=1)  # an entry out of order is passed with those before it
    for own, found in zip(before, highest, strict=True):
        own[:_CELLS] = np.searchsorted(found, np.arange(_CELLS))
    before[:, _CELLS] = tables.shape[1]


def ranks(
    log_load: FloatArray,
    tables: FloatArray,
    cells: tuple[FloatArray, FloatArray, IntArray],
    probabilities: FloatArray,
    basis: FloatArray,
    bin_of_step: IntArray,
    out: FloatArray,
) -> None:
    last, points = probabilities.size - 1, basis.shape[0] - 1
    for row in range(len(tables)):
        steps, table = np.flatnonzero(bin_of_step == row), tables[row]
        x = log_load[:, :, steps]
        lower, upper = np.searchsorted(table, x), np.searchsorted(table, x, side="right")
        inside = np.clip(lower, 1, last)
        share = (x - table[inside - 1]) / (table[inside] - table[inside - 1])
        between = probabilities[inside - 1] + share * (probabilities[inside] - probabilities[inside - 1])
        tied = (probabilities[np.minimum(lower, last)] + probabilities[upper - 1]) / 2
        ends = np.where(lower == 0, probabilities[0], probabilities[last])
        rank = np.where(upper > lower, tied, np.where((lower == 0) | (lower > last), ends, between))
        scaled = rank * points + 0.5
        at = np.minimum(np.where(scaled > 0.0, scaled, 0.0), points).astype(np.int64)
        for day in range(at.shape[1]):
            out[:, :, steps] += basis[at[:, day]].transpose(0, 2, 1)
