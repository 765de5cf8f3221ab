"""The process of customers: its size, its course over the day, what they share of it, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.linear import eigh, product
from dp_powerflow.model.history import contributions as of_customer
from dp_powerflow.model.history import plan
from dp_powerflow.model.history.ask_traits import Traits
from dp_powerflow.model.history.asking import Asker, OfCustomer, Seen, scaled, shrunk
from dp_powerflow.model.history.contributions import Frame
from dp_powerflow.model.history.factor import Factor, shared_factor
from dp_powerflow.model.history.numbers import fourier
from dp_powerflow.model.records import Customers
from dp_powerflow.privacy.queries import Region
from dp_powerflow.units import FloatArray


def ask_sizes(
    asker: Asker, frames: Sequence[Frame], traits: Sequence[Traits]
) -> tuple[list[tuple[float, float]], list[FloatArray]]:
    """Mean and spread of the log size of the own process, and the correlations of all traits."""
    count = len(frames)

    def moments(frame: Frame) -> OfCustomer:
        def contribution(days: Customers) -> FloatArray:
            size = of_customer.log_spread(days, frame, plan.CENTRE_SPREAD, plan.MOST_LOG_SPREAD)
            return np.concatenate([size, size * size], axis=1) / plan.RADIUS_SPREAD

        return contribution

    seen = asker.ask(
        "size of the process",
        2,
        Region.BALL,
        [moments(frame) for frame in frames],
        [plan.RADIUS_SPREAD] * count,
    )
    sizes = []
    for one in seen:
        mean = float(np.clip(one.value[0], -plan.MOST_LOG_SPREAD, plan.MOST_LOG_SPREAD))
        square = float(one.value[1])
        variance = float(np.clip(square - mean * mean, 0.01, 0.16))
        sizes.append((mean + plan.CENTRE_SPREAD, float(np.sqrt(variance))))
    rows, columns = np.triu_indices(4, 1)

    def products(frame: Frame, own: Traits, size: tuple[float, float]) -> OfCustomer:
        mean, std = own.mean.copy(), np.maximum(own.std, 1e-3)
        mean[2], std[2] = size

        def contribution(days: Customers) -> FloatArray:
            level = of_customer.traits(days)
            spread = of_customer.log_spread(days, frame, 0.0, 10.0)
            both = np.column_stack([level[:, :2], spread, level[:, 2]])
            away = np.clip((both - mean) / std, -plan.MOST_DEVIATION, plan.MOST_DEVIATION)
            return away[:, rows] * away[:, columns] / plan.RADIUS_CORRELATIONS

        return contribution

    together = asker.ask(
        "correlations of traits",
        6,
        Region.BALL,
        [products(*each) for each in zip(frames, traits, sizes, strict=True)],
        [plan.RADIUS_CORRELATIONS] * count,
    )
    correlations = []
    for one in together:
        matrix = np.eye(4)
        matrix[rows, columns] = np.clip(
            shrunk(one, 0.35), -plan.RADIUS_CORRELATIONS, plan.RADIUS_CORRELATIONS
        )
        matrix[columns, rows] = matrix[rows, columns]
        values, vectors = eigh(matrix)
        matrix = product(vectors * np.maximum(values, 0.05), vectors.T)
        std = np.sqrt(np.diag(matrix))
        matrix = matrix / np.outer(std, std)
        correlations.append((matrix + matrix.T) / 2)
    return sizes, correlations


@dataclass(frozen=True, eq=False)
class OwnProcess:
    """Profile over the day, shared factor, spread of loadings and amplitudes of the ladder."""

    profile: FloatArray
    factor: Factor
    loading_std: float
    amplitudes: FloatArray


def ask_process(asker: Asker, frames: Sequence[Frame]) -> list[OwnProcess]:
    setting, count = asker.setting, len(frames)
    harmonics = min(plan.PROFILE_HARMONICS, (setting.n_steps - 1) // 2)
    seen = asker.ask(
        "profile of the process",
        2 * harmonics,
        Region.BALL,
        [scaled(of_customer.spread_profile, plan.RADIUS_PROFILE, frame, harmonics) for frame in frames],
        [plan.RADIUS_PROFILE] * count,
    )
    profiles = []
    for one in seen:
        profile = np.clip(1.0 + product(shrunk(one, 0.2), fourier(setting.n_steps, harmonics)[1:]), 0.2, 4.0)
        profiles.append(profile / profile.mean())
    factors = _ask_factor(asker, frames)
    loadings = _ask_loadings(asker, frames, factors)
    ladder = setting.ladder
    shared = [factor.at_steps(setting.n_steps) for factor in factors]
    energies = asker.ask(
        "energies of the process",
        len(ladder.spacings),
        Region.ORTHANT,
        [
            scaled(of_customer.process_energies, plan.RADIUS_ENERGIES, frame, own, profile, ladder)
            for frame, own, profile in zip(frames, shared, profiles, strict=True)
        ],
        [plan.RADIUS_ENERGIES] * count,
    )
    found = []
    for index, one in enumerate(energies):
        positive = np.maximum(one.value, 0.0)
        total = float(positive.sum())
        share = positive / total if total > 0 else np.full(positive.size, 1 / positive.size)
        amplitudes = ladder.amplitudes(share, setting.n_days)
        factor = factors[index]
        own = 1.0 - factor.energy
        means = ladder.covariance(amplitudes, setting.n_steps)
        lag = np.arange(1, setting.n_steps)
        daily = float(means[0] + 2 * np.sum((1 - lag / setting.n_steps) * means[1:-1])) / setting.n_steps
        noise = own * daily / max(factor.energy * setting.n_days, 1e-3)
        spread = float(np.sqrt(np.clip(loadings[index] - noise, 0.0, 0.36)))
        found.append(OwnProcess(profiles[index], factor, spread, amplitudes))
    return found


def _ask_factor(asker: Asker, frames: Sequence[Frame]) -> list[Factor]:
    setting = asker.setting
    covariates, days = setting.covariates, setting.n_days
    count = covariates.shape[1]
    explained = [Seen(np.zeros(0), 0.0)] * len(frames)
    if count:

        def regressed(frame: Frame) -> OfCustomer:
            return lambda own: (
                product(of_customer.daily_means(own, frame), covariates) / (days * plan.RADIUS_FACTOR)
            )

        explained = asker.ask(
            "covariates",
            count,
            Region.BALL,
            [regressed(frame) for frame in frames],
            [plan.RADIUS_FACTOR] * len(frames),
        )
    radius = plan.RADIUS_FACTOR * float(np.sqrt(days))
    seen = asker.ask(
        "shared factor",
        days,
        Region.BALL,
        [scaled(of_customer.daily_means, radius, frame) for frame in frames],
        [radius] * len(frames),
    )
    found = []
    for own, one in zip(explained, seen, strict=True):
        of_covariates = shrunk(own, 0.2) if count else own.value
        found.append(shared_factor(one.value, one.noise, covariates, of_covariates))
    return found


def _ask_loadings(asker: Asker, frames: Sequence[Frame], factors: Sequence[Factor]) -> list[float]:
    """Variance of the estimated loadings of every class."""

    def moments(frame: Frame, factor: Factor) -> OfCustomer:
        scale = max(float(np.sum(factor.values * factor.values)), 1e-3)

        def contribution(days: Customers) -> FloatArray:
            loading = product(of_customer.daily_means(days, frame), factor.values) / scale - 1.0
            loading = np.clip(loading, -plan.MOST_LOADING, plan.MOST_LOADING)
            return np.column_stack([loading, loading * loading / 2]) / plan.RADIUS_LOADING

        return contribution

    seen = asker.ask(
        "loadings",
        2,
        Region.BALL,
        [moments(*each) for each in zip(frames, factors, strict=True)],
        [plan.RADIUS_LOADING] * len(frames),
    )
    return [max(float(2 * one.value[1] - one.value[0] * one.value[0]), 0.0) for one in seen]
