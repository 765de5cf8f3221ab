"""OpenDSS circuits as operated: regulators, switched capacitors, laws of loads, generators, inverters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.grid.operation import InverterCurve, Pick, Regulator, Response
from dp_powerflow.powerflow.comparison import compare
from support.opened import opened_once
from support.operated import EngineSolution, folded, imbalance, ratios_of, solved, with_inner
from support.tables import tables_of

TABLES = tables_of(__file__)

SMALL = TABLES["SMALL"]
LARGE = TABLES["LARGE"]
PUBLISHED = pytest.mark.parametrize(
    "name", ["ieee13", "ieee123", *SMALL, *(pytest.param(n, marks=pytest.mark.slow) for n in LARGE)]
)
CIRCUIT = TABLES["CIRCUIT"]
CONTROL = "New RegControl.creg transformer=reg winding=2 vreg=122 band=2 ptratio=60 ctprim=300 {settings}"
CAPACITOR = TABLES["CAPACITOR"]


def feeder_of(folder: Path, *, drop_islanded: bool = False, **parts: str) -> Feeder:
    """The circuit with settings of its regulator, and a bank where `capacitor` has those of its control."""
    parts = {"conns": "wye wye", "load": "", "more": "", "bank": "", "settings": "", **parts}
    parts.setdefault("control", CONTROL.format(**parts))
    if "capacitor" in parts:
        parts["more"] += CAPACITOR.format(bank=parts["bank"], settings=parts["capacitor"])
    path = folder / "feeder.dss"
    path.write_text(CIRCUIT.format(**parts))
    return open_feeder(path, drop_islanded=drop_islanded)


def balanced_with_the_engine(feeder: Feeder, *commands: str) -> EngineSolution:
    """OpenDSS's solution, at which the currents of the feeder as operated balance."""
    solution = solved(feeder, *commands)
    assert np.abs(imbalance(feeder, solution)).max() < 1e-9
    return solution


def complex_of(values: Any) -> np.ndarray:
    """Phasors of the engine, which gives them in either form."""
    array = np.asarray(values)
    return array.view(np.complex128) if array.dtype == np.float64 else array


def opened(name: str, request: pytest.FixtureRequest) -> Feeder:
    if "/" not in name:
        return opened_once(name)
    cases: Path = request.getfixturevalue("foreign_cases")
    return opened_once(cases / name, drop_islanded=True)


def control_voltage(feeder: Feeder, each: Regulator, solution: EngineSolution) -> float:
    """What a regulator that looks at one phase sees [V]."""
    operation = feeder.as_operated
    whole = with_inner(operation, solution.v, solution.ratios)
    ((a, b),) = each.measured
    base = 1000.0 * feeder.base_kv[a]
    volts = base * (whole[a] - (whole[b] if b >= 0 else 0.0)) / each.pt_ratio
    inner, outer = each.phases[each.compensated]
    ampere = feeder.base_mva * 1e6 / (1000.0 * feeder.base_kv[outer])
    ratio = solution.ratios[each.transformer, each.winding]
    into = (operation.y[[inner], :] @ whole)[0] / ratio * ampere
    return float(abs(volts + complex(each.drop_r_v, each.drop_x_v) * into / each.ct_primary_a))


# ------------------------------------------------------------------------------- published feeders


@PUBLISHED
def test_folding_taps_and_capacitors_back_gives_the_frozen_frame(
    name: str, request: pytest.FixtureRequest
) -> None:
    feeder = opened(name, request)
    operation = feeder.as_operated
    assert operation.refused == ()
    assert operation.nodes[: len(feeder.nodes)] == feeder.nodes
    assert len(operation.regulators) == len(feeder.taps)
    assert all(load.rated_kv is not None for load in feeder.loads)
    y = folded(operation, len(feeder.nodes), ratios_of(feeder.taps)).tolil()
    for bank in operation.capacitors:
        assert bank.closed
        for node, other in bank.branches:
            assert other == -1
            rated = bank.rated_kv / feeder.base_kv[node]
            y[node, node] += 1j * bank.kvar / 1000.0 / feeder.base_mva / len(bank.branches) / rated**2
    scale = np.asarray(abs(feeder.y).max(axis=1).todense()).ravel()
    difference = abs(y.tocsc() - feeder.y).tocoo()
    rows, columns = difference.coords
    assert np.all(difference.data <= 1e-9 * np.sqrt(scale[rows] * scale[columns]) + 1e-12)


