"""The network of a feeder as operated, and the small matrix M(t) that its taps change.

Equations are in `powerflow/terminals.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow.powerflow._kernels.compiled import inner
from dp_powerflow.units import ComplexArray, FloatArray, IntArray


class OperatedPlan(NamedTuple):
    """All that the kernels know of the network; positions as in `terminals.TerminalFactors`.

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
def factor_terminals(schur: FloatArray, t: FloatArray, f: FloatArray, z: int) -> int:
    """Block LU of M(t) into f[z]; 1 if determinants of all pivots are positive, else −1, 0 if singular."""
    r = t.size
    for i in range(r):
        for j in range(r):
            for q in range(4):
                f[z, 4 * (i * r + j) + q] = (
                    schur[i, j, q]
                    + schur[i, r + j, q] * t[j]
                    + t[i] * (schur[r + i, j, q] + schur[r + i, r + j, q] * t[j])
                )
    sign = 1
    for k in range(r):
        d = 4 * (k * r + k)
        a0, a1, a2, a3 = f[z, d], f[z, d + 1], f[z, d + 2], f[z, d + 3]
        determinant = a0 * a3 - a1 * a2
        if determinant == 0.0 or not np.isfinite(determinant):
            return 0
        if determinant < 0.0:
            sign = -1
        b0, b1, b2, b3 = a3 / determinant, -a1 / determinant, -a2 / determinant, a0 / determinant
        f[z, d], f[z, d + 1], f[z, d + 2], f[z, d + 3] = b0, b1, b2, b3
        for i in range(k + 1, r):
            e = 4 * (i * r + k)
            a0, a1, a2, a3 = f[z, e], f[z, e + 1], f[z, e + 2], f[z, e + 3]
            c0, c1 = a0 * b0 + a1 * b2, a0 * b1 + a1 * b3
            c2, c3 = a2 * b0 + a3 * b2, a2 * b1 + a3 * b3
            f[z, e], f[z, e + 1], f[z, e + 2], f[z, e + 3] = c0, c1, c2, c3
            for j in range(k + 1, r):
                g, h = 4 * (k * r + j), 4 * (i * r + j)
                f[z, h] -= c0 * f[z, g] + c1 * f[z, g + 2]
                f[z, h + 1] -= c0 * f[z, g + 1] + c1 * f[z, g + 3]
                f[z, h + 2] -= c2 * f[z, g] + c3 * f[z, g + 2]
                f[z, h + 3] -= c2 * f[z, g + 1] + c3 * f[z, g + 3]
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
