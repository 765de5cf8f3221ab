"""Customers with a level, a shape, days that remember and weather they share: to draw halves of."""

from __future__ import annotations

import numpy as np

from dp_powerflow.units import FloatArray

DAYS, STEPS, FLOOR = 28, 24, 1e-3
WEEKEND = np.arange(DAYS) % 7 >= 5


def lived(n: int, seed: int) -> FloatArray:
    """(customer, day, step) loads [kW] of customers of one population."""
    rng, common = np.random.default_rng(seed), np.random.default_rng(99)
    weather = remembered(common.standard_normal((1, DAYS)), 0.6)
    own = remembered(rng.standard_normal((n, DAYS)), 0.6)
    shape = np.sin(2 * np.pi * (np.arange(STEPS) / STEPS + 0.05 * rng.standard_normal((n, 1))))
    level = 0.7 * rng.standard_normal((n, 1, 1))
    noise = 0.3 * rng.standard_normal((n, DAYS, STEPS))
    log_load = level + 0.2 * (weather + own)[:, :, None] + 0.5 * shape[:, None] + noise
    return np.exp(log_load)


def remembered(white: FloatArray, memory: float) -> FloatArray:
    """A process (customer, day) whose days remember the one before."""
    process = white.copy()
    for d in range(1, process.shape[1]):
        process[:, d] = memory * process[:, d - 1] + np.sqrt(1 - memory**2) * white[:, d]
    return process


def strangers(load: FloatArray, seed: int) -> FloatArray:
    """The same customer-days dealt out anew: every marginal as it was, no customer and no memory left."""
    days = load.reshape(-1, load.shape[2])
    dealt: FloatArray = days[np.random.default_rng(seed).permutation(len(days))].reshape(load.shape)
    return dealt
