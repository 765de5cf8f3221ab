"""Obfuscated loads: linear feeders, AC cases, readings; restored ones keep cost or total."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import StreamKey
from dp_powerflow.errors import ConfigError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.fioretto2019.acopf import CostBand
from dp_powerflow_paper.fioretto2019.cases import TrueCase, read_case
from dp_powerflow_paper.mak2019 import experiment
from dp_powerflow_paper.mak2019.experiment import Scale, at_an_end, load_from_cost, measure_feeder, run
from dp_powerflow_paper.mak2019.feeder import NoisyReadings, ObfuscatedLoads
from dp_powerflow_paper.mak2019.noise import LoadPrivacy, obfuscate, served_grid, true_loads
from dp_powerflow_paper.mak2019.release import Draw, kept, measure_draw
from dp_powerflow_paper.mak2019.restoration import (
    ExactLoads,
    LinearGrid,
    LinearLimits,
    RestoredLoads,
    TotalBand,
    nearest_with_total,
    restore,
)
from dp_powerflow_paper.radial import RadialNetwork
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters, ReadingUnit
from support.auditing import epsilon_lower_bound
from support.two_nodes import two_node_data

NODES = 15


@dataclass(frozen=True, eq=False)
class Feeder:
    """A feeder, its true loads, and the band round their least cost."""

    served: LinearGrid
    active: FloatArray
    band: CostBand


@pytest.fixture(scope="session")
def feeder() -> Feeder:
    """Fifteen nodes with four generators of different prices, and lines that bind."""
    generator = np.random.default_rng(0)
    start = np.array([generator.integers(max(0, k - 3), k + 1) for k in range(NODES - 1)])
    ends = np.arange(1, NODES)
    network = RadialNetwork(start, ends, np.full(NODES - 1, 0.01), np.full(NODES - 1, 0.01))
    active = generator.uniform(0.02, 0.1, NODES - 1)
    drawn = np.concatenate([[0.0], active])
    served = LinearGrid(
        network=network,
        limits=LinearLimits(
            0.75 * network.flows(drawn) + 0.03, np.full(NODES, 0.9**2), np.full(NODES, 1.1**2)
        ),
        generators=np.array([0, 4, 8, 12]),
        price=np.array([1.0, 0.6, 1.6, 2.0]),
        most=np.array([10.0, 0.2, 0.2, 0.2]),
        places=ends,
        tan_theta=np.full(NODES - 1, 0.4),
    )
    return Feeder(served, active, CostBand(served.dispatch(active).cost))


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


pytest.importorskip("casadi")
pytest.importorskip("pandapower")


@pytest.fixture(scope="module")
def small() -> TrueCase:
    return read_case("case14")


def measured(case: TrueCase, alpha: float, draws: range) -> tuple[list[Draw], CostBand]:
    served, true = served_grid(case), true_loads(case)
    band = CostBand(served.dispatch(true).cost)
    key = StreamKey.from_insecure_seed(0)
    found = []
    for draw in draws:
        noisy = obfuscate(true, LoadPrivacy(alpha), key.bind("draw", str(draw)))
        found.append(measure_draw(true, noisy, served, band))
    return found, band


def test_the_public_part_with_the_true_loads_is_the_case(small: TrueCase) -> None:
    public = served_grid(small).with_loads(true_loads(small))
    assert np.allclose(public.load_p, small.public.load_p, atol=1e-15)
    assert np.allclose(public.load_q, small.public.load_q, atol=1e-15)
    with pytest.raises(ConfigError, match="set them to zero"):
        replace(served_grid(small), grid=small.public)


@pytest.mark.slow
def test_restored_loads_cost_what_the_true_ones_do_while_the_relaxation_is_too_cheap(small: TrueCase) -> None:
    """20 of 20 draws on case14."""
    found, band = measured(small, 0.1, range(20))
    assert all(kept(each.gap, band) for each in found)
    off = [each.relaxed_gap for each in found if not kept(each.relaxed_gap, band)]
    assert len(off) >= 3
    assert max(off) < 0.0
    assert min(off) < -0.05
    assert np.mean([each.distance / each.noisy_distance for each in found]) < 1.01


@pytest.mark.slow
def test_loads_of_a_loaded_grid_are_served_after_restoration_only() -> None:
    """Three draws on case39 at α = 1; the campaign has twenty."""
    found, band = measured(read_case("case39"), 1.0, range(3))
    assert all(each.feasible and kept(each.gap, band) for each in found)
    assert not all(each.noisy_feasible for each in found)


@pytest.mark.slow
def test_restored_ac_loads_follow_from_noisy_ones_and_public_figures_alone(small: TrueCase) -> None:
    """A case with twice the loads, the same noisy ones and the same band: the same bytes."""
    other = replace(
        small,
        public=replace(small.public, load_p=2.0 * small.public.load_p, load_q=2.0 * small.public.load_q),
    )
    noisy = obfuscate(true_loads(small), LoadPrivacy(0.1), StreamKey.from_insecure_seed(1))
    band = CostBand(8081.5)
    first, second = (restore(noisy, served_grid(case), band).active for case in (small, other))
    assert first.tobytes() == second.tobytes()


LOW, HIGH = 0.5, 1.5


def meters_of(relative: FloatArray) -> Meters:
    data = two_node_data(relative, (LOW, HIGH))
    return Meters.of(data, np.arange(relative.shape[1]))


def projected(noisy: FloatArray, amounts: FloatArray, total: float, share: float) -> FloatArray:
    band = TotalBand(np.array(total), amounts, share)
    return nearest_with_total(noisy, band, np.array(LOW), np.array(HIGH))


@pytest.mark.parametrize("total", [9.0, 11.0, 14.0])
def test_the_projection_is_the_nearest_point_of_the_band(total: float) -> None:
    """Against a solver of quadratic programs."""
    cp = pytest.importorskip("cvxpy")
    generator = np.random.default_rng(1)
    amounts, noisy = generator.uniform(0.5, 2.0, 8), generator.normal(1.0, 1.5, 8)
    found = projected(noisy, amounts, total, 0.01)
    variable = cp.Variable(8)
    limits = [variable >= LOW, variable <= HIGH]
    limits += [amounts @ variable <= 1.01 * total, amounts @ variable >= 0.99 * total]
    cp.Problem(cp.Minimize(cp.sum_squares(variable - noisy)), limits).solve(solver=cp.CLARABEL)
    assert np.allclose(found, variable.value, atol=1e-5)
    assert abs(amounts @ found / total - 1.0) <= 0.01 + 1e-12


def test_readings_whose_total_is_in_the_band_are_only_cut() -> None:
    noisy = np.array([0.7, 1.2, 9.0])
    assert np.array_equal(projected(noisy, np.ones(3), 3.4, 0.01), [0.7, 1.2, 1.5])


@pytest.mark.parametrize(("total", "edge"), [(100.0, HIGH), (-5.0, LOW)])
def test_a_total_out_of_reach_counts_as_the_nearest_that_is_not(total: float, edge: float) -> None:
    assert np.allclose(projected(np.array([0.7, 1.2, 1.0]), np.ones(3), total, 0.01), edge)


def test_meters_without_nominal_load_stay_where_they_are() -> None:
    found = projected(np.array([0.7, 1.2, 0.9]), np.array([1.0, 0.0, 1.0]), 2.6, 0.01)
    assert found[1] == 1.2
    assert found[0] + found[2] == pytest.approx(2.6, rel=0.0101)


@pytest.mark.parametrize("unit", [SLOT, DAY], ids=lambda unit: unit.key)
def test_shares_of_epsilon_for_readings_and_totals_add_up(unit: ReadingUnit) -> None:
    """A day of a meter moves every one of its readings and totals by its whole range."""
    meters = meters_of(np.ones((5, 2, 4)))
    part = ObfuscatedLoads(meters, 1.3, unit, for_total=0.3)
    on_reading, on_total = part.scales
    moved = unit.readings(meters.steps)
    spent = moved * (HIGH - LOW) / on_reading + moved * (HIGH - LOW) * meters.nominal.max() / on_total
    assert np.allclose(spent, part.guarantee.epsilon)
    assert part.guarantee.proved


def test_the_noise_has_the_size_that_it_says() -> None:
    meters = meters_of(np.ones((1, RUNS, 1)))
    part = ObfuscatedLoads(meters, 1.0, SLOT)
    noisy = part.noisy(np.random.default_rng(3), RUNS)
    readings = noisy.relative[0, :, 0] * meters.nominal[0]
    assert readings.std() == pytest.approx(part.noise_std["load_noise"], rel=0.05)
    assert noisy.total[:, 0].std() == pytest.approx(part.noise_std["total_noise"], rel=0.05)
    apart = np.corrcoef(readings, noisy.total[:, 0])[0, 1]
    assert abs(apart) < 0.05  # two noises, not one


def test_totals_of_restored_loads_are_the_noisy_ones() -> None:
    meters = meters_of(np.random.default_rng(4).uniform(LOW, HIGH, (50, 3, 4)))
    part = ObfuscatedLoads(meters, 40.0, SLOT)
    noisy = part.noisy(np.random.default_rng(5), 3)
    total = np.tensordot(meters.nominal, part.restored(noisy), axes=1)
    assert np.abs(total / noisy.total - 1.0).max() <= part.share + 1e-9


def test_restored_loads_follow_from_noisy_ones_alone() -> None:
    """Other true readings with the same noisy figures: the same bytes."""
    generator = np.random.default_rng(6)
    noisy = NoisyReadings(generator.normal(1.0, 2.0, (5, 2, 4)), generator.uniform(0.05, 0.15, (2, 4)))
    first, second = (
        ObfuscatedLoads(meters_of(np.full((5, 2, 4), level)), 1.0).restored(noisy) for level in (0.6, 1.4)
    )
    assert first.tobytes() == second.tobytes()


def scores(part: ObfuscatedLoads, level: float, seed: int) -> FloatArray:
    """How much more likely all that is asked of a meter's day is at its highest load than at its lowest."""
    meters = part.meters
    of_level = replace(part, meters=replace(meters, relative=np.full_like(meters.relative, level)))
    noisy = of_level.noisy(np.random.default_rng(seed), RUNS)
    on_reading, on_total = (scale[0] for scale in part.scales)
    size = meters.nominal[0]

    def likelier(seen: FloatArray, unit: float, scale: float) -> FloatArray:
        return np.asarray((np.abs(seen - LOW * unit) - np.abs(seen - HIGH * unit)) / scale)

    total = likelier(noisy.relative[0], 1.0, on_reading) + likelier(noisy.total, size, on_total)
    return np.asarray(total.sum(axis=1))


