"""How wrong noise will make the loads of a release, by public stand-ins."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.estimators import Estimator
from dp_powerflow.model.fit import WeakBudgetWarning, fit, history_facts
from dp_powerflow.model.history.estimate import History, PredictedError
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.model.plain import Plain
from dp_powerflow.model.structured import Structured
from dp_powerflow.pipeline import plan as outlook
from dp_powerflow.pipeline.customers import draw_customers
from dp_powerflow.pipeline.plan import stand_in_errors
from dp_powerflow.privacy.budget import Budget, PrivacyUnit
from dp_powerflow.privacy.random import StreamKey
from support.histories import BOUNDS, customers, day_facts, history_of

ONE = Budget(1.0, 1e-5)


def predicted(n: int, options: FitOptions, budget: Budget = ONE, labels: int = 1) -> list[PredictedError]:
    """For n customers in so many classes, on 14 days of 8 steps."""
    history = history_of(np.ones((n, 14, 8)), labels=[f"class {k % labels}" for k in range(n)])
    return list(stand_in_errors(history_facts(history, options, budget.unit), options, budget))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.7, 1.0])
def test_the_prediction_for_400_homes_covers_what_repeated_fits_do(spread: float) -> None:
    """Homes of another kind than the stand-ins, with another spread and place of their levels."""
    rng = np.random.default_rng(1)
    load = customers(400, 14, 8) * np.exp(np.sqrt(spread**2 - 0.5**2) * rng.standard_normal((400, 1, 1)))
    history, options = history_of(np.clip(load, *BOUNDS)), FitOptions(BOUNDS, History())
    mean, *_ = stand_in_errors(history_facts(history, options, ONE.unit), options, ONE)
    off = np.array([_mean_load_off(history, options, seed) for seed in range(24)])
    measured = float(np.sqrt(np.mean(off * off)))
    assert min(mean.by_spread) / 1.5 < measured < max(mean.by_spread) * 1.5
    assert mean.between is not None
    assert np.mean((off > mean.between[0]) & (off < mean.between[1])) > 0.7


def _mean_load_off(history: LoadHistory, options: FitOptions, seed: int) -> float:
    key = StreamKey.from_insecure_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        model = fit(history, budget=ONE, options=options, key=key)
    return float(draw_customers(model, history, key).mean() / history.load_kw.mean() - 1.0)


@pytest.mark.parametrize(
    "estimator", [Structured(), Plain(), pytest.param(History(), marks=pytest.mark.slow)]
)
def test_predicted_errors_fall_with_customers_and_budget(
    estimator: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "RUNS", 6)
    options = FitOptions(BOUNDS, estimator)
    by_size = [predicted(n, options)[0].error for n in (30, 500, 20_000)]
    assert by_size == sorted(by_size, reverse=True)
    assert by_size[0] > 0.3
    assert by_size[-1] < 0.15
    by_budget = [predicted(500, options, Budget(epsilon, 1e-5))[0].error for epsilon in (0.1, 1.0, 30.0)]
    assert by_budget == sorted(by_budget, reverse=True)


def test_what_an_estimator_gets_wrong_without_noise_is_predicted_and_not_blamed_on_the_budget() -> None:
    """Days that are normal in the log have too long a tail for homes, however many there are."""
    facts = replace(
        history_facts(history_of(np.ones((2, 14, 96))), FitOptions(BOUNDS), ONE.unit),
        load_points_of_class=(("all", 10**7),),
    )
    *_, tail = stand_in_errors(facts, FitOptions(BOUNDS), ONE)
    assert max(tail.by_spread) > tail.usual
    assert not tail.too_large


def test_the_energy_of_many_classes_is_known_better_than_the_smallest_of_them() -> None:
    mean, energy, _ = predicted(3000, FitOptions(BOUNDS), labels=3)
    assert energy.error < mean.error


def test_what_is_predicted_is_the_same_every_time_and_knows_units_and_private_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlook, "RUNS", 4)
    options = FitOptions(BOUNDS)
    assert predicted(300, options) == predicted(300, options)
    of_days = Budget(1.0, 1e-5, PrivacyUnit.LOAD_POINT_DAY)
    assert predicted(300, options, of_days)[0].error < predicted(300, options)[0].error
    assert len(predicted(300, replace(options, classes=PrivateClasses(2)))) == 3


def test_long_histories_with_weather_are_predicted_by_their_first_days(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlook, "RUNS", 2)
    history = history_of(np.ones((300, 60, 8)))
    options = FitOptions(BOUNDS, History(), days=day_facts(history, temperature=np.sin(np.arange(60.0))))
    facts = history_facts(history, options, ONE.unit)
    said: list[str] = []
    monkeypatch.setattr(outlook, "_PATIENCE", -1.0)
    assert len(stand_in_errors(facts, options, ONE, said.append)) == 3
    assert said[-1] == "public stand-ins for the customers: 6 of 6 fits are made"
