"""Public weather of days: daily covariates of the load, from a file of readings.

Plain arithmetic only, in the order of the file, so that the bits are the same on every processor.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_powerflow.almanac.calendar import Readings, WeatherFormat, read_readings
from dp_powerflow.errors import ConfigError, WeatherError
from dp_powerflow.units import BoolArray, FloatArray, IntArray

HEATING_BASE_C = 15.0
COOLING_BASE_C = 22.0
LEAST_READINGS = 0.9
"""Share of a day's readings that must be there; a day with fewer is as if it were not in the file."""
TEMPERATURE, BEFORE, HEATING, COOLING, IRRADIANCE = FEATURES = (
    "temperature_c",
    "temperature_before_c",
    "heating_k",
    "cooling_k",
    "irradiance_w_m2",
)
UNITS = {TEMPERATURE: "°C", BEFORE: "°C", HEATING: "K", COOLING: "K", IRRADIANCE: "W/m²"}
MEANS = {
    TEMPERATURE: "mean temperature of the day",
    BEFORE: "mean temperature of the day before; on the first day of the weather, that of the day itself",
    HEATING: f"heating degree hours over 24 h: mean of what lacks to {HEATING_BASE_C:g} °C",
    COOLING: f"cooling degree hours over 24 h: mean of what is above {COOLING_BASE_C:g} °C",
    IRRADIANCE: "mean irradiance of the day, night included",
}
_COLDEST_C, _HOTTEST_C = -90.0, 60.0
_HOTTEST_MEAN_C = 40.0
_MOST_W, _LEAST_W, _NO_W = 1600.0, -20.0, 1.5
_ROUND_OFF = 1e-9
_ONE_DAY = dt.timedelta(days=1)


@dataclass(frozen=True, eq=False)
class Weather:
    """Daily covariates; PUBLIC.

    Attributes
    ----------
    days : strictly increasing; a day that the file lacks, or has too few readings of, is not there.
    names : of the covariates, the first four or all five of `FEATURES`.
    values : (day, covariate) in the units of `UNITS`.
    """

    days: tuple[dt.date, ...]
    names: tuple[str, ...]
    values: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "days", tuple(self.days))
        object.__setattr__(self, "names", tuple(self.names))
        values = np.array(self.values, dtype=np.float64)
        values.flags.writeable = False
        object.__setattr__(self, "values", values)
        if self.names not in (FEATURES[:-1], FEATURES):
            raise WeatherError(f"weather has the covariates {', '.join(FEATURES)}; the last may be missing")
        if values.shape != (len(self.days), len(self.names)) or not np.isfinite(values).all():
            raise WeatherError("weather needs a finite value for every day and covariate")
        if any(later <= earlier for earlier, later in zip(self.days, self.days[1:], strict=False)):
            raise WeatherError("the days of the weather must be strictly increasing; sort them, each once")

    @classmethod
    def read(cls, path: str | Path, time_zone: str = "UTC", fmt: WeatherFormat | None = None) -> Weather:
        """Daily covariates of a CSV or Parquet file of readings, sub-hourly to daily.

        Parameters
        ----------
        path : .csv or .parquet; a row per reading, in order of time.
        time_zone : IANA name of the meters' local time; days are cut in it.
        fmt : names of the columns, and the time zone of stamps without an offset.

        Raises
        ------
        ConfigError : the file cannot be read, or does not look like weather in these units.
        """
        fmt = fmt or WeatherFormat()
        readings = read_readings(Path(path), time_zone, fmt)
        _refuse_other_units(readings, fmt)
        return _daily(readings)

    def require(self, days: Sequence[dt.date], what: str = "days asked for") -> None:
        """Refuse weather that does not cover all these days.

        Parameters
        ----------
        what : the days in words, for the sentence.

        Raises
        ------
        ConfigError : names the first day that is missing; weather is public.
        """
        missing = sorted(set(days) - set(self.days))
        if missing:
            have = f" and has days from {self.days[0]} to {self.days[-1]}" if self.days else ""
            raise WeatherError(
                f"the weather lacks {missing[0]}, one of the {what} ({len(missing)} missing){have}; a day "
                f"needs {LEAST_READINGS:.0%} of its readings, and so does the day before it: complete the "
                "file, or choose other days"
            )

    def features(self, days: Sequence[dt.date]) -> FloatArray:
        """(day, covariate) of these days, in this order; raises as `require`."""
        self.require(days)
        row = {day: k for k, day in enumerate(self.days)}
        return self.values[[row[day] for day in days]]

    @property
    def is_consistent(self) -> bool:
        """Whether the figures can belong together, as far as they say the same twice."""
        mean, before, heating, cooling, *rest = self.values.T
        after = [k for k in range(1, len(self.days)) if self.days[k] - self.days[k - 1] == _ONE_DAY]
        return bool(
            np.all(before[after] == mean[np.array(after, dtype=np.int64) - 1])
            and np.all(heating >= np.maximum(HEATING_BASE_C - mean, 0.0) - _ROUND_OFF)
            and np.all(cooling >= np.maximum(mean - COOLING_BASE_C, 0.0) - _ROUND_OFF)
            and all(np.all(column >= 0.0) for column in rest)
        )

    def on(self, days: Sequence[dt.date]) -> Weather:
        """The weather of these days alone."""
        return Weather(tuple(days), self.names, self.features(days))


