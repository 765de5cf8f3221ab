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

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing import signature
from numba.extending import intrinsic

LANES = 16

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


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

    def _pointer(self, base: Any, row: Any) -> Any:
        b = self.builder
        offset = b.mul(row, ir.Constant(row.type, LANES))
        return b.bitcast(b.gep(base, [offset]), _VECTOR.as_pointer())

    def load(self, base: Any, row: Any) -> Any:
        return self.builder.load(self._pointer(base, row), align=8)

    def store(self, value: Any, base: Any, row: Any) -> None:
        self.builder.store(value, self._pointer(base, row), align=8)

    def _call(self, name: str, *args: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(args))
        function = cgutils.get_or_insert_function(
            self.builder.module, kind, f"llvm.{name}.v{LANES}f64"
        )
        return self.builder.call(function, args)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x·y + z, fused where the processor can."""
        return self._call("fmuladd", x, y, z)

    def maximum(self, x: Any, y: Any) -> Any:
        """Larger of the two; NaN if either is."""
        return self._call("maximum", x, y)

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
        self.store(self.maximum(self.load(base, index), value), base, index)

    def minus_products(self, re: Any, im: Any, x_re: Any, x_im: Any, rows: Any) -> tuple[Any, Any]:
        """(re, im) − Σ_p value_p·x[col_p] over the entries start ≤ p < stop of a sparse row."""
        b = self.builder
        value_re, value_im, col, start, stop = rows
        sum_re, sum_im = cgutils.alloca_once(b, _VECTOR), cgutils.alloca_once(b, _VECTOR)
        b.store(re, sum_re)
        b.store(im, sum_im)
        with cgutils.for_range_slice(b, start, stop, ir.Constant(start.type, 1)) as (p, _):
            j = self.scalar(col, p)
            a, c = self.scalar(value_re, p), self.scalar(value_im, p)
            minus_a, plus_c, minus_c = self.splat(b.fneg(a)), self.splat(c), self.splat(b.fneg(c))
            u, v = self.load(x_re, j), self.load(x_im, j)
            b.store(self.fma(plus_c, v, self.fma(minus_a, u, b.load(sum_re))), sum_re)
            b.store(self.fma(minus_c, u, self.fma(minus_a, v, b.load(sum_im))), sum_im)
        return b.load(sum_re), b.load(sum_im)


@intrinsic
def lower_row(typing, x_re, x_im, row, i_re, i_im, source, val_re, val_im, col, start, stop):  # type: ignore[no-untyped-def]
    """x[row] = (i[source], or 0 where source < 0) − Σ val·x[col]."""
    sig = signature(types.void, x_re, x_im, row, i_re, i_im, source, val_re, val_im, col, start, stop)

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
def upper_row(typing, x_re, x_im, row, pivot_re, pivot_im, val_re, val_im, col, start, stop):  # type: ignore[no-untyped-def]
    """x[row] = (x[row] − Σ val·x[col])·pivot[row]."""
    sig = signature(types.void, x_re, x_im, row, pivot_re, pivot_im, val_re, val_im, col, start, stop)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code = _Code(context, builder, sig, args)
        x_re, x_im, row, pivot_re, pivot_im, *rows = code.values
        u, v = code.minus_products(code.load(x_re, row), code.load(x_im, row), x_re, x_im, rows)
        a, c = code.coefficient(pivot_re, row), code.coefficient(pivot_im, row)
        minus_c = code.splat(builder.fneg(code.scalar(pivot_im, row)))
        code.store(code.fma(minus_c, v, builder.fmul(a, u)), x_re, row)
        code.store(code.fma(c, u, builder.fmul(a, v)), x_im, row)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def mismatch_row(  # type: ignore[no-untyped-def]
    typing, x_re, x_im, row, w_re, w_im, i_re, i_im, source, limit, worst, val_re, val_im, col, start, stop
):
    """Power mismatch |v|·|i − Σ val·x[col]| of one row at v = w + x.

    worst[0] collects the largest square, worst[1] the largest square times limit[row].
    """
    sig = signature(
        types.void, x_re, x_im, row, w_re, w_im, i_re, i_im, source, limit, worst, val_re, val_im, col, start, stop
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code, b = _Code(context, builder, sig, args), builder
        x_re, x_im, row, w_re, w_im, i_re, i_im, source, limit, worst, *rows = code.values
        d, e = code.load_or_zero(i_re, i_im, source)
        d, e = code.minus_products(d, e, x_re, x_im, rows)
        u = b.fadd(code.load(x_re, row), code.coefficient(w_re, row))
        v = b.fadd(code.load(x_im, row), code.coefficient(w_im, row))
        square = b.fmul(code.fma(u, u, b.fmul(v, v)), code.fma(d, d, b.fmul(e, e)))
        code.raise_to(square, worst, 0)
        code.raise_to(b.fmul(square, code.coefficient(limit, row)), worst, 1)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def current_row(typing, x_re, x_im, position, w_re, w_im, s_re, s_im, i_re, i_im, row, active, change):  # type: ignore[no-untyped-def]
    """Constant-power current of load `row` at v = w + x: i = conj(s)·v/|v|².

    Lanes where `active` is 0 keep their current. `change` collects the largest (|v|·|i − i_before|)²: since
    Y·v + b = i_before, this is the squared power mismatch of v.
    """
    sig = signature(
        types.void, x_re, x_im, position, w_re, w_im, s_re, s_im, i_re, i_im, row, active, change
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        code, b = _Code(context, builder, sig, args), builder
        x_re, x_im, position, w_re, w_im, s_re, s_im, i_re, i_im, row, active, change = code.values
        zero = ir.Constant(ir.IntType(64), 0)
        u = b.fadd(code.load(x_re, position), code.coefficient(w_re, position))
        v = b.fadd(code.load(x_im, position), code.coefficient(w_im, position))
        square = code.fma(u, u, b.fmul(v, v))
        inverse = b.fdiv(ir.Constant(_VECTOR, [1.0] * LANES), square)
        p, q = code.load(s_re, row), code.load(s_im, row)
        new_re = b.fmul(code.fma(p, u, b.fmul(q, v)), inverse)
        new_im = b.fmul(b.fsub(b.fmul(p, v), b.fmul(q, u)), inverse)
        old_re, old_im = code.load(i_re, row), code.load(i_im, row)
        d, e = b.fsub(new_re, old_re), b.fsub(new_im, old_im)
        moved = b.fmul(code.fma(d, d, b.fmul(e, e)), square)
        code.raise_to(moved, change, 0)
        going = b.fcmp_ordered(">", code.load(active, zero), _ZERO)
        code.store(b.select(going, new_re, old_re), i_re, row)
        code.store(b.select(going, new_im, old_im), i_im, row)
        return context.get_dummy_value()

    return sig, codegen
