"""Small numerical pieces of the history model; the same bits everywhere.

The factor that all customers share: what covariates explain of it, and the rest, day by day. The rest is a
first-order autoregression f_d = φ·f_{d−1} + e_d seen through the noise of its query. Its variance and memory
are read off the noisy values, freed of the noise; the factor itself is drawn from its posterior, since the
posterior mean would be too even. All of it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, exp1, kernel, sin
from dp_powerflow._bits.linear import (
    cholesky,
    ndtr1,
    ndtri1,
    product,
    row_sum,
    solve_lower,
    solve_upper,
    standard_normal,
)
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

_SWEEPS = 400
_TINY = 1e-300


@cache
def fourier(n_steps: int, harmonics: int) -> FloatArray:
    """(1 + 2·harmonics, step): 1, √2·cos and √2·sin of every harmonic; mean square one over a day."""
    phase = (np.arange(n_steps) + 0.5) * (2 * math.pi / n_steps)
    rows = [np.ones(n_steps)]
    for k in range(1, harmonics + 1):
        angle = np.asarray((k * phase) % (2 * math.pi), dtype=np.float64)
        rows += [math.sqrt(2.0) * cos(angle), math.sqrt(2.0) * sin(angle)]
    matrix = np.array(rows)
    matrix.flags.writeable = False
    return matrix


def harmonic_of(count: int) -> IntArray:
    """(count,) harmonic of each coefficient after the constant: 1, 1, 2, 2, …"""
    return np.arange(count) // 2 + 1


def ndtr(values: FloatArray) -> FloatArray:
    """Φ, elementwise."""
    return _normal(values, inverse=False)


def ndtri(values: FloatArray) -> FloatArray:
    """Φ⁻¹, elementwise."""
    return _normal(values, inverse=True)


def _normal(values: FloatArray, inverse: bool) -> FloatArray:
    out = np.empty(values.size)
    _fill_normal(np.ascontiguousarray(values, dtype=np.float64).reshape(-1), inverse, out)
    return out.reshape(values.shape)


@kernel
def _fill_normal(values: FloatArray, inverse: bool, out: FloatArray) -> None:
    for k in range(values.size):
        out[k] = ndtri1(values[k]) if inverse else ndtr1(values[k])


def interpolate(x: FloatArray, at: FloatArray, values: FloatArray) -> FloatArray:
    """Piecewise linear function through (at, values), ends held; `at` must not decrease."""
    out = np.empty(x.size)
    _interpolate(np.ascontiguousarray(x, dtype=np.float64).reshape(-1), at, values, out)
    return out.reshape(x.shape)


@kernel
def _interpolate(x: FloatArray, at: FloatArray, values: FloatArray, out: FloatArray) -> None:
    last = at.size - 1
    for k in range(x.size):
        if x[k] <= at[0]:
            out[k] = values[0]
        elif x[k] >= at[last]:
            out[k] = values[last]
        else:
            upper = min(np.searchsorted(at, x[k], side="right"), last)
            width = at[upper] - at[upper - 1]
            share = (x[k] - at[upper - 1]) / width
            out[k] = values[upper - 1] + share * (values[upper] - values[upper - 1])


def least_squares_above_zero(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """x ≥ 0 (column,) with the least ‖matrix·x − right‖, by coordinate descent."""
    x = np.zeros(matrix.shape[1])
    _descend(np.ascontiguousarray(matrix), np.array(right, dtype=np.float64), x)
    return x


@kernel
def _descend(matrix: FloatArray, residual: FloatArray, x: FloatArray) -> None:
    rows, columns = matrix.shape
    for _ in range(_SWEEPS):
        for j in range(columns):
            along, square = 0.0, 0.0
            for i in range(rows):
                along += matrix[i, j] * residual[i]
                square += matrix[i, j] * matrix[i, j]
            if square <= 0.0:
                continue
            step = max(along / square, -x[j])
            x[j] += step
            for i in range(rows):
                residual[i] -= step * matrix[i, j]


def unimodal(values: FloatArray) -> FloatArray:
    """Nearest values that rise to the top of the smoothed ones and fall after it."""
    padded = np.concatenate([values[:1], values, values[-1:]])
    smooth = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
    top = int(np.argmax(smooth))
    result = values.copy()
    result[top:] = -_rising(-result[top:])
    result[: top + 1] = _rising(result[: top + 1])
    return result


def _rising(values: FloatArray) -> FloatArray:
    """Nearest values that do not fall: neighbours that do are pooled."""
    sums: list[list[float]] = []
    for value in values.tolist():
        sums.append([value, 1.0])
        while len(sums) > 1 and sums[-2][0] * sums[-1][1] > sums[-1][0] * sums[-2][1]:
            total, count = sums.pop()
            sums[-1][0] += total
            sums[-1][1] += count
    return np.concatenate([np.full(int(count), total / count) for total, count in sums])


def smoothed(values: FloatArray, noise_std: float, scale: float, reach: float) -> FloatArray:
    """Posterior mean (bin,) of a smooth function seen through white noise.

    Parameters
    ----------
    scale
        Prior standard deviation.
    reach
        Distance over which it is smooth [bins].
    """

    distance = np.subtract.outer(np.arange(values.size), np.arange(values.size)) / reach
    prior = scale * scale * exp(-distance * distance / 2)
    factor = cholesky(prior + max(noise_std * noise_std, 1e-12) * np.eye(values.size))
    return product(prior, solve_upper(factor, solve_lower(factor, values)))


def normal_shares(edges: FloatArray, mean: float, std: float) -> FloatArray:
    """(bin,) probability of every bin, what lies outside counted with the outermost."""
    below = ndtr((edges - mean) / std)
    below[0], below[-1] = 0.0, 1.0
    return np.diff(below)


@kernel
def best_normal(
    shares: FloatArray, edges: FloatArray, noise_std: float, centre: float, spread: float
) -> tuple[float, float]:
    """Mean and standard deviation of the normal law nearest to noisy shares of bins.

    Least squares over the noise, with a prior around centre and spread: one spread for the mean, half a unit
    of its log for the standard deviation.
    """
    best, at, width = np.inf, centre, spread
    noise = max(noise_std * noise_std, 1e-12)
    for i in range(61):
        x = (i - 30) / 20
        mean = centre + spread * x
        for j in range(59):
            y = -2.0 + 0.05 * j
            std = spread * exp1(y)
            misfit, below = 0.0, 0.0
            for k in range(shares.size):
                upto = 1.0 if k == shares.size - 1 else ndtr1((edges[k + 1] - mean) / std)
                gap = shares[k] - (upto - below)
                misfit += gap * gap
                below = upto
            cost = misfit / noise + x * x + 4 * y * y
            if cost < best:
                best, at, width = cost, mean, std
    return at, width


def systematic(uniform: FloatArray) -> FloatArray:
    """Normal numbers (n, k) whose columns are each a systematic sample: the ranks of uniform ones."""
    order = np.argsort(np.argsort(uniform, axis=0, kind="stable"), axis=0, kind="stable")
    return ndtri((order + 0.5) / len(uniform))


def nonnegative_mean(values: FloatArray, noise_std: float) -> FloatArray:
    """Posterior mean of numbers that are not negative, seen through noise, under a flat prior."""

    ratio = values / max(noise_std, 1e-12)
    ratio = np.maximum(ratio, -30.0)
    density = exp(-ratio * ratio / 2) / math.sqrt(2 * math.pi)
    result: FloatArray = noise_std * (ratio + density / np.maximum(ndtr(ratio), _TINY))
    return np.maximum(np.maximum(result, values), 0.0)


MOST_MEMORY = 0.95
MARGIN = 64
"""Days before the first whose noise a drawn factor depends on."""
_LEAST_VARIANCE = 1e-4
_KEY = StreamKey.from_insecure_seed(20)


@dataclass(frozen=True, eq=False)
class Factor:
    """The shared factor of a class.

    Parameters
    ----------
    values
        (day,) of the history.
    variance, memory
        Of the part that covariates do not explain: variance, and correlation from day to day.
    covariates
        (covariate,) coefficients of the orthonormal covariates.
    """

    values: FloatArray
    variance: float
    memory: float
    covariates: FloatArray

    @property
    def energy(self) -> float:
        """Mean square over the history."""
        return float(np.sum(self.values * self.values)) / self.values.size

    def at_steps(self, n_steps: int) -> FloatArray:
        """(day, step): linear between the middles of the days, held at both ends."""
        return at_steps(np.concatenate([self.values[:1], self.values, self.values[-1:]]), n_steps)


def at_steps(padded: FloatArray, n_steps: int) -> FloatArray:
    """Values (day + 2,), of the day before and the day after too, → (day, step)."""
    place = (np.arange(n_steps) + 0.5) / n_steps - 0.5
    before, here, after = padded[:-2, None], padded[1:-1, None], padded[2:, None]
    earlier = here + place * (here - before)
    later = here + place * (after - here)
    found: FloatArray = np.where(place < 0, earlier, later)
    return found


def shared_factor(seen: FloatArray, noise: float, covariates: FloatArray, explained: FloatArray) -> Factor:
    """The factor from its noisy values (day,).

    Parameters
    ----------
    noise
        Standard deviation of every value.
    covariates
        (day, covariate) orthonormal.
    explained
        (covariate,) released coefficients.
    """
    by_covariates = product(covariates, explained) if explained.size else np.zeros(seen.size)
    rest = seen - by_covariates
    variance = max(float(np.mean(rest * rest)) - noise * noise, _LEAST_VARIANCE)
    memory = float(np.clip(float(np.mean(rest[1:] * rest[:-1])) / variance, 0.0, MOST_MEMORY))
    normal = standard_normal(_KEY.stream("posterior").generator, (seen.size,))
    drawn = posterior_draw(rest, noise, variance, memory, normal)
    return Factor(by_covariates + drawn, variance, memory, explained)


def posterior_draw(
    seen: FloatArray, noise: float, variance: float, memory: float, normal: FloatArray
) -> FloatArray:
    """One draw of an autoregression given noisy values: filter forwards, draw backwards."""
    step, error = variance * (1 - memory * memory), max(noise * noise, 1e-12)
    means, variances = [], []
    mean, spread = 0.0, variance
    for day, value in enumerate(seen.tolist()):
        if day:
            mean, spread = memory * mean, memory * memory * spread + step
        gain = spread / (spread + error)
        mean, spread = mean + gain * (value - mean), (1 - gain) * spread
        means.append(mean)
        variances.append(spread)
    drawn = np.empty(seen.size)
    last = seen.size - 1
    drawn[last] = means[last] + math.sqrt(variances[last]) * normal[last]
    for day in range(last - 1, -1, -1):
        ahead = memory * memory * variances[day] + step
        gain = memory * variances[day] / ahead
        mean = means[day] + gain * (drawn[day + 1] - memory * means[day])
        spread = max(variances[day] - gain * memory * variances[day], 0.0)
        drawn[day] = mean + math.sqrt(spread) * normal[day]
    return drawn


def path(variance: float, memory: float, normal: FloatArray) -> FloatArray:
    """(day,) an autoregression from normal numbers (day + `MARGIN`,): a finite moving average of them."""
    weights = np.cumprod(np.concatenate([[1.0], np.full(MARGIN, memory)]))
    weights *= math.sqrt(variance / float(np.sum(weights * weights)))
    days = normal.size - MARGIN
    found = np.zeros(days)
    for k in range(MARGIN + 1):
        found += weights[k] * normal[MARGIN - k : MARGIN - k + days]
    return found


CELLS_AFTER = 3
"""Cells after its own that a step of a smoothed level depends on."""
LONGEST_DAYS = 16
"""Longest spacing [days]."""
_RIDGE = 0.02  # keeps amplitudes that nothing tells apart small
_PERIODS = 3  # fewest cells of the longest spacing that a history must hold


@dataclass(frozen=True)
class Ladder:
    """Spacings of the levels.

    Parameters
    ----------
    n_steps
        T, steps per day.
    spacings
        (level,) [steps], ascending from 1.
    """

    n_steps: int
    spacings: tuple[int, ...]

    @classmethod
    def of(cls, n_steps: int, n_days: int) -> Ladder:
        """The levels that a history of this length can tell apart."""
        spacings = [1]
        while n_steps % (2 * spacings[-1]) == 0 and n_steps // (2 * spacings[-1]) >= _PERIODS:
            spacings.append(2 * spacings[-1])
        days = 1
        while days <= LONGEST_DAYS and (days == 1 or _PERIODS * days <= n_days):
            if days * n_steps > spacings[-1]:
                spacings.append(days * n_steps)
            days *= 2
        return cls(n_steps, tuple(spacings))

    @cached_property
    def weights(self) -> tuple[FloatArray, ...]:
        """(level,) of (4, spacing): what cells 0 to 3 after a step's own weigh in it; mean variance one.

        A step at position x of cell c is Σ_j weights[j, x]·noise[c + j]. The first level has (1, 1).
        """
        return tuple(_spline(spacing) for spacing in self.spacings)

    def autocovariance(self, level: int, lags: int) -> FloatArray:
        """(lag,) of a level, up to `lags`, averaged over the positions within a cell."""
        own = _autocovariance(self.spacings[level])[: lags + 1]
        return np.concatenate([own, np.zeros(lags + 1 - own.size)])

    def energies_of(self, covariance: FloatArray, n_days: int) -> FloatArray:
        """(level,) expected `energies` of a process with this autocovariance (lag,)."""
        left = [self._left(covariance, spacing, n_days) for spacing in self.spacings]
        return -np.diff(np.array([*left, 0.0]))

    def _left(self, covariance: FloatArray, spacing: int, n_days: int) -> float:
        """Variance of means over cells of one spacing, the mean over the days taken away."""
        of_days = n_days * self.n_steps
        if spacing < self.n_steps:
            apart = _cell_covariances(covariance, spacing, self.n_steps * np.arange(n_days))
            weight = np.array([n_days, *(2.0 * (n_days - day) for day in range(1, n_days))])
            lost = float(np.sum(weight * apart)) / (n_days * n_days)
            return max(float(apart[0]) - lost, 0.0)
        return max(_mean_variance(covariance, spacing) - _mean_variance(covariance, of_days), 0.0)

    @lru_cache(maxsize=32)  # noqa: B019
    def response(self, n_days: int) -> FloatArray:
        """(level, level) expected energies, by column, of one level at amplitude one."""
        lags, levels = n_days * self.n_steps, range(len(self.spacings))
        return np.array([self.energies_of(self.autocovariance(k, lags), n_days) for k in levels]).T

    def amplitudes(self, energies: FloatArray, n_days: int) -> FloatArray:
        """(level,) whose squares add up to one, with expected energies nearest to these."""
        size = len(self.spacings)
        matrix = np.concatenate([self.response(n_days), _RIDGE * np.eye(size)])
        power = least_squares_above_zero(matrix, np.concatenate([energies, np.zeros(size)]))
        total = float(np.sum(power))
        return np.sqrt(power / total) if total > 0.0 else np.eye(size)[0]

    def covariance(self, amplitudes: FloatArray, lags: int) -> FloatArray:
        """(lag,) of the process with these amplitudes."""
        found = np.zeros(lags + 1)
        for level, amplitude in enumerate(amplitudes.tolist()):
            if amplitude > 0.0:
                found += amplitude * amplitude * self.autocovariance(level, lags)
        return found


def _mean_variance(covariance: FloatArray, length: int) -> float:
    """Variance of the mean of `length` steps."""
    lag = np.arange(1, length)
    return float(covariance[0] + 2 * np.sum((1 - lag / length) * covariance[1:length])) / length


def _cell_covariances(covariance: FloatArray, spacing: int, apart: IntArray) -> FloatArray:
    """(pair,) covariance of the means of two cells whose starts lie `apart` (pair,) steps from each other."""
    shift = np.arange(1 - spacing, spacing)
    weight = (spacing - np.abs(shift)) / (spacing * spacing)
    found: FloatArray = np.sum(weight * covariance[np.abs(apart[:, None] + shift)], axis=1)
    return found


@lru_cache(maxsize=32)
def _autocovariance(spacing: int) -> FloatArray:
    """(lag,) of a level; zero beyond."""
    taps = _spline(spacing)[::-1].reshape(-1)
    found = np.empty(taps.size)
    _fill_autocovariance(taps, spacing, found)
    found.flags.writeable = False
    return found


@kernel
def _fill_autocovariance(taps: FloatArray, spacing: int, out: FloatArray) -> None:
    terms = np.empty(taps.size)
    for lag in range(taps.size):
        size = taps.size - lag
        for k in range(size):
            terms[k] = taps[lag + k] * taps[k]
        out[lag] = row_sum(terms, 0, size) / spacing


def _spline(spacing: int) -> FloatArray:
    """Cubic B-spline at the middles of the steps of four cells (4, spacing), the last cell first."""
    if spacing == 1:
        return np.ones((1, 1))
    x = np.abs((np.arange(-2 * spacing, 2 * spacing) + 0.5) / spacing)
    inner, outer = 2 / 3 - x * x + x * x * x / 2, (2 - x) * (2 - x) * (2 - x) / 6
    taps = np.where(x < 1, inner, outer)
    taps = taps / np.sqrt(np.sum(taps * taps) / spacing)
    return np.ascontiguousarray(taps.reshape(4, spacing)[::-1])
