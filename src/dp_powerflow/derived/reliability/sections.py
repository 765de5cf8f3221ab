"""Sections of a feeder between devices and switches, and what a fault in each of them interrupts.

A device (breaker at the source, recloser, fuse) clears every fault below it up to the next device, and takes
all that is below it. Then switches isolate the faulty section. What lies outside of it and below the device
is restored when switches have acted, if it is fed from its side or by a tie; all else when the fault is
repaired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.derived.reliability.settings import ReliabilitySettings
from dp_powerflow.derived.reliability.tree import Element, Pair, Part, Tie, Tree, same_voltage
from dp_powerflow.errors import ConfigError
from dp_powerflow.units import BoolArray, IntArray

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


def sections_of(tree: Tree, settings: ReliabilitySettings, names: Names) -> Sections:
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


def _devices(tree: Tree, settings: ReliabilitySettings, names: Names) -> set[Pair]:
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


def _declared_ties(tree: Tree, settings: ReliabilitySettings, names: Names) -> list[Tie]:
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
    """Numbered in the order of the tree, in which what is below a bus follows it."""
    of_bus = np.full(len(tree.parent), -1, dtype=np.int64)
    parent: list[int] = []
    device: list[int] = []
    children: dict[int, list[int]] = {}
    for bus in tree.order.tolist():
        before = int(tree.parent[bus])
        if before < 0 and not tree.graph.source[bus]:
            continue
        pair = (min(bus, before), max(bus, before))
        if before >= 0 and pair not in devices and pair not in switches:
            of_bus[bus] = of_bus[before]
            continue
        own = len(parent)
        of_bus[bus] = own
        above = int(of_bus[before]) if before >= 0 else -1
        parent.append(above)
        device.append(own if before < 0 or pair in devices else device[above])
        children.setdefault(above, []).append(own)
    return _renumbered(of_bus, parent, device, children)


def _renumbered(
    of_bus: IntArray, parent: list[int], device: list[int], children: dict[int, list[int]]
) -> _Cut:
    """The same with sections depth first."""
    order: list[int] = []
    waiting = children.get(-1, [])[::-1]
    while waiting:
        section = waiting.pop()
        order.append(section)
        waiting.extend(children.get(section, [])[::-1])
    place = {old: new for new, old in enumerate(order)}
    place[-1] = -1
    end = [0] * len(order)
    for new in range(len(order) - 1, -1, -1):
        below = children.get(order[new], [])
        end[new] = max((end[place[child]] for child in below), default=new + 1)
    return _Cut(
        of_bus=np.array([place[section] for section in of_bus.tolist()], dtype=np.int64),
        parent=[place[parent[old]] for old in order],
        end=end,
        device=[place[device[old]] for old in order],
    )


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
    """Of the sections right below a faulty one, those that ties feed with all that is below them."""

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
