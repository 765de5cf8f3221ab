"""Text in other encodings, of other systems, or no text at all: read as it was meant, or one sentence."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.almanac.calendar import WeatherFormat, read_holidays, read_readings
from dp_powerflow.config import read_toml
from dp_powerflow.errors import DpPowerflowError, LoadDataError
from dp_powerflow.fleet.customers import read_feeder_map
from dp_powerflow.grid.sources import read_loads, read_taps
from dp_powerflow.loads.declared import MeterFormat, read_service_map
from dp_powerflow.loads.ingest import read_load_classes, read_long
from dp_powerflow.powerflow.sun import read_irradiance

FMT = MeterFormat("kW", "start", "UTC", step_minutes=60)
CUSTOMERS, HOURS = tuple(f"secret{k}" for k in range(7)), 48
BEGIN = dt.datetime(2024, 1, 1)
READING = 1.23456
ROWS = [
    (customer, BEGIN + dt.timedelta(hours=hour), READING + hour % 3)
    for hour in range(HOURS)
    for customer in CUSTOMERS
]
METERS = "customer,time,kwh\n" + "".join(f"{who},{when.isoformat()},{kw}\n" for who, when, kw in ROWS)


def toml(path: Path) -> Any:
    return read_toml(path, "config file", "write one")


TEXTS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "meters": (".csv", METERS, lambda path: read_long(path, FMT).history.load_kw.tobytes()),
    "services": (".csv", "customer,load_point\nsecret0,t1\n", lambda path: read_service_map(path).customers),
    "fleet": (".csv", "customer,load_point,feeder\nsecret0,t1,a\n", read_feeder_map),
    "taps": (".csv", "transformer,winding,tap\nt1,2,1.0\n", read_taps),
    "loads": (".csv", "name,kw,kvar\nmill,2,1.0\n", read_loads),
    "classes": (".csv", "load,class\nmill,home\n", read_load_classes),
    "holidays": (".txt", "2024-12-25\n2024-12-26 # second\n", read_holidays),
    "irradiance": (".csv", "0.1\n" * 24, lambda path: read_irradiance(path, 24, ["t1"]).tobytes()),
    "config": (".toml", '[release]\nid = "mill"\n', toml),
}


def zipped() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("xl/workbook.xml", "<workbook/>")
    return content.getvalue()


READ: dict[str, Callable[[str], bytes]] = {
    "old line ends": lambda text: text.replace("\n", "\r").encode(),
    "line ends of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "a mark": lambda text: text.encode("utf-8-sig"),
}
REFUSED: dict[str, Callable[[str], bytes | None]] = {
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16 without a mark": lambda text: text.encode("utf-16-le"),
    "code page": lambda text: f"{text}ü,ß\n".encode("cp1252"),
    "nul": lambda text: text[:12].encode() + b"\0" + text[12:].encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "spreadsheet": lambda text: zipped(),
    "folder": lambda text: None,
    "one long word": lambda text: text.encode() + b'"' + b"x" * 200_000 + b'"\n',
}


def sentence(error: DpPowerflowError) -> None:
    said = str(error)
    assert "secret" not in said
    assert "1.23" not in said
    assert len(said) < 1_000


@pytest.mark.parametrize("what", TEXTS)
def test_other_line_ends_and_a_mark_are_read(what: str, tmp_path: Path) -> None:
    suffix, text, read = TEXTS[what]
    (tmp_path / f"plain{suffix}").write_bytes(text.encode())
    plain = read(tmp_path / f"plain{suffix}")
    for name, change in READ.items():
        if (what, name) == ("config", "old line ends"):  # which TOML does not know as line ends
            continue
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(change(text))
        assert read(path) == plain


@pytest.mark.parametrize("what", TEXTS)
def test_what_is_no_such_text_is_one_sentence(what: str, tmp_path: Path) -> None:
    suffix, text, read = TEXTS[what]
    for name, change in REFUSED.items():
        path, content = tmp_path / f"{name}{suffix}", change(text)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        with pytest.raises(DpPowerflowError) as refused:
            read(path)
        sentence(refused.value)


def test_weather_that_is_no_table_is_one_sentence(tmp_path: Path) -> None:
    for name, change in REFUSED.items():
        path, content = tmp_path / f"{name}.csv", change("time,temperature\n2024-01-01T00:00,1.0\n")
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        with pytest.raises(DpPowerflowError) as refused:
            read_readings(path, "UTC", WeatherFormat())
        sentence(refused.value)


# ------------------------------------------------------------------------------------------ Parquet


def parquet(path: Path, **columns: Any) -> Path:
    customer, time, kwh = zip(*ROWS, strict=True)
    table = {"customer": pa.array(customer), "time": pa.array(time), "kwh": pa.array(kwh)} | columns
    pq.write_table(pa.table(table), path)
    return path


def test_no_damage_to_a_parquet_file_is_a_traceback(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "whole.parquet").read_bytes()
    damaged = [b"", whole[:-30], whole[: len(whole) // 2], bytes(len(whole)), METERS.encode()]
    damaged += [whole[:at] + b"\xff" * 20 + whole[at + 20 :] for at in range(4, len(whole), 97)]
    refused = 0
    for content in damaged:
        path = tmp_path / "meters.parquet"
        path.write_bytes(content)
        try:
            read_long(path, FMT)
        except DpPowerflowError as error:
            sentence(error)
            refused += 1
    assert refused >= 10  # some bytes are of statistics that nobody reads, or of values


def test_columns_of_strange_types_are_one_sentence(tmp_path: Path) -> None:
    n = len(ROWS)
    strange = {
        "binary ids": {"customer": pa.array([b"secret\xff"] * n)},
        "lists of ids": {"customer": pa.array([["secret"]] * n)},
        "binary stamps": {"time": pa.array([b"\xff"] * n)},
        "end of time": {"time": pa.array([2**63 - 1 - k for k in range(n)], pa.timestamp("us"))},
        "year 9999": {"time": pa.array([dt.datetime(9999, 12, 31)] * n)},
        "text": {"kwh": pa.array([str(READING)] * n)},
        "nothing": {"kwh": pa.nulls(n)},
    }
    for columns in strange.values():
        with pytest.raises(LoadDataError) as refused:
            read_long(parquet(tmp_path / "meters.parquet", **columns), FMT)
        sentence(refused.value)


def test_numbers_of_other_types_are_read(tmp_path: Path) -> None:
    whole = np.array([2.0 + k % 3 for k in range(len(ROWS))])
    plain = read_long(parquet(tmp_path / "a.parquet", kwh=pa.array(whole)), FMT).history.load_kw
    for kind in (pa.float16(), pa.float32(), pa.int8(), pa.uint64(), pa.decimal128(9, 2)):
        values = pa.array(whole.astype(np.float16)) if kind == pa.float16() else pa.array(whole).cast(kind)
        found = read_long(parquet(tmp_path / "b.parquet", kwh=values), FMT).history.load_kw
        assert np.array_equal(found, plain)
