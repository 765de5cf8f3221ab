"""A sequence of queries on one set of records: every cost is recorded before its noise is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.accounting import total_rho
from dp_powerflow.privacy.budget import PrivacyUnit, QueryCost
from dp_powerflow.privacy.contributions import Query, Region, release_sum
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray


class QuerySession:
    """Asks queries, never past its budget, and keeps their costs.

    Parameters
    ----------
    key
        Streams of the noise; one per query and block.
    unit
        What one record is.
    cohort
        Public class of the records, or None if every record takes part.
    rho
        The most the session may spend.
    """

    def __init__(self, key: StreamKey, unit: PrivacyUnit, cohort: str | None, rho: float) -> None:
        self._key = key
        self._unit = unit
        self._cohort = cohort
        self._rho = rho
        self._costs: list[QueryCost] = []

    @property
    def costs(self) -> tuple[QueryCost, ...]:
        """What has been spent so far."""
        return tuple(self._costs)

    @property
    def rho_left(self) -> float:
        """Budget not yet spent."""
        return self._rho - total_rho(self._costs)

    def ask(
        self,
        name: str,
        blocks: Sequence[Iterable[FloatArray]],
        *,
        dimension: int,
        radius: float,
        region: Region,
        rho: float,
        natural_unit: str,
    ) -> list[FloatArray]:
        """Noisy sums (dimension,), one for each block, for one charge.

        Parameters
        ----------
        blocks
            Contributions in chunks (record, dimension). Each record is in exactly one block. If the block of
            a record is private, replacing the record moves at most R out of one block and R into another,
            ‖·‖² ≤ 2R², which no region's sensitivity is below: all blocks together cost one query.
        """
        if name in {cost.query for cost in self._costs}:
            raise PrivacyError(
                f"the query '{name}' was already answered; its noise stream cannot be used again"
            )
        query = Query(name, natural_unit, self._unit, self._cohort, dimension, radius, region, rho)
        cost = query.cost()
        if total_rho([*self._costs, cost]) > self._rho * (1 + 1e-9):
            raise PrivacyError(
                f"the query '{name}' would exceed the budget of this fit; nothing was released"
            )
        self._costs.append(cost)
        purpose = f"noise/{self._cohort or '*'}/{name}"
        return [
            release_sum(chunks, query, self._key.stream(purpose, block)).total
            for block, chunks in enumerate(blocks)
        ]
