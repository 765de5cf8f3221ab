"""Customers drawn from a released model for the meters that it is compared with."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError
from dp_powerflow.fidelity.comparison import quantum_of, some_customers
from dp_powerflow.fidelity.metrics import traits
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.fit import fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.options import DayFacts, FitOptions
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.pipeline.customers import days_off, draw_customers
from dp_powerflow.privacy.budget import Budget
from dp_powerflow.privacy.random import StreamKey
from support.histories import history_of
from support.lived import lived

BOUNDS = (0.05, 20.0)
KEY = StreamKey.from_insecure_seed(4)
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")


def fitted(history: LoadHistory, options: FitOptions) -> LoadModel:
    return fit(history, budget=Budget(1e4, 1e-5), options=options, key=KEY)


def labelled(count: int = 40) -> LoadHistory:
    """Two classes with public scales: customers of the second draw ten times as much."""
    labels = ["small", "large"] * (count // 2)
    scale = np.where(np.arange(count) % 2, 10.0, 1.0)
    return history_of(lived(count, 1) * scale[:, None, None], labels=labels, scale_kw=scale)


def test_every_meter_has_a_customer_of_its_class_and_scale_on_its_days() -> None:
    history = labelled()
    model = fitted(history, FitOptions(BOUNDS, use_scale=True))
    drawn = draw_customers(model, history, KEY)
    assert drawn.shape == history.load_kw.shape
    level = drawn.mean(axis=(1, 2))
    assert 4 < level[1::2].mean() / level[::2].mean() < 25
    assert np.array_equal(drawn, draw_customers(model, history, KEY))
    assert not np.array_equal(drawn, draw_customers(model, history, KEY.bind("other", "key")))
    assert traits(drawn)["day_to_day"] < 0.2  # days by themselves
    private = fitted(history_of(lived(40, 2)), FitOptions(BOUNDS, classes=PrivateClasses(2)))
    assert draw_customers(private, history_of(lived(40, 2)), KEY).shape == (40, *history.load_kw.shape[1:])


@pytest.mark.slow
def test_customers_of_a_model_of_histories_persist_and_know_the_weather() -> None:
    history = history_of(lived(60, 3))
    dates = tuple(day.isoformat() for day in history.days)
    cold = tuple(np.random.default_rng(0).standard_normal(len(dates)).tolist())
    facts = DayFacts(dates, tuple(k % 7 == 2 for k in range(len(dates))), (("temperature", cold),))
    model = fitted(history, FitOptions(BOUNDS, History(), days=facts))
    assert days_off(model, history).tolist() == list(facts.off)
    drawn = draw_customers(model, history, KEY)
    found, real = traits(drawn), traits(history.load_kw)
    assert found["between_customers"] == pytest.approx(real["between_customers"], abs=0.2)
    assert found["day_to_day"] > 0.2
    later = replace(history, days=tuple(day + dt.timedelta(days=400) for day in history.days))
    with pytest.raises(LoadDataError, match="weather of other days"):
        draw_customers(model, later, KEY)


def test_meters_of_another_release_are_refused() -> None:
    history = labelled()
    model = fitted(history, FitOptions(BOUNDS, use_scale=True))
    with pytest.raises(LoadDataError, match="public scales, which this history does not have"):
        draw_customers(model, replace(history, scale_kw=None), KEY)
    with pytest.raises(LoadDataError, match="class that the load model of the release does not know"):
        draw_customers(model, replace(history, class_label=("huge",) * 40), KEY)


def test_a_sample_is_bounded_and_raised_to_the_floor_that_the_model_knows() -> None:
    history = labelled()
    model = fitted(history, FitOptions(BOUNDS, use_scale=True))
    chosen = some_customers(model, history, (10, 14), np.random.default_rng(0))
    assert chosen.load_kw.shape == (10, 14, 24)
    assert chosen.history.scale_kw is not None
    np.testing.assert_allclose(chosen.floor_kw, BOUNDS[0] * chosen.history.scale_kw)
    assert np.all(chosen.load_kw >= chosen.floor_kw[:, None, None])


@pytest.mark.parametrize(("quantum", "step"), [(0.04, 15), (0.001, 60), (0.1, 30)])
def test_the_resolution_of_the_meters_is_found(quantum: float, step: int) -> None:
    loads = np.maximum(
        quantum * np.round(np.random.default_rng(5).lognormal(size=(5, 20, 1440 // step)) / quantum), 0.003
    )
    assert quantum_of(history_of(loads)) == pytest.approx(quantum)
    assert quantum_of(history_of(np.random.default_rng(6).lognormal(size=(5, 20, 1440 // step)))) is None
    assert quantum_of(history_of(np.ones((5, 20, 24)))) is None
