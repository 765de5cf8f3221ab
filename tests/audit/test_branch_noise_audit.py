"""Audit from below of noise on branches and on lengths: neighbours at the edge of the claim.

Every branch here is a group of its own, so one call draws as many independent releases as there are branches.
The score is the log likelihood ratio of all that a release holds: figures and means.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import StreamKey
from dp_powerflow_paper.fioretto2019.acopf import (
    Admittances,
    Branches,
    Generators,
    NoisyFigures,
    NoisyLengths,
    PublicGrid,
)
from dp_powerflow_paper.fioretto2019.cases import TrueCase
from dp_powerflow_paper.fioretto2019.feeder import LengthPrivacy, obfuscate_lengths
from dp_powerflow_paper.fioretto2019.noise import BranchPrivacy, obfuscate
from support.auditing import epsilon_lower_bound

RUNS = 40_000
PRIVACY = BranchPrivacy(alpha=0.5)
FIRST, SECOND = 3.0 - 30.0j, 3.5 - 35.0j
"""Admittances that differ by α in g and by ρ·α in b."""


def branches_of(admittance: complex, *, lossless: bool = False) -> TrueCase:
    """Many branches of the same admittance, each a group of its own."""
    none, zeros = np.zeros(0), np.zeros(RUNS)
    branches = Branches(
        start=np.zeros(RUNS, dtype=np.int64),
        end=np.ones(RUNS, dtype=np.int64),
        charging=zeros,
        ratio=np.ones(RUNS),
        shift=zeros,
        rating=np.full(RUNS, np.inf),
        level=np.arange(RUNS),
        lossless=np.full(RUNS, lossless),
    )
    generators = Generators(none.astype(np.int64), none, none, none, none, np.zeros((0, 3)))
    at = np.zeros(2)
    public = PublicGrid("branches", 100.0, at, at, at, at, at, at, 0, generators, branches)
    return TrueCase(public, Admittances(np.full(RUNS, admittance.real), np.full(RUNS, admittance.imag)))


def score(noisy: NoisyFigures, first: complex, second: complex) -> np.ndarray:
    """Log likelihood of the second over the first, of all four figures of every branch."""
    figures = (
        (noisy.branches.g, first.real, second.real, noisy.scale_g),
        (noisy.branches.b, first.imag, second.imag, noisy.scale_b),
        (noisy.mean_g, first.real, second.real, noisy.mean_scale_g),
        (noisy.mean_b, first.imag, second.imag, noisy.mean_scale_b),
    )
    return np.asarray(sum((np.abs(x - a) - np.abs(x - b)) / scale for x, a, b, scale in figures))


def audited(privacy: BranchPrivacy, first: complex, second: complex, *, lossless: bool = False) -> float:
    drawn = []
    for seed, each in enumerate((first, second)):
        noisy = obfuscate(branches_of(each, lossless=lossless), privacy, StreamKey.from_insecure_seed(seed))
        drawn.append(score(noisy, first, second))
    return epsilon_lower_bound(drawn[1], drawn[0], 0.0)


def test_one_branch_loses_no_more_than_claimed_and_half_the_noise_is_caught() -> None:
    found = audited(PRIVACY, FIRST, SECOND)
    assert 0.5 * PRIVACY.epsilon < found <= PRIVACY.epsilon
    assert audited(replace(PRIVACY, epsilon=2.0), FIRST, SECOND) > PRIVACY.epsilon


def test_a_branch_without_losses_is_covered_by_noise_on_its_susceptance() -> None:
    first, second = complex(0.0, -30.0), complex(0.0, -35.0)
    found = audited(PRIVACY, first, second, lossless=True)
    assert 0.2 * PRIVACY.epsilon < found <= 0.5 * PRIVACY.epsilon, "g is not asked for, so half is spent"


def test_noise_has_the_scale_that_the_claim_is_made_from() -> None:
    noisy = obfuscate(branches_of(FIRST), PRIVACY, StreamKey.from_insecure_seed(3))
    alpha, reach, epsilon = PRIVACY.alpha, PRIVACY.reach, PRIVACY.epsilon
    for drawn, true, scale in (
        (noisy.branches.g, FIRST.real, 3.0 * alpha / epsilon),
        (noisy.branches.b, FIRST.imag, 3.0 * reach * alpha / epsilon),
        (noisy.mean_g, FIRST.real, 6.0 * alpha / epsilon),
        (noisy.mean_b, FIRST.imag, 6.0 * reach * alpha / epsilon),
    ):
        assert np.abs(drawn - true).mean() == pytest.approx(scale, rel=0.03)


def length_score(noisy: NoisyLengths, first: float, second: float, scale: float) -> float:
    """Of the figure of one line and of the mean over it."""
    apart = [abs(x - first) - abs(x - second) for x in (float(noisy.inverse[0]), noisy.mean)]
    return sum(apart) / scale


def audited_lengths(epsilon: float, runs: int = 2500) -> float:
    """A line of the shortest length against one that is 5 % longer."""
    privacy = LengthPrivacy(epsilon)
    lengths = (privacy.shortest_km / (1.0 - privacy.change), privacy.shortest_km)
    edges = 1.0 / lengths[0], 1.0 / lengths[1]

    def drawn(length: float) -> np.ndarray:
        key = StreamKey.from_insecure_seed(7).bind("length", repr(length))
        keys = (key.bind("run", str(run)) for run in range(runs))
        noisy = (obfuscate_lengths(np.array([length]), privacy, each) for each in keys)
        return np.array([length_score(each, *edges, privacy.alpha) for each in noisy])

    return epsilon_lower_bound(drawn(lengths[1]), drawn(lengths[0]), 0.0)


@pytest.mark.slow
def test_one_length_loses_no_more_than_claimed_and_half_the_noise_is_caught() -> None:
    assert 0.4 < audited_lengths(1.0) <= 1.0
    assert audited_lengths(2.0, 1500) > 1.0
