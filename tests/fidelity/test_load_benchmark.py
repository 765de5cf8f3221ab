"""The switch of the benchmark: noise of another number of customers, and no way to it from the package."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history
from dp_powerflow.model.fit import fit
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.law import ClassModel, GaussianComponent
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.single_days import Structured
from dp_powerflow.privacy.random import StreamKey, canonical_bytes

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
        assert canonical_bytes(part) == canonical_bytes(model.histories[0])
    else:
        np.testing.assert_array_equal(gaussian(part).mean, gaussian(model.days[0]).mean)
        np.testing.assert_array_equal(gaussian(part).covariance, gaussian(model.days[0]).covariance)


def test_the_package_does_not_know_the_switch() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "ScaledSession" not in text
        assert "load_columns" not in text
