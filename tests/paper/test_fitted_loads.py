"""Loads of fitted models: classes by private partition, mixtures with weights, K-means with its spread."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dp_powerflow_paper.mechanisms import Target
from dp_powerflow_paper.mechanisms.dp_powerflow import with_restored_mean
from dp_powerflow_paper.sources.entries import Occasion
from dp_powerflow_paper.sources.loads import LawLoads
from dp_powerflow_paper.sources.models import (
    CLASSES,
    COMPONENTS,
    class_law,
    class_loads,
    kmeans_loads,
    margins_of,
    mixture_loads,
    spread_kmeans_loads,
)
from support.two_nodes import two_node_data

METERS, DAYS, STEPS = 40, 30, 12
MARGINS = (0.02, 5.0)
SPREAD = 0.2


def occasion(levels: tuple[float, ...], epsilon: float = 1e4) -> Occasion:
    """Customer-days around some log levels, with a log-normal level of their own."""
    rng = np.random.default_rng(5)
    level = np.array(levels)[np.arange(METERS) % len(levels)][:, None, None]
    logs = level + SPREAD * rng.standard_normal((METERS, DAYS, 1)) + np.zeros(STEPS)
    data = two_node_data(np.exp(logs), MARGINS)
    return Occasion(data, np.arange(DAYS), Target(epsilon, 1e-5))


def log_days(loads: LawLoads, days: int = 3000) -> np.ndarray:
    drawn = loads.draw(np.random.default_rng(1), days).real[:, :, 0]
    return np.log(drawn / 0.1)


def test_classes_of_the_private_partition_are_laws_of_their_own_and_a_node_keeps_its_class() -> None:
    made = occasion((-2.5, -1.0, 0.0, 1.0))
    seen = set()
    for seed in range(8):
        law = class_law(dataclasses.replace(made, seed=seed))
        assert len(law.classes) == 1, "one node has one class"
        seen.add(law.classes[0].name)
        assert not law.truncated
        days = log_days(class_loads(dataclasses.replace(made, seed=seed)), 200)
        assert days.mean(axis=1).std() < 0.6, "days of one class, not of the whole population"
    assert seen <= set(CLASSES.names)
    assert len(seen) > 2, "classes are drawn from the released weights"


def test_mixture_has_released_weights_and_keeps_two_humps_that_one_gaussian_would_join() -> None:
    loads = mixture_loads(occasion((-2.0, 1.0)))
    parts = loads.law.classes[0].components
    assert len(parts) == COMPONENTS
    assert sum(part.weight for part in parts) == pytest.approx(1.0)
    level = log_days(loads).mean(axis=1)
    middle = np.mean((level > -1.0) & (level < 0.0))
    assert middle < 0.1, "a single Gaussian has a quarter of its days here"
    assert 0.4 < np.mean(level > -0.5) < 0.6


def test_restored_mean_moves_every_component_by_itself() -> None:
    made = occasion((-2.0, 1.0))
    law = mixture_loads(made).law
    margins = margins_of(made.data)
    again = with_restored_mean(law, 0.0, margins, np.random.default_rng(2))
    for before, after in zip(law.classes[0].components, again.classes[0].components, strict=True):
        assert after.weight == before.weight
        assert np.array_equal(after.covariance, before.covariance)


def test_kmeans_with_its_spread_has_that_of_the_data_around_its_centroid() -> None:
    made = occasion((-1.0, 1.0), epsilon=1e6)
    bare, loads = kmeans_loads(made), spread_kmeans_loads(made)
    assert bare.spread is None
    assert loads.spread is not None
    centroid = np.log(loads.days).mean(axis=1)
    level = np.log(made.data.relative).mean(axis=2).ravel()
    nearest = np.abs(level[:, None] - centroid).argmin(axis=1)
    k = int(np.bincount(nearest).argmax())
    apart = level[nearest == k] - centroid[k]
    assert loads.spread[k, 0] == pytest.approx(np.sqrt(np.mean(apart**2)), rel=0.02)
    assert loads.draw(np.random.default_rng(3), 2000).std() > bare.draw(np.random.default_rng(3), 2000).std()


@pytest.mark.parametrize("make", [class_loads, mixture_loads, spread_kmeans_loads])
def test_hardly_any_budget_still_gives_loads_within_the_margins(make: object) -> None:
    assert callable(make)
    made = occasion((-1.0, 0.5), epsilon=0.01)
    drawn = make(made).draw(np.random.default_rng(4), 50).real
    assert np.isfinite(drawn).all()
    assert drawn.min() > 0.0
