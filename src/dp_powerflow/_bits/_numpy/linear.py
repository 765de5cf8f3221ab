"""Counterparts of the kernels of `_bits.linear`: every entry is a sum in the kernel's order."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits._numpy import vectors
from dp_powerflow._bits.linear import _SWEEPS, WordArray
from dp_powerflow.units import FloatArray


def log_ndtr1(x: float) -> float:
    return float(vectors.log_ndtr(np.float64(x)))


def _product(left: FloatArray, right: FloatArray, out: FloatArray) -> None:
    for k in range(left.shape[1]):
        out += left[:, k, None] * right[k]


def _norms(vectors_of: FloatArray, out: FloatArray) -> None:
    out[:] = np.sqrt(vectors.added(vectors_of * vectors_of))


def _cholesky(upper: FloatArray) -> bool:
    for k in range(len(upper)):
        if not upper[k, k] > 0.0:
            return False
        upper[k, k] = np.sqrt(upper[k, k])
        row = upper[k, k + 1 :]
        row /= upper[k, k]
        upper[k + 1 :, k] = 0.0
        upper[k + 1 :, k + 1 :] -= np.multiply.outer(row, row)
    return True


def _solve_lower(factor: FloatArray, out: FloatArray) -> None:
    for k in range(len(factor)):
        out[k] /= factor[k, k]
        out[k + 1 :] -= factor[k + 1 :, k, None] * out[k]


def _solve_upper(factor: FloatArray, out: FloatArray) -> None:
    for i in range(len(factor) - 1, -1, -1):
        terms = np.concatenate([out[i : i + 1], factor[i + 1 :, i, None] * out[i + 1 :]])
        out[i] = np.subtract.accumulate(terms, axis=0)[-1] / factor[i, i]


def _jacobi(a: FloatArray, vectors_of: FloatArray) -> None:
    limit = 1e-17 * np.sqrt(vectors.added((a * a).reshape(-1)))
    for _ in range(_SWEEPS):
        rotated = False
        for p in range(len(a) - 1):
            for q in range(p + 1, len(a)):
                off = a[p, q]
                if abs(off) > limit:
                    rotated = True
                    _rotate(a, vectors_of, p, q)
        if not rotated:
            return


def _rotate(a: FloatArray, vectors_of: FloatArray, p: int, q: int) -> None:
    """Make one entry zero."""
    off = a[p, q]
    theta = (a[q, q] - a[p, p]) / (2.0 * off)
    t = 1.0 / (abs(theta) + np.sqrt(theta * theta + 1.0))
    t = t if theta >= 0.0 else -t
    c = 1.0 / np.sqrt(t * t + 1.0)
    s = t * c
    first, second = a[p, p] - t * off, a[q, q] + t * off
    for rows in (a, vectors_of):
        x, y = rows[p].copy(), rows[q].copy()
        rows[p], rows[q] = c * x - s * y, s * x + c * y
    a[:, p], a[:, q] = a[p], a[q]
    a[p, p], a[q, q] = first, second
    a[p, q] = a[q, p] = 0.0


def _from_words(words: WordArray, out: FloatArray) -> None:
    out[:] = vectors.from_words(words)
