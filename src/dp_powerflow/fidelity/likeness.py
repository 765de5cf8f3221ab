"""INTERNAL. Customers as points: traits and shape of the mean day, and how near one is to others."""

from __future__ import annotations

import numpy as np

from dp_powerflow.units import FloatArray

HARMONICS = 3
"""Of the mean day, each with two features."""
NEAR = 0.1
"""Quantile over customers of their distance to the nearest real one."""


def traits_of(load: FloatArray) -> FloatArray:
    """(customer, feature): log level, spread of days, peak over mean, spread of log loads, mean day.

    Parameters
    ----------
    load
        (customer, day, step) [kW], positive.
    """
    log_load, series = np.log(load), load.reshape(len(load), -1)
    energy, mean_day = np.log(load.mean(axis=2)), log_load.mean(axis=1)
    about = mean_day - mean_day.mean(axis=1, keepdims=True)
    shape = np.fft.rfft(about, axis=1)[:, 1 : 1 + HARMONICS] / load.shape[2]
    return np.column_stack(
        [
            np.log(series.mean(axis=1)),
            np.log(energy.std(axis=1) + 0.05),
            np.log(series.max(axis=1) / series.mean(axis=1)),
            log_load.std(axis=(1, 2)),
            shape.real,
            shape.imag,
        ]
    )


def distances(points: FloatArray, others: FloatArray, scale: FloatArray) -> FloatArray:
    """(point, other) Euclidean distances, features over their scale."""
    first, second = (features / np.maximum(scale, 1e-9) for features in (points, others))
    squares = np.sum(first**2, axis=1)[:, None] + np.sum(second**2, axis=1) - 2 * first @ second.T
    apart: FloatArray = np.sqrt(np.maximum(squares, 0.0))
    return apart


def nearest_distance(side: FloatArray, real: FloatArray) -> float:
    """INTERNAL. Distance of a customer to the real one nearest to it [standard deviations of traits].

    The tenth percentile over customers, so that it is small where some of them are copies.

    Parameters
    ----------
    side, real
        Loads (customer, day, step) [kW].
    """
    points, others = traits_of(side), traits_of(real)
    return float(np.quantile(distances(points, others, others.std(axis=0)).min(axis=1), NEAR))
