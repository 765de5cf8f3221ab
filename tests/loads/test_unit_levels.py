"""Units told by medians: what is found in simulated and in real meters, and what is not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dp_powerflow.loads.report import FOUR, THOUSAND, Levels, second_group
from dp_powerflow.lowlevel import simulate_load_history
from dp_powerflow.units import BoolArray, FloatArray

FACTORS = (1000.0, 0.001)


def some(n: int, share: float) -> BoolArray:
    chosen: BoolArray = np.random.default_rng(5).permutation(n) < share * n
    return chosen


def in_another_unit(found: Levels, chosen: BoolArray, factor: float) -> Levels:
    return Levels(np.where(chosen, factor, 1.0) * found.level, found.shape)


def simulated(n: int, seed: int) -> tuple[Levels, FloatArray]:
    history = simulate_load_history(n, n_days=6, step_minutes=60, seed=seed)
    assert history.scale_kw is not None
    return Levels.of(history.load_kw), history.scale_kw


@pytest.mark.parametrize("seed", range(4))
def test_simulated_customers_of_three_kinds_raise_no_alarm(seed: int) -> None:
    for n in (24, 200):
        levels, scale = simulated(n, seed)
        assert not second_group(levels, THOUSAND).any()
        for factor in (THOUSAND, FOUR):
            assert not second_group(levels.relative_to(scale), factor).any()


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
def test_a_part_of_simulated_customers_in_watts_is_found(share: float, factor: float) -> None:
    levels, scale = simulated(200, 1)
    chosen = some(200, share)
    for found in (levels, levels.relative_to(scale)):
        group = second_group(in_another_unit(found, chosen, factor), THOUSAND)
        agree = np.mean(group == chosen)
        assert max(agree, 1 - agree) > 0.9  # of two halves either may be the wrong one


def test_large_customers_of_another_shape_are_no_unit() -> None:
    rng = np.random.default_rng(0)
    level = np.concatenate([0.4 * np.exp(0.5 * rng.standard_normal(60)), np.full(6, 400.0)])
    homes = np.full(60, 0.9)
    assert second_group(Levels(level, np.concatenate([homes, np.full(6, 0.9)])), THOUSAND).sum() == 6
    assert not second_group(Levels(level, np.concatenate([homes, np.full(6, 0.4)])), THOUSAND).any()


def test_a_factor_of_4_is_found_only_where_the_scale_leaves_a_valley() -> None:
    rng = np.random.default_rng(3)
    normal, shape, chosen = rng.standard_normal(200), np.full(200, 0.9), some(200, 0.3)
    sharp = Levels(np.exp(0.2 * normal), shape)
    assert second_group(in_another_unit(sharp, chosen, 4.0), FOUR).sum() == pytest.approx(60, abs=2)
    assert not second_group(sharp, FOUR).any()
    wide = Levels(np.exp(0.8 * normal), shape)
    assert not second_group(in_another_unit(wide, chosen, 4.0), FOUR).any()


def test_one_wild_reading_or_a_month_away_does_not_move_a_level() -> None:
    values = np.random.default_rng(1).uniform(0.5, 1.5, (1, 60, 24))
    before = Levels.of(values)
    values[0, 3, 5] = 1e6
    values[0, 10:38] = 0.0
    values[0, 50, 3] = np.nan
    after = Levels.of(values)
    assert after.level[0] == pytest.approx(before.level[0], rel=0.1)
    assert after.shape[0] == pytest.approx(before.shape[0], rel=0.1)


def test_meters_without_load_are_not_judged() -> None:
    values = np.stack([np.zeros((3, 24)), np.full((3, 24), np.nan), np.full((3, 24), -1.0)])
    found = Levels.of(values)
    assert np.isnan(found.level).all()
    assert not second_group(found, THOUSAND).any()


@pytest.fixture(scope="module")
def swiss() -> Levels:
    folder = os.environ.get("DP_POWERFLOW_SWISS")
    if folder is None:
        pytest.skip("the Swiss meters are not here: set DP_POWERFLOW_SWISS to their directory")
    table = pq.read_table(Path(folder) / "kwh_15min.parquet")
    columns = [table.column(name).to_numpy() for name in table.column_names if name != "time"]
    return Levels.of(4.0 * np.array(columns, dtype=np.float64).reshape(len(columns), -1, 96))


def test_real_meters_raise_no_alarm(swiss: Levels) -> None:
    assert not second_group(swiss, THOUSAND).any()
    for seed in range(50):
        chosen = np.random.default_rng(seed).random(swiss.level.size) < 0.1
        assert not second_group(swiss.where(chosen), THOUSAND).any()
