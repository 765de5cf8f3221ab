"""The mean day of a class, how the mean days of its customers differ, and the contrast of days off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1
from dp_powerflow._bits.linear import product
from dp_powerflow.model.estimators import symmetric_to_vector, vector_to_symmetric
from dp_powerflow.model.history import contributions as of_customer
from dp_powerflow.model.history import plan
from dp_powerflow.model.history.asking import Asker, OfCustomer, Seen, positive, scaled, shrunk
from dp_powerflow.model.history.contributions import Frame, Scores
from dp_powerflow.model.history.numbers import fourier, harmonic_of, nonnegative_mean
from dp_powerflow.model.records import Customers
from dp_powerflow.privacy.queries import Region
from dp_powerflow.units import FloatArray, IntArray

_BAND_STARTS = (1, 2, 3, 4, 6, 9, 14, 25)  # harmonics


@dataclass(frozen=True, eq=False)
class MeanDays:
    """Mean day of a class, and how customers differ from it."""

    mean_day: FloatArray
    block: FloatArray
    variance: FloatArray


def _bands(count: int) -> list[IntArray]:
    """Coefficients of every band of harmonics."""
    harmonic = harmonic_of(count)
    ends = (*_BAND_STARTS[1:], count + 1)
    found = [
        np.flatnonzero((harmonic >= a) & (harmonic < b)) for a, b in zip(_BAND_STARTS, ends, strict=True)
    ]
    return [band for band in found if band.size]


def ask_mean_days(asker: Asker, scores: Sequence[Scores]) -> list[MeanDays]:
    setting, count = asker.setting, len(asker.groups)
    n_steps, n_all = setting.n_steps, setting.coefficients
    basis, n_coarse = fourier(n_steps, n_all // 2)[1:], min(plan.COARSE_COEFFICIENTS, n_all)
    flat = np.zeros(n_steps)
    coarse = asker.ask(
        "coarse mean day",
        n_coarse,
        Region.BALL,
        [
            scaled(of_customer.shape_coefficients, plan.RADIUS_COARSE_DAY, own, flat, n_coarse)
            for own in scores
        ],
        [plan.RADIUS_COARSE_DAY] * count,
    )
    prior = 0.5 / harmonic_of(n_coarse)
    means = [product(shrunk(seen, prior), basis[:n_coarse]) for seen in coarse]
    sizes = asker.ask(
        "size of mean days",
        1,
        Region.BALL,
        [
            scaled(of_customer.log_shape_size, plan.RADIUS_SIZE, own, mean, plan.USUAL_SIZE)
            for own, mean in zip(scores, means, strict=True)
        ],
        [plan.RADIUS_SIZE] * count,
    )
    usual = [plan.USUAL_SIZE * exp1(float(np.clip(seen.value[0], -2.5, 1.0))) for seen in sizes]
    radii = [float(np.clip(size, 0.02, 1.5)) for size in usual]
    fine = asker.ask(
        "mean day",
        n_all,
        Region.BALL,
        [
            scaled(of_customer.shape_coefficients, radius, own, mean, n_all)
            for own, mean, radius in zip(scores, means, radii, strict=True)
        ],
        radii,
    )
    for index, (seen, size, radius) in enumerate(zip(fine, usual, radii, strict=True)):
        kept = _kept_by_clip(size, radius)
        shift = _octaves(Seen(seen.value / kept, seen.noise / kept))
        means[index] = means[index] + product(shift, basis)
    return _ask_spread_of_days(asker, scores, means, usual)


def _ask_spread_of_days(
    asker: Asker, scores: Sequence[Scores], means: Sequence[FloatArray], usual: Sequence[float]
) -> list[MeanDays]:
    n_all = asker.setting.coefficients
    bands, block = _bands(n_all), min(plan.BLOCK, n_all)
    radii = [float(np.clip(2.25 * size * size, 0.001, 2.0)) for size in usual]
    energies = asker.ask(
        "bands of mean days",
        len(bands),
        Region.ORTHANT,
        [
            _band_energies(own, mean, bands, n_all, radius)
            for own, mean, radius in zip(scores, means, radii, strict=True)
        ],
        radii,
    )
    moments = asker.ask(
        "block of mean days",
        block * (block + 1) // 2,
        Region.PSD,
        [
            _low_moment(own, mean, block, radius)
            for own, mean, radius in zip(scores, means, radii, strict=True)
        ],
        radii,
    )
    found = []
    for mean, energy, moment in zip(means, energies, moments, strict=True):
        variance = np.empty(n_all)
        for band, value in zip(bands, nonnegative_mean(energy.value, energy.noise).tolist(), strict=True):
            variance[band] = value / band.size
        off = vector_to_symmetric(moment.value, block)
        np.fill_diagonal(off, 0.0)
        seen = float(np.sum(off * off))
        noise = block * (block - 1) / 2 * moment.noise * moment.noise
        off *= max(0.0, 1.0 - noise / max(seen, 1e-12))
        found.append(MeanDays(mean, positive(np.diag(variance[:block]) + off), variance[block:]))
    return found


def _band_energies(
    known: Scores, mean: FloatArray, bands: Sequence[IntArray], count: int, radius: float
) -> OfCustomer:
    def contribution(days: Customers) -> FloatArray:
        square = of_customer.shape_coefficients(days, known, mean, count) ** 2
        # Contiguous by customer: the order of a sum must not depend on how many customers there are.
        own = [np.ascontiguousarray(square[:, band]).sum(axis=1) for band in bands]
        return np.stack(own, axis=1) / radius

    return contribution


def _low_moment(known: Scores, mean: FloatArray, block: int, radius: float) -> OfCustomer:
    def contribution(days: Customers) -> FloatArray:
        low = of_customer.shape_coefficients(days, known, mean, block)
        return symmetric_to_vector(low[:, :, None] * low[:, None, :]) / radius

    return contribution


def _octaves(seen: Seen) -> FloatArray:
    """James and Stein's shrinkage of Fourier coefficients, octave by octave."""
    value, harmonic, low = seen.value.copy(), harmonic_of(seen.value.size), 1
    while low <= harmonic[-1]:
        own = (harmonic >= low) & (harmonic < 2 * low)
        energy, noise = float(np.sum(value[own] ** 2)), float(np.sum(own)) * seen.noise * seen.noise
        value[own] *= max(0.0, 1.0 - noise / max(energy, 1e-12))
        low *= 2
    return value


