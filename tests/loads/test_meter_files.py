"""What the readers do with files as utilities really write them."""

from __future__ import annotations

import datetime as dt
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow import LongColumns, MeterFormat, WideColumns
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads import ingest
from dp_powerflow.loads.declared import PLACEHOLDER_KW, IngestRules, ServiceMap
from dp_powerflow.loads.ingest import read_long, read_wide
from dp_powerflow.loads.report import MOST_MISSING
from dp_powerflow.units import FloatArray
from support.meter_files import write_long, write_wide

HOURLY = MeterFormat("kW", "start", "UTC", step_minutes=60)
FIRST = dt.date(2024, 1, 1)
NAMES = ["m1", "m2", "m3"]


def hourly_stamps(n_days: int = 3) -> list[str]:
    begin = dt.datetime.combine(FIRST, dt.time())
    return [(begin + dt.timedelta(hours=i)).isoformat() for i in range(24 * n_days)]


@pytest.fixture
def values() -> FloatArray:
    return np.random.default_rng(5).uniform(0.5, 1.5, (3, 72))


@pytest.mark.parametrize(
    ("unit", "factor"), [("kW", 1.0), ("W", 1e-3), ("kWh per interval", 4.0), ("Wh per interval", 4e-3)]
)
def test_the_declared_unit_is_converted_to_kw(tmp_path: Path, unit: str, factor: float) -> None:
    readings = np.random.default_rng(5).uniform(0.5, 1.5, (1, 96)) / factor
    stamps = [(dt.datetime(2024, 1, 1) + i * dt.timedelta(minutes=15)).isoformat() for i in range(96)]
    result = read_long(
        write_long(tmp_path / "m.csv", stamps, readings, ["m1"]), MeterFormat(unit, "start", "UTC")
    )
    np.testing.assert_allclose(result.history.load_kw.ravel(), factor * readings.ravel(), rtol=1e-12)


def test_feed_in_counted_as_positive_is_flipped(tmp_path: Path, values: FloatArray) -> None:
    path = write_wide(tmp_path / "m.csv", hourly_stamps(), -values, NAMES)
    fmt = MeterFormat("kW", "start", "UTC", 60, positive="generation")
    np.testing.assert_allclose(read_wide(path, fmt).history.load_kw.reshape(3, -1), values)


def test_customers_come_in_the_order_of_names_not_of_the_file(tmp_path: Path, values: FloatArray) -> None:
    path = write_long(tmp_path / "m.csv", hourly_stamps(), values, ["z", "a", "m"])
    history = read_long(path, HOURLY).history
    assert history.load_points == ("a", "m", "z")
    np.testing.assert_array_equal(history.load_kw[2].ravel(), values[0])


def test_only_whole_days_are_taken_unless_days_are_declared(tmp_path: Path, values: FloatArray) -> None:
    path = write_long(tmp_path / "m.csv", hourly_stamps()[5:-5], values[:, 5:-5], NAMES)
    result = read_long(path, HOURLY)
    assert result.history.days == (dt.date(2024, 1, 2),)
    assert result.report.columns[0].readings.outside_days == 3 * (19 + 19)
    with pytest.raises(LoadDataError, match="every load point"):  # 10 of 72 hours are missing
        read_long(path, HOURLY, days=(FIRST, dt.date(2024, 1, 3)))


def test_duplicated_stamps_are_averaged_and_counted(tmp_path: Path, values: FloatArray) -> None:
    stamps = hourly_stamps()
    doubled = np.concatenate([values, values[:, 10:12] + 0.2], axis=1)
    path = write_long(tmp_path / "m.csv", stamps + stamps[10:12], doubled, NAMES)
    result = read_long(path, HOURLY)
    assert result.report.columns[0].readings.duplicated == 6
    got = result.history.load_kw.reshape(3, -1)
    np.testing.assert_allclose(got[:, 10:12], values[:, 10:12] + 0.1)
    np.testing.assert_array_equal(np.delete(got, [10, 11], axis=1), np.delete(values, [10, 11], axis=1))


