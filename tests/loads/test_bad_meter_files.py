"""Bad input: one sentence that says what to do, and no reading and no customer in it or behind it."""

from __future__ import annotations

import datetime as dt
import re
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow import LongColumns, MeterFormat, WideColumns
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import ServiceMap
from dp_powerflow.loads.ingest import read_long, read_wide
from dp_powerflow.loads.report import IngestResult
from support.tables import tables_of

TABLES = tables_of(__file__)

READING = "7.654321"
CUSTOMER = "secretmeter"
FMT = MeterFormat("kW", "start", "UTC", step_minutes=60)


def rows(n: int = 48, customer: str = CUSTOMER, reading: str = READING) -> list[str]:
    begin = dt.datetime(2024, 1, 1)
    return [f"{customer},{(begin + dt.timedelta(hours=i)).isoformat()},{reading}" for i in range(n)]


def long_text() -> str:
    return "\n".join(["customer,time,kwh", *rows()]) + "\n"


def refusal(read: Callable[[], IngestResult]) -> str:
    """The message of the error, after checking that nothing private is in it or in its traceback."""
    with pytest.raises(LoadDataError) as caught:
        read()
    shown = "".join(traceback.format_exception_only(caught.value))
    chained = caught.value.__cause__ or (
        None if caught.value.__suppress_context__ else caught.value.__context__
    )
    assert chained is None
    for secret in (READING, CUSTOMER, "12,5x", "0x1F"):
        assert secret not in shown
    message = str(caught.value)
    assert "\n" not in message
    assert not message.endswith(".")
    return message


def long_case(tmp_path: Path, text: str, fmt: MeterFormat = FMT, columns: LongColumns | None = None) -> str:
    path = tmp_path / "meters.csv"
    path.write_text(text)
    return refusal(lambda: read_long(path, fmt, columns))


@pytest.mark.parametrize(("text", "says"), TABLES["a_long_file_that_cannot_be_read_is_refused"])
def test_a_long_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert re.search(says, long_case(tmp_path, text.format(rows="\n".join(rows()))))


@pytest.mark.parametrize(("text", "says"), TABLES["a_wide_file_that_cannot_be_read_is_refused"])
def test_a_wide_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "meters.csv"
    cells = [row.removeprefix(f"{CUSTOMER},") for row in rows()]
    path.write_text(text.format(rows="\n".join(cells)))
    assert re.search(says, refusal(lambda: read_wide(path, FMT)))


def test_columns_of_a_wide_file_must_pair_up_and_be_known(tmp_path: Path) -> None:
    path = tmp_path / "meters.csv"
    path.write_text(f"time,{CUSTOMER}_p,other_q,note\n2024-01-01,{READING},{READING},x\n")
    pairs = WideColumns(active_suffix="_p", reactive_suffix="_q", ignore=("note",))
    assert "not in pairs" in refusal(lambda: read_wide(path, FMT, pairs))
    strange = WideColumns(active_suffix="_p", reactive_suffix="_q")
    assert "1 columns" in refusal(lambda: read_wide(path, FMT, strange))
    nobody = ServiceMap({"somebody": "else"})
    assert "no column" in refusal(lambda: read_wide(path, FMT, services=nobody))


@pytest.mark.parametrize("name", ["absent.csv", "absent.parquet", "folder"])
def test_a_path_that_does_not_exist_is_named(tmp_path: Path, name: str) -> None:
    assert f"{tmp_path / name} does not exist" in refusal(lambda: read_long(tmp_path / name, FMT))


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    for name, says in [("m.xlsx", "neither .csv nor .parquet"), ("m.parquet", "is not a Parquet file")]:
        path = tmp_path / name
        path.write_text(long_text())
        assert says in refusal(lambda path=path: read_long(path, FMT))  # type: ignore[misc]


@pytest.mark.parametrize("where", ["customer,", CUSTOMER, READING])
def test_text_in_another_encoding_is_refused(tmp_path: Path, where: str) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(long_text().encode().replace(where.encode(), b"\xff" + where.encode(), 1))
    assert "UTF-8" in refusal(lambda: read_long(path, FMT))


