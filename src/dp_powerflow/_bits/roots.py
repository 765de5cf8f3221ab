"""Roots, minima and quantiles as scipy has them, bit by bit, without the time that its import takes.

A root and a minimum of a function of one number are found by Brent's methods, in plain arithmetic. Every step
is that of `scipy.optimize.brentq` and of `minimize_scalar(method="bounded")`; the tests compare. They are all
that accounts need of `scipy.optimize`, whose import takes longer than a verification computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_RELATIVE = 4 * 2.0**-52
_MOST_STEPS = 100
_ROOT_OF_EPS = math.sqrt(2.2e-16)
_GOLDEN = 0.5 * (3.0 - math.sqrt(5.0))
_CLOSE = 1e-5
_MOST_VALUES = 500


@dataclass(frozen=True)
class Point:
    """A place and the value of a function there."""

    at: float
    value: float


def root_between(function: Callable[[float], float], low: float, high: float, *, close: float) -> float:
    """A root of a function that changes its sign from one end to the other (R. P. Brent, 1973, chapter 4).

    Parameters
    ----------
    close : how near the root has to be, beside four units in the last place.

    Raises
    ------
    ValueError : the function has the same sign at both ends, is not a number somewhere, or there was no root
        within a hundred steps.
    """
    before, now = _looked(function, low), _looked(function, high)
    for end in (before, now):
        if end.value == 0:
            return end.at
    if _negative(before) == _negative(now):
        raise ValueError("the function has the same sign at both ends")
    other, last, step = Point(0.0, 0.0), 0.0, 0.0
    for _ in range(_MOST_STEPS):
        if before.value != 0 and now.value != 0 and _negative(before) != _negative(now):
            other, last, step = before, now.at - before.at, now.at - before.at
        if abs(other.value) < abs(now.value):
            before, now, other = now, other, now
        near = (close + _RELATIVE * abs(now.at)) / 2
        half = (other.at - now.at) / 2
        if now.value == 0 or abs(half) < near:
            return now.at
        trial = math.inf
        if abs(last) > near and abs(now.value) < abs(before.value):
            trial = _interpolated(before, now, other)
        if 2 * abs(trial) < min(abs(last), 3 * abs(half) - near):
            last, step = step, trial
        else:
            last = step = half
        moved = step if abs(step) > near else math.copysign(near, half)
        before, now = now, _looked(function, now.at + moved)
    raise ValueError(f"there was no root within {_MOST_STEPS} steps")


def _looked(function: Callable[[float], float], at: float) -> Point:
    value = function(at)
    if math.isnan(value):
        raise ValueError("the function has a value that is not a number")
    return Point(at, value)


def _negative(point: Point) -> bool:
    return math.copysign(1.0, point.value) < 0


def _interpolated(before: Point, now: Point, other: Point) -> float:
    """The step from `now`: by the secant, or by an inverse quadratic through all three; infinite if none."""
    if before.at == other.at:
        return -now.value * (now.at - before.at) / (now.value - before.value)
    first = (before.value - now.value) / (before.at - now.at)
    second = (other.value - now.value) / (other.at - now.at)
    below = second * first * (other.value - before.value)
    if below == 0:  # of values next to nothing
        return math.inf
    return -now.value * (other.value * second - before.value * first) / below


def least_between(function: Callable[[float], float], low: float, high: float) -> Point:
    """A local minimum within two ends, to about 1e-5 (R. P. Brent, 1973, chapter 5).

    Raises
    ------
    ValueError : an end is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("the ends between which a minimum is sought must be finite")
    at = low + _GOLDEN * (high - low)
    best = second = third = Point(at, function(at))
    step = last = 0.0
    middle, near, twice = _limits(low, high, best)
    for _ in range(_MOST_VALUES - 1):
        if abs(best.at - middle) <= twice - 0.5 * (high - low):
            break
        golden = True
        if abs(last) > near:
            r = (best.at - second.at) * (best.value - third.value)
            q = (best.at - third.at) * (best.value - second.value)
            p = (best.at - third.at) * q - (best.at - second.at) * r
            q = 2.0 * (q - r)
            p, q = -p if q > 0.0 else p, abs(q)
            before, last = last, step
            if abs(p) < abs(0.5 * q * before) and q * (low - best.at) < p < q * (high - best.at):
                golden, step = False, (p + 0.0) / q
                at = best.at + step
                if at - low < twice or high - at < twice:
                    step = math.copysign(near, middle - best.at)
        if golden:
            last = low - best.at if best.at >= middle else high - best.at
            step = _GOLDEN * last
        at = best.at + math.copysign(max(abs(step), near), step + 0.0)
        found = Point(at, function(at))
        if found.value <= best.value:
            low, high = (best.at, high) if at >= best.at else (low, best.at)
            best, second, third = found, best, second
        else:
            low, high = (at, high) if at < best.at else (low, at)
            if found.value <= second.value or second.at == best.at:
                second, third = found, second
            elif found.value <= third.value or third.at in (best.at, second.at):
                third = found
        middle, near, twice = _limits(low, high, best)
    return best


def _limits(low: float, high: float, best: Point) -> tuple[float, float, float]:
    """The middle of what is left, the least step, and twice that."""
    near = _ROOT_OF_EPS * abs(best.at) + _CLOSE / 3.0
    return 0.5 * (low + high), near, 2.0 * near


def normal_quantile(p: float) -> float:
    """Φ⁻¹(p), with the bits of `scipy.special.ndtri`; `_bits.linear.ndtri1` is the one for compiled code."""
    from scipy.special import ndtri  # slow to import, and few commands ask

    return float(ndtri(p))
