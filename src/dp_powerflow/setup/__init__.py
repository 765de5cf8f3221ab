"""`init`: write the config of a feeder and its meters, and a service map where there is none; all or nothing.

Configs are `templates/release.toml`, filled with public facts, and `templates/example.toml`, every key on
public data.

**Facts of a meter file** are its format: columns, step, customers. Readings are not used.
Two files of the same customers and columns give the same facts, whatever was read. The days are published
with a release, so they are declared and never taken from stamps: the first and the last stamp of a file are
stamps of one customer, who would decide alone whether 14 or 15 days are published. A rule that rounds, or
asks whether nearly all customers have a day, still answers from private data; and noise on two dates, paid by
the customers, would buy what an owner knows who has read the meters. The step is taken from stamps which at
least half of the customers share: a matter of format, which no single customer moves.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.resources import files
from operator import or_
from pathlib import Path
from statistics import fmean
from typing import Any, Literal
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dp_powerflow._files import write_named
from dp_powerflow._names import RELEASE_RULE
from dp_powerflow._texts import filled
from dp_powerflow.config import Config, TwinNetwork, parse_config
from dp_powerflow.errors import ConfigError, DpPowerflowError, FeederError, LoadDataError, ServiceMapError
from dp_powerflow.grid import sources as grid
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads import declared as meter_files
from dp_powerflow.loads.declared import ServiceMap, one_service_each, read_service_map
from dp_powerflow.loads.history import MINUTES_PER_DAY
from dp_powerflow.loads.ingest import MeterTable, open_table
from dp_powerflow.pipeline.customers import Services, count_customers, some_loaded_nodes
from dp_powerflow.pipeline.inputs import require_declared_taps
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow.twin.draw import parameters_of
from dp_powerflow.units import IntArray

_KNOWN = tomllib.loads(files("dp_powerflow.setup").joinpath("known.toml").read_text(encoding="utf-8"))
"""Names of columns, words of units, and what is publicly known of kinds of customers."""
UNITS = (*meter_files.POWER_UNITS, *meter_files.ENERGY_UNITS)


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


_ANY_FORMAT = meter_files.MeterFormat("kW", "start", "UTC")
"""To open a file whose unit and step are not known yet."""
_SHARED = 0.5  # of the groups of customers have a stamp that tells the step
_GROUPS = 64  # by a hash of their names: a customer counts once for a stamp, however many rows there are
_SECONDS_PER_MINUTE = 60


@dataclass(frozen=True, repr=False)
class MeterFileFacts:
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


def meter_facts(path: Path, declared: DeclaredFormat) -> MeterFileFacts:
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
        meter_files.zone(declared.time_zone)
    if declared.interval_label is not None:
        meter_files.one_of("--interval-label", declared.interval_label, ("start", "end"))
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
    facts = MeterFileFacts(columns, unit, time_zone, _label(label), step, *declared.days, found.customers)
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
    table = None if taps is None else grid.read_taps(taps)
    stated = None if loads is None else grid.read_loads(loads)
    for islanded in (False, True):
        try:
            opened = grid.open_feeder(source, taps=table, loads=stated, drop_islanded=islanded)
            return FeederFacts(opened, islanded)
        except FeederError as error:
            refused = error
    problems = grid.feeder_problems(source, taps=table, loads=stated, drop_islanded=True, twin=None)
    raise FeederError(internal_list(problems or (str(refused),)))


def twin_problems(facts: FeederFacts, design: TwinDesign) -> tuple[str, ...]:
    """Every reason why no twin of this design can be drawn of the feeder; INTERNAL."""
    found = grid.twin_problems(facts.feeder, design.protected, drop_islanded=facts.islanded)
    if found:
        return tuple(str(error) for error in found)
    try:
        parameters_of(grid.Rebuilder(facts.feeder, design.protected, drop_islanded=facts.islanded), design)
    except DpPowerflowError as error:
        return (str(error),)
    return ()


def internal_list(problems: list[str] | tuple[str, ...]) -> str:
    """What is unsupported in a feeder, marked INTERNAL: it describes the secret."""
    if len(problems) == 1:
        return f"INTERNAL: {problems[0]}"
    lines = (f"\n  {number}. {problem}" for number, problem in enumerate(problems, start=1))
    return f"INTERNAL: {len(problems)} things in the feeder are not supported:" + "".join(lines)


# --------------------------------------------------------------------------------- what is written

MODES = (TWIN, TRUE) = ("twin-network", "true-network")
DEFAULT_MODE = TWIN
_DAYS = 28
_FEWEST = 2
_COMMENTS_AT = 32


def example(mode: str = DEFAULT_MODE) -> str:
    """The commented example of a mode; the keys of the other one are comments."""
    return _filled("example.toml", mode=mode)


def _filled(template: str, **facts: object) -> str:
    filters = {"toml": _toml, "line": lambda text: " ".join(text.split()), "commented": _commented}
    return filled(template, filters, **facts)


def _toml(value: object) -> str:
    """A value of TOML; strings of JSON are strings of TOML. In templates ## begins a comment."""
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("##", r"#\u0023")