def test_stamps_off_the_grid_are_left_out_and_their_steps_filled(tmp_path: Path, values: FloatArray) -> None:
    stamps = hourly_stamps()
    stamps[30] = "2024-01-02T06:07:00"
    stamps[40] = "2024-01-02T16:00:00.25"
    result = read_long(write_long(tmp_path / "m.csv", stamps, values, NAMES), HOURLY)
    column = result.report.columns[0]
    assert (column.readings.off_grid, column.missing, column.filled.linear_short) == (6, 6, 6)
    np.testing.assert_allclose(result.history.load_kw[:, 1, 6], (values[:, 29] + values[:, 31]) / 2)


def test_empty_cells_and_infinities_are_gaps(tmp_path: Path, values: FloatArray) -> None:
    cells = values.astype(object)
    cells[0, 4], cells[1, 5], cells[2, 6] = "", "NA", "inf"
    path = write_long(tmp_path / "m.csv", hourly_stamps(), cells, NAMES)
    column = read_long(path, HOURLY).report.columns[0]
    assert (column.readings.no_value, column.readings.not_finite, column.missing) == (2, 1, 3)


def test_a_sentinel_can_be_declared_as_missing(tmp_path: Path, values: FloatArray) -> None:
    values[1, 5] = -9999
    fmt = MeterFormat("kW", "start", "UTC", 60, missing=("-9999.0",))
    report = read_long(write_long(tmp_path / "m.csv", hourly_stamps(), values, NAMES), fmt).report
    assert report.columns[0].readings.no_value == 1
    assert report.columns[0].negative == 0


def test_european_csv_with_decimal_commas_day_first_stamps_and_compression(tmp_path: Path) -> None:
    path = tmp_path / "m.csv.gz"
    rows = ["Zähler;Zeit;Leistung"]
    rows += [f"m1;01.02.2024 {hour:02d}:00;{hour + 1},25" for hour in range(24)]
    path.write_bytes(gzip.compress(("\ufeff" + "\r\n".join(rows) + "\r\n").encode()))
    fmt = MeterFormat("kW", "start", "Europe/Berlin", 60, "%d.%m.%Y %H:%M", delimiter=";", decimal=",")
    history = read_long(path, fmt, LongColumns("Zähler", "Zeit", "Leistung")).history
    assert history.days == (dt.date(2024, 2, 1),)
    np.testing.assert_array_equal(history.load_kw.ravel(), np.arange(24) + 1.25)


def test_parquet_with_integer_and_dictionary_customers_and_integer_readings(tmp_path: Path) -> None:
    time = pa.array([dt.datetime(2024, 1, 1, hour) for hour in range(24)] * 2)
    for name, customer in {
        "integer": pa.array([7] * 24 + [12] * 24),
        "dictionary": pa.array(["7"] * 24 + ["12"] * 24).dictionary_encode(),
    }.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"customer": customer, "time": time, "kwh": pa.array(range(1, 49))}), path)
        history = read_long(path, HOURLY).history
        assert history.load_points == ("12", "7")
        np.testing.assert_array_equal(history.load_kw[1].ravel(), np.arange(1, 25))


def test_a_folder_of_parquet_files_is_one_table(tmp_path: Path, values: FloatArray) -> None:
    folder = tmp_path / "meters"
    folder.mkdir()
    for day in range(3):
        part = slice(24 * day, 24 * day + 24)
        write_long(folder / f"day{day}.parquet", hourly_stamps()[part], values[:, part], NAMES)
    np.testing.assert_array_equal(read_long(folder, HOURLY).history.load_kw.reshape(3, -1), values)


