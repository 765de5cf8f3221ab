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

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import SuperLU, splu

from dp_powerflow._bits.elementary import unit
from dp_powerflow.opf.tree import CHILD, PARENT, BusTree, pseudo_inverse
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

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
