"""A feeder as a tree of buses: what joins two of them, as blocks of admittances between their nodes.

Lines are taken from their own records. What else `y` holds (transformers, regulators, the source) is told
apart from the leaves upward: what stands on the diagonal of a bus and belongs to no line and to no element
below it, belongs to the element above it. A bus without such an element keeps it as its shunt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import GROUND, Feeder
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

    @property
    def sources(self) -> int:
        """Number of buses that are sources."""
        return int(np.count_nonzero(self.parent < 0))

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
        pairs = list(self.line_blocks)
        for i, j in zip(*(axis.tolist() for axis in self.rest.coords), strict=True):
            if i in self.place and j in self.place and self.place[i][0] != self.place[j][0]:
                pairs.append((self.place[i][0], self.place[j][0]))
        for a, b in pairs:
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
        """Fill in what joins two buses beside lines; whether a terminal is an inner node, parent first."""
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
        """Pair of buses → entries of the rest between them, first bus first."""
        found: dict[tuple[str, str], list[tuple[int, int, complex]]] = {}
        for i, j, value in zip(
            *(axis.tolist() for axis in self.rest.coords), self.rest.data.tolist(), strict=True
        ):
            if i in self.place and j in self.place and self.place[i][0] != self.place[j][0]:
                found.setdefault((self.place[i][0], self.place[j][0]), []).append((i, j, value))
        return found

    def _diagonals(self, number: dict[str, int]) -> tuple[ComplexArray, dict[str, ComplexArray]]:
        """What is left on the diagonal of a bus: at its own nodes, and at inner nodes of regulators."""
        own = np.zeros((len(number), self.m, self.m), dtype=np.complex128)
        inner: dict[str, ComplexArray] = {}
        for i, j, value in zip(
            *(axis.tolist() for axis in self.rest.coords), self.rest.data.tolist(), strict=True
        ):
            if i not in self.place or j not in self.place or self.place[i][0] != self.place[j][0]:
                continue
            (bus, a), (_, b) = self.place[i], self.place[j]
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


def frozen_ratios(feeder: Feeder) -> FloatArray:
    """(regulator,) ratios at which the taps of a feeder stand."""
    given = {(tap.transformer.lower(), tap.winding): tap.ratio for tap in feeder.taps}
    regulators = feeder.as_operated.regulators
    found = [given.get((each.transformer.lower(), each.winding), 1.0) for each in regulators]
    return np.array(found, dtype=np.float64)


def ratios(feeder: Feeder, taps: IntArray) -> FloatArray:
    """(…, regulator) ratios of taps, (…, regulator) steps away from neutral."""
    step = np.array([each.step for each in feeder.as_operated.regulators], dtype=np.float64)
    return np.asarray(1.0 + taps * step)


def pseudo_inverse(blocks: ComplexArray) -> ComplexArray:
    """Of (…, m, m) blocks; what nothing grounds stays zero."""
    return np.asarray(np.linalg.pinv(blocks, rcond=SINGULAR))


def names_of(tree: BusTree, chosen: Sequence[int]) -> list[str]:
    """Names of the branches above some buses, for messages to the owner."""
    return [tree.lines[k] or f"above '{tree.buses[k]}'" for k in chosen]
