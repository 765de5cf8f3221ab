"""The factor that all customers share: what covariates explain of it, and the rest, day by day.

The rest is a first-order autoregression f_d = φ·f_{d−1} + e_d seen through the noise of its query. Its
variance and memory are read off the noisy values, freed of the noise; the factor itself is drawn from its
posterior, since the posterior mean would be too even. All of it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.linear import product, standard_normal
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray

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
        padded = np.concatenate([self.values[:1], self.values, self.values[-1:]])
        return at_steps(padded, n_steps)


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
