"""`days.parquet`: date, day off and weather of every day of a corpus, all of it public."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.almanac.weather import FEATURES, MEANS, UNITS, Weather
from dp_powerflow.corpus.parquet import numbers
from dp_powerflow.corpus.schema import PARQUET, CorpusLayout, metadata_of
from dp_powerflow.corpus.storage import Location, loading, open_parquet
from dp_powerflow.errors import ConfigError, CorpusError

DAYS_FILE = "days.parquet"


@dataclass(frozen=True, eq=False)
class DayTable:
    """The days of a corpus.

    Attributes
    ----------
    calendar : consecutive days.
    weather : of exactly these days; None without.
    """

    calendar: Calendar
    weather: Weather | None = None

    def __post_init__(self) -> None:
        if not self.calendar.is_consecutive:
            raise CorpusError(
                "the days of a corpus follow one another; a calendar with holes is of no corpus"
            )
        if self.weather is not None and self.weather.days != self.calendar.days:
            raise CorpusError("the weather of a corpus is that of its days; leave other days out")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures of the weather; none without."""
        return () if self.weather is None else self.weather.names

    @cached_property
    def holiday(self) -> list[bool]:
        """(day,) whether it is a holiday, which may be a Saturday or Sunday too."""
        return [day in self.calendar.holidays for day in self.calendar.days]


class DayColumn(NamedTuple):
    """A column of the file: name, Arrow type, unit and meaning."""

    name: str
    type: pa.DataType
    unit: str | None
    means: str


def columns_of_days(weather: tuple[str, ...]) -> Iterator[DayColumn]:
    """The columns, with these figures of the weather."""
    yield DayColumn("day", pa.int32(), None, "number of the day, from 0")
    yield DayColumn("date", pa.date32(), None, "local date of the day")
    yield DayColumn("holiday", pa.bool_(), None, "whether it is a declared holiday")
    yield DayColumn("off", pa.bool_(), None, "whether it is a Saturday, a Sunday or a holiday")
    for name in weather:
        yield DayColumn(name, pa.float64(), UNITS[name], MEANS[name])


def days_schema(layout: CorpusLayout, release_id: str, weather: tuple[str, ...]) -> pa.Schema:
    """Schema of the file."""
    fields = [
        pa.field(
            column.name, column.type, nullable=False, metadata={"unit": column.unit} if column.unit else None
        )
        for column in columns_of_days(weather)
    ]
    return pa.schema(fields, metadata=metadata_of(layout, release_id))


def encode_days(layout: CorpusLayout, release_id: str, days: DayTable) -> bytes:
    """Bytes of the file."""
    calendar = days.calendar
    if calendar.n_days != layout.days:
        raise CorpusError(f"the corpus has {layout.days} days and the calendar {calendar.n_days}")
    values = [] if days.weather is None else list(days.weather.values.T)
    columns = [range(layout.days), calendar.days, days.holiday, calendar.off, *values]
    schema = days_schema(layout, release_id, days.names)
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET)
    return bytes(sink.getvalue())


def read_days(
    directory: Location,
    layout: CorpusLayout,
    release_id: str,
    content: Location | pa.BufferReader | None = None,
) -> DayTable | None:
    """The days of a corpus, None where they have no dates; from the bytes of the file if they were read.

    Raises
    ------
    CorpusError : the file is damaged, or of another corpus, or its columns contradict each other.
    """
    path = directory / DAYS_FILE
    with loading(path):
        if content is None and not path.exists():
            return None
        with open_parquet(content or path, page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
        weather = tuple(name for name in FEATURES if name in table.column_names)
        if not table.schema.equals(days_schema(layout, release_id, weather), check_metadata=True):
            raise ValueError("columns, types or metadata are not those of a corpus")
        try:
            return _days_of(table, layout, weather)
        except (ConfigError, CorpusError) as error:  # of a calendar or weather that cannot be
            raise ValueError(str(error)) from None


def _days_of(table: pa.Table, layout: CorpusLayout, weather: tuple[str, ...]) -> DayTable:
    dates, holiday, off = (table.column(name).to_pylist() for name in ("date", "holiday", "off"))
    if table.column("day").to_pylist() != list(range(layout.days)):
        raise ValueError("not one row per day in order")
    calendar = Calendar(
        tuple(dates), frozenset(day for day, is_one in zip(dates, holiday, strict=True) if is_one)
    )
    if calendar.off.tolist() != off:
        raise ValueError("a day off is not marked, or another day is")
    if not weather:
        return DayTable(calendar)
    values = np.stack([numbers(table.column(name)) for name in weather], axis=1)
    found = Weather(calendar.days, weather, values)
    if not found.is_consistent:
        raise ValueError("figures of the weather that contradict each other")
    return DayTable(calendar, found)
