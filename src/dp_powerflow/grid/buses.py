"""Buses of a feeder: which nodes form one, and which buses an element joins. PRIVATE, as the feeder is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy.sparse as sp

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.quantities import LINE, SWITCH, TRANSFORMER
from dp_powerflow.units import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class BusGraph:
    """The buses of a feeder and what joins them.

    Attributes
    ----------
    names : of the buses, in the order of their first nodes.
    bus_of : integer (node,) bus of every node of the feeder; a source belongs to the bus that it feeds.
    phase : integer (node,) number of its conductor, as the feeder names it; 1 for a balanced node.
    kind_of : pair of buses, the smaller number first → what joins them: a line, else a switch, else a
        transformer.
    source : boolean (bus,) whether it has a source.
    """

    names: tuple[str, ...]
    bus_of: IntArray
    phase: IntArray
    kind_of: dict[tuple[int, int], str]
    source: BoolArray

    @classmethod
    def of(cls, feeder: Feeder) -> BusGraph:
        """The buses of a feeder, from the names of its nodes, the pattern of `y` and its lines."""
        slack = set(feeder.slack.tolist())
        named = [bus_name(node, is_source=k in slack) for k, node in enumerate(feeder.nodes)]
        names = tuple(dict.fromkeys(named))
        number = {name: k for k, name in enumerate(names)}
        bus_of = np.array([number[name] for name in named], dtype=np.int64)
        source = np.zeros(len(names), dtype=np.bool_)
        source[bus_of[feeder.slack]] = True
        phase = np.array([int(node.rsplit(".", 1)[1]) for node in feeder.nodes], dtype=np.int64)
        return cls(names, bus_of, phase, _kinds(feeder, bus_of), source)


def bus_name(node: str, *, is_source: bool = False) -> str:
    """Name of the bus of a node, "bus.phase" or, of a source, "emf(bus).phase"."""
    name = node.rsplit(".", 1)[0]
    return name.removeprefix("emf(").removesuffix(")") if is_source else name


def _kinds(feeder: Feeder, bus_of: IntArray) -> dict[tuple[int, int], str]:
    """Every pair of buses between which `y` has an entry, and what joins it."""
    by_kind: dict[str, set[tuple[int, int]]] = {LINE: set(), SWITCH: set()}
    for line in feeder.lines:
        ends = sorted({int(bus_of[node]) for node in line.nodes})
        by_kind[SWITCH if line.is_switch else LINE].update(combinations(ends, 2))
    pattern = sp.coo_array(feeder.y)
    entries = pattern.data != 0
    rows, columns = (bus_of[axis[entries]] for axis in pattern.coords)
    coupled = np.unique(np.stack([rows, columns], axis=1)[rows != columns], axis=0)
    pairs = sorted({(min(pair), max(pair)) for pair in coupled.tolist()})
    return {
        pair: next((kind for kind, joined in by_kind.items() if pair in joined), TRANSFORMER)
        for pair in pairs
    }
