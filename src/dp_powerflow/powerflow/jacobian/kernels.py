"""Block LU of M̃: what is done once for all snapshots, and compiled kernels for `LANES` of them at a time.

M̃ of a snapshot differs from that of another only in the 2×2 real diagonal blocks of the retained nodes.
Zero-injection nodes whose elimination does not fill the matrix are therefore eliminated once, with pivoting;
the others stay, because the fully reduced matrix of a feeder is dense. The inverse on the retained nodes is
the same either way (a Schur complement is a block of the inverse, inverted).
"""

from __future__ import annotations

import heapq
from math import inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic
from scipy.sparse.linalg import splu

from dp_powerflow._bits.compiled import kernel
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.powerflow._kernels.simd import Emitter, instruction
from dp_powerflow.powerflow.factor import Graph, eliminate_node, graph_of, minimum_degree
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# Vector instructions on blocks and nodes of `LANES` snapshots, for the kernels of the Jacobian.
#
# Arrays end in a lane axis, one lane per snapshot. A 2×2 block [[a, b], [c, d]] is four rows of lanes,
# a node of a vector two. `plan` is a `BlockPlan`, whose pivots and edges the loops follow.


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


_BISECTIONS = 52
_PIVOTS_PER_LOGARITHM = 4
_COLUMNS_AT_A_TIME = 256
_GIVE_UP_FACTOR = 1.2


class BlockPlan(NamedTuple):
    """Pivot order and schedule of a block LU without fill outside its pattern.

    Pivot p has `neighbours[pointers[p]:pointers[p + 1]]`, all later in the order; edge e among them
    stores the blocks (p, j) in `upper[e]` and (j, p) in `lower[e]`. Eliminating p updates the blocks
    `updates[update_pointers[p]:update_pointers[p + 1]]`, row by row of the square of its neighbours,
    numbered diagonal first, then upper, then lower.

    Attributes
    ----------
    retained_at : (retained,) pivot of every retained node.
    diagonal, upper, lower : complex constant part of the blocks [p.u.].
    log_abs_det_constant : log|det| of the real form of what M̃ has on the nodes that are not retained.
    """

    retained_at: IntArray
    pointers: IntArray
    neighbours: IntArray
    update_pointers: IntArray
    updates: IntArray
    diagonal: ComplexArray
    upper: ComplexArray
    lower: ComplexArray
    log_abs_det_constant: float

    @property
    def blocks(self) -> int:
        """Number of 2×2 blocks of the factors."""
        return len(self.diagonal) + 2 * len(self.neighbours)


def make_plan(y: sp.csc_array, retained: IntArray) -> BlockPlan:
    """Plan for the energised network `y` (node, node) [p.u.] with the given retained nodes."""
    graph = graph_of(y)
    eliminated = _cheap_eliminations(graph, set(range(y.shape[0])) - set(retained.tolist()))
    kept = np.setdiff1d(np.arange(y.shape[0]), eliminated)
    schur = _schur_complement(y, kept, np.asarray(eliminated, dtype=np.int64))
    position = {int(node): k for k, node in enumerate(kept)}
    retained_in_kept = np.array([position[int(node)] for node in retained], dtype=np.int64)
    constant = _log_abs_det_outside(schur, retained_in_kept)

    compact = [{position[j] for j in graph[int(node)]} for node in kept]
    order, later = minimum_degree(compact)
    pivot_of = np.empty(len(order), dtype=np.int64)
    pivot_of[order] = np.arange(len(order))
    structure = [sorted(int(pivot_of[j]) for j in later[node]) for node in order]
    pointers = np.concatenate([[0], np.cumsum([len(row) for row in structure])]).astype(np.int64)
    neighbours = np.array([j for row in structure for j in row], dtype=np.int64)
    update_pointers, updates = _schedule(structure, pointers)
    pivots = np.repeat(np.arange(len(order)), np.diff(pointers))
    permuted = schur[np.ix_(order, order)] if isinstance(schur, np.ndarray) else schur[order, :][:, order]
    return BlockPlan(
        retained_at=pivot_of[retained_in_kept],
        pointers=pointers,
        neighbours=neighbours,
        update_pointers=update_pointers,
        updates=updates,
        diagonal=np.asarray(permuted.diagonal(), dtype=np.complex128),
        upper=_entries(permuted, pivots, neighbours),
        lower=_entries(permuted, neighbours, pivots),
        log_abs_det_constant=constant,
    )


