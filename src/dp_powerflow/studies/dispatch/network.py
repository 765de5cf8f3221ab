"""Three-phase LinDistFlow: a feeder as a tree of buses, and its linear equations around a state.

What joins two buses are blocks of admittances between their nodes. Lines are taken from their own records.
What else `y` holds (transformers, regulators, the source) is told apart from the leaves upward: what stands
on the diagonal of a bus and belongs to no line and to no element below it, belongs to the element above it.
A bus without such an element keeps it as its shunt.

Unknown at every node that is no source: P and Q, the power that the branch above delivers there,
u = |v|², and the angle θ of v. For a branch with blocks Y of its admittance, parent p and child c, let
Z = Y_cc⁺, T = −Z·Y_cp and N = −Y_pc·Z. With the current J = conj(S_c/v_c) that it delivers,

    v_c = T·v_p − Z·J
    I_p = (Y_pp + Y_pc·T)·v_p + N·J,    S_p  = v_p·conj(I_p)
    S_c = power drawn at c + power of its shunt + Σ S_p of the branches below c

The equations here are the tangent of these at an AC solution: LinDistFlow with losses and their slopes. A
winding that nothing grounds (a delta) has no zero sequence of Z: its neutral stays where the state has it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import SuperLU, splu

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.powerflow.operated import frozen_ratios
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray

SINGULAR = 1e-6
"""Singular values of a block below this share of its largest are zero: a winding that nothing grounds."""
_NOTHING = 1e-9
"""Share of a bus's own admittance below which an entry is rounding."""
PARENT, CHILD = 0, 1


@dataclass(frozen=True, eq=False)
class BusTree:
    """Buses in the order in which they are reached from the source, and the branch above each of them.

    Arrays of phases are padded to the most phases of a bus, `m`; padded entries of a block are zero.

    Attributes
    ----------
    buses : names; the first ones are the sources.
    nodes : (bus, m) indices in `feeder.nodes`, −1 where padded.
    parent : (bus,) the next bus towards the source; −1 for a source.
    lines : (bus,) name of a line of the branch above, "" for a transformer or a source.
    fixed : complex (bus, 2, 2, m, m) what lines of the branch above contribute to `y` [p.u.]; parent first.
    moved : the same of all else, with regulators at neutral; multiplied by the ratios on both sides.
    regulator : (bus, 2, m) regulator that moves a terminal, −1 for none.
    shunt : complex (bus, m, m) admittance to ground, switched capacitors left out [p.u.].
    banks : complex (capacitor, bus, m, m) of switched capacitors [p.u.].
    ratio : (regulator,) at which `feeder.y` stands.
    """

    feeder: Feeder
    buses: tuple[str, ...]
    nodes: IntArray
    parent: IntArray
    lines: tuple[str, ...]
    fixed: ComplexArray
    moved: ComplexArray
    regulator: IntArray
    shunt: ComplexArray
    banks: ComplexArray
    ratio: FloatArray

    def __repr__(self) -> str:
        return f"BusTree({len(self.buses)} buses, {self.m} phases)"

    @property
    def m(self) -> int:
        """Most phases of a bus."""
        return int(self.nodes.shape[1])

    @cached_property
    def there(self) -> BoolArray:
        """(bus, m) whether there is a node."""
        return self.nodes >= 0

    @cached_property
    def floating(self) -> BoolArray:
        """(bus,) whether nothing grounds it: behind a delta winding, loads stand between its phases only."""
        found = np.zeros(len(self.buses), dtype=np.bool_)
        for k, above in enumerate(self.parent.tolist()):
            if above >= 0:
                size = np.linalg.svd(
                    self.fixed[k, CHILD, CHILD] + self.moved[k, CHILD, CHILD], compute_uv=False
                )
                whole = int(np.count_nonzero(self.there[k]))
                loose = bool(size[whole - 1] <= SINGULAR * size[0])
                found[k] = loose or (bool(found[above]) and not self.moved[k].any())
        return found

    def spread(self, values: ComplexArray) -> ComplexArray:
        """Complex (…, node) of the feeder as (…, bus, m); 1 where padded."""
        return np.where(self.there, values[..., self.nodes], 1.0 + 0.0j)

    @classmethod
    def of(cls, feeder: Feeder) -> BusTree:
        """The tree of a feeder.

        Raises
        ------
        FeederError : the feeder is meshed, or a bus is not fed.
        """
        return _Builder(feeder).tree()


