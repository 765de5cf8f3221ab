"""exp, log, sin, cos and angles: at most three units in the last place off, the same bits everywhere.

`exp`, `log`, … take arrays. `exp1`, `log1`, … take one number; call these inside numba code.
Reductions and polynomials come from fdlibm (Sun Microsystems, 1993).

Complex numbers whose bits do not depend on the processor.

NumPy multiplies complex arrays with fused multiply-adds where the processor has them, and its absolute value
has another version for AVX-512. Here everything is made of real sums, products, quotients and roots,
each rounded once. Products and quotients are a few units in the last place off, as in NumPy.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.compiled import kernel as kernel
from dp_powerflow.units import ComplexArray, FloatArray

_MAGIC = 6755399441055744.0  # 1.5·2⁵²: adding it rounds to an integer, which its low bits then hold
_MAGIC_BITS = 0x4338000000000000
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_HALF_PI_1 = 1.57079632673412561417e00  # π/2 in three parts of 33 bits
_HALF_PI_2 = 6.07710050630396597660e-11
_HALF_PI_3 = 2.02226624879595063154e-21
_ARCTAN = (  # coefficients of (x − arctan x)/x³ in x²
    3.33333333333329318027e-01, -1.99999999998764832476e-01, 1.42857142725034663711e-01,
    -1.11111104054623557880e-01, 9.09088713343650656196e-02, -7.69187620504482999495e-02,
    6.66107313738753120669e-02, -5.83357013379057348645e-02, 4.97687799461593236017e-02,
    -3.65315727442169155270e-02, 1.62858201153657823623e-02,
)  # fmt: skip
_DIRECT = 0.4375  # up to here arctan needs no reduction
# fmt: off
_EXP = (1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05,
        -1.65339022054652515390e-06, 4.13813679705723846039e-08)
_SINE = (8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
         -2.50507602534068634195e-08, 1.58969099521155010221e-10)
_COSINE = (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
           -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11)
# fmt: on


@kernel
def poly1(coefficients: tuple[float, ...], x: float) -> float:
    """Polynomial at one number, the lowest coefficient first (Horner)."""
    value = coefficients[len(coefficients) - 1]
    for k in range(len(coefficients) - 2, -1, -1):
        value = value * x + coefficients[k]
    return value


@kernel
def exp1(x: float) -> float:
    """e^x of one number."""
    inside = min(max(x, -750.0), 710.0)
    shifted = inside * 1.44269504088896338700 + _MAGIC
    whole = shifted - _MAGIC
    high = inside - whole * _LN2_HIGH
    low = whole * _LN2_LOW
    r = high - low
    square = r * r
    c = r - square * poly1(_EXP, square)
    value = 1.0 + (r * c / (2.0 - c) - low + high)
    power = np.float64(shifted).view(np.int64) - _MAGIC_BITS
    half = (power + 2048) // 2 - 1024
    value *= np.int64((half + 1023) << 52).view(np.float64)
    value *= np.int64((power - half + 1023) << 52).view(np.float64)
    return value if x == x else x


@kernel
def log1(x: float) -> float:
    """Natural logarithm of one number: −inf at 0, nan below."""
    small = x < 2.2250738585072014e-308
    bits = np.float64(x * 18014398509481984.0 if small else x).view(np.int64) + 0x95F619980C433
    power = (bits >> 52) - 1023 - (54 if small else 0)
    fraction = np.int64((bits & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD).view(np.float64) - 1.0
    k = np.int64(power + _MAGIC_BITS).view(np.float64) - _MAGIC
    s = fraction / (2.0 + fraction)
    z = s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half_square = 0.5 * fraction * fraction
    value = k * _LN2_HIGH - ((half_square - (s * (half_square + (odd + even)) + k * _LN2_LOW)) - fraction)
    if x > 0.0:
        return value if x < np.inf else x
    return -np.inf if x == 0.0 else np.nan


@kernel
def log1p1(x: float) -> float:
    """log(1 + x) of one number, accurate near 0."""
    one = 1.0 + x
    if not one > 0.0 or one == np.inf:
        return log1(one)
    return log1(one) - ((one - 1.0) - x) / one


@kernel
def expm11(x: float) -> float:
    """e^x − 1 of one number, accurate near 0 (Kahan)."""
    one = exp1(x)
    if one == 1.0:
        return x
    if one == np.inf or one - 1.0 == -1.0:
        return one - 1.0
    return (one - 1.0) * x / log1(one)


@kernel
def _sine_part(r: float, tail: float) -> float:
    """sin(r + tail), |r| ≤ π/4."""
    z = r * r
    cube = z * r
    return r - ((z * (0.5 * tail - cube * poly1(_SINE, z)) - tail) + cube * 1.66666666666666324348e-01)


@kernel
def _cosine_part(r: float, tail: float) -> float:
    """cos(r + tail), |r| ≤ π/4."""
    z = r * r
    p = z * poly1(_COSINE, z)
    half = 0.5 * z
    one = 1.0 - half
    return one + (((1.0 - one) - half) + (z * p - r * tail))


@kernel
def turned1(s: float, c: float, quarters: int) -> tuple[float, float]:
    """Sine and cosine of an angle 0 to 3 quarters of a turn further."""
    if quarters == 1:
        return c, -s
    if quarters == 2:
        return -s, -c
    if quarters == 3:
        return -c, s
    return s, c


@kernel
def sincos1(x: float) -> tuple[float, float]:
    """(sin x, cos x) of one number, |x| below a million [rad]."""
    n = np.floor(x * 0.6366197723675814 + 0.5)
    high = x - n * _HALF_PI_1
    middle = n * _HALF_PI_2
    r = high - middle
    tail = (high - r) - middle
    less = n * _HALF_PI_3
    s, c = _sine_part(r, tail - less), _cosine_part(r, tail - less)
    return turned1(s, c, int(n) % 4)


@kernel
def _fill(which: int, values: FloatArray, out: FloatArray) -> None:
    if which == 0:
        for i in range(values.size):
            out[i] = exp1(values[i])
    elif which == 1:
        for i in range(values.size):
            out[i] = log1(values[i])
    elif which == 2:
        for i in range(values.size):
            out[i] = sincos1(values[i])[0]
    else:
        for i in range(values.size):
            out[i] = sincos1(values[i])[1]


def _filled(which: int, values: FloatArray, out: FloatArray | None) -> FloatArray:
    array = np.ascontiguousarray(values, dtype=np.float64)
    result = np.empty_like(array) if out is None else out
    if not result.flags.c_contiguous:
        raise ValueError("the result of an elementary function needs a contiguous array")
    _fill(which, array.reshape(-1), result.reshape(-1))
    return result


def exp(values: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """e^x, elementwise, into `out` if given (contiguous; may be `values` itself)."""
    return _filled(0, values, out)


def log(values: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """Natural logarithm, elementwise; −inf at 0, nan below."""
    return _filled(1, values, out)


def sin(values: FloatArray) -> FloatArray:
    """Sine, elementwise, of angles below a million [rad]."""
    return _filled(2, values, None)


def cos(values: FloatArray) -> FloatArray:
    """Cosine, elementwise, of angles below a million [rad]."""
    return _filled(3, values, None)


_DEG_PER_RAD = 57.29577951308232
_RAD_PER_DEG = 0.017453292519943295
_RIGHT, _STRAIGHT = 90.0, 180.0


def joined(real: FloatArray, imag: FloatArray) -> ComplexArray:
    """real + j·imag."""
    out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), dtype=np.complex128)
    out.real, out.imag = real, imag
    return out


def multiply(a: ComplexArray, b: ComplexArray) -> ComplexArray:
    """a·b, elementwise."""
    return joined(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def divide(a: ComplexArray, b: ComplexArray) -> ComplexArray:
    """a/b, elementwise; |b|² must neither overflow nor vanish."""
    size = square(b)
    return joined((a.real * b.real + a.imag * b.imag) / size, (a.imag * b.real - a.real * b.imag) / size)


def square(a: ComplexArray) -> FloatArray:
    """|a|², elementwise."""
    return np.asarray(a.real * a.real + a.imag * a.imag)


def modulus(a: ComplexArray) -> FloatArray:
    """|a|, elementwise; |a|² must neither overflow nor vanish."""
    return np.asarray(np.sqrt(a.real * a.real + a.imag * a.imag))


def degrees(a: ComplexArray) -> FloatArray:
    """Angle of a, elementwise [degrees] in (-180, 180]; 0 of 0."""
    flat = np.ascontiguousarray(a, dtype=np.complex128).reshape(-1)
    out = np.empty(flat.shape)
    _degrees(flat, out)
    return out.reshape(np.shape(a))


def unit(angle_deg: FloatArray) -> ComplexArray:
    """cos + j·sin of angles [degrees], elementwise; exact at multiples of 90."""
    flat = np.ascontiguousarray(angle_deg, dtype=np.float64).reshape(-1)
    out = np.empty(flat.shape, dtype=np.complex128)
    _unit(flat, out)
    return out.reshape(np.shape(angle_deg))


@kernel
def _arctan_of_share(a: float) -> float:
    """Arctangent for 0 ≤ a ≤ 1 [rad]: arctan c + arctan((x − c)/(1 + c·x)) with c of 0, ½, 1.

    Without branches: a loop over it becomes vector code.
    """
    direct, low = a < _DIRECT, a < 0.6875
    over = a if direct else (2.0 * a - 1.0 if low else a - 1.0)
    under = 1.0 if direct else (2.0 + a if low else a + 1.0)
    base = 0.0 if direct else (4.63647609000806093515e-01 if low else 7.85398163397448278999e-01)
    rest = 0.0 if direct else (2.26987774529616870924e-17 if low else 3.06161699786838301793e-17)
    t = over / under
    z = t * t
    return base - ((t * (z * poly1(_ARCTAN, z)) - rest) - t)


@kernel
def degrees1(real: float, imag: float) -> float:
    """Angle of one complex number [degrees] in (-180, 180]; 0 of 0."""
    x, y = abs(real), abs(imag)
    flat = y <= x
    small, large = y if flat else x, x if flat else y
    share = 0.0 if flat & (large == 0.0) else small / large
    angle = _arctan_of_share(share) * _DEG_PER_RAD
    angle = angle if flat else _RIGHT - angle
    angle = _STRAIGHT - angle if real < 0.0 else angle
    return -angle if (imag < 0.0) & (angle < _STRAIGHT) else angle


@kernel
def _degrees(values: ComplexArray, out: FloatArray) -> None:
    for k in range(values.size):
        out[k] = degrees1(values[k].real, values[k].imag)


@kernel
def _unit(angles: FloatArray, out: ComplexArray) -> None:
    for k in range(angles.size):
        quarter = np.floor(angles[k] / _RIGHT + 0.5)
        s, c = sincos1((angles[k] - _RIGHT * quarter) * _RAD_PER_DEG)
        s, c = turned1(s, c, int(quarter) % 4)
        out[k] = complex(c, s)


def solve(matrix: ComplexArray, right: ComplexArray) -> ComplexArray:
    """x of matrix·x = right for a small dense matrix, by elimination in extended precision.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is singular.
    """
    a = np.concatenate([matrix, right[:, None]], axis=1).astype(np.clongdouble)
    n = len(a)
    for k in range(n):
        column = a[k:, k]
        pivot = k + int(np.argmax(column.real * column.real + column.imag * column.imag))
        if a[pivot, k] == 0.0:
            raise np.linalg.LinAlgError("the matrix is singular")
        a[[k, pivot]] = a[[pivot, k]]
        a[k] = a[k] / a[k, k]
        for i in range(n):
            if i != k:
                a[i] = a[i] - a[i, k] * a[k]
    return np.asarray(a[:, n].astype(np.complex128))
