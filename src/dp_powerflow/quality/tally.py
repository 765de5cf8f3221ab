"""One pass over a corpus: integers that add up in any order, and the totals of every snapshot.

Memory is a few counters per node and time of day, whatever the number of days; only the totals of the feeder
(a few integers per snapshot) grow with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dp_powerflow._parallel import Threads, cores
from dp_powerflow.corpus.extras import POWER_PER_KW
from dp_powerflow.corpus.reader import MINUTES_PER_DAY, Corpus
from dp_powerflow.corpus.schema import VM_PER_PU, Float32Array
from dp_powerflow.quality.counting import (
    BINS,
    EXACT_ROWS,
    HIGHEST,
    LOWEST,
    add_powers,
    count_voltages,
    deviations,
    find,
)
from dp_powerflow.quality.nodes import NodeGroups
from dp_powerflow.quality.reading import active_powers, magnitudes
from dp_powerflow.quality.result import RANGE_A, RANGE_B
from dp_powerflow.units import FloatArray, IntArray

MOST_SLOTS = 96
"""Times of day that are told apart; finer steps are counted together."""
TAPS_MOST = 64
"""Taps beyond are counted there."""
_MOST_TASKS = 128
_NEVER = 8 * VM_PER_PU + 1

Progress = Callable[[int, int], None]


class Found(NamedTuple):
    """A voltage in grid counts, and where it is."""

    grid_count: int
    day: int
    node: int
    step: int


@dataclass(frozen=True, eq=False)
class Pass:
    """What is counted: the corpus, its groups of nodes, and the nodes whose correlation is wanted."""

    corpus: Corpus
    groups: NodeGroups
    chosen: IntArray

    @property
    def slot(self) -> IntArray:
        """(step,) time of day at which a step is counted."""
        steps = self.corpus.layout.steps
        return np.arange(steps, dtype=np.int64) * min(steps, MOST_SLOTS) // steps

    @property
    def slots(self) -> int:
        return min(self.corpus.layout.steps, MOST_SLOTS)

    @property
    def minutes(self) -> IntArray:
        """(slot,) beginnings [minutes after midnight]."""
        first = np.searchsorted(self.slot, np.arange(self.slots))
        return np.asarray(first * MINUTES_PER_DAY // self.corpus.layout.steps)

    def start(self, threads: int | None) -> Callable[[int], Tally]:
        """What counts one task, some parts after each other."""
        return self.count

    def parts(self, task: int) -> range:
        """Parts of a task."""
        width = -(-self.corpus.layout.n_parts // _MOST_TASKS)
        return range(self.corpus.layout.n_parts)[task * width : (task + 1) * width]

    def count(self, task: int) -> Tally:
        """Count the parts of a task."""
        tally = Tally.empty(self, self.parts(task))
        for part in self.parts(task):
            for days, vm_pu in magnitudes(self.corpus, part):
                tally.add_voltages(self, days, vm_pu)
            tally.add_beside(self, part)
        return tally


@dataclass(eq=False)
class Tally:
    """Sums of integers over some consecutive parts.

    Attributes
    ----------
    days : the days counted.
    counts : (group, slot, bin) magnitudes.
    nodes : (node, 5) figures of nodes (`counting`).
    sums, products : (chosen,), (chosen, chosen) of deviations from 1 p.u. in grid counts.
    lowest, highest : extremes.
    power : name → (day, step) grid counts.
    taps : (regulator, slot, tap) counts.
    moves : (regulator,) tap steps moved within days.
    closed, switchings : (capacitor,) snapshots closed, and changes within days.
    locked, mended, mended_most : snapshots, snapshots, times.
    """

    days: range
    counts: IntArray
    nodes: IntArray
    sums: IntArray
    products: IntArray
    lowest: Found
    highest: Found
    power: dict[str, IntArray]
    taps: IntArray
    moves: IntArray
    closed: IntArray
    switchings: IntArray
    locked: int = 0
    mended: int = 0
    mended_most: int = 0

    @classmethod
    def empty(cls, of: Pass, parts: range) -> Tally:
        """Nothing counted yet, for the days of these parts."""
        layout, extras = of.corpus.layout, of.corpus.extras
        days = range(layout.days_of(parts[0]).start, layout.days_of(parts[-1]).stop)
        nodes = np.zeros((layout.nodes, 5), dtype=np.int64)
        nodes[:, LOWEST] = _NEVER
        names = [name for name in ("head", "loads", "generation") if name in extras.holds]
        chosen = len(of.chosen)
        return cls(
            days=days,
            # A task counts less than 2³¹ of anything.
            counts=np.zeros((len(of.groups.names), of.slots, BINS), dtype=np.int32),
            nodes=nodes,
            sums=np.zeros(chosen, dtype=np.int64),
            products=np.zeros((chosen, chosen), dtype=np.int64),
            lowest=Found(_NEVER, 0, 0, 0),
            highest=Found(-1, 0, 0, 0),
            power={name: np.zeros((len(days), layout.steps), dtype=np.int64) for name in names},
            taps=np.zeros((extras.regulators, of.slots, 2 * TAPS_MOST + 1), dtype=np.int64),
            moves=np.zeros(extras.regulators, dtype=np.int64),
            closed=np.zeros(extras.capacitors, dtype=np.int64),
            switchings=np.zeros(extras.capacitors, dtype=np.int64),
        )

    def add_voltages(self, of: Pass, days: range, vm_pu: Float32Array) -> None:
        """Count a row group: magnitudes (day, node, step)."""
        fresh = np.zeros_like(self.nodes)
        fresh[:, LOWEST] = _NEVER
        count_voltages(vm_pu, of.groups.of, of.slot, _ranges(), self.counts, fresh)
        low, high = int(np.argmin(fresh[:, LOWEST])), int(np.argmax(fresh[:, HIGHEST]))
        if fresh[low, LOWEST] < self.lowest.grid_count:
            self.lowest = _found(vm_pu, days, low, int(fresh[low, LOWEST]))
        if fresh[high, HIGHEST] > self.highest.grid_count:
            self.highest = _found(vm_pu, days, high, int(fresh[high, HIGHEST]))
        self._add_nodes(fresh)
        moved: FloatArray = np.empty((len(of.chosen), len(days) * of.corpus.layout.steps))
        deviations(vm_pu, of.chosen, moved)
        for first in range(0, moved.shape[1], EXACT_ROWS):
            block = moved[:, first : first + EXACT_ROWS]
            # Sums of integers below 2⁵³: exact in any order.
            self.products += (block @ block.T).astype(np.int64)
            self.sums += block.sum(axis=1).astype(np.int64)

    def add_beside(self, of: Pass, part: int) -> None:
        """Count what a part holds beside its voltages."""
        corpus, own = of.corpus, of.corpus.layout.days_of(part)
        at = slice(own.start - self.days.start, own.stop - self.days.start)
        if "loads" in self.power:
            for days, powers in active_powers(corpus, part):
                here = slice(days.start - self.days.start, days.stop - self.days.start)
                for name, kw in zip(("loads", "generation"), powers, strict=False):
                    add_powers(kw, self.power[name][here])
        if "head" in self.power:
            counts = np.rint(corpus.head(own).real * POWER_PER_KW).astype(np.int64)
            self.power["head"][at] = counts.sum(axis=2)
        holds = corpus.extras.holds
        if "taps" in holds:
            self._add_taps(of, corpus.taps(own))
        if "capacitors" in holds:
            states = corpus.capacitors(own)
            self.closed += states.sum(axis=(0, 1))
            self.switchings += np.abs(np.diff(states, axis=1)).sum(axis=(0, 1))
        if "locked" in holds:
            self.locked += int(np.count_nonzero(corpus.locked(own)))
        if "mended" in holds:
            times = corpus.mended(own)
            self.mended += int(np.count_nonzero(times))
            self.mended_most = max(self.mended_most, int(times.max(initial=0)))

    def merge(self, other: Tally) -> None:
        """Add what was counted of other days; this tally is of all days."""
        self.counts += other.counts
        self._add_nodes(other.nodes)
        self.sums += other.sums
        self.products += other.products
        self.lowest = min(self.lowest, other.lowest)
        self.highest = min(self.highest, other.highest, key=lambda found: (-found.grid_count, *found[1:]))
        for name, values in other.power.items():
            self.power[name][other.days.start : other.days.stop] = values
        self.taps += other.taps
        self.moves += other.moves
        self.closed += other.closed
        self.switchings += other.switchings
        self.locked += other.locked
        self.mended += other.mended
        self.mended_most = max(self.mended_most, other.mended_most)

    def _add_nodes(self, fresh: IntArray) -> None:
        np.minimum(self.nodes[:, LOWEST], fresh[:, LOWEST], out=self.nodes[:, LOWEST])
        np.maximum(self.nodes[:, HIGHEST], fresh[:, HIGHEST], out=self.nodes[:, HIGHEST])
        self.nodes[:, HIGHEST + 1 :] += fresh[:, HIGHEST + 1 :]

    def _add_taps(self, of: Pass, taps: IntArray) -> None:
        """Taps (day, step, regulator)."""
        self.moves += np.abs(np.diff(taps, axis=1)).sum(axis=(0, 1))
        rows = np.clip(taps, -TAPS_MOST, TAPS_MOST) + TAPS_MOST
        width = self.taps.shape[2]
        for k in range(taps.shape[2]):
            flat = (of.slot * width + rows[:, :, k]).ravel()
            self.taps[k] += np.bincount(flat, minlength=of.slots * width).reshape(of.slots, width)


def take(of: Pass, workers: int | None = None, progress: Progress | None = None) -> Tally:
    """Count a whole corpus, on so many threads; None for one per core.

    Raises
    ------
    CorpusError : a file is missing or damaged.
    """
    layout = of.corpus.layout
    total = Tally.empty(of, range(layout.n_parts))
    total.counts = total.counts.astype(np.int64)
    done = 0

    def counted(tally: Tally) -> None:
        nonlocal done
        total.merge(tally)
        done += len(tally.days)
        if progress is not None:
            progress(done, layout.days)

    tasks = range(-(-layout.n_parts // len(of.parts(0))))
    Threads(workers or cores()).run(of, tasks, counted)
    return total


def _found(vm_pu: Float32Array, days: range, node: int, count: int) -> Found:
    day, step = find(vm_pu, node, count)
    return Found(count, days.start + day, node, step)


def _ranges() -> IntArray:
    return np.array([round(end * VM_PER_PU) for end in (*RANGE_A, *RANGE_B)], dtype=np.int64)
