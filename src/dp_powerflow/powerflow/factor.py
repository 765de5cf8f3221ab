"""Sparse triangular factors of Y, arranged for many right-hand sides.

Currents enter at the loaded nodes only. Zero-injection nodes that are cheap to eliminate go first (a
partial Kron reduction, done once in extended precision); what is left, the *core*, is factorised with a
fill-reducing order. An iteration then touches the core alone. Eliminating every zero-injection node would
fill the matrix in (IEEE 123: 1,269 factor entries for all 182, 487 for the best 174, 871 for none), so the
number eliminated is chosen by counting operations.

Elimination on the diagonal is stable where the real part of Y is positive semidefinite, as for any passive
network; it is checked against the original Y, and a matrix that fails the check is refused. Orders are chosen
by pattern and count, and all arithmetic is in a fixed sequence of operations that every processor rounds
alike.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow._bits.compiled import kernel
from dp_powerflow._bits.elementary import joined, modulus
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# Sparse LU in an order that the pattern alone decides: equal bits on every processor.
#
# A real-linear map of complex vectors, x ↦ Y·x + D·conj(x), is a sparse matrix of real 2×2 blocks (stored
# as four numbers, by rows). It has the pattern of Y, so one order of elimination serves every Jacobian.
# The order decides the pivots.


Graph = list[set[int]]
Entries = list[dict[int, np.clongdouble]]
"""Rows of a matrix in extended precision: column → value."""

_KEPT = 64
"""Orders of elimination that are remembered: ten of a solver, for networks of one structure."""


class BlockPlan(NamedTuple):
    """Pattern of L + U by rows, diagonal included, with the entries of Y in it.

    `diagonal` is the slot of a row's diagonal, `slot` that of a load's.
    """

    ptr: IntArray
    col: IntArray
    diagonal: IntArray
    entry: ComplexArray
    slot: IntArray


def block_plan(matrix: sp.csr_array, at: IntArray) -> BlockPlan:
    """Pattern of the factors of a matrix in the order of elimination, with its fill.

    Parameters
    ----------
    matrix : complex (n, n), rows and columns in the order of elimination.
    at : positions of the loads.
    """
    n = matrix.shape[0]
    rows = sp.csr_array(matrix)
    rows.sort_indices()
    pattern: list[list[int]] = []
    above: list[list[int]] = []
    for row in range(n):
        columns = {row, *rows.indices[rows.indptr[row] : rows.indptr[row + 1]].tolist()}
        pending = [k for k in columns if k < row]
        heapq.heapify(pending)
        while pending:
            for j in above[heapq.heappop(pending)]:
                if j not in columns:
                    columns.add(j)
                    if j < row:
                        heapq.heappush(pending, j)
        pattern.append(sorted(columns))
        above.append([j for j in pattern[-1] if j > row])
    col = np.array([j for columns in pattern for j in columns], dtype=np.int64)
    ptr = np.concatenate([[0], np.cumsum([len(columns) for columns in pattern])]).astype(np.int64)
    key = np.repeat(np.arange(n), np.diff(ptr)) * n + col
    entry = np.zeros(len(col), dtype=np.complex128)
    entry[np.searchsorted(key, np.repeat(np.arange(n), np.diff(rows.indptr)) * n + rows.indices)] = rows.data
    diagonal = np.searchsorted(key, np.arange(n) * n + np.arange(n))
    return BlockPlan(ptr, col, diagonal, entry, diagonal[at])


# ----------------------------------------------------------------------------------- the order


def graph_of(matrix: sp.csc_array) -> Graph:
    """Which pairs of different nodes a matrix couples, in either direction."""
    graph: Graph = [set() for _ in range(matrix.shape[0])]
    rows, columns = matrix.nonzero()
    for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
        if i != j:
            graph[i].add(j)
            graph[j].add(i)
    return graph


def eliminate_node(graph: Graph, node: int) -> set[int]:
    """Join the neighbours of a node and leave it out; its neighbours."""
    around = graph[node]
    for j in around:
        graph[j] |= around
        graph[j] -= {j, node}
    graph[node] = set()
    return around


def minimum_degree(graph: Graph, last: Sequence[int] = ()) -> tuple[IntArray, Graph]:
    """Elimination order of least degree, and for every node its neighbours later in that order.

    Parameters
    ----------
    last : nodes that come last, in this order.
    """
    graph = [set(around) for around in graph]
    later: Graph = [set() for _ in graph]
    held = set(last)
    heap = [(len(around), k) for k, around in enumerate(graph) if k not in held]
    heapq.heapify(heap)
    done = [k in held for k in range(len(graph))]
    order: list[int] = []
    while heap:
        degree, node = heapq.heappop(heap)
        if done[node] or degree != len(graph[node]):
            continue
        done[node] = True
        order.append(node)
        later[node] = eliminate_node(graph, node)
        for j in later[node]:
            if j not in held:
                heapq.heappush(heap, (len(graph[j]), j))
    for node in last:
        later[node] = eliminate_node(graph, node)
    return np.array([*order, *last], dtype=np.int64), later


class Order(NamedTuple):
    """An elimination order of least degree, and the entries of both factors in it, diagonals twice."""

    nodes: IntArray
    entries: int


_known: dict[bytes, Order] = {}
_lock = threading.Lock()


def order_of(matrix: sp.csc_array, joined: Sequence[tuple[int, int]] = (), last: Sequence[int] = ()) -> Order:
    """Elimination order of least degree of a matrix; remembered, since networks of one structure share it.

    Parameters
    ----------
    joined : pairs of nodes that are coupled too.
    last : nodes that come last, in this order.
    """
    pairs = np.array(joined, dtype=np.int64).reshape(-1, 2)
    pattern = (*matrix.nonzero(), pairs, last)
    sizes = np.array([matrix.shape[0], *(len(part) for part in pattern)], dtype=np.int64)
    parts = (sizes, *(np.asarray(part, dtype=np.int64) for part in pattern))
    key = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
    with _lock:
        found = _known.get(key)
    if found is None:
        graph = graph_of(matrix)
        for a, b in joined:
            graph[a].add(b)
            graph[b].add(a)
        nodes, later = minimum_degree(graph, last)
        nodes.setflags(write=False)
        found = Order(nodes, 2 * (len(nodes) + sum(len(neighbours) for neighbours in later)))
        with _lock:
            _known[key] = found
            while len(_known) > _KEPT:
                _known.pop(next(iter(_known)))
    return found


def entries_of(matrix: sp.csc_array) -> Entries:
    """Rows of a matrix in extended precision, the diagonal and (i, j) whenever (j, i) is present."""
    found = sp.coo_array(matrix)
    rows: Entries = [{k: np.clongdouble(0.0)} for k in range(matrix.shape[0])]
    row, col = found.coords
    for i, j, value in zip(row.tolist(), col.tolist(), found.data.astype(np.clongdouble), strict=True):
        rows[i][j] = value
        rows[j].setdefault(i, np.clongdouble(0.0))
    return rows


def size(value: np.clongdouble) -> np.longdouble:
    """|value|²."""
    return np.longdouble(value.real * value.real + value.imag * value.imag)


# ------------------------------------------------------------------------------------- kernels


@kernel
def factor_blocks(
    blocks: BlockPlan, slots: IntArray, extra: FloatArray, interior: int, factors: FloatArray, place: IntArray
) -> int:
    """Factors of the first rows of Y_core plus the blocks `extra` (slot, 4) at `slots`.

    The rows from `interior` on are left as the Schur complement of those before them. `place` is room for a
    number per row.

    Returns how many pivots have a negative determinant, −1 if one is singular. There are none at no load; the
    number is odd where det is negative, beyond the nose.
    """
    for p in range(blocks.col.size):
        re, im = blocks.entry[p].real, blocks.entry[p].imag
        factors[p, 0], factors[p, 1], factors[p, 2], factors[p, 3] = re, -im, im, re
    for m in range(slots.size):
        for k in range(4):
            factors[slots[m], k] += extra[m, k]
    negative = 0
    for row in range(blocks.diagonal.size):
        for p in range(blocks.ptr[row], blocks.ptr[row + 1]):
            place[blocks.col[p]] = p
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            k = blocks.col[p]
            if k >= interior:
                break
            times_block(factors, p, blocks.diagonal[k])
            for o in range(blocks.diagonal[k] + 1, blocks.ptr[k + 1]):
                subtract_product(factors, place[blocks.col[o]], p, o)
        if row >= interior:
            continue
        determinant = invert_block(factors, blocks.diagonal[row])
        if determinant == 0.0 or not np.isfinite(determinant):
            return -1
        negative += determinant < 0.0
    return negative


def factors_with(
    blocks: BlockPlan, extra: FloatArray, slots: IntArray | None = None, interior: int | None = None
) -> tuple[FloatArray, int]:
    """What `factor_blocks` makes, and returns; by default of all rows, with `extra` at the loads."""
    rows, values = len(blocks.diagonal), np.empty((len(blocks.col), 4))
    interior = rows if interior is None else interior
    slots = blocks.slot if slots is None else slots
    return values, factor_blocks(blocks, slots, extra, interior, values, np.empty(rows, dtype=np.int64))


@kernel
def times_block(f: FloatArray, a: int, b: int) -> None:
    """f[a] = f[a]·f[b]."""
    a0, a1, a2, a3 = f[a, 0], f[a, 1], f[a, 2], f[a, 3]
    f[a, 0] = a0 * f[b, 0] + a1 * f[b, 2]
    f[a, 1] = a0 * f[b, 1] + a1 * f[b, 3]
    f[a, 2] = a2 * f[b, 0] + a3 * f[b, 2]
    f[a, 3] = a2 * f[b, 1] + a3 * f[b, 3]


@kernel
def subtract_product(f: FloatArray, a: int, b: int, c: int) -> None:
    """f[a] −= f[b]·f[c]."""
    f[a, 0] -= f[b, 0] * f[c, 0] + f[b, 1] * f[c, 2]
    f[a, 1] -= f[b, 0] * f[c, 1] + f[b, 1] * f[c, 3]
    f[a, 2] -= f[b, 2] * f[c, 0] + f[b, 3] * f[c, 2]
    f[a, 3] -= f[b, 2] * f[c, 1] + f[b, 3] * f[c, 3]


@kernel
def invert_block(f: FloatArray, a: int) -> float:
    """Replace f[a] by its inverse and return its determinant."""
    a0, a1, a2, a3 = f[a, 0], f[a, 1], f[a, 2], f[a, 3]
    determinant: float = a0 * a3 - a1 * a2
    f[a, 0], f[a, 1] = a3 / determinant, -a1 / determinant
    f[a, 2], f[a, 3] = -a2 / determinant, a0 / determinant
    return determinant


@kernel
def solve_blocks(blocks: BlockPlan, factors: FloatArray, x: ComplexArray) -> None:
    """Solve in place; x holds the right-hand side."""
    for row in range(x.size):
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            x[row] -= _block_times(factors, p, x[blocks.col[p]])
    for row in range(x.size - 1, -1, -1):
        for p in range(blocks.diagonal[row] + 1, blocks.ptr[row + 1]):
            x[row] -= _block_times(factors, p, x[blocks.col[p]])
        x[row] = _block_times(factors, blocks.diagonal[row], x[row])


@kernel
def _block_times(f: FloatArray, a: int, z: complex) -> complex:
    return complex(f[a, 0] * z.real + f[a, 1] * z.imag, f[a, 2] * z.real + f[a, 3] * z.imag)


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
_SINGULAR = (
    "the admittance matrix is singular to working precision, or needs an order that is not tried; look for a "
    "part of the feeder that floats without any shunt, for impedances of zero, or for a resonance"
)


@dataclass(frozen=True, eq=False)
class Factors:
    """Order and pattern of the elimination, and the matrices in that order.

    Positions 0 … n_core − 1 are the core in the order in which it is eliminated; those after are the nodes
    eliminated beforehand, in the order in which `recover` computes them.

    Attributes
    ----------
    position : (energised,) position of each energised node.
    recover : rows that give an eliminated node's deviation from no load, from those before it (negated).
    core, full : Y_core and the original Y, both in position order.
    blocks : pattern of the core's factors, with the entries of Y_core.
    w : complex (position,) no-load voltage [p.u.].
    """

    n_core: int
    position: IntArray
    recover: sp.csr_array
    core: sp.csr_array
    full: sp.csr_array
    blocks: BlockPlan
    w: ComplexArray


def factorise(feeder: Feeder) -> Factors:
    """Factors of the energised part of a feeder's Y."""
    _refuse_unconnected(feeder)
    energised = feeder.energised
    y, loaded = sp.csc_array(feeder.y)[:, energised][energised], np.isin(energised, feeder.retained)
    factors = _assemble(y, no_load_voltage(feeder), loaded, *best_reduction(y, ~loaded))
    if not _backward_error(factors) < _LARGEST_BACKWARD_ERROR:
        raise PowerFlowError(_SINGULAR)
    return factors


