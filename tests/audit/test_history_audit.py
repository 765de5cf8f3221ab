"""Audit from below of whole fits of histories: neighbours that differ in one customer with all its days.

The attacker sees every released integer and takes the likelihood ratio of the two neighbours, given the
answers before each: no test of them is better. Gaussian noise makes the two no easier to tell apart than
N(0, 1) from N(√(2ρ), 1), so error rates give a lower bound on that distance, and through it on ε.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from dp_powerflow import Budget, FitOptions, LoadHistory, StreamKey
from dp_powerflow.lowlevel import PrivacyUnit, gdp_epsilon
from dp_powerflow.model.derive import derive
from dp_powerflow.model.fit import MeterSource, history_facts
from dp_powerflow.model.history import estimate as calibrate
from dp_powerflow.model.history.estimate import History
from dp_powerflow.privacy import queries
from dp_powerflow.privacy.budget import QueryCost, rho_to_epsilon, total_rho
from dp_powerflow.privacy.queries import Blocks, Query, QuerySession, Session, quantise
from dp_powerflow.units import IntArray
from support.auditing import CONFIDENCE
from support.histories import BOUNDS, adversaries, customers, history_of

N, DAYS, STEPS = 40, 14, 8
RUNS = 200
DELTA = 1e-9
BUDGET = Budget(rho_to_epsilon(3.0, DELTA), DELTA)
OPTIONS = FitOptions(BOUNDS, History())
FIRST, SECOND = 29, 54
"""Two hand-made customers that a search found far apart in all queries together."""


class AttackedSession(QuerySession):
    """Answers for one of two neighbours and adds up the log likelihood ratio of the second to the first.

    The last record is the victim of the second, the one before it that of the first.
    """

    def __init__(self, key: StreamKey, unit: PrivacyUnit, rho: float, attack: Attack) -> None:
        super().__init__(key, unit, "all", rho)
        self._attack = attack

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        (block,) = blocks
        grid = np.concatenate([quantise(chunk, query) for chunk in block])
        sums = [grid[:-2].sum(axis=0) + grid[-2 + world] for world in range(2)]
        stream = self._key.stream(f"noise/all/{query.name}")
        answer = queries.add_noise(sums[self._attack.world], cost.sigma, stream)
        first, second = (((answer - each) / cost.sigma).astype(np.float64) for each in sums)
        self._attack.log_ratio += float(np.sum(first * first) - np.sum(second * second)) / 2
        return answer[None]


@dataclass
class Attack:
    """One run: which neighbour is true, what the integers say of it, and what was spent."""

    world: int
    log_ratio: float = 0.0
    rho: float = 0.0


@dataclass(frozen=True, eq=False, repr=False)
class AttackedMeters(MeterSource):
    """Meters of two neighbours."""

    attack: Attack

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        return AttackedSession(self.key.bind(*stage), self.unit, rho, self.attack)


@functools.cache
def both_worlds() -> LoadHistory:
    """All but one customer, the victim, and who may stand in its place."""
    others = customers(N - 1, DAYS, STEPS)
    return history_of(np.concatenate([others, adversaries(DAYS, STEPS, BOUNDS)[[FIRST, SECOND]]]))


def attacked(world: int, seed: int) -> Attack:
    """A whole fit of one of the two."""
    history, attack = both_worlds(), Attack(world)
    facts = replace(history_facts(history, OPTIONS, BUDGET.unit), load_points_of_class=(("all", N),))
    key = StreamKey.from_insecure_seed(seed).bind("world", str(world))
    source = AttackedMeters(facts, history, OPTIONS, BUDGET.unit, key, attack)
    attack.rho = total_rho([answer.cost for answer in derive(source, OPTIONS, BUDGET).answers])
    return attack


def epsilon_found(runs: int) -> tuple[float, float]:
    """Valid lower bound on ε by an attack, and the ε that is claimed."""
    right = []
    for world in range(2):
        tried = [attacked(world, seed) for seed in range(runs)]
        hits = sum((attack.log_ratio > 0) == bool(world) for attack in tried)
        low = stats.beta.ppf(1 - CONFIDENCE, hits, runs - hits + 1) if hits else 0.0
        right.append(float(stats.norm.ppf(low)))
    apart = max(sum(right), 1e-3)
    return gdp_epsilon(apart, DELTA), rho_to_epsilon(tried[0].rho, DELTA)


@pytest.fixture(autouse=True)
def few_customers_calibrate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Post-processing by a public key, made cheap: it is no part of what is audited."""
    honest = calibrate.some_customers
    monkeypatch.setattr(calibrate, "some_customers", lambda law, count=16: honest(law, 16))


@pytest.mark.slow
def test_whole_fits_of_histories_leak_less_than_they_claim() -> None:
    found, claimed = epsilon_found(RUNS // 3)
    assert claimed <= BUDGET.epsilon
    assert found <= claimed
    assert found > claimed / 6  # the attack is one


@pytest.mark.slow
def test_half_of_the_noise_of_a_history_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = queries.add_noise
    monkeypatch.setattr(
        queries, "add_noise", lambda total, sigma, stream: honest(total, -(-sigma // 2), stream)
    )
    found, claimed = epsilon_found(RUNS)
    assert found > claimed
