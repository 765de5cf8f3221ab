"""Loads of fitted models, the formula of one step, its floor, and the mean that the floor must not move."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.collect import with_exact_kappa
from dp_powerflow.evidence.theorem import paper_bound
from dp_powerflow.lowlevel import LoadLaw, Network, NetworkFacts, OperatingSet, network_facts
from dp_powerflow_paper.mechanisms import FittedLoads, Setting, Target
from dp_powerflow_paper.mechanisms.dp_powerflow import (
    full_support_variant,
    literal_variant,
    paper_variant,
    smallest_floor,
    step_formula,
    with_restored_mean,
)
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, Guarantee
from dp_powerflow_paper.sources.entries import Occasion
from dp_powerflow_paper.sources.loads import LawLoads
from dp_powerflow_paper.sources.models import (
    CLASSES,
    COMPONENTS,
    class_law,
    class_loads,
    kmeans_loads,
    margins_of,
    mixture_loads,
    spread_kmeans_loads,
)
from support.laws import draw, gaussian_classes
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
    made = occasion((-2.5, -1.0, 0.0, 1.0))
    seen = set()
    for seed in range(8):
        law = class_law(dataclasses.replace(made, seed=seed))
        assert len(law.classes) == 1, "one node has one class"
        seen.add(law.classes[0].name)
        assert not law.truncated
        days = log_days(class_loads(dataclasses.replace(made, seed=seed)), 200)
        assert days.mean(axis=1).std() < 0.6, "days of one class, not of the whole population"
    assert seen <= set(CLASSES.names)
    assert len(seen) > 2, "classes are drawn from the released weights"


def test_mixture_has_released_weights_and_keeps_two_humps_that_one_gaussian_would_join() -> None:
    loads = mixture_loads(occasion((-2.0, 1.0)))
    parts = loads.law.classes[0].components
    assert len(parts) == COMPONENTS
    assert sum(part.weight for part in parts) == pytest.approx(1.0)
    level = log_days(loads).mean(axis=1)
    middle = np.mean((level > -1.0) & (level < 0.0))
    assert middle < 0.1, "a single Gaussian has a quarter of its days here"
    assert 0.4 < np.mean(level > -0.5) < 0.6


def test_restored_mean_moves_every_component_by_itself() -> None:
    made = occasion((-2.0, 1.0))
    law = mixture_loads(made).law
    margins = margins_of(made.data)
    again = with_restored_mean(law, 0.0, margins, np.random.default_rng(2))
    for before, after in zip(law.classes[0].components, again.classes[0].components, strict=True):
        assert after.weight == before.weight
        assert np.array_equal(after.covariance, before.covariance)


def test_kmeans_with_its_spread_has_that_of_the_data_around_its_centroid() -> None:
    made = occasion((-1.0, 1.0), epsilon=1e6)
    bare, loads = kmeans_loads(made), spread_kmeans_loads(made)
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


@pytest.fixture(scope="module")
def facts(ieee123: Feeder) -> NetworkFacts:
    return network_facts(Network(ieee123))


@pytest.fixture(scope="module")
def law(ieee123: Feeder) -> LoadLaw:
    """Two classes, variances that differ by step."""
    nominal = -ieee123.nominal_injection[ieee123.retained]
    lag = np.abs(np.subtract.outer(np.arange(STEPS), np.arange(STEPS)))
    size = np.linspace(0.05, 0.12, STEPS)
    one = np.outer(size, size) * 0.8**lag
    means = np.log([np.linspace(0.6, 0.95, STEPS), np.full(STEPS, 0.8)])
    return LoadLaw(
        classes=gaussian_classes(list(means), [one, 2.0 * one[::-1, ::-1]]),
        class_of=np.arange(len(nominal)) % 2,
        scale_kw=nominal.real,
        tan_theta=nominal.imag / nominal.real,
    )


@pytest.fixture(scope="module")
def setting(ieee123: Feeder, law: LoadLaw) -> Setting:
    operating = OperatingSet(0.95, 1.08, 0.12, 5.4, 0.003, "test")
    load = draw(law, 1, np.random.default_rng(0))
    return Setting(Network(ieee123), BatchSolver(ieee123), load, 0.1, law.n, RADIUS, operating)


def worst_printed(setting: Setting, facts: NetworkFacts, law: LoadLaw) -> float:
    """The certificate's own evaluation, step by step."""
    cut = law.within(MARGINS)
    exact = with_exact_kappa(facts)
    return max(
        paper_bound(exact, cut.at_step(t), setting.operating, RADIUS, DELTA).terms.formula
        for t in range(STEPS)
    )


def test_formula_is_that_of_the_certificate_at_the_worst_step(
    setting: Setting, facts: NetworkFacts, law: LoadLaw
) -> None:
    formula = step_formula(setting, facts, law, MARGINS[0], DELTA)
    for floor in (0.0, 0.03, 0.5):
        wide = law.with_floor(floor)
        expected = worst_printed(setting, facts, wide)
        assert formula.epsilon(1.0 / wide.std**2) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("epsilon", [60.0, 100.0, 200.0])
def test_floor_is_the_smallest_that_meets_the_target(
    setting: Setting, facts: NetworkFacts, law: LoadLaw, epsilon: float
) -> None:
    formula = step_formula(setting, facts, law, MARGINS[0], DELTA)
    floor = smallest_floor(formula, law.std**2, formula.psi_at(epsilon))
    assert worst_printed(setting, facts, law.with_floor(floor)) == pytest.approx(epsilon, rel=1e-9)
    assert worst_printed(setting, facts, law.with_floor(0.99 * floor)) > epsilon