def _kept_by_clip(size: float, radius: float) -> float:
    """Share of their length that a clip leaves of vectors; log sizes spread by 0.45 around a usual one."""
    x = np.linspace(-3.0, 3.0, 61)
    weight = exp(-x * x / 2)
    kept = np.minimum(1.0, radius / (size * exp(0.45 * x)))
    return float(np.sum(weight * kept) / np.sum(weight))


def ask_contrast(asker: Asker, scores: Sequence[Scores]) -> list[Frame]:
    setting = asker.setting
    harmonics = min(plan.OFF_HARMONICS, (setting.n_steps - 1) // 2)
    if not setting.two_kinds:
        return [Frame(own, setting.off_weight, np.zeros(setting.n_steps)) for own in scores]
    seen = asker.ask(
        "days off",
        1 + 2 * harmonics,
        Region.BALL,
        [scaled(of_customer.off_contrast, plan.RADIUS_OFF, own, setting.off, harmonics) for own in scores],
        [plan.RADIUS_OFF] * len(scores),
    )
    prior = 0.1 / np.sqrt(np.concatenate([[1.0], 1.0 + harmonic_of(2 * harmonics)]))
    basis = fourier(setting.n_steps, harmonics)
    return [
        Frame(own, setting.off_weight, product(shrunk(one, prior), basis))
        for own, one in zip(scores, seen, strict=True)
    ]
