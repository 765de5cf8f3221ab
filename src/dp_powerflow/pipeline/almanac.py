"""What the config says of days: the calendar of the release, public holidays, public weather."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_powerflow.almanac.calendar import Calendar, WeatherFormat, read_holidays
from dp_powerflow.almanac.weather import Weather
from dp_powerflow.config import Config
from dp_powerflow.corpus.tables import DayTable
from dp_powerflow.model.options import DayFacts
from dp_powerflow.units import FloatArray


@dataclass(frozen=True, eq=False)
class Almanac:
    """PUBLIC. Days of the release, holidays and weather.

    Attributes
    ----------
    calendar : consecutive days of the release; None where its days have no dates.
    holidays : days off beside Saturdays and Sundays, of any year.
    weather : of the days of the meters and of the release, perhaps of more; None without.
    """

    calendar: Calendar | None = None
    holidays: frozenset[dt.date] = frozenset()
    weather: Weather | None = None

    @property
    def released(self) -> DayTable | None:
        """What is published: dates, holidays and weather of the released days alone."""
        if self.calendar is None:
            return None
        days = self.calendar.days
        return DayTable(self.calendar, None if self.weather is None else self.weather.on(days))

    def of(self, days: Sequence[dt.date]) -> Calendar:
        """The calendar of other days, such as those of the meters."""
        return Calendar(tuple(days), self.holidays)

    def check_meters(self, days: Sequence[dt.date]) -> None:
        """Refuse weather that does not cover the days of the meters."""
        if self.weather is not None:
            self.weather.require(days, "days of the meters")

    def facts_of(self, days: Sequence[dt.date]) -> DayFacts:
        """What a model of histories knows of its days, all of it published with the model."""
        return DayFacts(
            dates=tuple(day.isoformat() for day in days),
            off=tuple(self.of(days).off.tolist()),
            covariates=tuple((name, tuple(of.tolist())) for name, of in self.figures_of(days).items()),
        )

    def first(self, days: int) -> Calendar:
        """The calendar of the first days of the release."""
        assert self.calendar is not None  # days without dates are independent draws
        return Calendar(self.calendar.days[:days], self.holidays)

    def figures_of(self, days: Sequence[dt.date]) -> dict[str, FloatArray]:
        """Name → (day,) figures of the weather of these days; none without weather."""
        if self.weather is None:
            return {}
        return dict(zip(self.weather.names, self.weather.features(days).T, strict=True))

    def chunks(self) -> Iterator[bytes]:
        """The bytes that identify it, for a hash."""
        days = () if self.calendar is None else self.calendar.days
        yield repr((days, sorted(self.holidays))).encode()
        if self.weather is not None:
            yield repr((self.weather.days, self.weather.names)).encode()
            yield np.ascontiguousarray(self.weather.values).tobytes()


def almanac_of(config: Config) -> Almanac:
    """Calendar and weather of a config, which cover the days of the release.

    Raises
    ------
    ConfigError : a file cannot be used, or the weather lacks a day of the release; nothing was spent.
    """
    declared, first_day = config.calendar.holidays, config.first_day
    holidays = read_holidays(declared) if isinstance(declared, Path) else frozenset(declared)
    calendar = None if first_day is None else Calendar.starting(first_day, config.release.days, holidays)
    weather = _weather(config)
    if weather is not None and calendar is not None:
        hint = "" if config.release.first_day else " (it starts there unless release.first_day is set)"
        weather.require(calendar.days, f"days of the release from {first_day} on{hint}")
    return Almanac(calendar, holidays, weather)


def declared_days(config: Config) -> tuple[dt.date, ...]:
    """PUBLIC. The days of the meters, as far as the config declares them; none where it does not."""
    first, last = config.loads.first_day, config.loads.last_day
    if first is None or last is None:
        return ()
    return Calendar.starting(first, (last - first).days + 1).days


def _weather(config: Config) -> Weather | None:
    section = config.weather
    if section is None:
        return None
    fmt = WeatherFormat(section.time, section.temperature, section.irradiance, section.time_zone)
    return Weather.read(section.path, config.loads.time_zone, fmt)
