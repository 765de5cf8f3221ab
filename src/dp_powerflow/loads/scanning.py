"""PRIVATE. Kernels that go over readings once, on all cores: counts, levels, energy fed in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dp_powerflow._bits.elementary import kernel
from dp_powerflow._bits.sums import row_squares, row_sum
from dp_powerflow._threads import in_order, slices
from dp_powerflow.units import BoolArray, FloatArray, IntArray

_PARTS = 64


def on_all_cores(work: Callable[[slice], None], customers: int) -> None:
    """Call work(part) for parts that make up all customers."""
    for _ in in_order(work, slices(customers, _PARTS)):
        pass


@kernel
def count_readings(values: FloatArray, exists: BoolArray, out: IntArray) -> None:
    """(customer, 4): steps that exist without a reading, readings below zero, at zero, and all.

    Parameters
    ----------
    values
        (customer, day, step), NaN where there is no reading.
    exists
        (day · step,) false where the clock jumped.
    """
    for i in range(values.shape[0]):
        own = values[i].reshape(-1)
        missing, negative, zero, read = 0, 0, 0, 0
        for k in range(own.size):
            absent = np.isnan(own[k])
            missing += absent and exists[k]
            negative += own[k] < 0
            zero += own[k] == 0
            read += not absent
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = missing, negative, zero, read


@kernel
def levels_and_shapes(values: FloatArray, out: FloatArray) -> None:
    """(customer, 2): medians over days of mean load, and of standard deviation over mean.

    Only days without a gap count; of a customer without any, all readings are one day. NaN without a load.
    """
    n, days, steps = values.shape
    row = np.empty(days * steps)
    means, shapes = np.empty(days), np.empty(days)
    for i in range(n):
        found, busy, read = 0, 0, 0
        for d in range(days):
            gap = False
            for t in range(steps):
                gap = gap or np.isnan(values[i, d, t])
                row[t] = values[i, d, t]
            if not gap:
                mean, shape = _mean_and_shape(row, steps)
                means[found] = mean
                found += 1
                if mean > 0:
                    shapes[busy] = shape
                    busy += 1
        if not found:
            for value in values[i].reshape(-1):
                if not np.isnan(value):
                    row[read] = value
                    read += 1
            if read:
                means[0], shapes[0] = _mean_and_shape(row, read)
                found, busy = 1, int(means[0] > 0)
        level = np.median(means[:found]) if found else np.nan
        out[i, 0] = level if level > 0 else np.nan
        out[i, 1] = np.median(shapes[:busy]) if busy else np.nan


@kernel
def _mean_and_shape(row: FloatArray, size: int) -> tuple[float, float]:
    """Mean of the first entries of a row, and standard deviation over mean; overwrites the row."""
    mean = row_sum(row, 0, size) / size
    for k in range(size):
        row[k] -= mean
    return mean, np.sqrt(row_squares(row, 0, size) / size) / mean


@kernel
def drawn_and_fed_in(load: FloatArray, floor_kw: float, out: FloatArray) -> None:
    """(load point, 2): sum of loads above zero, and of those below minus a floor [kW]."""
    row = np.empty(load.shape[1] * load.shape[2])
    for i in range(load.shape[0]):
        own = load[i].reshape(-1)
        count = 0
        for k in range(own.size):
            if own[k] > 0.0:
                row[count] = own[k]
                count += 1
        out[i, 0] = row_sum(row, 0, count)
        count = 0
        for k in range(own.size):
            if own[k] < -floor_kw:
                row[count] = own[k]
                count += 1
        out[i, 1] = row_sum(row, 0, count)


@kernel
def raise_to_floor(load: FloatArray, floor_kw: float, raised: IntArray) -> None:
    """Raise loads to a floor [kW], in place; (load point,) how many."""
    for i in range(load.shape[0]):
        own = load[i].reshape(-1)
        count = 0
        for k in range(own.size):
            count += own[k] < floor_kw
            own[k] = max(own[k], floor_kw)
        raised[i] = count


@kernel
def count_outside(load: FloatArray, low: FloatArray, high: FloatArray, out: IntArray) -> None:
    """(load point, 2): loads below and above bounds (load point,)."""
    for i in range(load.shape[0]):
        own = load[i].reshape(-1)
        below, above = 0, 0
        for k in range(own.size):
            below += own[k] < low[i]
            above += own[k] > high[i]
        out[i, 0], out[i, 1] = below, above
