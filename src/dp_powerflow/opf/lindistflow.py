"""Three-phase LinDistFlow of a feeder: linear flows and squared voltages around a state of the network.

Unknown at every node but those of the source: P and Q, the power that the branch above delivers there,
u = |v|², and the angle θ of v. For a branch with blocks Y of its admittance, parent p and child c, let
Z = Y_cc⁺, T = −Z·Y_cp and N = −Y_pc·Z. With the current J = conj(S_c/v_c) that it delivers,

    v_c = T·v_p − Z·J
    I_p = (Y_pp + Y_pc·T)·v_p + N·J,    S_p  = v_p·conj(I_p)
    S_c = power drawn at c + power of its shunt + Σ S_p of the branches below c

The equations here are the tangent of these at a state. At nominal phasors without current (`no_load`) that
is LinDistFlow itself: no losses, flows are sums, R and X between phases turned by 120°, and θ decouples. At
an AC solution losses and their slopes are there too. A winding that nothing grounds (a delta) has no zero
sequence of Z: its neutral stays where the state has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import SuperLU, splu

from dp_powerflow._bits.elementary import unit
from dp_powerflow.errors import FeederError, PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem, Tap
from dp_powerflow.opf.tree import CHILD, PARENT, BusTree, frozen_ratios, pseudo_inverse, ratios
from dp_powerflow.powerflow.batch import BatchSolver, Solution, Solver
from dp_powerflow.powerflow.operated import ActingSolver, OperatedSolution, OperatedSolver
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray

P, Q, U, H = 0, 1, 2, 3
"""Which unknown of a node: active and reactive power, squared voltage, angle."""
UNKNOWNS = 4
_SPLU = {"permc_spec": "NATURAL", "diag_pivot_thresh": 0.1, "options": {"SymmetricMode": True}}


@dataclass(frozen=True, eq=False)
class States:
    """States of the network around which it is linearised; the first axis is the snapshot.

    Attributes
    ----------
    v : complex (snapshot, bus, m) [p.u.], 1 where padded.
    ratio : (snapshot, regulator).
    closed : (snapshot, switched capacitor) 1 closed, 0 open.
    loaded : whether currents flow; without, v is taken for the voltage of no load.
    """

    v: ComplexArray
    ratio: FloatArray
    closed: FloatArray
    loaded: bool = True

    def __len__(self) -> int:
        return len(self.v)


@dataclass(frozen=True, eq=False)
class Flows:
    """Power and current of every branch, complex (snapshot, bus, m) [p.u.], of the branch above a bus.

    Attributes
    ----------
    sent, received : power into the branch at the parent, by phases of the parent; out of it at the child.
    current : delivered at the child.
    """

    sent: ComplexArray
    received: ComplexArray
    current: ComplexArray


class LinDistFlow:
    """The linear equations of a tree of buses; makes a `Tangent` for every snapshot.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> network = LinDistFlow(BusTree.of(dpf.open_feeder("ieee13")))
    >>> tangent = network.tangents(network.no_load())[0]
    >>> tangent.size == 4 * network.places
    True
    """

    def __init__(self, tree: BusTree) -> None:
        self.tree = tree
        child = np.flatnonzero(tree.parent >= 0)
        self._child, self._parent = child, tree.parent[child]
        number = np.full(tree.nodes.shape, -1, dtype=np.int64)
        fed = tree.there & (tree.parent >= 0)[:, None]
        number[fed] = np.arange(int(fed.sum()))
        self.number: IntArray = number
        """(bus, m) place of a node among the unknowns, −1 for a source or where padded."""
        self.places = int(fed.sum())
        self.node_of: IntArray = tree.nodes[fed]
        """(place,) node of the feeder."""
        self._scaled = (tree.regulator[child] >= 0).any(axis=(1, 2))
        self._z0 = pseudo_inverse(tree.fixed[child, CHILD, CHILD] + tree.moved[child, CHILD, CHILD])

    def no_load(self) -> States:
        """Nominal phasors without current, regulators where the feeder has them: one snapshot."""
        tree = self.tree
        phasor = tree.spread(unit(tree.feeder.nominal_angle_deg))
        closed = np.array([float(bank.closed) for bank in tree.feeder.as_operated.capacitors])
        return States(phasor[None], tree.ratio[None], closed[None], loaded=False)

    def states(self, v: ComplexArray, ratio: FloatArray, closed: FloatArray) -> States:
        """States of AC solutions: v is complex (snapshot, node) with the sources."""
        return States(self.tree.spread(v), ratio, closed)

    def flows(self, states: States) -> Flows:
        """Power and current of every branch at the voltages of the states."""
        b = self._blocks(states)
        shape = (len(states), *self.tree.nodes.shape)
        sent, received, current = (np.zeros(shape, dtype=np.complex128) for _ in range(3))
        sent[:, self._child] = b.v_p * np.conj(b.i_p)
        received[:, self._child] = b.v_c * np.conj(b.j)
        current[:, self._child] = b.j
        there = self.tree.there
        above = there[np.maximum(self.tree.parent, 0)]
        received, current = (np.where(there, each, 0.0) for each in (received, current))
        return Flows(np.where(above, sent, 0.0), received, current)

    def imported(self, flows: Flows) -> ComplexArray:
        """Complex (snapshot,) power that the sources give [p.u.]."""
        at = self._child[self.tree.parent[self._parent] < 0]
        # What a branch sends is at the phases of its parent, which may have more than its child.
        return np.asarray(flows.sent[:, at].sum(axis=(1, 2)) + self._at_sources)

    @cached_property
    def _at_sources(self) -> complex:
        """Power that shunts at the sources draw, as iron losses of a transformer there [p.u.]."""
        feeder, tree = self.tree.feeder, self.tree
        v = np.zeros(len(feeder.nodes), dtype=np.complex128)
        v[feeder.slack] = feeder.v_slack
        own = np.where(tree.there, v[tree.nodes], 0.0)[tree.parent < 0]
        return complex(np.sum(own * np.conj(_times(tree.shunt[tree.parent < 0], own))))

    def tangents(self, states: States) -> list[Tangent]:
        """The linear equations at every state."""
        blocks = self._blocks(states)
        data = self._entries(states, blocks)
        size = UNKNOWNS * self.places
        rows, columns, kept = self._pattern
        found = []
        for k in range(len(states)):
            values = np.concatenate([part[k].ravel() for part in data])[kept]
            matrix = sp.csc_array((values, (rows, columns)), shape=(size, size))
            found.append(Tangent(self, splu(matrix, **_SPLU), _of(blocks, k), states.ratio[k]))
        return found

    # ---------------------------------------------------------------------------------- inside

    def _blocks(self, states: States) -> _Blocks:
        tree, child = self.tree, self._child
        ratio = np.concatenate([states.ratio, np.ones((len(states), 1))], axis=1)
        scale = 1.0 / ratio[:, tree.regulator[child]]  # −1, no regulator, is the last column
        y = (
            tree.fixed[child]
            + scale[:, :, :, None, :, None] * tree.moved[child] * scale[:, :, None, :, None, :]
        )
        z = np.broadcast_to(self._z0, (len(states), *self._z0.shape)).copy()
        if self._scaled.any():
            z[:, self._scaled] = pseudo_inverse(y[:, self._scaled, CHILD, CHILD])
        v_p, v_c = states.v[:, self._parent], states.v[:, child]
        t, n = -z @ y[:, :, CHILD, PARENT], -y[:, :, PARENT, CHILD] @ z
        stray = y[:, :, PARENT, PARENT] + y[:, :, PARENT, CHILD] @ t
        if states.loaded:
            j = -(_times(y[:, :, CHILD, PARENT], v_p) + _times(y[:, :, CHILD, CHILD], v_c))
        else:
            j = np.zeros_like(v_c)
        i_p = _times(stray, v_p) + _times(n, j)
        return _Blocks(v_p, v_c, t, n, z, stray, j, i_p)

    def _entries(self, states: States, b: _Blocks) -> list[FloatArray]:
        """Entries of the equations, in the order of `_pattern`; each (snapshot, branch or bus, m, m)."""
        u_p, u_c = np.abs(b.v_p) ** 2, np.abs(b.v_c) ** 2
        by_p = _diagonal(1.0 / np.conj(b.v_c))
        found: list[FloatArray] = []
        for of in (by_p, -1j * by_p, _diagonal(-b.j / (2.0 * u_c)), _diagonal(1j * b.j)):
            sent = b.v_p[..., None] * np.conj(b.n @ of)
            drop = np.conj(b.v_c)[..., None] * (b.z @ of)
            found += [-sent.real, -sent.imag, 2.0 * drop.real, drop.imag / u_c[..., None]]
        for along in (b.v_p / (2.0 * u_p), 1j * b.v_p):
            sent = _turned(b.stray, b.v_p, b.i_p, along)
            rise = np.conj(b.v_c)[..., None] * b.t * along[..., None, :]
            found += [-sent.real, -sent.imag, -2.0 * rise.real, -rise.imag / u_c[..., None]]
        shunt = self.tree.shunt + np.einsum("sk,kbij->sbij", states.closed, self.tree.banks)
        v = states.v
        for along in (v / (2.0 * np.abs(v) ** 2), 1j * v):
            drawn = _turned(shunt, v, _times(shunt, v), along)
            found += [-drawn.real, -drawn.imag]
        return [*found, *(np.ones((len(states), self.places)) for _ in range(UNKNOWNS))]

    @cached_property
    def _pattern(self) -> tuple[IntArray, IntArray, IntArray]:
        """Rows and columns of the entries, and which of them are there."""
        n = self.places
        child, parent, own = self.number[self._child], self.number[self._parent], self.number
        rows, columns = [], []

        def add(row_of: IntArray, row: int, column_of: IntArray, column: int) -> None:
            row_at = np.broadcast_to(row_of[:, :, None], (*row_of.shape, row_of.shape[1]))
            column_at = np.broadcast_to(column_of[:, None, :], row_at.shape)
            there = (row_at >= 0) & (column_at >= 0)
            rows.append(np.where(there, row_at + row * n, -1).ravel())
            columns.append(np.where(there, column_at + column * n, -1).ravel())

        for unknown in (P, Q, U, H):
            for row_of, row in ((parent, P), (parent, Q), (child, U), (child, H)):
                add(row_of, row, child, unknown)
        for unknown in (U, H):
            for row_of, row in ((parent, P), (parent, Q), (child, U), (child, H)):
                add(row_of, row, parent, unknown)
        for unknown in (U, H):
            for row in (P, Q):
                add(own, row, own, unknown)
        for unknown in (P, Q, U, H):
            rows.append(np.arange(n) + unknown * n)
            columns.append(np.arange(n) + unknown * n)
        every, across = np.concatenate(rows), np.concatenate(columns)
        kept = np.flatnonzero(every >= 0)
        return self.leaves_first[every[kept]], self.leaves_first[across[kept]], kept

    @cached_property
    def leaves_first(self) -> IntArray:
        """(unknown,) where an unknown stands in the factors: from the leaves up, which fills in least."""
        place, unknown = np.arange(self.places), np.arange(UNKNOWNS)[:, None]
        return ((self.places - 1 - place) * UNKNOWNS + unknown).ravel()


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Per branch: complex (snapshot, branch, m) vectors and (snapshot, branch, m, m) matrices."""

    v_p: ComplexArray
    v_c: ComplexArray
    t: ComplexArray
    n: ComplexArray
    z: ComplexArray
    stray: ComplexArray
    j: ComplexArray
    i_p: ComplexArray


