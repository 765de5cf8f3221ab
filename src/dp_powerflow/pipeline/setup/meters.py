"""Facts of format of a meter file: columns, stamps, customers. No reading is looked at.

Two files of the same customers, columns and stamps give the same facts, whatever was read.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import MeterFormat, one_of, zone
from dp_powerflow.loads.history import MINUTES_PER_DAY
from dp_powerflow.loads.tables import MeterTable, open_table
from dp_powerflow.loads.timegrid import whole_days
from dp_powerflow.pipeline.setup.columns import UNITS, Columns, Named, declared_unit, find_columns
from dp_powerflow.units import IntArray

_ANY_FORMAT = MeterFormat("kW", "start", "UTC")  # to open a file whose unit and step are not known yet
_LEAST_COVERED = 0.5  # of the steps between the first and the last stamp
_SECONDS_PER_MINUTE = 60


@dataclass(frozen=True)
class DeclaredFormat:
    """What the command line declares of a meter file; None where it declares nothing."""

    unit: str | None = None
    time_zone: str | None = None
    interval_label: str | None = None
    columns: Named = field(default_factory=Named)


@dataclass(frozen=True, repr=False)
class MeterFacts:
    """What `init` takes from a meter file.

    Attributes
    ----------
    columns : which is what.
    unit, time_zone, interval_label : as declared.
    step_minutes : how far stamps are apart, mostly [min].
    first_day, last_day : local days that lie wholly within the stamps.
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
    """Different stamps of a file in order [s], whether they are of the wall clock, and its customers."""

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
    first, last = whole_days(
        time_zone,
        int(found.seconds[0]),
        int(found.seconds[-1]),
        step,
        wall=found.wall,
        label_is_end=label == "end",
    )
    _refuse_stray_stamps(found.seconds, step, path)
    facts = MeterFacts(columns, unit, time_zone, _label(label), step, first, last, found.customers)
    told = declared.interval_label is not None or columns.label is not None
    return facts if told else replace(facts, notes=_label_notes(found, step))


def _label(word: str) -> Literal["start", "end"]:
    return "end" if word == "end" else "start"


def _scan(table: MeterTable, columns: Columns) -> _Scan:
    texts = (columns.time,) if columns.customer is None else (columns.time, columns.customer)
    seconds, customers, clocks = np.zeros(0, dtype=np.int64), set(columns.customers), set[bool]()
    for batch in table.batches((), texts):
        stamps = table.stamps(batch.column(0), columns.time)
        seconds = np.union1d(seconds, stamps.seconds)
        clocks |= {stamps.wall} if stamps.seconds.size else set()
        if columns.customer is not None:
            customers |= _names(batch.column(1), table, columns.customer)
    if len(clocks) > 1:
        raise LoadDataError(f"only some stamps of {table.path} have an offset from UTC; write all alike")
    if not clocks:
        raise LoadDataError(f"{table.path} has a header but no rows; export the meter data again")
    return _Scan(seconds, clocks.pop(), tuple(sorted(customers)))


def _names(cells: Any, table: MeterTable, column: str) -> set[str]:
    if cells.null_count:
        raise LoadDataError(f"{cells.null_count} rows of {table.path} have no '{column}'; remove them")
    return {name.strip() for name in pc.unique(cells).cast(pa.string()).to_pylist()}


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


def _refuse_stray_stamps(seconds: IntArray, step: int, path: Path) -> None:
    steps = (int(seconds[-1]) - int(seconds[0])) / (_SECONDS_PER_MINUTE * step) + 1
    if seconds.size < _LEAST_COVERED * steps:
        raise LoadDataError(
            f"the stamps of {path} leave out more than half of the steps between the first and the last one; "
            "remove stamps that are far from the others, or export the meter data again"
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
