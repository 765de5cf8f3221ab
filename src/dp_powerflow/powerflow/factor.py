"""Sparse triangular factors of Y, arranged for many right-hand sides.

Currents enter at the loaded nodes only. Zero-injection nodes that are cheap to eliminate go first (a
partial Kron reduction, done once in extended precision); what is left, the *core*, is factorised with a
fill-reducing order. An iteration then touches the core alone. Eliminating every zero-injection node would
fill the matrix in (IEEE 123: 1,269 factor entries for all 182, 475 for the best 165, 871 for none), so the
number eliminated is chosen by counting operations.

Elimination on the diagonal is stable where the real part of Y is positive semidefinite, as for any passive
network; it is checked against the original Y, and a matrix that fails the check is factorised again with
partial pivoting.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

EPS = float(np.finfo(np.float64).eps)
FLOOR_FACTOR = 2.0
"""Rounding floor of a row of Y in units of eps·(|Y|·|w|)_k·|w_k|."""
_DEGREES = (2, 3, 4, 5, 6, 8, 10, 12, 16)
_PIVOT_RATIO = 1e-3
_LARGEST_BACKWARD_ERROR = 1e4 * EPS
"""Residual of a solve against |Y|·|x|, row by row; 1e-15 is usual."""


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
    w : complex (position,) no-load voltage [p.u.].
    core_floor, full_floor : (row,) smallest power mismatch that complex128 can certify [p.u.].
    """

    n_core: int
    position: IntArray
    equation: IntArray
    recover: Rows
    core: Rows
    full: Rows
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
    for order in (_statically_ordered, _pivoted):
        found = order(y, loaded)
        if found is not None and _backward_error(y, *found) < _LARGEST_BACKWARD_ERROR:
            return _assemble(y, w, *found)
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
    y_exact = sp.csr_array(y).astype(np.clongdouble)
    source = rows[:, feeder.slack].astype(np.clongdouble) @ feeder.v_slack.astype(np.clongdouble)
    try:
        lu = splu(y)
    except RuntimeError:
        raise PowerFlowError(
            "the admittance matrix is singular; look for a part of the feeder that floats without any shunt"
        ) from None
    w = np.zeros(len(energised), dtype=np.clongdouble)
    for _ in range(6):
        residual = -source - y_exact @ w
        w = w + lu.solve(residual.astype(np.complex128))
    return np.asarray(w.astype(np.complex128))


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


def _statically_ordered(y: sp.csc_array, loaded: BoolArray) -> tuple[_Core, Any] | None:
    """Partial Kron reduction, then diagonal pivots in minimum-degree order."""
    best: tuple[int, _Core, Any] | None = None
    for core in _partial_reductions(y, ~loaded):
        try:
            lu = splu(
                core.matrix,
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:
            continue
        # One application of the factors per iteration, and one of Y_core per snapshot to check it.
        operations = 6 * (lu.L.nnz + lu.U.nnz) + core.matrix.nnz
        if best is None or operations < best[0]:
            best = operations, core, lu
    return None if best is None else best[1:]


def _pivoted(y: sp.csc_array, loaded: BoolArray) -> tuple[_Core, Any] | None:
    """The whole matrix with partial pivoting, for feeders that static pivots do not suit."""
    none = np.empty(0, dtype=np.int64)
    core = _Core(np.arange(len(loaded)), y, none, sp.csr_array(y.shape, dtype=np.complex128))
    try:
        return core, splu(y)
    except RuntimeError:
        return None


@dataclass(frozen=True, eq=False)
class _Core:
    """State of the elimination: kept nodes and their Schur complement; eliminated nodes and their rows."""

    kept: IntArray
    matrix: sp.csc_array
    eliminated: IntArray
    rows: sp.csr_array


def _partial_reductions(y: sp.csc_array, removable: BoolArray) -> Iterator[_Core]:
    """Schur complements with more and more of the removable nodes eliminated, lowest degree first."""
    n = y.shape[0]
    rows = _symmetric_pattern(y)
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
            if not abs(pivot) > _PIVOT_RATIO * max((abs(rows[i][k]) for i in neighbours), default=0.0):
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


def _symmetric_pattern(y: sp.csc_array) -> list[dict[int, np.clongdouble]]:
    """Rows of y as dictionaries in extended precision, the diagonal and (i, j) whenever (j, i) is present."""
    entries = sp.coo_array(y)
    rows: list[dict[int, np.clongdouble]] = [{k: np.clongdouble(0.0)} for k in range(y.shape[0])]
    row, col = entries.coords
    for i, j, value in zip(row.tolist(), col.tolist(), entries.data.astype(np.clongdouble), strict=True):
        rows[i][j] = value
        rows[j].setdefault(i, np.clongdouble(0.0))
    return rows


def _eliminate(rows: list[dict[int, np.clongdouble]], k: int, neighbours: list[int]) -> None:
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
    rows: list[dict[int, np.clongdouble]],
    alive: BoolArray,
    order: list[int],
    coefficients: list[tuple[int, int, complex]],
) -> _Core:
    n = len(rows)
    kept = np.flatnonzero(alive)
    local = np.full(n, -1, dtype=np.int64)
    local[kept] = np.arange(len(kept))
    data = [(local[i], local[j], complex(value)) for i in kept for j, value in rows[i].items()]
    i, j, value = (np.array(part) for part in zip(*data, strict=True))
    matrix = sp.csc_array((value, (i, j)), shape=(len(kept), len(kept)))
    recover = sp.csr_array((n, n), dtype=np.complex128)
    if coefficients:
        k, j, value = (np.array(part) for part in zip(*coefficients, strict=True))
        recover = sp.csr_array((value, (k, j)), shape=(n, n))
    return _Core(kept, matrix, np.array(order, dtype=np.int64), recover)