@dataclass(frozen=True, eq=False)
class Tangent:
    """The linear equations of one snapshot, G·z = power injected, in changes from the state.

    z holds P of all places, then Q, u and θ.
    """

    network: LinDistFlow
    factors: SuperLU
    blocks: _Blocks
    ratio: FloatArray

    @property
    def size(self) -> int:
        """Unknowns."""
        return UNKNOWNS * self.network.places

    def changes(self, right: FloatArray) -> FloatArray:
        """z, (unknown, case), of right-hand sides (unknown, case): power injected [p.u.] and lifts of u."""
        return self._solved(right, "N")

    def prices(self, gradient: FloatArray) -> FloatArray:
        """(unknown,) how a function with this gradient over z changes with the right-hand side."""
        return self._solved(gradient, "T")

    def _solved(self, right: FloatArray, trans: str) -> FloatArray:
        order = self.network.leaves_first
        moved = np.empty_like(right)
        moved[order] = right
        return np.asarray(self.factors.solve(moved, trans=trans)[order])

    def import_gradient(self) -> tuple[FloatArray, FloatArray]:
        """(unknown,) slopes of active and reactive power that the sources give."""
        network, b = self.network, self.blocks
        found = np.zeros((2, self.size))
        at = np.flatnonzero(network.tree.parent[network._parent] < 0)
        by_p, by_angle = _diagonal(1.0 / np.conj(b.v_c[at])), _diagonal(1j * b.j[at])
        by_u = _diagonal(-b.j[at] / (2.0 * np.abs(b.v_c[at]) ** 2))
        number = network.number[network._child[at]]
        there = number >= 0
        for unknown, of in ((P, by_p), (Q, -1j * by_p), (U, by_u), (H, by_angle)):
            sent = (b.v_p[at][..., None] * np.conj(b.n[at] @ of)).sum(axis=1)
            places = number[there] + unknown * network.places
            found[0, places], found[1, places] = sent.real[there], sent.imag[there]
        return found[0], found[1]

    def tap_columns(self) -> tuple[FloatArray, FloatArray]:
        """Right-hand sides (unknown, regulator) of a change of every ratio by 1, and what it imports at once.

        The second, (regulator,), is active power of a source right above a regulator [p.u.].
        """
        network, b, n = self.network, self.blocks, self.network.places
        tree = network.tree
        count = len(tree.ratio)
        right, at_once = np.zeros((self.size, count)), np.zeros(count)
        for branch, side, slot in np.argwhere(tree.regulator[network._child] >= 0).tolist():
            bus = int(network._child[branch])
            k = int(tree.regulator[bus, side, slot])
            ratio = self.ratio[k]
            only = np.arange(tree.m) == slot
            if side == CHILD:
                lift, current = (
                    np.where(only, b.v_c[branch], 0.0) / ratio,
                    b.n[branch][:, slot] * b.j[branch, slot] / ratio,
                )
            else:
                lift = -b.t[branch][:, slot] * b.v_p[branch, slot] / ratio
                current = -np.where(only, b.n[branch] @ b.j[branch], 0.0) / ratio
            sent = b.v_p[branch] * np.conj(current)
            to, above = network.number[bus], network.number[network._parent[branch]]
            turned = np.conj(b.v_c[branch]) * lift
            right[to[to >= 0] + U * n, k] += 2.0 * turned.real[to >= 0]
            right[to[to >= 0] + H * n, k] += (turned.imag / np.abs(b.v_c[branch]) ** 2)[to >= 0]
            right[above[above >= 0] + P * n, k] += sent.real[above >= 0]
            right[above[above >= 0] + Q * n, k] += sent.imag[above >= 0]
            at_once[k] += float(sent.real.sum()) if tree.parent[network._parent[branch]] < 0 else 0.0
        return right, at_once

    def loss_factor(self) -> sp.csr_array:
        """W (2·place, unknown): the second-order part of losses is ‖W·z‖² [p.u.].

        Rows are real and imaginary parts of the change of current times the root of the branch's resistance.
        """
        network, b = self.network, self.blocks
        number = network.number[network._child]
        there = number >= 0
        resistance = 0.5 * (b.z + np.conj(np.swapaxes(b.z, -1, -2)))
        value, vector = np.linalg.eigh(resistance)
        root = np.sqrt(np.maximum(value, 0.0))[..., None] * np.conj(np.swapaxes(vector, -1, -2))
        of = root @ _diagonal(1.0 / np.conj(b.v_c))  # change of P; that of Q is −j times it
        pairs = there[:, :, None] & there[:, None, :]
        row = np.broadcast_to(number[:, :, None], pairs.shape)[pairs]
        column = np.broadcast_to(number[:, None, :], pairs.shape)[pairs]
        entry, n = of[pairs], network.places
        rows = np.concatenate([row, row, row + n, row + n])
        columns = np.concatenate([column, column + n, column, column + n])
        values = np.concatenate([entry.real, entry.imag, entry.imag, -entry.real])
        return sp.csr_array((values, (rows, columns)), shape=(2 * n, self.size))