def test_target_below_what_no_spread_can_cross_is_refused(
    setting: Setting, facts: NetworkFacts, law: LoadLaw
) -> None:
    formula = step_formula(setting, facts, law, MARGINS[0], DELTA)
    with pytest.raises(PrivacyError, match="at least"):
        formula.psi_at(0.99 * formula.least)


def test_mean_load_survives_floor_and_truncation_where_it_may(law: LoadLaw) -> None:
    """Margins that cut a wide law on one side; without the shift its mean load falls."""
    rng = np.random.default_rng(5)
    margins = (0.4, 1.1)
    target = np.exp(law.mean + law.std**2 / 2)
    off = []
    for wide in (law.with_floor(0.05), with_restored_mean(law, 0.05, margins, rng)):
        drawn = draw(wide.within(margins), 60, rng).real / law.scale
        mean = np.array([drawn[:, :, law.class_of == ell].mean(axis=(0, 2)) for ell in range(2)])
        off.append(float(np.abs(mean - target).mean()))
    assert off[0] > 0.04
    assert off[1] < 0.35 * off[0]


def test_whitened_draws_stay_no_longer_than_standard_normal_ones(law: LoadLaw) -> None:
    """The tail term takes ‖z‖ to be that of a normal vector, so the mean may not be moved past it."""
    rng = np.random.default_rng(6)
    restored = with_restored_mean(law, 0.7, MARGINS, rng)
    drawn = np.log(draw(restored.within(MARGINS), 40, rng).real / law.scale)
    z = (drawn - restored.mean[law.class_of].T) / restored.std[law.class_of].T
    assert np.mean(z**2, axis=(0, 2)).max() < 1.05


def test_the_literal_variant_is_the_printed_formula_of_the_law_and_nothing_else(
    setting: Setting, facts: NetworkFacts, law: LoadLaw
) -> None:
    """Two birds with one stone: a fit with k times the variance has a smaller ε of the network."""
    claimed = []
    for factor in (1.0, 2.0, 4.0):
        wider = law.with_gaussians(law.mean, factor * law.covariance)
        made = literal_variant(setting, facts, FittedLoads(wider, LOADS), MARGINS, DELTA)
        assert made.law.truncated
        assert np.array_equal(made.law.mean, law.mean)
        assert np.array_equal(made.law.covariance, wider.covariance)
        assert made.floor == 0.0
        for t in (0, STEPS - 1):
            printed = paper_bound(
                with_exact_kappa(facts), made.law.at_step(t), setting.operating, RADIUS, DELTA
            )
            assert made.step_epsilon[t] == pytest.approx(printed.terms.formula, rel=1e-12)
        claim = made.cost().network
        assert claim is not None
        assert not claim.proved
        assert claim.epsilon == made.step_epsilon.max()
        claimed.append(claim.epsilon)
    assert claimed == sorted(claimed, reverse=True)
    loud = law.with_random_q(np.full(law.n, 0.1), np.eye(STEPS))
    with pytest.raises(PrivacyError, match="fixed power factor"):
        literal_variant(setting, facts, FittedLoads(loud, LOADS), MARGINS, DELTA)


def test_variants_claim_the_target_and_not_a_proof(
    setting: Setting, facts: NetworkFacts, law: LoadLaw
) -> None:
    rng = np.random.default_rng(7)
    loads, target = FittedLoads(law, LOADS), Target(100.0, DELTA)
    paper = paper_variant(setting, facts, loads, MARGINS, target, rng)
    full = full_support_variant(setting, facts, loads, MARGINS[0], target, np.eye(STEPS))
    for mechanism in (paper, full):
        claim = mechanism.cost().network
        assert claim is not None
        assert claim.epsilon == pytest.approx(100.0, rel=1e-9)
        assert claim.delta == pytest.approx(DELTA + setting.operating.delta)
        assert not claim.proved
        assert "not a proved bound" in claim.remark
    assert full.law.q_sigma is not None
    assert not full.law.truncated
    assert paper.law.truncated


def test_full_support_weights_add_up_to_the_target(
    setting: Setting, facts: NetworkFacts, law: LoadLaw
) -> None:
    """Recomputed from the law alone: d²/σ² of p and of q, printed style, at the worst step."""
    loads, target = FittedLoads(law, LOADS), Target(100.0, DELTA)
    full = full_support_variant(setting, facts, loads, MARGINS[0], target, np.eye(STEPS))
    formula = step_formula(setting, facts, law, MARGINS[0], DELTA, random_q=True)
    assert full.law.q_sigma is not None
    reach = setting.operating.v_max**2 * np.sqrt(facts.d_max)
    total = np.zeros(STEPS)
    for ell in range(2):
        nodes = law.class_of == ell
        cosine = 1.0 / np.sqrt(1.0 + law.tan_theta[nodes] ** 2)
        e = reach / float((full.law.q_sigma[nodes] * cosine).min())
        d = reach / float(law.scale[nodes].min() * MARGINS[0])
        total += d**2 / full.law.std[ell] ** 2 + e**2
    psi = formula.kappa_r * np.sqrt(total.max())
    epsilon = formula.least + psi * formula.tau + psi**2 / 2
    assert epsilon == pytest.approx(100.0, rel=1e-9)
