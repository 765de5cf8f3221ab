"""Queries: bounded contributions of records, their exact sum, its noisy release, and sessions that ask.

The argument for every query of the package is the one below, so that it can be read, and attacked, once.

1. A record's contribution is a vector c that is a function of that record and of public or released values.
2. It is scaled so that the public clip radius is R = 2²⁴ grid units, clipped to that radius, rounded towards
   zero, and its norm is checked in integer arithmetic: Σ z² ≤ R² holds exactly, whatever floating point did.
   A contribution that is not finite counts as zero.
3. Contributions are summed in int64 (n·R is checked to fit). Integer sums are exact, so neighbours' sums
   differ by exactly z − z′, or by z in one class's block and z′ in another's if the class is private.
4. ‖z − z′‖ is bounded by the region the contributions lie in:
   `BALL` any direction: ‖z − z′‖ ≤ 2R;
   `ORTHANT` all entries ≥ 0: ⟨z, z′⟩ ≥ 0, so ‖z − z′‖² ≤ 2R²;
   `PSD` vectorised positive semidefinite matrices A, B: ⟨A, B⟩ = tr(AB) ≥ 0, so ‖A − B‖ ≤ √2·R before
   rounding; rounding moves each by at most √d, floating point by less than ½: √2·R + 2√d + 1.
   In two different blocks ‖z‖² + ‖z′‖² ≤ 2R², which is below each of the three.

A session asks queries of one set of records, in one of three forms.
`QuerySession` asks private data and adds noise. `ReplaySession` answers from integers that were published; it
never evaluates a contribution. `PlanSession` answers zero; it lists what would be asked. All three check and
record a cost before its integers exist, so the code that asks is the same in a fit, in a recomputation by
anybody from the published integers, and in a plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from dp_powerflow._bits.linear import norms
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import PrivacyUnit, QueryCost, total_rho
from dp_powerflow.privacy.random import MAX_SIGMA, Stream, StreamKey, discrete_gaussian
from dp_powerflow.units import FloatArray, IntArray

GRID_RADIUS = 2**24
MAX_DIMENSION = 2**14  # squares of an unclipped row still fit 64 bits
_MAX_RECORDS = 2**36
_CLOSE = 1e-9  # relative difference of two noise scales that are the same but for rounding

Blocks = Sequence[Iterable[FloatArray]]


class Region(StrEnum):
    """Where contributions lie inside the ball of radius R."""

    BALL = "ball"
    ORTHANT = "orthant"
    PSD = "psd"


@dataclass(frozen=True)
class Query:
    """A sum to be released: public constants only.

    Parameters
    ----------
    name
        For the cost record.
    dimension
        Length of one record's contribution.
    radius
        Public L2 clip radius of a contribution, in the natural unit.
    region
        Where contributions lie.
    rho
        Budget for this query.
    natural_unit
        Unit of the contribution, for the cost record.
    """

    name: str
    dimension: int
    radius: float
    region: Region
    rho: float
    natural_unit: str = "1"

    def __post_init__(self) -> None:
        if not 1 <= self.dimension <= MAX_DIMENSION:
            raise PrivacyError(
                f"the query '{self.name}' releases {self.dimension} numbers; "
                f"at most {MAX_DIMENSION} are supported"
            )
        if not (self.radius > 0 and self.rho > 0):
            raise PrivacyError(f"the query '{self.name}' needs a positive clip radius and a positive budget")

    @property
    def grid_step(self) -> float:
        """One grid unit in the natural unit."""
        return self.radius / GRID_RADIUS

    def cost(self, unit: PrivacyUnit, cohort: str | None) -> QueryCost:
        """The record of what the query will spend on records of a public cohort; at most its budget."""
        squared = sensitivity_squared(self.region, self.dimension)
        sigma = math.ceil(math.sqrt(squared / (2 * self.rho)))
        while squared > 2 * self.rho * sigma**2:
            sigma += 1
        if sigma > MAX_SIGMA:
            raise PrivacyError(f"the budget of the query '{self.name}' is too small; raise epsilon")
        return QueryCost(
            query=self.name,
            unit=unit,
            cohort=cohort,
            dimension=self.dimension,
            region=str(self.region),
            sensitivity_squared=squared,
            grid_step=self.grid_step,
            natural_unit=self.natural_unit,
            sigma=sigma,
        )


def sensitivity_squared(region: Region, dimension: int, radius: int = GRID_RADIUS) -> int:
    """Bound on ‖z − z′‖² in squared grid units, as an exact integer (argument in the module's docstring)."""
    if region is Region.BALL:
        return 4 * radius**2
    if region is Region.ORTHANT:
        return 2 * radius**2
    # (√2·R + 2√d + 1)², with each square root rounded up
    bound = math.isqrt(2 * radius**2) + 1 + math.isqrt(4 * dimension) + 1 + 1
    return bound**2


def quantise(values: FloatArray, query: Query) -> IntArray:
    """Contributions (record, dimension) as integers with Σ z² ≤ R², in the query's region."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.asarray(values, dtype=np.float64) / query.grid_step
        norm = norms(scaled)
        scaled *= (GRID_RADIUS / np.maximum(norm, GRID_RADIUS))[:, None]
        scaled[~np.isfinite(scaled).all(axis=1)] = 0.0
    if query.region is Region.ORTHANT:
        np.maximum(scaled, 0.0, out=scaled)
    # Rounding towards zero cannot lengthen a vector.
    grid = np.clip(np.trunc(scaled), -GRID_RADIUS, GRID_RADIUS).astype(np.int64)
    # Rows that floating point left longer than R are shrunk; exact integer arithmetic.
    while (long := np.flatnonzero(np.einsum("nd,nd->n", grid, grid) > GRID_RADIUS**2)).size:
        grid[long] -= np.sign(grid[long])
    return grid


def exact_sum(chunks: Iterable[FloatArray], query: Query) -> IntArray:
    """Exact sum (dimension,) of the quantised contributions of all records, chunk by chunk."""
    total = np.zeros(query.dimension, dtype=np.int64)
    records = 0
    for chunk in chunks:
        records += chunk.shape[0]
        if records > _MAX_RECORDS:
            raise PrivacyError("too many records for exact 64-bit sums; fit on fewer load points or days")
        total += quantise(chunk, query).sum(axis=0)
    return total


def add_noise(total: IntArray, sigma: int, stream: Stream) -> IntArray:
    """The integer sum plus independent discrete Gaussian noise on every entry; audits replace it."""
    return total + discrete_gaussian(stream, sigma, total.size)


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

    lists_only = False
    """Whether the answers mean nothing, because only the list of queries is wanted."""

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
        """Clip, quantise, sum exactly and add noise: the only way data reach a released number."""
        purpose = f"noise/{'*' if self._cohort is None else self._cohort}/{query.name}"
        released = np.empty((len(blocks), query.dimension), dtype=np.int64)
        for block, chunks in enumerate(blocks):
            stream = self._key.stream(purpose, block)
            released[block] = add_noise(exact_sum(chunks, query), cost.sigma, stream)
        return released


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

    lists_only = True

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        return np.zeros((len(blocks), query.dimension), dtype=np.int64)


def _same(published: QueryCost, due: QueryCost) -> bool:
    """Equal, but for the rounding of noise scale and grid step."""
    return (
        replace(published, sigma=due.sigma, grid_step=due.grid_step) == due
        and math.isclose(published.sigma, due.sigma, rel_tol=_CLOSE, abs_tol=1)
        and math.isclose(published.grid_step, due.grid_step, rel_tol=_CLOSE)
    )
