"""Counterparts of the kernels of `_bits.elementary`."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits._numpy import vectors
from dp_powerflow._bits.elementary import _RAD_PER_DEG, _RIGHT
from dp_powerflow.units import ComplexArray, FloatArray


def exp1(x: float) -> float:
    return float(vectors.exp(np.float64(x)))


def log1(x: float) -> float:
    return float(vectors.log(np.float64(x)))


def expm11(x: float) -> float:
    return float(vectors.expm1(np.float64(x)))


def _fill(which: int, values: FloatArray, out: FloatArray) -> None:
    if which == 0:
        out[:] = vectors.exp(values)
    elif which == 1:
        out[:] = vectors.log(values)
    elif which == 5:
        out[:] = vectors.arctan(values)
    else:
        s, c = vectors.sincos(values)
        out[:] = (s, c, s / c)[which - 2]


def _degrees(values: ComplexArray, out: FloatArray) -> None:
    out[:] = vectors.degrees(values.real, values.imag)


def _unit(angles: FloatArray, out: ComplexArray) -> None:
    quarter = np.floor(angles / _RIGHT + 0.5)
    s, c = vectors.sincos((angles - _RIGHT * quarter) * _RAD_PER_DEG)
    out.imag, out.real = vectors.turned(s, c, quarter.astype(np.int64) % 4)
