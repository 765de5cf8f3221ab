"""Checks of meters that were read: ids, gaps, signs, units; what is found and what is refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import IngestRules, ServiceMap, one_service_each, read_service_map
from dp_powerflow.loads.history import levels
from dp_powerflow.loads.report import (
    GapCounts,
    IdFindings,
    Quantity,
    RawHistory,
    check_history,
    compare_ids,
    fill_gaps,
)
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.units import FloatArray
from support.tables import tables_of

TABLES = tables_of(__file__)

DAYS = tuple(dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(10))
COUNTS = ReadingCounts(0, 0, 0, 0, 0, 0, 0, 0)
NONE = np.empty(0, dtype=np.int64)


def raw(values: FloatArray, services: ServiceMap | None = None, kvar: FloatArray | None = None) -> RawHistory:
    customers = tuple(f"meter{i}" for i in range(len(values)))
    quantities = [Quantity("active", values.copy(), COUNTS)]
    quantities += [] if kvar is None else [Quantity("reactive", kvar.copy(), COUNTS)]
    return RawHistory(tuple(quantities), customers, services or one_service_each(customers), DAYS, 60, NONE)


@pytest.fixture
def values() -> FloatArray:
    return np.random.default_rng(8).uniform(0.5, 1.5, (3, 10, 24))


def test_negative_and_zero_readings_are_counted_and_raised_to_the_floor(values: FloatArray) -> None:
    values[0, 2, 10:14] = -0.4  # less than 1 % of the energy drawn
    values[1, 3, 5] = 0.0
    values[2, 4, 6] = 0.02
    result = check_history(raw(values), IngestRules(floor_kw=0.05))
    column = result.report.columns[0]
    assert (column.negative, column.zero, column.floored) == (4, 1, 6)
    np.testing.assert_array_equal(result.history.load_kw, np.maximum(values, 0.05))


def test_much_export_is_refused_or_dropped_as_declared(values: FloatArray) -> None:
    values[0, :, 11:15] = -0.7  # panels behind the meter
    with pytest.raises(LoadDataError, match=r"feed in more than 0.01 .* \(1 of 3 load points do\)") as found:
        check_history(raw(values), IngestRules())
    assert "meter0" not in str(found.value)
    assert "0.7" not in str(found.value)
    dropped = check_history(raw(values), IngestRules(on_export="floor"))
    np.testing.assert_array_equal(dropped.history.load_kw, np.maximum(values, 0.01))
    assert dropped.report.exporting == 1
    assert any("1 load points feed in" in line for line in dropped.report.summary())


def test_loads_within_the_floor_are_standby_and_no_export(values: FloatArray) -> None:
    values[1] = np.where(np.arange(24) % 2, -0.009, 0.004)  # an empty house on a meter that counts in steps
    result = check_history(raw(values), IngestRules(most_export=0.0, on_suspect_unit="keep"))
    assert result.report.exporting == 0
    np.testing.assert_array_equal(result.history.load_kw[1], 0.01)
    with pytest.raises(LoadDataError, match="1 of 3 load points do"):
        check_history(raw(values), IngestRules(floor_kw=0.005, most_export=0.0, on_suspect_unit="keep"))


def test_export_of_one_customer_is_set_off_against_its_neighbours_before_the_floor(
    values: FloatArray,
) -> None:
    values[0, 0, 12] = -0.4
    services = ServiceMap({"meter0": "A", "meter1": "A", "meter2": "B"})
    result = check_history(raw(values, services), IngestRules())
    assert result.history.load_kw[0, 0, 12] == pytest.approx(values[1, 0, 12] - 0.4)
    assert result.report.columns[0].floored == 0


def test_too_many_gaps_reject_the_load_point_as_declared(values: FloatArray) -> None:
    values[1, :2] = np.nan
    dropped = check_history(raw(values), IngestRules())
    assert dropped.history.load_points == ("meter0", "meter2")
    assert dropped.report.n_rejected == 1
    assert dropped.rejected == ("meter1",)
    np.testing.assert_array_equal(dropped.history.load_kw, values[[0, 2]])
    kept = check_history(raw(values), IngestRules(on_rejected="placeholder"))
    assert kept.history.load_points == ("meter0", "meter1", "meter2")
    np.testing.assert_array_equal(kept.history.load_kw[1], 0.5)
    with pytest.raises(LoadDataError, match="every load point"):
        check_history(raw(np.full_like(values, np.nan)), IngestRules())


def test_gaps_in_the_reactive_readings_reject_as_well(values: FloatArray) -> None:
    kvar = values - 1.0
    kvar[2, :5] = np.nan
    result = check_history(raw(values, kvar=kvar), IngestRules())
    assert result.history.load_points == ("meter0", "meter1")
    assert result.history.load_kvar is not None
    np.testing.assert_array_equal(result.history.load_kvar, kvar[:2])


def test_a_service_map_is_read_with_its_public_facts(tmp_path: Path) -> None:
    path = tmp_path / "services.csv"
    path.write_text(
        "customer,load_point,node,class,scale_kw\n"
        "c1,house,S1a,residential,9\nc2,flats,,residential,\nc3,flats,,,30.5\n"
    )
    services = read_service_map(path)
    assert services.load_point_of == {"c1": "house", "c2": "flats", "c3": "flats"}
    assert services.load_points == ("house", "flats")
    assert services.node_of == {"house": "S1a"}
    assert services.class_of == {"house": "residential", "flats": "residential"}
    assert services.scale_kw_of == {"house": 9.0, "flats": 30.5}


@pytest.mark.parametrize(("text", "says"), TABLES["a_bad_service_map_is_refused"])
def test_a_bad_service_map_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "services.csv"
    path.write_text(text)
    with pytest.raises(LoadDataError, match=says) as caught:
        read_service_map(path)
    assert "secretmeter" not in str(caught.value)


def test_a_service_map_that_does_not_exist_or_names_strangers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadDataError, match="cannot be read"):
        read_service_map(tmp_path / "none.csv")
    with pytest.raises(LoadDataError, match="class_of lists 1 load points without a customer"):
        ServiceMap({"c1": "A"}, class_of={"B": "residential"})


MONDAY = dt.date(2024, 1, 1)


def days(n: int) -> tuple[dt.date, ...]:
    return tuple(MONDAY + dt.timedelta(days=i) for i in range(n))


def week_grid(n_days: int = 14) -> FloatArray:
    """Value = 100·day + step: easy to tell where a filled entry came from."""
    return 100.0 * np.arange(n_days)[:, None] + np.arange(24.0)


def test_a_gap_of_one_hour_is_filled_linearly_even_across_midnight() -> None:
    values = week_grid()
    values[3, 0] = np.nan
    counts = fill_gaps(values, days(14), NONE)
    assert counts == GapCounts(linear_short=1)
    assert values[3, 0] == (223 + 301) / 2


def test_a_longer_gap_takes_the_mean_of_the_nearest_days_of_the_same_kind() -> None:
    values = week_grid()
    values[4, 8:12] = np.nan  # Friday: Thursday before, Monday after (Saturday and Sunday are another kind)
    counts = fill_gaps(values, days(14), NONE)
    assert counts == GapCounts(similar_day=4)
    np.testing.assert_array_equal(values[4, 8:12], (300 + 700) / 2 + np.arange(8, 12))


def test_at_the_edge_the_one_similar_day_is_enough() -> None:
    values = week_grid()
    values[0] = np.nan
    assert fill_gaps(values, days(14), NONE) == GapCounts(similar_day=24)
    np.testing.assert_array_equal(values[0], week_grid()[1])


def test_without_a_similar_day_in_reach_a_long_gap_is_linear_and_constant_at_the_ends() -> None:
    values = week_grid(1)
    values[0, 10:14], values[0, :2] = np.nan, np.nan
    assert fill_gaps(values, days(1), NONE) == GapCounts(linear_long=6)
    np.testing.assert_allclose(values[0], [2, 2, *range(2, 24)])


def test_filled_entries_are_never_donors() -> None:
    values = week_grid()
    values[1, 5], values[2, 3:8] = np.nan, np.nan
    fill_gaps(values, days(14), NONE)
    assert values[2, 5] == (5 + 305) / 2  # Monday and Thursday, not the filled Tuesday


def test_hours_the_clock_skipped_are_counted_apart() -> None:
    values = week_grid()
    values[6, 2], values[8, 2] = np.nan, np.nan
    counts = fill_gaps(values, days(14), np.array([6 * 24 + 2]))
    assert counts == GapCounts(linear_short=1, clock_change=1)


@settings(max_examples=60, deadline=None)
@given(mask=hnp.arrays(bool, (9, 24)), seed=st.integers(0, 2**32 - 1))
def test_filling_keeps_every_reading_and_stays_within_the_customers_own_range(
    mask: FloatArray, seed: int
) -> None:
    readings = np.random.default_rng(seed).normal(size=(9, 24))
    values = np.where(mask, np.nan, readings)
    if np.isnan(values).all():
        return
    counts = fill_gaps(values, days(9), NONE)
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
    assert fill_gaps(values, days(14), NONE).across_days == across


def test_one_wild_reading_or_a_month_away_does_not_move_a_level() -> None:
    values = np.random.default_rng(1).uniform(0.5, 1.5, (1, 60, 24))
    before = levels(values)
    values[0, 3, 5] = 1e6
    values[0, 10:38] = 0.0
    values[0, 50, 3] = np.nan
    assert levels(values) == pytest.approx(before, rel=0.1)


def test_meters_without_load_are_not_judged() -> None:
    values = np.stack([np.zeros((3, 24)), np.full((3, 24), np.nan), np.full((3, 24), -1.0)])
    assert np.isnan(levels(values)).all()


def test_counts_of_both_sides_are_found() -> None:
    found = compare_ids(["a1", "b1", "x"], ["a1", "b1", "y1", "y2"])
    assert found == IdFindings(3, 4, 1, 2)
    assert "write each id alike" in found.hint
    assert not compare_ids(["a1", "x"], ["a1"]).hint  # whoever is not listed is left out
    assert not compare_ids(["a1"], ["a1", "y"]).hint


@pytest.mark.parametrize("other", ["AA1", "aa\u00ad1"])
def test_ids_that_look_alike_are_refused_with_their_count_and_what_to_do(other: str) -> None:
    with pytest.raises(
        LoadDataError, match=r"2 customers .* differ .* only in blanks, case or invisible"
    ) as caught:
        compare_ids(["aa1", "b"], [other, "b"])
    assert "aa1" not in str(caught.value).lower()