@PUBLISHED
def test_currents_balance_at_the_voltages_that_opendss_finds(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Loads by their own laws, regulators and capacitors where the engine's controls put them."""
    feeder = opened(name, request)
    solution = solved(feeder)
    left = imbalance(feeder, solution)
    assert np.abs(left).max() < 1e-6 * np.abs(feeder.nominal_injection).sum()


def test_regulators_see_what_keeps_them_still(foreign_cases: Path) -> None:
    """With line-drop compensation the voltage that counts is not the one at the regulator."""
    feeder = open_feeder(foreign_cases / "ieee123_dss" / "IEEE123Master.dss")
    solution = solved(feeder)
    for each in feeder.as_operated.regulators:
        missed = abs(control_voltage(feeder, each, solution) - each.target_v)
        ratio = solution.ratios[each.transformer, each.winding]
        assert missed <= each.band_v / 2.0 or ratio == pytest.approx(each.highest)
    apart = [
        abs(solution.v[each.measured[0][0]]) * 120.0 - each.target_v for each in feeder.as_operated.regulators
    ]
    assert max(apart) > 2.0


def test_settings_of_ieee_9500_are_those_of_its_files(foreign_cases: Path) -> None:
    feeder = open_feeder(foreign_cases / "9500-primary-network" / "Master.dss")
    operation = feeder.as_operated
    assert [each.reverse.threshold_kw for each in operation.regulators if each.reverse] == [50.0] * 9
    assert {bank.control.kind for bank in operation.capacitors} == {"kvar"}
    assert {bank.control.override_v for bank in operation.capacitors} == {(7110.0, 7740.0)}
    assert [bank.control.delay_off_s for bank in operation.capacitors][:6] == [100, 101, 102, 90, 91, 92]
    assert operation.left_out == ("1 generator that holds its voltage (model 3)", "2 storage units")
    assert [each.kw for each in operation.generators if each.kw] == [50.0, 100.0, 20.0, 20.0, 20.0]


# -------------------------------------------------------------------------------------- regulators


PHASES = ("", "ptphase=3", "ptphase=max", "ptphase=min")
OTHER_WINDING = "winding=1 tapwinding=2"


@pytest.mark.parametrize(
    ("conns", "settings"),
    [
        *(("wye wye", phase) for phase in PHASES),
        *(("delta wye", phase) for phase in PHASES),
        *((conns, OTHER_WINDING) for conns in ("wye wye", "wye delta")),
    ],
)
def test_every_connection_of_a_regulator_agrees_with_the_engine(
    tmp_path: Path, conns: str, settings: str
) -> None:
    feeder = feeder_of(tmp_path, conns=conns, settings=settings)
    assert feeder.as_operated.refused == ()
    solution = balanced_with_the_engine(feeder)
    (each,) = feeder.as_operated.regulators
    base = 1000.0 * feeder.base_kv[0]
    seen = [abs(solution.v[a] - (solution.v[b] if b >= 0 else 0.0)) * base for a, b in each.measured]
    chosen = {Pick.HIGHEST: max(seen), Pick.LOWEST: min(seen), Pick.ONE: seen[0]}[each.pick] / each.pt_ratio
    ratio = solution.ratios["reg", 2]
    assert abs(chosen - each.target_v) <= each.band_v / 2.0 or ratio in (each.lowest, each.highest)
    assert each.winding_v == pytest.approx(12470.0 / np.sqrt(3.0))
    assert len(each.measured) == (3 if "max" in settings or "min" in settings else 1)


def test_a_remote_bus_is_measured_by_its_own_ratio(tmp_path: Path) -> None:
    feeder = feeder_of(tmp_path, settings="bus=b.2 remoteptratio=50 R=3 X=5")
    (each,) = feeder.as_operated.regulators
    assert each.measured == ((feeder.node_index["b.2"], -1),)
    assert (each.pt_ratio, each.drop_r_v, each.drop_x_v) == (50.0, 0.0, 0.0)
    assert each.pt_ratio / each.winding_v == pytest.approx(60.0 / (12470.0 / np.sqrt(3.0)))


def test_a_tap_on_the_other_winding_moves_the_other_way(tmp_path: Path) -> None:
    feeder = feeder_of(tmp_path, settings="tapwinding=1")
    (each,) = feeder.as_operated.regulators
    assert (each.opposite, each.winding) == (True, 1)
    assert [feeder.nodes[outer] for _, outer in each.phases] == ["a.1", "a.2", "a.3"]
    assert feeder.nodes[each.measured[0][0]] == "r.1"
    balanced_with_the_engine(feeder)


def test_delays_limits_and_ranges_are_the_file_s(tmp_path: Path) -> None:
    settings = "delay=30 maxtapchange=3 vlimit=126 reversible=yes revthreshold=40"
    more = "Edit Transformer.reg wdg=2 maxtap=1.05 mintap=0.95 numtaps=16"
    (each,) = feeder_of(tmp_path, settings=settings, more=more).as_operated.regulators
    assert (each.delay_s, each.most_steps, each.limit_v) == (30.0, 3, 126.0)
    assert each.reverse is not None
    assert each.reverse.threshold_kw == 40.0
    assert (each.lowest, each.highest, each.steps) == (0.95, 1.05, 16)
    assert each.step == pytest.approx(0.00625)


@pytest.mark.parametrize("settings", ["maxtapchange=0", "enabled=no"])
def test_a_regulator_that_cannot_move_is_none(tmp_path: Path, settings: str) -> None:
    assert feeder_of(tmp_path, settings=settings).as_operated.regulators == ()


@pytest.mark.parametrize(("parts", "named"), TABLES["settings_that_are_not_modelled_are_named"])
def test_settings_that_are_not_modelled_are_named_and_the_feeder_still_opens(
    tmp_path: Path, parts: dict[str, Any], named: str
) -> None:
    feeder = feeder_of(tmp_path, **parts)
    assert any(named in reason for reason in feeder.as_operated.refused)
    assert len(feeder.loads) == 2


BY_TIME = "type=time onsetting=8 offsetting=20"
WINDINGS = TABLES["WINDINGS"]
OPEN_DELTA = TABLES["OPEN_DELTA"]


@pytest.mark.parametrize("winding", WINDINGS)
def test_a_regulator_of_a_winding_that_is_not_grounded_agrees_with_the_engine(
    tmp_path: Path, winding: str
) -> None:
    feeder = feeder_of(tmp_path, more=TABLES["NOT_GROUNDED"].format(**WINDINGS[winding]))
    assert "open" in {regulator.name for regulator in feeder.as_operated.regulators}
    found = compare(feeder)
    assert found.same_states == found.snapshots > 0
    assert found.operated_pu is not None
    assert found.operated_pu < 1e-7


def test_an_open_delta_is_refused_with_a_remedy_that_works(tmp_path: Path) -> None:
    first, second = OPEN_DELTA.format(1), OPEN_DELTA.format(3)
    both = first + second.replace(".open", ".other").replace("=open", "=other").replace("three", "four")
    assert "disable their controls" in compare(feeder_of(tmp_path, more=both)).against
    found = compare(feeder_of(tmp_path, more=both.replace("ptratio=100", "ptratio=100 enabled=no")))
    assert found.operated_pu is not None
    assert found.operated_pu < 1e-7


# -------------------------------------------------------------------------------------- loads


@pytest.mark.parametrize("source_pu", ["1.05", "1.2", "0.85", "0.6", "0.35"])
def test_loads_of_every_model_draw_what_the_engine_says(tmp_path: Path, source_pu: str) -> None:
    """All models at once, within their limits, above and far below."""
    laws = TABLES["loads_of_every_model_draw_what_the_engine_says"]
    more = "".join(TABLES["LOADS_OF_A_LAW"].format(k=k, law=law) for k, law in enumerate(laws))
    balanced_with_the_engine(feeder_of(tmp_path, control="", more=f"{more}Vsource.source.pu={source_pu}"))


def test_limits_of_a_load_are_kept_with_its_law(tmp_path: Path) -> None:
    feeder = feeder_of(tmp_path, load="model=4 cvrwatts=0.8 cvrvars=3 vminpu=0.9 vmaxpu=1.1 vlowpu=0.4")
    expected = Response(exponents=(0.8, 3.0), lowest=0.9, highest=1.1, cut=0.4, abrupt=True)
    assert feeder.loads[0].response == expected
    assert [load.rated_kv for load in feeder.loads] == [pytest.approx(12.47 / np.sqrt(3.0)), 7.2]


# ------------------------------------------------------------------------------------ capacitors


@pytest.mark.parametrize("settings", TABLES["reactive_power_of_the_probes_is_the_engine_s"])
def test_reactive_power_of_the_probes_is_the_engine_s(tmp_path: Path, settings: str) -> None:
    feeder = feeder_of(tmp_path, capacitor=settings)
    (bank,) = feeder.as_operated.capacitors
    solution = solved(feeder)
    whole = with_inner(feeder.as_operated, solution.v, solution.ratios)
    seen = sum(
        whole[probe.node] * np.conj(np.dot(probe.coefficients, whole[list(probe.nodes)]))
        for probe in bank.control.probes
    )
    circuit = solution.engine.ActiveCircuit
    circuit.SetActiveElement("transformer.reg" if "reg" in settings else "line.b")
    element = circuit.ActiveCktElement
    terminal = 2 if "terminal=2" in settings else 1
    per = int(element.NumConductors)
    expected = complex_of(element.Powers)[(terminal - 1) * per : terminal * per].sum().imag
    assert np.imag(seen) * 1000.0 * feeder.base_mva == pytest.approx(expected, abs=1e-2)


def test_currents_of_the_probes_are_the_engine_s(tmp_path: Path) -> None:
    settings = "type=current terminal=2 ctphase=avg onsetting=400 offsetting=1 ctratio=2"
    feeder = feeder_of(tmp_path, capacitor=settings)
    (bank,) = feeder.as_operated.capacitors
    assert (bank.control.pick_current, len(bank.control.probes), bank.control.ct_ratio) == (Pick.MEAN, 3, 2.0)
    solution = solved(feeder)
    whole = with_inner(feeder.as_operated, solution.v, solution.ratios)
    seen = [np.dot(probe.coefficients, whole[list(probe.nodes)]) for probe in bank.control.probes]
    solution.engine.ActiveCircuit.SetActiveElement("line.b")
    ampere = complex_of(solution.engine.ActiveCircuit.ActiveCktElement.Currents)
    base = feeder.base_mva * 1e6 / (1000.0 * feeder.base_kv[0])
    np.testing.assert_allclose(np.abs(seen) * base, np.abs(ampere[3:]), rtol=1e-6)


def test_one_phase_of_current_is_counted_from_the_first_terminal_as_the_engine_does(tmp_path: Path) -> None:
    """The engine opens this bank: 200 A at terminal 2 never count, 67 A at terminal 1 do."""
    feeder = feeder_of(tmp_path, **TABLES["ONE_PHASE"])
    (bank,) = feeder.as_operated.capacitors
    (probe,) = bank.control.probes
    assert feeder.nodes[probe.node] == "b.2"
    assert solved(feeder).closed == {"bank": False}


@pytest.mark.parametrize(
    ("bank", "settings", "pick", "measured"), TABLES["a_voltage_control_measures_the_phases_that_it_names"]
)
def test_a_voltage_control_measures_the_phases_that_it_names(
    tmp_path: Path, bank: str, settings: str, pick: str, measured: list[str]
) -> None:
    control = f"type=voltage ptratio=60 onsetting=100 offsetting=130 {settings}"
    feeder = feeder_of(tmp_path, bank=bank, capacitor=control)
    (found,) = feeder.as_operated.capacitors
    assert found.control.pick == pick
    named = [" ".join(feeder.nodes[k] for k in pair if k >= 0) for pair in found.control.measured]
    assert named == measured
    assert (found.control.on, found.control.off, found.control.override_v) == (100.0, 130.0, None)
    balanced_with_the_engine(feeder)


def test_delays_and_overrides_of_a_capacitor_control(tmp_path: Path) -> None:
    settings = (
        "type=time onsetting=8 offsetting=20 delay=5 delayoff=6 deadtime=7 voltoverride=yes vmin=110 vmax=128"
    )
    feeder = feeder_of(tmp_path, bank="states=[0]", capacitor=settings)
    (bank,) = feeder.as_operated.capacitors
    control = bank.control
    assert (control.kind, control.on, control.off, control.probes) == ("time", 8.0, 20.0, ())
    assert (control.delay_on_s, control.delay_off_s, control.dead_time_s) == (5.0, 6.0, 7.0)
    assert control.override_v == (110.0, 128.0)
    assert not bank.closed
    assert len(control.measured) == 1


def test_other_capacitors_stay_in_the_admittances(tmp_path: Path) -> None:
    fixed = "New Capacitor.fixed bus1=a phases=3 kvar=300 kv=12.47"
    feeder = feeder_of(tmp_path, more=fixed, capacitor=BY_TIME)
    assert [bank.name for bank in feeder.as_operated.capacitors] == ["bank"]
    balanced_with_the_engine(feeder)


# ------------------------------------------------------------------------------------ generation


def test_generators_of_constant_power_run_and_others_are_counted(tmp_path: Path) -> None:
    feeder = feeder_of(tmp_path, more=TABLES["GENERATORS"])
    operation = feeder.as_operated
    assert [each.name for each in operation.generators] == ["one", "delta", "inverter"]
    assert operation.generators[2].response.highest > 2.0
    assert operation.left_out == (
        "1 generator that holds its voltage (model 3)",
        "1 generator that is dispatched",
        "2 storage units",
    )
    balanced_with_the_engine(feeder, "Disable Generator.dispatched")


def test_pv_has_its_power_factor_and_limits(tmp_path: Path) -> None:
    feeder = feeder_of(tmp_path, more=TABLES["PV"])
    lag, fixed, impedance = feeder.pv
    assert lag.tan_theta == pytest.approx(-np.tan(np.arccos(0.95)))
    assert lag.response == Response(lowest=0.9, highest=1.2)
    assert fixed.tan_theta == 0.25
    assert impedance.response.constant_impedance
    assert [pv.rated_kv for pv in feeder.pv] == [pytest.approx(12.47 / np.sqrt(3.0)), 7.2, 7.2]
    assert any("1 PV system has a fixed reactive power" in words for words in feeder.as_operated.left_out)


CURVES = TABLES["CURVES"]


def test_volt_var_curves_of_the_file_are_those_of_their_pv(tmp_path: Path) -> None:
    feeder = feeder_of(tmp_path, more=CURVES + TABLES["VOLT_VAR"])
    one, two, three = feeder.pv
    assert feeder.as_operated.refused == ()
    assert two.curve == InverterCurve((0.92, 0.98, 1.02, 1.08), (0.44, 0.0, 0.0, -0.22), "rated")
    assert one.curve is not None
    assert one.curve.reference == "available"
    # The engine goes on with the slope of the ends, to the whole reference.
    assert one.curve.reactive == (1.0, 0.5, 0.0, 0.0, -0.5, -1.0)
    assert one.curve.voltage == pytest.approx((0.86, 0.92, 0.98, 1.02, 1.08, 1.14))
    assert three.curve is None


def test_one_phase_between_two_nodes_looks_at_its_voltage_to_ground(tmp_path: Path) -> None:
    more = CURVES + "New InvControl.a mode=voltvar vvc_curve1=full derlist=[pvsystem.three]"
    curve = feeder_of(tmp_path, more=more).pv[2].curve
    assert curve is not None
    assert curve.voltage[0] == pytest.approx(0.92 * np.sqrt(3.0))


@pytest.mark.parametrize(("control", "named"), TABLES["other_inverter_controls_are_named"])
def test_other_inverter_controls_are_named(tmp_path: Path, control: str, named: str) -> None:
    feeder = feeder_of(tmp_path, more=CURVES + control)
    (reason,) = feeder.as_operated.refused
    assert named in reason


def test_a_feeder_that_nothing_moves_has_no_operation(tmp_path: Path) -> None:
    feeder = feeder_of(tmp_path, control="")
    assert feeder.operation is None
    assert feeder.as_operated.y is feeder.y


def test_islanded_nodes_take_what_stands_on_them_along(tmp_path: Path) -> None:
    feeder = feeder_of(tmp_path, more=TABLES["LONE"], capacitor=BY_TIME, drop_islanded=True)
    operation = feeder.as_operated
    assert operation.nodes[: len(feeder.nodes)] == feeder.nodes
    assert [each.name for each in operation.regulators] == ["creg"]
    assert [bank.name for bank in operation.capacitors] == ["bank"]
    assert operation.generators == ()
    assert operation.left_out == ("1 generator where nothing feeds it",)
    assert operation.refused == ()
    balanced_with_the_engine(feeder, "Disable Transformer.lone")
