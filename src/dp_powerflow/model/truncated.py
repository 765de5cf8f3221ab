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

import numpy as np
from scipy import optimize
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import FloatArray, IntArray

REJECTION_ABOVE = 0.05  # box probability from which plain rejection is cheaper
_BATCH = 4096
_DEEP_TAIL = -5.0
_SOLVED = 1e-6  # residual of the saddle point
_TOO_NARROW = "the load margins exclude almost every day of this model; widen p_min and p_max"
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


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
        weight = np.exp(log_weight - scale)
        value = math.exp(scale) * float(weight.mean())
        error = math.exp(scale) * float(weight.std(ddof=1)) / math.sqrt(draws)
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
        draws = self.mean + generator.standard_normal((batch, self.mean.size)) @ self.factor.T
        inside: FloatArray = draws[((draws >= self.low) & (draws <= self.high)).all(axis=1)]
        return inside

    def _tilted(self, generator: np.random.Generator, batch: int) -> FloatArray:
        z, log_weight = self.tilt.propose(generator, batch)
        keep = -generator.standard_exponential(batch) < log_weight - self.tilt.peak
        offset = (z[:, keep].T * self.tilt.scale) @ self.tilt.unit_factor.T
        draws = np.empty_like(offset)
        draws[:, self.tilt.order] = offset
        # Floating point may step over an edge by an ulp; the law has no mass there.
        return np.clip(self.mean + draws, self.low, self.high)


@dataclass(frozen=True, eq=False)
class _Tilt:
    """Tilted sequential proposal in reordered, rescaled coordinates.

    order (T,) of the coordinates; unit_factor the Cholesky factor with its columns divided by scale, the
    diagonal; coupling its rows divided by scale, without the diagonal; low, high the scaled box; shift μ*;
    peak ψ*.
    """

    order: IntArray
    unit_factor: FloatArray
    scale: FloatArray
    coupling: FloatArray
    low: FloatArray
    high: FloatArray
    shift: FloatArray
    peak: float

    def propose(self, generator: np.random.Generator, batch: int) -> tuple[FloatArray, FloatArray]:
        """Proposals z (T, batch) and their log weights ψ(z) (batch,)."""
        size = self.low.size
        z = np.zeros((size, batch))
        log_weight = np.zeros(batch)
        for k in range(size):
            drift = self.coupling[k, :k] @ z[:k] + self.shift[k]
            low, high = self.low[k] - drift, self.high[k] - drift
            z[k] = self.shift[k] + _truncated_normal(generator.random(batch), low, high)
            log_weight += _log_interval(low, high) + self.shift[k] * (0.5 * self.shift[k] - z[k])
        return z, log_weight


def truncate(
    mean: FloatArray, covariance: FloatArray, low: FloatArray, high: FloatArray
) -> TruncatedGaussian:
    """Prepare a Gaussian (mean (T,), covariance (T, T)) truncated to the box [low, high] (T,)."""
    factor: FloatArray = np.linalg.cholesky(covariance).astype(np.float64)
    order, ordered = _ordered_cholesky(covariance, low - mean, high - mean)
    scale = np.diag(ordered).copy()
    coupling = ordered / scale[:, None]
    np.fill_diagonal(coupling, 0.0)
    box = ((low - mean)[order] / scale, (high - mean)[order] / scale)
    shift, peak = _minimax(coupling, *box)
    unit_factor = ordered / scale
    tilt = _Tilt(order, unit_factor, scale, coupling, *box, shift, peak)
    return TruncatedGaussian(mean, factor, low, high, tilt)


