"""The sums of NumPy, inside kernels: pairwise over what lies in a row, with the same bits.

`np.sum` adds up to 128 numbers by eight running totals and splits longer rows in halves. A kernel that does
the same in the same order can take the place of arrays of intermediate results.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import kernel
from dp_powerflow.units import FloatArray

_BLOCK = 128
_DEPTH = 192  # three for every time that 2⁶³ can be halved


@kernel
def row_sum(values: FloatArray, start: int, count: int) -> float:
    """Sum of `count` entries of an array (n,) from `start` on."""
    if count <= _BLOCK:
        return _block_sum(values, start, count)
    return _pairwise(values, start, count, False)


@kernel
def row_squares(values: FloatArray, start: int, count: int) -> float:
    """Sum of the squares of `count` entries of an array (n,) from `start` on."""
    if count <= _BLOCK:
        return _block_squares(values, start, count)
    return _pairwise(values, start, count, True)


@kernel
def _pairwise(values: FloatArray, start: int, count: int, squared: bool) -> float:
    """Halves of halves, the first one first; numba does not cache functions that call themselves."""
    todo = np.empty((_DEPTH, 2), dtype=np.int64)
    sums = np.empty(_DEPTH)
    todo[0, 0], todo[0, 1] = start, count
    waiting, known = 1, 0
    while waiting:
        waiting -= 1
        first, size = todo[waiting, 0], todo[waiting, 1]
        if size < 0:  # both halves are known
            known -= 1
            sums[known - 1] = sums[known - 1] + sums[known]
        elif size <= _BLOCK:
            sums[known] = _block_squares(values, first, size) if squared else _block_sum(values, first, size)
            known += 1
        else:
            half = size // 2
            half -= half % 8
            todo[waiting, 1] = -1
            todo[waiting + 1, 0], todo[waiting + 1, 1] = first + half, size - half
            todo[waiting + 2, 0], todo[waiting + 2, 1] = first, half
            waiting += 3
    whole: float = sums[0]
    return whole


@kernel
def _block_sum(a: FloatArray, s: int, n: int) -> float:
    if n < 8:
        total = 0.0
        for i in range(n):
            total += a[s + i]
        return total
    r0, r1, r2, r3 = a[s], a[s + 1], a[s + 2], a[s + 3]
    r4, r5, r6, r7 = a[s + 4], a[s + 5], a[s + 6], a[s + 7]
    whole = n - n % 8
    for i in range(s + 8, s + whole, 8):
        r0 += a[i]
        r1 += a[i + 1]
        r2 += a[i + 2]
        r3 += a[i + 3]
        r4 += a[i + 4]
        r5 += a[i + 5]
        r6 += a[i + 6]
        r7 += a[i + 7]
    whole_total: float = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for i in range(s + whole, s + n):
        whole_total += a[i]
    return whole_total


@kernel
def _block_squares(a: FloatArray, s: int, n: int) -> float:
    if n < 8:
        total = 0.0
        for i in range(n):
            total += a[s + i] * a[s + i]
        return total
    r0, r1, r2, r3 = a[s] * a[s], a[s + 1] * a[s + 1], a[s + 2] * a[s + 2], a[s + 3] * a[s + 3]
    r4, r5, r6, r7 = a[s + 4] * a[s + 4], a[s + 5] * a[s + 5], a[s + 6] * a[s + 6], a[s + 7] * a[s + 7]
    whole = n - n % 8
    for i in range(s + 8, s + whole, 8):
        r0 += a[i] * a[i]
        r1 += a[i + 1] * a[i + 1]
        r2 += a[i + 2] * a[i + 2]
        r3 += a[i + 3] * a[i + 3]
        r4 += a[i + 4] * a[i + 4]
        r5 += a[i + 5] * a[i + 5]
        r6 += a[i + 6] * a[i + 6]
        r7 += a[i + 7] * a[i + 7]
    whole_total: float = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for i in range(s + whole, s + n):
        whole_total += a[i] * a[i]
    return whole_total
