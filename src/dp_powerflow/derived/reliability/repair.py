"""Laws of a repair time, by their mean [h]: what is drawn, and the mean of what switching cuts short."""

from __future__ import annotations

import math

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, log
from dp_powerflow.derived.reliability.settings import ReliabilitySettings
from dp_powerflow.units import FloatArray


def mean_cut_short(mean: FloatArray, hours: float, settings: ReliabilitySettings) -> FloatArray:
    """E[min(R, hours)] of repair times R with these means [h]."""
    if settings.repair_law == "fixed":
        return np.asarray(np.minimum(mean, hours))
    if settings.repair_law == "exponential":
        return np.asarray(mean * (1.0 - exp(-hours / mean)))
    spread = settings.repair_spread
    far = (np.array([math.log(hours / each) for each in mean]) + 0.5 * spread**2) / spread
    below = np.array([_normal(x - spread) for x in far])
    return np.asarray(mean * below + hours * (1.0 - np.array([_normal(x) for x in far])))


def drawn_hours(
    mean: FloatArray, generator: np.random.Generator, settings: ReliabilitySettings
) -> FloatArray:
    """A repair time for every mean [h]."""
    if settings.repair_law == "fixed":
        return mean
    first = log(1.0 - generator.random(len(mean)))
    if settings.repair_law == "exponential":
        return -mean * first
    normal = np.sqrt(-2.0 * first) * cos(2.0 * math.pi * generator.random(len(mean)))
    spread = settings.repair_spread
    return mean * exp(spread * normal - 0.5 * spread**2)


def _normal(x: float) -> float:
    """Φ."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
