"""One pass over a corpus: integers that add up in any order, and the totals of every snapshot.

Every thread counts whole parts into its own counters, which are added up at the end. Memory is a few
counters per node and time of day for each thread, whatever the number of days; only the totals of the feeder
(a few integers per snapshot) grow with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dp_powerflow._bits.elementary import kernel
from dp_powerflow._parallel import Threads
from dp_powerflow._threads import cores
from dp_powerflow.corpus.grid import POWER_PER_KW, VA_PER_DEG, VM_PER_PU, Float32Array, va_counts
from dp_powerflow.corpus.reader import MINUTES_PER_DAY, Corpus
from dp_powerflow.corpus.schema import DATA, FEEDER, LOADS
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.units import IntArray

LEVELS = (1, 5, 25, 50, 75, 95, 99)
"""Levels of all quantiles [%]."""
RANGE_A = (0.95, 1.05)
"""ANSI C84.1, service voltage, range A [p.u.]."""
RANGE_B = (0.917, 1.058)
"""The same, range B [p.u.]."""
BIN = 100
"""Grid counts per bin: 0.0001 p.u."""
BINS_PER_PU = VM_PER_PU // BIN
FIRST_BIN = BINS_PER_PU // 2
"""The bin of 0.5 p.u.; lower voltages are counted there."""
BINS = BINS_PER_PU + 1
"""Up to 1.5 p.u.; higher voltages are counted there."""
_RANGES = np.array([round(end * VM_PER_PU) for end in (*RANGE_A, *RANGE_B)], dtype=np.int64)
_MOST = 2_000_000_000.0
_TOGETHER = 16
"""Steps of a row of magnitudes in one line of the processor's cache."""

LOWEST, HIGHEST, SUM, INSIDE_A, INSIDE_B = range(5)
"""Columns of the figures of nodes."""


@kernel
def _count(vm_pu: np.float32) -> int:
    """Grid count of a stored magnitude; what is no voltage is 0, or the largest number."""
    return int(np.int32(min(max(0.0, np.float64(vm_pu) * VM_PER_PU + 0.5), _MOST)))


