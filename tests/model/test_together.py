"""Days that are solved side by side have the bits of days that are solved part by part."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import pytest

from dp_powerflow import BatchSolver, OperatedSolver, open_feeder
from dp_powerflow.lowlevel import placed_load, solve_days
from dp_powerflow.model.sample import BlockSolver, LoadBlock, SolvedDays, blocks_at_once
from dp_powerflow.units import IntArray

STEPS, DAYS, PER_BLOCK = 6, 11, 2
OVERLOAD = 1e4


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
    np.testing.assert_array_equal(one.scaled_down, other.scaled_down)
    for each in fields(one.solution):
        np.testing.assert_array_equal(getattr(one.solution, each.name), getattr(other.solution, each.name))


@pytest.mark.parametrize("blocks", [range(6), range(2, 3), range(1, 4)])
def test_days_solved_together_are_those_of_their_blocks_to_the_bit(
    solver: OperatedSolver, blocks: range
) -> None:
    together, plain = Source(solver), Source(solver)
    found = BlockSolver(solver, together, nodes="all", scale_down=True).run(blocks)
    assert together.asked == list(blocks)
    assert any(days.scaled_down.any() for days in found)
    for block, days in zip(blocks, found, strict=True):
        assert_same(days, solve_days(solver, plain, block, nodes="all", scale_down=True))


def test_runs_in_the_same_memory_have_the_bits_of_runs_in_new_memory(solver: OperatedSolver) -> None:
    source = Source(solver)
    blocks = BlockSolver(solver, source, nodes="all", scale_down=True)
    for run in (
        range(2, 3),
        range(3),
        range(4, 6),
        range(2),
    ):  # longer, shorter, with and without scaling down
        for block, days in zip(run, blocks.run(run), strict=True):
            assert_same(days, solve_days(solver, source, block, nodes="all", scale_down=True))


def test_memory_of_earlier_loads_is_written_over_where_the_law_has_no_load() -> None:
    law = Law(1.0, positions=np.array([1, 3]))
    kw = np.arange(2.0 * 3 * STEPS).reshape(2, 3, STEPS)
    drawn = LoadBlock(0, kw, -kw)
    used = np.full((3 * STEPS, 5), 7.0 - 7.0j)
    found = placed_load(law, drawn, 5, used)
    assert found is used
    expected = placed_load(law, drawn, 5)
    assert not expected[:, [0, 2, 4]].any()
    np.testing.assert_array_equal(found.view(np.int64), expected.view(np.int64))


def test_as_many_blocks_as_have_the_days_of_the_lanes_and_fit_the_memory() -> None:
    source = Source(BatchSolver(open_feeder("ieee13"), threads=1))
    assert blocks_at_once(source, 40, 8) == 4
    assert blocks_at_once(source, 40, 1) == 1
    assert blocks_at_once(source, 10**9, 8) == 1
