"""σ_min, bounds on it and log|det M̃| of many snapshots of one network.

The matrix of a snapshot is factorised on the sparse network, not on the dense reduced one: the determinants
differ by that of the nodes without injection, the same for all snapshots. docs/explanation/power-flow.md
states the method; `matrices.py` has the proved lower bound. For evidence, which is INTERNAL: last bits may
depend on the processor, since references come from BLAS.
"""

from __future__ import annotations

from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from dp_powerflow._bits.compiled import kernel
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import DENSE_UP_TO, NORM_FAILURE, factorised
from dp_powerflow.powerflow._kernels.simd import Emitter, instruction
from dp_powerflow.powerflow.batch import checked_threads, in_threads
from dp_powerflow.powerflow.factor import BlockPlan, Factors, factorise
from dp_powerflow.powerflow.jacobian.matrices import (
    NORMS,
    Elimination,
    Reference,
    SparseJacobian,
    dense_reference,
    diagonal_terms,
    real_form,
)
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# log|det M̃| of `LANES` snapshots at a time, on the order of elimination of the solver.
#
# M̃ of a snapshot differs from that of another only in the 2×2 real diagonal blocks of the retained nodes, so
# the pattern of `factor.BlockPlan` serves all of them. Here every block is four rows of lanes and a node of a
# vector two, one lane per snapshot.

LANES = 8
_BLOCK, _NODE = 4, 2  # rows of lanes per item
_PIVOTS_PER_LOGARITHM = 4


@instruction(LANES)
def fill_block(e: Emitter, lu: Any, p: Any, re: Any, im: Any) -> None:
    """lu[p] ← the block of multiplication by a complex number, the same in all lanes."""
    real, imag = e.spread(re), e.spread(im)
    e.store([real, e.builder.fneg(imag), imag, real], e.pointers(lu, p, _BLOCK))


@instruction(LANES)
def invert_block(e: Emitter, lu: Any, p: Any, product: Any) -> None:
    """lu[p] ← lu[p]⁻¹, product ← product·det lu[p]."""
    where = e.pointers(lu, p, _BLOCK)
    a, b, c, d = e.load(where)
    det = e.subtract(e.multiply(a, d), b, c)
    e.put(e.multiply(e.row(product, 0), det), product, 0)
    inverse = e.builder.fdiv(e.constant(1.0), det)
    minus = e.builder.fneg(inverse)
    e.store([e.multiply(x, y) for x, y in ((d, inverse), (b, minus), (c, minus), (a, inverse))], where)


@instruction(LANES)
def eliminate_block(e: Emitter, lu: Any, blocks: Any, place: Any, p: Any, k: Any) -> None:
    """lu[p] ← lu[p]·lu[k's diagonal]; its products with the rest of row k leave the row of p."""
    one = ir.Constant(k.type, 1)
    where, diagonal = e.pointers(lu, p, _BLOCK), e.item(blocks.diagonal, k)
    old, inverse = e.load(where), e.load(e.pointers(lu, diagonal, _BLOCK))
    block = [
        e.add(e.multiply(old[2 * i], inverse[j]), old[2 * i + 1], inverse[2 + j])
        for i in range(2)
        for j in range(2)
    ]
    e.store(block, where)
    last = e.item(blocks.ptr, e.builder.add(k, one))
    with e.loop(e.builder.add(diagonal, one), last) as (o, _):
        goal = e.pointers(lu, e.item(place, e.item(blocks.col, o)), _BLOCK)
        value, factor = e.load(goal), e.load(e.pointers(lu, o, _BLOCK))
        for j in range(2):
            column = [factor[j], factor[2 + j]]
            value[j], value[2 + j] = e.subtract_block([value[j], value[2 + j]], block, column)
        e.store(value, goal)


@instruction(LANES)
def subtract_products(e: Emitter, lu: Any, col: Any, part: Any, x: Any, into: Any) -> None:
    """into[row] −= Σ lu[p]·x[col[p]] over first ≤ p < last; `part` = (row, first, last)."""
    row, first, last = part
    goal = e.pointers(into, row, _NODE)

    def step(p: Any, sums: list[Any]) -> list[Any]:
        source = e.load(e.pointers(x, e.item(col, p), _NODE))
        return e.subtract_block(sums, e.load(e.pointers(lu, p, _BLOCK)), source)

    e.store(e.added_up(e.load(goal), (first, last), step), goal)


@instruction(LANES)
def times_block(e: Emitter, lu: Any, p: Any, x: Any, row: Any) -> None:
    """x[row] ← lu[p]·x[row]."""
    goal = e.pointers(x, row, _NODE)
    e.store(e.block_times(e.load(e.pointers(lu, p, _BLOCK)), e.load(goal)), goal)


