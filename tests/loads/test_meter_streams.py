"""Meter files as streams: stamps as stamps or as text, folders of unlike files, steps read many times."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow import LongColumns, MeterFormat
from dp_powerflow._threads import ahead, in_order, slices
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.ingest import read_long
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulated_services, summed
from dp_powerflow.loads.timegrid import ReadingGrid, build_time_grid
from dp_powerflow.lowlevel import simulate_load_history

HOURLY = MeterFormat("kW", "start", "UTC", 60)
DAY = dt.date(2024, 5, 6)


def rows(count: int = 48) -> tuple[list[str], list[str], list[float]]:
    stamps = [f"2024-05-{6 + i // 24:02d}T{i % 24:02d}:00" for i in range(count)]
    names = [name for name in ("a", "b") for _ in stamps]
    return names, stamps * 2, [0.5 + 0.01 * (i % 37) for i in range(2 * count)]


def test_files_of_a_folder_may_differ_in_type(tmp_path: Path) -> None:
    names, stamps, values = rows()
    folder = tmp_path / "meters"
    folder.mkdir()
    moments = pa.array([dt.datetime.fromisoformat(stamp) for stamp in stamps], pa.timestamp("us", "UTC"))
    for part, kind in enumerate((pa.float64(), pa.float32())):
        own = slice(48 * part, 48 * part + 48)
        cells = {"customer": names[own], "time": moments[own], "kwh": pa.array(values[own]).cast(kind)}
        pq.write_table(pa.table(cells), folder / f"part-{part}.parquet", row_group_size=10)
    history = read_long(folder, HOURLY, LongColumns()).history
    np.testing.assert_allclose(history.load_kw.reshape(-1), values, rtol=1e-6)


def test_a_step_may_have_more_readings_than_a_byte_counts() -> None:
    grid = build_time_grid("UTC", DAY, DAY, 60)
    readings = ReadingGrid(grid, 2)
    values = np.arange(1000.0)
    own = np.array([0, 1] * 500, dtype=np.int32)
    readings.add(own, np.full(1000, 5, dtype=np.int64), values)
    readings.add(np.array([1, -1], dtype=np.int32), np.array([6, 6], dtype=np.int64), np.array([2.0, 9.0]))
    means, counts = readings.finish()
    assert means[0, 0, 5] == values[::2].mean()
    assert means[1, 0, 5] == values[1::2].mean()
    assert means[1, 0, 6] == 2.0
    assert np.isnan(means).sum() == 2 * 24 - 3
    assert (counts.accepted, counts.duplicated) == (1001, 998)


def test_a_simulated_load_point_can_be_the_sum_of_several_customers() -> None:
    homes = simulate_load_history(12, n_days=2, step_minutes=60, seed=4, classes=DEMO_CLASSES[:1])
    points = summed(homes, 4)
    np.testing.assert_allclose(points.load_kw[1], homes.load_kw[4:8].sum(axis=0))
    labels, scale_kw = simulated_services(3, seed=4, classes=DEMO_CLASSES[:1], customers=4)
    assert labels == points.class_label
    np.testing.assert_array_equal(scale_kw, points.scale_kw)


def test_threads_keep_the_order_and_pass_errors_on() -> None:
    assert list(in_order(lambda x: x * x, range(50))) == [x * x for x in range(50)]
    assert list(ahead(iter(range(20)))) == list(range(20))
    assert [list(range(10))[part] for part in slices(10, 3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]

    def fails(x: int) -> int:
        if x == 7:
            raise LoadDataError("seven; choose another")
        return x

    with pytest.raises(LoadDataError, match="seven"):
        list(in_order(fails, range(50)))
    with pytest.raises(LoadDataError, match="seven"):
        list(ahead(map(fails, iter(range(50)))))
    assert next(ahead(iter(range(50)))) == 0  # and no thread is left waiting