class _Builder:
    """Reads the blocks of a feeder; used once."""

    def __init__(self, feeder: Feeder) -> None:
        self.feeder, self.operation = feeder, feeder.as_operated
        neutral = set(feeder.neutral.tolist())
        names = [name.rsplit(".", 1)[0] for name in self.operation.nodes]
        self.outer = {inner: at for each in self.operation.regulators for inner, at in each.phases}
        bus_of = [names[self.outer.get(k, k)] for k in range(len(names))]
        slots: dict[str, list[int]] = {}
        for k in range(len(feeder.nodes)):
            if k not in neutral:
                slots.setdefault(bus_of[k], []).append(k)
        self.slots = slots
        # A neutral conductor is at ground potential: it has no place among the phases.
        self.place = {k: (bus, at) for bus, found in slots.items() for at, k in enumerate(found)}
        self.place |= {inner: self.place[at] for inner, at in self.outer.items() if at in self.place}
        self.m = max(len(found) for found in slots.values())
        self.line_blocks, self.line_names = self._lines()
        self.rest = self._rest()

    def tree(self) -> BusTree:
        order, parent = self._walk()
        number = {bus: k for k, bus in enumerate(order)}
        count, m = len(order), self.m
        fixed = np.zeros((count, 2, 2, m, m), dtype=np.complex128)
        moved, regulator = np.zeros_like(fixed), np.full((count, 2, m), -1, dtype=np.int64)
        shunt = np.zeros((count, m, m), dtype=np.complex128)
        own, inner_own = self._diagonals(number)
        for k in range(count - 1, -1, -1):
            bus, above = order[k], parent.get(order[k])
            if above is None:
                shunt[k] = own[k]
                continue
            if (above, bus) in self.line_blocks:
                fixed[k] = self.line_blocks[above, bus]
            inner = self._joined(above, bus, moved[k], regulator[k])
            if moved[k].any():
                at = ~inner[CHILD]
                taken = np.where(at[:, None] & at, own[k], 0.0)
                moved[k, CHILD, CHILD] = taken + self._between(inner_own, bus, inner[CHILD])
                shunt[k] = own[k] - taken
                series = moved[k, PARENT, CHILD] @ pseudo_inverse(moved[k, CHILD, CHILD])
                sending = series @ moved[k, CHILD, PARENT]
                at = ~inner[PARENT]
                taken = np.where(at[:, None] & at, sending, 0.0)
                moved[k, PARENT, PARENT] = taken + self._between(inner_own, above, inner[PARENT])
                own[number[above]] -= taken
            else:
                shunt[k] = own[k]
        nodes = np.full((count, m), -1, dtype=np.int64)
        for k, bus in enumerate(order):
            nodes[k, : len(self.slots[bus])] = self.slots[bus]
        return BusTree(
            feeder=self.feeder,
            buses=tuple(order),
            nodes=nodes,
            parent=np.array([number[parent[bus]] if bus in parent else -1 for bus in order], dtype=np.int64),
            lines=tuple(self.line_names.get((parent.get(bus, ""), bus), "") for bus in order),
            fixed=fixed,
            moved=moved,
            regulator=regulator,
            shunt=shunt,
            banks=self._banks(number),
            ratio=frozen_ratios(self.feeder),
        )

    def _lines(self) -> tuple[dict[tuple[str, str], ComplexArray], dict[tuple[str, str], str]]:
        """Blocks of all lines between two buses, for either order of the two, and a name."""
        blocks: dict[tuple[str, str], ComplexArray] = {}
        names: dict[tuple[str, str], str] = {}
        for line in self.feeder.lines:
            ends = list(dict.fromkeys(self.place[k][0] for k in line.nodes if k in self.place))
            if len(ends) != 2:
                continue
            for pair in ((ends[0], ends[1]), (ends[1], ends[0])):
                block = blocks.setdefault(pair, np.zeros((2, 2, self.m, self.m), dtype=np.complex128))
                names.setdefault(pair, line.name)
                side = [pair.index(self.place[k][0]) if k in self.place else -1 for k in line.nodes]
                slot = [self.place[k][1] if k in self.place else -1 for k in line.nodes]
                for i, (a, at_a) in enumerate(zip(side, slot, strict=True)):
                    for j, (b, at_b) in enumerate(zip(side, slot, strict=True)):
                        if a >= 0 and b >= 0:
                            block[a, b, at_a, at_b] += line.primitive[i, j]
        return blocks, names

    def _rest(self) -> sp.coo_array:
        """`y` with regulators at neutral and without its lines; rounding is left out."""
        y = sp.coo_array(self.operation.y)
        rows, columns, values = [y.coords[0]], [y.coords[1]], [y.data]
        for line in self.feeder.lines:
            if len({self.place[k][0] for k in line.nodes if k in self.place}) != 2:
                continue
            at = np.asarray(line.nodes)
            rows.append(np.repeat(at, len(at)))
            columns.append(np.tile(at, len(at)))
            values.append(-np.asarray(line.primitive).ravel())
        found = sp.coo_array(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), y.shape
        )
        found.sum_duplicates()
        size = np.abs(self.operation.y.diagonal())
        i, j = found.coords
        kept = np.abs(found.data) > _NOTHING * np.sqrt(size[i] * size[j])
        return sp.coo_array((found.data[kept], (i[kept], j[kept])), y.shape)

    def _walk(self) -> tuple[list[str], dict[str, str]]:
        """Buses breadth first from the sources, and the parent of each."""
        beside: dict[str, dict[str, None]] = {bus: {} for bus in self.slots}
        for a, b in (*self.line_blocks, *(pair for pair in self._entries if pair[0] != pair[1])):
            beside[a][b] = None
            beside[b][a] = None
        order = list(dict.fromkeys(self.place[k][0] for k in self.feeder.slack.tolist()))
        parent: dict[str, str] = {}
        seen = set(order)
        for bus in order:
            for other in beside[bus]:
                if other not in seen:
                    seen.add(other)
                    parent[other] = bus
                    order.append(other)
                elif parent.get(bus) != other and parent.get(other) != bus:
                    self._refuse_loop(bus, other)
        if len(order) < len(self.slots):
            raise FeederError(
                f"{len(self.slots) - len(order)} buses are not fed; leave out what no source feeds"
            )
        return order, parent

    def _refuse_loop(self, bus: str, other: str) -> None:
        name = self.line_names.get((bus, other))
        what = f"line '{name}'" if name else f"the transformer between buses '{bus}' and '{other}'"
        raise FeederError(f"the feeder is meshed, and its optimal dispatch needs a tree; open {what}")

    def _joined(
        self, above: str, bus: str, moved: ComplexArray, regulator: IntArray
    ) -> tuple[BoolArray, BoolArray]:
        """Fill in what joins two buses besides lines; whether a terminal is an inner node, parent first."""
        inner = (np.zeros(self.m, dtype=np.bool_), np.zeros(self.m, dtype=np.bool_))
        for i, j, value in self._entries.get((above, bus), ()):
            at_i, at_j = self.place[i][1], self.place[j][1]
            moved[PARENT, CHILD, at_i, at_j] += value
            for side, node, at in ((PARENT, i, at_i), (CHILD, j, at_j)):
                if node in self.outer:
                    inner[side][at] = True
                    regulator[side, at] = self._moves[node]
        # A transformer that turns the phases (balanced nets of pandapower) has no symmetric block.
        for i, j, value in self._entries.get((bus, above), ()):
            moved[CHILD, PARENT, self.place[i][1], self.place[j][1]] += value
        return inner

    @cached_property
    def _moves(self) -> dict[int, int]:
        return {a: k for k, each in enumerate(self.operation.regulators) for a, _ in each.phases}

    @cached_property
    def _entries(self) -> dict[tuple[str, str], list[tuple[int, int, complex]]]:
        """Pair of buses → entries of the rest between them, first bus first; also of a bus with itself."""
        found: dict[tuple[str, str], list[tuple[int, int, complex]]] = {}
        for i, j, value in zip(
            *(axis.tolist() for axis in self.rest.coords), self.rest.data.tolist(), strict=True
        ):
            if i in self.place and j in self.place:
                found.setdefault((self.place[i][0], self.place[j][0]), []).append((i, j, value))
        return found

    def _diagonals(self, number: dict[str, int]) -> tuple[ComplexArray, dict[str, ComplexArray]]:
        """What is left on the diagonal of a bus: at its own nodes, and at inner nodes of regulators."""
        own = np.zeros((len(number), self.m, self.m), dtype=np.complex128)
        inner: dict[str, ComplexArray] = {}
        for bus in self.slots:
            for i, j, value in self._entries.get((bus, bus), ()):
                a, b = self.place[i][1], self.place[j][1]
                if i in self.outer and j in self.outer:
                    inner.setdefault(bus, np.zeros((self.m, self.m), dtype=np.complex128))[a, b] += value
                else:
                    own[number[bus], a, b] += value
        return own, inner

    def _between(self, inner: dict[str, ComplexArray], bus: str, at: BoolArray) -> ComplexArray:
        nothing = np.zeros((self.m, self.m), dtype=np.complex128)
        return np.where(at[:, None] & at, inner.get(bus, nothing), 0.0)

    def _banks(self, number: dict[str, int]) -> ComplexArray:
        """Admittances of switched capacitors."""
        banks = self.operation.capacitors
        found = np.zeros((len(banks), len(number), self.m, self.m), dtype=np.complex128)
        base_kva = self.feeder.base_mva * KW_PER_MW
        for k, bank in enumerate(banks):
            for pair in bank.branches:
                ends = [node for node in pair if node != GROUND and node in self.place]
                rated = bank.rated_kv / self.feeder.base_kv[ends[0]]
                y = 1j * bank.kvar / base_kva / len(bank.branches) / rated**2
                for a in ends:
                    for b in ends:
                        bus, at = self.place[a]
                        found[k, number[bus], at, self.place[b][1]] += y if a == b else -y
        return found


