"""A history model is its published integers: derived again, refused when changed, planned beforehand."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, LoadHistory, LoadModel, StreamKey
from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.lowlevel import PrivacyUnit, PublicSpread, WeakBudgetWarning, epsilon_to_rho
from dp_powerflow.model.derive import planned_queries, replay
from dp_powerflow.model.fit import fit, history_facts
from dp_powerflow.model.history import queries as plan
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.options import FixedPowerFactor
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import rho_to_epsilon, total_rho
from dp_powerflow.privacy.queries import Answer
from support.histories import BOUNDS, customers, day_facts, history_of

N, DAYS, STEPS = 40, 16, 12
BUDGET = Budget(6.0, 1e-5)
WARM = np.cos(np.arange(DAYS) / 3.0)
Case = Callable[[], tuple[LoadHistory, FitOptions]]


def meters(**more: Any) -> LoadHistory:
    load = customers(N, DAYS, STEPS)
    return history_of(load, **more)


def options(**choice: Any) -> FitOptions:
    return FitOptions(BOUNDS, History(), **choice)


def weather() -> tuple[LoadHistory, FitOptions]:
    history = meters()
    wind = np.sin(np.arange(DAYS) / 2.0)
    facts = day_facts(history, temperature=WARM, again=2.0 * WARM - 1.0, wind=wind)
    return history, options(days=facts)


def labelled() -> tuple[LoadHistory, FitOptions]:
    return meters(labels=["home"] * 30 + ["shop"] * 10), options()


def no_weekends() -> tuple[LoadHistory, FitOptions]:
    history = meters()
    facts = replace(day_facts(history), off=(False,) * DAYS)
    return history, options(days=facts)


CASES: dict[str, Case] = {
    "one class": lambda: (meters(), options()),
    "weather": weather,
    "public classes": labelled,
    "bounds per class": lambda: (
        labelled()[0],
        replace(options(), bounds={"home": (0.02, 10.0), "shop": (0.1, 60.0)}),
    ),
    "private classes": lambda: (meters(), options(classes=PrivateClasses(2))),
    "public spread": lambda: (meters(), options(reactive=PublicSpread(FixedPowerFactor({"all": 0.2})))),
    "no weekends": no_weekends,
    "scaled": lambda: (meters(scale_kw=np.linspace(2.0, 9.0, N)), options(use_scale=True)),
    "everything": lambda: (
        meters(),
        replace(weather()[1], classes=PrivateClasses(3), reactive=PublicSpread()),
    ),
}


def fitted(history: LoadHistory, choice: FitOptions) -> LoadModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        return fit(history, budget=BUDGET, options=choice, key=StreamKey.from_insecure_seed(1))


class Models(dict[str, LoadModel]):
    """One fit for each case, when it is first wanted."""

    def __missing__(self, case: str) -> LoadModel:
        self[case] = fitted(*CASES[case]())
        return self[case]


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


def fields_of(model: LoadModel) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.to_json())
    return found


def as_text(fields: dict[str, Any]) -> str:
    """Canonical, so that nothing but what was changed can be refused."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_costs_add_up_to_no_more_than_the_budget(models: Models, case: str) -> None:
    model = models[case]
    assert model.spent_epsilon == rho_to_epsilon(total_rho(model.costs), BUDGET.delta)
    assert 0.99 * BUDGET.epsilon < model.spent_epsilon <= BUDGET.epsilon
    by_hand = sum(cost.sensitivity_squared / (2 * cost.sigma**2) for cost in model.costs)
    cohorts = len({cost.cohort for cost in model.costs if cost.cohort is not None})
    assert by_hand <= max(cohorts, 1) * epsilon_to_rho(BUDGET.epsilon, BUDGET.delta) * (1 + 1e-9)
    assert {cost.unit for cost in model.costs} == {PrivacyUnit.LOAD_POINT}


@pytest.mark.parametrize("case", CASES)
def test_the_history_model_is_derived_again_from_its_file(models: Models, case: str) -> None:
    model = models[case]
    text = model.to_json()
    again = LoadModel.from_json(text)
    assert again.to_json() == text
    assert again.sha256 == model.sha256
    for part, other in zip(model.histories, again.histories, strict=True):
        assert part.to_dict() == other.to_dict()


@pytest.mark.parametrize("case", CASES)
def test_the_plan_lists_what_a_fit_of_histories_asks(models: Models, case: str) -> None:
    history, choice = CASES[case]()
    planned = planned_queries(history_facts(history, choice, BUDGET.unit), choice, BUDGET)
    assert planned.queries == models[case].costs
    assert planned.notes == models[case].notes


def test_every_query_of_the_plan_is_asked_where_it_has_something_to_ask(models: Models) -> None:
    cases = ("weather", "one class", "no weekends")
    asked = {case: {cost.query for cost in models[case].costs} for case in cases}
    assert asked["weather"] == set(plan.SHARES)
    assert asked["one class"] == set(plan.SHARES) - {"covariates"}
    assert asked["no weekends"] == set(plan.SHARES) - {"covariates", "days off"}
    weather_of = models["weather"].histories[0].law.covariates
    assert weather_of.size == 2  # the one that repeats another is left out


