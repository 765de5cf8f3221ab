"""An OpenDSS script describes a circuit: it loads no program, writes no file and starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import build_circuit, file_origin
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
SHAPE = "npts=2 interval=1 mult=(1 2)"
LOADING = {
    "quoted name": 'New PVSystem.g bus1=b "usermodel"=PROGRAM',
    "name in brackets": "New PVSystem.g bus1=b [usermodel]=PROGRAM",
    "quotes within": "New PVSystem.g bus1=b\nPVSystem.g.'usermodel'=PROGRAM",
    "by its element": "New PVSystem.g bus1=b\nPVSystem.g.usermodel=PROGRAM",
    "after another element": "New PVSystem.g bus1=b\nLine.l.r1=1 PVSystem.g.usermodel=PROGRAM",
    "of a selected element": 'New PVSystem.g bus1=b\nset class=PVSystem object=g\nmore "usermodel"=PROGRAM',
    "of many elements": 'New PVSystem.g bus1=b\nBatchEdit PVSystem..* "usermodel"=PROGRAM',
    "of a variable": "New PVSystem.g bus1=b\nvar @n=usermodel\nEdit PVSystem.g @n=PROGRAM",
    "by position": f"New PVSystem.g 3 b 12 {'1 ' * 26}PROGRAM",
    "after a named one": "New PVSystem.g bus1=b daily=x 1 1 1 1 PROGRAM PROGRAM PROGRAM",
    "of a control": 'New CapControl.x "usermodel"=PROGRAM',
    "of a variable's class": 'var @c=PVSystem.g\nNew @c bus1=b "usermodel"=PROGRAM',
    "one letter": "New PVSystem.g bus1=b kv=12.47 u=PROGRAM",
    "one letter of a control": "New CapControl.x element=Line.l u=PROGRAM",
    "one letter of many": f"{PV}BatchEdit PVSystem.g u=PROGRAM",
    "goes on after a class": f"{PV}Enable Line.*\nmore usermodel=PROGRAM",
    "goes on after the circuit": f"{PV}Edit Circuit.c\n~ usermodel=PROGRAM",
    "of the circuit": f"{PV}Edit Circuit.c usermodel=PROGRAM",
}
LEFT_OUT = {
    "generator": 'New Generator.g bus1=b kv=12.47 kw=1 "usermodel"=PROGRAM',
    "shaft": "New Generator.g bus1=b kv=12.47 kw=1 'shaftmodel'=PROGRAM",
    "storage": 'New Storage.g bus1=b kv=12.47 "dynadll"=PROGRAM',
    "one letter": "New Generator.g bus1=b kv=12.47 kw=1 u=PROGRAM",
    "two letters": "New Storage.g bus1=b kv=12.47 dy=PROGRAM",
    "three letters": "New Storage.g bus1=b kv=12.47 dyn=PROGRAM",
}
TRACING = {
    "PV": "New PVSystem.g bus1=b kv=12.47 de=yes",
    "in brackets": "New Generator.g bus1=b kv=12.47 kw=1 de=(true)",
    "variable": "var @x=yes\nNew IndMach012.g bus1=b kv=12.47 de=@x",
}
WRITING = {
    "abbreviated": f"New Loadshape.s {SHAPE} acti=dblsave",
    "two letters": f"New Loadshape.s {SHAPE} ac=sngsave",
    "quoted": f'New Loadshape.s {SHAPE} "action"=dblsave',
    "variable": f"var @x=dblsave\nNew Loadshape.s {SHAPE} action=@x",
    "temperatures": "New Tshape.s npts=2 interval=1 temp=(1 2) acti=dblsave",
    "prices": 'New Priceshape.s npts=2 interval=1 price=(1 2) "action"=sngsave',
    "by position": f"New Loadshape.s {SHAPE}\nEdit Loadshape.s 2 1 (1 2) (0 1) 0 0 a b c dblsave",
    "by its element": f"New Loadshape.s {SHAPE}\nLoadshape.s.action=dblsave",
}
RUNNING = (
    *("Show voltages", "Export voltages FOLDER/x.csv", "Save circuit dir=FOLDER/x", "Dump", "plot profile"),
    *(
        "DosCmd touch FOLDER/x",
        "CD FOLDER",
        "FileEdit FOLDER/x",
        "Set datapath=FOLDER",
        "Visualize what=powers",
    ),
    *("Set editor=FOLDER/x", "Set log=yes recorder=yes querylog=yes", "Export monitors m", "Closedi"),
    "New EnergyMeter.m element=line.l 1 action=save",
    "New Monitor.m element=line.l 1\n~ action=save",
    'New Relay.r monitoredobj=line.l "debugtrace"=yes',
)


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


@pytest.mark.parametrize("case", LOADING)
def test_no_program_is_loaded(case: str, watched: Path) -> None:
    with pytest.raises(FeederError) as refused:
        open_feeder(script(watched, LOADING[case]))
    assert "Not Loaded" not in str(refused.value)  # what the engine says once it has tried
    assert any(
        words in str(refused.value) for words in ("loads a program", "write it out", "write name=value")
    )


def test_what_goes_on_with_a_rejected_line_is_about_nothing(watched: Path) -> None:
    """The engine would take it for the element before."""
    with pytest.raises(FeederError) as refused:
        build_circuit(file_origin(script(watched, f"{PV}New Line\nmore usermodel=PROGRAM\n~ r1=2")))
    assert "program.so" not in str(refused.value)


@pytest.mark.parametrize("case", TRACING)
def test_no_abbreviation_writes_a_trace(case: str, watched: Path) -> None:
    build_circuit(file_origin(script(watched, TRACING[case])))
    assert files(watched) == ["feeder.dss"]


def test_the_delay_of_a_control_is_kept(watched: Path) -> None:
    step = "New Transformer.t windings=2 buses=(b c) kvs=(12.47 4.16)\n"
    read = read_script(script(watched, f"{step}New RegControl.r transformer=t winding=2 de=45"))
    assert "de=45" in read.commands[-2]


@pytest.mark.parametrize("case", LEFT_OUT)
def test_programs_of_what_is_left_out_are_left_out(case: str, watched: Path) -> None:
    feeder = open_feeder(script(watched, LEFT_OUT[case]))
    assert any("programs (user-written models) are left out" in note for note in feeder.notes)


@pytest.mark.parametrize("case", WRITING)
def test_no_shape_is_saved(case: str, watched: Path) -> None:
    with pytest.raises(FeederError, match=r"writes a file; remove it|write name=value"):
        open_feeder(script(watched, WRITING[case]))
    assert files(watched) == ["feeder.dss"]


def test_no_command_runs_or_writes(watched: Path) -> None:
    open_feeder(script(watched, "\n".join(RUNNING)))
    assert files(watched) == ["feeder.dss"]


def test_shapes_may_still_begin_without_names(watched: Path) -> None:
    assert open_feeder(script(watched, "New Loadshape.s 2 1.0 mult=(1 2) action=normalize")).nodes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("place", ["master", "redirected"])
def test_scripts_in_other_encodings_are_read(encoding: str, place: str, tmp_path: Path) -> None:
    lines = CIRCUIT.replace("bus2=b", "bus2=süd").replace("bus1=b", "bus1=süd")
    master = tmp_path / "feeder.dss"
    if place == "master":
        master.write_bytes(lines.encode(encoding))
    else:
        head, tail = lines.split("New Line", 1)
        (tmp_path / "more.dss").write_bytes(f"New Line{tail}".encode(encoding))
        master.write_text(f"{head}Redirect more.dss\n")
    assert "süd.1" in open_feeder(master).nodes


def test_scripts_with_the_line_ends_of_old_are_read(tmp_path: Path) -> None:
    (tmp_path / "feeder.dss").write_text(CIRCUIT.replace("\n", "\r"), newline="")
    assert "b.1" in open_feeder(tmp_path / "feeder.dss").nodes


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 64,
        b"\x1f\x8b\x08\0" + bytes(range(256)),
        "New Circuit.c".encode("utf-16-le"),
        b"\xff\xfeN",
    ],
    ids=["empty", "zeros", "gzip", "unmarked utf-16", "half a letter"],
)
def test_what_is_no_script_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "feeder.dss").write_bytes(content)
    with pytest.raises(FeederError) as refused:
        open_feeder(tmp_path / "feeder.dss")
    assert "\n" not in str(refused.value)


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "feeder.dss").mkdir()
    with pytest.raises(FeederError, match="give the path of an OpenDSS master file"):
        open_feeder(tmp_path / "feeder.dss")
