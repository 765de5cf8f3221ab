"""Compiled kernels: block LU and Lanczos for `LANES` snapshots side by side."""

from __future__ import annotations

from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numba import njit

from dp_powerflow.powerflow.jacobian.vector import (
    LANES,
    bisect,
    eliminate_row,
    fill_block,
    gather,
    gather_transposed,
    invert_block,
    pivot,
    pivot_transposed,
    place,
    scatter,
    scatter_transposed,
    subtract_admittance,
    subtract_own,
    take,
)
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

_BISECTIONS = 52
_PIVOTS_PER_LOGARITHM = 4


class Matrix(NamedTuple):
    """M̃ of `LANES` snapshots.

    `lu` has the blocks, `own` those that differ between snapshots, `phase` the rotation of the start vector
    that first-order perturbation theory favours.
    """

    lu: FloatArray
    own: FloatArray
    phase: ComplexArray


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _factorise(
    lu: FloatArray, pointers: IntArray, update_pointers: IntArray, updates: IntArray, log_det: FloatArray
) -> None:
    """LU in place, diagonal blocks inverted; `log_det` receives log|det| of every lane."""
    n, edges = len(pointers) - 1, pointers[-1]
    product = np.ones(LANES)
    log_det[:] = 0.0
    for p in range(n):
        invert_block(lu, p, product)
        if p % _PIVOTS_PER_LOGARITHM == _PIVOTS_PER_LOGARITHM - 1 or p == n - 1:
            for w in range(LANES):
                log_det[w] += log(abs(product[w])) if product[w] != 0.0 else -inf
                product[w] = 1.0
        first, last, u = pointers[p], pointers[p + 1], update_pointers[p]
        for e in range(first, last):
            eliminate_row(lu, n + edges + e, p, n + first, last - first, updates, u)
            u += last - first


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _solve(lu: FloatArray, pointers: IntArray, neighbours: IntArray, x: FloatArray) -> None:
    """x ← M⁻¹x."""
    n, edges = len(pointers) - 1, len(neighbours)
    for p in range(n):
        scatter(lu, n + edges, x, neighbours, pointers[p], pointers[p + 1], p)
    for p in range(n - 1, -1, -1):
        gather(lu, n, x, neighbours, pointers[p], pointers[p + 1], p)
        pivot(lu, p, x)


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _solve_transposed(lu: FloatArray, pointers: IntArray, neighbours: IntArray, x: FloatArray) -> None:
    """x ← M⁻ᵀx."""
    n, edges = len(pointers) - 1, len(neighbours)
    for p in range(n):
        pivot_transposed(lu, p, x)
        scatter_transposed(lu, n, x, neighbours, pointers[p], pointers[p + 1], p)
    for p in range(n - 1, -1, -1):
        gather_transposed(lu, n + edges, x, neighbours, pointers[p], pointers[p + 1], p)


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _load(
    matrix: Matrix,
    snapshots: tuple[ComplexArray, ComplexArray, ComplexArray],
    first: int,
    retained_at: IntArray,
    constants: tuple[ComplexArray, ComplexArray, ComplexArray],
    pairing: ComplexArray,
) -> None:
    """M̃ of the snapshots (v, s, slope) from `first` on."""
    lu, own, phase = matrix.lu, matrix.own, matrix.phase
    v, s, slope = snapshots
    diagonal, upper, lower = constants
    n, edges = len(diagonal), len(upper)
    for k in range(n):
        fill_block(lu, k, diagonal[k].real, diagonal[k].imag)
    for e in range(edges):
        fill_block(lu, n + e, upper[e].real, upper[e].imag)
        fill_block(lu, n + edges + e, lower[e].real, lower[e].imag)
    phase[:] = 0.0
    for k in range(len(retained_at)):
        p = retained_at[k]
        for w in range(LANES):
            row = min(first + w, len(v) - 1)
            here, power = v[row, k], s[row, k]
            scale = 1.0 / (here.real * here.real + here.imag * here.imag)
            # 1/conj(v) = v/|v|², and c = conj(s/v²) is conj(s) times its square.
            re, im = here.real * scale, here.imag * scale
            square_re, square_im = re * re - im * im, 2.0 * re * im
            c_re = power.real * square_re + power.imag * square_im
            c_im = power.real * square_im - power.imag * square_re
            a_re, a_im = 0.0, 0.0
            if len(slope):
                half = -0.5 * np.conj(slope[row, k]) * complex(re, im) * sqrt(scale)
                change = half * here
                c_re, c_im = c_re + change.real, c_im + change.imag
                a = half * np.conj(here)
                a_re, a_im = a.real, a.imag
            phase[w] += complex(
                c_re * pairing[k].real + c_im * pairing[k].imag,
                c_re * pairing[k].imag - c_im * pairing[k].real,
            )
            own[k, 0, w] = a_re + c_re
            own[k, 1, w] = c_im - a_im
            own[k, 2, w] = c_im + a_im
            own[k, 3, w] = a_re - c_re
            for i in range(4):
                lu[p, i, w] += own[k, i, w]
    for w in range(LANES):
        size = abs(phase[w])
        phase[w] = np.sqrt(-np.conj(phase[w]) / size) if size > 0.0 else 1.0 + 0j


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _defect(
    x: FloatArray,
    right: FloatArray,
    own: FloatArray,
    schedule: tuple[IntArray, IntArray, IntArray, IntArray, IntArray],
    constants: tuple[ComplexArray, ComplexArray, ComplexArray],
    residual: FloatArray,
    defect: FloatArray,
) -> None:
    """‖right − M·x‖ of every lane, M taken from its definition and not from its factors."""
    diagonal, upper, lower = constants
    pointers, neighbours, _, _, retained_at = schedule
    residual[:] = 0.0
    place(residual, retained_at, len(retained_at), right, np.ones(LANES))
    subtract_own(residual, x, retained_at, len(retained_at), own)
    for p in range(len(diagonal)):
        subtract_admittance(residual, p, x, p, diagonal[p].real, diagonal[p].imag)
        for e in range(pointers[p], pointers[p + 1]):
            subtract_admittance(residual, p, x, neighbours[e], upper[e].real, upper[e].imag)
            subtract_admittance(residual, neighbours[e], x, p, lower[e].real, lower[e].imag)
    defect[:] = 0.0
    for k in range(len(diagonal)):
        for i in range(2):
            for w in range(LANES):
                defect[w] += residual[k, i, w] ** 2
    for w in range(LANES):
        defect[w] = sqrt(defect[w])


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _largest_ritz(alpha: FloatArray, beta: FloatArray, sigma: FloatArray, residual: FloatArray) -> None:
    """σ = 1/√θ with θ the largest eigenvalue of T = BᵀB, B bidiagonal; the relative residual of θ.

    The residual is the least over k of the vectors from the first k steps, s_k = 1, s_i = −e_i·s_{i+1}/δ_i
    with pivots δ and off-diagonals e of T − θ: √((δ_k² + e_k²)/Σs²). Later steps may have lost orthogonality.
    """
    steps = len(alpha)
    main, off = np.empty((steps, LANES)), np.empty((steps, LANES))
    low, high = np.zeros(LANES), np.zeros(LANES)
    for k in range(steps):
        for w in range(LANES):
            main[k, w] = alpha[k, w] ** 2 + (beta[k - 1, w] ** 2 if k else 0.0)
            off[k, w] = (alpha[k, w] * beta[k, w]) ** 2
            low[w] = max(low[w], main[k, w])
    for k in range(steps):
        for w in range(LANES):
            edge = sqrt(off[k, w]) if k < steps - 1 else 0.0
            high[w] = max(high[w], (main[k, w] + edge + (sqrt(off[k - 1, w]) if k else 0.0)) * (1.0 + 1e-14))
    bisect(main, off, steps, low, high, _BISECTIONS)
    for w in range(LANES):
        theta, pivot, norm, least = high[w], main[0, w] - high[w], 1.0, inf
        for k in range(steps):
            if k:
                norm = 1.0 + off[k - 1, w] / pivot**2 * norm
                pivot = main[k, w] - theta - off[k - 1, w] / pivot
            least = min(least, (pivot**2 + off[k, w]) / norm)
        sigma[w] = 1.0 / sqrt(theta)
        residual[w] = sqrt(least) / theta


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _reciprocal_norm(square: FloatArray, norm: FloatArray, reciprocal: FloatArray) -> None:
    for w in range(LANES):
        norm[w] = sqrt(square[w])
        reciprocal[w] = 1.0 / norm[w] if norm[w] != 0.0 else 0.0


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _start(
    q: FloatArray, p: FloatArray, phase: ComplexArray, start: ComplexArray, admixture: ComplexArray
) -> None:
    """First Lanczos vector: the start vector in its best phase, and a little of everything else."""
    for k in range(len(start)):
        for w in range(LANES):
            value = start[k] * phase[w] + admixture[k]
            q[k, 0, w], q[k, 1, w] = value.real, value.imag
    p[:] = 0.0


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _lanczos(
    lu: FloatArray,
    own: FloatArray,
    schedule: tuple[IntArray, IntArray, IntArray, IntArray, IntArray],
    constants: tuple[ComplexArray, ComplexArray, ComplexArray],
    work: tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray],
    result: FloatArray,
) -> None:
    """Golub-Kahan bidiagonalisation of M⁻¹ on the retained nodes: Lanczos on (M·Mᵀ)⁻¹, masked.

    Without reorthogonalisation: orthogonality is lost when the largest Ritz value has converged, not before;
    afterwards that value repeats, which does not change it.
    """
    pointers, neighbours, _, _, retained_at = schedule
    q, p, x, spare, alpha, beta = work
    count = len(retained_at)
    square, scale, back, norm = np.zeros(LANES), np.ones(LANES), np.zeros(LANES), np.empty(LANES)
    x[:] = 0.0
    place(x, retained_at, count, q, scale)
    take(x, retained_at, count, q, back, square)
    _reciprocal_norm(square, norm, scale)
    for step in range(len(alpha)):
        x[:] = 0.0
        place(x, retained_at, count, q, scale)
        _solve(lu, pointers, neighbours, x)
        if step == 0:
            _defect(x, q, own, schedule, constants, spare, result[2])
        take(x, retained_at, count, p, back, square)
        _reciprocal_norm(square, alpha[step], scale)
        x[:] = 0.0
        place(x, retained_at, count, p, scale)
        _solve_transposed(lu, pointers, neighbours, x)
        take(x, retained_at, count, q, alpha[step], square)
        _reciprocal_norm(square, beta[step], scale)
        for w in range(LANES):
            back[w] = beta[step, w]
    _largest_ritz(alpha, beta, result[0], result[1])


