"""Odd ids, names, encodings and values: read as meant, counted and cut, or refused in one sentence."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow import cli
from dp_powerflow.errors import UNSEEN, DpPowerflowError, LoadDataError, printable
from dp_powerflow.loads.declared import IngestRules, MeterFormat, one_service_each, read_service_map
from dp_powerflow.loads.ingest import read_long
from dp_powerflow.loads.report import IngestResult, Quantity, RawHistory, check_history
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.units import FloatArray
from support.manifest_releases import make_release
from support.small import repeated

FMT = MeterFormat("kW", "start", "UTC", step_minutes=60)
ODD = json.loads(Path(__file__).with_name("odd_ids.json").read_bytes())


def services(folder: Path, *ids: str) -> Path:
    path = folder / "services.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [(name, f"p{k}") for k, name in enumerate(ids)]
        csv.writer(file).writerows([("customer", "load_point"), *rows])
    return path


@pytest.mark.parametrize("kind", ODD)
def test_odd_ids_are_refused_and_not_repeated(kind: str, tmp_path: Path) -> None:
    odd = repeated(ODD[kind])
    for read in (
        lambda: read_service_map(services(tmp_path, odd, "b")),
        lambda: read_long(parquet(tmp_path / "m.parquet", customer=pa.array([odd] * len(ROWS))), FMT),
    ):
        with pytest.raises(LoadDataError) as refused:
            read()
        said = str(refused.value)
        assert "secret" not in said
        assert said.isprintable()
        assert len(said) < 500


def test_plain_ids_of_any_script_are_read(tmp_path: Path) -> None:
    ids = ("Zähler 7", "счётчик", "電表-1", "x" * 200)
    assert read_service_map(services(tmp_path, *ids)).customers == ids


def test_what_a_terminal_would_obey_is_shown() -> None:
    every = "".join(map(chr, [*range(0x3000), *range(0xD7F0, 0x10000), 0xE0001]))
    shown = printable(every, lines=True)
    assert {sign for sign in shown if unicodedata.category(sign) in UNSEEN} == {"\n", "\t"}
    assert printable("ε = 1, Zürich\n", lines=True) == "ε = 1, Zürich\n"
    assert printable("\x1b[2J\udcff\u202e") == "\\x1b[2J\\udcff\\u202e"


class Screen(io.TextIOWrapper):
    """A terminal of some code page that fails on all that it cannot write."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)

    @property
    def shown(self) -> str:
        return self.buffer.getvalue().decode(self.encoding, "replace")  # type: ignore[attr-defined,no-any-return]


