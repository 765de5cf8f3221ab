from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import math
import re
import warnings
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, LoadHistory, LoadModel, StreamKey
from dp_powerflow.errors import DpPowerflowError, LoadDataError, PrivacyError
from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.lowlevel import Plain, PrivacyUnit, Structured, WeakBudgetWarning, simulate_load_history
from dp_powerflow.model.fit import fit
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import total_rho
from support.lognormal import LOGNORMAL_CLASSES, LOGNORMAL_HOMES

KEY = StreamKey.from_insecure_seed(5)
BOUNDS = (0.01, 1000.0)


@pytest.fixture(scope="module")
def history() -> LoadHistory:
    return simulate_load_history(400, n_days=7, step_minutes=60, seed=3)


@pytest.fixture(scope="module")
def residential() -> LoadHistory:
    """Homes of the class of law that is fitted."""
    return simulate_load_history(1000, n_days=7, seed=4, classes=(LOGNORMAL_HOMES,))


def quiet_fit(history: LoadHistory, budget: Budget, key: StreamKey = KEY, **options: Any) -> LoadModel:
    options = {"bounds": BOUNDS} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        return fit(history, budget=budget, options=FitOptions(**options), key=key)


def test_public_classes_compose_in_parallel(history: LoadHistory) -> None:
    model = quiet_fit(history, Budget(1.0))
    cohorts = {cost.cohort for cost in model.costs}
    assert cohorts == {"residential", "commercial", "industrial"}
    alone = [total_rho([c for c in model.costs if c.cohort == name]) for name in cohorts]
    assert model.rho == pytest.approx(max(alone))
    assert sum(alone) > 2.9 * model.rho


def test_private_clusters_find_the_levels() -> None:
    history = simulate_load_history(400, n_days=7, step_minutes=60, seed=3, classes=LOGNORMAL_CLASSES)
    model = quiet_fit(history, Budget(50.0), classes=PrivateClasses(2))
    loads = sorted(float(part.mean_load.mean()) for part in model.days)
    assert loads[1] > 3 * loads[0]


def test_fit_repeats_to_the_bit_and_other_keys_and_data_have_other_noise(history: LoadHistory) -> None:
    budget = Budget(1.0)
    first = quiet_fit(history, budget)
    assert first.sha256 == quiet_fit(history, budget).sha256
    assert first.sha256 != quiet_fit(history, budget, key=StreamKey.from_insecure_seed(6)).sha256
    touched = history.load_kw.copy()
    touched[0, 0, 0] *= 1.0000001
    other = quiet_fit(dataclasses.replace(history, load_kw=touched), budget)
    shift = other.days[0].components[0].mean - first.days[0].components[0].mean
    # one reading changed in the eighth digit, and yet all the noise is new
    assert np.abs(shift).max() > 1e-3


def test_too_small_a_budget_warns_that_the_prior_would_do() -> None:
    history = simulate_load_history(20, n_days=2, step_minutes=60, classes=DEMO_CLASSES[:1])
    with pytest.warns(WeakBudgetWarning, match="prior would do as well"):
        model = fit(history, budget=Budget(0.5), options=FitOptions(bounds=BOUNDS), key=KEY)
    assert "raise epsilon" in model.notes[0]


@pytest.mark.parametrize("estimator", [Structured(), Structured(block=12), Plain()])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_noise_never_breaks_a_covariance(estimator: Any, epsilon: float, seed: int) -> None:
    history = simulate_load_history(5, n_days=1, step_minutes=60, seed=seed)
    key = StreamKey.from_insecure_seed(seed)
    model = quiet_fit(history, Budget(epsilon), key=key, estimator=estimator)
    for part in model.days:
        for component in part.components:
            assert np.linalg.eigvalsh(component.covariance).min() > 0


@pytest.mark.parametrize(
    "load", [np.zeros((6, 2, 24)), np.full((6, 2, 24), 1e9), np.tile([0.0, 1e6], (6, 2, 12))]
)
@pytest.mark.parametrize("estimator", [Structured(), Plain()])
def test_degenerate_loads_give_a_valid_model(load: np.ndarray, estimator: Any) -> None:
    names = tuple(f"p{i}" for i in range(len(load)))
    days = (dt.date(2024, 1, 1), dt.date(2024, 1, 2))
    history = LoadHistory(load, None, names, days, 60, (None,) * 6, (None,) * 6, None)
    model = quiet_fit(history, Budget(5.0), estimator=estimator)
    assert np.linalg.eigvalsh(model.days[0].components[0].covariance).min() > 0


