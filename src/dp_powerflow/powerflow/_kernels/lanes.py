"""Vector code for a block of snapshots, one snapshot per lane.

Plain loops over the lanes leave numba's compiler unable to keep a row's sums in registers (it cannot
prove that two rows of the same array do not overlap), which costs a factor of four. These intrinsics
state the vector operations directly. They hold `LANES` snapshots: 16 doubles fill four AVX2 registers, so
a complex row sum is eight independent chains, enough to hide the latency of a multiply-add.

All arrays are C-contiguous float64 (row, LANES), or (row,) for coefficients; indices are int64. No
fast-math flag is set: NaN stays NaN and a snapshot's result does not depend on its neighbours.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.typing import signature
from numba.extending import intrinsic

LANES = 16
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)
_ONE = ir.Constant(_VECTOR, [1.0] * LANES)

_PAIR = ir.VectorType(ir.DoubleType(), 2)


class _Code:
    """The builder of one intrinsic's code, with the few vector operations that are needed."""

    def __init__(self, context: Any, builder: Any, sig: Any, args: Any) -> None:
        self.builder = builder
        self.values = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(sig.args, args, strict=True)
        ]

    def scalar(self, base: Any, index: Any) -> Any:
        return self.builder.load(self.builder.gep(base, [index]))

    def splat(self, value: Any) -> Any:
        b = self.builder
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        one = b.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return b.shuffle_vector(one, undefined, mask)

    def coefficient(self, base: Any, index: Any) -> Any:
        return self.splat(self.scalar(base, index))

    def block(self, base: Any, index: Any, sign: int = 1) -> tuple[Any, ...]:
        """The four numbers of a 2×2 block, or their negatives, each in all lanes."""
        b = self.builder
        begin = b.mul(index, ir.Constant(index.type, 4))
        numbers = [self.scalar(base, b.add(begin, ir.Constant(index.type, k))) for k in range(4)]
        return tuple(self.splat(number if sign > 0 else b.fneg(number)) for number in numbers)

    def _pointer(self, base: Any, row: Any) -> Any:
        b = self.builder
        offset = b.mul(row, ir.Constant(row.type, LANES))
        return b.bitcast(b.gep(base, [offset]), _VECTOR.as_pointer())

    def load(self, base: Any, row: Any) -> Any:
        return self.builder.load(self._pointer(base, row), align=8)

    def store(self, value: Any, base: Any, row: Any) -> None:
        self.builder.store(value, self._pointer(base, row), align=8)

    def call(self, name: str, *args: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(args))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{LANES}f64")
        return self.builder.call(function, args)

    def snapshots(self, base: Any, width: Any, begin: Any, last: Any, column: Any) -> list[Any]:
        """Pointers to entry `column` of the rows begin … begin + LANES − 1 of an array, at most last."""
        b = self.builder
        kind = begin.type
        pointers = []
        for lane in range(LANES):
            row = b.add(begin, ir.Constant(kind, lane))
            row = b.select(b.icmp_signed("<", row, last), row, last)
            offset = b.mul(ir.Constant(kind, 2), b.add(b.mul(row, width), column))
            pointers.append(b.bitcast(b.gep(base, [offset]), _PAIR.as_pointer()))
        return pointers

    def join(self, vectors: list[Any]) -> Any:
        """One vector of many of equal length, in pairs of pairs."""
        b = self.builder
        while len(vectors) > 1:
            count = 2 * vectors[0].type.count
            mask = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(count)))
            vectors = [b.shuffle_vector(x, y, mask) for x, y in zip(vectors[::2], vectors[1::2], strict=True)]
        return vectors[0]

    def pick(self, x: Any, y: Any, lanes: list[int]) -> Any:
        """Elements of two vectors, numbered through."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        return self.builder.shuffle_vector(x, y, mask)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x·y + z, fused where the processor can."""
        return self.call("fmuladd", x, y, z)

    def larger(self, x: Any, y: Any) -> Any:
        """Larger of the two, and y if x is NaN: one instruction; keeping NaN would take eight."""
        return self.builder.select(self.builder.fcmp_ordered(">", x, y), x, y)

    def load_or_zero(self, re: Any, im: Any, row: Any) -> tuple[Any, Any]:
        """Row of a complex array, zero where the index is negative."""
        b = self.builder
        u, v = cgutils.alloca_once(b, _VECTOR), cgutils.alloca_once(b, _VECTOR)
        b.store(_ZERO, u)
        b.store(_ZERO, v)
        with b.if_then(b.icmp_signed(">=", row, ir.Constant(row.type, 0))):
            b.store(self.load(re, row), u)
            b.store(self.load(im, row), v)
        return b.load(u), b.load(v)

    def raise_to(self, value: Any, base: Any, row: int) -> None:
        """base[row] = the larger of itself and the value."""
        index = ir.Constant(ir.IntType(64), row)
        self.store(self.larger(value, self.load(base, index)), base, index)

    def products(self, x_re: Any, x_im: Any, rows: Any) -> tuple[Any, Any]:
        """Σ_p value_p·x[col_p] over start ≤ p < stop, values complex."""
        b = self.builder
        value_re, value_im, col, start, stop = rows
        sum_re, sum_im = cgutils.alloca_once(b, _VECTOR), cgutils.alloca_once(b, _VECTOR)
        b.store(_ZERO, sum_re)
        b.store(_ZERO, sum_im)
        with cgutils.for_range_slice(b, start, stop, ir.Constant(start.type, 1)) as (p, _):
            j = self.scalar(col, p)
            number = self.scalar(value_im, p)
            a, c, minus_c = self.coefficient(value_re, p), self.splat(number), self.splat(b.fneg(number))
            u, v = self.load(x_re, j), self.load(x_im, j)
            b.store(self.fma(minus_c, v, self.fma(a, u, b.load(sum_re))), sum_re)
            b.store(self.fma(c, u, self.fma(a, v, b.load(sum_im))), sum_im)
        return b.load(sum_re), b.load(sum_im)

    def minus_products(self, re: Any, im: Any, x_re: Any, x_im: Any, rows: Any) -> tuple[Any, Any]:
        """(re, im) − Σ_p value_p·x[col_p] over start ≤ p < stop; a value is a real 2×2 block."""
        b = self.builder
        value, col, start, stop = rows
        sum_re, sum_im = cgutils.alloca_once(b, _VECTOR), cgutils.alloca_once(b, _VECTOR)
        b.store(re, sum_re)
        b.store(im, sum_im)
        with cgutils.for_range_slice(b, start, stop, ir.Constant(start.type, 1)) as (p, _):
            j = self.scalar(col, p)
            a, c, d, e = self.block(value, p, sign=-1)
            u, v = self.load(x_re, j), self.load(x_im, j)
            b.store(self.fma(c, v, self.fma(a, u, b.load(sum_re))), sum_re)
            b.store(self.fma(e, v, self.fma(d, u, b.load(sum_im))), sum_im)
        return b.load(sum_re), b.load(sum_im)


