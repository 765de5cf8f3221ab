"""Compiled loops over stored numbers. They add integers only, so order and processor do not matter."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import kernel
from dp_powerflow.corpus.extras import POWER_PER_KW
from dp_powerflow.corpus.schema import VM_PER_PU, Float32Array
from dp_powerflow.units import FloatArray, IntArray

BIN = 100
"""Grid counts per bin: 0.0001 p.u."""
BINS_PER_PU = VM_PER_PU // BIN
FIRST_BIN = BINS_PER_PU // 2
"""The bin of 0.5 p.u.; lower voltages are counted there."""
BINS = BINS_PER_PU + 1
"""Up to 1.5 p.u.; higher voltages are counted there."""
DEVIATION_MOST = VM_PER_PU // 2
"""Deviations from 1 p.u. are cut here, so that sums of 32,768 products stay below 2⁵³."""
EXACT_ROWS = 32_768
_MOST = 2_000_000_000.0
_TOGETHER = 16
"""Steps of a row of magnitudes in one line of the processor's cache."""
_AT_ONCE = 8

LOWEST, HIGHEST, SUM, INSIDE_A, INSIDE_B = range(5)
"""Columns of the figures of nodes."""


@kernel
def _count(vm_pu: np.float32) -> int:
    """Grid count of a stored magnitude; what is no voltage is 0, or the largest number."""
    return int(np.int32(min(max(0.0, np.float64(vm_pu) * VM_PER_PU + 0.5), _MOST)))


@kernel
def count_voltages(
    vm_pu: Float32Array, group: IntArray, slot: IntArray, ranges: IntArray, counts: IntArray, nodes: IntArray
) -> None:
    """Add magnitudes (day, node, step) to counts (group, slot, bin) and to the figures (node, 5).

    `ranges` are the ends of range A and of range B in grid counts.
    """
    for d in range(vm_pu.shape[0]):
        for n in range(vm_pu.shape[1]):
            _add_row(vm_pu[d, n], ranges, nodes[n])
    steps = vm_pu.shape[2]
    # A few times of day after the other: their bins stay near.
    for first in range(0, steps, _TOGETHER):
        last = min(first + _TOGETHER, steps)
        for d in range(vm_pu.shape[0]):
            for n in range(vm_pu.shape[1]):
                row, of_group = vm_pu[d, n], counts[group[n]]
                for t in range(first, last):
                    found = (_count(row[t]) + BIN // 2) // BIN - FIRST_BIN
                    of_group[slot[t], min(max(found, 0), BINS - 1)] += 1


@kernel
def _add_row(row: Float32Array, ranges: IntArray, figures: IntArray) -> None:
    """Add one day of a node to its figures."""
    low, high, total, in_a, in_b = figures[LOWEST], figures[HIGHEST], 0, 0, 0
    for t in range(row.size):
        count = _count(row[t])
        low, high, total = min(low, count), max(high, count), total + count
        in_a += (ranges[0] <= count) & (count <= ranges[1])
        in_b += (ranges[2] <= count) & (count <= ranges[3])
    figures[LOWEST], figures[HIGHEST] = low, high
    figures[SUM] += total
    figures[INSIDE_A] += in_a
    figures[INSIDE_B] += in_b


@kernel
def find(vm_pu: Float32Array, node: int, wanted: int) -> tuple[int, int]:
    """First day and step at which a node of magnitudes (day, node, step) has this count; -1 if never."""
    for d in range(vm_pu.shape[0]):
        for t in range(vm_pu.shape[2]):
            if _count(vm_pu[d, node, t]) == wanted:
                return d, t
    return -1, -1


@kernel
def deviations(vm_pu: Float32Array, chosen: IntArray, out: FloatArray) -> None:
    """Deviations from 1 p.u. in grid counts of some nodes: (day, node, step) to (day × step, chosen)."""
    steps = vm_pu.shape[2]
    for d in range(vm_pu.shape[0]):
        for k in range(len(chosen)):
            row = vm_pu[d, chosen[k]]
            for t in range(steps):
                count = _count(row[t]) - VM_PER_PU
                out[d * steps + t, k] = min(max(count, -DEVIATION_MOST), DEVIATION_MOST)


@kernel
def add_products(moved: FloatArray, sums: FloatArray, products: FloatArray) -> None:
    """Add sums (k,) and products (k, k), the lower triangle, of deviations (row, k).

    All are integers below 2⁵³: exact in any order. No linear algebra library: its threads would stand in the
    way of those that count.
    """
    rows, size = moved.shape
    whole = rows - rows % _AT_ONCE
    for top in range(0, size, _AT_ONCE):
        for r in range(0, whole, _AT_ONCE):
            x = moved[r : r + _AT_ONCE]
            for i in range(top, min(top + _AT_ONCE, size)):
                a, b, c, d = x[0, i], x[1, i], x[2, i], x[3, i]
                e, f, g, h = x[4, i], x[5, i], x[6, i], x[7, i]
                line = products[i]
                for j in range(i + 1):
                    line[j] += (
                        ((a * x[0, j] + b * x[1, j]) + (c * x[2, j] + d * x[3, j]))
                        + ((e * x[4, j] + f * x[5, j]) + (g * x[6, j] + h * x[7, j]))
                    )  # fmt: skip
        for r in range(whole, rows):
            for i in range(top, min(top + _AT_ONCE, size)):
                for j in range(i + 1):
                    products[i, j] += moved[r, i] * moved[r, j]
    for r in range(rows):
        for i in range(size):
            sums[i] += moved[r, i]


@kernel
def add_powers(kw: Float32Array, out: IntArray) -> None:
    """Sum of powers (day, node, step) over the nodes, in grid counts, into (day, step)."""
    for d in range(kw.shape[0]):
        for n in range(kw.shape[1]):
            for t in range(kw.shape[2]):
                out[d, t] += int(np.rint(np.float64(kw[d, n, t]) * POWER_PER_KW))


def quantile_bins(counts: IntArray, levels: tuple[int, ...]) -> IntArray:
    """Bins (level, …) of the quantiles of counts (…, bin)."""
    below = np.cumsum(counts, axis=-1)
    total = below[..., -1:]
    return np.stack([np.argmax(below >= -(-level * total // 100), axis=-1) for level in levels])


def order_statistics(values: IntArray, levels: tuple[int, ...]) -> IntArray:
    """Quantiles (level, …) of integers (value, …)."""
    ranked, n = np.sort(values, axis=0), len(values)
    return np.asarray(ranked[[max(0, -(-level * n // 100) - 1) for level in levels]])
