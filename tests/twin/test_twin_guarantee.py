"""What a twin promises, against closed forms, the notes and a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Quantity
from dp_powerflow.privacy.budget import gdp_delta, gdp_epsilon
from dp_powerflow.twin import (
    LOG_GRID,
    Spread,
    code_mu,
    element_mu,
    largest_change,
    spread_for,
    twin_guarantee,
    twin_neighbours,
)


@pytest.mark.parametrize(
    ("eta", "expected"),
    [(0.1, (0.34, 1.9, 4.1)), (0.05, (0.72, 4.3, 9.4)), (0.02, (2.0, 12.8, 31.0))],
)
def test_lengths_alone_give_the_figures_of_the_notes(eta: float, expected: tuple[float, ...]) -> None:
    found = [twin_guarantee(Spread(length=eta), x, 1e-5).epsilon for x in (0.01, 0.05, 0.1)]
    assert found == pytest.approx(expected, rel=0.025)


def test_mu_adds_the_squares_of_all_figures_of_a_line_and_takes_the_worst_kind() -> None:
    spread = Spread(length=0.1, resistance=0.2, reactance=0.3, transformer=0.5, capacitor=0.04)
    log = math.log(1.05)
    mu = element_mu(spread, 0.05)
    assert mu["line"] == pytest.approx(log * math.sqrt(1 / 0.1**2 + 1 / 0.2**2 + 1 / 0.3**2), rel=1e-9)
    assert mu["transformer"] == pytest.approx(log / 0.5, rel=1e-9)
    assert twin_guarantee(spread, 0.05, 1e-5).mu == pytest.approx(log / 0.04, rel=1e-9)
    assert "pv" not in mu


def test_figures_are_on_the_safe_side_of_the_continuous_formula() -> None:
    """Rounding to the grid can only make the promise weaker, never by more than a millionth."""
    for eta in (1e-3, 0.1, 1.0):
        exact = math.log1p(0.01) / eta
        mu = element_mu(Spread(length=eta), 0.01)["line"]
        assert exact < mu < exact * (1 + 1e-6)


def test_several_elements_weaken_the_promise_by_the_root_of_their_number() -> None:
    one, nine = (twin_guarantee(Spread.uniform(0.2), 0.05, 1e-5, elements=k) for k in (1, 9))
    assert nine.mu == pytest.approx(3 * one.mu)
    assert nine.epsilon == pytest.approx(gdp_epsilon(3 * one.mu, 1e-5))


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 1.0), st.floats(0.2, 20.0), st.integers(1, 5))
def test_the_largest_change_is_covered_and_nothing_larger(eta: float, epsilon: float, elements: int) -> None:
    spread = Spread.uniform(eta)
    x = largest_change(spread, epsilon, 1e-5, elements=elements)
    if x > 1e-8:
        assert twin_guarantee(spread, x, 1e-5, elements=elements).epsilon <= epsilon
        assert twin_guarantee(spread, 1.001 * x, 1e-5, elements=elements).epsilon > epsilon


@settings(max_examples=50, deadline=None)
@given(st.floats(0.005, 0.1), st.floats(0.5, 20.0))
def test_a_spread_asked_for_a_policy_meets_it_closely(change: float, epsilon: float) -> None:
    spread = spread_for(change, epsilon, 1e-5)
    found = twin_guarantee(spread, change, 1e-5).epsilon
    assert found <= epsilon
    assert found >= epsilon * (1 - 1e-4)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_pure_epsilon_is_within_its_gaussian(epsilon: float) -> None:
    """δ of the Gaussian at every ε is at least that of randomised response."""
    mu = code_mu(epsilon)
    kept, lied = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    for other in np.linspace(0.0, 1.2 * epsilon, 40):
        pure = max(0.0, kept - math.exp(other) * lied)
        assert gdp_delta(float(other), mu) >= pure - 1e-12
    half = code_mu(epsilon) / 2
    assert gdp_delta(0.0, half) < kept - lied  # half the μ would not do


def test_the_discrete_gaussian_is_the_rounded_one_to_far_below_the_slack() -> None:
    """docs/guarantee.md: pmf ratios within exp(±B²/4σ²) up to B standard deviations, σ at least 1e-4/g."""
    sigma = Spread(length=1e-4).sigmas()[Quantity.LENGTH]
    assert sigma >= 1e-4 / LOG_GRID
    B = 40.0
    assert B**2 / (4 * float(sigma) ** 2) < 1e-12
    # The bound itself, checked where it is large enough to be seen: σ = 8.
    small = 8.0
    k = np.arange(-80, 81)
    discrete = np.exp(-(k**2) / (2 * small**2))
    discrete /= discrete.sum()
    rounded = norm.cdf((k + 0.5) / small) - norm.cdf((k - 0.5) / small)
    inside = np.abs(k) <= 4 * small
    ratio = np.abs(np.log(discrete[inside] / rounded[inside]))
    assert ratio.max() <= 4.0**2 / (4 * small**2)


def test_neighbours_are_named_in_public_words() -> None:
    words = twin_neighbours(Spread(length=0.1, capacitor=0.1, code_epsilon=1.0), 0.05).words
    assert words == (
        "one line (length) or capacitor (size): each figure named changed by a factor up to 1.05; "
        "the conductor code of a line in any way"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Spread(), "at least one"),
        (lambda: Spread(length=0.0), "between"),
        (lambda: Spread(length=math.nan), "between"),
        (lambda: Spread(length=0.1, code_epsilon=-1.0), "between 0 and 20"),
        (lambda: Spread(length=0.1, code_epsilon=30.0), "between 0 and 20"),
        (lambda: twin_guarantee(Spread(length=0.1), 0.0, 1e-5), "positive"),
        (lambda: twin_guarantee(Spread(length=0.1), 0.1, 0.0), "delta"),
        (lambda: twin_guarantee(Spread(length=0.1), 0.1, 1e-5, elements=0), "one changed element"),
    ],
)
def test_nonsense_is_refused(make: object, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        make()  # type: ignore[operator]
