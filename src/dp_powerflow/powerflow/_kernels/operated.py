"""Power flow with acting controls for many jobs, compiled by numba.

A job is a snapshot, or the steps of a day one after the other. `LANES` jobs are side by side; a lane whose
job is done takes the next one at once. What a lane computes depends on its own job alone, so the result is
the same for any number of threads and any order of the jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.compiled import entry, inner
from dp_powerflow.powerflow._kernels import simd
from dp_powerflow.powerflow._kernels.control import BANK, BANK_Q, MOST_TURNS, STEP, Controls, States, act
from dp_powerflow.powerflow._kernels.devices import (
    OF,
    ROW_A,
    S_0,
    SHARE,
    A,
    B,
    Branches,
    Work,
    across,
    branch_current,
    branch_slope,
    control_voltage,
    currents,
)
from dp_powerflow.powerflow._kernels.simd import LANES
from dp_powerflow.powerflow._kernels.solve import NEGATIVE, NOT_FINITE, OK, Check
from dp_powerflow.powerflow.factor import (
    BlockPlan,
    factor_blocks,
    invert_block,
    subtract_product,
    times_block,
)
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray


class OperatedPlan(NamedTuple):
    """All that the kernels know of the network; positions as in `factor.TerminalFactors`.

    Values of `lower`, `upper` and `pivot` are real 2×2 blocks (row, 4). `lower` has a row per position: the
    factor's for the core, the recovery's for eliminated nodes. `source` is the row of injected currents that
    enters a position (−1: none). `start` is the deviation from no load at nominal load, `weight` projects a
    load on the nominal one; the two give the first guess. `strict` is 1 where active load must not be
    negative. `jumps`: the current of some branch jumps at a limit of voltage. `sags`: some branch draws less
    below such a limit, so that there may be a solution beyond the nose.
    """

    interior: int
    phases: int
    lower_ptr: IntArray
    lower_col: IntArray
    lower: FloatArray
    upper_ptr: IntArray
    upper_col: IntArray
    upper: FloatArray
    pivot: FloatArray
    w_re: FloatArray
    w_im: FloatArray
    source: IntArray
    start: ComplexArray
    weight: ComplexArray
    strict: FloatArray
    jumps: bool
    sags: bool


@inner
def factor_terminals(schur: FloatArray, t: FloatArray, f: FloatArray) -> int:
    """Block LU of M(t) into f (phase², 4); 1 if all pivots have positive determinants, −1, 0 if singular."""
    r = t.size
    for i in range(r):
        for j in range(r):
            for q in range(4):
                f[i * r + j, q] = (
                    schur[i, j, q]
                    + schur[i, r + j, q] * t[j]
                    + t[i] * (schur[r + i, j, q] + schur[r + i, r + j, q] * t[j])
                )
    sign = 1
    for k in range(r):
        determinant = invert_block(f, k * r + k)
        if determinant == 0.0 or not np.isfinite(determinant):
            return 0
        if determinant < 0.0:
            sign = -1
        for i in range(k + 1, r):
            times_block(f, i * r + k, k * r + k)
            for j in range(k + 1, r):
                subtract_product(f, i * r + j, i * r + k, k * r + j)
    return sign


@inner
def terminal_constant(
    schur: FloatArray, outflow: ComplexArray, plan: OperatedPlan, t: FloatArray, k: FloatArray
) -> None:
    """k (phase, 2): what taps other than neutral leave of w at the terminals, on the right-hand side of M."""
    r, n = t.size, plan.interior
    for i in range(r):
        re, im = (t[i] - 1.0) * outflow[i].real, (t[i] - 1.0) * outflow[i].imag
        for j in range(r):
            d_re, d_im = (t[j] - 1.0) * plan.w_re[n + j], (t[j] - 1.0) * plan.w_im[n + j]
            b0 = schur[i, r + j, 0] + t[i] * schur[r + i, r + j, 0]
            b1 = schur[i, r + j, 1] + t[i] * schur[r + i, r + j, 1]
            b2 = schur[i, r + j, 2] + t[i] * schur[r + i, r + j, 2]
            b3 = schur[i, r + j, 3] + t[i] * schur[r + i, r + j, 3]
            re += b0 * d_re + b1 * d_im
            im += b2 * d_re + b3 * d_im
        k[i, 0], k[i, 1] = re, im


# ----------------------------------------------------------------------------------------------------------
# Newton's method at fixed taps, for snapshots on which the fixed point of the feeder as operated is slow.
#
# With the true slope of every branch, (Y + slope)·x⁺ = i(v) + slope·x is Newton's step. It is solved with
# the same order of elimination as the fixed point. A result counts only if the pivots have the signs that
# they have at no load: that is the branch of solutions which starts there.


MOST_STEPS, MOST_RISES = 10, 2
_MOST_PLAIN = 100
"""Steps of OpenDSS's iteration."""
_NEAR = 0.1
"""Mismatch of the fixed point [p.u.] up to which Newton's method starts where it is."""


