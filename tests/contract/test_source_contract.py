"""One suite for every part of a release in the registry: what it takes, gives and promises.

Parts whose noise is on the loads themselves are audited from below on a feeder of two nodes; fits name the
test that audits them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import MissingExtraError, PrivacyError
from dp_powerflow.lowlevel import OperatingSet, simulate_load_history
from dp_powerflow_paper.mechanisms import Setting, Target
from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.entries import LoadEntry, NetworkEntry, Occasion
from dp_powerflow_paper.sources.loads import true_loads
from dp_powerflow_paper.sources.networks import true_network
from dp_powerflow_paper.sources.registry import LOADS, NETWORKS, OTHERS
from dp_powerflow_paper.table1.auditing import small_data
from support.auditing import epsilon_lower_bound
from support.two_nodes import NOMINAL, radius_of, two_node_data, two_nodes

ROOT = Path(__file__).parents[2]
TARGET = Target(1.0, 1e-5)
DAYS, STEPS = 21, 24
LOW, HIGH = 0.5, 1.5
RUNS = 20_000
NOISY = [entry for entry in LOADS if entry.audited_by is None and entry.key != "true"]
"""Those with noise on loads and a claim."""
AUDITED_NETWORKS = [entry for entry in NETWORKS if entry.audited_by is None and entry.key != "true"]


def key_of(entry: LoadEntry | NetworkEntry) -> str:
    return entry.key


@pytest.fixture(scope="module")
def occasion() -> Occasion:
    """IEEE 13 with simulated customers, hourly."""
    data = small_data()
    count = len(data.relative)
    history = simulate_load_history(count, n_days=DAYS, step_minutes=60, seed=1)
    assert history.scale_kw is not None
    relative = history.load_kw / history.scale_kw[:, None, None]
    unlabelled = replace(history, load_kw=relative, scale_kw=np.ones(count), class_label=(None,) * count)
    of_customers = replace(
        data, history=unlabelled, relative=relative, margins=(0.005, 1.5), radius=1e-3, calibration_floor=0.1
    )
    return Occasion(of_customers, np.arange(DAYS), TARGET)


@pytest.fixture(scope="module")
def setting(occasion: Occasion) -> Setting:
    data = occasion.data
    low, high = data.load_range
    operating = OperatingSet(0.8, 1.1, 0.5, 10.0, 0.0, "not used by parts")
    return Setting(
        data.network, data.solver(), occasion.true_load, high - low, len(data.nominal), data.radius, operating
    )


def test_entries_have_names_of_their_own_and_audits_that_exist() -> None:
    for entries in (LOADS, NETWORKS, OTHERS):
        assert len({entry.key for entry in entries}) == len(entries)
        for entry in entries:
            assert all((entry.title, entry.paper))
            assert entry.audited_by is None or (ROOT / entry.audited_by).is_file()


def well_formed(claim: Guarantee) -> bool:
    return math.isfinite(claim.epsilon) or not claim.proved


@pytest.mark.parametrize("entry", LOADS, ids=key_of)
def test_loads_are_days_that_follow_from_a_generator_and_say_what_they_cost(
    entry: LoadEntry, occasion: Occasion, setting: Setting
) -> None:
    if entry.extra is not None and entry.quick is None:
        pytest.skip("it trains for minutes, and has tests of its own")
    try:
        part = (entry.quick or entry.make)(occasion)
    except MissingExtraError as error:
        pytest.skip(str(error))
    load, again, other = (part.draw(np.random.default_rng(seed), 2) for seed in (2, 2, 3))
    assert load.shape == (2, STEPS, len(setting.loaded))
    assert load.dtype == np.complex128
    assert np.isfinite(load).all()
    assert load.real.sum(axis=2).min() > 0.0
    assert np.array_equal(load, again)
    assert np.array_equal(load, other) == (entry.key == "true")

    claim = part.guarantee
    assert (claim is None) == (entry.key == "true")
    if claim is not None:
        assert well_formed(claim)
        # A training with public settings may cost more than was asked for, and says so.
        assert claim.epsilon <= TARGET.epsilon or not claim.proved or entry.extra is not None
        assert claim.delta <= TARGET.delta
        assert (claim.composes == "once") == part.unlimited
        assert not entry.matched or "one load point has other values on one day" in claim.adjacency
    assert all(std > 0.0 for std in part.noise_std.values())
    if part.unlimited:
        assert len(part.draw(np.random.default_rng(4), 10 * DAYS)) == 10 * DAYS
        assert part.guarantee == claim
    else:
        with pytest.raises(PrivacyError, match="days were asked"):
            part.draw(np.random.default_rng(4), DAYS + 1)

    release = Composition(setting, part, true_network(setting))
    assert np.isfinite(release.release(np.random.default_rng(5), 2)).all()
    assert (release.cost().loads, release.cost().network) == (claim, None)
    assert release.protects == ("nothing" if claim is None else "loads")


@pytest.mark.parametrize("entry", NETWORKS, ids=key_of)
def test_networks_are_drawn_and_solved_and_say_what_they_cost(
    entry: NetworkEntry, occasion: Occasion, setting: Setting
) -> None:
    try:
        network = entry.make(occasion)
    except MissingExtraError as error:
        pytest.skip(str(error))
    drawn, again, other = (network.draw(np.random.default_rng(seed)).y.toarray() for seed in (6, 6, 7))
    assert np.array_equal(drawn, again)
    for different in (setting.network.feeder.y.toarray(), other):
        assert np.array_equal(drawn, different) == network.uses_true_network
    release = Composition(setting, true_loads(setting), network)
    assert release.release(np.random.default_rng(8), 1).shape == (1, STEPS, len(setting.loaded))
    claim = network.guarantee
    assert release.cost().network == claim
    assert (claim is None) == network.uses_true_network
    if claim is not None:
        assert well_formed(claim)
        assert claim.epsilon <= TARGET.epsilon * (1.0 + 1e-9) or not claim.proved
        assert all(std > 0.0 for std in network.noise_std.values())


def audited(entry: LoadEntry, epsilon: float) -> float:
    """ε from below, of a meter at its lowest and at its highest load, for a step or all of the day."""
    found = []
    for level in (LOW, HIGH):
        data = two_node_data(np.full((1, RUNS, 2 if entry.matched else 1), level), (LOW, HIGH))
        part = entry.make(Occasion(data, np.arange(RUNS), Target(epsilon, TARGET.delta)))
        generator = np.random.default_rng([int(100 * level), int(10 * epsilon)])
        found.append(part.draw(generator, RUNS)[:, :, 0].real.sum(axis=1))
    low, high = found
    return max(epsilon_lower_bound(high, low, 0.0), epsilon_lower_bound(-low, -high, 0.0))


@pytest.mark.parametrize("entry", NOISY, ids=key_of)
def test_noise_on_loads_has_its_size_an_audit_stays_within_the_claim_and_half_of_the_noise_is_caught(
    entry: LoadEntry,
) -> None:
    data = two_node_data(np.full((1, 1, 1), LOW), (LOW, HIGH))
    claim = entry.make(Occasion(data, np.arange(1), TARGET)).guarantee
    assert claim is not None
    assert audited(entry, 2.0 * TARGET.epsilon) > TARGET.epsilon
    if not claim.proved:
        assert audited(entry, TARGET.epsilon) > 3.0, "what has no guarantee is seen to have none"
        return
    assert 0.5 * claim.epsilon <= audited(entry, TARGET.epsilon) <= claim.epsilon
    # At a large ε the public range does not cut the noise of a load in its middle.
    data = two_node_data(np.full((1, RUNS, 1), (LOW + HIGH) / 2), (LOW, HIGH))
    part = entry.make(Occasion(data, np.arange(RUNS), Target(40.0, TARGET.delta)))
    assert part.guarantee is not None
    (said,) = part.noise_std.values()
    load = part.draw(np.random.default_rng(9), RUNS)[:, 0, 0].real
    assert load.std() == pytest.approx(said, rel=0.05)
    needed = math.sqrt(2.0) * (HIGH - LOW) * NOMINAL.real / part.guarantee.epsilon
    assert said == pytest.approx(needed, rel=1e-9)


@pytest.mark.parametrize("entry", AUDITED_NETWORKS, ids=key_of)
@pytest.mark.parametrize(("weaker", "kept"), [(1.0, True), (2.0, False)])
def test_audit_of_networks_from_below(entry: NetworkEntry, weaker: float, kept: bool) -> None:
    """Neighbours at the radius of the claim; half of the noise is that for half of the radius."""
    runs, stretch, delta = 4000, 1.02, 1e-2
    change = (two_nodes(stretch).y - two_nodes().y).toarray()
    scores = []
    for seed, own in enumerate((1.0, stretch)):
        data = two_node_data(np.ones((1, 1, 1)), (LOW, HIGH), stretch=own, radius=radius_of(stretch) / weaker)
        part, generator = (
            entry.make(Occasion(data, np.arange(1), Target(2.0, delta))),
            np.random.default_rng(seed),
        )
        drawn = (part.draw(generator).y.toarray() for _ in range(runs))
        scores.append(np.array([np.vdot(change, y).real for y in drawn]))
        claim = part.guarantee
    assert claim is not None
    found = epsilon_lower_bound(scores[1], scores[0], claim.delta)
    assert found > 0.4 * claim.epsilon
    assert (found <= claim.epsilon) is kept
