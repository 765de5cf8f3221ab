"""One suite for every release mechanism: what it takes, gives and promises."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.calibration import DaySolver, monte_carlo
from dp_powerflow.evidence.collect import network_facts
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.grid.reduction import Network
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.model.law import ClassLaw, LoadLaw, nominal_law
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.devices import VoltVar
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow_paper.mechanisms import FittedLoads, Setting, Target
from dp_powerflow_paper.mechanisms.dp_powerflow import (
    full_support_variant,
    literal_variant,
    on_twin,
    paper_variant,
)
from dp_powerflow_paper.mechanisms.gaussian import (
    NetworkTarget,
    admittance_noise,
    joint_voltage_noise,
    noise_free,
    noisy_loads,
    printed_sensitivities,
    voltage_noise,
)
from dp_powerflow_paper.mechanisms.noise import PAPER_DAY, STEP, NoiseUnit
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, Guarantee
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.loads import LawLoads
from support.laws import draw, sampler

DAYS, STEPS = 3, 6
RADIUS, EPSILON, DELTA = 1e-5, 40.0, 1e-3
MARGINS = (0.5, 1.2)
LOADS = Guarantee(2.0, 1e-5, "any number of days", ONE_CUSTOMER_DAY, True, "zCDP")


@pytest.fixture(scope="module", params=["ieee13", "ieee123-pv"])
def feeder(request: pytest.FixtureRequest) -> Feeder:
    """Without PV, and with PV at nodes that have no load."""
    return open_feeder(request.param)


@pytest.fixture(scope="module")
def law(feeder: Feeder) -> LoadLaw:
    loaded = feeder.loaded_nodes()[0]
    nominal = -feeder.nominal_injection[feeder.retained[loaded]]
    lag = np.abs(np.subtract.outer(np.arange(STEPS), np.arange(STEPS)))
    of_class = ClassLaw.gaussian(np.full(STEPS, math.log(0.8)), 0.02 * 0.7**lag)
    return dataclasses.replace(nominal_law(nominal, of_class), positions=loaded)


@pytest.fixture(scope="module")
def setting(feeder: Feeder, law: LoadLaw) -> Setting:
    network = Network(feeder)
    rng = np.random.default_rng(1)
    sun = Generation.from_irradiance(feeder, rng.uniform(0.0, 1.0, (DAYS, STEPS))) if feeder.pv else None
    voltvar = VoltVar.for_feeder(feeder) if feeder.pv else None
    found = monte_carlo(DaySolver(network, voltvar), sampler(law, 20, 1), sun)
    low, high = MARGINS[0] * law.scale.min(), MARGINS[1] * law.scale.max()
    return Setting(
        network,
        BatchSolver(feeder, voltvar=voltvar),
        draw(law, DAYS, rng),
        float(high - low),
        law.n,
        RADIUS,
        found.operating,
        sun,
        voltvar,
    )


def _target(setting: Setting, unit: NoiseUnit = STEP) -> NetworkTarget:
    return NetworkTarget(printed_sensitivities(setting), EPSILON, DELTA, unit)


def _paper(setting: Setting, law: LoadLaw) -> Composition:
    facts = network_facts(setting.network)
    rng = np.random.default_rng(2)
    return paper_variant(setting, facts, FittedLoads(law, LOADS), MARGINS, Target(EPSILON, DELTA), rng)


def _literal(setting: Setting, law: LoadLaw) -> Composition:
    facts = network_facts(setting.network)
    return literal_variant(setting, facts, FittedLoads(law, LOADS), MARGINS, DELTA)


def _full_support(setting: Setting, law: LoadLaw) -> Composition:
    facts = network_facts(setting.network)
    loads, target = FittedLoads(law, LOADS), Target(EPSILON, DELTA)
    return full_support_variant(setting, facts, loads, MARGINS[0], target, np.eye(STEPS))


LENGTHS = TwinDesign(2.0, noise="gaussian", delta=1e-5, protected=Protected(lines="length"))
ALL = TwinDesign(1.0, protected=Protected(capacitors=True))
MECHANISMS: dict[str, Callable[[Setting, LoadLaw], Composition]] = {
    "noise-free": lambda setting, law: noise_free(setting),
    "gaussian on voltages": lambda setting, law: voltage_noise(setting, _target(setting)),
    "the paper's table": lambda setting, law: voltage_noise(setting, _target(setting, PAPER_DAY)),
    "joint": lambda setting, law: joint_voltage_noise(setting, _target(setting), 100.0),
    "gmm": lambda setting, law: voltage_noise(setting, _target(setting), LawLoads(law, LOADS)),
    "noisy loads": lambda setting, law: noisy_loads(
        setting, _target(setting), float(MARGINS[0] * law.scale.min()), 5.0, 1e-5
    ),
    "y noise": lambda setting, law: admittance_noise(setting, EPSILON, DELTA),
    "literal": _literal,
    "paper": _paper,
    "full support": _full_support,
    "twin": lambda setting, law: on_twin(setting, ALL, LawLoads(law, LOADS)),
    "twin, true loads": lambda setting, law: on_twin(setting, LENGTHS),
}
READS_TRUE_LOADS = (
    "noise-free",
    "gaussian on voltages",
    "the paper's table",
    "joint",
    "noisy loads",
    "y noise",
    "twin, true loads",
)


@pytest.fixture(scope="module", params=MECHANISMS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def mechanism(kind: str, setting: Setting, law: LoadLaw) -> Composition:
    return MECHANISMS[kind](setting, law)


def test_release_is_complex_voltages_of_day_step_node(mechanism: Composition, setting: Setting) -> None:
    v = mechanism.release(np.random.default_rng(3), 2)
    assert v.shape == (2, STEPS, setting.n_loads)
    assert v.dtype == np.complex128
    solved = np.isfinite(v).all(axis=2)
    assert np.array_equal(solved, np.isfinite(v).any(axis=2)), "a snapshot that fails is NaN at every node"
    assert solved.any()
    assert 0.5 < np.median(np.abs(v[solved])) < 1.5


def test_same_generator_gives_the_same_release_and_another_gives_another(
    mechanism: Composition, kind: str
) -> None:
    first, again, other = (mechanism.release(np.random.default_rng(seed), 1) for seed in (4, 4, 5))
    assert np.array_equal(first, again, equal_nan=True)
    assert np.array_equal(first, other, equal_nan=True) == (kind == "noise-free")


def test_claims_cover_exactly_what_is_said_to_be_protected(mechanism: Composition) -> None:
    cost = mechanism.cost()
    assert (cost.network is not None) == ("network" in mechanism.protects)
    assert (cost.loads is not None) == ("loads" in mechanism.protects)
    for claim in (cost.network, cost.loads):
        if claim is not None:
            assert claim.epsilon > 0.0
            assert 0.0 <= claim.delta < 1.0
            assert claim.adjacency
            assert claim.unit
            assert claim.proved or claim.remark


def test_network_claim_is_within_the_target(mechanism: Composition) -> None:
    claim = mechanism.cost().network
    if claim is not None:
        assert claim.epsilon <= EPSILON * (1.0 + 1e-9)


def test_numbers_of_the_paper_are_never_called_proved(mechanism: Composition, kind: str) -> None:
    claim = mechanism.cost().network
    if claim is not None and kind not in ("y noise", "twin", "twin, true loads"):
        assert not claim.proved


def test_a_mechanism_cannot_be_changed_after_it_was_made(mechanism: Composition) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.name = "another"  # type: ignore[misc]


def test_more_true_days_than_there_are_is_refused(mechanism: Composition, kind: str) -> None:
    if kind in READS_TRUE_LOADS:
        with pytest.raises(PrivacyError, match="days were asked"):
            mechanism.release(np.random.default_rng(6), DAYS + 1)
    else:
        assert len(mechanism.release(np.random.default_rng(6), DAYS + 1)) == DAYS + 1


def test_only_the_noise_free_release_equals_the_true_voltages(
    mechanism: Composition, kind: str, setting: Setting
) -> None:
    true = setting.solve(setting.true_load[:1])
    released = mechanism.release(np.random.default_rng(7), 1)
    assert np.array_equal(released, true) == (kind == "noise-free")


def test_the_sun_reaches_every_release_and_moves_it(mechanism: Composition, setting: Setting) -> None:
    if setting.generation is None:
        return
    idle = dataclasses.replace(setting, generation=None)
    dark = dataclasses.replace(mechanism, setting=idle)
    sunny, night = (made.release(np.random.default_rng(8), 1) for made in (mechanism, dark))
    solved = np.isfinite(sunny) & np.isfinite(night)
    assert np.abs(sunny - night)[solved].max() > 1e-3


def test_noise_that_is_added_is_reported(mechanism: Composition, kind: str) -> None:
    assert (mechanism.noise_std == {}) == (kind in ("noise-free", "literal", "paper", "full support"))
    assert all(value > 0.0 for value in mechanism.noise_std.values())
