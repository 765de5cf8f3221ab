"""What accounts and evidence take from scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from dp_powerflow.privacy.budget import rho_to_epsilon


def test_quantiles_are_those_of_the_distributions_of_scipy() -> None:
    """The evidence takes them from `scipy.special`, which is imported much sooner than `scipy.stats`."""
    generator = np.random.default_rng(5)
    for p in generator.random(200).tolist():
        assert -float(special.ndtri(p)) == float(stats.norm.isf(p))
    for p in generator.random(200).tolist():
        days = int(generator.integers(1, 5000))
        hits = int(days * p)
        a, b = hits + 1.0, float(days - hits)
        assert float(special.betaincinv(a, b, p)) == float(stats.beta.ppf(p, a, b))
        assert float(special.betainccinv(a, b, p)) == float(stats.beta.isf(p, a, b))


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