def _of(blocks: _Blocks, k: int) -> _Blocks:
    parts = (blocks.v_p, blocks.v_c, blocks.t, blocks.n, blocks.z, blocks.stray, blocks.j, blocks.i_p)
    return _Blocks(*(part[k] for part in parts))


def _times(matrix: ComplexArray, vector: ComplexArray) -> ComplexArray:
    return np.asarray((matrix * vector[..., None, :]).sum(axis=-1))


def _turned(y: ComplexArray, v: ComplexArray, current: ComplexArray, along: ComplexArray) -> ComplexArray:
    """Change of v·conj(y·v) where v changes along a direction; `current` is y·v, or more of it."""
    return np.asarray(v[..., None] * np.conj(y * along[..., None, :]) + _diagonal(np.conj(current) * along))


def _diagonal(values: ComplexArray | FloatArray) -> ComplexArray:
    found: ComplexArray = (values[..., None] * np.eye(values.shape[-1])).astype(np.complex128)
    return found


@dataclass(frozen=True, eq=False)
class RadialNetwork:
    """A tree of lines.

    Attributes
    ----------
    start, end : (line,) nodes that a line joins, 0 … lines; either of the two may be nearer to the root.
    r, x : (line,) series resistance and reactance [p.u.].
    root : node of the source.

    Raises
    ------
    FeederError : the lines are no tree that reaches every node.

    Examples
    --------
    >>> import numpy as np
    >>> network = RadialNetwork(np.array([0, 1]), np.array([1, 2]), np.array([0.01, 0.02]), np.zeros(2))
    >>> network.flows(np.array([0.0, 0.1, 0.2])).round(3)
    array([0.3, 0.2])
    >>> network.squared_voltages(np.array([0.0, 0.1, 0.2]), np.zeros(3)).round(3)
    array([1.   , 0.994, 0.986])
    """

    start: IntArray
    end: IntArray
    r: FloatArray
    x: FloatArray
    root: int = 0

    def __post_init__(self) -> None:
        sizes = {len(self.start), len(self.end), len(self.r), len(self.x)}
        if len(sizes) != 1:
            raise FeederError("start, end, r and x of a radial network must have one entry for every line")
        ends = np.concatenate([self.start, self.end])
        if len(ends) and (ends.min() < 0 or ends.max() > len(self.start)):
            raise FeederError("the nodes of a radial network are numbered from 0 to the number of its lines")
        if not 0 <= self.root <= len(self.start):
            raise FeederError("the root must be a node of the radial network")
        if len(self.order) != self.nodes:
            raise FeederError(
                "the lines are no tree: open the line that closes a loop, and join every node to the root"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.start) + 1

    @cached_property
    def order(self) -> IntArray:
        """Nodes in the order in which they are reached from the root, breadth first."""
        return self._walk[0]

    @cached_property
    def parent(self) -> IntArray:
        """(node,) the next node towards the root; −1 for the root."""
        return self._walk[1]

    @cached_property
    def line_above(self) -> IntArray:
        """(node,) the line towards the root; −1 for the root."""
        return self._walk[2]

    @cached_property
    def _walk(self) -> tuple[IntArray, IntArray, IntArray]:
        at: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        for line, (a, b) in enumerate(zip(self.start.tolist(), self.end.tolist(), strict=True)):
            at[a].append((b, line))
            at[b].append((a, line))
        parent = np.full(self.nodes, -1, dtype=np.int64)
        above = np.full(self.nodes, -1, dtype=np.int64)
        order, seen = [self.root], {self.root}
        for node in order:
            for other, line in at[node]:
                if other not in seen:
                    seen.add(other)
                    parent[other], above[other] = node, line
                    order.append(other)
        return np.array(order, dtype=np.int64), parent, above

    @cached_property
    def below(self) -> FloatArray:
        """(line, node) 1 where the node is fed through the line, else 0."""
        found = np.zeros((len(self.start), self.nodes))
        for node in self.order[1:].tolist():
            found[:, node] = found[:, self.parent[node]]
            found[self.line_above[node], node] = 1.0
        return found

    @cached_property
    def resistance(self) -> FloatArray:
        """(node, node) R: resistance that the paths of two nodes to the root share [p.u.]."""
        return np.asarray(self.below.T @ (self.r[:, None] * self.below))

    @cached_property
    def reactance(self) -> FloatArray:
        """(node, node) X: reactance that the paths of two nodes to the root share [p.u.]."""
        return np.asarray(self.below.T @ (self.x[:, None] * self.below))

    def flows(self, drawn: FloatArray) -> FloatArray:
        """(…, line) power away from the root, from that drawn at the nodes, (…, node) [p.u.]."""
        return np.asarray(drawn @ self.below.T)

    def squared_voltages(self, p: FloatArray, q: FloatArray, root: float = 1.0) -> FloatArray:
        """(…, node) u = root − 2·(R·p + X·q) of power drawn, (…, node) [p.u.]; `root` is u of the source."""
        return np.asarray(root - 2.0 * (p @ self.resistance + q @ self.reactance))