def test_reactive_readings_follow_the_unit_and_keep_their_sign(tmp_path: Path, values: FloatArray) -> None:
    reactive = np.random.default_rng(6).normal(size=values.shape)
    names = [f"{name}{suffix}" for suffix in ("_p", "_q") for name in NAMES]
    path = write_wide(tmp_path / "m.parquet", hourly_stamps(), np.concatenate([values, reactive]), names)
    result = read_wide(path, HOURLY, WideColumns(active_suffix="_p", reactive_suffix="_q"))
    assert result.history.load_kvar is not None
    np.testing.assert_array_equal(result.history.load_kvar.reshape(3, -1), reactive)
    np.testing.assert_array_equal(result.history.load_kw.reshape(3, -1), values)
    assert result.report.columns[1].negative == np.count_nonzero(reactive < 0)
    assert result.report.columns[1].floored == 0


def test_the_service_map_sums_customers_and_sets_order_and_public_facts(
    tmp_path: Path, values: FloatArray
) -> None:
    services = ServiceMap(
        {"m3": "house", "m1": "flats", "m2": "flats"},
        node_of={"flats": "S1a"},
        class_of={"house": "residential", "flats": "residential"},
        scale_kw_of={"house": 5.0, "flats": 10.0},
    )
    for name, write, read in (("long", write_long, read_long), ("wide", write_wide, read_wide)):
        path = write(tmp_path / f"{name}.csv", hourly_stamps(), values, NAMES)
        history = read(path, HOURLY, services=services).history
        assert history.load_points == ("house", "flats")
        assert history.node_of == (None, "S1a")
        assert history.class_label == ("residential", "residential")
        assert history.scale_kw is not None
        np.testing.assert_array_equal(history.scale_kw, [5.0, 10.0])
        np.testing.assert_allclose(history.load_kw.reshape(2, -1), [values[2], values[0] + values[1]])


@pytest.mark.parametrize("share_missing", [0.05, 0.6])
def test_replacing_one_customer_changes_one_record_and_no_other_bit(
    tmp_path: Path, values: FloatArray, share_missing: float
) -> None:
    """The stability that the sensitivity of everything downstream rests on."""
    cells = values.astype(object)
    cells[0, 7:12], cells[1, 3:5], cells[2, 60] = "", "", ""
    rules = IngestRules(on_rejected="placeholder", on_suspect_unit="keep")
    path = write_long(tmp_path / "before.csv", hourly_stamps(), cells, NAMES)
    before = read_long(path, HOURLY, rules=rules).history
    cells[1] = np.linspace(-3.0, 900.0, 72)
    cells[1, np.arange(int(72 * share_missing))] = "NA"
    path = write_long(tmp_path / "after.csv", hourly_stamps(), cells, NAMES)
    after = read_long(path, HOURLY, rules=rules).history
    assert after.load_points == before.load_points
    np.testing.assert_array_equal(after.load_kw[[0, 2]], before.load_kw[[0, 2]])
    assert not np.array_equal(after.load_kw[1], before.load_kw[1])
    if share_missing > MOST_MISSING:
        np.testing.assert_array_equal(after.load_kw[1], PLACEHOLDER_KW)


def test_the_size_of_batches_does_not_matter(
    tmp_path: Path, values: FloatArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the two readings of a doubled hour may lie in different batches."""
    stamps = [(dt.datetime(2024, 10, 27) + i * dt.timedelta(hours=1)).isoformat() for i in range(1, 25)]
    stamps.insert(2, stamps[1])
    fmt = MeterFormat("kW", "end", "Europe/Berlin", 60)
    long = write_long(tmp_path / "long.csv", stamps, values[:, :25], NAMES)
    wide = write_wide(tmp_path / "wide.csv", stamps, values[:, :25], NAMES)
    monkeypatch.setattr(ingest, "_CSV_BLOCK_BYTES", 120)
    assert len(list(ingest.open_table(long, fmt).batches(("kwh",), ()))) > 5
    expected = np.delete(values[:, :25], 3, axis=1)
    expected[:, 2] = (values[:, 2] + values[:, 3]) / 2
    for read, path in ((read_long, long), (read_wide, wide)):
        result = read(path, fmt)
        np.testing.assert_allclose(result.history.load_kw.reshape(3, -1), expected, rtol=1e-15)
        assert result.report.columns[0].readings.duplicated == 0
