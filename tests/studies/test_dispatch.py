"""Optimal dispatch of snapshots: cost, optimality, prices, limits, and what is counted."""

from __future__ import annotations

import copy
import functools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

import dp_powerflow as dpf
from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import ConfigError, FeederError, MissingExtraError
from dp_powerflow.grid.feeder import GROUND, Line
from dp_powerflow.grid.pandapower.reader import read_pandapower
from dp_powerflow.lowlevel import Study
from dp_powerflow.studies.dispatch import DeclaredUnit, OptimalDispatch
from dp_powerflow.studies.dispatch.dispatcher import Dispatched, Dispatcher, Options, Snapshots, Unit
from dp_powerflow.studies.dispatch.network import AcStates, BusTree, LinDistFlow, P, Q, U
from dp_powerflow.studies.study import Findings, sentences_of
from dp_powerflow.units import ComplexArray, FloatArray
from support.pandapower_nets import quiet
from support.studies import drawn_study

CASES = json.loads(Path(__file__).with_name("settings.json").read_bytes())
IMPORT = 0.05
UNITS_33 = ((17, 600.0, 800.0, 0.030), (24, 500.0, 600.0, 0.035), (32, 700.0, 900.0, 0.025))
"""Bus, kW, kVA, cost per kWh."""


@functools.cache
def net33() -> Any:
    with quiet():
        networks = pytest.importorskip("pandapower.networks")
        net = networks.case33bw()
        net.line.drop(net.line.index[~net.line.in_service], inplace=True)
        return net


@functools.cache
def feeder33() -> Feeder:
    with quiet():
        return read_pandapower(net33(), name="case33bw")


def units33(feeder: Feeder) -> list[Unit]:
    return [
        Unit(f"u{bus}", ((feeder.node_index[f"bus {bus}.1"], GROUND),), kva, kw, 0.0, cost)
        for bus, kw, kva, cost in UNITS_33
    ]


def nominal(feeder: Feeder, scale: float = 1.0) -> ComplexArray:
    return np.asarray(-scale * feeder.nominal_injection[feeder.retained][None])


def dispatched(feeder: Feeder, units: list[Unit], options: Options, load: ComplexArray) -> Dispatched:
    one = np.ones(len(load))
    dispatcher = Dispatcher(BatchSolver(feeder, threads=1, tolerance=1e-11), units, options)
    return dispatcher.run(Snapshots(load, None, IMPORT * one, one, one > 0))


def pandapower_optimum(v_min: float) -> tuple[float, Any]:
    """Cost per hour of the same case by pandapower's AC optimal power flow, whose units have a box of q."""
    with quiet() as pp:
        net = copy.deepcopy(net33())
        net.poly_cost.drop(net.poly_cost.index, inplace=True)
        net.bus["min_vm_pu"], net.bus["max_vm_pu"] = v_min, 1.05
        net.ext_grid[["min_p_mw", "min_q_mvar"]] = -10.0
        net.ext_grid[["max_p_mw", "max_q_mvar"]] = 20.0
        net.line.drop(columns="max_loading_percent", inplace=True)
        pp.create_poly_cost(net, 0, "ext_grid", cp1_eur_per_mw=1e3 * IMPORT)
        for bus, kw, kva, cost in UNITS_33:
            q = np.sqrt(kva**2 - kw**2) / 1e3
            box = {"max_p_mw": kw / 1e3, "min_p_mw": 0.0, "max_q_mvar": q, "min_q_mvar": -q}
            unit = pp.create_sgen(net, bus, 0.0, q_mvar=0.0, controllable=True, **box)
            pp.create_poly_cost(net, unit, "sgen", cp1_eur_per_mw=1e3 * cost)
        pp.runopp(net, verbose=False, numba=False)
    return float(net.res_cost), net