_NO_LOAD_KW = -1e-6
"""Nominal power of a unit that stands among the loads: negative, so that it may inject."""


@dataclass(frozen=True)
class Unit:
    """One unit: an inverter with storage, a generator, or photovoltaics.

    Attributes
    ----------
    branches : pairs of node indices between which it injects equal shares, as of a load.
    kva : rating of its apparent power [kVA].
    kw_max, kw_min : range of its active power [kW]; negative for one that can draw.
    cost_per_kwh, cost_per_kw2h : cost of p kW for an hour, cost_per_kwh·p + cost_per_kw2h·p².
    sun : whether `kw_max` is multiplied by the irradiance.
    """

    name: str
    branches: tuple[tuple[int, int], ...]
    kva: float
    kw_max: float
    kw_min: float = 0.0
    cost_per_kwh: float = 0.0
    cost_per_kw2h: float = 0.0
    sun: bool = False


@dataclass(frozen=True, eq=False)
class AcStates:
    """AC solutions of some snapshots.

    Attributes
    ----------
    v : complex (snapshot, node) of all nodes of the feeder, sources included [p.u.]; NaN where not converged.
    ratio : (snapshot, regulator).
    closed : (snapshot, switched capacitor) 1 closed, 0 open.
    converged : (snapshot,).
    """

    v: ComplexArray
    ratio: FloatArray
    closed: FloatArray
    converged: BoolArray

    def __getitem__(self, which: IntArray) -> AcStates:
        return AcStates(self.v[which], self.ratio[which], self.closed[which], self.converged[which])


