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

LOWEST, HIGHEST, SUM, INSIDE_A, INSIDE_B = range(5)
"""Columns of the figures of nodes."""


@kernel
def count_voltages(
    vm_pu: Float32Array, group: IntArray, slot: IntArray, ranges: IntArray, counts: IntArray, nodes: IntArray
) -> None:
    """Add magnitudes (day, node, step) to counts (group, slot, bin) and to the figures (node, 5).

    `ranges` are the ends of range A and of range B in grid counts.
    """
    for d in range(vm_pu.shape[0]):
        for n in range(vm_pu.shape[1]):
            low, high, total = nodes[n, LOWEST], nodes[n, HIGHEST], 0
            in_a, in_b = 0, 0
            for t in range(vm_pu.shape[2]):
                count = int(np.float64(vm_pu[d, n, t]) * VM_PER_PU + 0.5)
                low, high, total = min(low, count), max(high, count), total + count
                if ranges[0] <= count <= ranges[1]:
                    in_a += 1
                if ranges[2] <= count <= ranges[3]:
                    in_b += 1
                row = (count + BIN // 2) // BIN - FIRST_BIN
                counts[group[n], slot[t], min(max(row, 0), BINS - 1)] += 1
            nodes[n, LOWEST], nodes[n, HIGHEST] = low, high
            nodes[n, SUM] += total
            nodes[n, INSIDE_A] += in_a
            nodes[n, INSIDE_B] += in_b


@kernel
def find(vm_pu: Float32Array, node: int, wanted: int) -> tuple[int, int]:
    """First day and step at which a node of magnitudes (day, node, step) has this count; -1 if never."""
    for d in range(vm_pu.shape[0]):
        for t in range(vm_pu.shape[2]):
            if int(np.float64(vm_pu[d, node, t]) * VM_PER_PU + 0.5) == wanted:
                return d, t
    return -1, -1


@kernel
def deviations(vm_pu: Float32Array, chosen: IntArray, out: FloatArray) -> None:
    """Deviations from 1 p.u. in grid counts of some nodes: (day, node, step) to (chosen, day × step)."""
    steps = vm_pu.shape[2]
    for k in range(len(chosen)):
        for d in range(vm_pu.shape[0]):
            for t in range(steps):
                count = int(np.float64(vm_pu[d, chosen[k], t]) * VM_PER_PU + 0.5) - VM_PER_PU
                out[k, d * steps + t] = min(max(count, -DEVIATION_MOST), DEVIATION_MOST)


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
