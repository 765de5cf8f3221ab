"""Factors of a feeder whose taps move: all but the regulators' terminals is eliminated once.

Every regulating winding ends at an inner node; an ideal ratio t leads to its outer node (v_outer = t·v_inner
and the currents balance, J_inner + t·J_outer = 0). The inner and outer nodes, the *terminals*, come last in
the order of elimination. The factors of the interior and the Schur complement S at the terminals are then the
same for all taps, and a tap vector costs no more than the small matrix

    M(t) = S_ii + S_io·T + T·S_oi + T·S_oo·T.

Voltages are deviations x from the no-load voltage w at neutral taps. At other taps w does not balance the
terminals; what is left is a constant that the right-hand side of M carries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.elimination import (
    BlockPlan,
    block_plan,
    factor_interior,
    order_of,
)
from dp_powerflow.powerflow.factor import Core, Rows, no_load_voltage, partial_reductions, rounding_floor
from dp_powerflow.units import ComplexArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class TerminalFactors:
    """Order and pattern of the elimination, and the matrices in that order.

    Positions 0 … interior − 1 are eliminated by the factors; then come the inner nodes of all regulator
    phases, then their outer nodes, then the nodes that were eliminated beforehand.

    Attributes
    ----------
    interior, phases : number of interior positions and of regulator phases.
    position : (operation node,) position of each node, −1 for slack nodes.
    recover : rows that give an eliminated node's deviation from those before it (negated).
    core, full : rows of the admittances of the core and of all nodes, both in position order.
    blocks : pattern of the factors, with the entries of the core.
    w : complex (position,) no-load voltage at neutral taps [p.u.].
    outflow : complex (phase,) current that leaves an outer node into the network at w [p.u.].
    core_floor, full_floor : (row,) smallest power mismatch that complex128 can certify [p.u.].
    """

    interior: int
    phases: int
    position: IntArray
    recover: Rows
    core: Rows
    full: Rows
    blocks: BlockPlan
    w: ComplexArray
    outflow: ComplexArray
    core_floor: FloatArray
    full_floor: FloatArray

    @property
    def n_core(self) -> int:
        """Positions that an iteration touches."""
        return self.interior + 2 * self.phases

    def slot(self, row: int, column: int) -> int:
        """Index of a block among the factors."""
        begin, end = int(self.blocks.ptr[row]), int(self.blocks.ptr[row + 1])
        found = begin + int(np.searchsorted(self.blocks.col[begin:end], column))
        if found >= end or self.blocks.col[found] != column:
            raise PowerFlowError(
                "a load joins two nodes that the factors keep apart; this is a bug, report it"
            )
        return found

    def factorised(self, slots: IntArray, extra: FloatArray) -> FloatArray:
        """Factors of the interior with `extra` (slot, 4) added at `slots`, and the Schur complement."""
        values = np.empty((len(self.blocks.col), 4))
        place = np.zeros(self.n_core, dtype=np.int64)
        if factor_interior(self.blocks, slots, extra, self.interior, values, place) == 0:
            raise PowerFlowError(
                "the admittance matrix is singular to working precision; look for a part of the feeder that "
                "floats without any shunt, or for impedances of zero"
            )
        return values

    def schur(self, values: FloatArray) -> FloatArray:
        """(2·phase, 2·phase, 4) blocks at the terminals."""
        size = 2 * self.phases
        found = np.zeros((size, size, 4))
        for row in range(size):
            at = self.interior + row
            for p in range(int(self.blocks.ptr[at]), int(self.blocks.ptr[at + 1])):
                column = int(self.blocks.col[p]) - self.interior
                if column >= 0:
                    found[row, column] = values[p]
        return found


def factorise_terminals(feeder: Feeder, kept: IntArray, coupled: list[tuple[int, int]]) -> TerminalFactors:
    """Factors of a feeder as operated.

    Parameters
    ----------
    kept : operation nodes that must stay in the core: with a device, or measured by a control.
    coupled : pairs of operation nodes that a device joins.
    """
    operation = feeder.as_operated
    pairs = [pair for regulator in operation.regulators for pair in regulator.phases]
    inner, outer = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(set(outer)) < len(outer):
        raise PowerFlowError(
            "two regulators feed the same node side by side, which the solver of the feeder as operated does "
            'not know; set controls = "frozen"',
            code="controls-not-modelled",
        )
    energised = np.setdiff1d(np.arange(len(operation.nodes)), feeder.slack)
    local = np.full(len(operation.nodes), -1, dtype=np.int64)
    local[energised] = np.arange(len(energised))
    y = sp.csc_array(operation.y)[:, energised][energised]
    w = _no_load(feeder, inner, outer)
    terminals = [*local[inner].tolist(), *local[outer].tolist()]
    removable = np.ones(len(energised), dtype=bool)
    removable[local[kept]] = False
    removable[terminals] = False
    joined = [(int(local[a]), int(local[b])) for a, b in coupled]
    core, order = _best_order(y, removable, terminals, joined)
    return _assemble(feeder, y, w, core, order, joined, terminals, energised)


def _no_load(feeder: Feeder, inner: list[int], outer: list[int]) -> ComplexArray:
    """Complex (energised operation node,) at neutral taps: inner and outer nodes are one."""
    operation = feeder.as_operated
    count = len(feeder.nodes)
    onto = np.arange(len(operation.nodes))
    onto[inner] = outer
    merge = sp.csr_array(
        (np.ones(len(onto)), (onto, np.arange(len(onto)))), shape=(count, len(operation.nodes))
    )
    merged = sp.csc_array(merge @ operation.y @ merge.T)
    found = no_load_voltage(replace(feeder, y=merged, operation=None))
    v = np.zeros(count, dtype=np.complex128)
    v[feeder.energised] = found
    v[feeder.slack] = feeder.v_slack
    whole = v[onto]
    return np.asarray(np.delete(whole, feeder.slack))


def _best_order(
    y: sp.csc_array, removable: np.ndarray, terminals: list[int], joined: list[tuple[int, int]]
) -> tuple[Core, IntArray]:
    """Partial Kron reduction and order of elimination with the fewest operations, terminals last."""
    best: tuple[int, Core, IntArray] | None = None
    for core in partial_reductions(y, removable):
        place = {int(node): k for k, node in enumerate(core.kept)}
        pairs = [(place[a], place[b]) for a, b in joined]
        order = order_of(core.matrix, pairs, [place[node] for node in terminals])
        operations = 6 * order.entries + core.matrix.nnz
        if best is None or operations < best[0]:
            best = operations, core, order.nodes
    assert best is not None
    return best[1], best[2]


def _assemble(
    feeder: Feeder,
    y: sp.csc_array,
    w: ComplexArray,
    core: Core,
    order: IntArray,
    joined: list[tuple[int, int]],
    terminals: list[int],
    energised: IntArray,
) -> TerminalFactors:
    n, n_core = y.shape[0], len(core.kept)
    place = np.empty(n_core, dtype=np.int64)
    place[order] = np.arange(n_core)
    at = np.empty(n, dtype=np.int64)
    at[core.kept] = place
    # An eliminated node depends on nodes eliminated after it.
    at[core.eliminated[::-1]] = np.arange(n_core, n)
    node = np.argsort(at)
    core_matrix = sp.csr_array(core.matrix)[order][:, order]
    full_matrix = sp.csr_array(y)[node][:, node]
    rows = np.array([at[a] for a, b in joined] + [at[b] for a, b in joined], dtype=np.int64)
    columns = np.array([at[b] for a, b in joined] + [at[a] for a, b in joined], dtype=np.int64)
    position = np.full(len(feeder.as_operated.nodes), -1, dtype=np.int64)
    position[energised] = at
    phases = len(terminals) // 2
    return TerminalFactors(
        interior=n_core - 2 * phases,
        phases=phases,
        position=position,
        recover=Rows.of(-core.rows[node][:, node]),
        core=Rows.of(core_matrix),
        full=Rows.of(full_matrix),
        blocks=block_plan(_with_zeros(core_matrix, rows, columns), np.arange(n_core), rows[:0]),
        w=w[node],
        outflow=_outflow(feeder, w, energised, [int(energised[k]) for k in terminals[phases:]]),
        core_floor=rounding_floor(core_matrix, w[node][:n_core]),
        full_floor=rounding_floor(full_matrix, w[node]),
    )


def _with_zeros(matrix: sp.csr_array, rows: IntArray, columns: IntArray) -> sp.csr_array:
    """The matrix with room at further places."""
    found = sp.coo_array(matrix)
    known = set(zip(found.coords[0].tolist(), found.coords[1].tolist(), strict=True))
    new = sorted(set(zip(rows.tolist(), columns.tolist(), strict=True)) - known)
    i = np.concatenate([found.coords[0], np.array([a for a, _ in new], dtype=np.int64)])
    j = np.concatenate([found.coords[1], np.array([b for _, b in new], dtype=np.int64)])
    data = np.concatenate([found.data, np.zeros(len(new), dtype=np.complex128)])
    result = sp.csr_array((data, (i, j)), shape=matrix.shape)
    result.sort_indices()
    return result


def _outflow(feeder: Feeder, w: ComplexArray, energised: IntArray, outer: list[int]) -> ComplexArray:
    """Current out of the outer nodes at the no-load voltage, in extended precision."""
    operation = feeder.as_operated
    v = np.zeros(len(operation.nodes), dtype=np.clongdouble)
    v[energised] = w
    v[feeder.slack] = feeder.v_slack
    rows = sp.csr_array(operation.y)[outer].astype(np.clongdouble)
    return np.asarray(rows @ v).astype(np.complex128)
