"""Loads that are sums of customers: their law, their bounds, the same bits in any order."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow import StreamKey
from dp_powerflow.lowlevel import ClassLaw
from dp_powerflow.model.sample import MOST_DEVIATIONS, CustomerLaw, CustomerSampler
from support.laws import alike, days_of

STEPS, DAYS = 6, 400
KEY = StreamKey.from_insecure_seed(5)
MARGINS = (0.2, 4.0)
PER_LOAD = np.array([1, 4, 25])


def law(margins: tuple[float, float] | None = MARGINS, scale: float = 2.0, q: float = 0.1) -> CustomerLaw:
    """Three loads of 1, 4 and 25 customers alike."""
    rng = np.random.default_rng(0)
    factor = rng.normal(0.0, 0.2, (STEPS, STEPS))
    covariance = factor @ factor.T + 0.1 * np.eye(STEPS)
    part = ClassLaw.gaussian(
        np.linspace(-0.5, 0.3, STEPS), covariance, margins=margins, q_covariance=np.eye(STEPS)
    )
    each = alike(part, int(PER_LOAD.sum()), scale=scale, q=q or None)
    return CustomerLaw(each, np.repeat(np.arange(3), PER_LOAD), np.array([0, 1, 2]))


def drawn(of: CustomerLaw, days: int = DAYS) -> tuple[np.ndarray, np.ndarray]:
    return days_of(CustomerSampler(of, KEY, days))


def test_mean_and_variance_grow_with_the_number_of_customers() -> None:
    """Independent customers: both are N times those of one. A house scaled up has N² times the variance."""
    wide = law(margins=(1e-6, 1e6), q=0.0)
    active, _ = drawn(wide, days=4000)
    part = wide.each.classes[0].components[0]
    mean = 2.0 * np.exp(part.mean + np.diag(part.covariance) / 2)
    variance = mean**2 * (np.exp(np.diag(part.covariance)) - 1.0)
    for k, count in enumerate(PER_LOAD):
        own = active[k].reshape(-1, STEPS)
        error = np.sqrt(count * variance / len(own))
        assert np.all(np.abs(own.mean(axis=0) - count * mean) < 6.0 * error)
        assert own.var(axis=0) == pytest.approx(count * variance, rel=0.3)


def test_no_draw_passes_the_bounds() -> None:
    """Every customer lies within margins times scale, at every step, and so does its part of the sum."""
    tight = law(margins=(0.5, 1.2), q=0.0)
    active, _ = drawn(tight)
    for k, count in enumerate(PER_LOAD):
        assert active[k].min() >= count * 2.0 * 0.5 * (1 - 1e-12)
        assert active[k].max() <= tight.most_kw[k] * (1 + 1e-12)
    assert active[0].max() == pytest.approx(2.0 * 1.2)  # a single customer does reach them
    assert active[0].min() == pytest.approx(2.0 * 0.5)


def test_reactive_load_has_its_power_factor_and_a_bounded_random_part() -> None:
    active, reactive = drawn(law())
    random = reactive - 0.3 * active
    for k, count in enumerate(PER_LOAD):
        size = 2.0 * 0.1 * np.sqrt(count)
        assert np.abs(random[k]).max() <= MOST_DEVIATIONS * size * (1 + 1e-9)
        assert random[k].std() == pytest.approx(size, rel=0.1)
    _, plain = drawn(law(q=0.0))
    assert plain == pytest.approx(0.3 * active)