CANARY = 7.31415926


def test_no_private_value_reaches_a_message_a_log_or_the_model(caplog: pytest.LogCaptureFixture) -> None:
    """A load with unmistakable digits is fitted in every way; nothing that comes out shows them."""
    load = np.full((12, 3, 24), CANARY)
    days = tuple(dt.date(2024, 1, day) for day in (1, 2, 3))
    names = tuple(f"secret-service-{i}" for i in range(12))
    history = LoadHistory(load, load / 2, names, days, 60, (None,) * 12, (None,) * 12, None)
    texts: list[str] = [repr(KEY)]
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for options in ({}, {"estimator": Plain()}, {"classes": PrivateClasses(2)}):
            bounds = FitOptions(bounds=BOUNDS, **options)
            model = fit(history, budget=Budget(1.0), options=bounds, key=KEY)
            texts += [model.to_json(), repr(model.costs)]
        for bad in ({"use_scale": True}, {"bounds": {"other": BOUNDS}}):
            with pytest.raises(DpPowerflowError) as refused:
                fit(history, budget=Budget(1.0), options=FitOptions(**({"bounds": BOUNDS} | bad)), key=KEY)
            texts.append(str(refused.value))
    texts += [str(warning.message) for warning in caught] + [record.getMessage() for record in caplog.records]
    digits = f"{CANARY:.6f}"[:6]
    log_digits = f"{math.log(CANARY):.8f}"
    for text in texts:
        assert digits not in text
        assert log_digits not in text
        assert not re.search(r"secret-service", text)


def test_bad_inputs_are_refused_with_what_to_do(history: LoadHistory) -> None:
    with pytest.raises(PrivacyError, match="no load bounds are declared for the class 'class 2'"):
        quiet_fit(history, Budget(1.0), bounds={"class 1": BOUNDS}, classes=PrivateClasses(2))
    with pytest.raises(PrivacyError, match="p_min < p_max"):
        quiet_fit(history, Budget(1.0), bounds=(0.0, 1.0))
    with pytest.raises(PrivacyError, match="variance floor"):
        FitOptions(bounds=BOUNDS, variance_floor=0.0)
    mixed = dataclasses.replace(history, class_label=(None, *history.class_label[1:]))
    with pytest.raises(LoadDataError, match="label them all or none"):
        quiet_fit(mixed, Budget(1.0))
    with pytest.raises(PrivacyError, match="has no class"):
        quiet_fit(history, Budget(1.0)).find("nobody")
    with pytest.raises(PrivacyError, match="not a load model"):
        LoadModel.from_json("{}")


SCALED = FitOptions(bounds=(0.01, 3.0), use_scale=True)


def test_days_that_depend_on_each_other_are_no_records_of_their_own() -> None:
    history = dataclasses.replace(simulate_load_history(60, n_days=3, step_minutes=60), days_mixed=True)
    with pytest.raises(LoadDataError, match="not a record of its own"):
        fit(history, budget=Budget(2.0, unit=PrivacyUnit.LOAD_POINT_DAY), options=SCALED, key=KEY)


def test_noise_is_bound_to_labels_too() -> None:
    """One relabelled load point, same readings: other noise, or the difference would show it."""
    pooled = dataclasses.replace(SCALED, classes=PrivateClasses(2))  # sums that do not depend on the labels
    history = simulate_load_history(60, n_days=3, step_minutes=60)
    labels = list(history.class_label)
    labels[0] = "commercial" if labels[0] != "commercial" else "residential"
    other = dataclasses.replace(history, class_label=tuple(labels))
    first, second = (fit(h, budget=Budget(50.0), options=pooled, key=KEY).origin for h in (history, other))
    assert first is not None
    assert second is not None
    assert not np.array_equal(first.integers[0], second.integers[0])
    assert np.array_equal(history.load_kw, other.load_kw)
