"""Audit of whole fits: neighbours that differ in one load point, thousands of fits, one attacker."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.estimators.plain import Plain
from dp_powerflow.model.estimators.structured import Structured
from dp_powerflow.model.fit import fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.options import FitOptions
from dp_powerflow.privacy import queries
from dp_powerflow.privacy.budget import Budget, rho_to_epsilon
from dp_powerflow.privacy.random import StreamKey
from support.auditing import epsilon_lower_bound

RUNS = 400
FEW = 160
"""Enough where every run tells the neighbours apart."""
DELTA = 0.05
BUDGET = Budget(3.0, 1e-3)
BOUNDS = (0.1, 10.0)
ESTIMATORS = pytest.mark.parametrize(
    "options",
    [FitOptions(bounds=BOUNDS, estimator=estimator) for estimator in (Structured(), Plain())],
    ids=lambda options: options.estimator.name,
)


def history(last_kw: float) -> LoadHistory:
    """Four load points of six 4-hour steps; the last one is the victim."""
    load = np.full((4, 1, 6), 1.0)
    load[3] = last_kw
    return LoadHistory(
        load_kw=load,
        load_kvar=None,
        load_points=("a", "b", "c", "d"),
        days=(dt.date(2024, 1, 1),),
        step_minutes=240,
        node_of=(None,) * 4,
        class_label=(None,) * 4,
        scale_kw=None,
    )


def released_level(model: LoadModel) -> float:
    """What a structured fit says of the level."""
    return float(model.days[0].components[0].mean.mean())


def published_level(model: LoadModel) -> float:
    """The noisy integer of the level; four load points leave nothing of it in a plain fit's parameters."""
    assert model.origin is not None
    assert model.costs[0].query == "level"
    return float(model.origin.integers[0][0, 0])


def scores(last_kw: float, options: FitOptions, runs: int = RUNS) -> np.ndarray:
    """The attacker's score over many fits with fresh noise."""
    victim = history(last_kw)
    score = published_level if isinstance(options.estimator, Plain) else released_level
    keys = (StreamKey.from_insecure_seed(seed) for seed in range(runs))
    return np.array([score(fit(victim, budget=BUDGET, options=options, key=key)) for key in keys])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
@ESTIMATORS
def test_whole_fits_leak_less_than_they_claim(options: FitOptions) -> None:
    model = fit(history(1.0), budget=BUDGET, options=options, key=StreamKey.from_insecure_seed(0))
    claimed = rho_to_epsilon(model.rho, DELTA)
    assert epsilon_lower_bound(scores(10.0, options), scores(0.1, options), DELTA) <= claimed


@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
@ESTIMATORS
def test_whole_fits_without_noise_are_caught(options: FitOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "add_noise", lambda total, sigma, stream: total + stream.words(1)[0] % 3)
    model = fit(history(1.0), budget=BUDGET, options=options, key=StreamKey.from_insecure_seed(0))
    claimed = rho_to_epsilon(model.rho, DELTA)
    found = epsilon_lower_bound(scores(10.0, options, FEW), scores(0.1, options, FEW), DELTA)
    assert found > claimed
