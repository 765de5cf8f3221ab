"""The one emitter of vector code, and the vector instructions of the fixed point.

Plain loops over the lanes leave numba's compiler unable to keep a row's sums in registers (it cannot
prove that two rows of the same array do not overlap), which costs a factor of three to six. An intrinsic
states the vector operations directly, with one snapshot per lane.

All arrays are C-contiguous float64 that end in a lane axis, or plain vectors of coefficients; indices are
int64. Multiply-adds are `llvm.fma`: exact, in software where a processor has no such instruction, so the bits
are the same on all. No fast-math flag is set: NaN stays NaN and a snapshot's result does not depend on its
neighbours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
"""Snapshots side by side in the fixed point: 16 doubles fill four AVX2 registers, so a complex row sum is
eight independent chains, enough to hide the latency of a multiply-add."""
_INDEX, _SHORT = ir.IntType(64), ir.IntType(32)
_PAIR = ir.VectorType(ir.DoubleType(), 2)


class Emitter:
    """Emits the instructions of one intrinsic; its values are vectors of lanes.

    Attributes
    ----------
    values : the arguments: an array as the pointer to its data, a named tuple as a namespace of such. A named
        tuple of one array of rows and the first rows of its parts gives a pointer for each part.
    """

    def __init__(self, lanes: int, context: Any, builder: Any, kinds: Any, values: Any) -> None:
        self.lanes = lanes
        self.builder = builder
        self._context = context
        self._vector = ir.VectorType(ir.DoubleType(), lanes)
        self.values = [self._argument(kind, value) for kind, value in zip(kinds, values, strict=True)]

    def _argument(self, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.Array):
            return self._context.make_array(kind)(self._context, self.builder, value).data
        if isinstance(kind, types.containers.BaseTuple):
            parts = [
                self._argument(part, self.builder.extract_value(value, k)) for k, part in enumerate(kind)
            ]
            fields = getattr(kind, "fields", None)
            return self._named(dict(zip(fields, parts, strict=True)), kind) if fields else parts
        return value

    def _named(self, parts: dict[str, Any], kind: Any) -> SimpleNamespace:
        """A named tuple; where it starts with one array `a` of rows, its numbers are rows of that array."""
        if kind.fields[0] == "a" and all(isinstance(other, types.Integer) for other in list(kind)[1:]):
            data = parts["a"]
            for name in kind.fields[1:]:
                rows = self.builder.mul(parts[name], ir.Constant(parts[name].type, self.lanes))
                parts[name] = self.builder.gep(data, [rows])
        return SimpleNamespace(**parts)

    def constant(self, value: float) -> Any:
        return ir.Constant(self._vector, [value] * self.lanes)

    def item(self, data: Any, index: Any) -> Any:
        """One number of an array."""
        return self.builder.load(self.builder.gep(data, [index]))

    def spread(self, scalar: Any) -> Any:
        """A number in all lanes."""
        b, undefined = self.builder, ir.Constant(self._vector, ir.Undefined)
        one = b.insert_element(undefined, scalar, ir.Constant(_SHORT, 0))
        return b.shuffle_vector(
            one, undefined, ir.Constant(ir.VectorType(_SHORT, self.lanes), [0] * self.lanes)
        )

    def numbers(self, data: Any, index: Any, count: int, sign: int = 1) -> list[Any]:
        """Consecutive numbers of an item, or their negatives, each in all lanes."""
        b = self.builder
        begin = b.mul(index, ir.Constant(index.type, count))
        found = [self.item(data, b.add(begin, ir.Constant(index.type, k))) for k in range(count)]
        return [self.spread(number if sign > 0 else b.fneg(number)) for number in found]

    def pointers(self, data: Any, index: Any, rows: int = 1) -> list[Any]:
        """Pointers to the rows of lanes of one item; an int index is a constant."""
        b = self.builder
        index = ir.Constant(_INDEX, index) if isinstance(index, int) else index
        first = b.gep(data, [b.mul(index, ir.Constant(index.type, rows * self.lanes))])
        offsets = [ir.Constant(_INDEX, k * self.lanes) for k in range(rows)]
        return [b.bitcast(b.gep(first, [offset]), self._vector.as_pointer()) for offset in offsets]

    def load(self, pointers: list[Any]) -> list[Any]:
        return [self.builder.load(pointer, align=8) for pointer in pointers]

    def store(self, values: list[Any], pointers: list[Any]) -> None:
        for value, pointer in zip(values, pointers, strict=True):
            self.builder.store(value, pointer, align=8)

    def row(self, data: Any, index: Any) -> Any:
        """One row of lanes."""
        return self.load(self.pointers(data, index))[0]

    def rows(self, parts: Iterable[Any], index: Any) -> list[Any]:
        """One row of lanes of several arrays."""
        return [self.row(part, index) for part in parts]

    def put(self, value: Any, data: Any, index: Any) -> None:
        self.store([value], self.pointers(data, index))

    def put_rows(self, values: list[Any], parts: Iterable[Any], index: Any) -> None:
        for value, part in zip(values, parts, strict=True):
            self.put(value, part, index)

    def call(self, name: str, *values: Any) -> Any:
        kind = ir.FunctionType(self._vector, [self._vector] * len(values))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{self.lanes}f64")
        return self.builder.call(function, values)

    def multiply(self, x: Any, y: Any) -> Any:
        return self.builder.fmul(x, y)

    def add(self, x: Any, y: Any, z: Any) -> Any:
        """x + y·z, rounded once."""
        return self.call("fma", y, z, x)

    def square(self, x: list[Any]) -> Any:
        """|x|² of real and imaginary part."""
        return self.add(self.multiply(x[1], x[1]), x[0], x[0])

    def conjugate_times(self, s: list[Any], v: list[Any]) -> list[Any]:
        """conj(s)·v."""
        real = self.add(self.multiply(s[1], v[1]), s[0], v[0])
        return [real, self.builder.fsub(self.multiply(s[0], v[1]), self.multiply(s[1], v[0]))]

    def subtract(self, x: Any, y: Any, z: Any) -> Any:
        """x − y·z, rounded once."""
        return self.call("fma", self.builder.fneg(y), z, x)

    def add_block(self, x: list[Any], block: list[Any], y: list[Any]) -> list[Any]:
        """x + block·y: two rows of lanes, a 2×2 block, two rows of lanes."""
        half = [self.add(x[k], block[2 * k], y[0]) for k in range(2)]
        return [self.add(half[k], block[2 * k + 1], y[1]) for k in range(2)]

    def subtract_block(self, x: list[Any], block: list[Any], y: list[Any]) -> list[Any]:
        """x − block·y."""
        return self.add_block(x, [self.builder.fneg(value) for value in block], y)

    def block_times(self, block: list[Any], y: list[Any]) -> list[Any]:
        """block·y."""
        return [self.add(self.multiply(block[2 * k], y[0]), block[2 * k + 1], y[1]) for k in range(2)]

    def loop(self, first: Any, last: Any) -> Any:
        return cgutils.for_range_slice(self.builder, first, last, ir.Constant(first.type, 1), inc=True)

    def variable(self, value: Any) -> Any:
        return cgutils.alloca_once_value(self.builder, value)

    def raise_to(self, value: Any, data: Any, row: int) -> None:
        """data[row] = the larger of itself and the value, itself if the value is NaN.

        One instruction; keeping NaN would take eight.
        """
        before = self.row(data, row)
        larger = self.builder.select(self.builder.fcmp_ordered(">", value, before), value, before)
        self.put(larger, data, row)

    def pick(self, x: Any, y: Any, lanes: list[int]) -> Any:
        """Elements of two vectors, numbered through."""
        mask = ir.Constant(ir.VectorType(_SHORT, len(lanes)), lanes)
        return self.builder.shuffle_vector(x, y, mask)

    def added_up(self, start: list[Any], span: tuple[Any, Any], step: Callable[..., list[Any]]) -> list[Any]:
        """`start` after values = step(k, values) for every first ≤ k < last of the span."""
        b, sums = self.builder, [self.variable(value) for value in start]
        with cgutils.for_range_slice(b, *span, ir.Constant(span[0].type, 1), inc=True) as (k, _):
            for value, total in zip(step(k, [b.load(total) for total in sums]), sums, strict=True):
                b.store(value, total)
        return [b.load(total) for total in sums]

    def span(self, ptr: Any, row: Any) -> tuple[Any, Any]:
        """First and last entry of a row of a sparse matrix."""
        return self.item(ptr, row), self.item(ptr, self.builder.add(row, ir.Constant(row.type, 1)))

    def join(self, vectors: list[Any]) -> Any:
        """One vector of many of equal length, in pairs of pairs."""
        while len(vectors) > 1:
            count = list(range(2 * vectors[0].type.count))
            vectors = [self.pick(x, y, count) for x, y in zip(vectors[::2], vectors[1::2], strict=True)]
        return vectors[0]


def instruction(lanes: int) -> Callable[[Callable[..., None]], Any]:
    """Make an intrinsic without a result of a function of an emitter and its values."""

    def made(emit: Callable[..., None]) -> Any:
        @functools.wraps(emit)  # numba reads the names of the arguments
        def typed(typing: Any, *kinds: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                e = Emitter(lanes, context, builder, signature.args, arguments)
                emit(e, *e.values)
                return context.get_dummy_value()

            return types.void(*kinds), generate

        return intrinsic(typed)

    return made


# ------------------------------------------------------------------------------- the fixed point


def _voltage(e: Emitter, plan: Any, work: Any, at: Any) -> list[Any]:
    """w + x at one position."""
    pairs = ((work.x_re, plan.w_re), (work.x_im, plan.w_im))
    return [e.builder.fadd(e.row(x, at), e.spread(e.item(w, at))) for x, w in pairs]


def _row_or_zero(e: Emitter, parts: tuple[Any, Any], row: Any) -> list[Any]:
    """Row of a complex array, zero where the index is negative."""
    b = e.builder
    found = [e.variable(e.constant(0.0)) for _ in parts]
    with b.if_then(b.icmp_signed(">=", row, ir.Constant(row.type, 0))):
        for part, place in zip(parts, found, strict=True):
            b.store(e.row(part, row), place)
    return [b.load(place) for place in found]


def unless_frozen(e: Emitter, work: Any, new: list[Any], old: list[Any], square: Any) -> list[Any]:
    """The new current where `active` is not 0, else the old one.

    `change` collects the largest (|v|·|new − old|)², `square` being |v|².
    """
    b = e.builder
    moved = [b.fsub(new[k], old[k]) for k in range(2)]
    e.raise_to(e.multiply(e.square(moved), square), work.change, 0)
    going = b.fcmp_ordered(">", e.row(work.active, 0), e.constant(0.0))
    return [b.select(going, new[k], old[k]) for k in range(2)]


def _minus_products(e: Emitter, start: list[Any], x: Any, rows: tuple[Any, Any, Any], row: Any) -> list[Any]:
    """start − Σ_p value_p·x[col_p] over the entries of a row; a value is a real 2×2 block."""
    value, col, ptr = rows

    def step(p: Any, sums: list[Any]) -> list[Any]:
        return e.add_block(sums, e.numbers(value, p, 4, sign=-1), e.rows(x, e.item(col, p)))

    return e.added_up(start, e.span(ptr, row), step)


@instruction(LANES)
def lower_row(e: Emitter, plan: Any, work: Any, row: Any, source: Any) -> None:
    """x[row] = (i[source], or 0 where source < 0) − Σ lower·x[col]."""
    x, rows = (work.x_re, work.x_im), (plan.lower, plan.lower_col, plan.lower_ptr)
    start = _row_or_zero(e, (work.i_re, work.i_im), source)
    e.put_rows(_minus_products(e, start, x, rows, row), x, row)


@instruction(LANES)
def upper_row(e: Emitter, plan: Any, work: Any, row: Any) -> None:
    """x[row] = pivot[row]·(x[row] − Σ upper·x[col])."""
    x, rows = (work.x_re, work.x_im), (plan.upper, plan.upper_col, plan.upper_ptr)
    found = _minus_products(e, e.rows(x, row), x, rows, row)
    e.put_rows(e.block_times(e.numbers(plan.pivot, row, 4), found), x, row)


@instruction(LANES)
def current_row(e: Emitter, plan: Any, work: Any, row: Any) -> None:
    """Right-hand side of load `row` at v = w + x: i = conj(s)·v/|v|² + slope·x, unless it is frozen.

    `change` collects the squared power mismatch of v if x solves (Y + slope)·x = i_before.
    """
    at, i = e.item(plan.at, row), (work.i_re, work.i_im)
    v = _voltage(e, plan, work, at)
    square = e.square(v)
    inverse = e.builder.fdiv(e.constant(1.0), square)
    linear = e.block_times(e.numbers(plan.slope, row, 4), e.rows((work.x_re, work.x_im), at))
    turned = e.conjugate_times(e.rows((work.s_re, work.s_im), row), v)
    new = [e.add(linear[k], turned[k], inverse) for k in range(2)]
    e.put_rows(unless_frozen(e, work, new, e.rows(i, row), square), i, row)


def _products(e: Emitter, check: Any, work: Any, row: Any) -> list[Any]:
    """Σ y·x[col] over the entries of a row of `check`."""

    def step(k: Any, sums: list[Any]) -> list[Any]:
        re, im = e.item(check.re, k), e.item(check.im, k)
        x = e.rows((work.x_re, work.x_im), e.item(check.col, k))
        real, imag, turned = e.spread(re), e.spread(im), e.spread(e.builder.fneg(im))
        # Im: y_re·x_im first, then y_im·x_re.
        return [
            e.add(e.add(sums[0], real, x[0]), turned, x[1]),
            e.add(e.add(sums[1], real, x[1]), imag, x[0]),
        ]

    return e.added_up([e.constant(0.0)] * 2, e.span(check.ptr, row), step)


def _into_worst(e: Emitter, check: Any, work: Any, row: Any, square: Any) -> None:
    """worst[0]: the largest square; worst[1]: that times limit[row]; worst[2]: the sum, which shows a NaN."""
    e.raise_to(square, work.worst, 0)
    e.raise_to(e.multiply(square, e.spread(e.item(check.limit, row))), work.worst, 1)
    e.put(e.builder.fadd(e.row(work.worst, 2), square), work.worst, 2)


@instruction(LANES)
def mismatch_row(e: Emitter, plan: Any, check: Any, work: Any, row: Any) -> None:
    """Power mismatch of one row, |s − v·conj(Σ y·x[col])| at v = w + x, s = 0 where there is no load."""
    b = e.builder
    d, f = _products(e, check, work, row)
    u, v = _voltage(e, plan, work, row)
    p, q = _row_or_zero(e, (work.s_re, work.s_im), e.item(plan.load_at, row))
    p = b.fsub(p, e.add(e.multiply(v, f), u, d))
    q = b.fsub(q, b.fsub(e.multiply(v, d), e.multiply(u, f)))
    _into_worst(e, check, work, row, e.square([p, q]))


@instruction(LANES)
def product_row(e: Emitter, check: Any, work: Any, row: Any) -> None:
    """f[row] = Σ y·x[col] over the entries of a row of `check`."""
    e.put_rows(_products(e, check, work, row), (work.f_re, work.f_im), row)


def _minus_terminals(e: Emitter, start: list[Any], plan: Any, work: Any, part: list[Any]) -> list[Any]:
    """start − Σ_j m[row, j]·x[j] over the inner nodes first … last − 1; blocks of M differ by lane."""
    b, (row, first, last) = e.builder, part

    def step(j: Any, sums: list[Any]) -> list[Any]:
        block = e.load(e.pointers(work.m, b.add(b.mul(row, plan.phases), j), 4))
        return e.subtract_block(sums, block, e.rows((work.x_re, work.x_im), b.add(plan.interior, j)))

    return e.added_up(start, (first, last), step)


@instruction(LANES)
def enter_terminal(e: Emitter, plan: Any, work: Any, i: Any) -> None:
    """o[i] = x_outer; x_inner = x_inner + t·x_outer − k − Σ_{j < i} m[i, j]·x_inner[j]."""
    b = e.builder
    inner = b.add(plan.interior, i)
    outer = b.add(inner, plan.phases)
    start = []
    for x, o, k in ((work.x_re, work.o_re, work.k_re), (work.x_im, work.o_im, work.k_im)):
        right = e.row(x, outer)
        e.put(right, o, i)
        start.append(b.fsub(e.add(e.row(x, inner), e.row(work.t, i), right), e.row(k, i)))
    found = _minus_terminals(e, start, plan, work, [i, ir.Constant(i.type, 0), i])
    e.put_rows(found, (work.x_re, work.x_im), inner)


@instruction(LANES)
def leave_terminal(e: Emitter, plan: Any, work: Any, i: Any) -> None:
    """x_inner = m[i, i]·(x_inner − Σ_{j > i} m[i, j]·x_inner[j]); v_outer = t·v_inner."""
    b = e.builder
    inner, after = b.add(plan.interior, i), b.add(i, ir.Constant(i.type, 1))
    start = e.rows((work.x_re, work.x_im), inner)
    found = _minus_terminals(e, start, plan, work, [i, after, plan.phases])
    pivot = e.load(e.pointers(work.m, b.add(b.mul(i, plan.phases), i), 4))
    ratio = e.row(work.t, i)
    more = b.fsub(ratio, e.constant(1.0))
    parts = ((work.x_re, plan.w_re), (work.x_im, plan.w_im))
    for value, (x, w) in zip(e.block_times(pivot, found), parts, strict=True):
        e.put(value, x, inner)
        outer = e.add(e.multiply(more, e.spread(e.item(w, inner))), ratio, value)
        e.put(outer, x, b.add(inner, plan.phases))


@instruction(LANES)
def outflow_row(e: Emitter, plan: Any, schur: Any, work: Any, row: Any) -> None:
    """j[row − phases] = Σ_k schur[row, k]·x[k] − o over all terminals k: what leaves an outer node."""
    b = e.builder
    phase, width = b.sub(row, plan.phases), b.add(plan.phases, plan.phases)

    def step(k: Any, sums: list[Any]) -> list[Any]:
        block = e.numbers(schur, b.add(b.mul(row, width), k), 4)
        return e.add_block(sums, block, e.rows((work.x_re, work.x_im), b.add(plan.interior, k)))

    start = [b.fneg(o) for o in e.rows((work.o_re, work.o_im), phase)]
    found = e.added_up(start, (ir.Constant(row.type, 0), width), step)
    e.put_rows(found, (work.j_re, work.j_im), phase)


@instruction(LANES)
def balance_row(e: Emitter, plan: Any, check: Any, work: Any, row: Any, source: Any) -> None:
    """Mismatch of a row of which f has the product: |f − i[source]|·|v| into `worst`, as `mismatch_row`."""
    given = _row_or_zero(e, (work.i_re, work.i_im), source)
    product = e.rows((work.f_re, work.f_im), row)
    left = [e.builder.fsub(product[k], given[k]) for k in range(2)]
    size = e.multiply(e.square(left), e.square(_voltage(e, plan, work, row)))
    _into_worst(e, check, work, row, size)


@instruction(LANES)
def round_row(e: Emitter, plan: Any, work: Any, row: Any) -> None:
    """x[row] = (w[row] + x[row]) − w[row]: the deviation that is left once v is rounded to double."""
    b = e.builder
    for x, w in ((work.x_re, plan.w_re), (work.x_im, plan.w_im)):
        no_load = e.spread(e.item(w, row))
        e.put(b.fsub(b.fadd(no_load, e.row(x, row)), no_load), x, row)


def _snapshots(e: Emitter, power: Any, where: list[Any]) -> list[Any]:
    """Pointers to one column of the rows begin … begin + LANES − 1 of a complex array, at most last."""
    b = e.builder
    begin, last, column, width = where
    pointers = []
    for lane in range(e.lanes):
        row = b.add(begin, ir.Constant(begin.type, lane))
        row = b.select(b.icmp_signed("<", row, last), row, last)
        offset = b.mul(ir.Constant(begin.type, 2), b.add(b.mul(row, width), column))
        pointers.append(b.bitcast(b.gep(power, [offset]), _PAIR.as_pointer()))
    return pointers


@instruction(LANES)
def read_row(e: Emitter, plan: Any, power: Any, into: Any, where: Any, factors: Any) -> None:
    """into[load of the column] = sign·power[snapshot, column]; lanes past the last snapshot repeat it.

    `power` is a complex array seen as float64, `into` = (real parts, imaginary parts, lane), `where` =
    (begin, last, column, width) and `factors` = (sign, strict). lane[0] collects |Re| + |Im|, lane[1] the
    projection on `plan.weight`, lane[2] the smallest strict·Re(power).
    """
    into_re, into_im, lane = into
    sign, strict = factors
    b = e.builder
    both = e.join(e.load(_snapshots(e, power, where)))
    undefined = ir.Constant(both.type, ir.Undefined)
    real = e.pick(both, undefined, list(range(0, 2 * e.lanes, 2)))
    imag = e.pick(both, undefined, list(range(1, 2 * e.lanes, 2)))
    size = b.fadd(e.call("fabs", real), e.call("fabs", imag))
    e.put(b.fadd(e.row(lane, 0), size), lane, 0)
    lowest, drawn = e.row(lane, 2), e.multiply(e.spread(strict), real)
    e.put(b.select(b.fcmp_ordered("<", drawn, lowest), drawn, lowest), lane, 2)
    factor, row = e.spread(sign), e.item(plan.row_of, where[2])
    real, imag = e.multiply(factor, real), e.multiply(factor, imag)
    towards = [e.spread(e.item(part, row)) for part in (plan.weight_re, plan.weight_im)]
    along = e.add(e.multiply(towards[1], imag), towards[0], real)
    e.put(b.fadd(e.row(lane, 1), along), lane, 1)
    e.put(real, into_re, row)
    e.put(imag, into_im, row)


@instruction(LANES)
def write_row(e: Emitter, plan: Any, work: Any, out: Any, where: Any, at: Any) -> None:
    """out[snapshot, column] = w[at] + x[at] for all lanes; `out` is a complex array seen as float64."""
    u, v = _voltage(e, plan, work, at)
    for lane, pointer in enumerate(_snapshots(e, out, where)):
        e.builder.store(e.pick(u, v, [lane, e.lanes + lane]), pointer, align=8)
