"""Columns of Arrow as arrays: the same numbers as pyarrow's own conversion, which imports pandas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dp_powerflow.corpus.arrow import numbers


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
