"""The public grid: what is released of a voltage or a power, in one pass from the solution to the file.

**Voltages.** Magnitudes are multiples of 1e-6 p.u. and angles multiples of 1e-5 degrees in (-180, 180].
Both are stored as float32. A float32 tells neighbouring grid points apart up to 8 p.u. and up to 128 degrees,
but from 128 degrees on its spacing is 1.5e-5 degrees; there only every second grid point is used, so that a
stored number always names one grid point (docs/reference/corpus.md). Every number is made from an
integer count, so nothing of the float64 solution but that count is released.

**Powers.** Multiples of 2⁻¹⁰ kW or kvar (0.98 W). A float32 holds them exactly below 16,384 kW; larger ones
are rounded to the nearest float32, which is on the grid too. In decimal steps of 1 W a float32 would have no
zeros at its end, and the files would be nearly twice as large.

The loops have no branches, so that they become vector code; each value is rounded once per operation, so the
bits are the same on every processor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dp_powerflow._bits.elementary import degrees1, kernel
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

Float32Array = NDArray[np.float32]

VM_PER_PU = 1_000_000
"""Grid counts per p.u."""
VA_PER_DEG = 100_000
"""Grid counts per degree."""
VM_MAX_PU = 8.0
"""Largest magnitude of the grid; half a spacing of float32 stays below half a grid step up to here."""
VA_COARSE_DEG = 128
"""From this angle on, every second grid point is used."""
POWER_PER_KW = 1_024
"""Grid counts per kW, or per kvar."""
POWER_MAX_KW = 2.0**30
"""Largest power of the grid: beyond any feeder, as a larger one is refused after it was paid for."""

_VM_MOST = VM_MAX_PU * VM_PER_PU
_HALF_TURN = 180.0 * VA_PER_DEG
_COARSE = float(VA_COARSE_DEG * VA_PER_DEG)
# A count times this is the same float32 as the count divided: true of every count of the grid, and tested.
_PU_PER_COUNT, _DEG_PER_COUNT = 1e-6, 1e-5


@dataclass(frozen=True)
class Phasors:
    """Voltages on the public grid.

    Attributes
    ----------
    vm_pu : float32 array, magnitude [p.u.].
    va_deg : float32 array of the same shape, angle [degrees] in (-180, 180].
    """

    vm_pu: Float32Array
    va_deg: Float32Array

    def exact(self) -> tuple[FloatArray, FloatArray]:
        """The grid points themselves in float64: magnitude [p.u.] and angle [degrees]."""
        return vm_counts(self.vm_pu) / VM_PER_PU, va_counts(self.va_deg) / VA_PER_DEG

    def complex(self) -> ComplexArray:
        """Complex voltages [p.u.] of the grid points."""
        return phasor(*self.exact())


@dataclass(frozen=True, eq=False)
class NodeColumns:
    """Complex values of the released nodes, left where the solver wrote them.

    Attributes
    ----------
    values : complex (snapshot, column), days one after the other.
    column_of : (node,) column of every released node; -1 for a node whose values are all 0.
    steps : snapshots of a day.
    scale : what the values are multiplied by; 1 for voltages.
    """

    values: ComplexArray
    column_of: IntArray
    steps: int
    scale: float = 1.0

    @classmethod
    def of(cls, given: ComplexArray | NodeColumns) -> NodeColumns:
        """The same from an array (day, step, node)."""
        if isinstance(given, NodeColumns):
            return given
        _, steps, nodes = given.shape
        flat = np.ascontiguousarray(given, dtype=np.complex128).reshape(-1, nodes)
        return cls(flat, np.arange(nodes), steps)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(day, step, node)."""
        return len(self.values) // self.steps, self.steps, len(self.column_of)

    def array(self) -> ComplexArray:
        """Complex (day, step, node)."""
        found = self.values[:, self.column_of] * self.scale
        found[:, self.column_of < 0] = 0.0
        return np.asarray(found.reshape(self.shape))


def phasor(magnitude: FloatArray | ComplexArray, angle_deg: FloatArray) -> ComplexArray:
    """Complex numbers of magnitudes (or numbers to turn) and angles [degrees]; last bits vary."""
    angle = np.deg2rad(angle_deg)
    return np.asarray(magnitude * (np.cos(angle) + 1j * np.sin(angle)))


# --- one number -------------------------------------------------------------------------------------------
@kernel
def _vm_count1(real: float, imag: float) -> float:
    count: float = np.rint(np.sqrt(real * real + imag * imag) * VM_PER_PU)
    return count


