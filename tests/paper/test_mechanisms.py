"""Release mechanisms: loads of fitted models and the formula of a step; Gaussian noise and sensitivities."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.calibration import load_box_set
from dp_powerflow.evidence.collect import with_exact_kappa
from dp_powerflow.evidence.theorem import paper_bound
from dp_powerflow.grid.feeder import Line
from dp_powerflow.lowlevel import (
    ClassLaw,
    LoadLaw,
    Network,
    NetworkFacts,
    OperatingSet,
    network_facts,
    nominal_law,
)
from dp_powerflow_paper.dense import DenseSolver
from dp_powerflow_paper.mechanisms import FittedLoads, Setting, Target, gaussian
from dp_powerflow_paper.mechanisms import dp_powerflow as variants
from dp_powerflow_paper.mechanisms.noise import DAY, PAPER_DAY, PAPER_STEP, STEP, GaussianNoise, NoiseUnit
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, Guarantee, models
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.entries import Occasion
from dp_powerflow_paper.sources.loads import GaussianLoads, LawLoads
from dp_powerflow_paper.sources.networks import EntriesOfY
from support.laws import draw, gaussian_classes
from support.small_feeders import feeder_of
from support.two_nodes import two_node_data

METERS, DAYS, TIMES = 40, 30, 12
WIDE = (0.02, 5.0)
SPREAD = 0.2


def occasion(levels: tuple[float, ...], epsilon: float = 1e4) -> Occasion:
    """Customer-days around some log levels, with a log-normal level of their own."""
    rng = np.random.default_rng(5)
    level = np.array(levels)[np.arange(METERS) % len(levels)][:, None, None]
    logs = level + SPREAD * rng.standard_normal((METERS, DAYS, 1)) + np.zeros(TIMES)
    data = two_node_data(np.exp(logs), WIDE)
    return Occasion(data, np.arange(DAYS), Target(epsilon, 1e-5))


def log_days(loads: LawLoads, days: int = 3000) -> np.ndarray:
    drawn = loads.draw(np.random.default_rng(1), days).real[:, :, 0]
    return np.log(drawn / 0.1)


def test_classes_of_the_private_partition_are_laws_of_their_own_and_a_node_keeps_its_class() -> None:
    made, seen = occasion((-2.5, -1.0, 0.0, 1.0)), set()
    for seed in range(8):
        law = models.class_law(replace(made, seed=seed))
        assert not law.truncated
        (own,) = law.classes  # one node has one class
        seen.add(own.name)
        days = log_days(models.class_loads(replace(made, seed=seed)), 200)
        assert days.mean(axis=1).std() < 0.6, "days of one class, not of the whole population"
    assert seen <= set(models.CLASSES.names)
    assert len(seen) > 2, "classes are drawn from the released weights"


def test_mixture_keeps_two_humps_that_one_gaussian_would_join_and_moves_every_component_by_itself() -> None:
    made = occasion((-2.0, 1.0))
    loads = models.mixture_loads(made)
    parts = loads.law.classes[0].components
    assert len(parts) == models.COMPONENTS
    assert sum(part.weight for part in parts) == pytest.approx(1.0)
    level = log_days(loads).mean(axis=1)
    assert np.mean((level > -1.0) & (level < 0.0)) < 0.1, "a single Gaussian has a quarter of its days here"
    assert 0.4 < np.mean(level > -0.5) < 0.6
    again = variants.with_restored_mean(
        loads.law, 0.0, models.margins_of(made.data), np.random.default_rng(2)
    )
    for before, after in zip(parts, again.classes[0].components, strict=True):
        assert after.weight == before.weight
        assert np.array_equal(after.covariance, before.covariance)


def test_kmeans_with_its_spread_has_that_of_the_data_around_its_centroid() -> None:
    made = occasion((-1.0, 1.0), epsilon=1e6)
    bare, loads = models.kmeans_loads(made), models.spread_kmeans_loads(made)
    assert bare.spread is None
    assert loads.spread is not None
    centroid = np.log(loads.days).mean(axis=1)
    level = np.log(made.data.relative).mean(axis=2).ravel()
    nearest = np.abs(level[:, None] - centroid).argmin(axis=1)
    k = int(np.bincount(nearest).argmax())
    apart = level[nearest == k] - centroid[k]
    assert loads.spread[k, 0] == pytest.approx(np.sqrt(np.mean(apart**2)), rel=0.02)
    assert loads.draw(np.random.default_rng(3), 2000).std() > bare.draw(np.random.default_rng(3), 2000).std()


STEPS, MARGINS, DELTA, RADIUS = 8, (0.5, 1.5), 1e-5, 1e-4
LOADS = Guarantee(2.0, 1e-5, "any number of days", ONE_CUSTOMER_DAY, True)


Case = tuple[Setting, NetworkFacts, LoadLaw]


@pytest.fixture(scope="module")
def case(ieee123: Feeder) -> Case:
    """Two classes, variances that differ by step."""
    network = Network(ieee123)
    nominal = -ieee123.nominal_injection[ieee123.retained]
    lag = np.abs(np.subtract.outer(np.arange(STEPS), np.arange(STEPS)))
    size = np.linspace(0.05, 0.12, STEPS)
    one = np.outer(size, size) * 0.8**lag
    means = np.log([np.linspace(0.6, 0.95, STEPS), np.full(STEPS, 0.8)])
    law = LoadLaw(
        classes=gaussian_classes(list(means), [one, 2.0 * one[::-1, ::-1]]),
        class_of=np.arange(len(nominal)) % 2,
        scale_kw=nominal.real,
        tan_theta=nominal.imag / nominal.real,
    )
    operating = OperatingSet(0.95, 1.08, 0.12, 5.4, 0.003, "test")
    load = draw(law, 1, np.random.default_rng(0))
    setting = Setting(network, BatchSolver(ieee123), load, 0.1, law.n, RADIUS, operating)
    return setting, network_facts(network), law


def printed(setting: Setting, facts: NetworkFacts, law: LoadLaw) -> list[float]:
    """The certificate's own evaluation, step by step."""
    exact = with_exact_kappa(facts)
    bounds = (paper_bound(exact, law.at_step(t), setting.operating, RADIUS, DELTA) for t in range(STEPS))
    return [bound.terms.formula for bound in bounds]


