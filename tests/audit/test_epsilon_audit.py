"""Statistical audit: a lower bound on ε from 10⁵ runs of the real noisy query on worst-case neighbours.

For every region the two neighbours differ in one record, and their integer sums by as much as the claim
allows. Half of the runs choose a threshold, the other half bound the error rates of the attack
(Clopper–Pearson, 99.9 %), so the bound on ε is valid: a correct claim fails with probability below 0.2 %.
"""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow import StreamKey
from dp_powerflow.lowlevel import PrivacyUnit
from dp_powerflow.privacy.budget import rho_to_epsilon
from dp_powerflow.privacy.queries import Query, Region, add_noise, exact_sum
from support.auditing import epsilon_lower_bound

RUNS = 100_000
DELTA = 1e-2
RHO = 0.5

WORST_PAIRS = {
    Region.BALL: ([1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]),
    Region.ORTHANT: ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
    # vectorised 2 × 2 matrices diag(1, 0) and diag(0, 1)
    Region.PSD: ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]),
}


def query(region: Region) -> Query:
    return Query("audited", 3, 1.0, region, RHO)


def neighbours(region: Region) -> tuple[np.ndarray, np.ndarray]:
    """Exact integer sums of two data sets that differ in one record."""
    others = np.array([[0.3, 0.2, 0.1], [0.05, 0.6, 0.3]])
    first, second = (np.vstack([others, [record]]) for record in WORST_PAIRS[region])
    return exact_sum([first], query(region)), exact_sum([second], query(region))


def runs(total: np.ndarray, sigma: int, purpose: str) -> np.ndarray:
    """The noisy sum, RUNS times (run, dimension)."""
    stream = StreamKey.from_insecure_seed(11).stream(purpose)
    return add_noise(np.tile(total, RUNS), sigma, stream).reshape(RUNS, total.size)


def audit(region: Region, sigma: int) -> float:
    one, other = neighbours(region)
    direction = (one - other).astype(np.float64)
    first = runs(one, sigma, f"first {region}") @ direction
    second = runs(other, sigma, f"second {region}") @ direction
    return epsilon_lower_bound(first, second, DELTA)


@pytest.mark.parametrize("region", list(Region))
def test_audit_catches_a_sensitivity_that_is_twice_too_small(region: Region) -> None:
    """The planted bug: noise for half of the true sensitivity, the claim unchanged; else it stays below."""
    cost = query(region).cost(PrivacyUnit.LOAD_POINT, None)
    claimed = rho_to_epsilon(cost.rho, DELTA)
    assert 0.6 * claimed < audit(region, cost.sigma) <= claimed < audit(region, cost.sigma // 2)


def test_audit_of_equal_data_sees_nothing() -> None:
    cost = query(Region.BALL).cost(PrivacyUnit.LOAD_POINT, None)
    total, _ = neighbours(Region.BALL)
    first, second = (runs(total, cost.sigma, name)[:, 0] for name in ("a", "b"))
    assert epsilon_lower_bound(first, second, DELTA) < 0.1