@pytest.mark.slow
def test_the_cost_on_case33bw_is_that_of_an_ac_optimal_power_flow() -> None:
    cost, net = pandapower_optimum(0.95)
    feeder = feeder33()
    for corrections, close in ((0, 5e-3), (1, 2e-5)):
        options = Options(v_min=0.95, corrections=corrections, per_kw=0.0)
        found = dispatched(feeder, units33(feeder), options, nominal(feeder))
        assert found.status == ("solved",)
        assert found.linear_cost[0] == pytest.approx(cost, rel=close)
        assert found.cost[0] == pytest.approx(cost, rel=1e-4)
    # Power is at its limit in all three units, so the box of q is the inverter's own limit.
    np.testing.assert_allclose(found.power[0].real, net.res_sgen.p_mw * 1e3, rtol=1e-4)
    np.testing.assert_allclose(found.power[0].imag, net.res_sgen.q_mvar * 1e3, rtol=5e-3)


def test_a_binding_voltage_limit_is_held_after_the_ac_check() -> None:
    feeder = feeder33()
    units = [replace(unit, cost_per_kwh=0.09) for unit in units33(feeder)]
    options = Options(v_min=0.945, corrections=2, per_kw=0.0)
    found = dispatched(feeder, units, options, nominal(feeder))
    free = dispatched(feeder, units, replace(options, v_min=0.5), nominal(feeder))
    lowest = np.abs(found.checked.v).min()
    assert np.abs(free.checked.v).min() < 0.941
    assert lowest == pytest.approx(0.945, abs=1e-6)
    assert found.cost[0] > free.cost[0]
    assert found.lower.max() > 1.0
    assert found.lower.max() == pytest.approx(_saved_by_limit(feeder, units, options), rel=0.02)


def _saved_by_limit(feeder: Feeder, units: list[Unit], options: Options) -> float:
    """Cost saved per hour and p.u. of a lower voltage limit, by finite differences of AC-checked costs."""
    h = 1e-4
    costs = [
        dispatched(feeder, units, replace(options, v_min=options.v_min + side * h), nominal(feeder)).cost[0]
        for side in (-1.0, 1.0)
    ]
    return float(costs[1] - costs[0]) / (2.0 * h)


def test_nodal_prices_are_finite_differences_of_the_checked_cost() -> None:
    feeder = dpf.open_feeder("ieee13")
    units = [
        Unit("a", feeder.loads[0].branches, 500.0, 400.0, 0.0, 0.03, 1e-4),
        Unit("b", feeder.loads[5].branches, 300.0, 250.0, 0.0, 0.06, 1e-4),
    ]
    options = Options(v_min=0.8, v_max=1.2, corrections=2, per_kw=0.0)
    load, base_kva = nominal(feeder, 0.7), feeder.base_mva * 1e3
    found = dispatched(feeder, units, options, load)
    network = Dispatcher(BatchSolver(feeder), units, options).network
    place = {int(node): k for k, node in enumerate(network.node_of.tolist())}
    h = 1.0 / base_kva
    # Not a node of a delta load, whose power goes with that of another.
    wye = [k for k, node in enumerate(feeder.retained.tolist()) if _wye_only(feeder, node)]
    for column in wye[::4]:
        for step, part in ((h, "real"), (1j * h, "imag")):
            costs = []
            for side in (-1.0, 1.0):
                moved = load.copy()
                moved[0, column] += side * step
                costs.append(dispatched(feeder, units, options, moved).cost[0])
            slope = (costs[1] - costs[0]) / 2.0
            price = getattr(found.price[0, place[int(feeder.retained[column])]], part)
            assert price == pytest.approx(slope, abs=2e-5)


def _wye_only(feeder: Feeder, node: int) -> bool:
    return all(GROUND in pair for load in feeder.loads for pair in load.branches if node in pair)


