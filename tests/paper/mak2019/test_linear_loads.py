"""Loads of a linear feeder: the relaxation misses the band, restored loads keep it, exact are nearest."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow import StreamKey
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.acopf import CostBand
from dp_powerflow_paper.mak2019.experiment import at_an_end, load_from_cost
from dp_powerflow_paper.mak2019.noise import LoadPrivacy, obfuscate
from dp_powerflow_paper.mak2019.release import kept
from dp_powerflow_paper.mak2019.restoration import (
    ExactLoads,
    LinearGrid,
    LinearLimits,
    RestoredLoads,
    restore,
)
from dp_powerflow_paper.radial import RadialNetwork
from paper.mak2019.conftest import Feeder
from support.auditing import epsilon_lower_bound

DRAWS = 12
RUNS = 20_000


def noisy_loads(feeder: Feeder, draw: int) -> FloatArray:
    """With much noise beside loads of 0.02 to 0.1."""
    return np.asarray(feeder.active + np.random.default_rng(draw).laplace(0.0, 0.05, len(feeder.active)))


def far(found: RestoredLoads, noisy: FloatArray) -> float:
    return float(np.abs(found.active - noisy).sum())


def test_slopes_are_what_one_more_unit_of_load_costs(feeder: Feeder) -> None:
    served, base = feeder.served, feeder.served.dispatch(feeder.active)
    slope = served.slope(base)
    assert len(set(slope.round(6))) > 1  # lines bind, so prices differ
    for load, price in enumerate(slope.tolist()):
        more = feeder.active + 1e-6 * np.eye(len(slope))[load]
        assert (served.dispatch(more).cost - base.cost) / 1e-6 == pytest.approx(price, rel=1e-3)


def test_voltages_and_balance_of_a_dispatch_are_those_of_its_loads(feeder: Feeder) -> None:
    served, base = feeder.served, feeder.served.dispatch(feeder.active)
    assert base.p.sum() == pytest.approx(feeder.active.sum())
    drawn = np.zeros(served.network.nodes)
    drawn[served.places] += feeder.active
    reactive = 0.4 * drawn
    drawn[served.generators] -= base.p
    assert np.allclose(base.v**2, served.network.squared_voltages(drawn, reactive))
    assert np.abs(served.network.flows(drawn) / served.limits.capacity).max() == pytest.approx(1.0)


@pytest.mark.slow
def test_the_exact_program_is_between_the_relaxation_and_the_restoration(feeder: Feeder) -> None:
    """Relaxation ≤ exact ≤ restored in distance; the exact and the restored keep the band, it does not."""
    served, band = feeder.served, feeder.band
    missed = 0
    for draw in range(DRAWS):
        noisy = noisy_loads(feeder, draw)
        relaxed, restored = served.relaxed(noisy, band), restore(noisy, served, band)
        exact = ExactLoads()(noisy, served, band)
        assert kept(restored.gap(band), band)
        assert kept(exact.gap(band), band)
        assert far(relaxed, noisy) <= far(exact, noisy) + 1e-6
        assert far(exact, noisy) <= far(restored, noisy) + 1e-6
        missed += not kept(relaxed.gap(band), band)
    assert missed >= 2


def test_the_exact_program_finds_what_a_search_of_all_loads_finds() -> None:
    """Two loads behind a line that binds: least distance on a grid of all pairs."""
    network = RadialNetwork(np.array([0, 1]), np.array([1, 2]), np.full(2, 0.01), np.full(2, 0.01))
    served = LinearGrid(
        network=network,
        limits=LinearLimits(np.array([0.25, 1.0]), np.full(3, 0.8), np.full(3, 1.2)),
        generators=np.array([0, 2]),
        price=np.array([1.0, 3.0]),
        most=np.array([5.0, 1.0]),
        places=np.array([1, 2]),
        tan_theta=np.zeros(2),
    )
    band = CostBand(served.dispatch(np.array([0.2, 0.1])).cost)
    side = np.linspace(0.0, 0.4, 401)
    first, second = (each.ravel() for each in np.meshgrid(side, side))
    total = first + second
    cost = np.minimum(total, 0.25) + 3.0 * np.maximum(total - 0.25, 0.0)
    inside = np.abs(cost / band.centre - 1.0) <= band.share
    for noisy in (np.array([0.05, 0.03]), np.array([0.3, 0.2]), np.array([-0.1, 0.31])):
        found = ExactLoads()(noisy, served, band)
        least = np.min((np.abs(first - noisy[0]) + np.abs(second - noisy[1]))[inside])
        assert found.in_band(band)
        assert far(found, noisy) <= least + 1e-6
        assert far(found, noisy) > least - 0.002  # the step of the grid


def test_a_band_out_of_reach_is_told(feeder: Feeder) -> None:
    with pytest.raises(PowerFlowError, match="widen the band"):
        ExactLoads()(feeder.active, feeder.served, CostBand(1000.0))


def test_restored_loads_follow_from_noisy_ones_and_public_figures_alone(feeder: Feeder) -> None:
    """Other true loads, the same noisy ones and the same cost: the same bytes."""
    unit = 2.0**-24  # sums of such figures are exact
    true, other = (unit * np.rint(each / unit) for each in (feeder.active, feeder.active[::-1]))
    noisy = true + unit * np.rint(np.random.default_rng(2).laplace(0.0, 0.05, len(true)) / unit)
    again = other + (noisy - other)
    assert noisy.tobytes() == again.tobytes()
    for way in (restore, ExactLoads()):
        first, second = (way(each, feeder.served, feeder.band).active for each in (noisy, again))
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize(("noise", "holds"), [(1.0, True), (0.5, False)])
def test_an_audit_of_noisy_loads_finds_no_more_than_is_claimed_and_catches_half_of_the_noise(
    noise: float, holds: bool
) -> None:
    claimed = LoadPrivacy(0.1)
    used = LoadPrivacy(0.1, claimed.epsilon / noise)
    key = StreamKey.from_insecure_seed(4)
    low, high = (
        obfuscate(np.full(RUNS, load), used, key.bind("side", str(load))) for load in (0.4, 0.4 + 0.1)
    )
    found = epsilon_lower_bound(high, low, 0.0)
    assert found >= 0.5 * claimed.guarantee.epsilon
    assert (found <= claimed.guarantee.epsilon) is holds


@pytest.mark.slow
def test_a_cost_that_is_not_paid_for_tells_neighbours_apart(feeder: Feeder) -> None:
    """The published form: an attacker sees at which end of whose band the restored loads lie."""
    served, runs = feeder.served, 80
    privacy = LoadPrivacy(0.05)
    other = feeder.active.copy()
    other[3] += privacy.alpha
    bands = (feeder.band, CostBand(served.dispatch(other).cost))
    key = StreamKey.from_insecure_seed(5)
    seen = []
    for side, (true, band) in enumerate(zip((feeder.active, other), bands, strict=True)):
        found = [
            ExactLoads()(obfuscate(true, privacy, key.bind("draw", f"{side} {run}")), served, band)
            for run in range(runs)
        ]
        seen.append(np.array([float(at_an_end(each, bands[0])) for each in found]))
    assert epsilon_lower_bound(seen[0], seen[1], 0.0) > privacy.guarantee.epsilon
    assert privacy.guarantee.proved
    assert not privacy.guarantee_at_cost.proved


def test_the_least_cost_and_all_other_loads_give_a_load_away(feeder: Feeder) -> None:
    for position, load in enumerate(feeder.active.tolist()):
        found = load_from_cost(feeder.active, position, feeder.band.centre, feeder.served)
        assert found == pytest.approx(load, rel=1e-4)
