"""Tap controls of pandapower nets, against pandapower's own control loop."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("pandapower")

from dp_powerflow import Feeder, OperatedSolver
from dp_powerflow.grid.feeder import TAPS_SOLVED
from dp_powerflow.grid.pandapower.reader import read_pandapower
from dp_powerflow.powerflow.operated import LEVELS, PER_NOMINAL
from support.pandapower_nets import quiet, small_net, unbalanced_net

BAND = (0.985, 1.005)


def control(net: Any, *where: Any, kind: str = "DiscreteTapControl", **settings: Any) -> Any:
    """The net with a controller more."""
    with quiet():
        getattr(importlib.import_module("pandapower.control"), kind)(net, *where, **settings)
    return net


def tapped(*, side: str = "hv", step: float = 1.25, position: int = 0) -> Any:
    """The small net with many taps and no generation; a tap control holds the low voltage."""
    net = small_net()
    net.load.loc[1, "p_mw"] = 0.4
    net.sgen["in_service"] = False
    net.trafo["tap_side"], net.trafo["tap_step_percent"] = side, step
    net.trafo["tap_min"], net.trafo["tap_max"], net.trafo["tap_pos"] = -9, 9, position
    return control(net, 0, *BAND)


def oberrhein() -> Any:
    """Two transformers below sources, with a control each."""
    with quiet() as pp:
        folder = Path(importlib.import_module("pandapower.networks").__file__ or "").parent
        net = pp.from_json(str(folder / "mv_oberrhein.json"))
    net.trafo["tap_pos"], net.trafo["tap_changer_type"] = 0, "Ratio"
    net.sgen["in_service"] = False
    for index in net.trafo.index:
        control(net, int(index), 0.99, 1.015)
    return net


def side_by_side() -> Any:
    """Two transformers between the same two buses."""
    net = tapped()
    net.controller = net.controller.iloc[:0]
    with quiet() as pp:
        pp.create_transformer(net, 4, 5, "0.63 MVA 20/0.4 kV", name="second")
    for column in ("tap_side", "tap_step_percent", "tap_min", "tap_max", "tap_pos", "tap_changer_type"):
        net.trafo[column] = net.trafo[column].iloc[0]
    net.trafo["tap_pos"] = 0
    return control(net, [0, 1], *BAND)


def at_ratios(feeder: Feeder, ratios: list[float]) -> sp.csc_array:
    """Y of the feeder as operated with its ideal ratios in it: v_inner = v_outer/t."""
    operation = feeder.as_operated
    n = len(feeder.nodes)
    pairs = [pair for regulator in operation.regulators for pair in regulator.phases]
    rows, columns = np.r_[np.arange(n), [i for i, _ in pairs]], np.r_[np.arange(n), [o for _, o in pairs]]
    values = np.r_[np.ones(n), 1.0 / np.array(ratios)]
    joint = sp.csc_array((values, (rows, columns)), shape=(len(operation.nodes), n))
    return sp.csc_array(joint.T @ operation.y @ joint)


@pytest.mark.parametrize(("side", "step"), [("hv", 1.25), ("hv", -1.25), ("lv", 1.25), ("lv", -0.5)])
@pytest.mark.parametrize("position", [-7, 0, 4])
def test_the_feeder_as_operated_is_that_of_the_net_at_every_position(
    side: str, step: float, position: int
) -> None:
    feeder = read_pandapower(tapped(side=side, step=step), name="net")
    fixed = read_pandapower(tapped(side=side, step=step, position=position), name="net")
    (regulator,) = feeder.as_operated.regulators
    ratio = 1.0 + position * step / 100.0
    assert regulator.lowest <= ratio <= regulator.highest
    steps = (ratio - 1.0) / regulator.step
    assert steps == pytest.approx(round(steps), abs=1e-9)
    assert regulator.opposite == (side == "hv")
    y = fixed.y.toarray()
    np.testing.assert_allclose(at_ratios(feeder, [ratio]).toarray(), y, atol=1e-7 * np.abs(y).max())
    at = feeder.node_index["low.1"]
    np.testing.assert_allclose(at_ratios(feeder, [ratio]).toarray()[at], y[at], rtol=1e-6, atol=1e-6)


def test_a_control_becomes_a_regulator_in_volts() -> None:
    feeder = read_pandapower(tapped(position=-2), name="net")
    (regulator,) = feeder.as_operated.regulators
    nodes = feeder.as_operated.nodes
    assert [(nodes[i], nodes[o]) for i, o in regulator.phases] == [("inner(step).1", "tap(step).1")]
    assert [nodes[i] for i, _ in regulator.measured] == ["low.1"]
    assert (regulator.target_v, regulator.band_v) == pytest.approx((119.4, 2.4))
    assert regulator.pt_ratio * 120.0 == pytest.approx(400.0 / np.sqrt(3))
    assert (regulator.steps, regulator.most_steps) == (18, 1)
    assert (regulator.lowest, regulator.highest) == pytest.approx((0.8875, 1.1125))
    assert feeder.taps_from == TAPS_SOLVED
    assert feeder.taps[0].ratio == pytest.approx(0.975)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [tapped, lambda: tapped(side="lv"), lambda: tapped(step=-1.25), side_by_side, oberrhein],
    ids=["hv", "lv", "negative", "side by side", "oberrhein"],
)
def test_taps_and_voltages_are_those_of_pandapowers_control(make: Callable[[], Any]) -> None:
    net = make()
    feeder = read_pandapower(net, name="net")
    level = (np.arange(LEVELS) + 0.5) / PER_NOMINAL  # those that the table of taps solves from neutral
    found = OperatedSolver(feeder).solve(level[:, None] * feeder.nominal_load, nodes="all")
    assert found.converged.all()
    position = {int(node): k for k, node in enumerate(feeder.energised)}
    sign = np.sign(net.trafo.tap_step_percent.to_numpy()).astype(int)
    for k in range(0, LEVELS, 4):
        solved = copy.deepcopy(net)
        solved.load["scaling"] *= level[k]
        with quiet() as pp:
            options = {"run_control": True, "numba": False, "calculate_voltage_angles": True}
            pp.runpp(solved, **options, tolerance_mva=1e-10)
        assert (found.taps[k] == sign * solved.trafo.tap_pos.to_numpy()).all()
        for bus, node in feeder.origin.node_of_bus.items():  # type: ignore[attr-defined]
            if feeder.node_index[node] in position:
                row = solved.res_bus.loc[bus]
                expected = row.vm_pu * np.exp(1j * np.deg2rad(row.va_degree))
                assert abs(found.v[k, position[feeder.node_index[node]]] - expected) < 1e-7


def test_a_control_that_does_nothing_or_sets_loads_is_no_regulator() -> None:
    net = control(small_net(), "load", "p_mw", 0, kind="ConstControl")
    assert read_pandapower(net, name="net").operation is None
    net = tapped()
    net.trafo["in_service"] = False
    with quiet() as pp:
        pp.create_line_from_parameters(net, 4, 5, 0.1, 0.1, 0.1, 0.0, 1.0)
    assert read_pandapower(net, name="net").operation is None
    net = tapped()
    net.controller["in_service"] = False
    assert read_pandapower(net, name="net").operation is None
    assert "tap(step).1" not in read_pandapower(net, name="net").nodes


def with_two_levels() -> Any:
    net = side_by_side()
    net.controller = net.controller.iloc[:0]
    control(net, 0, *BAND, level=0)
    return control(net, 1, *BAND, level=1)


def turning() -> Any:
    net = tapped()
    net.trafo["tap_changer_type"], net.trafo["tap_step_degree"] = "Ideal", 1.2
    net.trafo["tap_step_percent"] = np.nan
    return net


def without_range() -> Any:
    net = tapped()
    net.trafo["tap_max"] = np.nan
    return net


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: control(small_net(), 0, 1.0, kind="ContinuousTapControl"), "ContinuousTapControl are not"),
        (lambda: control(tapped(), "shunt", "step", 0, kind="ConstControl"), "ConstControl are not modelled"),
        (lambda: control(small_net(), 0, *BAND, element="trafo3w", side="mv"), "with three windings"),
        (lambda: control(tapped(), 0, *BAND), "two tap controls; keep one"),
        (lambda: control(unbalanced_net(), 0, *BAND), "of unbalanced nets are not modelled"),
        (with_two_levels, "of different levels"),
        (turning, "does not move a plain turns ratio"),
        (without_range, "has no range; state tap_min"),
    ],
)
def test_what_the_solver_does_not_model_is_named(make: Callable[[], Any], says: str) -> None:
    operation = read_pandapower(make(), name="net").as_operated
    assert operation.regulators == ()
    assert any(says in sentence for sentence in operation.refused)
