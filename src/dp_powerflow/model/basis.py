"""The public smooth basis: the orthonormal cosine transform of a day, and its frequency bands.

Coefficients are divided by √T, so that the sum of their squares is the mean square over the day and a
coefficient means the same at 24 as at 96 steps.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from dp_powerflow._bits.elementary import cos, log
from dp_powerflow._bits.linear import product
from dp_powerflow.units import FloatArray, IntArray


def to_coefficients(days: FloatArray, count: int | None = None) -> FloatArray:
    """Days (..., T) → the lowest `count` coefficients (..., count), or all."""
    n_steps = days.shape[-1]
    return product(days, _analysis(n_steps, n_steps if count is None else count))


def from_coefficients(coefficients: FloatArray, n_steps: int | None = None) -> FloatArray:
    """Inverse of `to_coefficients`; missing high coefficients (..., k < T) count as zero."""
    count = coefficients.shape[-1]
    return product(coefficients, synthesis_matrix(count if n_steps is None else n_steps)[:, :count].T)


@cache
def synthesis_matrix(n_steps: int) -> FloatArray:
    """Matrix B (T, T) with day = B·coefficients: 1 and √2·cos(πk(t + ½)/T)."""
    # The angle is 2π·m/4T with m = k·(2t + 1); integers fold it into the first quarter without error.
    m = np.outer(2 * np.arange(n_steps) + 1, np.arange(n_steps)) % (4 * n_steps)
    m = np.minimum(m, 4 * n_steps - m)
    sign = np.where(m > n_steps, -1.0, 1.0)
    quarter = np.minimum(m, 2 * n_steps - m)
    matrix: FloatArray = sign * math.sqrt(2.0) * cos(quarter * (math.pi / (2 * n_steps)))
    matrix[:, 0] = 1.0
    matrix.flags.writeable = False
    return matrix


@cache
def _analysis(n_steps: int, count: int) -> FloatArray:
    """Matrix (T, count) with coefficients = day·matrix."""
    matrix = np.ascontiguousarray(synthesis_matrix(n_steps)[:, :count] / n_steps)
    matrix.flags.writeable = False
    return matrix


def band_edges(n_steps: int) -> tuple[int, ...]:
    """Edges of the frequency bands: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, …, T (13 bands at T = 96)."""
    edges = [0, 1, 2, 3]
    octave = 4
    while octave < n_steps:
        edges += [octave, octave * 3 // 2]
        octave *= 2
    return (*(edge for edge in edges if edge < n_steps), n_steps)


def band_of(edges: tuple[int, ...]) -> IntArray:
    """Band index (T,) of every coefficient."""
    return np.repeat(np.arange(len(edges) - 1), np.diff(edges))


def band_means(energy: FloatArray, edges: tuple[int, ...]) -> FloatArray:
    """Mean of (..., T) over each band → (..., band)."""
    sums: FloatArray = np.add.reduceat(energy, edges[:-1], axis=-1)
    return sums / np.diff(edges)


def interpolate_bands(values: FloatArray, edges: tuple[int, ...]) -> FloatArray:
    """Values (band,) → (T,), linear in the log of frequency between the bands' centres.

    A spectrum falls within a band too; a staircase of log energies would miss that.
    """
    low, high = np.asarray(edges[:-1]), np.asarray(edges[1:])
    if low.size == 1:
        return np.full(edges[-1], values[0])
    centres = log((low + high) / 2)
    at = log(np.arange(0.5, edges[-1]))
    upper = np.clip(np.searchsorted(centres, at), 1, low.size - 1)
    share = np.clip((at - centres[upper - 1]) / (centres[upper] - centres[upper - 1]), 0.0, 1.0)
    result: FloatArray = (1 - share) * values[upper - 1] + share * values[upper]
    return result
