"""What the files of a corpus look like: shape, one table of all their columns, and the Arrow schemas.

`released_columns` is the table: file, name, type, unit and meaning of every column. Writer, reader and
validator make their schemas of it, and manifest, dataset card and Zarr store describe a release by it.
`EXTRAS` is its part that a corpus may hold besides its voltages: an array more is an entry more.

**Files.** `data/part-*.parquet` and `loads/part-*.parquet` have a row per (day, node),
`feeder/part-*.parquet` a row per day; all three are split into the same parts. `nodes.parquet`,
`buses.parquet`, `connections.parquet` and `days.parquet` are whole tables. Regulators and capacitors are
called by their position.

**Bytes.** Equal input, equal bytes: nothing here asks for the time, the host or the number of threads. Bytes
do depend on the version of pyarrow, whose name is in the file and which brings the compressor.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dp_powerflow._names import LAST_READER, RELEASE_ID, RELEASE_ID_RULE
from dp_powerflow.almanac.weather import MEANS, UNITS
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import IntArray

FORMAT = "dp-powerflow corpus, version 1"

DATA, LOADS, FEEDER = "data", "loads", "feeder"
BESIDE = (LOADS, FEEDER)
"""Folders of parts besides the voltages."""
FOLDERS = (DATA, *BESIDE)
NODES_FILE, DAYS_FILE = "nodes.parquet", "days.parquet"
BUSES_FILE, CONNECTIONS_FILE = "buses.parquet", "connections.parquet"
CONNECTION_FILES = (BUSES_FILE, CONNECTIONS_FILE)
MANIFEST_FILE = "manifest.json"
"""Written last: at a URL it says that the release is complete."""

GROUP_PHASORS = 1 << 17
"""Phasors per Parquet row group: about 1 MB decoded, so that one day is cheap to fetch."""
MOST_DAYS, MOST_STEPS = 10_000_000, 86_400
"""Of a corpus that is read: a file of a stranger may say anything."""

VM_GRID = "multiples of 1e-6 p.u."
VA_GRID = "multiples of 1e-5 degrees; even multiples from 128 degrees on"
POWER_GRID = "multiples of 2^-10 kW or kvar; from 16,384 on those that a float32 holds"

_PREFIX = "dp_powerflow."
_SHAPE = ("days", "steps", "nodes", "days_per_part")
_INT32_MAX = 2**31 - 1
_MOST = 10_000
_PART_NAME = re.compile(r"part-(\d{5,})\.parquet")


# --- shape ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CorpusLayout:
    """Shape of a corpus and how its days are split into files.

    Attributes
    ----------
    days : number of days, numbered from 0.
    steps : time steps per day, T.
    nodes : number of released nodes.
    days_per_part : days per file; the last part may hold fewer.
    """

    days: int
    steps: int
    nodes: int
    days_per_part: int

    def __post_init__(self) -> None:
        for name in _SHAPE:
            if not 1 <= getattr(self, name) <= _INT32_MAX:
                raise CorpusError(f"the layout of a corpus needs a positive number of {name}")

    @property
    def n_parts(self) -> int:
        return -(-self.days // self.days_per_part)

    @property
    def n_phasors(self) -> int:
        return self.days * self.steps * self.nodes

    @property
    def days_per_group(self) -> int:
        """Days per Parquet row group: a function of the shape alone, so that bytes are."""
        return max(1, GROUP_PHASORS // (self.steps * self.nodes))

    def days_of(self, part: int) -> range:
        """Days in a part."""
        if not 0 <= part < self.n_parts:
            raise CorpusError(f"the corpus has parts 0 to {self.n_parts - 1}, there is no part {part}")
        first = part * self.days_per_part
        return range(first, min(first + self.days_per_part, self.days))

    def groups_of(self, part: int) -> list[range]:
        """Days in each row group of a part."""
        days, width = self.days_of(part), self.days_per_group
        return [days[start : start + width] for start in range(0, len(days), width)]

    def blocks(self, days: IntArray) -> Iterator[RowGroup]:
        """The row groups that hold some days, each once."""
        parts, groups = days // self.days_per_part, days % self.days_per_part // self.days_per_group
        for part, group in np.unique(np.stack([parts, groups], axis=1), axis=0).tolist():
            rows = np.flatnonzero((parts == part) & (groups == group))
            yield RowGroup(part, group, rows, days[rows] - self.groups_of(part)[group].start)


class RowGroup(NamedTuple):
    """A row group, and which days of it are wanted.

    Attributes
    ----------
    part, group : number of the part, and of the row group in it.
    rows : positions among the days that were asked for.
    offsets : days in the row group, from 0, one for each of `rows`.
    """

    part: int
    group: int
    rows: IntArray
    offsets: IntArray


@dataclass(frozen=True)
class ExtrasLayout:
    """What a corpus holds besides its voltages; by default nothing.

    Attributes
    ----------
    loads : whether the power drawn at every released node is there.
    generation : whether the power injected at every released node is; only with `loads`.
    source_phases : phases of the sources whose power into the feeder is there, 0 for none.
    regulators, capacitors : how many of them have their states there. With any of them `locked` is there too.
    scaled_down : whether the corpus says how often loads and PV of a snapshot were scaled down.
    """

    loads: bool = False
    generation: bool = False
    source_phases: int = 0
    regulators: int = 0
    capacitors: int = 0
    scaled_down: bool = False

    def __post_init__(self) -> None:
        if not all(0 <= count <= _MOST for count in self.counts.values()):
            raise CorpusError(f"a corpus describes at most {_MOST} sources, regulators or capacitors")
        if self.generation and not self.loads:
            raise CorpusError("a corpus with the generation of its nodes has their loads too")

    @classmethod
    def of(cls, holds: Collection[str], counts: Mapping[str, int]) -> ExtrasLayout:
        """The layout with these arrays, and these numbers of elements where an array counts any."""
        told = {array.held: counts.get(array.held, array.name in holds) for array in EXTRAS}
        return cls(**{field.name: told[field.name] for field in fields(cls)})  # type: ignore[arg-type]

    @property
    def counts(self) -> dict[str, int]:
        """How many elements each array has that counts any."""
        return {array.held: getattr(self, array.held) for array in EXTRAS if array.counted}

    @property
    def states(self) -> bool:
        """Whether there are taps or states of capacitors."""
        return self.regulators + self.capacitors > 0

    @property
    def arrays(self) -> tuple[ExtraArray, ...]:
        """What is there."""
        return tuple(array for array in EXTRAS if getattr(self, array.held))

    @property
    def holds(self) -> tuple[str, ...]:
        """Names of what is there."""
        return tuple(array.name for array in self.arrays)

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the files that are there, besides `data`."""
        return tuple(dict.fromkeys(array.folder for array in self.arrays))

    def columns(self, steps: int, *, folder: str | None = None, of: str | None = None) -> Iterator[Column]:
        """Columns of what is there after day and node: of all, of a folder, or of one array."""
        for array in EXTRAS:
            held = getattr(self, array.held)
            if held and folder in (None, array.folder) and of in (None, array.name):
                yield from array.made(held, steps)

    def shape_of(self, name: str, days: int, layout: CorpusLayout) -> tuple[int, ...]:
        """Shape of the voltages, or of an array, for some days."""
        array = next((array for array in EXTRAS if array.name == name), EXTRAS[0])
        last = {"node": (layout.nodes,), None: ()}.get(array.axis, (getattr(self, array.held),))
        return (days, layout.steps, *last)


