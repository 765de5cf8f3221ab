"""Newton's method at fixed taps, for snapshots on which the fixed point of the feeder as operated is slow.

With the true slope of every branch, (Y + slope)·x⁺ = i(v) + slope·x is Newton's step. It is solved with the
same order of elimination as the fixed point. A result counts only if the pivots have the signs that they have
at no load: that is the branch of solutions which starts there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow.powerflow._kernels.compiled import inner, kernel
from dp_powerflow.powerflow._kernels.devices import (
    ADDED,
    KIND,
    OF,
    ROW_A,
    S_0,
    SCALE,
    SHARE,
    A,
    B,
    Branches,
    OperatedPlan,
    Work,
    factor_terminals,
    power_at,
    terminal_constant,
)
from dp_powerflow.powerflow.elimination import BlockPlan, factor_interior
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

MOST_STEPS, MOST_RISES = 10, 2
_MOST_PLAIN = 100
"""Steps of OpenDSS's iteration."""
_NEAR = 0.1
"""Mismatch of the fixed point [p.u.] up to which Newton's method starts where it is."""
_TOGETHER = 64
"""Snapshots whose voltages and powers stay in the cache while one branch after the other is added up."""
_SHIFT = 1e-6
"""Change of a voltage from which a slope is taken [p.u.]."""


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


@inner
def branch_current(branches: Branches, k: int, s: complex, v: complex, u_control: float) -> complex:
    """Current that branch k injects at voltage v across it; a curve of the file sees u_control instead."""
    square = (v.real * v.real + v.imag * v.imag) * branches.constant[k, SCALE]
    p, q = power_at(branches, k, s.real, s.imag, square, u_control)
    return complex(p * v.real + q * v.imag, p * v.imag - q * v.real)


@inner
def across(branches: Branches, k: int, w: tuple[FloatArray, FloatArray], x: ComplexArray) -> complex:
    """Voltage across branch k."""
    a, b = branches.table[k, A], branches.table[k, B]
    u, v = w[0][a] + x[a].real, w[1][a] + x[a].imag
    if b >= 0:
        u -= w[0][b] + x[b].real
        v -= w[1][b] + x[b].imag
    return complex(u, v)


@inner
def control_voltage(branches: Branches, k: int, w: tuple[FloatArray, FloatArray], x: ComplexArray) -> float:
    """Mean |V|/rated over all branches of the device of branch k."""
    device, total = branches.table[k, OF], 0.0
    for other in range(branches.first[device], branches.first[device + 1]):
        v = across(branches, other, w, x)
        total += np.sqrt((v.real * v.real + v.imag * v.imag) * branches.constant[other, SCALE])
    return float(total / (branches.first[device + 1] - branches.first[device]))


@kernel
def branch_slope(
    branches: Branches, k: int, s: complex, v: complex, u_control: float, out: FloatArray
) -> None:
    """out[k] = −∂i/∂V of branch k as a real 2×2 block, by central differences.

    The voltage that a curve sees moves with that of the branch, as if all branches of the device did the
    same: exact for a device of one branch, and for three phases that move together.
    """
    turn = np.sqrt(branches.constant[k, SCALE] / (v.real * v.real + v.imag * v.imag))
    for q in range(4):
        out[k, q] = 0.0
    for way in range(4):
        shift = _SHIFT if way < 2 else -_SHIFT
        re, im = (shift, 0.0) if way % 2 == 0 else (0.0, shift)
        u = u_control + turn * (v.real * re + v.imag * im)
        i = branch_current(branches, k, s, complex(v.real + re, v.imag + im), u)
        out[k, way % 2] -= i.real * (0.5 / shift)
        out[k, 2 + way % 2] -= i.imag * (0.5 / shift)


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


@kernel
def newton_at_taps(
    network: tuple[OperatedPlan, Branches, ComplexArray, Slow], work: Work, lane: int, tolerance: float
) -> bool:
    """Solve one lane at its taps; its x and right-hand side are those of the solution if there is one.

    Parameters
    ----------
    network : plan, branches, currents out of the outer nodes at no load, pattern and room.
    """
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