class Slow(NamedTuple):
    """Pattern of the Jacobian: slot, branch and sign of every block that a branch adds; room of one thread.

    x: deviation from no load; right: the next one; aim: current and slope·x of every branch; place: where the
    columns of a row are; schur, ratio, factors, constant: of the terminals.
    """

    blocks: BlockPlan
    slots: IntArray
    branch: IntArray
    sign: FloatArray
    x: ComplexArray
    right: ComplexArray
    aim: ComplexArray
    slope: FloatArray
    extra: FloatArray
    values: FloatArray
    place: IntArray
    schur: FloatArray
    ratio: FloatArray
    factors: FloatArray
    constant: FloatArray

    def for_thread(self) -> Slow:
        """The same with room of its own."""
        return self._replace(**{name: np.zeros_like(getattr(self, name)) for name in self._fields[4:]})


Network = tuple[OperatedPlan, Branches, ComplexArray, Slow]
"""Plan, branches, currents out of the outer nodes at no load, pattern and room."""


@inner
def _times(f: FloatArray, k: int, c: int, z: complex) -> complex:
    """The real 2×2 block in row k of f, from column c on, times z."""
    return complex(f[k, c] * z.real + f[k, c + 1] * z.imag, f[k, c + 2] * z.real + f[k, c + 3] * z.imag)


@inner
def _power(branches: Branches, work: Work, lane: int, k: int) -> complex:
    """Injected power of the device of branch k."""
    device = branches.table[k, OF]
    return complex(work.a[work.s_re + device, lane], work.a[work.s_im + device, lane])


@inner
def _difference(branches: Branches, k: int, x: ComplexArray) -> complex:
    """Deviation from no load across branch k."""
    a, b = branches.table[k, A], branches.table[k, B]
    return complex(x[a] - x[b] if b >= 0 else x[a])


@inner
def _current(
    plan: OperatedPlan, branches: Branches, work: Work, lane: int, k: int, x: ComplexArray
) -> complex:
    """Current that branch k injects at the voltages w + x."""
    w = (plan.w_re, plan.w_im)
    s, v = _power(branches, work, lane, k), across(branches, k, w, x)
    return branch_current(branches, k, s, v, control_voltage(branches, k, w, x))


@entry
def newton_at_taps(network: Network, work: Work, lane: int, tolerance: float) -> bool:
    """Solve one lane at its taps; its x and right-hand side are those of the solution if there is one."""
    plan, branches, _, slow = network
    x, core = slow.x, slow.x.size
    for p in range(core):
        x[p] = complex(work.a[work.x_re + p, lane], work.a[work.x_im + p, lane])
    near = work.a[work.change, lane] <= _NEAR * _NEAR and _finite(x)
    if not (near and _iterate(network, work, lane, tolerance)):
        for p in range(core):
            x[p] = 0.0
        if not _iterate(network, work, lane, tolerance):
            return False
    _hand_back(plan, branches, slow, work, lane)
    return True


