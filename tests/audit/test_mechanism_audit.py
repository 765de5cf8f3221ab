"""Statistical audit of every mechanism's claim on a feeder of two nodes, a source and a load.

A lower bound on ε at the claimed δ from many releases on two neighbours: half of the releases choose an
event, the other half bound its probabilities (Clopper–Pearson, 99.9 %); draws are seeded. Every audit is
shown not to be blind: with less noise than the claim needs it exceeds the claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dp_powerflow import BatchSolver
from dp_powerflow.evidence.calibration import load_box_set
from dp_powerflow.lowlevel import ClassLaw, LoadLaw, Network, OperatingSet, network_facts, nominal_law
from dp_powerflow_paper.mechanisms import FittedLoads, Setting, Target
from dp_powerflow_paper.mechanisms.dp_powerflow import DpPowerflow, full_support_variant, paper_variant
from dp_powerflow_paper.mechanisms.gaussian import (
    NetworkTarget,
    Sensitivities,
    admittance_noise,
    joint_voltage_noise,
    proved_sensitivities,
    voltage_noise,
)
from dp_powerflow_paper.mechanisms.gaussian import noisy_loads as with_noisy_loads
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, Guarantee
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.loads import LawLoads
from dp_powerflow_paper.sources.networks import true_network
from support.auditing import epsilon_lower_bound
from support.two_nodes import NOMINAL, Z, radius_of, two_nodes

RUNS = 20_000
TANGENT = 0.4
LOW, HIGH = 0.05, 0.15
DELTA = 1e-2
LOADS = Guarantee(2.0, 1e-5, "any number of days", ONE_CUSTOMER_DAY, True)


def make_setting(stretch: float, p: float, radius: float, steps: int = 1, days: int = RUNS) -> Setting:
    """`days` independent days of the same load; the box is that of every load in the range, proved."""
    feeder = two_nodes(stretch)
    network = Network(feeder)
    box = load_box_set(network, np.array([HIGH * math.hypot(1.0, TANGENT)]))
    assert box is not None
    load = np.full((days, steps, 1), p * (1.0 + 1j * TANGENT))
    return Setting(network, BatchSolver(feeder), load, HIGH - LOW, 1, radius, box)


def lower_bound(first: np.ndarray, second: np.ndarray, delta: float) -> float:
    """Valid lower bound on ε at δ from a score under two neighbours, whichever way the event goes."""
    # A release that fails is seen to fail: it is an outcome like any other, beyond all scores.
    first, second = (np.nan_to_num(score, nan=-1e9) for score in (first, second))
    pairs = ((first, second), (-first, -second), (second, first), (-second, -first))
    return max(epsilon_lower_bound(a, b, delta) for a, b in pairs)


@dataclass(frozen=True)
class Pair:
    """A mechanism on two neighbouring inputs, and the claim about them."""

    one: Composition
    other: Composition
    claim: Guarantee | None

    def audited(self, runs: int = RUNS) -> float:
        """ε from below; the score is the projection on the line through the two mean releases."""
        assert self.claim is not None
        first, second = (
            mechanism.release(np.random.default_rng(seed), runs)[:, 0, 0]
            for seed, mechanism in enumerate((self.one, self.other))
        )
        direction = np.conj(first.mean() - second.mean())
        return lower_bound((first * direction).real, (second * direction).real, self.claim.delta)


STRETCH = 1.01
RADIUS = radius_of(STRETCH)


def proved(setting: Setting) -> Sensitivities:
    return proved_sensitivities(setting, TANGENT)


def true_distance(pair: tuple[Setting, Setting]) -> float:
    """|v − v′| of the true voltages."""
    one, other = (setting.solve(setting.true_load[:1])[0, 0, 0] for setting in pair)
    return float(abs(one - other))


def network_pair(p: float = HIGH) -> tuple[Setting, Setting]:
    return make_setting(1.0, p, RADIUS), make_setting(STRETCH, p, RADIUS)


def load_pair() -> tuple[Setting, Setting]:
    return make_setting(1.0, LOW, RADIUS), make_setting(1.0, HIGH, RADIUS)


def joint(setting: Setting, sensitivities: Sensitivities, epsilon: float = 3.0) -> Composition:
    return joint_voltage_noise(setting, NetworkTarget(sensitivities, epsilon, DELTA), epsilon)


@pytest.mark.parametrize("secret", ["network", "loads"])
def test_joint_noise_keeps_its_claim_and_the_audit_is_not_blind(secret: str) -> None:
    """Noise for the true distance is just seen to keep its claim; for a third of it, to break it."""
    settings = network_pair() if secret == "network" else load_pair()
    # Neighbours are each other's neighbours: the larger of the two proofs is used on both sides.
    one, other = (proved(setting) for setting in settings)
    larger = replace(one, network=max(one.network, other.network), load=max(one.load, other.load))
    exact = true_distance(settings)
    assert exact <= larger.network + larger.load
    tight, weak = (Sensitivities(d, d, True, "exact, or a planted bug") for d in (exact, exact / 3))
    seen = []
    for given in (larger, tight, weak):
        first, second = (joint(setting, given) for setting in settings)
        claim = getattr(first.cost(), secret)
        assert claim.proved
        seen.append(Pair(first, second, claim).audited())
    assert seen[0] <= 3.0
    assert 0.6 * 3.0 < seen[1] <= 3.0 < seen[2]


def one_node(mean: float, variance: float) -> LoadLaw:
    """One step of the load at the one node."""
    nominal = np.array([NOMINAL.real * (1.0 + 1j * TANGENT)])
    return nominal_law(nominal, ClassLaw.gaussian(np.array([mean]), np.array([[variance]])))


def narrow_law(setting: Setting) -> LoadLaw:
    """Loads that hardly vary: what is left to hide the network is the noise."""
    return one_node(float(np.log(HIGH / NOMINAL.real - 0.1)), 1e-6)


def gmm(setting: Setting, sensitivities: Sensitivities) -> Composition:
    return voltage_noise(
        setting, NetworkTarget(sensitivities, 3.0, DELTA), LawLoads(narrow_law(setting), LOADS)
    )


def test_gmm_noise_keeps_its_claim_and_the_audit_is_not_blind() -> None:
    settings = network_pair()
    larger = max((proved(setting) for setting in settings), key=lambda found: found.network)
    one, two = (gmm(setting, larger) for setting in settings)
    claim = one.cost().network
    assert claim is not None
    assert claim.proved
    assert Pair(one, two, claim).audited() <= claim.epsilon
    exact = true_distance(settings)
    weak = [gmm(s, Sensitivities(exact / 3, exact / 3, True, "planted bug")) for s in settings]
    assert Pair(weak[0], weak[1], claim).audited() > claim.epsilon


def noisy_loads(setting: Setting, sensitivities: Sensitivities, epsilon_load: float = 3.0) -> Composition:
    load_range = HIGH - LOW
    chosen = replace(setting, load_range=load_range)
    low = (LOW + HIGH) / 2 - load_range / 2
    return with_noisy_loads(chosen, NetworkTarget(sensitivities, 3.0, DELTA), low, epsilon_load, DELTA)


def test_noisy_loads_keep_both_claims_and_the_audit_is_not_blind() -> None:
    larger = max((proved(setting) for setting in network_pair()), key=lambda found: found.network)
    one, two = (noisy_loads(setting, larger) for setting in network_pair())
    claim = one.cost().network
    assert claim is not None
    assert claim.proved
    assert Pair(one, two, claim).audited() <= claim.epsilon
    # The loads: voltages all but noiseless, so that nothing but the noise on the loads hides them.
    quiet = Sensitivities(1e-7, 1e-7, True, "given")
    one, two = (noisy_loads(setting, quiet) for setting in load_pair())
    claim = one.cost().loads
    assert claim is not None
    assert claim.proved
    seen = Pair(one, two, claim).audited()
    assert 0.3 * claim.epsilon < seen <= claim.epsilon  # clipping hides some more
    # The planted bug: noise for a third of the range that the loads really span.
    third = [noisy_loads(setting, quiet, epsilon_load=12.0) for setting in load_pair()]
    assert third[0].noise_std["load_noise"] < one.noise_std["load_noise"] / 2
    assert Pair(third[0], third[1], claim).audited() > 3.0


@pytest.mark.parametrize(("weaker", "kept"), [(1.0, True), (3.0, False)])
def test_admittance_noise_keeps_its_claim_and_the_audit_is_not_blind(weaker: float, kept: bool) -> None:
    """The noisy matrix itself, which the claim covers too; what a release shows of it is post-processing."""
    runs, stretch = 4000, 1.02
    change = (two_nodes(stretch).y - two_nodes().y).toarray()
    settings = [make_setting(s, HIGH, radius_of(stretch) / weaker, days=1) for s in (1.0, stretch)]
    scores = []
    for seed, setting in enumerate(settings):
        mechanism, rng = admittance_noise(setting, 1.0, DELTA), np.random.default_rng(seed)
        drawn = (mechanism.network.draw(rng).y.toarray() for _ in range(runs))
        scores.append(np.array([np.vdot(change, y).real for y in drawn]))
        claim = mechanism.cost().network
    assert claim is not None
    assert claim.proved
    seen = lower_bound(scores[0], scores[1], claim.delta)
    assert seen > 0.25 * claim.epsilon
    assert (seen <= claim.epsilon) is kept


def wide_law() -> LoadLaw:
    return one_node(-0.05, 0.01)


def variants(stretch: float, epsilon: float) -> dict[str, list[DpPowerflow]]:
    """Both variants on a line and its neighbour, at the paper's formula for the r between them."""
    radius = radius_of(stretch)
    found: dict[str, list[DpPowerflow]] = {"paper": [], "full support": []}
    for s in (1.0, stretch):
        setting = make_setting(s, HIGH, radius, days=1)
        inside = OperatingSet(0.95, 1.0, 0.2, setting.operating.mu, 0.0, "known")
        setting = replace(setting, operating=inside)
        facts = network_facts(setting.network)
        rng, loads = np.random.default_rng(3), FittedLoads(wide_law(), LOADS)
        found["paper"].append(paper_variant(setting, facts, loads, (0.6, 1.5), Target(epsilon, DELTA), rng))
        target = Target(epsilon, DELTA)
        found["full support"].append(full_support_variant(setting, facts, loads, 0.6, target, np.eye(1)))
    return found


