"""Optimal dispatch of snapshots: cost, optimality, prices, limits, and what is counted."""

from __future__ import annotations

import copy
import functools
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow import BatchSolver, Feeder, OperatedSolver
from dp_powerflow.errors import MissingExtraError
from dp_powerflow.grid.feeder import GROUND
from dp_powerflow.grid.pandapower.reader import read_pandapower
from dp_powerflow.studies.dispatch.dispatcher import Dispatched, Dispatcher, Options, Point, Snapshots, Unit
from dp_powerflow.units import ComplexArray
from support.pandapower_nets import quiet
from support.peer_dispatch import solve_with_cvxpy

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


def dispatched(
    feeder: Feeder, units: list[Unit], options: Options, load: ComplexArray, **more: Any
) -> Dispatched:
    one = np.ones(len(load))
    dispatcher = Dispatcher(BatchSolver(feeder, threads=1, tolerance=1e-11), units, options, **more)
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


def test_small_programs_have_the_optimum_of_the_whole_one_by_cvxpy() -> None:
    """Limits that cannot bind are left out; cvxpy gets all of them. The duality gap is closed."""
    feeder = dpf.open_feeder("ieee123")
    units = [
        Unit(f"u{k}", load.branches, 1.2 * load.kw, load.kw, 0.0, 0.04 + 1e-3 * (k % 7), 1e-5)
        for k, load in enumerate(feeder.loads[::5])
    ]
    options = Options(v_min=0.97, v_max=1.045, corrections=0)
    ampacity = {"60": 236.0, "13": 900.0}
    dispatcher = Dispatcher(BatchSolver(feeder, threads=1), units, options, ampacity)
    load = nominal(feeder) * np.array([[1.0], [0.95], [0.9]])
    one = np.ones(3)
    found = dispatcher.run(Snapshots(load, None, IMPORT * one, one, one > 0))
    assert found.status == ("solved",) * 3
    assert found.gap.max() < 1e-6
    assert (found.upper > 1e-3).any()
    assert (found.flow_dual > 1e-3).any()
    network, states = dispatcher.network, found.base
    linear = network.states(states.v, states.ratio, states.closed)
    flows, tangents = network.flows(linear), network.tangents(linear)
    imported = network.imported(flows).real
    there = network.number >= 0
    for k in range(3):
        point = Point(
            np.zeros(len(units), dtype=np.complex128),
            np.abs(linear.v[k][there]) ** 2,
            flows.received[k][there],
            float(imported[k]),
        )
        peer = solve_with_cvxpy(dispatcher.limits, tangents[k], point, dispatcher.unit_arrays(1.0), IMPORT)
        assert peer.status == "optimal"
        assert found.linear_cost[k] == pytest.approx(peer.cost * feeder.base_mva * 1e3, rel=1e-6)


def test_an_infeasible_snapshot_is_kept_and_marked() -> None:
    feeder = feeder33()
    load = np.concatenate([nominal(feeder), nominal(feeder, 2.5)])
    found = dispatched(feeder, units33(feeder)[:1], Options(v_min=0.9), load)
    assert found.status == ("solved", "infeasible")
    assert np.isnan(found.power[1]).all()
    np.testing.assert_array_equal(found.checked.v[1], found.base.v[1])
    assert np.isfinite(found.cost[1])


def test_snapshots_without_power_flow_are_kept_and_marked() -> None:
    feeder = feeder33()
    load = np.concatenate([nominal(feeder, 50.0), nominal(feeder)])
    found = dispatched(feeder, units33(feeder), Options(v_min=0.9), load)
    assert found.status == ("no power flow", "solved")


def test_optimised_taps_mend_what_units_alone_cannot() -> None:
    feeder = dpf.open_feeder("ieee123")
    units = [Unit("u", feeder.loads[0].branches, 20.0, 10.0, 0.0, 0.01)]
    load = nominal(feeder, 0.4)
    held = dispatched(feeder, units, Options(), load)
    moved = dispatched(feeder, units, Options(taps="optimised", corrections=1), load)
    assert held.status == ("infeasible",)
    assert moved.status == ("solved",)
    vm = np.abs(moved.checked.v[0])
    assert 0.9495 < vm.min() < vm.max() < 1.0505
    steps = (moved.checked.ratio - 1.0) / np.array([each.step for each in feeder.as_operated.regulators])
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)


def test_the_feeder_as_operated_keeps_its_limits_to_a_tap() -> None:
    feeder = dpf.open_feeder("ieee123")
    units = [
        Unit(f"u{k}", load.branches, load.kw, load.kw, 0.0, 0.04) for k, load in enumerate(feeder.loads[::6])
    ]
    dispatcher = Dispatcher(OperatedSolver(feeder, controls="day", steps=4, threads=1), units, Options())
    load = feeder.nominal_load[None] * np.array([[0.5], [0.7], [0.9], [0.6]])
    one = np.ones(4)
    found = dispatcher.run(Snapshots(load, None, IMPORT * one, one, np.array([True, True, False, True])))
    assert found.status == ("solved", "solved", "left out", "solved")
    np.testing.assert_allclose(found.linear_cost[[0, 1, 3]], found.cost[[0, 1, 3]], rtol=0.01)
    vm = np.abs(found.checked.v[:, dispatcher.network.node_of])
    np.testing.assert_allclose(vm[[0, 1, 3]], found.linear_vm[[0, 1, 3]], atol=0.02)


def test_a_missing_solver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clarabel", None)
    feeder = feeder33()
    with pytest.raises((MissingExtraError, ModuleNotFoundError), match=r"dp-powerflow\[opf\]"):
        dispatched(feeder, units33(feeder), Options(v_min=0.9), nominal(feeder))
