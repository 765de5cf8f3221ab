"""One suite for every part of a release in the registry: what it takes, gives and promises.

Parts whose noise is on the loads themselves are audited from below on a feeder of two nodes; fits name the
test that audits them.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow.errors import MissingExtraError, PrivacyError
from dp_powerflow.evidence.theorem import OperatingSet
from dp_powerflow.grid.reduction import Network
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.model.single_days import Plain
from dp_powerflow_paper.datasets import Dataset
from dp_powerflow_paper.mechanisms import Setting, Target
from dp_powerflow_paper.sources import Guarantee, LoadMechanism, NetworkMechanism
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.entries import LoadEntry, NetworkEntry, Occasion
from dp_powerflow_paper.sources.loads import true_loads
from dp_powerflow_paper.sources.networks import true_network
from dp_powerflow_paper.sources.registry import LOADS, NETWORKS, OTHERS
from support.auditing import epsilon_lower_bound
from support.two_nodes import NOMINAL, radius_of, two_node_data, two_nodes

ROOT = Path(__file__).parents[2]
TARGET = Target(1.0, 1e-5)
DAYS, STEPS = 21, 24
LOW, HIGH = 0.5, 1.5
RUNS = 20_000


@pytest.fixture(scope="module")
def data() -> Dataset:
    """IEEE 13 with simulated customers, hourly."""
    feeder = open_feeder("ieee13")
    history = simulate_load_history(len(feeder.loads), n_days=DAYS, step_minutes=60, seed=1)
    assert history.scale_kw is not None
    relative = history.load_kw / history.scale_kw[:, None, None]
    count = len(relative)
    unlabelled = dataclasses.replace(
        history, load_kw=relative, scale_kw=np.ones(count), class_label=(None,) * count
    )
    loaded = feeder.retained[feeder.loaded_nodes()[0]]
    return Dataset(
        name="small",
        feeder=feeder,
        network=Network(feeder),
        history=unlabelled,
        relative=relative,
        shares=sp.csr_array(feeder.load_shares.tocsr()[loaded] * feeder.nominal_load[None, :]),
        nominal=np.asarray(-feeder.nominal_injection[loaded]),
        margins=(0.005, 1.5),
        radius=1e-3,
        estimator=Plain(),
        calibration_floor=0.1,
        words="simulated customers on IEEE 13",
    )


@pytest.fixture(scope="module")
def occasion(data: Dataset) -> Occasion:
    return Occasion(data, np.arange(DAYS), TARGET)


@pytest.fixture(scope="module")
def setting(data: Dataset, occasion: Occasion) -> Setting:
    low, high = data.load_range
    operating = OperatingSet(0.8, 1.1, 0.5, 10.0, 0.0, "not used by parts")
    return Setting(
        data.network, data.solver(), occasion.true_load, high - low, len(data.nominal), data.radius, operating
    )


def made(entry: LoadEntry, occasion: Occasion) -> LoadMechanism:
    """The quick variant where there is one."""
    if entry.extra is not None and entry.quick is None:
        pytest.skip("it trains for minutes, and has tests of its own")
    try:
        return (entry.quick or entry.make)(occasion)
    except MissingExtraError as error:
        pytest.skip(str(error))


LOAD_KEYS = [entry.key for entry in LOADS]


@pytest.fixture(scope="module", params=LOADS, ids=LOAD_KEYS)
def entry(request: pytest.FixtureRequest) -> LoadEntry:
    assert isinstance(request.param, LoadEntry)
    return request.param


@pytest.fixture(scope="module")
def part(entry: LoadEntry, occasion: Occasion) -> LoadMechanism:
    return made(entry, occasion)


@pytest.fixture(scope="module", params=NETWORKS, ids=[entry.key for entry in NETWORKS])
def network_entry(request: pytest.FixtureRequest) -> NetworkEntry:
    assert isinstance(request.param, NetworkEntry)
    return request.param


@pytest.fixture(scope="module")
def network(network_entry: NetworkEntry, occasion: Occasion) -> NetworkMechanism:
    try:
        return network_entry.make(occasion)
    except MissingExtraError as error:
        pytest.skip(str(error))


def test_entries_have_names_of_their_own_and_audits_that_exist() -> None:
    for entries in (LOADS, NETWORKS, OTHERS):
        keys = [entry.key for entry in entries]
        assert len(set(keys)) == len(keys)
        for entry in entries:
            assert entry.title
            assert entry.paper
            assert entry.audited_by is None or (ROOT / entry.audited_by).is_file()


def well_formed(claim: Guarantee) -> bool:
    finite = math.isfinite(claim.epsilon)
    return finite or not claim.proved


def test_loads_are_complex_days_of_the_loaded_nodes(part: LoadMechanism, setting: Setting) -> None:
    load = part.draw(np.random.default_rng(1), 3)
    assert load.shape == (3, STEPS, len(setting.loaded))
    assert load.dtype == np.complex128
    assert np.isfinite(load).all()
    assert load.real.sum(axis=2).min() > 0.0


def test_the_same_generator_gives_the_same_loads(part: LoadMechanism, entry: LoadEntry) -> None:
    first, again, other = (part.draw(np.random.default_rng(seed), 2) for seed in (2, 2, 3))
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (entry.key == "true")


def test_claims_of_loads_are_well_formed(part: LoadMechanism, entry: LoadEntry) -> None:
    claim = part.guarantee
    assert (claim is None) == (entry.key == "true")
    if claim is not None:
        assert well_formed(claim)
        # A training with public settings may cost more than was asked for, and says so.
        assert claim.epsilon <= TARGET.epsilon or not claim.proved or entry.extra is not None
        assert claim.delta <= TARGET.delta
        if entry.matched:
            assert "one load point has other values on one day" in claim.adjacency
    assert all(std > 0.0 for std in part.noise_std.values())


def test_days_are_unlimited_exactly_where_it_is_said(part: LoadMechanism) -> None:
    before, generator = part.guarantee, np.random.default_rng(4)
    if part.unlimited:
        assert len(part.draw(generator, 10 * DAYS)) == 10 * DAYS
        assert part.guarantee == before
        assert before is None or before.composes == "once"
    else:
        with pytest.raises(PrivacyError, match="days were asked"):
            part.draw(generator, DAYS + 1)
        assert before is None or before.composes != "once"


def test_loads_make_a_release_with_their_own_claim(part: LoadMechanism, setting: Setting) -> None:
    release = Composition(setting, part, true_network(setting))
    v = release.release(np.random.default_rng(5), 2)
    assert v.shape == (2, STEPS, len(setting.loaded))
    assert np.isfinite(v).all()
    assert release.cost().loads == part.guarantee
    assert release.cost().network is None
    assert release.protects == ("nothing" if part.guarantee is None else "loads")


def test_networks_are_drawn_and_solved(network: NetworkMechanism, setting: Setting) -> None:
    drawn, again, other = (network.draw(np.random.default_rng(seed)).y.toarray() for seed in (6, 6, 7))
    true = setting.network.feeder.y.toarray()
    assert np.array_equal(drawn, again)
    assert np.array_equal(drawn, true) == network.uses_true_network
    assert np.array_equal(drawn, other) == network.uses_true_network
    release = Composition(setting, true_loads(setting), network)
    assert release.release(np.random.default_rng(8), 1).shape == (1, STEPS, len(setting.loaded))
    assert release.cost().network == network.guarantee


def test_claims_of_networks_are_well_formed(network: NetworkMechanism, occasion: Occasion) -> None:
    claim = network.guarantee
    assert (claim is None) == network.uses_true_network
    if claim is not None:
        assert well_formed(claim)
        assert claim.epsilon <= TARGET.epsilon * (1.0 + 1e-9) or not claim.proved
        assert all(std > 0.0 for std in network.noise_std.values())


def noisy_entries() -> list[LoadEntry]:
    """Those with noise on loads and a claim."""
    return [entry for entry in LOADS if entry.audited_by is None and entry.key != "true"]


NOISY_KEYS = [entry.key for entry in noisy_entries()]


def two_node_loads(
    entry: LoadEntry, level: float, epsilon: float, *, whole_day: bool, days: int = RUNS
) -> np.ndarray:
    """(day, step) active load of one meter at a level, the first step or all of the day."""
    steps = 2 if whole_day else 1
    relative = np.full((1, days, steps), level)
    data = two_node_data(relative, (LOW, HIGH))
    part = entry.make(Occasion(data, np.arange(days), Target(epsilon, TARGET.delta)))
    seed = [int(100 * level), int(10 * epsilon)]
    return np.asarray(part.draw(np.random.default_rng(seed), days)[:, :, 0].real)


def audited(entry: LoadEntry, epsilon: float) -> float:
    """ε from below, of a meter at its lowest and at its highest load."""
    whole_day = entry.matched
    low, high = (
        two_node_loads(entry, level, epsilon, whole_day=whole_day).sum(axis=1) for level in (LOW, HIGH)
    )
    return max(epsilon_lower_bound(high, low, 0.0), epsilon_lower_bound(-low, -high, 0.0))


@pytest.mark.parametrize("entry", noisy_entries(), ids=NOISY_KEYS)
def test_noise_on_loads_has_the_size_that_it_says(entry: LoadEntry) -> None:
    """At a large ε the public range does not cut the noise of a load in its middle."""
    data = two_node_data(np.full((1, RUNS, 1), (LOW + HIGH) / 2), (LOW, HIGH))
    part = entry.make(Occasion(data, np.arange(RUNS), Target(40.0, TARGET.delta)))
    claim = part.guarantee
    assert claim is not None
    if not claim.proved:
        return
    load = part.draw(np.random.default_rng(9), RUNS)[:, 0, 0].real
    (said,) = part.noise_std.values()
    assert load.std() == pytest.approx(said, rel=0.05)
    needed = math.sqrt(2.0) * (HIGH - LOW) * NOMINAL.real / claim.epsilon
    assert said == pytest.approx(needed, rel=1e-9)


@pytest.mark.parametrize("entry", noisy_entries(), ids=NOISY_KEYS)
def test_audit_of_loads_from_below_is_within_the_claim_and_near_it(entry: LoadEntry) -> None:
    data = two_node_data(np.full((1, 1, 1), LOW), (LOW, HIGH))
    claim = entry.make(Occasion(data, np.arange(1), TARGET)).guarantee
    assert claim is not None
    found = audited(entry, TARGET.epsilon)
    if claim.proved:
        assert 0.5 * claim.epsilon <= found <= claim.epsilon
    else:
        assert found > 3.0, "what has no guarantee is seen to have none"


@pytest.mark.parametrize("entry", noisy_entries(), ids=NOISY_KEYS)
def test_half_of_the_noise_on_loads_is_caught(entry: LoadEntry) -> None:
    assert audited(entry, 2.0 * TARGET.epsilon) > TARGET.epsilon


@pytest.mark.parametrize(
    "entry",
    [entry for entry in NETWORKS if entry.audited_by is None and entry.key != "true"],
    ids=[entry.key for entry in NETWORKS if entry.audited_by is None and entry.key != "true"],
)
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
