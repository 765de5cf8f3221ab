"""Records that are made where they are looked at: as arrays of the whole history would be, and held once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, StreamKey
from dp_powerflow._bits.elementary import log
from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.lowlevel import PrivacyUnit, Structured, simulate_load_history
from dp_powerflow.model.derive import planned_queries
from dp_powerflow.model.estimators import Customers, Records
from dp_powerflow.model.fit import MeterSource, fit, history_facts
from dp_powerflow.model.history import estimate as calibrate
from dp_powerflow.model.history.plan import History
from dp_powerflow.model.options import FittedReactive
from support.histories import history_of

HISTORY = simulate_load_history(40, n_days=15, step_minutes=60, seed=2, reactive=True)
BOUNDS, KEY = (0.01, 0.9), StreamKey.from_insecure_seed(1)


def source(unit: PrivacyUnit, day_types: list[str] | None = None) -> MeterSource:
    options = FitOptions(BOUNDS, use_scale=True, day_types=day_types, reactive=FittedReactive())
    return MeterSource(history_facts(HISTORY, options, unit), HISTORY, options, unit, KEY)


@pytest.mark.parametrize("unit", PrivacyUnit)
def test_log_loads_and_pairs_are_those_of_the_chosen_days_and_classes(unit: PrivacyUnit) -> None:
    types = ["a" if day % 3 else "b" for day in range(HISTORY.n_days)]
    chosen = source(unit, types)
    points = [i for i, label in enumerate(HISTORY.class_label) if label == "residential"]
    days = [d for d, kind in enumerate(types) if kind == "b"]
    assert HISTORY.scale_kw is not None
    assert HISTORY.load_kvar is not None
    scale = HISTORY.scale_kw[points, None, None]
    active = HISTORY.load_kw[np.ix_(points, days)] / scale
    both = np.concatenate([active, HISTORY.load_kvar[np.ix_(points, days)] / scale], axis=2)
    expected = [log(np.clip(active, *BOUNDS)), both]
    if unit is PrivacyUnit.LOAD_POINT_DAY:
        expected = [values.reshape(-1, 1, values.shape[2]) for values in expected]
    for found, values in zip(
        (chosen.log_load("residential", "b", BOUNDS), chosen.pairs("residential", "b")), expected, strict=True
    ):
        assert found.shape == values.shape
        np.testing.assert_array_equal(found[:], values)
        np.testing.assert_array_equal(found[3:9], values[3:9])
        np.testing.assert_array_equal(found[::-2], values[::-2])
        np.testing.assert_array_equal(found[4], values[4])
        flags = np.arange(len(values)) % 3 == 1
        np.testing.assert_array_equal(found.where(flags)[:], values[flags])
        np.testing.assert_array_equal(found.where(flags).where(flags[flags])[1:], values[flags][1:])


def test_contributions_come_in_the_order_of_records_whatever_the_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = source(PrivacyUnit.LOAD_POINT).log_load(None, None, BOUNDS)
    whole = loads[:].sum(axis=(1, 2))[:, None]
    for size in (1, 1000, 1 << 19):
        monkeypatch.setattr("dp_powerflow.model.estimators._CHUNK_VALUES", size)
        parts = list(Records(loads, 40.0).contributions(lambda days: days.sum(axis=(1, 2))[:, None]))
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_what_is_found_of_customers_is_found_once() -> None:
    customers, calls = Customers(np.zeros((2, 3, 4))), []

    def find() -> int:
        calls.append(1)
        return 7

    assert [customers.once("x", find), customers.once("x", find), len(calls)] == [7, 7, 1]
    assert repr(customers) == "Customers(PRIVATE)"


def test_a_plan_calibrates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a plan wants no law")

    monkeypatch.setattr(calibrate, "with_score_map", refused)
    monkeypatch.setattr(calibrate, "ranks_of", refused)
    for reactive in (FittedReactive(), FitOptions(BOUNDS).reactive):
        options = FitOptions(BOUNDS, History(), use_scale=True, reactive=reactive)
        facts = history_facts(HISTORY, options, PrivacyUnit.LOAD_POINT)
        assert "ranks" in {
            query.query for query in planned_queries(facts, options, Budget(1.0, 1e-5)).queries
        }


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [History(), Structured()])
def test_a_fit_holds_no_second_history(
    estimator: History | Structured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dp_powerflow.model.estimators._CHUNK_VALUES", 1 << 16)
    some = simulate_load_history(200, n_days=60, step_minutes=60, seed=3, classes=DEMO_CLASSES[:1])
    history = history_of(np.tile(some.load_kw, (25, 1, 1)))
    options = FitOptions((0.01, 20.0), estimator)
    fit(history, budget=Budget(8.0, 1e-5), options=options, key=KEY)  # compiles
    tracemalloc.start()
    try:
        fit(history, budget=Budget(8.0, 1e-5), options=options, key=KEY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < history.load_kw.nbytes
