"""Which nodes belong together, in what order they stand, and which are shown where there are many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.corpus.grid import VA_PER_DEG, va_counts
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.units import BoolArray, IntArray

SECTOR_DEG = 30
"""Groups by angle are this far apart: phases, and what transformers of any vector group make of them."""
SECTORS = 360 // SECTOR_DEG
MOST_PHASES = 24
"""Phases that are told apart: where somebody numbers more of them, nodes are grouped by angle."""


@dataclass(frozen=True, eq=False)
class NodeGroups:
    """Groups of nodes.

    Attributes
    ----------
    names : (group,).
    of : integer (node,) group of each node.
    by : "phase", or "angle" where the release says none, or more than can be told apart.
    keys : (group,) number of the phase, or of the sector of the angle.
    """

    names: tuple[str, ...]
    of: IntArray
    by: str
    keys: tuple[int, ...]


def groups_of(corpus: Corpus) -> NodeGroups:
    """By phase; where no phases are published, or too many, by the first angle to the nearest 30°."""
    if corpus.nodes.phase is not None and len(set(corpus.nodes.phase)) <= MOST_PHASES:
        keys, of = np.unique(np.array(corpus.nodes.phase, dtype=np.int64), return_inverse=True)
        return NodeGroups(tuple(f"phase {key}" for key in keys), _as_int(of), "phase", tuple(keys.tolist()))
    width = SECTOR_DEG * VA_PER_DEG
    angles = va_counts(corpus.phasors([0]).va_deg[0, 0])
    keys, of = np.unique((angles + width // 2) // width % SECTORS, return_inverse=True)
    names = tuple(f"near {_signed(int(key))}°" for key in keys)
    return NodeGroups(names, _as_int(of), "angle", tuple(keys.tolist()))


def _signed(sector: int) -> str:
    angle = SECTOR_DEG * sector - 360 * (sector > SECTORS // 2)
    return str(angle).replace("-", "−")


def _as_int(values: IntArray) -> IntArray:
    return np.asarray(values, dtype=np.int64).ravel()


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
    """At most so many of 0 to count − 1, evenly spaced, the first among them."""
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


def three_groups(groups: NodeGroups) -> tuple[BoolArray, ...] | None:
    """Nodes of three groups 120° apart, those with most nodes; None if there are no such groups."""
    if groups.by == "phase":
        if not {1, 2, 3} <= set(groups.keys):
            return None
        return tuple(groups.of == groups.keys.index(phase) for phase in (1, 2, 3))
    sizes = {key: int(np.count_nonzero(groups.of == k)) for k, key in enumerate(groups.keys)}
    third = SECTORS // 3
    triples = [(start, (start - third) % SECTORS, (start + third) % SECTORS) for start in range(third)]
    whole = [triple for triple in triples if sizes.keys() >= set(triple)]
    if not whole:
        return None
    best = max(whole, key=lambda triple: sum(sizes[key] for key in triple))
    return tuple(groups.of == groups.keys.index(key) for key in best)
