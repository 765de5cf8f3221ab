"""Obfuscated loads of a feeder: a projection that keeps a noisy total, and what readings and total cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.mak2019.feeder import NoisyReadings, ObfuscatedLoads
from dp_powerflow_paper.mak2019.restoration import TotalBand, nearest_with_total
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters, ReadingUnit
from support.auditing import epsilon_lower_bound
from support.two_nodes import two_node_data

LOW, HIGH = 0.5, 1.5
RUNS = 20_000


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


def test_shares_without_sense_are_refused() -> None:
    with pytest.raises(PrivacyError, match="part of it for the total"):
        ObfuscatedLoads(meters_of(np.ones((1, 1, 1))), 1.0, for_total=1.0)
