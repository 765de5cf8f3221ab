"""A model is its published integers: anybody derives it again, a changed file is refused, a plan lists it."""

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
from dp_powerflow.lowlevel import (
    Plain,
    PrivacyUnit,
    PublicSpread,
    Structured,
    WeakBudgetWarning,
    epsilon_to_rho,
    simulate_load_history,
)
from dp_powerflow.model.derive import planned_queries, replay
from dp_powerflow.model.fit import fit, history_facts
from dp_powerflow.model.gaussian import FORMAT
from dp_powerflow.model.history import estimate as plan
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.options import FixedPowerFactor
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import rho_to_epsilon, total_rho
from dp_powerflow.privacy.queries import Answer
from support.histories import BOUNDS, customers, day_facts, history_of
from support.tables import tables_of

DAY_BOUNDS = (0.005, 3.0)
PER_DAY = PrivacyUnit.LOAD_POINT_DAY
N, DAYS, STEPS = 40, 16, 12
BUDGET = Budget(6.0, 1e-5)
WARM = np.cos(np.arange(DAYS) / 3.0)
Case = tuple[LoadHistory, FitOptions, Budget]


def days(unit: PrivacyUnit = PrivacyUnit.LOAD_POINT, **choice: Any) -> Case:
    """A model of single days."""
    history = simulate_load_history(80, n_days=4, step_minutes=60, seed=4)
    return history, FitOptions(**{"bounds": DAY_BOUNDS, "use_scale": True, **choice}), Budget(20.0, unit=unit)


def lives(*facts: str, labels: list[str] | None = None, scale: bool = False, **choice: Any) -> Case:
    """A model of whole histories; the facts are of the weather, or that no day is one off."""
    history = history_of(
        customers(N, DAYS, STEPS), labels=labels, scale_kw=np.linspace(2.0, 9.0, N) if scale else None
    )
    known = None
    if "weather" in facts:
        wind = np.sin(np.arange(DAYS) / 2.0)
        known = day_facts(history, temperature=WARM, again=2.0 * WARM - 1.0, wind=wind)
    if "no weekends" in facts:
        known = replace(day_facts(history), off=(False,) * DAYS)
    options = FitOptions(**{"bounds": BOUNDS, "estimator": History(), "days": known, **choice})
    return history, replace(options, use_scale=scale), BUDGET


HOMES_AND_SHOPS = ["home"] * 30 + ["shop"] * 10
CASES: dict[str, Callable[[], Case]] = {
    "structured": days,
    "block": lambda: days(estimator=Structured(block=4)),
    "plain": lambda: days(estimator=Plain(), reactive=PublicSpread(spread=0.2)),
    "per day": lambda: days(PER_DAY),
    "private classes of days": lambda: days(classes=PrivateClasses(2)),
    "private classes per day": lambda: days(PER_DAY, classes=PrivateClasses(2)),
    "bounds per class of days": lambda: days(
        bounds=dict.fromkeys(("residential", "commercial", "industrial"), (0.1, 500.0)),
        use_scale=False,
        reactive=FixedPowerFactor({"residential": 0.2}),
        variance_floor=2e-3,
    ),
    "one class": lives,
    "weather": lambda: lives("weather"),
    "public classes": lambda: lives(labels=HOMES_AND_SHOPS),
    "bounds per class": lambda: lives(
        labels=HOMES_AND_SHOPS, bounds={"home": (0.02, 10.0), "shop": (0.1, 60.0)}
    ),
    "private classes": lambda: lives(classes=PrivateClasses(2)),
    "public spread": lambda: lives(reactive=PublicSpread(FixedPowerFactor({"all": 0.2}))),
    "no weekends": lambda: lives("no weekends"),
    "scaled": lambda: lives(scale=True),
    "everything": lambda: lives("weather", classes=PrivateClasses(3), reactive=PublicSpread()),
}


def fitted(history: LoadHistory, choice: FitOptions, budget: Budget) -> LoadModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        return fit(history, budget=budget, options=choice, key=StreamKey.from_insecure_seed(1))


class Models(dict[str, LoadModel]):
    """One fit for each case, when it is first wanted."""

    def __missing__(self, case: str) -> LoadModel:
        self[case] = fitted(*CASES[case]())
        return self[case]


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