def _fill(graph: Graph, node: int) -> int:
    """Edges that the elimination of a node would add."""
    around = graph[node]
    missing = sum(len(around) - 1 - len(graph[j] & around) for j in around)
    return missing // 2


def _cheap_eliminations(graph: Graph, candidates: set[int]) -> list[int]:
    """Nodes to eliminate once, chosen greedily so that the fewest blocks remain; updates `graph`."""
    trial = [set(around) for around in graph]
    edges = sum(len(around) for around in trial) // 2
    blocks = best = len(trial) + 2 * edges
    sequence: list[int] = []
    best_length = 0
    left = set(candidates)
    heap = [(_fill(trial, k) - len(trial[k]), k) for k in sorted(left)]
    heapq.heapify(heap)
    while heap and blocks <= _GIVE_UP_FACTOR * best:
        growth, node = heapq.heappop(heap)
        if node not in left or growth != _fill(trial, node) - len(trial[node]):
            continue
        left.remove(node)
        around = eliminate_node(trial, node)
        sequence.append(node)
        blocks += 2 * growth - 1
        if blocks < best:
            best, best_length = blocks, len(sequence)
        touched = around.union(*(trial[j] for j in around)) & left
        for k in touched:
            heapq.heappush(heap, (_fill(trial, k) - len(trial[k]), k))
    for node in sequence[:best_length]:
        eliminate_node(graph, node)
    return sequence[:best_length]


def _schedule(structure: list[list[int]], pointers: IntArray) -> tuple[IntArray, IntArray]:
    """Number of the block that every product of an elimination step is taken from."""
    n, edges = len(structure), int(pointers[-1])
    edge_of = [{j: int(pointers[p]) + k for k, j in enumerate(row)} for p, row in enumerate(structure)]
    updates: list[int] = []
    counts = [0]
    for row in structure:
        for i in row:
            for j in row:
                if i == j:
                    updates.append(i)
                elif i < j:
                    updates.append(n + edge_of[i][j])
                else:
                    updates.append(n + edges + edge_of[j][i])
        counts.append(len(updates))
    return np.array(counts, dtype=np.int64), np.array(updates, dtype=np.int64)


def _schur_complement(y: sp.csc_array, kept: IntArray, eliminated: IntArray) -> sp.csc_array:
    rows = sp.csr_array(y)
    inner = sp.csc_array(rows[kept, :][:, kept])
    if len(eliminated) == 0:
        return inner
    left = sp.csr_array(rows[kept, :][:, eliminated])
    right = sp.csc_array(rows[eliminated, :][:, kept])
    factor = _sparse_factor(sp.csc_array(rows[eliminated, :][:, eliminated]))
    touched = np.flatnonzero(np.diff(right.indptr))
    parts = []
    for start in range(0, len(touched), _COLUMNS_AT_A_TIME):
        columns = touched[start : start + _COLUMNS_AT_A_TIME]
        change = sp.coo_array(left @ factor.solve(right[:, columns].toarray()))
        parts.append((change.data, (change.row, columns[change.col])))
    change = sum((sp.csc_array(part, shape=inner.shape) for part in parts), sp.csc_array(inner.shape))
    return sp.csc_array(inner - change)


def _log_abs_det_outside(schur: sp.csc_array, retained: IntArray) -> float:
    others = np.setdiff1d(np.arange(schur.shape[0]), retained)
    if len(others) == 0:
        return 0.0
    pivots = _sparse_factor(sp.csc_array(schur[others, :][:, others])).U.diagonal()
    return 2.0 * float(np.sum(np.log(np.abs(pivots))))


def _sparse_factor(matrix: sp.csc_array):  # type: ignore[no-untyped-def]
    try:
        return splu(sp.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.1)
    except RuntimeError:
        raise PowerFlowError(
            "the network of zero-injection nodes is singular, so the Jacobian on the retained nodes is not "
            "defined; leave out parts that no source feeds"
        ) from None


