"""The fixed point v = w + Y⁻¹·i(v) for blocks of snapshots, compiled by numba.

A block is `LANES` snapshots side by side; the arrays of a block are (row, LANES). A snapshot that has
converged is frozen while its block goes on, so its result depends on nothing but itself: not on the batch
it came in, not on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.compiled import kernel
from dp_powerflow.powerflow._kernels.simd import (
    LANES,
    current_row,
    lower_row,
    mismatch_row,
    read_row,
    round_row,
    upper_row,
    write_row,
)
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

OK, NOT_FINITE, NEGATIVE = 0, 1, 2
"""Status of a snapshot's input."""


class Plan(NamedTuple):
    """All that the kernels know of a feeder; positions as in `factor.Factors`.

    Values of `lower`, `upper`, `pivot` and `slope` are real 2×2 blocks (row, 4). `lower` has a row per
    position: the factor's for the core, the recovery's for eliminated nodes. `equation` is the position of
    the node whose balance is row p, `source` the load whose current enters it (−1: none), `load_at` the load
    at position p, `at` the position of a load and `row_of` the load of a retained node. `start` is the
    deviation from no load at nominal injection and `weight` projects an injection on the nominal one; the
    two give the first guess. `strict` is 1 where active load must not be negative, else 0.
    """

    n_core: int
    lower_ptr: IntArray
    lower_col: IntArray
    lower: FloatArray
    upper_ptr: IntArray
    upper_col: IntArray
    upper: FloatArray
    pivot: FloatArray
    slope: FloatArray
    w_re: FloatArray
    w_im: FloatArray
    equation: IntArray
    source: IntArray
    load_at: IntArray
    at: IntArray
    row_of: IntArray
    start: ComplexArray
    weight_re: FloatArray
    weight_im: FloatArray
    strict: FloatArray
    curve_of: IntArray
    knots: FloatArray
    base: FloatArray
    slopes: FloatArray


class Check(NamedTuple):
    """Rows of Y against which the mismatch is measured, and 1/(tolerance + floor)² of each."""

    ptr: IntArray
    col: IntArray
    re: FloatArray
    im: FloatArray
    limit: FloatArray


class Task(NamedTuple):
    """A batch to be solved, and where its results go.

    `load`, `generation` and `out` are complex (snapshot, node) seen as float64 (snapshot, 2·node); v is
    written at the positions `targets`. `status` says whether a snapshot's input is sound.
    """

    load: FloatArray
    generation: FloatArray
    out: FloatArray
    targets: IntArray
    iterations: IntArray
    mismatch: FloatArray
    converged: BoolArray
    status: IntArray
    tolerance: float
    max_iterations: int


class Work(NamedTuple):
    """Arrays of one block, all (row, LANES).

    x: deviation from no load; s: injection; i: right-hand side behind x; f, g: fixed and turned part of s
    under volt-var; active: 1 until frozen; change, worst: largest squared mismatches; lane: scratch.
    """

    x_re: FloatArray
    x_im: FloatArray
    s_re: FloatArray
    s_im: FloatArray
    i_re: FloatArray
    i_im: FloatArray
    f_re: FloatArray
    f_im: FloatArray
    g_re: FloatArray
    g_im: FloatArray
    active: FloatArray
    change: FloatArray
    worst: FloatArray
    lane: FloatArray