@kernel
def _fill(
    lu: FloatArray, blocks: BlockPlan, load_of: IntArray, v: ComplexArray, s: ComplexArray, first: int
) -> None:
    """M̃ of the snapshots from `first` on; lanes past the last one repeat it."""
    for p in range(blocks.col.size):
        fill_block(lu, p, blocks.entry[p].real, blocks.entry[p].imag)
    for m in range(load_of.size):
        slot = blocks.slot[m]
        for lane in range(LANES):
            row = min(first + lane, len(v) - 1)
            here, power = v[row, load_of[m]], s[row, load_of[m]]
            scale = 1.0 / (here.real * here.real + here.imag * here.imag)
            # 1/conj(v) = v/|v|², and c = conj(s/v²) is conj(s) times its square.
            re, im = here.real * scale, here.imag * scale
            square_re, square_im = re * re - im * im, 2.0 * re * im
            c_re = power.real * square_re + power.imag * square_im
            c_im = power.real * square_im - power.imag * square_re
            lu[slot, 0, lane] += c_re
            lu[slot, 1, lane] += c_im
            lu[slot, 2, lane] += c_im
            lu[slot, 3, lane] -= c_re


@kernel
def _factorise(lu: FloatArray, blocks: BlockPlan, place: IntArray, log_det: FloatArray) -> None:
    """LU in place, diagonal blocks inverted; `log_det` receives log|det| of every lane."""
    n, product = blocks.diagonal.size, np.ones(LANES)
    log_det[:] = 0.0
    for row in range(n):
        for p in range(blocks.ptr[row], blocks.ptr[row + 1]):
            place[blocks.col[p]] = p
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            eliminate_block(lu, blocks, place, p, blocks.col[p])
        invert_block(lu, blocks.diagonal[row], product)
        if row % _PIVOTS_PER_LOGARITHM == _PIVOTS_PER_LOGARITHM - 1 or row == n - 1:
            for lane in range(LANES):
                log_det[lane] += log(abs(product[lane])) if product[lane] != 0.0 else -inf
                product[lane] = 1.0


@kernel
def _solve(lu: FloatArray, blocks: BlockPlan, x: FloatArray) -> None:
    """x ← M⁻¹x."""
    for row in range(blocks.diagonal.size):
        subtract_products(lu, blocks.col, (row, blocks.ptr[row], blocks.diagonal[row]), x, x)
    for row in range(blocks.diagonal.size - 1, -1, -1):
        diagonal = blocks.diagonal[row]
        subtract_products(lu, blocks.col, (row, diagonal + 1, blocks.ptr[row + 1]), x, x)
        times_block(lu, diagonal, x, row)


@kernel
def log_determinants(
    blocks: BlockPlan, load_of: IntArray, v: ComplexArray, s: ComplexArray, out: FloatArray
) -> None:
    """log|det| on all nodes of the core, and the largest residual of a solve with the same factors.

    Parameters
    ----------
    load_of : (slot,) column of v and s that belongs there.
    v, s : complex (snapshot, retained) [p.u.].
    out : (2, snapshot), receives both.
    """
    n = blocks.diagonal.size
    lu, place, log_det = np.empty((blocks.col.size, 4, LANES)), np.empty(n, dtype=np.int64), np.empty(LANES)
    x, residual = np.empty((n, 2, LANES)), np.empty((n, 2, LANES))
    for first in range(0, len(v), LANES):
        _fill(lu, blocks, load_of, v, s, first)
        _factorise(lu, blocks, place, log_det)
        x[:] = 1.0
        residual[:] = 1.0
        _solve(lu, blocks, x)
        _fill(lu, blocks, load_of, v, s, first)
        for row in range(n):
            subtract_products(lu, blocks.col, (row, blocks.ptr[row], blocks.ptr[row + 1]), x, residual)
        for lane in range(min(LANES, len(v) - first)):
            worst = 0.0
            for row in range(n):
                for part in range(2):
                    size = abs(residual[row, part, lane])
                    worst = size if not size <= worst else worst
            out[0, first + lane], out[1, first + lane] = log_det[lane], worst


# ----------------------------------------------------------------------------------------------------------

_TASK = 64 * LANES
"""Snapshots per task of a thread."""
_LARGEST_RESIDUAL = 1e-7
"""Of a solve for ones, up to which factors without pivoting count."""
_REFERENCES, _LARGE_REFERENCES = 100, 4
"""References at most that one call makes, and on a large network, where each costs seconds."""