def _assemble(y: sp.csc_array, w: ComplexArray, core: _Core, lu: Any) -> Factors:
    """Bring everything into the order of the factors."""
    n, n_core = y.shape[0], len(core.kept)
    position = np.empty(n, dtype=np.int64)
    # SuperLU: row perm_r[i] of L·U is equation i, column perm_c[i] is unknown i.
    position[core.kept] = lu.perm_c
    # An eliminated node depends on nodes eliminated after it.
    position[core.eliminated[::-1]] = np.arange(n_core, n)
    equation = np.empty(n_core, dtype=np.int64)
    equation[lu.perm_r] = lu.perm_c
    node, kept = np.argsort(position), np.argsort(lu.perm_c)
    w_ordered = w[node]
    core_matrix = sp.csr_array(core.matrix)[kept][:, kept]
    full_matrix = sp.csr_array(y)[node][:, node]
    return Factors(
        n_core=n_core,
        position=position,
        equation=equation,
        recover=Rows.of(-core.rows[node][:, node]),
        core=Rows.of(core_matrix),
        full=Rows.of(full_matrix),
        w=w_ordered,
        core_floor=_floor(core_matrix, w_ordered[:n_core]),
        full_floor=_floor(full_matrix, w_ordered),
    )


def _floor(matrix: sp.csr_array, w: ComplexArray) -> FloatArray:
    return np.asarray(FLOOR_FACTOR * EPS * (abs(matrix) @ abs(w)) * abs(w), dtype=np.float64)


def _backward_error(y: sp.csc_array, core: _Core, lu: Any) -> float:
    """Residual of a solve for currents at the core, against the original Y and relative to |Y|·|x|."""
    angle = 2j * np.pi * np.random.default_rng(0).random(len(core.kept))
    current = np.zeros(y.shape[0], dtype=np.complex128)
    current[core.kept] = np.exp(angle)
    x = np.zeros_like(current)
    x[core.kept] = lu.solve(current[core.kept])
    for k in core.eliminated[::-1]:
        entries = slice(core.rows.indptr[k], core.rows.indptr[k + 1])
        x[k] = core.rows.data[entries] @ x[core.rows.indices[entries]]
    if not np.isfinite(x).all():
        return np.inf
    # Nodes that only the source connects to the loads are not reached by any current.
    scale = np.maximum(abs(y) @ abs(x) + abs(current), np.finfo(np.float64).tiny)
    return float(np.max(abs(y @ x - current) / scale))