@intrinsic
def lower_row(typing, x_re, x_im, row, i_re, i_im, source, value, col, start, stop):  # type: ignore[no-untyped-def]
    """x[row] = (i[source], or 0 where source < 0) − Σ value·x[col]."""
    sig = signature(types.void, x_re, x_im, row, i_re, i_im, source, value, col, start, stop)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code = _Code(context, builder, sig, args)
        x_re, x_im, row, i_re, i_im, source, *rows = code.values
        u, v = code.load_or_zero(i_re, i_im, source)
        u, v = code.minus_products(u, v, x_re, x_im, rows)
        code.store(u, x_re, row)
        code.store(v, x_im, row)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def upper_row(typing, x_re, x_im, row, pivot, value, col, start, stop):  # type: ignore[no-untyped-def]
    """x[row] = pivot[row]·(x[row] − Σ value·x[col])."""
    sig = signature(types.void, x_re, x_im, row, pivot, value, col, start, stop)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code, b = _Code(context, builder, sig, args), builder
        x_re, x_im, row, pivot, *rows = code.values
        u, v = code.minus_products(code.load(x_re, row), code.load(x_im, row), x_re, x_im, rows)
        a, c, d, e = code.block(pivot, row)
        code.store(code.fma(c, v, b.fmul(a, u)), x_re, row)
        code.store(code.fma(e, v, b.fmul(d, u)), x_im, row)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def current_row(typing, x_re, x_im, at, w_re, w_im, s_re, s_im, slope, i_re, i_im, row, active, change):  # type: ignore[no-untyped-def]
    """Right-hand side of load `row` at v = w + x: i = conj(s)·v/|v|² + slope·x.

    Lanes where `active` is 0 keep theirs. `change` collects the largest (|v|·|i − i_before|)², the squared
    power mismatch of v if x solves (Y + slope)·x = i_before.
    """
    sig = signature(
        types.void, x_re, x_im, at, w_re, w_im, s_re, s_im, slope, i_re, i_im, row, active, change
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code, b = _Code(context, builder, sig, args), builder
        x_re, x_im, at, w_re, w_im, s_re, s_im, slope, i_re, i_im, row, active, change = code.values
        zero = ir.Constant(ir.IntType(64), 0)
        x, y = code.load(x_re, at), code.load(x_im, at)
        u = b.fadd(x, code.coefficient(w_re, at))
        v = b.fadd(y, code.coefficient(w_im, at))
        square = code.fma(u, u, b.fmul(v, v))
        inverse = b.fdiv(_ONE, square)
        p, q = code.load(s_re, row), code.load(s_im, row)
        a, c, d, e = code.block(slope, row)
        linear_re, linear_im = code.fma(c, y, b.fmul(a, x)), code.fma(e, y, b.fmul(d, x))
        new_re = code.fma(code.fma(p, u, b.fmul(q, v)), inverse, linear_re)
        new_im = code.fma(b.fsub(b.fmul(p, v), b.fmul(q, u)), inverse, linear_im)
        old_re, old_im = code.load(i_re, row), code.load(i_im, row)
        moved_re, moved_im = b.fsub(new_re, old_re), b.fsub(new_im, old_im)
        moved = b.fmul(code.fma(moved_re, moved_re, b.fmul(moved_im, moved_im)), square)
        code.raise_to(moved, change, 0)
        going = b.fcmp_ordered(">", code.load(active, zero), _ZERO)
        code.store(b.select(going, new_re, old_re), i_re, row)
        code.store(b.select(going, new_im, old_im), i_im, row)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def mismatch_row(  # type: ignore[no-untyped-def]
    typing, x_re, x_im, row, w_re, w_im, s_re, s_im, source, limit, worst, val_re, val_im, col, start, stop
):
    """Power mismatch of one row, |s − v·conj(Σ val·x[col])| at v = w + x, s = 0 where source < 0.

    worst[0] collects the largest square, worst[1] the largest square times limit[row], worst[2] the sum,
    which alone shows a NaN.
    """
    sig = signature(
        types.void,
        x_re,
        x_im,
        row,
        w_re,
        w_im,
        s_re,
        s_im,
        source,
        limit,
        worst,
        val_re,
        val_im,
        col,
        start,
        stop,
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code, b = _Code(context, builder, sig, args), builder
        x_re, x_im, row, w_re, w_im, s_re, s_im, source, limit, worst, *rows = code.values
        d, e = code.products(x_re, x_im, rows)
        u = b.fadd(code.load(x_re, row), code.coefficient(w_re, row))
        v = b.fadd(code.load(x_im, row), code.coefficient(w_im, row))
        p, q = code.load_or_zero(s_re, s_im, source)
        p = b.fsub(p, code.fma(u, d, b.fmul(v, e)))
        q = b.fsub(q, b.fsub(b.fmul(v, d), b.fmul(u, e)))
        square = code.fma(p, p, b.fmul(q, q))
        code.raise_to(square, worst, 0)
        code.raise_to(b.fmul(square, code.coefficient(limit, row)), worst, 1)
        two = ir.Constant(ir.IntType(64), 2)
        code.store(b.fadd(code.load(worst, two), square), worst, two)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def round_row(typing, x_re, x_im, row, w_re, w_im):  # type: ignore[no-untyped-def]
    """x[row] = (w[row] + x[row]) − w[row]: the deviation that is left once v is rounded to double."""
    sig = signature(types.void, x_re, x_im, row, w_re, w_im)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code, b = _Code(context, builder, sig, args), builder
        x_re, x_im, row, w_re, w_im = code.values
        for x, w in ((x_re, w_re), (x_im, w_im)):
            no_load = code.coefficient(w, row)
            code.store(b.fsub(b.fadd(no_load, code.load(x, row)), no_load), x, row)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def read_row(  # type: ignore[no-untyped-def]
    typing, power, width, begin, last, column, row, sign, strict, s_re, s_im, towards_re, towards_im, lane
):
    """s[row] = sign·power[snapshot, column] for the snapshots of a block; lanes past `last` repeat it.

    `power` is a complex array seen as float64. lane[0] collects |Re| + |Im|, lane[1] the projection of s on
    `towards`, lane[2] the smallest strict·Re(power).
    """
    block = (power, width, begin, last, column)
    sig = signature(types.void, *block, row, sign, strict, s_re, s_im, towards_re, towards_im, lane)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code, b = _Code(context, builder, sig, args), builder
        *block, row, sign, strict, s_re, s_im, towards_re, towards_im, lane = code.values
        pairs = [b.load(p, align=8) for p in code.snapshots(*block)]
        both = code.join(pairs)
        undefined = ir.Constant(both.type, ir.Undefined)
        re = code.pick(both, undefined, list(range(0, 2 * LANES, 2)))
        im = code.pick(both, undefined, list(range(1, 2 * LANES, 2)))
        zero, one, two = (ir.Constant(ir.IntType(64), k) for k in range(3))
        size = b.fadd(code.call("fabs", re), code.call("fabs", im))
        code.store(b.fadd(code.load(lane, zero), size), lane, zero)
        lowest = code.load(lane, two)
        real = b.fmul(code.splat(strict), re)
        code.store(b.select(b.fcmp_ordered("<", real, lowest), real, lowest), lane, two)
        factor = code.splat(sign)
        re, im = b.fmul(factor, re), b.fmul(factor, im)
        along = code.fma(code.splat(towards_re), re, b.fmul(code.splat(towards_im), im))
        code.store(b.fadd(code.load(lane, one), along), lane, one)
        code.store(re, s_re, row)
        code.store(im, s_im, row)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def write_row(typing, out, width, begin, column, x_re, x_im, at, w_re, w_im):  # type: ignore[no-untyped-def]
    """out[snapshot, column] = w[at] + x[at] for all lanes; `out` is a complex array seen as float64."""
    sig = signature(types.void, out, width, begin, column, x_re, x_im, at, w_re, w_im)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code, b = _Code(context, builder, sig, args), builder
        out, width, begin, column, x_re, x_im, at, w_re, w_im = code.values
        u = b.fadd(code.load(x_re, at), code.coefficient(w_re, at))
        v = b.fadd(code.load(x_im, at), code.coefficient(w_im, at))
        last = b.add(begin, ir.Constant(begin.type, LANES - 1))
        for lane, pointer in enumerate(code.snapshots(out, width, begin, last, column)):
            b.store(code.pick(u, v, [lane, LANES + lane]), pointer, align=8)
        return context.get_dummy_value()

    return sig, codegen
