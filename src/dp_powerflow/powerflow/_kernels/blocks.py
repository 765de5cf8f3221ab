"""Sparse LU of real 2×2 blocks with a fixed pattern and fixed pivots, one snapshot at a time.

A real-linear map of complex vectors, x ↦ Y·x + D·conj(x), is a sparse matrix of real 2×2 blocks (stored as
four numbers, by rows). It has the pattern of Y, so one order of elimination serves every Jacobian.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from dp_powerflow.units import ComplexArray, FloatArray, IntArray


class BlockPlan(NamedTuple):
    """Pattern of L + U by rows, diagonal included, with the entries of Y_core in it.

    `diagonal` is the slot of a row's diagonal, `slot` that of the block in which a load's equation meets its
    own voltage.
    """

    ptr: IntArray
    col: IntArray
    diagonal: IntArray
    entry: ComplexArray
    slot: IntArray


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def factor_blocks(blocks: BlockPlan, extra: FloatArray, factors: FloatArray) -> int:
    """Factors of Y_core plus the blocks `extra` (load, 4) at the loads.

    Returns the sign of the determinant, 0 if singular. At no load it is |det Y_core|² > 0, and it changes
    sign at the nose.
    """
    n = blocks.diagonal.size
    for p in range(blocks.col.size):
        re, im = blocks.entry[p].real, blocks.entry[p].imag
        factors[p, 0], factors[p, 1], factors[p, 2], factors[p, 3] = re, -im, im, re
    for m in range(blocks.slot.size):
        for k in range(4):
            factors[blocks.slot[m], k] += extra[m, k]
    place = np.full(n, -1, dtype=np.int64)
    sign = 1
    for row in range(n):
        for p in range(blocks.ptr[row], blocks.ptr[row + 1]):
            place[blocks.col[p]] = p
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            k = blocks.col[p]
            _times(factors, p, blocks.diagonal[k])
            for o in range(blocks.diagonal[k] + 1, blocks.ptr[k + 1]):
                _subtract_product(factors, place[blocks.col[o]], p, o)
        determinant = _invert(factors, blocks.diagonal[row])
        if determinant == 0.0 or not np.isfinite(determinant):
            return 0
        if determinant < 0.0:
            sign = -sign
    return sign


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _times(f: FloatArray, a: int, b: int) -> None:
    """f[a] = f[a]·f[b]."""
    a0, a1, a2, a3 = f[a, 0], f[a, 1], f[a, 2], f[a, 3]
    f[a, 0] = a0 * f[b, 0] + a1 * f[b, 2]
    f[a, 1] = a0 * f[b, 1] + a1 * f[b, 3]
    f[a, 2] = a2 * f[b, 0] + a3 * f[b, 2]
    f[a, 3] = a2 * f[b, 1] + a3 * f[b, 3]


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _subtract_product(f: FloatArray, a: int, b: int, c: int) -> None:
    """f[a] −= f[b]·f[c]."""
    f[a, 0] -= f[b, 0] * f[c, 0] + f[b, 1] * f[c, 2]
    f[a, 1] -= f[b, 0] * f[c, 1] + f[b, 1] * f[c, 3]
    f[a, 2] -= f[b, 2] * f[c, 0] + f[b, 3] * f[c, 2]
    f[a, 3] -= f[b, 2] * f[c, 1] + f[b, 3] * f[c, 3]


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _invert(f: FloatArray, a: int) -> float:
    """Replace f[a] by its inverse and return its determinant."""
    a0, a1, a2, a3 = f[a, 0], f[a, 1], f[a, 2], f[a, 3]
    determinant: float = a0 * a3 - a1 * a2
    f[a, 0], f[a, 1] = a3 / determinant, -a1 / determinant
    f[a, 2], f[a, 3] = -a2 / determinant, a0 / determinant
    return determinant


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def solve_blocks(blocks: BlockPlan, factors: FloatArray, x: ComplexArray) -> None:
    """Solve in place; x holds the right-hand side in the order of the equations."""
    for row in range(x.size):
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            x[row] -= _block_times(factors, p, x[blocks.col[p]])
    for row in range(x.size - 1, -1, -1):
        for p in range(blocks.diagonal[row] + 1, blocks.ptr[row + 1]):
            x[row] -= _block_times(factors, p, x[blocks.col[p]])
        x[row] = _block_times(factors, blocks.diagonal[row], x[row])


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _block_times(f: FloatArray, a: int, z: complex) -> complex:
    return complex(f[a, 0] * z.real + f[a, 1] * z.imag, f[a, 2] * z.real + f[a, 3] * z.imag)
