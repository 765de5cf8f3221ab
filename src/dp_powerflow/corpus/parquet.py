"""Writes Parquet files of series: one row per (day, node), each with lists of T float32.

pyarrow spends as much time on turning lists into levels as on compressing their values. Lists of one length
have the same levels in every page, so pages are laid out here: levels, then the bytes of the values, first
bytes first (BYTE_STREAM_SPLIT). What rounds the values writes them there (`grid.Pages`); nothing is copied
before it is compressed. Any Parquet reader opens the files (https://parquet.apache.org/docs/file-format).

Bytes depend on the input and on the compressor that pyarrow brings, on nothing else.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dp_powerflow.corpus.grid import ByteArray, Pages
from dp_powerflow.units import IntArray

PAGE_VALUES = 1 << 18
"""Values of a page at most, 1 MiB: benchmarks/encoding.py."""
ZSTD_LEVEL = 3
"""benchmarks/encoding.py."""
CREATED_BY = "dp-powerflow version 1.0.0"
"""What wrote the file, in the words that readers expect; it changes when this writer does."""

_MAGIC = b"PAR1"
_INT32, _FLOAT = 1, 4
_RUNS, _DELTA, _SPLIT = 3, 5, 9
"""Encodings of the standard: RLE (of levels), DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT."""
_ZSTD = 6
_REQUIRED, _REPEATED = 0, 2
_BLOCK, _MINIBLOCK = 128, 32

Fill = Callable[[range, "list[Pages]"], None]
"""Writes the values of some days to the pages of a row group; one `Pages` per pair of columns."""


def encode_series(schema: pa.Schema, nodes: int, groups: Iterable[range], fill: Fill) -> memoryview:
    """Bytes of a file with columns day, node and an even number of lists of float32.

    Parameters
    ----------
    schema : its lists all have the same length, and nothing in it may be null.
    nodes : rows of a day.
    groups : days of each row group.
    fill : writes their values.
    """
    steps = schema.field(2).type.list_size
    names = schema.names[2:]
    codec = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
    parts: list[bytes | memoryview] = [_MAGIC]
    row_groups, at, rows = [], len(_MAGIC), 0
    shapes: dict[int, GroupPages] = {}
    for days in groups:
        if len(days) not in shapes:
            shapes[len(days)] = GroupPages(len(days) * nodes, steps, len(names))
        shape = shapes[len(days)]
        fill(days, shape.pairs)
        chunks = [
            _numbers(codec, "day", days.start, days.stop - 1, _delta_days(len(days), nodes)),
            _numbers(codec, "node", 0, nodes - 1, _delta_nodes(len(days), nodes)),
            *(_lists(codec, name, shape, k) for k, name in enumerate(names)),
        ]
        row_groups.append(_row_group(chunks, at, shape.rows))
        parts += [piece for chunk in chunks for piece in chunk.pieces]
        at += sum(chunk.compressed for chunk in chunks)
        rows += shape.rows
    footer = _footer(schema, rows, row_groups)
    return _joined([*parts, footer, len(footer).to_bytes(4, "little"), _MAGIC])


def _joined(parts: list[bytes | memoryview]) -> memoryview:
    found = memoryview(pa.allocate_buffer(sum(map(len, parts)))).cast("B")
    at = 0
    for part in parts:
        found[at : at + len(part)] = part
        at += len(part)
    return found.toreadonly()


class GroupPages:
    """Pages of a row group: the levels are there, the values are filled in by others.

    Attributes
    ----------
    rows : of the row group, `page_rows` of each page.
    pairs : where the values go, for every two columns.
    """

    def __init__(self, rows: int, steps: int, columns: int, rows_per_page: int | None = None) -> None:
        pages = min(rows, -(-rows * steps // PAGE_VALUES))
        per_page = -(-rows // pages) if rows_per_page is None else rows_per_page
        self.rows = rows
        self.page_rows = [min(per_page, rows - first) for first in range(0, rows, per_page)]
        levels = {count: _levels(count, steps) for count in set(self.page_rows)}
        sizes = [len(levels[count]) + 4 * count * steps for count in self.page_rows]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.steps = steps
        self.columns = [_bytes(int(self.starts[-1])) for _ in range(columns)]
        for start, count in zip(self.starts.tolist(), self.page_rows, strict=False):
            for column in self.columns:
                column[start : start + len(levels[count])] = np.frombuffer(levels[count], dtype=np.uint8)
        lengths = [len(levels[count]) for count in self.page_rows]
        first_value = self.starts[:-1] + lengths
        pairs = zip(self.columns[0::2], self.columns[1::2], strict=True)
        self.pairs = [Pages(pair, first_value, per_page, rows) for pair in pairs]

    def pages(self, column: int) -> Iterator[tuple[int, ByteArray]]:
        """Values of a page and its bytes."""
        for count, (start, stop) in zip(self.page_rows, pairwise(self.starts.tolist()), strict=True):
            yield count * self.steps, self.columns[column][start:stop]


def _bytes(size: int) -> ByteArray:
    """Memory of Arrow's pool, which is used again: fresh memory would take longer to get than to fill."""
    return np.frombuffer(pa.allocate_buffer(size), dtype=np.uint8)


