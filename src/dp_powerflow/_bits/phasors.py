"""Complex numbers whose bits do not depend on the processor.

NumPy multiplies complex arrays with fused multiply-adds where the processor has them, and its absolute value
has a version of its own for AVX-512. Here everything is made of real sums, products, quotients and roots,
each rounded once. Products and quotients are a few units in the last place off, like those of NumPy.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import arctan1, kernel, sincos1, turned1
from dp_powerflow.units import ComplexArray, FloatArray

_DEG_PER_RAD = 57.29577951308232
_RAD_PER_DEG = 0.017453292519943295
_RIGHT, _STRAIGHT = 90.0, 180.0


def joined(real: FloatArray, imag: FloatArray) -> ComplexArray:
    """real + j·imag."""
    out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), dtype=np.complex128)
    out.real, out.imag = real, imag
    return out


def multiply(a: ComplexArray, b: ComplexArray) -> ComplexArray:
    """a·b, elementwise."""
    return joined(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def divide(a: ComplexArray, b: ComplexArray) -> ComplexArray:
    """a/b, elementwise; |b|² must neither overflow nor vanish."""
    size = square(b)
    return joined((a.real * b.real + a.imag * b.imag) / size, (a.imag * b.real - a.real * b.imag) / size)


def square(a: ComplexArray) -> FloatArray:
    """|a|², elementwise."""
    return np.asarray(a.real * a.real + a.imag * a.imag)


def modulus(a: ComplexArray) -> FloatArray:
    """|a|, elementwise; |a|² must neither overflow nor vanish."""
    return np.asarray(np.sqrt(square(a)))


def degrees(a: ComplexArray) -> FloatArray:
    """Angle of a, elementwise [degrees] in (-180, 180]; 0 of 0."""
    flat = np.ascontiguousarray(a, dtype=np.complex128).reshape(-1)
    out = np.empty(flat.shape)
    _degrees(flat, out)
    return out.reshape(np.shape(a))


def unit(angle_deg: FloatArray) -> ComplexArray:
    """cos + j·sin of angles [degrees], elementwise; exact at multiples of 90."""
    flat = np.ascontiguousarray(angle_deg, dtype=np.float64).reshape(-1)
    out = np.empty(flat.shape, dtype=np.complex128)
    _unit(flat, out)
    return out.reshape(np.shape(angle_deg))


@kernel
def _degrees(values: ComplexArray, out: FloatArray) -> None:
    for k in range(values.size):
        x, y = abs(values[k].real), abs(values[k].imag)
        if y <= x:
            angle = arctan1(y / x) * _DEG_PER_RAD if x > 0.0 else 0.0
        else:
            angle = _RIGHT - arctan1(x / y) * _DEG_PER_RAD
        if values[k].real < 0.0:
            angle = _STRAIGHT - angle
        out[k] = -angle if values[k].imag < 0.0 and angle < _STRAIGHT else angle


@kernel
def _unit(angles: FloatArray, out: ComplexArray) -> None:
    for k in range(angles.size):
        quarter = np.floor(angles[k] / _RIGHT + 0.5)
        s, c = sincos1((angles[k] - _RIGHT * quarter) * _RAD_PER_DEG)
        s, c = turned1(s, c, int(quarter) % 4)
        out[k] = complex(c, s)


def solve(matrix: ComplexArray, right: ComplexArray) -> ComplexArray:
    """x of matrix·x = right for a small dense matrix, by elimination in extended precision.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is singular.
    """
    a = np.concatenate([matrix, right[:, None]], axis=1).astype(np.clongdouble)
    n = len(a)
    for k in range(n):
        column = a[k:, k]
        pivot = k + int(np.argmax(column.real * column.real + column.imag * column.imag))
        if a[pivot, k] == 0.0:
            raise np.linalg.LinAlgError("the matrix is singular")
        a[[k, pivot]] = a[[pivot, k]]
        a[k] = a[k] / a[k, k]
        for i in range(n):
            if i != k:
                a[i] = a[i] - a[i, k] * a[k]
    return np.asarray(a[:, n].astype(np.complex128))
