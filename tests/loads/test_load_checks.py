from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import (
    GapRule,
    IngestRules,
    ServiceMap,
    one_service_each,
    read_service_map,
)
from dp_powerflow.loads.report import Quantity, RawHistory, check_history
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.units import FloatArray

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


def test_a_little_export_is_raised_to_the_floor_and_counted(values: FloatArray) -> None:
    values[0, :, 11:15] = -0.7
    few = check_history(raw(values), IngestRules(most_export=0.1))
    np.testing.assert_array_equal(few.history.load_kw, np.maximum(values, 0.01))
    assert few.report.exporting == 1


def test_loads_within_the_floor_are_standby_and_no_export(values: FloatArray) -> None:
    values[1] = np.where(np.arange(24) % 2, -0.009, 0.004)  # an empty house on a meter that counts in steps
    result = check_history(raw(values), IngestRules(most_export=0.0, plausible_kw=(0.0, 10.0)))
    assert result.report.exporting == 0
    np.testing.assert_array_equal(result.history.load_kw[1], 0.01)
    with pytest.raises(LoadDataError, match="1 of 3 load points do"):
        check_history(raw(values), IngestRules(floor_kw=0.005, most_export=0.0, plausible_kw=(0.0, 10.0)))


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
    kept = check_history(raw(values), IngestRules(on_rejected="placeholder", placeholder_kw=0.3))
    assert kept.history.load_points == ("meter0", "meter1", "meter2")
    np.testing.assert_array_equal(kept.history.load_kw[1], 0.3)
    filled = check_history(raw(values), IngestRules(gaps=GapRule(max_missing_share=0.2)))
    assert filled.report.n_rejected == 0
    assert filled.report.columns[0].filled.similar_day == 48
    with pytest.raises(LoadDataError, match="every load point"):
        check_history(raw(np.full_like(values, np.nan)), IngestRules())


def test_gaps_in_the_reactive_readings_reject_as_well(values: FloatArray) -> None:
    kvar = values - 1.0
    kvar[2, :5] = np.nan
    result = check_history(raw(values, kvar=kvar), IngestRules())
    assert result.history.load_points == ("meter0", "meter1")
    assert result.history.load_kvar is not None
    np.testing.assert_array_equal(result.history.load_kvar, kvar[:2])


def test_one_meter_in_another_unit_is_caught_by_its_public_scale(values: FloatArray) -> None:
    names = ("meter0", "meter1", "meter2")
    services = ServiceMap(dict(zip(names, names, strict=True)), scale_kw_of=dict.fromkeys(names, 10.0))
    values[1] *= 1000
    with pytest.raises(LoadDataError, match="1 of 3 load points have a load far above their public scale"):
        check_history(raw(values, services), IngestRules())
    result = check_history(raw(values, services), IngestRules(on_suspect_unit="keep"))
    assert result.report.units.above == 1


def test_an_empty_house_is_reported_and_does_not_stop_the_rest(values: FloatArray) -> None:
    names = ("meter0", "meter1", "meter2")
    services = ServiceMap(dict(zip(names, names, strict=True)), scale_kw_of=dict.fromkeys(names, 10.0))
    values[1] /= 1000
    assert check_history(raw(values, services), IngestRules()).report.units.below == 1


def test_the_report_prints_counts_and_no_names_or_readings(values: FloatArray) -> None:
    values[0, 0, 0] = -7.654321
    values[1, :3] = np.nan
    report = check_history(raw(values), IngestRules(on_export="floor")).report
    for text in (repr(report), json.dumps(report.to_json()), "\n".join(report.summary())):
        assert not re.search(r"meter\d", text)
        assert "7.65" not in text
    assert "1 load points rejected" in "\n".join(report.summary())
    assert "1 negative and 0 zero" in "\n".join(report.summary())


def test_what_passes_between_reader_and_checks_prints_no_names_or_readings(values: FloatArray) -> None:
    text = repr(raw(np.full_like(values, 7.654321)))
    assert "3 customers" in text
    assert "meter" not in text
    assert "7.65" not in text


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column 'customer'"),
        ("customer\nc1\n", "no column 'load_point'"),
        ("customer,load_point\n", "no customer"),
        ("customer,load_point\nsecretmeter,\n", "row 2 .* lacks"),
        ("customer,load_point\nsecretmeter,A\nsecretmeter,B\n", "row 3 .* repeats"),
        ("customer,load_point,node\nc1,A,x\nc2,A,y\n", "row 3 .* contradicts an earlier 'node'"),
        ("customer,load_point,scale_kw\nc1,A,big\n", "not a number"),
        ("customer,load_point,scale_kw\nc1,A,-4\n", "positive number of kW"),
        ("customer,load_point,scale_kw\nc1,A,4\nc2,B,\n", "1 of 2 load points have no public scale"),
    ],
)
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
