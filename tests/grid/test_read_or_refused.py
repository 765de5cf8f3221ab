"""A file of OpenDSS is read as OpenDSS solves it, or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dss import DSS

from dp_powerflow import Feeder, OperatedSolver, open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss import script
from dp_powerflow.powerflow.comparison import check_reading, compare
from support.tables import tables_of

TABLES = tables_of(__file__)

FOUR_WIRES = TABLES["FOUR_WIRES"]
BASES = "Set VoltageBases=[12.47 .4]\nCalcVoltageBases\n"


def write(folder: Path, more: str, last: str = "", bases: str = BASES) -> Path:
    path = folder / "feeder.dss"
    path.write_text(f"{FOUR_WIRES}{more}\n{bases}{last}\n")
    return path


def difference(path: Path, feeder: Feeder, sun: float = 0.0) -> float:
    """Largest |Δv| [p.u.] between the feeder at its nominal loads and OpenDSS on the file as it is."""
    engine = DSS.NewContext()
    engine.AllowChangeDir = False
    engine.Text.Command = f'Redirect "{path}"'
    for systems in engine.ActiveCircuit.PVSystems:
        systems.Irradiance = sun
    engine.Text.Command = "Set Tolerance=1e-10 MaxIterations=500"
    engine.ActiveCircuit.Solution.Solve()
    volts = np.asarray(engine.YMatrix.getV()).view(np.complex128)[1:]
    at = {name.lower(): k for k, name in enumerate(engine.ActiveCircuit.YNodeOrder)}
    theirs = volts[[at[feeder.nodes[k]] for k in feeder.energised]] / (
        1000 * feeder.base_kv[feeder.energised]
    )
    fed = np.array([[sun * pv.kw_peak / 1000.0 + 0j for pv in feeder.pv]])
    ours = OperatedSolver(feeder).solve(feeder.nominal_load[None, :], fed, nodes="all")
    return float(np.abs(ours.v[0] - theirs).max())


# -------------------------------------------------------------------------------------- neutral nodes

ONE = "New Load.n1 bus1=s2.1.4 phases=1 kv=.2309 kw=8 kvar=2 vminpu=.7 "


@pytest.mark.parametrize("more", TABLES["what_stands_between_a_phase_and_a_neutral_node"])
def test_what_stands_between_a_phase_and_a_neutral_node_is_modelled_there(tmp_path: Path, more: str) -> None:
    path = write(tmp_path, more)
    feeder = open_feeder(path)
    assert difference(path, feeder, sun=1.0) < 1e-6
    assert not np.isin(feeder.retained, feeder.neutral).any()  # no load is drawn for a neutral conductor


def test_neutral_conductors_of_several_grounds_carry_the_current_that_returns(tmp_path: Path) -> None:
    """As of the IEEE NEV feeder: a neutral that is grounded again and again, with a load on every stretch."""
    more = [ONE, "New Reactor.g2 bus1=s2.4 bus2=s2.0 phases=1 r=20 x=0"]
    for k in range(3, 7):
        more += [
            f"New Line.s{k} bus1=s{k - 1}.1.2.3.4 bus2=s{k}.1.2.3.4 phases=4 linecode=l4 length=.05 units=km",
            f"New Load.n{k} bus1=s{k}.{k % 3 + 1}.4 phases=1 kv=.2309 kw={k} kvar=1 vminpu=.7",
            f"New Reactor.g{k} bus1=s{k}.4 bus2=s{k}.0 phases=1 r={10 * k} x=0",
        ]
    path = write(tmp_path, "\n".join(more))
    feeder = open_feeder(path)
    assert difference(path, feeder) < 1e-6
    assert compare(feeder).refused() is None
    check_reading(feeder, None, acting=False)


def test_a_resistance_of_a_load_beside_its_neutral_node_is_refused(tmp_path: Path) -> None:
    more = "New Load.n3 bus1=s2.1.2.3.4 phases=3 kv=.4 kw=20 kvar=5 rneut=2"
    assert "'n3' has Rneut" in open_feeder(write(tmp_path, more)).as_operated.refused[0]


# ----------------------------------------------------------------------------- what a file has beside that

SWITCH = "New SwtControl.w switchedobj=line.sw switchedterm=1"


@pytest.mark.parametrize(("more", "last"), TABLES["what_is_honoured_is_as_the_engine_has_it"])
def test_what_is_honoured_is_as_the_engine_has_it(tmp_path: Path, more: str, last: str) -> None:
    path = write(tmp_path, more, last)
    assert difference(path, open_feeder(path)) < 1e-8


@pytest.mark.parametrize(("more", "last", "message"), TABLES["what_is_not_modelled_is_refused_by_name"])
def test_what_is_not_modelled_is_refused_by_name(tmp_path: Path, more: str, last: str, message: str) -> None:
    with pytest.raises(FeederError, match=message):
        open_feeder(write(tmp_path, more, last))


def test_a_locked_switch_that_is_open_stays_open(tmp_path: Path) -> None:
    path = write(tmp_path, SWITCH + " state=open action=close lock=yes")
    with pytest.raises(FeederError, match="3 nodes are islanded"):
        open_feeder(path)


def test_a_run_that_is_not_done_is_stated(tmp_path: Path) -> None:
    notes = open_feeder(write(tmp_path, "", "Set mode=daily ControlMode=Off\nSolve mode=snap")).notes
    assert [note.split(",")[0] for note in notes] == [
        "the file has mode=daily",
        "the file has controlmode=off",
    ]


def test_a_file_without_voltage_bases_has_those_of_no_load(tmp_path: Path) -> None:
    path = write(tmp_path, "", bases="")
    feeder = open_feeder(path)
    assert any("CalcVoltageBases" in note for note in feeder.notes)
    assert difference(path, feeder) < 1e-8


def test_nul_bytes_are_left_out_with_a_note(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    whole = open_feeder(path)
    path.write_bytes(path.read_bytes().replace(b"New Load.p2", b"\0New Load.p2\0"))
    feeder = open_feeder(path)
    assert [load.name for load in feeder.loads] == [load.name for load in whole.loads]
    assert feeder.notes == (*whole.notes, "feeder.dss holds NUL bytes, which are left out")


def use_of(option: str) -> str:
    """What happens to an option of `Set` and `Solve`, in words."""
    if option in script.LIMITED:
        usual = " and ".join(script.LIMITED[option])
        return f"refused, but for {usual}" if usual else "refused"
    if option in script.STATED:
        usual, words = script.STATED[option]
        return f"left out; any other than {usual} is stated: {words}"
    return "honoured" if option in script.HONOURED else "left out: of runs, reports and plots"


def table_of_options() -> str:
    """The use of every option, in Markdown; the most frequent use is that of every other option."""
    of_use: dict[str, list[str]] = {}
    for use, option in sorted((use_of(option), option) for option in script.OPTIONS):
        of_use.setdefault(use, []).append(f"`{option}`")
    rest = max(of_use, key=lambda use: len(of_use[use]))
    rows = [f"| {', '.join(options)} | {use} |" for use, options in of_use.items() if use != rest]
    return "\n".join(["| options | what happens |", "|---|---|", *rows, f"| every other option | {rest} |"])


def test_every_option_of_the_engine_has_one_use_and_the_page_says_which() -> None:
    options = {DSS.Executive.Option(k).lower() for k in range(1, DSS.Executive.NumOptions + 1)}
    assert options == set(script.OPTIONS)
    page = Path(__file__).parents[2] / "docs" / "reference" / "feeders.md"
    assert table_of_options() in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_taps_of_ieee_8500_are_found(circuits: Path) -> None:
    assert len(open_feeder(circuits / "8500-Node" / "Master.dss").taps) == 12


@pytest.mark.parametrize("more", TABLES["a_feeder_that_is_the_one_of_its_file_is_not_refused"])
def test_a_feeder_that_is_the_one_of_its_file_is_not_refused(tmp_path: Path, more: str) -> None:
    feeder = open_feeder(write(tmp_path, more))
    assert compare(feeder).refused() is None
    for acting in (True, False):
        check_reading(feeder, None, acting=acting)
