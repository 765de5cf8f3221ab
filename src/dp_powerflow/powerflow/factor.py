"""Sparse triangular factors of Y, arranged for many right-hand sides.

Currents enter at the loaded nodes only. Zero-injection nodes that are cheap to eliminate go first (a
partial Kron reduction, done once in extended precision); what is left, the *core*, is factorised with a
fill-reducing order. An iteration then touches the core alone. Eliminating every zero-injection node would
fill the matrix in (IEEE 123: 1,269 factor entries for all 182, 487 for the best 174, 871 for none), so the
number eliminated is chosen by counting operations.

Elimination on the diagonal is stable where the real part of Y is positive semidefinite, as for any passive
network; it is checked against the original Y, and a matrix that fails the check is factorised again with
partial pivoting. Orders are chosen by pattern and count, and all arithmetic is in a fixed sequence of
operations that every processor rounds alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow._bits.compiled import kernel
from dp_powerflow._bits.elementary import joined, modulus
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.elimination import (
    BlockPlan,
    Entries,
    block_plan,
    entries_of,
    factor_blocks,
    order_of,
    pivoted_order,
    size,
    solve_blocks,
)
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

EPS = float(np.finfo(np.float64).eps)
FLOOR_FACTOR = 2.0
"""Rounding floor of a row of Y in units of eps·(|Y|·|w|)_k·|w_k|."""
_HIDDEN_MVA = 1e-8
"""0.01 W: where rounding may leave more, a node without device counts as one with its neighbour."""
_TOGETHER, _LOST = 10.0, 1e4
"""How many times as much is refused between devices, and in any case: the entries of Y have lost the other
elements there."""
_DEGREES = (2, 3, 4, 5, 6, 8, 10, 12, 16)
_PIVOT_RATIO = 1e-3
_LARGEST_BACKWARD_ERROR = 1e4 * EPS
"""Residual of a solve against |Y|·|x|, row by row; 1e-15 is usual."""
_REFINEMENTS = 6
_Order = tuple[IntArray, IntArray]
"""Unknowns in the order of elimination, and the row that is the pivot of each."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A sparse complex matrix by rows, real and imaginary parts apart."""

    ptr: IntArray
    col: IntArray
    re: FloatArray
    im: FloatArray

    @classmethod
    def of(cls, matrix: sp.csr_array) -> Rows:
        matrix = sp.csr_array(matrix)
        matrix.sort_indices()
        data = np.asarray(matrix.data, dtype=np.complex128)
        return cls(
            matrix.indptr.astype(np.int64),
            matrix.indices.astype(np.int64),
            data.real.copy(),
            data.imag.copy(),
        )

    @property
    def nnz(self) -> int:
        return len(self.col)


@dataclass(frozen=True, eq=False)
class Factors:
    """Order and pattern of the elimination, and the matrices in that order.

    Positions 0 … n_core − 1 are the core in the order in which it is eliminated; those after are the nodes
    eliminated beforehand, in the order in which `recover` computes them.

    Attributes
    ----------
    position : (energised,) position of each energised node.
    equation : (core,) position of the node whose balance is used p-th (p itself unless pivoted).
    recover : rows that give an eliminated node's deviation from no load, from those before it (negated).
    core, full : rows of Y_core and of the original Y, both in position order.
    blocks : pattern of the core's factors, with the entries of Y_core.
    w : complex (position,) no-load voltage [p.u.].
    core_floor, full_floor : (row,) smallest power mismatch that complex128 can certify [p.u.].
    """

    n_core: int
    position: IntArray
    equation: IntArray
    recover: Rows
    core: Rows
    full: Rows
    blocks: BlockPlan
    w: ComplexArray
    core_floor: FloatArray
    full_floor: FloatArray


def factorise(feeder: Feeder) -> Factors:
    """Factors of the energised part of a feeder's Y."""
    _refuse_unconnected(feeder)
    energised = feeder.energised
    y = sp.csc_array(feeder.y)[:, energised][energised]
    w = no_load_voltage(feeder)
    loaded = np.isin(energised, feeder.retained)
    for find in (_statically_ordered, _pivoted):
        found = find(y, loaded)
        if found is not None:
            factors = _assemble(y, w, loaded, *found)
            if _backward_error(factors) < _LARGEST_BACKWARD_ERROR:
                return factors
    raise PowerFlowError(
        "the admittance matrix is singular to working precision; look for a part of the feeder that floats "
        "without any shunt, or for impedances of zero"
    )


