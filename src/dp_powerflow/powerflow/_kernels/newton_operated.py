"""Newton's method at fixed taps, for snapshots on which the fixed point of the feeder as operated is slow.

With the true slope of every branch, (Y + slope)·x⁺ = i(v) + slope·x is Newton's step. It is solved with the
same order of elimination as the fixed point. A result counts only if the determinant has the sign that it has
at no load: that is the branch of solutions which starts there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow.powerflow._kernels.compiled import inner, kernel, with_arrays
from dp_powerflow.powerflow._kernels.devices import (
    OF,
    ROW_A,
    ROW_B,
    S_0,
    SCALE,
    A,
    B,
    Branches,
    Work,
    power_at,
)
from dp_powerflow.powerflow._kernels.terminals import OperatedPlan, factor_terminals, terminal_constant
from dp_powerflow.powerflow.elimination import BlockPlan, factor_interior
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

MOST_STEPS = 10
_SHIFT = 1e-6
"""Change of a voltage from which a slope is taken [p.u.]."""


class Slow(NamedTuple):
    """Pattern of the Jacobian: slot, branch and sign of every block that a branch adds."""

    blocks: BlockPlan
    slots: IntArray
    branch: IntArray
    sign: FloatArray


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


@with_arrays
def newton_at_taps(
    network: tuple[OperatedPlan, Branches, ComplexArray, Slow], work: Work, lane: int, tolerance: float
) -> bool:
    """Solve one lane at its taps; its x and right-hand side are those of the solution if there is one.

    Parameters
    ----------
    network : plan, branches, currents out of the outer nodes at no load, pattern.
    """
    plan, branches, _, _ = network
    core, count = plan.interior + 2 * plan.phases, branches.table.shape[0]
    w = (plan.w_re, plan.w_im)
    x = np.empty(core, dtype=np.complex128)
    for p in range(core):
        x[p] = complex(work.a[work.x_re + p, lane], work.a[work.x_im + p, lane])
    for attempt in range(2):
        if attempt == 1 or not _finite(x):
            for p in range(core):
                x[p] = 0.0
        if _iterate(network, work, lane, tolerance, x):
            break
        if attempt == 1:
            return False
    for p in range(core):
        work.a[work.x_re + p, lane], work.a[work.x_im + p, lane] = x[p].real, x[p].imag
    for row in range(work.c_re - work.i_im):
        work.a[work.i_re + row, lane], work.a[work.i_im + row, lane] = 0.0, 0.0
    for k in range(count):
        s = complex(
            work.a[work.s_re + branches.table[k, OF], lane], work.a[work.s_im + branches.table[k, OF], lane]
        )
        d = x[branches.table[k, A]] - (x[branches.table[k, B]] if branches.table[k, B] >= 0 else 0.0)
        i = branch_current(branches, k, s, across(branches, k, w, x), control_voltage(branches, k, w, x))
        i += _times(branches.constant, k, S_0, d)
        work.a[work.c_re + k, lane], work.a[work.c_im + k, lane] = i.real, i.imag
        work.a[work.i_re + branches.table[k, ROW_A], lane] += i.real
        work.a[work.i_im + branches.table[k, ROW_A], lane] += i.imag
        if branches.table[k, ROW_B] >= 0:
            work.a[work.i_re + branches.table[k, ROW_B], lane] -= i.real
            work.a[work.i_im + branches.table[k, ROW_B], lane] -= i.imag
    return True


@inner
def _finite(x: ComplexArray) -> bool:
    total = 0.0
    for p in range(x.size):
        total += abs(x[p].real) + abs(x[p].imag)
    return bool(total < 10.0 * x.size)


@with_arrays
def _iterate(
    network: tuple[OperatedPlan, Branches, ComplexArray, Slow],
    work: Work,
    lane: int,
    tolerance: float,
    x: ComplexArray,
) -> bool:
    """Newton's steps from x, in place; whether they end within the tolerance on the right branch."""
    plan, branches, _, slow = network
    count, w = branches.table.shape[0], (plan.w_re, plan.w_im)
    slope, extra = np.empty((count, 4)), np.empty((slow.slots.size, 4))
    values = np.empty((slow.blocks.col.size, 4))
    right = np.empty(x.size, dtype=np.complex128)
    aim = np.empty(count, dtype=np.complex128)
    for _ in range(MOST_STEPS):
        for p in range(x.size):
            right[p] = 0.0
        for k in range(count):
            s = complex(
                work.a[work.s_re + branches.table[k, OF], lane],
                work.a[work.s_im + branches.table[k, OF], lane],
            )
            v, u = across(branches, k, w, x), control_voltage(branches, k, w, x)
            branch_slope(branches, k, s, v, u, slope)
            d = x[branches.table[k, A]] - (x[branches.table[k, B]] if branches.table[k, B] >= 0 else 0.0)
            aim[k] = branch_current(branches, k, s, v, u) + _times(slope, k, 0, d)
            right[branches.table[k, A]] += aim[k]
            if branches.table[k, B] >= 0:
                right[branches.table[k, B]] -= aim[k]
        for m in range(slow.slots.size):
            for q in range(4):
                extra[m, q] = slow.sign[m] * slope[slow.branch[m], q]
        sign = factor_interior(slow.blocks, slow.slots, extra, plan.interior, values)
        if sign == 0:
            return False
        sign *= _solve(network, work, lane, values, right)
        worst = 0.0
        for k in range(count):
            s = complex(
                work.a[work.s_re + branches.table[k, OF], lane],
                work.a[work.s_im + branches.table[k, OF], lane],
            )
            v, u = across(branches, k, w, right), control_voltage(branches, k, w, right)
            d = right[branches.table[k, A]] - (
                right[branches.table[k, B]] if branches.table[k, B] >= 0 else 0.0
            )
            left = branch_current(branches, k, s, v, u) + _times(slope, k, 0, d) - aim[k]
            size = (left.real**2 + left.imag**2) * (v.real**2 + v.imag**2)
            worst = size if size > worst or not np.isfinite(size) else worst
        for p in range(x.size):
            x[p] = right[p]
        if not np.isfinite(worst):
            return False
        if worst <= 0.01 * tolerance * tolerance:
            return bool(sign > 0)
    return False


