"""Capacities of lines under differential privacy: noise, then rounds of "which record is worst off?".

Half of ε goes to Laplace noise on every capacity. Each of T rounds selects, by the largest noisy score, the
record whose cost under the released capacities is furthest from its true one, releases that cost with noise,
and repairs the capacities (`capacities_restored`): ε/(4T) for the selection, ε/(4T) for the cost. Neighbours
differ in the capacity of one line by at most α.

Sensitivities. A capacity changes by α. Costs are those with overload priced at ψ, which change by at most α·ψ
(`dispatch`); so do scores |C_k(f̄) − C_k(φ)|, φ being released. A largest noisy score with Laplace noise of
scale 2·α·ψ/ε′ is ε′-private. The ε of all queries add up to ε.

The authors' public code divides by 4T where it should multiply, (4T)² times too little noise, and takes α
times the largest price for the sensitivity of costs that have no overload price, which is no bound. A status
that never matches makes its selection random (`AtRandom`). Honest noise is so large beside the scores that
`LargestNoisyScore` selects hardly better: what makes the records feasible is the repair, on public records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2023.restored import DispatchCase, NoisyCapacities, repair
from dp_powerflow_paper.sources import ANY_NUMBER_OF_DAYS, Guarantee

ONE_CAPACITY = "grids in which the capacity of one line differs by at most α"


@dataclass(frozen=True)
class Query:
    """What was asked, its share of ε, and the scale of its Laplace noise."""

    asked: str
    epsilon: float
    scale: float


class Selection(Protocol):
    """How a round selects its record."""

    def __call__(self, scores: FloatArray, scale: float, generator: np.random.Generator) -> int:
        """Number of a record, from (record,) PRIVATE scores and the scale of noise that a round pays for."""


@dataclass(frozen=True)
class LargestNoisyScore:
    """The largest score with noise: private with ε′ at a scale of twice the sensitivity over ε′."""

    def __call__(self, scores: FloatArray, scale: float, generator: np.random.Generator) -> int:
        """Noise on every score."""
        return int(np.argmax(scores + generator.laplace(0.0, scale, len(scores))))


@dataclass(frozen=True)
class AtRandom:
    """Any record, whatever the scores, as the public code does in effect; its ε is set aside, not used."""

    def __call__(self, scores: FloatArray, scale: float, generator: np.random.Generator) -> int:
        """Uniformly."""
        return int(generator.integers(len(scores)))


@dataclass(frozen=True)
class CapacityMechanism:
    """Synthetic capacities under which dispatch costs about what it really costs.

    Attributes
    ----------
    epsilon : of all queries together.
    change : α, in the unit of the capacities.
    rounds : T; 0 for noise on the capacities alone, with all of ε.
    overload_price : ψ, public.
    selection : of the record of a round.
    """

    epsilon: float
    change: float
    rounds: int
    overload_price: float
    selection: Selection = field(default_factory=LargestNoisyScore)

    def __post_init__(self) -> None:
        if not (self.epsilon > 0.0 and self.change > 0.0 and self.overload_price > 0.0 and self.rounds >= 0):
            raise PrivacyError(
                "capacities need a positive ε, change and overload price, and rounds from 0 on"
            )

    @property
    def guarantee(self) -> Guarantee:
        """Of the capacities, and whatever is computed from them."""
        return Guarantee(self.epsilon, 0.0, ANY_NUMBER_OF_DAYS, ONE_CAPACITY, proved=True, metric=self.change)

    @property
    def queries(self) -> tuple[Query, ...]:
        """All that is asked of the true capacities."""
        first = self.epsilon if not self.rounds else self.epsilon / 2.0
        asked = [Query("capacities", first, self.change / first)]
        if self.rounds:
            each, moved = self.epsilon / (4.0 * self.rounds), self.change * self.overload_price
            pair = (Query("selection", each, 2.0 * moved / each), Query("cost", each, moved / each))
            asked += pair * self.rounds
        return tuple(asked)

    def release(
        self, case: DispatchCase, capacity: FloatArray, generator: np.random.Generator
    ) -> Iterator[FloatArray]:
        """(line,) released capacities: after the noise, then after every round.

        Parameters
        ----------
        capacity : (line,) the true ones.
        """
        start, *rounds = self.queries
        noisy = NoisyCapacities(capacity + generator.laplace(0.0, start.scale, len(capacity)))
        released = np.maximum(noisy.capacity, 0.0)
        yield released
        if not rounds:
            return
        true_costs = case.costs(capacity, self.overload_price)
        for select, ask in zip(rounds[::2], rounds[1::2], strict=True):
            scores = np.abs(true_costs - case.costs(released, self.overload_price))
            worst = self.selection(scores, select.scale, generator)
            cost = float(true_costs[worst] + generator.laplace(0.0, ask.scale))
            noisy = NoisyCapacities(noisy.capacity, (*noisy.chosen, worst), (*noisy.costs, cost))
            released = repair(noisy, case)
            yield released


def infeasible_share(case: DispatchCase, capacity: FloatArray) -> float:
    """Share of the records without any dispatch within the capacities."""
    return float(np.mean(~np.isfinite(case.costs(capacity))))
