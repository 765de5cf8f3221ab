"""The fixed point v = w + Y⁻¹·i(v) for blocks of snapshots, compiled by numba.

A block is `LANES` snapshots side by side; the arrays of a block are (row, LANES). A snapshot that has
converged is frozen while its block goes on, so its result depends on nothing but itself: not on the batch
it came in, not on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from dp_powerflow.powerflow._kernels.lanes import (
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
    weight: ComplexArray
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


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def solve_range(
    first: int,
    last: int,
    plan: Plan,
    check: Check,
    work: Work,
    load: FloatArray,
    generation: FloatArray,
    tolerance: float,
    max_iterations: int,
    out: FloatArray,
    targets: IntArray,
    iterations: IntArray,
    mismatch: FloatArray,
    converged: BoolArray,
    status: IntArray,
) -> None:
    """Solve the snapshots first ≤ k < last and write v at the positions `targets`.

    load, generation, out : complex (snapshot, node) seen as float64 (snapshot, 2·node).
    """
    for begin in range(first, last, LANES):
        count = min(LANES, last - begin)
        going = _read(plan, work, load, generation, begin, count, status)
        spent = iterations[begin : begin + count]
        for lane in range(count):
            spent[lane] = 1
        _currents(plan, work)
        _apply_factors(plan, work)
        while True:
            _iterate(
                plan, work, tolerance * tolerance, max_iterations, going, iterations[begin : begin + count]
            )
            _measure(plan, check, work)
            going = 0
            for lane in range(count):
                k = begin + lane
                finite = np.isfinite(work.worst[2, lane])
                mismatch[k] = np.sqrt(work.worst[0, lane]) if finite else np.inf
                converged[k] = finite and work.worst[1, lane] <= 1.0
                # The forecast of the last mismatch was too kind: go on.
                if finite and not converged[k] and status[k] == OK and iterations[k] < max_iterations:
                    work.active[0, lane] = 1.0
                    going += 1
            if going == 0:
                break
        _write(plan, work, begin, count, out, targets)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _read(
    plan: Plan,
    work: Work,
    load: FloatArray,
    generation: FloatArray,
    begin: int,
    count: int,
    status: IntArray,
) -> int:
    """Bring a block's injections into lanes, with the first guess of its voltages; how many are sound."""
    last, width = begin + count - 1, plan.at.size
    _fill(work.lane, 0.0)
    for column in range(width):
        m = plan.row_of[column]
        towards = plan.weight[m]
        read_row(
            load,
            width,
            begin,
            last,
            column,
            m,
            -1.0,
            plan.strict[m],
            work.s_re,
            work.s_im,
            towards.real,
            towards.imag,
            work.lane,
        )
    for m in range(work.f_re.shape[0]):
        for lane in range(LANES):
            work.f_re[m, lane] = work.s_re[m, lane]
            work.f_im[m, lane] = work.s_im[m, lane]
    if generation.shape[0] > 0:
        _read_generation(plan, work, generation, begin, last)
    going = 0
    _fill(work.active, 0.0)
    for lane in range(count):
        finite = np.isfinite(work.lane[0, lane])
        status[begin + lane] = NOT_FINITE if not finite else (NEGATIVE if work.lane[2, lane] < 0.0 else OK)
        if status[begin + lane] == OK:
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


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _read_generation(plan: Plan, work: Work, generation: FloatArray, begin: int, last: int) -> None:
    """Add generation to the injections, or keep it apart where volt-var turns it."""
    for column in range(plan.at.size):
        m = plan.row_of[column]
        towards = plan.weight[m]
        # The right-hand side is not in use yet; it receives the generation.
        read_row(
            generation,
            plan.at.size,
            begin,
            last,
            column,
            m,
            1.0,
            0.0,
            work.i_re,
            work.i_im,
            towards.real,
            towards.imag,
            work.lane,
        )
        turned = plan.curve_of[m] >= 0
        for lane in range(LANES):
            if turned:
                work.g_re[m, lane] = work.i_re[m, lane]
                work.g_im[m, lane] = work.i_im[m, lane]
            else:
                work.s_re[m, lane] += work.i_re[m, lane]
                work.s_im[m, lane] += work.i_im[m, lane]


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
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


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _fill(array: FloatArray, value: float) -> None:
    """array[:] = value; numba takes seconds to compile the slice."""
    for row in range(array.shape[0]):
        for lane in range(array.shape[1]):
            array[row, lane] = value


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _apply_factors(plan: Plan, work: Work) -> None:
    """x = (Y_core + slope)⁻¹·i."""
    for row in range(plan.n_core):
        _lower(plan, work, row, plan.source[row])
    for row in range(plan.n_core - 1, -1, -1):
        start, stop = plan.upper_ptr[row], plan.upper_ptr[row + 1]
        upper_row(work.x_re, work.x_im, row, plan.pivot, plan.upper, plan.upper_col, start, stop)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _lower(plan: Plan, work: Work, row: int, source: int) -> None:
    start, stop = plan.lower_ptr[row], plan.lower_ptr[row + 1]
    lower_row(
        work.x_re, work.x_im, row, work.i_re, work.i_im, source, plan.lower, plan.lower_col, start, stop
    )


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _currents(plan: Plan, work: Work) -> None:
    """Right-hand side of every load at the present voltage, and how much it moved."""
    _fill(work.change, 0.0)
    for m in range(plan.at.size):
        if plan.curve_of[m] >= 0:
            _turn(plan, work, m)
        current_row(
            work.x_re,
            work.x_im,
            plan.at[m],
            plan.w_re,
            plan.w_im,
            work.s_re,
            work.s_im,
            plan.slope,
            work.i_re,
            work.i_im,
            m,
            work.active,
            work.change,
        )


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
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


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def voltvar_share(plan: Plan, curve: int, u: float) -> float:
    """q(u) of a curve, without branches so that it runs in lanes."""
    q: float = plan.base[curve]
    for segment in range(plan.slopes.shape[1]):
        left, right = plan.knots[curve, segment], plan.knots[curve, segment + 1]
        q += plan.slopes[curve, segment] * (min(max(u, left), right) - left)
    return q


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _measure(plan: Plan, check: Check, work: Work) -> None:
    """Power mismatch of the voltages as they will be returned, measured with the rows of `check`."""
    n_check = check.ptr.size - 1
    for row in range(plan.n_core, n_check):
        _lower(plan, work, row, -1)
    for row in range(n_check):
        round_row(work.x_re, work.x_im, row, plan.w_re, plan.w_im)
    for m in range(plan.at.size):
        if plan.curve_of[m] >= 0:
            _turn(plan, work, m)
    _fill(work.worst, 0.0)
    for row in range(n_check):
        mismatch_row(
            work.x_re,
            work.x_im,
            row,
            plan.w_re,
            plan.w_im,
            work.s_re,
            work.s_im,
            plan.load_at[row],
            check.limit,
            work.worst,
            check.re,
            check.im,
            check.col,
            check.ptr[row],
            check.ptr[row + 1],
        )


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _write(plan: Plan, work: Work, begin: int, count: int, out: FloatArray, targets: IntArray) -> None:
    if count == LANES:
        for column in range(targets.size):
            at = targets[column]
            write_row(out, targets.size, begin, column, work.x_re, work.x_im, at, plan.w_re, plan.w_im)
        return
    for column in range(targets.size):
        at = targets[column]
        for lane in range(count):
            out[begin + lane, 2 * column] = plan.w_re[at] + work.x_re[at, lane]
            out[begin + lane, 2 * column + 1] = plan.w_im[at] + work.x_im[at, lane]