@with_arrays
def _solve(
    network: tuple[OperatedPlan, Branches, ComplexArray, Slow],
    work: Work,
    lane: int,
    values: FloatArray,
    x: ComplexArray,
) -> int:
    """Solve in place with the factors of the interior; the sign of the determinant of M."""
    plan, _, outflow, slow = network
    blocks, n, r = slow.blocks, plan.interior, plan.phases
    for row in range(x.size):
        for p in range(blocks.ptr[row], blocks.diagonal[row]):
            if blocks.col[p] >= n:
                break
            x[row] -= _times(values, p, 0, x[blocks.col[p]])
    sign = 1
    if r > 0:
        schur = np.zeros((2 * r, 2 * r, 4))
        for row in range(2 * r):
            for p in range(blocks.ptr[n + row], blocks.ptr[n + row + 1]):
                for q in range(4 if blocks.col[p] >= n else 0):
                    schur[row, blocks.col[p] - n, q] = values[p, q]
        t, f, constant = np.empty(r), np.empty((1, 4 * r * r)), np.empty((r, 2))
        for i in range(r):
            t[i] = work.a[work.t + i, lane]
        sign = factor_terminals(schur, t, f, 0)
        terminal_constant(schur, outflow, plan, t, constant)
        for i in range(r):
            x[n + i] += t[i] * x[n + r + i] - complex(constant[i, 0], constant[i, 1])
            for j in range(i):
                x[n + i] -= _times(f, 0, 4 * (i * r + j), x[n + j])
        for i in range(r - 1, -1, -1):
            for j in range(i + 1, r):
                x[n + i] -= _times(f, 0, 4 * (i * r + j), x[n + j])
            x[n + i] = _times(f, 0, 4 * (i * r + i), x[n + i])
        for i in range(r):
            x[n + r + i] = t[i] * x[n + i] + (t[i] - 1.0) * complex(plan.w_re[n + i], plan.w_im[n + i])
    for row in range(n - 1, -1, -1):
        for p in range(blocks.diagonal[row] + 1, blocks.ptr[row + 1]):
            x[row] -= _times(values, p, 0, x[blocks.col[p]])
        x[row] = _times(values, blocks.diagonal[row], 0, x[row])
    return sign


@with_arrays
def nodal_powers(
    branches: Branches,
    column: IntArray,
    power: tuple[ComplexArray, ComplexArray],
    v: ComplexArray,
    out: tuple[ComplexArray, ComplexArray],
    loads: int,
    last: int,
) -> None:
    """Add up what the branches of loads draw, and of the devices from `loads` to `last` inject, by node.

    Parameters
    ----------
    column : (position,) column of v, −1 for none.
    power : complex (snapshot, device) of the first devices, and (device,) of those that no snapshot gives.
    """
    given, fixed = power
    for row in range(v.shape[0]):
        for k in range(branches.table.shape[0]):
            device = branches.table[k, OF]
            if device >= last:
                continue
            total, own = 0.0, 0.0j
            for other in range(branches.first[device], branches.first[device + 1]):
                across_it = v[row, column[branches.table[other, A]]]
                if branches.table[other, B] >= 0:
                    across_it -= v[row, column[branches.table[other, B]]]
                size = across_it.real * across_it.real + across_it.imag * across_it.imag
                total += np.sqrt(size * branches.constant[other, SCALE])
                own = across_it if other == k else own
            s = given[row, device] if device < given.shape[1] else fixed[device]
            mean = total / (branches.first[device + 1] - branches.first[device])
            i = branch_current(branches, k, s, own, mean)
            sign = -1.0 if device < loads else 1.0
            target = out[0] if device < loads else out[1]
            for end in range(2):
                at = branches.table[k, A if end == 0 else B]
                if at >= 0:
                    u = v[row, column[at]]
                    turn = sign if end == 0 else -sign
                    re = turn * (u.real * i.real + u.imag * i.imag)
                    im = turn * (u.imag * i.real - u.real * i.imag)
                    target[row, column[at]] += complex(re, im)
