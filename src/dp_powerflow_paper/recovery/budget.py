"""How much noise DP-SGD needs to protect the network as a release of voltages does.

A change of the network changes every one of the N windows a model is trained on, so a guarantee for one
window has to be carried over to a group of N. The paper does it through (ε, δ) and then zCDP; it does not say
how the sampling rate q enters. Four answers are worked out here, and the results page shows all of them:

- `leading_order`: ρ = S·q²/2σ², the first term of the Rényi divergence of the sampled Gaussian. It is what
  the paper's words suggest and the most favourable to DP-SGD, but the first term alone is no bound;
- `without_sampling`: ρ = S/2σ². zCDP asks for all orders, and at high orders sampling helps no more;
- `exact`: the Rényi divergence of the sampled Gaussian at the order that is best for (ε, δ) of one window;
- `whole_batch`: no group privacy. If all N windows change, a sum over a batch of B clipped gradients moves by
  2·B·C at the most, so S steps are S·(2B)²/2σ²-zCDP for the network itself, a plain Gaussian mechanism. It
  needs batches of exactly B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import epsilon_to_rho
from dp_powerflow.units import FloatArray


@dataclass(frozen=True)
class SampleBudget:
    """(ε, δ) of one window; δ is far below the smallest float, so ln(1/δ) is kept."""

    epsilon: float
    log_inverse_delta: float


@dataclass(frozen=True)
class Calibration:
    """Noise multipliers σ/C of every answer above for one (ε, δ) of the network."""

    epsilon: float
    delta: float
    sample: SampleBudget
    rho: float
    steps: int
    leading_order: float
    without_sampling: float
    exact: float
    whole_batch: float


def per_sample(epsilon: float, delta: float, group: int) -> SampleBudget:
    """What one window must meet so that a group of windows meets (ε, δ).

    (ε′, δ′) for one is (N·ε′, N·e^((N−1)ε′)·δ′) for N of them (Dwork and Roth 2014; Vadhan 2017, Lemma 2.2).
    """
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1 and group >= 1):
        raise PrivacyError("group privacy needs epsilon > 0, delta between 0 and 1 and a group of 1 or more")
    one = epsilon / group
    return SampleBudget(one, -math.log(delta) + math.log(group) + (group - 1) * one)


def zcdp(budget: SampleBudget) -> float:
    """ρ = (√(ln 1/δ + ε) − √(ln 1/δ))², the paper's conversion (Bun and Steinke 2016, Proposition 1.3)."""
    high, low = math.sqrt(budget.log_inverse_delta + budget.epsilon), math.sqrt(budget.log_inverse_delta)
    return (budget.epsilon / (high + low)) ** 2  # the same, without the cancellation


def sampled_divergence(noise_multiplier: float, rate: float, order: int) -> float:
    """Rényi divergence of whole order α ≥ 2 of one step of the Poisson-sampled Gaussian.

    Mironov, Talwar and Zhang (arXiv 1908.10530v1), Section 3.3. `dp_accounting` and Opacus have it too, but
    the group of N windows needs orders in the thousands, where Opacus's binomials overflow.
    """
    k = np.arange(order + 1.0)
    binomial = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
    chosen = k * math.log(rate) + special.xlog1py(order - k, -rate)
    moment = special.logsumexp(binomial + chosen + (k * k - k) / (2 * noise_multiplier**2))
    return float(moment) / (order - 1)


def sampled_epsilon(noise_multiplier: float, rate: float, steps: int, log_inverse_delta: float) -> float:
    """ε of so many steps of the Poisson-sampled Gaussian, by its Rényi divergence at the best order.

    The conversion is Proposition 12 of Canonne, Kamath and Steinke (arXiv 2004.00010v4) with ln(1/δ) in place
    of δ. Any set of orders gives a valid ε; this one is dense where the best order lies.
    """
    orders = _orders(noise_multiplier, rate, steps, log_inverse_delta)
    divergence = np.array([sampled_divergence(noise_multiplier, rate, int(order)) for order in orders])
    values = steps * divergence + np.log1p(-1 / orders) + (log_inverse_delta - np.log(orders)) / (orders - 1)
    return float(max(0.0, np.min(values)))


def leading_order(epsilon: float, delta: float, *, samples: int, batch: int, steps: int) -> float:
    """Noise multiplier of the first term alone: ρ = S·q²/2σ²."""
    return batch / samples * math.sqrt(steps / (2 * zcdp(per_sample(epsilon, delta, samples))))


def calibrate(epsilon: float, delta: float, *, samples: int, batch: int, steps: int) -> Calibration:
    """Noise multipliers for S steps on N windows in batches of B at (ε, δ) of the network."""
    budget = per_sample(epsilon, delta, samples)
    rho, rate = zcdp(budget), batch / samples
    plain = math.sqrt(steps / (2 * rho))
    whole = 2 * batch * math.sqrt(steps / (2 * epsilon_to_rho(epsilon, delta)))
    exact = _exact(budget, rate, steps, between=(rate * plain / 8, plain * 8))
    return Calibration(epsilon, delta, budget, rho, steps, rate * plain, plain, exact, whole)


def _exact(budget: SampleBudget, rate: float, steps: int, between: tuple[float, float]) -> float:
    """Smallest noise multiplier, to a thousandth, that meets the budget of one window."""

    def excess(log_noise: float) -> float:
        return sampled_epsilon(math.exp(log_noise), rate, steps, budget.log_inverse_delta) - budget.epsilon

    low, high = math.log(between[0]), math.log(between[1])
    if excess(high) > 0:
        raise PrivacyError("no noise multiplier meets the budget of one window; raise epsilon")
    if excess(low) < 0:
        return between[0]
    root = float(optimize.brentq(excess, low, high, xtol=1e-4))
    return math.exp(root + 1e-3)  # the root is known to its tolerance: stay on the safe side


def _orders(noise_multiplier: float, rate: float, steps: int, log_inverse_delta: float) -> FloatArray:
    """Whole orders, close together at small values."""
    plain = math.sqrt(2 * log_inverse_delta / steps) * noise_multiplier
    top = max(64.0, 2 * plain / rate)
    spaced = np.unique(np.round(np.geomspace(64, top, 40))) if top > 64 else np.array([])
    return np.unique(np.concatenate([np.arange(2.0, 65.0), spaced]))
