"""Φ of many ascending numbers: the same bits as one by one, in loops that run on vectors."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import kernel
from dp_powerflow._bits.linear import (
    _ERF,
    _ERFC,
    _SQRT_HALF,
    _gauss,
    _ratio,
    ndtr1,
)
from dp_powerflow.units import FloatArray

_NEAR = 7.9  # up to which the tails have one formula, over √2
_SURE = 8.5  # above which Φ is one


@kernel
def ndtr_ascending(values: FloatArray, out: FloatArray) -> None:
    """Φ of ascending numbers (n,)."""
    n = values.size
    if not (values[0] >= -40.0 and values[n - 1] <= 40.0):
        for k in range(n):
            out[k] = ndtr1(values[k])
        return
    far = np.searchsorted(values, -_NEAR / _SQRT_HALF)
    lower = far
    while lower < n and not (abs(values[lower]) * _SQRT_HALF < 1.0) and values[lower] < 0.0:
        lower += 1
    upper = lower
    while upper < n and abs(values[upper]) * _SQRT_HALF < 1.0:
        upper += 1
    sure = upper
    while sure < n and values[sure] <= _SURE:
        sure += 1
    for k in range(far):
        out[k] = ndtr1(values[k])
    for k in range(far, lower):
        x = values[k]
        out[k] = 0.5 * _gauss(x) * _ratio(_ERFC, abs(x) * _SQRT_HALF)
    for k in range(lower, upper):
        x = values[k]
        a = abs(x) * _SQRT_HALF
        out[k] = 0.5 + 0.5 * (x * _SQRT_HALF) * _ratio(_ERF, a * a)
    for k in range(upper, sure):
        x = values[k]
        out[k] = 1.0 - 0.5 * _gauss(x) * _ratio(_ERFC, abs(x) * _SQRT_HALF)
    for k in range(sure, n):
        out[k] = 1.0