def losses(one: DpPowerflow, two: DpPowerflow, delta: float) -> list[float]:
    """ε from below by the real and by the imaginary part of the load that voltages imply."""
    pair = [m.release(np.random.default_rng(k), RUNS)[:, 0, 0] for k, m in enumerate((one, two))]
    first, second = (-v * np.conj((v - 1.0) / Z) for v in pair)
    return [lower_bound(read(first), read(second), delta) for read in (np.real, np.imag)]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "full support"])
def test_dp_powerflow_keeps_its_claim_where_it_is_one(variant: str) -> None:
    """On two nodes a change of the line scales one row and keeps the manifold: it is covered."""
    stretch = 1.001
    one, two = variants(stretch, 2.0)[variant]
    claim = one.cost().network
    assert claim is not None
    assert claim.epsilon == pytest.approx(2.0, rel=1e-9)
    assert np.isfinite(one.release(np.random.default_rng(9), 1000)).mean() > 0.9
    assert max(losses(one, two, claim.delta)) <= claim.epsilon


@pytest.mark.parametrize("variant", ["paper", "full support"])
def test_audit_of_dp_powerflow_is_not_blind(variant: str) -> None:
    """The planted bug: neighbours much farther apart than the r of the claim."""
    far = make_setting(1000.0, HIGH, RADIUS, days=1)
    one, _ = variants(1.001, 2.0)[variant]
    claim = one.cost().network
    assert claim is not None
    two = replace(one, setting=far, network=true_network(far))
    assert losses(one, two, claim.delta)[0] > claim.epsilon
