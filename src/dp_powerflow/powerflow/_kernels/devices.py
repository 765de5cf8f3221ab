"""Currents of loads, PV systems, generators and capacitors at the present voltages, in lanes.

Injected power s gives the current conj(s(u))·V/|V|², V the voltage across the branch and u = |V|/rated. It is
written as conj(s)·g(u)·V with an admittance factor g, so that a constant impedance needs no division.

Arrays are few and large: numba spends most of its time on the arguments of functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from dp_powerflow._bits.compiled import entry, inner
from dp_powerflow._bits.elementary import exp1, log1
from dp_powerflow.powerflow._kernels.simd import LANES, Emitter, instruction, unless_frozen
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
Pair = tuple[FloatArray, FloatArray]
"""Real and imaginary parts of the no-load voltage w."""


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
    work = Work(a, *begin[:-1].tolist())
    a[work.active] = 1.0
    return work


@inner
def lane_voltage(w: Pair, work: Work, lane: int, a: int, b: int) -> tuple[float, float]:
    """Voltage between two positions in a lane; −1 is ground."""
    u, v = w[0][a] + work.a[work.x_re + a, lane], w[1][a] + work.a[work.x_im + a, lane]
    if b >= 0:
        u -= w[0][b] + work.a[work.x_re + b, lane]
        v -= w[1][b] + work.a[work.x_im + b, lane]
    return u, v


@inner
def currents(branches: Branches, w: Pair, rows: int, work: Work) -> None:
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
            _by_lane(branches, w, work, k)
            inject_held(branches, w, work, k)
        elif kind == POWER:
            inject_power(branches, w, work, k)
        elif kind == IMPEDANCE:
            inject_impedance(branches, w, work, k)
        else:
            inject_zip(branches, w, work, k)


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
def _by_lane(branches: Branches, w: Pair, work: Work, k: int) -> None:
    """P and Q of a branch of the rarer kinds, into `hold`."""
    device = branches.table[k, OF]
    first, last = branches.first[device], branches.first[device + 1]
    for lane in range(LANES):
        total, own = 0.0, 0.0
        for other in range(first, last):
            a, b = branches.table[other, A], branches.table[other, B]
            u, v = lane_voltage(w, work, lane, a, b)
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
        self.branches, no_load, self.work, self.k = e.values
        b = e.builder
        self.at_a, self.at_b, self.row_a, self.row_b, self.device = (
            e.item(self.branches.table, self._place(column, TABLE_COLUMNS))
            for column in (A, B, ROW_A, ROW_B, OF)
        )
        parts = (self.work.x_re, self.work.x_im)
        self.x = [e.variable(value) for value in e.rows(parts, self.at_a)]
        self.w = [e.variable(e.item(part, self.at_a)) for part in no_load]
        with self._joined(self.at_b):
            for place, part in zip(self.x, parts, strict=True):
                b.store(b.fsub(b.load(place), e.row(part, self.at_b)), place)
            for place, part in zip(self.w, no_load, strict=True):
                b.store(b.fsub(b.load(place), e.item(part, self.at_b)), place)
        self.x = [b.load(place) for place in self.x]
        self.v = [b.fadd(e.spread(b.load(w)), x) for w, x in zip(self.w, self.x, strict=True)]
        self.size = e.square(self.v)

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
        slope = [self.number(column) for column in (S_0, S_1, S_2, S_3)]
        linear, turned = e.block_times(slope, self.x), e.conjugate_times([p, q], self.v)
        new = [b.fadd(linear[part], turned[part]) for part in range(2)]
        shares = (work.c_re, work.c_im)
        values = unless_frozen(e, work, new, e.rows(shares, self.k), self.size)
        e.put_rows(values, shares, self.k)
        for value, rows in zip(values, (work.i_re, work.i_im), strict=True):
            e.put(b.fadd(e.row(rows, self.row_a), value), rows, self.row_a)
            with self._joined(self.row_b):
                e.put(b.fsub(e.row(rows, self.row_b), value), rows, self.row_b)

    def power(self, g: Any) -> list[Any]:
        """P and Q of the device times g."""
        power = self.e.rows((self.work.s_re, self.work.s_im), self.device)
        return [self.e.multiply(part, g) for part in power]


@instruction(LANES)
def inject_power(e: Emitter, branches: Any, w: Any, work: Any, k: Any) -> None:
    """Add the current of a branch of constant power."""
    branch = _Branch(e)
    square, inside = branch.clamped()
    g = branch.with_sag(square, e.builder.fdiv(branch.number(SHARE), inside))
    branch.inject(*branch.power(g))


@instruction(LANES)
def inject_impedance(e: Emitter, branches: Any, w: Any, work: Any, k: Any) -> None:
    """Add the current of a branch of constant impedance."""
    branch = _Branch(e)
    branch.inject(*branch.power(branch.number(SHARE)))


@instruction(LANES)
def inject_zip(e: Emitter, branches: Any, w: Any, work: Any, k: Any) -> None:
    """Add the current of a branch with one law for P and Q."""
    branch = _Branch(e)
    square, inside = branch.clamped()
    inverse = e.builder.fdiv(e.constant(1.0), e.call("sqrt", inside))
    law = e.add(branch.number(I_P), branch.number(C_P), inverse)
    law = e.add(branch.number(Z_P), law, inverse)
    g = branch.with_sag(square, e.multiply(law, branch.number(SHARE)))
    branch.inject(*branch.power(g))


@instruction(LANES)
def inject_held(e: Emitter, branches: Any, w: Any, work: Any, k: Any) -> None:
    """Add the current of a branch whose P and Q over |V|² are in `hold`."""
    branch = _Branch(e)
    branch.inject(e.row(branch.work.hold, 0), e.row(branch.work.hold, 1))


# ----------------------------------------------------------------------------- one branch at a time

_TOGETHER = 64
"""Snapshots whose voltages and powers stay in the cache while one branch after the other is added up."""
_SHIFT = 1e-6
"""Change of a voltage from which a slope is taken [p.u.]."""


@inner
def branch_current(branches: Branches, k: int, s: complex, v: complex, u_control: float) -> complex:
    """Current that branch k injects at voltage v across it; a curve of the file sees u_control instead."""
    square = (v.real * v.real + v.imag * v.imag) * branches.constant[k, SCALE]
    p, q = power_at(branches, k, s.real, s.imag, square, u_control)
    return complex(p * v.real + q * v.imag, p * v.imag - q * v.real)


@inner
def across(branches: Branches, k: int, w: Pair, x: ComplexArray) -> complex:
    """Voltage across branch k."""
    a, b = branches.table[k, A], branches.table[k, B]
    u, v = w[0][a] + x[a].real, w[1][a] + x[a].imag
    if b >= 0:
        u -= w[0][b] + x[b].real
        v -= w[1][b] + x[b].imag
    return complex(u, v)


@inner
def control_voltage(branches: Branches, k: int, w: Pair, x: ComplexArray) -> float:
    """Mean |V|/rated over all branches of the device of branch k."""
    device, total = branches.table[k, OF], 0.0
    for other in range(branches.first[device], branches.first[device + 1]):
        v = across(branches, other, w, x)
        total += np.sqrt((v.real * v.real + v.imag * v.imag) * branches.constant[other, SCALE])
    return float(total / (branches.first[device + 1] - branches.first[device]))


@entry
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


@entry
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
