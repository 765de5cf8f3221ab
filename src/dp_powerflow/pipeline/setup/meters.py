"""Facts of format of a meter file: columns, step, customers. No reading is looked at.

Two files of the same customers and columns give the same facts, whatever was read. The days are published
with a release, so they are declared and never taken from stamps: the first and the last stamp of a file are
those of one customer, who would decide alone whether 14 or 15 days are published. A rule that rounds, or that
asks whether nearly all customers have a day, still answers from private data; and noise on two dates, paid by
the customers, would buy what an owner knows who has read his meters. The step is that of stamps which at
least half of the customers share: a matter of format, which no single customer moves.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import MeterFormat, one_of, zone
from dp_powerflow.loads.history import MINUTES_PER_DAY
from dp_powerflow.loads.tables import MeterTable, open_table
from dp_powerflow.pipeline.setup.columns import UNITS, Columns, Named, declared_unit, find_columns
from dp_powerflow.units import IntArray

_ANY_FORMAT = MeterFormat("kW", "start", "UTC")  # to open a file whose unit and step are not known yet
_SHARED = 0.5  # of the groups of customers have a stamp that tells the step
_GROUPS = 64  # by a hash of their names: a customer counts once for a stamp, however many rows he has
_SECONDS_PER_MINUTE = 60


@dataclass(frozen=True)
class DeclaredFormat:
    """What the command line declares of a meter file; None where it declares nothing.

    Attributes
    ----------
    days : first and last day of the readings, which are published.
    """

    unit: str | None = None
    time_zone: str | None = None
    interval_label: str | None = None
    columns: Named = field(default_factory=Named)
    days: tuple[dt.date, dt.date] | None = None


@dataclass(frozen=True, repr=False)
class MeterFacts:
    """What `init` takes from a meter file.

    Attributes
    ----------
    columns : which is what.
    unit, time_zone, interval_label : as declared.
    step_minutes : how far stamps are apart, mostly [min].
    first_day, last_day : as declared.
    customers : in order, without blanks around them.
    notes : what the producer should look at.
    """

    columns: Columns
    unit: str
    time_zone: str
    interval_label: Literal["start", "end"]
    step_minutes: int
    first_day: dt.date
    last_day: dt.date
    customers: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class _Scan:
    """Stamps that most customers share, in order [s], whether of the wall clock, and the customers."""

    seconds: IntArray
    wall: bool
    customers: tuple[str, ...]


def meter_facts(path: Path, declared: DeclaredFormat) -> MeterFacts:
    """Read columns, stamps and customers of a CSV or Parquet file.

    Raises
    ------
    LoadDataError
        If something must be declared that no file says, such as a unit; says with which option.
    """
    if declared.days is None:
        raise LoadDataError(
            "the days of the readings are published, so no stamp may decide them; declare the period that "
            "you read the meters for, such as --first-day 2024-01-01 --last-day 2024-12-31"
        )
    if declared.days[1] < declared.days[0]:
        raise LoadDataError("--last-day is before --first-day; exchange them")
    if declared.time_zone is not None:
        zone(declared.time_zone)
    if declared.interval_label is not None:
        one_of("--interval-label", declared.interval_label, ("start", "end"))
    table = open_table(path, _ANY_FORMAT)
    columns = find_columns(table, declared.columns)
    unit = columns.unit if declared.unit is None else declared_unit(declared.unit)
    if unit is None:
        known = ", ".join(f"'{known}'" for known in UNITS)
        raise LoadDataError(f"no column name of {path} states the unit; give it with --unit: {known}")
    found = _scan(table, columns)
    if found.wall and declared.time_zone is None:
        raise LoadDataError(
            f"the stamps of {path} have no offset from UTC; give their time zone with --time-zone, "
            "such as 'Europe/Berlin'"
        )
    time_zone = declared.time_zone or "UTC"
    label = declared.interval_label or columns.label or "start"
    step = _step_minutes(found.seconds, path)
    facts = MeterFacts(columns, unit, time_zone, _label(label), step, *declared.days, found.customers)
    told = declared.interval_label is not None or columns.label is not None
    return facts if told else replace(facts, notes=_label_notes(found, step))


def _label(word: str) -> Literal["start", "end"]:
    return "end" if word == "end" else "start"


def _scan(table: MeterTable, columns: Columns) -> _Scan:
    texts = (columns.time,) if columns.customer is None else (columns.time, columns.customer)
    seen, customers, clocks = Counter[int](), set(columns.customers), set[bool]()
    for batch in table.batches((), texts):
        stamps = table.stamps(batch.column(0), columns.time)
        clocks |= {stamps.wall} if stamps.seconds.size else set()
        groups = np.zeros(stamps.seconds.size, dtype=np.int64)
        if columns.customer is not None:
            names, own = _names(batch.column(1), table, columns.customer)
            customers |= {*names}
            groups = np.array([crc32(name.encode()) % _GROUPS for name in names], dtype=np.int64)[own]
        for pair in np.unique(stamps.seconds * _GROUPS + groups).tolist():
            seen[pair // _GROUPS] |= 1 << pair % _GROUPS
    if len(clocks) > 1:
        raise LoadDataError(f"only some stamps of {table.path} have an offset from UTC; write all alike")
    if not clocks:
        raise LoadDataError(f"{table.path} has a header but no rows; export the meter data again")
    fewest = _SHARED * reduce(or_, seen.values()).bit_count()  # a row of a wide file is of all
    shared = np.array(sorted(t for t, found in seen.items() if found.bit_count() >= fewest), dtype=np.int64)
    return _Scan(shared, clocks.pop(), tuple(sorted(customers)))


def _names(cells: Any, table: MeterTable, column: str) -> tuple[list[str], IntArray]:
    """Customers, without blanks around them, and which of them every row is of."""
    if cells.null_count:
        raise LoadDataError(f"{cells.null_count} rows of {table.path} have no '{column}'; remove them")
    coded = pc.dictionary_encode(cells)
    names = coded.dictionary.cast(pa.string()).to_pylist()
    return [name.strip() for name in names], coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _step_minutes(seconds: IntArray, path: Path) -> int:
    """The most frequent distance of stamps: gaps, stray stamps and clock changes do not move it."""
    if seconds.size > 1:
        apart, often = np.unique(np.diff(seconds), return_counts=True)
        minutes, rest = divmod(int(apart[np.argmax(often)]), _SECONDS_PER_MINUTE)
        if rest == 0 and MINUTES_PER_DAY % minutes == 0:
            return minutes
    raise LoadDataError(
        f"the stamps of {path} are not a fixed number of minutes apart that divides a day; average the "
        "readings to 15, 30 or 60 minutes"
    )


def _label_notes(found: _Scan, step: int) -> tuple[str, ...]:
    """Stamps from 00:15 to 24:00 name the end of their interval, most likely."""
    day, length = _SECONDS_PER_MINUTE * MINUTES_PER_DAY, _SECONDS_PER_MINUTE * step
    if not found.wall or int(found.seconds[0]) % day != length or int(found.seconds[-1]) % day != 0:
        return ()
    return (
        "the stamps begin one interval after midnight and end at midnight, as if they named the end of an "
        "interval; if they do, write the config again with --interval-label end",
    )
