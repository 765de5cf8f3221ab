"""What all simulated customers share: the calendar, the outdoor temperature and the sky.

Temperatures are of a temperate climate of the northern hemisphere: a mean of 9 °C, 9 K of season, and spells
of warm and cold days about it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import cos, kernel, sin
from dp_powerflow._bits.linear import standard_normal
from dp_powerflow.loads.history import MINUTES_PER_DAY, SATURDAY
from dp_powerflow.units import BoolArray, FloatArray

_DAYS_PER_YEAR = 365.25
_COLDEST_DAY = 20  # of the year
_SHORTEST_DAY = -10  # of the year
_MEAN_C, _SEASON_C, _SPELLS_C = 9.0, 9.0, 5.0  # [°C] mean, half the swing over the year, spread of a day
_MEMORY = 0.75  # correlation of weather and sky from day to day
_LATITUDE = 47.0  # [°]
_TILT = 0.4091  # of the axis of the earth [rad]
_SUN_MINUTES = 10  # at most, between two looks at the sun
_SHADE = 0.15  # of a roof's own output, from hour to hour


@dataclass(frozen=True, eq=False)
class Calendar:
    """Days that follow one another, common to all customers.

    Parameters
    ----------
    weekend
        (day,) Saturday or Sunday.
    season
        (day,) cosine over the year, 1 on the coldest day.
    weather
        (day,) of unit variance, positive on days warmer than the season.
    temperature
        (day,) mean outdoors [°C].
    declination
        (day,) of the sun [rad].
    sky
        (day, hour) share of the clear sky's light that reaches the ground.
    """

    weekend: BoolArray
    season: FloatArray
    weather: FloatArray
    temperature: FloatArray
    declination: FloatArray
    sky: FloatArray


def calendar_of(days: tuple[dt.date, ...], seed: int) -> Calendar:
    """The weather of a seed; more days do not change the first ones."""
    above, rng = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(k,))) for k in (0, 2))
    of_year = np.array([day.timetuple().tm_yday for day in days])
    turn = 2 * np.pi / _DAYS_PER_YEAR
    season = cos(turn * (of_year - _COLDEST_DAY))
    weather = autoregressive(rng, len(days), _MEMORY)
    cloud = standard_normal(above, (len(days), 25))
    remember(cloud[:, 0], _MEMORY)
    clear = np.clip(0.6 + 0.3 * cloud[:, :1] + 0.15 * cloud[:, 1:], 0.1, 1.0)
    return Calendar(
        weekend=np.array([day.weekday() >= SATURDAY for day in days]),
        season=season,
        weather=weather,
        temperature=_MEAN_C - _SEASON_C * season + _SPELLS_C * weather,
        declination=-_TILT * cos(turn * (of_year - _SHORTEST_DAY)),
        sky=clear,
    )


@dataclass(frozen=True)
class Photovoltaics:
    """Panels behind the meter.

    Parameters
    ----------
    share
        Of the customers of a class.
    kwp_per_kw
        Peak output over the public scale; a customer has half to one and a half of it.
    """

    share: float
    kwp_per_kw: float

    def output(
        self, scale_kw: float, calendar: Calendar, n_steps: int, rng: np.random.Generator
    ) -> FloatArray:
        """(day, step) output of one customer [kW], 0 if it has no panels."""
        own, size, turned = rng.random(3)
        if own >= self.share:
            return np.zeros((len(calendar.weekend), n_steps))
        kwp = scale_kw * self.kwp_per_kw * (0.5 + size)
        looks = max(1, MINUTES_PER_DAY // n_steps // _SUN_MINUTES)
        hours = np.arange(0.5, n_steps * looks, dtype=np.float64) * (24.0 / (n_steps * looks))
        high = _height(calendar.declination, hours, 3.0 * turned - 1.5)
        sky = calendar.sky * (1 + _SHADE * (2 * rng.random(calendar.sky.shape) - 1))
        light = np.maximum(high, 0.0) * sky[:, hours.astype(np.int64)]
        output: FloatArray = kwp * light.reshape(len(high), n_steps, looks).mean(axis=2)
        return output


def _height(declination: FloatArray, hours: FloatArray, turned: float) -> FloatArray:
    """(day, hour) sine of the height of the sun, `turned` hours later for panels that face west."""
    latitude = np.array([_LATITUDE * np.pi / 180])
    angle = cos((np.pi / 12) * (hours - 12 - turned))
    noon = (cos(latitude) * cos(declination))[:, None] * angle
    return noon + (sin(latitude) * sin(declination))[:, None]


def autoregressive(rng: np.random.Generator, n: int, memory: float) -> FloatArray:
    """(n,) stationary first-order process of unit variance."""
    process = standard_normal(rng, (n,))
    remember(process, memory)
    return process


@kernel
def remember(process: FloatArray, memory: float) -> None:
    """White noise of unit variance → the process, in place."""
    new = np.sqrt(1 - memory * memory)
    for i in range(1, process.size):
        process[i] = new * process[i] + memory * process[i - 1]
