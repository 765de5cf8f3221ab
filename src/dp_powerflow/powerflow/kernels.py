"""The fixed point v = w + Y⁻¹·i(v) for blocks of snapshots, compiled by numba.

A block is `LANES` snapshots side by side; the arrays of a block are (row, LANES). A snapshot that has
converged is frozen while its block goes on, so its result depends on nothing but itself: not on the batch
it came in, not on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from dp_powerflow.powerflow.kernels_lanes import LANES, current_row, lower_row, mismatch_row, upper_row
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

OK, NOT_FINITE, NEGATIVE = 0, 1, 2
"""Status of a snapshot's input."""


class Plan(NamedTuple):
    """All that the kernels know of a feeder; positions as in `factor.Factors`.

    `lower` has a row per position: the factor's for the core, the recovery's for eliminated nodes. `equation`
    is the position of the node whose balance is row p, `source` the load whose current enters it (−1: none), `load_at` the load at position p, `at` the
    position of a load. `start` is the deviation from no load at nominal injection and `weight` projects an
    injection on the nominal one; the two give the first guess.
    """

    n_core: int
    lower_ptr: IntArray
    lower_col: IntArray
    lower_re: FloatArray
    lower_im: FloatArray
    upper_ptr: IntArray
    upper_col: IntArray
    upper_re: FloatArray
    upper_im: FloatArray
    pivot_re: FloatArray
    pivot_im: FloatArray
    w_re: FloatArray
    w_im: FloatArray
    equation: IntArray
    source: IntArray
    load_at: IntArray
    at: IntArray
    start: ComplexArray
    weight: ComplexArray
    strict: BoolArray
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

    x: deviation from no load; s: injection; i: current behind x; f, g: fixed and turned part of s under
    volt-var; j: current at x; active: 1 until frozen; change, worst: largest squared mismatches.
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
    j_re: FloatArray
    j_im: FloatArray
    active: FloatArray
    change: FloatArray
    worst: FloatArray


