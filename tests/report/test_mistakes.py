"""Mistakes of people at the command line: one sentence, exit code 2, no traceback, nothing spent."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.cli import main
from dp_powerflow.corpus import storage
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.small import other_section, raw_config, toml_text

HEAD = """Clear
New Circuit.c basekv=4.16 bus1=s
New Line.a bus1=s bus2=x r1=0.1 x1=0.2 r0=0.2 x0=0.4 c1=0 c0=0 length=0.5 units=km
"""
LOAD = "New Load.one bus1=x.1 phases=1 kv=2.4 kW=100 kvar=30\n"
LOOP = "".join(f"New Line.z{k} bus1=x bus2=y r1=0 x1=0 r0=0 x0=0 c1=0 c0=0 length=1\n" for k in range(2))
TAIL = "Set VoltageBases=[4.16]\nCalcVoltageBases\n"
CUSTOMERS = ("a", "b", "c")
DAYS = (dt.date(2024, 5, 1), dt.date(2024, 5, 2))


def readings(header: str = "customer,time,active", factor: float = 1.0) -> str:
    """Two days of three customers, an hour each, about 1 kW."""
    rows = [
        f"{customer},{day} {hour:02d}:00,{factor * (1 + k + hour / 24):.3f}"
        for k, customer in enumerate(CUSTOMERS)
        for day in DAYS
        for hour in range(24)
    ]
    return "\n".join([header, *rows]) + "\n"


SERVICES = "customer,load_point\n" + "".join(f"{name},{name}\n" for name in CUSTOMERS)
FILES = {
    "net.dss": HEAD + LOAD + TAIL,
    "meters.csv": readings(),
    "services.csv": SERVICES,
    "release.toml": "",
}
RAW = raw_config("mistakes")


@dataclass(frozen=True)
class Mistake:
    """What somebody types, in a folder with which files, and what the answer must say.

    Attributes
    ----------
    sections : keys of the config that differ; a section that is None is left out, a key that is None too.
    files : contents that differ; None for a file that is not there.
    """

    what: str
    says: str
    sections: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)
    command: str = "release release.toml"


def files(what: str, says: str, **contents: str | None) -> Mistake:
    names = {"net": "net.dss", "meters": "meters.csv", "services": "services.csv", "toml": "release.toml"}
    return Mistake(what, says, files={names[name]: text for name, text in contents.items()})


MISTAKES = [
    *(Mistake(**each) for each in json.loads(Path(__file__).with_name("mistakes.json").read_text())),
    files("a config that is not TOML", "is not valid TOML", toml="feeder = [\n"),
    files("a feeder that OpenDSS rejects", "OpenDSS rejects", net=HEAD + LOAD + "New Lnie.b bus1=x\n" + TAIL),
    files("a feeder without loads", "has no load and no generation", net=HEAD + TAIL),
    files(
        "a feeder with an island", "--drop-islanded", net=HEAD + LOAD + "New Line.i bus1=p bus2=q\n" + TAIL
    ),
    files("a feeder without a source", "no voltage source", net=HEAD + LOAD + "Disable Vsource.source\n"),
    files(
        "a load at no node",
        "which no line or transformer reaches",
        net=HEAD + LOAD + "New Load.m bus1=gone.1 phases=1 kv=2.4 kW=10\n" + TAIL,
    ),
    files("a loop without impedance", "impedance", net=HEAD + LOAD + LOOP + TAIL),
    files("another column name", "has no column 'active'", meters=readings("customer,time,kwh")),
    files("a word among the readings", "are not numbers", meters=readings() + "a,2024-05-01 07:00,many\n"),
    files(
        "stamps that are not ISO 8601", "do not follow ISO 8601", meters=readings().replace("2024-", "24/")
    ),
    files("watts called kilowatts", "correct the declared unit", meters=readings(factor=1000.0)),
    files("a service map of other customers", "customer", services="customer,load_point\nx,x\ny,y\n"),
    files("a service map without load points", "no column 'load_point'", services="customer\na\nb\nc\n"),
    files("a customer twice", "repeats a customer", services=SERVICES + "a,a\n"),
    *(
        files(f"the id {name!r} of a reading", "no id", meters=readings() + f"{name},2024-05-01 07:00,1\n")
        for name in ("None", "NaT", "<NA>", "#N/A")
    ),
    *(
        files(f"{row} in the service map", "lacks a customer or a load point", services=SERVICES + row + "\n")
        for row in ("NaN,d", "d,nan", "None,d", "d,NULL")
    ),
    files("two ids that look alike", "blanks, case or invisible characters", services=SERVICES + "A,d\n"),
]
WRONG_CALLS = (
    "inspekt",
    "plan",
    "inspect ieee13 --jsno",
    "release release.toml --workers none",
    "init --days 0",
)


def write(folder: Path, mistake: Mistake) -> None:
    raw: dict[str, Any] = {name: dict(values) for name, values in RAW.items()}
    for name, change in mistake.sections.items():
        raw[name] = other_section(raw.get(name, {}), change) if isinstance(change, dict) else change
    config = {name: {k: v for k, v in of.items() if v is not None} for name, of in raw.items()}
    for name, text in {**FILES, "release.toml": toml_text(config), **mistake.files}.items():
        if text is not None:
            (folder / name).write_text(text)


def spends(state: Path) -> int:
    """How often somebody was charged."""
    return len(Ledger.inspect(state).spends()) if (state / "ledger.sqlite").exists() else 0


def exit_code_of(command: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["dp-powerflow", *command.split()])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_mistake_is_one_sentence_and_spends_nothing(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, mistake)
    monkeypatch.chdir(tmp_path)
    assert exit_code_of(mistake.command, monkeypatch) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    said = [line for line in shown.err.splitlines() if line.strip()]  # the stages come first
    assert sum(line.startswith("error: ") for line in said) == 1, shown.err
    listed = said[-1].startswith("  ")  # several mistakes of a config are a list
    assert mistake.says in (shown.err if listed else said[-1])
    assert "Traceback" not in shown.err
    assert spends(tmp_path / "state") == 0
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "new.toml").exists()


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_a_wrong_call_ends_with_exit_code_2(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code_of(call, monkeypatch) == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_config_may_have_any_name_and_what_the_locale_lacks_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "grün"
    folder.mkdir()
    write(folder, Mistake("none", ""))
    for utf8, code, says in (("1", 0, ""), ("0", 2, "set LC_ALL=C.UTF-8")):
        done = subprocess.run(
            [sys.executable, "-m", "dp_powerflow", "plan", "release.toml"],
            cwd=folder,
            capture_output=True,
            check=False,
            env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": utf8, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        said = done.stderr.decode(errors="replace")
        assert done.returncode == code, said
        assert says in said
        assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["grün"]


def test_a_store_that_does_not_answer_is_found_out_by_plan_and_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("s3fs")
    write(tmp_path, Mistake("", "", {"release": {"output": "s3://bucket/release"}}))
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        monkeypatch.setattr(storage, "PATIENCE_S", 0.5)
        for command in ("plan", "release"):
            assert exit_code_of(f"{command} release.toml", monkeypatch) == 2
            assert "s3://bucket/release does not answer" in capsys.readouterr().err
    assert spends(tmp_path / "state") == 0


def test_a_state_from_before_the_first_charge_says_that_nothing_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = PrivateState.open(tmp_path / "state")
    state.write_internal("first", "ingest.json", b"{}")
    assert exit_code_of(f"ledger {state.root}", monkeypatch) == 2
    assert "has no ledger yet: nothing was spent" in capsys.readouterr().err
    state.write_internal("first", "paid-2.json", b"{}")
    assert exit_code_of(f"ledger {state.root}", monkeypatch) == 2
    assert "restore it from a backup" in capsys.readouterr().err
