"""Whatever is written through a clock change is read back, for every kind of file."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dp_powerflow import MeterFormat
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import IngestRules
from dp_powerflow.loads.ingest import read_long, read_wide
from dp_powerflow.loads.timegrid import build_time_grid
from support.meter_files import expected_days, intervals, stamp, write_long, write_wide
from support.tables import tables_of

CHANGES = tables_of(__file__)["CHANGES"]
"""Zone and a day on which its clock changes: an hour, half an hour, at midnight, never."""


@settings(max_examples=100, deadline=None)
@given(
    change=st.sampled_from(CHANGES),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
    step_minutes=st.sampled_from([15, 30]),
    label=st.sampled_from(["start", "end"]),
    aware=st.booleans(),
    kind=st.sampled_from(["long.csv", "long.parquet", "wide.csv", "wide.parquet"]),
    declare_days=st.booleans(),
)
def test_readings_come_back_on_the_step_of_their_local_day(
    change: tuple[str, dt.date],
    before: int,
    after: int,
    step_minutes: int,
    label: str,
    aware: bool,
    kind: str,
    declare_days: bool,
) -> None:
    zone, day = change
    # the first 00:00 of this day ends the day before and is not in the file: nothing tells which one is there
    assume(not (zone == "America/Havana" and before == 0 and label == "end" and not aware))
    first, last = day - dt.timedelta(days=before), day + dt.timedelta(days=after)
    spans = intervals(zone, first, last, step_minutes)
    values = np.random.default_rng(3).uniform(0.1, 2.0, (2, len(spans)))
    stamps = [stamp(span, label, zone, aware) for span in spans]
    fmt = MeterFormat("kWh per interval", label, zone, step_minutes)
    expected = expected_days(spans, values, zone, first, before + after + 1, step_minutes)
    with tempfile.TemporaryDirectory() as folder:
        write, read = (write_long, read_long) if kind.startswith("long") else (write_wide, read_wide)
        path = write(Path(folder) / kind, stamps, values, ["m1", "m2"])
        result = read(path, fmt, days=(first, last) if declare_days else None)
    assert result.history.days == tuple(first + dt.timedelta(days=i) for i in range(before + after + 1))
    got, known = result.history.load_kw, ~np.isnan(expected)
    np.testing.assert_allclose(got[known], expected[known] * 60 / step_minutes, rtol=1e-12)
    column = result.report.columns[0]
    assert column.readings.accepted == 2 * len(spans)
    assert column.readings.duplicated == 0
    assert column.missing == 0
    assert column.filled.clock_change == np.count_nonzero(~known)
    assert column.readings.doubled_hour == 2 * (len(spans) - np.count_nonzero(known[0]))


def test_a_clock_change_that_is_no_multiple_of_the_step_is_refused() -> None:
    with pytest.raises(LoadDataError, match="not a multiple of 60 min"):
        build_time_grid("Australia/Lord_Howe", dt.date(2024, 4, 1), dt.date(2024, 4, 10), 60)


@pytest.mark.parametrize("label", ["start", "end"])
def test_padding_in_a_skipped_hour_is_counted_and_left_out(tmp_path: Path, label: str) -> None:
    """Some exports write 24 hours on every day and put zeros in the hour that did not exist."""
    begin = dt.datetime(2024, 3, 30)
    shift = dt.timedelta(minutes=15 if label == "end" else 0)
    stamps = [(begin + shift + i * dt.timedelta(minutes=15)).isoformat() for i in range(3 * 96)]
    values = np.ones((1, 3 * 96))
    values[0, 96 + 8 : 96 + 12] = 50.0
    path = write_long(tmp_path / "padded.csv", stamps, values, ["m1"])
    result = read_long(path, MeterFormat("kW", label, "Europe/Berlin"))
    readings = result.report.columns[0].readings
    # with labels at the end, 02:00 is the end of a real interval and 03:00 that of a padded one
    assert readings.skipped_hour == (4 if label == "start" else 3)
    assert readings.duplicated == (0 if label == "start" else 1)
    if label == "start":
        np.testing.assert_array_equal(result.history.load_kw, 1.0)


def test_the_end_of_the_interval_before_a_jump_may_be_written_as_the_clock_never_shows_it(
    tmp_path: Path,
) -> None:
    spans = intervals("Europe/Berlin", dt.date(2024, 3, 31), dt.date(2024, 3, 31), 15)
    stamps = [stamp(span, "end", "Europe/Berlin", aware=False) for span in spans]
    stamps[7] = "2024-03-31 02:00:00"
    values = np.random.default_rng(0).uniform(1, 2, (1, len(spans)))
    path = write_long(tmp_path / "m.csv", stamps, values, ["m1"])
    result = read_long(path, MeterFormat("kW", "end", "Europe/Berlin"), rules=IngestRules())
    assert result.history.load_kw[0, 0, 7] == values[0, 7]
    assert result.report.columns[0].readings.skipped_hour == 0
