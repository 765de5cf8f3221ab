"""Gaussian noise: its calibrations, what mechanisms really add, sensitivities against real changes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.calibration import load_box_set
from dp_powerflow.grid.feeder import Line
from dp_powerflow.lowlevel import ClassLaw, Network, nominal_law
from dp_powerflow_paper.dense import DenseSolver
from dp_powerflow_paper.mechanisms import Setting
from dp_powerflow_paper.mechanisms.gaussian import (
    NetworkTarget,
    Sensitivities,
    admittance_noise,
    joint_voltage_noise,
    noise_free,
    noisy_loads,
    printed_sensitivities,
    proved_sensitivities,
    voltage_noise,
)
from dp_powerflow_paper.mechanisms.noise import (
    DAY,
    PAPER_DAY,
    PAPER_STEP,
    STEP,
    GaussianNoise,
    NoiseUnit,
)
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, Guarantee
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.loads import GaussianLoads, LawLoads
from dp_powerflow_paper.sources.networks import EntriesOfY
from support.small_feeders import feeder_of


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (25.0, 3e-3), (200.0, 3e-3), (50.0, 1e-5)])
def test_analytic_noise_gives_exactly_the_delta_asked_for(epsilon: float, delta: float) -> None:
    noise = GaussianNoise(0.3, epsilon, delta)
    assert noise.true_delta == pytest.approx(delta, rel=1e-6)
    assert noise.true_delta <= delta
    assert noise.holds


def test_classical_formula_is_the_papers_and_its_true_delta_is_told() -> None:
    noise = GaussianNoise(2.0, 50.0, 1e-5, "classical")
    assert noise.sigma == pytest.approx(2.0 * math.sqrt(2 * math.log(1.25e5)) / 50.0)
    assert noise.true_delta == pytest.approx(0.59, abs=0.01)  # paper correction 10
    assert not noise.holds
    assert "0.586" in noise.remark
    assert GaussianNoise(1.0, 0.9, 1e-5, "classical").holds  # it is proved up to ε = 1


DAYS, STEPS, NODES = 40, 96, 3
LOADS = Guarantee(2.0, 1e-5, "any number of days", ONE_CUSTOMER_DAY, True)
GIVEN = Sensitivities(0.01, 0.03, proved=False, source="given")
LOW, HIGH = 0.01, 0.05


def chain_feeder(stretch: float = 1.0) -> Feeder:
    """Three loads in a row behind a source; the last line's admittance times `stretch`."""
    branches = [(0, NODES, 0.03 + 0.06j), (1, 0, 0.04 + 0.05j), (2, 1, (0.05 + 0.07j) / stretch)]
    feeder = feeder_of(NODES + 1, branches, [(k, 0.03 + 0.01j) for k in range(NODES)])
    matrix = np.array([[1.0, -1.0], [-1.0, 1.0]])
    lines = (Line(f"line{i}", (i, j), matrix / z, None, False) for i, j, z in branches)
    return replace(feeder, lines=tuple(lines))


def make_setting(feeder: Feeder, load: np.ndarray, radius: float = 1e-3) -> Setting:
    network = Network(feeder)
    box = load_box_set(network, np.full(NODES, HIGH * math.hypot(1.0, 1.0 / 3.0)))
    assert box is not None
    return Setting(network, BatchSolver(feeder), load, HIGH - LOW, NODES, radius, box)


@pytest.fixture(scope="module")
def setting() -> Setting:
    """Every load in the middle of the range."""
    load = np.full((DAYS, STEPS, NODES), (LOW + HIGH) / 2 * (1.0 + 1j / 3.0))
    return make_setting(chain_feeder(), load)


def agrees(draws: np.ndarray, sigma: float) -> bool:
    """Two-sided χ² test of the variance; a right σ fails once in 10⁶."""
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], draws.size)
    return bool(low < float(np.sum(draws**2)) / sigma**2 < high)


def check_noise(difference: np.ndarray, sigma: float) -> None:
    for part in (difference.real.ravel(), difference.imag.ravel()):
        assert agrees(part, sigma)
        assert not agrees(part, 1.05 * sigma)
        assert not agrees(part, 0.95 * sigma)


