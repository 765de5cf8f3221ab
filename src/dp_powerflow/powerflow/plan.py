"""Arrays that the compiled kernels read, prepared from a feeder once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.phasors import divide, modulus, multiply, square
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow._kernels.solve import Check, Plan
from dp_powerflow.powerflow.elimination import BlockPlan, factor_blocks, solve_blocks
from dp_powerflow.powerflow.factor import Factors, Rows, factorise
from dp_powerflow.powerflow.voltvar import VoltVar
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

TYPICAL_LOAD = 0.6
"""Share of the nominal load at which the loads are linearised."""


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
    n, n_retained = factors.n_core, len(feeder.retained)
    if voltvar is not None and len(voltvar.curve_of) != n_retained:
        raise PowerFlowError(
            f"the volt-var curves cover {len(voltvar.curve_of)} nodes but the feeder retains {n_retained}"
        )
    position = factors.position[np.searchsorted(feeder.energised, feeder.retained)]
    # Loads are kept in the order of their positions, so that the sweeps walk through memory.
    order = np.argsort(position)
    at = position[order]
    row_of = np.empty(n_retained, dtype=np.int64)
    row_of[order] = np.arange(n_retained)
    load_at = np.full(len(factors.w), -1, dtype=np.int64)
    load_at[at] = np.arange(n_retained)
    blocks = factors.blocks
    nominal = feeder.nominal_injection[feeder.retained][order]
    start = _nominal_deviation(factors, blocks, at, nominal)
    slope, values = _linearised(factors, blocks, at, nominal, start)
    lower, upper = _split(blocks, values)
    size = max(float(np.sum(square(nominal))), np.finfo(np.float64).tiny)
    recover = _complex_blocks(factors.recover)
    begin = factors.recover.ptr[n]
    knots, base, slopes = curve_arrays(voltvar)
    plan = Plan(
        n_core=n,
        lower_ptr=np.concatenate([lower[0], lower[0][-1] + factors.recover.ptr[n + 1 :] - begin]),
        lower_col=np.concatenate([lower[1], factors.recover.col[begin:]]),
        lower=np.concatenate([lower[2], recover[begin:]]),
        upper_ptr=upper[0],
        upper_col=upper[1],
        upper=upper[2],
        pivot=values[blocks.diagonal],
        slope=slope,
        w_re=factors.w.real.copy(),
        w_im=factors.w.imag.copy(),
        equation=factors.equation,
        source=load_at[factors.equation],
        load_at=load_at,
        at=at,
        row_of=row_of,
        start=start,
        weight_re=nominal.real / size,
        weight_im=nominal.imag / size,
        strict=wye_only(feeder)[order].astype(np.float64),
        curve_of=np.full(n_retained, -1, dtype=np.int64) if voltvar is None else voltvar.curve_of[order],
        knots=knots,
        base=base,
        slopes=slopes,
    )
    return Plans(
        factors,
        plan,
        blocks,
        _check(factors.core, factors.core_floor, tolerance),
        _check(factors.full, factors.full_floor, tolerance),
    )


def _check(rows: Rows, floor: FloatArray, tolerance: float) -> Check:
    return Check(rows.ptr, rows.col, rows.re, rows.im, 1.0 / (tolerance + floor) ** 2)


def _nominal_deviation(
    factors: Factors, blocks: BlockPlan, at: IntArray, nominal: ComplexArray
) -> ComplexArray:
    """Deviation from no load at nominal injection, zero if the feeder does not bear it.

    A snapshot starts at this deviation times its share of the nominal load, which saves an iteration.
    """
    values = np.empty((len(blocks.col), 4))
    factor_blocks(blocks, np.zeros((len(at), 4)), values)
    w, x = factors.w[at], np.zeros_like(nominal)
    limit = 0.16 * square(w)
    for _ in range(30):
        current = np.zeros(factors.n_core, dtype=np.complex128)
        current[at] = np.conj(divide(nominal, w + x))
        deviation = current[factors.equation]
        solve_blocks(blocks, values, deviation)
        moved, x = modulus(deviation[at] - x), deviation[at]
        if not bool((square(x) < limit).all()):
            return np.zeros_like(nominal)
        if float(moved.max(initial=0.0)) < 1e-6:
            return x
    return np.zeros_like(nominal)


def _linearised(
    factors: Factors, blocks: BlockPlan, at: IntArray, nominal: ComplexArray, start: ComplexArray
) -> tuple[FloatArray, FloatArray]:
    """Slope −∂i/∂v of every load at a typical load, and the factors of Y_core + slope.

    With the slope on both sides, (Y + slope)·x⁺ = i(v) + slope·x, the fixed point contracts in proportion to
    the distance from the typical load instead of the load itself; the factors cost the same to apply.
    """
    s = TYPICAL_LOAD * nominal if start.any() else np.zeros_like(nominal)
    v = factors.w[at] + TYPICAL_LOAD * start
    d = np.conj(divide(s, multiply(v, v)))
    slope = np.stack([d.real, d.imag, d.imag, -d.real], axis=1)
    values = np.empty((len(blocks.col), 4))
    if factor_blocks(blocks, slope, values) <= 0:
        slope = np.zeros_like(slope)
        factor_blocks(blocks, slope, values)
    return slope, values


def _split(
    blocks: BlockPlan, values: FloatArray
) -> tuple[tuple[IntArray, IntArray, FloatArray], tuple[IntArray, IntArray, FloatArray]]:
    """Strictly lower and strictly upper rows of the block factors."""
    n = len(blocks.diagonal)
    row = np.repeat(np.arange(n), np.diff(blocks.ptr))
    parts = []
    for inside in (blocks.col < row, blocks.col > row):
        ptr = np.concatenate([[0], np.cumsum(np.bincount(row[inside], minlength=n))]).astype(np.int64)
        parts.append((ptr, blocks.col[inside], np.ascontiguousarray(values[inside])))
    return parts[0], parts[1]


def _complex_blocks(rows: Rows) -> FloatArray:
    return np.stack([rows.re, -rows.im, rows.im, rows.re], axis=1)


def curve_arrays(voltvar: VoltVar | None) -> tuple[FloatArray, FloatArray, FloatArray]:
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


def wye_only(feeder: Feeder) -> BoolArray:
    """(retained,) nodes whose active load cannot be negative.

    The wye equivalent of a delta load may draw negative active power at one of its nodes; a plain
    load may not, and a negative figure there is generation in the wrong argument.
    """
    shares = feeder.load_shares.tocsr()[feeder.retained]
    delta = np.asarray((abs(shares.imag)).sum(axis=1)).ravel() > 0.0
    return np.asarray(~delta, dtype=np.bool_)
