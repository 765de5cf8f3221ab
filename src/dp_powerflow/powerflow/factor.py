"""Sparse triangular factors of Y, arranged for many right-hand sides.

Currents enter at the loaded nodes only. Zero-injection nodes that are cheap to eliminate go first (a
partial Kron reduction, done once in extended precision); what is left, the *core*, is factorised with a
fill-reducing order. An iteration then touches the core alone. Eliminating every zero-injection node would
fill the matrix in (IEEE 123: 1,269 factor entries for all 179, 448 for the best 165, 871 for none), so the
number eliminated is chosen by counting operations.

Elimination on the diagonal is stable where the real part of Y is positive semidefinite, as for any passive
network; it is checked against the original Y, and a matrix that fails the check is factorised again with
partial pivoting.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

EPS = float(np.finfo(np.float64).eps)
FLOOR_FACTOR = 2.0
"""Rounding floor of a row of Y in units of eps·(|Y|·|w|)_k·|w_k|."""
_DEGREES = (2, 3, 4, 5, 6, 8, 10, 12, 16)
_PIVOT_RATIO = 1e-3
_LU_TOLERANCE = 1e4
"""Largest residual of a solve with the factors, in units of the row's rounding floor."""


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
            matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), data.real.copy(), data.imag.copy()
        )

    @property
    def nnz(self) -> int:
        return len(self.col)


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of the core and what is needed around them.

    Positions: unknown p of the core is row p of `upper`, equation p is row p of `lower`. Positions from
    `n_core` on are the eliminated nodes, in the order in which `recover` computes them.

    Attributes
    ----------
    position : (energised,) position of each energised node.
    equation : (core,) position of the unknown whose equation is row p of `lower` (p itself unless pivoted).
    lower, upper : strictly triangular rows; `upper` is not scaled, `pivot` = 1/diagonal.
    recover : rows that give an eliminated node's deviation from no load, from those before it.
    core, full : rows of Y_core and of the original Y, both in position order.
    w : complex (position,) no-load voltage [p.u.].
    core_floor, full_floor : (row,) smallest power mismatch that complex128 can certify [p.u.].
    """

    n_core: int
    position: IntArray
    equation: IntArray
    lower: Rows
    upper: Rows
    pivot: ComplexArray
    recover: Rows
    core: Rows
    full: Rows
    w: ComplexArray
    core_floor: FloatArray
    full_floor: FloatArray

    @property
    def flops_per_iteration(self) -> int:
        """Floating-point operations of one application of the factors to one snapshot."""
        return 8 * (self.lower.nnz + self.upper.nnz) + 6 * self.n_core


def factorise(feeder: Feeder) -> Factors:
    """Factors of the energised part of a feeder's Y."""
    _refuse_unconnected(feeder)
    energised = feeder.energised
    y = sp.csc_array(feeder.y)[:, energised][energised]
    w = no_load_voltage(feeder)
    loaded = np.isin(energised, feeder.retained)
    for candidate in (_statically_ordered, _pivoted):
        factors = candidate(y, loaded, w)
        if factors is not None and _residual_in_floors(factors) < _LU_TOLERANCE:
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
        raise PowerFlowError("a load or generator sits on an ideal source node; connect it behind an impedance")
    _, part = connected_components(abs(sp.csr_array(feeder.y)), directed=False)
    dead = ~np.isin(part, part[feeder.slack])
    if dead.any():
        raise PowerFlowError(
            f"{np.count_nonzero(dead)} nodes have no connection to a source; remove them or close the switch "
            "that feeds them"
        )


def _statically_ordered(y: sp.csc_array, loaded: np.ndarray, w: ComplexArray) -> Factors | None:
    """Partial Kron reduction, then diagonal pivots in minimum-degree order."""
    best: tuple[int, _Core, object] | None = None
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
    return None if best is None else _assemble(y, w, best[1], best[2])


def _pivoted(y: sp.csc_array, loaded: np.ndarray, w: ComplexArray) -> Factors | None:
    """The whole matrix with partial pivoting, for feeders that static pivots do not suit."""
    del loaded
    core = _Core(np.arange(y.shape[0]), y, np.empty(0, dtype=np.int64), sp.csr_array(y.shape, dtype=complex))
    try:
        return _assemble(y, w, core, splu(y))
    except RuntimeError:
        return None


@dataclass(frozen=True, eq=False)
class _Core:
    """State of the elimination: kept nodes and their Schur complement; eliminated nodes and their rows."""

    kept: IntArray
    matrix: sp.csc_array
    eliminated: IntArray
    rows: sp.csr_array