@kernel
def _nearest_count1(degrees: float) -> float:
    """Grid count of an angle; there is one zero."""
    count: float = np.rint(degrees * VA_PER_DEG)
    coarse: float = 2.0 * np.rint(degrees * (VA_PER_DEG / 2))
    return (coarse if abs(count) >= _COARSE else count) + 0.0


@kernel
def _power1(power: float) -> float:
    count: float = np.rint(power * POWER_PER_KW)
    return count / POWER_PER_KW + 0.0  # −0.0 + 0.0 is +0.0


# --- arrays -----------------------------------------------------------------------------------------------
@kernel
def _round_voltages(real: FloatArray, imag: FloatArray, vm: Float32Array, va: Float32Array) -> int:
    """Returns how many are none: a NaN fails the comparison too."""
    refused = 0
    for k in range(real.size):
        count = _vm_count1(real[k], imag[k])
        refused += 0 if count <= _VM_MOST else 1
        vm[k] = np.float32(count * _PU_PER_COUNT)
        angle = _nearest_count1(degrees1(real[k], imag[k]))
        angle = _HALF_TURN if angle == -_HALF_TURN else angle
        va[k] = np.float32((0.0 if count == 0.0 else angle) * _DEG_PER_COUNT)
    return refused


@kernel
def _round_powers(power: FloatArray, scale: float, out: Float32Array) -> int:
    """Returns how many are none: a NaN fails the comparison too."""
    refused = 0
    for k in range(power.size):
        scaled = power[k] * scale
        refused += 0 if abs(scaled) <= POWER_MAX_KW else 1
        out[k] = np.float32(_power1(scaled))
    return refused


@kernel
def _fill(
    values: FloatArray,
    of: tuple[IntArray, IntArray],
    steps: int,
    scale: float,
    voltages: bool,
    out: tuple[Float32Array, Float32Array],
) -> int:
    """Round days of nodes, one row per (day, node); how many values were refused.

    Columns are taken in the order of the values, so that a line of the cache is fetched once.
    """
    columns, nodes = of
    first, second = out
    real, imag = np.empty(steps), np.empty(steps)
    refused = 0
    for day in range(values.shape[0] // steps):
        for k in range(columns.size):
            if columns[k] < 0:
                real[:], imag[:] = 0.0, 0.0
            else:
                for step in range(steps):
                    real[step] = values[day * steps + step, 2 * columns[k]]
                    imag[step] = values[day * steps + step, 2 * columns[k] + 1]
            row = day * columns.size + nodes[k]
            if voltages:
                refused += _round_voltages(real, imag, first[row], second[row])
            else:
                refused += _round_powers(real, scale, first[row]) + _round_powers(imag, scale, second[row])
    return refused


def rounded_voltages(given: NodeColumns, days: range) -> tuple[Float32Array, Float32Array]:
    """Magnitudes [p.u.] and angles [degrees] of some days on the grid: rows (day, node), a column per step.

    Raises
    ------
    CorpusError : a voltage is not finite or above `VM_MAX_PU`.
    """
    return _rounded(given, days, True)


def rounded_powers(given: NodeColumns, days: range) -> tuple[Float32Array, Float32Array]:
    """Active and reactive powers [kW], [kvar] of some days on the grid, as `rounded_voltages`.

    Raises
    ------
    CorpusError : a power is not finite or above `POWER_MAX_KW`.
    """
    return _rounded(given, days, False)


def _rounded(given: NodeColumns, days: range, voltages: bool) -> tuple[Float32Array, Float32Array]:
    if given.column_of.max(initial=-1) >= given.values.shape[1]:
        raise IndexError("a node has no column; compiled code would read other memory")
    nodes = np.argsort(given.column_of, kind="stable")
    values = given.values[days.start * given.steps : days.stop * given.steps].view(np.float64)
    shape = (len(days) * len(nodes), given.steps)
    out = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.float32)
    of = (given.column_of[nodes].astype(np.int64), nodes)
    if _fill(values, of, given.steps, given.scale, voltages, out):
        raise _no_voltage() if voltages else _no_power()
    return out


