"""The fixed point v = w + Y⁻¹·i(v) for blocks of snapshots, compiled by numba.

A block is `LANES` snapshots side by side; the arrays of a block are (row, LANES). A snapshot that has
converged is frozen while its block goes on, so its result depends on nothing but itself: not on the batch
it came in, not on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.compiled import inner, kernel
from dp_powerflow.powerflow._kernels import simd
from dp_powerflow.powerflow._kernels.simd import LANES
from dp_powerflow.powerflow.factor import BlockPlan, factor_blocks, solve_blocks
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

OK, NOT_FINITE, NEGATIVE = 0, 1, 2
"""Status of a snapshot's input."""


class Plan(NamedTuple):
    """All that the kernels know of a feeder; positions as in `factor.Factors`.

    Values of `lower`, `upper`, `pivot` and `slope` are real 2×2 blocks (row, 4). `lower` has a row per
    position: the factor's for the core, the recovery's for eliminated nodes. `load_at` is the load at a
    position (−1: none), `at` the position of a load and `row_of` the load of a retained node. `start` is the
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
        simd.read_row(plan, task.load, (work.s_re, work.s_im, work.lane), where, (-1.0, strict))
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
        simd.read_row(plan, generation, (work.i_re, work.i_im, work.lane), where, (1.0, 0.0))
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
        simd.lower_row(plan, work, row, plan.load_at[row])
    for row in range(plan.n_core - 1, -1, -1):
        simd.upper_row(plan, work, row)


@kernel
def _currents(plan: Plan, work: Work) -> None:
    """Right-hand side of every load at the present voltage, and how much it moved."""
    _fill(work.change, 0.0)
    for m in range(plan.at.size):
        if plan.curve_of[m] >= 0:
            _turn(plan, work, m)
        simd.current_row(plan, work, m)


@kernel
def _turn(plan: Plan, work: Work, m: int) -> None:
    """Injection of a node under volt-var at the present voltage: s = f + g·exp(jφ(|v|)) (Eq. voltvar)."""
    curve, at = plan.curve_of[m], plan.at[m]
    for lane in range(LANES):
        u = work.x_re[at, lane] + plan.w_re[at]
        v = work.x_im[at, lane] + plan.w_im[at]
        q = curve_at(plan.knots, plan.base, plan.slopes, curve, np.sqrt(u * u + v * v))
        c = np.sqrt(1.0 - q * q)
        work.s_re[m, lane] = work.f_re[m, lane] + c * work.g_re[m, lane] - q * work.g_im[m, lane]
        work.s_im[m, lane] = work.f_im[m, lane] + c * work.g_im[m, lane] + q * work.g_re[m, lane]


@inner
def curve_at(knots: FloatArray, base: FloatArray, slopes: FloatArray, curve: int, u: float) -> float:
    """q(u) of a curve, without branches so that it runs in lanes."""
    q: float = base[curve]
    for segment in range(slopes.shape[1]):
        left, right = knots[curve, segment], knots[curve, segment + 1]
        q += slopes[curve, segment] * (min(max(u, left), right) - left)
    return q


@kernel
def _measure(plan: Plan, check: Check, work: Work) -> None:
    """Power mismatch of the voltages as they will be returned, measured with the rows of `check`."""
    n_check = check.ptr.size - 1
    for row in range(plan.n_core, n_check):
        simd.lower_row(plan, work, row, -1)
    for row in range(n_check):
        simd.round_row(plan, work, row)
    for m in range(plan.at.size):
        if plan.curve_of[m] >= 0:
            _turn(plan, work, m)
    _fill(work.worst, 0.0)
    for row in range(n_check):
        simd.mismatch_row(plan, check, work, row)


@kernel
def _write(plan: Plan, work: Work, task: Task, begin: int, count: int) -> None:
    width = task.targets.size
    if count == LANES:
        for column in range(width):
            where = (begin, begin + LANES - 1, column, width)
            simd.write_row(plan, work, task.out, where, task.targets[column])
        return
    for column in range(width):
        at = task.targets[column]
        for lane in range(count):
            task.out[begin + lane, 2 * column] = plan.w_re[at] + work.x_re[at, lane]
            task.out[begin + lane, 2 * column + 1] = plan.w_im[at] + work.x_im[at, lane]


# ----------------------------------------------------------------------------------------------------------
# Newton's method for the few snapshots on which the fixed point is slow, compiled by numba.
#
# Near the voltage-collapse nose the fixed point stops contracting although a solution exists. Newton's method
# finds it, but may also find a low-voltage one. So the injections are raised from zero in steps, each solved
# from the last; a step counts only if the mismatch falls at every iterate and the Jacobian's determinant has
# the sign that it has at no load. What is found is the branch that starts at no load, the fixed point's own.
#
# The Jacobian of Y·x − i(v) is real-linear: see `elimination`.


ITERATIONS_PER_STEP = 25
SMALLEST_STEP = 1.0 / 256.0
MAX_ITERATIONS = 400
_ROUGH = 1e-5
"""Mismatch at which an intermediate step counts as solved [p.u.]."""


class Injection(NamedTuple):
    """Injection of every load of one snapshot, complex (load,) [p.u.]: fixed, and turned by volt-var."""

    fixed: ComplexArray
    turned: ComplexArray


class System(NamedTuple):
    """The equations of the core: arrays of the feeder, block pattern of the Jacobian, rows of Y."""

    plan: Plan
    blocks: BlockPlan
    core: Check


@kernel
def newton_range(snapshots: IntArray, system: System, check: Check, task: Task) -> None:
    """Solve the listed snapshots one by one; those without a solution become NaN."""
    plan = system.plan
    n_load, n = plan.at.size, plan.w_re.size
    injection = Injection(np.empty(n_load, dtype=np.complex128), np.zeros(n_load, dtype=np.complex128))
    current = np.empty(n_load, dtype=np.complex128)
    x = np.empty(n, dtype=np.complex128)
    for index in range(snapshots.size):
        k = snapshots[index]
        _take(plan, task, k, injection)
        spent, solved = _continue(system, injection, x)
        task.iterations[k] += spent
        worst, excess = np.inf, np.inf
        if solved:
            for row in range(plan.n_core, n):
                x[row] = 0.0
                for p in range(plan.lower_ptr[row], plan.lower_ptr[row + 1]):
                    x[row] -= complex(plan.lower[p, 0], plan.lower[p, 2]) * x[plan.lower_col[p]]
            for row in range(n):
                x[row] = _voltage(plan, row, x) - complex(plan.w_re[row], plan.w_im[row])
            _inject(plan, injection, 1.0, x, current)
            worst, excess = _mismatch(plan, check, x, current)
            task.mismatch[k] = worst
        task.converged[k] = solved and excess <= 1.0
        for column in range(task.targets.size):
            v = _voltage(plan, task.targets[column], x) if task.converged[k] else complex(np.nan, np.nan)
            task.out[k, 2 * column], task.out[k, 2 * column + 1] = v.real, v.imag


@kernel
def _take(plan: Plan, task: Task, k: int, injection: Injection) -> None:
    """Injections of snapshot k."""
    for column in range(plan.at.size):
        m = plan.row_of[column]
        injection.fixed[m] = -complex(task.load[k, 2 * column], task.load[k, 2 * column + 1])
        injection.turned[m] = 0.0
        if task.generation.shape[0] > 0:
            generation = complex(task.generation[k, 2 * column], task.generation[k, 2 * column + 1])
            if plan.curve_of[m] >= 0:
                injection.turned[m] = generation
            else:
                injection.fixed[m] += generation


@kernel
def _continue(system: System, injection: Injection, x: ComplexArray) -> tuple[int, bool]:
    """Raise the injections from 0 to 1; x holds the deviation from no load at the end."""
    lam, step, spent = 0.0, 1.0, 0
    n_core = system.plan.n_core
    good = np.zeros(n_core, dtype=np.complex128)
    factors = np.empty((system.blocks.col.size, 4))
    place = np.empty(n_core, dtype=np.int64)
    while lam < 1.0 and step >= SMALLEST_STEP and spent < MAX_ITERATIONS:
        target = min(1.0, lam + step)
        for row in range(n_core):
            x[row] = good[row]
        used, solved = _newton(system, injection, target, factors, place, x)
        spent += used
        if solved:
            lam = target
            for row in range(n_core):
                good[row] = x[row]
            step *= 2.0
        else:
            step *= 0.5
    return spent, lam >= 1.0


@kernel
def _newton(
    system: System, injection: Injection, lam: float, factors: FloatArray, place: IntArray, x: ComplexArray
) -> tuple[int, bool]:
    """Newton's method at one level of the injections; x is the start and becomes the solution."""
    plan, blocks, core = system
    current = np.empty(plan.at.size, dtype=np.complex128)
    rhs = np.empty(plan.n_core, dtype=np.complex128)
    extra = np.empty((plan.at.size, 4))
    before = np.inf
    for used in range(ITERATIONS_PER_STEP):
        _inject(plan, injection, lam, x, current)
        worst, excess = _mismatch(plan, core, x, current)
        for m in range(plan.at.size):
            load_block(plan, m, injection, lam, x, extra)
        negative = factor_blocks(blocks, blocks.slot, extra, plan.n_core, factors, place)
        # The last level is carried on until another iterate would not lower the mismatch.
        stuck = not worst < 0.5 * before
        if (lam < 1.0 and worst <= _ROUGH) or excess <= 0.01 or (excess <= 1.0 and stuck):
            return used, negative % 2 == 0
        if negative < 0 or not worst < before:
            return used, False
        before = worst
        for row in range(plan.n_core):
            rhs[row] = _residual(plan, core, x, current, row)
        solve_blocks(blocks, factors, rhs)
        for row in range(plan.n_core):
            x[row] += rhs[row]
    return ITERATIONS_PER_STEP, False


