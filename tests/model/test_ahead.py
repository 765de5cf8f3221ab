"""Days that are solved side by side have the bits of days that are solved part by part."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import pytest

from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.model.ahead import blocks_at_once, solve_ahead
from dp_powerflow.model.sample import LoadBlock, SolvedDays, solve_days
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.units import IntArray

STEPS, DAYS, PER_BLOCK = 6, 11, 2
OVERLOAD = 1000.0


@dataclass(frozen=True)
class Law:
    base_mva: float
    steps: int = STEPS
    positions: IntArray | None = None
    shares: None = None


@dataclass(frozen=True, eq=False)
class Source:
    """Blocks of two days, the last of one; the nominal loads times a number of the day and the step."""

    solver: OperatedSolver | BatchSolver
    asked: list[int] = field(default_factory=list)
    n_days: int = DAYS
    n_blocks: int = -(-DAYS // PER_BLOCK)

    @property
    def law(self) -> Law:
        return Law(self.solver.feeder.base_mva)

    def block(self, index: int) -> LoadBlock:
        self.asked.append(index)
        feeder = self.solver.feeder
        loads = len(feeder.loads) if self.solver.columns == "elements" else len(feeder.retained)
        nominal = np.full(loads, 20.0)
        days = np.arange(index * PER_BLOCK, min((index + 1) * PER_BLOCK, DAYS))
        factor = 0.3 + np.abs(np.sin(1.0 + 7.0 * days[:, None] + np.arange(STEPS)))
        factor[days == 4, 3] *= OVERLOAD
        kw = nominal[:, None, None] * factor
        return LoadBlock(int(days[0]), kw, 0.3 * kw)


@pytest.fixture(scope="module")
def solver() -> OperatedSolver:
    return OperatedSolver(open_feeder("ieee13"), controls="day", steps=STEPS, threads=1)


def assert_same(one: SolvedDays, other: SolvedDays) -> None:
    assert one.first_day == other.first_day
    assert one.days == other.days
    np.testing.assert_array_equal(one.load, other.load)
    np.testing.assert_array_equal(one.mended, other.mended)
    for each in fields(one.solution):
        np.testing.assert_array_equal(getattr(one.solution, each.name), getattr(other.solution, each.name))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 0, 3, 3, 1]])
def test_days_solved_ahead_are_those_of_their_parts_to_the_bit(
    solver: OperatedSolver, order: list[int]
) -> None:
    ahead, plain = Source(solver), Source(solver)
    assert blocks_at_once(solver, ahead, "all") > 1
    mended = 0
    for block in order:
        found = solve_ahead(solver, ahead, block, nodes="all", mend=True)
        assert_same(found, solve_days(solver, plain, block, nodes="all", mend=True))
        mended += int(found.mended.any())
    assert mended == (2 in order)


def test_every_block_is_drawn_once_where_they_are_asked_for_in_order(solver: OperatedSolver) -> None:
    source = Source(solver)
    for block in range(source.n_blocks):
        solve_ahead(solver, source, block, mend=True)
    assert sorted(source.asked) == list(range(source.n_blocks))


def test_a_solver_without_days_solves_block_by_block() -> None:
    frozen = BatchSolver(open_feeder("ieee13"), threads=1)
    source = Source(frozen)
    solve_ahead(frozen, source, 2)
    assert source.asked == [2]