def test_derivation_never_touches_a_customer(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models["everything"]
    assert model.origin is not None

    def touched(*_: object, **__: object) -> None:
        raise AssertionError("a contribution was evaluated")

    monkeypatch.setattr("dp_powerflow.privacy.queries.quantise", touched)
    monkeypatch.setattr("dp_powerflow.model.history.contributions.log_level", touched)
    answers = tuple(Answer(*pair) for pair in zip(model.costs, model.origin.integers, strict=True))
    derived = replay(model.origin.facts, model.origin.options, BUDGET, answers)
    again = replace(model, classes=derived.classes)
    for part, other in zip(model.histories, again.histories, strict=True):
        assert part.to_dict() == other.to_dict()


def _set(*path: str | int, to: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        holder: Any = fields
        for key in path[:-1]:
            holder = holder[key]
        before = json.dumps(holder[path[-1]])
        holder[path[-1]] = to(holder[path[-1]])
        assert json.dumps(holder[path[-1]]) != before

    return change


LAW = ("classes", 0, "law")
FACTS = ("facts", "days")
CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "first integer": _set("queries", 0, "integers", 0, 0, to=lambda x: x + 10**7),
    "integer of the mean day": _set("queries", 9, "integers", 0, 3, to=lambda x: x - 10**7),
    "last integer": _set("queries", -1, "integers", 0, -1, to=lambda x: x + 10**7),
    "sigma": _set("queries", 4, "sigma", to=lambda x: 2 * x),
    "sensitivity": _set("queries", 4, "sensitivity_squared", to=lambda x: x // 4),
    "region": _set("queries", 0, "region", to=lambda _: "orthant"),
    "rho of a query": _set("queries", 0, "rho", to=lambda x: x / 2),
    "order": _set("queries", to=lambda x: x[::-1]),
    "left out": _set("queries", to=lambda x: x[:-1]),
    "one more": _set("queries", to=lambda x: [*x, x[-1] | {"query": "one more"}]),
    "epsilon": _set("epsilon", to=lambda x: x / 2),
    "spent epsilon": _set("spent_epsilon", to=lambda x: x / 2),
    "unit": _set("unit", to=lambda _: "load-point-day"),
    "more days off": _set(*FACTS, "off", 0, to=lambda x: not x),
    "other days off": _set(*FACTS, "off", to=lambda x: [*x[1:], x[0]]),
    "a covariate": _set(*FACTS, "covariates", 0, 1, 3, to=lambda x: x + 1.0),
    "no covariates": _set(*FACTS, "covariates", to=lambda _: []),
    "a date too many": _set(*FACTS, "dates", to=lambda x: [*x, "2030-01-01"]),
    "one day less": _set("facts", "days_of_type", 0, 1, to=lambda x: x - 1),
    "customers": _set("facts", "load_points_of_class", 0, 1, to=lambda x: 2 * x),
    "bounds": _set("options", "bounds", 1, to=lambda x: 2 * x),
    "weight": _set("classes", 0, "weight", to=lambda x: x / 2),
    "mean day": _set(*LAW, "mean_day", 3, to=lambda x: x + 1e-6),
    "level shares": _set(*LAW, "level_shares", to=lambda x: x[::-1]),
    "loading": _set(*LAW, "loading_std", to=lambda x: x + 0.01),
    "correction": _set(*LAW, "corrected", 0, 3, to=lambda x: x + 0.01),
    "factor": _set(*LAW, "factor", 2, to=lambda x: x + 0.01),
    "tan": _set("classes", 0, "reactive", "tan_theta", to=lambda x: x + 0.01),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_history_model_is_refused(models: Models, change: str) -> None:
    fields = fields_of(models["weather"])
    assert LoadModel.from_json(as_text(fields)).sha256 == models["weather"].sha256
    CHANGES[change](fields)
    with pytest.raises(PrivacyError):
        LoadModel.from_json(as_text(fields))


@pytest.mark.parametrize("more", [True, False])
def test_facts_of_more_or_fewer_days_than_the_history_are_refused(models: Models, *, more: bool) -> None:
    fields = fields_of(models["one class"])
    days = fields["facts"]["days"]
    for name, value in (("dates", "2999-01-01"), ("off", False)):
        days[name] = [*days[name], value] if more else days[name][:-1]
    with pytest.raises(PrivacyError, match="exactly the days of the history"):
        LoadModel.from_json(as_text(fields))


@pytest.mark.parametrize("share", plan.SHARES)
def test_another_share_of_a_query_is_refused(
    models: Models, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model says by its costs what shares it was fitted with; others are another model's."""
    monkeypatch.setitem(plan.SHARES, share, plan.SHARES[share] * 1.1)
    with pytest.raises(PrivacyError, match="cost that the public options give"):
        LoadModel.from_json(models["weather"].to_json())


def test_facts_of_other_days_are_refused_before_anything_is_asked() -> None:
    history = meters()
    other = day_facts(meters(first=dt.date(2024, 3, 4)))
    with pytest.raises(LoadDataError, match="other days"):
        fitted(history, options(days=other))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "single days": ({}, {"unit": PrivacyUnit.LOAD_POINT_DAY}),
    "components": ({"n_components": 2}, {}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_histories_cannot_be_fitted_to_is_refused(what: str) -> None:
    choice, budget = REFUSED[what]
    with pytest.raises(PrivacyError, match="history model"):
        fit(
            meters(),
            budget=replace(BUDGET, **budget),
            options=options(**choice),
            key=StreamKey.from_insecure_seed(0),
        )


@pytest.mark.parametrize(("days", "steps"), [(13, 24), (14, 6)])
def test_too_short_a_history_is_refused(days: int, steps: int) -> None:
    with pytest.raises(PrivacyError, match="at least 14 days of at least 8 steps"):
        fitted(history_of(customers(20, days, steps)), options())
