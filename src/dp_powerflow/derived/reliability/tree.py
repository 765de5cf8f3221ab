"""A radial feeder as a tree of buses, with the elements that can fail on its branches.

Which elements exist is public; lengths are the twin's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dp_powerflow.derived.reliability.settings import ReliabilitySettings
from dp_powerflow.errors import ConfigError, FeederError
from dp_powerflow.grid.buses import BusGraph
from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.quantities import TRANSFORMER
from dp_powerflow.units import FloatArray, IntArray

Pair = tuple[int, int]
"""Two buses, the smaller number first."""
_OPEN = "_open"
"""End of the name of the bus that an open switch of a built-in feeder ends on."""
_TWO_ENDS = 2
_M_PER_KM = 1000.0


class Part(StrEnum):
    """What can fail."""

    OVERHEAD = "overhead line"
    UNDERGROUND = "cable"
    SWITCH = "switch"
    TRANSFORMER = "transformer"
    REGULATOR = "regulator"

    def rate(self, settings: ReliabilitySettings) -> float:
        """Faults per year, of a line per km and year."""
        return {
            Part.OVERHEAD: settings.overhead_per_km_year,
            Part.UNDERGROUND: settings.underground_per_km_year,
            Part.SWITCH: settings.switch_per_year,
            Part.TRANSFORMER: settings.transformer_per_year,
            Part.REGULATOR: settings.regulator_per_year,
        }[self]

    def repair_hours(self, settings: ReliabilitySettings) -> float:
        """Mean time to repair [h]."""
        return {
            Part.OVERHEAD: settings.overhead_repair_hours,
            Part.UNDERGROUND: settings.underground_repair_hours,
            Part.SWITCH: settings.switch_repair_hours,
            Part.TRANSFORMER: settings.transformer_repair_hours,
            Part.REGULATOR: settings.regulator_repair_hours,
        }[self]


@dataclass(frozen=True)
class Element:
    """One element that can fail.

    Attributes
    ----------
    pair : the buses that it joins.
    per_year : its faults in a year.
    repair_hours : mean time of a repair [h].
    """

    pair: Pair
    part: Part
    per_year: float
    repair_hours: float


@dataclass(frozen=True)
class Tie:
    """A normally open switch: the buses that it can join, and on which phases."""

    pair: Pair
    phases: frozenset[int]


@dataclass(frozen=True, eq=False)
class Tree:
    """A radial feeder.

    Attributes
    ----------
    graph : its buses.
    parent : (bus,) the bus before it on the way to its source; −1 at a source.
    order : (bus,) every bus after its parent.
    phases : (bus,) phases of every bus, without neutral conductors.
    base_kv : (bus,) base voltage [kV].
    elements : what can fail.
    switches : pairs that a normally closed switch joins.
    transformers : pairs that a transformer joins, no regulator.
    ties : normally open switches of the feeder.
    doubled : pairs that several lines join; each of them is taken as if it stood alone.
    """

    graph: BusGraph
    parent: IntArray
    order: IntArray
    phases: tuple[frozenset[int], ...]
    base_kv: FloatArray
    elements: tuple[Element, ...]
    switches: frozenset[Pair]
    transformers: frozenset[Pair]
    ties: tuple[Tie, ...]
    doubled: int


def require_lengths(feeder: Feeder) -> None:
    """Refuse a feeder whose lines have no lengths.

    Raises
    ------
    FeederError : some line has none.
    """
    if any(line.length_m is None and not line.is_switch for line in feeder.lines):
        raise FeederError(
            "reliability needs the length of every line, which this network does not state; compute it from "
            "a config whose feeder has lengths with a unit, not from released tables"
        )


def _require_codes(feeder: Feeder, settings: ReliabilitySettings) -> None:
    """Refuse codes of cables where no line states a code: every cable would be overhead in silence."""
    if settings.underground_codes and all(line.code is None for line in feeder.lines):
        raise ConfigError(
            "no line of this network states a conductor code, so underground_codes can find no cable; leave "
            'it out, or take a release with network.lines = "length", whose codes are public'
        )


def tree_of(feeder: Feeder, settings: ReliabilitySettings) -> Tree:
    """The tree of a feeder.

    Raises
    ------
    FeederError : a line has no length, or the feeder is not radial.
    """
    require_lengths(feeder)
    _require_codes(feeder, settings)
    graph = BusGraph.of(feeder)
    phases = _phases(feeder, graph)
    lines = [(line, pair) for line in feeder.lines if (pair := _pair_of(graph, line)) is not None]
    ties = tuple(_ties(lines, graph, phases))
    loose = {pair for line, pair in lines if line.is_switch and _open_end(graph, pair) is not None}
    closed = {pair: kind for pair, kind in graph.kind_of.items() if pair not in loose}
    parent, order = _walk(graph, closed)
    transformers = {
        pair
        for pair, kind in closed.items()
        if kind == TRANSFORMER and (parent[pair[0]] == pair[1] or parent[pair[1]] == pair[0])
    }
    base_kv = np.zeros(len(graph.names))
    np.maximum.at(base_kv, graph.bus_of, feeder.base_kv)
    regulators = {pair for pair in transformers if same_voltage(base_kv, pair)}
    elements = tuple(
        _element(pair, part, settings, length_km)
        for pair, part, length_km in _failing(lines, closed, transformers, regulators, settings)
    )
    of_lines = [pair for line, pair in lines if pair in closed]
    return Tree(
        graph=graph,
        parent=parent,
        order=order,
        phases=phases,
        base_kv=base_kv,
        elements=elements,
        switches=frozenset(pair for line, pair in lines if line.is_switch and pair in closed),
        transformers=frozenset(transformers - regulators),
        ties=ties,
        doubled=len(of_lines) - len(set(of_lines)),
    )


def load_buses(feeder: Feeder, graph: BusGraph) -> IntArray:
    """(load,) bus of every load of the feeder."""
    first = [max(node for branch in load.branches for node in branch) for load in feeder.loads]
    return graph.bus_of[np.array(first, dtype=np.int64)]


def _phases(feeder: Feeder, graph: BusGraph) -> tuple[frozenset[int], ...]:
    neutral = set(feeder.neutral.tolist())
    found: list[set[int]] = [set() for _ in graph.names]
    for node, (bus, phase) in enumerate(zip(graph.bus_of.tolist(), graph.phase.tolist(), strict=True)):
        if node not in neutral:
            found[bus].add(phase)
    return tuple(map(frozenset, found))


def _pair_of(graph: BusGraph, line: Line) -> Pair | None:
    """The buses of a line; None of one that ends where it begins."""
    ends = sorted({int(graph.bus_of[node]) for node in line.nodes})
    return (ends[0], ends[1]) if len(ends) == _TWO_ENDS else None


def _open_end(graph: BusGraph, pair: Pair) -> Pair | None:
    """The buses that an open switch of a built-in feeder would join, None if it is none."""
    number = {name: bus for bus, name in enumerate(graph.names)}
    for bus, other in (pair, pair[::-1]):
        name = graph.names[bus]
        if name.endswith(_OPEN) and name.removesuffix(_OPEN) in number:
            ends = sorted((number[name.removesuffix(_OPEN)], other))
            return ends[0], ends[1]
    return None


def _ties(
    lines: list[tuple[Line, Pair]], graph: BusGraph, phases: tuple[frozenset[int], ...]
) -> Iterator[Tie]:
    """Switches that join nothing as the feeder stands."""
    for line, pair in lines:
        if not line.is_switch:
            continue
        joined = pair if pair not in graph.kind_of else _open_end(graph, pair)
        if joined is not None:
            own = frozenset(int(graph.phase[node]) for node in line.nodes)
            yield Tie(joined, own & phases[joined[0]] & phases[joined[1]])


def same_voltage(base_kv: FloatArray, pair: Pair) -> bool:
    """Whether two buses have one base voltage."""
    return bool(np.isclose(base_kv[pair[0]], base_kv[pair[1]], rtol=1e-3))


def _walk(graph: BusGraph, closed: dict[Pair, str]) -> tuple[IntArray, IntArray]:
    """Parents and order of the buses, from the sources on, depth first."""
    neighbours: list[list[int]] = [[] for _ in graph.names]
    for one, other in sorted(closed):
        neighbours[one].append(other)
        neighbours[other].append(one)
    parent = np.full(len(graph.names), -1, dtype=np.int64)
    seen = graph.source.tolist()
    order: list[int] = []
    used: set[Pair] = set()
    waiting = np.flatnonzero(graph.source).tolist()[::-1]
    while waiting:
        bus = waiting.pop()
        order.append(bus)
        for other in neighbours[bus]:
            if not seen[other]:
                seen[other], parent[other] = True, bus
                used.add((min(bus, other), max(bus, other)))
                waiting.append(other)
    if any(kind != TRANSFORMER for pair, kind in closed.items() if pair not in used):
        raise FeederError(
            "reliability is computed for radial feeders, and lines of this one form a loop or join two "
            "sources; open a switch in the feeder's file"
        )
    order += [bus for bus, found in enumerate(seen) if not found]
    return parent, np.array(order, dtype=np.int64)


def _failing(
    lines: list[tuple[Line, Pair]],
    closed: dict[Pair, str],
    transformers: set[Pair],
    regulators: set[Pair],
    settings: ReliabilitySettings,
) -> Iterator[tuple[Pair, Part, float]]:
    """Buses, part, and length [km] of a line, 1 of all others."""
    cables = {code.lower() for code in settings.underground_codes}
    for line, pair in lines:
        if pair in closed:
            part = Part.UNDERGROUND if (line.code or "").lower() in cables else Part.OVERHEAD
            yield (
                (pair, Part.SWITCH, 1.0)
                if line.is_switch
                else (pair, part, (line.length_m or 0.0) / _M_PER_KM)
            )
    for pair in sorted(transformers):
        yield pair, Part.REGULATOR if pair in regulators else Part.TRANSFORMER, 1.0


def _element(pair: Pair, part: Part, settings: ReliabilitySettings, amount: float) -> Element:
    return Element(pair, part, part.rate(settings) * amount, part.repair_hours(settings))


def rates_of(elements: tuple[Element, ...]) -> FloatArray:
    """(element,) faults per year."""
    return np.array([element.per_year for element in elements], dtype=np.float64)