def as_text(fields: dict[str, Any]) -> str:
    """Canonical, so that nothing but what was changed can be refused."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_costs_add_up_to_no_more_than_the_budget(models: Models, case: str) -> None:
    model, budget = models[case], CASES[case]()[2]
    assert model.spent_epsilon == rho_to_epsilon(total_rho(model.costs), budget.delta)
    assert 0.98 * budget.epsilon < model.spent_epsilon <= budget.epsilon
    by_hand = sum(cost.sensitivity_squared / (2 * cost.sigma**2) for cost in model.costs)
    cohorts = len({cost.cohort for cost in model.costs if cost.cohort is not None})
    assert by_hand <= max(cohorts, 1) * epsilon_to_rho(budget.epsilon, budget.delta) * (1 + 1e-9)
    assert {cost.unit for cost in model.costs} == {budget.unit}


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_derived_again_from_its_file(models: Models, case: str) -> None:
    text = models[case].to_json()
    again = LoadModel.from_json(text)
    assert again.to_json() == text
    assert again.sha256 == models[case].sha256
    assert again.origin is not None
    for integers, cost in zip(again.origin.integers, again.costs, strict=True):
        assert integers.dtype == np.int64
        assert integers.shape[1] == cost.dimension


@pytest.mark.parametrize("case", CASES)
def test_the_plan_lists_what_a_fit_asks(models: Models, case: str) -> None:
    history, choice, budget = CASES[case]()
    planned, asked = (
        planned_queries(history_facts(history, choice, budget.unit), choice, budget),
        models[case],
    )
    assert planned.notes == asked.notes
    for due, cost in zip(planned.queries, asked.costs, strict=True):
        if "round 2" in due.query:  # their split follows the released tail
            due = replace(due, sigma=cost.sigma, grid_step=cost.grid_step)
        assert due == cost
    assert total_rho(planned.queries) == pytest.approx(total_rho(asked.costs), rel=1e-6)


def test_every_query_of_the_plan_is_asked_where_it_has_something_to_ask(models: Models) -> None:
    cases = ("weather", "one class", "no weekends")
    asked = {case: {cost.query for cost in models[case].costs} for case in cases}
    assert asked["weather"] == set(plan.QUERIES)
    assert asked["one class"] == set(plan.QUERIES) - {"covariates"}
    assert asked["no weekends"] == set(plan.QUERIES) - {"covariates", "days off"}
    weather_of = models["weather"].histories[0].law.covariates
    assert weather_of.size == 2  # the one that repeats another is left out


@pytest.mark.parametrize(
    ("case", "looks"),
    [
        ("structured", "model.estimators.Records.contributions"),
        ("everything", "model.history.contributions.log_level"),
    ],
)
def test_derivation_never_touches_a_record(
    models: Models, case: str, looks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models[case]
    assert model.origin is not None

    def touched(*_: object, **__: object) -> None:
        raise AssertionError("a contribution was evaluated")

    monkeypatch.setattr("dp_powerflow.privacy.queries.quantise", touched)
    monkeypatch.setattr(f"dp_powerflow.{looks}", lambda *_, **__: map(touched, [0]))
    answers = tuple(Answer(*pair) for pair in zip(model.costs, model.origin.integers, strict=True))
    budget = Budget(model.epsilon, model.delta, model.unit)
    derived = replay(model.origin.facts, model.origin.options, budget, answers)
    assert replace(model, classes=derived.classes).to_json() == model.to_json()


def all_integers(queries: list[dict[str, Any]], value: int) -> list[dict[str, Any]]:
    return [query | {"integers": [[value] * len(row) for row in query["integers"]]} for query in queries]


FORGE: dict[str, Callable[[Any, Any], Any]] = {
    "plus": lambda x, by: x + by,
    "times": lambda x, by: x * by,
    "not": lambda x, by: not x,
    "reversed": lambda x, by: x[::-1],
    "without last": lambda x, by: x[:-1],
    "and": lambda x, by: [*x, by],
    "and the first as": lambda x, by: [*x, x[0] | by],
    "without": lambda x, by: {k: v for k, v in x.items() if k != by},
    "all integers": all_integers,
    "all integers 2^": lambda x, by: all_integers(x, 2**by),
    "none": lambda x, by: None,
}
FORGED = tables_of(__file__)


@pytest.mark.parametrize(("case", "what"), [(case, what) for case in FORGED for what in FORGED[case]])
def test_whatever_the_integers_do_not_give_is_refused(models: Models, case: str, what: str) -> None:
    """In a sentence, at once: a stranger's file must not stop or mislead who reads it."""
    path, forge = FORGED[case][what]
    fields = json.loads(models[case].to_json())
    holder: Any = fields
    for key in path[:-1]:
        holder = holder[key]
    before = holder.get(path[-1]) if isinstance(holder, dict) else holder[path[-1]]
    (how, by), *_ = forge.items()
    holder[path[-1]] = by if how == "is" else FORGE[how](before, by)
    assert json.dumps(holder[path[-1]]) != json.dumps(before)
    with pytest.raises(PrivacyError):
        LoadModel.from_json(as_text(fields))


def test_a_file_nested_too_deep_is_refused() -> None:
    with pytest.raises(PrivacyError, match="not a load model"):
        LoadModel.from_json("[" * 200_000)


def test_a_model_of_an_earlier_format_names_the_last_version_that_reads_it(models: Models) -> None:
    text = models["structured"].to_json()
    for earlier in ("version 1", "version 3"):
        with pytest.raises(PrivacyError, match=r"0\.5\.0 is the last version that reads earlier ones"):
            LoadModel.from_json(text.replace(FORMAT, f"dp-powerflow load model, {earlier}"))


@pytest.mark.parametrize("share", plan.QUERIES)
def test_another_share_of_a_query_is_refused(
    models: Models, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model says by its costs what shares it was fitted with; others are another model's."""
    monkeypatch.setitem(plan.QUERIES, share, (1.1 * plan.QUERIES[share][0], plan.QUERIES[share][1]))
    with pytest.raises(PrivacyError, match="cost that the public options give"):
        LoadModel.from_json(models["weather"].to_json())


def test_what_histories_cannot_be_fitted_to_is_refused() -> None:
    history, choice, budget = lives()
    other = day_facts(history_of(customers(N, DAYS, STEPS), first=dt.date(2024, 3, 4)))
    with pytest.raises(LoadDataError, match="other days"):
        fitted(history, replace(choice, days=other), budget)
    with pytest.raises(PrivacyError, match="history model"):
        fitted(history, choice, replace(budget, unit=PER_DAY))
    for n_days, steps in ((13, 24), (14, 6)):
        with pytest.raises(PrivacyError, match="at least 14 days of at least 8 steps"):
            fitted(history_of(customers(20, n_days, steps)), choice, budget)
