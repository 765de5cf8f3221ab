"""A sequence of queries on one set of records, in three forms.

`QuerySession` asks private data and adds noise. `ReplaySession` answers from integers that were published; it
never evaluates a contribution. `PlanSession` answers zero; it lists what would be asked. All three check and
record a cost before its integers exist, so the code that asks is the same in a fit, in a recomputation by
anybody from the published integers, and in a plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.accounting import total_rho
from dp_powerflow.privacy.budget import PrivacyUnit, QueryCost
from dp_powerflow.privacy.contributions import Query, release_sum
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

Blocks = Sequence[Iterable[FloatArray]]
_CLOSE = 1e-6  # relative difference of two noise scales that are the same but for rounding


@dataclass(frozen=True, eq=False)
class Answer:
    """A query that was answered.

    Parameters
    ----------
    cost
        What it spent.
    integers
        Noisy sums (block, dimension) in grid units, int64; publishable.
    """

    cost: QueryCost
    integers: IntArray


class Session(ABC):
    """Asks queries, never past its budget, and keeps the answers.

    Parameters
    ----------
    unit
        What one record is.
    cohort
        Public class of the records, or None if every record takes part.
    rho
        The most the session may spend.
    """

    def __init__(self, unit: PrivacyUnit, cohort: str | None, rho: float) -> None:
        self._unit = unit
        self._cohort = cohort
        self._rho = rho
        self._costs: list[QueryCost] = []
        self._integers: list[IntArray] = []

    @property
    def costs(self) -> tuple[QueryCost, ...]:
        """What has been spent so far."""
        return tuple(self._costs)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Every query with its noisy integers."""
        return tuple(Answer(*pair) for pair in zip(self._costs, self._integers, strict=True))

    @property
    def rho_left(self) -> float:
        """Budget not yet spent."""
        return self._rho - total_rho(self._costs)

    def ask(self, query: Query, blocks: Blocks) -> list[FloatArray]:
        """Noisy sums (dimension,) in the natural unit, one for each block, for one charge.

        Parameters
        ----------
        query
            What is asked.
        blocks
            Contributions in chunks (record, dimension). Each record is in exactly one block. If the block of
            a record is private, replacing the record moves at most R out of one block and R into another,
            ‖·‖² ≤ 2R², which no region's sensitivity is below: all blocks together cost one query.
        """
        if query.name in {cost.query for cost in self._costs}:
            raise PrivacyError(
                f"the query '{query.name}' was already answered; its noise stream cannot be used again"
            )
        cost = self._charge(query)
        if total_rho([*self._costs, cost]) > self._rho * (1 + 1e-9):
            raise PrivacyError(
                f"the query '{query.name}' would exceed the budget of this fit; nothing was released"
            )
        self._costs.append(cost)
        self._integers.append(self._answer(query, cost, blocks))
        return [row * cost.grid_step for row in self._integers[-1].astype(np.float64)]

    def _charge(self, query: Query) -> QueryCost:
        return query.cost(self._unit, self._cohort)

    @abstractmethod
    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        """Integers (block, dimension); the cost is recorded by now."""


class QuerySession(Session):
    """Asks private data, with noise.

    Parameters
    ----------
    key
        Streams of the noise; one per query and block.
    unit, cohort, rho
        As in `Session`.
    """

    def __init__(self, key: StreamKey, unit: PrivacyUnit, cohort: str | None, rho: float) -> None:
        super().__init__(unit, cohort, rho)
        self._key = key

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        purpose = f"noise/{self._cohort or '*'}/{query.name}"
        return np.array(
            [
                release_sum(chunks, query, cost.sigma, self._key.stream(purpose, block))
                for block, chunks in enumerate(blocks)
            ]
        )


class ReplaySession(Session):
    """Answers from published integers, in order; never evaluates a contribution.

    Parameters
    ----------
    published
        Answers that are left; several sessions may share one iterator.
    unit, cohort, rho
        As in `Session`.
    """

    def __init__(
        self, published: Iterator[Answer], unit: PrivacyUnit, cohort: str | None, rho: float
    ) -> None:
        super().__init__(unit, cohort, rho)
        self._published = published

    def _charge(self, query: Query) -> QueryCost:
        self._next = next(self._published, None)
        if self._next is None or not _same(self._next.cost, super()._charge(query)):
            raise PrivacyError(
                f"the published answers do not hold the query '{query.name}' at the cost that the public "
                "options give; the file was changed, get it again"
            )
        return self._next.cost

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        assert self._next is not None  # see `_charge`
        if self._next.integers.shape != (len(blocks), query.dimension):
            raise PrivacyError(
                f"the published answer to '{query.name}' has the wrong size; the file was changed"
            )
        return self._next.integers


class PlanSession(Session):
    """Answers zero to everything: which queries a fit asks and what they cost, from public facts alone."""

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        return np.zeros((len(blocks), query.dimension), dtype=np.int64)


def _same(published: QueryCost, due: QueryCost) -> bool:
    """Equal, but for the rounding of noise scale and grid step."""
    first, second = (
        (c.query, c.unit, c.cohort, c.dimension, c.region, c.sensitivity_squared, c.natural_unit)
        for c in (published, due)
    )
    return (
        first == second
        and math.isclose(published.sigma, due.sigma, rel_tol=_CLOSE)
        and math.isclose(published.grid_step, due.grid_step, rel_tol=_CLOSE)
    )
