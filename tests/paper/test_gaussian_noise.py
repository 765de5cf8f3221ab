"""Gaussian noise: both calibrations, and that what is added has the variance it is said to have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dp_powerflow.errors import PrivacyError
from dp_powerflow_paper.mechanisms.noise import UNITS, GaussianNoise

DRAWS = 200_000


def variance_agrees(draws: np.ndarray, sigma: float) -> bool:
    """Two-sided χ² test of the variance of centred normal draws; a right σ fails once in 10⁶."""
    total = float(np.sum(draws**2)) / sigma**2
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], draws.size)
    return bool(low < total < high)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (25.0, 3e-3), (200.0, 3e-3), (50.0, 1e-5)])
def test_analytic_noise_gives_exactly_the_delta_asked_for(epsilon: float, delta: float) -> None:
    noise = GaussianNoise(0.3, epsilon, delta)
    assert noise.true_delta == pytest.approx(delta, rel=1e-6)
    assert noise.true_delta <= delta
    assert noise.holds


def test_classical_formula_is_the_papers_and_its_true_delta_is_told() -> None:
    noise = GaussianNoise(2.0, 50.0, 1e-5, "classical")
    assert noise.sigma == pytest.approx(2.0 * math.sqrt(2 * math.log(1.25e5)) / 50.0)
    assert noise.true_delta == pytest.approx(0.59, abs=0.01)  # paper correction 10
    assert not noise.holds
    assert "0.586" in noise.remark


def test_classical_formula_holds_where_it_is_proved() -> None:
    assert GaussianNoise(1.0, 0.9, 1e-5, "classical").holds


def test_noise_added_has_the_calibrated_variance() -> None:
    noise = GaussianNoise(0.1, 10.0, 1e-3)
    rng = np.random.default_rng(1)
    real = noise.on_real(np.full(DRAWS, 7.0), rng) - 7.0
    pair = noise.on_complex(np.full(DRAWS, 1.0 + 2.0j), rng) - (1.0 + 2.0j)
    for draws in (real, pair.real, pair.imag):
        assert variance_agrees(draws, noise.sigma)
        assert not variance_agrees(draws, 1.02 * noise.sigma)
    assert abs(np.corrcoef(pair.real, pair.imag)[0, 1]) < 5 / math.sqrt(DRAWS)


@pytest.mark.parametrize(
    ("sensitivity", "epsilon", "delta", "calibration"),
    [
        (0.0, 1.0, 0.1, "analytic"),
        (math.inf, 1.0, 0.1, "analytic"),
        (1.0, -1.0, 0.1, "analytic"),
        (1.0, 1.0, 1.0, "analytic"),
        (1.0, 1.0, 0.1, "guess"),
    ],
)
def test_nonsense_is_refused(sensitivity: float, epsilon: float, delta: float, calibration: str) -> None:
    with pytest.raises(PrivacyError):
        GaussianNoise(sensitivity, epsilon, delta, calibration)  # type: ignore[arg-type]


def test_units_are_two_calibrations_of_a_step_and_of_a_day() -> None:
    assert {(unit.calibration, unit.covered(96), unit.covered_loads(96, 5)) for unit in UNITS} == {
        (calibration, *covered)
        for calibration in ("analytic", "classical")
        for covered in ((1, 96), (96, 480))
    }
    for unit in UNITS:
        noise = unit.noise(0.3, 25.0, 1e-3)
        assert noise.holds == (unit.calibration == "analytic")
    assert len({unit.key for unit in UNITS}) == len({unit.title for unit in UNITS}) == 4
