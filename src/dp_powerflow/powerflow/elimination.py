"""Sparse LU in an order that the pattern alone decides: equal bits on every processor.

A real-linear map of complex vectors, x ↦ Y·x + D·conj(x), is a sparse matrix of real 2×2 blocks (stored as
four numbers, by rows). It has the pattern of Y, so one order of elimination serves every Jacobian. Pivots are
those of the order; where they do not suit, `pivoted_order` looks for others, once, in extended precision.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.compiled import kernel
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

Graph = list[set[int]]
Entries = list[dict[int, np.clongdouble]]
"""Rows of a matrix in extended precision: column → value."""

_KEPT = 64
"""Orders of elimination that are remembered: ten of a solver, for networks of one structure."""
_KEEP_DIAGONAL = 0.01
"""Share of the largest |entry|² of a column from which on the diagonal is the pivot."""


class BlockPlan(NamedTuple):
    """Pattern of L + U by rows, diagonal included, with the entries of Y in it.

    `diagonal` is the slot of a row's diagonal, `slot` that of the block in which a load's equation meets its
    own voltage.
    """

    ptr: IntArray
    col: IntArray
    diagonal: IntArray
    entry: ComplexArray
    slot: IntArray


def block_plan(matrix: sp.csr_array, equation: IntArray, at: IntArray) -> BlockPlan:
    """Pattern of the factors of a matrix in the order of elimination, with its fill.

    Parameters
    ----------
    matrix : complex (n, n), rows and columns in the order of elimination.
    equation : (n,) row of the matrix that is used p-th, p itself unless pivoted.
    at : positions of the loads.
    """
    n = matrix.shape[0]
    rows = matrix[equation]
    rows.sort_indices()
    pattern: list[list[int]] = []
    above: list[list[int]] = []
    for row in range(n):
        # The derivative of a load's current meets its own voltage even where Y has a zero.
        columns = set(rows.indices[rows.indptr[row] : rows.indptr[row + 1]].tolist())
        columns |= {row, int(equation[row])}
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
    equation_of = np.empty(n, dtype=np.int64)
    equation_of[equation] = np.arange(n)
    diagonal = np.searchsorted(key, np.arange(n) * n + np.arange(n))
    return BlockPlan(ptr, col, diagonal, entry, np.searchsorted(key, equation_of[at] * n + at))


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


def pivoted_order(matrix: sp.csc_array) -> tuple[IntArray, IntArray] | None:
    """Order of the unknowns, and for each the row that serves as its pivot; None if singular.

    Unknowns come in order of least degree. The diagonal is the pivot unless the column has an entry ten times
    as large; then the largest is, the first of equals.
    """
    order = order_of(matrix).nodes
    rows = entries_of(matrix)
    holders: Graph = [set() for _ in rows]
    for i, row in enumerate(rows):
        for j in row:
            holders[j].add(i)
    pivots: list[int] = []
    for column in order.tolist():
        candidates = sorted(holders[column])
        sizes = {i: size(rows[i][column]) for i in candidates}
        largest = max(candidates, key=lambda i: (sizes[i], -i), default=-1)
        if largest < 0 or not sizes[largest] > 0.0:
            return None
        keep = sizes.get(column, np.longdouble(0.0)) >= _KEEP_DIAGONAL * sizes[largest]
        pivot = column if keep else largest
        _eliminate_row(rows, holders, pivot, column)
        pivots.append(pivot)
    return order, np.array(pivots, dtype=np.int64)


def _eliminate_row(rows: Entries, holders: Graph, pivot: int, column: int) -> None:
    """Subtract multiples of a pivot row from all others that hold the column, and retire it."""
    for j in rows[pivot]:
        holders[j].discard(pivot)
    rest = {j: value for j, value in rows[pivot].items() if j != column}
    for i in sorted(holders[column]):
        factor = rows[i].pop(column) / rows[pivot][column]
        for j, value in rest.items():
            rows[i][j] = rows[i].get(j, np.clongdouble(0.0)) - factor * value
            holders[j].add(i)
    holders[column] = set()


# ------------------------------------------------------------------------------------- kernels


@kernel
def factor_blocks(blocks: BlockPlan, extra: FloatArray, factors: FloatArray) -> int:
    """Factors of Y_core plus the blocks `extra` (load, 4) at the loads.

    Returns the sign of the determinant, 0 if singular. At no load it is |det Y_core|² > 0, and it changes
    sign at the nose.
    """
    n = blocks.diagonal.size
    for p in range(blocks.col.size):
        re, im = blocks.entry[p].real, blocks.entry[p].imag
        factors[p, 0], factors[p, 1], factors[p, 2], factors[p, 3] = re, -im, im, re
    for m in range(blocks.slot.size):
        for k in range(4):
            factors[blocks.slot[m], k] += extra[m, k]
    place = np.full(n, -1, dtype=np.int64)
    sign = 1
    for row in range(n):
        for p in range(blocks.ptr[row], blocks.ptr[row + 1]):
            place[blocks.col[p]] = p
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            k = blocks.col[p]
            _times(factors, p, blocks.diagonal[k])
            for o in range(blocks.diagonal[k] + 1, blocks.ptr[k + 1]):
                _subtract_product(factors, place[blocks.col[o]], p, o)
        determinant = _invert(factors, blocks.diagonal[row])
        if determinant == 0.0 or not np.isfinite(determinant):
            return 0
        if determinant < 0.0:
            sign = -sign
    return sign


@kernel
def factor_interior(
    blocks: BlockPlan,
    slots: IntArray,
    extra: FloatArray,
    interior: int,
    factors: FloatArray,
    place: IntArray,
) -> int:
    """Factors of the first rows of Y_core plus `extra` (slot, 4) at `slots`; 0 if a pivot is singular.

    The rows from `interior` on are left as the Schur complement of those before them. Returns 1 if the
    determinants of all pivots are positive, as they are without `extra`, −1 otherwise. `place` is room for a
    number per row.
    """
    n = blocks.diagonal.size
    for p in range(blocks.col.size):
        re, im = blocks.entry[p].real, blocks.entry[p].imag
        factors[p, 0], factors[p, 1], factors[p, 2], factors[p, 3] = re, -im, im, re
    for m in range(slots.size):
        for k in range(4):
            factors[slots[m], k] += extra[m, k]
    sign = 1
    for row in range(n):
        for p in range(blocks.ptr[row], blocks.ptr[row + 1]):
            place[blocks.col[p]] = p
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            k = blocks.col[p]
            if k >= interior:
                break
            _times(factors, p, blocks.diagonal[k])
            for o in range(blocks.diagonal[k] + 1, blocks.ptr[k + 1]):
                _subtract_product(factors, place[blocks.col[o]], p, o)
        if row >= interior:
            continue
        determinant = _invert(factors, blocks.diagonal[row])
        if determinant == 0.0 or not np.isfinite(determinant):
            return 0
        if determinant < 0.0:
            sign = -1
    return sign


@kernel
def _times(f: FloatArray, a: int, b: int) -> None:
    """f[a] = f[a]·f[b]."""
    a0, a1, a2, a3 = f[a, 0], f[a, 1], f[a, 2], f[a, 3]
    f[a, 0] = a0 * f[b, 0] + a1 * f[b, 2]
    f[a, 1] = a0 * f[b, 1] + a1 * f[b, 3]
    f[a, 2] = a2 * f[b, 0] + a3 * f[b, 2]
    f[a, 3] = a2 * f[b, 1] + a3 * f[b, 3]


@kernel
def _subtract_product(f: FloatArray, a: int, b: int, c: int) -> None:
    """f[a] −= f[b]·f[c]."""
    f[a, 0] -= f[b, 0] * f[c, 0] + f[b, 1] * f[c, 2]
    f[a, 1] -= f[b, 0] * f[c, 1] + f[b, 1] * f[c, 3]
    f[a, 2] -= f[b, 2] * f[c, 0] + f[b, 3] * f[c, 2]
    f[a, 3] -= f[b, 2] * f[c, 1] + f[b, 3] * f[c, 3]


@kernel
def _invert(f: FloatArray, a: int) -> float:
    """Replace f[a] by its inverse and return its determinant."""
    a0, a1, a2, a3 = f[a, 0], f[a, 1], f[a, 2], f[a, 3]
    determinant: float = a0 * a3 - a1 * a2
    f[a, 0], f[a, 1] = a3 / determinant, -a1 / determinant
    f[a, 2], f[a, 3] = -a2 / determinant, a0 / determinant
    return determinant


@kernel
def solve_blocks(blocks: BlockPlan, factors: FloatArray, x: ComplexArray) -> None:
    """Solve in place; x holds the right-hand side in the order of the equations."""
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
