"""A proved lower bound on σ_min(M̃) for many snapshots, from one singular value decomposition.

In the singular vectors of a reference point the matrix of another snapshot is nearly diagonal; what is not
is bounded block by block. Proof, and what is done about rounding: docs/explanation/jacobian.md. `SigmaBound`
has all singular vectors, `SparseSigmaBound` the smallest few and a bound on the rest, for large networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.powerflow.batch import in_threads
from dp_powerflow.powerflow.jacobian.matrices import Elimination, SparseJacobian, real_form
from dp_powerflow.units import ComplexArray, FloatArray

VECTORS = 8
_ENTRIES = 1 << 20
"""Entries of a and c at a time, of a large network."""
_UNIT = float(np.finfo(np.float64).eps) / 2.0


class Reference(ABC):
    """A lower bound on σ_min near the point (a, c) it was made at.

    Attributes
    ----------
    chunk : snapshots at a time.
    """

    chunk = 1024

    def __init__(self, a: ComplexArray, c: ComplexArray, threads: int) -> None:
        self._a, self._c, self._threads = a, c, threads

    def __call__(self, a: ComplexArray, c: ComplexArray) -> FloatArray:
        """Lower bound for every row of a and c, complex (snapshot, retained): (snapshot,), NaN for NaN."""
        bound = np.full(len(c), np.nan)
        finite = np.flatnonzero(np.isfinite(a).all(axis=1) & np.isfinite(c).all(axis=1))

        def run(start: int) -> None:
            rows = finite[start : start + self.chunk]
            bound[rows] = self._bound(a[rows], c[rows])

        in_threads(run, range(0, len(finite), self.chunk), self._threads)
        return bound

    @abstractmethod
    def _bound(self, a: ComplexArray, c: ComplexArray) -> FloatArray:
        """Of finite rows."""


class SigmaBound(Reference):
    """Lower bound on σ_min of L x = Yx + a∘x + c∘conj(x), hence of M̃_eff, near a reference (a, c).

    Parameters
    ----------
    y : complex (retained, retained) [p.u.], the reduced network.
    a, c : complex (retained,) diagonal terms of the reference point.
    vectors : k, how many of the smallest singular vectors are treated as a block; even, because singular
        values come in near pairs.
    y_error : bound on ‖Y − Y_exact‖₂ [p.u.], for whoever wants the bound for the exact reduction.
    threads : number of threads.
    """

    def __init__(
        self,
        y: ComplexArray,
        a: ComplexArray,
        c: ComplexArray,
        *,
        vectors: int = VECTORS,
        y_error: float = 0.0,
        threads: int = 1,
    ) -> None:
        n = y.shape[0]
        if vectors < 1:
            raise PowerFlowError("the bound on the singular value needs at least one vector; 8 is usual")
        super().__init__(a, c, threads)
        self._k = min(vectors, 2 * n)
        matrix = real_form(y, a, c)
        left, sigma, right = np.linalg.svd(matrix)
        left, sigma, right = left[:, ::-1], sigma[::-1].copy(), right[::-1].T
        self._sigma = sigma[: self._k]
        self._beyond = float(sigma[self._k]) if self._k < 2 * n else np.inf
        self._left_defect, self._right_defect = _orthogonality(left), _orthogonality(right)
        self._defect = _diagonality(left, matrix, right, sigma) + y_error * self._stretch
        self._rounding = 100.0 * 2 * n * self._k * _UNIT
        self._features = _Features(left[:, : self._k], right[:, : self._k])
        self._far, self._coupling = _far_field(left, right, sigma, self._k)

    @property
    def _stretch(self) -> float:
        """Bound on ‖U‖·‖X‖, 1 but for rounding."""
        return float(np.sqrt((1.0 + self._left_defect) * (1.0 + self._right_defect)) * (1.0 + 8.0 * _UNIT))

    def _bound(self, a: ComplexArray, c: ComplexArray) -> FloatArray:
        da, dc = a - self._a, c - self._c
        sizes = (np.abs(da) + np.abs(dc)) * (1.0 + 8.0 * _UNIT)
        change = np.max(sizes, axis=1)
        block, left_gram, right_gram = self._features(da, dc)
        stretch = self._stretch
        rounding = self._rounding * stretch**2
        smallest = np.linalg.svd(block + np.diag(self._sigma), compute_uv=False)[:, -1]
        alpha = np.asarray(smallest - rounding * (change + self._sigma[-1]), dtype=np.float64)
        beta = _off_diagonal_norm(left_gram, block, change, self._right_defect * stretch**2 + rounding)
        gamma = _off_diagonal_norm(
            right_gram, block.swapaxes(1, 2), change, self._left_defect * stretch**2 + rounding
        )
        inner = _smallest_of_two(alpha, beta, gamma, self._beyond - stretch * change)
        if np.isfinite(self._beyond):
            # The same with the rest of the space measured in its own singular values.
            share = stretch * np.sqrt(np.max(sizes * (sizes @ self._far), axis=1))
            reach = self._beyond * np.sqrt(np.sum(sizes * (sizes @ self._coupling), axis=1))
            scaled = _smallest_of_two(alpha, np.minimum(beta, reach), gamma, self._beyond * (1.0 - share))
            inner = np.maximum(inner, scaled)
        # The entries of a and c themselves are rounded results; a few units each.
        own = 32.0 * _UNIT * np.max(np.abs(a) + np.abs(c), axis=1)
        lower = inner / stretch * (1.0 - 16.0 * _UNIT) - self._defect - own
        return np.asarray(np.maximum(lower, 0.0))


class SparseSigmaBound(Reference):
    """The same bound from the k smallest singular vectors and the norm of the rest of the inverse.

    Blocks A, B, C of docs/explanation/jacobian.md are as in `SigmaBound`, each short by what the vectors'
    residuals leave open; d = 1/‖X₂ᵀL₀⁻¹U₂‖ − max δ_j by Weyl's inequality. Three norms of the construction
    are Lanczos bounds with a probability (`grid.norms`), NORMS of them per reference.

    Parameters
    ----------
    elimination : the network, shared by all references.
    a, c, vectors, y_error, threads : as of `SigmaBound`.
    """

    NORMS = 3

    def __init__(
        self,
        elimination: Elimination,
        a: ComplexArray,
        c: ComplexArray,
        *,
        vectors: int = VECTORS,
        y_error: float = 0.0,
        threads: int = 1,
    ) -> None:
        super().__init__(a, c, threads)
        self.chunk = max(1, _ENTRIES // max(1, len(a)))
        found = SparseJacobian(elimination, a, c).smallest(vectors)
        self._sigma = found.sigma
        self._error = found.error + y_error
        left_over = self._error**2 / max(float(found.sigma[0]) - self._error, np.finfo(np.float64).tiny)
        self._beyond = 1.0 / found.rest - left_over - y_error
        self._rounding = found.orthogonality + 100.0 * len(found.left) * vectors * _UNIT
        self._features = _Features(found.left, found.right)

    def _bound(self, a: ComplexArray, c: ComplexArray) -> FloatArray:
        da, dc = a - self._a, c - self._c
        change = np.max(np.abs(da) + np.abs(dc), axis=1) * (1.0 + 8.0 * _UNIT)
        block, left_gram, right_gram = self._features(da, dc)
        smallest = np.linalg.svd(block + np.diag(self._sigma), compute_uv=False)[:, -1]
        alpha = np.asarray(smallest - self._error - self._rounding * (change + self._sigma[-1]))
        beta = _off_diagonal_norm(left_gram, block, change, self._rounding) + self._error
        gamma = _off_diagonal_norm(right_gram, block.swapaxes(1, 2), change, self._rounding) + self._error
        inner = _smallest_of_two(alpha, beta, gamma, self._beyond - change)
        own = 32.0 * _UNIT * np.max(np.abs(a) + np.abs(c), axis=1)
        return np.asarray(np.maximum(inner * (1.0 - 16.0 * _UNIT) - own, 0.0))


def refine(
    make: Callable[[ComplexArray, ComplexArray], Reference],
    a: ComplexArray,
    c: ComplexArray,
    bound: FloatArray,
    enough: Callable[[int], float],
    *,
    references: int = 100,
) -> FloatArray:
    """Raise the lowest bounds until the lowest is `enough`: within a gap of σ_min of its snapshot.

    Then it is within that gap of the smallest σ_min of the batch as well, because that is no larger. Each
    round takes the snapshot with the lowest bound as a reference for all whose bound is too low.

    Parameters
    ----------
    make : a reference at given diagonal terms.
    bound : (snapshot,) lower bound of every snapshot [p.u.], NaN for NaN.
    enough : bound of one snapshot, by its number, that need not be raised [p.u.].
    references : rounds at most; bounds stay valid, only less tight, if they do not suffice.
    """
    bound = bound.copy()
    for _ in range(references):
        worst = int(np.nanargmin(bound))
        wanted = enough(worst)
        low = np.flatnonzero(bound < wanted)
        if len(low) == 0:
            break
        bound[low] = np.maximum(bound[low], make(a[worst], c[worst])(a[low], c[low]))
        if bound[worst] < wanted:
            break  # rounding alone keeps it there
    return bound


class _Features:
    """U₁ᵀΔX₁, U₁ᵀΔΔᵀU₁ and X₁ᵀΔᵀΔX₁ as matrix products, Δ x = δa∘x + δc∘conj(x) being diagonal.

    ΔΔᵀx = e∘x + 2ac∘conj(x) and ΔᵀΔx = e∘x + 2conj(a)c∘conj(x) with e = |a|² + |c|².
    """

    def __init__(self, left: FloatArray, right: FloatArray) -> None:
        n, self._k = len(left) // 2, left.shape[1]
        p = left[:n] + 1j * left[n:]
        q = right[:n] + 1j * right[n:]
        self._cross = _products(p, q)
        self._left = _products(p, p)
        self._right = _products(q, q)

    def __call__(self, a: ComplexArray, c: ComplexArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        shape = (len(c), self._k, self._k)
        energy = np.abs(a) ** 2 + np.abs(c) ** 2
        block = _real_product(c, self._cross[1])
        left, right = energy @ self._left[0].real, energy @ self._right[0].real
        if np.any(a):
            block += _real_product(a, self._cross[0])
            left += _real_product(2.0 * a * c, self._left[1])
            right += _real_product(2.0 * np.conj(a) * c, self._right[1])
        return block.reshape(shape), left.reshape(shape), right.reshape(shape)


def _products(p: ComplexArray, q: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
    """conj(p_i)∘q_j and conj(p_i)∘conj(q_j) for all pairs: complex (retained, k²) each."""
    n = len(p)
    plain = (np.conj(p)[:, :, None] * q[:, None, :]).reshape(n, -1)
    mirrored = (np.conj(p)[:, :, None] * np.conj(q)[:, None, :]).reshape(n, -1)
    return plain, mirrored


def _real_product(x: ComplexArray, f: ComplexArray) -> FloatArray:
    """Re(x·f)."""
    return np.asarray(x.real @ f.real - x.imag @ f.imag)


def _off_diagonal_norm(gram: FloatArray, block: FloatArray, change: FloatArray, defect: float) -> FloatArray:
    """Bound on ‖U₁ᵀΔX₂‖, whose square is ‖S‖ of S = U₁ᵀΔΔᵀU₁ − A′A′ᵀ + what orthogonality leaves open.

    ‖S‖₂ ≤ ‖S⁴‖_F^¼, at most 30 % and mostly a few percent too large, without an eigenvalue problem.
    """
    square = gram - block @ block.swapaxes(1, 2)
    scale = np.maximum(np.max(np.abs(square), axis=(1, 2)), np.finfo(np.float64).tiny)
    power = square / scale[:, None, None]
    for _ in range(2):
        power = power @ power
    largest = scale * np.sqrt(np.sum(power**2, axis=(1, 2))) ** 0.25
    return np.asarray(np.sqrt(largest * (1.0 + 1e-10) + defect * change**2))


def _far_field(
    left: FloatArray, right: FloatArray, sigma: FloatArray, k: int
) -> tuple[FloatArray, FloatArray]:
    """Bounds on the 2×2 blocks of W·Wᵀ, W = X₂Σ₂⁻¹, and the same weighted with the rows of U₁.

    With δ the sizes of the blocks of Δ, ‖ΔW‖² ≤ max δ∘(far·δ) and ‖U₁ᵀΔW‖² ≤ Σ δ∘(coupling·δ).
    """
    n = len(left) // 2
    if k == 2 * n:
        return np.zeros((n, n)), np.zeros((n, n))
    w = right[:, k:] / sigma[k:]
    rounding = 8.0 * len(left) * _UNIT
    product, error = w @ w.T, np.abs(w) @ np.abs(w).T
    p, q, r, s = product[:n, :n], product[:n, n:], product[n:, :n], product[n:, n:]
    norm = 0.5 * (np.hypot(p + s, q - r) + np.hypot(p - s, q + r))
    far = norm + rounding * (error[:n, :n] + error[:n, n:] + error[n:, :n] + error[n:, n:])
    rows = np.hypot(left[:n, :k], left[n:, :k])
    return far * (1.0 + rounding), far * (rows @ rows.T) * (1.0 + rounding)


def _smallest_of_two(alpha: FloatArray, beta: FloatArray, gamma: FloatArray, delta: FloatArray) -> FloatArray:
    """σ_min([[α, −β], [−γ, δ]]) where α, δ > 0 and αδ > βγ, else 0."""
    if np.all(np.isinf(delta)):
        return np.maximum(alpha, 0.0)
    # Without cancellation but in the determinant, whose rounding is subtracted.
    largest = 0.5 * (np.hypot(alpha + delta, beta - gamma) + np.hypot(alpha - delta, beta + gamma))
    determinant = alpha * delta - beta * gamma - 4.0 * _UNIT * np.abs(alpha * delta)
    valid = (alpha > 0.0) & (delta > 0.0) & (determinant > 0.0)
    return np.where(valid, determinant / np.where(largest > 0.0, largest, 1.0), 0.0)


def _orthogonality(basis: FloatArray) -> float:
    """Bound on ‖QᵀQ − I‖₂, the rounding of the product included."""
    n = len(basis)
    found = float(np.linalg.norm(basis.T @ basis - np.eye(n)))
    return found + 4.0 * n * _UNIT * float(np.linalg.norm(basis)) ** 2


def _diagonality(left: FloatArray, matrix: FloatArray, right: FloatArray, sigma: FloatArray) -> float:
    """Bound on ‖UᵀMX − Σ‖₂, the rounding of the products included."""
    n = len(matrix)
    found = float(np.linalg.norm(left.T @ matrix @ right - np.diag(sigma)))
    sizes = [float(np.linalg.norm(part)) for part in (left, matrix, right)]
    return found + 8.0 * n * _UNIT * sizes[0] * sizes[1] * sizes[2]
