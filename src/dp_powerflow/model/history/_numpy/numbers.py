"""Counterparts of the kernels of `model.history.numbers`."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits._numpy import vectors
from dp_powerflow.model.history.numbers import _SWEEPS
from dp_powerflow.units import FloatArray


def _ndtr(values: FloatArray, out: FloatArray) -> None:
    out[:] = vectors.ndtr(values)


def _ndtri(values: FloatArray, out: FloatArray) -> None:
    out[:] = vectors.ndtri(values)


def _interpolate(x: FloatArray, at: FloatArray, values: FloatArray, out: FloatArray) -> None:
    last = at.size - 1
    upper = np.clip(np.searchsorted(at, x, side="right"), 1, last) if last else np.zeros(x.size, np.int64)
    share = (x - at[upper - 1]) / (at[upper] - at[upper - 1])
    inside = values[upper - 1] + share * (values[upper] - values[upper - 1])
    out[:] = np.where(x <= at[0], values[0], np.where(x >= at[last], values[last], inside))


def _descend(matrix: FloatArray, residual: FloatArray, x: FloatArray) -> None:
    squares = vectors.added(matrix * matrix, axis=0)
    for _ in range(_SWEEPS):
        for j in np.flatnonzero(squares > 0.0):
            along = vectors.added(matrix[:, j] * residual)
            step = max(along / squares[j], -x[j])
            x[j] += step
            residual -= step * matrix[:, j]


def best_normal(
    shares: FloatArray, edges: FloatArray, noise_std: float, centre: float, spread: float
) -> tuple[float, float]:
    x = (np.arange(61) - 30)[:, None] / 20
    y = -2.0 + 0.05 * np.arange(59)[None, :]
    mean, std = centre + spread * x, spread * vectors.exp(y)
    misfit, below = np.zeros((61, 59)), np.zeros((61, 59))
    for k in range(shares.size):
        last = k == shares.size - 1
        upto = np.ones((61, 59)) if last else vectors.ndtr((edges[k + 1] - mean) / std)
        gap = shares[k] - (upto - below)
        misfit += gap * gap
        below = upto
    cost = misfit / max(noise_std * noise_std, 1e-12) + x * x + 4 * y * y
    i, j = _least(cost)
    return (float(mean[i, 0]), float(std[0, j])) if cost[i, j] < np.inf else (centre, spread)


def _least(cost: FloatArray) -> tuple[int, int]:
    """Where the smallest number stands, the first of equal ones."""
    i, j = divmod(int(np.argmin(np.where(cost < np.inf, cost, np.inf))), cost.shape[1])
    return i, j
