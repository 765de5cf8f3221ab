"""Read meter files (long or wide; CSV or Parquet) and load shapes into a checked `LoadHistory`.

A file is read in batches, a few ahead; the memory needed is nine bytes per customer and step, and a few
batches.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dp_powerflow._threads import ahead
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import (
    IngestRules,
    LongColumns,
    MeterFormat,
    ServiceMap,
    WideColumns,
    one_service_each,
    read_service_rows,
)
from dp_powerflow.loads.history import steps_per_day
from dp_powerflow.loads.report import (
    IdFindings,
    IngestResult,
    Quantity,
    RawHistory,
    check_history,
    compare_ids,
)
from dp_powerflow.loads.timegrid import (
    Codes,
    ReadingCounts,
    ReadingGrid,
    TimeGrid,
    build_time_grid,
    whole_days,
    whole_seconds,
)
from dp_powerflow.units import BoolArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# Batches of columns from CSV and Parquet files, in bounded memory.
#
# Arrow's own messages quote the offending cell, so none of them is ever passed on: errors here name the
# file, the column and how many rows are at fault.


# a block of CSV text, or this many Parquet rows, is all that is held at a time besides the result
_CSV_BLOCK_BYTES = 16 << 20
_PARQUET_CELLS = 4_000_000
_TEXT_SUFFIXES = (".csv", ".txt", ".gz", ".bz2")
_REPEATING = pa.dictionary(pa.int32(), pa.string())
_LINE_END = re.compile(rb"\r\n|\n|\r")
_OFFSET = r"(Z|z|[+-]\d\d(:?\d\d)?)$"
# arrow does not trim cells of text
_NUMBER = r"^\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|Inf|INF|nan|NaN|NAN|infinity)\s*$"


@dataclass(frozen=True)
class Stamps:
    """Stamps of a batch: (row,) seconds since 1970, of an instant (UTC) or, if `wall`, of the wall clock."""

    seconds: IntArray
    wall: bool


@dataclass(frozen=True)
class MeterTable:
    """A CSV or Parquet file of readings and its columns."""

    path: Path
    columns: tuple[str, ...] = field(repr=False)  # of a wide file they name customers
    fmt: MeterFormat
    columns_are_customers: bool = False

    def require(self, *names: str) -> None:
        """Raise unless the file has all these columns."""
        if len(set(names)) < len(names):
            raise LoadDataError(
                f"one column of {self.path} is named for two purposes; name a column for each"
            )
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise LoadDataError(
                f"{self.path} has no column '{missing[0]}'; it has {len(self.columns)} columns, "
                "name the right one or add it"
            )

    def _label(self, name: str) -> str:
        """How a message names a column of values: a customer's name is private, its position is not."""
        return f"column {self.columns.index(name) + 1}" if self.columns_are_customers else f"column '{name}'"

    def batches(self, numbers: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[Any]:
        """Record batches with the columns `numbers` as doubles and `texts` as they are (CSV: text).

        Cells of `texts` that repeat may come as a dictionary.
        """
        read = self._csv_batches if _is_csv(self.path) else self._parquet_batches
        yield from read(numbers, texts)

    def _csv_batches(self, numbers: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[Any]:
        types = {name: pa.float64() for name in numbers} | dict.fromkeys(texts, _REPEATING)
        try:
            yield from self._open_csv(types)
            return
        except pa.ArrowInvalid as error:
            ragged = "Expected" in str(error) and "columns" in str(error)
        # Not in the handler: the error would carry Arrow's words, which quote a cell.
        if not ragged:
            raise self._not_numbers(numbers)
        raise LoadDataError(
            f"the rows of {self.path} do not all have {len(self.columns)} cells; check the delimiter and the "
            "header"
        )

    def _open_csv(self, types: dict[str, Any]) -> Iterator[Any]:
        options = pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=list(self.fmt.missing),
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            decimal_point=self.fmt.decimal,
        )
        try:
            opened = pa_csv.open_csv(
                self.path,
                read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
                parse_options=pa_csv.ParseOptions(delimiter=self.fmt.delimiter),
                convert_options=options,
            )
        except pa.ArrowKeyError:  # a header that Arrow reads otherwise, such as one with quotes within it
            raise pa.ArrowInvalid("no such column") from None
        return iter(opened)

    def _not_numbers(self, numbers: tuple[str, ...]) -> LoadDataError:
        """Say how many cells are not numbers and where; reads the file again, as text."""
        row = 1
        try:
            for batch in self._open_csv(dict.fromkeys(numbers, pa.string())) if numbers else ():
                for name, cells in zip(numbers, batch.columns, strict=True):
                    text = pc.replace_substring(cells, ",", ".") if self.fmt.decimal == "," else cells
                    bad = np.flatnonzero(~_to_numpy(pc.match_substring_regex(text, _NUMBER).fill_null(True)))
                    if bad.size:
                        return LoadDataError(
                            f"{bad.size} cells of {self._label(name)} of {self.path} are not numbers, the "
                            f"first in row {row + int(bad[0]) + 1}; correct them or list them as missing"
                        )
                row += batch.num_rows
        except pa.ArrowInvalid:
            pass
        return LoadDataError(f"{self.path} is not valid CSV text in UTF-8; export it again")

    def _parquet_batches(self, numbers: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[Any]:
        names = [*numbers, *texts]
        try:
            for batch in ahead(self._parquet_parts(names, list(texts))):
                columns = [self._as_doubles(batch.column(name), name) for name in numbers]
                columns += [self._as_text(batch.column(name), name) for name in texts]
                yield pa.RecordBatch.from_arrays(columns, names=names)
        except (pa.ArrowException, OSError, LookupError):  # what Arrow says may quote a cell
            raise LoadDataError(
                f"{self.path} is damaged, or a column is of a strange type; export it again"
            ) from None

    def _parquet_parts(self, names: list[str], repeating: list[str]) -> Iterator[Any]:
        """Batches of one file after the other; their types may differ."""
        size = max(1024, _PARQUET_CELLS // len(names))
        for path in _parquet_files(self.path):
            with pq.ParquetFile(path, read_dictionary=repeating, pre_buffer=False) as file:
                yield from file.iter_batches(size, columns=names)

    def _as_doubles(self, cells: Any, name: str) -> Any:
        kind = cells.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return cells.cast(pa.float64(), safe=False)
        raise LoadDataError(
            f"{self._label(name)} of {self.path} holds {kind}, not numbers; write it as floating point"
        )

    def _as_text(self, cells: Any, name: str) -> Any:
        """A column of ids or stamps; a page that was damaged may point to words that are not there."""
        kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise LoadDataError(f"column '{name}' of {self.path} holds {kind}; write it as text")
        cells.validate(full=True)
        return cells

    def stamps(self, cells: Any, column: str) -> Stamps:
        """Stamps of a batch, from Arrow timestamps or text."""
        if cells.null_count:
            raise LoadDataError(
                f"{cells.null_count} rows of {self.path} have no stamp in column '{column}'; remove them"
            )
        kind, place = cells.type, None
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
            # stamps repeat: every text is parsed once
            encoded = cells if pa.types.is_dictionary(kind) else pc.dictionary_encode(cells)
            place = _to_numpy(encoded.indices)
            times = np.bincount(place, minlength=len(encoded.dictionary))
            used = np.flatnonzero(times)
            text = encoded.dictionary.cast(pa.string()).take(pa.array(used))
            cells = self._parsed(text, times[used], column)
            place = (np.cumsum(times > 0) - 1)[place]
        elif not pa.types.is_timestamp(kind):
            raise LoadDataError(
                f"column '{column}' of {self.path} holds {kind}, not stamps; write ISO 8601 text"
            )
        wall = cells.type.tz is None
        micros = _to_numpy(cells.cast(pa.timestamp("us", cells.type.tz), safe=False).cast(pa.int64()))
        seconds = whole_seconds(micros)
        return Stamps(seconds if place is None else seconds[place], wall)

    def _parsed(self, text: Any, times: IntArray, column: str) -> Any:
        """Stamps of texts; `times` is how often each is in the batch."""
        if self.fmt.stamp_format is not None:
            parsed = pc.strptime(text, format=self.fmt.stamp_format, unit="s", error_is_null=True)
            if parsed.null_count:
                bad = int(times[_to_numpy(parsed.is_null())].sum())
                raise self._bad_stamps(bad, column, f"the format '{self.fmt.stamp_format}'")
            return parsed
        with_offset = _to_numpy(pc.match_substring_regex(pc.utf8_slice_codeunits(text, 10, 64), _OFFSET))
        if with_offset.any() and not with_offset.all():
            raise LoadDataError(
                f"only some stamps in column '{column}' of {self.path} have an offset from UTC; "
                "write all of them alike",
                code="time-zone",
            )
        kind = pa.timestamp("us", "UTC" if with_offset.any() else None)
        bad = 0
        try:
            return text.cast(kind)
        except pa.ArrowInvalid:
            for cell, count in zip(text, times.tolist(), strict=True):
                try:
                    cell.cast(kind)
                except pa.ArrowInvalid:
                    bad += count
        raise self._bad_stamps(bad, column, "ISO 8601 (2024-01-31T00:15)")

    def _bad_stamps(self, count: int, column: str, what: str) -> LoadDataError:
        return LoadDataError(
            f"{count} stamps in column '{column}' of {self.path} do not follow {what}; "
            "correct them or declare stamp_format"
        )


def open_table(path: str | Path, fmt: MeterFormat) -> MeterTable:
    """Open a .csv (.txt) or .parquet (.pq) file, or a folder of Parquet files, and read its header."""
    path = Path(path)
    if not path.exists():
        raise LoadDataError(
            f"{path} does not exist; check the path of the meter data", code="meters-not-found"
        )
    if path.is_dir() and path.suffix.lower() in _TEXT_SUFFIXES:
        raise LoadDataError(f"{path} is a folder; give a CSV file, or a folder of Parquet files")
    columns = _csv_header(path, fmt) if _is_csv(path) else _parquet_header(path)
    if len(set(columns)) != len(columns):
        raise LoadDataError(f"{path} has two columns of the same name; rename one")
    return MeterTable(path, columns, fmt)


def _is_csv(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix in _TEXT_SUFFIXES:
        return True
    if suffix in (".parquet", ".pq") or path.is_dir():
        return False
    raise LoadDataError(f"{path} is neither .csv nor .parquet; convert the meter data to one of them")


def _csv_header(path: Path, fmt: MeterFormat) -> tuple[str, ...]:
    try:
        with pa.input_stream(str(path)) as stream:  # decompresses by suffix, as the reader does
            first = _LINE_END.split(stream.read(_CSV_BLOCK_BYTES), maxsplit=1)[0].decode("utf-8-sig")
    except (UnicodeDecodeError, OSError):
        raise LoadDataError(f"{path} is not valid CSV text in UTF-8; export it again") from None
    try:
        names = next(csv.reader([first], delimiter=fmt.delimiter), [])
    except csv.Error:
        raise LoadDataError(f"the header of {path} does not belong to a CSV file; export it again") from None
    if not names:
        raise LoadDataError(f"{path} is empty; export the meter data again")
    return tuple(names)


def _parquet_files(path: Path) -> list[Path]:
    """The file, or the files in a folder and its subfolders, in the order of their names."""
    found = (file for file in path.rglob("[!._]*") if file.suffix in (".parquet", ".pq"))
    return sorted(found) or [path]


def _parquet_header(path: Path) -> tuple[str, ...]:
    try:
        names = tuple(pq.read_schema(_parquet_files(path)[0]).names)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise LoadDataError(f"{path} is not a Parquet file; export it again") from None
    if not names:
        raise LoadDataError(f"{path} is empty; export the meter data again")
    return names


def _to_numpy(array: Any) -> Any:
    """Of numbers (row,) doubles, NaN where there is no value."""
    return array.to_numpy(zero_copy_only=False)


Days = tuple[dt.date, dt.date]

_QUANTITIES = ("active", "reactive")
_NOBODY = np.int32(-1)
_NO_ROWS = "the meter file has a header but no rows; export the meter data again"


def read_long(
    path: str | Path,
    fmt: MeterFormat,
    columns: LongColumns | None = None,
    *,
    services: ServiceMap | None = None,
    days: Days | None = None,
    rules: IngestRules | None = None,
) -> IngestResult:
    """Read a file with one row per customer and interval.

    Parameters
    ----------
    path
        .csv, .parquet, or a folder of Parquet files.
    fmt
        Declared unit, interval label, time zone and step.
    columns
        Column names.
    services
        PUBLIC list of customers and their load points; without it, every customer of the file is a load
        point, in the order of names.
    days
        First and last local day; without it, all whole days between the first and the last stamp.
    rules
        Limits of the checks.
    """
    columns = columns or LongColumns()
    table = open_table(path, fmt)
    values = (columns.active,) if columns.reactive is None else (columns.active, columns.reactive)
    table.require(columns.customer, columns.time, *values)
    if services is None or days is None:
        everyone = _Seen()

        def stamps() -> Iterator[Stamps]:
            for batch in table.batches((), (columns.customer, columns.time)):
                everyone.see(batch.column(0), table, columns.customer)
                yield table.stamps(batch.column(1), columns.time)

        if days is None:
            days = _whole_days(table, stamps())
        else:
            deque(stamps(), maxlen=0)
        services = services or one_service_each(sorted(everyone.names))
    grid = build_time_grid(fmt.time_zone, *days, fmt.step_minutes)
    target = _Target(grid, fmt, services.customers, len(values))
    seen = _fill_from_long(target, table, columns, values)
    ids = compare_ids(seen.names, services.customers)
    return check_history(target.finish(services, seen.rows, ids), rules or IngestRules())


def read_wide(
    path: str | Path,
    fmt: MeterFormat,
    columns: WideColumns | None = None,
    *,
    services: ServiceMap | None = None,
    days: Days | None = None,
    rules: IngestRules | None = None,
) -> IngestResult:
    """Read a file with one row per interval and one column per customer; parameters as in `read_long`."""
    columns = columns or WideColumns()
    table = replace(open_table(path, fmt), columns_are_customers=True)
    table.require(columns.time)
    names, found = _wide_customers(table, columns)
    services = services or one_service_each(found)
    ids = compare_ids(found, services.customers)
    listed = [customer for customer in found if customer in services.load_point_of]
    if not listed:
        raise LoadDataError(
            f"no column of {table.path} is a customer of the service map; {ids.hint or 'check its names'}",
            code="meters-not-listed",
        )
    if days is None:
        batches = table.batches((), (columns.time,))
        days = _whole_days(table, (table.stamps(batch.column(0), columns.time) for batch in batches))
    grid = build_time_grid(fmt.time_zone, *days, fmt.step_minutes)
    target = _Target(grid, fmt, services.customers, len(names))
    wanted = tuple(own[customer] for own in names for customer in listed)
    seen: set[int] = set()
    read = 0
    for batch in table.batches(wanted, (columns.time,)):
        stamps = table.stamps(batch.column(len(wanted)), columns.time)
        slots = target.slots(stamps, _is_repeat_of(seen, stamps, grid))
        for k in range(len(wanted)):
            own = np.full(batch.num_rows, target.index[listed[k % len(listed)]], dtype=np.int32)
            target.quantities[k // len(listed)].add(own, slots, _to_numpy(batch.column(k)))
        read += batch.num_rows
    return check_history(target.finish(services, read, ids), rules or IngestRules())


class _Target:
    """The grids being filled: one per quantity."""

    def __init__(
        self, grid: TimeGrid, fmt: MeterFormat, customers: tuple[str, ...], n_quantities: int
    ) -> None:
        self.grid, self.fmt, self.customers = grid, fmt, customers
        self.index = {customer: i for i, customer in enumerate(customers)}
        self.quantities = [ReadingGrid(grid, len(customers)) for _ in range(n_quantities)]

    def slots(self, stamps: Stamps, second_time: BoolArray) -> IntArray:
        at_end = self.fmt.interval_label == "end"
        return self.grid.slots(stamps.seconds, second_time if stamps.wall else None, at_end)

    def add(self, own: Codes, stamps: Stamps, second_time: BoolArray, readings: list[FloatArray]) -> None:
        slots = self.slots(stamps, second_time)
        for quantity, values in zip(self.quantities, readings, strict=True):
            quantity.add(own, slots, values)

    def finish(self, services: ServiceMap, rows: int, ids: IdFindings) -> RawHistory:
        if ids.in_file == 0:
            raise LoadDataError(_NO_ROWS)
        if ids.absent == ids.listed:
            raise LoadDataError(
                f"none of the {ids.in_file} customers of the meter file is among the {ids.listed} of the "
                f"service map; {ids.hint or 'check that the two belong together, and the customer column'}",
                code="meters-not-listed",
            )
        quantities = []
        for name, accumulated in zip(_QUANTITIES, self.quantities, strict=False):
            values, counts = accumulated.finish()
            values *= self.fmt.to_kw
            quantities.append(Quantity(name, values, counts))
        counts, grid = quantities[0].counts, self.grid
        if counts.off_grid > counts.accepted:
            raise LoadDataError(
                f"{counts.off_grid} stamps are not on a grid of {self.fmt.step_minutes} min; "
                "declare the step of the file and average later with LoadHistory.coarsen"
            )
        if counts.accepted == 0:
            raise LoadDataError(
                "no reading of a listed customer falls on the declared days; check the first and last day, "
                "and the time zone",
                code="meters-days",
            )
        days = grid.days, grid.step_minutes, grid.skipped
        return RawHistory(tuple(quantities), self.customers, services, *days, rows, ids)


@dataclass(repr=False)
class _Seen:
    """PRIVATE. What a long file holds: rows and customers."""

    index: dict[str, int] = field(default_factory=dict)  # of the customers that are listed
    rows: int = 0
    names: set[str] = field(default_factory=set)
    last: Any = None  # dictionary of the batch before, and the customers of its entries
    codes: Codes = field(default_factory=lambda: np.empty(0, dtype=np.int32))

    def see(self, cells: Any, table: MeterTable, column: str) -> Codes:
        """(row,) index of the customer, without blanks around it; −1 if the service map does not list it."""
        if cells.null_count:
            raise LoadDataError(f"{cells.null_count} rows of {table.path} have no '{column}'; remove them")
        encoded = cells if pa.types.is_dictionary(cells.type) else pc.dictionary_encode(cells)
        self.rows += len(encoded)
        if self.last is None or not encoded.dictionary.equals(self.last):
            self.last = encoded.dictionary
            names = [name.strip() for name in self.last.cast(pa.string()).to_pylist()]
            self.names.update(names)
            self.codes = np.array([self.index.get(name, _NOBODY) for name in names], dtype=np.int32)
        found: Codes = self.codes[_to_numpy(encoded.indices)]
        return found


def _fill_from_long(
    target: _Target, table: MeterTable, columns: LongColumns, values: tuple[str, ...]
) -> _Seen:
    """Add all rows of a long file; returns who is in it."""
    seen = _Seen(target.index)
    late: list[list[Any]] = []  # customers, stamps, readings of each quantity
    for batch in table.batches(values, (columns.customer, columns.time)):
        own = seen.see(batch.column(len(values)), table, columns.customer)
        stamps = table.stamps(batch.column(len(values) + 1), columns.time)
        readings = [_to_numpy(batch.column(i)) for i in range(len(values))]
        if stamps.wall:
            # the earlier of two equal stamps can be many batches away: wait for the end of the file
            unclear = target.grid.is_ambiguous(stamps.seconds) & (own >= 0)
            if unclear.any():
                late.append([own[unclear], stamps.seconds[unclear], *(cells[unclear] for cells in readings)])
                own = np.where(unclear, _NOBODY, own)
        target.add(own, stamps, np.zeros(own.size, dtype=np.bool_), readings)
    if late:
        own, seconds, *readings = [np.concatenate(parts) for parts in zip(*late, strict=True)]
        target.add(own, Stamps(seconds, wall=True), _is_repeat(own, seconds), readings)
    return seen


def _whole_days(table: MeterTable, stamps: Iterable[Stamps]) -> Days:
    """First and last local day that lie wholly within the stamps of a file."""
    first_s, last_s, wall, fmt = sys.maxsize, -sys.maxsize, set[bool](), table.fmt
    for part in stamps:
        if part.seconds.size:
            wall.add(part.wall)
            first_s = min(first_s, int(part.seconds.min()))
            last_s = max(last_s, int(part.seconds.max()))
        if len(wall) > 1:
            raise LoadDataError(
                f"only some stamps of {table.path} have an offset from UTC; write all alike", code="time-zone"
            )
    if not wall:
        raise LoadDataError(_NO_ROWS)
    at_end = fmt.interval_label == "end"
    ends = first_s, last_s
    return whole_days(fmt.time_zone, *ends, fmt.step_minutes, wall=wall.pop(), label_is_end=at_end)


def _wide_customers(table: MeterTable, columns: WideColumns) -> tuple[list[dict[str, str]], list[str]]:
    """Per quantity: customer → column; and the customers in the order of the file."""
    stated = (columns.active_suffix, columns.reactive_suffix)
    suffixes = [suffix for suffix in stated if suffix is not None]
    left = [name for name in table.columns if name != columns.time and name not in columns.ignore]
    by_suffix, twice = dict[str, dict[str, str]](), 0
    for suffix in sorted(suffixes, key=len, reverse=True):  # an empty one matches every column
        own = [name for name in left if name.endswith(suffix)]
        left = [name for name in left if not name.endswith(suffix)]
        by_suffix[suffix] = {name.removesuffix(suffix).strip(): name for name in own}
        twice += len(own) - len(by_suffix[suffix])
    names, other = [by_suffix[suffix] for suffix in suffixes], len(left)
    if other:
        raise LoadDataError(f"{other} columns of {table.path} have neither suffix; list them under 'ignore'")
    if twice:
        raise LoadDataError(
            f"{twice} columns of {table.path} name a customer a second time, but for blanks; keep one of each"
        )
    if not names[0]:
        raise LoadDataError(
            f"{table.path} has no column of readings besides the time; check the column names"
        )
    if any(own.keys() != names[0].keys() for own in names):
        raise LoadDataError(
            f"{table.path} has {len(names[0])} active and {len(names[-1])} reactive columns, not in pairs; "
            "give every customer both or ignore the reactive ones"
        )
    return names, list(names[0])


def _is_repeat(own: Codes, seconds: IntArray) -> BoolArray:
    """(row,) true unless it is the first row of its customer with this stamp."""
    order = np.lexsort((np.arange(own.size), seconds, own))
    same = np.zeros(own.size, dtype=bool)
    same[1:] = (own[order][1:] == own[order][:-1]) & (seconds[order][1:] == seconds[order][:-1])
    repeat = np.empty_like(same)
    repeat[order] = same
    return repeat


def _is_repeat_of(seen: set[int], stamps: Stamps, grid: TimeGrid) -> BoolArray:
    """(row,) true for the second row of a wide file with a stamp that the clock shows twice."""
    repeat = np.zeros(stamps.seconds.size, dtype=bool)
    if not stamps.wall:
        return repeat
    for row in np.flatnonzero(grid.is_ambiguous(stamps.seconds)):
        second = int(stamps.seconds[row])
        repeat[row] = second in seen
        seen.add(second)
    return repeat


# --- load shapes ------------------------------------------------------------------------------------------
# OpenDSS load shapes in the OEDI layout: a folder with `loadshape_<load>.csv`, one value per line. The values
# are multipliers of the load's nominal power (the OEDI files peak at 1.0), so nominal kW must be declared;
# OpenDSS also knows shapes of actual kW (`useactual=yes`). A shape has no stamps: its days are taken as 24
# hours each from a declared first day, without clock changes.


_PREFIX = "loadshape_"
CLASS_COLUMNS = ("load", "class")


def read_opendss_shapes(
    folder: str | Path,
    *,
    first_day: dt.date,
    nominal_kw: Mapping[str, float] | None,
    class_of: Mapping[str, str] | None = None,
    step_minutes: int = 15,
    rules: IngestRules | None = None,
) -> IngestResult:
    """Read all load shapes of a folder; every load is a load point and feeds the load of its name.

    Parameters
    ----------
    folder
        Holds `loadshape_<load>.csv`.
    first_day
        Day of the first value.
    nominal_kw
        Load → nominal power [kW], for every shape; names compare without case, as in OpenDSS. It is kept as
        the public scale. None if the values are actual kW.
    class_of
        Load → public class; names compare without case.
    step_minutes
        Time between values [min].
    rules
        Limits of the checks, in kW.
    """
    n_steps = steps_per_day(step_minutes)
    files = {file.stem.removeprefix(_PREFIX): file for file in sorted(Path(folder).glob(f"{_PREFIX}*.csv"))}
    if not files:
        raise LoadDataError(
            f"{folder} holds no file named {_PREFIX}<load>.csv; check the folder of the load shapes"
        )
    series = [_read_shape(file, n_steps) for file in files.values()]
    for file, values in zip(files.values(), series, strict=True):
        if values.size != series[0].size:
            raise LoadDataError(
                f"{file} has {values.size} values where others have {series[0].size}; "
                "cut all to the same days"
            )
    shapes = np.array(series).reshape(len(files), -1, n_steps)
    scales, labels = _of_loads(files, nominal_kw or {}), _of_loads(files, class_of or {})
    if nominal_kw is not None and len(scales) < len(files):
        raise LoadDataError(
            f"{len(files) - len(scales)} of {len(files)} load shapes have no nominal kW; declare it for "
            "every load"
        )
    no_value, infinite = int(np.isnan(shapes).sum()), int(np.isinf(shapes).sum())
    counts = ReadingCounts(shapes.size - no_value - infinite, no_value, infinite)
    shapes[~np.isfinite(shapes)] = np.nan
    if scales:
        shapes *= np.array([scales[name] for name in files], dtype=np.float64)[:, None, None]
    same = {name: name for name in files}
    raw = RawHistory(
        quantities=(Quantity("active", shapes, counts),),
        customers=tuple(files),
        services=ServiceMap(same, node_of=same, class_of=labels, scale_kw_of=scales),
        days=tuple(first_day + dt.timedelta(days=i) for i in range(shapes.shape[1])),
        step_minutes=step_minutes,
        skipped=np.empty(0, dtype=np.int64),
        rows=shapes[0].size,
        ids=IdFindings(in_file=len(files), listed=len(files)),
    )
    return check_history(raw, rules or IngestRules())


def read_load_classes(path: Path) -> dict[str, str]:
    """PUBLIC. Load, in lower case → class, of a CSV file with the columns load, class."""
    if not path.is_file():
        raise LoadDataError(f"class file {path} does not exist; correct loads.classes")
    found: dict[str, str] = {}
    for line, row in enumerate(read_service_rows(path, CLASS_COLUMNS, what="class file"), start=2):
        load, label = (row.get(name, "") for name in CLASS_COLUMNS)
        if not (load and label and f"{load}{label}".isprintable()) or load.casefold() in found:
            raise LoadDataError(f"class file {path}, line {line}: every load has one row, with a class")
        found[load.casefold()] = label
    return found


_Value = TypeVar("_Value")


def _of_loads(loads: Iterable[str], declared: Mapping[str, _Value]) -> dict[str, _Value]:
    """What is declared of loads; names compare without case."""
    by_name = {name.casefold(): value for name, value in declared.items()}
    return {name: by_name[name.casefold()] for name in loads if name.casefold() in by_name}


def _read_shape(file: Path, n_steps: int) -> FloatArray:
    """(value,) of one file: whole days of steps."""
    try:
        table = pa_csv.read_csv(
            file,
            read_options=pa_csv.ReadOptions(column_names=["value"]),
            convert_options=pa_csv.ConvertOptions(column_types={"value": pa.float64()}),
        )
    except (pa.ArrowInvalid, OSError):
        # the message of Arrow would quote a value
        raise LoadDataError(
            f"{file} is not one number per line, without a header; export the load shape again"
        ) from None
    values: FloatArray = table.column(0).to_numpy()
    if values.size == 0 or values.size % n_steps != 0:
        raise LoadDataError(
            f"{file} has {values.size} values, not a whole number of days of {n_steps} steps; "
            "check the step declared"
        )
    return values
