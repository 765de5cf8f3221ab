"""A model is its published integers: anybody derives it again, a changed file is refused, a plan lists it."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, LoadHistory, LoadModel, StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import (
    Plain,
    PrivacyUnit,
    PublicSpread,
    Structured,
    WeakBudgetWarning,
    simulate_load_history,
)
from dp_powerflow.model.derive import planned_queries, replay
from dp_powerflow.model.fit import fit, history_facts
from dp_powerflow.model.gaussian import FORMAT
from dp_powerflow.model.options import FixedPowerFactor
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import total_rho
from dp_powerflow.privacy.queries import Answer

N_DAYS = 4
BOUNDS = (0.005, 3.0)
POINT, DAY = PrivacyUnit.LOAD_POINT, PrivacyUnit.LOAD_POINT_DAY
CASES: dict[str, tuple[FitOptions, PrivacyUnit]] = {
    "structured": (FitOptions(BOUNDS, use_scale=True), POINT),
    "block": (FitOptions(BOUNDS, Structured(block=4), use_scale=True), POINT),
    "plain": (FitOptions(BOUNDS, Plain(), use_scale=True, reactive=PublicSpread(spread=0.2)), POINT),
    "mixture": (FitOptions(BOUNDS, use_scale=True, n_components=2), DAY),
    "private classes": (FitOptions(BOUNDS, classes=PrivateClasses(2), use_scale=True), POINT),
    "private classes per day": (FitOptions(BOUNDS, classes=PrivateClasses(2), use_scale=True), DAY),
    "bounds per class": (
        FitOptions(
            dict.fromkeys(("residential", "commercial", "industrial"), (0.1, 500.0)),
            reactive=FixedPowerFactor({"residential": 0.2}),
            variance_floor=2e-3,
        ),
        POINT,
    ),
}


@pytest.fixture(scope="module")
def history() -> LoadHistory:
    return simulate_load_history(80, n_days=N_DAYS, step_minutes=60, seed=4)


def fitted(history: LoadHistory, case: str) -> LoadModel:
    options, unit = CASES[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        return fit(
            history,
            budget=Budget(20.0, unit=unit),
            options=options,
            key=StreamKey.from_insecure_seed(1),
        )


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_derived_again_from_its_file(history: LoadHistory, case: str) -> None:
    model = fitted(history, case)
    text = model.to_json()
    again = LoadModel.from_json(text)
    assert again.to_json() == text
    assert again.sha256 == model.sha256
    assert again.origin is not None
    for integers, cost in zip(again.origin.integers, again.costs, strict=True):
        assert integers.dtype == np.int64
        assert integers.shape[1] == cost.dimension


@pytest.mark.parametrize("case", CASES)
def test_the_plan_lists_what_a_fit_asks(history: LoadHistory, case: str) -> None:
    options, unit = CASES[case]
    budget = Budget(20.0, unit=unit)
    planned = planned_queries(history_facts(history, options, unit), options, budget)
    asked = fitted(history, case)
    assert planned.notes == asked.notes
    assert [
        (c.query, c.cohort, c.unit, c.dimension, c.region, c.natural_unit, c.sensitivity_squared)
        for c in planned.queries
    ] == [
        (c.query, c.cohort, c.unit, c.dimension, c.region, c.natural_unit, c.sensitivity_squared)
        for c in asked.costs
    ]
    for plan, cost in zip(planned.queries, asked.costs, strict=True):
        if "round 2" not in plan.query:  # their split follows the released tail
            assert plan.rho == cost.rho
    assert total_rho(planned.queries) == pytest.approx(total_rho(asked.costs), rel=1e-6)


def test_derivation_never_touches_a_record(history: LoadHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(history, "structured")
    assert model.origin is not None

    def touched(*_: object) -> None:
        raise AssertionError("a contribution was evaluated")

    monkeypatch.setattr("dp_powerflow.privacy.queries.quantise", touched)
    monkeypatch.setattr(
        "dp_powerflow.model.estimators.Records.contributions", lambda *_, **__: map(touched, [0])
    )
    answers = tuple(Answer(*pair) for pair in zip(model.costs, model.origin.integers, strict=True))
    budget = Budget(model.epsilon, model.delta, model.unit)
    derived = replay(model.origin.facts, model.origin.options, budget, answers)
    again = replace(model, classes=derived.classes)
    np.testing.assert_array_equal(
        again.days[0].components[0].covariance, model.days[0].components[0].covariance
    )


FORGED: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "parameter": (("classes", 0, "components", 0, "mean", 3), lambda x: x + 1e-6),
    "integer": (("queries", 0, "integers", 0, 0), lambda x: x + 10**7),
    "noise scale": (("queries", 0, "sigma"), lambda x: 2 * x),
    "order": (("queries",), lambda x: x[::-1]),
    "left out": (("queries",), lambda x: x[:-1]),
    "added": (("queries",), lambda x: [*x, x[0] | {"query": "one more"}]),
    "size": (("queries", 0, "integers", 0), lambda x: [*x, 1]),
    "option": (("options", "variance_floor"), 0.5),
    "load points": (("n_load_points",), 10**6),
    "days": (("n_days",), 365),
    "step": (("step_minutes",), 30),
    "scaled": (("scaled",), False),
    "public labels": (("public_labels",), False),
    "estimator": (("estimator",), "plain"),
    "remarks": (("notes",), ["all is well"]),
    "adjacency": (("adjacency",), "any change at all"),
    "rho": (("rho",), 1e-9),
    "epsilon spent": (("spent_epsilon",), 1e-9),
    "cost": (("queries", 0, "rho"), 1e-9),
    "fraction": (("queries", 0, "integers", 0, 0), 0.5),
    "unknown entry": (("hidden",), [1, 2, 3]),
    "huge integer": (("queries", 0, "integers", 0, 0), 2**70),
    "no step": (("facts", "step_minutes"), 0),
    "negative step": (("facts", "step_minutes"), -60),
    "nobody": (("facts", "load_points_of_class"), [["residential", 0]]),
    "words for numbers": (("classes", 0, "components", 0, "mean"), ["a"] * 24),
    "endless classes": (("options", "private_classes"), {"n_classes": 10**12, "share": 0.25}),
    "endless components": (("options", "n_components"), 10**12),
}


@pytest.mark.parametrize("what", FORGED)
def test_whatever_the_integers_do_not_give_is_refused(history: LoadHistory, what: str) -> None:
    """In a sentence, at once: a stranger's file must not stop or mislead who reads it."""
    path, value = FORGED[what]
    fields = json.loads(fitted(history, "structured").to_json())
    holder: Any = fields
    for key in path[:-1]:
        holder = holder[key]
    if callable(value):
        value = value(holder[path[-1]])
    if what != "unknown entry":
        assert holder[path[-1]] != value
    holder[path[-1]] = value
    with pytest.raises(PrivacyError):
        LoadModel.from_json(json.dumps(fields))


def test_a_model_without_integers_is_not_read(history: LoadHistory) -> None:
    stripped = replace(fitted(history, "structured"), origin=None)
    with pytest.raises(PrivacyError, match="not a load model"):
        LoadModel.from_json(stripped.to_json())


def test_a_model_of_an_earlier_format_names_the_last_version_that_reads_it(history: LoadHistory) -> None:
    text = fitted(history, "structured").to_json()
    for earlier in ("version 1", "version 3"):
        with pytest.raises(PrivacyError, match=r"0\.5\.0 is the last version that reads earlier ones"):
            LoadModel.from_json(text.replace(FORMAT, f"dp-powerflow load model, {earlier}"))
