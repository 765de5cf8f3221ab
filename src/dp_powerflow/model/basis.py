"""The public smooth basis: the orthonormal cosine transform of a day, and its frequency bands.

Coefficients are divided by √T, so that the sum of their squares is the mean square over the day and a
coefficient means the same at 24 as at 96 steps.
"""

from __future__ import annotations

import numpy as np
from scipy.fft import dct, idct

from dp_powerflow.units import FloatArray, IntArray


def to_coefficients(days: FloatArray) -> FloatArray:
    """Days (..., T) → coefficients (..., T) / √T."""
    result: FloatArray = dct(days, norm="ortho", axis=-1) / np.sqrt(days.shape[-1])
    return result


def from_coefficients(coefficients: FloatArray, n_steps: int | None = None) -> FloatArray:
    """Inverse of `to_coefficients`; missing high coefficients (..., k < T) count as zero."""
    n_steps = coefficients.shape[-1] if n_steps is None else n_steps
    result: FloatArray = idct(coefficients * np.sqrt(n_steps), n=n_steps, norm="ortho", axis=-1)
    return result


def synthesis_matrix(n_steps: int) -> FloatArray:
    """Matrix B (T, T) with day = B @ coefficients."""
    return from_coefficients(np.eye(n_steps)).T


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
    centres = np.log((low + high) / 2)
    result: FloatArray = np.interp(np.log(np.arange(edges[-1]) + 0.5), centres, values)
    return result
