"""‖M̃⁻¹‖ = 1/σ_min and log|det M̃| of many snapshots of one network.

The matrix of a snapshot is factorised on the sparse network, not on the dense reduced one; the Lanczos
vectors are masked to the retained nodes, where the inverse of the two is the same.
docs/explanation/power-flow.md states the method; `matrices.py` has the proved lower bound. For evidence,
which is INTERNAL: last bits may depend on the processor, since start vectors and references come from BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, eigsh, splu

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import DENSE_UP_TO, NORM_FAILURE
from dp_powerflow.powerflow.batch import checked_threads, in_threads
from dp_powerflow.powerflow.jacobian.kernels import LANES, BlockPlan, analyse, make_plan
from dp_powerflow.powerflow.jacobian.matrices import (
    Elimination,
    Reference,
    SigmaBound,
    SparseJacobian,
    SparseSigmaBound,
    diagonal_terms,
    real_form,
    refine,
)
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

LANCZOS_STEPS = 8
TOLERANCE = 1e-7
_MORE_STEPS = (40, 160)
_TASK = 64 * LANES
"""Snapshots per task of a thread."""
_LARGEST_DEFECT = 1e-7
_ADMIXTURE = 0.05
_LARGE_REFERENCES = 4
"""References at most that one call makes on a large network, where each costs seconds."""


@dataclass(frozen=True, eq=False)
class JacobianSummary:
    """What the kernels give for every snapshot, NaN where its voltage is zero or any figure NaN.

    Attributes
    ----------
    sigma_min : (snapshot,) smallest singular value of M̃_eff [p.u.].
    log_abs_det : (snapshot,) log|det M̃_eff|.
    """

    sigma_min: FloatArray
    log_abs_det: FloatArray


class JacobianBatch:
    """M̃_eff of one network at many snapshots.

    Parameters
    ----------
    y : sparse complex (node, node) [p.u.], all nodes but the slack.
    retained : (retained,) indices of the retained nodes in it, the order of every array below.
    threads : None for one per core.
    dense_up_to : most retained nodes for which anything dense is made.

    Methods take `v` and `s`, complex (snapshot, retained): voltage and total injection, generation
    included [p.u.], and `generation_slope` = ds^g/d|v| of the same shape where volt-var is active.
    """

    def __init__(
        self,
        y: sp.csc_array,
        retained: IntArray,
        *,
        threads: int | None = None,
        dense_up_to: int = DENSE_UP_TO,
    ) -> None:
        self.retained = np.asarray(retained, dtype=np.int64)
        if len(self.retained) == 0:
            raise PowerFlowError("the network has no retained node; give it a load or generation")
        self.threads = checked_threads(threads)
        self.large = len(self.retained) > dense_up_to
        self._y = sp.csc_array(y, dtype=np.complex128)
        self.plan: BlockPlan = make_plan(self._y, self.retained)

    @classmethod
    def from_feeder(
        cls, feeder: Feeder, *, threads: int | None = None, dense_up_to: int = DENSE_UP_TO
    ) -> JacobianBatch:
        """Of a feeder, its retained nodes in the order of `feeder.retained`."""
        energised = feeder.energised
        rows = sp.csr_array(feeder.y)
        return cls(
            sp.csc_array(rows[energised, :][:, energised]),
            np.searchsorted(energised, feeder.retained),
            threads=threads,
            dense_up_to=dense_up_to,
        )

    @property
    def n(self) -> int:
        """Number of retained nodes."""
        return len(self.retained)

    def sigma_min(
        self, v: ComplexArray, s: ComplexArray, generation_slope: ComplexArray | None = None
    ) -> FloatArray:
        """Smallest singular value of M̃_eff: (snapshot,) [p.u.]."""
        return self.summary(v, s, generation_slope).sigma_min

    def log_abs_det(
        self, v: ComplexArray, s: ComplexArray, generation_slope: ComplexArray | None = None
    ) -> FloatArray:
        """log|det M̃_eff|: (snapshot,)."""
        arrays = self._checked(v, s, generation_slope)
        # One step, for its check of the factors.
        return self._finish(arrays, self._run(arrays, 1), np.inf).log_abs_det

    def summary(
        self,
        v: ComplexArray,
        s: ComplexArray,
        generation_slope: ComplexArray | None = None,
        *,
        tolerance: float = TOLERANCE,
    ) -> JacobianSummary:
        """σ_min and log|det M̃_eff| from one factorisation per snapshot.

        Parameters
        ----------
        tolerance : bound on the relative error that a Lanczos residual must certify; snapshots that miss
            it get more steps, and a factorisation with pivoting if that or the factorisation is not enough.
        """
        arrays = self._checked(v, s, generation_slope)
        out = self._run(arrays, LANCZOS_STEPS)
        for steps in _MORE_STEPS:
            again = np.flatnonzero(out[1] > tolerance)
            if len(again) == 0:
                break
            some = tuple(array[again] if len(array) else array for array in arrays)
            out[:3, again] = self._run(some, steps)[:3]
        return self._finish(arrays, out, tolerance)

    def sigma_min_lower_bound(
        self,
        v: ComplexArray,
        s: ComplexArray,
        generation_slope: ComplexArray | None = None,
        *,
        gap: float | None = None,
        y_error: float = 0.0,
        references: list[Reference] | None = None,
    ) -> FloatArray:
        """Proved lower bound on σ_min of every snapshot: (snapshot,) [p.u.], NaN for NaN.

        Parameters
        ----------
        gap : raise the lowest bounds until they are within this share of the smallest σ_min of the batch,
            for whoever needs its infimum; None leaves the bounds of one reference, the mean.
        y_error : bound on the rounding error ‖Y − Y_exact‖₂ of the reduction [p.u.].
        references : of earlier calls for this network, tried before new ones are made; new ones are appended.
        """
        known = [] if references is None else references
        arrays = self._checked(v, s, generation_slope)
        finite = _usable(arrays)
        if not finite.any():
            return np.full(len(finite), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            a, c = diagonal_terms(arrays[0], arrays[1], arrays[2] if generation_slope is not None else None)
        a[~finite] = c[~finite] = np.nan

        def make(at_a: ComplexArray, at_c: ComplexArray) -> Reference:
            known.append(self._reference(at_a, at_c, y_error))
            return known[-1]

        if not known:
            make(a[finite].mean(axis=0), c[finite].mean(axis=0))
        bound = known[0](a, c)
        for reference in known[1:]:
            bound = np.fmax(bound, reference(a, c))
        if gap is None:
            return bound

        share = 1.0 - gap

        def enough(k: int) -> float:
            one = None if generation_slope is None else arrays[2][k : k + 1]
            return share * float(self.sigma_min(arrays[0][k : k + 1], arrays[1][k : k + 1], one)[0])

        return refine(make, a, c, bound, enough, references=_LARGE_REFERENCES if self.large else 100)

    def failure(self, references: int) -> float:
        """Probability that bounds from so many references rest on a norm that is too small; 0 if dense."""
        return SparseSigmaBound.NORMS * references * NORM_FAILURE if self.large else 0.0

    def _reference(self, a: ComplexArray, c: ComplexArray, y_error: float) -> Reference:
        if self.large:
            return SparseSigmaBound(self.elimination, a, c, y_error=y_error, threads=self.threads)
        return SigmaBound(self.y_reduced, a, c, y_error=y_error, threads=self.threads)

    @cached_property
    def elimination(self) -> Elimination:
        """The network with its zero-injection part factorised."""
        return Elimination(self._y, self.retained)

    @cached_property
    def y_reduced(self) -> ComplexArray:
        """Y of the reduced network: complex (retained, retained), dense."""
        others = np.setdiff1d(np.arange(self._y.shape[0]), self.retained)
        rows = sp.csr_array(self._y)
        y = rows[self.retained, :][:, self.retained].toarray()
        if len(others):
            inner = splu(sp.csc_matrix(rows[others, :][:, others]), permc_spec="MMD_AT_PLUS_A")
            y -= rows[self.retained, :][:, others] @ inner.solve(rows[others, :][:, self.retained].toarray())
        return np.asarray(y)

    def _checked(
        self, v: ComplexArray, s: ComplexArray, slope: ComplexArray | None
    ) -> tuple[ComplexArray, ...]:
        arrays = [np.ascontiguousarray(array, dtype=np.complex128) for array in (v, s)]
        arrays.append(
            np.empty((0, self.n), dtype=np.complex128)
            if slope is None
            else np.ascontiguousarray(slope, dtype=np.complex128)
        )
        for name, array in zip(("v", "s", "generation_slope"), arrays, strict=True):
            if array.ndim != 2 or array.shape[1] != self.n:
                raise PowerFlowError(
                    f"{name} has shape {array.shape}; it must be (snapshot, retained node) = (any, {self.n})"
                )
        if len(arrays[0]) != len(arrays[1]) or (slope is not None and len(arrays[2]) != len(arrays[0])):
            raise PowerFlowError("v, s and generation_slope must have the same number of snapshots")
        return tuple(arrays)

    def _run(self, arrays: tuple[ComplexArray, ...], steps: int) -> FloatArray:
        plan, starts = self.plan, self._starts
        out = np.empty((4, len(arrays[0])))

        def run(first: int) -> None:
            rows = slice(first, first + _TASK)
            piece = tuple(array[rows] for array in arrays)
            result = np.empty((4, len(piece[0])))
            analyse(piece, plan, starts, steps, result)
            out[:, rows] = result

        in_threads(run, range(0, len(arrays[0]), _TASK), self.threads)
        return out

    def _finish(self, arrays: tuple[ComplexArray, ...], out: FloatArray, tolerance: float) -> JacobianSummary:
        """Replace what the kernels could not do: without pivoting a factorisation may fail."""
        failed = (out[1] > tolerance) | ~(out[2] <= _LARGEST_DEFECT)
        usable = _usable(arrays)
        sigma, log_det = out[0], out[3] - self.plan.log_abs_det_constant
        for k in np.flatnonzero(failed & usable):
            one = tuple(array[k : k + 1] for array in arrays)
            sigma[k], log_det[k] = self._sparse(*one) if self.large else self._dense(*one)
        sigma[~usable] = log_det[~usable] = np.nan
        return JacobianSummary(sigma, log_det)

    def _sparse(self, v: ComplexArray, s: ComplexArray, slope: ComplexArray) -> tuple[float, float]:
        a, c = diagonal_terms(v, s, slope if len(slope) else None)
        pivoted = SparseJacobian(self.elimination, a[0], c[0])
        return pivoted.sigma_min, pivoted.log_abs_det

    def _dense(self, v: ComplexArray, s: ComplexArray, slope: ComplexArray) -> tuple[float, float]:
        matrix = real_form(self.y_reduced, *diagonal_terms(v, s, slope if len(slope) else None))[0]
        singular = np.linalg.svd(matrix, compute_uv=False)
        return float(singular[-1]), float(np.sum(np.log(singular))) if singular[-1] > 0.0 else -np.inf

    @cached_property
    def _starts(self) -> tuple[ComplexArray, ComplexArray, ComplexArray]:
        """Smallest left singular vector of Y, an admixture rich in small ones, and their pairing.

        Near D = 0 singular values come in pairs, x and jx; first-order perturbation theory says which
        phase of the pair is the smaller one: that of −conj(z)/|z| with z = Σ conj(c)·x·u.
        """
        left, right = self._smallest_singular_vectors
        noise = np.random.default_rng(0).standard_normal((self.n, 2)) @ np.array([1.0, 1.0j])
        small = self._inverse(self._inverse(noise), adjoint=True)
        return left, _ADMIXTURE * small / np.linalg.norm(small), left * right

    @cached_property
    def _factor(self):  # type: ignore[no-untyped-def]
        return splu(sp.csc_matrix(self._y), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.1)

    def _inverse(self, x: ComplexArray, *, adjoint: bool = False) -> ComplexArray:
        """Y⁻¹x or Y⁻ᴴx on the reduced network."""
        full = np.zeros(self._y.shape[0], dtype=np.complex128)
        full[self.retained] = x
        return np.asarray(self._factor.solve(full, trans="H" if adjoint else "N")[self.retained])

    @cached_property
    def _smallest_singular_vectors(self) -> tuple[ComplexArray, ComplexArray]:
        """u and x of the smallest singular value of Y."""
        if not self.large:
            left, _, right = np.linalg.svd(self.y_reduced)
            return left[:, -1], np.conj(right[-1])
        # Largest eigenvector of Z·Zᴴ is the right one of Y: x.
        operator = LinearOperator(
            (self.n, self.n),
            matvec=lambda x: self._inverse(self._inverse(x.ravel(), adjoint=True)),
            dtype=np.complex128,
        )
        start = np.ones(self.n, dtype=np.complex128)
        _, vectors = eigsh(operator, k=1, which="LM", v0=start, tol=1e-4)
        right = vectors[:, 0]
        left = self._inverse(right, adjoint=True)
        return left / np.linalg.norm(left), right


def _usable(arrays: tuple[ComplexArray, ...]) -> BoolArray:
    """(snapshot,) whether all figures are finite and no voltage is zero."""
    usable = (arrays[0] != 0.0).all(axis=1)
    for array in arrays:
        if len(array):
            usable &= np.isfinite(array).all(axis=1)
    return np.asarray(usable, dtype=np.bool_)
