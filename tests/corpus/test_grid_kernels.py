"""The kernels of the public grid give the numbers of the plain formulas, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dp_powerflow._bits.elementary import _arctan_of_share, modulus
from dp_powerflow.corpus.grid import (
    POWER_MAX_KW,
    POWER_PER_KW,
    VA_PER_DEG,
    VM_MAX_PU,
    VM_PER_PU,
    NodeColumns,
    Phasors,
    on_grid,
    power_on_grid,
    round_power,
    round_to_grid,
    rounded_powers,
    rounded_voltages,
)
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

EDGES = [0.0, -0.0, 1.0, -1.0, 1e-7, -1e-7, 5e-7, 4.9999e-7, 1e-300, -1e-300, 5e-324, 2.5, 0.4375, 0.6875]
REAL = st.one_of(st.sampled_from(EDGES), st.floats(-5.6, 5.6))
POWERS = st.one_of(
    st.sampled_from([*EDGES, 2.0**-11, -(2.0**-11), 3 * 2.0**-11, POWER_MAX_KW, 16384.0 + 2.0**-10]),
    st.floats(-POWER_MAX_KW, POWER_MAX_KW),
)


arctan = np.vectorize(_arctan_of_share, otypes=[np.float64])


def plain_degrees(v: ComplexArray) -> FloatArray:
    """Angle [degrees] by the arctangent of a number, case by case."""
    x, y = np.abs(v.real), np.abs(v.imag)
    with np.errstate(all="ignore"):
        flat = np.where(x > 0.0, arctan(np.where((x > 0.0) & (y <= x), y / x, 0.0)) * 57.29577951308232, 0.0)
        steep = 90.0 - arctan(np.where(y > x, x / y, 0.0)) * 57.29577951308232
    angle = np.where(y <= x, flat, steep)
    angle = np.where(v.real < 0.0, 180.0 - angle, angle)
    return np.where((v.imag < 0.0) & (angle < 180.0), -angle, angle)


def plain_counts(degrees: FloatArray) -> IntArray:
    counts = np.rint(degrees * VA_PER_DEG).astype(np.int64)
    coarse = 2 * np.rint(degrees * (VA_PER_DEG / 2)).astype(np.int64)
    return np.where(np.abs(counts) >= 128 * VA_PER_DEG, coarse, counts)


def plain_phasors(v: ComplexArray) -> Phasors:
    """Rounding as it is written down in docs/reference/corpus.md, with integer counts and divisions."""
    vm = np.rint(modulus(v) * VM_PER_PU).astype(np.int64)
    va = plain_counts(plain_degrees(v))
    va = np.where(va == -180 * VA_PER_DEG, 180 * VA_PER_DEG, va)
    va = np.where(vm == 0, 0, va)
    return Phasors((vm / VM_PER_PU).astype(np.float32), (va / VA_PER_DEG).astype(np.float32))


def plain_on_grid(vm: NDArray[np.float32], va: NDArray[np.float32]) -> BoolArray:
    with np.errstate(invalid="ignore"):
        in_range = (vm >= 0) & (vm <= VM_MAX_PU) & (va > -180) & (va <= 180)
    vm, va = np.where(in_range, vm, np.float32(0)), np.where(in_range, va, np.float32(0))
    vm_count = np.rint(vm.astype(np.float64) * VM_PER_PU).astype(np.int64)
    va_count = plain_counts(va.astype(np.float64))
    same_vm = (vm_count / VM_PER_PU).astype(np.float32).view(np.uint32) == vm.view(np.uint32)
    same_va = (va_count / VA_PER_DEG).astype(np.float32).view(np.uint32) == va.view(np.uint32)
    return np.asarray(in_range & same_vm & same_va & ((vm_count > 0) | (va_count == 0)))


def plain_power(power: FloatArray) -> NDArray[np.float32]:
    rounded: FloatArray = np.rint(power * POWER_PER_KW) / POWER_PER_KW + 0.0
    return rounded.astype(np.float32)


def same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    return found.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_a_count_times_the_step_is_the_count_divided_for_every_count_of_the_grid() -> None:
    for most, per_unit, step in ((8 * VM_PER_PU, VM_PER_PU, 1e-6), (180 * VA_PER_DEG, VA_PER_DEG, 1e-5)):
        counts = np.arange(most + 1, dtype=np.float64)
        np.testing.assert_array_equal(
            (counts * step).astype(np.float32), (counts / per_unit).astype(np.float32)
        )


@settings(deadline=None)
@given(hnp.arrays(np.float64, (2, 37), elements=REAL))
def test_voltages_are_rounded_as_by_the_plain_formulas(parts: FloatArray) -> None:
    v = parts[0] + 1j * parts[1]
    found, expected = round_to_grid(v), plain_phasors(v)
    assert same_bits(found.vm_pu, expected.vm_pu)
    assert same_bits(found.va_deg, expected.va_deg)


@settings(deadline=None)
@given(st.integers(-180 * VA_PER_DEG, 180 * VA_PER_DEG), st.integers(-2, 2), st.floats(0.4, 7.9))
def test_angles_at_and_beside_grid_points_are_rounded_as_by_the_plain_formulas(
    count: int, beside: int, size: float
) -> None:
    turn = np.deg2rad((count + beside * 0.2499999999) / VA_PER_DEG)
    v = np.array([size * complex(np.cos(turn), np.sin(turn)), complex(-size, -0.0), complex(-size, 1e-17)])
    found, expected = round_to_grid(v), plain_phasors(v)
    assert same_bits(found.va_deg, expected.va_deg)
    assert found.va_deg[1] == found.va_deg[2] == 180


@settings(deadline=None)
@given(hnp.arrays(np.float64, 41, elements=POWERS))
def test_powers_are_rounded_as_by_the_plain_formula(power: FloatArray) -> None:
    assert same_bits(round_power(power), plain_power(power))


@settings(deadline=None)
@given(
    hnp.arrays(np.uint32, 64, elements=st.integers(0, 2**32 - 1)),
    st.lists(st.integers(-180 * VA_PER_DEG, 180 * VA_PER_DEG), min_size=64, max_size=64),
    st.integers(-1, 1),
)
def test_any_bits_are_judged_as_by_the_plain_formulas(
    any_bits: IntArray, counts: list[int], off: int
) -> None:
    anything = any_bits.view(np.float32)
    near = (np.array(counts) / VA_PER_DEG).astype(np.float32)
    near = (near.view(np.int32) + np.int32(off)).view(np.float32)
    for vm, va in ((anything, near), (np.ones(64, dtype=np.float32), near), (np.abs(near) / 30, near)):
        magnitude = vm.astype(np.float32)
        np.testing.assert_array_equal(on_grid(Phasors(magnitude, va)), plain_on_grid(magnitude, va))
    with np.errstate(invalid="ignore"):
        in_range = np.abs(anything) <= POWER_MAX_KW
    exact = np.where(in_range, anything, np.float32(0)).astype(np.float64) * POWER_PER_KW
    expected = in_range & (np.rint(exact) == exact) & ~((anything == 0) & np.signbit(anything))
    np.testing.assert_array_equal(power_on_grid(anything), expected)


@pytest.mark.parametrize("steps", [1, 2, 7, 96])
def test_series_of_chosen_columns_are_rounded_row_by_row(steps: int) -> None:
    rng = np.random.default_rng(5)
    days, columns = 3, 11
    column_of = np.array([4, -1, 10, 0, 7])
    values = rng.normal(size=(days * steps, columns)) + 1j * rng.normal(size=(days * steps, columns))
    given = NodeColumns(values, column_of, steps, scale=12.5)
    expected = given.array()[1:].transpose(0, 2, 1).reshape(-1, steps)
    for stored, part in zip(rounded_powers(given, range(1, 3)), (expected.real, expected.imag), strict=True):
        assert same_bits(stored, plain_power(np.ascontiguousarray(part)))
    column_of = np.array([1, 3, 2, 9, 8])
    vm, va = rounded_voltages(NodeColumns(values, column_of, steps), range(2))
    wanted = plain_phasors(values[: 2 * steps].reshape(2, steps, -1)[:, :, column_of].transpose(0, 2, 1))
    assert same_bits(vm, wanted.vm_pu)
    assert same_bits(va, wanted.va_deg)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**31])
@pytest.mark.parametrize("where", [0, 1])
def test_one_bad_value_among_many_is_refused(bad: float, where: int) -> None:
    values = np.ones((8, 3), dtype=np.complex128)
    values.view(np.float64)[5, 2 * 2 + where] = bad
    given = NodeColumns(values, np.arange(3), 4)
    with pytest.raises(CorpusError, match="a voltage is not a finite number"):
        rounded_voltages(given, range(2))
    with pytest.raises(CorpusError, match="a power is not a finite number"):
        rounded_powers(given, range(2))
    rounded_powers(given, range(1))


def test_what_is_not_released_is_not_looked_at() -> None:
    values = np.full((4, 3), np.nan, dtype=np.complex128)
    values[:, 1] = 1.0
    rounded_voltages(NodeColumns(values, np.array([1]), 4), range(1))


def test_a_column_that_is_not_there_is_refused_and_no_other_memory_read() -> None:
    values = np.ones((4, 3), dtype=np.complex128)
    with pytest.raises(IndexError, match="other memory"):
        rounded_powers(NodeColumns(values, np.array([0, 3]), 4), range(1))
    rounded_powers(NodeColumns(values[:, :0], np.array([-1, -1]), 4), range(1))  # nobody has a value
