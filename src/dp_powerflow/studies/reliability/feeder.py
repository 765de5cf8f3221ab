"""A radial feeder as a tree of buses, with the elements that can fail on its branches.

Which elements exist is public; lengths are the twin's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from dp_powerflow.errors import ConfigError, FeederError
from dp_powerflow.grid.feeder import GROUND, BusGraph, Feeder, Line
from dp_powerflow.grid.quantities import TRANSFORMER
from dp_powerflow.model.sample import columns_of, placed_load
from dp_powerflow.studies.study import Progress, Study, each_in_order
from dp_powerflow.units import KW_PER_MW, BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.studies.reliability import Reliability

Pair = tuple[int, int]
"""Two buses, the smaller number first."""
_OPEN = "_open"
"""End of the name of the bus that an open switch of a built-in feeder ends on."""
_TWO_ENDS = 2
_M_PER_KM = 1000.0


class Part(StrEnum):
    """What can fail; the names begin the names of its settings."""

    OVERHEAD = "overhead line"
    UNDERGROUND = "cable"
    SWITCH = "switch"
    TRANSFORMER = "transformer"
    REGULATOR = "regulator"


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


def _require_lengths_and_codes(feeder: Feeder, settings: Reliability) -> None:
    """Refuse a feeder whose lines have no lengths, or no codes that could tell a cable."""
    if any(line.length_m is None and not line.is_switch for line in feeder.lines):
        raise FeederError(
            "reliability needs the length of every line, which this network does not state; compute it from "
            "a config whose feeder has lengths with a unit, not from released tables"
        )
    if settings.underground_codes and all(line.code is None for line in feeder.lines):
        raise ConfigError(
            "no line of this network states a conductor code, so underground_codes can find no cable; leave "
            'it out, or take a release with network.lines = "length", whose codes are public'
        )


def tree_of(feeder: Feeder, settings: Reliability) -> Tree:
    """The tree of a feeder.

    Raises
    ------
    FeederError : a line has no length, or the feeder is not radial.
    """
    _require_lengths_and_codes(feeder, settings)
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
    cables = {code.lower() for code in settings.underground_codes}
    elements = [
        _element(pair, _part(line, cables), settings, (line.length_m or 0.0) / _M_PER_KM)
        for line, pair in lines
        if pair in closed
    ]
    elements += [
        _element(pair, Part.REGULATOR if pair in regulators else Part.TRANSFORMER, settings)
        for pair in sorted(transformers)
    ]
    of_lines = [pair for line, pair in lines if pair in closed]
    return Tree(
        graph=graph,
        parent=parent,
        order=order,
        phases=phases,
        base_kv=base_kv,
        elements=tuple(elements),
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


def _part(line: Line, cables: set[str]) -> Part:
    if line.is_switch:
        return Part.SWITCH
    return Part.UNDERGROUND if (line.code or "").lower() in cables else Part.OVERHEAD


def _element(pair: Pair, part: Part, settings: Reliability, length_km: float = 1.0) -> Element:
    name, by_length = part.name.lower(), part in (Part.OVERHEAD, Part.UNDERGROUND)
    rate = float(getattr(settings, f"{name}_per_km_year" if by_length else f"{name}_per_year"))
    hours = float(getattr(settings, f"{name}_repair_hours"))
    return Element(pair, part, rate * length_km if by_length else rate, hours)


def rates_of(elements: tuple[Element, ...]) -> FloatArray:
    """(element,) faults per year."""
    return np.array([element.per_year for element in elements], dtype=np.float64)


Names = Mapping[str, int]
"""Public name of a bus → its number in the graph."""


@dataclass(frozen=True, eq=False)
class Sections:
    """What the faults of a feeder interrupt.

    Attributes
    ----------
    of_bus : (bus,) section of every bus; −1 of a bus that nothing feeds.
    of_element : (element,) section in which a fault of the element lies.
    switched : boolean (section, section): a fault in the row's interrupts the column's until switches have
        acted.
    repaired : boolean, the same until the fault is repaired.
    devices, sectionalisers, ties : how many of each act.
    """

    of_bus: IntArray
    of_element: IntArray
    switched: BoolArray
    repaired: BoolArray
    devices: int
    sectionalisers: int
    ties: int

    @property
    def count(self) -> int:
        return len(self.switched)


@dataclass(frozen=True, eq=False)
class _Cut:
    """Sections as a tree, numbered so that those below section s are s + 1 to end[s] − 1."""

    of_bus: IntArray
    parent: list[int]
    end: list[int]
    device: list[int]
    """Section below the device that clears a fault of each."""


def sections_of(tree: Tree, settings: Reliability, names: Names) -> Sections:
    """Sections of a feeder.

    Raises
    ------
    ConfigError : a declared pair of buses is none of the feeder.
    """
    devices = _devices(tree, settings, names)
    switches = tree.switches if settings.sectionalise else frozenset()
    cut = _cut(tree, devices, switches)
    ties = [*(tree.ties if settings.ties else ()), *_declared_ties(tree, settings, names)]
    switched, repaired = _consequences(cut, tree, ties)
    return Sections(
        of_bus=cut.of_bus,
        of_element=np.array([_section(element, tree, cut) for element in tree.elements], dtype=np.int64),
        switched=switched,
        repaired=repaired,
        devices=len(devices) + int(tree.graph.source.sum()),
        sectionalisers=len(switches - devices),
        ties=len(ties),
    )


def _upper(tree: Tree, pair: Pair) -> tuple[int, int]:
    """The bus of a pair towards the source, and the other one."""
    one, other = pair
    return (one, other) if tree.parent[other] == one else (other, one)


def _devices(tree: Tree, settings: Reliability, names: Names) -> set[Pair]:
    """Pairs of buses with a recloser or fuse, declared or by rule."""
    found = set(tree.transformers) if settings.transformer_fuses else set()
    joined = {element.pair for element in tree.elements}
    for pair in _declared(settings.devices, names, "devices"):
        if pair not in joined:
            raise ConfigError(
                "a pair of 'devices' is joined by no line, switch or transformer; name the two buses of one"
            )
        found.add(pair)
    if settings.lateral_fuses == "none":
        return found
    for pair in joined:
        upper, lower = (len(tree.phases[bus]) for bus in _upper(tree, pair))
        if lower < upper and (lower == 1 or settings.lateral_fuses == "fewer-phases"):
            found.add(pair)
    return found


def _declared_ties(tree: Tree, settings: Reliability, names: Names) -> list[Tie]:
    pairs = _declared(settings.more_ties, names, "more_ties")
    if not all(same_voltage(tree.base_kv, pair) for pair in pairs):
        raise ConfigError("a pair of 'more_ties' joins two voltages; name two buses of one base voltage")
    return [Tie(pair, tree.phases[pair[0]] & tree.phases[pair[1]]) for pair in pairs]


def _declared(pairs: tuple[tuple[str, str], ...], names: Names, key: str) -> list[Pair]:
    found = []
    for pair in pairs:
        if not set(pair) <= set(names):
            raise ConfigError(
                f"'{key}' names a bus that is none of this network; use the names of buses.parquet, which a "
                'release has with "connections" in network.also_publish'
            )
        one, other = sorted(names[bus] for bus in pair)
        found.append((one, other))
    return found


def _cut(tree: Tree, devices: set[Pair], switches: frozenset[Pair]) -> _Cut:
    """Numbered in the order of the tree, in which all buses below a bus follow it at once."""
    of_bus = np.full(len(tree.parent), -1, dtype=np.int64)
    parent: list[int] = []
    device: list[int] = []
    for bus in tree.order.tolist():
        before = int(tree.parent[bus])
        if before < 0 and not tree.graph.source[bus]:
            continue
        pair = (min(bus, before), max(bus, before))
        if before >= 0 and pair not in devices and pair not in switches:
            of_bus[bus] = of_bus[before]
            continue
        own, above = len(parent), int(of_bus[before]) if before >= 0 else -1
        of_bus[bus] = own
        parent.append(above)
        device.append(own if before < 0 or pair in devices else device[above])
    end = list(range(1, len(parent) + 1))
    for section in range(len(parent) - 1, -1, -1):
        if parent[section] >= 0:
            end[parent[section]] = max(end[parent[section]], end[section])
    return _Cut(of_bus, parent, end, device)


def _section(element: Element, tree: Tree, cut: _Cut) -> int:
    """A switch that fails cannot isolate itself: its fault lies towards the source."""
    upper, lower = _upper(tree, element.pair)
    return int(cut.of_bus[upper if element.part is Part.SWITCH else lower])


def _consequences(cut: _Cut, tree: Tree, ties: list[Tie]) -> tuple[BoolArray, BoolArray]:
    count = len(cut.parent)
    switched, repaired = (np.zeros((count, count), dtype=np.bool_) for _ in range(2))
    phases: list[set[int]] = [set() for _ in range(count)]
    for bus, section in enumerate(cut.of_bus.tolist()):
        if section >= 0:
            phases[section] |= tree.phases[bus]
    ends = [(int(cut.of_bus[tie.pair[0]]), int(cut.of_bus[tie.pair[1]]), tie.phases) for tie in ties]
    for section in range(count):
        device = cut.device[section]
        switched[section, device : cut.end[device]] = True
        switched[section, section : cut.end[section]] = False
        repaired[section, section : cut.end[section]] = True
        children = [child for child in range(section + 1, cut.end[section]) if cut.parent[child] == section]
        for child in _restored(section, children, cut, phases, ends):
            switched[section, child : cut.end[child]] = True
            repaired[section, child : cut.end[child]] = False
    return switched, repaired


def _restored(
    section: int,
    children: list[int],
    cut: _Cut,
    phases: list[set[int]],
    ends: list[tuple[int, int, frozenset[int]]],
) -> list[int]:
    """Sections right below a faulty one that ties feed, with what is below them."""

    def part_of(other: int) -> int:
        """The child that a section is below; −1 where it is fed; the faulty section itself."""
        if not section <= other < cut.end[section]:
            return -1
        return next((child for child in children if child <= other < cut.end[child]), section)

    needed = {child: set().union(*phases[child : cut.end[child]]) for child in children}
    joins = [(part_of(one), part_of(other), held) for one, other, held in ends if min(one, other) >= 0]
    fed = {-1}
    growing = True
    while growing:
        growing = False
        for one, other, held in joins:
            for child, source in ((one, other), (other, one)):
                if child in needed and child not in fed and source in fed and needed[child] <= held:
                    fed.add(child)
                    growing = True
    return sorted(fed - {-1})


_SLIGHT = 1e-9


def require_customers(study: Study) -> None:
    """Refuse numbers of customers that are not of this feeder, or all zero.

    Raises
    ------
    ConfigError : they are.
    """
    loads, customers = len(study.feeder.loads), study.customers
    if loads == 0 or (customers is None and all(load.kw <= 0.0 for load in study.feeder.loads)):
        raise ConfigError(
            "reliability needs customers, and this feeder has no loads; choose another feeder",
            code="loads-without-customers",
        )
    if customers is None:
        return
    if customers.shape != (loads,) or np.any(customers < 0) or not np.any(customers > 0):
        raise ConfigError(
            "numbers of customers must be one per load, none negative and not all zero; correct the column "
            "'customers' of feeder.loads"
        )


def customers_of(study: Study, kw_per_customer: float) -> IntArray:
    """Declared ones, or as many as the nominal load takes, at least one; a load without power has none."""
    if study.customers is not None:
        return study.customers
    kw = np.array([load.kw for load in study.feeder.loads])
    return np.where(kw > 0.0, np.maximum(1, np.ceil(kw / kw_per_customer - _SLIGHT)), 0).astype(np.int64)


def mean_day(study: Study, workers: int | None, progress: Progress | None) -> FloatArray:
    """(node, step) mean drawn load of every node over all days [kW]; blocks are added up in their order."""
    source, steps = study.source, study.steps
    solver = study.make_solver(1)
    width = columns_of(solver, source.law)

    def total(block: int) -> FloatArray:
        load = placed_load(source.law, source.block(block), width)
        return np.asarray(load.real.reshape(-1, steps, width).sum(axis=0))

    summed = np.zeros((steps, width))
    for found in each_in_order(total, source.n_blocks, workers, progress):
        summed += found
    mean_kw = summed.T * (study.feeder.base_mva * KW_PER_MW / study.days)
    found_kw = np.zeros((len(study.feeder.nodes), steps))
    if solver.columns == "elements":
        grounded = {GROUND, *study.feeder.neutral.tolist()}
        for load, kw in zip(study.feeder.loads, mean_kw, strict=True):
            nodes = [node for branch in load.branches for node in branch if node not in grounded]
            for node in nodes:
                found_kw[node] += kw / len(nodes)
    else:
        found_kw[study.feeder.retained] = mean_kw
    return found_kw


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
    """Name that a setting may use → bus: public names, and the file's where a study may use them."""
    if study.connections is None and study.file_names:
        return {name: bus for bus, name in enumerate(graph.names)}
    return {name: bus for bus, name in public_buses(study, graph).items()}


def in_public_order(study: Study, tree: Tree) -> Tree:
    """The tree with its elements by their released nodes and public buses.

    Simulated faults are drawn in the order of the elements, otherwise the order of the feeder's file.
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
    row: dict[int, int], own: Mapping[tuple[int, int], str], theirs: Mapping[tuple[int, int], str]
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
    """Every bus without a name → the named buses next to it and what joins them."""
    seen: dict[int, set[tuple[int, str]]] = {}
    for (one, other), kind in pairs.items():
        for bus, beside in ((one, other), (other, one)):
            if bus not in row and beside in row:
                seen.setdefault(bus, set()).add((row[beside], kind))
    return {bus: frozenset(look) for bus, look in seen.items()}
