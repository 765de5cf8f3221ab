"""Conversions between (ε, δ), ρ of zCDP and μ of Gaussian DP, and how costs of queries add up."""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld, rdp

from dp_powerflow import Budget
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import PrivacyUnit, epsilon_to_rho, gdp_delta, gdp_epsilon, gdp_mu
from dp_powerflow.privacy.budget import (
    LEAST_DELTA,
    LEAST_EPSILON,
    MOST_EPSILON,
    QueryCost,
    rho_to_epsilon,
    total_rho,
)


def cost(rho_inverse: int, cohort: str | None = None, unit: str = "load-point") -> QueryCost:
    """A cost of ρ = 1/(2·rho_inverse²)."""
    return QueryCost(
        f"q{rho_inverse}{cohort}", PrivacyUnit(unit), cohort, 1, "ball", 1, 1.0, "1", rho_inverse
    )


def gaussian_epsilon(rho: float, delta: float) -> float:
    """ε of the *continuous* Gaussian mechanism with the same ρ, exact: what the stated ε is compared with."""
    return float(dp_accounting.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta))


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.03, 0.4, 3.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_conversion_agrees_with_dp_accounting(rho: float, delta: float) -> None:
    orders = 1 + np.geomspace(1e-2, 1e6, 20_000)
    accountant = rdp.RdpAccountant(orders)
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    theirs = accountant.get_epsilon(delta)
    assert rho_to_epsilon(rho, delta) == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_composition_matches_the_privacy_loss_distribution() -> None:
    """Three queries composed by ρ equal one Gaussian of the summed ρ, as the PLD accountant computes it."""
    costs = [cost(4), cost(6), cost(9)]
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    for item in costs:
        # In REPLACE_ONE, dp_accounting takes a sensitivity of 2 for a noise multiplier of 1.
        accountant.compose(dp_accounting.GaussianDpEvent(2 * item.sigma))
    rho = total_rho(costs)
    assert rho == pytest.approx(1 / 32 + 1 / 72 + 1 / 162)
    assert accountant.get_epsilon(1e-5) == pytest.approx(gaussian_epsilon(rho, 1e-5), rel=2e-3)
    assert accountant.get_epsilon(1e-5) < rho_to_epsilon(rho, 1e-5)


@pytest.mark.parametrize("epsilon", [LEAST_EPSILON, 0.05, 1.0, 30.0, MOST_EPSILON])
@pytest.mark.parametrize("delta", [LEAST_DELTA, 1e-5, 0.999])
def test_every_budget_is_turned_into_rho_and_back_and_never_exceeded(epsilon: float, delta: float) -> None:
    budget = Budget(epsilon, delta)
    rho = epsilon_to_rho(budget.epsilon, budget.delta)
    assert 0.0 <= rho_to_epsilon(rho, delta) <= epsilon
    assert rho_to_epsilon(rho * 1.001, delta) > epsilon or delta != 1e-5


def test_cohorts_compose_in_parallel_and_shared_queries_add() -> None:
    costs = [cost(1), cost(2, "a"), cost(3, "a"), cost(4, "b")]
    assert total_rho(costs) == pytest.approx(1 / 2 + 1 / 8 + 1 / 18)
    assert total_rho([]) == rho_to_epsilon(0.0, 1e-5) == 0.0
    with pytest.raises(PrivacyError, match="different units"):
        total_rho([cost(1), cost(2, unit="load-point-day")])


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        *((0.0, 1e-5), (float("inf"), 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 1e-5), (1.0, math.nan)),
        *((1e308, 1e-5), (5e-324, 1e-5), (1.0, 5e-324), (1.0, 1e-320), (10**400, 1e-5)),
    ],
)
def test_budgets_out_of_range_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(PrivacyError):
        Budget(epsilon, delta)


def test_cost_records_survive_a_round_trip() -> None:
    first = cost(5, "residential")
    assert QueryCost.from_dict(first.to_dict()) == first


@pytest.mark.parametrize(
    ("rho", "delta"), [(math.inf, 1e-5), (math.nan, 1e-5), (1.0, 5e-324), (1e300, 5e-324), (1e-320, 1e-5)]
)
def test_no_cost_is_stated_as_nothing_because_it_cannot_be_computed(rho: float, delta: float) -> None:
    """A forged manifest would profit from an epsilon of 0; not a number compares with nothing."""
    with pytest.raises(ValueError, match="finite"):
        rho_to_epsilon(rho, delta)


# --------------------------------------------------------------------------------------- Gaussian DP
MUS = [1e-4, 0.01, 0.1, 0.5, 1.0, 3.0, 20.0, 300.0]
DELTAS = [1e-15, 1e-9, 1e-5, 1e-2]


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """The closed form in 60 digits."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("epsilon_over_mu", [0.0, 0.3, 2.0, 6.0])
def test_delta_is_the_closed_form(mu: float, epsilon_over_mu: float) -> None:
    epsilon = epsilon_over_mu * mu
    assert gdp_delta(epsilon, mu) == pytest.approx(float(exact_delta(epsilon, mu)), rel=1e-8)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_safe_and_tight(mu: float, delta: float) -> None:
    epsilon = gdp_epsilon(mu, delta)
    assert exact_delta(epsilon, mu) <= delta
    if epsilon > 0:
        assert exact_delta(epsilon * (1 - 1e-6), mu) > delta


@pytest.mark.parametrize("epsilon", [0.01, 0.34, 1.0, 4.0, 31.0])
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_is_safe_and_tight(epsilon: float, delta: float) -> None:
    mu = gdp_mu(epsilon, delta)
    assert exact_delta(epsilon, mu) <= delta
    assert exact_delta(epsilon, mu * (1 + 1e-6)) > delta
    assert gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("eta", "x", "epsilon"),
    [(0.1, 0.01, 0.34), (0.1, 0.05, 1.9), (0.1, 0.1, 4.1), (0.05, 0.1, 9.4), (0.02, 0.1, 31.0)],
)
def test_figures_of_the_twin_network(eta: float, x: float, epsilon: float) -> None:
    """Paper correction 6: μ = ln(1 + x)/η at δ = 1e-5."""
    assert gdp_epsilon(math.log(1 + x) / eta, 1e-5) == pytest.approx(epsilon, rel=0.03)


OUT_OF_RANGE: dict[Callable[[float, float], float], tuple[tuple[float, float], ...]] = {
    gdp_delta: ((-1.0, 1.0), (1.0, math.nan)),
    gdp_epsilon: ((-1.0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)),
    gdp_mu: ((0.0, 1e-5), (math.inf, 1e-5), (1e-9, 1e-15), (1.0, math.nan)),
}


@pytest.mark.parametrize("convert", OUT_OF_RANGE)
def test_figures_out_of_range_are_refused(convert: Callable[[float, float], float]) -> None:
    for figures in OUT_OF_RANGE[convert]:
        with pytest.raises(PrivacyError):
            convert(*figures)
