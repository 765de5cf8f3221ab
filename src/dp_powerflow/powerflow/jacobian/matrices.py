"""Jacobians of the power flow on the reduced network: M̃, J, DG, with and without volt-var.

Everything rests on one real-linear map. With s = v∘conj(Yv + b) and a generation s^g(|v|),

    δ(s − s^g) = v∘conj(L δv),    L x = Y x + a∘x + c∘conj(x),
    c = conj(s/v²) − w∘v,  a = −w∘conj(v),  w = conj(g)∘v/(2|v|³),  g = ds^g/d|v|,

so M̃ of Eq. Mtilde_def is the complexification of L (rows exchanged) and has its singular values, and
|det J| = Π|v_k|²·|det M̃|. Functions take leading batch axes and are dense, for small networks and as the
reference of `JacobianBatch`. See docs/explanation/jacobian.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.norms import is_symmetric, norm_bound
from dp_powerflow.units import ComplexArray, FloatArray, IntArray


def injection(y: ComplexArray, b: ComplexArray, v: ComplexArray) -> ComplexArray:
    """s = v∘conj(Yv + b), complex (..., retained) [p.u.] (Eq. powerflow)."""
    return np.asarray(v * np.conj(v @ y.T + b))


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


def mtilde(
    y: ComplexArray, v: ComplexArray, s: ComplexArray, generation_slope: ComplexArray | None = None
) -> ComplexArray:
    """M̃ (Eq. Mtilde_def), or with volt-var M̃_eff = M̃ − D(v)⁻¹J_Γh: complex (..., 2n, 2n)."""
    a, c = diagonal_terms(v, s, generation_slope)
    n = y.shape[0]
    full = np.zeros((*v.shape[:-1], 2 * n, 2 * n), dtype=np.complex128)
    k = np.arange(n)
    full[..., :n, n:] = np.conj(y)
    full[..., n:, :n] = y
    full[..., k, n + k] += np.conj(a)
    full[..., n + k, k] += a
    full[..., k, k] = np.conj(c)
    full[..., n + k, n + k] = c
    return full


def real_form(y: ComplexArray, a: ComplexArray, c: ComplexArray) -> FloatArray:
    """L as a real matrix on (Re x, Im x): (..., 2n, 2n), with the singular values of M̃."""
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


def jacobian_real(
    y: ComplexArray, b: ComplexArray, v: ComplexArray, generation_slope: ComplexArray | None = None
) -> FloatArray:
    """J of F̃ on (Re v, Im v) → (Re s, Im s) (Eq. real_rep), or J_eff of F̃ − s^g: (..., 2n, 2n)."""
    a, c = diagonal_terms(v, injection(y, b, v), generation_slope)
    return _times_voltage(v, real_form(y, a, c))


def dg(
    y: ComplexArray,
    b: ComplexArray,
    v: ComplexArray,
    tan_theta: FloatArray,
    generation_slope: ComplexArray | None = None,
) -> FloatArray:
    """DG = −J_eff⁻¹·R, R = (I; tan Θ): (..., 2n, n), ∂(Re v, Im v)/∂ active load (Eq. DG_ift).

    Parameters
    ----------
    tan_theta : (retained,) reactive over active power of every load.
    """
    right = np.concatenate([np.eye(len(tan_theta)), np.diag(tan_theta)])
    jacobian = jacobian_real(y, b, v, generation_slope)
    return np.asarray(-np.linalg.solve(jacobian, np.broadcast_to(right, (*v.shape[:-1], *right.shape))))


def log_volume(derivative: FloatArray) -> FloatArray:
    """½·log det(DGᵀDG): (...,). The density of the voltages carries its *negative* (paper correction 7)."""
    sign, value = np.linalg.slogdet(np.swapaxes(derivative, -1, -2) @ derivative)
    return np.asarray(np.where(sign > 0.0, 0.5 * value, -np.inf))


def _times_voltage(v: ComplexArray, matrix: FloatArray) -> FloatArray:
    """Real form of x ↦ v∘conj(matrix·x)."""
    n = v.shape[-1]
    real, imag = matrix[..., :n, :], matrix[..., n:, :]
    re, im = v.real[..., :, None], v.imag[..., :, None]
    return np.concatenate([re * real + im * imag, im * real - re * imag], axis=-2)


_UNIT = float(np.finfo(np.float64).eps) / 2.0
_MEASURED = 16.0
"""Residuals of solves are measured on some vectors; the worst is raised by this for all others."""


class Elimination:
    """What L has in common at all snapshots: Y on all nodes, and its zero-injection part factorised.

    Parameters
    ----------
    y : sparse complex (node, node) [p.u.], all nodes but the slack.
    retained : (retained,) indices of the retained nodes.
    """

    def __init__(self, y: sp.csc_array, retained: IntArray) -> None:
        self.y = sp.csr_array(y, dtype=np.complex128)
        self.adjoint = sp.csr_array(self.y.conj().T)
        self.sizes = abs(self.y)
        self.retained = retained
        self.others = np.setdiff1d(np.arange(y.shape[0]), retained)
        self._y_zr = sp.csr_array(self.y[self.others, :][:, retained])
        self._y_rz = sp.csr_array(self.y[retained, :][:, self.others])
        self._factor = factorised(self.y[self.others, :][:, self.others]) if len(self.others) else None

    @classmethod
    def from_feeder(cls, feeder: Feeder) -> Elimination:
        """Of a feeder, its retained nodes in the order of `feeder.retained`."""
        energised = feeder.energised
        y = sp.csr_array(feeder.y)[energised, :][:, energised]
        return cls(sp.csc_array(y), np.searchsorted(energised, feeder.retained))

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
    def psi(self) -> float:
        """Upper bound on ‖Ψ_L‖₂ and ‖Ψ_R‖₂ (two `norm_bound`s)."""
        factor, n_z = self._factor, len(self.others)
        if factor is None:
            return 1.0
        right = norm_bound(
            lambda x: factor.solve(self._y_zr @ x),
            lambda x: self._y_zr.conj().T @ factor.solve(np.asarray(x), trans="H"),
            (n_z, self.n),
        )
        if is_symmetric(self.y):
            return float(np.hypot(1.0, right))
        left = norm_bound(
            lambda x: factor.solve(self._y_rz.T @ x, trans="T"),
            lambda x: self._y_rz.conj() @ np.conj(factor.solve(np.conj(x))),
            (n_z, self.n),
        )
        return float(np.hypot(1.0, max(left, right)))

    @cached_property
    def log_abs_det_outside(self) -> float:
        """log|det| of the real form of Y on the nodes that are not retained."""
        if self._factor is None:
            return 0.0
        return 2.0 * float(np.sum(np.log(np.abs(self._factor.U.diagonal()))))


@dataclass(frozen=True, eq=False)
class SmallestVectors:
    """The k smallest singular triplets of L_R, and bounds on what is not known of them and of the rest.

    Attributes
    ----------
    left, right : (2·retained, k) U₁ and X₁, orthonormal up to `orthogonality`.
    sigma : (k,) ascending.
    error : bound on ‖L X₁ − U₁Σ₁‖ and ‖LᵀU₁ − X₁Σ₁‖ [p.u.].
    rest : bound on ‖X₂ᵀ L⁻¹ U₂‖ of the orthogonal complements [p.u. impedance].
    """

    left: FloatArray
    right: FloatArray
    sigma: FloatArray
    orthogonality: float
    error: float
    rest: float


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

    def smallest(self, k: int) -> SmallestVectors:
        """The k smallest singular triplets with bounds on their errors."""
        squares, left = self._largest(k)
        sigma = 1.0 / np.sqrt(squares[::-1])
        left, _ = np.linalg.qr(left[:, ::-1])
        right, upper = np.linalg.qr(self.inverse(left) * sigma)
        right = right * np.where(np.diagonal(upper) < 0.0, -1.0, 1.0)
        orthogonality = max(_orthogonality(left), _orthogonality(right))
        error = max(self._error(right, left, sigma), self._error(left, right, sigma, adjoint=True))
        return SmallestVectors(
            left,
            right,
            sigma,
            orthogonality,
            error * (1.0 + orthogonality) + 2.0 * orthogonality * float(sigma[-1]),
            self._rest(left, right, float(sigma[0])),
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


def factorised(matrix: sp.csr_array) -> Any:
    """Sparse LU, with a sentence where there is none."""
    try:
        return splu(sp.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.1)
    except RuntimeError:
        raise PowerFlowError(
            "the Jacobian of the network is singular; leave out parts that no source feeds"
        ) from None


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