def new_work(plan: Plan) -> Work:
    """Zeroed arrays of one block, aligned to cache lines so that no vector load straddles two."""
    n, n_load = len(plan.w_re), len(plan.at)
    n_turned = n_load if (plan.curve_of >= 0).any() else 0
    rows = [n] * 2 + [n_load] * 4 + [n_turned] * 4 + [1, 1, 3, 3]
    memory = np.zeros(sum(rows) * LANES + 8)
    begin = (-memory.ctypes.data // 8) % 8
    arrays = []
    for count in rows:
        arrays.append(memory[begin : begin + count * LANES].reshape(count, LANES))
        begin += count * LANES
    return Work(*arrays)


@kernel
def solve_range(first: int, last: int, plan: Plan, check: Check, work: Work, task: Task) -> None:
    """Solve the snapshots first ≤ k < last."""
    tolerance2 = task.tolerance * task.tolerance
    for begin in range(first, last, LANES):
        count = min(LANES, last - begin)
        going = _read(plan, work, task, begin, count)
        spent = task.iterations[begin : begin + count]
        for lane in range(count):
            spent[lane] = 1
        _currents(plan, work)
        _apply_factors(plan, work)
        while True:
            _iterate(plan, work, tolerance2, task.max_iterations, going, spent)
            _measure(plan, check, work)
            going = 0
            for lane in range(count):
                k = begin + lane
                finite = np.isfinite(work.worst[2, lane])
                task.mismatch[k] = np.sqrt(work.worst[0, lane]) if finite else np.inf
                task.converged[k] = finite and work.worst[1, lane] <= 1.0
                # The forecast of the last mismatch was too kind: go on.
                again = finite and not task.converged[k] and task.status[k] == OK
                if again and task.iterations[k] < task.max_iterations:
                    work.active[0, lane] = 1.0
                    going += 1
            if going == 0:
                break
        _write(plan, work, task, begin, count)


@kernel
def _read(plan: Plan, work: Work, task: Task, begin: int, count: int) -> int:
    """Bring a block's injections into lanes, with the first guess of its voltages; how many are sound."""
    last, width = begin + count - 1, plan.at.size
    _fill(work.lane, 0.0)
    for column in range(width):
        strict = plan.strict[plan.row_of[column]]
        where = (begin, last, column, width)
        read_row(plan, task.load, (work.s_re, work.s_im, work.lane), where, (-1.0, strict))
    for m in range(work.f_re.shape[0]):
        for lane in range(LANES):
            work.f_re[m, lane] = work.s_re[m, lane]
            work.f_im[m, lane] = work.s_im[m, lane]
    if task.generation.shape[0] > 0:
        _read_generation(plan, work, task.generation, begin, last)
    going = 0
    _fill(work.active, 0.0)
    for lane in range(count):
        finite = np.isfinite(work.lane[0, lane])
        status = NOT_FINITE if not finite else (NEGATIVE if work.lane[2, lane] < 0.0 else OK)
        task.status[begin + lane] = status
        if status == OK:
            work.active[0, lane] = 1.0
            going += 1
    for lane in range(LANES):
        work.lane[1, lane] = min(max(work.lane[1, lane], -1.0), 1.5)
    for m in range(width):
        re, im, at = plan.start[m].real, plan.start[m].imag, plan.at[m]
        for lane in range(LANES):
            work.x_re[at, lane] = work.lane[1, lane] * re
            work.x_im[at, lane] = work.lane[1, lane] * im
    return going


@kernel
def _read_generation(plan: Plan, work: Work, generation: FloatArray, begin: int, last: int) -> None:
    """Add generation to the injections, or keep it apart where volt-var turns it."""
    for column in range(plan.at.size):
        m = plan.row_of[column]
        where = (begin, last, column, plan.at.size)
        # The right-hand side is not in use yet; it receives the generation.
        read_row(plan, generation, (work.i_re, work.i_im, work.lane), where, (1.0, 0.0))
        turned = plan.curve_of[m] >= 0
        for lane in range(LANES):
            if turned:
                work.g_re[m, lane] = work.i_re[m, lane]
                work.g_im[m, lane] = work.i_im[m, lane]
            else:
                work.s_re[m, lane] += work.i_re[m, lane]
                work.s_im[m, lane] += work.i_im[m, lane]


@kernel
def _iterate(
    plan: Plan, work: Work, tolerance2: float, max_iterations: int, going: int, iterations: IntArray
) -> None:
    """Iterate until every snapshot of the block is frozen.

    Convergence is linear, so the mismatch after the next solve is foretold by the last two; the currents
    are frozen one solve ahead, and the last solve is common to the block.
    """
    before = work.lane[2]
    for lane in range(LANES):
        before[lane] = 0.0
    while going > 0:
        _currents(plan, work)
        for lane in range(iterations.size):
            if work.active[0, lane] > 0.0:
                e2 = work.change[0, lane]
                near = e2 < before[lane] and e2 * e2 <= 0.0625 * tolerance2 * before[lane]
                before[lane] = e2
                iterations[lane] += 1
                if e2 <= tolerance2 or near or iterations[lane] >= max_iterations or not np.isfinite(e2):
                    work.active[0, lane] = 0.0
                    going -= 1
        _apply_factors(plan, work)


@kernel
def _fill(array: FloatArray, value: float) -> None:
    """array[:] = value; numba takes seconds to compile the slice."""
    for row in range(array.shape[0]):
        for lane in range(array.shape[1]):
            array[row, lane] = value


@kernel
def _apply_factors(plan: Plan, work: Work) -> None:
    """x = (Y_core + slope)⁻¹·i."""
    for row in range(plan.n_core):
        lower_row(plan, work, row, plan.source[row])
    for row in range(plan.n_core - 1, -1, -1):
        upper_row(plan, work, row)


@kernel
def _currents(plan: Plan, work: Work) -> None:
    """Right-hand side of every load at the present voltage, and how much it moved."""
    _fill(work.change, 0.0)
    for m in range(plan.at.size):
        if plan.curve_of[m] >= 0:
            _turn(plan, work, m)
        current_row(plan, work, m)


@kernel
def _turn(plan: Plan, work: Work, m: int) -> None:
    """Injection of a node under volt-var at the present voltage: s = f + g·exp(jφ(|v|)) (Eq. voltvar)."""
    curve, at = plan.curve_of[m], plan.at[m]
    for lane in range(LANES):
        u = work.x_re[at, lane] + plan.w_re[at]
        v = work.x_im[at, lane] + plan.w_im[at]
        q = voltvar_share(plan, curve, np.sqrt(u * u + v * v))
        c = np.sqrt(1.0 - q * q)
        work.s_re[m, lane] = work.f_re[m, lane] + c * work.g_re[m, lane] - q * work.g_im[m, lane]
        work.s_im[m, lane] = work.f_im[m, lane] + c * work.g_im[m, lane] + q * work.g_re[m, lane]


@kernel
def voltvar_share(plan: Plan, curve: int, u: float) -> float:
    """q(u) of a curve, without branches so that it runs in lanes."""
    q: float = plan.base[curve]
    for segment in range(plan.slopes.shape[1]):
        left, right = plan.knots[curve, segment], plan.knots[curve, segment + 1]
        q += plan.slopes[curve, segment] * (min(max(u, left), right) - left)
    return q


@kernel
def _measure(plan: Plan, check: Check, work: Work) -> None:
    """Power mismatch of the voltages as they will be returned, measured with the rows of `check`."""
    n_check = check.ptr.size - 1
    for row in range(plan.n_core, n_check):
        lower_row(plan, work, row, -1)
    for row in range(n_check):
        round_row(plan, work, row)
    for m in range(plan.at.size):
        if plan.curve_of[m] >= 0:
            _turn(plan, work, m)
    _fill(work.worst, 0.0)
    for row in range(n_check):
        mismatch_row(plan, check, work, row)


@kernel
def _write(plan: Plan, work: Work, task: Task, begin: int, count: int) -> None:
    width = task.targets.size
    if count == LANES:
        for column in range(width):
            where = (begin, begin + LANES - 1, column, width)
            write_row(plan, work, task.out, where, task.targets[column])
        return
    for column in range(width):
        at = task.targets[column]
        for lane in range(count):
            task.out[begin + lane, 2 * column] = plan.w_re[at] + work.x_re[at, lane]
            task.out[begin + lane, 2 * column + 1] = plan.w_im[at] + work.x_im[at, lane]
