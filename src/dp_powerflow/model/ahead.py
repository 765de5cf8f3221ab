"""Days that are solved side by side, whatever parts they are written in.

The solver of a feeder as operated goes through a day step by step and takes several days at a time, one per
lane. A part of a large feeder is a day or two. So the days of the next parts are drawn and solved with it,
and kept until they are asked for. What becomes of a day depends on that day alone, so the bits are those of
`solve_days`, part by part.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields, replace
from weakref import WeakKeyDictionary

import numpy as np

from dp_powerflow.model.sample import LoadBlock, LoadSource, PlacedLaw, SolvedDays, solve_days
from dp_powerflow.powerflow.batch import Nodes, Solver
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.powerflow.sun import Generation

MOST_PHASORS = 1 << 24
"""Voltages that are kept at a time: 256 MiB."""


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


@dataclass(eq=False)
class _Kept:
    """Days of one source that are solved and not asked for yet."""

    source: LoadSource | None = None
    parts: dict[int, SolvedDays] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_kept: WeakKeyDictionary[OperatedSolver, _Kept] = WeakKeyDictionary()


def solve_ahead(
    solver: Solver,
    source: LoadSource,
    block: int = 0,
    *,
    generation: Generation | None = None,
    nodes: Nodes = "retained",
    mend: bool = False,
) -> SolvedDays:
    """One block of days, as `solve_days` gives it; blocks are best asked for in ascending order.

    A solver serves one source and one set of options, as that of a worker does.

    Parameters
    ----------
    solver, source, block, generation, nodes, mend : as of `solve_days`.
    """
    joined = blocks_at_once(solver, source, nodes)
    if joined == 1 or not isinstance(solver, OperatedSolver):
        return solve_days(solver, source, block, generation=generation, nodes=nodes, mend=mend)
    kept = _kept.setdefault(solver, _Kept())
    with kept.lock:
        if kept.source is not source:
            kept.source, kept.parts = source, {}
        if block not in kept.parts:
            first = block - block % joined
            numbers = range(first, min(first + joined, source.n_blocks))
            drawn = _Drawn(source, [source.block(k) for k in numbers])
            made = solve_days(solver, drawn, generation=generation, nodes=nodes, mend=mend)
            ends = np.cumsum(drawn.days).tolist()
            for number, size, end in zip(numbers, drawn.days, ends, strict=True):
                kept.parts[number] = _days(made, end - size, end)
            # Another thread may still ask for some of those before.
            while len(kept.parts) > 2 * joined:
                kept.parts.pop(next(iter(kept.parts)))
        return kept.parts.pop(block)


def blocks_at_once(solver: Solver, source: LoadSource, nodes: Nodes) -> int:
    """How many blocks are solved side by side."""
    if not isinstance(solver, OperatedSolver):
        return 1
    days = -(-source.n_days // source.n_blocks)
    feeder = solver.feeder
    width = len(feeder.retained) if nodes == "retained" else len(feeder.energised)
    room = MOST_PHASORS // (days * source.law.steps * width)
    return max(1, min(solver.days_at_once // days, room, source.n_blocks))


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
