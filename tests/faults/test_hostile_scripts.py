"""An OpenDSS script describes a circuit: it loads no program, writes no file and starts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import build_circuit
from dp_powerflow.grid.opendss.script import read_script
from dp_powerflow.grid.sources import open_feeder

CIRCUIT = """Clear
New Circuit.c bus1=a basekv=12.47
New Line.l bus1=a bus2=b length=1 r1=.1 x1=.1
New Load.d bus1=b kw=10 kvar=1 kv=12.47
Set voltagebases=[12.47]
CalcVoltageBases
"""
PV = "New PVSystem.g bus1=b kv=12.47\n"
CASES = json.loads(Path(__file__).with_name("hostile_scripts.json").read_bytes())
"""Lines that load a program, are left out, or write; PROGRAM and FOLDER are replaced."""


def script(folder: Path, more: str) -> Path:
    path = folder / "feeder.dss"
    more = more.replace("PROGRAM", str(folder / "program.so")).replace("FOLDER", str(folder))
    path.write_text(f"{CIRCUIT}{more}\nSolve\n")
    return path


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that the engine could write to: the working folder, that of the script, and that of `engine`."""
    for name in ("work", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("case", CASES["loading"])
def test_no_program_is_loaded(case: str, watched: Path) -> None:
    with pytest.raises(FeederError, match=r"loads a program|write it out|write name=value") as refused:
        open_feeder(script(watched, CASES["loading"][case]))
    assert "Not Loaded" not in str(refused.value)  # what the engine says once it has tried


def test_what_goes_on_with_a_rejected_line_is_about_nothing(watched: Path) -> None:
    """The engine would take it for the element before."""
    with pytest.raises(FeederError) as refused:
        build_circuit(read_script(script(watched, f"{PV}New Line\nmore usermodel=PROGRAM\n~ r1=2")))
    assert "program.so" not in str(refused.value)


@pytest.mark.parametrize("case", CASES["tracing"])
def test_no_abbreviation_writes_a_trace(case: str, watched: Path) -> None:
    build_circuit(read_script(script(watched, CASES["tracing"][case])))
    assert files(watched) == ["feeder.dss"]


def test_the_delay_of_a_control_is_kept(watched: Path) -> None:
    step = "New Transformer.t windings=2 buses=(b c) kvs=(12.47 4.16)\n"
    read = read_script(script(watched, f"{step}New RegControl.r transformer=t winding=2 de=45"))
    assert "de=45" in read.commands[-2]


@pytest.mark.parametrize("case", CASES["left out"])
def test_programs_of_what_is_left_out_are_left_out(case: str, watched: Path) -> None:
    feeder = open_feeder(script(watched, CASES["left out"][case]))
    assert any("programs (user-written models) are left out" in note for note in feeder.notes)


@pytest.mark.parametrize("case", CASES["writing"])
def test_no_shape_is_saved(case: str, watched: Path) -> None:
    with pytest.raises(FeederError, match=r"writes a file; remove it|write name=value"):
        open_feeder(script(watched, CASES["writing"][case]))
    assert files(watched) == ["feeder.dss"]


def test_no_command_runs_or_writes(watched: Path) -> None:
    open_feeder(script(watched, "\n".join(CASES["running"])))
    assert files(watched) == ["feeder.dss"]


def test_shapes_may_still_begin_without_names(watched: Path) -> None:
    assert open_feeder(script(watched, "New Loadshape.s 2 1.0 mult=(1 2) action=normalize")).nodes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_scripts_in_other_encodings_are_read(encoding: str, tmp_path: Path) -> None:
    lines = CIRCUIT.replace("bus2=b", "bus2=süd").replace("bus1=b", "bus1=süd")
    head, mark, tail = lines.partition("New Line")
    (tmp_path / "whole.dss").write_bytes(lines.encode(encoding))
    (tmp_path / "parts.dss").write_text(f"{head}Redirect more.dss\n")
    (tmp_path / "more.dss").write_bytes(f"{mark}{tail}".encode(encoding))
    for name in ("whole", "parts"):
        assert "süd.1" in open_feeder(tmp_path / f"{name}.dss").nodes


def test_scripts_with_the_line_ends_of_old_are_read(tmp_path: Path) -> None:
    (tmp_path / "feeder.dss").write_text(CIRCUIT.replace("\n", "\r"), newline="")
    assert "b.1" in open_feeder(tmp_path / "feeder.dss").nodes
