"""Brent's methods have the bits of those of scipy, which accounts were kept with before."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, special, stats

from dp_powerflow._bits.roots import least_between, normal_quantile, root_between
from dp_powerflow.privacy.budget import rho_to_epsilon

Function = Callable[[float], float]


def functions() -> list[Function]:
    """Cubics, exponentials, steps and a function that is infinite at an end; all from a fixed seed."""
    figures = np.random.default_rng(3).standard_normal((150, 4)).tolist()
    return [made for row in figures for made in some(*row)]


def some(a: float, b: float, c: float, d: float) -> list[Function]:
    """Functions with these figures."""
    return [
        lambda x: ((a * x + b) * x + c) * x + d,
        lambda x: math.exp(a * x) - abs(b) * 3 + c * x,
        lambda x: math.atan(a * (x - c)) + d / 3,
        lambda x: math.tanh(50 * (x - c)),
        lambda x: -math.inf if x < -2.5 else x - d / 9,
    ]


ENDS = ((-3.0, 2.0), (-0.5, 3.0), (-1.7, 0.1))


@pytest.mark.parametrize("close", [1e-15, 1e-14, 1e-6])
def test_roots_are_those_of_scipy(close: float) -> None:
    found = 0
    for function in functions():
        for low, high in ENDS:
            if (function(low) < 0) == (function(high) < 0):
                continue
            found += 1
            assert root_between(function, low, high, close=close) == optimize.brentq(
                function, low, high, xtol=close
            )
    assert found > 300


def test_minima_are_those_of_scipy() -> None:
    for function in functions():
        for low, high in ENDS:
            if not math.isfinite(function(low)):
                continue
            theirs = optimize.minimize_scalar(function, bounds=(low, high), method="bounded")
            ours = least_between(function, low, high)
            assert (ours.at, ours.value) == (float(theirs.x), float(theirs.fun))


def test_without_a_change_of_sign_or_a_number_there_is_no_root() -> None:
    with pytest.raises(ValueError, match="same sign"):
        root_between(lambda x: x * x + 1, -1.0, 2.0, close=1e-12)
    with pytest.raises(ValueError, match="not a number"):
        root_between(lambda _: math.nan, -1.0, 2.0, close=1e-12)


def test_quantiles_are_those_of_the_distributions_of_scipy() -> None:
    """The evidence takes them from `scipy.special`, which is imported much sooner than `scipy.stats`."""
    generator = np.random.default_rng(5)
    for p in generator.random(200).tolist():
        assert -normal_quantile(p) == float(stats.norm.isf(p))
    for p in generator.random(200).tolist():
        days = int(generator.integers(1, 5000))
        hits = int(days * p)
        a, b = hits + 1.0, float(days - hits)
        assert float(special.betaincinv(a, b, p)) == float(stats.beta.ppf(p, a, b))
        assert float(special.betainccinv(a, b, p)) == float(stats.beta.isf(p, a, b))


@pytest.mark.parametrize("ends", [(math.nan, 1.0), (-math.inf, 0.0), (0.0, math.inf)])
def test_a_minimum_between_ends_that_are_not_finite_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        least_between(abs, *ends)


@pytest.mark.parametrize(
    ("rho", "delta"),
    [
        (math.inf, 1e-5),
        (math.nan, 1e-5),
        (1.0, 5e-324),
        (1e300, 5e-324),
        (1e-320, 1e-5),
        (1.7e308, 1 - 1e-16),
    ],
)
def test_no_cost_is_stated_as_nothing_because_it_cannot_be_computed(rho: float, delta: float) -> None:
    """Whoever forges a manifest would like an epsilon of 0; not a number compares with nothing."""
    with pytest.raises(ValueError, match="finite"):
        rho_to_epsilon(rho, delta)
