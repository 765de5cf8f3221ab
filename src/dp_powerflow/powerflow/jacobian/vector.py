"""Vector instructions on blocks and nodes of `LANES` snapshots, for the kernels of the Jacobian.

Arrays end in a lane axis, one lane per snapshot. A 2×2 block [[a, b], [c, d]] is four rows of lanes,
a node of a vector two. `plan` is a `BlockPlan`, whose pivots and edges the loops follow. numba's cache on
disk does not notice a change of this file: touch `kernels.py` too.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from dp_powerflow.powerflow._kernels.simd import Emitter, instruction

LANES = 8
_BLOCK, _NODE, _LANE = 4, 2, 1  # rows of lanes per item


def _transposed(block: list[Any]) -> list[Any]:
    return [block[0], block[2], block[1], block[3]]


@intrinsic  # type: ignore[untyped-decorator]
def fill_block(typing: Any, lu: Any, k: Any, real: Any, imag: Any) -> Any:
    """lu[k] ← the block of multiplication by a complex number, the same in all lanes."""

    def emit(e: Emitter) -> None:
        data, index, real_part, imag_part = e.values
        re, im = e.spread(real_part), e.spread(imag_part)
        minus = e.builder.fneg(im)
        e.store([re, minus, im, re], e.pointers(data, index, _BLOCK))

    return instruction(LANES, (lu, k, real, imag), emit)


@intrinsic  # type: ignore[untyped-decorator]
def invert_block(typing: Any, lu: Any, p: Any, product: Any) -> Any:
    """lu[p] ← lu[p]⁻¹, product ← product·det lu[p]."""

    def emit(e: Emitter) -> None:
        data, pivot, running = e.values
        where = e.pointers(data, pivot, _BLOCK)
        a, b, c, d = e.load(where)
        det = e.subtract(e.multiply(a, d), b, c)
        total = e.pointers(running, ir.Constant(ir.IntType(64), 0), _LANE)
        e.store([e.multiply(e.load(total)[0], det)], total)
        inverse = e.builder.fdiv(e.constant(1.0), det)
        minus = e.builder.fneg(inverse)
        e.store([e.multiply(x, y) for x, y in ((d, inverse), (b, minus), (c, minus), (a, inverse))], where)

    return instruction(LANES, (lu, p, product), emit)


@intrinsic  # type: ignore[untyped-decorator]
def eliminate_row(typing: Any, lu: Any, blocks: Any, updates: Any, u: Any) -> Any:
    """lu[left] ← lu[left]·lu[pivot]; lu[updates[u + f]] −= lu[left]·lu[right + f] for f < count.

    `blocks` = (left, pivot, right, count).
    """

    def emit(e: Emitter) -> None:
        data, (left_at, pivot_at, right_at, number), targets, first_target = e.values
        where = e.pointers(data, left_at, _BLOCK)
        old, inverse = e.load(where), e.load(e.pointers(data, pivot_at, _BLOCK))
        block = [
            e.add(e.multiply(old[2 * i], inverse[j]), old[2 * i + 1], inverse[2 + j])
            for i in range(2)
            for j in range(2)
        ]
        e.store(block, where)
        with e.loop(ir.Constant(number.type, 0), number) as (f, _):
            target = e.item(targets, e.builder.add(first_target, f))
            goal = e.pointers(data, target, _BLOCK)
            value = e.load(goal)
            factor = e.load(e.pointers(data, e.builder.add(right_at, f), _BLOCK))
            for column in range(2):
                part = [factor[column], factor[2 + column]]
                value[column], value[2 + column] = e.subtract_block(
                    [value[column], value[2 + column]], block, part
                )
            e.store(value, goal)

    return instruction(LANES, (lu, blocks, updates, u), emit)


def _edges(e: Emitter, plan: Any, pivot: Any) -> Any:
    """Loop over the edges of a pivot."""
    after = e.builder.add(pivot, ir.Constant(pivot.type, 1))
    return e.loop(e.item(plan.pointers, pivot), e.item(plan.pointers, after))


def _make_scatter(transpose: bool) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def scatter(typing: Any, lu: Any, base: Any, plan: Any, x: Any, p: Any) -> Any:
        """x[neighbours[e]] −= lu[base + e]·x[p] for the edges e of pivot p."""

        def emit(e: Emitter) -> None:
            data, offset, plan, vector, pivot = e.values
            source = e.load(e.pointers(vector, pivot, _NODE))
            with _edges(e, plan, pivot) as (edge, _):
                block = e.load(e.pointers(data, e.builder.add(offset, edge), _BLOCK))
                goal = e.pointers(vector, e.item(plan.neighbours, edge), _NODE)
                block = _transposed(block) if transpose else block
                e.store(e.subtract_block(e.load(goal), block, source), goal)

        return instruction(LANES, (lu, base, plan, x, p), emit)

    return scatter


def _make_gather(transpose: bool) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def gather(typing: Any, lu: Any, base: Any, plan: Any, x: Any, p: Any) -> Any:
        """x[p] −= Σ lu[base + e]·x[neighbours[e]] over the edges e of pivot p."""

        def emit(e: Emitter) -> None:
            data, offset, plan, vector, pivot = e.values
            goal = e.pointers(vector, pivot, _NODE)
            running = [e.variable(value) for value in e.load(goal)]
            with _edges(e, plan, pivot) as (edge, _):
                block = e.load(e.pointers(data, e.builder.add(offset, edge), _BLOCK))
                source = e.load(e.pointers(vector, e.item(plan.neighbours, edge), _NODE))
                block = _transposed(block) if transpose else block
                now = [e.builder.load(value) for value in running]
                for value, place in zip(e.subtract_block(now, block, source), running, strict=True):
                    e.builder.store(value, place)
            e.store([e.builder.load(value) for value in running], goal)

        return instruction(LANES, (lu, base, plan, x, p), emit)

    return gather


def _make_pivot(transpose: bool) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def pivot(typing: Any, lu: Any, p: Any, x: Any) -> Any:
        """x[p] ← lu[p]·x[p]."""

        def emit(e: Emitter) -> None:
            data, index, vector = e.values
            goal = e.pointers(vector, index, _NODE)
            block = e.load(e.pointers(data, index, _BLOCK))
            block = _transposed(block) if transpose else block
            e.store(e.block_times(block, e.load(goal)), goal)

        return instruction(LANES, (lu, p, x), emit)

    return pivot


scatter, scatter_transposed = _make_scatter(False), _make_scatter(True)
gather, gather_transposed = _make_gather(False), _make_gather(True)
pivot, pivot_transposed = _make_pivot(False), _make_pivot(True)


@intrinsic  # type: ignore[untyped-decorator]
def subtract_admittance(typing: Any, r: Any, i: Any, x: Any, j: Any, y: Any) -> Any:
    """r[i] −= y·x[j] with y = (Re, Im) the same in all lanes."""

    def emit(e: Emitter) -> None:
        target, row, vector, column, (real_part, imag_part) = e.values
        goal = e.pointers(target, row, _NODE)
        re, im = e.spread(real_part), e.spread(imag_part)
        block = [re, e.builder.fneg(im), im, re]
        e.store(e.subtract_block(e.load(goal), block, e.load(e.pointers(vector, column, _NODE))), goal)

    return instruction(LANES, (r, i, x, j, y), emit)


@intrinsic  # type: ignore[untyped-decorator]
def place(typing: Any, x: Any, nodes: Any, p: Any, scale: Any) -> Any:
    """p ← scale·p and x[at[k]] ← p[k] for k < count; `nodes` = (at, count)."""

    def emit(e: Emitter) -> None:
        vector, (where, number), source, factor = e.values
        times = e.load(e.pointers(factor, ir.Constant(ir.IntType(64), 0), _LANE))[0]
        with e.loop(ir.Constant(number.type, 0), number) as (k, _):
            own = e.pointers(source, k, _NODE)
            value = [e.multiply(part, times) for part in e.load(own)]
            e.store(value, own)
            e.store(value, e.pointers(vector, e.item(where, k), _NODE))

    return instruction(LANES, (x, nodes, p, scale), emit)


@intrinsic  # type: ignore[untyped-decorator]
def take(typing: Any, x: Any, nodes: Any, p: Any, back: Any, square: Any) -> Any:
    """p[k] ← x[at[k]] − back·p[k] for k < count; square ← ‖p‖²; `nodes` = (at, count)."""

    def emit(e: Emitter) -> None:
        vector, (where, number), target, factor, norm = e.values
        zero = ir.Constant(ir.IntType(64), 0)
        times = e.load(e.pointers(factor, zero, _LANE))[0]
        running = e.variable(e.constant(0.0))
        with e.loop(ir.Constant(number.type, 0), number) as (k, _):
            own = e.pointers(target, k, _NODE)
            found = e.load(e.pointers(vector, e.item(where, k), _NODE))
            value = [e.subtract(new, times, old) for new, old in zip(found, e.load(own), strict=True)]
            e.store(value, own)
            total = e.add(e.builder.load(running), value[0], value[0])
            e.builder.store(e.add(total, value[1], value[1]), running)
        e.store([e.builder.load(running)], e.pointers(norm, zero, _LANE))

    return instruction(LANES, (x, nodes, p, back, square), emit)


@intrinsic  # type: ignore[untyped-decorator]
def subtract_own(typing: Any, r: Any, x: Any, nodes: Any, own: Any) -> Any:
    """r[at[k]] −= own[k]·x[at[k]] for k < count; `nodes` = (at, count)."""

    def emit(e: Emitter) -> None:
        target, vector, (where, number), blocks = e.values
        with e.loop(ir.Constant(number.type, 0), number) as (k, _):
            node = e.item(where, k)
            goal = e.pointers(target, node, _NODE)
            block, source = e.load(e.pointers(blocks, k, _BLOCK)), e.load(e.pointers(vector, node, _NODE))
            e.store(e.subtract_block(e.load(goal), block, source), goal)

    return instruction(LANES, (r, x, nodes, own), emit)


@intrinsic  # type: ignore[untyped-decorator]
def bisect(typing: Any, matrix: Any, count: Any, bracket: Any, times: Any) -> Any:
    """Halve `bracket` = (low, high) around the largest eigenvalue of a tridiagonal T.

    `matrix` = (diagonal, squared off-diagonals), of `count` rows. θ is above all eigenvalues if and only if
    all pivots of T − θ are negative.
    """

    def emit(e: Emitter) -> None:
        (main, off), number, (lower, upper), halvings = e.values
        b, zero = e.builder, ir.Constant(ir.IntType(64), 0)
        below_at, above_at = e.pointers(lower, zero, _LANE)[0], e.pointers(upper, zero, _LANE)[0]
        below, above = (e.variable(e.load([place])[0]) for place in (below_at, above_at))
        pivot, negative = (e.variable(e.constant(0.0)) for _ in range(2))
        with e.loop(ir.Constant(halvings.type, 0), halvings):
            theta = e.multiply(e.constant(0.5), b.fadd(b.load(below), b.load(above)))
            first = b.fsub(e.load(e.pointers(main, zero, _LANE))[0], theta)
            b.store(first, pivot)
            b.store(first, negative)
            with e.loop(ir.Constant(number.type, 1), number) as (k, _):
                before = e.load(e.pointers(off, b.sub(k, ir.Constant(k.type, 1)), _LANE))[0]
                here = b.fsub(e.load(e.pointers(main, k, _LANE))[0], theta)
                here = b.fsub(here, b.fdiv(before, b.load(pivot)))
                b.store(here, pivot)
                now = b.load(negative)
                # Selected so that a pivot that is not a number, and so not negative, wins.
                b.store(b.select(b.fcmp_ordered("<", here, now), now, here), negative)
            is_above = b.fcmp_ordered("<", b.load(negative), e.constant(0.0))
            b.store(b.select(is_above, theta, b.load(above)), above)
            b.store(b.select(is_above, b.load(below), theta), below)
        e.store([b.load(below), b.load(above)], [below_at, above_at])

    return instruction(LANES, (matrix, count, bracket, times), emit)