def _commented(lines: str) -> str:
    return re.sub("^(?!#)", "# ", lines.rstrip("\n"), flags=re.MULTILINE)


def _aligned(text: str) -> str:
    """The lines of a config, their comments one below the other."""
    parts = (line.partition(" ## ") for line in text.split("\n"))
    return "\n".join(f"{key:<{_COMMENTS_AT - 1}} # {said}" if mark else key for key, mark, said in parts)


@dataclass(frozen=True)
class SetupRequest:
    """What a user asks of `init`.

    Attributes
    ----------
    config : file to write.
    feeder : as `open_feeder` takes it; a path is relative to the working directory.
    meters, services, taps, loads : files.
    declared : what is declared of the meter file.
    mode : of the network.
    days : of the corpus, None for the usual number.
    release_id : None for one that follows from the name of the config.
    latitude : of the sun, None without one [degrees].
    published : day of publication that the config declares, by default today.
    """

    config: Path
    feeder: str
    meters: Path
    services: Path | None = None
    taps: Path | None = None
    loads: Path | None = None
    declared: DeclaredFormat = field(default_factory=DeclaredFormat)
    mode: str = DEFAULT_MODE
    days: int | None = None
    release_id: str | None = None
    latitude: float | None = None
    published: dt.date = field(default_factory=dt.date.today)


@dataclass(frozen=True)
class Written:
    """What `init` has written, and what the producer should know (INTERNAL)."""

    config: Path
    services: Path | None
    notes: tuple[str, ...]


def set_up(request: SetupRequest, say: Callable[[str], None] = lambda _: None) -> Written:
    """Write a config that fits a feeder and its meters; nothing private is in it.

    Parameters
    ----------
    say : told what takes long.

    Raises
    ------
    DpPowerflowError
        Nothing was written; says what to declare, or what in the feeder is not supported.
    """
    _check_mode(request.mode)
    _refuse_overwriting(request.config)  # a folder too, which may have no name
    stem = _name(request.config.stem)
    own_map = request.config.with_name(f"{stem}-services.csv")
    source = _known_feeder(request.feeder)
    say("reading the stamps of the meters")
    meters = meter_facts(request.meters, request.declared)
    say("reading the feeder")
    feeder = feeder_facts(source, request.taps, request.loads)
    services = (
        one_service_each(meters.customers) if request.services is None else read_service_map(request.services)
    )
    _check_services(services)
    scale_kw = _written_scale(request, services)
    writes_map = request.services is None or scale_kw is not None
    map_path = own_map if writes_map else request.services or own_map
    map_text = _map_text(services, scale_kw) if writes_map else ""
    map_is_there = writes_map and _has(own_map, map_text)  # a killed run wrote it, and no config
    if writes_map and not map_is_there:
        _refuse_overwriting(own_map)
    facts = _public_facts(request, feeder, meters, services, _relative(map_path, request.config), scale_kw)
    text = _aligned(_filled("release.toml", **facts))
    say("checking the feeder")
    config = parse_config(tomllib.loads(text), base=request.config.resolve().parent)
    if problems := _problems(config, feeder, Services.listed(services)):
        raise FeederError(internal_list(problems))
    if writes_map and not map_is_there:
        write_named(own_map, map_text.encode())
    write_named(request.config, text.encode())
    notes = _notes(request, meters, feeder, services, facts["services"])
    return Written(request.config, own_map if writes_map else None, notes)


def write_example(path: Path, mode: str) -> Written:
    """Write the example of a mode: every key, on public data."""
    _check_mode(mode)
    _refuse_overwriting(path)
    write_named(path, example(mode).encode())
    return Written(path, None, ())


def _check_mode(word: str) -> None:
    if word not in MODES:
        raise ConfigError(f"--mode is one of {', '.join(MODES)}, not '{word}'")


