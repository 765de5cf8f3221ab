"""Counterparts of the kernels of `corpus.grid` that read."""

from __future__ import annotations

import numpy as np

from dp_powerflow.corpus import grid
from dp_powerflow.corpus.grid import Float32Array
from dp_powerflow.units import BoolArray, FloatArray, IntArray


def _nearest(degrees: FloatArray) -> FloatArray:
    """As `grid._nearest_count1`."""
    count = np.rint(degrees * grid.VA_PER_DEG)
    coarse = 2.0 * np.rint(degrees * (grid.VA_PER_DEG / 2))
    return np.where(np.abs(count) >= grid._COARSE, coarse, count) + 0.0


def _vm_counts(vm: Float32Array, out: IntArray) -> None:
    out[:] = np.rint(vm.astype(np.float64) * grid.VM_PER_PU).astype(np.int64)


def _va_counts(va: Float32Array, out: IntArray) -> None:
    out[:] = _nearest(va.astype(np.float64)).astype(np.int64)


def _on_grid(vm: Float32Array, va: Float32Array, out: BoolArray) -> None:
    magnitude, angle = vm.astype(np.float64), va.astype(np.float64)
    in_range = (magnitude >= 0.0) & (magnitude <= grid.VM_MAX_PU) & (angle > -180.0) & (angle <= 180.0)
    vm_count, va_count = np.rint(magnitude * grid.VM_PER_PU) + 0.0, _nearest(angle)
    stored = (
        (vm_count * grid._PU_PER_COUNT).astype(np.float32),
        (va_count * grid._DEG_PER_COUNT).astype(np.float32),
    )
    same_vm = stored[0].view(np.uint32) == vm.view(np.uint32)
    same_va = stored[1].view(np.uint32) == va.view(np.uint32)
    out[:] = in_range & same_vm & same_va & ((vm_count > 0.0) | (va_count == 0.0))


def _power_on_grid(power: Float32Array, out: BoolArray) -> None:
    count = power.astype(np.float64) * grid.POWER_PER_KW
    in_range = np.abs(count) <= grid.POWER_MAX_KW * grid.POWER_PER_KW
    out[:] = in_range & (np.rint(count) == count) & (power.view(np.uint32) != np.uint32(0x80000000))


def _turn_days(
    stored: Float32Array, days: IntArray, nodes: IntArray, out: Float32Array, rows: IntArray
) -> None:
    for day, row in zip(days, rows, strict=True):
        out[row] = stored[day, nodes].T
