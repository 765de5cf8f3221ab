"""What can be done once for all snapshots before M̃ is factorised: elimination, order, schedule.

M̃ of a snapshot differs from that of another only in the 2×2 real diagonal blocks of the retained nodes.
Zero-injection nodes whose elimination does not fill the matrix are therefore eliminated here, once and
with pivoting; the others stay, because the fully reduced matrix of a feeder is dense. The inverse on
the retained nodes is the same either way (a Schur complement is a block of the inverse, inverted).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.powerflow.elimination import Graph, eliminate_node, graph_of, minimum_degree
from dp_powerflow.units import ComplexArray, IntArray

_COLUMNS_AT_A_TIME = 256
_GIVE_UP_FACTOR = 1.2


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Pivot order and schedule of a block LU without fill outside its pattern.

    Pivot p has `neighbours[pointers[p]:pointers[p + 1]]`, all later in the order; edge e among them
    stores the blocks (p, j) in `upper[e]` and (j, p) in `lower[e]`. Eliminating p updates the blocks
    `updates[update_pointers[p]:update_pointers[p + 1]]`, row by row of the square of its neighbours,
    numbered diagonal first, then upper, then lower.

    Attributes
    ----------
    retained_at : (retained,) pivot of every retained node.
    diagonal, upper, lower : complex constant part of the blocks [p.u.].
    log_abs_det_constant : log|det| of the real form of what M̃ has on the nodes that are not retained.
    """

    retained_at: IntArray
    pointers: IntArray
    neighbours: IntArray
    update_pointers: IntArray
    updates: IntArray
    diagonal: ComplexArray
    upper: ComplexArray
    lower: ComplexArray
    log_abs_det_constant: float

    @property
    def blocks(self) -> int:
        """Number of 2×2 blocks of the factors."""
        return len(self.diagonal) + 2 * len(self.neighbours)


def make_plan(y: sp.csc_array, retained: IntArray) -> BlockPlan:
    """Plan for the energised network `y` (node, node) [p.u.] with the given retained nodes."""
    graph = graph_of(y)
    eliminated = _cheap_eliminations(graph, set(range(y.shape[0])) - set(retained.tolist()))
    kept = np.setdiff1d(np.arange(y.shape[0]), eliminated)
    schur = _schur_complement(y, kept, np.asarray(eliminated, dtype=np.int64))
    position = {int(node): k for k, node in enumerate(kept)}
    retained_in_kept = np.array([position[int(node)] for node in retained], dtype=np.int64)
    constant = _log_abs_det_outside(schur, retained_in_kept)

    compact = [{position[j] for j in graph[int(node)]} for node in kept]
    order, later = minimum_degree(compact)
    pivot_of = np.empty(len(order), dtype=np.int64)
    pivot_of[order] = np.arange(len(order))
    structure = [sorted(int(pivot_of[j]) for j in later[node]) for node in order]
    pointers = np.concatenate([[0], np.cumsum([len(row) for row in structure])]).astype(np.int64)
    neighbours = np.array([j for row in structure for j in row], dtype=np.int64)
    update_pointers, updates = _schedule(structure, pointers)
    pivots = np.repeat(np.arange(len(order)), np.diff(pointers))
    permuted = schur[np.ix_(order, order)] if isinstance(schur, np.ndarray) else schur[order, :][:, order]
    return BlockPlan(
        retained_at=pivot_of[retained_in_kept],
        pointers=pointers,
        neighbours=neighbours,
        update_pointers=update_pointers,
        updates=updates,
        diagonal=np.asarray(permuted.diagonal(), dtype=np.complex128),
        upper=_entries(permuted, pivots, neighbours),
        lower=_entries(permuted, neighbours, pivots),
        log_abs_det_constant=constant,
    )


def _fill(graph: Graph, node: int) -> int:
    """Edges that the elimination of a node would add."""
    around = graph[node]
    missing = sum(len(around) - 1 - len(graph[j] & around) for j in around)
    return missing // 2


