"""Exact draws from a Gaussian truncated to a box, and the probability of the box.

Plain rejection while the box is likely; else minimax tilting (Botev 2017, J. R. Statist. Soc. B 79, 125–148):
coordinates are drawn one after the other from exponentially tilted truncated normals, and a draw is accepted
with probability exp(ψ(z) − ψ*), where ψ* ≥ ψ(z) for all z at the optimal tilt. Accepted draws follow the
truncated Gaussian exactly. The average of exp ψ(z) is an unbiased estimate of the box's probability with a
small relative error even when the probability is tiny.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1, kernel, log1, log1p1
from dp_powerflow._bits.linear import (
    LOG_SQRT_2PI,
    cholesky,
    log_ndtr1,
    ndtr1,
    ndtri1,
    ndtri_exp1,
    norms,
    product,
    solve_lower,
    solve_upper,
    standard_exponential,
    standard_normal,
)
from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import FloatArray, IntArray

REJECTION_ABOVE = 0.05  # box probability from which plain rejection is cheaper
_BATCH = 4096
_DEEP_TAIL = -5.0
_SOLVED = 1e-6  # gradient at a saddle point that is good enough
_CONVERGED = 1e-12  # gradient at which Newton's method stops
_NEWTON_STEPS = 200
_LEAST_STEP = 1e-10
_LEAST_BEND = -1 + 1e-10
_MIN_PIVOT = 1e-14
_TOO_NARROW = "the load margins exclude almost every day of this model; widen p_min and p_max"


@dataclass(frozen=True)
class BoxProbability:
    """Probability that an untruncated draw lies in the box, with the standard error of the estimate."""

    value: float
    standard_error: float


@dataclass(frozen=True, eq=False)
class TruncatedGaussian:
    """A Gaussian restricted to a box, prepared for exact sampling by `truncate`.

    Parameters
    ----------
    mean, factor
        Mean (T,) and lower Cholesky factor (T, T) of the Gaussian.
    low, high
        The box (T,) [log kW].
    tilt
        The minimax tilt of the box.
    """

    mean: FloatArray
    factor: FloatArray
    low: FloatArray
    high: FloatArray
    tilt: _Tilt

    def probability(self, generator: np.random.Generator, draws: int = 10_000) -> BoxProbability:
        """Probability of the box by importance sampling under the tilt."""
        log_weight = self.tilt.propose(generator, draws)[1]
        scale = float(log_weight.max())
        weight = exp(log_weight - scale)
        value = exp1(scale) * float(weight.mean())
        error = exp1(scale) * float(weight.std(ddof=1)) / math.sqrt(draws)
        return BoxProbability(min(value, 1.0), error)

    def draw(self, generator: np.random.Generator, size: int, *, rejection: bool) -> FloatArray:
        """Exact draws (size, T); `rejection` chooses the method, not the law."""
        parts: list[FloatArray] = []
        missing, rate = size, 1.0
        while missing > 0:
            batch = int(min(_BATCH, math.ceil(missing / rate) + 16))
            accepted = self._reject(generator, batch) if rejection else self._tilted(generator, batch)
            rate = min(1.0, max(0.05, 0.5 * rate + 0.5 * len(accepted) / batch))
            parts.append(accepted[:missing])
            missing -= len(parts[-1])
        return np.concatenate(parts) if parts else np.empty((0, self.mean.size))

    def _reject(self, generator: np.random.Generator, batch: int) -> FloatArray:
        draws = self.mean + product(standard_normal(generator, (batch, self.mean.size)), self.factor.T)
        inside: FloatArray = draws[((draws >= self.low) & (draws <= self.high)).all(axis=1)]
        return inside

    def _tilted(self, generator: np.random.Generator, batch: int) -> FloatArray:
        z, log_weight = self.tilt.propose(generator, batch)
        keep = -standard_exponential(generator, batch) < log_weight - self.tilt.peak
        offset = product(z[:, keep].T * self.tilt.scale, self.tilt.unit_factor.T)
        draws = np.empty_like(offset)
        draws[:, self.tilt.order] = offset
        # Floating point may step over an edge by an ulp; the law has no mass there.
        return np.clip(self.mean + draws, self.low, self.high)


class _Box(NamedTuple):
    """Rows of the Cholesky factor over its diagonal, without the diagonal (T, T), and the scaled box (T,)."""

    coupling: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, eq=False)
class _Tilt:
    """Tilted sequential proposal in reordered, rescaled coordinates.

    order (T,) of the coordinates; unit_factor the Cholesky factor with its columns divided by scale, the
    diagonal; box the scaled problem; shift μ*; peak ψ*.
    """

    order: IntArray
    unit_factor: FloatArray
    scale: FloatArray
    box: _Box
    shift: FloatArray
    peak: float

    def propose(self, generator: np.random.Generator, batch: int) -> tuple[FloatArray, FloatArray]:
        """Proposals z (T, batch) and their log weights ψ(z) (batch,)."""
        z = np.empty((self.box.low.size, batch))
        log_weight = np.zeros(batch)
        _propose(self.box, self.shift, generator.random(z.shape), z, log_weight)
        return z, log_weight


def truncate(
    mean: FloatArray, covariance: FloatArray, low: FloatArray, high: FloatArray
) -> TruncatedGaussian:
    """Prepare a Gaussian (mean (T,), covariance (T, T)) truncated to the box [low, high] (T,)."""
    order, ordered = _ordered_cholesky(covariance, low - mean, high - mean)
    scale = np.diag(ordered).copy()
    coupling = ordered / scale[:, None]
    np.fill_diagonal(coupling, 0.0)
    box = _Box(coupling, (low - mean)[order] / scale, (high - mean)[order] / scale)
    tilt = _Tilt(order, ordered / scale, scale, box, *_minimax(box))
    return TruncatedGaussian(mean, cholesky(covariance), low, high, tilt)


def _ordered_cholesky(
    covariance: FloatArray, low: FloatArray, high: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Order and Cholesky factor that put the least likely intervals first (Gibson, Glasbey, Elston 1994)."""
    order = np.arange(low.size)
    factor = np.zeros(covariance.shape)
    _order_and_factor(np.array(covariance), low.copy(), high.copy(), order, factor)
    return order, factor