@pytest.mark.parametrize(("noise", "holds"), [(1.0, True), (0.5, False)])
@pytest.mark.parametrize("unit", [SLOT, DAY], ids=lambda unit: unit.key)
def test_an_audit_finds_no_more_than_is_claimed_and_catches_half_of_the_noise(
    unit: ReadingUnit, noise: float, holds: bool
) -> None:
    """One meter, its lowest or highest load all day; the attacker sees readings and totals."""
    steps = 1 if unit is SLOT else 2
    part = ObfuscatedLoads(meters_of(np.ones((1, RUNS, steps))), 1.0 / noise, unit)
    high, low = (scores(part, level, seed) for level, seed in ((HIGH, 7), (LOW, 8)))
    found = epsilon_lower_bound(high, low, 0.0)
    assert found >= 0.5
    assert (found <= 1.0) is holds


TINY = Scale(cases=(), feeder=(0.005,), draws=2)


def test_distances_on_the_feeder_are_ordered(reference: Path) -> None:
    row = measure_feeder(reference, 0.005, 4, 0)
    assert row.relaxed_far <= row.exact_far + 1e-9
    assert row.exact_far <= row.far + 1e-9
    assert row.kept == row.exact_kept == 1.0


def test_the_experiment_writes_its_tables_and_resumes(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "QUICK", TINY)
    monkeypatch.setattr(
        experiment, "measure_leak", lambda name: {"loads": 11, "worst": 1e-9, "smallest load": 0.1}
    )
    options = ExperimentOptions(out=tmp_path, quick=True, reference=reference)
    first = run(options)
    content = json.loads((tmp_path / "mak2019.json").read_text(encoding="utf-8"))
    assert content["feeder"][0]["draws"] == TINY.draws
    assert "| 0.005 | 2 |" in (tmp_path / "mak2019.md").read_text(encoding="utf-8")
    monkeypatch.setattr(experiment, "measure_feeder", lambda *_: pytest.fail("a stored row was made again"))
    assert run(options) == first