def test_limits_that_are_left_out_of_a_program_are_kept_all_the_same() -> None:
    """What cannot bind is left out, so the whole program has the same optimum if it keeps every limit."""
    feeder = dpf.open_feeder("ieee123")
    units = [
        Unit(f"u{k}", load.branches, 1.2 * load.kw, load.kw, 0.0, 0.04 + 1e-3 * (k % 7), 1e-5)
        for k, load in enumerate(feeder.loads[::5])
    ]
    options = Options(v_min=0.97, v_max=1.045, corrections=2)
    ampacity = {"60": 236.0, "13": 900.0}
    load, one = nominal(feeder) * np.array([[1.0], [0.95], [0.9]]), np.ones(3)
    dispatcher = Dispatcher(BatchSolver(feeder, threads=1, tolerance=1e-11), units, options, ampacity)
    found = dispatcher.run(Snapshots(load, None, IMPORT * one, one, one > 0))
    assert found.status == ("solved",) * 3
    assert (found.upper > 1e-3).any()
    assert (found.flow_dual > 1e-3).any()
    network = dispatcher.network
    vm = np.abs(found.checked.v[:, network.node_of])
    assert vm.max() <= options.v_max + 1e-4
    assert vm.min() >= options.v_min - 1e-4
    current = np.abs(network.flows(found.checked).received[:, network.number >= 0]) / vm
    assert (current <= dispatcher.limits.current * (1.0 + 1e-3)).all()


def test_snapshots_without_dispatch_or_power_flow_are_kept_and_marked() -> None:
    feeder = feeder33()
    load = np.concatenate([nominal(feeder, scale) for scale in (1.0, 2.5, 50.0)])
    found = dispatched(feeder, units33(feeder)[:1], Options(v_min=0.9), load)
    assert found.status == ("solved", "infeasible", "no power flow")
    assert np.isnan(found.power[1]).all()
    np.testing.assert_array_equal(found.checked.v[1], found.base.v[1])
    assert np.isfinite(found.cost[1])


def test_a_missing_solver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clarabel", None)
    feeder = feeder33()
    with pytest.raises((MissingExtraError, ModuleNotFoundError), match=r"dp-powerflow\[opf\]"):
        dispatched(feeder, units33(feeder), Options(v_min=0.9), nominal(feeder))


# --- optimal dispatch as a derived release: placing, tables, counts, and the same bits for any workers --
@functools.cache
def small() -> Study:
    """IEEE 13 in the fixed frame: two days of six steps."""
    return drawn_study(dpf.open_feeder("ieee13"), level=0.7)


WIDE = OptimalDispatch(unit_share=0.5, v_min_pu=0.85, v_max_pu=1.15)


@functools.cache
def found() -> Findings:
    return WIDE.find(small(), workers=1)


def lists(table: pa.Table, name: str) -> np.ndarray:
    return np.array(table.column(name).to_pylist(), dtype=np.float64)


def test_the_bits_do_not_depend_on_the_workers() -> None:
    one, two = found(), WIDE.find(small(), workers=2)
    assert list(one.tables) == list(two.tables)
    assert all(table.equals(two.tables[name]) for name, table in one.tables.items())
    assert one.figures == two.figures


def test_every_snapshot_is_a_row_and_every_list_has_its_steps() -> None:
    study, tables = small(), found().tables
    snapshots = tables["snapshots.parquet"]
    assert snapshots.num_rows == study.days * study.steps
    assert set(snapshots.column("status").to_pylist()) == {"solved"}
    for folder, rows in (("dispatch", 8), ("voltages", 41), ("loads", 41), ("duals", 41)):
        table = tables[f"{folder}/part-00000.parquet"]
        assert table.num_rows == study.days * rows
        for name in table.schema.names[2:]:
            assert set(map(len, table.column(name).to_pylist())) == {study.steps}
    assert json.loads(json.dumps(found().figures)) == found().figures


def test_published_powers_balance_with_the_published_import() -> None:
    """Import is load less dispatch plus losses, and losses are small and not negative."""
    tables = found().tables
    snapshots = tables["snapshots.parquet"]
    drawn = lists(tables["loads/part-00000.parquet"], "p_kw").reshape(2, -1, 6).sum(axis=1).ravel()
    given = lists(tables["dispatch/part-00000.parquet"], "p_kw").reshape(2, -1, 6).sum(axis=1).ravel()
    imported = snapshots.column("import_kw").to_numpy()
    losses = imported - (drawn - given)
    assert (losses > 0.0).all()
    assert (losses < 0.06 * drawn).all()
    np.testing.assert_allclose(given, snapshots.column("units_kw").to_numpy(), atol=0.01)
    linear, checked = (snapshots.column(name).to_numpy() for name in ("linear_cost_per_h", "cost_per_h"))
    np.testing.assert_allclose(linear, checked, rtol=1e-3)
    assert (checked < snapshots.column("cost_without_units_per_h").to_numpy()).all()