@kernel
def count_voltages(
    vm_pu: Float32Array, group: IntArray, slot: IntArray, ranges: IntArray, counts: IntArray, nodes: IntArray
) -> None:
    """Add magnitudes (day, node, step) to counts (group, slot, bin) and to the figures (node, 5).

    `ranges` are the ends of range A and of range B in grid counts.
    """
    for d in range(vm_pu.shape[0]):
        for n in range(vm_pu.shape[1]):
            _add_row(vm_pu[d, n], ranges, nodes[n])
    steps = vm_pu.shape[2]
    # A few times of day after the other: their bins stay near.
    for first in range(0, steps, _TOGETHER):
        last = min(first + _TOGETHER, steps)
        for d in range(vm_pu.shape[0]):
            for n in range(vm_pu.shape[1]):
                row, of_group = vm_pu[d, n], counts[group[n]]
                for t in range(first, last):
                    found = (_count(row[t]) + BIN // 2) // BIN - FIRST_BIN
                    of_group[slot[t], min(max(found, 0), BINS - 1)] += 1


@kernel
def _add_row(row: Float32Array, ranges: IntArray, figures: IntArray) -> None:
    """Add one day of a node to its figures."""
    low, high, total, in_a, in_b = figures[LOWEST], figures[HIGHEST], 0, 0, 0
    for t in range(row.size):
        count = _count(row[t])
        low, high, total = min(low, count), max(high, count), total + count
        in_a += (ranges[0] <= count) & (count <= ranges[1])
        in_b += (ranges[2] <= count) & (count <= ranges[3])
    figures[LOWEST], figures[HIGHEST] = low, high
    figures[SUM] += total
    figures[INSIDE_A] += in_a
    figures[INSIDE_B] += in_b


@kernel
def find(vm_pu: Float32Array, node: int, wanted: int) -> tuple[int, int]:
    """First day and step at which a node of magnitudes (day, node, step) has this count; -1 if never."""
    for d in range(vm_pu.shape[0]):
        for t in range(vm_pu.shape[2]):
            if _count(vm_pu[d, node, t]) == wanted:
                return d, t
    return -1, -1


@kernel
def add_powers(kw: Float32Array, out: IntArray) -> None:
    """Sum of powers (day, node, step) over the nodes, in grid counts, into (day, step)."""
    for d in range(kw.shape[0]):
        for n in range(kw.shape[1]):
            for t in range(kw.shape[2]):
                out[d, t] += int(np.rint(np.float64(kw[d, n, t]) * POWER_PER_KW))


def quantile_bins(counts: IntArray, levels: tuple[int, ...]) -> IntArray:
    """Bins (level, …) of the quantiles of counts (…, bin)."""
    below = np.cumsum(counts, axis=-1)
    total = below[..., -1:]
    return np.stack([np.argmax(below >= -(-level * total // 100), axis=-1) for level in levels])


def order_statistics(values: IntArray, levels: tuple[int, ...]) -> IntArray:
    """Quantiles (level, …) of integers (value, …)."""
    ranked, n = np.sort(values, axis=0), len(values)
    return np.asarray(ranked[[max(0, -(-level * n // 100) - 1) for level in levels]])


def of_feeder(corpus: Corpus, part: int) -> dict[str, list[NDArray[Any]]]:
    """What a part says of the feeder as a whole: name of `Corpus.holds` → arrays (day, step).

    One array per source phase (active power [kW]), regulator or capacitor.
    """
    wanted = [c for c in corpus.extras.columns(corpus.layout.steps, folder=FEEDER) if c.unit != "kvar"]
    found: dict[str, list[NDArray[Any]]] = {}
    if wanted:
        ((_, stored),) = corpus.groups(FEEDER, part, [column.name for column in wanted])
        for column, values in zip(wanted, stored, strict=True):
            found.setdefault(column.of, []).append(values)
    return found


MOST_SLOTS = 96
"""Times of day that are told apart; finer steps are counted together."""
TAPS_MOST = 64
"""Taps beyond are counted there."""
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
    """What is counted: the corpus, and its groups of nodes."""

    corpus: Corpus
    groups: NodeGroups

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


class Counting:
    """The job of the threads: each has its own tally.

    Attributes
    ----------
    tallies : of all threads, in no order.
    """

    def __init__(self, of: Pass) -> None:
        self.of = of
        self.tallies: list[Tally] = []
        layout, holds = of.corpus.layout, of.corpus.extras.holds
        self._power: dict[str, IntArray] = {
            name: np.zeros((layout.days, layout.steps), dtype=np.int64)
            for name in ("head", "loads", "generation")
            if name in holds
        }

    def start(self, threads: int | None) -> Callable[[int], int]:
        """What counts one part and gives the number of its days."""
        tally = Tally.empty(self.of, self._power)
        self.tallies.append(tally)
        return partial(self._count, tally)

    def _count(self, tally: Tally, part: int) -> int:
        for days, (vm_pu,) in self.of.corpus.groups(DATA, part, ["vm_pu"]):
            tally.add_voltages(self.of, days, vm_pu)
        tally.add_beside(self.of, part)
        return len(self.of.corpus.layout.days_of(part))


@dataclass(eq=False)
class Tally:
    """Sums of integers over some parts.

    Attributes
    ----------
    counts : (group, slot, bin) magnitudes.
    nodes : (node, 5) figures of nodes (`counting`).
    lowest, highest : extremes.
    power : name → (day, step) grid counts of all days. All tallies have the same arrays: a part fills in the
        rows of its days.
    taps : (regulator, slot, tap) counts.
    moves : (regulator,) tap steps moved within days.
    closed, switchings : (capacitor,) snapshots closed, and changes within days.
    locked, scaled_down, scaled_down_most : snapshots, snapshots, times.
    """

    counts: IntArray
    nodes: IntArray
    lowest: Found
    highest: Found
    power: dict[str, IntArray]
    taps: IntArray
    moves: IntArray
    closed: IntArray
    switchings: IntArray
    locked: int = 0
    scaled_down: int = 0
    scaled_down_most: int = 0

    @classmethod
    def empty(cls, of: Pass, power: dict[str, IntArray]) -> Tally:
        """Nothing counted yet."""
        layout, extras = of.corpus.layout, of.corpus.extras
        nodes = np.zeros((layout.nodes, 5), dtype=np.int64)
        nodes[:, LOWEST] = _NEVER
        return cls(
            counts=np.zeros((len(of.groups.names), of.slots, BINS), dtype=np.int64),
            nodes=nodes,
            lowest=Found(_NEVER, 0, 0, 0),
            highest=Found(-1, 0, 0, 0),
            power=power,
            taps=np.zeros((extras.regulators, of.slots, 2 * TAPS_MOST + 1), dtype=np.int64),
            moves=np.zeros(extras.regulators, dtype=np.int64),
            closed=np.zeros(extras.capacitors, dtype=np.int64),
            switchings=np.zeros(extras.capacitors, dtype=np.int64),
        )

    def add_voltages(self, of: Pass, days: range, vm_pu: Float32Array) -> None:
        """Count a row group: magnitudes (day, node, step)."""
        fresh = np.zeros_like(self.nodes)
        fresh[:, LOWEST] = _NEVER
        count_voltages(vm_pu, of.groups.of, of.slot, _RANGES, self.counts, fresh)
        low, high = int(np.argmin(fresh[:, LOWEST])), int(np.argmax(fresh[:, HIGHEST]))
        if fresh[low, LOWEST] <= self.lowest.grid_count:
            self.lowest = min(self.lowest, _found(vm_pu, days, low, int(fresh[low, LOWEST])))
        if fresh[high, HIGHEST] >= self.highest.grid_count:
            self.highest = _higher(self.highest, _found(vm_pu, days, high, int(fresh[high, HIGHEST])))
        self._add_nodes(fresh)

    def add_beside(self, of: Pass, part: int) -> None:
        """Count what a part holds besides its voltages."""
        own = of.corpus.layout.days_of(part)
        if "loads" in self.power:
            drawn_and_injected = ["p_kw", *("g_kw",) * of.corpus.extras.generation]
            for days, powers in of.corpus.groups(LOADS, part, drawn_and_injected):
                for name, kw in zip(("loads", "generation"), powers, strict=False):
                    add_powers(kw, self.power[name][days.start : days.stop])
        found = of_feeder(of.corpus, part)
        for kw in found.get("head", ()):
            counts = np.rint(kw.astype(np.float64) * POWER_PER_KW).astype(np.int64)
            self.power["head"][own.start : own.stop] += counts
        for k, taps in enumerate(found.get("taps", ())):
            self._add_taps(of, k, taps.astype(np.int64))
        for k, closed in enumerate(found.get("capacitors", ())):
            self.closed[k] += np.count_nonzero(closed)
            self.switchings[k] += np.count_nonzero(closed[:, 1:] != closed[:, :-1])
        for locked in found.get("locked", ()):
            self.locked += int(np.count_nonzero(locked))
        for times in found.get("scaled_down", ()):
            self.scaled_down += int(np.count_nonzero(times))
            self.scaled_down_most = max(self.scaled_down_most, int(times.max(initial=0)))

    def merge(self, other: Tally) -> None:
        """Add what was counted of other parts."""
        bins = used_bins(other.nodes)
        self.counts[:, :, bins] += other.counts[:, :, bins]
        self._add_nodes(other.nodes)
        for name in ("taps", "moves", "closed", "switchings", "locked", "scaled_down"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lowest = min(self.lowest, other.lowest)
        self.highest = _higher(self.highest, other.highest)
        self.scaled_down_most = max(self.scaled_down_most, other.scaled_down_most)

    def _add_nodes(self, fresh: IntArray) -> None:
        np.minimum(self.nodes[:, LOWEST], fresh[:, LOWEST], out=self.nodes[:, LOWEST])
        np.maximum(self.nodes[:, HIGHEST], fresh[:, HIGHEST], out=self.nodes[:, HIGHEST])
        self.nodes[:, HIGHEST + 1 :] += fresh[:, HIGHEST + 1 :]

    def _add_taps(self, of: Pass, regulator: int, taps: IntArray) -> None:
        """Taps (day, step) of a regulator."""
        self.moves[regulator] += np.abs(np.diff(taps, axis=1)).sum()
        rows = np.clip(taps, -TAPS_MOST, TAPS_MOST) + TAPS_MOST
        width = self.taps.shape[2]
        counts = np.bincount((of.slot * width + rows).ravel(), minlength=of.slots * width)
        self.taps[regulator] += counts.reshape(of.slots, width)


def used_bins(nodes: IntArray) -> slice:
    """Bins between the lowest and the highest magnitude of the figures of nodes; others are empty."""
    first, last = (
        min(max((int(count) + BIN // 2) // BIN - FIRST_BIN, 0), BINS - 1)
        for count in (nodes[:, LOWEST].min(), nodes[:, HIGHEST].max())
    )
    return slice(first, last + 1)


def take(of: Pass, workers: int | None = None, progress: Progress | None = None) -> Tally:
    """Count a whole corpus. `workers` are threads, None for one per core.

    Raises
    ------
    CorpusError : a file is missing or damaged.
    """
    layout, counting, done = of.corpus.layout, Counting(of), 0

    def counted(days: int) -> None:
        nonlocal done
        done += days
        if progress is not None:
            progress(done, layout.days)

    Threads(workers or cores()).map(counting, range(layout.n_parts), counted)
    total, *others = counting.tallies
    for tally in others:
        total.merge(tally)
    return total


def _found(vm_pu: Float32Array, days: range, node: int, count: int) -> Found:
    day, step = find(vm_pu, node, count)
    return Found(count, days.start + day, node, step)


def _higher(one: Found, other: Found) -> Found:
    """The higher voltage; of equal ones the first."""
    return min(one, other, key=lambda found: (-found.grid_count, *found[1:]))


# --- nodes ----------------------------------------------------------------------------------------------
# Which belong together, in what order they stand, and which are shown where there are many.


SECTOR_DEG = 30
"""Groups by angle are this far apart: phases, and what transformers of any vector group make of them."""
SECTORS = 360 // SECTOR_DEG
MOST_PHASES = 24
"""Phases that are told apart: where there are more, nodes are grouped by angle."""


@dataclass(frozen=True, eq=False)
class NodeGroups:
    """Groups of nodes.

    Attributes
    ----------
    names : (group,).
    of : integer (node,) group of each node.
    by : "phase", or "angle" where the release says none, or more than can be told apart.
    """

    names: tuple[str, ...]
    of: IntArray
    by: str


def groups_of(corpus: Corpus) -> NodeGroups:
    """By phase; where no phases are published, or too many, by the first angle to the nearest 30°."""
    if corpus.nodes.phase is not None and len(set(corpus.nodes.phase)) <= MOST_PHASES:
        by, values = "phase", np.array(corpus.nodes.phase, dtype=np.int64)
    else:
        by, width = "angle", SECTOR_DEG * VA_PER_DEG
        values = (va_counts(corpus.phasors([0]).va_deg[0, 0]) + width // 2) // width % SECTORS
    keys, of = np.unique(values, return_inverse=True)
    if by == "phase":
        names = tuple(f"phase {key}" for key in keys)
    else:
        angles = SECTOR_DEG * keys - 360 * (keys > SECTORS // 2)
        names = tuple(f"near {angle}°".replace("-", "−") for angle in angles.tolist())
    return NodeGroups(names, np.asarray(of, dtype=np.int64).ravel(), by)


def feeder_order(connections: Connections) -> IntArray:
    """Rank of each bus as a depth-first walk from the sources meets it; the smaller row first."""
    neighbours: list[list[int]] = [[] for _ in connections.bus_ids]
    for a, b in connections.pairs.tolist():
        neighbours[a].append(b)
        neighbours[b].append(a)
    rank = np.full(len(neighbours), -1, dtype=np.int64)
    starts = [*np.flatnonzero(connections.source).tolist(), *range(len(neighbours))]
    met = 0
    waiting = starts[::-1]
    while waiting:
        bus = waiting.pop()
        if rank[bus] < 0:
            rank[bus], met = met, met + 1
            waiting += sorted((each for each in neighbours[bus] if rank[each] < 0), reverse=True)
    return rank


def spread(count: int, most: int) -> IntArray:
    """At most `most` of 0 to count − 1, evenly spaced, the first among them."""
    shown = min(count, most)
    return np.arange(shown, dtype=np.int64) * count // max(shown, 1)


def three_phase_buses(corpus: Corpus) -> tuple[tuple[str, ...], IntArray]:
    """Buses with nodes of phases 1, 2 and 3: their names and the nodes (bus, 3)."""
    if corpus.nodes.bus is None or corpus.nodes.phase is None:
        return (), np.empty((0, 3), dtype=np.int64)
    found: dict[str, dict[int, int]] = {}
    for node, (bus, phase) in enumerate(zip(corpus.nodes.bus, corpus.nodes.phase, strict=True)):
        found.setdefault(bus, {})[phase] = node
    whole = {bus: of for bus, of in found.items() if {1, 2, 3} <= of.keys()}
    nodes = np.array([[of[1], of[2], of[3]] for of in whole.values()], dtype=np.int64)
    return tuple(whole), nodes.reshape(len(whole), 3)