@njit(cache=True, error_model="numpy", nogil=True)  # type: ignore[untyped-decorator]
def analyse(
    snapshots: tuple[ComplexArray, ComplexArray, ComplexArray],
    schedule: tuple[IntArray, IntArray, IntArray, IntArray, IntArray],
    constants: tuple[ComplexArray, ComplexArray, ComplexArray],
    starts: tuple[ComplexArray, ComplexArray, ComplexArray],
    steps: int,
    out: FloatArray,
) -> None:
    """Lanczos estimate of σ_min, its relative residual, the defect of a solve and log|det|.

    Parameters
    ----------
    snapshots : v, s and slope, complex (snapshot, retained) [p.u.]; slope empty without volt-var.
    schedule, constants : arrays of the `BlockPlan`.
    starts : start vector and its admixture (retained,), and the product that chooses its phase.
    steps : Lanczos steps, at least 1.
    out : (4, snapshot), receives the results in the order above.
    """
    v = snapshots[0]
    pointers, neighbours, update_pointers, updates, retained_at = schedule
    start, admixture, pairing = starts
    n, edges, count = len(pointers) - 1, len(neighbours), len(retained_at)
    lu = np.empty((n + 2 * edges, 4, LANES))
    own = np.empty((count, 4, LANES))
    x, spare = np.empty((n, 2, LANES)), np.empty((n, 2, LANES))
    q, p = np.empty((count, 2, LANES)), np.empty((count, 2, LANES))
    work = (q, p, x, spare, np.zeros((steps, LANES)), np.zeros((steps, LANES)))
    phase = np.empty(LANES, dtype=np.complex128)
    matrix = Matrix(lu, own, phase)
    result = np.full((4, LANES), np.nan)
    for first in range(0, len(v), LANES):
        _load(matrix, snapshots, first, retained_at, constants, pairing)
        _factorise(lu, pointers, update_pointers, updates, result[3])
        _start(q, p, phase, start, admixture)
        _lanczos(lu, own, schedule, constants, work, result)
        for w in range(min(LANES, len(v) - first)):
            for i in range(4):
                out[i, first + w] = result[i, w]
