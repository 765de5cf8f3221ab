"""The neighbours that Def. dual_adjacency covers, and the exact loss at the worst of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import Feeder
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Line
from dp_powerflow.lowlevel import ClassLaw, LoadLaw, Network, nominal_law, plain
from dp_powerflow_paper import neighbours
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.losses import manifold_loss
from dp_powerflow_paper.manifold import Scale, draw, run_manifold, to_markdown
from support.laws import draw as draw_days
from support.random_networks import solve
from support.small_feeders import feeder_of

STEPS = 2
LINE = 0.05 + 0.1j


def small_feeder() -> Feeder:
    """Three loads of different power factors on a branched feeder with a node free of load."""
    branches = [(0, 4, LINE), (1, 0, 0.04 + 0.06j), (3, 0, 0.03 + 0.05j), (2, 3, 0.06 + 0.05j)]
    feeder = feeder_of(5, branches, [(0, 0.05 + 0.02j), (1, 0.04 + 0.005j), (2, 0.06 + 0.03j)])
    primitive = np.array([[1.0, -1.0], [-1.0, 1.0]]) / LINE
    return replace(feeder, lines=(Line("first", (0, 4), primitive, None, False),))


@pytest.fixture(scope="module")
def law() -> LoadLaw:
    feeder = small_feeder()
    nominal = -feeder.nominal_injection[feeder.retained]
    covariance = np.array([[0.16, 0.05], [0.05, 0.16]])
    return nominal_law(nominal, ClassLaw.gaussian(np.full(STEPS, -0.1), covariance, margins=(0.6, 1.6)))


@pytest.fixture(scope="module")
def manifold(law: LoadLaw) -> neighbours.Manifold:
    return neighbours.Manifold(Network(small_feeder()), law.tan_theta)


@pytest.fixture(scope="module")
def v(manifold: neighbours.Manifold, law: LoadLaw) -> np.ndarray:
    return solve(manifold.true, draw_days(law, 200, np.random.default_rng(3)))


def test_two_directions_of_a_row_keep_the_manifold_and_n_plus_one_of_a_symmetric_matrix(
    manifold: neighbours.Manifold, v: np.ndarray
) -> None:
    found = neighbours.count_dimensions(manifold, v.reshape(-1, 3))
    assert (found.fewest, found.most, found.symmetric, found.claimed) == (2, 2, 4, 6)
    assert found.largest_dropped < 1e-3 * found.smallest_kept
    with pytest.raises(PrivacyError, match="at least 12 states"):
        neighbours.count_dimensions(manifold, v[:4, 0])


def test_moves_keep_the_manifold_and_a_changed_line_leaves_it(
    manifold: neighbours.Manifold, v: np.ndarray
) -> None:
    move = neighbours.Move("some", np.array([0.1, -0.2, 0.05]), np.array([0.01, 0.02, -0.01]))
    assert np.abs(neighbours.off_manifold(manifold, manifold.neighbour(move), v)).max() < 1e-9
    case = neighbours.changed_lines(manifold, v[0, 0])
    assert case is not None
    assert case.least > 1e3 * case.own


def test_length_of_a_move_is_that_of_its_change(manifold: neighbours.Manifold, law: LoadLaw) -> None:
    move = manifold.unit(
        neighbours.Move("some", np.array([0.1, -0.2, 0.05]), np.array([3.0, 2.0, -1.0])), manifold.metric
    )
    network = manifold.network
    change = move.scaling[:, None] * network.y_reduced
    change[:, :3] += np.diag(move.shunt * manifold.turn)
    assert np.linalg.norm(change) == pytest.approx(1.0)
    assert np.allclose(manifold.neighbour(move).y - network.y, change[:, :3])
    shunts = neighbours.towards_margin(manifold, law, manifold.full_metric, 1.0)
    assert np.linalg.norm(shunts.shunt) == pytest.approx(1.0)


def test_score_is_the_derivative_of_the_loss_and_no_direction_varies_more_than_the_most_informative(
    manifold: neighbours.Manifold, law: LoadLaw, v: np.ndarray
) -> None:
    rng = np.random.default_rng(5)
    move = neighbours.Move("some", 1e-5 * rng.standard_normal(3), 1e-6 * rng.standard_normal(3))
    forth, back = (
        manifold_loss(law, manifold.true, manifold.neighbour(move.times(sign)), v[:5]).total
        for sign in (1.0, -1.0)
    )
    found = neighbours.scores(manifold, law, v)
    slope = found[:5] @ np.concatenate([move.scaling, move.shunt])
    assert np.allclose((forth - back) / 2.0, slope, rtol=1e-5, atol=1e-12)

    def spread(move: neighbours.Move) -> float:
        return float(np.sqrt(np.mean((found @ np.concatenate([move.scaling, move.shunt])) ** 2)))

    best = spread(neighbours.most_informative(manifold, found, manifold.metric))
    for _ in range(200):
        some = neighbours.Move("some", 0.01 * rng.standard_normal(3), rng.standard_normal(3))
        assert spread(manifold.unit(some, manifold.metric)) <= best * (1.0 + 1e-9)


def test_experiment_compares_the_theorem_with_the_exact_loss(law: LoadLaw, tmp_path: Path) -> None:
    scale = Scale(days=60, steps=60, exit_days=3000, exit_steps=3000, pilot=20, states=60)
    options = ExperimentOptions(tmp_path, calibration_days=40)
    result = run_manifold(small_feeder(), law, scale, options, radius=1e-3)
    assert result.kappa > 1.5
    assert len(result.evaluations) == 16
    for item in result.evaluations:
        low, high = item.delta
        assert low <= item.exits / item.exit_draws <= high
        assert item.largest is not None
        assert item.largest < item.printed  # The formula is a bound where the loss is finite.
        if not item.truncated:
            assert item.exits == 0
            assert item.looseness is not None
    # Loads near a margin leave it under a neighbour, the sooner the larger it is.
    leaving = [item.exits for item in result.evaluations if item.move == "all loads towards p_min"]
    assert all(0 < small < large for small, large in zip(leaving[::2], leaving[1::2], strict=True))
    assert "Directions that keep the manifold: 2 per row" in to_markdown((result,))
    json.dumps(plain(asdict(result)), allow_nan=False)
    assert draw(result, "svg").startswith(b"<?xml")