def _ordered_cholesky(
    covariance: FloatArray, low: FloatArray, high: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Order and Cholesky factor that put the least likely intervals first (Gibson, Glasbey, Elston 1994)."""
    size = low.size
    order = np.arange(size)
    matrix, low, high = covariance.copy(), low.copy(), high.copy()
    factor = np.zeros_like(matrix)
    expected = np.zeros(size)
    for k in range(size):
        variance = np.maximum(np.diag(matrix)[k:] - (factor[k:, :k] ** 2).sum(axis=1), 1e-14)
        drift = factor[k:, :k] @ expected[:k]
        std = np.sqrt(variance)
        pick = k + int(np.argmin(_log_interval((low[k:] - drift) / std, (high[k:] - drift) / std)))
        for array in (order, low, high):
            array[[k, pick]] = array[[pick, k]]
        matrix[[k, pick]] = matrix[[pick, k]]
        matrix[:, [k, pick]] = matrix[:, [pick, k]]
        factor[[k, pick], :k] = factor[[pick, k], :k]
        factor[k, k] = math.sqrt(max(matrix[k, k] - float(factor[k, :k] @ factor[k, :k]), 1e-14))
        factor[k + 1 :, k] = (matrix[k + 1 :, k] - factor[k + 1 :, :k] @ factor[k, :k]) / factor[k, k]
        drift_k = float(factor[k, :k] @ expected[:k])
        interval = np.array([low[k] - drift_k]) / factor[k, k], np.array([high[k] - drift_k]) / factor[k, k]
        expected[k] = float(_slope(*interval)[0])
    return order, factor


def _minimax(coupling: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, float]:
    """Saddle point of ψ(x, μ) = Σ μ²/2 − xμ + log P(low ≤ z ≤ high): the tilt μ* (T,) and ψ*."""
    size = low.size
    free = size - 1  # the last coordinate needs no tilt

    def unpack(point: FloatArray) -> tuple[FloatArray, FloatArray]:
        x, mu = np.zeros(size), np.zeros(size)
        x[:free], mu[:free] = point[:free], point[free:]
        return x, mu

    def gradient(point: FloatArray) -> tuple[FloatArray, FloatArray]:
        x, mu = unpack(point)
        drift = mu + coupling @ x
        slope = _slope(low - drift, high - drift)
        bend = _bend(low - drift, high - drift, slope)
        residual = np.concatenate([(coupling.T @ slope - mu)[:free], (mu - x + slope)[:free]])
        by_x = coupling[:, :free]
        jacobian = np.empty((2 * free, 2 * free))
        jacobian[:free, :free] = by_x.T @ (bend[:, None] * by_x)
        jacobian[:free, free:] = (by_x.T * bend)[:, :free] - np.eye(free)
        jacobian[free:, :free] = jacobian[:free, free:].T
        jacobian[free:, free:] = np.diag(1 + bend[:free])
        return residual, jacobian

    if free == 0:
        return np.zeros(1), float(_log_interval(low, high)[0])
    start = np.zeros(2 * free)
    if not np.isfinite(gradient(start)[0]).all():
        raise PrivacyError(_TOO_NARROW)
    solutions = (optimize.root(gradient, start, jac=True, method=method).x for method in ("hybr", "lm"))
    solved = next((x for x in solutions if float(np.abs(gradient(x)[0]).max()) <= _SOLVED), None)
    if solved is None:
        raise PrivacyError(_TOO_NARROW)
    x, mu = unpack(solved)
    drift = mu + coupling @ x
    peak = float(np.sum(0.5 * mu**2 - x * mu + _log_interval(low - drift, high - drift)))
    return mu, peak


def _log_interval(low: FloatArray, high: FloatArray) -> FloatArray:
    """log(Φ(high) − Φ(low)), accurate in both tails."""
    flip = low > 0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    log_a, log_b = log_ndtr(a), log_ndtr(b)
    result: FloatArray = log_b + np.log1p(-np.exp(np.minimum(log_a - log_b, -1e-300)))
    return result


def _density_over_interval(at: FloatArray, log_interval: FloatArray) -> FloatArray:
    result: FloatArray = np.exp(-0.5 * at**2 - _LOG_SQRT_2PI - log_interval)
    return result


def _slope(low: FloatArray, high: FloatArray) -> FloatArray:
    """(φ(low) − φ(high)) / P: mean of the truncated standard normal, and derivative of log P by the drift."""
    log_p = _log_interval(low, high)
    return _density_over_interval(low, log_p) - _density_over_interval(high, log_p)


def _bend(low: FloatArray, high: FloatArray, slope: FloatArray) -> FloatArray:
    """Derivative of `_slope` by the drift."""
    log_p = _log_interval(low, high)
    return low * _density_over_interval(low, log_p) - high * _density_over_interval(high, log_p) - slope**2


def _truncated_normal(uniform: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Standard normal on [low, high] by inversion, elementwise; in logs if the interval is deep in a tail."""
    flip = low > 0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    below = ndtr(a)
    draw = ndtri(below + uniform * (ndtr(b) - below))
    deep = b < _DEEP_TAIL
    if deep.any():
        log_a, log_b = log_ndtr(a[deep]), log_ndtr(b[deep])
        u = uniform[deep]
        draw[deep] = ndtri_exp(log_b + np.log(u + (1 - u) * np.exp(log_a - log_b)))
    result: FloatArray = np.clip(np.where(flip, -draw, draw), low, high)
    return result