def test_formula_is_that_of_the_certificate_and_floor_the_smallest_that_meets_the_target(case: Case) -> None:
    setting, facts, law = case

    def worst(floor: float) -> float:
        return max(printed(setting, facts, law.with_floor(floor).within(MARGINS)))

    formula = variants.step_formula(*case, MARGINS[0], DELTA)
    for floor in (0.0, 0.03, 0.5):
        variance = law.with_floor(floor).std ** 2
        assert formula.epsilon(1.0 / variance) == pytest.approx(worst(floor), rel=1e-12)
    for epsilon in (60.0, 100.0, 200.0):
        floor = variants.smallest_floor(formula, law.std**2, formula.psi_at(epsilon))
        assert worst(floor) == pytest.approx(epsilon, rel=1e-9)
        assert worst(0.99 * floor) > epsilon


def test_target_below_what_no_spread_can_cross_is_refused(case: Case) -> None:
    formula = variants.step_formula(*case, MARGINS[0], DELTA)
    with pytest.raises(PrivacyError, match="at least"):
        formula.psi_at(0.99 * formula.least)


def test_mean_load_survives_floor_and_truncation_where_it_may(case: Case) -> None:
    """Margins that cut a wide law on one side; without the shift its mean load falls."""
    law, rng = case[2], np.random.default_rng(5)
    margins = (0.4, 1.1)
    target = np.exp(law.mean + law.std**2 / 2)
    off = []
    for wide in (law.with_floor(0.05), variants.with_restored_mean(law, 0.05, margins, rng)):
        drawn = draw(wide.within(margins), 60, rng).real / law.scale
        mean = np.array([drawn[:, :, law.class_of == ell].mean(axis=(0, 2)) for ell in range(2)])
        off.append(float(np.abs(mean - target).mean()))
    assert off[0] > 0.04
    assert off[1] < 0.35 * off[0]