@inner
def _hand_back(plan: OperatedPlan, branches: Branches, slow: Slow, work: Work, lane: int) -> None:
    """Give a lane the voltages slow.x and the right-hand side that belongs to them."""
    x = slow.x
    for p in range(x.size):
        work.a[work.x_re + p, lane], work.a[work.x_im + p, lane] = x[p].real, x[p].imag
    for row in range(work.c_re - work.i_im):
        work.a[work.i_re + row, lane], work.a[work.i_im + row, lane] = 0.0, 0.0
    for k in range(branches.table.shape[0]):
        i = _current(plan, branches, work, lane, k, x)
        i += _times(branches.constant, k, S_0, _difference(branches, k, x))
        work.a[work.c_re + k, lane], work.a[work.c_im + k, lane] = i.real, i.imag
        for end in range(2):
            row = branches.table[k, ROW_A + end]
            if row >= 0:
                work.a[work.i_re + row, lane] += i.real if end == 0 else -i.real
                work.a[work.i_im + row, lane] += i.imag if end == 0 else -i.imag


@entry
def settle(network: Network, work: Work, lane: int, tolerance: float, fresh: bool) -> bool:
    """Follow OpenDSS's own iteration at the taps of a lane, from its voltages on; whether they come to rest.

    Every device is linearised as the impedance that draws its power at rated voltage; a `fresh` lane starts
    from the voltages of these impedances. Where currents jump, it is the sequence that decides between
    solutions; and there may be none, where a load at its limit moves its voltage to the other side.
    """
    plan, branches, outflow, slow = network
    for p in range(slow.x.size):
        slow.x[p] = complex(work.a[work.x_re + p, lane], work.a[work.x_im + p, lane])
    for k in range(branches.table.shape[0]):
        y = -branches.constant[k, SHARE] * _power(branches, work, lane, k)
        slow.slope[k, 0], slow.slope[k, 1] = y.real, y.imag
        slow.slope[k, 2], slow.slope[k, 3] = -y.imag, y.real
    _place_slopes(slow)
    factor_blocks(slow.blocks, slow.slots, slow.extra, plan.interior, slow.values, slow.place)
    rests = False
    for step in range(_MOST_PLAIN):
        _aim(plan, branches, slow, work, lane, fresh and step == 0)
        _solve(plan, outflow, slow, work, lane)
        worst = _left_over(plan, branches, slow, work, lane)
        for p in range(slow.x.size):
            slow.x[p] = slow.right[p]
        rests = worst <= tolerance * tolerance and step > 0
        if rests:
            break
    _hand_back(plan, branches, slow, work, lane)
    return rests


@inner
def _finite(x: ComplexArray) -> bool:
    total = 0.0
    for p in range(x.size):
        total += abs(x[p].real) + abs(x[p].imag)
    return bool(total < 10.0 * x.size)


@inner
def _iterate(network: Network, work: Work, lane: int, tolerance: float) -> bool:
    """Newton's steps from slow.x, in place; whether they end within the tolerance on the right branch.

    From no load the steps come down to a solution without passing it, the slopes of the loads growing on the
    way. Where a pivot of the Jacobian changes its sign, the nose is passed and there is nothing below; so it
    is where the mismatch rises again and again. Either is given up at once.
    """
    plan, branches, outflow, slow = network
    last, rises = np.inf, 0
    for _ in range(MOST_STEPS):
        _linearise(plan, branches, slow, work, lane)
        negative = factor_blocks(slow.blocks, slow.slots, slow.extra, plan.interior, slow.values, slow.place)
        if negative != 0 or _solve(plan, outflow, slow, work, lane) <= 0:
            return False
        worst = _left_over(plan, branches, slow, work, lane)
        for p in range(slow.x.size):
            slow.x[p] = slow.right[p]
        rises += 1 if worst > last else 0
        if not np.isfinite(worst) or rises >= MOST_RISES:
            return False
        last = worst
        if worst <= 0.01 * tolerance * tolerance:
            return True
    return False


@inner
def _linearise(plan: OperatedPlan, branches: Branches, slow: Slow, work: Work, lane: int) -> None:
    """Slopes of all branches at slow.x, and the right-hand side of Newton's step."""
    x, w = slow.x, (plan.w_re, plan.w_im)
    for k in range(branches.table.shape[0]):
        u = control_voltage(branches, k, w, x)
        branch_slope(branches, k, _power(branches, work, lane, k), across(branches, k, w, x), u, slow.slope)
    _aim(plan, branches, slow, work, lane, False)
    _place_slopes(slow)


