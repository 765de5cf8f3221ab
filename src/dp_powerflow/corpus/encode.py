"""Parquet bytes of the parts and of the node table: equal input, equal bytes.

Nothing here asks for the time, the host or the number of threads. Bytes do depend on the version of pyarrow,
whose name is in the file and which brings the compressor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow.corpus.errors import CorpusError
from dp_powerflow.corpus.phasors import Phasors, round_to_grid
from dp_powerflow.corpus.schema import CorpusLayout, nodes_schema, part_schema
from dp_powerflow.units import ComplexArray

_PARQUET = {
    "version": "2.6",
    "data_page_version": "1.0",
    "data_page_size": 1 << 20,
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": False,
    "write_page_checksum": True,
    "store_schema": True,
}
_ENCODING = {
    "day": "DELTA_BINARY_PACKED",
    "node": "DELTA_BINARY_PACKED",
    "vm_pu.list.element": "BYTE_STREAM_SPLIT",
    "va_deg.list.element": "BYTE_STREAM_SPLIT",
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
    pq.write_table(table, sink, **_PARQUET)
    return bytes(sink.getvalue())


def encode_part(layout: CorpusLayout, release_id: str, part: int, voltages: ComplexArray) -> bytes:
    """Bytes of one part from complex voltages (day, step, node) [p.u.], rounded group by group."""
    days = layout.days_of(part)
    if voltages.shape != (len(days), layout.steps, layout.nodes):
        raise CorpusError(
            f"part {part} needs voltages of shape (day, step, node) = "
            f"({len(days)}, {layout.steps}, {layout.nodes}), not {voltages.shape}"
        )
    schema = part_schema(layout, release_id, part)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, schema, **_PARQUET, column_encoding=_ENCODING, write_statistics=["day", "node"]
    ) as writer:
        for group in layout.groups_of(part):
            block = voltages[group.start - days.start : group.stop - days.start]
            # Rows are (day, node), so steps come last.
            phasors = round_to_grid(block.transpose(0, 2, 1))
            writer.write_table(_rows(schema, group, phasors), row_group_size=len(group) * layout.nodes)
    return bytes(sink.getvalue())


def _rows(schema: pa.Schema, days: range, phasors: Phasors) -> pa.Table:
    """Table of a row group; phasors are (day, node, step)."""
    nodes = phasors.vm_pu.shape[1]
    columns = [
        pa.array(np.repeat(np.arange(days.start, days.stop, dtype=np.int32), nodes)),
        pa.array(np.tile(np.arange(nodes, dtype=np.int32), len(days))),
        *(
            pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), type=schema.field(name).type)
            for name, values in (("vm_pu", phasors.vm_pu), ("va_deg", phasors.va_deg))
        ),
    ]
    return pa.Table.from_arrays(columns, schema=schema)