def _entries(matrix: sp.csc_array, rows: IntArray, columns: IntArray) -> ComplexArray:
    if len(rows) == 0:
        return np.zeros(0, dtype=np.complex128)
    lookup = sp.csr_array(matrix)
    return np.asarray(lookup[rows, columns], dtype=np.complex128).ravel()


# ------------------------------------------------------------------------------------------ kernels


class Matrix(NamedTuple):
    """M̃ of `LANES` snapshots.

    `lu` has the blocks, `own` those that differ between snapshots, `phase` the rotation of the start vector
    that first-order perturbation theory favours.
    """

    lu: FloatArray
    own: FloatArray
    phase: ComplexArray


class Work(NamedTuple):
    """Arrays of the Lanczos steps, ending in the lane axis.

    `q` and `p` are (retained, 2, lane), `x` and `spare` (pivot, 2, lane), `alpha` and `beta` (step, lane).
    """

    q: FloatArray
    p: FloatArray
    x: FloatArray
    spare: FloatArray
    alpha: FloatArray
    beta: FloatArray


@kernel
def _factorise(lu: FloatArray, plan: BlockPlan, log_det: FloatArray) -> None:
    """LU in place, diagonal blocks inverted; `log_det` receives log|det| of every lane."""
    n, edges = len(plan.pointers) - 1, plan.pointers[-1]
    product = np.ones(LANES)
    log_det[:] = 0.0
    for p in range(n):
        invert_block(lu, p, product)
        if p % _PIVOTS_PER_LOGARITHM == _PIVOTS_PER_LOGARITHM - 1 or p == n - 1:
            for w in range(LANES):
                log_det[w] += log(abs(product[w])) if product[w] != 0.0 else -inf
                product[w] = 1.0
        first, last, u = plan.pointers[p], plan.pointers[p + 1], plan.update_pointers[p]
        for e in range(first, last):
            eliminate_row(lu, (n + edges + e, p, n + first, last - first), plan.updates, u)
            u += last - first


@kernel
def _solve(lu: FloatArray, plan: BlockPlan, x: FloatArray) -> None:
    """x ← M⁻¹x."""
    n, edges = len(plan.pointers) - 1, len(plan.neighbours)
    for p in range(n):
        scatter(lu, n + edges, plan, x, p)
    for p in range(n - 1, -1, -1):
        gather(lu, n, plan, x, p)
        pivot(lu, p, x)


@kernel
def _solve_transposed(lu: FloatArray, plan: BlockPlan, x: FloatArray) -> None:
    """x ← M⁻ᵀx."""
    n, edges = len(plan.pointers) - 1, len(plan.neighbours)
    for p in range(n):
        pivot_transposed(lu, p, x)
        scatter_transposed(lu, n, plan, x, p)
    for p in range(n - 1, -1, -1):
        gather_transposed(lu, n + edges, plan, x, p)


