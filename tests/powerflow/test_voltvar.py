"""Volt-var curves and photovoltaics."""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import GROUND, PVSystem
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.lowlevel import Network, VoltVar
from dp_powerflow.powerflow.devices import CATEGORY_A, CATEGORY_B, VoltVarCurve
from dp_powerflow_paper.dense import DenseSolver
from support.small_feeders import feeder_of
from support.sunny import pv_generation
from support.tiny_feeder import two_lines


def feeder_with_pv() -> Feeder:
    """Three nodes in a chain; PV at both ends, large enough to raise the voltage past 1.05."""
    z = 0.08 + 0.06j
    return feeder_of(
        4,
        [(0, 1, z), (1, 2, z), (2, 3, z)],
        [(0, 0.2 + 0.1j), (1, 0.2 + 0.05j), (2, 0.1 + 0.05j)],
        pv=[(0, 0.12), (2, 0.1)],
    )


def test_default_curves_are_those_of_the_standard() -> None:
    u = np.array([0.80, 0.92, 0.95, 0.98, 1.00, 1.02, 1.05, 1.08, 1.20])
    np.testing.assert_allclose(
        CATEGORY_B.share(u), [0.44, 0.44, 0.22, 0, 0, 0, -0.22, -0.44, -0.44], atol=1e-12
    )
    u = np.array([0.80, 0.90, 0.95, 1.00, 1.05, 1.10, 1.20])
    np.testing.assert_allclose(CATEGORY_A.share(u), [0.25, 0.25, 0.125, 0, -0.125, -0.25, -0.25], atol=1e-12)


@pytest.mark.parametrize("curve", [CATEGORY_A, CATEGORY_B])
def test_slope_is_the_derivative_of_the_angle(curve: VoltVarCurve) -> None:
    u = np.linspace(0.85, 1.15, 1501) + 1e-5
    step = 1e-7
    numeric = (np.arcsin(curve.share(u + step)) - np.arcsin(curve.share(u - step))) / (2 * step)
    np.testing.assert_allclose(curve.slope(u), numeric, rtol=1e-5, atol=1e-6)
    assert abs(curve.slope(u)).max() <= curve.steepest
    assert abs(curve.slope(u)).max() == pytest.approx(curve.steepest, rel=1e-2)


@pytest.mark.parametrize(
    ("voltage", "reactive", "says"),
    [
        ((1.0,), (0.0,), "two or more points"),
        ((1.0, 1.1), (0.0,), "two or more points"),
        ((1.1, 1.0), (0.1, 0.0), "must increase"),
        ((0.9, 1.1), (1.2, -0.2), "between -1 and 1"),
        ((0.9, np.nan), (0.2, -0.2), "must increase"),
    ],
)
def test_impossible_curves_are_refused(voltage, reactive, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PowerFlowError, match=says):
        VoltVarCurve(voltage, reactive)


def test_the_loop_gain_is_that_of_the_network_and_does_not_know_the_power_base() -> None:
    gains = []
    for base in (1.0, 0.01):
        feeder = read_dss(cast("DssOrigin", two_lines().origin), name="tiny", base_mva=base)
        voltvar, network = VoltVar.for_feeder(feeder), Network(feeder)
        peak = np.abs(pv_generation(feeder, np.array([1.0]))[0])
        gains.append(voltvar.gain(network, peak))
        matrix = np.abs(np.linalg.inv(network.y)) * (peak * voltvar.steepest)
        assert gains[-1] == pytest.approx(np.abs(np.linalg.eigvals(matrix)).max(), rel=1e-6)
        # The printed condition of Assumption 1 (iii) does: it would refuse the small base.
        assert (np.max(peak * voltvar.steepest) < 1.0) == (base == 1.0)
        assert voltvar.gain(network, 0.0 * peak) == 0.0
    assert gains[0] == pytest.approx(gains[1], rel=1e-6)
    assert 0.0 < gains[0] < 0.5


def test_assignments_to_unknown_curves_or_other_feeders_are_refused() -> None:
    with pytest.raises(PowerFlowError, match="index of one of 1 curves"):
        VoltVar((CATEGORY_A,), np.array([0, 1]))
    with pytest.raises(PowerFlowError, match="cover 2 nodes but the feeder retains 3"):
        BatchSolver(feeder_with_pv(), voltvar=VoltVar((CATEGORY_A,), np.array([0, 0])))


def test_volt_var_agrees_with_the_reference_and_holds_the_voltage_down() -> None:
    feeder = feeder_with_pv()
    voltvar = VoltVar.for_feeder(feeder)
    load = 0.01 * -feeder.nominal_injection[feeder.retained] * np.ones((50, 1))
    generation = pv_generation(feeder, np.linspace(0.0, 1.0, 50))
    solution = BatchSolver(feeder, voltvar=voltvar, tolerance=1e-11).solve(load, generation)
    reference = DenseSolver(feeder, voltvar=voltvar, tolerance=1e-11).solve(load, generation)
    np.testing.assert_allclose(solution.v, reference.v, rtol=0, atol=1e-10)
    plain = BatchSolver(feeder).solve(load, generation)
    assert abs(solution.v[-1]).max() < abs(plain.v[-1]).max() - 1e-3


def test_newton_follows_the_curve_near_the_nose(monkeypatch: pytest.MonkeyPatch) -> None:
    feeder = feeder_with_pv()
    voltvar = VoltVar.for_feeder(feeder)
    base = -feeder.nominal_injection[feeder.retained]
    scale = np.linspace(1.0, 3.0, 200)[:, None]
    generation = np.repeat(pv_generation(feeder, np.array([0.5])), 200, axis=0)
    found, solver = [], BatchSolver(feeder, voltvar=voltvar)
    for most in (1, 2000):  # one iteration of the fixed point leaves everything to Newton's method
        monkeypatch.setattr("dp_powerflow.powerflow.batch.SLOW_AFTER", most)
        found.append(solver.solve(scale * base, generation))
    newton, fixed = found
    assert 20 < newton.converged.sum() < 200
    np.testing.assert_array_equal(newton.converged, fixed.converged)
    near = newton.converged
    np.testing.assert_allclose(newton.v[near], fixed.v[near], rtol=0, atol=1e-5)


def test_pv_follows_irradiance_and_stays_off_below_its_cut_in() -> None:
    feeder = dataclasses.replace(
        feeder_with_pv(),
        pv=(
            PVSystem("a", ((0, GROUND),), kva=100.0, kw_peak=120.0),
            PVSystem("b", ((2, GROUND),), kva=50.0, kw_peak=40.0, cut_in_fraction=0.2),
        ),
    )
    generation = pv_generation(feeder, np.array([0.0, 0.2, 0.5, 1.0]))
    np.testing.assert_allclose(generation[:, 0], [0.0, 0.024, 0.060, 0.100], atol=1e-15)
    np.testing.assert_allclose(generation[:, 1], 0.0)
    np.testing.assert_allclose(generation[:, 2], [0.0, 0.0, 0.020, 0.040], atol=1e-15)
    each = pv_generation(feeder, np.array([[0.5, 1.0]]))
    np.testing.assert_allclose(each[0, [0, 2]], [0.060, 0.040])


@pytest.mark.parametrize("irradiance", [[np.nan], [-0.1], [[0.1, 0.2, 0.3]]])
def test_impossible_irradiance_is_refused(irradiance) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PowerFlowError, match="irradiance"):
        pv_generation(feeder_with_pv(), np.array(irradiance))