def ratios(feeder: Feeder, taps: IntArray) -> FloatArray:
    """(…, regulator) ratios of taps, (…, regulator) steps away from neutral."""
    step = np.array([each.step for each in feeder.as_operated.regulators], dtype=np.float64)
    return np.asarray(1.0 + taps * step)


def pseudo_inverse(blocks: ComplexArray) -> ComplexArray:
    """Of (…, m, m) blocks; what nothing grounds stays zero."""
    return np.asarray(np.linalg.pinv(blocks, rcond=SINGULAR))


P, Q, U, H = 0, 1, 2, 3
"""Which unknown of a node: active and reactive power, squared voltage, angle."""
UNKNOWNS = 4
_SPLU = {"permc_spec": "NATURAL", "diag_pivot_thresh": 0.1, "options": {"SymmetricMode": True}}


@dataclass(frozen=True, eq=False)
class AcStates:
    """AC solutions of some snapshots, around which the network is linearised.

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
    """The linear equations of a tree of buses; makes a `Tangent` for every snapshot."""

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

    def flows(self, states: AcStates) -> Flows:
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

    def tangents(self, states: AcStates) -> list[Tangent]:
        """The linear equations at every state."""
        blocks = self._blocks(states)
        data = self._entries(states, blocks)
        size = UNKNOWNS * self.places
        rows, columns, kept = self._pattern
        found = []
        for k in range(len(states)):
            values = np.concatenate([part[k].ravel() for part in data])[kept]
            matrix = sp.csc_array((values, (rows, columns)), shape=(size, size))
            found.append(Tangent(self, splu(matrix, **_SPLU), _of(blocks, k)))
        return found

    # ---------------------------------------------------------------------------------- inside

    def _blocks(self, states: AcStates) -> _Blocks:
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
        v = tree.spread(states.v)
        v_p, v_c = v[:, self._parent], v[:, child]
        t, n = -z @ y[:, :, CHILD, PARENT], -y[:, :, PARENT, CHILD] @ z
        stray = y[:, :, PARENT, PARENT] + y[:, :, PARENT, CHILD] @ t
        j = -(_times(y[:, :, CHILD, PARENT], v_p) + _times(y[:, :, CHILD, CHILD], v_c))
        return _Blocks(v_p, v_c, t, n, z, stray, j, _times(stray, v_p) + _times(n, j))

    def _entries(self, states: AcStates, b: _Blocks) -> list[FloatArray]:
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
        v = self.tree.spread(states.v)
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
        of = root @ _diagonal(1.0 / np.conj(b.v_c))  # change of P; Q changes by −j times it
        pairs = there[:, :, None] & there[:, None, :]
        row = np.broadcast_to(number[:, :, None], pairs.shape)[pairs]
        column = np.broadcast_to(number[:, None, :], pairs.shape)[pairs]
        entry, n = of[pairs], network.places
        rows = np.concatenate([row, row, row + n, row + n])
        columns = np.concatenate([column, column + n, column, column + n])
        values = np.concatenate([entry.real, entry.imag, entry.imag, -entry.real])
        return sp.csr_array((values, (rows, columns)), shape=(2 * n, self.size))


def _of(blocks: _Blocks, k: int) -> _Blocks:
    return _Blocks(*(getattr(blocks, field.name)[k] for field in fields(blocks)))


def _times(matrix: ComplexArray, vector: ComplexArray) -> ComplexArray:
    return np.asarray((matrix * vector[..., None, :]).sum(axis=-1))


def _turned(y: ComplexArray, v: ComplexArray, current: ComplexArray, along: ComplexArray) -> ComplexArray:
    """Change of v·conj(y·v) where v changes along a direction; `current` is y·v, or more of it."""
    return np.asarray(v[..., None] * np.conj(y * along[..., None, :]) + _diagonal(np.conj(current) * along))


def _diagonal(values: ComplexArray | FloatArray) -> ComplexArray:
    return np.asarray((values[..., None] * np.eye(values.shape[-1])).astype(np.complex128))