def no_load_voltage(feeder: Feeder) -> ComplexArray:
    """Complex (energised,) voltage w without any load: Y_NN·w = −Y_NS·v_slack [p.u.].

    Refined in extended precision: w carries the whole conditioning of Y (9e12 on IEEE 123), the loads
    only move the voltage away from it.
    """
    energised = feeder.energised
    rows = sp.csr_array(feeder.y)[energised]
    y = sp.csc_array(rows[:, energised])
    source = rows[:, feeder.slack].astype(np.clongdouble) @ feeder.v_slack.astype(np.clongdouble)
    w = _refined_solution(y, -source, order_of(y).nodes)
    if w is None:
        raise PowerFlowError(
            "the admittance matrix is singular; look for a part of the feeder that floats without any shunt"
        )
    return w


def _refined_solution(y: sp.csc_array, right: ComplexArray, order: IntArray) -> ComplexArray | None:
    """y⁻¹·right with residuals in extended precision; None where diagonal pivots do not give it."""
    plan = block_plan(sp.csr_array(y)[order][:, order], np.empty(0, dtype=np.int64))
    factors, negative = factors_with(plan, np.empty((0, 4)))
    if negative < 0:
        return None
    exact = sp.csr_array(y).astype(np.clongdouble)
    x = np.zeros(len(order), dtype=np.clongdouble)
    for _ in range(_REFINEMENTS):
        step = (right - exact @ x).astype(np.complex128)[order]
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


