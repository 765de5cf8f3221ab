"""Audits from below of both trainings, with a canary: a record that pulls as far as clipping lets it.

The canary is there in half of the runs. Its pull is along the first weight, so the first weight is the best
test of whether it was there. Half of the noise, or no clipping, must exceed the claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow_paper.learned.forecaster import Federation, train_federated
from dp_powerflow_paper.learned.wgan import Critic, WganSettings, private_gradient
from dp_powerflow_paper.recovery.training import one_thread
from support.auditing import epsilon_lower_bound

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'dp-powerflow[ml]'")

DELTA = 1e-2
RUNS = 5000


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def federated_scores(federation: Federation, canary: float, seed: int) -> np.ndarray:
    """First weight after all rounds; client 0 pulls with `canary`, the others not at all."""
    generator, start = torch.Generator().manual_seed(seed), torch.zeros(2, dtype=torch.float64)

    def pull(weights: Any, chosen: Any) -> Any:
        updates = torch.zeros(len(chosen), 2, dtype=torch.float64)
        updates[chosen == 0, 0] = canary
        return updates

    return np.array([float(train_federated(federation, start, pull, generator)[0]) for _ in range(RUNS)])


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "rounds"), [(1.0, 1), (0.5, 2)])
def test_a_canary_client_shows_no_more_than_the_claim(rate: float, rounds: int) -> None:
    federation = Federation(3, rate, 1.0, 1.0, rounds)
    claimed = federation.spent().epsilon(DELTA)
    pulled, absent = (federated_scores(federation, pull, seed) for pull, seed in ((1e3, 1), (0.0, 2)))
    found = epsilon_lower_bound(pulled, absent, DELTA)
    assert 0.0 < found <= claimed


@pytest.mark.slow
def test_half_of_the_noise_and_missing_clipping_are_caught() -> None:
    federation = Federation(3, 1.0, 1.0, 1.0, 1)
    claimed = federation.spent().epsilon(DELTA)
    half = replace(federation, noise_multiplier=0.5)
    loose = replace(federation, clip=1e2, noise_multiplier=0.01)  # as much noise, hardly any clipping
    for broken in (half, loose):
        pulled, absent = (federated_scores(broken, pull, seed) for pull, seed in ((1e3, 3), (0.0, 4)))
        assert epsilon_lower_bound(pulled, absent, DELTA) > claimed


SETTINGS = WganSettings(batch=4, clip=1.0, steps=1)


def critic_scores(settings: WganSettings, noise: float, canary: bool, seed: int) -> np.ndarray:
    """Projection of a critic's step on the canary's own gradient; the canary is the only record."""
    generator = torch.Generator().manual_seed(seed)
    critic = Critic(torch.full((3, 2), 3.0), torch.full((2,), 3.0))
    day = torch.tensor([[0.9, -0.4]])
    direction = torch.cat([part.flatten() for part in critic.clipped_sum(day, 1.0)])
    sample = day if canary else day[:0]
    scores = []
    for _ in range(RUNS):
        step = private_gradient(critic, sample, settings, noise, generator)
        scores.append(float(torch.cat([part.flatten() for part in step]) @ direction))
    return np.array(scores)


@pytest.mark.slow
def test_a_canary_day_shows_no_more_than_the_claim_and_missing_clipping_is_caught() -> None:
    claimed = SETTINGS.spent(4, 1.0).epsilon(DELTA)  # a rate of 1: every record is in the step
    present, absent = (critic_scores(SETTINGS, 1.0, there, seed) for there, seed in ((True, 5), (False, 6)))
    found = epsilon_lower_bound(present, absent, DELTA)
    assert 0.0 < found <= claimed
    # Noise of the same size on a gradient that is not cut.
    loose = replace(SETTINGS, clip=1e6)
    present, absent = (critic_scores(loose, 1e-6, there, seed) for there, seed in ((True, 7), (False, 8)))
    assert epsilon_lower_bound(present, absent, DELTA) > claimed
