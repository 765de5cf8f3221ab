"""Adversarial replace-one search on the integers that are really summed, for every query of the package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dp_powerflow.model.estimators import GaussianEstimate, Records, StructuredPlan
from dp_powerflow.model.estimators.plain import Plain, PlainPlan, estimate_plain
from dp_powerflow.model.estimators.structured import Structured, estimate_structured
from dp_powerflow.model.mixture import fit_mixtures
from dp_powerflow.model.options import FitOptions, FittedReactive, PublicSpread, fit_reactive
from dp_powerflow.model.partition import PrivateClasses, assign_classes, private_counts, private_kmeans
from dp_powerflow.privacy import queries
from dp_powerflow.privacy.budget import PrivacyUnit
from support.adversary import WatchedSession, extreme_days
from support.neighbours import BOUNDS, Lab, exact_change, extremes, search

T, LOW, HIGH = 12, -4.0, 4.0
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities on purpose


def records(days: np.ndarray) -> Records:
    return Records(days, float(len(days)))


def structured(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    estimate_structured([records(days)], StructuredPlan(len(days), T, 1.0, LOW, HIGH, block=4), session)
    return session


def plain(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    estimate_plain([records(days)], PlainPlan(len(days), T, 1.0, LOW, HIGH), session)
    return session


def mixture(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    fit_mixtures([records(days)], [GaussianEstimate(np.zeros(T), np.eye(T))], 3, 1.0, session)
    return session


def partition(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    centroids = private_kmeans(records(days), 3, LOW, HIGH, 0.5, session)
    labels = assign_classes(records(days), centroids)
    private_counts(labels, np.arange(len(days)) % 2, (2, 3), 0.4, session)
    return session


def reactive(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    pair = np.concatenate([np.abs(days), days[::-1]], axis=2)
    fit_reactive([records(pair)], [1.0], 50.0, len(days), 1.0, session)
    return session


MECHANISMS = [structured, plain, mixture, partition, reactive]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("n_days", [1, 5])
def test_extreme_records_never_exceed_the_claim(mechanism: Any, n_days: int) -> None:
    for name, ratio in mechanism(extreme_days(T, n_days, LOW, HIGH)).worst_ratio().items():
        assert ratio <= 1.0, name


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_random_records_never_exceed_the_claim(mechanism: Any) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        npst.arrays(
            np.float64,
            st.tuples(st.integers(2, 8), st.integers(1, 3), st.just(T)),
            elements=st.floats(-1e4, 1e4, width=32),
        ),
        st.integers(0, 3),
    )
    def search(days: np.ndarray, seed: int) -> None:
        assert all(ratio <= 1.0 for ratio in mechanism(days, seed).worst_ratio().values())

    search()


def test_a_record_with_many_days_counts_no_more_than_one_with_a_single_day() -> None:
    once = extreme_days(T, 1, LOW, HIGH)
    many = np.repeat(once, 30, axis=1)
    for name, grid in structured(once).integers.items():
        assert np.abs(grid - structured(many).integers[name]).max() <= 2**24 * 1e-6, name


def test_a_doubled_contribution_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search can fail: with clipping switched off it finds a violation at once."""
    from support import adversary

    def no_clip(values: np.ndarray, query: Any) -> np.ndarray:
        return np.asarray(np.nan_to_num(np.clip(values / query.grid_step, -1e9, 1e9)), dtype=np.int64)

    monkeypatch.setattr(adversary, "quantise", no_clip)
    ratios = structured(extreme_days(T, 1, LOW, HIGH)).worst_ratio()
    assert max(ratios.values()) > 2


# ------------------------------------------------------------- every query of a whole fit, records as metered

POINT, DAY = PrivacyUnit.LOAD_POINT, PrivacyUnit.LOAD_POINT_DAY
STRUCTURED, TYPES = Structured(block=3), ("weekday", "weekend")
FITS = {
    "structured": (FitOptions(BOUNDS, STRUCTURED, reactive=PublicSpread()), POINT, 14),
    "structured, mixtures, reactive, scale": (
        FitOptions(BOUNDS, STRUCTURED, n_components=2, use_scale=True, reactive=FittedReactive()),
        POINT,
        44,
    ),
    "structured, private classes, mixtures, reactive, scale": (
        FitOptions(
            BOUNDS,
            STRUCTURED,
            PrivateClasses(2),
            n_components=2,
            use_scale=True,
            reactive=FittedReactive(),
        ),
        POINT,
        31,
    ),
    "structured, day types, scale": (
        FitOptions(BOUNDS, STRUCTURED, day_types=TYPES, use_scale=True),
        POINT,
        28,
    ),
    "structured, day types, mixtures, reactive, per day": (
        FitOptions(BOUNDS, STRUCTURED, day_types=TYPES, n_components=2, reactive=FittedReactive()),
        DAY,
        88,
    ),
    "structured, private classes, per day": (FitOptions(BOUNDS, STRUCTURED, PrivateClasses(2)), DAY, 16),
    "plain, scale": (FitOptions(BOUNDS, Plain(), use_scale=True), POINT, 4),
    "plain, private classes, mixtures, per day": (
        FitOptions(BOUNDS, Plain(), PrivateClasses(3), n_components=2),
        DAY,
        23,
    ),
}


@pytest.mark.parametrize("fit", FITS)
def test_no_replaced_record_moves_a_query_beyond_its_record_and_the_worst_comes_close(fit: str) -> None:
    """A search over pairs of records for every query: within the claim always, and at least 0.85 of it."""
    options, unit, count = FITS[fit]
    lab = Lab(options, unit)
    worst = search(lab, generations=4)
    assert len(worst) == count
    for name, found in worst.items():
        assert found.within, name
        assert 0.85 <= found.ratio <= 1.0 + 1e-12, (name, found.ratio)


@pytest.mark.parametrize("fit", FITS)
def test_neighbouring_histories_differ_in_the_replaced_record_alone(fit: str) -> None:
    """The exact sums of whole histories: what the search tries of records is what happens to histories.

    A query on another public cohort does not move at all, which is why cohorts do not add up.
    """
    options, unit, _ = FITS[fit]
    lab, tried = Lab(options, unit, epsilon=1.0), extremes(2)
    for i, j in ((2, 0), (7, 30), (11, 25)):
        one, other = lab.replaced(tried[i]), lab.replaced(tried[j])
        for name, seen in one.items():
            ratio, moved = exact_change(seen, other[name])
            assert ratio <= 1.0, name
            elsewhere = name[1] not in (None, "a", "a / weekday")
            assert moved == 0 if elsewhere else moved <= 1, name


def test_a_clip_radius_that_is_doubled_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search can fail: with twice the radius it finds a violation of every query that is clipped by it.

    Not of the first mean, which the declared bounds hold, nor of a count of records.
    """
    right = queries.quantise
    monkeypatch.setattr(queries, "quantise", lambda values, query: 2 * right(values / 2, query))
    worst = search(Lab(*FITS["structured"][:2]), generations=4)
    held = {name[2] for name, found in worst.items() if found.within}
    assert held == {"mean, round 1", "tail of the energy, round 1"}
    assert len({name[2] for name in worst}) == 7


def test_a_sensitivity_that_is_halved_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = queries.sensitivity_squared
    monkeypatch.setattr(queries, "sensitivity_squared", lambda *of: right(*of) // 4)
    options, unit, _ = FITS["structured, private classes, mixtures, reactive, scale"]
    assert all(not found.within for found in search(Lab(options, unit), generations=4).values())
