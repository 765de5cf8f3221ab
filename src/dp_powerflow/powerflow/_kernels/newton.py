"""Newton's method for the few snapshots on which the fixed point is slow, compiled by numba.

Near the voltage-collapse nose the fixed point stops contracting although a solution exists. Newton's method
finds it, but may also find a low-voltage one. So the injections are raised from zero in steps, each solved
from the last; a step counts only if the mismatch falls at every iterate and the Jacobian's determinant has
the sign that it has at no load. What is found is the branch that starts at no load, the fixed point's own.

The Jacobian of Y·x − i(v) is real-linear: see `elimination`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.compiled import kernel
from dp_powerflow.powerflow._kernels.solve import Check, Plan, Task, voltvar_share
from dp_powerflow.powerflow.elimination import BlockPlan, factor_blocks, solve_blocks
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

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
    n_load = plan.at.size
    n = plan.w_re.size
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
                w = complex(plan.w_re[row], plan.w_im[row])
                x[row] = (w + x[row]) - w
            _inject(plan, injection, 1.0, x, current)
            worst, excess = _mismatch(plan, check, x, current)
            task.mismatch[k] = worst
        task.converged[k] = solved and excess <= 1.0
        for column in range(task.targets.size):
            at = task.targets[column]
            if task.converged[k]:
                task.out[k, 2 * column] = plan.w_re[at] + x[at].real
                task.out[k, 2 * column + 1] = plan.w_im[at] + x[at].imag
            else:
                task.out[k, 2 * column] = task.out[k, 2 * column + 1] = np.nan


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
    while lam < 1.0 and step >= SMALLEST_STEP and spent < MAX_ITERATIONS:
        target = min(1.0, lam + step)
        for row in range(n_core):
            x[row] = good[row]
        used, solved = _newton(system, injection, target, factors, x)
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
    system: System, injection: Injection, lam: float, factors: FloatArray, x: ComplexArray
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
        sign = factor_blocks(blocks, extra, factors)
        # The last level is carried on until another iterate would not lower the mismatch.
        stuck = not worst < 0.5 * before
        if (lam < 1.0 and worst <= _ROUGH) or excess <= 0.01 or (excess <= 1.0 and stuck):
            return used, sign > 0
        if sign == 0 or not worst < before:
            return used, False
        before = worst
        _residual(plan, core, x, current, rhs)
        solve_blocks(blocks, factors, rhs)
        for row in range(plan.n_core):
            x[row] += rhs[row]
    return ITERATIONS_PER_STEP, False


@kernel
def _inject(plan: Plan, injection: Injection, lam: float, x: ComplexArray, current: ComplexArray) -> None:
    """i(v) at v = w + x, injections times lam."""
    for m in range(plan.at.size):
        at = plan.at[m]
        v = complex(plan.w_re[at], plan.w_im[at]) + x[at]
        s = injection.fixed[m]
        if plan.curve_of[m] >= 0:
            q = voltvar_share(plan, plan.curve_of[m], _modulus(v))
            s += injection.turned[m] * complex(np.sqrt(1.0 - q * q), q)
        current[m] = lam * np.conj(s / v)


@kernel
def _mismatch(plan: Plan, check: Check, x: ComplexArray, current: ComplexArray) -> tuple[float, float]:
    """Largest power mismatch, and the largest in units of its row's limit (NaN counts as infinite)."""
    worst, excess = 0.0, 0.0
    for row in range(check.ptr.size - 1):
        r = 0.0j
        if plan.load_at[row] >= 0:
            r = current[plan.load_at[row]]
        for p in range(check.ptr[row], check.ptr[row + 1]):
            r -= complex(check.re[p], check.im[p]) * x[check.col[p]]
        v = complex(plan.w_re[row], plan.w_im[row]) + x[row]
        size = _modulus(r) * _modulus(v)
        if not np.isfinite(size):
            return np.inf, np.inf
        worst = max(worst, size)
        excess = max(excess, size * np.sqrt(check.limit[row]))
    return worst, excess


@kernel
def _residual(plan: Plan, core: Check, x: ComplexArray, current: ComplexArray, rhs: ComplexArray) -> None:
    """i(v) − Y_core·x, in the order of the equations."""
    for equation in range(plan.n_core):
        row = plan.equation[equation]
        r = 0.0j
        if plan.load_at[row] >= 0:
            r = current[plan.load_at[row]]
        for p in range(core.ptr[row], core.ptr[row + 1]):
            r -= complex(core.re[p], core.im[p]) * x[core.col[p]]
        rhs[equation] = r


@kernel
def load_block(
    plan: Plan, m: int, injection: Injection, lam: float, x: ComplexArray, blocks: FloatArray
) -> None:
    """−∂i/∂v of one load as a block: conj(s)/conj(v)²·conj(dv), less the turn of its generation."""
    block = blocks[m]
    block[0] = block[1] = block[2] = block[3] = 0.0
    at = plan.at[m]
    v = complex(plan.w_re[at], plan.w_im[at]) + x[at]
    u = _modulus(v)
    s, turned = injection.fixed[m], injection.turned[m]
    if plan.curve_of[m] >= 0:
        q, slope = voltvar_share(plan, plan.curve_of[m], u), 0.0
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
