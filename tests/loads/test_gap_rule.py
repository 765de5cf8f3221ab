from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dp_powerflow.loads.declared import GapRule
from dp_powerflow.loads.report import GapCounts, fill_gaps
from dp_powerflow.units import FloatArray

MONDAY = dt.date(2024, 1, 1)
NONE = np.empty(0, dtype=np.int64)
RULE = GapRule()


def days(n: int) -> tuple[dt.date, ...]:
    return tuple(MONDAY + dt.timedelta(days=i) for i in range(n))


def week_grid(n_days: int = 14) -> FloatArray:
    """Value = 100·day + step: easy to tell where a filled entry came from."""
    return 100.0 * np.arange(n_days)[:, None] + np.arange(24.0)


def test_without_gaps_nothing_is_touched() -> None:
    values = week_grid()
    assert fill_gaps(values, days(14), NONE, RULE) == GapCounts()
    np.testing.assert_array_equal(values, week_grid())


def test_a_gap_of_one_hour_is_filled_linearly_even_across_midnight() -> None:
    values = week_grid()
    values[3, 0] = np.nan
    counts = fill_gaps(values, days(14), NONE, RULE)
    assert counts == GapCounts(linear_short=1)
    assert values[3, 0] == (223 + 301) / 2


def test_a_longer_gap_takes_the_mean_of_the_nearest_days_of_the_same_kind() -> None:
    values = week_grid()
    values[4, 8:12] = np.nan  # Friday: Thursday before, Monday after (Saturday and Sunday are another kind)
    counts = fill_gaps(values, days(14), NONE, RULE)
    assert counts == GapCounts(similar_day=4)
    np.testing.assert_array_equal(values[4, 8:12], (300 + 700) / 2 + np.arange(8, 12))


def test_a_weekend_gap_is_filled_from_weekends() -> None:
    values = week_grid()
    values[5, 2:9] = np.nan
    fill_gaps(values, days(14), NONE, RULE)
    np.testing.assert_array_equal(values[5, 2:9], (600 + 600) / 2 + np.arange(2, 9))


def test_at_the_edge_the_one_similar_day_is_enough() -> None:
    values = week_grid()
    values[0] = np.nan
    assert fill_gaps(values, days(14), NONE, RULE) == GapCounts(similar_day=24)
    np.testing.assert_array_equal(values[0], week_grid()[1])


def test_without_a_similar_day_in_reach_a_long_gap_is_linear_and_constant_at_the_ends() -> None:
    values = week_grid(2)
    values[:, 10:14] = np.nan
    values[0, :2] = np.nan
    counts = fill_gaps(values, days(2), NONE, GapRule(similar_day_limit=0))
    assert counts == GapCounts(linear_long=10)
    np.testing.assert_allclose(values[0], [2, 2, *range(2, 24)])


def test_filled_entries_are_never_donors() -> None:
    values = week_grid()
    values[1, 5], values[2, 3:8] = np.nan, np.nan
    fill_gaps(values, days(14), NONE, RULE)
    assert values[2, 5] == (5 + 305) / 2  # Monday and Thursday, not the filled Tuesday


def test_hours_the_clock_skipped_are_counted_apart() -> None:
    values = week_grid()
    values[6, 2], values[8, 2] = np.nan, np.nan
    counts = fill_gaps(values, days(14), np.array([6 * 24 + 2]), RULE)
    assert counts == GapCounts(linear_short=1, clock_change=1)


@settings(max_examples=60, deadline=None)
@given(
    mask=hnp.arrays(bool, (9, 24)),
    seed=st.integers(0, 2**32 - 1),
    short=st.integers(0, 300),
    limit=st.integers(0, 10),
)
def test_filling_keeps_every_reading_and_stays_within_the_customers_own_range(
    mask: FloatArray, seed: int, short: int, limit: int
) -> None:
    readings = np.random.default_rng(seed).normal(size=(9, 24))
    values = np.where(mask, np.nan, readings)
    if np.isnan(values).all():
        return
    counts = fill_gaps(values, days(9), NONE, GapRule(short, limit))
    kept = np.logical_not(mask)
    np.testing.assert_array_equal(values[kept], readings[kept])
    assert np.isfinite(values).all()
    assert values.min() >= readings[kept].min() - 1e-12
    assert values.max() <= readings[kept].max() + 1e-12
    assert counts.linear_short + counts.similar_day + counts.linear_long == mask.sum()


@pytest.mark.parametrize(
    ("gap", "across"),
    [
        (slice(123, 124), 0),
        (slice(120, 121), 1),
        (slice(143, 144), 1),
        (slice(123, 129), 6),
        (slice(0, 0), 0),
    ],
    ids=["within a day", "first step", "last step", "long gap", "no gap"],
)
def test_entries_filled_from_other_days_are_counted(gap: slice, across: int) -> None:
    values = week_grid()
    values.reshape(-1)[gap] = np.nan
    assert fill_gaps(values, days(14), NONE, RULE).across_days == across
