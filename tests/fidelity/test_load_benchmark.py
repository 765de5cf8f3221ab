"""The switch of the benchmark: noise of another number of customers, and no way to it from the package."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dp_powerflow.fidelity.metrics import traits
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history
from dp_powerflow.model.fit import fit
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.law import ClassModel, GaussianComponent
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.structured import Structured
from dp_powerflow.privacy.random import StreamKey

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = (0.005, 50.0)
KEY = StreamKey.from_insecure_seed(3)


@pytest.fixture(scope="module")
def columns() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("load_columns")


@pytest.fixture(scope="module")
def customers(columns: ModuleType) -> Any:
    """Simulated homes of two weeks and a half from a Thursday on, hourly."""
    load = simulate_load_history(40, n_days=17, step_minutes=60, classes=DEMO_CLASSES[:1]).load_kw
    weekend = np.array([(day + 3) % 7 >= 5 for day in range(17)])
    return columns.Customers("simulated", load, weekend, BOUNDS, None)


def gaussian(part: ClassModel) -> GaussianComponent:
    return part.components[0]


def test_dates_put_weekends_where_they_are(columns: ModuleType, customers: Any) -> None:
    history = columns.as_history(customers.load_kw, customers.weekend)
    assert [day.weekday() >= 5 for day in history.days] == customers.weekend.tolist()
    sunday_first = np.array([day % 7 in (0, 6) for day in range(17)])
    history = columns.as_history(customers.load_kw, sunday_first)
    assert [day.weekday() >= 5 for day in history.days] == sunday_first.tolist()


@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
@pytest.mark.parametrize("estimator", [Structured(), History()], ids=lambda estimator: estimator.name)
def test_at_its_own_size_the_switch_changes_nothing(
    columns: ModuleType, customers: Any, estimator: Structured | History
) -> None:
    history = columns.as_history(customers.load_kw, customers.weekend)
    options = FitOptions(bounds=BOUNDS, estimator=estimator)
    (part,) = columns.fitted_classes(history, options, KEY, history.n_load_points)
    model = fit(history, budget=columns.BUDGET, options=options, key=KEY)
    if isinstance(estimator, History):
        assert part.to_dict() == model.histories[0].to_dict()
    else:
        np.testing.assert_array_equal(gaussian(part).mean, gaussian(model.days[0]).mean)
        np.testing.assert_array_equal(gaussian(part).covariance, gaussian(model.days[0]).covariance)


def test_with_the_noise_of_very_many_the_mean_of_the_half_comes_out(
    columns: ModuleType, customers: Any
) -> None:
    history = columns.as_history(customers.load_kw, customers.weekend)
    options = FitOptions(bounds=BOUNDS, estimator=Structured())
    own = np.log(np.clip(customers.load_kw, *BOUNDS)).mean(axis=(0, 1))
    means = [
        gaussian(columns.fitted_classes(history, options, KEY, n)[0]).mean for n in (40, columns.NO_NOISE)
    ]
    error = [float(np.sqrt(np.mean((mean - own) ** 2))) for mean in means]
    assert error[1] < 0.1 < error[0]


def test_days_are_drawn_within_the_bounds_and_without_memory(columns: ModuleType, customers: Any) -> None:
    drawn = columns.without_privacy(customers.load_kw, customers, 0)
    assert drawn.shape == customers.load_kw.shape
    assert BOUNDS[0] <= drawn.min() <= drawn.max() <= BOUNDS[1]
    assert not np.array_equal(drawn, columns.without_privacy(customers.load_kw, customers, 1))
    assert traits(drawn).day_to_day < 0.2


@pytest.mark.slow
def test_histories_are_lived_within_the_bounds_and_with_memory(columns: ModuleType, customers: Any) -> None:
    """Customers who differ as those of the half do, and by the key of the column alone."""
    half = customers.load_kw
    drawn = columns.lived(columns.NO_NOISE)(half, customers, 0)
    assert drawn.shape == half.shape
    assert BOUNDS[0] <= drawn.min() <= drawn.max() <= BOUNDS[1]
    assert np.array_equal(drawn, columns.lived(columns.NO_NOISE)(half, customers, 0))
    assert not np.array_equal(drawn, columns.lived(columns.NO_NOISE)(half, customers, 1))
    assert not np.array_equal(drawn, columns.lived(5_000)(half, customers, 0))
    assert drawn.mean() == pytest.approx(half.mean(), rel=0.15)
    real, found = traits(half), traits(drawn)
    assert found.between_customers == pytest.approx(real.between_customers, abs=0.25)


def test_every_column_has_its_own_title_and_way(columns: ModuleType) -> None:
    titles = [column.title for column in columns.columns((5_000, 50_000))]
    assert len(set(titles)) == len(titles) == 9
    assert sum("history model" in title for title in titles) == 3


@pytest.mark.slow
def test_swiss_homes_are_read_with_their_memory_and_their_weekends(monkeypatch: pytest.MonkeyPatch) -> None:
    if "DP_POWERFLOW_SWISS" not in os.environ:
        pytest.skip("the Swiss meters are not here: set DP_POWERFLOW_SWISS to their folder")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    population = importlib.import_module("load_populations").swiss()
    assert population.load_kw.shape == (511, 49, 96)
    assert population.weekend[:8].tolist() == [False] * 5 + [True] * 2 + [False]
    found = traits(population.load_kw)
    assert found.day_to_day == pytest.approx(0.63, abs=0.02)
    assert found.between_customers == pytest.approx(0.82, abs=0.03)
    assert found.coincidence == pytest.approx(0.43, abs=0.03)


def test_the_package_does_not_know_the_switch() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "ScaledSession" not in text
        assert "load_columns" not in text
