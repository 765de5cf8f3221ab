"""Arrays that the compiled kernels read, prepared from a feeder once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.factor import Factors, Rows, factorise
from dp_powerflow.powerflow.kernels import Check, Plan
from dp_powerflow.powerflow.kernels_newton import BlockPlan
from dp_powerflow.powerflow.solution import wye_only
from dp_powerflow.powerflow.voltvar import VoltVar
from dp_powerflow.units import ComplexArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Plans:
    """Everything the kernels need: of the fixed point, of Newton's method, and of the two checks."""

    factors: Factors
    plan: Plan
    blocks: BlockPlan
    core_check: Check
    full_check: Check


def prepare(feeder: Feeder, voltvar: VoltVar | None, tolerance: float) -> Plans:
    """Factorise a feeder and lay out all arrays."""
    factors = factorise(feeder)
    n_retained = len(feeder.retained)
    if voltvar is not None and len(voltvar.curve_of) != n_retained:
        raise PowerFlowError(
            f"the volt-var assignment covers {len(voltvar.curve_of)} nodes but the feeder retains {n_retained}"
        )
    at = factors.position[np.searchsorted(feeder.energised, feeder.retained)]
    load_at = np.full(len(factors.w), -1, dtype=np.int64)
    load_at[at] = np.arange(n_retained)
    start, weight = _first_guess(feeder, factors, at)
    lower = _stack(factors.lower, factors.recover, factors.n_core)
    knots, base, slopes = _curves(voltvar)
    plan = Plan(
        n_core=factors.n_core,
        lower_ptr=lower.ptr,
        lower_col=lower.col,
        lower_re=lower.re,
        lower_im=lower.im,
        upper_ptr=factors.upper.ptr,
        upper_col=factors.upper.col,
        upper_re=factors.upper.re,
        upper_im=factors.upper.im,
        pivot_re=factors.pivot.real.copy(),
        pivot_im=factors.pivot.imag.copy(),
        w_re=factors.w.real.copy(),
        w_im=factors.w.imag.copy(),
        equation=factors.equation,
        source=load_at[factors.equation],
        load_at=load_at,
        at=at,
        start=start,
        weight=weight,
        strict=wye_only(feeder),
        curve_of=np.full(n_retained, -1, dtype=np.int64) if voltvar is None else voltvar.curve_of,
        knots=knots,
        base=base,
        slopes=slopes,
    )
    return Plans(
        factors,
        plan,
        _block_plan(factors, at),
        _check(factors.core, factors.core_floor, tolerance),
        _check(factors.full, factors.full_floor, tolerance),
    )


def _check(rows: Rows, floor: FloatArray, tolerance: float) -> Check:
    return Check(rows.ptr, rows.col, rows.re, rows.im, 1.0 / (tolerance + floor) ** 2)


def _stack(core: Rows, recover: Rows, n_core: int) -> Rows:
    """Rows of the core, then those of the eliminated nodes."""
    begin = recover.ptr[n_core]
    return Rows(
        np.concatenate([core.ptr, core.ptr[-1] + recover.ptr[n_core + 1 :] - begin]),
        np.concatenate([core.col, recover.col[begin:]]),
        np.concatenate([core.re, recover.re[begin:]]),
        np.concatenate([core.im, recover.im[begin:]]),
    )


def _first_guess(feeder: Feeder, factors: Factors, at: IntArray) -> tuple[ComplexArray, ComplexArray]:
    """Deviation from no load at nominal injection, linearised at no load, and the projection on it.

    A snapshot starts at the nominal deviation times its share of the nominal load: one iteration saved.
    """
    nominal = feeder.nominal_injection[feeder.retained]
    size = float(np.vdot(nominal, nominal).real)
    if size == 0.0:
        return np.zeros_like(nominal), np.zeros_like(nominal)
    w = factors.w[at]
    current = np.zeros(factors.n_core, dtype=np.complex128)
    current[at] = np.conj(nominal / w)
    x = core_solve(factors, current)[at]
    # One more pass brings the quadratic part; the feeder may be overloaded at nominal, so no iteration.
    current[at] = np.conj(nominal / (w + x)) if bool((abs(x) < 0.3 * abs(w)).all()) else 0.0
    x = core_solve(factors, current)[at]
    return x, nominal / size


def core_solve(factors: Factors, current: ComplexArray) -> ComplexArray:
    """Y_core⁻¹·current for one current, complex (core,) in position order."""
    n = factors.n_core
    lower = _matrix(factors.lower, n) + sp.eye_array(n, format="csr")
    upper = sp.csr_array(_matrix(factors.upper, n) + sp.diags_array(1.0 / factors.pivot, format="csr"))
    solved = sp.linalg.spsolve_triangular(sp.csr_array(lower), current[factors.equation], lower=True)
    return np.asarray(sp.linalg.spsolve_triangular(upper, solved, lower=False))


def _matrix(rows: Rows, n: int) -> sp.csr_array:
    return sp.csr_array((rows.re + 1j * rows.im, rows.col, rows.ptr), shape=(n, n))


def _curves(voltvar: VoltVar | None) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Knots, value left of the first knot, and slopes; short curves padded with flat segments."""
    curves = () if voltvar is None else voltvar.curves
    width = max((len(curve.voltage) for curve in curves), default=2)
    knots = np.zeros((max(len(curves), 1), width))
    base, slopes = np.zeros(len(knots)), np.zeros((len(knots), width - 1))
    for k, curve in enumerate(curves):
        points = len(curve.voltage)
        knots[k, :points] = curve.voltage
        knots[k, points:] = curve.voltage[-1]
        base[k] = curve.reactive[0]
        slopes[k, : points - 1] = np.diff(curve.reactive) / np.diff(curve.voltage)
    return knots, base, slopes


def _block_plan(factors: Factors, at: IntArray) -> BlockPlan:
    """Pattern of the Jacobian's factors: that of Y_core in the order of the factors, with its fill."""
    n = factors.n_core
    core = _matrix(factors.core, n)[factors.equation]
    core.sort_indices()
    pattern: list[set[int]] = []
    for row in range(n):
        columns = set(core.indices[core.indptr[row] : core.indptr[row + 1]].tolist()) | {row}
        pending = sorted(k for k in columns if k < row)
        while pending:
            k = pending.pop(0)
            fresh = {j for j in pattern[k] if j > k} - columns
            columns |= fresh
            pending = sorted(set(pending) | {j for j in fresh if j < row})
        pattern.append(columns)
    col = np.concatenate([np.sort(np.fromiter(columns, dtype=np.int64)) for columns in pattern])
    ptr = np.concatenate([[0], np.cumsum([len(columns) for columns in pattern])]).astype(np.int64)
    row_of = np.repeat(np.arange(n), np.diff(ptr))
    key = row_of * n + col
    entry = np.zeros(len(col), dtype=np.complex128)
    core_row = np.repeat(np.arange(n), np.diff(core.indptr))
    entry[np.searchsorted(key, core_row * n + core.indices)] = core.data
    equation_of = np.empty(n, dtype=np.int64)
    equation_of[factors.equation] = np.arange(n)
    diagonal = np.searchsorted(key, np.arange(n) * n + np.arange(n))
    return BlockPlan(ptr, col, diagonal, entry, np.searchsorted(key, equation_of[at] * n + at))