@inner
def _aim(plan: OperatedPlan, branches: Branches, slow: Slow, work: Work, lane: int, linear: bool) -> None:
    """The right-hand side of a step from slow.x; with currents of the slopes alone if linear."""
    x, w = slow.x, (plan.w_re, plan.w_im)
    for p in range(x.size):
        slow.right[p] = 0.0
    for k in range(branches.table.shape[0]):
        aim = _times(slow.slope, k, 0, _difference(branches, k, x))
        if linear:
            aim -= _times(slow.slope, k, 0, across(branches, k, w, x))
        else:
            aim += _current(plan, branches, work, lane, k, x)
        slow.aim[k] = aim
        slow.right[branches.table[k, A]] += aim
        if branches.table[k, B] >= 0:
            slow.right[branches.table[k, B]] -= aim


@inner
def _place_slopes(slow: Slow) -> None:
    for m in range(slow.slots.size):
        for q in range(4):
            slow.extra[m, q] = slow.sign[m] * slow.slope[slow.branch[m], q]


@inner
def _left_over(plan: OperatedPlan, branches: Branches, slow: Slow, work: Work, lane: int) -> float:
    """Largest squared power mismatch at slow.right, NaN or infinite if any is."""
    worst, w = 0.0, (plan.w_re, plan.w_im)
    for k in range(branches.table.shape[0]):
        left = _current(plan, branches, work, lane, k, slow.right) - slow.aim[k]
        left += _times(slow.slope, k, 0, _difference(branches, k, slow.right))
        v = across(branches, k, w, slow.right)
        size = (left.real**2 + left.imag**2) * (v.real**2 + v.imag**2)
        worst = size if size > worst or not np.isfinite(size) else worst
    return worst


@inner
def _solve(plan: OperatedPlan, outflow: ComplexArray, slow: Slow, work: Work, lane: int) -> int:
    """Solve for slow.right in place with the factors of the interior; the sign of the pivots of M."""
    blocks, n, r, x, f = slow.blocks, plan.interior, plan.phases, slow.right, slow.factors
    for row in range(x.size):
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            if blocks.col[p] >= n:
                break
            x[row] -= _times(slow.values, p, 0, x[blocks.col[p]])
    for row in range(2 * r):
        for p in range(blocks.ptr[n + row], blocks.ptr[n + row + 1]):
            for q in range(4 if blocks.col[p] >= n else 0):
                slow.schur[row, blocks.col[p] - n, q] = slow.values[p, q]
    for i in range(r):
        slow.ratio[i] = work.a[work.t + i, lane]
    sign = factor_terminals(slow.schur, slow.ratio, f)
    terminal_constant(slow.schur, outflow, plan, slow.ratio, slow.constant)
    for i in range(r):
        constant = complex(slow.constant[i, 0], slow.constant[i, 1])
        x[n + i] += slow.ratio[i] * x[n + r + i] - constant
        for j in range(i):
            x[n + i] -= _times(f, i * r + j, 0, x[n + j])
    for i in range(r - 1, -1, -1):
        for j in range(i + 1, r):
            x[n + i] -= _times(f, i * r + j, 0, x[n + j])
        x[n + i] = _times(f, i * r + i, 0, x[n + i])
        no_load, t = complex(plan.w_re[n + i], plan.w_im[n + i]), slow.ratio[i]
        x[n + r + i] = t * x[n + i] + (t - 1.0) * no_load
    for row in range(n - 1, -1, -1):
        for p in range(blocks.diagonal[row] + 1, blocks.ptr[row + 1]):
            x[row] -= _times(slow.values, p, 0, x[blocks.col[p]])
        x[row] = _times(slow.values, blocks.diagonal[row], 0, x[row])
    return sign