@kernel
def _load(
    matrix: Matrix,
    plan: BlockPlan,
    snapshots: tuple[ComplexArray, ...],
    first: int,
    pairing: ComplexArray,
) -> None:
    """M̃ of the snapshots (v, s, slope) from `first` on."""
    lu, own, phase = matrix.lu, matrix.own, matrix.phase
    v, s, slope = snapshots
    diagonal, upper, lower = plan.diagonal, plan.upper, plan.lower
    n, edges = len(diagonal), len(upper)
    for k in range(n):
        fill_block(lu, k, diagonal[k].real, diagonal[k].imag)
    for e in range(edges):
        fill_block(lu, n + e, upper[e].real, upper[e].imag)
        fill_block(lu, n + edges + e, lower[e].real, lower[e].imag)
    phase[:] = 0.0
    for k in range(len(plan.retained_at)):
        p = plan.retained_at[k]
        for w in range(LANES):
            row = min(first + w, len(v) - 1)
            here, power = v[row, k], s[row, k]
            scale = 1.0 / (here.real * here.real + here.imag * here.imag)
            # 1/conj(v) = v/|v|², and c = conj(s/v²) is conj(s) times its square.
            re, im = here.real * scale, here.imag * scale
            square_re, square_im = re * re - im * im, 2.0 * re * im
            c_re = power.real * square_re + power.imag * square_im
            c_im = power.real * square_im - power.imag * square_re
            a_re, a_im = 0.0, 0.0
            if len(slope):
                half = -0.5 * np.conj(slope[row, k]) * complex(re, im) * sqrt(scale)
                change = half * here
                c_re, c_im = c_re + change.real, c_im + change.imag
                a = half * np.conj(here)
                a_re, a_im = a.real, a.imag
            phase[w] += complex(
                c_re * pairing[k].real + c_im * pairing[k].imag,
                c_re * pairing[k].imag - c_im * pairing[k].real,
            )
            own[k, 0, w] = a_re + c_re
            own[k, 1, w] = c_im - a_im
            own[k, 2, w] = c_im + a_im
            own[k, 3, w] = a_re - c_re
            for i in range(4):
                lu[p, i, w] += own[k, i, w]
    for w in range(LANES):
        size = abs(phase[w])
        phase[w] = np.sqrt(-np.conj(phase[w]) / size) if size > 0.0 else 1.0 + 0j


@kernel
def _defect(plan: BlockPlan, own: FloatArray, work: Work, defect: FloatArray) -> None:
    """‖q − M·x‖ of every lane, M taken from its definition and not from its factors."""
    x, residual, nodes = work.x, work.spare, (plan.retained_at, len(plan.retained_at))
    residual[:] = 0.0
    place(residual, nodes, work.q, np.ones(LANES))
    subtract_own(residual, x, nodes, own)
    for p in range(len(plan.diagonal)):
        y = plan.diagonal[p]
        subtract_admittance(residual, p, x, p, (y.real, y.imag))
        for e in range(plan.pointers[p], plan.pointers[p + 1]):
            j, upper, lower = plan.neighbours[e], plan.upper[e], plan.lower[e]
            subtract_admittance(residual, p, x, j, (upper.real, upper.imag))
            subtract_admittance(residual, j, x, p, (lower.real, lower.imag))
    defect[:] = 0.0
    for k in range(len(plan.diagonal)):
        for i in range(2):
            for w in range(LANES):
                defect[w] += residual[k, i, w] ** 2
    for w in range(LANES):
        defect[w] = sqrt(defect[w])


@kernel
def _largest_ritz(alpha: FloatArray, beta: FloatArray, sigma: FloatArray, residual: FloatArray) -> None:
    """σ = 1/√θ with θ the largest eigenvalue of T = BᵀB, B bidiagonal; the relative residual of θ.

    The residual is the least over k of the vectors from the first k steps, s_k = 1, s_i = −e_i·s_{i+1}/δ_i
    with pivots δ and off-diagonals e of T − θ: √((δ_k² + e_k²)/Σs²). Later steps may have lost orthogonality.
    """
    steps = len(alpha)
    main, off = np.empty((steps, LANES)), np.empty((steps, LANES))
    low, high = np.zeros(LANES), np.zeros(LANES)
    for k in range(steps):
        for w in range(LANES):
            main[k, w] = alpha[k, w] ** 2 + (beta[k - 1, w] ** 2 if k else 0.0)
            off[k, w] = (alpha[k, w] * beta[k, w]) ** 2
            low[w] = max(low[w], main[k, w])
    for k in range(steps):
        for w in range(LANES):
            edge = sqrt(off[k, w]) if k < steps - 1 else 0.0
            high[w] = max(high[w], (main[k, w] + edge + (sqrt(off[k - 1, w]) if k else 0.0)) * (1.0 + 1e-14))
    bisect((main, off), steps, (low, high), _BISECTIONS)
    for w in range(LANES):
        theta, pivot, norm, least = high[w], main[0, w] - high[w], 1.0, inf
        for k in range(steps):
            if k:
                norm = 1.0 + off[k - 1, w] / pivot**2 * norm
                pivot = main[k, w] - theta - off[k - 1, w] / pivot
            least = min(least, (pivot**2 + off[k, w]) / norm)
        sigma[w] = 1.0 / sqrt(theta)
        residual[w] = sqrt(least) / theta