def _daily(readings: Readings) -> Weather:
    """Means of each day that has enough readings, and whose day before has too."""
    temperature, enough = _means(readings, readings.temperature)
    columns = {
        TEMPERATURE: temperature,
        HEATING: _means(readings, np.maximum(HEATING_BASE_C - readings.temperature, 0.0))[0],
        COOLING: _means(readings, np.maximum(readings.temperature - COOLING_BASE_C, 0.0))[0],
    }
    if readings.irradiance is not None:
        columns[IRRADIANCE], there = _means(readings, np.maximum(readings.irradiance, 0.0))
        enough = enough & there
    kept = {readings.days[k]: k for k in np.flatnonzero(enough).tolist()}
    if not kept:
        raise WeatherError(
            f"no day of the weather {readings.path} has {LEAST_READINGS:.0%} of its readings; give whole days"
        )
    first = min(kept)
    days = [day for day in kept if day == first or day - _ONE_DAY in kept]
    rows = np.array([kept[day] for day in days])
    before = np.array([kept.get(day - _ONE_DAY, kept[day]) for day in days])
    values = {name: column[rows] for name, column in columns.items()} | {BEFORE: temperature[before]}
    names = tuple(name for name in FEATURES if name in values)
    return Weather(tuple(days), names, np.stack([values[name] for name in names], axis=1))


def _means(readings: Readings, values: FloatArray) -> tuple[FloatArray, BoolArray]:
    """(day,) mean of the readings that there are, 0 where there is none, and whether there are enough."""
    there = np.isfinite(values)
    count: IntArray = np.bincount(readings.day_of[there], minlength=len(readings.days))
    # bincount adds one after the other: the same bits everywhere
    total = np.bincount(readings.day_of[there], values[there], minlength=len(readings.days))
    return total / np.maximum(count, 1), count >= LEAST_READINGS * readings.expected


def _refuse_other_units(readings: Readings, fmt: WeatherFormat) -> None:
    values = readings.temperature[np.isfinite(readings.temperature)]
    if not values.size:
        raise WeatherError(
            f"the column '{fmt.temperature}' of {readings.path} holds no temperature at all; name another "
            "column in weather.temperature"
        )
    low, high = float(values.min()), float(values.max())
    mean = float((values / values.size).sum())  # which no values are too large for
    if not (low >= _COLDEST_C and high <= _HOTTEST_C and mean <= _HOTTEST_MEAN_C):
        raise WeatherError(
            f"the temperatures of {readings.path} lie between {low:g} and {high:g}, with mean {mean:.4g}, "
            "as if in °F, kelvin or tenths; give them in °C"
        )
    if readings.irradiance is None:
        return
    values = readings.irradiance[np.isfinite(readings.irradiance)]
    low, high = (float(values.min()), float(values.max())) if values.size else (np.nan, np.nan)
    if not (low >= _LEAST_W and high <= _MOST_W and not 0.0 < high <= _NO_W):
        raise ConfigError(
            f"the column '{fmt.irradiance}' of {readings.path} lies between {low:g} and {high:g}, which is "
            f"no irradiance in W/m²; give it in W/m², 0 at night and at most {_MOST_W:g}"
        )
