"""Read meter files (long or wide; CSV or Parquet) into a checked `LoadHistory`.

A file is read in batches, a few ahead; the memory needed is nine bytes per customer and step, and a few
batches.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import (
    IngestRules,
    LongColumns,
    MeterFormat,
    ServiceMap,
    WideColumns,
    one_service_each,
)
from dp_powerflow.loads.ids import IdFindings, compare_ids
from dp_powerflow.loads.placing import Codes
from dp_powerflow.loads.report import IngestResult, Quantity, RawHistory, check_history
from dp_powerflow.loads.tables import MeterTable, Stamps, doubles, open_table
from dp_powerflow.loads.timegrid import ReadingGrid, TimeGrid, build_time_grid, whole_days
from dp_powerflow.units import BoolArray, FloatArray, IntArray

Days = tuple[dt.date, dt.date]

_QUANTITIES = ("active", "reactive")
"""The years 1900 to 2199, in seconds since 1970."""
_NOBODY = np.int32(-1)


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
        point of its own, in the order of names.
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
        found = _scan_long(table, columns)
        services = services or one_service_each(sorted(found.customers))
        days = days or found.days(fmt)
    grid = build_time_grid(fmt.time_zone, *days, fmt.step_minutes)
    target = _Target(grid, fmt, services.customers, len(values))
    seen = _fill_from_long(target, table, columns, values)
    ids = compare_ids(seen.names, services.customers, len(seen.blank))
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
    columns_of = [name for own in names for name in own.values()]
    ids = compare_ids(found, services.customers, sum(name != name.strip() for name in columns_of))
    listed = [customer for customer in found if customer in services.load_point_of]
    if not listed:
        raise LoadDataError(
            f"no column of {table.path} is a customer of the service map; {ids.hint or 'check its names'}",
            code="meters-not-listed",
        )
    if days is None:
        days = _scan_stamps(table, columns.time).days(fmt)
    grid = build_time_grid(fmt.time_zone, *days, fmt.step_minutes)
    target = _Target(grid, fmt, services.customers, len(names))
    wanted = tuple(own[customer] for own in names for customer in listed)
    seen: set[int] = set()
    read = 0
    for batch in table.batches(wanted, (columns.time,), columns.time):
        stamps = table.stamps(batch.column(len(wanted)), columns.time)
        slots = target.slots(stamps, _is_repeat_of(seen, stamps, grid))
        for k in range(len(wanted)):
            own = np.full(batch.num_rows, target.index[listed[k % len(listed)]], dtype=np.int32)
            target.quantities[k // len(listed)].add(own, slots, doubles(batch, k))
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
        if stamps.wall:
            return self.grid.slots_of_wall_times(stamps.seconds, second_time, at_end)
        return self.grid.slots_of_instants(stamps.seconds, at_end)

    def add(self, own: Codes, stamps: Stamps, second_time: BoolArray, readings: list[FloatArray]) -> None:
        slots = self.slots(stamps, second_time)
        for quantity, values in zip(self.quantities, readings, strict=True):
            quantity.add(own, slots, values)

    def finish(self, services: ServiceMap, rows: int, ids: IdFindings) -> RawHistory:
        if ids.in_file == 0:
            raise LoadDataError("the meter file has a header but no rows; export the meter data again")
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
        counts = quantities[0].counts
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
        return RawHistory(
            tuple(quantities),
            self.customers,
            services,
            self.grid.days,
            self.grid.step_minutes,
            self.grid.skipped,
            rows,
            ids,
        )


@dataclass(frozen=True, eq=False, repr=False)
class _Rows:
    """Rows of a long file: customer (index, −1 if not listed), stamp, and a reading per quantity."""

    own: Codes
    seconds: IntArray
    readings: list[FloatArray]

    def where(self, flags: BoolArray) -> _Rows:
        return _Rows(self.own[flags], self.seconds[flags], [reading[flags] for reading in self.readings])


@dataclass(repr=False)
class _Seen:
    """PRIVATE. What a long file holds: rows, customers, and ids with blanks around them."""

    rows: int = 0
    names: set[str] = field(default_factory=set)
    blank: set[str] = field(default_factory=set)
    last: Any = None  # dictionary of the batch before, and the customers of its entries
    index: Codes = field(default_factory=lambda: np.empty(0, dtype=np.int32))


def _fill_from_long(
    target: _Target, table: MeterTable, columns: LongColumns, values: tuple[str, ...]
) -> _Seen:
    """Add all rows of a long file; returns who is in it."""
    seen = _Seen()
    late: list[_Rows] = []
    for batch in table.batches(values, (columns.customer, columns.time), columns.time):
        own = _customer_index(batch.column(len(values)), table, columns.customer, target.index, seen)
        stamps = table.stamps(batch.column(len(values) + 1), columns.time)
        readings = [doubles(batch, i) for i in range(len(values))]
        if stamps.wall:
            # the earlier of two equal stamps can be many batches away: wait for the end of the file
            unclear = target.grid.is_ambiguous(stamps.seconds) & (own >= 0)
            if unclear.any():
                late.append(_Rows(own, stamps.seconds, readings).where(unclear))
                own = np.where(unclear, _NOBODY, own)
        target.add(own, stamps, np.zeros(own.size, dtype=np.bool_), readings)
    if late:
        own = np.concatenate([rows.own for rows in late])
        seconds = np.concatenate([rows.seconds for rows in late])
        readings = [np.concatenate([rows.readings[q] for rows in late]) for q in range(len(values))]
        target.add(own, Stamps(seconds, wall=True), _is_repeat(own, seconds), readings)
    return seen


@dataclass(repr=False)
class _Scan:
    """What a first pass over a file finds: who, and from when to when."""

    customers: set[str]
    first_s: int | None = None
    last_s: int | None = None
    wall: bool = False

    def see(self, stamps: Stamps, table: MeterTable) -> None:
        if stamps.seconds.size == 0:
            return
        first, last = int(stamps.seconds.min()), int(stamps.seconds.max())
        if self.first_s is None or self.last_s is None:
            self.first_s, self.last_s, self.wall = first, last, stamps.wall
        if stamps.wall != self.wall:
            raise LoadDataError(
                f"only some stamps of {table.path} have an offset from UTC; write all alike", code="time-zone"
            )
        self.first_s, self.last_s = min(first, self.first_s), max(last, self.last_s)

    def days(self, fmt: MeterFormat) -> Days:
        if self.first_s is None or self.last_s is None:
            raise LoadDataError("the meter file has a header but no rows; export the meter data again")
        return whole_days(
            fmt.time_zone,
            self.first_s,
            self.last_s,
            fmt.step_minutes,
            wall=self.wall,
            label_is_end=fmt.interval_label == "end",
        )


def _scan_long(table: MeterTable, columns: LongColumns) -> _Scan:
    found, last = _Scan(set()), None
    for batch in table.batches((), (columns.customer, columns.time), columns.time):
        encoded = _encoded(batch.column(0), table, columns.customer)
        if last is None or not encoded.dictionary.equals(last):
            last = encoded.dictionary
            found.customers.update(name.strip() for name in last.cast(pa.string()).to_pylist())
        found.see(table.stamps(batch.column(1), columns.time), table)
    if not found.customers:
        raise LoadDataError(f"{table.path} has a header but no rows; export the meter data again")
    return found


def _scan_stamps(table: MeterTable, column: str) -> _Scan:
    found = _Scan(set())
    for batch in table.batches((), (column,), column):
        found.see(table.stamps(batch.column(0), column), table)
    return found


def _encoded(cells: Any, table: MeterTable, column: str) -> Any:
    """Customers of a batch as a dictionary array."""
    if cells.null_count:
        raise LoadDataError(f"{cells.null_count} rows of {table.path} have no '{column}'; remove them")
    return cells if pa.types.is_dictionary(cells.type) else pc.dictionary_encode(cells)


def _customer_index(cells: Any, table: MeterTable, column: str, index: dict[str, int], seen: _Seen) -> Codes:
    """(row,) index of the customer, without blanks around it; −1 if the service map does not list it."""
    encoded = _encoded(cells, table, column)
    seen.rows += len(encoded)
    if seen.last is None or not encoded.dictionary.equals(seen.last):
        written = encoded.dictionary.cast(pa.string()).to_pylist()
        names = [name.strip() for name in written]
        seen.names.update(names)
        seen.blank.update(name for name in written if name != name.strip())
        seen.last = encoded.dictionary
        seen.index = np.array([index.get(name, _NOBODY) for name in names], dtype=np.int32)
    found: Codes = seen.index[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def _wide_customers(table: MeterTable, columns: WideColumns) -> tuple[list[dict[str, str]], list[str]]:
    """Per quantity: customer → column; and the customers in the order of the file."""
    suffixes = [columns.active_suffix]
    suffixes += [] if columns.reactive_suffix is None else [columns.reactive_suffix]
    names: list[dict[str, str]] = [{} for _ in suffixes]
    other = twice = 0
    # the longer suffix first: an empty one matches every column
    order = sorted(range(len(suffixes)), key=lambda i: -len(suffixes[i]))
    for column in table.columns:
        if column == columns.time or column in columns.ignore:
            continue
        match = next((i for i in order if column.endswith(suffixes[i])), None)
        if match is None:
            other += 1
        else:
            customer = column.removesuffix(suffixes[match]).strip()
            twice += customer in names[match]
            names[match][customer] = column
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