def new_work(plan: Plan) -> Work:
    """Zeroed arrays of one block, aligned to cache lines so that no vector load straddles two."""
    n, n_load = len(plan.w_re), len(plan.at)
    n_voltvar = n_load if (plan.curve_of >= 0).any() else 1
    rows = [n] * 2 + [n_load] * 4 + [n_voltvar] * 4 + [n_load] * 2 + [1, 1, 2]
    memory = np.zeros(sum(rows) * LANES + 8)
    begin = (-memory.ctypes.data // 8) % 8
    arrays = []
    for count in rows:
        arrays.append(memory[begin : begin + count * LANES].reshape(count, LANES))
        begin += count * LANES
    return Work(*arrays)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def solve_range(  # noqa: PLR0913
    first: int,
    last: int,
    plan: Plan,
    check: Check,
    work: Work,
    load: ComplexArray,
    generation: ComplexArray,
    tolerance: float,
    max_iterations: int,
    out: ComplexArray,
    targets: IntArray,
    iterations: IntArray,
    mismatch: FloatArray,
    converged: BoolArray,
    status: IntArray,
) -> None:
    """Solve the snapshots first ≤ k < last and write v at the positions `targets`."""
    for begin in range(first, last, LANES):
        count = min(LANES, last - begin)
        _read(plan, work, load, generation, begin, count, status)
        _iterate(plan, work, tolerance * tolerance, max_iterations, begin, count, iterations)
        n_check = check.ptr.size - 1
        if n_check > plan.n_core:
            _recover(plan, work)
        _measure(plan, check, work)
        for lane in range(count):
            k = begin + lane
            mismatch[k] = np.sqrt(work.worst[0, lane])
            converged[k] = work.worst[1, lane] <= 1.0
        _write(plan, work, begin, count, out, targets)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _read(
    plan: Plan,
    work: Work,
    load: ComplexArray,
    generation: ComplexArray,
    begin: int,
    count: int,
    status: IntArray,
) -> None:
    """Bring a block's injections into lanes, with the first guess of its voltages."""
    n_load = plan.at.size
    has_generation = generation.shape[0] > 0
    work.s_re[:] = 0.0
    work.s_im[:] = 0.0
    work.f_re[:] = 0.0
    work.f_im[:] = 0.0
    work.g_re[:] = 0.0
    work.g_im[:] = 0.0
    work.i_re[:] = 0.0
    work.i_im[:] = 0.0
    work.x_re[:] = 0.0
    work.x_im[:] = 0.0
    work.active[:] = 0.0
    for lane in range(count):
        k = begin + lane
        total = 0.0
        scale = 0.0
        negative = False
        for m in range(n_load):
            drawn = load[k, m]
            negative |= plan.strict[m] and drawn.real < 0.0
            s_re, s_im = -drawn.real, -drawn.imag
            if plan.curve_of[m] >= 0:
                work.f_re[m, lane] = s_re
                work.f_im[m, lane] = s_im
            if has_generation:
                made = generation[k, m]
                total += abs(made.real) + abs(made.imag)
                if plan.curve_of[m] >= 0:
                    work.g_re[m, lane] = made.real
                    work.g_im[m, lane] = made.imag
                else:
                    s_re += made.real
                    s_im += made.imag
            total += abs(drawn.real) + abs(drawn.imag)
            scale += plan.weight[m].real * s_re + plan.weight[m].imag * s_im
            work.s_re[m, lane] = s_re
            work.s_im[m, lane] = s_im
        status[k] = NOT_FINITE if not np.isfinite(total) else (NEGATIVE if negative else OK)
        if status[k] == OK:
            work.active[0, lane] = 1.0
            scale = min(max(scale, -1.0), 1.5)
            for m in range(n_load):
                work.x_re[plan.at[m], lane] = scale * plan.start[m].real
                work.x_im[plan.at[m], lane] = scale * plan.start[m].imag
        else:
            for m in range(n_load):
                work.s_re[m, lane] = work.s_im[m, lane] = 0.0
                if plan.curve_of[m] >= 0:
                    work.f_re[m, lane] = work.f_im[m, lane] = 0.0
                    work.g_re[m, lane] = work.g_im[m, lane] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _iterate(
    plan: Plan,
    work: Work,
    tolerance2: float,
    max_iterations: int,
    begin: int,
    count: int,
    iterations: IntArray,
) -> None:
    """Iterate until every snapshot of the block is frozen.

    Convergence is linear, so the mismatch after the next solve is foretold by the last two; the currents
    are frozen one solve ahead, and the last solve is common to the block.
    """
    before = np.zeros(LANES)
    _currents(plan, work, work.i_re, work.i_im)
    going = 0
    for lane in range(count):
        going += work.active[0, lane] > 0.0
        iterations[begin + lane] = 1
    solves = 1
    _apply_factors(plan, work)
    while going > 0:
        _currents(plan, work, work.i_re, work.i_im)
        solves += 1
        for lane in range(count):
            if work.active[0, lane] > 0.0:
                e2 = work.change[0, lane]
                near = solves > 2 and e2 < before[lane] and e2 * e2 <= 0.0625 * tolerance2 * before[lane]
                before[lane] = e2
                if e2 <= tolerance2 or near or solves >= max_iterations or not np.isfinite(e2):
                    work.active[0, lane] = 0.0
                    iterations[begin + lane] = solves
                    going -= 1
        _apply_factors(plan, work)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _apply_factors(plan: Plan, work: Work) -> None:
    """x = Y_core⁻¹·i."""
    x_re, x_im = work.x_re, work.x_im
    for row in range(plan.n_core):
        lower_row(
            x_re,
            x_im,
            row,
            work.i_re,
            work.i_im,
            plan.source[row],
            plan.lower_re,
            plan.lower_im,
            plan.lower_col,
            plan.lower_ptr[row],
            plan.lower_ptr[row + 1],
        )
    for row in range(plan.n_core - 1, -1, -1):
        upper_row(
            x_re,
            x_im,
            row,
            plan.pivot_re,
            plan.pivot_im,
            plan.upper_re,
            plan.upper_im,
            plan.upper_col,
            plan.upper_ptr[row],
            plan.upper_ptr[row + 1],
        )


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _recover(plan: Plan, work: Work) -> None:
    """Deviation from no load at the eliminated nodes."""
    for row in range(plan.n_core, plan.w_re.size):
        lower_row(
            work.x_re,
            work.x_im,
            row,
            work.i_re,
            work.i_im,
            -1,
            plan.lower_re,
            plan.lower_im,
            plan.lower_col,
            plan.lower_ptr[row],
            plan.lower_ptr[row + 1],
        )


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _currents(plan: Plan, work: Work, i_re: FloatArray, i_im: FloatArray) -> None:
    """i(v) of every load, and how much it moved."""
    work.change[:] = 0.0
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
            i_re,
            i_im,
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
    q = plan.base[curve]
    for segment in range(plan.slopes.shape[1]):
        left, right = plan.knots[curve, segment], plan.knots[curve, segment + 1]
        q += plan.slopes[curve, segment] * (min(max(u, left), right) - left)
    return q


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _measure(plan: Plan, check: Check, work: Work) -> None:
    """Power mismatch of the voltages as they will be returned, measured with the rows of `check`."""
    n_check = check.ptr.size - 1
    for row in range(n_check):
        for lane in range(LANES):
            # What is returned is w + x rounded to double; measure that, not x.
            work.x_re[row, lane] = (plan.w_re[row] + work.x_re[row, lane]) - plan.w_re[row]
            work.x_im[row, lane] = (plan.w_im[row] + work.x_im[row, lane]) - plan.w_im[row]
    work.active[:] = 1.0
    _currents(plan, work, work.j_re, work.j_im)
    work.worst[:] = 0.0
    for row in range(n_check):
        mismatch_row(
            work.x_re,
            work.x_im,
            row,
            plan.w_re,
            plan.w_im,
            work.j_re,
            work.j_im,
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
def _write(
    plan: Plan, work: Work, begin: int, count: int, out: ComplexArray, targets: IntArray
) -> None:
    for lane in range(count):
        k = begin + lane
        for column in range(targets.size):
            at = targets[column]
            out[k, column] = complex(
                plan.w_re[at] + work.x_re[at, lane], plan.w_im[at] + work.x_im[at, lane]
            )
