"""Φ of many ascending numbers: the same bits as one by one, in loops that run on vectors."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import exp1, kernel
from dp_powerflow._bits.linear import _ERF, _ERFC, _SQRT_HALF, _ratio, ndtr1
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
    _below(values[far:lower], out[far:lower])
    _centre(values[lower:upper], out[lower:upper])
    _below(values[upper:sure], out[upper:sure])
    for k in range(upper, sure):
        out[k] = 1.0 - out[k]
    for k in range(sure, n):
        out[k] = 1.0


@kernel
def _below(values: FloatArray, out: FloatArray) -> None:
    """What lies beyond numbers of the tails; as `ndtr1`, but that its floor keeps loops off vectors."""
    for k in range(values.size):
        a = abs(values[k])
        head = float(int(a * 64.0 + 0.5)) / 64.0
        gauss = exp1(-0.5 * head * head) * exp1(-0.5 * (a - head) * (a + head))
        out[k] = 0.5 * gauss * _ratio(_ERFC, a * _SQRT_HALF)


@kernel
def _centre(values: FloatArray, out: FloatArray) -> None:
    for k in range(values.size):
        x = values[k]
        a = abs(x) * _SQRT_HALF
        out[k] = 0.5 + 0.5 * (x * _SQRT_HALF) * _ratio(_ERF, a * a)