def test_voltages_beyond_limits_are_counted_by_size() -> None:
    """A limit that no dispatch can keep: nothing is hidden."""
    kind = OptimalDispatch(unit_share=0.5, v_min_pu=0.85, v_max_pu=1.0)
    result = kind.find(small(), workers=1)
    total = small().days * small().steps
    assert result.figures["by_status"] == {"infeasible": total}
    assert result.figures["snapshots_beyond_voltage"]["0.01"] == total
    assert any(
        f"{total} snapshots have no dispatch" in text for text in sentences_of(kind, result.figures, 2)
    )
    table = result.tables["snapshots.parquet"]
    assert table.num_rows == total
    assert min(table.column("voltages_beyond").to_pylist()) > 0
    worst = table.column("worst_voltage_pu").to_numpy()
    np.testing.assert_allclose(worst, table.column("vm_max_pu").to_numpy() - 1.0, atol=2e-6)
    dispatch = result.tables["dispatch/part-00000.parquet"]
    assert dispatch.column("p_kw").to_pylist()[0] == [None] * small().steps


def test_units_stand_where_they_are_declared() -> None:
    study = small()
    kind = OptimalDispatch(
        units=(
            DeclaredUnit(node="n003", kw=30.0),
            DeclaredUnit(bus="671", phases=(1, 3), kw=60.0, kva=80.0, kw_min=-20.0),
            DeclaredUnit(bus="675", kw=90.0, sun=True),
        ),
        v_min_pu=0.85,
        v_max_pu=1.15,
        price_per_kwh=(0.05, 0.05, 0.05, 0.2, 0.2, 0.2),
    )
    result = kind.find(study, workers=1)
    units = result.tables["units.parquet"].to_pylist()
    assert units[0]["nodes"] == ["n003"]
    assert len(units[1]["nodes"]) == 2
    assert len(units[2]["nodes"]) == 3
    p = lists(result.tables["dispatch/part-00000.parquet"], "p_kw").reshape(2, 3, 6)
    assert (p[:, 0, :3] < 1.0).all()
    assert (p[:, 0, 3:] > 29.0).all()
    assert p[:, 1].min() < -15.0
    irradiance = study.irradiance
    assert irradiance is not None
    assert (p[:, 2] <= 90.0 * irradiance + 0.001).all()


@pytest.mark.parametrize(("settings", "words"), CASES["dispatch that does not fit"])
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OptimalDispatch.model_validate_json(json.dumps(settings)).check(small())


def test_impossible_settings_are_refused_when_made() -> None:
    for settings in ({"v_min_pu": 1.1}, {"price_per_kwh": ()}, {"nonsense": 1}, {"units": ({"kw": 1.0},)}):
        with pytest.raises(ValidationError):
            OptimalDispatch.model_validate(settings)


@pytest.mark.slow
def test_the_feeder_as_operated_is_dispatched_with_its_controls() -> None:
    study = drawn_study(dpf.open_feeder("ieee123"), days=1, operated=True)
    kind = OptimalDispatch(ampacity_a=500.0, unit_share=0.3)
    result = kind.find(study, workers=1)
    assert result.figures["by_status"] == {"solved": 6}
    assert result.figures["largest_cost_error_percent"] < 1.0
    flows = result.tables["flows/part-00000.parquet"]
    assert flows.num_rows == result.tables["branches.parquet"].num_rows > 200


# --- the linear equations of a three-phase feeder against AC power flow ---
@pytest.fixture(scope="module", params=["ieee13", "ieee123"])
def feeder(request: pytest.FixtureRequest) -> Feeder:
    return dpf.open_feeder(str(request.param))


