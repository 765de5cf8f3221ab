"""The reduced network against OpenDSS, against itself, and against plain dense algebra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Line
from dp_powerflow.lowlevel import Network
from support.feeder_reference import opendss_with_wye_equivalents, reduced_solution

FEEDERS = ["ieee13", "ieee123", "ieee123_dss/IEEE123Master.dss", "ieee13_dss/IEEE13Nodeckt.dss"]


@pytest.fixture(params=FEEDERS)
def feeder(request: pytest.FixtureRequest) -> Feeder:
    name = str(request.param)
    if name.endswith(".dss"):
        cases: Path = request.getfixturevalue("foreign_cases")
        return open_feeder(cases / name)
    return open_feeder(name)


def with_changed_line(feeder: Feeder, line: Line, change: np.ndarray) -> Feeder:
    at = sp.csc_array(
        (np.ones(len(line.nodes)), (line.nodes, range(len(line.nodes)))),
        shape=(len(feeder.nodes), len(line.nodes)),
    )
    return replace(feeder, y=sp.csc_array(feeder.y + at @ change @ at.T))


def test_voltages_agree_with_opendss_at_every_node(feeder: Feeder) -> None:
    network = Network(feeder)
    v = network.all_nodes(reduced_solution(network, feeder.nominal_injection[feeder.retained]))
    assert np.abs(v - opendss_with_wye_equivalents(feeder)).max() < 1e-7


def test_offset_b_is_the_slack_column_of_the_reduced_matrix_not_of_the_full_one(feeder: Feeder) -> None:
    network = Network(feeder)
    assert np.allclose(network.b, network.y_reduced[:, network.n :] @ feeder.v_slack, rtol=1e-9)
    # Paper correction 1: no retained node is a neighbour of the source, so the printed formula gives zero.
    printed = feeder.y[network.retained, :][:, feeder.slack] @ feeder.v_slack
    assert np.linalg.norm(printed) == 0.0
    assert np.linalg.norm(network.b) > 1.0


def test_reduction_equals_the_dense_schur_complement(ieee13: Feeder) -> None:
    network = Network(ieee13)
    full = ieee13.y.toarray()
    kept, gone = network.kept, network.zero_injection
    schur = full[np.ix_(kept, kept)] - full[np.ix_(kept, gone)] @ np.linalg.solve(
        full[np.ix_(gone, gone)], full[np.ix_(gone, kept)]
    )
    assert np.allclose(network.y_reduced, schur[: network.n], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.01, -0.5, 3.0, np.exp(0.2j) - 1.0])
def test_changing_any_line_by_low_rank_equals_reducing_again(feeder: Feeder, scale: complex) -> None:
    network = Network(feeder)
    for line in feeder.lines[:: max(1, len(feeder.lines) // 25)]:
        change = network.line_change(line, scale * line.primitive)
        again = Network(with_changed_line(feeder, line, scale * line.primitive))
        moved = again.y - network.y
        assert np.linalg.norm(change.change_of_y() - moved) <= 1e-9 * np.linalg.norm(again.y)
        moved_b = again.b - network.b
        assert np.linalg.norm(change.change_of_b(feeder.v_slack) - moved_b) <= 1e-9 * np.linalg.norm(again.b)


def test_lines_and_the_rest_add_up_to_the_whole(ieee123: Feeder) -> None:
    """Opening every line must leave nothing between buses that only lines join."""
    y = ieee123.y.toarray()
    for line in ieee123.lines:
        y[np.ix_(line.nodes, line.nodes)] -= line.primitive
    a, b = ieee123.node_index["1.1"], ieee123.node_index["7.1"]
    assert abs(ieee123.y[a, b]) > 1.0
    assert abs(y[a, b]) < 1e-9


def test_a_singular_interior_is_refused_with_advice(ieee13: Feeder) -> None:
    y = ieee13.y.tolil()
    node = ieee13.zero_injection[0]
    y[node, :] = 0.0
    y[:, node] = 0.0
    with pytest.raises(FeederError, match="singular"):
        Network(replace(ieee13, y=sp.csc_array(y)))


def test_zero_injection_voltages_are_not_bounded_by_the_retained_ones(ieee123: Feeder) -> None:
    """Rows of Φ sum to more than one, so limits that the retained nodes keep do not carry over."""
    network = Network(ieee123)
    sums = np.abs(network.solve_zz(network.y_zk.toarray())).sum(axis=1)
    assert sums.max() == pytest.approx(2.3247, abs=1e-3)
    assert np.median(sums) > 1.2