@kernel
def _order_and_factor(
    matrix: FloatArray, low: FloatArray, high: FloatArray, order: IntArray, factor: FloatArray
) -> None:
    """Fill `order` and `factor`; the other arrays are work space."""
    size = low.size
    variance = np.diag(matrix).copy()
    drift = np.zeros(size)
    for k in range(size):
        pick, least = k, np.inf
        for i in range(k, size):
            std = np.sqrt(max(variance[i], _MIN_PIVOT))
            chance = log_interval1((low[i] - drift[i]) / std, (high[i] - drift[i]) / std)
            if chance < least:
                pick, least = i, chance
        for array in (low, high, variance, drift):
            array[k], array[pick] = array[pick], array[k]
        order[k], order[pick] = order[pick], order[k]
        for j in range(size):
            matrix[k, j], matrix[pick, j] = matrix[pick, j], matrix[k, j]
        for j in range(size):
            matrix[j, k], matrix[j, pick] = matrix[j, pick], matrix[j, k]
        for j in range(k):
            factor[k, j], factor[pick, j] = factor[pick, j], factor[k, j]
        pivot = np.sqrt(max(variance[k], _MIN_PIVOT))
        factor[k, k] = pivot
        expected = slope1((low[k] - drift[k]) / pivot, (high[k] - drift[k]) / pivot)
        for i in range(k + 1, size):
            rest = matrix[i, k]
            for j in range(k):
                rest -= factor[i, j] * factor[k, j]
            factor[i, k] = rest / pivot
            variance[i] -= factor[i, k] * factor[i, k]
            drift[i] += factor[i, k] * expected


def _minimax(box: _Box) -> tuple[FloatArray, float]:
    """Saddle point of ψ(x, μ) = Σ μ²/2 − xμ + log P(low ≤ z ≤ high): the tilt μ* (T,) and ψ*.

    Newton's method with steps cut until the gradient falls. ψ is concave in x and convex in μ, so the Schur
    complement in x has a Cholesky factor.
    """
    size = box.low.size
    free = size - 1  # the last coordinate needs no tilt
    x, mu = np.zeros(size), np.zeros(size)
    by_x = np.ascontiguousarray(box.coupling[:, :free])
    residual, bend = _gradient(box, x, mu)
    for _ in range(_NEWTON_STEPS if free else 0):
        size_of = float(np.abs(residual).max())
        if not np.isfinite(size_of):
            raise PrivacyError(_TOO_NARROW)
        if size_of <= _CONVERGED:
            break
        cross = (by_x.T * bend)[:, :free] - np.eye(free)
        curve = 1 + np.maximum(bend[:free], _LEAST_BEND)
        schur = product(cross / curve, cross.T) - product(by_x.T, bend[:, None] * by_x)
        try:
            factor = cholesky(schur)
        except np.linalg.LinAlgError as error:
            raise PrivacyError(_TOO_NARROW) from error
        right = residual[:free] - product(cross, residual[free:] / curve)
        dx = solve_upper(factor, solve_lower(factor, right))
        dmu = -(residual[free:] + product(cross.T, dx)) / curve
        step = 1.0
        while step > _LEAST_STEP:
            tried = x.copy(), mu.copy()
            tried[0][:free] += step * dx
            tried[1][:free] += step * dmu
            found = _gradient(box, *tried)
            if float(norms(found[0])) < (1 - 1e-4 * step) * float(norms(residual)):
                break
            step /= 2
        else:
            break
        (x, mu), (residual, bend) = tried, found
    if not float(np.abs(residual).max(initial=0.0)) <= _SOLVED:
        raise PrivacyError(_TOO_NARROW)
    drift = mu + product(box.coupling, x)
    peak = float(np.sum(0.5 * mu**2 - x * mu + _log_intervals(box.low - drift, box.high - drift)))
    return mu, peak


