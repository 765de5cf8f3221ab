"""Kernels that take the place of arrays: the bits of NumPy's sums, and of Φ one by one."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow._bits.linear import row_squares, row_sum
from dp_powerflow._bits.normal_pairs import ndtr_ascending
from dp_powerflow.model.history.numbers import ndtr


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 24, 96, 128, 129, 136, 1000, 5376, 8193, 35040, 70081])
def test_sums_of_a_row_are_those_of_numpy(size: int) -> None:
    values = np.random.default_rng(size).lognormal(0.0, 3.0, (3, size))
    squares = values * values
    for row in range(3):
        assert row_sum(values[row], 0, size) == np.sum(values, axis=1)[row]
        assert row_squares(values[row], 0, size) == np.sum(squares, axis=1)[row]


def test_a_part_of_a_row_is_summed_as_if_it_were_alone() -> None:
    values = np.random.default_rng(1).standard_normal(1000)
    assert row_sum(values, 13, 700) == np.sum(values[13:713].copy())


@pytest.mark.parametrize("std", [1e-3, 0.05, 0.3, 1.0, 3.0, 1e3])
@pytest.mark.parametrize("mean", [-9.0, 0.0, 1.3])
def test_the_normal_law_of_ascending_numbers_is_that_of_each(mean: float, std: float) -> None:
    for size in (1, 2, 70, 141):
        at = (np.linspace(-7.0, 7.0, size) - mean) / std
        found = np.empty(size)
        ndtr_ascending(at, found)
        np.testing.assert_array_equal(found, ndtr(at))


def test_no_number_is_passed_on() -> None:
    at, found = np.array([np.nan, 0.0, np.inf]), np.empty(3)
    ndtr_ascending(at, found)
    np.testing.assert_array_equal(found, [np.nan, 0.5, 1.0])