def on_voltages(mechanism: Composition) -> GaussianNoise:
    assert mechanism.noise is not None
    return mechanism.noise.noise


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "covered"), [(STEP, 1), (DAY, STEPS)])
def test_joint_noise_is_calibrated_to_the_larger_sensitivity_and_the_smaller_budget(
    setting: Setting, unit: NoiseUnit, covered: int
) -> None:
    mechanism = joint_voltage_noise(setting, NetworkTarget(GIVEN, 50.0, 1e-3, unit), 5.0)
    assert on_voltages(mechanism).sensitivity == pytest.approx(math.sqrt(covered) * 0.03)
    assert on_voltages(mechanism).epsilon == 5.0
    true = noise_free(setting).release(np.random.default_rng(0), DAYS)
    check_noise(mechanism.release(np.random.default_rng(1), DAYS) - true, on_voltages(mechanism).sigma)


def test_gmm_noise_adds_the_networks_noise_to_synthetic_voltages(setting: Setting) -> None:
    of_class = ClassLaw.gaussian(np.full(STEPS, -0.1), 0.01 * np.eye(STEPS))
    law = nominal_law(np.full(NODES, 0.03 + 0.01j), of_class)
    mechanism = voltage_noise(setting, NetworkTarget(GIVEN, 30.0, 1e-3, DAY), LawLoads(law, LOADS))
    assert on_voltages(mechanism).sensitivity == pytest.approx(math.sqrt(STEPS) * 0.01)
    clean = setting.solve(LawLoads(law, LOADS).draw(np.random.default_rng(2), DAYS))
    check_noise(mechanism.release(np.random.default_rng(2), DAYS) - clean, on_voltages(mechanism).sigma)
    assert mechanism.cost().loads is LOADS


@pytest.mark.parametrize("unit", [STEP, DAY])
def test_noisy_loads_have_the_calibrated_variance_before_they_are_clipped(
    setting: Setting, unit: NoiseUnit
) -> None:
    # A budget so large that the noise stays within the range and is not clipped.
    budget = 60_000.0 if unit.whole_day else 20_000.0
    mechanism = noisy_loads(setting, NetworkTarget(GIVEN, 30.0, 1e-3, unit), LOW, budget, 1e-5)
    assert isinstance(mechanism.loads, GaussianLoads)
    load_noise = mechanism.loads.noise
    count = STEPS * (NODES if unit.whole_day else 1)
    assert load_noise.sensitivity == pytest.approx(math.sqrt(count) * (HIGH - LOW))
    noisy = mechanism.loads.draw(np.random.default_rng(3), DAYS)
    draws = (noisy.real - setting.true_load.real).ravel()
    assert np.all((noisy.real > LOW) & (noisy.real < HIGH))
    assert agrees(draws, load_noise.sigma)
    assert not agrees(draws, 1.05 * load_noise.sigma)
    assert np.allclose(noisy.imag / noisy.real, 1.0 / 3.0)
    clean = setting.solve(mechanism.loads.draw(np.random.default_rng(4), DAYS))
    released = mechanism.release(np.random.default_rng(4), DAYS)
    check_noise(released - clean, on_voltages(mechanism).sigma)


def test_every_entry_of_the_admittance_matrix_is_noisy_once_per_release(setting: Setting) -> None:
    mechanism = admittance_noise(setting, 20.0, 1e-3)
    assert isinstance(mechanism.network, EntriesOfY)
    assert mechanism.network.noise.sensitivity == setting.radius
    rng = np.random.default_rng(6)
    y = setting.network.feeder.y.toarray()
    changes = np.array([mechanism.network.draw(rng).y.toarray() - y for _ in range(2000)])
    assert (changes != 0.0).all()
    check_noise(changes, mechanism.network.noise.sigma)
    # One matrix for all days: equal loads give equal voltages.
    v = mechanism.release(rng, 2)
    assert np.ptp(v.real, axis=(0, 1)).max() < 1e-9


def test_admittance_noise_that_power_flow_cannot_solve_is_nan_and_not_dropped(setting: Setting) -> None:
    load = setting.true_load.copy()
    load[0, 0] *= 300.0  # beyond voltage collapse
    mechanism = admittance_noise(replace(setting, true_load=load), 20.0, 1e-3)
    v = mechanism.release(np.random.default_rng(7), 1)
    assert v.shape == (1, STEPS, NODES)
    assert np.isnan(v[0, 0]).all()
    assert np.isfinite(v[0, 1:]).all()