@kernel
def _reciprocal_norm(square: FloatArray, norm: FloatArray, reciprocal: FloatArray) -> None:
    for w in range(LANES):
        norm[w] = sqrt(square[w])
        reciprocal[w] = 1.0 / norm[w] if norm[w] != 0.0 else 0.0


@kernel
def _start(work: Work, phase: ComplexArray, start: ComplexArray, admixture: ComplexArray) -> None:
    """First Lanczos vector: the start vector in its best phase, and a little of everything else."""
    for k in range(len(start)):
        for w in range(LANES):
            value = start[k] * phase[w] + admixture[k]
            work.q[k, 0, w], work.q[k, 1, w] = value.real, value.imag
    work.p[:] = 0.0


@kernel
def _lanczos(plan: BlockPlan, matrix: Matrix, work: Work, result: FloatArray) -> None:
    """Golub-Kahan bidiagonalisation of M⁻¹ on the retained nodes: Lanczos on (M·Mᵀ)⁻¹, masked.

    Without reorthogonalisation: orthogonality is lost when the largest Ritz value has converged, not before;
    afterwards that value repeats, which does not change it.
    """
    nodes = (plan.retained_at, len(plan.retained_at))
    q, p, x, alpha, beta = work.q, work.p, work.x, work.alpha, work.beta
    square, scale, back, norm = np.zeros(LANES), np.ones(LANES), np.zeros(LANES), np.empty(LANES)
    x[:] = 0.0
    place(x, nodes, q, scale)
    take(x, nodes, q, back, square)
    _reciprocal_norm(square, norm, scale)
    for step in range(len(alpha)):
        x[:] = 0.0
        place(x, nodes, q, scale)
        _solve(matrix.lu, plan, x)
        if step == 0:
            _defect(plan, matrix.own, work, result[2])
        take(x, nodes, p, back, square)
        _reciprocal_norm(square, alpha[step], scale)
        x[:] = 0.0
        place(x, nodes, p, scale)
        _solve_transposed(matrix.lu, plan, x)
        take(x, nodes, q, alpha[step], square)
        _reciprocal_norm(square, beta[step], scale)
        for w in range(LANES):
            back[w] = beta[step, w]
    _largest_ritz(alpha, beta, result[0], result[1])


@kernel
def analyse(
    snapshots: tuple[ComplexArray, ...],
    plan: BlockPlan,
    starts: tuple[ComplexArray, ComplexArray, ComplexArray],
    steps: int,
    out: FloatArray,
) -> None:
    """Lanczos estimate of σ_min, its relative residual, the defect of a solve and log|det|.

    Parameters
    ----------
    snapshots : v, s and slope, complex (snapshot, retained) [p.u.]; slope empty without volt-var.
    starts : start vector and its admixture (retained,), and the product that chooses its phase.
    steps : Lanczos steps, at least 1.
    out : (4, snapshot), receives the results in the order above.
    """
    v = snapshots[0]
    start, admixture, pairing = starts
    n, edges, count = len(plan.pointers) - 1, len(plan.neighbours), len(plan.retained_at)
    matrix = Matrix(
        np.empty((n + 2 * edges, 4, LANES)),
        np.empty((count, 4, LANES)),
        np.empty(LANES, dtype=np.complex128),
    )
    work = Work(
        np.empty((count, 2, LANES)),
        np.empty((count, 2, LANES)),
        np.empty((n, 2, LANES)),
        np.empty((n, 2, LANES)),
        np.zeros((steps, LANES)),
        np.zeros((steps, LANES)),
    )
    result = np.full((4, LANES), np.nan)
    for first in range(0, len(v), LANES):
        _load(matrix, plan, snapshots, first, pairing)
        _factorise(matrix.lu, plan, result[3])
        _start(work, matrix.phase, start, admixture)
        _lanczos(plan, matrix, work, result)
        for w in range(min(LANES, len(v) - first)):
            for i in range(4):
                out[i, first + w] = result[i, w]
