"""Fits of histories on hard inputs, and what they make of customers whose law is known."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, LoadHistory, LoadModel, StreamKey
from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import PrivacyUnit, WeakBudgetWarning
from dp_powerflow.model.fit import fit, history_facts
from dp_powerflow.model.history.estimate import History, predicted_errors
from dp_powerflow.model.history.sample import HistorySampler, Population
from dp_powerflow.model.options import PublicSpread
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.units import FloatArray
from support.histories import BOUNDS, customers, day_facts, history_of
from support.laws import days_of
from support.populations import course, drawn

KEY = StreamKey.from_insecure_seed(4)
PEOPLE = 30


def fitted(history: LoadHistory, epsilon: float = 4.0, key: StreamKey = KEY, **choice: Any) -> LoadModel:
    options = FitOptions(choice.pop("bounds", BOUNDS), History(), **choice)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        return fit(history, budget=Budget(epsilon, 1e-5), options=options, key=key)


def drawn_population(model: LoadModel, count: int = PEOPLE) -> Population:
    names = [model.class_names[i % len(model.class_names)] for i in range(count)]
    scale = np.linspace(1.0, 5.0, count) if model.scaled else None
    return drawn(model, names, np.arange(count), scale, np.full(count, np.nan), KEY)


def lived(model: LoadModel, people: Population, days: int = 20, **covariates: FloatArray) -> HistorySampler:
    """Days that begin in the last week of the history and go on."""
    assert model.origin is not None
    assert model.origin.facts.days is not None
    first = dt.date.fromisoformat(model.origin.facts.days.dates[-7])
    off, factor = course(model, people, Calendar.starting(first, days), covariates, KEY)
    return HistorySampler(people, KEY, days, off, factor)


def check_days(model: LoadModel) -> FloatArray:
    """Draws customers and days; all loads finite and within the bounds of their class."""
    people = drawn_population(model)
    sampler = lived(model, people)
    load, kvar = days_of(sampler)
    relative = load / people.scale_kw[:, None, None]
    bounds = np.array([people.classes[ell].bounds for ell in people.class_of])
    assert np.isfinite(kvar).all()
    assert np.all(relative >= bounds[:, :1, None] * (1 - 1e-9))
    assert np.all(relative <= bounds[:, 1:, None] * (1 + 1e-9))
    return relative


def varied(days: int = 14, steps: int = 24, n: int = 25) -> LoadHistory:
    return history_of(customers(n, days, steps))


def flat(kw: float) -> LoadHistory:
    return history_of(np.full((25, 14, 24), kw))


def some_at_the_floor() -> LoadHistory:
    load = customers(25, 14, 24)
    load[:10] = 0.0
    load[10:15, :, :12] = 0.0
    return history_of(load)


HARD: dict[str, Callable[[], tuple[LoadHistory, dict[str, Any]]]] = {
    "constant": lambda: (flat(0.5), {}),
    "all at zero": lambda: (flat(0.0), {}),
    "all beyond the bounds": lambda: (flat(1e9), {}),
    "some at the floor": lambda: (some_at_the_floor(), {}),
    "one customer": lambda: (varied(n=1), {}),
    "8 steps": lambda: (varied(steps=8), {}),
    "96 steps": lambda: (varied(steps=96), {}),
    "9 steps": lambda: (varied(steps=9), {}),
    "scaled": lambda: (replace(varied(), scale_kw=np.linspace(0.1, 10.0, 25)), {"use_scale": True}),
    "narrow bounds": lambda: (varied(), {"bounds": (0.3, 0.31)}),
    "wide bounds": lambda: (varied(), {"bounds": (1e-6, 1e6)}),
    "a class of one": lambda: (
        replace(varied(), class_label=("shop",) + ("home",) * 24),
        {"bounds": {"shop": (0.1, 3.0), "home": BOUNDS}},
    ),
    "no budget, many choices": lambda: (
        varied(),
        {"epsilon": 0.01, "classes": PrivateClasses(3), "reactive": PublicSpread()},
    ),
    "all days off": lambda: (varied(), {"days": replace(day_facts(varied()), off=(True,) * 14)}),
    "weather that never changes": lambda: (
        varied(),
        {"days": day_facts(varied(), temperature=np.full(14, 3.0))},
    ),
    "spikes": lambda: (history_of(np.where(np.arange(24) == 3, 1e4, 1e-4) + np.zeros((25, 14, 1))), {}),
    "huge variance": lambda: (
        history_of(np.exp(np.random.default_rng(0).normal(0.0, 30.0, (25, 14, 24)))),
        {},
    ),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_histories_are_fitted_and_drawn_within_their_bounds(case: str) -> None:
    history, choice = HARD[case]()
    model = fitted(history, **choice)
    check_days(model)
    assert LoadModel.from_json(model.to_json()).sha256 == model.sha256


def test_days_after_the_history_need_the_weather_that_the_model_follows() -> None:
    history = varied()
    warm = np.cos(np.arange(14) / 2.0)
    model = fitted(history, days=day_facts(history, temperature=warm))
    with pytest.raises(PrivacyError, match="temperature"):
        lived(model, drawn_population(model))
    lived(model, drawn_population(model), temperature=np.zeros(20))


def level_spread(model: LoadModel, count: int = 400) -> float:
    """Standard deviation of the log mean loads of drawn customers."""
    people = drawn_population(model, count)
    load, _ = days_of(lived(model, people, 28))
    return float(np.log(load.mean(axis=(1, 2))).std())


@pytest.mark.slow
def test_equal_customers_get_no_invented_diversity() -> None:
    """5,000 customers of one profile, each with its own noise: their levels differ by 0.3 %. At ε = 1 they
    come out 3 % apart, because nothing narrower is asked for; homes are 50 % apart."""
    rng = np.random.default_rng(2)
    profile = customers(1, 14, 24, seed=5)
    equal = history_of(profile * np.exp(0.05 * rng.standard_normal((5000, 14, 24))))
    own = float(np.log(equal.load_kw.mean(axis=(1, 2))).std())
    assert own < 0.01
    found = level_spread(fitted(equal, 1.0))
    assert found < 0.06


@pytest.mark.slow
def test_the_spread_of_customers_that_differ_is_found() -> None:
    differing = history_of(customers(5000, 14, 24))
    own = float(np.log(differing.load_kw.mean(axis=(1, 2))).std())
    assert level_spread(fitted(differing, 1.0)) == pytest.approx(own, rel=0.15)


@pytest.mark.slow
def test_the_weather_that_loads_follow_is_recovered() -> None:
    days = 28
    warm = np.cos(np.arange(days) / 4.0)
    calm = np.random.default_rng(3).standard_normal(days)
    load = history_of(customers(4000, days, 24, weather=-0.4 * warm))
    model = fitted(load, 2.0, days=day_facts(load, temperature=warm, wind=calm))
    law = model.histories[0].law
    assert law.covariates[0] < -0.3  # colder days, more load
    assert abs(law.covariates[1]) < 0.1 * abs(law.covariates[0])  # wind says nothing
    assert np.corrcoef(law.factor, -warm)[0, 1] > 0.95
    cold, hot = (
        lived(model, drawn_population(model, 200), temperature=np.full(20, value), wind=np.zeros(20))
        for value in (-1.0, 1.0)
    )
    later = slice(8, None)  # days that are not of the history
    ratio = cold.block(0).load_kw[:, later].mean() / hot.block(0).load_kw[:, later].mean()
    assert np.log(ratio) == pytest.approx(0.8, rel=0.25)


def test_a_budget_too_small_is_said_before_and_after() -> None:
    history = varied(n=30)
    options = FitOptions(BOUNDS, History())
    errors = predicted_errors(history_facts(history, options, PrivacyUnit.LOAD_POINT), options, Budget(0.5))
    assert all(error.too_large for error in errors)
    with pytest.warns(WeakBudgetWarning, match="too few for this epsilon"):
        fit(history, budget=Budget(0.5), options=options, key=KEY)