class JacobianBatch:
    """M̃_eff of one network at many snapshots.

    Parameters
    ----------
    threads : None for one per core.
    dense_up_to : most retained nodes for which anything dense is made.
    factors : of the feeder, where a solver has them.

    Methods take `v` and `s`, complex (snapshot, retained): voltage and total injection, generation
    included [p.u.].
    """

    def __init__(
        self,
        feeder: Feeder,
        *,
        threads: int | None = None,
        dense_up_to: int = DENSE_UP_TO,
        factors: Factors | None = None,
    ) -> None:
        self.threads = checked_threads(threads)
        self.large = len(feeder.retained) > dense_up_to
        self._feeder, self._given = feeder, factors
        self._retained = np.searchsorted(feeder.energised, feeder.retained)

    def log_abs_det(self, v: ComplexArray, s: ComplexArray) -> FloatArray:
        """log|det M̃|: (snapshot,), NaN where a voltage is zero or any figure NaN."""
        v, s = (np.ascontiguousarray(each, dtype=np.complex128) for each in (v, s))
        blocks, out = self._factors.blocks, np.empty((2, len(v)))
        load_of = np.argsort(self._factors.position[self._retained])

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
        references: list[Reference] | None = None,
    ) -> FloatArray:
        """Proved lower bound on σ_min of every snapshot: (snapshot,) [p.u.], NaN for NaN.

        Parameters
        ----------
        generation_slope : ds^g/d|v| of the same shape where volt-var is active.
        gap : raise the lowest bounds until they are within this share of the smallest σ_min of the batch,
            where its infimum is needed; None leaves the bounds of one reference, the mean.
        references : of earlier calls for this network, tried before new ones are made; new ones are appended.
        """
        known = [] if references is None else references
        finite = _usable((v, s) if generation_slope is None else (v, s, generation_slope))
        if not finite.any():
            return np.full(len(finite), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            a, c = diagonal_terms(v, s, generation_slope)
        a[~finite] = c[~finite] = np.nan
        if not known:
            known.append(self._reference(a[finite].mean(axis=0), c[finite].mean(axis=0)))
        bound = known[0](a, c)
        for reference in known[1:]:
            bound = np.fmax(bound, reference(a, c))
        if gap is None:
            return bound
        # The snapshot with the lowest bound is a reference for all whose bound is too low. Once the lowest
        # is within the gap of σ_min of its snapshot, so it is of the smallest σ_min, which is no larger.
        for _ in range(_LARGE_REFERENCES if self.large else _REFERENCES):
            worst = int(np.nanargmin(bound))
            wanted = (1.0 - gap) * self._sigma_min(a[worst], c[worst])
            low = np.flatnonzero(bound < wanted)
            if len(low) == 0:
                break
            known.append(self._reference(a[worst], c[worst]))
            bound[low] = np.maximum(bound[low], known[-1](a[low], c[low]))
            if bound[worst] < wanted:
                break  # rounding alone keeps it there
        return bound

    def failure(self, references: int) -> float:
        """Probability that bounds from this number of references rest on too small a norm; 0 if dense."""
        return NORMS * references * NORM_FAILURE if self.large else 0.0

    def _reference(self, a: ComplexArray, c: ComplexArray) -> Reference:
        if self.large:
            return SparseJacobian(self.elimination, a, c).reference(threads=self.threads)
        return dense_reference(self.y_reduced, a, c, threads=self.threads)

    def _sigma_min(self, a: ComplexArray, c: ComplexArray) -> float:
        """Smallest singular value at one snapshot."""
        if self.large:
            return SparseJacobian(self.elimination, a, c).sigma_min
        return float(np.linalg.svd(real_form(self.y_reduced, a, c), compute_uv=False)[-1])

    @cached_property
    def elimination(self) -> Elimination:
        """The network with its zero-injection part factorised."""
        return Elimination(self._feeder)

    @cached_property
    def y_reduced(self) -> ComplexArray:
        """Y of the reduced network: complex (retained, retained), dense."""
        return self.elimination.reduced

    @cached_property
    def _factors(self) -> Factors:
        return factorise(self._feeder) if self._given is None else self._given

    @cached_property
    def _log_abs_det_outside(self) -> float:
        """log|det| of what M̃ has on the nodes of the core that are not retained."""
        core = self._factors.core
        others = np.setdiff1d(np.arange(core.shape[0]), self._factors.position[self._retained])
        if not len(others):
            return 0.0
        pivots = factorised(core[others, :][:, others]).U.diagonal()
        return 2.0 * float(np.sum(np.log(np.abs(pivots))))


def _usable(arrays: tuple[ComplexArray, ...]) -> BoolArray:
    """(snapshot,) whether all figures are finite and no voltage is zero."""
    usable = (arrays[0] != 0.0).all(axis=1)
    for array in arrays:
        usable &= np.isfinite(array).all(axis=1)
    return np.asarray(usable, dtype=np.bool_)