# --- columns ----------------------------------------------------------------------------------------------
_ARROW = {
    **{"int16": pa.int16(), "int32": pa.int32(), "float32": pa.float32(), "double": pa.float64()},
    **{"string": pa.string(), "bool": pa.bool_(), "date": pa.date32()},
}


@dataclass(frozen=True)
class Column:
    """A column of a file.

    Attributes
    ----------
    file : name of the file, or pattern of the names of parts.
    value : type of a value, as in `type`.
    means, unit, grid : for its description; the grid is what its values are rounded to.
    steps : values per row in a list; 0 for one value that is no list.
    of, index, part : where a column of parts comes from: name in `EXTRAS` ("" for voltages), index on its
        last axis (None for all nodes, or if it has none), and "real" or "imag" of a complex one.
    """

    file: str
    name: str
    value: str
    means: str
    unit: str | None = None
    grid: str | None = None
    steps: int = 0
    of: str = ""
    index: int | None = None
    part: str = ""

    @property
    def type(self) -> str:
        """Type in words, such as ``"list of 96 float32"``."""
        return f"list of {self.steps} {self.value}" if self.steps else self.value

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a value, in NumPy."""
        found: np.dtype[Any] = np.dtype(_ARROW[self.value].to_pandas_dtype())
        return found

    @property
    def field(self) -> pa.Field:
        """The Arrow field, which says what the column means."""
        kind = _ARROW[self.value]
        if self.steps:
            kind = pa.list_(pa.field("element", kind, nullable=False), self.steps)
        said = {"means": self.means, "unit": self.unit, "grid": self.grid}
        return pa.field(self.name, kind, nullable=False, metadata={k: v for k, v in said.items() if v})


def parts_of(folder: str) -> str:
    """Pattern of the names of the parts in a folder."""
    return f"{folder}/part-*.parquet"


def voltage_columns(steps: int) -> Iterator[Column]:
    """Columns of `data/` after day and node."""
    for name, what, unit, grid in (
        ("vm_pu", "magnitude", "p.u.", VM_GRID),
        ("va_deg", "angle", "degree", VA_GRID),
    ):
        means = f"voltage {what} at every step of the day"
        yield Column(parts_of(DATA), name, "float32", means, unit, grid, steps)


@dataclass(frozen=True)
class ExtraArray:
    """An array that a corpus may hold besides its voltages.

    Attributes
    ----------
    name : as in `Corpus.holds` and `Corpus.array`.
    folder : of its files.
    held : what of `ExtrasLayout` says whether it is there, or how many elements it has.
    axis : what its last axis counts, beyond (day, step); None if it has no other.
    columns : of one element, whose number takes the place of {}.
    """

    name: str
    folder: str
    held: str
    axis: str | None
    columns: tuple[Column, ...]

    @property
    def counted(self) -> bool:
        """Whether its last axis counts elements of the feeder."""
        return self.axis not in (None, "node")

    @property
    def means(self) -> str:
        """What its first column holds, in words."""
        return self.columns[0].means.replace(" {}", "")

    def made(self, count: int, steps: int) -> Iterator[Column]:
        """Columns of `count` elements, one after the other."""
        width, file = len(str(count - 1)), parts_of(self.folder)
        for k in range(count):
            index = k if self.counted else None
            for column in self.columns:
                name, means = column.name.format(f"{k:0{width}d}"), column.means.format(k)
                own = replace(column, file=file, name=name, means=means, steps=steps)
                yield replace(own, of=self.name, index=index)


def _powers(active: str, reactive: str, means: str) -> tuple[Column, ...]:
    return (
        Column("", active, "float32", f"active {means}", "kW", POWER_GRID, part="real"),
        Column("", reactive, "float32", f"reactive {means}", "kvar", POWER_GRID, part="imag"),
    )


_TAP = Column("", "r{}_tap", "int16", "tap of regulator {}, 0 is neutral")
_CLOSED = Column("", "c{}_closed", "bool", "whether capacitor {} is closed")
_LOCKED = Column("", "locked", "bool", "whether a control was locked because it hunted")
_LOWERED = "how often all loads and PV were multiplied by 0.95, for lack of a power-flow solution"
_SCALED = Column("", "scaled_down", "int16", _LOWERED)
_HEAD = _powers("s{}_p_kw", "s{}_q_kvar", "power that source phase {} feeds into the feeder")
_INJECTED = _powers("g_kw", "g_kvar", "power injected at every step")
EXTRAS = (
    ExtraArray("loads", LOADS, "loads", "node", _powers("p_kw", "q_kvar", "power drawn at every step")),
    ExtraArray("generation", LOADS, "generation", "node", _INJECTED),
    ExtraArray("head", FEEDER, "source_phases", "source_phase", _HEAD),
    ExtraArray("taps", FEEDER, "regulators", "regulator", (_TAP,)),
    ExtraArray("capacitors", FEEDER, "capacitors", "capacitor", (_CLOSED,)),
    ExtraArray("locked", FEEDER, "states", None, (_LOCKED,)),
    ExtraArray("scaled_down", FEEDER, "scaled_down", None, (_SCALED,)),
)
"""Every array that a corpus may hold besides its voltages, in the order of its columns."""
NOTHING = ExtrasLayout()
"""Of a corpus with voltages only."""


def node_columns(connected: bool) -> Iterator[Column]:
    """Columns of `nodes.parquet`; bus and phase only where connections are published."""
    yield Column(NODES_FILE, "node", "int32", "number of the node, from 0")
    yield Column(NODES_FILE, "id", "string", "opaque name of the node")
    if connected:
        yield Column(
            NODES_FILE, "phase", "int32", "phase of the node; 1 for one that stands for three phases"
        )
        yield Column(NODES_FILE, "bus", "string", f"opaque name of its bus, a row of {BUSES_FILE}")


def bus_columns(coordinates: bool) -> Iterator[Column]:
    """Columns of `buses.parquet`."""
    yield Column(BUSES_FILE, "bus", "string", "opaque name of the bus")
    yield Column(BUSES_FILE, "source", "bool", "whether the feeder is fed there")
    for name in ("x", "y") if coordinates else ():
        means = f"coordinate {name}, declared public, in the unit of the feeder's file"
        yield Column(BUSES_FILE, name, "double", means)


def connection_columns() -> Iterator[Column]:
    """Columns of `connections.parquet`."""
    file = CONNECTIONS_FILE
    yield Column(file, "from_bus", "int32", f"row of {BUSES_FILE}, the smaller one of the pair")
    yield Column(file, "to_bus", "int32", f"row of {BUSES_FILE}, the larger one of the pair")
    yield Column(file, "kind", "string", "line, switch or transformer, which is whatever is neither")


def day_columns(weather: tuple[str, ...]) -> Iterator[Column]:
    """Columns of `days.parquet`, with these figures of the weather."""
    yield Column(DAYS_FILE, "day", "int32", "number of the day, from 0")
    yield Column(DAYS_FILE, "date", "date", "local date of the day")
    yield Column(DAYS_FILE, "holiday", "bool", "whether it is a declared holiday")
    yield Column(DAYS_FILE, "off", "bool", "whether it is a Saturday, a Sunday or a holiday")
    for name in weather:
        yield Column(DAYS_FILE, name, "double", MEANS[name], UNITS[name])


def part_columns(folder: str, extras: ExtrasLayout, steps: int) -> Iterator[Column]:
    """Columns of the parts in a folder, all of them."""
    file = parts_of(folder)
    yield Column(file, "day", "int32", "number of the day, from 0")
    if folder != FEEDER:
        yield Column(file, "node", "int32", f"row of {NODES_FILE}")
    if folder == DATA:
        yield from voltage_columns(steps)
    yield from extras.columns(steps, folder=folder)


def released_columns(
    layout: CorpusLayout,
    extras: ExtrasLayout = NOTHING,
    *,
    weather: tuple[str, ...] | None = None,
    coordinates: bool | None = None,
) -> Iterator[Column]:
    """Every column of every file of a corpus.

    Parameters
    ----------
    weather : figures of the weather in `days.parquet`; None where days have no dates.
    coordinates : whether buses have coordinates; None where connections are not published.
    """
    yield from part_columns(DATA, extras, layout.steps)
    yield from node_columns(coordinates is not None)
    if coordinates is not None:
        yield from (*bus_columns(coordinates), *connection_columns())
    for folder in extras.folders:
        yield from part_columns(folder, extras, layout.steps)
    if weather is not None:
        yield from day_columns(weather)


# --- schemas ----------------------------------------------------------------------------------------------
def part_schema(
    folder: str, layout: CorpusLayout, extras: ExtrasLayout, release_id: str, part: int
) -> pa.Schema:
    """Schema of a part in a folder, which says of itself the corpus and the number of the part."""
    whole = table_schema(part_columns(folder, extras, layout.steps), layout, release_id)
    return whole.with_metadata({**whole.metadata, f"{_PREFIX}part": str(part)})


def table_schema(columns: Iterable[Column], layout: CorpusLayout, release_id: str) -> pa.Schema:
    """Schema of a whole table, which says of itself: version of the format, release and shape."""
    entries = {"format": FORMAT, "release_id": release_id} | {
        name: str(getattr(layout, name)) for name in _SHAPE
    }
    metadata = {_PREFIX + key: value for key, value in entries.items()}
    return pa.schema([column.field for column in columns], metadata=metadata)


def read_metadata(metadata: dict[bytes, bytes] | None) -> tuple[CorpusLayout, str]:
    """Layout and release id from the metadata of any file of a corpus.

    Raises
    ------
    KeyError, ValueError : an entry is missing or not a number.
    CorpusError : written in another format.
    """
    entries = {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    if entries[f"{_PREFIX}format"] != FORMAT:
        raise CorpusError(
            f"the corpus has another format than '{FORMAT}'; dp-powerflow {LAST_READER} is the last version "
            "that reads older ones",
            code="format-not-read",
        )
    shape = {name: int(entries[_PREFIX + name]) for name in _SHAPE}
    if shape["days"] > MOST_DAYS or shape["steps"] > MOST_STEPS:
        raise CorpusError("the corpus declares more days or steps than any has; fetch it again")
    return CorpusLayout(**shape), check_release_id(entries[f"{_PREFIX}release_id"])


def extras_in(columns: Mapping[str, list[str]]) -> ExtrasLayout:
    """What there is besides the voltages, from the names of the columns of the files, by folder."""
    found: dict[str, int] = {}
    for array in EXTRAS:
        pattern = re.compile(array.columns[0].name.replace("{}", r"\d+"))
        count = sum(pattern.fullmatch(name) is not None for name in columns.get(array.folder, []))
        found |= {array.name: count, array.held: count}
    counted = {array.held: found[array.held] for array in EXTRAS if array.counted}
    return ExtrasLayout.of({name for name, count in found.items() if count}, counted)


# --- names ------------------------------------------------------------------------------------------------
def part_name(part: int) -> str:
    """File name of a part inside its folder."""
    return f"part-{part:05d}.parquet"


def part_number(name: str) -> int | None:
    """Number of the part with this file name, None if it is not the name of a part."""
    match = _PART_NAME.fullmatch(name)
    return int(match[1]) if match is not None and part_name(int(match[1])) == name else None


def check_release_id(release_id: str) -> str:
    """A release id that can be part of a file name, or an error."""
    if not re.fullmatch(RELEASE_ID, release_id):
        raise CorpusError(RELEASE_ID_RULE)
    return release_id
