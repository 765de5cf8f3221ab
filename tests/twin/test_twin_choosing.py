"""What noise costs before a twin is drawn: the table of `plan`, its constants, and the floor."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dp_powerflow import Protected, TwinDesign
from dp_powerflow.lowlevel import Chain
from dp_powerflow.twin.choosing import CHAINS, SCALES, choosing_lines, mean_distances, predicted, scale_of
from dp_powerflow.twin.design import STEPS, least_error
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.twin import CONSTANT_DRAWS, Draws, chain_of, design_of_scale, surrogate

LENGTHS = Protected(lines="length")


@pytest.mark.parametrize(("epsilon", "least"), [(1.0, 0.774), (2.0, 0.275)])
def test_the_floor_of_eight_steps(epsilon: float, least: float) -> None:
    assert least_error(8, epsilon, 1e-6) == pytest.approx(least, abs=5e-4)


def test_no_mechanism_that_we_know_is_below_the_floor() -> None:
    """Discrete Laplace noise, cut to the chain, is above the program's value; one step in closed form."""
    n = STEPS + 1
    away = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    wide = np.arange(-60, 60 + n)
    noise = np.exp(-np.abs(np.subtract.outer(np.arange(n), wide)))
    noise /= noise.sum(axis=1, keepdims=True)
    cut = np.zeros((n, n))
    np.add.at(cut.T, np.clip(wide, 0, n - 1), noise.T)
    assert float((cut * away).sum(axis=1).max()) >= least_error(STEPS, 1.0, 0.0) > 0.7
    assert least_error(1, 1.0, 0.0) == pytest.approx(1.0 / (1.0 + math.e))


def test_a_chain_takes_the_least_step_and_says_its_range() -> None:
    def magnitudes(factor: float) -> FloatArray:
        return np.array([[1.0, 0.99], [1.0, 0.98]]) - 0.01 * (factor - 1.0) * np.array([1.0, 2.0])

    chain = chain_of("line a", magnitudes)
    assert chain.node == pytest.approx(0.001)
    assert 0.0 < chain.pooled < chain.node
    floor = chain.floor(1.0, 1e-6)
    assert floor.worst_node == pytest.approx(0.774e-3, rel=1e-3)
    assert "between 1 and 1.48 times" in floor.words
    assert chain_of("line a", magnitudes, down=True).smallest == pytest.approx(1.05**-8)
    assert chain_of("no effect", lambda _: np.ones((2, 2))).pooled == 0.0


def test_the_constants_are_those_of_real_twins() -> None:
    """One of them drawn again; the experiment draws them all."""
    design = design_of_scale("laplace", "length", SCALES[2])
    draw = Draws(surrogate("ieee13"), (design,), CONSTANT_DRAWS, 0).start(1)
    found = [draw(number)[1:] for number in range(CONSTANT_DRAWS)]
    known = [row[2] for row in mean_distances()["ieee13", "laplace", "length"]]
    assert np.mean(found, axis=0) == pytest.approx(known, rel=0.01)


def test_predictions_go_by_the_scale_of_the_noise() -> None:
    same = TwinDesign(1.0, 0.05, LENGTHS), TwinDesign(math.log(1.1) / math.log(1.05), 0.1, LENGTHS)
    assert scale_of(same[0]) == pytest.approx(scale_of(same[1]))
    for one, other in zip(*map(predicted, same), strict=True):
        assert one.pooled == pytest.approx(other.pooled)
    costs = [predicted(TwinDesign(epsilon, 0.05, LENGTHS))[0] for epsilon in (4.0, 2.0, 1.0, 0.5)]
    for finer, coarser in itertools.pairwise(costs):
        assert 0.0 < (finer.pooled or 0.0) < (coarser.pooled or 0.0)
    assert predicted(TwinDesign(0.05, 0.05, LENGTHS))[0].pooled is None
    assert predicted(TwinDesign(40.0, 0.05, LENGTHS)) == predicted(TwinDesign(8.0, 0.05, LENGTHS))


@pytest.mark.parametrize("feeder", sorted(CHAINS))
def test_no_twin_is_predicted_below_the_floor(feeder: str) -> None:
    chain: Chain = CHAINS[feeder]
    for epsilon in (1.0, 2.0):
        found = next(row for row in predicted(TwinDesign(epsilon)) if row.feeder == feeder)
        floor = chain.floor(epsilon, 0.0)
        assert (found.pooled or 0.0) > floor.pooled > 0.0
        assert (found.worst_node or 0.0) > floor.worst_node > 0.0


def test_the_table_shows_both_yardsticks_and_names_the_floor_with_its_range() -> None:
    text = "\n".join(choosing_lines(TwinDesign(1.0)))
    assert "| **laplace** | 1 | 8.31 | 0.39 / 0.98 |" in text
    assert text.count("| gaussian |") == text.count("| laplace |") == 4
    assert text.count("Floor on") == len(CHAINS)
    assert "times its size" in text
    assert "comes on top" not in text
    assert "transformers comes on top" in "\n".join(
        choosing_lines(TwinDesign(1.0, protected=Protected(transformers=True)))
    )
