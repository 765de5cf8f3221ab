"""Counterpart of the kernel of `model.history.ladder`."""

from __future__ import annotations

import numpy as np

from dp_powerflow.units import FloatArray


def _fill_autocovariance(taps: FloatArray, spacing: int, out: FloatArray) -> None:
    for lag in range(taps.size):
        out[lag] = np.sum(taps[lag:] * taps[: taps.size - lag]) / spacing
