"""Days that are solved side by side, whatever blocks they are drawn in.

The solver of a feeder as operated goes through a day step by step and takes several days at a time, one per
lane. A block of a large feeder is a day or two. So the days of several blocks are drawn and solved together.
What becomes of a day depends on that day alone, so the bits are those of `solve_days`, block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from dp_powerflow.model.sample import LoadBlock, LoadSource, PlacedLaw, SolvedDays, solve_days
from dp_powerflow.powerflow.batch import Nodes, Solver
from dp_powerflow.powerflow.sun import Generation

MOST_PHASORS = 1 << 24
"""Voltages that are solved together: 256 MiB."""


def solve_blocks(
    solver: Solver,
    source: LoadSource,
    blocks: Sequence[int],
    *,
    generation: Generation | None = None,
    nodes: Nodes = "retained",
    mend: bool = False,
) -> list[SolvedDays]:
    """Blocks that follow one another, each as `solve_days` gives it, solved together.

    Parameters
    ----------
    blocks : their numbers, one after the other.
    solver, source, generation, nodes, mend : as of `solve_days`.
    """
    if len(blocks) == 1:
        return [solve_days(solver, source, blocks[0], generation=generation, nodes=nodes, mend=mend)]
    drawn = _Drawn(source, [source.block(number) for number in blocks])
    made = solve_days(solver, drawn, generation=generation, nodes=nodes, mend=mend)
    ends = np.cumsum(drawn.days).tolist()
    return [_days(made, end - size, end) for size, end in zip(drawn.days, ends, strict=True)]


def blocks_at_once(source: LoadSource, nodes: int, days_at_once: int) -> int:
    """How many blocks to solve together.

    Parameters
    ----------
    nodes : whose voltages are wanted.
    days_at_once : days that cost the solver hardly more than one.
    """
    days = -(-source.n_days // source.n_blocks)
    room = MOST_PHASORS // (days * source.law.steps * nodes)
    return max(1, min(days_at_once // days, room, source.n_blocks))


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A source of one block that is drawn already: several blocks of another one after one another."""

    source: LoadSource
    blocks: list[LoadBlock]

    @property
    def law(self) -> PlacedLaw:
        return self.source.law

    @property
    def n_days(self) -> int:
        return sum(self.days)

    @property
    def n_blocks(self) -> int:
        return 1

    @property
    def days(self) -> list[int]:
        """Days of the blocks."""
        return [block.load_kw.shape[1] for block in self.blocks]

    def block(self, index: int) -> LoadBlock:
        del index  # there is one
        active, reactive = (
            np.concatenate(parts, axis=1)
            for parts in zip(*((block.load_kw, block.load_kvar) for block in self.blocks), strict=True)
        )
        return LoadBlock(self.blocks[0].first_day, active, reactive)


def _days(made: SolvedDays, first: int, last: int) -> SolvedDays:
    """Some of the days."""
    rows = slice(first * made.steps, last * made.steps)
    solution = made.solution
    parts = {each.name: getattr(solution, each.name)[rows] for each in fields(solution)}
    return replace(
        made,
        first_day=made.first_day + first,
        load=made.load[rows],
        generation=None if made.generation is None else made.generation[rows],
        solution=replace(solution, **parts),
        mended=made.mended[rows],
    )
