"""Days that are solved side by side, whatever blocks they are drawn in.

The solver of a feeder as operated goes through a day step by step and takes several days at a time, one per
lane. A block of a large feeder is a day or two. So the days of several blocks are drawn and solved together.
What becomes of a day depends on that day alone, so the bits are those of `solve_days`, block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np

from dp_powerflow.model.sample import (
    LoadSource,
    PlacedDays,
    SolvedDays,
    columns_of,
    placed_load,
    solve_placed,
)
from dp_powerflow.powerflow.batch import Nodes, Solver
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.units import ComplexArray

MOST_PHASORS = 1 << 24
"""Voltages that are solved together: 256 MiB."""


@dataclass(eq=False)
class BlockSolver:
    """Solves runs of blocks, one run after the other in the same memory.

    Memory that is new to a process costs more than what is written into it: at 10,000 nodes a third of the
    time of drawing and solving. So loads and voltages of a run take the place of those of the run before.
    For one thread.

    Parameters
    ----------
    solver, source, generation, nodes, mend : as of `solve_days`.
    """

    solver: Solver
    source: LoadSource
    generation: Generation | None = None
    nodes: Nodes = "retained"
    mend: bool = False
    _load: ComplexArray = field(default_factory=lambda: _memory(0), init=False)
    _voltages: ComplexArray = field(default_factory=lambda: _memory(0), init=False)

    def run(self, blocks: Sequence[int]) -> list[SolvedDays]:
        """Blocks that follow one another, each as `solve_days` gives it, solved together.

        The next call writes over what this one gives.
        """
        law, feeder = self.source.law, self.solver.feeder
        width, ends = columns_of(self.solver, law), [0]
        wanted = len(feeder.retained if self.nodes == "retained" else feeder.energised)
        first_day, load = 0, self._load
        for number in blocks:
            drawn = self.source.block(number)
            _, days, steps = drawn.load_kw.shape
            if ends == [0]:
                first_day = drawn.first_day
                most = len(blocks) * days * steps  # the last block may be shorter, no other
                self._load = _at_least(self._load, most * width)
                self._voltages = _at_least(self._voltages, most * wanted)
                load = self._load[: most * width].reshape(most, width)
            rows = slice(ends[-1] * steps, (ends[-1] + days) * steps)
            placed_load(law, drawn, width, load[rows])
            ends.append(ends[-1] + days)
        rows = slice(0, ends[-1] * law.steps)
        voltages = self._voltages[: rows.stop * wanted].reshape(rows.stop, wanted)
        made = solve_placed(
            self.solver,
            PlacedDays(law, first_day, load[rows], voltages),
            generation=self.generation,
            nodes=self.nodes,
            mend=self.mend,
        )
        return [_days(made, first, last) for first, last in pairwise(ends)]


def solve_blocks(
    solver: Solver,
    source: LoadSource,
    blocks: Sequence[int],
    *,
    generation: Generation | None = None,
    nodes: Nodes = "retained",
    mend: bool = False,
) -> list[SolvedDays]:
    """One run of blocks in memory of its own; parameters as of `BlockSolver`."""
    return BlockSolver(solver, source, generation, nodes, mend).run(blocks)


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


def _memory(size: int) -> ComplexArray:
    return np.empty(size, dtype=np.complex128)


def _at_least(memory: ComplexArray, size: int) -> ComplexArray:
    """The same memory, or new where it is too small."""
    return memory if memory.size >= size else _memory(size)


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