def best_reduction(
    y: sp.csc_array, removable: BoolArray, coupled: Sequence[tuple[int, int]] = (), last: Sequence[int] = ()
) -> tuple[Core, IntArray]:
    """Partial Kron reduction and minimum-degree order of elimination with the fewest operations.

    Parameters
    ----------
    coupled, last : nodes of y as of `order_of`; none of them is removable.
    """
    best: tuple[int, Core, IntArray] | None = None
    for core in partial_reductions(y, removable):
        place = {int(node): k for k, node in enumerate(core.kept)}
        pairs = [(place[a], place[b]) for a, b in coupled]
        order = order_of(core.matrix, pairs, [place[node] for node in last])
        # One application of the factors per iteration, and one of Y_core per snapshot to check it.
        operations = 6 * order.entries + core.matrix.nnz
        if best is None or operations < best[0]:
            best = operations, core, order.nodes
    assert best is not None
    return best[1], best[2]


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
    rows: Entries, alive: BoolArray, order: list[int], coefficients: list[tuple[int, int, complex]]
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


def _assemble(
    y: sp.csc_array,
    w: ComplexArray,
    loaded: BoolArray,
    core: Core,
    order: IntArray,
    coupled: Sequence[tuple[int, int]] = (),
) -> Factors:
    """Bring everything into the order of the factors, with room where `coupled` nodes meet."""
    n, n_core = y.shape[0], len(core.kept)
    place = np.empty(n_core, dtype=np.int64)
    place[order] = np.arange(n_core)
    position = np.empty(n, dtype=np.int64)
    position[core.kept] = place
    # An eliminated node depends on nodes eliminated after it.
    position[core.eliminated[::-1]] = np.arange(n_core, n)
    node = np.argsort(position)
    core_matrix = sp.csr_array(core.matrix)[order][:, order]
    pattern = _with_zeros(core_matrix, position[np.array(coupled, dtype=np.int64).reshape(-1, 2)])
    return Factors(
        n_core=n_core,
        position=position,
        recover=_sorted(-core.rows[node][:, node]),
        core=_sorted(core_matrix),
        full=_sorted(sp.csr_array(y)[node][:, node]),
        blocks=block_plan(pattern, np.sort(position[loaded])),
        w=w[node],
    )


