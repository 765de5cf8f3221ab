"""Irradiance of a clear sky against figures of almanacs."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.lowlevel import clear_sky
from dp_powerflow.units import FloatArray

MINUTES = 1440
MARCH_21, JUNE_21, DECEMBER_21 = 80, 172, 355


def day_of(latitude: float, day: int) -> FloatArray:
    """Shares of peak, minute by minute."""
    return clear_sky(latitude, 1, MINUTES, day).reshape(MINUTES)


@pytest.mark.parametrize(
    ("latitude", "day", "rise_h", "set_h"),
    [
        (0.0, JUNE_21, 6.0, 18.0),  # on the equator a day is a day
        (51.5, MARCH_21, 6.0, 18.0),  # and at the equinox everywhere
        (40.0, JUNE_21, 4.58, 19.42),  # centre of the sun on the horizon: cos ω = −tan φ·tan δ
        (40.0, DECEMBER_21, 7.42, 16.58),
        (-40.0, JUNE_21, 7.42, 16.58),
        (60.0, JUNE_21, 2.76, 21.24),
    ],
)
def test_the_sun_rises_and_sets_when_it_should(
    latitude: float, day: int, rise_h: float, set_h: float
) -> None:
    up = np.flatnonzero(day_of(latitude, day) > 0.0) * 24.0 / MINUTES
    # The first light is too little for a number for up to a minute; the equinox is not at noon.
    assert up[0] == pytest.approx(rise_h, abs=0.05)
    assert up[-1] == pytest.approx(set_h, abs=0.05)


@pytest.mark.parametrize(
    ("latitude", "day", "zenith_deg"),
    [(0.0, MARCH_21, 0.0), (40.0, JUNE_21, 16.56), (40.0, DECEMBER_21, 63.44), (-33.9, DECEMBER_21, 10.46)],
)
def test_noon_is_haurwitz_at_the_height_of_the_sun(latitude: float, day: int, zenith_deg: float) -> None:
    cosine = np.cos(np.deg2rad(zenith_deg))
    expected = 1.098 * cosine * np.exp(-0.059 / cosine)
    assert day_of(latitude, day).max() == pytest.approx(expected, rel=2e-3)
    assert np.argmax(day_of(latitude, day)) in (MINUTES // 2 - 1, MINUTES // 2)


def test_a_year_has_one_longest_day_and_the_poles_their_night() -> None:
    year = clear_sky(45.0, 365, 24).sum(axis=1)
    assert np.argmax(year) + 1 in range(171, 175)
    assert np.argmin(year) + 1 in range(354, 358)
    assert np.array_equal(clear_sky(45.0, 365, 24, 100)[266], clear_sky(45.0, 1, 24)[0])
    assert not day_of(80.0, DECEMBER_21).any()
    assert (day_of(80.0, JUNE_21) > 0.0).all()
    assert np.allclose(day_of(30.0, JUNE_21), day_of(30.0, JUNE_21)[::-1], atol=1e-12)


def test_the_bits_are_the_same_everywhere() -> None:
    year = clear_sky(37.8, 365, 96, 1)
    assert hashlib.sha256(year.tobytes()).hexdigest()[:16] == "63d8d4ea4dd750c7"


@pytest.mark.parametrize(
    ("latitude", "days", "steps", "first"),
    [(91.0, 1, 24, 1), (np.nan, 1, 24, 1), (0.0, 0, 24, 1), (0.0, 1, 24, 367)],
)
def test_what_is_no_place_or_no_day_is_refused(latitude: float, days: int, steps: int, first: int) -> None:
    with pytest.raises(PowerFlowError):
        clear_sky(latitude, days, steps, first)
