"""Records that are made where they are looked at: as arrays of the whole history would be, and held once."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, StreamKey
from dp_powerflow._bits.elementary import log
from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.lowlevel import PrivacyUnit, Structured, simulate_load_history
from dp_powerflow.model.derive import planned_queries
from dp_powerflow.model.estimators import LogLoads, Records
from dp_powerflow.model.fit import MeterSource, fit, history_facts
from dp_powerflow.model.history import estimate as calibrate
from dp_powerflow.model.history.estimate import History
from support.histories import history_of

HISTORY = simulate_load_history(40, n_days=15, step_minutes=60, seed=2)
BOUNDS, KEY = (0.01, 0.9), StreamKey.from_insecure_seed(1)


def log_loads(unit: PrivacyUnit, label: str | None) -> LogLoads:
    options = FitOptions(BOUNDS, use_scale=True)
    facts = history_facts(HISTORY, options, unit)
    return MeterSource(facts, HISTORY, options, unit, KEY).log_load(label, BOUNDS)


@pytest.mark.parametrize("unit", PrivacyUnit)
def test_log_loads_are_those_of_the_chosen_class(unit: PrivacyUnit) -> None:
    points = [i for i, label in enumerate(HISTORY.class_label) if label == "residential"]
    assert HISTORY.scale_kw is not None
    values = log(np.clip(HISTORY.load_kw[points] / HISTORY.scale_kw[points, None, None], *BOUNDS))
    if unit is PrivacyUnit.LOAD_POINT_DAY:
        values = values.reshape(-1, 1, values.shape[2])
    found = log_loads(unit, "residential")
    assert found.shape == values.shape
    for chosen in (slice(None), slice(3, 9), slice(None, None, -2)):
        np.testing.assert_array_equal(found[chosen], values[chosen])
    rows = np.flatnonzero(np.arange(len(values)) % 3 == 1)
    np.testing.assert_array_equal(replace(found, rows=found.rows[rows])[1:], values[rows][1:])


def test_contributions_come_in_the_order_of_records_whatever_the_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = log_loads(PrivacyUnit.LOAD_POINT, None)
    whole = loads[:].sum(axis=(1, 2))[:, None]
    for size in (1, 1000, 1 << 19):
        monkeypatch.setattr("dp_powerflow.model.estimators._CHUNK_VALUES", size)
        parts = list(Records(loads, 40.0).contributions(lambda days: days.sum(axis=(1, 2))[:, None]))
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_plan_calibrates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a plan wants no law")

    monkeypatch.setattr(calibrate, "with_score_map", refused)
    monkeypatch.setattr(calibrate, "ranks_of", refused)
    options = FitOptions(BOUNDS, History(), use_scale=True)
    facts = history_facts(HISTORY, options, PrivacyUnit.LOAD_POINT)
    assert "ranks" in {query.query for query in planned_queries(facts, options, Budget(1.0, 1e-5)).queries}


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