def _sorted(matrix: sp.csr_array) -> sp.csr_array:
    """The matrix with the entries of every row in ascending order."""
    result = sp.csr_array(matrix, dtype=np.complex128)
    result.sort_indices()
    return result


def _with_zeros(matrix: sp.csr_array, pairs: IntArray) -> sp.csr_array:
    """The matrix with room at further places (pair, 2), and where they are mirrored."""
    found = sp.coo_array(matrix)
    known = set(zip(found.coords[0].tolist(), found.coords[1].tolist(), strict=True))
    new = sorted({(a, b) for a, b in [*pairs.tolist(), *pairs[:, ::-1].tolist()]} - known)
    places = np.array(new, dtype=np.int64).reshape(-1, 2)
    i, j = (np.concatenate([found.coords[side], places[:, side]]) for side in range(2))
    data = np.concatenate([found.data, np.zeros(len(new), dtype=np.complex128)])
    return _sorted(sp.csr_array((data, (i, j)), shape=matrix.shape))


def sweeps(factors: Factors, values: FloatArray, interior: int) -> dict[str, Any]:
    """What the kernels read of the factors: rows of both triangles and of the recovery, pivots, w.

    Parameters
    ----------
    values : as `factors_with` makes them of so many `interior` rows.
    """
    blocks, n_core, recover = factors.blocks, factors.n_core, factors.recover
    row = np.repeat(np.arange(n_core), np.diff(blocks.ptr))
    below = (blocks.col < row) & (blocks.col < interior)
    above = (blocks.col > row) & (row < interior)
    ptr, begin = recover.indptr.astype(np.int64), int(recover.indptr[n_core])
    re, im = recover.data.real, recover.data.imag
    own = np.stack([re, -im, im, re], axis=1)[begin:]
    lower_ptr = _pointers(row[below], n_core)
    return {
        "lower_ptr": np.concatenate([lower_ptr, lower_ptr[-1] + ptr[n_core + 1 :] - begin]),
        "lower_col": np.concatenate([blocks.col[below], recover.indices[begin:].astype(np.int64)]),
        "lower": np.concatenate([values[below], own]),
        "upper_ptr": _pointers(row[above], interior),
        "upper_col": blocks.col[above],
        "upper": np.ascontiguousarray(values[above]),
        "pivot": np.ascontiguousarray(values[blocks.diagonal[:interior]]),
        "w_re": factors.w.real.copy(),
        "w_im": factors.w.imag.copy(),
    }