def test_the_literal_variant_is_the_printed_formula_of_the_law_and_nothing_else(case: Case) -> None:
    setting, facts, law = case
    """Two birds with one stone: a fit with k times the variance has a smaller ε of the network."""
    claimed = []
    for factor in (1.0, 2.0, 4.0):
        wider = law.with_gaussians(law.mean, factor * law.covariance)
        made = variants.literal_variant(setting, facts, FittedLoads(wider, LOADS), MARGINS, DELTA)
        assert (made.law.truncated, made.floor) == (True, 0.0)
        assert np.array_equal(made.law.mean, law.mean)
        assert np.array_equal(made.law.covariance, wider.covariance)
        assert made.step_epsilon == pytest.approx(printed(setting, facts, made.law), rel=1e-12)
        claim = made.cost().network
        assert claim is not None
        assert not claim.proved
        assert claim.epsilon == made.step_epsilon.max()
        claimed.append(claim.epsilon)
    assert claimed == sorted(claimed, reverse=True)
    loud = law.with_random_q(np.full(law.n, 0.1), np.eye(STEPS))
    with pytest.raises(PrivacyError, match="fixed power factor"):
        variants.literal_variant(setting, facts, FittedLoads(loud, LOADS), MARGINS, DELTA)


def test_variants_claim_the_target_and_not_a_proof(case: Case) -> None:
    setting, facts, law = case
    rng = np.random.default_rng(7)
    loads, target = FittedLoads(law, LOADS), Target(100.0, DELTA)
    paper = variants.paper_variant(setting, facts, loads, MARGINS, target, rng)
    full = variants.full_support_variant(setting, facts, loads, MARGINS[0], target, np.eye(STEPS))
    for mechanism in (paper, full):
        claim = mechanism.cost().network
        assert claim is not None
        assert claim.epsilon == pytest.approx(100.0, rel=1e-9)
        assert claim.delta == pytest.approx(DELTA + setting.operating.delta)
        assert not claim.proved
        assert "not a proved bound" in claim.remark
    assert (full.law.truncated, paper.law.truncated) == (False, True)
    # Full support from the law alone: d²/σ² of p and of q, printed style, at the worst step.
    formula = variants.step_formula(setting, facts, law, MARGINS[0], DELTA, random_q=True)
    assert full.law.q_sigma is not None
    reach, total = setting.operating.v_max**2 * np.sqrt(facts.d_max), np.zeros(STEPS)
    for ell in range(2):
        nodes = law.class_of == ell
        cosine = 1.0 / np.sqrt(1.0 + law.tan_theta[nodes] ** 2)
        e = reach / float((full.law.q_sigma[nodes] * cosine).min())
        d = reach / float(law.scale[nodes].min() * MARGINS[0])
        total += d**2 / full.law.std[ell] ** 2 + e**2
    psi = formula.kappa_r * np.sqrt(total.max())
    assert formula.least + psi * formula.tau + psi**2 / 2 == pytest.approx(100.0, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (25.0, 3e-3), (200.0, 3e-3), (50.0, 1e-5)])
def test_analytic_noise_gives_exactly_the_delta_asked_for(epsilon: float, delta: float) -> None:
    noise = GaussianNoise(0.3, epsilon, delta)
    assert delta * (1.0 - 1e-6) <= noise.true_delta <= delta
    assert noise.holds


def test_classical_formula_is_the_papers_and_its_true_delta_is_told() -> None:
    noise = GaussianNoise(2.0, 50.0, 1e-5, "classical")
    assert noise.sigma == pytest.approx(2.0 * math.sqrt(2 * math.log(1.25e5)) / 50.0)
    assert noise.true_delta == pytest.approx(0.59, abs=0.01)  # paper correction 10
    assert not noise.holds
    assert "0.586" in noise.remark
    assert GaussianNoise(1.0, 0.9, 1e-5, "classical").holds  # it is proved up to ε = 1


