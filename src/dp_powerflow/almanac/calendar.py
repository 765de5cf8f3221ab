"""Which days there are, and which of them are days off. PUBLIC."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dp_powerflow.errors import ConfigError
from dp_powerflow.units import BoolArray, FloatArray

SATURDAY = 5
YEARS = range(1900, 2200)
"""Of days that a config or a meter file may have; a day beyond is a slip of the pen."""
DateArray = NDArray[np.datetime64]
_ONE_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Calendar:
    """Local days, in order; a history may have holes, the days of a release follow one another.

    Attributes
    ----------
    days : strictly increasing.
    holidays : PUBLIC. Days off beside Saturdays and Sundays; may also name days that are not among `days`.
    """

    days: tuple[dt.date, ...]
    holidays: frozenset[dt.date] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "days", tuple(self.days))
        object.__setattr__(self, "holidays", frozenset(self.holidays))
        if not self.days:
            raise ConfigError("a calendar needs at least one day")
        if any(later <= earlier for earlier, later in zip(self.days, self.days[1:], strict=False)):
            raise ConfigError("the days of a calendar must be strictly increasing; sort them, each once")

    @classmethod
    def starting(cls, first_day: dt.date, n_days: int, holidays: Iterable[dt.date] = ()) -> Calendar:
        """So many consecutive days."""
        if (dt.date.max - first_day).days < n_days - 1:
            raise ConfigError(f"{n_days} days from {first_day} on go beyond the year 9999; start earlier")
        return cls(tuple(first_day + day * _ONE_DAY for day in range(n_days)), frozenset(holidays))

    @property
    def n_days(self) -> int:
        """Number of days."""
        return len(self.days)

    @property
    def first_day(self) -> dt.date:
        """The first day."""
        return self.days[0]

    @cached_property
    def dates(self) -> DateArray:
        """(day,) the days as `datetime64[D]`."""
        return np.array(self.days, dtype="datetime64[D]")

    @cached_property
    def off(self) -> BoolArray:
        """(day,) true on a Saturday, a Sunday or a holiday."""
        return np.array([day.weekday() >= SATURDAY or day in self.holidays for day in self.days])

    @cached_property
    def year_phase(self) -> FloatArray:
        """(day,) share of its year that has passed when a day begins: 0 on the first of January, below 1."""
        return np.array([_passed(day) for day in self.days])

    @property
    def is_consecutive(self) -> bool:
        """Whether no day is left out."""
        return (self.days[-1] - self.days[0]).days == self.n_days - 1

    @property
    def holidays_within(self) -> tuple[dt.date, ...]:
        """The holidays that are among the days, in order."""
        return tuple(day for day in self.days if day in self.holidays)


def _passed(day: dt.date) -> float:
    first = dt.date(day.year, 1, 1)
    length = (dt.date(day.year, 12, 31) - first).days + 1
    return (day - first).days / length


def read_holidays(path: Path) -> frozenset[dt.date]:
    """Dates of a text file, one a line (2024-12-25); what follows a # is left out, and so are empty lines.

    Raises
    ------
    ConfigError : the file cannot be read, or a line is no date.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError):
        raise ConfigError(f"the file of holidays {path} is not a text file that can be read") from None
    return frozenset(_date_of(line, path, number) for number, line in enumerate(lines, 1) if _words(line))


def _words(line: str) -> str:
    return line.partition("#")[0].strip()


def _date_of(line: str, path: Path, number: int) -> dt.date:
    try:
        return dt.date.fromisoformat(_words(line))
    except ValueError:
        raise ConfigError(
            f"line {number} of the holidays {path} is '{_words(line)[:40]}', which is not a date; write one "
            "date a line, such as 2024-12-25"
        ) from None