@kernel
def _inject(plan: Plan, injection: Injection, lam: float, x: ComplexArray, current: ComplexArray) -> None:
    """i(v) at v = w + x, injections times lam."""
    for m in range(plan.at.size):
        v, s = _voltage(plan, plan.at[m], x), injection.fixed[m]
        if plan.curve_of[m] >= 0:
            q = curve_at(plan.knots, plan.base, plan.slopes, plan.curve_of[m], _modulus(v))
            s += injection.turned[m] * complex(np.sqrt(1.0 - q * q), q)
        current[m] = lam * np.conj(s / v)


@kernel
def _mismatch(plan: Plan, check: Check, x: ComplexArray, current: ComplexArray) -> tuple[float, float]:
    """Largest power mismatch, and the largest in units of its row's limit (NaN counts as infinite)."""
    worst, excess = 0.0, 0.0
    for row in range(check.ptr.size - 1):
        size = _modulus(_residual(plan, check, x, current, row)) * _modulus(_voltage(plan, row, x))
        if not np.isfinite(size):
            return np.inf, np.inf
        worst = max(worst, size)
        excess = max(excess, size * np.sqrt(check.limit[row]))
    return worst, excess


@kernel
def _voltage(plan: Plan, at: int, x: ComplexArray) -> complex:
    """w + x at one position."""
    v: complex = complex(plan.w_re[at], plan.w_im[at]) + x[at]
    return v