CHAIN_DAYS, CHAIN_STEPS, NODES = 40, 96, 3
GIVEN = gaussian.Sensitivities(0.01, 0.03, proved=False, source="given")
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
def chain() -> Setting:
    """Every load in the middle of the range."""
    load = np.full((CHAIN_DAYS, CHAIN_STEPS, NODES), (LOW + HIGH) / 2 * (1.0 + 1j / 3.0))
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
@pytest.mark.parametrize(("unit", "covered"), [(STEP, 1), (DAY, CHAIN_STEPS)])
def test_joint_noise_is_calibrated_to_the_larger_sensitivity_and_the_smaller_budget(
    chain: Setting, unit: NoiseUnit, covered: int
) -> None:
    mechanism = gaussian.joint_voltage_noise(chain, gaussian.NetworkTarget(GIVEN, 50.0, 1e-3, unit), 5.0)
    assert on_voltages(mechanism).sensitivity == pytest.approx(math.sqrt(covered) * 0.03)
    assert on_voltages(mechanism).epsilon == 5.0
    true = gaussian.noise_free(chain).release(np.random.default_rng(0), CHAIN_DAYS)
    check_noise(mechanism.release(np.random.default_rng(1), CHAIN_DAYS) - true, on_voltages(mechanism).sigma)


def test_gmm_noise_adds_the_networks_noise_to_synthetic_voltages(chain: Setting) -> None:
    of_class = ClassLaw.gaussian(np.full(CHAIN_STEPS, -0.1), 0.01 * np.eye(CHAIN_STEPS))
    law = nominal_law(np.full(NODES, 0.03 + 0.01j), of_class)
    mechanism = gaussian.voltage_noise(
        chain, gaussian.NetworkTarget(GIVEN, 30.0, 1e-3, DAY), LawLoads(law, LOADS)
    )
    assert on_voltages(mechanism).sensitivity == pytest.approx(math.sqrt(CHAIN_STEPS) * 0.01)
    clean = chain.solve(LawLoads(law, LOADS).draw(np.random.default_rng(2), CHAIN_DAYS))
    check_noise(mechanism.release(np.random.default_rng(2), CHAIN_DAYS) - clean, on_voltages(mechanism).sigma)
    assert mechanism.cost().loads is LOADS


@pytest.mark.parametrize("unit", [STEP, DAY])
def test_noisy_loads_have_the_calibrated_variance_before_they_are_clipped(
    chain: Setting, unit: NoiseUnit
) -> None:
    # A budget so large that the noise stays within the range and is not clipped.
    budget = 60_000.0 if unit.whole_day else 20_000.0
    mechanism = gaussian.noisy_loads(
        chain, gaussian.NetworkTarget(GIVEN, 30.0, 1e-3, unit), LOW, budget, 1e-5
    )
    assert isinstance(mechanism.loads, GaussianLoads)
    load_noise = mechanism.loads.noise
    count = CHAIN_STEPS * (NODES if unit.whole_day else 1)
    assert load_noise.sensitivity == pytest.approx(math.sqrt(count) * (HIGH - LOW))
    noisy = mechanism.loads.draw(np.random.default_rng(3), CHAIN_DAYS)
    draws = (noisy.real - chain.true_load.real).ravel()
    assert np.all((noisy.real > LOW) & (noisy.real < HIGH))
    assert agrees(draws, load_noise.sigma)
    assert not agrees(draws, 1.05 * load_noise.sigma)
    assert np.allclose(noisy.imag / noisy.real, 1.0 / 3.0)
    clean = chain.solve(mechanism.loads.draw(np.random.default_rng(4), CHAIN_DAYS))
    released = mechanism.release(np.random.default_rng(4), CHAIN_DAYS)
    check_noise(released - clean, on_voltages(mechanism).sigma)


def test_every_entry_of_the_admittance_matrix_is_noisy_once_per_release(chain: Setting) -> None:
    mechanism = gaussian.admittance_noise(chain, 20.0, 1e-3)
    assert isinstance(mechanism.network, EntriesOfY)
    assert mechanism.network.noise.sensitivity == chain.radius
    rng = np.random.default_rng(6)
    y = chain.network.feeder.y.toarray()
    changes = np.array([mechanism.network.draw(rng).y.toarray() - y for _ in range(2000)])
    assert (changes != 0.0).all()
    check_noise(changes, mechanism.network.noise.sigma)
    # One matrix for all days: equal loads give equal voltages.
    v = mechanism.release(rng, 2)
    assert np.ptp(v.real, axis=(0, 1)).max() < 1e-9


