"""Counterparts of the kernels of `quality.counting`: integers, so the order of sums does not matter."""

from __future__ import annotations

import numpy as np

from dp_powerflow.corpus.extras import POWER_PER_KW
from dp_powerflow.corpus.schema import VM_PER_PU, Float32Array
from dp_powerflow.quality import counting
from dp_powerflow.units import FloatArray, IntArray


def _counts(vm_pu: Float32Array) -> IntArray:
    """As `counting._count`."""
    scaled = vm_pu.astype(np.float64) * VM_PER_PU + 0.5
    return np.asarray(np.minimum(np.where(scaled > 0.0, scaled, 0.0), counting._MOST).astype(np.int64))


def count_voltages(
    vm_pu: Float32Array, group: IntArray, slot: IntArray, ranges: IntArray, counts: IntArray, nodes: IntArray
) -> None:
    slots, bins = counts.shape[1:]
    flat = counts.reshape(-1)  # a view: the counters of a tally lie in a row
    of_step = group[:, None] * (slots * bins) + slot * bins
    for day in vm_pu:
        found = _counts(day)
        nodes[:, counting.LOWEST] = np.minimum(nodes[:, counting.LOWEST], found.min(axis=1))
        nodes[:, counting.HIGHEST] = np.maximum(nodes[:, counting.HIGHEST], found.max(axis=1))
        nodes[:, counting.SUM] += found.sum(axis=1)
        for column, first in ((counting.INSIDE_A, 0), (counting.INSIDE_B, 2)):
            inside = (ranges[first] <= found) & (found <= ranges[first + 1])
            nodes[:, column] += inside.sum(axis=1)
        at = (found + counting.BIN // 2) // counting.BIN - counting.FIRST_BIN
        places = of_step + np.clip(at, 0, counting.BINS - 1)
        np.add.at(flat, places.reshape(-1), 1)


def find(vm_pu: Float32Array, node: int, wanted: int) -> tuple[int, int]:
    for d in range(len(vm_pu)):
        steps = np.flatnonzero(_counts(vm_pu[d, node]) == wanted)
        if steps.size:
            return d, int(steps[0])
    return -1, -1


def deviations(vm_pu: Float32Array, chosen: IntArray, out: FloatArray) -> None:
    steps = vm_pu.shape[2]
    for d in range(len(vm_pu)):
        count = _counts(vm_pu[d, chosen]) - VM_PER_PU
        most = counting.DEVIATION_MOST
        out[d * steps : (d + 1) * steps] = np.clip(count, -most, most).T


def add_products(moved: FloatArray, sums: FloatArray, products: FloatArray) -> None:
    sums += moved.sum(axis=0)
    products += np.tril(moved.T @ moved)


def add_powers(kw: Float32Array, out: IntArray) -> None:
    for d in range(len(kw)):
        out[d] += np.rint(kw[d].astype(np.float64) * POWER_PER_KW).astype(np.int64).sum(axis=0)
