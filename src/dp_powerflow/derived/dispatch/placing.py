"""Where units stand: at loads by a public rule, at released nodes, or at buses of the feeder's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dp_powerflow.derived.study import Study
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.opf.tree import BusTree
from dp_powerflow.opf.units import Unit

Branches = tuple[tuple[int, int], ...]


class Declared(Protocol):
    """What a declared unit states, as in the settings."""

    @property
    def node(self) -> str | None: ...
    @property
    def bus(self) -> str | None: ...
    @property
    def phases(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, eq=False)
class Places:
    """What units can be placed by.

    Attributes
    ----------
    tree : of the feeder.
    node_of : public name of a node → its index in the feeder.
    bus_of : name of a bus, in lower case → its number in the tree.
    """

    tree: BusTree
    node_of: Mapping[str, int]
    bus_of: Mapping[str, int]

    @classmethod
    def of(cls, study: Study, tree: BusTree) -> Places:
        nodes = dict(zip(study.node_ids, study.released.tolist(), strict=True))
        buses = {bus.lower(): k for k, bus in enumerate(tree.buses)} if study.file_names else {}
        return cls(tree, nodes, buses | {name: k for k, name in public_buses(study, tree).items()})

    def loads(self, share: float) -> list[int]:
        """Every k-th load with active power, k = 1/share rounded, in the order of the public node names.

        A load stands where the first of its released nodes does; loads without any are left out.
        """
        feeder = self.tree.feeder
        at: dict[int, list[int]] = {}
        for number, load in enumerate(feeder.loads):
            for node in {node for pair in load.branches for node in pair} if load.kw > 0.0 else ():
                at.setdefault(node, []).append(number)
        found: dict[int, None] = {}
        for node in self.node_of.values():
            # Of loads at one node the larger comes first: their order in the file is not public.
            for number in sorted(at.get(node, ()), key=lambda k: -feeder.loads[k].kw):
                found.setdefault(number)
        step = max(1, round(1.0 / share))
        return list(found)[::step]

    def branches(self, declared: Declared) -> Branches:
        """Between which nodes a declared unit injects."""
        if declared.node is not None:
            return self._at_node(declared.node)
        return self._at_bus(declared.bus or "", declared.phases)

    def _at_node(self, name: str) -> Branches:
        if name not in self.node_of:
            raise ConfigError(f"there is no released node '{name}'; name one of nodes.parquet, or a bus")
        node = self.node_of[name]
        bus = int(np.argwhere(self.tree.nodes == node)[0][0])
        if self.tree.floating[bus]:
            raise ConfigError(f"nothing grounds the bus of node '{name}'; place the unit by its bus instead")
        return ((node, GROUND),)

    def _at_bus(self, name: str, phases: tuple[int, ...]) -> Branches:
        feeder, tree = self.tree.feeder, self.tree
        number = self.bus_of.get(name.lower())
        if number is None or tree.parent[number] < 0:
            raise ConfigError(f"there is no bus '{name}' with a released node; name one of buses.parquet")
        nodes = [node for node in tree.nodes[number].tolist() if node >= 0]
        chosen = [node for node in nodes if not phases or phase_of(feeder, node) in phases]
        if not chosen or (phases and len(chosen) < len(set(phases))):
            raise ConfigError(f"bus '{name}' lacks a phase of the unit; name phases that it has")
        if not tree.floating[number]:
            return tuple((node, GROUND) for node in chosen)
        if len(chosen) < 2:
            raise ConfigError(f"nothing grounds bus '{name}'; name two phases or three for the unit")
        if len(chosen) == 2:
            return ((chosen[0], chosen[1]),)
        return tuple((chosen[k], chosen[(k + 1) % len(chosen)]) for k in range(len(chosen)))


def phase_of(feeder: Feeder, node: int) -> int:
    """Number of the conductor of a node."""
    return int(feeder.nodes[node].rsplit(".", 1)[1])


@dataclass(frozen=True)
class UnitFacts:
    """What is published of a unit.

    Attributes
    ----------
    unit : as it is dispatched.
    nodes : public names of the nodes that it injects at; those that are not released are left out.
    """

    unit: Unit
    nodes: tuple[str, ...]


def facts_of(study: Study, unit: Unit) -> UnitFacts:
    """A unit with the public names of its nodes."""
    names = dict(zip(study.released.tolist(), study.node_ids, strict=True))
    at = {node for pair in unit.branches for node in pair if node in names}
    return UnitFacts(unit, tuple(sorted(names[node] for node in at)))


def ampacities(
    study: Study, tree: BusTree, default: float | None, own: Mapping[str, float]
) -> dict[str, float]:
    """Bus → current limit of the branch above it [A].

    Parameters
    ----------
    default : of every line; None for no limit.
    own : two public bus names with a dash between, or, where the study knows it, the name of a line of the
        file → its limit.
    """
    found: dict[str, float] = {}
    if default is not None:
        found = {bus: default for bus, line in zip(tree.buses, tree.lines, strict=True) if line}
    pairs = branch_pairs(study, tree)
    by_line = {line.lower(): k for k, line in enumerate(tree.lines) if line and study.file_names}
    by_pair = {
        name: k for k, pair in pairs.items() for name in (f"{pair[0]}-{pair[1]}", f"{pair[1]}-{pair[0]}")
    }
    for name, limit in own.items():
        k = by_line.get(name.lower(), by_pair.get(name))
        if k is None:
            raise ConfigError(
                f"no branch is called '{name}' in ampacities; name two buses of buses.parquet with a dash "
                "between"
            )
        found[tree.buses[k]] = limit
    return found


def branch_pairs(study: Study, tree: BusTree) -> dict[int, tuple[str, str]]:
    """Bus of the tree → public names of the two buses of the branch above it, the parent first.

    Only branches between two buses with a released node have public names; none without connections.
    """
    public = public_buses(study, tree)
    parents = tree.parent.tolist()
    return {k: (public[p], public[k]) for k, p in enumerate(parents) if p in public and k in public}


def public_buses(study: Study, tree: BusTree) -> dict[int, str]:
    """Bus of the tree → its public name, of those with a released node; none without connections."""
    connections = study.connections
    if connections is None:
        return {}
    bus_of_node = dict(zip(study.released.tolist(), connections.bus_of.tolist(), strict=True))
    public: dict[int, str] = {}
    for k in range(len(tree.buses)):
        rows = {bus_of_node[node] for node in tree.nodes[k].tolist() if node in bus_of_node}
        if len(rows) == 1:
            public[k] = connections.bus_ids[rows.pop()]
    return public
