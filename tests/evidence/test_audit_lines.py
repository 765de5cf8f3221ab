"""The audit of line evidence: lower bounds that are true, and that catch wrong upper bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import Feeder, StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.lines.collect import audit_lines, fresh_days
from dp_powerflow.evidence.lines.evidence import LineLoss, Neighbour, judge, scaled_both_ways
from dp_powerflow.lowlevel import LoadLaw, scaled
from support.laws import with_spread
from support.line_feeders import chain, law_of


def bracket(
    feeder: Feeder, law: LoadLaw, neighbours: list[Neighbour], *, truth: LoadLaw | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Lower bounds, upper bounds (neighbour, direction) and δ; `truth` is what the mechanism really draws."""
    engine = LineLoss(feeder, law, threads=1)
    losses = engine.losses(neighbours, engine.draws(StreamKey.from_insecure_seed(1), 3000))
    evidence = judge(losses, 0.01, law.steps, 0.01)
    upper = np.array([[row.forward or np.inf, row.reverse or np.inf] for row in evidence.rows])
    release = fresh_days(truth or law, StreamKey.from_insecure_seed(2), 2000)
    return audit_lines(engine, neighbours, release, evidence.delta), upper, evidence.delta


def test_lower_bounds_stay_below_upper_bounds_and_are_not_idle() -> None:
    feeder, law = chain(3), law_of(3, 4)
    lower, upper, _ = bracket(feeder, law, [scaled(line, 0.05) for line in feeder.lines])
    assert np.all(lower <= upper)
    assert lower.max() > 0.5


def test_a_mechanism_that_draws_too_little_spread_is_caught() -> None:
    feeder, law = chain(2), law_of(2, 4)
    quiet = with_spread(law, 1.0 / 50.0)
    lower, upper, _ = bracket(feeder, law, [scaled(feeder.lines[1], 0.03)], truth=quiet)
    assert np.any(lower > upper)


def one_sided() -> tuple[Feeder, LoadLaw, Neighbour]:
    """A small load between the source and a large one: under the true network, days of the neighbour would
    need a negative load there; the other way round they need a somewhat larger one."""
    scale = np.array([0.02, 0.5])
    wide = law_of(2)
    wide = wide.with_gaussians(wide.mean, np.array([[[1.5]], [[0.04]]]))
    law = replace(wide, scale_kw=scale, q_size=0.15 / scale)
    feeder = chain(2)
    return feeder, law, scaled(feeder.lines[1], -0.05)


def test_one_direction_only_is_caught() -> None:
    feeder, law, neighbour = one_sided()
    lower, upper, _ = bracket(feeder, law, [neighbour])
    assert np.all(lower <= upper)
    # Whoever evaluates the milder direction alone and calls it ε is refuted by the audit of the other.
    assert lower.max() > upper.min()


def test_nothing_is_shown_where_nothing_changes() -> None:
    feeder, law = chain(2), law_of(2, 2)
    neighbours = list(scaled_both_ways(feeder.lines, 1e-7))
    engine, key = LineLoss(feeder, law, threads=1), StreamKey.from_insecure_seed(3)
    assert np.all(audit_lines(engine, neighbours, fresh_days(law, key, 200), 0.01) == 0.0)
    with pytest.raises(PrivacyError, match="at least 20 days"):
        audit_lines(engine, neighbours, fresh_days(law, key, 10), 0.01)


def test_hidden_pv_nodes_are_audited_too() -> None:
    feeder, law = chain(3, pv_only=(1,)), replace(law_of(2, 2), positions=np.array([0, 2]))
    generation = np.zeros((2, 3), dtype=complex)
    generation[:, 1] = 0.1
    engine = LineLoss(feeder, law, generation=generation, threads=1)
    release = fresh_days(law, StreamKey.from_insecure_seed(3), 1000, generation)
    assert audit_lines(engine, [scaled(feeder.lines[0], 0.3)], release, 0.01).max() > 1.0
