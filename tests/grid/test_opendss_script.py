"""Scripts of OpenDSS: what of them reaches the engine, what cannot; none leaves anything to the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dss import DSS

from dp_powerflow import open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss import script
from dp_powerflow.grid.opendss.engine import engine_of, is_plain
from dp_powerflow.grid.opendss.script import read_script
from dp_powerflow.lowlevel import Rebuilder
from dp_powerflow.pipeline.inputs import network_chunks
from support.fleet_small import circuit
from support.tables import tables_of

TABLES = tables_of(__file__)

MASTER = TABLES["MASTER"]
LINES = TABLES["LINES"]
SHAPES = "New Loadshape.day npts=3 interval=8 mult=(file=day.csv)\nNew Loadshape.two npts=3 csvfile=day.csv\n"
LOADS = TABLES["LOADS"]


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
    assert verbs <= set(TABLES["KEPT"])
    text = "\n".join(found.commands).lower()
    for word in TABLES["LEFT_OUT"]:
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
    ("line", "message"), TABLES["what_does_not_describe_a_circuit_is_refused_with_its_line"]
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
    feeder = open_feeder(write(tmp_path, TABLES["CONTROLS"]))
    plain = open_feeder(tmp_path / "master.dss")
    assert any("class capcontrol do not act where controls are frozen" in note for note in feeder.notes)
    tie = next(line for line in feeder.lines if line.name == "tie")
    assert np.abs(tie.primitive).max() < 1e-3
    assert abs(feeder.y - plain.y).max() == 0.0


HZ_50 = "Clear\nSet DefaultBaseFrequency=50\n"
EARTH = "Set EarthModel=Carson\nSet VoltageBases"


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.dss"
    path.write_text(text)
    return path


def _bytes(path: Path) -> bytes:
    """A feeder and a twin of it."""
    feeder = open_feeder(path)
    source = Rebuilder(feeder)
    twin = source.build({key: 1.1 * level for key, level in source.parameters().levels.items()})
    return b"".join([*network_chunks(feeder), *network_chunks(twin)])


def test_a_feeder_is_the_same_after_any_other(tmp_path: Path) -> None:
    plain = [_written(tmp_path, f"plain-{km}", circuit(km)) for km in (1.0, 2.0)]
    others = [
        _written(tmp_path, "other-50", circuit(1.0).replace("Clear\n", HZ_50)),
        _written(tmp_path, "other-earth", circuit(1.0).replace("Set VoltageBases", EARTH)),
    ]
    broken = _written(tmp_path, "broken", circuit(1.0).replace("New Line.second", "New Lnie.second"))
    first = {path: _bytes(path) for path in plain}
    assert len(set(first.values())) == len(first)
    for other in others:
        seen = _bytes(other)
        assert {path: _bytes(path) for path in plain} == first
        assert _bytes(other) == seen
    with pytest.raises(FeederError):
        open_feeder(broken)
    assert {path: _bytes(path) for path in reversed(plain)} == first


def test_only_circuits_that_set_nothing_for_the_whole_engine_share_it(tmp_path: Path) -> None:
    one, two, other = (
        read_script(_written(tmp_path, name, text))
        for name, text in (
            ("one", circuit(1.0)),
            ("two", circuit(2.0)),
            ("other", circuit(1.0).replace("Set VoltageBases", EARTH)),
        )
    )
    assert (is_plain(one), is_plain(two), is_plain(other)) == (True, True, False)
    assert engine_of(one) is engine_of(two)
    assert engine_of(other) is not engine_of(one)
    assert engine_of(other) is engine_of(other)
