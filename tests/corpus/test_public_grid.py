"""Rounding to the public grid: nearest points, one number per point, the same bits as the plain formulas."""

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
    va_counts,
    vm_counts,
)
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

EDGES = [0.0, -0.0, 1.0, -1.0, 1e-7, -1e-7, 5e-7, 4.9999e-7, 1e-300, -1e-300, 5e-324, 2.5, 0.4375, 0.6875]
REAL = st.one_of(st.sampled_from(EDGES), st.floats(-5.6, 5.6))
POWERS = st.one_of(
    st.sampled_from([*EDGES, 2.0**-11, -(2.0**-11), 3 * 2.0**-11, POWER_MAX_KW, 16384.0 + 2.0**-10]),
    st.floats(-POWER_MAX_KW, POWER_MAX_KW),
)


arctan = np.vectorize(_arctan_of_share, otypes=[np.float64])


# --- the plain formulas -----------------------------------------------------------------------------------
def plain_degrees(v: ComplexArray) -> FloatArray:
    """Angle [degrees] by the arctangent of a number, case by case."""
    x, y = np.abs(v.real), np.abs(v.imag)
    with np.errstate(all="ignore"):
        flat = np.where(x > 0.0, arctan(np.where((x > 0.0) & (y <= x), y / x, 0.0)) * 57.29577951308232, 0.0)
        steep = 90.0 - arctan(np.where(y > x, x / y, 0.0)) * 57.29577951308232
    angle = np.where(y <= x, flat, steep)
    angle = np.where(v.real < 0.0, 180.0 - angle, angle)
    return np.where((v.imag < 0.0) & (angle < 180.0), -angle, angle)


def plain_phasors(v: ComplexArray) -> Phasors:
    """Rounding as it is written down in docs/reference/corpus.md, with integer counts and divisions."""
    vm, degrees = np.rint(modulus(v) * VM_PER_PU).astype(np.int64), plain_degrees(v)
    va = np.rint(degrees * VA_PER_DEG).astype(np.int64)
    coarse = 2 * np.rint(degrees * (VA_PER_DEG / 2)).astype(np.int64)
    va = np.where(np.abs(va) >= 128 * VA_PER_DEG, coarse, va)
    va = np.where(va == -180 * VA_PER_DEG, 180 * VA_PER_DEG, va)
    va = np.where(vm == 0, 0, va)
    return Phasors((vm / VM_PER_PU).astype(np.float32), (va / VA_PER_DEG).astype(np.float32))


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


@settings(deadline=None)  # the first call compiles
@given(hnp.arrays(np.float64, (2, 37), elements=REAL))
def test_voltages_are_rounded_as_by_the_plain_formulas_and_stay_where_they_are(parts: FloatArray) -> None:
    v = parts[0] + 1j * parts[1]
    found, expected = round_to_grid(v), plain_phasors(v)
    assert same_bits(found.vm_pu, expected.vm_pu)
    assert same_bits(found.va_deg, expected.va_deg)
    assert on_grid(found).all()
    again = round_to_grid(found.complex())
    assert same_bits(again.vm_pu, found.vm_pu)
    assert same_bits(again.va_deg, found.va_deg)


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
def test_powers_are_rounded_as_by_the_plain_formula_to_half_a_step(power: FloatArray) -> None:
    found = round_power(power)
    assert same_bits(found, plain_power(power))
    assert power_on_grid(found).all()
    assert same_bits(round_power(found.astype(np.float64)), found)
    half = np.where(np.abs(power) < 16_384, 0.0, 2.0**-24 * np.abs(power)) + 0.5 / POWER_PER_KW
    assert np.all(np.abs(found.astype(np.float64) - power) <= half)