def test_proved_sensitivities_cover_real_changes_of_load_and_network() -> None:
    rng = np.random.default_rng(8)
    feeder = chain_feeder()
    load = rng.uniform(LOW, HIGH, (1, 50, NODES)) * (1.0 + 1j / 3.0)
    changed = chain_feeder(1.002)
    radius = float(np.linalg.norm((feeder.y - changed.y).toarray()))
    chain = make_setting(feeder, load, radius)
    proved = gaussian.proved_sensitivities(chain, 1.0 / 3.0)
    assert proved.proved
    v = chain.solve(load.astype(np.complex128))[0]
    other = DenseSolver(changed).solve(load[0]).v
    assert np.linalg.norm(other - v, axis=1).max() <= proved.network
    worst = 0.0
    for k in range(NODES):
        low, high = load[0].copy(), load[0].copy()
        low[:, k], high[:, k] = LOW * (1.0 + 1j / 3.0), HIGH * (1.0 + 1j / 3.0)
        moved = chain.solve(high[None])[0] - chain.solve(low[None])[0]
        worst = max(worst, float(np.linalg.norm(moved, axis=1).max()))
    assert 0.3 * proved.load < worst <= proved.load


def test_a_claim_is_proved_only_with_proved_sensitivities_and_a_calibration_that_holds(
    chain: Setting,
) -> None:
    measured = replace(chain, operating=replace(chain.operating, delta=0.01))
    for refused, sentence in ((measured, "operating set"), (replace(chain, radius=3.0), "lower the radius")):
        with pytest.raises(PrivacyError, match=sentence):
            gaussian.proved_sensitivities(refused, 0.3)
    assert not gaussian.printed_sensitivities(measured).proved
    proved = gaussian.proved_sensitivities(replace(chain, radius=1e-4), 1.0 / 3.0)
    for sensitivities, unit, expected in (
        (proved, STEP, True),
        (proved, PAPER_STEP, False),
        (GIVEN, STEP, False),
    ):
        mechanism = gaussian.joint_voltage_noise(
            chain, gaussian.NetworkTarget(sensitivities, 50.0, 1e-3, unit), 50.0
        )
        claim = mechanism.cost().network
        assert claim is not None
        assert claim.proved is expected
        if unit is PAPER_STEP:
            assert "its δ at this ε is" in claim.remark
            assert mechanism.true_delta["noise"] > 0.5
        else:
            assert mechanism.true_delta["noise"] == pytest.approx(1e-3)


def test_the_papers_table_is_what_its_formulae_give(chain: Setting) -> None:
    """σ of every row of the table of sensitivities, written out: T = 96 steps, n_L = 3 loads."""
    epsilon, budget, delta, delta_load = 25.0, 2.0, 1e-3, 1e-5
    root, root_load = (math.sqrt(2 * math.log(1.25 / d)) for d in (delta, delta_load))
    on_y = math.sqrt(CHAIN_STEPS) * GIVEN.network * root / epsilon
    of_law = nominal_law(
        np.full(NODES, 0.03 + 0.01j), ClassLaw.gaussian(np.zeros(CHAIN_STEPS), np.eye(CHAIN_STEPS))
    )
    loads = math.sqrt(NODES * CHAIN_STEPS) * (HIGH - LOW) * root_load / budget
    both = math.sqrt(CHAIN_STEPS) * GIVEN.load * root / budget
    target = gaussian.NetworkTarget(GIVEN, epsilon, delta, PAPER_DAY)
    table: dict[Composition, list[float]] = {
        gaussian.voltage_noise(chain, target): [on_y],
        gaussian.admittance_noise(chain, epsilon, delta, PAPER_DAY): [chain.radius * root / epsilon],
        gaussian.joint_voltage_noise(chain, target, budget): [both],
        gaussian.voltage_noise(chain, target, LawLoads(of_law, LOADS)): [on_y],
        gaussian.noisy_loads(chain, target, LOW, budget, delta_load): [loads, on_y],
    }
    for mechanism, expected in table.items():
        assert list(mechanism.noise_std.values()) == pytest.approx(expected)
        assert mechanism.true_delta.keys() == mechanism.noise_std.keys()
