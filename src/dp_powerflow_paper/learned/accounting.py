"""ε of training: so many steps of Gaussian noise on a sum over a Poisson sample.

Two neighbourhoods. *Added or removed*: one record more or less. The papers and their libraries account so,
with the Rényi divergence of `dp_accounting`. *Replaced*: one record has other values and the number of
records is public. The load models of this package promise that, so a comparison at matched units needs it. A
replacement is a removal and an addition: (ε, δ) for one of these is (2ε, (1 + e^ε)·δ) for both. The (ε, δ) of
one of them is here that of the privacy loss distribution. `dp_accounting` has a figure of its own for a
replacement, less than half of this one where there is little noise and about the same where there is much;
the group of two needs no more than the definition of privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scipy import optimize

from dp_powerflow.errors import PrivacyError

_FIRST_EPSILON, _LARGEST_EPSILON = 0.05, 25.0
"""Of one addition or removal, where a replacement is accounted; above, no ε is claimed."""
_LARGEST_NOISE = 1e5


@dataclass(frozen=True)
class SampledGaussian:
    """Steps of noise on a sum to which every record of a Poisson sample gives a vector no longer than C.

    Attributes
    ----------
    rate : q, probability with which each record is in a step's sample, by itself.
    noise_multiplier : z, standard deviation of the noise over C.
    steps : T, fixed beforehand.
    """

    rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        if not (0.0 < self.rate <= 1.0 and self.noise_multiplier >= 0.0 and self.steps >= 1):
            raise PrivacyError(
                "sampled Gaussian steps need a rate above 0 and at most 1, a noise multiplier of 0 or more "
                "and a step or more"
            )

    def epsilon(self, delta: float) -> float:
        """ε for one record added or removed, by Rényi divergences."""
        return _renyi_epsilon(self, _checked(delta))

    def replaced_epsilon(self, delta: float) -> float:
        """ε for one record replaced, the number of records being public."""
        return _replaced_epsilon(self, _checked(delta))


def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Smallest noise multiplier, to a thousandth, at which one replaced record has (ε, δ); 0 for ε = ∞."""
    if math.isinf(epsilon):
        return 0.0
    if not epsilon > 0.0:
        raise PrivacyError("a noise multiplier needs a positive ε")
    return _noise_for(epsilon, _checked(delta), rate, steps)


@lru_cache(maxsize=64)
def _noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    def excess(log_noise: float) -> float:
        return SampledGaussian(rate, math.exp(log_noise), steps).replaced_epsilon(delta) - epsilon

    low = high = 0.0
    while excess(high) > 0.0:
        low, high = high, high + 1.0
        if high > math.log(_LARGEST_NOISE):
            raise PrivacyError("no noise multiplier meets this ε; raise epsilon or take fewer steps")
    while excess(low) < 0.0:
        low, high = low - 1.0, low
    root = float(optimize.brentq(excess, low, high, xtol=2e-4))
    return math.exp(root + 4e-4)  # the root is known to its tolerance: stay on the safe side


@lru_cache(maxsize=256)
def _renyi_epsilon(steps: SampledGaussian, delta: float) -> float:
    from dp_accounting.rdp import RdpAccountant  # slow to import, rarely needed

    if steps.noise_multiplier == 0.0:
        return math.inf
    with _quiet():  # it tells of low orders that it leaves out; any set of orders gives a valid ε
        return float(RdpAccountant().compose(_event(steps)).get_epsilon(delta))


@lru_cache(maxsize=256)
def _replaced_epsilon(steps: SampledGaussian, delta: float) -> float:
    from dp_accounting.pld import PLDAccountant

    if steps.noise_multiplier == 0.0:
        return math.inf
    accountant = PLDAccountant().compose(_event(steps))

    def excess(one: float) -> float:
        return math.log1p(math.exp(one)) + math.log(max(accountant.get_delta(one), 1e-300)) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    # What the distribution leaves out of its tails counts as δ, so the group's δ rises again at large ε: take
    # the first ε that is enough.
    high = _FIRST_EPSILON
    while excess(high) > 0.0:
        high *= 1.5
        if high > _LARGEST_EPSILON:
            return math.inf
    return 2.0 * (float(optimize.brentq(excess, 0.0, high, xtol=1e-7)) + 1e-7)


def _event(steps: SampledGaussian) -> Any:
    import dp_accounting

    one = dp_accounting.PoissonSampledDpEvent(
        steps.rate, dp_accounting.GaussianDpEvent(steps.noise_multiplier)
    )
    return dp_accounting.SelfComposedDpEvent(one, steps.steps)


@contextmanager
def _quiet() -> Iterator[None]:
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _checked(delta: float) -> float:
    if not 0.0 < delta < 1.0:
        raise PrivacyError("δ must be between 0 and 1")
    return delta
