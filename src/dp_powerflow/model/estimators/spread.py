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
from dp_powerflow._bits.linear import eigh, product
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
MIN_EIGENVALUE = 0.05  # of a correlation matrix
PRIOR_FACTOR_STD = 1.0  # of the log of the factor that all bands share
_REACH = 5.0  # standard deviations that a grid covers
_FACTORS, _ENERGIES = 81, 1201  # points of the grids
_TINY = 1e-300  # before a log or a division
_NO_ENERGY = 1e-12  # energy that counts as none


@dataclass(frozen=True, eq=False)
class Offset:
    """Where the mean lies in the frame of round 1, in whitened coefficients (T,).

    Coefficients that round 2 does not ask for have zeros.

    Parameters
    ----------
    mean
        Its posterior mean.
    variance
        Its posterior variance.
    prior_variance
        Its variance by what was known before round 2.
    """

    mean: FloatArray
    variance: FloatArray
    prior_variance: FloatArray

    @property
    def square(self) -> FloatArray:
        """Posterior mean of the squared offset."""
        return self.mean**2 + self.variance

    @property
    def square_variance(self) -> FloatArray:
        """Posterior variance of the squared offset."""
        return 4 * self.mean**2 * self.variance + 2 * self.variance**2


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


@dataclass(frozen=True, eq=False)
class Block:
    """Noisy second moment (K, K) of the lowest frequencies around the mean of round 1.

    Parameters
    ----------
    moment
        As asked.
    noise_variance
        Of a diagonal entry; off-diagonal ones have half of it.
    offset
        Of the mean (T,).
    """

    moment: FloatArray
    noise_variance: float
    offset: Offset

    @property
    def noise_energy(self) -> float:
        """Expected energy of the noise on the off-diagonal entries."""
        size = len(self.moment)
        return size * (size - 1) / 2 * self.noise_variance

    @property
    def offset_energy(self) -> float:
        """Expected energy of what the error of the offset leaves on the off-diagonal entries."""
        size = len(self.moment)
        square, own = self.offset.mean[:size] ** 2, self.offset.variance[:size]
        error = np.outer(square, own) + np.outer(own, square) + np.outer(own, own)
        return float(np.sum(error) - np.sum(np.diag(error)))

    def shrunk(self, noise_energy: float) -> FloatArray:
        """Off-diagonal covariances (K, K), times the share of their energy that is no noise."""
        shift = self.offset.mean[: len(self.moment)]
        off = self.moment - np.outer(shift, shift)
        np.fill_diagonal(off, 0.0)
        result: FloatArray = signal_share(float(np.sum(off**2)), noise_energy) * off
        return result


class SpreadRule(Protocol):
    """Turns noisy second moments into variances."""

    def energy(self, bands: Bands, offset: Offset, plan: StructuredPlan) -> FloatArray:
        """Whitened variance (T,) of each coefficient."""

    def block(self, block: Block, energy: FloatArray) -> FloatArray:
        """Covariance (K, K) with correlations of the noisy second moment, shrunk."""


@dataclass(frozen=True)
class AroundMean:
    """Variance around the mean that is released."""

    def energy(self, bands: Bands, offset: Offset, plan: StructuredPlan) -> FloatArray:
        weight, edges = plan.band_weight, plan.edges
        seen = bands.weighted / weight - band_means(offset.square, edges)
        error = bands.noise_variance / weight**2 + band_means(offset.square_variance, edges) / np.diff(edges)
        # Round 1 saw the error of its mean and the variance together.
        share = 1 / (1 + band_means(offset.prior_variance, edges))
        energy = share * posterior_variance(seen / share, error / share**2, bands.prior_variance)
        return energy[band_of(edges)]

    def block(self, block: Block, energy: FloatArray) -> FloatArray:
        std = np.sqrt(energy)
        correlation = block.shrunk(block.noise_energy + block.offset_energy) / np.outer(std, std)
        least = float(eigh(correlation)[0].min())
        # All of them are scaled down alike, so that the variances stay those of the bands.
        scale = min(1.0, (1 - MIN_EIGENVALUE) / max(-least, _NO_ENERGY))
        covariance: FloatArray = np.diag(energy) + scale * correlation * np.outer(std, std)
        return covariance


@dataclass(frozen=True)
class AroundFrame:
    """As models up to format version 2 have it: around the mean of round 1, with floors."""

    def energy(self, bands: Bands, offset: Offset, plan: StructuredPlan) -> FloatArray:
        return band_energy(bands, plan)

    def block(self, block: Block, energy: FloatArray) -> FloatArray:
        return positive_part(np.diag(energy) + block.shrunk(block.noise_energy), MIN_ENERGY)


def band_energy(bands: Bands, plan: StructuredPlan) -> FloatArray:
    """Whitened energy (T,) of each coefficient, around the mean of round 1."""
    weight = plan.band_weight
    # Round 1 averages logs, so the mean energy lies above it: the prior is centred at half its variance.
    spread = bands.prior_variance
    energy = posterior_energy(bands.weighted / weight, bands.noise_variance / weight**2, spread / 2, spread)
    per_step: FloatArray = np.maximum(energy, MIN_ENERGY)[band_of(plan.edges)]
    return per_step


def posterior_variance(seen: FloatArray, noise_variance: FloatArray, prior_variance: float) -> FloatArray:
    """Posterior mean of the variances of all bands (band,), seen through Gaussian noise.

    The log of a variance is normal around the log of a factor that all bands share, which is normal itself.
    The prior's mean is a constant, whatever its width: round 1 averages logs of customers who differ by
    `PRIOR_WHITENED_STD`, so it lies above 1. By quadrature over factor and variance.

    Parameters
    ----------
    seen, noise_variance
        Noisy variances (band,) and the variance of their noise.
    prior_variance
        Of the log of a variance around the factor.
    """
    shared = PRIOR_FACTOR_STD * PRIOR_FACTOR_STD
    centre = (PRIOR_WHITENED_STD * PRIOR_WHITENED_STD - prior_variance - shared) / 2
    factor = centre + PRIOR_FACTOR_STD * np.linspace(-_REACH, _REACH, _FACTORS)
    reach = _REACH * np.sqrt(prior_variance)
    log_variance = np.linspace(factor[0] - reach, factor[-1] + reach, _ENERGIES)
    variance = exp(log_variance)
    misfit = (seen[:, None] - variance) ** 2 / (2 * noise_variance[:, None])
    likelihood = exp(misfit.min(axis=1, keepdims=True) - misfit)
    prior = exp(-((log_variance[:, None] - factor) ** 2) / (2 * prior_variance))
    prior /= prior.sum(axis=0)
    evidence = np.maximum(product(likelihood, prior), _TINY)
    given_factor = product(likelihood * variance, prior) / evidence
    log_weight = log(evidence).sum(axis=0) - (factor - centre) ** 2 / (2 * shared)
    weight = exp(log_weight - log_weight.max())
    result: FloatArray = product(given_factor, weight) / weight.sum()
    return result


def signal_share(energy: float, noise_energy: float) -> float:
    """James and Stein's factor: the part of an energy that is not noise, at least 0; pure noise vanishes."""
    return max(0.0, 1.0 - noise_energy / max(energy, _NO_ENERGY))
