from __future__ import annotations

import datetime as dt
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import LoadHistory
from dp_powerflow.errors import LoadDataError
from dp_powerflow.fidelity.metrics import traits
from dp_powerflow.loads.simulate import (
    DEMO_CLASSES,
    CustomerClass,
    Homes,
    calendar_of,
)
from dp_powerflow.lowlevel import simulate_load_history
from dp_powerflow.units import FloatArray

RESIDENTIAL = DEMO_CLASSES[0]
ASIDE = (
    *("size_std", "habit_std", "day_std", "cold_kw", "absence_share"),
    *("boiler_share", "pump_share", "storage_share"),
)


@pytest.fixture(scope="module")
def winter() -> FloatArray:
    """600 homes over seven weeks from a Monday, as `benchmarks/load_model.py` has them."""
    return seven_weeks(0)


def seven_weeks(seed: int) -> FloatArray:
    return simulate_load_history(600, n_days=50, seed=seed, classes=(RESIDENTIAL,)).load_kw[:, 1:]


def homes_with(**changes: float) -> CustomerClass:
    """Homes of size 1 with no habits of their own, and of all appliances only what is asked for."""
    assert isinstance(RESIDENTIAL.kind, Homes)
    kind: dict[str, Any] = dict.fromkeys(ASIDE, 0.0) | {"uses": ()} | changes
    return replace(RESIDENTIAL, scales_kw=(20.0,), kind=replace(RESIDENTIAL.kind, **kind))


@pytest.fixture(scope="module")
def year() -> LoadHistory:
    return simulate_load_history(300, seed=11)


def of_class(history: LoadHistory, name: str) -> LoadHistory:
    pairs = zip(history.load_points, history.class_label, strict=True)
    return history.select([point for point, label in pairs if label == name])


def test_simulated_loads_say_so_and_are_positive(year: LoadHistory) -> None:
    assert year.simulated
    assert "simulated" in repr(year)
    assert year.load_kw.shape == (300, 365, 96)
    assert year.load_kw.min() > 0