@kernel
def _residual(plan: Plan, check: Check, x: ComplexArray, current: ComplexArray, row: int) -> complex:
    """i(v) − Y·x of one row."""
    left = 0.0j
    if plan.load_at[row] >= 0:
        left = current[plan.load_at[row]]
    for p in range(check.ptr[row], check.ptr[row + 1]):
        left -= complex(check.re[p], check.im[p]) * x[check.col[p]]
    return left


@kernel
def load_block(
    plan: Plan, m: int, injection: Injection, lam: float, x: ComplexArray, blocks: FloatArray
) -> None:
    """−∂i/∂v of one load as a block: conj(s)/conj(v)²·conj(dv), less the turn of its generation."""
    block = blocks[m]
    block[0] = block[1] = block[2] = block[3] = 0.0
    v = _voltage(plan, plan.at[m], x)
    u = _modulus(v)
    s, turned = injection.fixed[m], injection.turned[m]
    if plan.curve_of[m] >= 0:
        q, slope = curve_at(plan.knots, plan.base, plan.slopes, plan.curve_of[m], u), 0.0
        for segment in range(plan.slopes.shape[1]):
            if plan.knots[plan.curve_of[m], segment] <= u < plan.knots[plan.curve_of[m], segment + 1]:
                slope = plan.slopes[plan.curve_of[m], segment]
        c = np.sqrt(1.0 - q * q)
        s += turned * complex(c, q)
        # ds = g·(−q/c + j)·q′(u)·du, du = Re(conj(v)·dv)/u
        moved = lam * np.conj(turned * complex(-q / c, 1.0) * slope / v) / u
        block[0] -= moved.real * v.real
        block[1] -= moved.real * v.imag
        block[2] -= moved.imag * v.real
        block[3] -= moved.imag * v.imag
    d = lam * np.conj(s / (v * v))
    block[0] += d.real
    block[1] += d.imag
    block[2] += d.imag
    block[3] -= d.real


@kernel
def _modulus(z: complex) -> float:
    """|z| from exact operations and one root; `abs` is that of the C library."""
    return float(np.sqrt(z.real * z.real + z.imag * z.imag))
