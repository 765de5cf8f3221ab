"""Scripts of OpenDSS: what of them reaches the engine, and what cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dss import DSS

from dp_powerflow import open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss import script
from dp_powerflow.grid.opendss.script import read_script

MASTER = """
Clear
New Circuit.small basekv=4.16 bus1=source pu=1.02  ! the source
/* New Line.never bus1=x bus2=y
Solve */
Redirect parts/lines.dss
reDir "parts\\LOADS.dss"
New EnergyMeter.m element=line.a
~ option=R
New "Monitor.watch" element=Line.a mode=1
Monitor.watch.mode=0
New RegControl.r transformer=reg winding=2 vreg=122 band=2 ptratio=20 debugtrace=yes delay=15
RegControl.r.vreg=121
Set voltageb=[4.16] mode=daily number=24 datapath=/nowhere
calcv
Solve mode=snap loadmult=0.5
Show Voltages LN Nodes
Export powers
Plot circuit
Buscoords parts/xy.csv
open Line.tie 1
? line.a.r1
Dump
sa circuit dir=out
Fileedit x.txt
"""
LINES = """
// lines of the feeder
New Line.a bus1=source bus2=x r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=0 c0=0 length=1 units=km // the first
more units=km
New Line.tie bus1=x bus2=y switch=y
New Line.b bus1=x bus2=y r1=0.3 x1=0.6 length=0.5 units=km
New transformer.reg phases=1 windings=2 buses=[x.1 z.1] kvs=[2.4 2.4] kvas=[500 500] xhl=1
Redirect deeper/shapes.dss
"""
SHAPES = "New Loadshape.day npts=3 interval=8 mult=(file=day.csv)\nNew Loadshape.two npts=3 csvfile=day.csv\n"
LOADS = """New Load.one bus1=x.1 phases=1 kv=2.4 kW=100 kvar=40 daily=day
Load.one.kvar=30
New Load.far bus1=z.1 phases=1 kv=2.4 kW=50 kvar=20 daily=two
"""


def write(folder: Path, more: str = "") -> Path:
    deeper = folder / "parts" / "deeper"
    deeper.mkdir(parents=True)
    (deeper / "shapes.dss").write_text(SHAPES)
    (deeper / "day.csv").write_text("0.1\n0.5\n1.0\n")
    (folder / "parts" / "lines.dss").write_text(LINES)
    (folder / "parts" / "Loads.DSS").write_text(LOADS)
    (folder / "parts" / "xy.csv").write_text("source, 0, 0\nx, 1, 2\n")
    master = folder / "master.dss"
    master.write_text(MASTER + more)
    return master


def everything_in(folder: Path) -> set[tuple[Path, int]]:
    return {(path, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_a_script_is_read_to_its_last_redirect_and_nothing_of_it_runs(tmp_path: Path) -> None:
    found = read_script(write(tmp_path))
    verbs = {command.split()[0] for command in found.commands if "=" not in command.split()[0]}
    assert verbs <= {
        "clear",
        "new",
        "~",
        "more",
        "set",
        "calcvoltagebases",
        "makebuslist",
        "buscoords",
        "open",
    }
    text = "\n".join(found.commands).lower()
    for word in (
        "solve",
        "monitor",
        "energymeter",
        "debugtrace",
        "mode=",
        "datapath",
        "never",
        "export",
        "save",
    ):
        assert word not in text
    assert "set loadmult=0.5" in found.commands
    assert not found.allocates
    assert found.places[found.commands.index("set voltagebases=[4.16]")] == "line 14 of master.dss"


def test_a_feeder_is_read_from_a_folder_that_cannot_be_written_and_no_file_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = write(tmp_path)
    scratch = tmp_path.parent / f"{tmp_path.name} scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.chdir(scratch)
    folders = [tmp_path, tmp_path / "parts", tmp_path / "parts" / "deeper"]
    for folder in folders:
        folder.chmod(0o555)
    try:
        before = everything_in(tmp_path)
        feeder = open_feeder(master)
        assert everything_in(tmp_path) == before
        assert not list(scratch.iterdir())
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert feeder.coordinates == {"source": (0.0, 0.0), "x": (1.0, 2.0)}
    assert [(load.name, load.kw, load.kvar) for load in feeder.loads] == [("one", 50, 15), ("far", 25, 10)]


def test_what_a_solution_would_have_left_is_not_in_the_circuit(tmp_path: Path) -> None:
    """The file solves, so that its regulator moves, and then disables it: the tap is the one written down."""
    feeder = open_feeder(write(tmp_path, "Solve mode=snap controlmode=static\nDisable RegControl.r\n"))
    assert feeder.taps == ()
    x, z = feeder.node_index["x.1"], feeder.node_index["z.1"]
    assert feeder.y[x, z] == pytest.approx(-feeder.y[z, z], rel=1e-4)


def test_verbs_and_options_are_the_engine_s_own_in_its_order() -> None:
    executive = DSS.Executive
    commands = [executive.Command(k).lower() for k in range(1, executive.NumCommands + 1)]
    options = [executive.Option(k).lower() for k in range(1, executive.NumOptions + 1)]
    assert list(script._VERBS) == commands
    assert list(script.OPTIONS) == options


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Frobnicate all", "line 2 of bad.dss: the command 'Frobnicate'"),
        ("@verb", "line 2 of bad.dss: the command '@verb'"),
        ("Reduce", "line 2 of bad.dss: the command 'Reduce'"),
        ("Set frobnicate=1", "line 2 of bad.dss: 'frobnicate' is not an option"),
        ("Solution.mode=daily", "cannot edit the solution"),
        ("New PVSystem.g bus1=x usermodel=evil.so", "loads a program"),
        ("New Loadshape.s npts=2 mult=[1 2] action=dblsave", "writes a file"),
        ("Redirect nowhere.dss", "line 2 of bad.dss; the file 'nowhere.dss' does not exist"),
        ("Redirect bad.dss", "redirects to itself"),
        ("Buscoords nowhere.csv", "file of coordinates"),
    ],
)
def test_what_does_not_describe_a_circuit_is_refused_with_its_line(
    tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "bad.dss"
    file.write_text(f"New Circuit.bad\n{line}\n")
    with pytest.raises(FeederError, match=message) as caught:
        read_script(file)
    assert "\n" not in str(caught.value)


def test_after_compile_files_are_looked_up_beside_the_compiled_one(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "first.dss").write_text("Clear\nNew Circuit.c basekv=4.16\n")
    (tmp_path / "inner" / "second.dss").write_text("New Line.a bus1=sourcebus bus2=x\n")
    master = tmp_path / "run.dss"
    master.write_text("Compile inner/first.dss\nRedirect second\n")
    assert read_script(master).commands[-1] == "new Line.a bus1=sourcebus bus2=x"


def test_files_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    file = tmp_path / "latin.dss"
    file.write_bytes("New Circuit.c ! caf\u00e9".encode("latin-1"))
    assert len(read_script(file).commands) == 1


def test_switch_controls_state_switches_and_other_controls_leave_things_as_they_are(tmp_path: Path) -> None:
    more = """
New SwtControl.s switchedobj=Line.tie switchedterm=1 action=open
New Capacitor.bank bus1=x phases=3 kvar=90 kv=4.16 states=[0]
New CapControl.c element=line.a terminal=1 capacitor=bank type=voltage onsetting=200 offsetting=210 ptratio=20
"""
    feeder = open_feeder(write(tmp_path, more.replace("open Line.tie 1", "")))
    plain = open_feeder(tmp_path / "master.dss")
    assert any("class capcontrol do not act where controls are frozen" in note for note in feeder.notes)
    tie = next(line for line in feeder.lines if line.name == "tie")
    assert np.abs(tie.primitive).max() < 1e-3
    assert abs(feeder.y - plain.y).max() == 0.0