def _refuse_overwriting(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists already; give another name, or move it away", code="output-taken")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"the folder of {path} does not exist; make it first", code="config-not-found")


def _has(path: Path, text: str) -> bool:
    """Whether a file is there with this very text."""
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def _name(stem: str) -> str:
    """The name of a config file as ids and names of files begin with it."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in stem)
    return plain.strip("-_")[:40].strip("-_") or "release"


def _known_feeder(feeder: str) -> str:
    """The feeder, its file looked for first."""
    lowered = feeder.lower()
    if lowered in grid.BUILT_IN or lowered.startswith(grid.SIMBENCH) or Path(feeder).is_file():
        return feeder
    if lowered.endswith((".dss", ".json")):
        raise FeederError(f"{feeder} does not exist; check the path of --feeder", code="feeder-not-found")
    return feeder


def _check_services(services: ServiceMap) -> None:
    points, labelled = len(services.load_points), len(services.class_of)
    if points < _FEWEST:
        raise LoadDataError(
            "there is only one load point, but differential privacy hides one customer among many; add "
            "customers",
            code="too-few-customers",
        )
    if 0 < labelled < points:
        raise ServiceMapError(
            f"{points - labelled} of {points} load points of the service map have no class; give one to all "
            "or to none"
        )


def _written_scale(request: SetupRequest, services: ServiceMap) -> float | None:
    """The public scale that the map lacks and the true network needs: a node is one customer scaled up."""
    if request.mode == TWIN or services.scale_kw_of:
        return None
    labels = tuple(services.class_of.values())
    return kind_of(class_of_nodes(labels) if labels else None).kw_per_customer


def _public_facts(
    request: SetupRequest,
    feeder: FeederFacts,
    meters: MeterFileFacts,
    services: ServiceMap,
    map_path: str,
    written_scale_kw: float | None,
) -> dict[str, Any]:
    """The facts of a config: format, declared facts, and public figures."""
    stem = _name(request.config.stem)
    release_id = f"{stem}-1" if request.release_id is None else request.release_id
    problem = RELEASE_RULE.problem(release_id)
    if problem is not None:
        raise ConfigError(f"--id '{release_id}' is not usable: {problem}")
    is_file = request.feeder.lower().endswith((".dss", ".json"))
    twin = request.mode == TWIN
    labels = tuple(sorted(set(services.class_of.values())))
    load_class = class_of_nodes(services.class_of.values()) if labels else None
    kind = kind_of(load_class)
    scale_kw = fmean(services.scale_kw_of.values()) if services.scale_kw_of else written_scale_kw

    def bounds(of: CustomerKind) -> tuple[float, float]:
        """Public bounds of a kind of customers [kW, or relative to the scale]."""
        if not twin:
            return of.bounds_of_one(scale_kw or kind.kw_per_customer)
        return of.bounds_kw if scale_kw is None else BOUNDS_OF_SCALE

    return {
        "twin": twin,
        "source": _relative(Path(request.feeder), request.config) if is_file else request.feeder,
        "taps": None if request.taps is None else _relative(request.taps, request.config),
        "loads": None if request.loads is None else _relative(request.loads, request.config),
        "feeder": feeder,
        "latitude": request.latitude,
        "path": _relative(request.meters, request.config),
        "services": map_path,
        "load_points": len(services.load_points),
        "meters": meters,
        "delta": delta_for(len(services.load_points)),
        "scaled": scale_kw is not None,
        "bounds": bounds,
        "kind": kind,
        "labels": labels,
        "load_class": load_class,
        "others": {label: kind_of(label) for label in labels if kind_of(label) is not kind},
        # The upper bound of a node is its nominal load, which feeders are built for: a public rule.
        "scale_factor": float(f"{1.0 / bounds(kind)[1]:.2g}"),
        "release_id": release_id,
        "days": _DAYS if request.days is None else request.days,
        "output": stem,
        "published": request.published,
    }


def _relative(path: Path, config: Path) -> str:
    """A path as it stands in a config."""
    return Path(os.path.relpath(path.resolve(), config.resolve().parent)).as_posix()


def _problems(config: Config, facts: FeederFacts, services: Services) -> tuple[str, ...]:
    """Why no twin can be drawn of the feeder, or it cannot be solved with fixed taps; INTERNAL."""
    network = config.network
    found = twin_problems(facts, network.design) if isinstance(network, TwinNetwork) else ()
    try:
        if isinstance(network, TwinNetwork):
            count_customers(config, facts.feeder, services)
        else:
            some_loaded_nodes(facts.feeder)
            require_declared_taps(config, facts.feeder)
    except ConfigError as error:
        return (*found, str(error))
    return found


def _map_text(services: ServiceMap, scale_kw: float | None) -> str:
    """A service map in the order of the ids."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    scales = dict.fromkeys(services.load_points if scale_kw else (), scale_kw)
    known = {"node": services.node_of, "class": services.class_of, "scale_kw": scales}
    shown: dict[str, Mapping[str, Any]] = {name: values for name, values in known.items() if values}
    writer.writerow(["customer", "load_point", *shown])
    for customer, point in sorted(services.load_point_of.items()):
        writer.writerow([customer, point, *(values.get(point, "") for values in shown.values())])
    return file.getvalue()


def _notes(
    request: SetupRequest, meters: MeterFileFacts, feeder: FeederFacts, services: ServiceMap, map_path: str
) -> tuple[str, ...]:
    listed, metered = set(services.customers), set(meters.customers)
    text = _filled(
        "init-notes.txt",
        request=request,
        meters=meters,
        feeder=feeder,
        services=map_path,
        days=(meters.last_day - meters.first_day).days + 1,
        absent=len(listed - metered),
        unlisted=len(metered - listed),
        true_network=request.mode == TRUE,
    )
    return tuple(text.rstrip("\n").split("\n"))
