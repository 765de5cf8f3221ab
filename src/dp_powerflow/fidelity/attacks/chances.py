"""Success rates of an attacker who guesses between two neighbours, and what (ε, δ) allows.

For every test of two neighbours true positives are at most e^ε times false positives plus δ, and the same the
other way round. The two together bound the total variation, and with it the rate of right guesses:

    TV ≤ (e^ε − 1 + 2δ)/(e^ε + 1),    success ≤ (1 + TV)/2,

where either neighbour is as likely. Turned round, a success rate that is certain gives a lower bound on ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95


def most_success(epsilon: float, delta: float) -> float:
    """The highest rate of right guesses that (ε, δ) allows."""
    return (
        (1 + min(1.0, (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1))) / 2
        if epsilon < 700
        else 1.0
    )


def gaussian_success(rho: float) -> float:
    """The highest rate of right guesses that Gaussian noise of a total ρ (zCDP) allows: Φ(√(2ρ)/2)."""
    return float(stats.norm.cdf(math.sqrt(2 * rho) / 2))


def least_epsilon(success: float, delta: float) -> float:
    """The smallest ε that allows a rate of right guesses; infinite for 1."""
    apart = max(0.0, 2 * success - 1)
    if apart >= 1.0:
        return math.inf
    return max(0.0, math.log(max((1 + apart - 2 * delta) / (1 - apart), 1e-300)))


@dataclass(frozen=True)
class Guesses:
    """INTERNAL. How often an attacker was right.

    Attributes
    ----------
    right, tried : numbers of guesses.
    """

    right: int
    tried: int

    @property
    def rate(self) -> float:
        """Share of right guesses."""
        return self.right / self.tried

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Clopper-Pearson interval of the rate, two-sided."""
        tail, right, tried = (1 - confidence) / 2, self.right, self.tried
        low = float(stats.beta.ppf(tail, right, tried - right + 1)) if right else 0.0
        high = float(stats.beta.ppf(1 - tail, right + 1, tried - right)) if right < tried else 1.0
        return low, high

    def lower(self, confidence: float = CONFIDENCE) -> float:
        """Lower limit of the rate, one-sided."""
        if not self.right:
            return 0.0
        return float(stats.beta.ppf(1 - confidence, self.right, self.tried - self.right + 1))

    def __add__(self, other: Guesses) -> Guesses:
        """Both games together."""
        return Guesses(self.right + other.right, self.tried + other.tried)


@dataclass(frozen=True)
class Allowed:
    """PUBLIC. What a release states of its customers' privacy.

    Attributes
    ----------
    epsilon, delta : of the release.
    rho : zCDP of all its queries.
    """

    epsilon: float
    delta: float
    rho: float

    @property
    def success(self) -> float:
        """The highest rate of right guesses that the statement allows."""
        return most_success(self.epsilon, self.delta)

    @property
    def by_noise(self) -> float:
        """The highest rate that the noise itself allows, which is lower."""
        return min(self.success, gaussian_success(self.rho))

    def exceeded_by(self, guesses: Guesses) -> bool:
        """Whether more is certain than the statement allows."""
        return least_epsilon(guesses.lower(), self.delta) > self.epsilon

    def of_group(self, records: int) -> Allowed:
        """What the statement allows where so many records change together."""
        grow = sum(math.exp(min(k * self.epsilon, 700.0)) for k in range(records))
        return Allowed(records * self.epsilon, min(1.0, grow * self.delta), records**2 * self.rho)

    def visible(self, tried: int) -> float:
        """The largest ε that so many guesses could contradict: all of them right."""
        return least_epsilon(Guesses(tried, tried).lower(), self.delta)
