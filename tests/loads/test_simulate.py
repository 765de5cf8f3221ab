from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import LoadHistory
from dp_powerflow.errors import LoadDataError
from dp_powerflow.fidelity.metrics import traits
from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.lowlevel import simulate_load_history
from dp_powerflow.units import FloatArray
from support.tables import tables_of

TABLES = tables_of(__file__)

RESIDENTIAL = DEMO_CLASSES[0]


@pytest.fixture(scope="module")
def winter() -> FloatArray:
    """600 homes over seven weeks from a Monday, as `benchmarks/load_model.py` has them."""
    return seven_weeks(0)


def seven_weeks(seed: int) -> FloatArray:
    return simulate_load_history(600, n_days=50, seed=seed, classes=(RESIDENTIAL,)).load_kw[:, 1:]


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


def test_loads_follow_from_the_seed_whatever_else_is_drawn() -> None:
    def homes(n: int, days: int, seed: int = 3) -> FloatArray:
        return simulate_load_history(n, n_days=days, seed=seed, classes=(RESIDENTIAL,)).load_kw

    some = homes(5, 4)
    np.testing.assert_array_equal(homes(9, 4)[:5], some)
    np.testing.assert_array_equal(homes(5, 9)[:, :4], some)
    assert not np.any(homes(5, 4, seed=4) == some)


NEAR_REAL = TABLES["NEAR_REAL"]


def test_homes_have_the_traits_of_real_ones(winter: FloatArray) -> None:
    found = traits(winter)
    assert found.keys() == NEAR_REAL.keys()
    assert {name for name, (low, high) in NEAR_REAL.items() if not low < found[name] < high} == set()


@pytest.mark.parametrize("minutes", [10, 15, 30, 60, 120, 1440])
def test_a_home_at_a_longer_step_is_the_mean_of_itself(minutes: int) -> None:
    fine, coarse = (
        simulate_load_history(30, n_days=5, step_minutes=step, classes=(RESIDENTIAL,))
        for step in (5, minutes)
    )
    np.testing.assert_allclose(fine.coarsen(minutes).load_kw, coarse.load_kw, rtol=0, atol=1e-9)
    assert coarse.load_kw.max() <= fine.load_kw.max() + 1e-9


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


def test_impossible_simulations_are_refused() -> None:
    with pytest.raises(LoadDataError, match="0 load points over 365 days"):
        simulate_load_history(0)
    with pytest.raises(LoadDataError, match="1 load points over 0 days"):
        simulate_load_history(1, n_days=0)
    with pytest.raises(LoadDataError, match="does not divide"):
        simulate_load_history(1, step_minutes=7)
    with pytest.raises(LoadDataError, match="shares"):
        simulate_load_history(1, classes=[replace(DEMO_CLASSES[0], share=0.0)])
