"""How the Parquet files of a corpus are written and read: one set of options, whole columns as arrays.

Floats in lists are split into bytes (BYTE_STREAM_SPLIT), days and nodes are packed; benchmarks/encoding.py
compares other choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dp_powerflow.corpus.storage import Location, open_parquet

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


def encode_table(schema: pa.Schema, columns: Iterable[Any]) -> bytes:
    """Bytes of a whole table."""
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET)
    return bytes(sink.getvalue())


def encode_groups(schema: pa.Schema, groups: Iterable[Sequence[NDArray[Any]]]) -> memoryview:
    """Bytes of a part from the columns of its row groups: numbers (row,) and lists (row, step)."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, **_options(schema)) as writer:
        for columns in groups:
            arrays = [_array(values, field) for values, field in zip(columns, schema, strict=True)]
            table = pa.Table.from_arrays(arrays, schema=schema)
            writer.write_table(table, row_group_size=len(table))
    return memoryview(sink.getvalue()).cast("B")


def _array(values: NDArray[Any], field: pa.Field) -> pa.Array:
    if not pa.types.is_fixed_size_list(field.type):
        return pa.array(values, field.type)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), field.type.value_type), type=field.type)


def _options(schema: pa.Schema) -> dict[str, Any]:
    numbers = [name for name in _NUMBERS if name in schema.names]
    encoding = dict.fromkeys(numbers, "DELTA_BINARY_PACKED")
    for field in schema:
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


def list_numbers(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """All numbers of a column of lists, one list after the other, not copied if they lie in one piece."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count or not isinstance(array, pa.FixedSizeListArray):
        return numbers(array.flatten())
    size = array.type.list_size
    return numbers(array.values.slice(array.offset * size, len(array) * size))
