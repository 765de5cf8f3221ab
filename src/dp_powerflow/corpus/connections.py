"""Which nodes form a bus, which buses are joined: `buses.parquet`, `connections.parquet`, columns of nodes.

The names of buses say nothing but their position: first the buses of the released nodes in their order, then
the others. No length, impedance or rating is here; coordinates only where they are declared public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow.corpus.parquet import numbers
from dp_powerflow.corpus.schema import PARQUET, CorpusLayout, NodeTable, metadata_of
from dp_powerflow.corpus.storage import Location, loading, open_parquet
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import KINDS
from dp_powerflow.units import BoolArray, FloatArray, IntArray

BUSES_FILE = "buses.parquet"
CONNECTIONS_FILE = "connections.parquet"
FILES = (BUSES_FILE, CONNECTIONS_FILE)
NODE_COLUMNS = ("phase", "bus")
"""Columns of `nodes.parquet` that go with these files."""
MOST_PLACE = 1e12
"""Largest size of a coordinate, in any unit: what is beyond is none, and could not be drawn."""


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


class ConnectionColumn(NamedTuple):
    """A column of a file: name, Arrow type and meaning."""

    name: str
    type: pa.DataType
    means: str


def columns_of_nodes() -> Iterator[ConnectionColumn]:
    """What `nodes.parquet` says of a node beside its name."""
    yield ConnectionColumn("phase", pa.int32(), "phase of the node; 1 for one that stands for three phases")
    yield ConnectionColumn("bus", pa.string(), f"opaque name of its bus, a row of {BUSES_FILE}")


def columns_of_buses(coordinates: bool) -> Iterator[ConnectionColumn]:
    """The columns of `buses.parquet`."""
    yield ConnectionColumn("bus", pa.string(), "opaque name of the bus")
    yield ConnectionColumn("source", pa.bool_(), "whether the feeder is fed there")
    for name in ("x", "y") if coordinates else ():
        means = f"coordinate {name}, declared public, in the unit of the feeder's file"
        yield ConnectionColumn(name, pa.float64(), means)


def columns_of_connections() -> Iterator[ConnectionColumn]:
    """The columns of `connections.parquet`."""
    yield ConnectionColumn("from_bus", pa.int32(), f"row of {BUSES_FILE}, the smaller one of the pair")
    yield ConnectionColumn("to_bus", pa.int32(), f"row of {BUSES_FILE}, the larger one of the pair")
    yield ConnectionColumn("kind", pa.string(), "line, switch or transformer, which is whatever is neither")


def encode_buses(layout: CorpusLayout, release_id: str, connections: Connections) -> bytes:
    """Bytes of `buses.parquet`."""
    places = connections.coordinates
    columns = [connections.bus_ids, connections.source, *([] if places is None else places.T)]
    return _encoded(columns, _schema(layout, release_id, columns_of_buses(places is not None)))


def encode_connections(layout: CorpusLayout, release_id: str, connections: Connections) -> bytes:
    """Bytes of `connections.parquet`."""
    columns = [*connections.pairs.T, connections.kinds]
    return _encoded(columns, _schema(layout, release_id, columns_of_connections()))


def _schema(layout: CorpusLayout, release_id: str, columns: Iterator[ConnectionColumn]) -> pa.Schema:
    fields = [pa.field(column.name, column.type, nullable=False) for column in columns]
    return pa.schema(fields, metadata=metadata_of(layout, release_id))


def _encoded(columns: list[Any], schema: pa.Schema) -> bytes:
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET)
    return bytes(sink.getvalue())


class ConnectionFiles(NamedTuple):
    """What the two files are read from: places, or bytes that were read already; None for one that lacks."""

    buses: Location | pa.BufferReader | None
    pairs: Location | pa.BufferReader | None

    @classmethod
    def of(cls, directory: Location) -> ConnectionFiles:
        """The files of a corpus."""
        with loading(directory):
            there = [directory / name if (directory / name).exists() else None for name in FILES]
        return cls(*there)


def read_connections(
    directory: Location,
    layout: CorpusLayout,
    release_id: str,
    nodes: NodeTable,
    files: ConnectionFiles | None = None,
) -> Connections | None:
    """The connections of a corpus, None where it holds none.

    Raises
    ------
    CorpusError : a file is damaged, missing, of another corpus, or contradicts itself or the node table.
    """
    found = ConnectionFiles.of(directory) if files is None else files
    if found.buses is None and found.pairs is None:
        return None
    with loading(directory / (BUSES_FILE if found.buses is None else CONNECTIONS_FILE)):
        if found.buses is None or found.pairs is None or nodes.bus is None or nodes.phase is None:
            raise ValueError("a file, or a column of the nodes, without the others")
        buses, pairs = _table(found.buses), _table(found.pairs)
        with_places = "x" in buses.column_names
        for table, columns in (
            (buses, columns_of_buses(with_places)),
            (pairs, columns_of_connections()),
        ):
            if not table.schema.equals(_schema(layout, release_id, columns), check_metadata=True):
                raise ValueError("columns, types or metadata are not those of a corpus")
        try:
            return _connections_of(buses, pairs, nodes)
        except CorpusError as error:
            raise ValueError(str(error)) from None


def _table(content: Location | pa.BufferReader) -> pa.Table:
    with open_parquet(content, page_checksum_verification=True) as file:
        return file.read(use_threads=False)


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
