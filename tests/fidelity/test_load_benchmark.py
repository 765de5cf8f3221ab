"""The switch of the benchmark: noise of another number of customers, and no way to it from the package."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dp_powerflow.fidelity.metrics import traits
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history
from dp_powerflow.model.estimators.structured import Structured
from dp_powerflow.model.fit import fit
from dp_powerflow.model.options import FitOptions
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = (0.005, 50.0)
KEY = StreamKey.from_insecure_seed(3)


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("load_columns")


@pytest.fixture(scope="module")
def half() -> FloatArray:
    return simulate_load_history(40, n_days=3, step_minutes=60, classes=DEMO_CLASSES[:1]).load_kw


@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
def test_at_its_own_size_the_switch_changes_nothing(columns: ModuleType, half: FloatArray) -> None:
    history, options = columns.as_history(half), FitOptions(bounds=BOUNDS, estimator=Structured())
    law = columns.fitted_law(history, options, KEY, len(half))
    model = fit(history, budget=columns.BUDGET, options=options, key=KEY)
    released = model.days[0].components[0]
    np.testing.assert_array_equal(law.components[0].mean, released.mean)
    np.testing.assert_array_equal(law.components[0].covariance, released.covariance)


def test_with_the_noise_of_very_many_the_mean_of_the_half_comes_out(
    columns: ModuleType, half: FloatArray
) -> None:
    history, options = columns.as_history(half), FitOptions(bounds=BOUNDS, estimator=Structured())
    own = np.log(np.clip(half, *BOUNDS)).mean(axis=(0, 1))
    error = [
        float(np.sqrt(np.mean((columns.fitted_law(history, options, KEY, n).components[0].mean - own) ** 2)))
        for n in (40, 10**6)
    ]
    assert error[1] < 0.1 < error[0]


def test_days_are_drawn_within_the_bounds_and_without_memory(columns: ModuleType, half: FloatArray) -> None:
    drawn = columns.without_privacy(half, BOUNDS, 0)
    assert drawn.shape == half.shape
    assert BOUNDS[0] <= drawn.min() <= drawn.max() <= BOUNDS[1]
    assert not np.array_equal(drawn, columns.without_privacy(half, BOUNDS, 1))


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
