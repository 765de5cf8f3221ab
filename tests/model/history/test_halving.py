"""The ends of bisections that are found from fewer values are those of the bisections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dp_powerflow.model.history import law as individuals
from dp_powerflow.model.history.contributions import BASE_SHARE
from dp_powerflow.model.history.law import HALVINGS, HIGHEST_SCORE, LOWEST_SCORE, SCORES
from dp_powerflow.units import FloatArray

CUSTOMERS, STEPS = 12, 24
RISING = np.exp(np.linspace(-4.0, 3.0, SCORES))


def halved(below: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def people() -> tuple[FloatArray, FloatArray]:
    generator = np.random.default_rng(7)
    return generator.normal(0.0, 0.7, (CUSTOMERS, STEPS)), generator.uniform(0.2, 1.5, (CUSTOMERS, STEPS))


@pytest.mark.parametrize(
    "table",
    [
        RISING,
        np.maximum(RISING, 0.3),
        np.where(np.arange(SCORES) < 80, 0.01, 5.0),  # one step
        np.full(SCORES, 0.5),  # never reaches one
        np.full(SCORES, 1.0),  # is it everywhere, but for rounding
        RISING[::-1].copy(),  # no model has it, a forger may
        np.where(np.arange(SCORES) == 70, np.nan, RISING),
        np.where(np.arange(SCORES) > 100, np.inf, RISING),
    ],
)
@pytest.mark.parametrize("near", [0.0, -9.0, 0.3, np.nan])
def test_offsets_are_those_of_halvings(table: FloatArray, near: float) -> None:
    shape, std = people()
    nodes, weights = individuals._normal_nodes()
    found = np.full(CUSTOMERS, near)
    individuals._offsets(table, shape, std, nodes, weights, found)
    for i in range(CUSTOMERS):

        def below(offset: float, i: int = i) -> bool:
            return individuals._expected(table, shape[i], offset, std[i], nodes, weights) < 1.0

        assert found[i] == halved(below, -4.0, 4.0)


@pytest.mark.parametrize("share", [1 - 0.7 / (28 * STEPS), BASE_SHARE, 0.5, 0.0, 1.0])
@pytest.mark.parametrize("spread", [1.0, 1e-9, 0.0])
def test_scores_below_are_those_of_halvings(share: float, spread: float) -> None:
    mean, std = people()
    for i in range(CUSTOMERS):

        def below(score: float, i: int = i) -> bool:
            none = np.empty(0)
            curve = individuals._Curve(none, mean[i], spread * std[i], none, none, share * STEPS)
            return individuals._value(curve, score) < 0.0

        found = individuals._score_below(mean[i], spread * std[i], share)
        assert found == halved(below, LOWEST_SCORE, HIGHEST_SCORE)
