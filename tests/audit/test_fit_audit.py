"""Audit of whole fits: neighbours that differ in one load point, thousands of fits, one attacker."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, LoadHistory, LoadModel, StreamKey
from dp_powerflow.lowlevel import Plain, PrivacyUnit, Structured
from dp_powerflow.model.estimators import Records
from dp_powerflow.model.fit import fit
from dp_powerflow.model.partition import RADIUS, Centroids, PrivateClasses, initial_centroids
from dp_powerflow.model.single_days import from_coefficients
from dp_powerflow.privacy import queries
from dp_powerflow.privacy.budget import rho_to_epsilon
from dp_powerflow.privacy.queries import QuerySession
from dp_powerflow_paper.sources.models import Mixture, private_spread
from support.auditing import epsilon_lower_bound

RUNS = 400
FEW = 160
"""Enough where every run tells the neighbours apart."""
DELTA = 0.05
BUDGET = Budget(3.0, 1e-3)
BOUNDS = (0.1, 10.0)
ESTIMATORS = pytest.mark.parametrize(
    "options",
    [
        FitOptions(bounds=BOUNDS),
        FitOptions(bounds=BOUNDS, estimator=Plain()),
        pytest.param(FitOptions(bounds=BOUNDS, classes=PrivateClasses(4)), marks=pytest.mark.slow),
        pytest.param(FitOptions(bounds=BOUNDS, estimator=Mixture(Structured())), marks=pytest.mark.campaign),
    ],
    ids=["structured", "plain", "private classes", "mixture"],
)


def history(last_kw: float) -> LoadHistory:
    """Four load points of six 4-hour steps; the last one is the victim."""
    load = np.full((4, 1, 6), 1.0)
    load[3] = last_kw
    none, day = (None,) * 4, dt.date(2024, 1, 1)
    return LoadHistory(load, None, ("a", "b", "c", "d"), (day,), 240, none, none, None)


def released_level(model: LoadModel) -> float:
    """What a structured fit says of the level."""
    return float(sum(part.weight * part.mean.mean() for part in model.days[0].components))


def published_classes(model: LoadModel) -> float:
    """How many records of the highest class, less those of the lowest, all noisy counts together say."""
    assert model.origin is not None
    asked = zip(model.costs, model.origin.integers, strict=True)
    counts = [of[0] for cost, of in asked if "counts" in cost.query or cost.query == "class weights"]
    return float(sum(of[-1] - of[0] for of in counts))


def published_level(model: LoadModel) -> float:
    """The noisy integer of the level; four load points leave nothing of it in a plain fit's parameters."""
    assert model.origin is not None
    assert model.costs[0].query == "level"
    return float(model.origin.integers[0][0, 0])


def scores(last_kw: float, options: FitOptions, runs: int = RUNS) -> np.ndarray:
    """The attacker's score over many fits with fresh noise."""
    victim = history(last_kw)
    score = published_level if isinstance(options.estimator, Plain) else released_level
    score = published_classes if isinstance(options.classes, PrivateClasses) else score
    keys = (StreamKey.from_insecure_seed(seed) for seed in range(runs))
    return np.array([score(fit(victim, budget=BUDGET, options=options, key=key)) for key in keys])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
@ESTIMATORS
def test_whole_fits_leak_less_than_they_claim(options: FitOptions) -> None:
    model = fit(history(1.0), budget=BUDGET, options=options, key=StreamKey.from_insecure_seed(0))
    claimed = rho_to_epsilon(model.rho, DELTA)
    runs = FEW if isinstance(options.classes, PrivateClasses) else RUNS  # these fits are slow
    assert epsilon_lower_bound(scores(10.0, options, runs), scores(0.1, options, runs), DELTA) <= claimed


@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
@ESTIMATORS
def test_whole_fits_without_noise_are_caught(options: FitOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "add_noise", lambda total, sigma, stream: total + stream.words(1)[0] % 3)
    model = fit(history(1.0), budget=BUDGET, options=options, key=StreamKey.from_insecure_seed(0))
    claimed = rho_to_epsilon(model.rho, DELTA)
    found = epsilon_lower_bound(scores(10.0, options, FEW), scores(0.1, options, FEW), DELTA)
    assert found > claimed


SPREAD_RHO, SPREAD_RUNS = 0.5, 4000


def spread_scores(term: int, centroids: Centroids) -> np.ndarray:
    """What the released spreads say of the one record, which is as far from its centroid as it may be."""
    coefficients = np.zeros(centroids.scale.size)
    coefficients[term] = RADIUS * centroids.scale[term]
    day = (centroids.centre + from_coefficients(coefficients, 12))[None, None]
    found = []
    for seed in range(SPREAD_RUNS):
        key = StreamKey.from_insecure_seed(SPREAD_RUNS * term + seed)
        session = QuerySession(key, PrivacyUnit.LOAD_POINT_DAY, None, SPREAD_RHO)
        private_spread(Records(day, 1.0), centroids, np.ones(1), SPREAD_RHO, session)
        integers = session.answers[0].integers[0]
        found.append(float(integers[1] - integers[2]))
    return np.array(found)


@pytest.mark.campaign  # of the comparison's mixture alone
@pytest.mark.parametrize(("noise", "kept"), [(1, True), (2, False)])
def test_audit_of_the_spread_of_kmeans_is_within_its_claim_and_half_the_noise_is_caught(
    noise: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = queries.add_noise
    monkeypatch.setattr(queries, "add_noise", lambda total, sigma, stream: add(total, sigma // noise, stream))
    centroids = initial_centroids(1, 12, -2.0, 2.0)
    centroids = Centroids(0.0 * centroids.points, centroids.centre, centroids.scale)
    found = epsilon_lower_bound(spread_scores(1, centroids), spread_scores(2, centroids), DELTA)
    claimed = rho_to_epsilon(SPREAD_RHO, DELTA)
    assert found > 0.4 * claimed
    assert (found <= claimed) is kept
