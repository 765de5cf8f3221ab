"""Facts of format of a meter file: columns, step, customers. Readings are not used.

Two files of the same customers and columns give the same facts, whatever was read. The days are published
with a release, so they are declared and never taken from stamps: the first and the last stamp of a file are
those of one customer, who would decide alone whether 14 or 15 days are published. A rule that rounds, or that
asks whether nearly all customers have a day, still answers from private data; and noise on two dates, paid by
the customers, would buy what an owner knows who has read his meters. The step is that of stamps which at
least half of the customers share: a matter of format, which no single customer moves.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from importlib.resources import files
from operator import or_
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dp_powerflow.errors import DpPowerflowError, FeederError, LoadDataError
from dp_powerflow.grid import sources as grid
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import Rebuilder, feeder_problems, open_feeder, read_loads, read_taps
from dp_powerflow.loads.declared import ENERGY_UNITS, POWER_UNITS, MeterFormat, one_of, zone
from dp_powerflow.loads.history import MINUTES_PER_DAY
from dp_powerflow.loads.ingest import MeterTable, open_table
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow.twin.draw import parameters_of
from dp_powerflow.units import IntArray

_KNOWN = tomllib.loads(files("dp_powerflow.setup").joinpath("known.toml").read_text(encoding="utf-8"))
"""Names of columns, words of units, and what is publicly known of kinds of customers."""
UNITS = (*POWER_UNITS, *ENERGY_UNITS)


@dataclass(frozen=True)
class DeclaredFormat:
    """What the command line declares of a meter file; None where it declares nothing.

    Attributes
    ----------
    customer, time, active : names of columns.
    days : first and last day of the readings, which are published.
    """

    unit: str | None = None
    time_zone: str | None = None
    interval_label: str | None = None
    customer: str | None = None
    time: str | None = None
    active: str | None = None
    days: tuple[dt.date, dt.date] | None = None


@dataclass(frozen=True, repr=False)
class Columns:
    """Columns of a meter file.

    Attributes
    ----------
    kind : "long", a row per customer and interval, or "wide", a column per customer.
    customer, active : None of a wide file.
    reactive : None if there is none.
    customers : of a wide file; they are private.
    unit : as the names of the columns state it, None where they do not.
    """

    kind: Literal["long", "wide"]
    time: str
    customer: str | None = None
    active: str | None = None
    reactive: str | None = None
    customers: tuple[str, ...] = ()
    unit: str | None = None

    @property
    def label(self) -> Literal["start", "end"] | None:
        """Whether a stamp names the start or the end of its interval, if the name of its column says so."""
        words = set(_words(self.time))
        return "end" if "end" in words else "start" if "start" in words else None


def find_columns(table: MeterTable, named: DeclaredFormat) -> Columns:
    """Tell the columns of a file by their names.

    Raises
    ------
    LoadDataError
        If a column is not told by its name; says with which option to name it.
    """
    table.require(*(name for name in (named.customer, named.time, named.active) if name is not None))
    if len(table.columns) == 1:
        raise LoadDataError(
            f"{table.path} has one column; separate its columns by commas, and write decimal points"
        )
    time = named.time or _time(table)
    others = tuple(name for name in table.columns if name != time)
    customer = named.customer or _first(others, _KNOWN["customers"])
    readings = tuple(name for name in others if name != customer)
    stated = [name for name in readings if _is_reading(name) and unit_in(name) is not None]
    if customer is None and named.active is None and len(stated) in (0, len(others)):
        units = {unit_in(name) for name in others}
        unit = units.pop() if len(units) == 1 else None
        return Columns("wide", time, customers=tuple(name.strip() for name in others), unit=unit)
    if customer is None:
        raise LoadDataError(
            f"no column of {table.path} has a name such as 'customer'; name the column of customer ids with "
            "--customer-column"
        )
    active = named.active or _active(table, readings, stated)
    reactive = [name for name in readings if set(_words(name)) & {*_KNOWN["reactive"]} and name != active]
    return Columns(
        "long", time, customer, active, reactive[0] if len(reactive) == 1 else None, unit=unit_in(active)
    )


def unit_in(name: str) -> str | None:
    """The unit that the name of a column states, such as 'consumption_kwh'."""
    units: dict[str, str] = _KNOWN["units"]
    for word in _words(name):
        if word in units:
            return units[word]
        for ending in ("kwh", "kw"):  # consumptionKWh, KWHhh
            if word.endswith(ending) or word.startswith("kwh"):
                return units["kwh" if word.startswith("kwh") else ending]
    return None


def declared_unit(word: str) -> str:
    """The unit of a config that a word means: kWh means kWh per interval."""
    for unit in UNITS:
        if word.strip().casefold() in (unit.casefold(), unit.split()[0].casefold()):
            return unit
    known = ", ".join(f"'{unit}'" for unit in UNITS)
    raise LoadDataError(f"--unit '{word}' is not known; use one of {known}", code="meters-unit")


def _time(table: MeterTable) -> str:
    found = _first(table.columns, _KNOWN["times"])
    if found is None:
        found = next((name for name in table.columns if {*_KNOWN["time_words"]} & {*_words(name)}), None)
    if found is None:
        raise LoadDataError(
            f"no column of {table.path} has a name such as 'time'; name the column of stamps with "
            "--time-column"
        )
    return found


def _active(table: MeterTable, readings: tuple[str, ...], stated: list[str]) -> str:
    """The column of the readings: the one that states a unit, or else the one that is called like one."""
    if len(stated) == 1:
        return stated[0]
    called = [name for name in readings if _is_reading(name) and _plain(name) in _KNOWN["readings"]]
    if not stated and len(called) == 1:
        return called[0]
    if not stated and not called and len(readings) == 1:
        return readings[0]
    many = "several columns" if stated or called else "no column"
    raise LoadDataError(
        f"{many} of {table.path} could hold the active readings by name; name the column with --active-column"
    )


def _is_reading(name: str) -> bool:
    return not {*_KNOWN["reactive"], *_KNOWN["not_consumption"]} & {*_words(name)}


def _first(names: Iterable[str], known: Iterable[str]) -> str | None:
    """The column with the name that comes first among those known."""
    plain = {_plain(name): name for name in reversed([*names])}
    return next((plain[name] for name in known if name in plain), None)


def _plain(name: str) -> str:
    return "_".join(_words(name))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


_ANY_FORMAT = MeterFormat("kW", "start", "UTC")  # to open a file whose unit and step are not known yet
_SHARED = 0.5  # of the groups of customers have a stamp that tells the step
_GROUPS = 64  # by a hash of their names: a customer counts once for a stamp, however many rows he has
_SECONDS_PER_MINUTE = 60


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
    notes : what the producer should check.
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
            "you read the meters for, such as --first-day 2024-01-01 --last-day 2024-12-31",
            code="meters-days",
        )
    if declared.days[1] < declared.days[0]:
        raise LoadDataError("--last-day is before --first-day; exchange them", code="meters-days")
    if declared.time_zone is not None:
        zone(declared.time_zone)
    if declared.interval_label is not None:
        one_of("--interval-label", declared.interval_label, ("start", "end"))
    table = open_table(path, _ANY_FORMAT)
    columns = find_columns(table, declared)
    unit = columns.unit if declared.unit is None else declared_unit(declared.unit)
    if unit is None:
        known = ", ".join(f"'{known}'" for known in UNITS)
        raise LoadDataError(
            f"no column name of {path} states the unit; give it with --unit: {known}", code="meters-unit"
        )
    found = _scan(table, columns)
    if found.wall and declared.time_zone is None:
        raise LoadDataError(
            f"the stamps of {path} have no offset from UTC; give their time zone with --time-zone, "
            "such as 'Europe/Berlin'",
            code="time-zone",
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
        raise LoadDataError(
            f"only some stamps of {table.path} have an offset from UTC; write all alike", code="time-zone"
        )
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


@dataclass(frozen=True)
class CustomerKind:
    """What is publicly known of a kind of customers.

    Attributes
    ----------
    name : in words.
    words : begin a class label that means it.
    bounds_kw : mean load of any interval of any customer [kW].
    kw_per_customer : nominal kW of a feeder's load that stand for one: its share of the common peak.
    power_factor : cos of the angle, lagging.
    """

    name: str
    words: tuple[str, ...]
    bounds_kw: tuple[float, float]
    kw_per_customer: float
    power_factor: float

    def bounds_of_one(self, scale_kw: float) -> tuple[float, float]:
        """Bounds over a public scale of a customer that stands for all of a node, four digits."""
        most_kw = min(self.bounds_kw[1], MOST_OF_ONE * self.kw_per_customer)
        low, high = (float(f"{bound / scale_kw:.4g}") for bound in (self.bounds_kw[0], most_kw))
        return low, high


KINDS = tuple(
    CustomerKind(**dict(kind, words=tuple(kind["words"]), bounds_kw=tuple(kind["bounds_kw"])))
    for kind in _KNOWN["kinds"]
)
HOUSEHOLD, UNNAMED = KINDS[0], KINDS[-1]
"""The last is of load points without a class, and of labels that no kind is called by."""

BOUNDS_OF_SCALE = (0.005, 2.0)
"""Bounds of a load over a connected or contracted power: a house of 10 kW asleep, and a fuse that holds."""
MOST_OF_ONE = 3.0
"""Upper bound of one customer that stands for all of a node, over its share of the peak: what many customers
do one after the other it would do at once. There the node draws its nominal load."""


def kind_of(label: str | None) -> CustomerKind:
    """The kind of customers that a public class label means."""
    words = re.findall(r"[a-z]+", (label or "").lower())
    found = (kind for kind in KINDS for word in words if word.startswith(kind.words))
    return next(found, UNNAMED)


def class_of_nodes(labels: Iterable[str]) -> str:
    """The public label that all nodes get: households, or else the one with the most load points."""
    count = Counter(labels)
    return min(count, key=lambda label: (kind_of(label) is not HOUSEHOLD, -count[label], label))


def delta_for(load_points: int) -> float:
    """A public δ well below one over the number of load points."""
    return next(
        delta for delta, most in ((1e-5, 10_000), (1e-6, 100_000), (1e-8, 10**9)) if load_points < most
    )


@dataclass(frozen=True, eq=False, repr=False)
class FeederFacts:
    """PRIVATE but for what is structure: that nodes are islanded, that there are PV systems and curves.

    Attributes
    ----------
    feeder : the network, to be checked; nothing of it is written.
    islanded : whether nodes are left out that no source feeds.
    pv : whether there are PV systems.
    curves : whether one of them has its own volt-var curve.
    """

    feeder: Feeder
    islanded: bool

    @property
    def pv(self) -> bool:
        return bool(self.feeder.pv)

    @property
    def curves(self) -> bool:
        return any(system.curve is not None for system in self.feeder.pv)


def feeder_facts(source: str, taps: Path | None, loads: Path | None = None) -> FeederFacts:
    """Open a feeder, without its islands if it has some.

    Raises
    ------
    FeederError
        If the feeder cannot be used at all; INTERNAL, all reasons at once.
    """
    table = None if taps is None else read_taps(taps)
    stated = None if loads is None else read_loads(loads)
    for islanded in (False, True):
        try:
            opened = open_feeder(source, taps=table, loads=stated, drop_islanded=islanded)
            return FeederFacts(opened, islanded)
        except FeederError as error:
            refused = error
    problems = feeder_problems(source, taps=table, loads=stated, drop_islanded=True, twin=None)
    raise FeederError(internal_list(problems or (str(refused),)))


def twin_problems(facts: FeederFacts, design: TwinDesign) -> tuple[str, ...]:
    """Every reason why no twin of this design can be drawn of the feeder; INTERNAL."""
    found = grid.twin_problems(facts.feeder, design.protected, drop_islanded=facts.islanded)
    if found:
        return tuple(str(error) for error in found)
    try:
        parameters_of(Rebuilder(facts.feeder, design.protected, drop_islanded=facts.islanded), design)
    except DpPowerflowError as error:
        return (str(error),)
    return ()


def internal_list(problems: list[str] | tuple[str, ...]) -> str:
    """What is unsupported in a feeder, marked INTERNAL: it describes the secret."""
    if len(problems) == 1:
        return f"INTERNAL: {problems[0]}"
    lines = (f"\n  {number}. {problem}" for number, problem in enumerate(problems, start=1))
    return f"INTERNAL: {len(problems)} things in the feeder are not supported:" + "".join(lines)
