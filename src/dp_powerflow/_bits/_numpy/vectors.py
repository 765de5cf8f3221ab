"""The elementary functions and the normal law of numbers or arrays, with the bits of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dp_powerflow._bits import elementary, linear

Numbers = Any
"""A float64, or an array of them: NumPy returns whichever it was given."""
_TINY = 2.2250738585072014e-308
_SURE = 8.5  # above which Φ is one, as `normal_rows` has it


def added(terms: Numbers, axis: int = -1) -> Numbers:
    """Sum along an axis in ascending order, from zero."""
    if terms.shape[axis] == 0:
        return np.zeros(np.delete(terms.shape, axis))
    return np.take(np.add.accumulate(terms, axis=axis), -1, axis=axis) + 0.0


def where(condition: Any, then: Any, otherwise: Any) -> Numbers:
    """As that of NumPy, but a number stays a number."""
    return np.where(condition, then, otherwise)[()]


def poly(coefficients: Sequence[float], x: Numbers) -> Numbers:
    """As `elementary.poly1`."""
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


def exp(x: Numbers) -> Numbers:
    """As `elementary.exp1`."""
    inside = np.minimum(np.maximum(x, -750.0), 710.0)
    shifted = inside * 1.44269504088896338700 + elementary._MAGIC
    whole = shifted - elementary._MAGIC
    high = inside - whole * elementary._LN2_HIGH
    low = whole * elementary._LN2_LOW
    r = high - low
    square = r * r
    c = r - square * poly(elementary._EXP, square)
    value = 1.0 + (r * c / (2.0 - c) - low + high)
    power = shifted.view(np.int64) - elementary._MAGIC_BITS
    half = (power + 2048) // 2 - 1024
    value = value * ((half + 1023) << 52).view(np.float64)
    value = value * ((power - half + 1023) << 52).view(np.float64)
    return where(x == x, value, x)


def log(x: Numbers) -> Numbers:
    """As `elementary.log1`."""
    small = x < _TINY
    scaled = where(small, x * 18014398509481984.0, x)
    bits = scaled.view(np.int64) + 0x95F619980C433
    power = (bits >> 52) - 1023 - where(small, 54, 0)
    fraction = ((bits & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD).view(np.float64) - 1.0
    k = (power + elementary._MAGIC_BITS).view(np.float64) - elementary._MAGIC
    s = fraction / (2.0 + fraction)
    z = s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half_square = 0.5 * fraction * fraction
    rest = s * (half_square + (odd + even)) + k * elementary._LN2_LOW
    value = k * elementary._LN2_HIGH - ((half_square - rest) - fraction)
    special = where(x == 0.0, -np.inf, where(x > 0.0, x, np.nan))
    return where((x > 0.0) & (x < np.inf), value, special)


def log1p(x: Numbers) -> Numbers:
    """As `elementary.log1p1`."""
    one = 1.0 + x
    value = log(one)
    return where((one > 0.0) & (one != np.inf), value - ((one - 1.0) - x) / one, value)


def expm1(x: Numbers) -> Numbers:
    """As `elementary.expm11`."""
    one = exp(x)
    plain = (one == np.inf) | (one - 1.0 == -1.0)
    return where(one == 1.0, x, where(plain, one - 1.0, (one - 1.0) * x / log(one)))


def turned(s: Numbers, c: Numbers, quarters: Numbers) -> tuple[Numbers, Numbers]:
    """As `elementary.turned1`."""
    odd = (quarters == 1) | (quarters == 3)
    sine, cosine = where(odd, c, s), where(odd, s, c)
    down, left = (quarters == 2) | (quarters == 3), (quarters == 1) | (quarters == 2)
    return where(down, -sine, sine), where(left, -cosine, cosine)


def sincos(x: Numbers) -> tuple[Numbers, Numbers]:
    """As `elementary.sincos1`."""
    n = np.floor(x * 0.6366197723675814 + 0.5)
    high = x - n * elementary._HALF_PI_1
    middle = n * elementary._HALF_PI_2
    r = high - middle
    tail = (high - r) - middle
    tail = tail - n * elementary._HALF_PI_3
    z = r * r
    cube, half = z * r, 0.5 * z
    inner = z * (0.5 * tail - cube * poly(elementary._SINE, z)) - tail
    s = r - (inner + cube * 1.66666666666666324348e-01)
    one = 1.0 - half
    c = one + (((1.0 - one) - half) + (z * (z * poly(elementary._COSINE, z)) - r * tail))
    return turned(s, c, n.astype(np.int64) % 4)


_CUTS = (elementary._DIRECT, 0.6875, 1.1875, 2.4375)
_BASES = (0.0, 4.63647609000806093515e-01, 7.85398163397448278999e-01, 9.82793723247329054082e-01,
          1.57079632679489655800e00)  # fmt: skip
_RESTS = (0.0, 2.26987774529616870924e-17, 3.06161699786838301793e-17, 1.39033110312309984516e-17,
          6.12323399573676603587e-17)  # fmt: skip


def arctan(x: Numbers) -> Numbers:
    """As `elementary.arctan1`, and as `elementary._arctan_of_share` where that is defined."""
    a = np.abs(x)
    below = [a < cut for cut in _CUTS]
    reduced = (a, (2.0 * a - 1.0) / (2.0 + a), (a - 1.0) / (a + 1.0), (a - 1.5) / (1.0 + 1.5 * a))
    base, rest = np.select(below, _BASES[:4], _BASES[4]), np.select(below, _RESTS[:4], _RESTS[4])
    t = np.select(below, reduced, -1.0 / a)
    z = t * t
    value = base - ((t * (z * poly(elementary._ARCTAN, z)) - rest) - t)
    return where(x >= 0.0, value, -value)


def degrees(real: Numbers, imag: Numbers) -> Numbers:
    """As `elementary.degrees1`."""
    x, y = np.abs(real), np.abs(imag)
    flat = y <= x
    small, large = where(flat, y, x), where(flat, x, y)
    share = where(flat & (large == 0.0), 0.0, small / large)
    angle = arctan(share) * elementary._DEG_PER_RAD
    angle = where(flat, angle, elementary._RIGHT - angle)
    angle = where(real < 0.0, elementary._STRAIGHT - angle, angle)
    return where((imag < 0.0) & (angle < elementary._STRAIGHT), -angle, angle)


def ratio(table: tuple[Sequence[float], Sequence[float]], x: Numbers) -> Numbers:
    """As `linear._ratio`."""
    return poly(table[0], x) / poly(table[1], x)


def _tail_quantile(r: Numbers) -> Numbers:
    return where(r <= 5.0, ratio(linear._TAIL, r - 1.6), ratio(linear._FAR, r - 5.0))


def ndtri(p: Numbers) -> Numbers:
    """As `linear.ndtri1`."""
    q = p - 0.5
    centre = q * ratio(linear._CENTRE, 0.180625 - q * q)
    value = _tail_quantile(np.sqrt(-log(where(q < 0.0, p, 1.0 - p))))
    tails = where(q < 0.0, -value, value)
    ends = where(p == 0.0, -np.inf, where(p == 1.0, np.inf, np.nan))
    outside = (p <= 0.0) | (p >= 1.0)
    return where(np.abs(q) <= 0.425, centre, where(outside, ends, tails))


def _scaled_erfc(a: Numbers) -> Numbers:
    value, is_far = ratio(linear._ERFC, a), ~(a < 8.0)
    if not np.any(is_far):
        return value
    far = where(a > 1e8, 0.5641895835477563 / a, ratio(linear._ERFC_FAR, a))
    return where(is_far, far, value)


def _below(a: Numbers, size: Numbers) -> Numbers:
    """Φ(−size), a = size/√2 from 1 to 40."""
    head = np.floor(size * 64.0 + 0.5) / 64.0
    gauss = exp(-0.5 * head * head) * exp(-0.5 * (size - head) * (size + head))
    return 0.5 * gauss * _scaled_erfc(a)


def ndtr(x: Numbers) -> Numbers:
    """As `linear.ndtr1`; every number by the formula of its place only."""
    given = np.atleast_1d(x)
    size = np.abs(given)
    a = size * linear._SQRT_HALF
    out = where(given != given, given, where(given < 0.0, 0.0, 1.0))
    near = a < 1.0
    inner = given[near]
    out[near] = 0.5 + 0.5 * (inner * linear._SQRT_HALF) * ratio(linear._ERF, a[near] * a[near])
    lower, upper = ~near & (given < 0.0) & (a < 40.0), ~near & (given > 0.0) & (size <= _SURE)
    out[lower] = _below(a[lower], size[lower])
    out[upper] = 1.0 - _below(a[upper], size[upper])
    return out.reshape(np.shape(x))[()]


def log_ndtr(x: Numbers) -> Numbers:
    """As `linear.log_ndtr1`."""
    deep = -0.5 * x * x + log(0.5 * _scaled_erfc(-x * linear._SQRT_HALF))
    return where(x > 1.0, log1p(-ndtr(-x)), where(x > -1.5, log(ndtr(x)), deep))


def from_words(words: Numbers) -> Numbers:
    """Standard normals of random words, as `linear._from_words`."""
    bits = (words >> np.uint64(12)) | np.uint64(0x3FF0000000000000)
    q = (bits.view(np.float64) - 1.5) + 1.1102230246251565e-16
    value = _tail_quantile(np.sqrt(-log(0.5 - np.abs(q))))
    tails = where(q > 0.0, value, -value)
    return where(np.abs(q) > 0.425, tails, q * ratio(linear._CENTRE, 0.180625 - q * q))
