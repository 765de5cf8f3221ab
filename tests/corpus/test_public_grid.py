"""Rounding to the public grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dp_powerflow.corpus.grid import (
    VA_PER_DEG,
    VM_MAX_PU,
    VM_PER_PU,
    Phasors,
    on_grid,
    round_to_grid,
    va_counts,
    vm_counts,
)
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import ComplexArray

MAGNITUDES = st.floats(1e-3, VM_MAX_PU)
ANGLES = st.floats(-180, 180)


def phasor(magnitude: float, degrees: float) -> np.ndarray:
    return np.array([magnitude * np.exp(1j * np.deg2rad(degrees))])


def stored(vm: float, va: float) -> Phasors:
    return Phasors(np.array([vm], dtype=np.float32), np.array([va], dtype=np.float32))


@settings(deadline=None)  # the first call compiles
@given(MAGNITUDES, ANGLES)
def test_rounding_is_to_the_nearest_grid_point(magnitude: float, degrees: float) -> None:
    vm, va = round_to_grid(phasor(magnitude, degrees)).exact()
    assert abs(vm[0] - magnitude) <= 0.5000001 / VM_PER_PU
    half_step = 0.5000001 / VA_PER_DEG * (2 if abs(va[0]) >= 128 else 1)
    away = (va[0] - degrees + 180) % 360 - 180
    assert abs(away) <= half_step


@settings(deadline=None)
@given(hnp.arrays(np.complex128, (3, 4), elements=st.complex_numbers(max_magnitude=VM_MAX_PU - 1e-3)))
def test_rounded_voltages_are_on_the_grid_and_stay_where_they_are(v: ComplexArray) -> None:
    phasors = round_to_grid(v)
    assert phasors.vm_pu.dtype == phasors.va_deg.dtype == np.float32
    assert on_grid(phasors).all()
    again = round_to_grid(phasors.complex())
    np.testing.assert_array_equal(again.vm_pu.view(np.uint32), phasors.vm_pu.view(np.uint32))
    np.testing.assert_array_equal(again.va_deg.view(np.uint32), phasors.va_deg.view(np.uint32))


def test_every_grid_point_of_the_magnitude_has_a_float32_of_its_own() -> None:
    counts = np.arange(8 * VM_PER_PU + 1)
    np.testing.assert_array_equal(vm_counts((counts / VM_PER_PU).astype(np.float32)), counts)


@pytest.mark.parametrize(
    ("first", "last", "every"), [(0, 128, 1), (128, 180, 2)], ids=["below 128 degrees", "from 128 degrees on"]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_every_grid_point_of_the_angle_has_a_float32_of_its_own(
    first: int, last: int, every: int, sign: int
) -> None:
    counts = sign * np.arange(first * VA_PER_DEG, last * VA_PER_DEG, every)
    np.testing.assert_array_equal(va_counts((counts / VA_PER_DEG).astype(np.float32)), counts)


def test_odd_grid_points_beyond_128_degrees_would_collide_in_float32() -> None:
    # The reason for every second one: without it, two grid points share a number.
    counts = np.arange(128 * VA_PER_DEG, 129 * VA_PER_DEG)
    assert len(np.unique((counts / VA_PER_DEG).astype(np.float32))) < len(counts)


def test_half_a_turn_is_positive_and_zero_has_one_sign() -> None:
    v = np.array([complex(-1.0, 0.0), complex(-1.0, -0.0), complex(-1.0, -1e-12), complex(1.0, -0.0)])
    phasors = round_to_grid(v)
    np.testing.assert_array_equal(phasors.va_deg, [180, 180, 180, 0])
    assert not np.signbit(phasors.va_deg).any()


@pytest.mark.parametrize("v", [0j, complex(-0.0, -0.0), complex(-3e-7, 1e-7)])
def test_a_voltage_of_magnitude_zero_has_angle_zero(v: ComplexArray) -> None:
    phasors = round_to_grid(np.array([v]))
    assert phasors.vm_pu.tobytes() == phasors.va_deg.tobytes() == np.zeros(1, np.float32).tobytes()


@pytest.mark.parametrize("bad", [np.nan, complex(np.inf, 0), complex(0, np.nan), 8.001, complex(-6, 6)])
def test_what_is_not_a_voltage_is_refused_without_being_printed(bad: complex) -> None:
    v = np.ones((2, 3), dtype=np.complex128)
    v[1, 2] = bad
    with pytest.raises(CorpusError, match=r"not a finite number of at most 8 p\.u\.") as caught:
        round_to_grid(v)
    assert "8.001" not in str(caught.value)
    assert "nan" not in str(caught.value).replace("finite", "")


@pytest.mark.parametrize(
    ("vm", "va"),
    [
        (1.0 + 2**-23, 0),
        (1.0, np.nextafter(np.float32(-30), np.float32(0))),
        (1.0, np.nextafter(np.float32(1e-5), np.float32(0))),
        (-1.0, 0),
        (8.000001, 0),
        (np.nan, 0),
        (1.0, np.nan),
        (1.0, np.inf),
        (1.0, -180),
        (1.0, 180.00002),
        (1.0, -0.0),
        (-0.0, 0.0),
        (0.0, 1.0),
    ],
)
def test_a_number_that_rounding_cannot_produce_is_not_on_the_grid(vm: float, va: float) -> None:
    assert not on_grid(stored(vm, va)).any()


def test_near_180_degrees_exactly_the_even_grid_points_are_on_the_grid() -> None:
    low = np.float32(170.0).view(np.uint32)
    every_float = np.arange(low, low + 20_000, dtype=np.uint32).view(np.float32)
    even = np.arange(170 * VA_PER_DEG, 171 * VA_PER_DEG, 2)
    known = np.isin(every_float, (even / VA_PER_DEG).astype(np.float32))
    found = on_grid(Phasors(np.ones_like(every_float), every_float))
    np.testing.assert_array_equal(found, known)
    assert 0 < known.sum() < known.size


def test_neighbouring_voltages_that_share_a_grid_point_are_released_as_the_same_bytes() -> None:
    v = phasor(1.01234567, -119.123456)
    moved = v * np.complex128(1 + 1e-9)
    assert round_to_grid(v).vm_pu.tobytes() == round_to_grid(moved).vm_pu.tobytes()
    assert round_to_grid(v).va_deg.tobytes() == round_to_grid(moved).va_deg.tobytes()