def ac(feeder: Feeder, level: float, injected: ComplexArray | None = None) -> ComplexArray:
    """Complex (1, node) voltages of the loads at a share of nominal."""
    load = -level * feeder.nominal_injection[feeder.retained][None]
    solution = BatchSolver(feeder, threads=1, tolerance=1e-11).solve(
        load, None if injected is None else injected[None], nodes="all"
    )
    solution.raise_if_failed()
    v = np.empty((1, len(feeder.nodes)), dtype=np.complex128)
    v[:, feeder.energised], v[:, feeder.slack] = solution.v, feeder.v_slack
    return v


def states_of(network: LinDistFlow, v: ComplexArray) -> AcStates:
    closed = np.array([[float(bank.closed) for bank in network.tree.feeder.as_operated.capacitors]])
    return AcStates(v, network.tree.ratio[None], closed.reshape(1, -1), np.ones(1, dtype=np.bool_))


def injection(feeder: Feeder, size: float) -> ComplexArray:
    rng = np.random.default_rng(3)
    n = len(feeder.retained)
    # A delta load stands between phases: what is injected there must sum to no current, so follow the loads.
    return np.asarray(-feeder.nominal_injection[feeder.retained] * size * rng.uniform(0.9, 1.1, n).mean())


def right_side(network: LinDistFlow, injected: ComplexArray) -> FloatArray:
    feeder, n = network.tree.feeder, network.places
    nodal = np.zeros(len(feeder.nodes), dtype=np.complex128)
    nodal[feeder.retained] = injected
    right = np.zeros((4 * n, 1))
    right[P * n : (P + 1) * n, 0] = -nodal[network.node_of].real
    right[Q * n : (Q + 1) * n, 0] = -nodal[network.node_of].imag
    return right


def test_the_tangent_at_an_ac_solution_errs_by_the_square_of_the_change(feeder: Feeder) -> None:
    network = LinDistFlow(BusTree.of(feeder))
    v = ac(feeder, 0.6)
    states = states_of(network, v)
    tangent, n = network.tangents(states)[0], network.places
    imported = network.imported(network.flows(states))[0]
    gaps, import_gaps = [], []
    for size in (0.2, 0.02):
        injected = injection(feeder, size)
        moved = ac(feeder, 0.6, injected)
        z = tangent.changes(right_side(network, injected))[:, 0]
        change = np.abs(moved[0, network.node_of]) ** 2 - np.abs(v[0, network.node_of]) ** 2
        gaps.append(np.abs(change - z[U * n : (U + 1) * n]).max() / np.abs(change).max())
        p, q = (slope @ z for slope in tangent.import_gradient())
        second = float(np.sum((tangent.loss_factor() @ z) ** 2))
        true = network.imported(network.flows(states_of(network, moved)))[0] - imported
        import_gaps.append(abs(true.real - p - second) / abs(true.real))
        assert abs(true.imag - q) < 0.2 * abs(true.imag)
    assert gaps[0] < 0.05
    assert gaps[1] < gaps[0] / 7
    assert import_gaps[0] < 1e-3
    assert import_gaps[1] < import_gaps[0]


def test_a_meshed_feeder_is_refused_with_the_line_to_open() -> None:
    feeder = dpf.open_feeder("ieee13")
    one, other = feeder.lines[0], feeder.lines[-1]
    ends = (*one.nodes[:1], *other.nodes[-1:])
    loop = Line("loop", ends, np.array([[1.0, -1.0], [-1.0, 1.0]]) * (10 - 30j), 100.0, False)
    y = feeder.y.tolil()
    y[np.ix_(ends, ends)] = y[np.ix_(ends, ends)].toarray() + loop.primitive
    meshed = replace(feeder, y=y.tocsc(), lines=(*feeder.lines, loop), operation=None)
    with pytest.raises(FeederError, match=r"meshed.*open line '"):
        BusTree.of(meshed)
