"""Adversarial replace-one search on the integers that are really summed, for every query of the package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dp_powerflow.model.estimators import Records, fit_together
from dp_powerflow.model.law import GaussianComponent
from dp_powerflow.model.partition import assign_classes, private_counts, private_kmeans
from dp_powerflow.model.single_days import Plain, PublicFacts, Structured
from dp_powerflow_paper.sources.models import mixture_of
from support.adversary import WatchedSession, extreme_days

T, LOW, HIGH = 12, -4.0, 4.0
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities on purpose


def records(days: np.ndarray) -> Records:
    return Records(days, float(len(days)))


def structured(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    Structured(block=4).estimate([records(days)], PublicFacts(len(days), T, 1.0, LOW, HIGH), session)
    return session


def plain(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    Plain().estimate([records(days)], PublicFacts(len(days), T, 1.0, LOW, HIGH), session)
    return session


def mixture(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    found, base = records(days), GaussianComponent(1.0, np.zeros(T), np.eye(T))
    fit_together([mixture_of(base, 3, found.count, 1.0)], [found], session)
    return session


def partition(days: np.ndarray, seed: int = 0) -> WatchedSession:
    session = WatchedSession(seed=seed)
    centroids = private_kmeans(records(days), 3, LOW, HIGH, 0.5, session)
    labels = assign_classes(records(days), centroids)
    private_counts(labels, 3, 0.4, session)
    return session


MECHANISMS = [structured, plain, mixture, partition]


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


@pytest.mark.parametrize("mechanism", [structured, plain])
def test_hill_climbing_for_the_worst_pair_stays_within_the_claim_and_gets_close(mechanism: Any) -> None:
    """A greedy search for the pair of records that moves each query most."""
    rng = np.random.default_rng(0)
    days = np.concatenate([extreme_days(T, 2, LOW, HIGH), rng.uniform(LOW, HIGH, (20, 2, T))])
    best: dict[str, float] = {}
    for _ in range(40):
        session = mechanism(days)
        for name, ratio in session.worst_ratio().items():
            assert ratio <= 1.0, name
            best[name] = max(best.get(name, 0.0), ratio)
        parents = rng.integers(0, len(days), 20)
        days[-20:] = days[parents] + rng.normal(0, 10.0 ** rng.uniform(-2, 3), (20, 2, T))
    assert all(ratio > 0.9 for ratio in best.values()), best


@pytest.mark.parametrize("mechanism", [structured, plain])
def test_a_record_with_many_days_counts_no_more_than_one_with_a_single_day(mechanism: Any) -> None:
    once = extreme_days(T, 1, LOW, HIGH)
    many = np.repeat(once, 30, axis=1)
    for name, grid in mechanism(once).integers.items():
        assert np.abs(grid - mechanism(many).integers[name]).max() <= 2**24 * 1e-6, name


def test_the_search_sees_every_query_of_the_plain_estimator() -> None:
    asked = plain(extreme_days(T, 1, LOW, HIGH)).integers
    assert list(asked) == ["level", "spread", "mean", "second moment"]


def test_a_doubled_contribution_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search can fail: with clipping switched off it finds a violation at once."""
    from support import adversary

    def no_clip(values: np.ndarray, query: Any) -> np.ndarray:
        return np.asarray(np.nan_to_num(np.clip(values / query.grid_step, -1e9, 1e9)), dtype=np.int64)

    monkeypatch.setattr(adversary, "quantise", no_clip)
    ratios = structured(extreme_days(T, 1, LOW, HIGH)).worst_ratio()
    assert max(ratios.values()) > 2
