"""Audit of whole fits: neighbours that differ in one load point, thousands of fits, one attacker."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.fit import fit
from dp_powerflow.model.options import FitOptions
from dp_powerflow.privacy import queries
from dp_powerflow.privacy.budget import Budget, rho_to_epsilon
from dp_powerflow.privacy.random import StreamKey
from support.auditing import epsilon_lower_bound

RUNS = 400
DELTA = 0.05
BUDGET = Budget(3.0, 1e-3)
OPTIONS = FitOptions(bounds=(0.1, 10.0))


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


def scores(last_kw: float) -> np.ndarray:
    """The attacker's score, the released level, over many fits with fresh noise."""
    victim = history(last_kw)
    seeds = range(RUNS)
    keys = (StreamKey.from_insecure_seed(seed) for seed in seeds)
    return np.array(
        [
            fit(victim, budget=BUDGET, options=OPTIONS, key=key).classes[0].components[0].mean.mean()
            for key in keys
        ]
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
def test_whole_fits_leak_less_than_they_claim() -> None:
    model = fit(history(1.0), budget=BUDGET, options=OPTIONS, key=StreamKey.from_insecure_seed(0))
    claimed = rho_to_epsilon(model.rho, DELTA)
    assert epsilon_lower_bound(scores(10.0), scores(0.1), DELTA) <= claimed


@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
def test_whole_fits_without_noise_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "add_noise", lambda total, sigma, stream: total + stream.words(1)[0] % 3)
    model = fit(history(1.0), budget=BUDGET, options=OPTIONS, key=StreamKey.from_insecure_seed(0))
    claimed = rho_to_epsilon(model.rho, DELTA)
    assert epsilon_lower_bound(scores(10.0), scores(0.1), DELTA) > claimed
