"""Products, factors and eigenvectors of small matrices in a fixed order of operations."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import kernel
from dp_powerflow.units import FloatArray

_SWEEPS = 60  # of Jacobi's method; ten are usual


def product(left: FloatArray, right: FloatArray) -> FloatArray:
    """left (..., K) times right (K, M) → (..., M), or times right (K,) → (...).

    Every entry is a sum over K in ascending order; it does not depend on the other rows.
    """
    rows = np.ascontiguousarray(left, dtype=np.float64).reshape(-1, left.shape[-1])
    columns = np.ascontiguousarray(right, dtype=np.float64).reshape(left.shape[-1], -1)
    out = np.zeros((rows.shape[0], columns.shape[1]))
    _product(rows, columns, out)
    return out.reshape(*left.shape[:-1], *right.shape[1:])


@kernel
def _product(left: FloatArray, right: FloatArray, out: FloatArray) -> None:
    n_rows, inner = left.shape
    whole = inner - inner % 4
    for i in range(n_rows):
        row = out[i]
        for k in range(0, whole, 4):
            a, b, c, d = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            for j in range(row.size):
                part = row[j] + a * right[k, j]
                part = part + b * right[k + 1, j]
                part = part + c * right[k + 2, j]
                row[j] = part + d * right[k + 3, j]
        for k in range(whole, inner):
            a = left[i, k]
            for j in range(row.size):
                row[j] += a * right[k, j]


def gram(vectors: FloatArray) -> FloatArray:
    """Σ_d v_d·v_dᵀ of each stack: (n, D, K) → (n, K, K), symmetric to the last bit."""
    stacked = np.ascontiguousarray(vectors, dtype=np.float64)
    out = np.zeros((stacked.shape[0], stacked.shape[2], stacked.shape[2]))
    _gram(stacked, out)
    return out


@kernel
def _gram(vectors: FloatArray, out: FloatArray) -> None:
    for i in range(vectors.shape[0]):
        _product(np.ascontiguousarray(vectors[i].T), vectors[i], out[i])


def norms(vectors: FloatArray) -> FloatArray:
    """L2 norm over the last axis, (..., K) → (...)."""
    flat = np.ascontiguousarray(vectors, dtype=np.float64).reshape(-1, vectors.shape[-1])
    out = np.empty(flat.shape[0])
    _norms(flat, out)
    return out.reshape(vectors.shape[:-1])


@kernel
def _norms(vectors: FloatArray, out: FloatArray) -> None:
    for i in range(vectors.shape[0]):
        total = 0.0
        for k in range(vectors.shape[1]):
            total += vectors[i, k] * vectors[i, k]
        out[i] = np.sqrt(total)


def within_ball(vectors: FloatArray, radius: float) -> FloatArray:
    """Vectors (..., K), each shortened to the radius if it is longer."""
    shortened: FloatArray = vectors * np.minimum(1.0, radius / np.maximum(norms(vectors)[..., None], 1e-300))
    return shortened


def cholesky(matrix: FloatArray) -> FloatArray:
    """Lower triangular factor of a symmetric positive definite matrix.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a pivot is not positive.
    """
    upper = np.array(matrix, dtype=np.float64, order="C")
    if not _cholesky(upper):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return np.ascontiguousarray(upper.T)


def is_positive_definite(matrix: FloatArray) -> bool:
    """Whether a symmetric matrix has a Cholesky factor."""
    return bool(_cholesky(np.array(matrix, dtype=np.float64, order="C")))


@kernel
def _cholesky(upper: FloatArray) -> bool:
    """Turn the upper triangle into the transposed factor, in place; False if there is none."""
    size = upper.shape[0]
    for k in range(size):
        if not upper[k, k] > 0.0:
            return False
        pivot = np.sqrt(upper[k, k])
        upper[k, k] = pivot
        for j in range(k + 1, size):
            upper[k, j] /= pivot
            upper[j, k] = 0.0
        for i in range(k + 1, size):
            a = upper[k, i]
            for j in range(i, size):
                upper[i, j] -= a * upper[k, j]
    return True


def solve_lower(factor: FloatArray, right: FloatArray) -> FloatArray:
    """L⁻¹·right of a lower triangular L (K, K); right (K,) or (K, n)."""
    out = np.array(right, dtype=np.float64, order="C")
    _solve_lower(np.ascontiguousarray(factor), out.reshape(len(factor), -1))
    return out


def solve_upper(factor: FloatArray, right: FloatArray) -> FloatArray:
    """L⁻ᵀ·right of a lower triangular L (K, K); right (K,) or (K, n)."""
    out = np.array(right, dtype=np.float64, order="C")
    _solve_upper(np.ascontiguousarray(factor), out.reshape(len(factor), -1))
    return out


@kernel
def _solve_lower(factor: FloatArray, out: FloatArray) -> None:
    for i in range(factor.shape[0]):
        for k in range(i):
            a = factor[i, k]
            for j in range(out.shape[1]):
                out[i, j] -= a * out[k, j]
        for j in range(out.shape[1]):
            out[i, j] /= factor[i, i]


@kernel
def _solve_upper(factor: FloatArray, out: FloatArray) -> None:
    for i in range(factor.shape[0] - 1, -1, -1):
        for k in range(i + 1, factor.shape[0]):
            a = factor[k, i]
            for j in range(out.shape[1]):
                out[i, j] -= a * out[k, j]
        for j in range(out.shape[1]):
            out[i, j] /= factor[i, i]


def eigh(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues (K,) and eigenvectors (K, K), one per column, of a symmetric matrix; in no order.

    Jacobi's cyclic method.
    """
    work = np.array(matrix, dtype=np.float64, order="C")
    rows = np.eye(len(work))
    _jacobi(work, rows)
    return np.diag(work).copy(), np.ascontiguousarray(rows.T)


@kernel
def _jacobi(a: FloatArray, vectors: FloatArray) -> None:
    """Rotate `a` until it is diagonal; the rows of `vectors` become its eigenvectors."""
    size = a.shape[0]
    energy = 0.0
    for p in range(size):
        for q in range(size):
            energy += a[p, q] * a[p, q]
    limit = 1e-17 * np.sqrt(energy)
    for _ in range(_SWEEPS):
        rotated = False
        for p in range(size - 1):
            for q in range(p + 1, size):
                off = a[p, q]
                if not abs(off) > limit:
                    continue
                rotated = True
                theta = (a[q, q] - a[p, p]) / (2.0 * off)
                t = 1.0 / (abs(theta) + np.sqrt(theta * theta + 1.0))
                t = t if theta >= 0.0 else -t
                c = 1.0 / np.sqrt(t * t + 1.0)
                s = t * c
                first, second = a[p, p] - t * off, a[q, q] + t * off
                for j in range(size):
                    x, y = a[p, j], a[q, j]
                    a[p, j] = c * x - s * y
                    a[q, j] = s * x + c * y
                for j in range(size):
                    a[j, p] = a[p, j]
                    a[j, q] = a[q, j]
                a[p, p], a[q, q] = first, second
                a[p, q] = a[q, p] = 0.0
                for j in range(size):
                    x, y = vectors[p, j], vectors[q, j]
                    vectors[p, j] = c * x - s * y
                    vectors[q, j] = s * x + c * y
        if not rotated:
            return
