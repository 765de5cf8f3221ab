"""Which days there are, and which of them are days off. PUBLIC."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dp_powerflow.errors import ConfigError, WeatherError
from dp_powerflow.units import BoolArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# Readings of a weather file on local days: stamps with an offset, wall-clock stamps, or dates.


_DAY_S = 86400
_MISSING = ("", "NA", "NaN", "nan", "null", "NULL")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class WeatherFormat:
    """Declared facts of a weather file.

    Attributes
    ----------
    time, temperature : names of the columns of stamps and of temperatures [°C].
    irradiance : name of the column of irradiance [W/m²]; None without.
    time_zone : IANA name, of stamps without an offset; None for the meters' own.
    """

    time: str = "time"
    temperature: str = "temperature"
    irradiance: str | None = None
    time_zone: str | None = None


@dataclass(frozen=True, eq=False)
class Readings:
    """Readings of weather, each on its local day.

    Attributes
    ----------
    path : of the file, for messages.
    days : local days that have a stamp, in order.
    day_of : (reading,) position of its day among `days`.
    expected : (day,) how many readings a whole day has.
    temperature : (reading,) [°C], NaN where there is none.
    irradiance : (reading,) [W/m²], NaN where there is none; None without a column.
    """

    path: Path
    days: tuple[dt.date, ...]
    day_of: IntArray
    expected: FloatArray
    temperature: FloatArray
    irradiance: FloatArray | None


def read_readings(path: Path, time_zone: str, fmt: WeatherFormat) -> Readings:
    """Read a file of weather; days are cut in `time_zone`.

    Raises
    ------
    ConfigError : no file, no such column, no stamps, or stamps that are not in order.
    """
    table = _table(path, fmt)
    stamps = _stamps(table.column(fmt.time), path, fmt)
    if len(stamps) < 2:
        raise WeatherError(f"the weather {path} has fewer than two readings; give a row per reading")
    local, step_s = _placed(stamps, path, zone_of(time_zone), zone_of(fmt.time_zone or time_zone))
    days, day_of = np.unique(np.array(local, dtype="datetime64[D]"), return_inverse=True)
    found = tuple(days.tolist())
    zone = zone_of(time_zone)
    # an odd step does not fill a day; the rest of the day is no reading
    expected = [max((_DAY_S if step_s == _DAY_S else _length_s(day, zone)) // step_s, 1) for day in found]
    irradiance = None if fmt.irradiance is None else _numbers(table.column(fmt.irradiance))
    temperature = _numbers(table.column(fmt.temperature))
    return Readings(path, found, day_of.astype(np.int64), np.array(expected, float), temperature, irradiance)


def _placed(
    stamps: Sequence[dt.datetime], path: Path, local: ZoneInfo, written: ZoneInfo
) -> tuple[list[dt.date], int]:
    """Local day of each stamp, and the step of the file [s]: a day where the stamps are dates."""
    plain = np.array([_seconds(stamp.replace(tzinfo=dt.UTC)) for stamp in stamps])
    wall = stamps[0].tzinfo is None
    dates = wall and not (plain % _DAY_S).any()
    moments = stamps if dates or not wall else list(_instants(stamps, path, written))
    instants = plain if dates else np.array([_seconds(moment) for moment in moments])
    bad = np.flatnonzero(np.diff(instants) <= 0)
    if bad.size:
        where, later = stamps[int(bad[0]) + 1], int(instants[bad[0] + 1]) < int(instants[bad[0]])
        problem = "is not in order of time; sort the file" if later else "is there twice; keep one of the two"
        raise WeatherError(f"the stamp {where.isoformat(' ', 'minutes')} of the weather {path} {problem}")
    if dates:
        return [stamp.date() for stamp in stamps], _DAY_S
    step_s = int(np.median(np.diff(instants)))
    if step_s >= _DAY_S:
        raise WeatherError(
            f"the weather {path} has a reading a day, and its stamps have a time; write the dates alone, "
            "such as 2024-01-31"
        )
    return [moment.astimezone(local).date() for moment in moments], step_s


def _seconds(moment: dt.datetime) -> int:
    return int((moment - _EPOCH).total_seconds())


def _instants(stamps: Sequence[dt.datetime], path: Path, zone: ZoneInfo) -> Iterator[dt.datetime]:
    """Instants of wall-clock stamps; the second of two equal ones in a doubled hour is the later."""
    before: dt.datetime | None = None
    for stamp in stamps:
        moment = stamp.replace(tzinfo=zone).astimezone(dt.UTC)
        if moment.astimezone(zone).replace(tzinfo=None) != stamp:
            raise WeatherError(
                f"the weather {path} has a reading at {stamp.isoformat(' ', 'minutes')}, which the clock of "
                f"'{zone.key}' jumped over; write stamps with their offset from UTC, or set "
                "weather.time_zone, 'UTC' perhaps"
            )
        if before is not None and moment <= before:
            moment = stamp.replace(tzinfo=zone, fold=1).astimezone(dt.UTC)
        yield moment
        before = moment


def _length_s(day: dt.date, zone: ZoneInfo) -> int:
    """Length of a local day [s]: 23 or 25 h where the clock changes."""
    begin, end = (_seconds(dt.datetime.combine(day + dt.timedelta(days=k), dt.time(), zone)) for k in (0, 1))
    return end - begin


def zone_of(name: str, error: type[Exception] = ConfigError) -> ZoneInfo:
    """The time zone of an IANA name, or the error of this kind."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise error(
            f"the time zone '{name}' is not in the IANA database; use a name such as 'Europe/Berlin' or 'UTC'"
        ) from None


