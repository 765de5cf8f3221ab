"""Noise of DP-SGD at the network's budget, against numbers worked out by hand and against dp-accounting."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import rho_to_epsilon
from dp_powerflow_paper.recovery.methods import (
    SampleBudget,
    calibrate,
    per_sample,
    sampled_divergence,
    sampled_epsilon,
    zcdp,
)


def library_epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = RdpAccountant(orders=[float(order) for order in range(2, 512)])
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    return float(accountant.get_epsilon(delta))


def test_group_privacy_gives_the_numbers_worked_out_by_hand() -> None:
    budget = per_sample(10.0, 1e-5, 1000)
    assert budget.epsilon == pytest.approx(0.01)
    # ln 1e5 + ln 1000 + 999 · 0.01 = 11.512925 + 6.907755 + 9.99
    assert budget.log_inverse_delta == pytest.approx(28.410680744, abs=1e-8)
    single = per_sample(0.7, 1e-6, 1)
    assert single.epsilon == 0.7
    assert single.log_inverse_delta == pytest.approx(math.log(1e6))


def test_a_group_of_windows_gets_back_the_budget_of_the_network() -> None:
    # Forward: N windows at (ε′, δ′) are (N·ε′, N·e^((N−1)ε′)·δ′).
    budget = per_sample(3.0, 1e-4, 50)
    delta = 50 * math.exp(49 * budget.epsilon - budget.log_inverse_delta)
    assert [50 * budget.epsilon, delta] == pytest.approx([3.0, 1e-4])


def test_zcdp_conversion_gives_the_number_worked_out_by_hand_and_is_the_papers() -> None:
    # √(24 + 1) − √24 = 0.1010205, squared
    assert zcdp(SampleBudget(1.0, 24.0)) == pytest.approx(0.010205144, rel=1e-6)
    # It inverts ε = ρ + 2√(ρ ln 1/δ).
    rho = zcdp(SampleBudget(0.5, 30.0))
    assert rho + 2 * math.sqrt(rho * 30.0) == pytest.approx(0.5)


def test_order_two_of_the_sampled_gaussian_is_the_closed_form() -> None:
    assert sampled_divergence(1.5, 0.1, 2) == pytest.approx(math.log1p(0.01 * math.expm1(1 / 1.5**2)))
    # Without sampling it is the Gaussian's α/2σ², also where binomials overflow a float.
    assert sampled_divergence(40.0, 1 - 1e-15, 3000) == pytest.approx(3000 / (2 * 40.0**2), rel=1e-9)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [(1.0, 0.01, 1000, 1e-5), (2.0, 0.064, 1600, 1e-5), (20.0, 0.064, 2400, 1e-7), (1.2, 0.064, 50, 1e-6)],
)
def test_epsilon_of_the_accountant_is_that_of_dp_accounting(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    ours = sampled_epsilon(noise, rate, steps, math.log(1 / delta))
    library = library_epsilon(noise, rate, steps, delta)
    # Ours looks at fewer orders above 64, so it may only be larger, and hardly.
    assert library * (1 - 1e-9) <= ours <= library * 1.01


def test_calibrated_noise_meets_the_budget_of_one_window_and_hardly_more() -> None:
    found = calibrate(50.0, 1e-5, samples=1000, batch=64, steps=1600)
    target = found.sample

    def spent(noise: float) -> float:
        return sampled_epsilon(noise, 0.064, 1600, target.log_inverse_delta)

    assert spent(found.exact) <= target.epsilon
    assert spent(0.99 * found.exact) > target.epsilon
    # ε′ = 0.05, ln 1/δ′ = ln 1e8 + 49.95; S·q²/2σ² = ρ.
    log_inverse_delta = math.log(1e8) + 49.95
    rho = (math.sqrt(log_inverse_delta + 0.05) - math.sqrt(log_inverse_delta)) ** 2
    assert found.rho == pytest.approx(rho, rel=1e-9)
    assert 1600 * 0.064**2 / (2 * found.leading_order**2) == pytest.approx(rho, rel=1e-9)
    assert 1600 / (2 * found.without_sampling**2) == pytest.approx(rho, rel=1e-9)


def test_whole_batch_noise_is_a_gaussian_mechanism_at_the_networks_budget() -> None:
    found = calibrate(50.0, 1e-5, samples=1000, batch=64, steps=1600)
    rho = 1600 * (2 * 64) ** 2 / (2 * found.whole_batch**2)
    assert rho_to_epsilon(rho, 1e-5) == pytest.approx(50.0, rel=1e-4)
    assert rho_to_epsilon(rho, 1e-5) <= 50.0


def test_budgets_that_mean_nothing_are_refused() -> None:
    for epsilon, delta, group in ((0.0, 1e-5, 10), (math.inf, 1e-5, 10), (1.0, 0.0, 10), (1.0, 1e-5, 0)):
        with pytest.raises(PrivacyError, match="group privacy needs"):
            per_sample(epsilon, delta, group)
