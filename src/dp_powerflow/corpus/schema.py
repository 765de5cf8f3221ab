"""What the files of a corpus look like: shape, Arrow schemas, and where each day is.

Equal input, equal bytes. Which numbers are released of a voltage is for `corpus/grid.py` to say.

**Bytes.** Nothing here asks for the time, the host or the number of threads. Bytes do depend on the version
of pyarrow, whose name is in the file and which brings the compressor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dp_powerflow._names import RELEASE_ID, RELEASE_ID_RULE
from dp_powerflow.corpus.grid import VA_PER_DEG as VA_PER_DEG
from dp_powerflow.corpus.grid import VM_MAX_PU as VM_MAX_PU
from dp_powerflow.corpus.grid import VM_PER_PU as VM_PER_PU
from dp_powerflow.corpus.grid import Float32Array as Float32Array
from dp_powerflow.corpus.grid import NodeColumns, Pages, fill_voltages
from dp_powerflow.corpus.grid import Phasors as Phasors
from dp_powerflow.corpus.grid import on_grid as on_grid
from dp_powerflow.corpus.grid import round_to_grid as round_to_grid
from dp_powerflow.corpus.grid import va_counts as va_counts
from dp_powerflow.corpus.grid import vm_counts as vm_counts
from dp_powerflow.corpus.parquet import encode_series, list_numbers, numbers
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import ComplexArray, IntArray

FORMAT = "1"
"""Version of the layout on disk."""
DATA = "data"
NODES_FILE = "nodes.parquet"
MANIFEST_FILE = "manifest.json"
"""Written last: at a URL it says that the release is complete."""

GROUP_PHASORS = 1 << 17
"""Phasors per Parquet row group: about 1 MB decoded, so that one day is cheap to fetch."""

VM_GRID = "multiples of 1e-6 p.u."
VA_GRID = "multiples of 1e-5 degrees; even multiples from 128 degrees on"

PUBLIC_COLUMNS = {"phase": pa.int32(), "base_kv": pa.float64(), "bus": pa.string()}
"""What `nodes.parquet` may say of a node when it is declared public."""

_PREFIX = "dp_powerflow."
_INT32_MAX = 2**31 - 1
_PART_NAME = re.compile(r"part-(\d{5,})\.parquet")


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
        for name in ("days", "steps", "nodes", "days_per_part"):
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

    def locate(self, day: int) -> tuple[int, int]:
        """Part and row group that hold a day."""
        part, offset = divmod(day, self.days_per_part)
        return part, offset // self.days_per_group

    def blocks(self, days: IntArray) -> Iterator[Block]:
        """The row groups that hold some days, each once."""
        parts, groups = days // self.days_per_part, days % self.days_per_part // self.days_per_group
        for part, group in np.unique(np.stack([parts, groups], axis=1), axis=0).tolist():
            rows = np.flatnonzero((parts == part) & (groups == group))
            yield Block(part, group, rows, days[rows] - self.groups_of(part)[group].start)


class Block(NamedTuple):
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


def part_name(part: int) -> str:
    """File name of a part inside `data/`."""
    return f"part-{part:05d}.parquet"


def part_number(name: str) -> int | None:
    """Number of the part with this file name, None if it is not the name of a part."""
    match = _PART_NAME.fullmatch(name)
    if match is None or part_name(int(match[1])) != name:
        return None
    return int(match[1])


def part_schema(layout: CorpusLayout, release_id: str, part: int) -> pa.Schema:
    """Schema of `data/part-*.parquet`: one row per (day, node), T values per list."""
    series = pa.list_(pa.field("element", pa.float32(), nullable=False), layout.steps)
    fields = [
        pa.field("day", pa.int32(), nullable=False),
        pa.field("node", pa.int32(), nullable=False, metadata={"is": f"row of {NODES_FILE}"}),
        pa.field("vm_pu", series, nullable=False, metadata={"unit": "p.u.", "grid": VM_GRID}),
        pa.field("va_deg", series, nullable=False, metadata={"unit": "degree", "grid": VA_GRID}),
    ]
    return pa.schema(fields, metadata=part_metadata(layout, release_id, part))


def nodes_schema(layout: CorpusLayout, release_id: str, columns: list[str]) -> pa.Schema:
    """Schema of `nodes.parquet`: row k describes node k; `columns` of `PUBLIC_COLUMNS` are there."""
    fields = [
        pa.field("node", pa.int32(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        *(pa.field(name, PUBLIC_COLUMNS[name], nullable=False) for name in columns),
    ]
    return pa.schema(fields, metadata=metadata_of(layout, release_id))


MOST_DAYS, MOST_STEPS = 10_000_000, 86_400
"""Of a corpus that is read: a file of a stranger may say anything."""


def read_metadata(metadata: dict[bytes, bytes] | None) -> tuple[CorpusLayout, str]:
    """Layout and release id from the metadata of any file of a corpus.

    Raises
    ------
    KeyError, ValueError : an entry is missing or not a number.
    CorpusError : written by another version of the layout.
    """
    entries = {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    version = entries[f"{_PREFIX}format"]
    if version != FORMAT:
        raise CorpusError(
            f"the corpus has format {version[:20]} and this program reads format {FORMAT}; "
            "use the version of dp-powerflow that its manifest names",
            code="format-not-read",
        )
    shape = {name: int(entries[_PREFIX + name]) for name in ("days", "steps", "nodes", "days_per_part")}
    if shape["days"] > MOST_DAYS or shape["steps"] > MOST_STEPS:
        raise CorpusError("the corpus declares more days or steps than any has; fetch it again")
    return CorpusLayout(**shape), check_release_id(entries[f"{_PREFIX}release_id"])


def check_release_id(release_id: str) -> str:
    """A release id that can be part of a file name, or an error."""
    if not re.fullmatch(RELEASE_ID, release_id):
        raise CorpusError(RELEASE_ID_RULE)
    return release_id


def part_metadata(layout: CorpusLayout, release_id: str, part: int) -> dict[str, str]:
    """What every file of a part says of itself: the corpus and the number of the part."""
    return metadata_of(layout, release_id) | {f"{_PREFIX}part": str(part)}


def metadata_of(layout: CorpusLayout, release_id: str) -> dict[str, str]:
    """What every file of a corpus says of itself: version of the layout, release and shape."""
    entries = {
        "format": FORMAT,
        "release_id": release_id,
        "days": str(layout.days),
        "steps": str(layout.steps),
        "nodes": str(layout.nodes),
        "days_per_part": str(layout.days_per_part),
    }
    return {_PREFIX + key: value for key, value in entries.items()}


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


@dataclass(frozen=True)
class NodeTable:
    """The released nodes in released order. The optional columns are written only when declared public.

    Attributes
    ----------
    ids : opaque name of each node.
    phase : phase number of each node.
    base_kv : line-to-neutral base voltage [kV] of each node.
    bus : opaque name of the bus of each node, which groups nodes.
    """

    ids: tuple[str, ...]
    phase: tuple[int, ...] | None = None
    base_kv: tuple[float, ...] | None = None
    bus: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.ids or not all(self.ids) or len(set(self.ids)) != len(self.ids):
            raise CorpusError("the nodes of a corpus need names that are not empty and all different")
        for name, values in self.public_columns().items():
            if len(values) != len(self.ids):
                raise CorpusError(f"the column {name} of the node table needs one entry per node")
        if self.base_kv is not None and not all(0 < kv < math.inf for kv in self.base_kv):
            raise CorpusError("the column base_kv of the node table needs positive base voltages")

    @classmethod
    def opaque(cls, nodes: int) -> NodeTable:
        """Names that say nothing but the position: n000, n001, …"""
        width = len(str(nodes - 1))
        return cls(tuple(f"n{k:0{width}d}" for k in range(nodes)))

    def public_columns(self) -> dict[str, tuple[int, ...] | tuple[float, ...] | tuple[str, ...]]:
        """The optional columns that are there."""
        columns = {"phase": self.phase, "base_kv": self.base_kv, "bus": self.bus}
        return {name: values for name, values in columns.items() if values is not None}


def encode_nodes(layout: CorpusLayout, release_id: str, nodes: NodeTable) -> bytes:
    """Bytes of `nodes.parquet`."""
    if len(nodes.ids) != layout.nodes:
        raise CorpusError(f"the corpus has {layout.nodes} nodes and the node table {len(nodes.ids)}")
    public = nodes.public_columns()
    schema = nodes_schema(layout, release_id, list(public))
    columns = [range(layout.nodes), nodes.ids, *public.values()]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET)
    return bytes(sink.getvalue())


def encode_part(
    layout: CorpusLayout, release_id: str, part: int, voltages: ComplexArray | NodeColumns
) -> memoryview:
    """Bytes of one part from complex voltages (day, step, node) [p.u.], rounded group by group."""
    days = layout.days_of(part)
    if voltages.shape != (len(days), layout.steps, layout.nodes):
        raise CorpusError(
            f"part {part} needs voltages of shape (day, step, node) = "
            f"({len(days)}, {layout.steps}, {layout.nodes}), not {voltages.shape}"
        )
    given = NodeColumns.of(voltages)

    def fill(group: range, pages: list[Pages]) -> None:
        fill_voltages(given, range(group.start - days.start, group.stop - days.start), pages[0])

    return encode_series(part_schema(layout, release_id, part), layout.nodes, layout.groups_of(part), fill)


def list_values(table: pa.Table, name: str) -> NDArray[Any]:
    """All values of a column of lists, one list after the other."""
    return list_numbers(table.column(name))


def rows_in_order(table: pa.Table, days: range, nodes: int) -> bool:
    """Whether the rows are every (day, node) exactly once, days first."""
    day, node = numbers(table.column("day")), numbers(table.column("node"))
    expected = np.arange(days.start, days.stop)
    return np.array_equal(day, np.repeat(expected, nodes)) and np.array_equal(
        node, np.tile(np.arange(nodes), len(days))
    )
