"""Kron reduction with the slack kept, without ever inverting a matrix of the whole network.

Notation: R retained, Z zero-injection, S slack nodes; K = R ∪ S are the nodes that are kept, in the
order (R, S). Y_ZZ is factorised once (sparse); everything else is sparse solves with that factor, so
a feeder of 10,000 nodes reduces in seconds. The dense reduced matrix is made only when asked for; what a
large feeder needs of it comes as products, solves, or columns of which a few hundred exist at a time.

For evidence, which is INTERNAL: its last bits may depend on the processor (SuperLU and NumPy call BLAS). No
released voltage is made here; those come from `powerflow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.refusals import refusal
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# Spectral norms of operators known only by what they do to a vector; κ_Kron, which is made of them.
#
# Lanczos approaches a norm from below, so its value is an estimate, not a bound. `norm_bound` adds to it
# what is proved of a random start. Let H = AᴴA on C^m with largest eigenvalue λ, b uniform on the complex
# sphere, θ the largest Ritz value after k steps, T the Chebyshev polynomial of degree k − 1 and q =
# T((1+ε)/(1−ε)). The Rayleigh quotient of T(2H/((1−ε)λ) − 1)·b is at most θ. If θ < (1−ε)λ, then with b₁
# the part of b along the largest eigenvector
#
# |b₁|²·q²·ελ < Σ_{λ_i < (1−ε)λ} |b_i|²·((1−ε)λ − λ_i) ≤ (1−ε)λ,
#
# because |T| ≤ 1 on [−1, 1]; and |b₁|² < t has probability 1 − (1−t)^{m−1} ≤ m·t. Hence
#
# Pr(‖A‖² > θ/(1−ε)) ≤ m·(1−ε)/(ε·q²),
#
# whatever the singular values. A certificate charges that probability to its δ.
#
# κ_Kron says how far a change of the full network moves the reduced one, as printed and exact.
#
# For two networks, Y′ − Y = Ψ_Lᵀ·ΔY_full·Ψ′_R over the kept columns, an identity (paper correction 2), so
# ‖Y′ − Y‖_F ≤ ‖Ψ_L‖₂·‖Ψ′_R‖₂·‖ΔY_full‖_F. Ψ′_R belongs to the *changed* network. It is bounded for a
# ΔY_full that is supported on the feeder's lines, ΔY = PΔYP, where P projects on what lines can move: on a
# part of the network joined by lines without shunts, voltages of zero mean. With G = P·E_Z·Y_ZZ⁻¹·E_Zᵀ·P, g
# = ‖G‖, h = ‖Y_ZZ⁻¹·E_Zᵀ·P‖ and ‖ΔY‖ ≤ r < 1/g,
#
# ‖Ψ′_R‖ ≤ ‖Ψ_R‖·(1 + r·h/(1 − r·g)),
#
# from Y′_ZZ⁻¹E_ZᵀP = Y_ZZ⁻¹E_ZᵀP·(I + ΔY·G)⁻¹. Nothing is claimed beyond that radius, nor for a ΔY that
# reaches what no line reaches (such as the common mode of a floating delta winding).


Map = Callable[[ComplexArray], ComplexArray]
Solve = Callable[[ComplexArray, str], ComplexArray]
"""x and "N", "T" or "H" ↦ A⁻¹·x, A⁻ᵀ·x or A⁻ᴴ·x."""

NORM_FAILURE = 1e-12
"""Probability over its own start vector with which `norm_bound` may be too small."""
DENSE_UP_TO = 300
"""Retained nodes of a network up to which matrices are written out; the one switch to sparse methods."""
_STEPS = 160
_TWICE_BELOW = 0.7
"""A vector that orthogonalisation shortens by more is orthogonalised again (twice is enough)."""
_SYMMETRIC = 4.0 * float(np.finfo(np.float64).eps)
_ROUNDING = 1.0 + 1e-9
"""Raises a bound by more than rounding in the iteration can lower it."""


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
    apply, adjoint : x ↦ A·x and y ↦ Aᴴ·y.
    shape : (rows, columns) of A.
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
    # The start is independent of the network; the proof asks nothing more of a fixed seed.
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
    return taken, float(eigvalsh_tridiagonal(diagonal, off[: taken - 1])[-1])


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


_SHUNT_ABOVE = 1e-12
_NORMS = 4
"""Norms that enter the bound: ‖Ψ_L‖, ‖Ψ_R‖, h and g."""


@dataclass(frozen=True)
class Amplification:
    """κ_Kron of one network.

    Attributes
    ----------
    paper : Eq. kappa_kron_def as printed, over retained and slack nodes together.
    exact : ‖Ψ_L‖₂·‖Ψ_R‖₂, the limit for vanishing changes of lines.
    growth : h above [p.u. impedance].
    reach : g above [p.u. impedance]; changes of lines are covered up to a norm of 1/g.
    failure : probability, over the start vectors of Lanczos, that one of the last three is too small.
    """

    paper: float
    exact: float
    growth: float
    reach: float
    failure: float = 0.0

    @property
    def largest_radius(self) -> float:
        """Radius of ‖ΔY_full‖ that no bound reaches [p.u.]."""
        return float("inf") if self.reach == 0.0 else 1.0 / self.reach

    def bound(self, radius: float) -> float:
        """κ for every line-supported ΔY_full with ‖ΔY_full‖_F ≤ radius [p.u.]."""
        if not 0.0 <= radius < self.largest_radius:
            raise refusal("feeder.radius", radius=radius, largest=self.largest_radius)
        return self.exact * (1.0 + radius * self.growth / (1.0 - radius * self.reach))


def psi_norms(solve: Solve, y_zk: sp.csc_array, y_kz: sp.csc_array, y: sp.csc_array) -> tuple[float, float]:
    """Upper bounds on ‖Ψ_R‖₂ and ‖Ψ_L‖₂, a `norm_bound` each, one where Y is symmetric.

    Parameters
    ----------
    solve : of Y_ZZ.
    """

    def norm(apply: Map, adjoint: Map) -> float:
        return float(np.hypot(1.0, norm_bound(apply, adjoint, y_zk.shape)))  # ΨᴴΨ = I + ΦᴴΦ

    right = norm(lambda x: solve(y_zk @ x, "N"), lambda x: y_zk.conj().T @ solve(x, "H"))
    if is_symmetric(y):
        return right, right
    left = norm(lambda x: solve(y_kz.T @ x, "T"), lambda x: y_kz.conj() @ np.conj(solve(np.conj(x), "N")))
    return right, left


def kron_amplification(network: Network) -> Amplification:
    """κ_Kron both ways; upper bounds (`norm_bound`)."""
    solve, y_kz, n_z = network.solve_zz, network.y_kz, len(network.zero_injection)
    right, left = psi_norms(solve, network.y_zk, y_kz, network.feeder.y)
    coupling = norm_bound(lambda x: y_kz @ x, lambda x: y_kz.conj().T @ x, y_kz.shape)
    product = coupling * norm_bound(solve, lambda x: solve(x, "H"), (n_z, n_z))
    project = LineProjector(network.feeder, network.zero_injection)
    growth = norm_bound(
        lambda x: solve(project(x)), lambda x: project.adjoint(solve(x, "H")), (n_z, project.size)
    )
    reach = norm_bound(
        lambda x: project.adjoint(solve(project(x))),
        lambda x: project.adjoint(solve(project(x), "H")),
        (project.size, project.size),
    )
    failure = _NORMS * NORM_FAILURE if project.size > DENSE_UP_TO else 0.0
    return Amplification((1.0 + product) ** 2, left * right, growth, reach, failure)


class LineProjector:
    """E_Zᵀ·P: from vectors of all nodes that lines can move, to the zero-injection nodes."""

    def __init__(self, feeder: Feeder, zero_injection: IntArray) -> None:
        touched, component, free = _line_components(feeder)
        self.size = len(feeder.nodes)
        self._rows = zero_injection
        self._touched = touched
        members = np.flatnonzero(touched & free[component])
        count = np.bincount(component[members], minlength=len(free))[component[members]]
        weight = 1.0 / np.sqrt(count)
        self._means = sp.csr_array(
            (weight, (component[members], members)), shape=(len(free), self.size), dtype=np.float64
        )

    def __call__(self, x: ComplexArray) -> ComplexArray:
        return self._project(x)[self._rows]

    def adjoint(self, z: ComplexArray) -> ComplexArray:
        """Pᵀ·E_Z."""
        x = np.zeros((self.size, *z.shape[1:]), dtype=np.complex128)
        x[self._rows] = z
        return self._project(x)

    def _project(self, x: ComplexArray) -> ComplexArray:
        touched = self._touched if x.ndim == 1 else self._touched[:, None]
        return np.asarray(np.where(touched, x - self._means.T @ (self._means @ x), 0.0))


def _line_components(feeder: Feeder) -> tuple[BoolArray, IntArray, BoolArray]:
    """Which nodes lines touch, the part of the network each belongs to, whether a part has no shunt."""
    size = len(feeder.nodes)
    touched = np.zeros(size, dtype=bool)
    pairs: list[tuple[int, int]] = []
    grounded: list[int] = []
    for line in feeder.lines:
        touched[list(line.nodes)] = True
        if _has_shunt(line):
            grounded.extend(line.nodes)
        half = len(line.nodes) // 2
        pairs.extend(zip(line.nodes[:half], line.nodes[half : 2 * half], strict=True))
    i = np.array([pair[0] for pair in pairs], dtype=np.int64)
    j = np.array([pair[1] for pair in pairs], dtype=np.int64)
    graph = sp.coo_array((np.ones(len(pairs)), (i, j)), shape=(size, size))
    count, component = connected_components(graph, directed=False)
    free = np.ones(count, dtype=bool)
    free[component[grounded]] = False
    return touched, component.astype(np.int64), free


def _has_shunt(line: Line) -> bool:
    """Whether the line draws current when both its ends are at the same voltages."""
    m = len(line.nodes)
    if m % 2:
        return True
    same = np.vstack([np.eye(m // 2), np.eye(m // 2)])
    drawn = np.abs(line.primitive @ same).max(initial=0.0)
    return bool(drawn > _SHUNT_ABOVE * np.abs(line.primitive).max(initial=0.0))


def weighted_impedance_norm(network: Network, weights: FloatArray) -> float:
    """Upper bound on ‖Y⁻¹·diag(weights)‖₂ [p.u.], one `norm_bound`."""
    n = network.n
    return norm_bound(
        lambda x: network.solve(weights * x), lambda x: weights * network.solve(x, adjoint=True), (n, n)
    )


NONZERO_ABOVE = 1e-9
"""Share of the largest entry of Y below which an entry counts as rounding."""
_COLUMNS_AT_A_TIME = 256


@dataclass(frozen=True, eq=False)
class LineChange:
    """What a change of one line does to the reduced network, as a low-rank product.

    `left @ core @ right` is Y′ − Y of the reduced network over columns K = (R, S); its rank is at
    most the number of conductors of the line's two ends.

    Attributes
    ----------
    left : complex (retained, m)
    core : complex (m, m)
    right : complex (m, retained + slack)
    """

    left: ComplexArray
    core: ComplexArray
    right: ComplexArray

    def change_of_y(self) -> ComplexArray:
        """Y′ − Y: complex (retained, retained)."""
        n = self.left.shape[0]
        return np.asarray(self.left @ (self.core @ self.right[:, :n]))

    def change_of_b(self, v_slack: ComplexArray) -> ComplexArray:
        """b′ − b: complex (retained,)."""
        n = self.left.shape[0]
        return np.asarray(self.left @ (self.core @ (self.right[:, n:] @ v_slack)))


@dataclass(frozen=True, eq=False)
class RowFacts:
    """Rows of the reduced Y without Y itself.

    Attributes
    ----------
    abs_sum : (retained,) Σ_j|Y_kj| [p.u.].
    diagonal : complex (retained,) Y_kk [p.u.].
    d_max : entries above `NONZERO_ABOVE` of the largest, in the row that has most.
    """

    abs_sum: FloatArray
    diagonal: ComplexArray
    d_max: int


class Network:
    """The reduced network: Y and b of the paper, and the way back to the nodes left out.

    Y v_R + b are the currents injected at the retained nodes; with the slack kept through the
    reduction b = Y_red[R, S]·v_slack (Eq. b_def, corrected: paper correction 1).
    """

    def __init__(self, feeder: Feeder, *, dense_up_to: int = DENSE_UP_TO) -> None:
        self.feeder = feeder
        self.large = len(feeder.retained) > dense_up_to
        self.retained: IntArray = feeder.retained
        self.zero_injection: IntArray = feeder.zero_injection
        self.kept: IntArray = np.concatenate([feeder.retained, feeder.slack])
        rows = sp.csr_array(feeder.y)
        self.y_kk = sp.csc_array(rows[self.kept, :][:, self.kept])
        self.y_kz = sp.csc_array(rows[self.kept, :][:, self.zero_injection])
        self.y_zk = sp.csc_array(rows[self.zero_injection, :][:, self.kept])
        self.y_zz = sp.csc_array(rows[self.zero_injection, :][:, self.zero_injection])
        self._factor = factorised(self.y_zz) if len(self.zero_injection) else None

    @property
    def n(self) -> int:
        """Number of retained nodes."""
        return len(self.retained)

    def solve_zz(self, right: ComplexArray, trans: str = "N") -> ComplexArray:
        """Y_ZZ⁻¹·right; with "T" or "H" by its transpose or adjoint."""
        if self._factor is None:
            return np.zeros_like(right)
        return np.asarray(self._factor.solve(np.ascontiguousarray(right), trans=trans))

    @cached_property
    def y_reduced(self) -> ComplexArray:
        """Complex (retained, retained + slack): Y_KK − Y_KZ Y_ZZ⁻¹ Y_ZK, rows R (Eq. Yred_def)."""
        return np.concatenate([block for _, block in self._reduced_columns(len(self.kept))], axis=1)

    def _reduced_columns(self, count: int) -> Iterator[tuple[slice, ComplexArray]]:
        """The first columns of `y_reduced`, some at a time."""
        inner, coupling = self.y_kk[: self.n, :], self.y_kz[: self.n, :]
        for start in range(0, count, _COLUMNS_AT_A_TIME):
            columns = slice(start, min(count, start + _COLUMNS_AT_A_TIME))
            through = self.solve_zz(self.y_zk[:, columns].toarray())
            yield columns, np.asarray(inner[:, columns].toarray() - coupling @ through)

    @property
    def y(self) -> ComplexArray:
        """Y: complex (retained, retained), dense."""
        return self.y_reduced[:, : self.n]

    @cached_property
    def b(self) -> ComplexArray:
        """b: complex (retained,), the current the slack pushes into the retained nodes, negative."""
        n = self.n
        at_slack = np.zeros(len(self.kept), dtype=np.complex128)
        at_slack[n:] = self.feeder.v_slack
        through = self.solve_zz(self.y_zk @ at_slack)
        return np.asarray((self.y_kk @ at_slack - self.y_kz @ through)[:n])

    @cached_property
    def rows(self) -> RowFacts:
        """Sums, diagonal and fill of the rows of Y, column by column."""
        abs_sum, diagonal, largest = np.zeros(self.n), np.empty(self.n, dtype=np.complex128), 0.0
        for columns, block in self._reduced_columns(self.n):
            magnitude = np.abs(block)
            abs_sum += magnitude.sum(axis=1)
            diagonal[columns] = np.diagonal(block, offset=-columns.start)
            largest = max(largest, float(magnitude.max()))
        filled = np.zeros(self.n, dtype=np.int64)
        for _, block in self._reduced_columns(self.n):
            filled += np.count_nonzero(np.abs(block) > NONZERO_ABOVE * largest, axis=1)
        return RowFacts(abs_sum, diagonal, int(filled.max()))

    def apply(self, x: ComplexArray) -> ComplexArray:
        """Y·x for x (retained, ...) [p.u.]."""
        if not self.large:
            return np.asarray(self.y @ x)
        n = self.n
        through = self.solve_zz(np.asarray(self.y_zk[:, :n] @ x))
        return np.asarray(self.y_kk[:n, :n] @ x - self.y_kz[:n, :] @ through)

    def solve(self, x: ComplexArray, *, adjoint: bool = False) -> ComplexArray:
        """Y⁻¹·x or Y⁻ᴴ·x for x (retained, ...): the retained block of the inverse of the full network."""
        energised, position = self.feeder.energised, self._position
        full = np.zeros((len(energised), *x.shape[1:]), dtype=np.complex128)
        full[position] = x
        return np.asarray(self._whole_factor.solve(full, trans="H" if adjoint else "N")[position])

    @cached_property
    def impedance_norm(self) -> float:
        """Upper bound on ‖Y⁻¹‖₂ = 1/σ_min(Y) [p.u.], one `norm_bound`."""
        return norm_bound(self.solve, lambda x: self.solve(x, adjoint=True), (self.n, self.n))

    def impedance_sums(self, weights: FloatArray) -> FloatArray:
        """Σ_j|Z_kj|·weights_j with Z = Y⁻¹: (retained,), column by column."""
        total = np.zeros(self.n)
        for start in range(0, self.n, _COLUMNS_AT_A_TIME):
            width = min(_COLUMNS_AT_A_TIME, self.n - start)
            unit = np.eye(self.n, width, -start, dtype=np.complex128)
            total += np.abs(self.solve(unit)) @ weights[start : start + width]
        return total

    @cached_property
    def _position(self) -> IntArray:
        return np.asarray(np.searchsorted(self.feeder.energised, self.retained), dtype=np.int64)

    @cached_property
    def _whole_factor(self) -> Any:
        energised = self.feeder.energised
        return factorised(sp.csc_array(sp.csr_array(self.feeder.y)[energised, :][:, energised]))

    def recover(self, v: ComplexArray) -> ComplexArray:
        """Voltages of the zero-injection nodes, v_Z = Φ·(v_R, v_slack) (Eq. vZ_recovery).

        Parameters
        ----------
        v : complex (..., retained) [p.u.]
        """
        flat = np.atleast_2d(v)
        slack = np.broadcast_to(self.feeder.v_slack, (flat.shape[0], len(self.feeder.slack)))
        kept = np.concatenate([flat, slack], axis=1)
        recovered = -self.solve_zz(np.asarray(self.y_zk @ kept.T)).T
        return np.asarray(recovered.reshape(*v.shape[:-1], len(self.zero_injection)))

    def all_nodes(self, v: ComplexArray) -> ComplexArray:
        """Voltages of every node of the feeder, from the retained ones: (..., node)."""
        full = np.empty((*v.shape[:-1], len(self.feeder.nodes)), dtype=np.complex128)
        full[..., self.retained] = v
        full[..., self.zero_injection] = self.recover(v)
        full[..., self.feeder.slack] = self.feeder.v_slack
        return full

    def psi_at(self, nodes: IntArray, *, left: bool = False) -> ComplexArray:
        """Rows of Ψ_R = [I; −Y_ZZ⁻¹Y_ZK] (or of Ψ_L) at some nodes: complex (node, kept)."""
        rows = np.equal.outer(nodes, self.kept).astype(np.complex128)
        unit = np.equal.outer(self.zero_injection, nodes).astype(np.complex128)
        if unit.any():
            coupling = self.y_kz if left else self.y_zk.T
            rows -= (coupling @ self.solve_zz(unit, "N" if left else "T")).T
        return rows

    def line_change(self, line: Line, change: ComplexArray) -> LineChange:
        """Change of the reduced network when a line's primitive admittance becomes `primitive + change`.

        Y′ − Y = Ψ_Lᵀ·P·(I + ΔG)⁻¹Δ·Pᵀ·Ψ_R with P the line's nodes, Δ the change of its primitive and
        G = PᵀE_Z·Y_ZZ⁻¹·E_ZᵀP (Woodbury): exact for changes of any size, nothing is reduced again.
        """
        nodes = np.asarray(line.nodes, dtype=np.int64)
        unit = np.equal.outer(self.zero_injection, nodes).astype(np.complex128)
        impedance = unit.T @ self.solve_zz(unit)
        core = np.asarray(np.linalg.solve(np.eye(len(nodes)) + change @ impedance, change), np.complex128)
        return LineChange(self.psi_at(nodes, left=True)[:, : self.n].T, core, self.psi_at(nodes))


def factorised(matrix: sp.csc_array | sp.csr_array) -> Any:
    """Sparse LU, with a sentence where there is none."""
    try:
        return splu(sp.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.1)
    except RuntimeError:
        raise refusal("feeder-zero-impedance.singular") from None