def test_parquet_columns_of_the_wrong_type_are_refused(tmp_path: Path) -> None:
    time = pa.array([dt.datetime(2024, 1, 1, hour) for hour in range(24)])
    good = {"customer": pa.array([CUSTOMER] * 24), "time": time, "kwh": pa.array([float(READING)] * 24)}
    for column, cells, says in [
        ("kwh", pa.array([READING] * 24), "column 'kwh' .* string, not numbers"),
        ("time", pa.array(range(24)), "column 'time' .* int64, not stamps"),
        ("time", time.cast(pa.date32()), "column 'time' .* not stamps"),
    ]:
        path = tmp_path / "m.parquet"
        pq.write_table(pa.table(good | {column: cells}), path)
        assert re.search(says, refusal(lambda path=path: read_long(path, FMT)))  # type: ignore[misc]


@pytest.mark.parametrize(("changes", "says"), TABLES["a_declaration_that_makes_no_sense_is_refused"])
def test_a_declaration_that_makes_no_sense_is_refused(changes: dict[str, object], says: str) -> None:
    declared = {"unit": "kW", "interval_label": "start", "time_zone": "UTC"} | changes
    with pytest.raises(LoadDataError, match=says):
        MeterFormat(**declared)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([1.0] * 48 + [np.nan] * 48),
        pa.array(["one"] * 48 + ["nan"] * 48),
        pa.array(["one"] * 48 + ["None"] * 48).dictionary_encode(),
        pa.array(["one"] * 48 + [""] * 48),
        pa.array(["one"] * 48 + [None] * 48),
    ],
    ids=["a number that is none", "nan", "None", "empty", "null"],
)
def test_a_missing_id_of_a_parquet_file_is_no_customer(tmp_path: Path, ids: pa.Array) -> None:
    time = [dt.datetime(2024, 1, 1) + dt.timedelta(hours=i % 48) for i in range(96)]
    pq.write_table(pa.table({"customer": ids, "time": time, "kwh": np.ones(96)}), tmp_path / "m.parquet")
    says = refusal(lambda: read_long(tmp_path / "m.parquet", FMT))
    assert re.search("have no id|have no 'customer'", says)


@pytest.mark.parametrize("name", ["nan", "None", "NaT", "NULL", "NA", "<NA>", ""])
def test_a_service_map_has_no_customer_without_an_id(name: str) -> None:
    with pytest.raises(LoadDataError, match="no id"):
        ServiceMap({"a": "a", name: "b"})
    with pytest.raises(LoadDataError, match="no id"):
        ServiceMap({"a": "a", "b": name})


@pytest.mark.parametrize(
    "days",
    [(dt.date.min, dt.date.min), (dt.date.max, dt.date.max), (dt.date(2024, 1, 1), dt.date(2200, 1, 1))],
)
def test_days_at_the_ends_of_the_calendar_are_refused(tmp_path: Path, days: tuple[dt.date, dt.date]) -> None:
    (tmp_path / "m.csv").write_text(long_text())
    says = refusal(lambda: read_long(tmp_path / "m.csv", FMT, days=days))
    assert "before 1900 or after 2199" in says


def test_a_step_that_is_not_that_of_the_file_is_caught(tmp_path: Path) -> None:
    finer = MeterFormat("kW", "start", "UTC", step_minutes=180)
    assert "not on a grid of 180 min" in long_case(tmp_path, long_text(), finer)
    coarser = MeterFormat("kW", "start", "UTC", step_minutes=15)
    days = (dt.date(2024, 1, 1), dt.date(2024, 1, 2))
    path = tmp_path / "meters.csv"
    assert "check the declared step" in refusal(lambda: read_long(path, coarser, days=days))


def test_stamps_in_another_format_than_declared_are_counted(tmp_path: Path) -> None:
    fmt = MeterFormat("kW", "start", "UTC", 60, stamp_format="%d.%m.%Y %H:%M")
    assert "48 stamps in column 'time'" in long_case(tmp_path, long_text(), fmt)


def test_less_than_a_day_or_days_elsewhere_are_refused(tmp_path: Path) -> None:
    short = "\n".join(["customer,time,kwh", *rows(20)])
    assert "one whole local day" in long_case(tmp_path, short)
    elsewhere = (dt.date(2030, 1, 1), dt.date(2030, 1, 2))
    assert "no reading" in refusal(lambda: read_long(tmp_path / "meters.csv", FMT, days=elsewhere))


def test_readings_that_are_mostly_negative_point_to_the_sign_convention(tmp_path: Path) -> None:
    text = "\n".join(["customer,time,kwh", *rows(reading=f"-{READING}")])
    assert "positive='generation'" in long_case(tmp_path, text)
