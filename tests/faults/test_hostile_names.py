"""Ids, bus names and file names of others: refused in a sentence without them, never obeyed by a terminal."""

from __future__ import annotations

import csv
import datetime as dt
import io
import sys
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow import cli
from dp_powerflow.errors import UNSEEN, LoadDataError, printable
from dp_powerflow.loads.declared import MeterFormat, read_service_map
from dp_powerflow.loads.ingest import read_long
from support.manifest_releases import make_release

FMT = MeterFormat("kW", "start", "UTC", step_minutes=60)
ODD = {
    "escape": "secret\x1b[31m",
    "line end": "secret\nhouse",
    "carriage return": "secret\rhouse",
    "tab": "secret\thouse",
    "bidi": "secret\u202ehouse",
    "zero width": "secret\u200bhouse",
    "nul": "secret\0house",
    "c1": "secret\x9bhouse",
    "line separator": "secret\u2028house",
    "long": "secret" * 2_000,
    "blank": "   ",
}


def services(folder: Path, *ids: str) -> Path:
    path = folder / "services.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [(name, f"p{k}") for k, name in enumerate(ids)]
        csv.writer(file).writerows([("customer", "load_point"), *rows])
    return path


def meters(folder: Path, *ids: str) -> Path:
    path, begin = folder / "meters.parquet", dt.datetime(2024, 1, 1)
    rows = [(name, begin + dt.timedelta(hours=hour), 1.0 + hour % 3) for hour in range(24) for name in ids]
    customer, time, kwh = zip(*rows, strict=True)
    pq.write_table(pa.table({"customer": customer, "time": pa.array(time), "kwh": kwh}), path)
    return path


@pytest.mark.parametrize("kind", ODD)
def test_odd_ids_are_refused_and_not_repeated(kind: str, tmp_path: Path) -> None:
    for read in (
        lambda: read_service_map(services(tmp_path, ODD[kind], "b")),
        lambda: read_long(meters(tmp_path, ODD[kind], "b"), FMT),
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
    code, out, _ = run(monkeypatch, encoding, "verify", release)
    assert code == 0
    assert "release" in out
    assert run(monkeypatch, encoding, "verify", release, "--json")[0] == 0
    assert run(monkeypatch, encoding, "quality", release, "--json")[0] == 0
    assert run(monkeypatch, encoding, "inspect", "ieee13")[0] == 0
    for wrong in (["nonsense-ε"], ["plan"], ["release", "x.toml", "--workers", "σ"], ["inspect", "ε.dss"]):
        code, out, err = run(monkeypatch, encoding, *wrong)
        assert code == 2
        assert "Traceback" not in out + err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_names_of_files_are_shown_and_not_obeyed(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "\x1b]0;title\x07\u202e\udcff"
    for words in (["inspect", f"{name}.dss"], ["plan", f"{name}.toml"], ["verify", f"{tmp_path}/{name}"]):
        code, out, err = run(monkeypatch, encoding, *words)
        assert code == 2
        assert "\x1b" not in out + err
        assert "\u202e" not in out + err
        assert "\\x1b" in err


def test_names_in_a_feeder_are_shown_and_not_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feeder = tmp_path / "feeder.dss"
    feeder.write_text("New Circuit.c\n\x1b[2J\x1b[31mwipe everything\n")
    code, out, err = run(monkeypatch, "utf-8", "inspect", str(feeder))
    assert code == 2
    assert "\x1b" not in out + err