def _partial_reductions(y: sp.csc_array, removable: np.ndarray) -> Iterator[_Core]:
    """Schur complements with more and more of the removable nodes eliminated, lowest degree first."""
    n = y.shape[0]
    rows = _symmetric_pattern(y)
    alive = np.ones(n, dtype=bool)
    order: list[int] = []
    coefficients: list[tuple[int, int, complex]] = []
    yield _snapshot(rows, alive, order, coefficients)
    for limit in _DEGREES:
        heap = [(len(rows[k]), k) for k in range(n) if removable[k] and alive[k] and len(rows[k]) - 1 <= limit]
        heapq.heapify(heap)
        before = len(order)
        while heap:
            degree, k = heapq.heappop(heap)
            if not alive[k] or degree != len(rows[k]):
                continue
            neighbours = [j for j in rows[k] if j != k]
            pivot = rows[k][k]
            if abs(pivot) < _PIVOT_RATIO * max((abs(rows[i][k]) for i in neighbours), default=0.0):
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
    """Rows of y as dictionaries in extended precision, (i, j) present whenever (j, i) is."""
    entries = sp.coo_array(y)
    rows: list[dict[int, np.clongdouble]] = [{} for _ in range(y.shape[0])]
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
    alive: np.ndarray,
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


def _assemble(y: sp.csc_array, w: ComplexArray, core: _Core, lu: object) -> Factors:
    """Bring everything into the order of the factors."""
    n, n_core = y.shape[0], len(core.kept)
    # SuperLU: row perm_r[i] of L·U is equation i, column perm_c[i] is unknown i.
    perm_r, perm_c = lu.perm_r, lu.perm_c  # type: ignore[attr-defined]
    l_csr, u_csr = sp.csr_array(lu.L), sp.csr_array(lu.U)  # type: ignore[attr-defined]
    position = np.empty(n, dtype=np.int64)
    position[core.kept] = perm_c
    # An eliminated node depends on nodes eliminated after it.
    position[core.eliminated[::-1]] = np.arange(n_core, n)
    equation = np.empty(n_core, dtype=np.int64)
    equation[perm_r] = perm_c
    node = np.argsort(position)
    w_ordered = w[node]
    core_matrix = sp.csr_array(core.matrix)[np.argsort(perm_c)][:, np.argsort(perm_c)]
    full_matrix = sp.csr_array(y)[node][:, node]
    # The rows of `recover` carry the sign that the kernel subtracts.
    recover = -sp.csr_array(core.rows)[node][:, node]
    return Factors(
        n_core=n_core,
        position=position,
        equation=equation,
        lower=Rows.of(sp.tril(l_csr, -1, format="csr")),
        upper=Rows.of(sp.triu(u_csr, 1, format="csr")),
        pivot=1.0 / u_csr.diagonal(),
        recover=Rows.of(recover),
        core=Rows.of(core_matrix),
        full=Rows.of(full_matrix),
        w=w_ordered,
        core_floor=_floor(core_matrix, w_ordered[:n_core]),
        full_floor=_floor(full_matrix, w_ordered),
    )


def _floor(matrix: sp.csr_array, w: ComplexArray) -> FloatArray:
    return np.asarray(FLOOR_FACTOR * EPS * (abs(matrix) @ abs(w)) * abs(w), dtype=np.float64)


def _residual_in_floors(factors: Factors) -> float:
    """Largest residual of Y·x = e at the original Y, for a unit current at every core node, in floors."""
    n_core, n = factors.n_core, len(factors.w)
    rng = np.random.default_rng(0)
    current = np.exp(2j * np.pi * rng.random(n_core))
    lower = _triangle(factors.lower, n_core) + sp.eye_array(n_core, format="csr")
    upper = _triangle(factors.upper, n_core) + sp.diags_array(1.0 / factors.pivot, format="csr")
    x = np.zeros(n, dtype=np.complex128)
    solved = sp.linalg.spsolve_triangular(lower, current[factors.equation], lower=True)
    x[:n_core] = sp.linalg.spsolve_triangular(sp.csr_array(upper), solved, lower=False)
    recover = _triangle(factors.recover, n)
    for k in range(n_core, n):
        part = slice(recover.indptr[k], recover.indptr[k + 1])
        x[k] = -recover.data[part] @ x[recover.indices[part]]
    target = np.zeros(n, dtype=np.complex128)
    target[:n_core] = current
    y = _triangle(factors.full, n)
    residual = abs(y @ x - target)
    scale = EPS * (abs(y) @ abs(x) + abs(target))
    with np.errstate(invalid="ignore"):
        ratio = residual / scale
    return float(np.max(ratio)) if np.isfinite(ratio).all() else np.inf


def _triangle(rows: Rows, n: int) -> sp.csr_array:
    return sp.csr_array((rows.re + 1j * rows.im, rows.col, rows.ptr), shape=(n, n))