class UnitsPowerFlow:
    """Power flow of a feeder with units, by the solver that the study names.

    Parameters
    ----------
    solver : of the feeder without units; what it takes as loads and generation is kept.
    units : where power is injected.
    threads : of the solver.
    """

    def __init__(self, solver: Solver, units: Sequence[Unit], threads: int | None = 1) -> None:
        if not isinstance(solver, BatchSolver | OperatedSolver | ActingSolver):
            raise PowerFlowError("units are dispatched with the batch solvers only; leave out the engine")
        self._threads = threads
        self.feeder = solver.feeder
        self._by_element = solver.columns == "elements"
        self._with = with_units(self.feeder, units, as_loads=self._by_element)
        self._solver: Solver = solver.on(self._with, threads=threads)
        self._fixed: dict[tuple[float, ...], Solver] = {}

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None,
        power: ComplexArray,
        ratio: FloatArray | None = None,
    ) -> AcStates:
        """Voltages of every snapshot.

        Parameters
        ----------
        load, generation : as the solver of the study takes them; whole days where its controls remember.
        power : complex (snapshot, unit) injected [p.u.].
        ratio : (snapshot, regulator) at which regulators are held; None to let the solver decide.
        """
        load, injected = self._columns(load, generation, power)
        if ratio is None:
            return self._states(self._solver.solve(load, injected, nodes="all"))
        found = [np.zeros((len(load), len(self.feeder.nodes)), dtype=np.complex128)]
        closed = np.tile(self._closed, (len(load), 1))
        converged = np.zeros(len(load), dtype=np.bool_)
        for held in np.unique(ratio, axis=0):
            at = np.flatnonzero((ratio == held).all(axis=1))
            part = None if injected is None else injected[at]
            states = self._states(self._held(held).solve(load[at], part, nodes="all"))
            found[0][at], converged[at] = states.v, states.converged
        return AcStates(found[0], ratio, closed, converged)

    def _columns(
        self, load: ComplexArray, generation: ComplexArray | None, power: ComplexArray
    ) -> tuple[ComplexArray, ComplexArray | None]:
        if self._by_element:
            return np.ascontiguousarray(np.concatenate([load, -power], axis=1)), generation
        at = np.searchsorted(self._with.retained, self.feeder.retained)
        shape = (len(load), len(self._with.retained))
        wide, injected = np.zeros(shape, dtype=np.complex128), np.zeros(shape, dtype=np.complex128)
        wide[:, at] = load
        if generation is not None:
            injected[:, at] = generation
        injected += np.asarray((self._shares @ power.T).T)
        return wide, injected

    @cached_property
    def _shares(self) -> sp.csr_array:
        """Complex (retained node with units, unit)."""
        shares = self._with.pv_shares.tocsr()[self._with.retained]
        return sp.csr_array(shares[:, len(self.feeder.pv) :])

    @property
    def _closed(self) -> FloatArray:
        """Switched capacitors as the file has them."""
        return np.array([float(bank.closed) for bank in self.feeder.as_operated.capacitors])

    def _states(self, solution: Solution) -> AcStates:
        n, feeder = len(solution.converged), self.feeder
        v = np.empty((n, len(feeder.nodes)), dtype=np.complex128)
        v[:, feeder.energised], v[:, feeder.slack] = solution.v, feeder.v_slack
        if isinstance(solution, OperatedSolution):
            closed = solution.capacitors.astype(np.float64)
            return AcStates(v, ratios(feeder, solution.taps), closed, solution.converged)
        ratio = np.tile(frozen_ratios(feeder), (n, 1))
        return AcStates(v, ratio, np.tile(self._closed, (n, 1)), solution.converged)

    def _held(self, held: FloatArray) -> Solver:
        """A solver whose regulators stand at given ratios."""
        key = tuple(held.tolist())
        if key not in self._fixed:
            regulators = self.feeder.as_operated.regulators
            pairs = zip(regulators, key, strict=True)
            taps = tuple(Tap(each.transformer, each.winding, value) for each, value in pairs)
            if self._by_element:
                feeder = replace(self._with, taps=taps)
                self._fixed[key] = OperatedSolver(feeder, controls="frozen", threads=self._threads)
            else:
                feeder = replace(self._with, taps=taps, y=admittance_at(self._with, held))
                self._fixed[key] = BatchSolver(feeder, threads=self._threads)
        return self._fixed[key]