_NEW, _ACTING, _FINAL, _CLOSING, _IDLE = range(5)
"""Phases of a lane: first sweep, controls may move, controls are done, last sweep, nothing left to do."""
SLOTS = 1024
"""Tap vectors whose factors of M a thread keeps."""
_PER_ROUND = 12
"""Sweeps that every round of the controls may take beside those of the snapshot."""
_MOST_RISES = 4
"""Sweeps in a row with a larger mismatch after which Newton's method is asked."""
_MOST_HELP = 4
_REST = 0.1
"""Share of the mismatch at which controls decide that is left where OpenDSS's iteration ends."""
_MOST_ROUNDS = 300
_DECIDE, _EARLY, _SWITCH = 1e-8, 1e-3, 1e-7
"""Mismatch [p.u.] at which regulators decide in any case, at which they do if the answer is clear, and at
which capacitors decide."""
_SWEEPS = 30
"""Sweeps before Newton's method is asked."""
PER_NOMINAL = 16.0
"""Levels of the table of taps between no load and nominal load."""
_DAY_S = 86400.0


ITERATIONS, ROUNDS, CONVERGED, LOCKED, REVERSED, STATUS, GIVEN_UP = range(7)
"""Columns of `Jobs.result`."""
RESULT_COLUMNS = 7


