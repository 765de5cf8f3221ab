"""Spectral norms of operators that are only known by what they do to a vector.

Lanczos approaches a norm from below, so its value is an estimate, not a bound. `norm_bound` adds to it what
is proved of a random start. Let H = AᴴA on C^m with largest eigenvalue λ, b uniform on the complex sphere, θ
the largest Ritz value after k steps, T the Chebyshev polynomial of degree k − 1 and q = T((1+ε)/(1−ε)). The
Rayleigh quotient of T(2H/((1−ε)λ) − 1)·b is at most θ. If θ < (1−ε)λ, then with b₁ the part of b along the
largest eigenvector

    |b₁|²·q²·ελ < Σ_{λ_i < (1−ε)λ} |b_i|²·((1−ε)λ − λ_i) ≤ (1−ε)λ,

because |T| ≤ 1 on [−1, 1]; and |b₁|² < t has probability 1 − (1−t)^{m−1} ≤ m·t. Hence

    Pr(‖A‖² > θ/(1−ε)) ≤ m·(1−ε)/(ε·q²),

whatever the singular values. A certificate charges that probability to its δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, svds

from dp_powerflow.errors import FeederError
from dp_powerflow.units import ComplexArray

Map = Callable[[ComplexArray], ComplexArray]

NORM_FAILURE = 1e-12
"""Probability over its own start vector with which `norm_bound` may be too small."""
DENSE_UP_TO = 300
"""Retained nodes of a network up to which matrices are written out; the one switch to sparse methods."""
_DENSE_BELOW = 32
_STEPS = 160
_TWICE_BELOW = 0.7
"""A vector that orthogonalisation shortens by more is orthogonalised again (twice is enough)."""
_SYMMETRIC = 4.0 * float(np.finfo(np.float64).eps)
_ROUNDING = 1.0 + 1e-9
"""Raises a bound by more than rounding in the iteration can lower it."""


def spectral_norm(apply: Map, adjoint: Map, shape: tuple[int, int]) -> float:
    """Largest singular value of an operator, by Lanczos to machine precision; an estimate from below.

    Parameters
    ----------
    apply, adjoint : x ↦ A·x and y ↦ Aᴴ·y; they also take matrices, column by column.
    shape : (rows, columns) of A.
    """
    if min(shape) == 0:
        return 0.0
    if min(shape) < _DENSE_BELOW:
        return _dense_norm(apply, adjoint, shape)
    operator = LinearOperator(shape, matvec=apply, rmatvec=adjoint, dtype=np.complex128)
    # A fixed start makes the result reproducible; a generic direction meets every singular vector.
    angle = np.arange(min(shape)) * (np.sqrt(5.0) - 1.0) * np.pi
    start = np.cos(angle) + 1j * np.sin(angle * np.sqrt(2.0))
    try:
        values = svds(operator, k=1, v0=start, return_singular_vectors=False, maxiter=20 * max(shape))
    except ArpackNoConvergence:
        raise FeederError(
            "a matrix norm of the network did not converge; check the feeder's impedances"
        ) from None
    return float(values[0])


def norm_bound(
    apply: Map,
    adjoint: Map,
    shape: tuple[int, int],
    *,
    failure: float = NORM_FAILURE,
    steps: int = _STEPS,
    dense_up_to: int = DENSE_UP_TO,
) -> float:
    """Upper bound on the largest singular value, too small with probability at most `failure`.

    Small operators are written out and their norm computed; they have no failure.

    Parameters
    ----------
    apply, adjoint, shape : as in `spectral_norm`.
    steps : of Lanczos; 160 put the bound 0.3 % above the norm of a feeder of 10,000 nodes.
    dense_up_to : size of an operator that is written out.
    """
    if min(shape) == 0:
        return 0.0
    if min(shape) <= dense_up_to:
        return _dense_norm(apply, adjoint, shape) * _ROUNDING
    if shape[0] < shape[1]:
        apply, adjoint, shape = adjoint, apply, (shape[1], shape[0])
    taken, theta = _largest_ritz_value(apply, adjoint, shape[1], steps)
    slack = 0.0 if taken < steps else _slack(shape[1], steps, failure)
    return math.sqrt(theta / (1.0 - slack)) * _ROUNDING


def is_symmetric(y: sp.csc_array) -> bool:
    """Whether Y = Yᵀ but for rounding of its entries, so that left and right norms are the same."""
    return int((abs(y - y.T) > _SYMMETRIC * abs(y)).nnz) == 0


def _largest_ritz_value(apply: Map, adjoint: Map, m: int, steps: int) -> tuple[int, float]:
    """Steps taken (fewer if the Krylov space is exhausted) and the largest Ritz value of AᴴA."""
    # The start is independent of the network, which is all that the proof asks of a fixed seed.
    rng = np.random.default_rng(0)
    vector: ComplexArray = rng.standard_normal(m) + 1j * rng.standard_normal(m)
    basis = np.empty((min(steps, m), m), dtype=np.complex128)
    diagonal: list[float] = []
    off: list[float] = []
    length = float(np.linalg.norm(vector))
    for k in range(len(basis)):
        basis[k] = vector / length
        image = adjoint(apply(basis[k]))
        diagonal.append(float(np.vdot(basis[k], image).real))
        vector = image - diagonal[k] * basis[k] - (off[k - 1] * basis[k - 1] if k else 0.0)
        length, before = float(np.linalg.norm(vector)), np.inf
        while length < _TWICE_BELOW * before:
            # Orthogonal to all before: rounding would bring converged directions back.
            vector = vector - basis[: k + 1].T @ np.conj(basis[: k + 1] @ np.conj(vector))
            before, length = length, float(np.linalg.norm(vector))
            if length <= 1e-13 * max(diagonal):
                break
        if length <= 1e-13 * max(diagonal):
            break
        off.append(length)
    taken = len(diagonal)
    between = np.asarray(off[: taken - 1])
    ritz = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(between, 1) + np.diag(between, -1))
    return taken, float(ritz[-1])


def _slack(m: int, steps: int, failure: float) -> float:
    """Smallest ε whose probability in the module's inequality is at most `failure`."""

    def log_probability(slack: float) -> float:
        angle = math.acosh((1.0 + slack) / (1.0 - slack)) * (steps - 1)
        # log cosh without overflow
        log_q = angle + math.log1p(math.exp(-2.0 * angle)) - math.log(2.0)
        return math.log(m * (1.0 - slack) / slack) - 2.0 * log_q

    low, high = 0.0, 1.0 - 1e-9
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if log_probability(middle) > math.log(failure) else (low, middle)
    return high


def _dense_norm(apply: Map, adjoint: Map, shape: tuple[int, int]) -> float:
    side, image = (shape[1], apply) if shape[1] <= shape[0] else (shape[0], adjoint)
    columns = [image(unit) for unit in np.eye(side, dtype=np.complex128)]
    return float(np.linalg.norm(np.column_stack(columns), 2))
