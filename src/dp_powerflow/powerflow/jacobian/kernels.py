"""log|det M̃| of `LANES` snapshots at a time, on the order of elimination of the solver.

M̃ of a snapshot differs from that of another only in the 2×2 real diagonal blocks of the retained nodes, so
the pattern of `factor.BlockPlan` serves all of them. Here every block is four rows of lanes and a node of a
vector two, one lane per snapshot.
"""

from __future__ import annotations

from math import inf, log
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from dp_powerflow._bits.compiled import kernel
from dp_powerflow.powerflow._kernels.simd import Emitter, instruction
from dp_powerflow.powerflow.factor import BlockPlan
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

LANES = 8
_BLOCK, _NODE = 4, 2  # rows of lanes per item
_PIVOTS_PER_LOGARITHM = 4


@intrinsic  # type: ignore[untyped-decorator]
def fill_block(typing: Any, lu: Any, p: Any, re: Any, im: Any) -> Any:
    """lu[p] ← the block of multiplication by a complex number, the same in all lanes."""

    def emit(e: Emitter) -> None:
        lu, p, re, im = e.values
        real, imag = e.spread(re), e.spread(im)
        e.store([real, e.builder.fneg(imag), imag, real], e.pointers(lu, p, _BLOCK))

    return instruction(LANES, (lu, p, re, im), emit)


@intrinsic  # type: ignore[untyped-decorator]
def invert_block(typing: Any, lu: Any, p: Any, product: Any) -> Any:
    """lu[p] ← lu[p]⁻¹, product ← product·det lu[p]."""

    def emit(e: Emitter) -> None:
        lu, p, product = e.values
        where = e.pointers(lu, p, _BLOCK)
        a, b, c, d = e.load(where)
        det = e.subtract(e.multiply(a, d), b, c)
        e.put(e.multiply(e.row(product, 0), det), product, 0)
        inverse = e.builder.fdiv(e.constant(1.0), det)
        minus = e.builder.fneg(inverse)
        e.store([e.multiply(x, y) for x, y in ((d, inverse), (b, minus), (c, minus), (a, inverse))], where)

    return instruction(LANES, (lu, p, product), emit)


@intrinsic  # type: ignore[untyped-decorator]
def eliminate_block(typing: Any, lu: Any, blocks: Any, place: Any, p: Any, k: Any) -> Any:
    """lu[p] ← lu[p]·lu[k's diagonal]; its products with the rest of row k leave the row of p."""

    def emit(e: Emitter) -> None:
        lu, blocks, place, p, k = e.values
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

    return instruction(LANES, (lu, blocks, place, p, k), emit)


@intrinsic  # type: ignore[untyped-decorator]
def subtract_products(typing: Any, lu: Any, col: Any, part: Any, x: Any, into: Any) -> Any:
    """into[row] −= Σ lu[p]·x[col[p]] over first ≤ p < last; `part` = (row, first, last)."""

    def emit(e: Emitter) -> None:
        lu, col, (row, first, last), x, into = e.values
        goal = e.pointers(into, row, _NODE)
        sums = [e.variable(value) for value in e.load(goal)]
        with e.loop(first, last) as (p, _):
            block = e.load(e.pointers(lu, p, _BLOCK))
            source = e.load(e.pointers(x, e.item(col, p), _NODE))
            found = e.subtract_block([e.builder.load(total) for total in sums], block, source)
            for value, total in zip(found, sums, strict=True):
                e.builder.store(value, total)
        e.store([e.builder.load(total) for total in sums], goal)

    return instruction(LANES, (lu, col, part, x, into), emit)


@intrinsic  # type: ignore[untyped-decorator]
def times_block(typing: Any, lu: Any, p: Any, x: Any, row: Any) -> Any:
    """x[row] ← lu[p]·x[row]."""

    def emit(e: Emitter) -> None:
        lu, p, x, row = e.values
        goal = e.pointers(x, row, _NODE)
        e.store(e.block_times(e.load(e.pointers(lu, p, _BLOCK)), e.load(goal)), goal)

    return instruction(LANES, (lu, p, x, row), emit)


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
