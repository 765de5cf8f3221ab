"""Files that try to be more than data: each of these once loaded a program, or wrote a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import build_circuit, file_origin
from dp_powerflow.grid.opendss.script import read_script
from dp_powerflow.grid.sources import open_feeder
from support.fleet_small import circuit

PV = "New PVSystem.g bus1=b kv=12.47\n"
LOADING = {
    "one letter": "New PVSystem.g bus1=b kv=12.47 u=PROGRAM",
    "one letter of a control": "New CapControl.x element=Line.first u=PROGRAM",
    "one letter of many": f"{PV}BatchEdit PVSystem.g u=PROGRAM",
    "goes on after a class": f"{PV}Enable Line.*\nmore usermodel=PROGRAM",
    "goes on after the circuit": f"{PV}Edit Circuit.tiny\n~ usermodel=PROGRAM",
    "of the circuit": f"{PV}Edit Circuit.tiny usermodel=PROGRAM",
}
LEFT_OUT = {
    "one letter": "New Generator.g bus1=b kv=12.47 kw=1 u=PROGRAM",
    "two letters": "New Storage.g bus1=b kv=12.47 dy=PROGRAM",
    "three letters": "New Storage.g bus1=b kv=12.47 dyn=PROGRAM",
}
TRACING = {
    "PV": "New PVSystem.g bus1=b kv=12.47 de=yes",
    "in brackets": "New Generator.g bus1=b kv=12.47 kw=1 de=(true)",
    "variable": "var @x=yes\nNew IndMach012.g bus1=b kv=12.47 de=@x",
}


def script(folder: Path, more: str) -> Path:
    path = folder / "feeder.dss"
    path.write_text(circuit(1.0) + more.replace("PROGRAM", str(folder / "program.so")) + "\n")
    return path


@pytest.mark.parametrize("case", LOADING)
def test_no_abbreviation_loads_a_program(case: str, tmp_path: Path) -> None:
    with pytest.raises(FeederError, match="loads a program; remove it"):
        open_feeder(script(tmp_path, LOADING[case]))


@pytest.mark.parametrize("case", LEFT_OUT)
def test_abbreviated_programs_of_what_is_left_out_are_left_out(case: str, tmp_path: Path) -> None:
    read = read_script(script(tmp_path, LEFT_OUT[case]))
    assert "program.so" not in "".join(read.commands)
    assert read.notes


def test_what_goes_on_with_a_rejected_line_is_about_nothing(tmp_path: Path) -> None:
    """The engine would take it for the element before."""
    origin = file_origin(script(tmp_path, f"{PV}New Line\nmore usermodel=PROGRAM\n~ r1=2"))
    with pytest.raises(FeederError) as refused:
        build_circuit(origin)
    assert "program.so" not in str(refused.value)


@pytest.mark.parametrize("case", TRACING)
def test_no_abbreviation_writes_a_trace(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    build_circuit(file_origin(script(tmp_path, TRACING[case])))
    assert not list((tmp_path / "temporary").iterdir())


def test_the_delay_of_a_control_is_kept(tmp_path: Path) -> None:
    step = "New Transformer.t windings=2 buses=(b c) kvs=(12.47 4.16)\n"
    read = read_script(script(tmp_path, f"{step}New RegControl.r transformer=t winding=2 de=45"))
    assert "de=45" in read.commands[-1]
