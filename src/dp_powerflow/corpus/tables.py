"""The whole tables of a corpus: nodes, days, and where published buses and what joins them.

The names of nodes and buses say nothing but their position: first the buses of the released nodes in their
order, then the others. No length, impedance or rating is here, and coordinates only where they are
declared public.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.almanac.weather import FEATURES, Weather
from dp_powerflow.corpus.parquet import encode_table, numbers, read_table
from dp_powerflow.corpus.schema import (
    BUSES_FILE,
    CONNECTIONS_FILE,
    DAYS_FILE,
    NODES_FILE,
    Column,
    CorpusLayout,
    bus_columns,
    connection_columns,
    day_columns,
    node_columns,
    read_metadata,
    table_schema,
)
from dp_powerflow.corpus.storage import Location, loading
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.grid.quantities import KINDS
from dp_powerflow.units import BoolArray, FloatArray, IntArray

MOST_PLACE = 1e12
"""Largest size of a coordinate, in any unit: what is beyond is none, and could not be drawn."""

Source: TypeAlias = Location | pa.BufferReader
"""A place, or the bytes of a file that were read already."""


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
        width = len(str(nodes - 1))
        return cls(tuple(f"n{k:0{width}d}" for k in range(nodes)))

    @property
    def connected(self) -> bool:
        """Whether phase and bus of the nodes are there."""
        return self.bus is not None


def encode_nodes(layout: CorpusLayout, release_id: str, nodes: NodeTable) -> bytes:
    """Bytes of `nodes.parquet`."""
    if len(nodes.ids) != layout.nodes:
        raise CorpusError(f"the corpus has {layout.nodes} nodes and the node table {len(nodes.ids)}")
    columns = [range(layout.nodes), nodes.ids, *((nodes.phase, nodes.bus) if nodes.connected else ())]
    return encode_table(table_schema(node_columns(nodes.connected), layout, release_id), columns)


def read_nodes(directory: Location, content: Source) -> tuple[CorpusLayout, str, NodeTable]:
    """Layout, release id and node table, from `nodes.parquet` or its bytes."""
    with loading(directory / NODES_FILE):
        table = read_table(content)
        layout, release_id = read_metadata(table.schema.metadata)
        _expect(table, node_columns("bus" in table.column_names), layout, release_id)
        columns = table.to_pydict()
        if len(table) != layout.nodes or columns.pop("node") != list(range(layout.nodes)):
            raise ValueError("not one row per node in order")
        ids = tuple(columns.pop("id"))
        nodes = NodeTable(ids, **{name: tuple(values) for name, values in columns.items()})
    return layout, release_id, nodes


def _expect(table: pa.Table, columns: Iterable[Column], layout: CorpusLayout, release_id: str) -> None:
    if not table.schema.equals(table_schema(columns, layout, release_id), check_metadata=True):
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
    width = len(str(buses - 1))
    return tuple(f"b{k:0{width}d}" for k in range(buses))


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
    elif not np.array_equal(_first_seen(found.bus_of), np.arange(len(np.unique(found.bus_of)))):
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


def _first_seen(buses: IntArray) -> IntArray:
    """The buses, each where it comes first."""
    found, first = np.unique(buses, return_index=True)
    return np.asarray(found[np.argsort(first)], dtype=np.int64)


def _all_fed(found: Connections) -> bool:
    neighbours: list[list[int]] = [[] for _ in found.bus_ids]
    for one, other in found.pairs.tolist():
        neighbours[one].append(other)
        neighbours[other].append(one)
    fed = found.source.tolist()
    reached = np.flatnonzero(found.source).tolist()
    while reached:
        for bus in neighbours[reached.pop()]:
            if not fed[bus]:
                fed[bus] = True
                reached.append(bus)
    return all(fed)


def encode_buses(layout: CorpusLayout, release_id: str, connections: Connections) -> bytes:
    """Bytes of `buses.parquet`."""
    places = connections.coordinates
    columns = [connections.bus_ids, connections.source, *([] if places is None else places.T)]
    return encode_table(table_schema(bus_columns(places is not None), layout, release_id), columns)


def encode_connections(layout: CorpusLayout, release_id: str, connections: Connections) -> bytes:
    """Bytes of `connections.parquet`."""
    columns = [*connections.pairs.T, connections.kinds]
    return encode_table(table_schema(connection_columns(), layout, release_id), columns)


def read_connections(
    directory: Location,
    layout: CorpusLayout,
    release_id: str,
    nodes: NodeTable,
    files: tuple[Source | None, Source | None],
) -> Connections | None:
    """The connections of a corpus, None where it holds none.

    Parameters
    ----------
    files : what `CONNECTION_FILES` are read from; None for one that lacks.

    Raises
    ------
    CorpusError : a file is damaged, missing, of another corpus, or contradicts itself or the node table.
    """
    if files == (None, None):
        return None
    with loading(directory / (BUSES_FILE if files[0] is None else CONNECTIONS_FILE)):
        if files[0] is None or files[1] is None or not nodes.connected:
            raise ValueError("a file, or a column of the nodes, without the others")
        buses, pairs = (read_table(file) for file in files if file is not None)
        _expect(buses, bus_columns("x" in buses.column_names), layout, release_id)
        _expect(pairs, connection_columns(), layout, release_id)
        try:
            return _connections_of(buses, pairs, nodes)
        except CorpusError as error:
            raise ValueError(str(error)) from None


def _connections_of(buses: pa.Table, pairs: pa.Table, nodes: NodeTable) -> Connections:
    ids = tuple(buses.column("bus").to_pylist())
    row = {name: k for k, name in enumerate(ids)}
    ends = [numbers(pairs.column(name)).astype(np.int64) for name in ("from_bus", "to_bus")]
    places = None
    if "x" in buses.column_names:
        places = np.stack([numbers(buses.column(name)) for name in ("x", "y")], axis=1)
    return Connections(
        bus_ids=ids,
        bus_of=np.array([row[bus] for bus in nodes.bus or ()], dtype=np.int64),
        phase=np.array(nodes.phase or (), dtype=np.int64),
        pairs=np.stack(ends, axis=1),
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
            raise CorpusError("the weather of a corpus is that of its days; leave other days out")

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
    return encode_table(table_schema(day_columns(days.names), layout, release_id), columns)


def read_days(directory: Location, layout: CorpusLayout, release_id: str, content: Source) -> DayTable:
    """The days of a corpus, from their file or its bytes.

    Raises
    ------
    CorpusError : the file is damaged, or of another corpus, or its columns contradict each other.
    """
    with loading(directory / DAYS_FILE):
        table = read_table(content)
        weather = tuple(name for name in FEATURES if name in table.column_names)
        _expect(table, day_columns(weather), layout, release_id)
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
