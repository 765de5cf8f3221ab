"""Tables of a corpus as bytes and back: nodes, days, parts, and where published buses and their pairs.

The names of nodes and buses say nothing but their position: first the buses of the released nodes in their
order, then the others. No length, impedance or rating is here, and coordinates only where they are
declared public.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.almanac.weather import FEATURES, Weather
from dp_powerflow.corpus import schema
from dp_powerflow.corpus.schema import Column, CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.storage import Listed, Location, loading, open_parquet
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.grid.quantities import KINDS
from dp_powerflow.units import BoolArray, FloatArray, IntArray

MOST_PLACE = 1e12
"""Largest size of a coordinate, in any unit: beyond it nothing is a coordinate, or could be drawn."""

Source: TypeAlias = Location | pa.BufferReader
"""A place, or the bytes of a file that were read already."""


# --- Parquet ----------------------------------------------------------------------------------------------
# Floats in lists are split into bytes (BYTE_STREAM_SPLIT), days and nodes are packed; benchmarks/encoding.py
# compares other choices.
PARQUET: Mapping[str, Any] = {
    "version": "2.6",
    "data_page_version": "1.0",
    "data_page_size": 1 << 20,
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": False,
    "write_page_checksum": True,
    "store_schema": True,
}
_NUMBERS = ("day", "node")


def encode_table(fields: pa.Schema, columns: Iterable[Any]) -> bytes:
    """Bytes of a whole table."""
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)], schema=fields)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET)
    return bytes(sink.getvalue())


def encode_groups(fields: pa.Schema, groups: Iterable[Sequence[NDArray[Any]]]) -> memoryview:
    """Bytes of a part from the columns of its row groups: numbers (row,) and lists (row, step)."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, fields, **_options(fields)) as writer:
        for columns in groups:
            arrays = [_array(values, field) for values, field in zip(columns, fields, strict=True)]
            table = pa.Table.from_arrays(arrays, schema=fields)
            writer.write_table(table, row_group_size=len(table))
    return memoryview(sink.getvalue()).cast("B")


def _array(values: NDArray[Any], field: pa.Field) -> pa.Array:
    if not pa.types.is_fixed_size_list(field.type):
        return pa.array(values, field.type)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), field.type.value_type), type=field.type)


def _options(fields: pa.Schema) -> dict[str, Any]:
    numbers = [name for name in _NUMBERS if name in fields.names]
    encoding = dict.fromkeys(numbers, "DELTA_BINARY_PACKED")
    for field in fields:
        if pa.types.is_fixed_size_list(field.type) and field.type.value_type == pa.float32():
            encoding[f"{field.name}.list.element"] = "BYTE_STREAM_SPLIT"
    return {**PARQUET, "column_encoding": encoding, "write_statistics": numbers}


def read_table(content: Location | pa.BufferReader) -> pa.Table:
    """A whole table, with its checksums compared."""
    with open_parquet(content, page_checksum_verification=True) as file:
        return file.read(use_threads=False)


