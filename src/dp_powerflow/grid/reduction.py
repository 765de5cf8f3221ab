"""Kron reduction with the slack kept, without ever inverting a matrix of the whole network.

Notation: R retained, Z zero-injection, S slack nodes; K = R ∪ S are the nodes that are kept, in the
order (R, S). Y_ZZ is factorised once (sparse); everything else is sparse solves with that factor, so
a feeder of 10,000 nodes reduces in seconds. The dense reduced matrix is made only when asked for; what a
large feeder needs of it comes as products, solves, or columns of which a few hundred exist at a time.

For evidence, which is INTERNAL: its last bits may depend on the processor (SuperLU and NumPy call BLAS). No
released voltage is made here; those come from `powerflow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.norms import DENSE_UP_TO, norm_bound
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

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
        self._factor = _factorise(self.y_zz) if len(self.zero_injection) else None

    @property
    def n(self) -> int:
        """Number of retained nodes."""
        return len(self.retained)

    def solve_zz(self, right: ComplexArray, *, transpose: bool = False) -> ComplexArray:
        """Y_ZZ⁻¹·right, or Y_ZZ⁻ᵀ·right."""
        if self._factor is None:
            return np.zeros_like(right)
        return np.asarray(self._factor.solve(np.ascontiguousarray(right), trans="T" if transpose else "N"))

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
            unit = np.zeros((self.n, width), dtype=np.complex128)
            unit[start + np.arange(width), np.arange(width)] = 1.0
            total += np.abs(self.solve(unit)) @ weights[start : start + width]
        return total

    @cached_property
    def _position(self) -> IntArray:
        return np.asarray(np.searchsorted(self.feeder.energised, self.retained), dtype=np.int64)

    @cached_property
    def _whole_factor(self) -> Any:
        energised = self.feeder.energised
        return _factorise(sp.csc_array(sp.csr_array(self.feeder.y)[energised, :][:, energised]))

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
        """Voltages of every node of the feeder from those of the retained ones: (..., node)."""
        full = np.empty((*v.shape[:-1], len(self.feeder.nodes)), dtype=np.complex128)
        full[..., self.retained] = v
        full[..., self.zero_injection] = self.recover(v)
        full[..., self.feeder.slack] = self.feeder.v_slack
        return full

    def psi_at(self, nodes: IntArray, *, left: bool = False) -> ComplexArray:
        """Rows of Ψ_R = [I; −Y_ZZ⁻¹Y_ZK] (or of Ψ_L) at some nodes: complex (node, kept)."""
        rows = np.zeros((len(nodes), len(self.kept)), dtype=np.complex128)
        position = {int(k): p for p, k in enumerate(self.kept)}
        eliminated = {int(k): p for p, k in enumerate(self.zero_injection)}
        unit = np.zeros((len(self.zero_injection), len(nodes)), dtype=np.complex128)
        for row, node in enumerate(nodes):
            if int(node) in position:
                rows[row, position[int(node)]] = 1.0
            else:
                unit[eliminated[int(node)], row] = 1.0
        if unit.any():
            coupling = self.y_kz if left else self.y_zk.T
            rows -= (coupling @ self.solve_zz(unit, transpose=not left)).T
        return rows

    def line_change(self, line: Line, change: ComplexArray) -> LineChange:
        """Change of the reduced network when a line's primitive admittance becomes `primitive + change`.

        Y′ − Y = Ψ_Lᵀ·P·(I + ΔG)⁻¹Δ·Pᵀ·Ψ_R with P the line's nodes, Δ the change of its primitive and
        G = PᵀE_Z·Y_ZZ⁻¹·E_ZᵀP (Woodbury): exact for changes of any size, nothing is reduced again.
        """
        nodes = np.asarray(line.nodes, dtype=np.int64)
        impedance = self._zz_impedance(nodes)
        core: ComplexArray = np.asarray(
            np.linalg.solve(np.eye(len(nodes)) + change @ impedance, change), dtype=np.complex128
        )
        left = self.psi_at(nodes, left=True)[:, : self.n].T
        return LineChange(left, core, self.psi_at(nodes))

    def _zz_impedance(self, nodes: IntArray) -> ComplexArray:
        """PᵀE_Z·Y_ZZ⁻¹·E_ZᵀP: zero in the rows and columns of kept nodes."""
        eliminated = {int(k): p for p, k in enumerate(self.zero_injection)}
        at = [(row, eliminated[int(node)]) for row, node in enumerate(nodes) if int(node) in eliminated]
        impedance = np.zeros((len(nodes), len(nodes)), dtype=np.complex128)
        if at:
            rows = [row for row, _ in at]
            where = [z for _, z in at]
            unit = np.zeros((len(self.zero_injection), len(at)), dtype=np.complex128)
            unit[where, range(len(at))] = 1.0
            impedance[np.ix_(rows, rows)] = self.solve_zz(unit)[where, :]
        return impedance


def _factorise(matrix: sp.csc_array) -> Any:
    try:
        return splu(sp.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.1)
    except RuntimeError:
        raise FeederError(
            "the network, or that of its zero-injection nodes, is singular, as with a loop of zero impedance "
            "or a part without any path to ground; give every element an impedance and every winding a "
            "reference",
            code="feeder-zero-impedance",
        ) from None
