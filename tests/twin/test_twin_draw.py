"""Twins as they are drawn: the noise, the network they give, the record of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dp_powerflow import BatchSolver, Feeder, Protected, StreamKey, TwinDesign, open_feeder
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import CodedLine, NetworkParameters, ParameterKey
from dp_powerflow.lowlevel import (
    LOG_GRID,
    Quantity,
    Rebuilder,
    discrete_laplace,
    draw_twin,
    parameters_of,
    surrogate_load,
    voltage_distance,
)
from dp_powerflow.privacy.random import square_laplace
from dp_powerflow.twin.design import Noise
from dp_powerflow.twin.draw import Twin, respond
from support.tiny_feeder import two_lines

KEY = StreamKey.from_insecure_seed(3)
EVERYTHING = Protected(transformers=True, capacitors=True)


def many(count: int, r: float, x: float) -> NetworkParameters:
    levels = {ParameterKey(Quantity.RESISTANCE, f"l{k}"): r for k in range(count)}
    return NetworkParameters(levels | {ParameterKey(Quantity.REACTANCE, f"l{k}"): x for k in range(count)})


def drawn(design: TwinDesign, parameters: NetworkParameters) -> dict[Quantity, np.ndarray]:
    """Noisy minus true logarithms, by quantity, in the order of the elements."""
    twin = draw_twin(parameters, design, KEY)
    return {
        quantity: np.array(
            [
                position * LOG_GRID - math.log(parameters.levels[key])
                for key, position in sorted(twin.positions.items())
                if key.quantity is quantity
            ]
        )
        for quantity in {key.quantity for key in twin.positions}
    }


# ----------------------------------------------------------------------- the samplers are exact


@pytest.mark.parametrize(("t", "drawn_with"), [(1, 1), (2, 2), (5, 5), (1, 2)])
def test_discrete_laplace_has_exactly_its_law(t: int, drawn_with: int) -> None:
    """And twice the scale is found: the χ² is sharp."""
    n, q = 200_000, math.exp(-1 / t)
    found = discrete_laplace(KEY.stream(f"laplace {t}"), drawn_with, n)
    k = np.arange(-6 * t, 6 * t + 1)
    law = (1 - q) / (1 + q) * q ** np.abs(k)
    counts = np.array([np.sum(found == value) for value in k])
    found_by = stats.chisquare([*counts, n - counts.sum()], [*(n * law), n * (1 - law.sum())]).pvalue
    assert found_by > 1e-3 if t == drawn_with else found_by < 1e-12


@pytest.mark.parametrize("t", [1, 2, 4])
def test_square_laplace_has_exactly_its_law_on_the_lattice(t: int) -> None:
    """χ² over every lattice point near the origin, and over the radius far out."""
    n, q = 300_000, math.exp(-1 / t)
    found = square_laplace(KEY.stream(f"square {t}"), t, n)
    far = np.arange(2000)
    weight = np.where(far == 0, 1, 8 * far) * q**far
    norm = weight.sum()
    radius = np.abs(found).max(axis=1)
    edge = 9 * t
    counts = np.bincount(np.minimum(radius, edge), minlength=edge + 1)
    expected = n * np.array([*weight[:edge], weight[edge:].sum()]) / norm
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    near = found[radius <= 3]
    points, at = np.unique(near, axis=0, return_counts=True)
    assert len(points) == 49
    expected = n * q ** np.abs(points).max(axis=1) / norm
    assert stats.chisquare(at, expected * at.sum() / expected.sum()).pvalue > 1e-3


# ----------------------------------------------------------------------- the noise of a twin


def test_laplace_noise_on_the_pair_has_the_stated_scale() -> None:
    """Radius of a pair: Gamma(2) times the scale; a factor of two is fifty standard errors off."""
    design, n = TwinDesign(1.0), 1200
    noise = drawn(design, many(n, 0.4, 0.7))
    pair = np.stack([noise[Quantity.RESISTANCE], noise[Quantity.REACTANCE]], axis=1)
    radius = np.abs(pair).max(axis=1) / (design.parts["impedance"].scale * LOG_GRID)
    assert stats.kstest(radius, stats.gamma(2.0).cdf).pvalue > 1e-3
    assert abs(radius.mean() - 2.0) < 4 * math.sqrt(2.0 / n)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_noise_on_a_length_has_the_stated_scale(noise: Noise) -> None:
    n, delta = 1200, 0.0 if noise == "laplace" else 1e-6
    design = TwinDesign(1.0, protected=Protected(lines="length"), noise=noise, delta=delta)
    parameters = NetworkParameters({ParameterKey(Quantity.LENGTH, f"l{k}"): 0.25 for k in range(n)})
    z = drawn(design, parameters)[Quantity.LENGTH] / (design.parts["length"].scale * LOG_GRID)
    law = stats.laplace() if noise == "laplace" else stats.norm()
    assert stats.kstest(z, law.cdf).pvalue > 1e-3
    assert abs(z.var() / law.var() - 1) < 8 / math.sqrt(n)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_mean_level_is_the_true_level(noise: Noise) -> None:
    n, delta = 1500, 0.0 if noise == "laplace" else 1e-6
    design = TwinDesign(0.5, noise=noise, delta=delta)
    levels = np.array(list(draw_twin(many(n, 3.0, 3.0), design, KEY).levels.values()))
    assert abs(levels.mean() / 3.0 - 1.0) < 5 * levels.std() / 3.0 / math.sqrt(2 * n)


def test_the_twin_is_a_function_of_its_integers() -> None:
    design = TwinDesign(1.0, protected=EVERYTHING)
    source, longer = (Rebuilder(feeder, EVERYTHING) for feeder in (two_lines(), two_lines(length="2.1")))
    twin = draw_twin(parameters_of(source, design), design, KEY)
    again = Twin.from_json(twin.to_json())
    assert again == twin
    assert again.levels == twin.levels
    one, other = twin.feeder(source), again.feeder(longer)
    np.testing.assert_array_equal(one.y.toarray(), other.y.toarray())
    with pytest.raises(PrivacyError, match="format"):
        Twin.from_json("{}")


def record(feeder: Feeder, design: TwinDesign, key: StreamKey = KEY) -> Twin:
    return draw_twin(parameters_of(Rebuilder(feeder, design.protected), design), design, key)


def test_a_replaced_element_gets_fresh_noise_and_the_others_keep_theirs() -> None:
    """Old noise on a new length would show the ratio of the two lengths exactly."""
    design = TwinDesign(1.0, protected=EVERYTHING)
    before, after = record(two_lines(), design), record(two_lines(length="2.2"), design)
    moved = {key for key in before.positions if before.positions[key] != after.positions[key]}
    assert {key.element for key in moved} == {"own"}
    for key in moved:
        shift = (after.positions[key] - before.positions[key]) * LOG_GRID
        assert abs(shift - math.log(1.1)) > 1e-6
    assert record(two_lines(), design) == before
    assert record(two_lines(), design, KEY.bind("twin", "2")) != before


def test_an_added_element_leaves_the_others_alone() -> None:
    design = TwinDesign(1.0)
    line = "New Line.far phases=3 bus1=b bus2=e r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 length=1 units=km"
    before, after = record(two_lines(), design), record(two_lines(more=line), design)
    assert {key.element for key in after.positions.keys() - before.positions.keys()} == {"far"}
    assert all(after.positions[key] == position for key, position in before.positions.items())


def test_only_what_is_protected_moves() -> None:
    feeder, design = two_lines(), TwinDesign(1.0)
    source = Rebuilder(feeder, design.protected)
    twin = draw_twin(parameters_of(source, design), design, KEY).feeder(source)
    moved = {
        bus: abs((twin.y - feeder.y)[[feeder.node_index[f"{bus}.1"]], :]).max()
        / abs(feeder.y[[feeder.node_index[f"{bus}.1"]], :]).max()
        for bus in "ad"
    }
    assert moved["a"] > 1e-3  # between two lines
    assert moved["d"] < 1e-6  # behind the transformer


def test_randomised_response_keeps_the_code_as_often_as_it_says() -> None:
    line, epsilon, n = CodedLine("l", "b", ("a", "b", "c", "d")), 1.2, 20000
    stream = KEY.stream("codes")
    drawn = [respond(stream, line, epsilon) for _ in range(n)]
    kept = math.exp(epsilon) / (math.exp(epsilon) + 3)
    for code in line.candidates:
        expected = kept if code == "b" else (1 - kept) / 3
        assert abs(drawn.count(code) / n - expected) < 4 * math.sqrt(expected * (1 - expected) / n)
    assert respond(stream, CodedLine("l", "only", ("only",)), epsilon) == "only"


@pytest.mark.slow
def test_a_twin_with_codes_drawn_solves() -> None:
    feeder = two_lines()
    design = TwinDesign(2.0, protected=Protected(lines="length", codes=True), code_epsilon=0.5)
    source = Rebuilder(feeder, design.protected)
    parameters, codes = parameters_of(source, design), set()
    for k in range(12):
        twin = draw_twin(parameters, design, KEY.bind("twin", str(k)))
        codes.add(twin.codes["coded"])
        assert BatchSolver(twin.feeder(source)).solve(surrogate_load(feeder)).n_failed == 0
    assert codes == {"thin", "thick"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "twins"),
    [("ieee13", 15), ("ieee123", 4), pytest.param("ieee123", 15, marks=pytest.mark.campaign)],
)
def test_power_flow_solves_on_twins(name: str, twins: int) -> None:
    feeder = open_feeder(name)
    design = TwinDesign(0.5, protected=EVERYTHING)
    source = Rebuilder(feeder, EVERYTHING)
    parameters, load = parameters_of(source, design), surrogate_load(feeder)
    for k in range(twins):
        twin = draw_twin(parameters, design, KEY.bind("twin", str(k))).feeder(source)
        assert BatchSolver(twin).solve(load).n_failed == 0


def test_distance_of_voltages_on_a_case_with_a_known_answer() -> None:
    true = np.array([[1.0, 1.0], [1.1, 1.2]])
    twin = np.array([[1.1, 1.0], [1.0, 1.3]])  # node 0 in another order, node 1 with 0.1 more once
    found = voltage_distance(true, twin)
    assert (found.pooled, found.worst_node) == pytest.approx((0.025, 0.05))