@settings(deadline=None)
@given(
    hnp.arrays(np.uint32, 64, elements=st.integers(0, 2**32 - 1)),
    st.lists(st.integers(-180 * VA_PER_DEG, 180 * VA_PER_DEG), min_size=64, max_size=64),
    st.integers(-1, 1),
)
def test_on_the_grid_is_what_rounding_leaves_as_it_is(
    any_bits: IntArray, counts: list[int], off: int
) -> None:
    anything = any_bits.view(np.float32)
    near = (np.array(counts) / VA_PER_DEG).astype(np.float32)
    near = np.where(near == 0.0, near, (near.view(np.int32) + np.int32(off)).view(np.float32))
    with np.errstate(invalid="ignore"):
        usual = (anything >= 0) & (anything <= VM_MAX_PU)
        power = np.where(np.abs(anything) <= POWER_MAX_KW, anything, np.float32(np.nan))
    assert not on_grid(Phasors(anything[~usual], near[~usual])).any()
    for vm in (np.where(usual, anything, np.float32(1)), np.ones_like(near), np.abs(near) / np.float32(30)):
        given = Phasors(vm.astype(np.float32), near)
        again = round_to_grid(given.complex())
        same = [
            a.view(np.uint32) == b.view(np.uint32)
            for a, b in ((again.vm_pu, given.vm_pu), (again.va_deg, near))
        ]
        np.testing.assert_array_equal(on_grid(given), same[0] & same[1])
    rounded = round_power(np.nan_to_num(power))
    np.testing.assert_array_equal(power_on_grid(power), rounded.view(np.uint32) == power.view(np.uint32))


# --- the grid ---------------------------------------------------------------------------------------------
def test_every_grid_point_has_a_float32_of_its_own() -> None:
    counts = np.arange(8 * VM_PER_PU + 1)
    np.testing.assert_array_equal(vm_counts((counts / VM_PER_PU).astype(np.float32)), counts)
    for first, last, every in ((0, 128, 1), (128, 180, 2)):
        for sign in (1, -1):
            counts = sign * np.arange(first * VA_PER_DEG, last * VA_PER_DEG, every)
            np.testing.assert_array_equal(va_counts((counts / VA_PER_DEG).astype(np.float32)), counts)
    for start in (0.0, 0.5, 1.0, 1000.0, 16_383.0):
        points = start + np.arange(1024) / 1024
        assert np.array_equal(round_power(points).astype(np.float64), points)
    # The reason for every second angle from 128 degrees on: without it, two grid points share a number.
    counts = np.arange(128 * VA_PER_DEG, 129 * VA_PER_DEG)
    assert len(np.unique((counts / VA_PER_DEG).astype(np.float32))) < len(counts)


def test_half_a_turn_is_positive_and_zero_has_one_sign() -> None:
    v = np.array([complex(-1.0, 0.0), complex(-1.0, -0.0), complex(-1.0, -1e-12), complex(1.0, -0.0)])
    phasors = round_to_grid(v)
    np.testing.assert_array_equal(phasors.va_deg, [180, 180, 180, 0])
    assert not np.signbit(phasors.va_deg).any()
    for nothing in (0j, complex(-0.0, -0.0), complex(-3e-7, 1e-7)):
        phasors = round_to_grid(np.array([nothing]))
        assert phasors.vm_pu.tobytes() == phasors.va_deg.tobytes() == np.zeros(1, np.float32).tobytes()


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1_073_741_825.0])
@pytest.mark.parametrize("where", [0, 1])
def test_one_bad_value_among_many_is_refused_without_being_printed(bad: float, where: int) -> None:
    values = np.ones((8, 3), dtype=np.complex128)
    values.view(np.float64)[5, 2 * 2 + where] = bad
    given = NodeColumns(values, np.arange(3), 4)
    for refuse in (lambda: rounded_voltages(given, range(2)), lambda: round_to_grid(values)):
        with pytest.raises(CorpusError, match=r"not a finite number of at most 8 p\.u\.") as caught:
            refuse()
        assert f"{bad}" not in str(caught.value).replace("finite", "")
    with pytest.raises(CorpusError, match="not a finite number of at most 1,073,741,824 kW"):
        rounded_powers(given, range(2))
    rounded_powers(given, range(1))


# --- columns of a solver ----------------------------------------------------------------------------------
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


def test_what_is_not_released_is_not_read_and_no_other_memory_either() -> None:
    values = np.full((4, 3), np.nan, dtype=np.complex128)
    values[:, 1] = 1.0
    rounded_voltages(NodeColumns(values, np.array([1]), 4), range(1))
    with pytest.raises(IndexError, match="other memory"):
        rounded_powers(NodeColumns(values, np.array([1, 3]), 4), range(1))
    rounded_powers(NodeColumns(values[:, :0], np.array([-1, -1]), 4), range(1))  # nobody has a value
