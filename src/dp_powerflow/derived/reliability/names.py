"""Buses of a network under the names that a release publishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dp_powerflow.derived.reliability.tree import Element, Tree
from dp_powerflow.derived.study import Study
from dp_powerflow.grid.buses import BusGraph

_Signature = frozenset[tuple[int, str]]


def public_buses(study: Study, graph: BusGraph) -> dict[int, str]:
    """Bus of the graph → its public name, where a release tells which is which.

    A bus with a released node has the name of that node's bus. The others follow from what joins them to
    named ones, as long as no two of them look the same. Without published connections no bus has a name.
    """
    found = study.connections
    if found is None:
        return {}
    row = {
        int(graph.bus_of[node]): int(bus)
        for node, bus in zip(study.released.tolist(), found.bus_of.tolist(), strict=True)
    }
    theirs = {(int(a), int(b)): kind for (a, b), kind in zip(found.pairs, found.kinds, strict=True)}
    _grow(row, graph.kind_of, theirs)
    return {bus: found.bus_ids[of] for bus, of in row.items()}


def bus_numbers(study: Study, graph: BusGraph) -> dict[str, int]:
    """Name that a setting may use → bus: public names; those of the feeder's file where they may be told."""
    if study.connections is None and study.file_names:
        return {name: bus for bus, name in enumerate(graph.names)}
    return {name: bus for bus, name in public_buses(study, graph).items()}


def in_public_order(study: Study, tree: Tree) -> Tree:
    """The tree with its elements by their released nodes and public buses.

    Simulated faults are drawn in the order of the elements, which is that of the feeder's file otherwise.
    """
    graph = tree.graph
    place = {
        name: at for at, name in enumerate(() if study.connections is None else study.connections.bus_ids)
    }
    last = len(study.released) + len(place)
    rank = {bus: len(study.released) + place[name] for bus, name in public_buses(study, graph).items()}
    for at in range(len(study.released) - 1, -1, -1):
        rank[int(graph.bus_of[study.released[at]])] = at

    def key(element: Element) -> tuple[int, int, str, float]:
        first, second = sorted(rank.get(bus, last) for bus in element.pair)
        return first, second, element.part, element.per_year

    return replace(tree, elements=tuple(sorted(tree.elements, key=key)))


def _grow(
    row: dict[int, int],
    own: Mapping[tuple[int, int], str],
    theirs: Mapping[tuple[int, int], str],
) -> None:
    """Name buses by their named neighbours until nothing is told any more."""
    while True:
        mine = _signatures(row, own)
        public = _signatures({of: of for of in row.values()}, theirs)
        alike, theirs_alike = Counter(mine.values()), Counter(public.values())
        once = {look: bus for bus, look in public.items() if theirs_alike[look] == 1}
        new = {bus: once[look] for bus, look in mine.items() if look in once and alike[look] == 1}
        if not new:
            return
        row.update(new)


def _signatures(row: Mapping[int, int], pairs: Mapping[tuple[int, int], str]) -> dict[int, _Signature]:
    """Of every bus without a name, the named buses beside it and what joins them."""
    seen: dict[int, set[tuple[int, str]]] = {}
    for (one, other), kind in pairs.items():
        for bus, beside in ((one, other), (other, one)):
            if bus not in row and beside in row:
                seen.setdefault(bus, set()).add((row[beside], kind))
    return {bus: frozenset(look) for bus, look in seen.items()}
