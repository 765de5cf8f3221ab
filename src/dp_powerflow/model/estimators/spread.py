"""How variance is read off the noisy second moments of round 2; free post-processing.

Round 2 of the structured estimator measures energies around the mean of round 1, in the units of its
spectrum. Three things must not pass for variance of the customers:

- the error of round 1's mean. Round 2 measures it too, so its square is taken out of every band;
- the prior. All bands share an unknown factor, which round 1 may have missed by its clip. It is learned from
  all bands together, so that customers who are nearly equal stay nearly equal. The prior's mean does not
  grow with the noise;
- a floor. The block of low frequencies is made positive definite as a correlation, so that it has the
  variances of the bands.

Too much variance is too much load: the mean of a lognormal load is exp(μ + σ²/2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dp_powerflow._bits.elementary import exp, log
from dp_powerflow._bits.linear import product
from dp_powerflow.model.estimators import (
    PRIOR_WHITENED_STD,
    StructuredPlan,
    band_means,
    band_of,
    positive_part,
    posterior_energy,
)
from dp_powerflow.units import FloatArray

MIN_ENERGY = 0.05  # whitened energies and eigenvalues of models up to version 2 are kept above this
MIN_SHARE = 0.05  # of a second moment that is variance, and of an eigenvalue of a correlation, at least
PRIOR_FACTOR_STD = 1.0  # of the log of the factor that all bands share
_REACH = 5.0  # standard deviations that a grid covers
_FACTORS, _ENERGIES = 81, 1201  # points of the grids
_TINY = 1e-300  # before a log or a division
_NO_ENERGY = 1e-12  # energy that counts as none


@dataclass(frozen=True, eq=False)
class Offset:
    """Where the mean lies in the frame of round 1, in whitened coefficients (T,), and its error squared (T,).

    Coefficients that round 2 does not ask for have neither.
    """

    mean: FloatArray
    variance: FloatArray


@dataclass(frozen=True, eq=False)
class Bands:
    """Noisy whitened energies (band,) around the mean of round 1.

    Parameters
    ----------
    weighted
        As asked, with the plan's weights.
    noise_variance
        Of every entry.
    log_energy_variance
        Error of round 1's log energies, squared.
    """

    weighted: FloatArray
    noise_variance: float
    log_energy_variance: float

    @property
    def prior_variance(self) -> float:
        """Of the log of a band's energy around round 1's."""
        return self.log_energy_variance + PRIOR_WHITENED_STD * PRIOR_WHITENED_STD


class SpreadRule(Protocol):
    """Turns noisy second moments into variances."""

    def energy(self, bands: Bands, offset: Offset, plan: StructuredPlan) -> FloatArray:
        """Whitened variance (T,) of each coefficient."""

    def block(self, off_diagonal: FloatArray, energy: FloatArray) -> FloatArray:
        """Covariance (K, K) of these variances (K,) and of covariances with a zero diagonal."""


@dataclass(frozen=True)
class AroundMean:
    """Variance around the mean that is released."""

    def energy(self, bands: Bands, offset: Offset, plan: StructuredPlan) -> FloatArray:
        weight = plan.band_weight
        squared = band_means(offset.mean**2 + offset.variance, plan.edges)
        energy = posterior_variance(
            bands.weighted / weight, bands.noise_variance / weight**2, squared, bands.prior_variance
        )
        return energy[band_of(plan.edges)]

    def block(self, off_diagonal: FloatArray, energy: FloatArray) -> FloatArray:
        std = np.sqrt(energy)
        correlation = positive_part(np.eye(energy.size) + off_diagonal / np.outer(std, std), MIN_SHARE)
        std = std / np.sqrt(np.diag(correlation))
        return correlation * np.outer(std, std)


@dataclass(frozen=True)
class AroundFrame:
    """As models up to format version 2 have it: around the mean of round 1, with floors."""

    def energy(self, bands: Bands, offset: Offset, plan: StructuredPlan) -> FloatArray:
        return band_energy(bands, plan)

    def block(self, off_diagonal: FloatArray, energy: FloatArray) -> FloatArray:
        return positive_part(np.diag(energy) + off_diagonal, MIN_ENERGY)


def band_energy(bands: Bands, plan: StructuredPlan) -> FloatArray:
    """Whitened energy (T,) of each coefficient, around the mean of round 1."""
    weight = plan.band_weight
    # Round 1 averages logs, so the mean energy lies above it: the prior is centred at half its variance.
    spread = bands.prior_variance
    energy = posterior_energy(bands.weighted / weight, bands.noise_variance / weight**2, spread / 2, spread)
    per_step: FloatArray = np.maximum(energy, MIN_ENERGY)[band_of(plan.edges)]
    return per_step


def posterior_variance(
    seen: FloatArray, noise_variance: FloatArray, squared_mean: FloatArray, prior_variance: float
) -> FloatArray:
    """Posterior mean of variances (band,), from second moments seen through Gaussian noise.

    The log of a second moment is normal around the log of a factor that all bands share, which is normal
    itself. The prior's mean is a constant, whatever its width: round 1 averages logs of customers who differ
    by `PRIOR_WHITENED_STD`, so it lies above 1. By quadrature over factor and moment. The variance is the
    moment without the squared mean, at least `MIN_SHARE` of it.

    Parameters
    ----------
    seen, noise_variance
        Second moments (band,) and the variance of their noise.
    squared_mean
        Expected square (band,) of the mean.
    prior_variance
        Of the log of a moment around the factor.
    """
    shared = PRIOR_FACTOR_STD * PRIOR_FACTOR_STD
    centre = (PRIOR_WHITENED_STD * PRIOR_WHITENED_STD - prior_variance - shared) / 2
    factor = centre + PRIOR_FACTOR_STD * np.linspace(-_REACH, _REACH, _FACTORS)
    reach = _REACH * np.sqrt(prior_variance)
    log_moment = np.linspace(factor[0] - reach, factor[-1] + reach, _ENERGIES)
    moment = exp(log_moment)
    misfit = (seen[:, None] - moment) ** 2 / (2 * noise_variance[:, None])
    likelihood = exp(misfit.min(axis=1, keepdims=True) - misfit)
    prior = exp(-((log_moment[:, None] - factor) ** 2) / (2 * prior_variance))
    prior /= prior.sum(axis=0)
    variance = np.maximum(moment - squared_mean[:, None], MIN_SHARE * moment)
    evidence = np.maximum(product(likelihood, prior), _TINY)
    given_factor = product(likelihood * variance, prior) / evidence
    log_weight = log(evidence).sum(axis=0) - (factor - centre) ** 2 / (2 * shared)
    weight = exp(log_weight - log_weight.max())
    result: FloatArray = product(given_factor, weight) / weight.sum()
    return result


def signal_share(energy: float, noise_energy: float) -> float:
    """James and Stein's factor: the part of an energy that is not noise, at least 0; pure noise vanishes."""
    return max(0.0, 1.0 - noise_energy / max(energy, _NO_ENERGY))


def low_block(
    moment: FloatArray, noise_variance: float, shift: FloatArray, energy: FloatArray, rule: SpreadRule
) -> FloatArray:
    """Covariance (K, K): variances of the bands, correlations of the noisy second moment, shrunk."""
    size = energy.size
    off = moment - np.outer(shift, shift)
    np.fill_diagonal(off, 0.0)
    noise_energy = size * (size - 1) / 2 * noise_variance
    return rule.block(signal_share(float(np.sum(off**2)), noise_energy) * off, energy)
