"""What a twin promises, against closed forms and exact computation; what its noise costs, and the floor."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dp_powerflow import Protected, TwinDesign
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import LOG_GRID, Chain, gdp_delta, twin_guarantee, twin_neighbours
from dp_powerflow.twin.choosing import CHAINS, SCALES, choosing_lines, mean_distances, predicted, scale_of
from dp_powerflow.twin.design import STEPS, code_mu, least_error
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.twin import CONSTANT_DRAWS, Draws, chain_of, design_of_scale, surrogate
from support.tables import tables_of

TABLES = tables_of(__file__)

LENGTHS = Protected(lines="length")


def gaussian(epsilon: float, protected: Protected = LENGTHS, **more: float) -> TwinDesign:
    return TwinDesign(epsilon, protected=protected, noise="gaussian", delta=1e-6, **more)


@pytest.mark.parametrize("protected", [LENGTHS, Protected()])
def test_laplace_noise_at_epsilon_one(protected: Protected) -> None:
    design = TwinDesign(1.0, protected=protected)
    five, fifty = (twin_guarantee(design, change) for change in (0.05, 0.5))
    assert five.epsilon == pytest.approx(1.0, abs=1e-9)
    assert five.epsilon <= 1.0
    assert fifty.epsilon == pytest.approx(8.31, abs=0.005)
    assert five.delta == 0.0
    assert five.advantage == pytest.approx(0.393, abs=5e-4)
    assert fifty.advantage == pytest.approx(1.0 - math.exp(-fifty.epsilon / 2), rel=1e-8)


def test_gaussian_noise_at_epsilon_one() -> None:
    design = gaussian(1.0)
    assert design.parts["length"].scale * LOG_GRID == pytest.approx(0.206, abs=5e-4)
    five, fifty = (twin_guarantee(design, change) for change in (0.05, 0.5))
    assert five.epsilon == pytest.approx(1.0, abs=1e-8)
    assert fifty.epsilon == pytest.approx(10.8, abs=0.05)
    assert five.advantage == pytest.approx(0.094, abs=5e-4)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_every_kind_of_element_costs_what_was_granted_and_no_more(noise: str) -> None:
    everything = Protected(lines="length", transformers=True, capacitors=True, pv=True, charging=True)
    delta = 0.0 if noise == "laplace" else 1e-6
    design = TwinDesign(2.0, 0.05, everything, noise, delta, charging_epsilon=0.5)  # type: ignore[arg-type]
    promised = twin_guarantee(design)
    assert set(promised.epsilon_of) == {"line", "transformer", "capacitor", "pv"}
    for value in promised.epsilon_of.values():
        assert 2.0 * (1 - 1e-8) < value <= 2.0 * (1 + 1e-12)


def test_what_is_added_to_a_line_leaves_less_for_the_rest() -> None:
    plain = TwinDesign(2.0, protected=LENGTHS)
    more = Protected(lines="length", codes=True, charging=True)
    added = TwinDesign(2.0, protected=more, code_epsilon=0.5, charging_epsilon=0.5)
    assert added.parts["length"].scale == pytest.approx(2 * plain.parts["length"].scale, rel=1e-9)
    assert twin_guarantee(added).epsilon == pytest.approx(2.0)
    assert twin_guarantee(added, 0.5).epsilon == pytest.approx(0.5 + 1.5 * math.log(1.5) / math.log(1.05))


def total_variation(noise: np.ndarray, shift: tuple[int, ...]) -> float:
    """Exact, on a lattice large enough."""
    moved = np.roll(noise, shift, axis=tuple(range(noise.ndim)))
    return float(0.5 * np.abs(noise - moved).sum())


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_advantage_is_the_total_variation_of_the_worst_shift(dimension: int) -> None:
    """P(n) ∝ exp(−‖n‖∞/t) with t = 12: shifts up to Δ = 9 in every direction, and the corner is the worst."""
    t, moved = 12.0, 9
    axes = np.meshgrid(*[np.arange(-260, 261)] * dimension, indexing="ij")
    noise = np.exp(-np.max(np.abs(np.array(axes)), axis=0) / t)
    noise /= noise.sum()
    stated = 1.0 - math.exp(-moved / (2 * t))
    shifts = [(moved,)] if dimension == 1 else [(moved, b) for b in range(-moved, moved + 1, 3)]
    found = [total_variation(noise, shift) for shift in shifts]
    assert max(found) == found[0]
    assert max(found) == pytest.approx(stated, abs=3e-3)  # the lattice at t = 12 against t of 10¹⁰
    ratio = np.log(noise[noise > 1e-9] / np.roll(noise, shifts[0], tuple(range(dimension)))[noise > 1e-9])
    assert np.abs(ratio).max() <= moved / t + 1e-9


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_pure_epsilon_is_within_its_gaussian(epsilon: float) -> None:
    """δ of the Gaussian at every ε is at least that of randomised response."""
    mu = code_mu(epsilon)
    kept, lied = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    for other in np.linspace(0.0, 1.2 * epsilon, 40):
        pure = max(0.0, kept - math.exp(other) * lied)
        assert gdp_delta(float(other), mu) >= pure - 1e-12
    assert gdp_delta(0.0, mu / 2) < kept - lied  # half the μ would not do


def test_the_discrete_gaussian_is_the_rounded_one_to_far_below_the_slack() -> None:
    """Proofs page: pmf ratios within exp(±B²/4σ²) up to B standard deviations, σ at least 1e-4/g."""
    B, smallest = 40.0, 1e-4 / LOG_GRID
    assert B**2 / (4 * smallest**2) < 1e-12
    # The bound itself, checked where it is large enough to be seen: σ = 8.
    small = 8.0
    k = np.arange(-80, 81)
    discrete = np.exp(-(k**2) / (2 * small**2))
    discrete /= discrete.sum()
    rounded = norm.cdf((k + 0.5) / small) - norm.cdf((k - 0.5) / small)
    inside = np.abs(k) <= 4 * small
    assert np.abs(np.log(discrete[inside] / rounded[inside])).max() <= 4.0**2 / (4 * small**2)


def test_neighbours_are_named_in_public_words_whatever_the_noise() -> None:
    assert twin_neighbours(Protected(capacitors=True), 0.05).words == (
        "one line (total resistance and reactance) or capacitor (size): each figure named changed by a "
        "factor up to 1.05"
    )
    assert twin_neighbours(Protected(lines="length", codes=True), 0.1).words == (
        "one line (length; total resistance and reactance where it has no conductor code): each figure named "
        "changed by a factor up to 1.1; the conductor code of a line in any way"
    )


@pytest.mark.parametrize(("made", "message"), TABLES["nonsense_is_refused"])
def test_nonsense_is_refused(made: dict[str, Any], message: str) -> None:
    protected = Protected(**made.get("protected", {}))
    with pytest.raises(PrivacyError, match=message):
        twin_guarantee(TwinDesign(protected=protected, **made["design"]), **made.get("guarantee", {}))


# --- the table of `plan`, its constants, and the floor ---
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
