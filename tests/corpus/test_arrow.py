"""Columns of Arrow as arrays: the same numbers as pyarrow's own conversion, which imports pandas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dp_powerflow.corpus.parquet import list_numbers, numbers


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3], pa.int32()),
        pa.array([1.5, 2.5, 3.5], pa.float32())[1:],
        pa.array([1, None, 3]),
        pa.array([], pa.int64()),
        pa.array([True, False, True, True] * 5)[3:9],
        pa.array([], pa.bool_()),
        pa.chunked_array([[1, 2], [3]]),
        pa.chunked_array([[True], [False, True]]),
        pa.chunked_array([], pa.float64()),
    ],
)
def test_the_numbers_of_a_column_are_those_of_pyarrow(column: pa.Array | pa.ChunkedArray) -> None:
    theirs = (
        column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    )
    np.testing.assert_array_equal(numbers(column), theirs)
    assert numbers(column).dtype == theirs.dtype


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 2), pa.list_(pa.float32())])
def test_the_numbers_of_lists_are_those_of_pyarrow(kind: pa.DataType) -> None:
    whole = pa.array([[1.5, 2.5], [3.5, 4.5], [5.5, 6.5]], kind)
    for column in (whole, whole[1:], whole[1:2], whole[:0], pa.array([[1.5, 2.5], None], kind)):
        theirs = column.flatten().to_numpy(zero_copy_only=False)
        np.testing.assert_array_equal(list_numbers(column), theirs)
        np.testing.assert_array_equal(list_numbers(pa.chunked_array([column])), theirs)
