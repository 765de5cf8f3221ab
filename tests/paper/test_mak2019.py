"""Obfuscated loads: AC cases and readings; restored ones keep cost or total."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import StreamKey
from dp_powerflow.errors import ConfigError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.acopf import CostBand
from dp_powerflow_paper.fioretto2019.cases import TrueCase, read_case
from dp_powerflow_paper.mak2019.experiment import load_from_cost
from dp_powerflow_paper.mak2019.feeder import ObfuscatedLoads
from dp_powerflow_paper.mak2019.noise import LoadPrivacy, obfuscate, served_grid, true_loads
from dp_powerflow_paper.mak2019.release import Draw, kept, measure_draw
from dp_powerflow_paper.mak2019.restoration import TotalBand, nearest_with_total, restore
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters, ReadingUnit
from support.auditing import epsilon_lower_bound
from support.two_nodes import two_node_data

RUNS = 20_000


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


def test_the_least_cost_and_all_other_loads_give_a_load_away(small: TrueCase) -> None:
    """The published form: the least cost and all other loads tell the last one."""
    served, true = served_grid(small), true_loads(small)
    cost = served.dispatch(true).cost
    for position in (0, 5):
        assert load_from_cost(true, position, cost, served) == pytest.approx(true[position], rel=1e-3)
    assert LoadPrivacy(0.05).guarantee.proved
    assert not LoadPrivacy(0.05).guarantee_at_cost.proved


@pytest.mark.slow
def test_restored_loads_cost_what_the_true_ones_do_while_the_relaxation_is_too_cheap(small: TrueCase) -> None:
    """20 of 20 draws on case14; three on the loaded case39 at α = 1, which noise alone does not serve."""
    found, band = measured(read_case("case39"), 1.0, range(3))
    assert all(each.feasible and kept(each.gap, band) for each in found)
    assert not all(each.noisy_feasible for each in found)
    found, band = measured(small, 0.1, range(20))
    assert all(kept(each.gap, band) for each in found)
    off = [each.relaxed_gap for each in found if not kept(each.relaxed_gap, band)]
    assert len(off) >= 3
    assert max(off) < 0.0
    assert min(off) < -0.05
    assert np.mean([each.distance / each.noisy_distance for each in found]) < 1.01


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
    for out_of_reach, edge in ((100.0, HIGH), (-5.0, LOW)):
        assert np.allclose(projected(noisy, amounts, out_of_reach, 0.01), edge)


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


def test_restored_loads_keep_noisy_totals_and_follow_from_noisy_figures_alone() -> None:
    """Other true readings with the same noisy figures: the same bytes."""
    parts = [ObfuscatedLoads(meters_of(np.full((50, 3, 4), level)), 40.0, SLOT) for level in (0.6, 1.4)]
    noisy = parts[0].noisy(np.random.default_rng(5), 3)
    first, second = (part.restored(noisy) for part in parts)
    assert first.tobytes() == second.tobytes()
    total = np.tensordot(parts[0].meters.nominal, first, axes=1)
    assert np.abs(total / noisy.total - 1.0).max() <= parts[0].share + 1e-9


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
