"""Columns of Arrow as arrays of NumPy, without what pyarrow imports for its own ways: `to_numpy` brings
pandas, `flatten` brings `pyarrow.compute`; either takes longer than to read a small corpus."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


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