def _gradient(box: _Box, x: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ψ by x and by μ (2T − 2,), and of the slopes by the drift (T,)."""
    free = x.size - 1
    drift = mu + product(box.coupling, x)
    slope, bend = np.empty(x.size), np.empty(x.size)
    _slopes_and_bends(box.low - drift, box.high - drift, slope, bend)
    by_x = product(box.coupling.T, slope) - mu
    return np.concatenate([by_x[:free], (mu - x + slope)[:free]]), bend


@kernel
def log_interval1(low: float, high: float) -> float:
    """log(Φ(high) − Φ(low)), accurate in both tails."""
    a, b = (-high, -low) if low > 0 else (low, high)
    log_a, log_b = log_ndtr1(a), log_ndtr1(b)
    return log_b + log1p1(-exp1(min(log_a - log_b, -1e-300)))


@kernel
def _density(at: float, log_interval: float) -> float:
    return exp1(-0.5 * at * at - LOG_SQRT_2PI - log_interval)


@kernel
def slope1(low: float, high: float) -> float:
    """(φ(low) − φ(high)) / P: mean of the truncated standard normal, and derivative of log P by the drift."""
    log_p = log_interval1(low, high)
    return _density(low, log_p) - _density(high, log_p)


@kernel
def _slopes_and_bends(low: FloatArray, high: FloatArray, slope: FloatArray, bend: FloatArray) -> None:
    """Slope of log P, and its derivative by the drift, elementwise."""
    for i in range(low.size):
        log_p = log_interval1(low[i], high[i])
        first, second = _density(low[i], log_p), _density(high[i], log_p)
        slope[i] = first - second
        bend[i] = low[i] * first - high[i] * second - slope[i] * slope[i]


@kernel
def _log_intervals(low: FloatArray, high: FloatArray) -> FloatArray:
    out = np.empty(low.size)
    for i in range(low.size):
        out[i] = log_interval1(low[i], high[i])
    return out


@kernel
def _truncated_normal1(uniform: float, low: float, high: float) -> float:
    """Standard normal on [low, high] by inversion; in logs if the interval is deep in a tail."""
    flip = low > 0
    a, b = (-high, -low) if flip else (low, high)
    if b < _DEEP_TAIL:
        log_a, log_b = log_ndtr1(a), log_ndtr1(b)
        draw = ndtri_exp1(log_b + log1(uniform + (1 - uniform) * exp1(log_a - log_b)))
    else:
        below = ndtr1(a)
        draw = ndtri1(below + uniform * (ndtr1(b) - below))
    return min(max(-draw if flip else draw, low), high)


@kernel
def _propose(
    box: _Box, shift: FloatArray, uniform: FloatArray, z: FloatArray, log_weight: FloatArray
) -> None:
    """Proposals z (T, batch) from uniforms (T, batch); adds ψ(z) to `log_weight` (batch,)."""
    size, batch = z.shape
    drift = np.empty(batch)
    for k in range(size):
        drift[:] = 0.0
        for p in range(k):
            weight = box.coupling[k, p]
            for j in range(batch):
                drift[j] += weight * z[p, j]
        mu = shift[k]
        for j in range(batch):
            low, high = box.low[k] - (drift[j] + mu), box.high[k] - (drift[j] + mu)
            z[k, j] = mu + _truncated_normal1(uniform[k, j], low, high)
            log_weight[j] += log_interval1(low, high) + mu * (0.5 * mu - z[k, j])