@lru_cache(maxsize=16)
def _levels(rows: int, steps: int) -> bytes:
    """Repetition levels of lists, 0 where one begins, and definition levels, all 1; run by run."""
    begin, rest = _varint(1 << 1) + b"\0", _varint((steps - 1) << 1) + b"\1"
    repetition = (begin + rest) * rows if steps > 1 else _varint(rows << 1) + b"\0"
    definition = _varint(rows * steps << 1) + b"\1"
    return b"".join(len(part).to_bytes(4, "little") + part for part in (repetition, definition))


# --- column chunks ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Chunk:
    """A column of a row group: its bytes, and what the footer says of it."""

    path: list[str]
    kind: int
    encoding: int
    values: int
    pages: int
    pieces: list[Any]
    uncompressed: int
    compressed: int
    span: tuple[int, int] | None


def _numbers(codec: Any, name: str, low: int, high: int, deltas: bytes) -> _Chunk:
    """A column of int32 that starts at `low`."""
    count = int.from_bytes(deltas[:8], "little")
    header = _varint(_BLOCK) + _varint(_BLOCK // _MINIBLOCK) + _varint(count) + _varint(_zigzag(low))
    page = np.frombuffer(header + deltas[8:], dtype=np.uint8)
    pieces, size = _page(codec, page, count, _DELTA)
    return _chunk([name], _INT32, _DELTA, [(count, pieces, size)], (low, high))


def _lists(codec: Any, name: str, shape: GroupPages, column: int) -> _Chunk:
    """A column of lists of float32."""
    pages = [(count, *_page(codec, page, count, _SPLIT)) for count, page in shape.pages(column)]
    return _chunk([name, "list", "element"], _FLOAT, _SPLIT, pages, None)


def _chunk(
    path: list[str],
    kind: int,
    encoding: int,
    pages: list[tuple[int, list[Any], int]],
    span: tuple[int, int] | None,
) -> _Chunk:
    pieces = [piece for _, each, _ in pages for piece in each]
    compressed = sum(len(piece) for piece in pieces)
    values, uncompressed = sum(count for count, _, _ in pages), sum(size for _, _, size in pages)
    return _Chunk(path, kind, encoding, values, len(pages), pieces, uncompressed, compressed, span)


def _page(codec: Any, content: ByteArray, values: int, encoding: int) -> tuple[list[Any], int]:
    """Header and compressed content of a page, and the size of both before compression."""
    found = codec.compress(pa.py_buffer(content))
    packed = memoryview(found)[: found.size].cast("B")  # a buffer made shorter shows its old length
    checksum = zlib.crc32(packed)
    data = _struct((1, _i32(values)), (2, _i32(encoding)), *((k, _i32(_RUNS)) for k in (3, 4)))
    header = _struct(
        (1, _i32(0)),
        (2, _i32(content.size)),
        (3, _i32(len(packed))),
        (4, _i32(checksum - (checksum >> 31 << 32))),
        (5, data),
    )[1]
    return [header, packed], content.size + len(header)


@lru_cache(maxsize=64)
def _delta_nodes(days: int, nodes: int) -> bytes:
    return _deltas(np.tile(np.arange(nodes), days))


@lru_cache(maxsize=64)
def _delta_days(days: int, nodes: int) -> bytes:
    return _deltas(np.repeat(np.arange(days), nodes))


def _deltas(values: IntArray) -> bytes:
    """Number of values (8 bytes), then the blocks of DELTA_BINARY_PACKED: differences above the smallest."""
    found = [len(values).to_bytes(8, "little")]
    differences = np.diff(values)
    for first in range(0, len(differences), _BLOCK):
        block = differences[first : first + _BLOCK]
        low = int(block.min())
        above = np.zeros(_BLOCK, dtype=np.uint32)
        above[: len(block)] = block - low
        used = range(0, len(block), _MINIBLOCK)
        width = [int(above[k : k + _MINIBLOCK].max()).bit_length() for k in used]
        found += [_varint(_zigzag(low)), bytes(width).ljust(_BLOCK // _MINIBLOCK, b"\0")]
        for k, bits in zip(used, width, strict=True):
            each = above[k : k + _MINIBLOCK, None] >> np.arange(bits, dtype=np.uint32) & 1
            found.append(np.packbits(each.astype(np.uint8), bitorder="little").tobytes())
    return b"".join(found)


# --- the footer -------------------------------------------------------------------------------------------
_Field = tuple[int, bytes]
"""A value of Thrift's compact protocol: its type and its bytes."""


def _row_group(chunks: list[_Chunk], at: int, rows: int) -> _Field:
    columns, begin = [], at
    for chunk in chunks:
        fields = [
            (1, _i32(chunk.kind)),
            (2, _list(_i32(_RUNS), _i32(chunk.encoding))),
            (3, _list(*map(_text, chunk.path))),
            (4, _i32(_ZSTD)),
            (5, _i64(chunk.values)),
            (6, _i64(chunk.uncompressed)),
            (7, _i64(chunk.compressed)),
            (9, _i64(at)),
        ]
        if chunk.span is not None:
            low, high = (_text(value.to_bytes(4, "little")) for value in chunk.span)
            fields.append((12, _struct((3, _i64(0)), (5, high), (6, low))))
        fields.append((13, _list(_struct((1, _i32(0)), (2, _i32(chunk.encoding)), (3, _i32(chunk.pages))))))
        columns.append(_struct((2, _i64(0)), (3, _struct(*fields))))
        at += chunk.compressed
    return _struct(
        (1, _list(*columns)),
        (2, _i64(sum(chunk.uncompressed for chunk in chunks))),
        (3, _i64(rows)),
        (5, _i64(begin)),
        (6, _i64(at - begin)),
    )


def _footer(schema: pa.Schema, rows: int, row_groups: list[_Field]) -> bytes:
    elements = [_struct((3, _i32(_REQUIRED)), (4, _text("schema")), (5, _i32(len(schema))))]
    for field in schema:
        if not pa.types.is_fixed_size_list(field.type):
            elements.append(_struct((1, _i32(_INT32)), (3, _i32(_REQUIRED)), (4, _text(field.name))))
            continue
        listed = (10, _struct((3, _struct())))
        elements += [
            _struct((3, _i32(_REQUIRED)), (4, _text(field.name)), (5, _i32(1)), (6, _i32(3)), listed),
            _struct((3, _i32(_REPEATED)), (4, _text("list")), (5, _i32(1))),
            _struct((1, _i32(_FLOAT)), (3, _i32(_REQUIRED)), (4, _text("element"))),
        ]
    entries = dict(schema.metadata or {})
    entries[b"ARROW:schema"] = base64.b64encode(schema.serialize())
    return _struct(
        (1, _i32(2)),
        (2, _list(*elements)),
        (3, _i64(rows)),
        (4, _list(*row_groups)),
        (5, _list(*(_struct((1, _text(key)), (2, _text(value))) for key, value in entries.items()))),
        (6, _text(CREATED_BY)),
        (7, _list(*(_struct((1, _struct())) for element in range(len(schema))))),
    )[1]


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _i32(value: int) -> _Field:
    return 5, _varint(_zigzag(value))


def _i64(value: int) -> _Field:
    return 6, _varint(_zigzag(value))


def _text(value: str | bytes) -> _Field:
    content = value.encode() if isinstance(value, str) else value
    return 8, _varint(len(content)) + content


def _list(*values: _Field) -> _Field:
    head = bytes([len(values) << 4 | values[0][0]]) if len(values) < 15 else bytes([0xF0 | values[0][0]])
    size = b"" if len(values) < 15 else _varint(len(values))
    return 9, head + size + b"".join(content for _, content in values)


def _struct(*fields: tuple[int, _Field]) -> _Field:
    found, last = [], 0
    for number, (kind, content) in fields:
        found += [bytes([(number - last) << 4 | kind]), content]
        last = number
    return 12, b"".join([*found, b"\0"])


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
