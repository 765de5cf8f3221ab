"""What the page of corrections says of single formulae and sentences of the paper, computed."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder, TwinDesign, open_feeder
from dp_powerflow.lowlevel import ClassLaw, Network, nominal_law, scaled, with_change
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.losses import Admittance, implied_load, log_density_of_active
from dp_powerflow_paper.sources.networks import Twin

STEPS = 5


def random_loads(feeder: Feeder, snapshots: int) -> ComplexArray:
    """Nominal loads with a log-normal factor, at the nominal power factors."""
    nominal = -feeder.nominal_injection[feeder.retained]
    rng = np.random.default_rng(1)
    return np.asarray(nominal * np.exp(0.3 * rng.standard_normal((snapshots, len(nominal)))))


def reduced(feeder: Feeder) -> Admittance:
    network = Network(feeder)
    return Admittance(network.y, network.b)


def test_midpoint_formula_needs_minus_sigma_one_where_the_paper_prints_plus() -> None:
    """Λ_I of one bus is Δᵀ Σ⁻¹ (μ − Σ1 − ξ̄); with +Σ1 it is off by 2·1ᵀΔ."""
    rng = np.random.default_rng(3)
    root = rng.standard_normal((STEPS, STEPS))
    sigma, mu = root @ root.T + np.eye(STEPS), rng.standard_normal(STEPS)
    law = nominal_law(np.array([1.0 + 0.3j]), ClassLaw.gaussian(mu, sigma))
    xi, other = rng.standard_normal((2, STEPS))
    exact = np.subtract(*(log_density_of_active(law, np.exp(at)[None, :, None])[0] for at in (xi, other)))
    delta, middle, one = xi - other, (xi + other) / 2.0, sigma @ np.ones(STEPS)
    corrected, printed = (delta @ np.linalg.solve(sigma, mu + sign * one - middle) for sign in (-1.0, 1.0))
    assert corrected == pytest.approx(exact, abs=1e-10)
    assert printed - exact == pytest.approx(2.0 * delta.sum(), abs=1e-10)


def test_two_snapshots_rule_out_a_changed_line_although_power_factors_are_unknown() -> None:
    feeder = open_feeder("ieee13")
    line = next(line for line in feeder.lines if not line.is_switch)
    changed = with_change(feeder, scaled(line, 0.01))
    v = BatchSolver(feeder).solve(random_loads(feeder, 2)).v

    def tangents(network: Admittance) -> np.ndarray:
        load = implied_load(network, v)
        return np.asarray(load.imag / load.real)

    own, other = tangents(reduced(feeder)), tangents(reduced(changed))
    # One snapshot fits either network, each with power factors of its own. Two must agree on them.
    assert np.abs(own[0] - own[1]).max() < 1e-6
    assert np.abs(other[0] - other[1]).max() > 1e-2


def test_voltages_of_a_twin_are_power_flows_of_the_true_network_at_loads_nine_percent_off() -> None:
    feeder = open_feeder("ieee123")
    network, solver = reduced(feeder), BatchSolver(feeder)
    load = random_loads(feeder, 4)
    ratio = []
    for seed in range(8):
        twin = Twin(feeder, TwinDesign(1.0, 0.05)).draw(np.random.default_rng(seed))
        v = BatchSolver(twin).solve(load).v
        implied = implied_load(network, v)
        ratio.append(implied.real / load.real)
        again = solver.solve(np.zeros_like(load), -implied).v  # an implied load may be negative
        assert np.abs(again - v).max() < 1e-8
    apart = np.abs(np.array(ratio) - 1.0)
    assert round(100 * float(np.median(apart))) == 9
    assert round(100 * float(np.mean(apart > 0.5))) == 16
    assert round(100 * float(np.mean(np.array(ratio) < 0.0))) == 4
