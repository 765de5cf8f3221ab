"""Jacobians of the power flow on the reduced network: M̃, J, DG, with and without volt-var.

Everything rests on one real-linear map. With s = v∘conj(Yv + b) and a generation s^g(|v|),

    δ(s − s^g) = v∘conj(L δv),    L x = Y x + a∘x + c∘conj(x),
    c = conj(s/v²) − w∘v,  a = −w∘conj(v),  w = conj(g)∘v/(2|v|³),  g = ds^g/d|v|,

so M̃ of Eq. Mtilde_def is the complexification of L (rows exchanged) and has its singular values, and
|det J| = Π|v_k|²·|det M̃|. Functions take leading batch axes and are dense, for small networks and as the
reference of `JacobianBatch`. See docs/explanation/power-flow.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import factorised, norm_bound, psi_norms
from dp_powerflow.powerflow.batch import in_threads
from dp_powerflow.units import ComplexArray, FloatArray, IntArray


def diagonal_terms(
    v: ComplexArray, s: ComplexArray, generation_slope: ComplexArray | None = None
) -> tuple[ComplexArray, ComplexArray]:
    """a and c of L x = Yx + a∘x + c∘conj(x), complex (..., retained) [p.u.].

    Parameters
    ----------
    v, s : voltage and total injection, generation included [p.u.].
    generation_slope : g = ds^g/d|v|; under a volt-var curve φ it is jφ′(|v|)·s^g (Eq. voltvar).
    """
    c = np.conj(s / v**2)
    if generation_slope is None:
        return np.zeros_like(c), c
    w = np.conj(generation_slope) * v / (2.0 * np.abs(v) ** 3)
    return np.asarray(-w * np.conj(v)), np.asarray(c - w * v)


def real_form(y: ComplexArray, a: ComplexArray, c: ComplexArray) -> FloatArray:
    """L as a real matrix on (Re x, Im x): (..., 2n, 2n), with the singular values of M̃ (Eq. Mtilde_def)."""
    n = y.shape[0]
    full = np.empty((*c.shape[:-1], 2 * n, 2 * n))
    k = np.arange(n)
    full[..., :n, :n] = full[..., n:, n:] = y.real
    full[..., n:, :n] = y.imag
    full[..., :n, n:] = -y.imag
    full[..., k, k] += a.real + c.real
    full[..., k, n + k] += c.imag - a.imag
    full[..., n + k, k] += c.imag + a.imag
    full[..., n + k, n + k] += a.real - c.real
    return full


_UNIT = float(np.finfo(np.float64).eps) / 2.0
_MEASURED = 16.0
"""Residuals of solves are measured on some vectors; the worst is raised by this for all others."""
VECTORS = 8
"""Singular vectors of a bound."""
NORMS = 3
"""Norms behind a sparse reference."""
_ENTRIES = 1 << 20
"""Entries of a and c at a time."""


class Elimination:
    """What L has in common at all snapshots: Y on all nodes, and its zero-injection part factorised.

    Attributes
    ----------
    y : sparse complex (node, node) [p.u.], all nodes but the slack.
    retained : (retained,) places of the retained nodes in it.
    """

    def __init__(self, feeder: Feeder) -> None:
        energised = feeder.energised
        self.y = sp.csr_array(sp.csr_array(feeder.y)[energised, :][:, energised])
        self.adjoint = sp.csr_array(self.y.conj().T)
        self.sizes = abs(self.y)
        self.retained: IntArray = np.searchsorted(energised, feeder.retained)
        self.others = np.setdiff1d(np.arange(len(energised)), self.retained)
        retained = self.retained
        self._y_zr = sp.csr_array(self.y[self.others, :][:, retained])
        self._y_rz = sp.csr_array(self.y[retained, :][:, self.others])
        self._factor = factorised(self.y[self.others, :][:, self.others]) if len(self.others) else None

    @property
    def n(self) -> int:
        """Number of retained nodes."""
        return len(self.retained)

    def extend(self, x: ComplexArray, *, adjoint: bool = False) -> ComplexArray:
        """Values at all nodes whose current into the zero-injection nodes is zero: Ψ_R·x or conj(Ψ_L)·x."""
        full = np.zeros((self.y.shape[0], *x.shape[1:]), dtype=np.complex128)
        full[self.retained] = x
        if self._factor is not None:
            coupling = self._y_rz.conj().T if adjoint else self._y_zr
            full[self.others] = -self._factor.solve(
                np.ascontiguousarray(coupling @ x), trans="H" if adjoint else "N"
            )
        return full

    @cached_property
    def reduced(self) -> ComplexArray:
        """Y of the reduced network: complex (retained, retained), dense."""
        y = self.y[self.retained, :][:, self.retained].toarray()
        if self._factor is not None:
            y -= self._y_rz @ self._factor.solve(self._y_zr.toarray())
        return np.asarray(y)

    @cached_property
    def psi(self) -> float:
        """Upper bound on ‖Ψ_L‖₂ and ‖Ψ_R‖₂ (two `norm_bound`s)."""
        factor = self._factor
        if factor is None:
            return 1.0
        y_zr, y_rz = self._y_zr, self._y_rz
        return max(psi_norms(lambda x, how: factor.solve(np.asarray(x), trans=how), y_zr, y_rz, self.y))

    @cached_property
    def log_abs_det_outside(self) -> float:
        """log|det| of the real form of Y on the nodes that are not retained."""
        if self._factor is None:
            return 0.0
        return 2.0 * float(np.sum(np.log(np.abs(self._factor.U.diagonal()))))


class SparseJacobian:
    """L at one snapshot: `a`, `c` complex (retained,) [p.u.]."""

    def __init__(self, elimination: Elimination, a: ComplexArray, c: ComplexArray) -> None:
        self._of = elimination
        self._a, self._c = a, c
        size, at = elimination.y.shape[0], elimination.retained
        plain, mirrored = np.zeros(size, dtype=np.complex128), np.zeros(size, dtype=np.complex128)
        plain[at], mirrored[at] = a, c
        y = elimination.y + sp.diags_array(plain)
        re, im = sp.diags_array(mirrored.real), sp.diags_array(mirrored.imag)
        matrix = sp.block_array([[y.real + re, im - y.imag], [y.imag + im, y.real - re]], format="csc")
        self._factor = factorised(matrix)
        self._at = np.concatenate([at, size + at])

    def inverse(self, x: FloatArray, *, transpose: bool = False) -> FloatArray:
        """B·x or Bᵀ·x for x (2·retained, ...), real parts first."""
        full = np.zeros((2 * self._of.y.shape[0], *x.shape[1:]))
        full[self._at] = x
        return np.asarray(self._factor.solve(full, trans="T" if transpose else "N")[self._at])

    @property
    def sign(self) -> float:
        """Sign of det L_R; that of the zero-injection part, |det Y_ZZ|², is positive."""
        signs = np.sign(self._factor.U.diagonal())
        return float(np.prod(signs)) * _parity(self._factor.perm_r) * _parity(self._factor.perm_c)

    @property
    def log_abs_det(self) -> float:
        """log|det L_R|."""
        pivots = np.abs(self._factor.U.diagonal())
        if not pivots.min() > 0.0:
            return -np.inf
        return float(np.sum(np.log(pivots))) - self._of.log_abs_det_outside

    @property
    def sigma_min(self) -> float:
        """Smallest singular value of L_R, an estimate from above."""
        return float(1.0 / np.sqrt(self._largest(1)[0][-1]))

    def reference(self, vectors: int = VECTORS, threads: int = 1) -> Reference:
        """Bounds near this snapshot, from its smallest singular vectors and the norm of the inverse's rest.

        With U₁, Σ₁, X₁ the k smallest singular triplets of the reference L₀ as computed, U₂ and X₂ orthogonal
        complements, E = L₀X₁ − U₁Σ₁ and F = L₀ᵀU₁ − X₁Σ₁, the four numbers of the theorem in
        docs/explanation/power-flow.md become

            α = σ_min(Σ₁ + U₁ᵀΔX₁) − ‖E‖,   β = ‖U₁ᵀΔX₂‖ + ‖F‖,   γ = ‖U₂ᵀΔX₁‖ + ‖E‖,
            d = 1/‖X₂ᵀL₀⁻¹U₂‖ − ‖E‖‖F‖/(σ₁ − ‖E‖) − max_j δ_j.

        *d.* The block of (UᵀL₀X)⁻¹ that belongs to U₂, X₂ is X₂ᵀL₀⁻¹U₂ = (D₀ − C₀A₀⁻¹B₀)⁻¹ with ‖C₀‖ ≤ ‖E‖,
        ‖B₀‖ ≤ ‖F‖ and ‖A₀⁻¹‖ ≤ 1/(σ₁ − ‖E‖), so σ_min(D₀) is at least the first two terms; the change costs
        max δ_j by Weyl. Nothing is assumed about the routine that found the triplets: if it missed the
        smallest one, ‖X₂ᵀL₀⁻¹U₂‖ is large and the bound low, not wrong (a test takes them away).

        ‖E‖ and ‖F‖ are measured through *all* nodes: with w = (x, −Y_ZZ⁻¹Y_ZR x) and r = L_N w − U₁Σ₁, E =
        Ψ_Lᵀr, so ‖E‖ ≤ ‖Ψ_L‖·‖r‖ however badly Y_ZZ is conditioned (6e7 on IEEE 123, where ‖E‖ comes to 1e-7
        p.u.). An error r of a solve becomes L₀⁻¹Ψ_Lᵀr on the retained nodes. Residuals of solves are measured
        on ten vectors, the most amplified ones among them, and the largest is multiplied by 16 for all the
        others: that factor is the one thing here that is measured and not proved. All of this together lowers
        the bound by 7e-7 at the median and 7e-5 at worst on IEEE 123 (relative). Three norms of the
        construction are Lanczos bounds with a probability (`grid.reduction`), NORMS of them per reference.
        """
        squares, left = self._largest(vectors)
        sigma = 1.0 / np.sqrt(squares[::-1])
        left, _ = np.linalg.qr(left[:, ::-1])
        right, upper = np.linalg.qr(self.inverse(left) * sigma)
        right = right * np.where(np.diagonal(upper) < 0.0, -1.0, 1.0)
        skew = max(_orthogonality(left), _orthogonality(right))
        error = max(self._error(right, left, sigma), self._error(left, right, sigma, adjoint=True))
        error = error * (1.0 + skew) + 2.0 * skew * float(sigma[-1])
        left_over = error**2 / max(float(sigma[0]) - error, np.finfo(np.float64).tiny)
        rounding = skew + 100.0 * len(left) * vectors * _UNIT
        return Reference(
            self._a,
            self._c,
            sigma,
            _Features(left, right),
            beyond=1.0 / self._rest(left, right, float(sigma[0])) - left_over,
            rounding=rounding,
            defects=(rounding, rounding),
            error=error,
            threads=threads,
        )

    def _largest(self, k: int) -> tuple[FloatArray, FloatArray]:
        """Largest eigenvalues of BᵀB, ascending, and their vectors."""
        size = len(self._at)
        operator = LinearOperator(
            (size, size),
            matvec=lambda x: self.inverse(self.inverse(x.ravel()), transpose=True),
            dtype=np.float64,
        )
        start = np.random.default_rng(0).standard_normal(size)
        try:
            values, vectors = eigsh(operator, k=k, which="LM", v0=start, tol=1e-11)
        except ArpackNoConvergence:
            raise PowerFlowError(
                "the smallest singular values of the Jacobian did not converge; look for impedances of zero"
            ) from None
        order = np.argsort(values)
        return values[order], vectors[:, order]

    def _error(
        self, inner: FloatArray, outer: FloatArray, sigma: FloatArray, *, adjoint: bool = False
    ) -> float:
        """Bound on ‖L·inner − outer·Σ‖: through all nodes, where an error of the elimination is visible.

        With w the extension of x and r = L_N·w − E_R·(outer·Σ), L_R·x − outer·Σ = Ψ_Lᵀ·r.
        """
        of, n = self._of, self._of.n
        x, target = inner[:n] + 1j * inner[n:], (outer[:n] + 1j * outer[n:]) * sigma
        w = of.extend(x, adjoint=adjoint)
        residual = (of.adjoint if adjoint else of.y) @ w
        plain = np.conj(self._a) if adjoint else self._a
        residual[of.retained] += plain[:, None] * x + self._c[:, None] * np.conj(x) - target
        sizes = (of.sizes.T if adjoint else of.sizes) @ np.abs(w)
        rounding = 16.0 * _UNIT * (float(np.linalg.norm(sizes)) + float(np.linalg.norm(target)))
        return of.psi * (float(np.linalg.norm(residual)) + rounding)

    def _rest(self, left: FloatArray, right: FloatArray, smallest: float) -> float:
        """Bound on ‖X₂ᵀ L⁻¹ U₂‖ of the orthogonal complements [p.u. impedance]."""
        size = len(self._at)

        def outside(basis: FloatArray, x: ComplexArray) -> ComplexArray:
            return np.asarray(x - basis @ (basis.T @ x))

        def inverse(x: ComplexArray, transpose: bool) -> ComplexArray:
            parts = self.inverse(np.stack([x.real, x.imag], axis=1), transpose=transpose)
            return np.asarray(parts @ np.array([1.0, 1.0j]))

        found = norm_bound(
            lambda x: outside(right, inverse(outside(left, x), False)),
            lambda x: outside(left, inverse(outside(right, x), True)),
            (size, size),
        )
        # An error r of a solve becomes B·Ψ_Lᵀ·r on the retained nodes.
        return found + _MEASURED * self._of.psi * self._solve_residual(left) / smallest

    def _solve_residual(self, vectors: FloatArray) -> float:
        """Largest ‖L_N·w − x‖ of solves for some unit vectors, those most amplified among them."""
        of, n = self._of, self._of.n
        random = np.random.default_rng(1).standard_normal((len(self._at), 2))
        some = np.concatenate([vectors, random / np.linalg.norm(random, axis=0)], axis=1)
        full = np.zeros((2 * of.y.shape[0], some.shape[1]))
        full[self._at] = some
        solved = self._factor.solve(full)
        half = of.y.shape[0]
        w = solved[:half] + 1j * solved[half:]
        residual = of.y @ w
        x = w[of.retained]
        residual[of.retained] += self._a[:, None] * x + self._c[:, None] * np.conj(x)
        residual[of.retained] -= some[:n] + 1j * some[n:]
        rounding = 16.0 * _UNIT * np.linalg.norm(of.sizes @ np.abs(w), axis=0)
        return float((np.linalg.norm(residual, axis=0) + rounding).max())


def _parity(permutation: IntArray) -> float:
    """Sign of a permutation, from the number of its cycles."""
    n = len(permutation)
    graph = sp.coo_array((np.ones(n, dtype=np.int8), (np.arange(n), permutation)), shape=(n, n))
    cycles = connected_components(graph, directed=False, return_labels=False)
    return -1.0 if (n - cycles) % 2 else 1.0


def _orthogonality(basis: FloatArray) -> float:
    """Bound on ‖QᵀQ − I‖₂, the rounding of the product included."""
    found = float(np.linalg.norm(basis.T @ basis - np.eye(basis.shape[1])))
    return found + 4.0 * len(basis) * _UNIT * float(np.linalg.norm(basis)) ** 2


# ----------------------------------------------------------------------------------------------------------
# A proved lower bound on σ_min(M̃) for many snapshots, from one singular value decomposition.
#
# In the singular vectors of a reference point the matrix of another snapshot is nearly diagonal; what is
# not is bounded block by block. Proof, and what is done about rounding: docs/explanation/power-flow.md.
# `dense_reference` has all singular vectors, `SparseJacobian.reference` the smallest few and a bound on the
# rest, for large networks.


@dataclass(frozen=True, eq=False)
class Reference:
    """A lower bound on σ_min of L x = Yx + a∘x + c∘conj(x) near the point (a, c) it was made at.

    Attributes
    ----------
    sigma : (k,) smallest singular values there, ascending.
    features : of their vectors.
    beyond : the others are at least as large.
    rounding : of the products, relative to the change.
    defects : what orthogonality of the right and of the left vectors leaves open, relative to change².
    error : of the vectors, ‖L X₁ − U₁Σ₁‖ and ‖LᵀU₁ − X₁Σ₁‖ at most.
    stretch : bound on ‖U‖·‖X‖, 1 but for rounding.
    subtracted : from every bound at the end.
    """

    a: ComplexArray
    c: ComplexArray
    sigma: FloatArray
    features: _Features
    beyond: float
    rounding: float
    defects: tuple[float, float]
    error: float = 0.0
    stretch: float = 1.0
    subtracted: float = 0.0
    threads: int = 1

    def __call__(self, a: ComplexArray, c: ComplexArray) -> FloatArray:
        """Lower bound for every row of a and c, complex (snapshot, retained): (snapshot,), NaN for NaN."""
        bound, chunk = np.full(len(c), np.nan), max(1, _ENTRIES // max(1, len(self.a)))
        finite = np.flatnonzero(np.isfinite(a).all(axis=1) & np.isfinite(c).all(axis=1))

        def run(start: int) -> None:
            rows = finite[start : start + chunk]
            bound[rows] = self._bound(a[rows], c[rows])

        in_threads(run, range(0, len(finite), chunk), self.threads)
        return bound

    def _bound(self, a: ComplexArray, c: ComplexArray) -> FloatArray:
        """Of finite rows."""
        da, dc = a - self.a, c - self.c
        change = np.max((np.abs(da) + np.abs(dc)) * (1.0 + 8.0 * _UNIT), axis=1)
        block, left_gram, right_gram = self.features(da, dc)
        smallest = np.linalg.svd(block + np.diag(self.sigma), compute_uv=False)[:, -1]
        alpha = np.asarray(smallest - self.error - self.rounding * (change + self.sigma[-1]))
        beta = _off_diagonal_norm(left_gram, block, change, self.defects[0]) + self.error
        gamma = _off_diagonal_norm(right_gram, block.swapaxes(1, 2), change, self.defects[1]) + self.error
        inner = _smallest_of_two(alpha, beta, gamma, self.beyond - self.stretch * change)
        # The entries of a and c themselves are rounded results; a few units each.
        own = 32.0 * _UNIT * np.max(np.abs(a) + np.abs(c), axis=1)
        lower = inner / self.stretch * (1.0 - 16.0 * _UNIT) - self.subtracted - own
        return np.asarray(np.maximum(lower, 0.0))


def dense_reference(
    y: ComplexArray, a: ComplexArray, c: ComplexArray, *, vectors: int = VECTORS, threads: int = 1
) -> Reference:
    """Bounds from all singular vectors of a dense network.

    Rounding. The computed Û, X̂, Σ̂ are not exact, and nothing is assumed about the routine that made
    them:

    - ‖ÛᵀÛ − I‖ ≤ η_U and ‖X̂ᵀX̂ − I‖ ≤ η_X are measured (Frobenius norm, plus the rounding of the product
      itself). For square factors σ_min(M) ≥ σ_min(ÛᵀMX̂)/√((1 + η_U)(1 + η_X)), and X̂X̂ᵀ is as near to I
      as X̂ᵀX̂, which adds η_X‖Δ‖²(1 + η_U) to ‖B‖².
    - τ ≥ ‖ÛᵀM₀X̂ − Σ̂‖ is measured in the same way and subtracted (Weyl). It is 7e-8 p.u. on IEEE 123.
    - every sum of a snapshot carries a relative error of at most 100·2n·k·u, u = 2⁻⁵³, added to β², γ²
      and subtracted from α; a and c themselves are rounded, which costs 32u·max(|a| + |c|).

    The bound is for Y as stored. The Kron reduction that made Y is itself rounded (IEEE 123: 2e-10 p.u.
    between two elimination orders, 6e-10 against extended precision).

    Parameters
    ----------
    y : complex (retained, retained) [p.u.], the reduced network.
    a, c : complex (retained,) diagonal terms of the reference point.
    vectors : k, how many of the smallest singular vectors are treated as a block; even, because singular
        values come in near pairs.
    """
    n = y.shape[0]
    k = min(vectors, 2 * n)
    matrix = real_form(y, a, c)
    left, sigma, right = np.linalg.svd(matrix)
    left, sigma, right = left[:, ::-1], sigma[::-1].copy(), right[::-1].T
    of_left, of_right = _orthogonality(left), _orthogonality(right)
    stretch = float(np.sqrt((1.0 + of_left) * (1.0 + of_right)) * (1.0 + 8.0 * _UNIT))
    rounding = 100.0 * 2 * n * k * _UNIT * stretch**2
    return Reference(
        a,
        c,
        sigma[:k],
        _Features(left[:, :k], right[:, :k]),
        beyond=float(sigma[k]) if k < 2 * n else np.inf,
        rounding=rounding,
        defects=(of_right * stretch**2 + rounding, of_left * stretch**2 + rounding),
        stretch=stretch,
        subtracted=_diagonality(left, matrix, right, sigma),
        threads=threads,
    )


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


def _smallest_of_two(alpha: FloatArray, beta: FloatArray, gamma: FloatArray, delta: FloatArray) -> FloatArray:
    """σ_min([[α, −β], [−γ, δ]]) where α, δ > 0 and αδ > βγ, else 0."""
    if np.all(np.isinf(delta)):
        return np.maximum(alpha, 0.0)
    # Without cancellation but in the determinant, whose rounding is subtracted.
    largest = 0.5 * (np.hypot(alpha + delta, beta - gamma) + np.hypot(alpha - delta, beta + gamma))
    determinant = alpha * delta - beta * gamma - 4.0 * _UNIT * np.abs(alpha * delta)
    valid = (alpha > 0.0) & (delta > 0.0) & (determinant > 0.0)
    return np.where(valid, determinant / np.where(largest > 0.0, largest, 1.0), 0.0)


def _diagonality(left: FloatArray, matrix: FloatArray, right: FloatArray, sigma: FloatArray) -> float:
    """Bound on ‖UᵀMX − Σ‖₂, the rounding of the products included."""
    n = len(matrix)
    found = float(np.linalg.norm(left.T @ matrix @ right - np.diag(sigma)))
    sizes = [float(np.linalg.norm(part)) for part in (left, matrix, right)]
    return found + 8.0 * n * _UNIT * sizes[0] * sizes[1] * sizes[2]