def no_load_voltage(feeder: Feeder) -> ComplexArray:
    """Complex (energised,) voltage w without any load: Y_NN·w = −Y_NS·v_slack [p.u.].

    Refined in extended precision: w carries the whole conditioning of Y (9e12 on IEEE 123), the loads
    only move the voltage away from it.
    """
    energised = feeder.energised
    rows = sp.csr_array(feeder.y)[energised]
    y = sp.csc_array(rows[:, energised])
    source = rows[:, feeder.slack].astype(np.clongdouble) @ feeder.v_slack.astype(np.clongdouble)
    order = order_of(y).nodes
    found: _Order | None = (order, order)
    for _ in range(2):
        w = None if found is None else _refined_solution(y, -source, *found)
        if w is not None:
            return w
        found = pivoted_order(y)
    raise PowerFlowError(
        "the admittance matrix is singular; look for a part of the feeder that floats without any shunt"
    )


def _refined_solution(
    y: sp.csc_array, right: ComplexArray, order: IntArray, pivots: IntArray
) -> ComplexArray | None:
    """y⁻¹·right with residuals in extended precision; None where these pivots do not give it."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    plan = block_plan(sp.csr_array(y)[order][:, order], position[pivots], np.empty(0, dtype=np.int64))
    factors = np.empty((len(plan.col), 4))
    if factor_blocks(plan, np.empty((0, 4)), factors) == 0:
        return None
    exact = sp.csr_array(y).astype(np.clongdouble)
    x = np.zeros(len(order), dtype=np.clongdouble)
    for _ in range(_REFINEMENTS):
        step = (right - exact @ x).astype(np.complex128)[pivots]
        solve_blocks(plan, factors, step)
        if not np.isfinite(step).all():
            return None
        x[order] += step
    solution = np.asarray(x.astype(np.complex128))
    residual = modulus((right - exact @ x).astype(np.complex128))
    scale = absolute(sp.csr_array(y)) @ modulus(solution) + modulus(right.astype(np.complex128))
    accurate = bool((residual <= _LARGEST_BACKWARD_ERROR * scale).all())
    return solution if accurate else None


def _refuse_unconnected(feeder: Feeder) -> None:
    if np.isin(feeder.retained, feeder.slack).any():
        raise PowerFlowError("a load or generator sits on an ideal source; connect it behind an impedance")
    _, part = connected_components(abs(sp.csr_array(feeder.y)), directed=False)
    dead = ~np.isin(part, part[feeder.slack])
    if dead.any():
        raise PowerFlowError(
            f"{np.count_nonzero(dead)} nodes have no connection to a source; remove them or close the switch "
            "that feeds them"
        )


def _statically_ordered(y: sp.csc_array, loaded: BoolArray) -> tuple[Core, _Order] | None:
    """Partial Kron reduction, then diagonal pivots in minimum-degree order."""
    best: tuple[int, Core, _Order] | None = None
    for core in partial_reductions(y, ~loaded):
        order = order_of(core.matrix)
        # One application of the factors per iteration, and one of Y_core per snapshot to check it.
        operations = 6 * order.entries + core.matrix.nnz
        if best is None or operations < best[0]:
            best = operations, core, (order.nodes, order.nodes)
    return None if best is None else best[1:]


def _pivoted(y: sp.csc_array, loaded: BoolArray) -> tuple[Core, _Order] | None:
    """The whole matrix with partial pivoting, for feeders that static pivots do not suit."""
    none = np.empty(0, dtype=np.int64)
    core = Core(np.arange(len(loaded)), y, none, sp.csr_array(y.shape, dtype=np.complex128))
    order = pivoted_order(y)
    return None if order is None else (core, order)


@dataclass(frozen=True, eq=False)
class Core:
    """State of the elimination: kept nodes and their Schur complement; eliminated nodes and their rows."""

    kept: IntArray
    matrix: sp.csc_array
    eliminated: IntArray
    rows: sp.csr_array


def partial_reductions(y: sp.csc_array, removable: BoolArray) -> Iterator[Core]:
    """Schur complements with more and more of the removable nodes eliminated, lowest degree first."""
    n = y.shape[0]
    rows = entries_of(y)
    alive = np.ones(n, dtype=bool)
    order: list[int] = []
    coefficients: list[tuple[int, int, complex]] = []
    yield _snapshot(rows, alive, order, coefficients)
    for limit in _DEGREES:
        heap = [
            (len(rows[k]), k) for k in range(n) if removable[k] and alive[k] and len(rows[k]) - 1 <= limit
        ]
        heapq.heapify(heap)
        before = len(order)
        while heap:
            degree, k = heapq.heappop(heap)
            if not alive[k] or degree != len(rows[k]):
                continue
            neighbours = [j for j in rows[k] if j != k]
            pivot = rows[k][k]
            largest = max((size(rows[i][k]) for i in neighbours), default=np.longdouble(0.0))
            if not size(pivot) > _PIVOT_RATIO**2 * largest:
                continue
            coefficients.extend((k, j, complex(-rows[k][j] / pivot)) for j in neighbours)
            _eliminate(rows, k, neighbours)
            alive[k] = False
            order.append(k)
            for i in neighbours:
                if removable[i] and len(rows[i]) - 1 <= limit:
                    heapq.heappush(heap, (len(rows[i]), i))
        if len(order) > before:
            yield _snapshot(rows, alive, order, coefficients)


def _eliminate(rows: Entries, k: int, neighbours: list[int]) -> None:
    """Schur complement on node k, in place."""
    pivot = rows[k][k]
    zero = np.clongdouble(0.0)
    for i in neighbours:
        row = rows[i]
        factor = row.pop(k) / pivot
        for j in neighbours:
            row[j] = row.get(j, zero) - factor * rows[k][j]
    rows[k] = {}


def _snapshot(
    rows: Entries,
    alive: BoolArray,
    order: list[int],
    coefficients: list[tuple[int, int, complex]],
) -> Core:
    n = len(rows)
    kept = np.flatnonzero(alive)
    local = np.full(n, -1, dtype=np.int64)
    local[kept] = np.arange(len(kept))
    alive_rows = [rows[i] for i in kept.tolist()]
    i = np.repeat(np.arange(len(kept)), [len(row) for row in alive_rows])
    j = local[np.fromiter(chain.from_iterable(alive_rows), dtype=np.int64, count=len(i))]
    value = np.array(list(chain.from_iterable(row.values() for row in alive_rows)), dtype=np.clongdouble)
    matrix = sp.csc_array((value.astype(np.complex128), (i, j)), shape=(len(kept), len(kept)))
    recover = sp.csr_array((n, n), dtype=np.complex128)
    if coefficients:
        k, j, value = (np.array(part) for part in zip(*coefficients, strict=True))
        recover = sp.csr_array((value, (k, j)), shape=(n, n))
    return Core(kept, matrix, np.array(order, dtype=np.int64), recover)


def _assemble(y: sp.csc_array, w: ComplexArray, loaded: BoolArray, core: Core, order: _Order) -> Factors:
    """Bring everything into the order of the factors."""
    n, n_core = y.shape[0], len(core.kept)
    unknowns, pivots = order
    place = np.empty(n_core, dtype=np.int64)
    place[unknowns] = np.arange(n_core)
    position = np.empty(n, dtype=np.int64)
    position[core.kept] = place
    # An eliminated node depends on nodes eliminated after it.
    position[core.eliminated[::-1]] = np.arange(n_core, n)
    node = np.argsort(position)
    w_ordered = w[node]
    core_matrix = sp.csr_array(core.matrix)[unknowns][:, unknowns]
    full_matrix = sp.csr_array(y)[node][:, node]
    return Factors(
        n_core=n_core,
        position=position,
        equation=place[pivots],
        recover=Rows.of(-core.rows[node][:, node]),
        core=Rows.of(core_matrix),
        full=Rows.of(full_matrix),
        blocks=block_plan(core_matrix, place[pivots], np.sort(position[loaded])),
        w=w_ordered,
        core_floor=rounding_floor(core_matrix, w_ordered[:n_core]),
        full_floor=rounding_floor(full_matrix, w_ordered),
    )


def absolute(matrix: sp.csr_array) -> sp.csr_array:
    """|matrix|, entry by entry."""
    return sp.csr_array((modulus(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)


def rounding_floor(matrix: sp.csr_array, w: ComplexArray) -> FloatArray:
    size_of_w = modulus(w)
    return np.asarray(FLOOR_FACTOR * EPS * (absolute(matrix) @ size_of_w) * size_of_w, dtype=np.float64)


def measured_rows(
    feeder: Feeder, rows: Rows, w: ComplexArray, held: BoolArray, names: list[str]
) -> tuple[Rows, FloatArray]:
    """Rows against which the mismatch is measured, and how much of it rounding may leave at each [p.u.].

    Nodes without device count as one with their neighbours where the admittance between them is so large that
    rounding hides what flows. Two nodes with devices are refused there: no voltages of double precision could
    tell how each is fed. So is any admittance beside which Y has lost the other elements of its nodes. Nodes
    that a stiff source holds keep their floor.

    Parameters
    ----------
    held : (row,) whether a device or a regulator is connected there.
    names : (row,) nodes.
    """
    count, most = len(w), _HIDDEN_MVA / min(feeder.base_mva, 1.0)
    matrix = sp.csr_array((_joined(rows), rows.col, rows.ptr), shape=(count, count))
    floor = rounding_floor(matrix, w)
    if floor.max(initial=0.0) <= most:
        return rows, floor
    entries, every = sp.coo_array(matrix), np.arange(count)
    strong = FLOOR_FACTOR * EPS * modulus(entries.data) * modulus(w).max() ** 2 > 0.1 * most
    ends = (entries.coords[0][strong], entries.coords[1][strong])
    _, part = connected_components(sp.coo_array((np.ones(len(ends[0])), ends), shape=matrix.shape))
    leader = np.full(count, 2 * count)
    np.minimum.at(leader, part, np.where(held, every, every + count))
    onto = np.where(held, every, leader[part] % count)
    merge = sp.csr_array((np.ones(count, dtype=np.longdouble), (onto, every)), shape=matrix.shape)
    merged = sp.csr_array((merge @ matrix.astype(np.clongdouble)).astype(np.complex128))
    left = rounding_floor(merged, w)
    # A node that the source holds has its voltage; what rounding hides there is power of the source.
    sourced = np.isin(part, part[FLOOR_FACTOR * EPS * modulus(merged @ w) * modulus(w) > 0.1 * most])
    worse = np.where(sourced, 0.0, np.maximum(floor / _LOST, left / _TOGETHER))
    if worse.max() > most:
        near = np.flatnonzero(part == part[worse.argmax()])
        raise PowerFlowError(
            f"nodes {', '.join(repr(names[k]) for k in near[:4])} are joined by so small an impedance that "
            "rounding hides what flows between them; make them one node, or give the element between them a "
            "micro-ohm or more"
        )
    return Rows.of(merged), left


def _backward_error(factors: Factors) -> float:
    """Residual of a solve for currents at the core, against the original Y and relative to |Y|·|x|."""
    n, n_core, full = len(factors.w), factors.n_core, factors.full
    # Points of the unit circle, without a sine.
    t = 2.0 * np.random.default_rng(0).random(n_core) - 1.0
    current = np.zeros(n, dtype=np.complex128)
    current[:n_core] = joined((1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t))
    values = np.empty((len(factors.blocks.col), 4))
    loads = np.zeros((len(factors.blocks.slot), 4))
    if factor_blocks(factors.blocks, loads, values) == 0:
        return np.inf
    x, inner = np.zeros(n, dtype=np.complex128), current[factors.equation]
    solve_blocks(factors.blocks, values, inner)
    x[:n_core] = inner
    _recover(factors.recover.ptr, factors.recover.col, _joined(factors.recover), n_core, x)
    if not np.isfinite(x).all():
        return np.inf
    y = sp.csr_array((_joined(full), full.col, full.ptr), shape=(n, n))
    # Nodes that only the source connects to the loads are not reached by any current.
    scale = np.maximum(absolute(y) @ modulus(x) + modulus(current), np.finfo(np.float64).tiny)
    return float(np.max(modulus(y @ x - current) / scale))


def _joined(rows: Rows) -> ComplexArray:
    return joined(rows.re, rows.im)


@kernel
def _recover(ptr: IntArray, col: IntArray, value: ComplexArray, n_core: int, x: ComplexArray) -> None:
    """Deviation of the eliminated nodes from those before them, in place."""
    for row in range(n_core, x.size):
        total = 0.0j
        for p in range(ptr[row], ptr[row + 1]):
            total -= value[p] * x[col[p]]
        x[row] = total
