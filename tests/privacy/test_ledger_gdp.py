from __future__ import annotations

import math

import mpmath
import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import gdp_delta, gdp_epsilon, gdp_mu

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


@pytest.mark.parametrize(
    "ask",
    [
        lambda: gdp_delta(-1.0, 1.0),
        lambda: gdp_delta(1.0, math.nan),
        lambda: gdp_epsilon(-1.0, 1e-5),
        lambda: gdp_epsilon(math.inf, 1e-5),
        lambda: gdp_epsilon(math.nan, 1e-5),
        lambda: gdp_epsilon(1.0, 0.0),
        lambda: gdp_epsilon(1.0, 1.0),
        lambda: gdp_mu(0.0, 1e-5),
        lambda: gdp_mu(math.inf, 1e-5),
        lambda: gdp_mu(1e-9, 1e-15),
        lambda: gdp_mu(1.0, math.nan),
    ],
)
def test_figures_out_of_range_are_refused(ask: object) -> None:
    with pytest.raises(PrivacyError):
        ask()  # type: ignore[operator]
