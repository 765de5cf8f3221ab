"""Currents of loads, PV systems, generators and capacitors at the present voltages, in lanes.

Injected power s gives the current conj(s(u))·V/|V|², V the voltage across the branch and u = |V|/rated. It is
written as conj(s)·g(u)·V with an admittance factor g, so that a constant impedance needs no division.

Arrays are few and large: numba spends most of its time on the arguments of functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from dp_powerflow._bits.compiled import inner
from dp_powerflow._bits.elementary import exp1, log1
from dp_powerflow.powerflow._kernels.simd import LANES, Emitter, instruction
from dp_powerflow.powerflow._kernels.solve import curve_at
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

POWER, IMPEDANCE, ZIP, GENERAL, TURNED, ADDED = range(6)
"""Kinds of branches: constant power, constant impedance, one law for P and Q, two laws, volt-var that turns
the apparent power, volt-var that adds reactive power."""

A, B, ROW_A, ROW_B, OF, KIND, CURVE = range(7)
"""Columns of `Branches.table`: positions of the two nodes (B −1: ground), rows of the injected currents,
device, kind, curve."""
TABLE_COLUMNS = 7
(
    SCALE, SHARE, LOW2, HIGH2, Z_P, I_P, C_P, Z_Q, I_Q, C_Q, CUT, SAG_P, SAG_Q, POWERS, POWER_P, POWER_Q,
    S_0, S_1, S_2, S_3,
) = range(20)  # fmt: skip
"""Columns of `Branches.constant`: 1/rated², the branch's share of the device over rated², lowest² and
highest², z, i, c of P and of Q, cut, the two slopes below the lowest voltage, whether exponents count (1) and
`ABRUPT` (of a curve: whether active power gives way, 1), the two exponents less 2, and the fixed −∂i/∂V, a
real 2×2 block."""
CONSTANTS = 20
ABRUPT = 2.0
"""Added to the column POWERS of a branch that is as of constant power outside of its limits."""
_TINY = 1e-9


class Branches(NamedTuple):
    """Every branch of every device: `table` (branch, 7), `constant` (branch, 20), the first branch of every
    device, and the curves: knots, value left of the first knot, slopes."""

    table: IntArray
    constant: FloatArray
    first: IntArray
    knots: FloatArray
    base: FloatArray
    slopes: FloatArray


class Work(NamedTuple):
    """Rows of one block, `a` (row, LANES); the other fields say in which row an array begins.

    x: deviation from no load; s: injected power of every device; i: right-hand side behind x; c: share of
    each branch in it; m: factors of M(t); t: ratio of every regulator phase; k: constant part at the
    terminals; o: right-hand side of the outer nodes; j: current out of them into the network; f: products
    with the rows of Y; active: 1 until frozen; change: largest squared mismatch, before: the one of the last
    sweep; worst: of the check; hold: P and Q of one branch.
    """

    a: FloatArray
    x_re: int
    x_im: int
    s_re: int
    s_im: int
    i_re: int
    i_im: int
    c_re: int
    c_im: int
    m: int
    t: int
    k_re: int
    k_im: int
    o_re: int
    o_im: int
    j_re: int
    j_im: int
    f_re: int
    f_im: int
    active: int
    change: int
    before: int
    worst: int
    hold: int


def new_work(positions: int, phases: int, rows: int, branches: int, devices: int) -> Work:
    """Zeroed rows of one block, aligned to cache lines; all lanes active."""
    n, r = positions, phases
    counts = [n, n, devices, devices, rows, rows, branches, branches]
    counts += [4 * r * r, max(r, 1), r, r, r, r, r, r, n, n, 1, 1, 1, 3, 2]
    begin = np.concatenate([[0], np.cumsum(counts)])
    memory = np.zeros(int(begin[-1]) * LANES + 8)
    first = (-memory.ctypes.data // 8) % 8
    a = memory[first : first + int(begin[-1]) * LANES].reshape(-1, LANES)
    work = Work(a, *(int(row) for row in begin[:-1]))
    a[work.active] = 1.0
    return work


@inner
def currents(branches: Branches, w_re: FloatArray, w_im: FloatArray, rows: int, work: Work) -> None:
    """Right-hand side of every row at v = w + x, and how much it moved.

    Lanes where `active` is 0 keep theirs. `change` collects the largest (|V|·|i − i_before|)².
    """
    for lane in range(LANES):
        work.a[work.change, lane] = 0.0
    for row in range(rows):
        for lane in range(LANES):
            work.a[work.i_re + row, lane] = 0.0
            work.a[work.i_im + row, lane] = 0.0
    for k in range(branches.table.shape[0]):
        kind = branches.table[k, KIND]
        if kind >= GENERAL:
            _by_lane(branches, w_re, w_im, work, k)
            inject_held(branches, w_re, w_im, work, k)
        elif kind == POWER:
            inject_power(branches, w_re, w_im, work, k)
        elif kind == IMPEDANCE:
            inject_impedance(branches, w_re, w_im, work, k)
        else:
            inject_zip(branches, w_re, w_im, work, k)


@inner
def power_at(
    branches: Branches, k: int, p: float, q: float, square: float, u_control: float
) -> tuple[float, float]:
    """P and Q of branch k over |V|²: `square` is u² across it; a curve of the file sees u_control instead."""
    c, kind, curve = branches.constant, branches.table[k, KIND], branches.table[k, CURVE]
    share = c[k, SHARE]
    if kind == IMPEDANCE:
        return p * share, q * share
    inside = min(max(square, c[k, LOW2]), c[k, HIGH2])
    if kind == TURNED:
        r = curve_at(branches.knots, branches.base, branches.slopes, curve, np.sqrt(square))
        t, g = np.sqrt(1.0 - r * r), share / inside
        return (t * p - r * q) * g, (t * q + r * p) * g
    if kind == ADDED:
        r = curve_at(branches.knots, branches.base, branches.slopes, curve, u_control)
        g = share / inside
        if c[k, POWERS] == 1.0:
            p = min(p, q * np.sqrt(max(1.0 - r * r, 0.0)))
        return p * g, q * r * g
    if square < c[k, LOW2]:
        cut = c[k, CUT]
        u = max(np.sqrt(square), cut, _TINY)
        return p * (share * (cut + c[k, SAG_P] * (u - cut)) / u), q * (
            share * (cut + c[k, SAG_Q] * (u - cut)) / u
        )
    if c[k, POWERS] >= ABRUPT and square > c[k, HIGH2]:
        return p * (share / inside), q * (share / inside)
    if c[k, POWERS] == 1.0 or c[k, POWERS] == 1.0 + ABRUPT:
        half = 0.5 * log1(inside)
        return p * (share * exp1(c[k, POWER_P] * half)), q * (share * exp1(c[k, POWER_Q] * half))
    i = 1.0 / np.sqrt(inside)
    g_p = c[k, Z_P] + (c[k, I_P] + c[k, C_P] * i) * i
    g_q = c[k, Z_Q] + (c[k, I_Q] + c[k, C_Q] * i) * i
    return p * (share * g_p), q * (share * g_q)


@inner
def _by_lane(branches: Branches, w_re: FloatArray, w_im: FloatArray, work: Work, k: int) -> None:
    """P and Q of a branch of the rarer kinds, into `hold`."""
    device = branches.table[k, OF]
    first, last = branches.first[device], branches.first[device + 1]
    for lane in range(LANES):
        total, own = 0.0, 0.0
        for other in range(first, last):
            a, b = branches.table[other, A], branches.table[other, B]
            u = w_re[a] + work.a[work.x_re + a, lane]
            v = w_im[a] + work.a[work.x_im + a, lane]
            if b >= 0:
                u -= w_re[b] + work.a[work.x_re + b, lane]
                v -= w_im[b] + work.a[work.x_im + b, lane]
            square = (u * u + v * v) * branches.constant[other, SCALE]
            total += np.sqrt(square)
            own = square if other == k else own
        p, q = work.a[work.s_re + device, lane], work.a[work.s_im + device, lane]
        p, q = power_at(branches, k, p, q, own, total / (last - first))
        work.a[work.hold, lane], work.a[work.hold + 1, lane] = p, q


# ----------------------------------------------------------------------- vector instructions


class _Branch:
    """One branch at its present voltages, as vectors of lanes."""

    def __init__(self, e: Emitter) -> None:
        self.e = e
        self.branches, w_re, w_im, self.work, self.k = e.values
        b = e.builder
        self.at_a, self.at_b, self.row_a, self.row_b, self.device = (
            e.item(self.branches.table, self._place(column, TABLE_COLUMNS))
            for column in (A, B, ROW_A, ROW_B, OF)
        )
        self.x = [e.variable(e.row(part, self.at_a)) for part in (self.work.x_re, self.work.x_im)]
        self.w = [e.variable(e.item(part, self.at_a)) for part in (w_re, w_im)]
        with self._joined(self.at_b):
            for place, part in zip(self.x, (self.work.x_re, self.work.x_im), strict=True):
                b.store(b.fsub(b.load(place), e.row(part, self.at_b)), place)
            for place, part in zip(self.w, (w_re, w_im), strict=True):
                b.store(b.fsub(b.load(place), e.item(part, self.at_b)), place)
        self.x = [b.load(place) for place in self.x]
        self.v = [b.fadd(e.spread(b.load(w)), x) for w, x in zip(self.w, self.x, strict=True)]
        self.size = e.add(e.multiply(self.v[1], self.v[1]), self.v[0], self.v[0])

    def _place(self, column: int, width: int) -> Any:
        b = self.e.builder
        return b.add(b.mul(self.k, ir.Constant(self.k.type, width)), ir.Constant(self.k.type, column))

    def _joined(self, index: Any) -> Any:
        b = self.e.builder
        return b.if_then(b.icmp_signed(">=", index, ir.Constant(index.type, 0)))

    def number(self, column: int) -> Any:
        """A constant of the branch in all lanes."""
        return self.e.spread(self.e.item(self.branches.constant, self._place(column, CONSTANTS)))

    def clamped(self) -> tuple[Any, Any]:
        """u², and u² within the limits."""
        e, b = self.e, self.e.builder
        square = e.multiply(self.size, self.number(SCALE))
        low, high = self.number(LOW2), self.number(HIGH2)
        above = b.select(b.fcmp_ordered("<", square, low), low, square)
        return square, b.select(b.fcmp_ordered(">", above, high), high, above)

    def with_sag(self, square: Any, g: Any) -> Any:
        """g, and the linear fall of the current below the lowest voltage where some lane is there."""
        e, b = self.e, self.e.builder
        below = b.fcmp_ordered("<", square, self.number(LOW2))
        found = e.variable(g)
        some = b.bitcast(below, ir.IntType(e.lanes))
        with b.if_then(b.icmp_unsigned("!=", some, ir.Constant(some.type, 0)), likely=False):
            cut = self.number(CUT)
            root = e.call("sqrt", square)
            for least in (cut, e.constant(_TINY)):
                root = b.select(b.fcmp_ordered(">", root, least), root, least)
            line = b.fadd(cut, e.multiply(self.number(SAG_P), b.fsub(root, cut)))
            sag = b.fdiv(e.multiply(self.number(SHARE), line), root)
            b.store(b.select(below, sag, g), found)
        return b.load(found)

    def inject(self, p: Any, q: Any) -> None:
        """Add conj(P + jQ)·V + slope·x to the rows of the branch."""
        e, b, work = self.e, self.e.builder, self.work
        (u, v), (x, y) = self.v, self.x
        slope = [self.number(column) for column in (S_0, S_1, S_2, S_3)]
        linear = e.block_times(slope, [x, y])
        turned = [e.add(e.multiply(q, v), p, u), b.fsub(e.multiply(p, v), e.multiply(q, u))]
        new = [b.fadd(linear[part], turned[part]) for part in range(2)]
        old = [e.row(work.c_re, self.k), e.row(work.c_im, self.k)]
        moved = [b.fsub(new[part], old[part]) for part in range(2)]
        size = e.multiply(e.add(e.multiply(moved[1], moved[1]), moved[0], moved[0]), self.size)
        e.raise_to(size, work.change, 0)
        going = b.fcmp_ordered(">", e.row(work.active, 0), e.constant(0.0))
        for part, (shares, rows) in enumerate(((work.c_re, work.i_re), (work.c_im, work.i_im))):
            value = b.select(going, new[part], old[part])
            e.put(value, shares, self.k)
            e.put(b.fadd(e.row(rows, self.row_a), value), rows, self.row_a)
            with self._joined(self.row_b):
                e.put(b.fsub(e.row(rows, self.row_b), value), rows, self.row_b)

    def power(self, g: Any) -> list[Any]:
        """P and Q of the device times g."""
        parts = (self.work.s_re, self.work.s_im)
        return [self.e.multiply(self.e.row(part, self.device), g) for part in parts]


@intrinsic  # type: ignore[untyped-decorator]
def inject_power(typing: Any, branches: Any, w_re: Any, w_im: Any, work: Any, k: Any) -> Any:
    """Add the current of a branch of constant power."""

    def emit(e: Emitter) -> None:
        branch = _Branch(e)
        square, inside = branch.clamped()
        g = branch.with_sag(square, e.builder.fdiv(branch.number(SHARE), inside))
        branch.inject(*branch.power(g))

    return instruction(LANES, (branches, w_re, w_im, work, k), emit)


@intrinsic  # type: ignore[untyped-decorator]
def inject_impedance(typing: Any, branches: Any, w_re: Any, w_im: Any, work: Any, k: Any) -> Any:
    """Add the current of a branch of constant impedance."""

    def emit(e: Emitter) -> None:
        branch = _Branch(e)
        branch.inject(*branch.power(branch.number(SHARE)))

    return instruction(LANES, (branches, w_re, w_im, work, k), emit)


@intrinsic  # type: ignore[untyped-decorator]
def inject_zip(typing: Any, branches: Any, w_re: Any, w_im: Any, work: Any, k: Any) -> Any:
    """Add the current of a branch with one law for P and Q."""

    def emit(e: Emitter) -> None:
        branch = _Branch(e)
        square, inside = branch.clamped()
        inverse = e.builder.fdiv(e.constant(1.0), e.call("sqrt", inside))
        law = e.add(branch.number(I_P), branch.number(C_P), inverse)
        law = e.add(branch.number(Z_P), law, inverse)
        g = branch.with_sag(square, e.multiply(law, branch.number(SHARE)))
        branch.inject(*branch.power(g))

    return instruction(LANES, (branches, w_re, w_im, work, k), emit)


@intrinsic  # type: ignore[untyped-decorator]
def inject_held(typing: Any, branches: Any, w_re: Any, w_im: Any, work: Any, k: Any) -> Any:
    """Add the current of a branch whose P and Q over |V|² are in `hold`."""

    def emit(e: Emitter) -> None:
        branch = _Branch(e)
        branch.inject(e.row(branch.work.hold, 0), e.row(branch.work.hold, 1))

    return instruction(LANES, (branches, w_re, w_im, work, k), emit)


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