def _cheap_eliminations(graph: Graph, candidates: set[int]) -> list[int]:
    """Nodes to eliminate once, chosen greedily so that the fewest blocks remain; updates `graph`."""
    trial = [set(around) for around in graph]
    edges = sum(len(around) for around in trial) // 2
    blocks = best = len(trial) + 2 * edges
    sequence: list[int] = []
    best_length = 0
    left = set(candidates)
    heap = [(_fill(trial, k) - len(trial[k]), k) for k in sorted(left)]
    heapq.heapify(heap)
    while heap and blocks <= _GIVE_UP_FACTOR * best:
        growth, node = heapq.heappop(heap)
        if node not in left or growth != _fill(trial, node) - len(trial[node]):
            continue
        left.remove(node)
        around = eliminate_node(trial, node)
        sequence.append(node)
        blocks += 2 * growth - 1
        if blocks < best:
            best, best_length = blocks, len(sequence)
        touched = around.union(*(trial[j] for j in around)) & left
        for k in touched:
            heapq.heappush(heap, (_fill(trial, k) - len(trial[k]), k))
    for node in sequence[:best_length]:
        eliminate_node(graph, node)
    return sequence[:best_length]


def _schedule(structure: list[list[int]], pointers: IntArray) -> tuple[IntArray, IntArray]:
    """Number of the block that every product of an elimination step is taken from."""
    n, edges = len(structure), int(pointers[-1])
    edge_of = [{j: int(pointers[p]) + k for k, j in enumerate(row)} for p, row in enumerate(structure)]
    updates: list[int] = []
    counts = [0]
    for row in structure:
        for i in row:
            for j in row:
                if i == j:
                    updates.append(i)
                elif i < j:
                    updates.append(n + edge_of[i][j])
                else:
                    updates.append(n + edges + edge_of[j][i])
        counts.append(len(updates))
    return np.array(counts, dtype=np.int64), np.array(updates, dtype=np.int64)


def _schur_complement(y: sp.csc_array, kept: IntArray, eliminated: IntArray) -> sp.csc_array:
    rows = sp.csr_array(y)
    inner = sp.csc_array(rows[kept, :][:, kept])
    if len(eliminated) == 0:
        return inner
    left = sp.csr_array(rows[kept, :][:, eliminated])
    right = sp.csc_array(rows[eliminated, :][:, kept])
    factor = _factorise(sp.csc_array(rows[eliminated, :][:, eliminated]))
    touched = np.flatnonzero(np.diff(right.indptr))
    parts = []
    for start in range(0, len(touched), _COLUMNS_AT_A_TIME):
        columns = touched[start : start + _COLUMNS_AT_A_TIME]
        change = sp.coo_array(left @ factor.solve(right[:, columns].toarray()))
        parts.append((change.data, (change.row, columns[change.col])))
    change = sum((sp.csc_array(part, shape=inner.shape) for part in parts), sp.csc_array(inner.shape))
    return sp.csc_array(inner - change)


def _log_abs_det_outside(schur: sp.csc_array, retained: IntArray) -> float:
    others = np.setdiff1d(np.arange(schur.shape[0]), retained)
    if len(others) == 0:
        return 0.0
    pivots = _factorise(sp.csc_array(schur[others, :][:, others])).U.diagonal()
    return 2.0 * float(np.sum(np.log(np.abs(pivots))))


def _factorise(matrix: sp.csc_array):  # type: ignore[no-untyped-def]
    try:
        return splu(sp.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.1)
    except RuntimeError:
        raise PowerFlowError(
            "the network of zero-injection nodes is singular, so the Jacobian on the retained nodes is not "
            "defined; leave out parts that no source feeds"
        ) from None


def _entries(matrix: sp.csc_array, rows: IntArray, columns: IntArray) -> ComplexArray:
    if len(rows) == 0:
        return np.zeros(0, dtype=np.complex128)
    lookup = sp.csr_array(matrix)
    return np.asarray(lookup[rows, columns], dtype=np.complex128).ravel()