def test_the_same_seed_gives_the_same_loads_and_another_seed_others() -> None:
    first, again, other = (simulate_load_history(5, n_days=3, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.load_kw, again.load_kw)
    assert not np.any(first.load_kw == other.load_kw)


def test_adding_customers_does_not_change_the_others() -> None:
    few, many = (simulate_load_history(n, n_days=4, seed=3) for n in (5, 9))
    np.testing.assert_array_equal(many.load_kw[:5], few.load_kw)


def test_more_days_do_not_change_the_first_ones_of_a_home() -> None:
    short, long = (simulate_load_history(8, n_days=n, seed=3, classes=(RESIDENTIAL,)) for n in (4, 9))
    np.testing.assert_array_equal(long.load_kw[:, :4], short.load_kw)


NEAR_REAL = {
    "day_to_day": (0.55, 0.75),  # Swiss homes: 0.65
    "between_customers": (0.75, 0.90),  # 0.80
    "pairwise": (0.38, 0.58),  # 0.48
    "coincidence": (0.36, 0.48),  # 0.43
    "peak_over_mean": (5.0, 7.2),  # 6.0
    "feeder_daily_sd": (0.14, 0.24),  # 0.19
    "midnight_step": (0.03, 0.14),  # 0.09
    "high_ramp": (2.8, 4.2),  # 3.5
}


def test_homes_have_the_traits_of_real_ones(winter: FloatArray) -> None:
    found = asdict(traits(winter))
    assert found.keys() == NEAR_REAL.keys()
    assert {name for name, (low, high) in NEAR_REAL.items() if not low < found[name] < high} == set()


def test_homes_are_often_near_their_base_load_and_seldom_at_their_peak(winter: FloatArray) -> None:
    """Swiss homes: half of the readings below 0.55 of the mean, 1 % above 5.8 of it, 5 % below 0.05 of it."""
    relative = winter / winter.mean(axis=(1, 2), keepdims=True)
    low, middle, high = np.quantile(relative, [0.05, 0.5, 0.99])
    assert 0.03 < low < 0.08
    assert 0.4 < middle < 0.7
    assert 4.5 < high < 7.0
    assert 0.95 < np.median(np.log(winter).std(axis=(1, 2))) < 1.4  # 1.12


def test_a_home_uses_some_thousand_kwh_a_year(year: LoadHistory) -> None:
    kwh = 24 * 365 * of_class(year, "residential").load_kw.mean(axis=(1, 2))
    assert 3_000 < np.median(kwh) < 8_000
    assert np.quantile(kwh, 0.95) < 20_000


@pytest.mark.parametrize("minutes", [10, 15, 30, 60, 120, 1440])
def test_a_home_at_a_longer_step_is_the_mean_of_itself(minutes: int) -> None:
    fine, coarse = (
        simulate_load_history(30, n_days=5, step_minutes=step, classes=(RESIDENTIAL,))
        for step in (5, minutes)
    )
    np.testing.assert_allclose(fine.coarsen(minutes).load_kw, coarse.load_kw, rtol=0, atol=1e-9)
    assert coarse.load_kw.max() <= fine.load_kw.max() + 1e-9


def test_a_boiler_starts_at_the_same_time_every_night() -> None:
    boiler = homes_with(boiler_share=1.0)
    load = simulate_load_history(40, n_days=30, step_minutes=5, classes=(boiler,)).load_kw.reshape(40, -1)
    on = load > load.min(axis=1, keepdims=True) + 1.0
    for own in on:
        starts = np.flatnonzero(own[1:] & ~own[:-1]) + 1
        assert starts.size in (29, 30)
        assert np.ptp(starts % 288) <= 1 or np.ptp((starts + 144) % 288) <= 1
    assert 60 < on.mean() * 1440 < 150  # minutes a day
    assert len({int(np.argmax(own)) for own in on}) > 15  # each at its own


def test_heating_follows_the_cold_and_nothing_else_does() -> None:
    calendar = calendar_of(tuple(dt.date(2023, 1, 1) + dt.timedelta(days=i) for i in range(-1, 365)), 0)
    heated, other = (
        simulate_load_history(60, step_minutes=60, classes=(homes_with(**own),)).load_kw.mean(axis=(0, 2))
        for own in ({"pump_share": 0.7, "storage_share": 0.3}, {"boiler_share": 1.0})
    )
    outdoors = calendar.temperature[1:]
    assert np.corrcoef(heated, outdoors)[0, 1] < -0.85
    assert abs(np.corrcoef(other, outdoors)[0, 1]) < 0.2
    assert heated[outdoors > 15].mean() < 0.15 * heated[outdoors < 0].mean()


def test_a_heat_pump_is_on_or_off() -> None:
    """Only pumps with an inverter have powers between; steps of 1 min hold one state."""
    pump = homes_with(pump_share=1.0)
    load = simulate_load_history(40, n_days=3, step_minutes=1, classes=(pump,)).load_kw.reshape(40, -1)
    low, high = load.min(axis=1, keepdims=True), load.max(axis=1, keepdims=True)
    between = np.mean((load > low + 0.05 * (high - low)) & (load < high - 0.05 * (high - low)), axis=1)
    assert 0.6 < np.mean(between < 0.1) < 0.9
    assert np.median(high) > 1.5


def test_meters_count_in_quanta_and_lose_nothing() -> None:
    exact, counted = (
        simulate_load_history(50, n_days=10, seed=2, quantum_kwh=q, classes=(RESIDENTIAL,)).load_kw
        for q in (None, 0.01)
    )
    quanta = counted / 0.04
    np.testing.assert_allclose(quanta, np.round(quanta), rtol=0, atol=1e-9)
    lost = np.cumsum(exact.reshape(50, -1) - counted.reshape(50, -1), axis=1)
    assert lost.min() > -1e-9
    assert lost.max() < 0.04 + 1e-9
    assert 0.001 < np.mean(counted == 0) < 0.1  # Swiss meters: 0.03


def test_classes_differ_in_level_week_and_season(year: LoadHistory) -> None:
    weekend = np.array([day.weekday() >= 5 for day in year.days])
    winter = np.array([day.month in (12, 1, 2) for day in year.days])
    summer = np.array([day.month in (6, 7, 8) for day in year.days])
    mean = {own.name: of_class(year, own.name).load_kw.mean(axis=(0, 2)) for own in DEMO_CLASSES}
    assert mean["residential"].mean() < 0.3 * mean["commercial"].mean() < 0.3 * mean["industrial"].mean()
    assert mean["commercial"][weekend].mean() < 0.8 * mean["commercial"][~weekend].mean()
    assert mean["residential"][weekend].mean() > mean["residential"][~weekend].mean()
    assert mean["residential"][winter].mean() > 1.1 * mean["residential"][summer].mean()


def test_shares_hold_for_the_first_load_points_too(year: LoadHistory) -> None:
    for n in (20, 100, 300):
        labels = year.class_label[:n]
        for own in DEMO_CLASSES:
            assert abs(labels.count(own.name) - own.share * n) <= 1


def test_the_covariance_of_a_day_has_full_rank(year: LoadHistory) -> None:
    days = np.log(of_class(year, "residential").load_kw).reshape(-1, 96)
    assert np.linalg.eigvalsh(np.cov(days.T)).min() > 0.01


def test_size_and_step_are_as_asked() -> None:
    history = simulate_load_history(4, n_days=2, step_minutes=30, seed=0)
    assert history.load_kw.shape == (4, 2, 48)
    assert history.days == (dt.date(2023, 1, 1), dt.date(2023, 1, 2))
    assert history.node_of == (None, None, None, None)


def test_impossible_simulations_are_refused() -> None:
    with pytest.raises(LoadDataError, match="0 load points over 365 days"):
        simulate_load_history(0)
    with pytest.raises(LoadDataError, match="1 load points over 0 days"):
        simulate_load_history(1, n_days=0)
    with pytest.raises(LoadDataError, match="does not divide"):
        simulate_load_history(1, step_minutes=7)
    with pytest.raises(LoadDataError, match="quantum_kwh"):
        simulate_load_history(1, quantum_kwh=0.0)
    with pytest.raises(LoadDataError, match="shares"):
        simulate_load_history(1, classes=[replace(DEMO_CLASSES[0], share=0.0)])
