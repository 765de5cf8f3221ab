"""Power flow with acting controls for many jobs, compiled by numba.

A job is a snapshot, or the steps of a day one after the other. `LANES` jobs are side by side; a lane whose
job is done takes the next one at once. What a lane computes depends on its own job alone, so the result is
the same for any number of threads and any order of the jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from dp_powerflow.powerflow._kernels.control import (
    BANK,
    BANK_Q,
    MOST_TURNS,
    STEP,
    Controls,
    States,
    act,
)
from dp_powerflow.powerflow._kernels.devices import Branches, Work, currents
from dp_powerflow.powerflow._kernels.newton_operated import Slow, newton_at_taps
from dp_powerflow.powerflow._kernels.simd import LANES, lower_row, product_row, upper_row
from dp_powerflow.powerflow._kernels.solve import NEGATIVE, NOT_FINITE, OK, Check
from dp_powerflow.powerflow._kernels.terminals import OperatedPlan, factor_terminals, terminal_constant
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

_NEW, _ACTING, _FINAL, _CLOSING, _IDLE = range(5)
"""Phases of a lane: first sweep, controls may move, controls are done, last sweep, nothing left to do."""
SLOTS = 1024
"""Tap vectors whose factors of M a thread keeps."""
_PER_ROUND = 12
"""Sweeps that every round of the controls may take beside those of the snapshot."""
_MOST_HELP = 4
_MOST_ROUNDS = 300
_DAY_S = 86400.0


ITERATIONS, ROUNDS, CONVERGED, LOCKED, REVERSED, STATUS, GIVEN_UP = range(7)
"""Columns of `Jobs.result`."""
RESULT_COLUMNS = 7


class Jobs(NamedTuple):
    """A batch to be solved, and where its results go.

    `load`, `generation` and `out` are complex arrays seen as float64. `fixed` is the power of every device
    that no input gives. `states` (snapshot, control) and `result` (snapshot, 7) are filled in. `first_states`
    (level, control) is where controls start, by load level; `levels` of them per nominal load.
    """

    load: FloatArray
    generation: FloatArray
    fixed: ComplexArray
    out: FloatArray
    targets: IntArray
    states: IntArray
    result: IntArray
    mismatch: FloatArray
    first_states: IntArray
    levels: float
    steps: int
    acting: bool
    tolerance: float
    decide: float
    early: float
    slack_v: float
    forecast: float
    most_sweeps: int


class Cache(NamedTuple):
    """Factors of M by tap vector."""

    key: IntArray
    used: BoolArray
    factors: FloatArray


class Lanes(NamedTuple):
    """What each lane does: its row, its step of the day, its phase, sweeps and calls of Newton on the row."""

    row: IntArray
    step: IntArray
    phase: IntArray
    spent: IntArray
    helped: IntArray


def new_states(controls: Controls) -> States:
    """Arrays for the controls of all lanes."""
    count = controls.regulator.shape[0] + controls.capacitor.shape[0]
    tap, way, turns, want, back, flip = (np.zeros((count, LANES), dtype=np.int64) for _ in range(6))
    return States(tap, way, turns, want, back, flip, np.zeros((count, LANES)))


def new_cache(plan: OperatedPlan, controls: Controls) -> Cache:
    """An empty cache."""
    count = controls.regulator.shape[0]
    slots = SLOTS if plan.phases else 1
    return Cache(
        np.zeros((slots, count), dtype=np.int64),
        np.zeros(slots, dtype=np.bool_),
        np.zeros((slots, 4 * plan.phases * plan.phases)),
    )


# ------------------------------------------------------------------------------ one sweep


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _sweep(plan: OperatedPlan, work: Work) -> None:
    """x = solution of the linear system for the right-hand side i, at the taps of every lane."""
    for row in range(plan.interior + 2 * plan.phases):
        lower_row(plan, work, row, plan.source[row])
    if plan.phases > 0:
        _terminals(plan, work)
    for row in range(plan.interior - 1, -1, -1):
        upper_row(plan, work, row)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _terminals(plan: OperatedPlan, work: Work) -> None:
    """Solve M(t)·x_inner = r_inner + t·r_outer − k and put the outer nodes at t·v_inner."""
    n, r = plan.interior, plan.phases
    for i in range(r):
        a, b = n + i, n + r + i
        for lane in range(LANES):
            work.a[work.o_re + i, lane] = work.a[work.x_re + b, lane]
            work.a[work.o_im + i, lane] = work.a[work.x_im + b, lane]
            work.a[work.x_re + a, lane] += (
                work.a[work.t + i, lane] * work.a[work.x_re + b, lane] - work.a[work.k_re + i, lane]
            )
            work.a[work.x_im + a, lane] += (
                work.a[work.t + i, lane] * work.a[work.x_im + b, lane] - work.a[work.k_im + i, lane]
            )
        for j in range(i):
            _subtract(work, a, n + j, 4 * (i * r + j))
    for i in range(r - 1, -1, -1):
        a, d = n + i, 4 * (i * r + i)
        for j in range(i + 1, r):
            _subtract(work, a, n + j, 4 * (i * r + j))
        for lane in range(LANES):
            u, v = work.a[work.x_re + a, lane], work.a[work.x_im + a, lane]
            work.a[work.x_re + a, lane] = work.a[work.m + d, lane] * u + work.a[work.m + d + 1, lane] * v
            work.a[work.x_im + a, lane] = work.a[work.m + d + 2, lane] * u + work.a[work.m + d + 3, lane] * v
    for i in range(r):
        a, b = n + i, n + r + i
        w_re, w_im = plan.w_re[a], plan.w_im[a]
        for lane in range(LANES):
            t = work.a[work.t + i, lane]
            work.a[work.x_re + b, lane] = t * work.a[work.x_re + a, lane] + (t - 1.0) * w_re
            work.a[work.x_im + b, lane] = t * work.a[work.x_im + a, lane] + (t - 1.0) * w_im


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _subtract(work: Work, a: int, b: int, d: int) -> None:
    """x[a] −= block·x[b], the block of every lane its own."""
    for lane in range(LANES):
        u, v = work.a[work.x_re + b, lane], work.a[work.x_im + b, lane]
        work.a[work.x_re + a, lane] -= work.a[work.m + d, lane] * u + work.a[work.m + d + 1, lane] * v
        work.a[work.x_im + a, lane] -= work.a[work.m + d + 2, lane] * u + work.a[work.m + d + 3, lane] * v


# ------------------------------------------------------------------------------------ taps


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _put_taps(
    plan: OperatedPlan, controls: Controls, work: Work, states: States, cache: Cache, lane: int
) -> None:
    """Bring ratios, factors of M and constants of a lane in line with its taps."""
    regulators, r = controls.regulator.shape[0], plan.phases
    if r == 0:
        return
    mixed = np.uint64(0)
    for k in range(regulators):
        mixed = mixed * np.uint64(67) + np.uint64(states.tap[k, lane] + 1024)
    slot = np.int64((mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(54))
    same = cache.used[slot]
    for k in range(regulators):
        same = same and cache.key[slot, k] == states.tap[k, lane]
    t, constant = np.empty(r), np.empty((r, 2))
    for i in range(r):
        k = controls.control_of[i]
        t[i] = 1.0 + states.tap[k, lane] * controls.regulator[k, STEP]
    if not same:
        factor_terminals(controls.schur, t, cache.factors, slot)
        cache.used[slot] = True
        for k in range(regulators):
            cache.key[slot, k] = states.tap[k, lane]
    terminal_constant(controls.schur, controls.outflow, plan, t, constant)
    for q in range(4 * r * r):
        work.a[work.m + q, lane] = cache.factors[slot, q]
    for i in range(r):
        work.a[work.t + i, lane] = t[i]
        work.a[work.k_re + i, lane], work.a[work.k_im + i, lane] = constant[i, 0], constant[i, 1]


# ------------------------------------------------------------------------------ jobs in lanes


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _read(plan: OperatedPlan, work: Work, jobs: Jobs, row: int, lane: int) -> float:
    """Bring the powers of a row into a lane; its load as a share of the nominal one."""
    loads, share, sum_of = jobs.load.shape[1] // 2, 0.0, 0.0
    status = OK
    for m in range(loads):
        p, q = jobs.load[row, 2 * m], jobs.load[row, 2 * m + 1]
        sum_of += abs(p) + abs(q)
        if p * plan.strict[m] < 0.0:
            status = NEGATIVE
        work.a[work.s_re + m, lane], work.a[work.s_im + m, lane] = -p, -q
        share += p * plan.weight[m].real + q * plan.weight[m].imag
    if jobs.generation.shape[0] > 0:
        for m in range(jobs.generation.shape[1] // 2):
            p, q = jobs.generation[row, 2 * m], jobs.generation[row, 2 * m + 1]
            sum_of += abs(p) + abs(q)
            work.a[work.s_re + loads + m, lane], work.a[work.s_im + loads + m, lane] = p, q
    if not np.isfinite(sum_of):
        status = NOT_FINITE
    jobs.result[row, STATUS] = status
    if status != OK:
        for m in range(loads + jobs.generation.shape[1] // 2):
            work.a[work.s_re + m, lane], work.a[work.s_im + m, lane] = 0.0, 0.0
        return 0.0
    return min(max(share, -1.0), 1.5)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _begin(
    plan: OperatedPlan,
    controls: Controls,
    work: Work,
    states: States,
    cache: Cache,
    jobs: Jobs,
    place: tuple[int, float],
) -> None:
    """First guess of a job in a lane: voltages by its load, controls from the table of its load level."""
    lane, share = place
    level = min(max(int(share * jobs.levels), 0), jobs.first_states.shape[0] - 1)
    regulators = controls.regulator.shape[0]
    for k in range(states.tap.shape[0]):
        states.tap[k, lane] = jobs.first_states[level, k]
        states.back[k, lane] = 0
        states.opened[k, lane] = -np.inf
        if k >= regulators:
            bank = k - regulators
            device = int(controls.capacitor[bank, BANK])
            work.a[work.s_im + device, lane] = controls.capacitor[bank, BANK_Q] * states.tap[k, lane]
    for p in range(plan.start.size):
        work.a[work.x_re + p, lane] = share * plan.start[p].real
        work.a[work.x_im + p, lane] = share * plan.start[p].imag
    _put_taps(plan, controls, work, states, cache, lane)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def run_jobs(
    chosen: IntArray,
    network: tuple[OperatedPlan, Branches, Branches, Controls, Check, Slow],
    memory: tuple[Work, Work, States, Cache],
    jobs: Jobs,
) -> None:
    """Solve the chosen jobs.

    Parameters
    ----------
    network : plan, branches with their fixed slopes, the same without, controls, rows for the check, and what
        Newton's method needs.
    memory : block of the lanes, block of finished snapshots, states and cache.
    """
    plan, branches, plain, controls, check, slow = network
    work, done, states, cache = memory
    lanes = Lanes(
        np.full(LANES, -1, dtype=np.int64),
        np.full(LANES, jobs.steps, dtype=np.int64),
        np.full(LANES, _CLOSING, dtype=np.int64),
        np.zeros(LANES, dtype=np.int64),
        np.zeros(LANES, dtype=np.int64),
    )
    finished = np.full(LANES, -1, dtype=np.int64)
    upcoming, going, count = 0, 0, 0
    for lane in range(LANES):
        work.a[work.active, lane] = 0.0
    for m in range(jobs.fixed.size):
        for lane in range(LANES):
            work.a[work.s_re + m, lane], work.a[work.s_im + m, lane] = jobs.fixed[m].real, jobs.fixed[m].imag
    rows = work.c_re - work.i_im
    swept = False
    while True:
        if swept:
            _sweep(plan, work)
        swept = True
        for lane in range(LANES):
            if lanes.phase[lane] != _CLOSING:
                continue
            row = lanes.row[lane]
            if row >= 0:
                _finish(plan, controls, work, done, states, jobs, (lane, row, count))
                finished[count] = row
                count += 1
                if count == LANES:
                    _hand_in((plan, plain, controls), check, done, jobs, finished, count)
                    count = 0
                going -= 1
                lanes.step[lane] += 1
            row += 1
            fresh = lanes.step[lane] >= jobs.steps
            if fresh:
                if upcoming >= chosen.size:
                    lanes.phase[lane] = _IDLE
                    if lanes.row[lane] < 0:
                        _begin(plan, controls, work, states, cache, jobs, (lane, 0.0))
                    continue
                lanes.step[lane] = 0
                row = chosen[upcoming] * jobs.steps
                upcoming += 1
            share = _read(plan, work, jobs, row, lane)
            if fresh:
                _begin(plan, controls, work, states, cache, jobs, (lane, share))
            for k in range(states.tap.shape[0]):
                states.way[k, lane], states.turns[k, lane] = 0, 0
            lanes.row[lane], lanes.spent[lane], lanes.phase[lane] = row, 0, _NEW
            lanes.helped[lane] = 0
            work.a[work.active, lane] = 1.0
            going += 1
        if going == 0:
            break
        currents(branches, plan.w_re, plan.w_im, rows, work)
        for lane in range(LANES):
            if lanes.phase[lane] < _CLOSING:
                _advance((plan, branches, controls, slow), (work, states, cache), lanes, jobs, lane)
    if count > 0:
        _hand_in((plan, plain, controls), check, done, jobs, finished, count)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _advance(
    network: tuple[OperatedPlan, Branches, Controls, Slow],
    memory: tuple[Work, States, Cache],
    lanes: Lanes,
    jobs: Jobs,
    lane: int,
) -> None:
    """Decide what a lane does after its currents were computed."""
    plan, branches, controls, slow = network
    work, states, cache = memory
    row, phase = lanes.row[lane], lanes.phase[lane]
    lanes.spent[lane] += 1
    if phase == _NEW:
        lanes.phase[lane] = _ACTING if jobs.acting else _FINAL
        work.a[work.before, lane] = 0.0
        if jobs.result[row, STATUS] != OK:
            _close(work, lanes, lane)
        return
    e2 = work.a[work.change, lane]
    # A step is looked at when it ends, as OpenDSS does; a snapshot has no time.
    now_s = _DAY_S * (lanes.step[lane] + 1) / jobs.steps if jobs.steps > 1 else 0.0
    if phase == _ACTING and e2 <= jobs.early * jobs.early:
        settled = e2 <= jobs.decide * jobs.decide
        slack = 0.0 if settled else jobs.slack_v * np.sqrt(e2)
        moved = act(controls, plan.w_re, plan.w_im, work, states, lane, slack, now_s)
        if moved > 0:
            jobs.result[row, ROUNDS] += 1
            _put_taps(plan, controls, work, states, cache, lane)
            work.a[work.before, lane] = 0.0
            return
        if moved == 0:
            phase = _FINAL
            lanes.phase[lane] = _FINAL
    before = work.a[work.before, lane]
    work.a[work.before, lane] = e2
    near = e2 < before and e2 * e2 <= jobs.forecast * jobs.tolerance * jobs.tolerance * before
    if phase == _FINAL and (e2 <= jobs.tolerance * jobs.tolerance or near):
        jobs.result[row, CONVERGED] = 1
        jobs.result[row, ITERATIONS] = lanes.spent[lane]
        _close(work, lanes, lane)
        return
    limit = jobs.most_sweeps * (1 + lanes.helped[lane]) + _PER_ROUND * jobs.result[row, ROUNDS]
    if lanes.spent[lane] < limit and np.isfinite(e2):
        return
    lanes.helped[lane] += 1
    rounds = jobs.result[row, ROUNDS]
    too_often = lanes.helped[lane] > _MOST_HELP + rounds or rounds > _MOST_ROUNDS
    if too_often or not newton_at_taps((plan, branches, controls.outflow, slow), work, lane, jobs.tolerance):
        jobs.result[row, CONVERGED], jobs.result[row, GIVEN_UP] = 0, 1
        _close(work, lanes, lane)
    work.a[work.before, lane] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _close(work: Work, lanes: Lanes, lane: int) -> None:
    """Freeze the right-hand side of a lane; the next sweep is its last."""
    lanes.phase[lane] = _CLOSING
    work.a[work.active, lane] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _finish(
    plan: OperatedPlan,
    controls: Controls,
    work: Work,
    done: Work,
    states: States,
    jobs: Jobs,
    place: tuple[int, int, int],
) -> None:
    """Copy the solution of a lane to the block of finished snapshots."""
    lane, row, column = place
    for p in range(plan.interior + 2 * plan.phases):
        done.a[done.x_re + p, column] = work.a[work.x_re + p, lane]
        done.a[done.x_im + p, column] = work.a[work.x_im + p, lane]
    for m in range(done.s_im - done.s_re):
        done.a[done.s_re + m, column] = work.a[work.s_re + m, lane]
        done.a[done.s_im + m, column] = work.a[work.s_im + m, lane]
    for i in range(plan.phases):
        done.a[done.t + i, column] = work.a[work.t + i, lane]
    for k in range(states.tap.shape[0]):
        jobs.states[row, k] = states.tap[k, lane]
        if states.turns[k, lane] >= MOST_TURNS:
            jobs.result[row, LOCKED] = 1
    for k in range(controls.regulator.shape[0]):
        if states.back[k, lane] == 1:
            jobs.result[row, REVERSED] = 1


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _hand_in(
    network: tuple[OperatedPlan, Branches, Controls],
    check: Check,
    done: Work,
    jobs: Jobs,
    finished: IntArray,
    count: int,
) -> None:
    """Check a block of finished snapshots against the admittances, and write them."""
    plan, plain, controls = network
    core, rows = plan.interior + 2 * plan.phases, check.ptr.size - 1
    for row in range(core, plan.w_re.size):
        lower_row(plan, done, row, -1)
    for p in range(plan.w_re.size):
        for lane in range(LANES):
            done.a[done.x_re + p, lane] = (plan.w_re[p] + done.a[done.x_re + p, lane]) - plan.w_re[p]
            done.a[done.x_im + p, lane] = (plan.w_im[p] + done.a[done.x_im + p, lane]) - plan.w_im[p]
    currents(plain, plan.w_re, plan.w_im, done.c_re - done.i_im, done)
    for row in range(rows):
        product_row(check, done, row)
    _measure(plan, controls, check, done, rows)
    for lane in range(count):
        k = finished[lane]
        finite = np.isfinite(done.a[done.worst + 2, lane])
        jobs.mismatch[k] = np.sqrt(done.a[done.worst, lane]) if finite else np.inf
        good = jobs.result[k, CONVERGED] == 1 and finite and done.a[done.worst + 1, lane] <= 1.0
        good = good and jobs.result[k, STATUS] == OK
        jobs.result[k, CONVERGED] = 1 if good else 0
        for c in range(jobs.targets.size):
            at = jobs.targets[c]
            jobs.out[k, 2 * c] = plan.w_re[at] + done.a[done.x_re + at, lane] if good else np.nan
            jobs.out[k, 2 * c + 1] = plan.w_im[at] + done.a[done.x_im + at, lane] if good else np.nan


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _measure(plan: OperatedPlan, controls: Controls, check: Check, done: Work, rows: int) -> None:
    """Power mismatch of every row: the largest square, that times the limit, and the sum of squares."""
    n, r = plan.interior, plan.phases
    for k in range(3):
        for lane in range(LANES):
            done.a[done.worst + k, lane] = 0.0
    for row in range(rows):
        if n <= row < n + r:
            continue
        source = plan.source[row] if row < plan.source.size else -1
        for lane in range(LANES):
            re, im = done.a[done.f_re + row, lane], done.a[done.f_im + row, lane]
            if n + r <= row < n + 2 * r:
                t = done.a[done.t + row - n - r, lane]
                flow, left = controls.outflow[row - n - r], 1.0 - 1.0 / t
                re += done.a[done.f_re + row - r, lane] / t + left * flow.real
                im += done.a[done.f_im + row - r, lane] / t + left * flow.imag
            if source >= 0:
                re -= done.a[done.i_re + source, lane]
                im -= done.a[done.i_im + source, lane]
            u, v = (
                plan.w_re[row] + done.a[done.x_re + row, lane],
                plan.w_im[row] + done.a[done.x_im + row, lane],
            )
            size = (re * re + im * im) * (u * u + v * v)
            done.a[done.worst, lane] = max(done.a[done.worst, lane], size)
            done.a[done.worst + 1, lane] = max(done.a[done.worst + 1, lane], size * check.limit[row])
            done.a[done.worst + 2, lane] += size