def numbers(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """The values of a column of numbers or truth values, not copied if they lie in one piece.

    A missing value is what pyarrow makes of it: not a number, so that the others are floats.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(array.type):
        packed = np.frombuffer(array.buffers()[1] or b"", dtype=np.uint8)
        bits = np.unpackbits(packed, count=array.offset + len(array), bitorder="little")
        return bits[array.offset :].view(np.bool_)
    return np.asarray(np.from_dlpack(array))


def _columns(table: pa.Table, names: Sequence[str]) -> NDArray[Any]:
    """(row, column) some columns of numbers."""
    return np.stack([numbers(table.column(name)) for name in names], axis=1)


def list_numbers(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """All numbers of a column of lists, one list after the other, not copied if they lie in one piece."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count or not isinstance(array, pa.FixedSizeListArray):
        return numbers(array.flatten())
    size = array.type.list_size
    return numbers(array.values.slice(array.offset * size, len(array) * size))


# --- nodes ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class NodeTable:
    """The released nodes in released order; phase and bus where connections are published.

    Attributes
    ----------
    ids : opaque name of each node.
    phase : phase number of each node.
    bus : opaque name of the bus of each node, which groups nodes.
    """

    ids: tuple[str, ...]
    phase: tuple[int, ...] | None = None
    bus: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.ids or not all(self.ids) or len(set(self.ids)) != len(self.ids):
            raise CorpusError("the nodes of a corpus need names that are not empty and all different")
        if (self.phase is None) != (self.bus is None):
            raise CorpusError("the node table has both the phase and the bus of its nodes, or neither")
        for name, values in (("phase", self.phase), ("bus", self.bus)):
            if values is not None and len(values) != len(self.ids):
                raise CorpusError(f"the column {name} of the node table needs one entry per node")

    @classmethod
    def opaque(cls, nodes: int) -> NodeTable:
        """Names that say nothing but the position: n000, n001, …"""
        return cls(_opaque("n", nodes))

    @property
    def connected(self) -> bool:
        """Whether phase and bus of the nodes are there."""
        return self.bus is not None


def encode_nodes(layout: CorpusLayout, release_id: str, nodes: NodeTable) -> bytes:
    """Bytes of `nodes.parquet`."""
    if len(nodes.ids) != layout.nodes:
        raise CorpusError(f"the corpus has {layout.nodes} nodes and the node table {len(nodes.ids)}")
    columns = [range(layout.nodes), nodes.ids, *((nodes.phase, nodes.bus) if nodes.connected else ())]
    return encode_table(
        schema.table_schema(schema.node_columns(nodes.connected), layout, release_id), columns
    )


def read_nodes(directory: Location, content: Source) -> tuple[CorpusLayout, str, NodeTable]:
    """Layout, release id and node table, from `nodes.parquet` or its bytes."""
    with loading(directory / schema.NODES_FILE):
        table = read_table(content)
        layout, release_id = schema.read_metadata(table.schema.metadata)
        _expect(table, schema.node_columns("bus" in table.column_names), layout, release_id)
        columns = table.to_pydict()
        if len(table) != layout.nodes or columns.pop("node") != list(range(layout.nodes)):
            raise ValueError("not one row per node in order")
        ids = tuple(columns.pop("id"))
        nodes = NodeTable(ids, **{name: tuple(values) for name, values in columns.items()})
    return layout, release_id, nodes


@contextmanager
def _as_damage() -> Iterator[None]:
    """What no table of a release can hold is damage of its file."""
    try:
        yield
    except (ConfigError, CorpusError) as error:
        raise ValueError(str(error)) from None


def _expect(table: pa.Table, columns: Iterable[Column], layout: CorpusLayout, release_id: str) -> None:
    if not table.schema.equals(schema.table_schema(columns, layout, release_id), check_metadata=True):
        raise ValueError("columns, types or metadata are not those of a corpus")


# --- connections ------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Connections:
    """Buses of a released network and what joins them.

    Attributes
    ----------
    bus_ids : opaque name of each bus.
    bus_of : integer (node,) row of `bus_ids` of every released node.
    phase : integer (node,) phase number of every released node; 1 for a node that stands for three.
    pairs : integer (pair, 2) joined buses, the smaller row first; sorted, none twice.
    kinds : (pair,) "line", "switch" or "transformer", which is whatever is neither.
    source : boolean (bus,) whether the feeder is fed there.
    coordinates : (bus, 2) x and y, in the unit of the feeder's file; None unless declared public.
    """

    bus_ids: tuple[str, ...]
    bus_of: IntArray
    phase: IntArray
    pairs: IntArray
    kinds: tuple[str, ...]
    source: BoolArray
    coordinates: FloatArray | None = None

    def __post_init__(self) -> None:
        problem = next(_contradictions(self), None)
        if problem is not None:
            raise CorpusError(f"these are no connections of a network: {problem}")

    @property
    def n_buses(self) -> int:
        return len(self.bus_ids)

    @property
    def n_pairs(self) -> int:
        return len(self.pairs)

    def of_nodes(self, nodes: NodeTable) -> NodeTable:
        """The node table with bus and phase of every node."""
        buses = tuple(self.bus_ids[bus] for bus in self.bus_of)
        return replace(nodes, phase=tuple(self.phase.tolist()), bus=buses)


def opaque_buses(buses: int) -> tuple[str, ...]:
    """Names that say nothing but the position: b000, b001, …"""
    return _opaque("b", buses)


def _opaque(letter: str, count: int) -> tuple[str, ...]:
    width = len(str(count - 1))
    return tuple(f"{letter}{k:0{width}d}" for k in range(count))


def _contradictions(found: Connections) -> Iterator[str]:
    """What cannot be of a network; the first is enough."""
    buses, pairs = len(found.bus_ids), found.pairs
    if not buses or found.bus_ids != opaque_buses(buses):
        yield "the names of buses are not their positions"
        return
    if len(found.bus_of) != len(found.phase) or len(found.source) != buses:
        yield "not one bus and phase per node"
        return
    if len(found.bus_of) and not 0 <= found.bus_of.min() <= found.bus_of.max() < buses:
        yield "a node names a bus that does not exist"
    elif [*dict.fromkeys(found.bus_of.tolist())] != [*range(len(np.unique(found.bus_of)))]:
        yield "the buses are not in the order of their nodes"
    if np.any(found.phase < 1):
        yield "the phase of a node is not a positive number"
    elif len(np.unique(np.stack([found.bus_of, found.phase]), axis=1).T) != len(found.bus_of):
        yield "two nodes of a bus have one phase"
    if pairs.shape != (len(found.kinds), 2):
        yield "not one kind per pair of buses"
        return
    if pairs.size and (pairs.min() < 0 or pairs.max() >= buses or np.any(pairs[:, 0] >= pairs[:, 1])):
        yield "a pair is not of two buses, the smaller row first"
        return
    order = pairs[:, 0] * buses + pairs[:, 1]
    if np.any(np.diff(order) <= 0):
        yield "the pairs are not sorted, or one occurs twice"
    if not set(found.kinds) <= set(KINDS):
        yield "a pair is joined by something unknown"
    if not _all_fed(found):
        yield "a bus is not connected to a source"
    places = found.coordinates
    if places is not None and (places.shape != (buses, 2) or not np.all(np.abs(places) <= MOST_PLACE)):
        yield "not two finite coordinates per bus"


def _all_fed(found: Connections) -> bool:
    graph = sp.coo_array((np.ones(found.n_pairs), found.pairs.T), shape=(found.n_buses,) * 2)
    part = connected_components(graph.tocsr(), directed=False)[1]
    return bool(np.isin(part, part[found.source]).all())


def encode_connections(layout: CorpusLayout, release_id: str, found: Connections) -> dict[str, bytes]:
    """Bytes of `buses.parquet` and of `connections.parquet`."""
    if len(found.bus_of) != layout.nodes:
        raise CorpusError("the connections of a corpus need one bus per node of it")
    places = () if found.coordinates is None else found.coordinates.T
    buses = schema.bus_columns(found.coordinates is not None), [found.bus_ids, found.source, *places]
    pairs = schema.connection_columns(), [*found.pairs.T, found.kinds]
    tables = zip(schema.CONNECTION_FILES, (buses, pairs), strict=True)
    return {
        name: encode_table(schema.table_schema(columns, layout, release_id), values)
        for name, (columns, values) in tables
    }


def read_connections(
    directory: Location,
    layout: CorpusLayout,
    release_id: str,
    buses_file: Source | None,
    pairs_file: Source | None,
    nodes: NodeTable,
) -> Connections | None:
    """The connections of a corpus, None where it holds none.

    Parameters
    ----------
    buses_file, pairs_file : what `CONNECTION_FILES` are read from; None for one that lacks.

    Raises
    ------
    CorpusError : a file is damaged, missing, of another corpus, or contradicts itself or the node table.
    """
    if buses_file is None and pairs_file is None:
        return None
    with loading(directory / (schema.BUSES_FILE if buses_file is None else schema.CONNECTIONS_FILE)):
        if buses_file is None or pairs_file is None or not nodes.connected:
            raise ValueError("a file, or a column of the nodes, without the others")
        buses, pairs = read_table(buses_file), read_table(pairs_file)
        _expect(buses, schema.bus_columns("x" in buses.column_names), layout, release_id)
        _expect(pairs, schema.connection_columns(), layout, release_id)
        with _as_damage():
            return _connections_of(buses, pairs, nodes)


def _connections_of(buses: pa.Table, pairs: pa.Table, nodes: NodeTable) -> Connections:
    ids = tuple(buses.column("bus").to_pylist())
    row = {name: k for k, name in enumerate(ids)}
    places = _columns(buses, ("x", "y")) if "x" in buses.column_names else None
    return Connections(
        bus_ids=ids,
        bus_of=np.array([row[bus] for bus in nodes.bus or ()], dtype=np.int64),
        phase=np.array(nodes.phase or (), dtype=np.int64),
        pairs=_columns(pairs, ("from_bus", "to_bus")).astype(np.int64),
        kinds=tuple(pairs.column("kind").to_pylist()),
        source=np.array(buses.column("source").to_pylist(), dtype=np.bool_),
        coordinates=places,
    )


# --- days -------------------------------------------------------------------------------------------------
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
            raise CorpusError("the weather of a corpus covers exactly its days; leave other days out")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures of the weather; none without."""
        return () if self.weather is None else self.weather.names

    @cached_property
    def holiday(self) -> list[bool]:
        """(day,) whether it is a holiday, which may be a Saturday or Sunday too."""
        return [day in self.calendar.holidays for day in self.calendar.days]


def encode_days(layout: CorpusLayout, release_id: str, days: DayTable) -> bytes:
    """Bytes of `days.parquet`."""
    calendar = days.calendar
    if calendar.n_days != layout.days:
        raise CorpusError(f"the corpus has {layout.days} days and the calendar {calendar.n_days}")
    values = [] if days.weather is None else list(days.weather.values.T)
    columns = [range(layout.days), calendar.days, days.holiday, calendar.off, *values]
    return encode_table(schema.table_schema(schema.day_columns(days.names), layout, release_id), columns)


def read_days(
    directory: Location, layout: CorpusLayout, release_id: str, content: Source | None
) -> DayTable | None:
    """The days of a corpus, from their file or its bytes; None where it has none.

    Raises
    ------
    CorpusError : the file is damaged, or of another corpus, or its columns contradict each other.
    """
    if content is None:
        return None
    with loading(directory / schema.DAYS_FILE):
        table = read_table(content)
        weather = tuple(name for name in FEATURES if name in table.column_names)
        _expect(table, schema.day_columns(weather), layout, release_id)
        with _as_damage():
            return _days_of(table, layout, weather)


def _days_of(table: pa.Table, layout: CorpusLayout, weather: tuple[str, ...]) -> DayTable:
    dates, holiday, off = (table.column(name).to_pylist() for name in ("date", "holiday", "off"))
    if table.column("day").to_pylist() != list(range(layout.days)):
        raise ValueError("not one row per day in order")
    calendar = Calendar(tuple(dates), frozenset(compress(dates, holiday)))
    if calendar.off.tolist() != off:
        raise ValueError("a day off is not marked, or another day is")
    if not weather:
        return DayTable(calendar)
    found = Weather(calendar.days, weather, _columns(table, weather))
    if not found.is_consistent:
        raise ValueError("figures of the weather that contradict each other")
    return DayTable(calendar, found)


# --- parts -----------------------------------------------------------------------------------------------
def row_groups(folder: str, layout: CorpusLayout, part: int) -> list[range]:
    """Days in each row group of a part; a part of `feeder/` is one."""
    return [layout.days_of(part)] if folder == schema.FEEDER else layout.groups_of(part)


def rows_in_order(table: pa.Table, days: range, nodes: int) -> bool:
    """Whether the rows are every (day, node), or every day, exactly once, days first."""
    day, expected = numbers(table.column("day")), np.arange(days.start, days.stop)
    if "node" not in table.column_names:
        return np.array_equal(day, expected)
    node, every = numbers(table.column("node")), np.tile(np.arange(nodes), len(days))
    return np.array_equal(day, np.repeat(expected, nodes)) and np.array_equal(node, every)


def find_extras(
    root: Location,
    layout: CorpusLayout,
    release_id: str,
    folders: Iterable[str] = schema.BESIDE,
    files: Listed | None = None,
) -> ExtrasLayout:
    """What a corpus holds besides its voltages, from its first part.

    Parameters
    ----------
    folders : where to look.
    files : gives the files; None for those that are there, unchecked.

    Raises
    ------
    CorpusError : a file cannot be read, or is of another corpus.
    """
    schemas, files = {}, Listed(root) if files is None else files
    for folder in folders:
        name = f"{folder}/{schema.part_name(0)}"
        with loading(root / name):
            if files.has(name):
                with open_parquet(files.source(name)) as file:
                    schemas[folder] = file.schema_arrow
    extras = schema.extras_in({folder: fields.names for folder, fields in schemas.items()})
    for folder, fields in schemas.items():
        with loading(root / folder / schema.part_name(0)):
            expected = schema.part_schema(folder, layout, extras, release_id, 0)
            if not fields.equals(expected, check_metadata=True):
                raise ValueError("not a part of this corpus")
    return extras