def run(monkeypatch: pytest.MonkeyPatch, encoding: str, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the program on such a terminal."""
    out, err = Screen(encoding), Screen(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "argv", ["dp-powerflow", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    return code if isinstance(code, int) else 0, out.shown, err.shown


COMMANDS = sorted(command.name or command.callback.__name__ for command in cli.app.registered_commands)  # type: ignore[union-attr]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_every_command_writes_to_any_terminal(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = str(make_release(tmp_path).path)
    for command in (*COMMANDS, "export gridfm", "export"):
        code, out, err = run(monkeypatch, encoding, *command.split(), "--help")
        assert (code, err) == (0, "")
        assert command.split()[-1] in out
    for words in (["verify", release], ["quality", release, "--json"], ["inspect", "ieee13"]):
        assert run(monkeypatch, encoding, *words)[0] == 0
    for wrong in (["nonsense-ε"], ["plan"], ["release", "x.toml", "--workers", "σ"], ["inspect", "ε.dss"]):
        code, out, err = run(monkeypatch, encoding, *wrong)
        assert code == 2
        assert "Traceback" not in out + err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_names_of_files_are_shown_and_not_obeyed(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, feeder = "\x1b]0;title\x07\u202e\udcff", tmp_path / "feeder.dss"
    feeder.write_text("New Circuit.c\n\x1b[2J\x1b[31mwipe everything\n")
    named = (["inspect", f"{name}.dss"], ["plan", f"{name}.toml"], ["verify", f"{tmp_path}/{name}"])
    for words in (*named, ["inspect", str(feeder)]):
        code, out, err = run(monkeypatch, encoding, *words)
        assert code == 2
        assert not {"\x1b", "\u202e"} & {*out, *err}
        assert "\\x1b" in err


SERVICES, HOURS = tuple(f"secret{k}" for k in range(7)), 48
BEGIN = dt.datetime(2024, 1, 1)
READING = 1.23456
ROWS = [
    (customer, BEGIN + dt.timedelta(hours=hour), READING + hour % 3)
    for hour in range(HOURS)
    for customer in SERVICES
]


def sentence(error: DpPowerflowError) -> None:
    said = str(error)
    assert "secret" not in said
    assert "1.23" not in said
    assert len(said) < 1_000


def parquet(path: Path, **columns: Any) -> Path:
    customer, time, kwh = zip(*ROWS, strict=True)
    table = {"customer": pa.array(customer), "time": pa.array(time), "kwh": pa.array(kwh)} | columns
    pq.write_table(pa.table(table), path)
    return path


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


CUSTOMERS, DAYS, STEPS = 30, 14, 24
KEEP = IngestRules(on_suspect_unit="keep", on_export="floor")


def readings() -> FloatArray:
    found: FloatArray = np.random.default_rng(4).gamma(2.0, 0.3, (CUSTOMERS, DAYS, STEPS)) + 0.05
    return found


def check(values: FloatArray, rules: IngestRules | None = None) -> IngestResult:
    names = tuple(f"secret{k}" for k in range(CUSTOMERS))
    days = tuple(dt.date(2024, 1, 1) + dt.timedelta(days=k) for k in range(DAYS))
    quantity = Quantity("active", values.copy(), ReadingCounts(accepted=values.size))
    none = np.empty(0, dtype=np.int64)
    raw = RawHistory((quantity,), names, one_service_each(names), days, 60, none)
    return check_history(raw, rules or IngestRules(on_export="floor"))


WILD: dict[str, dict[int, float]] = {
    # As many huge values of either sign on every day: the mean of a day tells nothing.
    **{
        f"cancelling {size:g}": {0: size, 1: size, 4: -size, 5: -size} for size in (1e300, 1.7e308, 1e18, 1e6)
    },
    "int64": {3: 2.0**63 - 1, 4: -(2.0**63)},
    "three customers": {5: 1e300, 6: -1e300},
    "far below": {2: -1e18},
}
"""What stands at some hours of every day."""


@pytest.mark.parametrize("kind", WILD)
def test_many_wild_readings_are_refused(kind: str) -> None:
    values = 1000.0 * readings()  # and all of it in watts, which the unit check must not overlook
    for hour, value in WILD[kind].items():
        values[: 3 if kind == "three customers" else None, :, hour] = value
    with pytest.raises(LoadDataError, match=r"readings are 1000 times or more what") as refused:
        check(values)
    assert "secret" not in str(refused.value)
    assert "e+" not in str(refused.value)


def test_a_wrong_unit_behind_few_wild_readings_is_still_seen() -> None:
    """One huge value on most days, in so few customers that they are not many."""
    values = 1000.0 * readings()
    values[0, :5, 0] = -1e12
    with pytest.raises(LoadDataError, match="as if the unit were off by a factor of"):
        check(values)


def test_few_wild_readings_are_counted_and_change_no_other_figure() -> None:
    values = readings()
    plain = check(values)
    values[2, 3, 4], values[5, 6, 7] = 1e300, -1e18
    found = check(values)
    assert found.report.units.wild == 2
    assert plain.report.units.wild == 0
    assert any("2 readings beyond what any customer draws" in line for line in found.report.summary())
    assert found.report.units.above == plain.report.units.above == 0
    assert found.history.load_kw.max() == 1e300  # the bounds of the model cut it, as for every record


@pytest.mark.filterwarnings("error")
def test_whoever_keeps_them_has_them_counted() -> None:
    values = readings()
    values[:, :, 0:4], values[:, :, 4:8] = 1e18, -1e18
    assert check(values, KEEP).report.units.wild == 8 * CUSTOMERS * DAYS
