"""Twins as they are drawn: the noise, the network they give, the record of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import CodedLine, NetworkParameters, ParameterKey, Quantity
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin import (
    LOG_GRID,
    Spread,
    Twin,
    draw_twin,
    parameters_of,
    predict,
    rebuilder_of,
    respond,
    surrogate_load,
    voltage_distance,
)
from support.tiny_feeder import two_lines

KEY = StreamKey.from_insecure_seed(3)


def many(count: int, level: float) -> NetworkParameters:
    return NetworkParameters({ParameterKey(Quantity.LENGTH, f"l{k}"): level for k in range(count)})


def test_the_log_of_a_level_carries_exactly_the_stated_spread() -> None:
    """A factor of two in η, either way, is forty standard errors off."""
    n, eta = 4000, 0.1
    twin = draw_twin(many(n, 250.0), Spread(length=eta), KEY)
    z = (np.array(list(twin.positions.values())) * LOG_GRID - math.log(250.0)) / eta
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / n)
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_the_mean_level_is_the_true_level() -> None:
    n, eta = 20000, 0.2
    levels = np.array(list(draw_twin(many(n, 3.0), Spread(length=eta), KEY).levels.values()))
    assert abs(levels.mean() / 3.0 - 1.0) < 4 * eta / math.sqrt(n)


def test_the_twin_is_a_function_of_its_integers() -> None:
    spread = Spread.uniform(0.1)
    source, longer = (rebuilder_of(feeder, spread) for feeder in (two_lines(), two_lines(length="2.1")))
    twin = draw_twin(parameters_of(source, spread), spread, KEY)
    again = Twin.from_json(twin.to_json())
    assert again == twin
    assert again.levels == twin.levels
    one, other = twin.feeder(source), again.feeder(longer)
    np.testing.assert_array_equal(one.y.toarray(), other.y.toarray())
    with pytest.raises(PrivacyError, match="format"):
        Twin.from_json("{}")


def test_only_what_has_a_spread_moves() -> None:
    feeder = two_lines()
    spread = Spread(capacitor=0.3)
    source = rebuilder_of(feeder, spread)
    twin = draw_twin(parameters_of(source, spread), spread, KEY).feeder(source)
    changed = (twin.y - feeder.y).tocoo()
    b = {feeder.node_index[f"b.{k}"] for k in (1, 2, 3)}
    large = np.abs(changed.data) > 1e-6 * abs(feeder.y).max()
    assert set(changed.row[large]) | set(changed.col[large]) <= b
    assert abs(changed.data).max() > 1e-4


def test_the_same_key_gives_the_same_twin_and_another_key_another() -> None:
    spread = Spread.uniform(0.1)
    parameters = parameters_of(rebuilder_of(two_lines(), spread), spread)
    assert draw_twin(parameters, spread, KEY) == draw_twin(parameters, spread, KEY)
    assert draw_twin(parameters, spread, KEY) != draw_twin(parameters, spread, KEY.bind("twin", "2"))


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
    spread = Spread(length=0.1, resistance=0.1, reactance=0.1, code_epsilon=0.5)
    source = rebuilder_of(feeder, spread)
    codes = set()
    for k in range(12):
        twin = draw_twin(parameters_of(source, spread), spread, KEY.bind("twin", str(k)))
        codes.add(twin.codes["coded"])
        assert BatchSolver(twin.feeder(source)).solve(surrogate_load(feeder)).n_failed == 0
    assert codes == {"thin", "thick"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ieee13", "ieee123"])
def test_power_flow_solves_on_twins_with_a_spread_of_a_fifth(name: str) -> None:
    """`dp-powerflow experiment twin` does it a thousand times."""
    feeder = open_feeder(name)
    spread = Spread.uniform(0.2)
    source = rebuilder_of(feeder, spread)
    parameters = parameters_of(source, spread)
    load = surrogate_load(feeder)
    for k in range(25):
        twin = draw_twin(parameters, spread, KEY.bind("twin", str(k))).feeder(source)
        assert BatchSolver(twin).solve(load).n_failed == 0


def test_distance_of_voltages_on_a_case_with_a_known_answer() -> None:
    true = np.array([[1.0, 1.0], [1.1, 1.2]])
    twin = np.array([[1.1, 1.0], [1.0, 1.3]])  # node 0 in another order, node 1 with 0.1 more once
    found = voltage_distance(true, twin)
    assert (found.pooled, found.worst_node, found.median_node) == pytest.approx((0.025, 0.05, 0.025))
    assert found.rms == pytest.approx(math.sqrt(0.03 / 4))


def test_the_prediction_grows_with_the_spread() -> None:
    small, large = (predict(Spread.uniform(eta), twins=6, surrogates=("ieee13",))[0] for eta in (0.02, 0.2))
    assert 5 < large.median.pooled / small.median.pooled < 20
    assert large.largest.worst_node >= large.median.worst_node


def test_a_spread_that_meets_no_element_is_refused() -> None:
    feeder = two_lines(more="Disable Capacitor.bank")
    spread = Spread(capacitor=0.1)
    with pytest.raises(PrivacyError, match=r"network\.capacitor"):
        parameters_of(rebuilder_of(feeder, spread), spread)


def test_a_code_without_resistance_has_a_level_like_any_other() -> None:
    """Else the absence of noise would tell which code it was."""
    bare = "New Linecode.bare nphases=3 rmatrix=[0|0 0|0 0 0] xmatrix=[.5|.1 .5|.1 .1 .5] units=km"
    line = "New Line.far bus1=b bus2=e linecode=bare length=1 units=km"
    spread = Spread(length=0.1, resistance=0.1, code_epsilon=1.0)
    source = rebuilder_of(two_lines(more=f"{bare}\n{line}"), spread)
    assert source.parameters().levels[ParameterKey(Quantity.RESISTANCE, "far")] == 1.0
