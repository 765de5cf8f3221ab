"""Unbalanced pandapower nets read phase by phase, against `runpp_3ph`."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg as sl

pytest.importorskip("pandapower")

from dp_powerflow import Feeder, OperatedSolver, Protected
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import GROUND
from dp_powerflow.grid.pandapower.reader import read_pandapower, with_declared_loads
from dp_powerflow.grid.sources import check_feeder
from dp_powerflow.lowlevel import Rebuilder
from dp_powerflow.units import ComplexArray
from support.pandapower_nets import quiet, unbalanced_net
from support.tables import tables_of

TABLES = tables_of(__file__)

PHASES = "abc"


def european(scenario: str = "on_peak_566") -> Any:
    """IEEE European LV on a small base: `runpp_3ph` stops at a mismatch that is relative to it."""
    with quiet():
        net = importlib.import_module("pandapower.networks").ieee_european_lv_asymmetric(scenario)
    net.sn_mva = 0.01
    return net


def injected(feeder: Feeder, v: ComplexArray) -> ComplexArray:
    """Complex (node,) currents of loads and PV systems of constant power, branch by branch [p.u.]."""
    current = np.zeros(len(feeder.nodes), dtype=complex)
    units = [(load.branches, -complex(load.kw, load.kvar)) for load in feeder.loads]
    units += [(pv.branches, complex(pv.kw_peak)) for pv in feeder.pv]
    for branches, kva in units:
        for i, j in branches:
            across = v[i] - (0.0 if j == GROUND else v[j])
            flow = np.conj(kva / 1000 / feeder.base_mva / len(branches) / across)
            current[i] += flow
            if j != GROUND:
                current[j] -= flow
    return current


def solved(feeder: Feeder) -> ComplexArray:
    """Complex (node,) voltages by the fixed point v = Y⁻¹·(I(v) − Y_s·v_s) [p.u.]."""
    at = feeder.energised
    factor = sl.splu(feeder.y[at, :][:, at].tocsc())
    from_slack = feeder.y[at, :][:, feeder.slack] @ feeder.v_slack
    v = np.zeros(len(feeder.nodes), dtype=complex)
    v[feeder.slack] = feeder.v_slack
    v[at] = factor.solve(-from_slack)
    for _ in range(100):
        v[at] = factor.solve(injected(feeder, v)[at] - from_slack)
    return v


def of_pandapower(net: Any, feeder: Feeder) -> tuple[list[int], ComplexArray]:
    """Nodes of all buses and their voltages in `runpp_3ph`."""
    net = copy.deepcopy(net)
    with quiet() as pp:
        pp.runpp_3ph(net, numba=False)
    nodes, voltages = [], []
    for bus, first in feeder.origin.node_of_bus.items():  # type: ignore[attr-defined]
        row = net.res_bus_3ph.loc[bus]
        for k, p in enumerate(PHASES):
            nodes.append(feeder.node_index[first] + k)
            voltages.append(row[f"vm_{p}_pu"] * np.exp(1j * np.deg2rad(row[f"va_{p}_degree"])))
    return nodes, np.array(voltages)


def largest_difference(net: Any) -> float:
    feeder = read_pandapower(net, name="net")
    nodes, expected = of_pandapower(net, feeder)
    return float(np.max(np.abs(solved(feeder)[nodes] - expected)))


def changed(net: Any, **figures: object) -> Any:
    """The net with other figures of its transformer."""
    for column, value in figures.items():
        net.trafo[column] = value
    return net


# ------------------------------------------------------------------------------------- against runpp_3ph


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["on_peak_566", "off_peak_1", "off_peak_1440"])
def test_european_low_voltage_feeder_has_the_voltages_of_runpp_3ph(scenario: str) -> None:
    assert largest_difference(european(scenario)) < 1e-9


@pytest.mark.slow
def test_solver_of_the_feeder_as_operated_has_the_voltages_of_runpp_3ph() -> None:
    for net in (unbalanced_net(), european()):
        net.asymmetric_sgen["in_service"] = False
        feeder = read_pandapower(net, name="net")
        nodes, expected = of_pandapower(net, feeder)
        solution = OperatedSolver(feeder).solve(np.array([feeder.nominal_load]), nodes="all")
        v = np.zeros(len(feeder.nodes), dtype=complex)
        v[feeder.energised] = solution.v[0]
        assert solution.converged.all()
        assert np.max(np.abs(v[nodes] - expected)) < 1e-7


@pytest.mark.parametrize("figures", TABLES["transformers_are_those_of_runpp_3ph"], ids=str)
def test_transformers_are_those_of_runpp_3ph(figures: dict[str, object]) -> None:
    assert largest_difference(changed(unbalanced_net(), **figures)) < 2e-8


def test_a_zigzag_transformer_is_that_of_runpp_3ph_on_a_base_of_1_mva() -> None:
    net = changed(unbalanced_net(), vector_group="Yzn")
    net.sn_mva = 1.0
    assert largest_difference(net) < 1e-7


def test_two_sources_and_zero_sequence_impedances_are_those_of_runpp_3ph() -> None:
    net = unbalanced_net()
    with quiet() as pp:
        end = pp.create_bus(net, vn_kv=20, name="end")
        source = {"s_sc_max_mva": 90.0, "rx_max": 0.3, "x0x_max": 2.0, "r0x0_max": 0.4}
        pp.create_ext_grid(net, end, vm_pu=1.02, **source)
        zero = {"rft0_pu": 0.03, "xft0_pu": 0.09, "gf0_pu": 0.0, "bf0_pu": 0.0}
        pp.create_impedance(net, 1, end, 0.01, 0.04, 2.0, **zero)
        net.impedance[["rtf0_pu", "xtf0_pu", "gt0_pu", "bt0_pu"]] = [0.03, 0.09, 0.0, 0.0]
    assert largest_difference(net) < 2e-8


# ---------------------------------------------------------------------------------------- what is what


def test_a_bus_has_three_nodes_and_the_source_stands_behind_its_impedance() -> None:
    feeder = read_pandapower(unbalanced_net(), name="net", base_mva=0.5)
    assert feeder.base_mva == 0.5
    assert feeder.nodes[:3] == ("bar.1", "bar.2", "bar.3")
    assert feeder.nodes[-6:] == tuple(f"{name}.{k}" for name in ("grid", "emf(grid)") for k in (1, 2, 3))
    assert feeder.slack.tolist() == [len(feeder.nodes) - k for k in (3, 2, 1)]
    np.testing.assert_allclose(feeder.v_slack, 1.02 * np.exp(-2j * np.pi / 3 * np.arange(3)))
    angle = dict(zip(feeder.nodes, feeder.nominal_angle_deg.tolist(), strict=True))
    assert [angle[f"grid.{k}"] for k in (1, 2, 3)] == [0.0, -120.0, 120.0]
    assert [angle[f"low.{k}"] for k in (1, 2, 3)] == [-150.0, 90.0, -30.0]
    assert feeder.base_kv[feeder.node_index["low.2"]] == pytest.approx(0.4 / np.sqrt(3))
    check_feeder(feeder)


def test_loads_are_connected_as_the_net_says() -> None:
    feeder = read_pandapower(unbalanced_net(), name="net")

    def at(name: str) -> list[str]:
        load = next(load for load in feeder.loads if load.name == name)
        return ["-".join(feeder.nodes[k] for k in pair if k != GROUND) for pair in load.branches]

    assert {load.name: [load.connection, *at(load.name)] for load in feeder.loads} == TABLES["connections"]
    powers = {load.name: (load.kw, load.kvar) for load in feeder.loads}
    assert powers["two a"] == pytest.approx((18.0, 3.6))
    assert powers["triangle"] == pytest.approx((30.0, 10.0))
    assert {pv.name: pv.kw_peak for pv in feeder.pv} == pytest.approx({"roof a": 6.0, "roof b": 2.0})


def test_a_line_between_phases_has_its_own_and_mutual_impedance() -> None:
    net = unbalanced_net()
    net.line[["c_nf_per_km", "c0_nf_per_km"]] = 0.0
    line = read_pandapower(net, name="net", base_mva=0.5).lines[0]
    ohm = np.linalg.inv(line.primitive[:3, :3]) * (20.0**2 / 3) / 0.5
    zero, positive = 3.1 * (0.93 + 1.31j), 3.1 * (0.31 + 0.38j)
    expected = np.full((3, 3), (zero - positive) / 3) + np.eye(3) * positive
    np.testing.assert_allclose(ohm, expected, rtol=1e-9)


def test_a_net_without_unbalanced_elements_is_balanced() -> None:
    net = unbalanced_net()
    for kind in ("asymmetric_load", "asymmetric_sgen"):
        net[kind]["in_service"] = False
    feeder = read_pandapower(net, name="net", base_mva=0.5)
    assert feeder.base_mva == 1.5
    assert all(node.endswith(".1") for node in feeder.nodes)


@pytest.mark.parametrize(("change", "says"), TABLES["without_zero_sequence_figures_it_is_balanced"])
def test_without_zero_sequence_figures_it_is_balanced_and_says_what_to_do(
    change: dict[str, Any], says: str
) -> None:
    net = unbalanced_net()
    for kind, column, value in change.get("set", ()):
        net[kind].loc[net[kind].index[-1], column] = value
    for kind, column in change.get("drop", ()):
        net[kind].drop(columns=column, inplace=True)
    with quiet() as pp:
        for figures in change.get("gen", ()):
            pp.create_gen(net, **figures)
    feeder = read_pandapower(net, name="net")
    assert all(node.endswith(".1") for node in feeder.nodes)
    assert any(
        says in note and note.startswith("4 unbalanced elements became balanced") for note in feeder.notes
    )
    assert sum(load.kw for load in feeder.loads) == pytest.approx(90 + 27 + 22 + 300)


def test_declared_loads_replace_those_of_single_phases() -> None:
    feeder = read_pandapower(unbalanced_net(), name="net")
    powers = {load.name.lower(): (1.0 + k, 0.5) for k, load in enumerate(feeder.loads)}
    declared = with_declared_loads(feeder, powers)
    assert {load.name.lower(): (load.kw, load.kvar) for load in declared.loads} == {
        name: pytest.approx(power) for name, power in powers.items()
    }
    with pytest.raises(FeederError, match="the load table states"):
        with_declared_loads(feeder, {**powers, "two": (1.0, 0.0), "two a": (0.0, 0.0)})


# --------------------------------------------------------------------------------------------- its twin


@pytest.mark.parametrize("protected", [Protected(), Protected(lines="length"), Protected(transformers=True)])
def test_a_twin_with_the_true_levels_has_nearly_the_true_voltages(protected: Protected) -> None:
    feeder = read_pandapower(unbalanced_net(), name="net")
    rebuilder = Rebuilder(feeder, protected)
    parameters = rebuilder.parameters()
    rebuilder.check(parameters)
    twin = rebuilder.build(parameters.levels)
    assert twin.nodes == feeder.nodes
    assert [load.name for load in twin.loads] == [load.name for load in feeder.loads]
    assert [pv.kw_peak for pv in twin.pv] == pytest.approx([6.0, 2.0])
    assert np.max(np.abs(solved(twin) - solved(feeder))) < 2e-3


def test_zero_sequence_of_a_twins_line_follows_its_own_level() -> None:
    feeder = read_pandapower(unbalanced_net(), name="net")
    rebuilder = Rebuilder(feeder)
    levels = {key: 1.37 * level for key, level in rebuilder.parameters().levels.items()}
    line = rebuilder.build(levels).origin.net.line.loc[0]  # type: ignore[attr-defined]
    assert line.r0_ohm_per_km / line.r_ohm_per_km == 3.0
    assert line.x0_ohm_per_km / line.x_ohm_per_km == pytest.approx(55 / 16)  # 1.31/0.38 in sixteenths
    assert line.r_ohm_per_km * line.length_km == pytest.approx(1.37 * 3.1 * 0.31)