def _table(path: Path, fmt: WeatherFormat) -> Any:
    """The wanted columns of the file: stamps as they are (CSV: text), the others as doubles."""
    wanted = [name for name in (fmt.time, fmt.temperature, fmt.irradiance) if name is not None]
    as_text = pa_csv.ConvertOptions(
        column_types={fmt.time: pa.string()}, null_values=list(_MISSING), strings_can_be_null=True
    )
    is_parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        whole = pq.read_table(path) if is_parquet else pa_csv.read_csv(path, convert_options=as_text)
        _ = whole.column_names  # which may be no text
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0][:120] or "no reason given"
        raise WeatherError(
            f"the weather {path} cannot be read as CSV or Parquet; export it again, or correct weather.path "
            f"({reason})"
        ) from None
    names = ", ".join(f"'{name}'" for name in whole.column_names[:8]) or "none"
    names += f" and {whole.num_columns - 8} more" * (whole.num_columns > 8)
    for name in wanted:
        if whole.column_names.count(name) != 1 or wanted.count(name) != 1:
            raise WeatherError(
                f"the weather {path} needs one column '{name}', for one purpose, and has {names}; name "
                "its columns in weather.time, weather.temperature and weather.irradiance"
            )
    for name in wanted[1:]:
        kind = whole.column(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise WeatherError(f"the column '{name}' of the weather {path} holds {kind}, not numbers alone")
    return whole.select(wanted).combine_chunks()


def _numbers(column: Any) -> FloatArray:
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _stamps(column: Any, path: Path, fmt: WeatherFormat) -> list[dt.datetime]:
    """Stamps, all with a time zone or none."""
    if column.null_count:
        raise WeatherError(
            f"{column.null_count} rows of the weather {path} have no '{fmt.time}'; remove them"
        )
    try:
        texts = column.cast(pa.string()).to_pylist()
        stamps = [dt.datetime.fromisoformat(text.strip()) for text in texts]
    except ValueError as error:  # Arrow's too
        reason = str(error).partition("\n")[0][:80]
        raise WeatherError(
            f"the column '{fmt.time}' of the weather {path} does not hold ISO 8601 stamps alone ({reason}); "
            "write 2024-01-31T13:00+01:00, or 2024-01-31 where there is a row a day"
        ) from None
    if len({stamp.tzinfo is None for stamp in stamps}) > 1:
        raise WeatherError(
            f"only some stamps of the weather {path} have an offset from UTC; write all of them alike"
        )
    return stamps


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
    holidays : PUBLIC. Days off other than Saturdays and Sundays; also days outside `days`.
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
        """Consecutive days."""
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

    @property
    def is_consecutive(self) -> bool:
        """Whether no day is left out."""
        return (self.days[-1] - self.days[0]).days == self.n_days - 1

    @property
    def holidays_within(self) -> tuple[dt.date, ...]:
        """The holidays that are among the days, in order."""
        return tuple(day for day in self.days if day in self.holidays)


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
    found = set()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].strip()
        try:
            found |= {dt.date.fromisoformat(words)} if words else set()
        except ValueError:
            raise ConfigError(
                f"line {number} of the holidays {path} is '{words[:40]}', which is not a date; write one "
                "date a line, such as 2024-12-25"
            ) from None
    return frozenset(found)
