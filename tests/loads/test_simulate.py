from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.simulate import (
    DEMO_CLASSES,
    demo_power_factors,
    simulate_load_history,
)
from support.meter_files import median_pairwise_correlation


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


def test_median_pairwise_correlation_is_near_real_meters(year: LoadHistory) -> None:
    """SimBench has 0.14 over its 96 load profiles."""
    assert 0.10 < median_pairwise_correlation(year) < 0.20


def test_correlations_are_spread_as_widely_as_real_ones(year: LoadHistory) -> None:
    correlation = np.atleast_2d(np.corrcoef(year.load_kw.reshape(300, -1)))[np.triu_indices(300, 1)]
    low, high = np.quantile(correlation, [0.05, 0.95])
    assert low < 0  # SimBench: −0.11
    assert high > 0.35  # SimBench: 0.80, of which grid equivalents have the largest


def test_residential_loads_vary_like_households(year: LoadHistory) -> None:
    """SimBench households (H0): spread of log load 0.7–0.95, lag-one correlation 0.68–0.88."""
    load = of_class(year, "residential").load_kw.reshape(-1, 365 * 96)
    assert 0.65 < np.median(np.log(load).std(axis=1)) < 1.0
    lag_one = [np.corrcoef(own[:-1], own[1:])[0, 1] for own in load[:40]]
    assert 0.65 < np.median(lag_one) < 0.9
    assert 0.3 < np.median(load.mean(axis=1)) < 1.0  # kW


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


def test_reactive_loads_follow_the_declared_power_factors() -> None:
    history = simulate_load_history(60, n_days=30, seed=5, reactive=True)
    assert history.load_kvar is not None
    ratio = history.load_kvar.mean(axis=(1, 2)) / history.load_kw.mean(axis=(1, 2))
    np.testing.assert_allclose(ratio, demo_power_factors().tan_theta(history.class_label), atol=0.05)


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
    with pytest.raises(LoadDataError, match="shares"):
        simulate_load_history(1, classes=[replace(DEMO_CLASSES[0], share=0.0)])
