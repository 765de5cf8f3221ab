"""Days as tasks: loads drawn, dispatched and checked, rounded to the public grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.model.sample import LoadBlock, PlacedDays, columns_of, placed_load, solve_placed
from dp_powerflow.studies.dispatch.dispatcher import Dispatched, Dispatcher, Options, Snapshots, Unit
from dp_powerflow.studies.dispatch.network import BusTree, LinDistFlow
from dp_powerflow.studies.study import Study
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.studies.dispatch import DeclaredUnit

Branches = tuple[tuple[int, int], ...]


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

    def branches(self, declared: DeclaredUnit) -> Branches:
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
    known, public = study.public_bus, {}
    for k, nodes in enumerate(tree.nodes.tolist()):
        names = {known[node] for node in nodes if node in known}
        if len(names) == 1:
            public[k] = names.pop()
    return public


BEYOND_PU = 1e-6
"""Voltages beyond a limit by no more than the public grid are within it."""
BEYOND_SHARE = 1e-4
"""Currents beyond a limit by no more than this share are within it."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Which places are published, and under which names.

    Attributes
    ----------
    places : (released,) place among the unknowns of every released node, −1 for one of a source.
    branch_of : (row,) bus of the tree below a published branch, and `slot`, its phase there.
    pairs : (row,) public names of its two buses.
    phase : (row,) number of the phase.
    limit_a : (row,) current limit [A], infinity for none.
    """

    places: IntArray
    branch_of: IntArray
    slot: IntArray
    pairs: tuple[tuple[str, str], ...]
    phase: IntArray
    limit_a: FloatArray


@dataclass(frozen=True, eq=False)
class DayResult:
    """One day; the first axis of every array is the dispatched step.

    Attributes
    ----------
    steps : (step,) numbers of the steps.
    load : complex (step, released node) drawn at rated voltage [kW + j·kvar].
    price : (step,) of import, per kWh.
    found : of the dispatched steps.
    base_vm, vm : (step, place) magnitudes without units and with them, by AC power flow [p.u.].
    flows : complex (step, branch row) power delivered, by AC power flow [kW + j·kvar].
    column_load, column_generation : what the solver was given, for tables of the whole network.
    beyond_v : (step, place) how far a voltage is beyond its limit [p.u.]; 0 within.
    beyond_i : (step, place) how far a current is, as a share of its limit.
    base_cost : (step,) of import without units, per hour.
    """

    day: int
    steps: IntArray
    load: ComplexArray
    price: FloatArray
    found: Dispatched
    base_vm: FloatArray
    vm: FloatArray
    flows: ComplexArray
    column_load: ComplexArray
    column_generation: ComplexArray | None
    beyond_v: FloatArray
    beyond_i: FloatArray
    base_cost: FloatArray


@dataclass(frozen=True, eq=False)
class DispatchJob:
    """All days of a study.

    Attributes
    ----------
    ampacity : bus → current limit of the branch above it [A].
    price : (day, step) of import, per kWh.
    every : steps between two that are dispatched.
    """

    study: Study
    units: tuple[Unit, ...]
    options: Options
    ampacity: dict[str, float]
    price: FloatArray
    every: int

    def start(self, threads: int | None) -> Callable[[int], DayResult]:
        return _Worker(self).day


class _Worker:
    """Does one day after the other; keeps the block of loads that it drew last."""

    def __init__(self, job: DispatchJob) -> None:
        self.job, study = job, job.study
        self.solver = study.make_solver(1)
        self.dispatcher = Dispatcher(self.solver, job.units, job.options, job.ampacity)
        self.layout = layout_of(study, self.dispatcher.network, job.ampacity)
        self.size = max(1, study.source.block(0).load_kw.shape[1])
        self.kept: tuple[int, LoadBlock] | None = None

    def day(self, day: int) -> DayResult:
        job, study = self.job, self.job.study
        law, steps = study.source.law, study.steps
        load = placed_load(law, self._drawn(day), columns_of(self.solver, law))
        placed = PlacedDays(law, day, load)
        solved = solve_placed(self.solver, placed, generation=study.generation, nodes="all", mend=study.mends)
        chosen = np.zeros(steps, dtype=np.bool_)
        at = np.arange(0, steps, job.every)
        chosen[at] = True
        sun = np.ones(steps) if study.irradiance is None else study.irradiance[day % len(study.irradiance)]
        price = job.price[day]
        found = self.dispatcher.run(Snapshots(solved.load, solved.generation, price, sun, chosen))
        return self._result(day, at, found, solved.load, solved.generation)

    def _drawn(self, day: int) -> LoadBlock:
        """The loads of one day."""
        block = day // self.size
        if self.kept is None or self.kept[0] != block:
            self.kept = (block, self.job.study.source.block(block))
        drawn = self.kept[1]
        at = slice(day - drawn.first_day, day - drawn.first_day + 1)
        return LoadBlock(day, drawn.load_kw[:, at], drawn.load_kvar[:, at])

    def _result(
        self, day: int, at: IntArray, found: Dispatched, load: ComplexArray, generation: ComplexArray | None
    ) -> DayResult:
        dispatcher, study = self.dispatcher, self.job.study
        feeder, network = study.feeder, dispatcher.network
        found = found.at(at)
        base_kva = feeder.base_mva * KW_PER_MW
        price = self.job.price[day][at]
        states = [network.states(each.v, each.ratio, each.closed) for each in (found.base, found.checked)]
        flows = [network.flows(each) for each in states]
        vm = [np.abs(each.v[:, network.node_of]) for each in (found.base, found.checked)]
        limits, there = dispatcher.limits, network.number >= 0
        beyond_v = np.maximum(vm[1] - limits.highest, limits.lowest - vm[1])
        with np.errstate(invalid="ignore"):
            beyond_i = np.abs(flows[1].current[:, there]) / limits.current - 1.0
        layout = self.layout
        delivered = flows[1].received[:, layout.branch_of, layout.slot] * base_kva
        return DayResult(
            day=day,
            steps=at,
            load=self._at_released(load[at]) * base_kva,
            price=price,
            found=found,
            base_vm=vm[0],
            vm=vm[1],
            flows=delivered,
            column_load=load[at],
            column_generation=None if generation is None else generation[at],
            beyond_v=np.where(beyond_v > BEYOND_PU, beyond_v, 0.0),
            beyond_i=np.where(beyond_i > BEYOND_SHARE, beyond_i, 0.0),
            base_cost=price * network.imported(flows[0]).real * base_kva,
        )

    def _at_released(self, load: ComplexArray) -> ComplexArray:
        """Complex (snapshot, released node) of loads as the solver takes them [p.u.]."""
        feeder, released = self.job.study.feeder, self.job.study.released
        if self.solver.columns == "elements":
            shares = feeder.load_shares.tocsr()[released]
            return np.asarray((shares @ load.T).T)
        spread = np.zeros((len(load), len(feeder.nodes)), dtype=np.complex128)
        spread[:, feeder.retained] = load
        return np.asarray(spread[:, released])


def layout_of(study: Study, network: LinDistFlow, ampacity: dict[str, float]) -> Layout:
    """What of a network is published."""
    tree, feeder = network.tree, study.feeder
    place_of = {int(node): place for place, node in enumerate(network.node_of.tolist())}
    places = np.array([place_of.get(node, -1) for node in study.released.tolist()], dtype=np.int64)
    pairs = branch_pairs(study, tree)
    # In the order of the public names, as in connections.parquet: that of the tree is the file's.
    in_order = sorted(pairs, key=lambda k: sorted(pairs[k]))
    rows = [
        (k, slot)
        for k in in_order
        for slot in sorted(
            np.flatnonzero(tree.there[k]).tolist(), key=lambda at: phase_of(feeder, int(tree.nodes[k, at]))
        )
    ]
    nodes = [int(tree.nodes[k, slot]) for k, slot in rows]
    return Layout(
        places=places,
        branch_of=np.array([k for k, _ in rows], dtype=np.int64),
        slot=np.array([slot for _, slot in rows], dtype=np.int64),
        pairs=tuple(pairs[k] for k, _ in rows),
        phase=np.array([phase_of(feeder, node) for node in nodes], dtype=np.int64),
        limit_a=np.array([ampacity.get(tree.buses[k], np.inf) for k, _ in rows], dtype=np.float64),
    )