def round_to_grid(v: ComplexArray) -> Phasors:
    """Round complex voltages [p.u.] of any shape to the public grid.

    Rounding is to the nearest grid point, in float64. There is one zero (+0.0), half a turn is +180, and a
    voltage whose magnitude rounds to zero has angle zero.

    Raises
    ------
    CorpusError : a voltage is not finite or above `VM_MAX_PU`.
    """
    given = np.asarray(v, dtype=np.complex128)
    vm, va = np.empty(given.shape, dtype=np.float32), np.empty(given.shape, dtype=np.float32)
    real, imag = np.ascontiguousarray(given.real), np.ascontiguousarray(given.imag)
    if _round_voltages(real.reshape(-1), imag.reshape(-1), vm.reshape(-1), va.reshape(-1)):
        raise _no_voltage()
    return Phasors(vm, va)


def round_power(power: FloatArray) -> Float32Array:
    """Round powers [kW or kvar] of any shape to the public grid; there is one zero (+0.0).

    Raises
    ------
    CorpusError : a power is not finite or above `POWER_MAX_KW`.
    """
    given = np.ascontiguousarray(power, dtype=np.float64)
    out = np.empty(np.shape(power), dtype=np.float32)
    if _round_powers(given.reshape(-1), 1.0, out.reshape(-1)):
        raise _no_power()
    return out


def _no_voltage() -> CorpusError:
    return CorpusError(
        f"a voltage is not a finite number of at most {VM_MAX_PU:g} p.u.; "
        "check that every power flow converged and that the base voltages are right"
    )


def _no_power() -> CorpusError:
    return CorpusError(
        f"a power is not a finite number of at most {POWER_MAX_KW:,.0f} kW or kvar; check that every "
        "power flow converged and that the loads are in kW"
    )


# --- back again, in NumPy: readers compile nothing ---------------------------------------------------------
def vm_counts(vm_pu: Float32Array) -> IntArray:
    """Grid counts of stored magnitudes."""
    return np.rint(np.asarray(vm_pu, dtype=np.float64) * VM_PER_PU).astype(np.int64)


def va_counts(va_deg: Float32Array) -> IntArray:
    """Grid counts of stored angles."""
    return _nearest_counts(np.asarray(va_deg, dtype=np.float64)).astype(np.int64)


def _nearest_counts(degrees: FloatArray) -> FloatArray:
    """As `_nearest_count1`."""
    count = np.rint(degrees * VA_PER_DEG)
    coarse = 2.0 * np.rint(degrees * (VA_PER_DEG / 2))
    return np.where(np.abs(count) >= _COARSE, coarse, count) + 0.0


def on_grid(phasors: Phasors) -> BoolArray:
    """Which entries are exactly a number that `round_to_grid` can produce.

    Compared as bits: a negative zero is equal to zero but is not a number of the grid.
    """
    vm, va = (np.ascontiguousarray(a, dtype=np.float32) for a in (phasors.vm_pu, phasors.va_deg))
    # Files may hold any bits, NaN that signal included.
    with np.errstate(invalid="ignore", over="ignore"):
        magnitude, angle = vm.astype(np.float64), va.astype(np.float64)
        in_range = (magnitude >= 0.0) & (magnitude <= VM_MAX_PU) & (angle > -180.0) & (angle <= 180.0)
        vm_count, va_count = np.rint(magnitude * VM_PER_PU) + 0.0, _nearest_counts(angle)
        stored = (vm_count * _PU_PER_COUNT).astype(np.float32), (va_count * _DEG_PER_COUNT).astype(np.float32)
    same = [a.view(np.uint32) == b.view(np.uint32) for a, b in zip(stored, (vm, va), strict=True)]
    return np.asarray(in_range & same[0] & same[1] & ((vm_count > 0.0) | (va_count == 0.0)))


def power_on_grid(power: Float32Array) -> BoolArray:
    """Which entries are exactly a number that `round_power` can produce."""
    given = np.ascontiguousarray(power, dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        count = given.astype(np.float64) * POWER_PER_KW
    in_range = np.abs(count) <= POWER_MAX_KW * POWER_PER_KW
    return np.asarray(in_range & (np.rint(count) == count) & (given.view(np.uint32) != np.uint32(0x80000000)))


def turn_days(
    stored: Float32Array, days: IntArray, nodes: IntArray, out: Float32Array, rows: IntArray | None = None
) -> None:
    """Copy days (day, node, step) as they are stored to an array (day, step, node).

    Parameters
    ----------
    days, nodes : which of those stored, in which order.
    rows : where the days go, one after the other if not given.
    """
    for day, row in zip(days, range(len(days)) if rows is None else rows, strict=True):
        out[row] = stored[day, nodes].T
