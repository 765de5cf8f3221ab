"""σ_min, bounds on it and log|det M̃| of many snapshots of one network.

The matrix of a snapshot is factorised on the sparse network, not on the dense reduced one: the determinants
differ by that of the nodes without injection, the same for all snapshots. docs/explanation/power-flow.md
states the method; `matrices.py` has the proved lower bound. For evidence, which is INTERNAL: last bits may
depend on the processor, since references come from BLAS.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import DENSE_UP_TO, NORM_FAILURE
from dp_powerflow.powerflow.batch import checked_threads, in_threads
from dp_powerflow.powerflow.factor import Factors, factorise_matrix
from dp_powerflow.powerflow.jacobian.kernels import LANES, log_determinants
from dp_powerflow.powerflow.jacobian.matrices import (
    Elimination,
    Reference,
    SigmaBound,
    SparseJacobian,
    SparseSigmaBound,
    diagonal_terms,
    energised_network,
    factorised,
    real_form,
    refine,
)
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

_TASK = 64 * LANES
"""Snapshots per task of a thread."""
_LARGEST_RESIDUAL = 1e-7
"""Of a solve for ones, up to which factors without pivoting count."""
_LARGE_REFERENCES = 4
"""References at most that one call makes on a large network, where each costs seconds."""


class JacobianBatch:
    """M̃_eff of one network at many snapshots.

    Parameters
    ----------
    y : sparse complex (node, node) [p.u.], all nodes but the slack.
    retained : (retained,) indices of the retained nodes in it, the order of every array below.
    threads : None for one per core.
    dense_up_to : most retained nodes for which anything dense is made.
    factors : of y, where a solver has them.

    Methods take `v` and `s`, complex (snapshot, retained): voltage and total injection, generation
    included [p.u.].
    """

    def __init__(
        self,
        y: sp.csc_array,
        retained: IntArray,
        *,
        threads: int | None = None,
        dense_up_to: int = DENSE_UP_TO,
        factors: Factors | None = None,
    ) -> None:
        self.retained = np.asarray(retained, dtype=np.int64)
        if len(self.retained) == 0:
            raise PowerFlowError("the network has no retained node; give it a load or generation")
        self.threads = checked_threads(threads)
        self.large = len(self.retained) > dense_up_to
        self._y = sp.csc_array(y, dtype=np.complex128)
        self._given = factors

    @classmethod
    def from_feeder(
        cls,
        feeder: Feeder,
        *,
        threads: int | None = None,
        dense_up_to: int = DENSE_UP_TO,
        factors: Factors | None = None,
    ) -> JacobianBatch:
        """Of a feeder, its retained nodes in the order of `feeder.retained`."""
        return cls(*energised_network(feeder), threads=threads, dense_up_to=dense_up_to, factors=factors)

    @property
    def n(self) -> int:
        """Number of retained nodes."""
        return len(self.retained)

    def log_abs_det(self, v: ComplexArray, s: ComplexArray) -> FloatArray:
        """log|det M̃|: (snapshot,), NaN where a voltage is zero or any figure NaN."""
        v, s, _ = self._checked(v, s, None)
        blocks, out = self._factors.blocks, np.empty((2, len(v)))
        load_of = np.argsort(self._factors.position[self.retained])

        def run(first: int) -> None:
            rows = slice(first, first + _TASK)
            found = np.empty((2, len(v[rows])))
            log_determinants(blocks, load_of, v[rows], s[rows], found)
            out[:, rows] = found

        in_threads(run, range(0, len(v), _TASK), self.threads)
        usable = _usable((v, s))
        result = np.where(usable, out[0] - self._log_abs_det_outside, np.nan)
        # Without pivoting a factorisation may fail.
        for k in np.flatnonzero(~(out[1] <= _LARGEST_RESIDUAL) & usable):
            a, c = diagonal_terms(v[k], s[k])
            if self.large:
                result[k] = SparseJacobian(self.elimination, a, c).log_abs_det
            else:
                result[k] = np.linalg.slogdet(real_form(self.y_reduced, a, c))[1]
        return result

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
        generation_slope : ds^g/d|v| of the same shape where volt-var is active.
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
        share, most = 1.0 - gap, _LARGE_REFERENCES if self.large else 100
        return refine(make, a, c, bound, lambda k: share * self._sigma_min(a[k], c[k]), references=most)

    def failure(self, references: int) -> float:
        """Probability that bounds from so many references rest on a norm that is too small; 0 if dense."""
        return SparseSigmaBound.NORMS * references * NORM_FAILURE if self.large else 0.0

    def _reference(self, a: ComplexArray, c: ComplexArray, y_error: float) -> Reference:
        if self.large:
            return SparseSigmaBound(self.elimination, a, c, y_error=y_error, threads=self.threads)
        return SigmaBound(self.y_reduced, a, c, y_error=y_error, threads=self.threads)

    def _sigma_min(self, a: ComplexArray, c: ComplexArray) -> float:
        """Smallest singular value at one snapshot."""
        if self.large:
            return SparseJacobian(self.elimination, a, c).sigma_min
        return float(np.linalg.svd(real_form(self.y_reduced, a, c), compute_uv=False)[-1])

    @cached_property
    def elimination(self) -> Elimination:
        """The network with its zero-injection part factorised."""
        return Elimination(self._y, self.retained)

    @cached_property
    def y_reduced(self) -> ComplexArray:
        """Y of the reduced network: complex (retained, retained), dense."""
        return self.elimination.reduced

    @cached_property
    def _factors(self) -> Factors:
        if self._given is not None:
            return self._given
        loaded = np.isin(np.arange(self._y.shape[0]), self.retained)
        return factorise_matrix(self._y, np.ones(len(loaded), dtype=np.complex128), loaded)

    @cached_property
    def _log_abs_det_outside(self) -> float:
        """log|det| of what M̃ has on the nodes of the core that are not retained."""
        core = self._factors.core.matrix
        others = np.setdiff1d(np.arange(core.shape[0]), self._factors.position[self.retained])
        if not len(others):
            return 0.0
        pivots = factorised(core[others, :][:, others]).U.diagonal()
        return 2.0 * float(np.sum(np.log(np.abs(pivots))))

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


def _usable(arrays: tuple[ComplexArray, ...]) -> BoolArray:
    """(snapshot,) whether all figures are finite and no voltage is zero."""
    usable = (arrays[0] != 0.0).all(axis=1)
    for array in arrays:
        if len(array):
            usable &= np.isfinite(array).all(axis=1)
    return np.asarray(usable, dtype=np.bool_)
