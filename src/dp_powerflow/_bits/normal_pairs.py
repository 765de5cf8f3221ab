"""Two independent standard normals from two random words, in kernels that run on vectors.

Box and Muller (1958): for u and v uniform on (0, 1), √(−2·log u)·(cos 2πv, sin 2πv) are independent normals.
No table and no branch, so a loop of them is vector code. There are two precisions:

- `pair1` from words of 64 bits, 52 of them used: double precision, as far as ±8.57.
- `short_pair1` from words of 32 bits: single precision, as far as ±6.66, off by less than 2e-6. Rounding is
  relative to u, so the tail is as fine as the centre.

Every operation is rounded once, in a fixed order: the same bits everywhere. The logarithm, sine and cosine
come from fdlibm and Cephes, on a reduced range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dp_powerflow._bits.compiled import compiled
from dp_powerflow._bits.elementary import exp1, kernel
from dp_powerflow._bits.linear import _ERF, _ERFC, _SQRT_HALF, _ratio, ndtr1
from dp_powerflow.units import FloatArray

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _part(function: _Function) -> _Function:
    """Compile as `kernel` does, into whatever calls it: a call within a loop would keep it off vectors."""
    return compiled(function, forceinline=True)


_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_HALF_PI = 1.5707963267948966


@_part
def _log1(x: float) -> float:
    """Natural logarithm of a number in (0, 1], not subnormal."""
    bits = np.float64(x).view(np.int64) + 0x95F619980C433
    fraction = np.int64((bits & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD).view(np.float64) - 1.0
    # 1.5·2⁵² makes a double of a small integer, on vectors too.
    power = np.int64((bits >> 52) - 1023 + 0x4338000000000000).view(np.float64) - 6755399441055744.0
    s = fraction / (2.0 + fraction)
    z = s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = 2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)
    tail = odd + z * (6.666666666666735130e-01 + w * even)
    half_square = 0.5 * fraction * fraction
    return power * _LN2_HIGH - ((half_square - (s * (half_square + tail) + power * _LN2_LOW)) - fraction)


@_part
def _sine1(z: float) -> float:
    """(sin y − y)/y³ of z = y²."""
    last = 2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)
    middle = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * last)
    return -1.66666666666666324348e-01 + z * middle


@_part
def _cosine1(z: float) -> float:
    """(cos y − 1 + y²/2)/y⁴ of z = y²."""
    last = -2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 - z * 1.13596475577881948265e-11)
    middle = -1.38888888888741095749e-03 + z * (2.48015872894767294178e-05 + z * last)
    return 4.16666666666666019037e-02 + z * middle


@_part
def pair1(first: np.uint64, second: np.uint64) -> tuple[float, float]:
    """Two independent standard normals from two words of 64 bits.

    The upper 52 bits w of the first are u = (w + ½)/2⁵². Of the second, 52 bits are an angle within an eighth
    of a turn of an axis, the first two choose the axis and its end.
    """
    unit = np.uint64((first >> np.uint64(12)) | np.uint64(0x3FF0000000000000)).view(np.float64)
    radius = np.sqrt(-2.0 * _log1((unit - 1.0) + 1.1102230246251565e-16))
    place = np.uint64(((second << np.uint64(2)) >> np.uint64(12)) | np.uint64(0x3FF0000000000000))
    y = ((np.uint64(place).view(np.float64) - 1.5) + 1.1102230246251565e-16) * _HALF_PI
    z = y * y
    sine = y + y * (z * _sine1(z))
    cosine = 1.0 - (0.5 * z - z * (z * _cosine1(z)))
    signed = radius if (second >> np.uint64(63)) == np.uint64(0) else -radius
    swapped = ((second >> np.uint64(62)) & np.uint64(1)) != np.uint64(0)
    return signed * (sine if swapped else cosine), signed * (cosine if swapped else sine)


_LOG_1, _LOG_2 = np.float32(0.66666662693), np.float32(0.40000972152)
_LOG_3, _LOG_4 = np.float32(0.28498786688), np.float32(0.24279078841)
_SHORT_LN2_HIGH, _SHORT_LN2_LOW = np.float32(6.9313812256e-01), np.float32(9.0580006145e-06)
_SINE_1, _SINE_2, _SINE_3 = (
    np.float32(-1.6666654611e-1),
    np.float32(8.3321608736e-3),
    np.float32(-1.9515295891e-4),
)
_COSINE_1, _COSINE_2 = np.float32(4.166664568298827e-2), np.float32(-1.388731625493765e-3)
_COSINE_3 = np.float32(2.443315711809948e-5)
_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)
_PER_WORD, _EIGHTH = np.float32(2.0**-31), np.float32(np.pi / 2.0**33)
_BIAS, _ROOT_HALF = np.int32(0x3F800000 - 0x3F3504F3), np.int32(0x3F3504F3)


@_part
def _short_log1(x: np.float32) -> np.float32:
    """Natural logarithm of a number in (0, 1], not subnormal; int32 at each step, or numba takes 64 bits."""
    bits = np.int32(np.float32(x).view(np.int32) + _BIAS)
    power = np.float32(np.int32(np.int32(bits >> np.int32(23)) - np.int32(127)))
    fraction = np.int32(np.int32(bits & np.int32(0x7FFFFF)) + _ROOT_HALF).view(np.float32) - _ONE
    s = fraction / (_TWO + fraction)
    z = s * s
    w = z * z
    tail = w * (_LOG_2 + w * _LOG_4) + z * (_LOG_1 + w * _LOG_3)
    half_square = _HALF * fraction * fraction
    found: np.float32 = power * _SHORT_LN2_HIGH - (
        (half_square - (s * (half_square + tail) + power * _SHORT_LN2_LOW)) - fraction
    )
    return found


@_part
def short_pair1(first: np.uint32, second: np.uint32) -> tuple[np.float32, np.float32]:
    """Two independent standard normals from two words of 32 bits.

    The upper 31 bits w of the first are u = (w + ½)/2³¹. Of the second, 30 bits are an angle within an eighth
    of a turn of an axis, the first two choose the axis and its end.
    """
    unit = (np.float32(np.int32(first >> np.uint32(1))) + _HALF) * _PER_WORD
    radius = np.sqrt(-_TWO * _short_log1(unit))
    y = np.float32(np.int32(np.uint32(second << np.uint32(2)))) * _EIGHTH
    z = y * y
    sine = y + y * (z * (_SINE_1 + z * (_SINE_2 + z * _SINE_3)))
    cosine = _ONE - (_HALF * z - z * (z * (_COSINE_1 + z * (_COSINE_2 + z * _COSINE_3))))
    signed = radius if np.int32(second) >= np.int32(0) else -radius
    swapped = np.uint32(second & np.uint32(1 << 30)) != np.uint32(0)
    return signed * (sine if swapped else cosine), signed * (cosine if swapped else sine)


_NEAR = 7.9  # up to which the tails have one formula, over √2


@kernel
def ndtr_each(values: FloatArray, out: FloatArray) -> None:
    """Φ of numbers (n,), as `ndtr1`: both formulas for every number, so that the loop runs on vectors."""
    for k in range(values.size):
        x, a = values[k], abs(values[k])
        head = float(int(a * 64.0 + 0.5)) / 64.0
        gauss = exp1(-0.5 * head * head) * exp1(-0.5 * (a - head) * (a + head))
        tail = 0.5 * gauss * _ratio(_ERFC, a * _SQRT_HALF)
        centre = 0.5 + 0.5 * (x * _SQRT_HALF) * _ratio(_ERF, (a * _SQRT_HALF) * (a * _SQRT_HALF))
        out[k] = centre if a * _SQRT_HALF < 1.0 else (tail if x < 0.0 else 1.0 - tail)
    for k in range(values.size):
        if not abs(values[k]) * _SQRT_HALF < _NEAR:
            out[k] = ndtr1(values[k])