class Jobs(NamedTuple):
    """A batch to be solved, and where its results go.

    `load`, `generation` and `out` are complex arrays seen as float64. `fixed` is the power of every device
    that no input gives. `states` (snapshot, control) and `result` (snapshot, 7) are filled in. `first_states`
    (level, control) is where controls start, by load level. `tolerance` is the largest power mismatch [p.u.],
    `slack_v` the error of a measured voltage [V] per p.u. of mismatch, at most, and `forecast` the square of
    the share of the tolerance that the foretold mismatch of the last sweep may have.
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
    steps: int
    acting: bool
    tolerance: float
    slack_v: float
    forecast: float


class Cache(NamedTuple):
    """Factors of M and constant part at the terminals by tap vector; ratios of the latest one."""

    key: IntArray
    used: BoolArray
    factors: FloatArray
    constants: FloatArray
    ratio: FloatArray


class Lanes(NamedTuple):
    """What each lane does: its row, its step of the day, its phase, sweeps and calls of Newton on the row.

    `rises` counts sweeps in a row after which the mismatch was larger; `restless` is 1 where loads jump to
    and fro at the present taps; `finished` are the rows that wait for their check.
    """

    row: IntArray
    step: IntArray
    phase: IntArray
    spent: IntArray
    helped: IntArray
    rises: IntArray
    restless: IntArray
    finished: IntArray


Memory = tuple[Work, Work, States, Cache, Lanes, Slow]
"""What a thread works in: lanes, finished snapshots, states, cache, what lanes do, room for Newton."""


def new_cache(plan: OperatedPlan, controls: Controls) -> Cache:
    """An empty cache."""
    count = controls.regulator.shape[0]
    slots = SLOTS if plan.phases else 1
    return Cache(
        np.zeros((slots, count), dtype=np.int64),
        np.zeros(slots, dtype=np.bool_),
        np.zeros((slots, plan.phases * plan.phases, 4)),
        np.zeros((slots, plan.phases, 2)),
        np.zeros(plan.phases),
    )


# ------------------------------------------------------------------------------ one sweep


@inner
def _sweep(plan: OperatedPlan, work: Work) -> None:
    """x = solution of the linear system for the right-hand side i, at the taps of every lane."""
    for row in range(plan.interior + 2 * plan.phases):
        simd.lower_row(plan, work, row, plan.source[row])
    for i in range(plan.phases):
        simd.enter_terminal(plan, work, i)
    for i in range(plan.phases - 1, -1, -1):
        simd.leave_terminal(plan, work, i)
    for row in range(plan.interior - 1, -1, -1):
        simd.upper_row(plan, work, row)


# ------------------------------------------------------------------------------------ taps


@inner
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
    for i in range(r):
        k = controls.control_of[i]
        cache.ratio[i] = 1.0 + states.tap[k, lane] * controls.regulator[k, STEP]
        work.a[work.t + i, lane] = cache.ratio[i]
    if not same:
        factor_terminals(controls.schur, cache.ratio, cache.factors[slot])
        terminal_constant(controls.schur, controls.outflow, plan, cache.ratio, cache.constants[slot])
        cache.used[slot] = True
        for k in range(regulators):
            cache.key[slot, k] = states.tap[k, lane]
    for q in range(4 * r * r):
        work.a[work.m + q, lane] = cache.factors[slot, q // 4, q % 4]
    for i in range(r):
        work.a[work.k_re + i, lane] = cache.constants[slot, i, 0]
        work.a[work.k_im + i, lane] = cache.constants[slot, i, 1]


# ------------------------------------------------------------------------------ jobs in lanes


@inner
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


@inner
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
    level = min(max(int(share * PER_NOMINAL), 0), jobs.first_states.shape[0] - 1)
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


@entry
def run_jobs(
    chosen: IntArray,
    network: tuple[OperatedPlan, Branches, Branches, Controls, Check],
    memory: Memory,
    jobs: Jobs,
) -> None:
    """Solve the chosen jobs.

    Parameters
    ----------
    network : plan, branches with their fixed slopes, the same without, controls, rows for the check.
    """
    plan, branches, plain, controls, check = network
    work, done, states, cache, lanes, slow = memory
    upcoming, going, count = 0, 0, 0
    for lane in range(LANES):
        lanes.row[lane], lanes.step[lane], lanes.phase[lane] = -1, jobs.steps, _CLOSING
        work.a[work.active, lane] = 0.0
    for m in range(jobs.fixed.size):
        for lane in range(LANES):
            work.a[work.s_re + m, lane], work.a[work.s_im + m, lane] = jobs.fixed[m].real, jobs.fixed[m].imag
    rows = work.c_re - work.i_im
    swept, newton, w = False, (plan, branches, controls.outflow, slow), (plan.w_re, plan.w_im)
    while True:
        if swept:
            _sweep(plan, work)
            for row in range(plan.phases, 2 * plan.phases):
                simd.outflow_row(plan, controls.schur, work, row)
        swept = True
        for lane in range(LANES):
            if lanes.phase[lane] != _CLOSING:
                continue
            row = lanes.row[lane]
            if row >= 0:
                _finish(plan, controls, work, done, states, jobs, (lane, row, count))
                lanes.finished[count] = row
                count += 1
                if count == LANES:
                    _hand_in((plan, plain, controls), check, done, jobs, lanes.finished, count)
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
            lanes.helped[lane], lanes.rises[lane], lanes.restless[lane] = 0, 0, 0
            work.a[work.active, lane] = 1.0
            going += 1
        if going == 0:
            break
        currents(branches, w, rows, work)
        for lane in range(LANES):
            if lanes.phase[lane] >= _CLOSING:
                continue
            lanes.spent[lane] += 1
            if lanes.phase[lane] == _NEW:
                lanes.phase[lane] = _ACTING if jobs.acting else _FINAL
                work.a[work.before, lane] = 0.0
                if jobs.result[lanes.row[lane], STATUS] != OK:
                    _close(work, lanes, lane)
                elif plan.jumps:
                    fresh = lanes.step[lane] == 0
                    lanes.restless[lane] = not settle(newton, work, lane, _REST * _DECIDE, fresh)
                continue
            settling = work.a[work.change, lane] <= _EARLY * _EARLY or lanes.restless[lane] == 1
            settling = settling and lanes.phase[lane] == _ACTING
            if settling and _acted(plan, controls, (work, states, cache), lanes, jobs, lane):
                if plan.jumps:
                    lanes.restless[lane] = not settle(newton, work, lane, _REST * _DECIDE, False)
                continue
            if _stuck(work, lanes, jobs, lane):
                _help(newton, work, lanes, jobs, lane)
    if count > 0:
        _hand_in((plan, plain, controls), check, done, jobs, lanes.finished, count)


@inner
def _acted(
    plan: OperatedPlan,
    controls: Controls,
    memory: tuple[Work, States, Cache],
    lanes: Lanes,
    jobs: Jobs,
    lane: int,
) -> bool:
    """Let the controls of a lane move if its voltages are settled enough; whether they did."""
    work, states, cache = memory
    row = lanes.row[lane]
    # Where nothing rests at these taps, controls look all the same: what they do may end it.
    e2 = 0.0 if lanes.restless[lane] == 1 else work.a[work.change, lane]
    if controls.capacitor.shape[0] > 0 and e2 > _SWITCH * _SWITCH:
        return False
    slack = 0.0 if e2 <= _DECIDE * _DECIDE else jobs.slack_v * np.sqrt(e2)
    # A step is looked at when it ends, as OpenDSS does; a snapshot has no time.
    now_s = _DAY_S * (lanes.step[lane] + 1) / jobs.steps if jobs.steps > 1 else 0.0
    moved = act(controls, (plan.w_re, plan.w_im), work, states, lane, slack, now_s)
    if moved == 0:
        lanes.phase[lane] = _FINAL
    if moved <= 0:
        return False
    jobs.result[row, ROUNDS] += 1
    _put_taps(plan, controls, work, states, cache, lane)
    work.a[work.before, lane] = 0.0
    return True


@inner
def _stuck(work: Work, lanes: Lanes, jobs: Jobs, lane: int) -> bool:
    """End a lane whose next sweep is the last; whether it has had its sweeps without coming so far."""
    row, e2, before = lanes.row[lane], work.a[work.change, lane], work.a[work.before, lane]
    work.a[work.before, lane] = e2
    result, enough = jobs.result, jobs.tolerance * jobs.tolerance
    near = e2 < before and e2 * e2 <= jobs.forecast * enough * before
    if lanes.phase[lane] == _FINAL and (e2 <= enough or near):
        result[row, CONVERGED] = 1
        result[row, ITERATIONS] = lanes.spent[lane]
        _close(work, lanes, lane)
        return False
    lanes.rises[lane] = lanes.rises[lane] + 1 if e2 > before > 0.0 else 0
    most = _SWEEPS * (1 + lanes.helped[lane]) + _PER_ROUND * result[row, ROUNDS]
    return lanes.spent[lane] >= most or lanes.rises[lane] >= _MOST_RISES or not np.isfinite(e2)


@inner
def _help(network: Network, work: Work, lanes: Lanes, jobs: Jobs, lane: int) -> None:
    """Let Newton's method go on with a lane, or where loads sag OpenDSS's iteration, or give it up."""
    row = lanes.row[lane]
    lanes.helped[lane] += 1
    lanes.rises[lane] = 0
    rounds = jobs.result[row, ROUNDS]
    lanes.restless[lane] = 0
    helps = lanes.helped[lane] <= _MOST_HELP + rounds and rounds <= _MOST_ROUNDS
    if helps and not newton_at_taps(network, work, lane, jobs.tolerance):
        helps = network[0].sags and settle(network, work, lane, _REST * jobs.tolerance, True)
    if not helps:
        jobs.result[row, CONVERGED], jobs.result[row, GIVEN_UP] = 0, 1
        _close(work, lanes, lane)
    work.a[work.before, lane] = 0.0


@inner
def _close(work: Work, lanes: Lanes, lane: int) -> None:
    """Freeze the right-hand side of a lane; the next sweep is its last."""
    lanes.phase[lane] = _CLOSING
    work.a[work.active, lane] = 0.0


@inner
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


@inner
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
    for row in range(core, rows):
        simd.lower_row(plan, done, row, -1)
    for row in range(rows):
        simd.round_row(plan, done, row)
    currents(plain, (plan.w_re, plan.w_im), done.c_re - done.i_im, done)
    for row in range(rows):
        simd.product_row(check, done, row)
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


@inner
def _measure(plan: OperatedPlan, controls: Controls, check: Check, done: Work, rows: int) -> None:
    """Power mismatch of every row: the largest square, that times the limit, and the sum of squares."""
    n, r = plan.interior, plan.phases
    for k in range(3):
        for lane in range(LANES):
            done.a[done.worst + k, lane] = 0.0
    for i in range(r):
        # The currents of both ends of a ratio balance together: J_outer + J_inner/t.
        inner, outer, flow = n + i, n + r + i, controls.outflow[i]
        for lane in range(LANES):
            t = done.a[done.t + i, lane]
            left = 1.0 - 1.0 / t
            done.a[done.f_re + outer, lane] += done.a[done.f_re + inner, lane] / t + left * flow.real
            done.a[done.f_im + outer, lane] += done.a[done.f_im + inner, lane] / t + left * flow.imag
    for row in range(rows):
        if not n <= row < n + r:
            simd.balance_row(plan, check, done, row, plan.source[row] if row < plan.source.size else -1)