@kernel
def settle(
    network: tuple[OperatedPlan, Branches, ComplexArray, Slow],
    work: Work,
    lane: int,
    tolerance: float,
    fresh: bool,
) -> bool:
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
    factor_interior(slow.blocks, slow.slots, slow.extra, plan.interior, slow.values, slow.place)
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
def _iterate(
    network: tuple[OperatedPlan, Branches, ComplexArray, Slow],
    work: Work,
    lane: int,
    tolerance: float,
) -> bool:
    """Newton's steps from slow.x, in place; whether they end within the tolerance on the right branch.

    From no load the steps come down to a solution without passing it, the slopes of the loads growing on the
    way. Where a pivot of the Jacobian changes its sign, the nose is passed and there is nothing below; so it
    is where the mismatch rises again and again. Either is given up at once.
    """
    plan, branches, outflow, slow = network
    last, rises = np.inf, 0
    for _ in range(MOST_STEPS):
        _linearise(plan, branches, slow, work, lane)
        sign = factor_interior(slow.blocks, slow.slots, slow.extra, plan.interior, slow.values, slow.place)
        if sign <= 0 or _solve(plan, outflow, slow, work, lane) <= 0:
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
    sign = factor_terminals(slow.schur, slow.ratio, f, 0)
    terminal_constant(slow.schur, outflow, plan, slow.ratio, slow.constant)
    for i in range(r):
        constant = complex(slow.constant[i, 0], slow.constant[i, 1])
        x[n + i] += slow.ratio[i] * x[n + r + i] - constant
        for j in range(i):
            x[n + i] -= _times(f, 0, 4 * (i * r + j), x[n + j])
    for i in range(r - 1, -1, -1):
        for j in range(i + 1, r):
            x[n + i] -= _times(f, 0, 4 * (i * r + j), x[n + j])
        x[n + i] = _times(f, 0, 4 * (i * r + i), x[n + i])
        no_load, t = complex(plan.w_re[n + i], plan.w_im[n + i]), slow.ratio[i]
        x[n + r + i] = t * x[n + i] + (t - 1.0) * no_load
    for row in range(n - 1, -1, -1):
        for p in range(blocks.diagonal[row] + 1, blocks.ptr[row + 1]):
            x[row] -= _times(slow.values, p, 0, x[blocks.col[p]])
        x[row] = _times(slow.values, blocks.diagonal[row], 0, x[row])
    return sign


@kernel
def nodal_powers(
    branches: Branches,
    columns: tuple[IntArray, IntArray, IntArray],
    power: tuple[ComplexArray, ComplexArray, ComplexArray],
    v: ComplexArray,
    out: tuple[ComplexArray, ComplexArray],
    last: int,
) -> None:
    """Add up what the branches of loads draw, and of the devices after them up to `last` inject, by node.

    Parameters
    ----------
    columns : (position,) columns of v and of the two results, −1 for none.
    power : complex (snapshot, load) drawn, (snapshot, PV system) injected, and (device,) of those devices
        that no snapshot gives.
    """
    loads = power[0].shape[1]
    # Branch by branch, for as many snapshots as stay in the cache.
    for first in range(0, v.shape[0], _TOGETHER):
        rows = (first, min(first + _TOGETHER, v.shape[0]))
        for k in range(branches.table.shape[0]):
            device = branches.table[k, OF]
            if device < loads:
                _branch_power(branches, k, columns[:2], power, v, out[0], rows)
            elif device < last:
                _branch_power(branches, k, (columns[0], columns[2]), power, v, out[1], rows)


@inner
def _branch_power(
    branches: Branches,
    k: int,
    columns: tuple[IntArray, IntArray],
    power: tuple[ComplexArray, ComplexArray, ComplexArray],
    v: ComplexArray,
    target: ComplexArray,
    rows: tuple[int, int],
) -> None:
    column, place = columns
    drawn, injected, fixed = power
    loads, device = drawn.shape[1], branches.table[k, OF]
    sign = -1.0 if device < loads else 1.0
    begin, end = branches.first[device], branches.first[device + 1]
    sees_all = branches.table[k, KIND] == ADDED
    for row in range(rows[0], rows[1]):
        total, own = 0.0, 0.0j
        for other in range(begin if sees_all else k, end if sees_all else k + 1):
            across_it = v[row, column[branches.table[other, A]]]
            if branches.table[other, B] >= 0:
                across_it -= v[row, column[branches.table[other, B]]]
            if sees_all:
                size = across_it.real * across_it.real + across_it.imag * across_it.imag
                total += np.sqrt(size * branches.constant[other, SCALE])
            own = across_it if other == k else own
        s = fixed[device]
        if device < loads:
            s = -drawn[row, device]
        elif device - loads < injected.shape[1]:
            s = injected[row, device - loads]
        i = branch_current(branches, k, s, own, total / (end - begin))
        for side in range(2):
            at = branches.table[k, A if side == 0 else B]
            if at >= 0:
                u = v[row, column[at]]
                turn = sign if side == 0 else -sign
                re = turn * (u.real * i.real + u.imag * i.imag)
                im = turn * (u.imag * i.real - u.real * i.imag)
                target[row, place[at]] += complex(re, im)
