"""One suite for every release mechanism: what it takes, gives and promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder, Protected, TwinDesign, open_feeder
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import (
    ClassLaw,
    DaySolver,
    Generation,
    LoadLaw,
    Network,
    VoltVar,
    monte_carlo,
    network_facts,
    nominal_law,
)
from dp_powerflow_paper.mechanisms import FittedLoads, Setting, Target
from dp_powerflow_paper.mechanisms import dp_powerflow as papers
from dp_powerflow_paper.mechanisms import gaussian as noises
from dp_powerflow_paper.mechanisms.noise import PAPER_DAY, STEP
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, Guarantee
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.loads import LawLoads
from support.laws import draw, sampler

DAYS, STEPS = 3, 6
RADIUS, EPSILON, DELTA = 1e-5, 40.0, 1e-3
MARGINS = (0.5, 1.2)
LOADS = Guarantee(2.0, 1e-5, "any number of days", ONE_CUSTOMER_DAY, True, "zCDP")
LENGTHS = TwinDesign(2.0, noise="gaussian", delta=1e-5, protected=Protected(lines="length"))
ALL = TwinDesign(1.0, protected=Protected(capacitors=True))
READS = ("noise-free", "gaussian on voltages", "the paper's table", "joint", "noisy loads", "y noise")
READS_TRUE_DAYS = dict.fromkeys((*READS, "twin, true loads"), True)
READS_TRUE_DAYS |= dict.fromkeys(("gmm", "literal", "paper", "full support", "twin"), False)
FORMULA = ("literal", "paper", "full support")


def law_of(feeder: Feeder) -> LoadLaw:
    loaded = feeder.loaded_nodes()[0]
    nominal = -feeder.nominal_injection[feeder.retained[loaded]]
    lag = np.abs(np.subtract.outer(np.arange(STEPS), np.arange(STEPS)))
    of_class = ClassLaw.gaussian(np.full(STEPS, math.log(0.8)), 0.02 * 0.7**lag)
    return replace(nominal_law(nominal, of_class), positions=loaded)


@pytest.fixture(scope="module", params=["ieee13", "ieee123-pv"])
def setting(request: pytest.FixtureRequest) -> Setting:
    """Without PV, and with PV at nodes that have no load."""
    feeder = open_feeder(request.param)
    law, network, rng = law_of(feeder), Network(feeder), np.random.default_rng(1)
    sun = Generation.from_irradiance(feeder, rng.uniform(0.0, 1.0, (DAYS, STEPS))) if feeder.pv else None
    voltvar = VoltVar.for_feeder(feeder) if feeder.pv else None
    found = monte_carlo(DaySolver(network, voltvar), sampler(law, 20, 1), sun)
    width = float(MARGINS[1] * law.scale.max() - MARGINS[0] * law.scale.min())
    solver, load = BatchSolver(feeder, voltvar=voltvar), draw(law, DAYS, rng)
    return Setting(network, solver, load, width, law.n, RADIUS, found.operating, sun, voltvar)


@pytest.fixture(scope="module")
def mechanisms(setting: Setting) -> dict[str, Composition]:
    law, facts = law_of(setting.network.feeder), network_facts(setting.network)
    sensitivities = noises.printed_sensitivities(setting)
    step, day = (noises.NetworkTarget(sensitivities, EPSILON, DELTA, unit) for unit in (STEP, PAPER_DAY))
    fitted, drawn, target = FittedLoads(law, LOADS), LawLoads(law, LOADS), Target(EPSILON, DELTA)
    low, rng = float(MARGINS[0] * law.scale.min()), np.random.default_rng(2)
    return {
        "noise-free": noises.noise_free(setting),
        "gaussian on voltages": noises.voltage_noise(setting, step),
        "the paper's table": noises.voltage_noise(setting, day),
        "joint": noises.joint_voltage_noise(setting, step, 100.0),
        "gmm": noises.voltage_noise(setting, step, drawn),
        "noisy loads": noises.noisy_loads(setting, step, low, 5.0, 1e-5),
        "y noise": noises.admittance_noise(setting, EPSILON, DELTA),
        "literal": papers.literal_variant(setting, facts, fitted, MARGINS, DELTA),
        "paper": papers.paper_variant(setting, facts, fitted, MARGINS, target, rng),
        "full support": papers.full_support_variant(
            setting, facts, fitted, MARGINS[0], target, np.eye(STEPS)
        ),
        "twin": papers.on_twin(setting, ALL, drawn),
        "twin, true loads": papers.on_twin(setting, LENGTHS),
    }


@pytest.mark.parametrize("kind", READS_TRUE_DAYS)
def test_release_is_voltages_of_day_step_node_and_a_function_of_its_generator(
    mechanisms: dict[str, Composition], setting: Setting, kind: str
) -> None:
    mechanism = mechanisms[kind]
    v = mechanism.release(np.random.default_rng(3), 2)
    assert v.shape == (2, STEPS, setting.n_loads)
    assert v.dtype == np.complex128
    solved = np.isfinite(v).all(axis=2)
    assert np.array_equal(solved, np.isfinite(v).any(axis=2)), "a snapshot that fails is NaN at every node"
    assert 0.5 < np.median(np.abs(v[solved])) < 1.5
    first, again, other = (mechanism.release(np.random.default_rng(seed), 1) for seed in (4, 4, 5))
    assert np.array_equal(first, again, equal_nan=True)
    assert np.array_equal(first, other, equal_nan=True) == (kind == "noise-free")
    assert np.array_equal(first, setting.solve(setting.true_load[:1])) == (kind == "noise-free")
    if READS_TRUE_DAYS[kind]:
        with pytest.raises(PrivacyError, match="days were asked"):
            mechanism.release(np.random.default_rng(6), DAYS + 1)
    else:
        assert len(mechanism.release(np.random.default_rng(6), DAYS + 1)) == DAYS + 1
    if setting.generation is not None:
        dark = replace(mechanism, setting=replace(setting, generation=None))
        night = dark.release(np.random.default_rng(4), 1)
        assert np.nanmax(np.abs(first - night)) > 1e-3


@pytest.mark.parametrize("kind", READS_TRUE_DAYS)
def test_claims_cover_what_is_protected_within_the_target_and_noise_is_reported(
    mechanisms: dict[str, Composition], kind: str
) -> None:
    mechanism = mechanisms[kind]
    cost = mechanism.cost()
    assert (cost.network is not None) == ("network" in mechanism.protects)
    assert (cost.loads is not None) == ("loads" in mechanism.protects)
    for claim in filter(None, (cost.network, cost.loads)):
        assert claim.epsilon > 0.0
        assert 0.0 <= claim.delta < 1.0
        assert all((claim.adjacency, claim.unit))
        assert claim.proved or claim.remark
    if cost.network is not None:
        assert cost.network.epsilon <= EPSILON * (1.0 + 1e-9)
        # Numbers of the paper are never called proved.
        assert not cost.network.proved or kind in ("y noise", "twin", "twin, true loads")
    assert (mechanism.noise_std == {}) == (kind in ("noise-free", *FORMULA))
    assert all(value > 0.0 for value in mechanism.noise_std.values())