def test_proved_sensitivities_cover_real_changes_of_load_and_network() -> None:
    rng = np.random.default_rng(8)
    feeder = chain_feeder()
    load = rng.uniform(LOW, HIGH, (1, 50, NODES)) * (1.0 + 1j / 3.0)
    changed = chain_feeder(1.002)
    radius = float(np.linalg.norm((feeder.y - changed.y).toarray()))
    setting = make_setting(feeder, load, radius)
    proved = proved_sensitivities(setting, 1.0 / 3.0)
    assert proved.proved
    v = setting.solve(load.astype(np.complex128))[0]
    other = DenseSolver(changed).solve(load[0]).v
    assert np.linalg.norm(other - v, axis=1).max() <= proved.network
    worst = 0.0
    for k in range(NODES):
        low, high = load[0].copy(), load[0].copy()
        low[:, k], high[:, k] = LOW * (1.0 + 1j / 3.0), HIGH * (1.0 + 1j / 3.0)
        moved = setting.solve(high[None])[0] - setting.solve(low[None])[0]
        worst = max(worst, float(np.linalg.norm(moved, axis=1).max()))
    assert 0.3 * proved.load < worst <= proved.load


def test_proof_is_refused_on_a_measured_set(setting: Setting) -> None:
    measured = replace(setting, operating=replace(setting.operating, delta=0.01))
    with pytest.raises(PrivacyError, match="operating set"):
        proved_sensitivities(measured, 0.3)
    with pytest.raises(PrivacyError, match="lower the radius"):
        proved_sensitivities(replace(setting, radius=3.0), 0.3)
    assert not printed_sensitivities(measured).proved


def test_a_claim_is_only_proved_with_proved_sensitivities_and_a_calibration_that_holds(
    setting: Setting,
) -> None:
    proved = proved_sensitivities(replace(setting, radius=1e-4), 1.0 / 3.0)
    for sensitivities, unit, expected in (
        (proved, STEP, True),
        (proved, PAPER_STEP, False),
        (GIVEN, STEP, False),
    ):
        mechanism = joint_voltage_noise(setting, NetworkTarget(sensitivities, 50.0, 1e-3, unit), 50.0)
        claim = mechanism.cost().network
        assert claim is not None
        assert claim.proved is expected
        if unit is PAPER_STEP:
            assert "its δ at this ε is" in claim.remark
            assert mechanism.true_delta["noise"] > 0.5
        else:
            assert mechanism.true_delta["noise"] == pytest.approx(1e-3)


def test_the_papers_table_is_what_its_formulae_give(setting: Setting) -> None:
    """σ of every row of the table of sensitivities, written out: T = 96 steps, n_L = 3 loads."""
    epsilon, budget, delta, delta_load = 25.0, 2.0, 1e-3, 1e-5
    root, root_load = (math.sqrt(2 * math.log(1.25 / d)) for d in (delta, delta_load))
    on_y = math.sqrt(STEPS) * GIVEN.network * root / epsilon
    of_law = nominal_law(np.full(NODES, 0.03 + 0.01j), ClassLaw.gaussian(np.zeros(STEPS), np.eye(STEPS)))
    loads = math.sqrt(NODES * STEPS) * (HIGH - LOW) * root_load / budget
    both = math.sqrt(STEPS) * GIVEN.load * root / budget
    target = NetworkTarget(GIVEN, epsilon, delta, PAPER_DAY)
    table: dict[Composition, list[float]] = {
        voltage_noise(setting, target): [on_y],
        admittance_noise(setting, epsilon, delta, PAPER_DAY): [setting.radius * root / epsilon],
        joint_voltage_noise(setting, target, budget): [both],
        voltage_noise(setting, target, LawLoads(of_law, LOADS)): [on_y],
        noisy_loads(setting, target, LOW, budget, delta_load): [loads, on_y],
    }
    for mechanism, expected in table.items():
        assert list(mechanism.noise_std.values()) == pytest.approx(expected)
        assert mechanism.true_delta.keys() == mechanism.noise_std.keys()


def test_noise_for_the_network_alone_is_added_to_the_true_voltages(setting: Setting) -> None:
    mechanism = voltage_noise(setting, NetworkTarget(GIVEN, 30.0, 1e-3))
    true = noise_free(setting).release(np.random.default_rng(0), DAYS)
    check_noise(mechanism.release(np.random.default_rng(1), DAYS) - true, on_voltages(mechanism).sigma)
    assert np.array_equal(mechanism.clean(np.random.default_rng(2), DAYS), true)
    assert mechanism.cost().loads is None
