"""Evidence with confidence, the inverse question, tables and pictures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from dp_powerflow import Feeder, StreamKey
from dp_powerflow._certify import line_lines
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.lines.collect import LineReport, LineRequest, collect_lines, contradicted
from dp_powerflow.evidence.lines.evidence import (
    GRID,
    LineLoss,
    LineLosses,
    delta_bounds,
    judge,
    scaled_both_ways,
    smallest_share,
    upper_mean,
)
from dp_powerflow.lowlevel import plain, upper_share
from dp_powerflow_paper.lines import run_lines, to_json, to_markdown
from support.line_feeders import chain, law_of


def gaussian_losses(spread: float, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Λ ~ N(s²/2, s²): the loss of a Gaussian mechanism, whose δ(ε) is known."""
    return spread**2 / 2.0 + spread * np.random.default_rng(seed).standard_normal(shape)


def gaussian_delta(spread: float, epsilon: float) -> float:
    return float(
        norm.cdf(spread / 2 - epsilon / spread) - np.exp(epsilon) * norm.cdf(-spread / 2 - epsilon / spread)
    )


def made_up(losses: np.ndarray) -> LineLosses:
    """Losses (neighbour, direction, day) that belong to lines of a chain."""
    lines = chain(len(losses) // 2).lines
    return LineLosses(scaled_both_ways(lines, 0.01), losses)


def test_bound_of_a_mean_covers_and_is_never_below_the_smallest_share() -> None:
    rng = np.random.default_rng(0)
    trials, alpha, mean = 100, 0.1, 0.03
    drawn = (rng.random((4000, trials)) < 0.1) * 0.3  # values 0 and 0.3
    missed = np.mean(upper_mean(drawn.mean(axis=1), trials, alpha) < mean)
    assert missed <= alpha
    assert upper_mean(0.0, trials, alpha) == pytest.approx(smallest_share(trials, alpha))
    assert upper_mean(1.0, trials, alpha) == 1.0
    coins = np.arange(trials + 1)
    assert np.all(upper_mean(coins / trials, trials, alpha) >= upper_share(coins, trials, alpha) - 1e-9)


def test_bounds_hold_the_true_delta_and_come_close_to_it() -> None:
    losses = gaussian_losses(1.0, (4, 2, 20_000))
    bounds = delta_bounds(losses, 0.05)
    for column, epsilon in enumerate(GRID):
        true = gaussian_delta(1.0, epsilon)
        assert np.all(bounds.hockey[..., column] >= true)
        assert np.all(bounds.hockey[..., column] <= true + 0.02)
        assert np.all(bounds.tail[..., column] >= norm.sf(epsilon - 0.5))
        assert np.all(bounds.hockey[..., column] <= bounds.tail[..., column])


def test_no_delta_below_what_the_draws_support_is_stated() -> None:
    evidence = judge(made_up(gaussian_losses(0.1, (6, 2, 200))), 0.01, 4, 1e-9)
    assert evidence.delta == evidence.supported
    assert evidence.supported == pytest.approx(smallest_share(200, 0.05 / (6 * 2 * len(GRID) * 2)))
    assert evidence.supported > 0.04
    for row in evidence.rows:
        assert row.epsilon is not None
        assert row.epsilon >= min(GRID)


def test_epsilon_is_the_worst_of_signs_and_directions() -> None:
    losses = gaussian_losses(0.05, (4, 2, 2000))
    losses[3, 1] += 6.0
    first, second = judge(made_up(losses), 0.01, 4, 0.01).rows
    assert first.epsilon is not None
    assert first.epsilon <= 0.5
    assert (second.forward, second.reverse, second.epsilon) == (first.forward, 7.5, 7.5)


def test_infinite_losses_leave_no_epsilon() -> None:
    losses = gaussian_losses(0.05, (2, 2, 1000))
    losses[0, 0, :50] = np.inf
    row = judge(made_up(losses), 0.01, 4, 0.01).rows[0]
    assert row.epsilon is None
    assert row.epsilon_tail is None
    assert row.infinite == pytest.approx(50 / 4000)
    json.dumps(plain(row), allow_nan=False)


KEY = StreamKey.from_insecure_seed(11)


@pytest.fixture(scope="module")
def report() -> LineReport:
    request = LineRequest(x=0.02, draws=400, audit_days=100)
    return collect_lines(LineLoss(chain(4, empty=(1,)), law_of(3, 3), threads=1), request, KEY)


def test_report_brackets_every_line(report: LineReport) -> None:
    assert report.contradicted == ()
    assert [row.line for row in report.evidence.rows] == ["l1", "l2", "l3", "l4"]
    for row in report.evidence.rows:
        assert row.lower is not None
        assert row.epsilon is not None
        assert 0.0 <= row.lower <= row.epsilon
    assert contradicted(replace(report.evidence.rows[0], lower=100.0, epsilon=1.0))


def test_tables_say_what_is_supported(report: LineReport) -> None:
    text = "\n".join(line_lines(report))
    assert f"**{report.evidence.supported:.2g}**" in text
    assert "both directions" in text
    assert "no lower bound passes its upper bound" in text
    bad = replace(report, contradicted=("l1",))
    assert "there is a bug" in "\n".join(line_lines(bad))
    json.dumps(plain(report), allow_nan=False)


def test_a_feeder_without_lines_is_refused() -> None:
    feeder = replace(chain(2), lines=())
    with pytest.raises(PrivacyError, match="no line records"):
        collect_lines(LineLoss(feeder, law_of(2)), LineRequest(), KEY)


def test_the_experiment_brackets_every_line_of_a_public_feeder(ieee13: Feeder) -> None:
    request = LineRequest(x=0.01, draws=60, audit_days=40)
    result = run_lines(ieee13, request, steps=2)
    rows = result.report.evidence.rows
    assert {row.line for row in rows} == {line.name for line in ieee13.lines}
    assert result.report.contradicted == ()
    assert all(row.lower is not None for row in rows)
    text = to_markdown(result)
    assert "Time taken" in text
    assert "smallest δ they support" in text
    json.dumps(to_json(result), allow_nan=False)