def with_units(feeder: Feeder, units: Sequence[Unit], *, as_loads: bool) -> Feeder:
    """The feeder with a load, or a PV system, for every unit, after its own."""
    if as_loads:
        loads = tuple(Load(unit.name, unit.branches, _NO_LOAD_KW, 0.0, "wye") for unit in units)
        return replace(feeder, loads=(*feeder.loads, *loads))
    pv = tuple(PVSystem(unit.name, unit.branches, unit.kva, max(unit.kw_max, 0.0)) for unit in units)
    return replace(feeder, pv=(*feeder.pv, *pv))


def unit_shares(feeder: Feeder, units: Sequence[Unit]) -> ComplexArray:
    """Complex (node, unit): nodal power injected per unit of complex power, at nominal phasors."""
    found = with_units(feeder, units, as_loads=False).pv_shares.toarray()
    return np.asarray(found[:, len(feeder.pv) :])


def admittance_at(feeder: Feeder, held: FloatArray) -> sp.csc_array:
    """`y` with regulators at given ratios and switched capacitors as the file has them."""
    operation = feeder.as_operated
    n, rows, columns, values = len(feeder.nodes), [], [], []
    for regulator, ratio in zip(operation.regulators, held.tolist(), strict=True):
        for inner, outer in regulator.phases:
            rows.append(inner)
            columns.append(outer)
            values.append(1.0 / ratio)
    row, column = (np.concatenate([np.arange(n), part]).astype(np.int64) for part in (rows, columns))
    joined = sp.csc_array(
        (np.concatenate([np.ones(n), values]), (row, column)), shape=(len(operation.nodes), n)
    )
    y = joined.T @ operation.y @ joined
    base_kva = feeder.base_mva * KW_PER_MW
    stamps = sp.lil_array((n, n), dtype=np.complex128)
    for bank in operation.capacitors:
        for pair in bank.branches if bank.closed else ():
            ends = [node for node in pair if node != GROUND]
            rated = bank.rated_kv / feeder.base_kv[ends[0]]
            share = 1j * bank.kvar / base_kva / len(bank.branches) / rated**2
            for a in ends:
                for b in ends:
                    stamps[a, b] += share if a == b else -share
    return sp.csc_array(y + stamps.tocsc())