def _pointers(row: IntArray, n: int) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))]).astype(np.int64)


def absolute(matrix: sp.csr_array) -> sp.csr_array:
    """|matrix|, entry by entry."""
    return sp.csr_array((modulus(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)


def rounding_floor(matrix: sp.csr_array, w: ComplexArray) -> FloatArray:
    size_of_w = modulus(w)
    return np.asarray(FLOOR_FACTOR * EPS * (absolute(matrix) @ size_of_w) * size_of_w, dtype=np.float64)


def measured_rows(
    feeder: Feeder, matrix: sp.csr_array, w: ComplexArray, held: BoolArray, names: list[str]
) -> tuple[sp.csr_array, FloatArray]:
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
    floor = rounding_floor(matrix, w)
    if floor.max(initial=0.0) <= most:
        return matrix, floor
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
    return _sorted(merged), left


def _backward_error(factors: Factors) -> float:
    """Residual of a solve for currents at the core, against the original Y and relative to |Y|·|x|."""
    n, n_core, y = len(factors.w), factors.n_core, factors.full
    # Points of the unit circle, without a sine.
    t = 2.0 * np.random.default_rng(0).random(n_core) - 1.0
    current = np.zeros(n, dtype=np.complex128)
    current[:n_core] = joined((1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t))
    values, negative = factors_with(factors.blocks, np.zeros((len(factors.blocks.slot), 4)))
    if negative < 0:
        return np.inf
    x = current.copy()
    solve_blocks(factors.blocks, values, x[:n_core])
    recover = factors.recover
    _recover(recover.indptr, recover.indices, recover.data, n_core, x)
    if not np.isfinite(x).all():
        return np.inf
    # Nodes that only the source connects to the loads are not reached by any current.
    scale = np.maximum(absolute(y) @ modulus(x) + modulus(current), np.finfo(np.float64).tiny)
    return float(np.max(modulus(y @ x - current) / scale))


@kernel
def _recover(ptr: IntArray, col: IntArray, value: ComplexArray, n_core: int, x: ComplexArray) -> None:
    """Deviation of the eliminated nodes from those before them, in place."""
    for row in range(n_core, x.size):
        total = 0.0j
        for p in range(ptr[row], ptr[row + 1]):
            total -= value[p] * x[col[p]]
        x[row] = total


# ----------------------------------------------------------------------------------------------------------
# Factors of a feeder whose taps move: all but the regulators' terminals is eliminated once.
#
# Every regulating winding ends at an inner node; an ideal ratio t leads to its outer node (v_outer =
# t·v_inner and the currents balance, J_inner + t·J_outer = 0). The inner and outer nodes, the *terminals*,
# come last in the order of elimination. The factors of the interior and the Schur complement S at the
# terminals are then the same for all taps, and a tap vector costs no more than the small matrix
#
# M(t) = S_ii + S_io·T + T·S_oi + T·S_oo·T.
#
# Voltages are deviations x from the no-load voltage w at neutral taps. At other taps w does not balance the
# terminals; the right-hand side of M carries the constant that is left.


@dataclass(frozen=True, eq=False)
class TerminalFactors(Factors):
    """Factors of a feeder as operated.

    Positions 0 … interior − 1 are eliminated by the factors; then come the inner nodes of all regulator
    phases, then their outer nodes, then the nodes that were eliminated beforehand.

    Attributes
    ----------
    position : (operation node,) position of each node, −1 for slack nodes.
    w : at neutral taps.
    phases : number of regulator phases.
    outflow : complex (phase,) current that leaves an outer node into the network at w [p.u.].
    """

    phases: int
    outflow: ComplexArray

    @property
    def interior(self) -> int:
        """Number of positions that are no terminal."""
        return self.n_core - 2 * self.phases

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
        values, negative = factors_with(self.blocks, extra, slots, self.interior)
        if negative < 0:
            raise PowerFlowError(_SINGULAR)
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
    phases = [pair for regulator in operation.regulators for pair in regulator.phases]
    inner, outer = [pair[0] for pair in phases], [pair[1] for pair in phases]
    if len(set(outer)) < len(outer):
        raise PowerFlowError(
            "two regulators hold the same node, as in an open delta, which the solver of the feeder as "
            "operated cannot do; disable their controls, and declare their taps in a tap file",
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
    pairs = [(int(local[a]), int(local[b])) for a, b in coupled]
    core, order = best_reduction(y, removable, pairs, terminals)
    # Which rows carry a device is the solver's business.
    factors = _assemble(y, w, np.zeros(len(energised), dtype=np.bool_), core, order, pairs)
    position = np.full(len(operation.nodes), -1, dtype=np.int64)
    position[energised] = factors.position
    found = vars(factors) | {"position": position}
    return TerminalFactors(**found, phases=len(outer), outflow=_outflow(feeder, w, energised, outer))


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
    return np.asarray(np.delete(v[onto], feeder.slack))


def _outflow(feeder: Feeder, w: ComplexArray, energised: IntArray, outer: list[int]) -> ComplexArray:
    """Current out of the outer nodes at the no-load voltage, in extended precision."""
    operation = feeder.as_operated
    v = np.zeros(len(operation.nodes), dtype=np.clongdouble)
    v[energised] = w
    v[feeder.slack] = feeder.v_slack
    rows = sp.csr_array(operation.y)[outer].astype(np.clongdouble)
    return np.asarray(rows @ v).astype(np.complex128)
