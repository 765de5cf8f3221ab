"""The history model: its queries, the law of every class from the answers, and its calibration.

A fit of one class is a row of steps: it asks, sees the noisy average of its customers, and asks the next.
Classes are fitted together, each query asked of all of them for one charge (`estimators.fit_together`). What
a customer adds is a function of that customer, with all its days, and of answers before it; it is divided by
its clip radius, so that every query has the radius one and classes with different radii can be asked
together. `privacy.queries` gives the sensitivities. What follows from the answers is free.

Scores are standardised by construction, so the radii are of order one whatever the loads are; every centre
and every scale that is not is asked for first, coarsely. None of these figures follows from the data.

The law is put together from the answers; its map from scores to load and its ranks are found by simulating
customers of a public key, and the last query corrects what is left. All of it is free.

Reactive load: q = p·tan θ + c·p̄·ξ_i, ξ_i a process on the ladder; angle and process are declared public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, exp1, kernel, log1
from dp_powerflow._bits.linear import eigh, norms, product, standard_normal
from dp_powerflow._bits.normal_pairs import ndtr_each
from dp_powerflow._threads import in_order, slices
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import (
    Ask,
    Cell,
    CustomerChunk,
    Estimator,
    Seen,
    Steps,
    fit_together,
    symmetric_to_vector,
    vector_to_symmetric,
)
from dp_powerflow.model.history import contributions as of_customer
from dp_powerflow.model.history.contributions import BINS, LOWEST, Baseline, Scores, bin_edges, rank_features
from dp_powerflow.model.history.law import (
    HIGHEST_SCORE,
    LOWEST_SCORE,
    SCORES,
    SPREAD,
    HistoryClass,
    HistoryLaw,
    HistoryReactive,
    Individuals,
    score_grid,
)
from dp_powerflow.model.history.numbers import (
    Factor,
    Ladder,
    best_normal,
    fourier,
    harmonic_of,
    interpolate,
    ndtri,
    nonnegative_mean,
    normal_shares,
    shared_factor,
    smoothed,
    unimodal,
)
from dp_powerflow.model.options import FitOptions, HistoryFacts, PublicSpread, ReactiveChoice
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, epsilon_to_rho
from dp_powerflow.privacy.queries import Query, Region
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, FloatArray, IntArray

QUERIES: dict[str, tuple[float, Region]] = {
    "coarse traits": (0.02, Region.BALL),  # centres of log level, peak and base
    "coarse spread of levels": (0.01, Region.ORTHANT),
    "place of levels": (0.07, Region.BALL),  # centre and spread
    "levels": (0.03, Region.ORTHANT),  # histogram
    "load over mean": (0.08, Region.ORTHANT),  # histogram of all readings
    "peaks": (0.03, Region.ORTHANT),  # histogram
    "bases": (0.03, Region.ORTHANT),  # histogram
    "coarse mean day": (0.04, Region.BALL),  # Fourier coefficients
    "size of mean days": (0.01, Region.BALL),
    "mean day": (0.28, Region.BALL),  # Fourier coefficients
    "bands of mean days": (0.08, Region.ORTHANT),  # energies
    "block of mean days": (0.05, Region.PSD),  # second moment of the lowest coefficients
    "days off": (0.05, Region.BALL),  # Fourier coefficients of the contrast
    "size of the process": (0.03, Region.BALL),  # mean and mean square
    "correlations of traits": (0.03, Region.BALL),
    "profile of the process": (0.03, Region.BALL),  # Fourier coefficients of the variance
    "shared factor": (0.12, Region.BALL),  # every day
    "covariates": (0.06, Region.BALL),  # one each
    "loadings": (0.02, Region.BALL),  # mean and mean square
    "energies of the process": (0.06, Region.ORTHANT),  # levels of the ladder
    "ranks": (0.20, Region.BALL),  # functions of rank × functions of the time of day
}
"""Every query: weight in the budget of those that are asked, and the region that gives its sensitivity.

To add one, add its row, ask it by `Setting.ask` in the function of its subject below, and write what a
customer adds in `contributions`. Its integers are published in the order in which queries are asked.
"""

RADIUS_COARSE = 2.6  # at least; half the range of the bounds where that is more
CENTRE_PEAK, CENTRE_BASE = 1.6, -2.0
MOST_SPREAD = 2.0  # of log levels, as the mean distance from their centre
LEVEL_REACH = 1.5  # in coarse spreads
SPREADS = (0.35, 1.2)  # a coarse spread of log levels counts as lying between these
LEVEL_MIDDLE, RADIUS_LEVEL = 0.45, 1.15
LEVEL_BINS, TRAIT_BINS = 12, 8
PEAK_REACH, BASE_REACH = 1.4, 2.2
RADIUS_HISTOGRAM = 0.5
COARSE_COEFFICIENTS, RADIUS_COARSE_DAY = 8, 1.0
USUAL_SIZE, RADIUS_SIZE = 0.4, 2.5
BLOCK = 6
BAND_STARTS = (1, 2, 3, 4, 6, 9, 14, 25)  # harmonics
OFF_HARMONICS, RADIUS_OFF = 3, 0.4
CENTRE_SPREAD, MOST_LOG_SPREAD, RADIUS_SPREAD = -0.35, 0.8, 0.8
RADIUS_CORRELATIONS, MOST_DEVIATION = 2.0, 2.0
PROFILE_HARMONICS, RADIUS_PROFILE = 3, 0.6
RADIUS_FACTOR = 0.5  # times √D: root mean square of a customer's daily means
MOST_LOADING, RADIUS_LOADING = 4.0, 3.0
RADIUS_ENERGIES = 0.5
_MOST_SCORE = 3.3
_LEAST_EIGENVALUE = 1e-5
_LEAST_SHARE = 1e-10  # of the largest eigenvalue: what rounding cannot turn negative
_TRAITS = np.triu_indices(4, 1)


@dataclass(frozen=True, eq=False)
class Setting:
    """PUBLIC. What a fit of histories knows before it asks.

    Parameters
    ----------
    n_steps, n_days
        Of the history.
    rho
        Budget.
    log_bounds
        Declared bounds [log kW, or log of kW per scale].
    off
        (day,) whether the day is a day off.
    covariates
        (day, covariate) public, mean zero and orthonormal over the days.
    """

    n_steps: int
    n_days: int
    rho: float
    log_bounds: tuple[float, float]
    off: BoolArray
    covariates: FloatArray

    def ask(self, name: str, dimension: int, radius: float, of: Callable[[CustomerChunk], FloatArray]) -> Ask:
        """A query with its share of the budget; the answer is an average in the unit of `of`."""
        share = self.rho * self.shares[name]
        query = Query(name, dimension, 1.0, QUERIES[name][1], share, "radius")
        return Ask(query, lambda days: of(days) / radius, radius, by_customer=True)

    @property
    def off_share(self) -> float:
        """Share of days off."""
        return float(np.sum(self.off)) / self.n_days

    @property
    def off_weight(self) -> FloatArray:
        """(day,) weight of the contrast."""
        return np.asarray(self.off - self.off_share, dtype=np.float64)

    @property
    def two_kinds(self) -> bool:
        """Whether there are days off and others."""
        return 0.0 < self.off_share < 1.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of the budget of every query that is asked."""
        left_out = {"covariates"} if not self.covariates.shape[1] else set()
        if not self.two_kinds:
            left_out.add("days off")
        return _shares(left_out)

    @property
    def coefficients(self) -> int:
        """Fourier coefficients of a mean day about its mean."""
        return 2 * ((self.n_steps - 1) // 2)

    @property
    def ladder(self) -> Ladder:
        return Ladder.of(self.n_steps, self.n_days)


def noise_of(name: str, records: float, rho: float) -> float:
    """Standard deviation of the average of a query of radius one, where there are no covariates."""
    return 2.0 / math.sqrt(2 * _shares({"covariates"})[name] * rho) / records


def _shares(left_out: set[str]) -> dict[str, float]:
    """Share of the budget of every query but those left out."""
    asked = {name: share for name, (share, _) in QUERIES.items() if name not in left_out}
    whole = sum(asked.values())
    return {name: share / whole for name, share in asked.items()}


def likely(seen: Seen, prior_std: FloatArray | float) -> FloatArray:
    """Posterior mean around zero."""
    prior = np.multiply(prior_std, prior_std)  # a power of one number is not the same on every processor
    result: FloatArray = seen.value * (prior / (prior + seen.variance))
    return result


def positive(matrix: FloatArray) -> FloatArray:
    """Nearest symmetric matrix that has a Cholesky factor, however large noise has made it."""
    values, vectors = eigh((matrix + matrix.T) / 2)
    least = max(_LEAST_EIGENVALUE, _LEAST_SHARE * float(np.max(np.abs(values))))
    found = product(vectors * np.maximum(values, least), vectors.T)
    return (found + found.T) / 2


Fields = dict[str, Any]
"""Some fields of a `HistoryLaw` by name."""


def ask_traits(setting: Setting) -> Steps[Fields]:
    """Coarse centres first; then levels, peaks and bases around them, each as a histogram."""
    low, high = setting.log_bounds
    half = (high - low) / 2
    centre = np.array([(low + high) / 2, CENTRE_PEAK, CENTRE_BASE])
    seen = yield setting.ask(
        "coarse traits", 3, max(half, RADIUS_COARSE), lambda days: of_customer.traits(days) - centre
    )
    coarse = likely(seen, np.array([half / 2, 0.6, 0.8])) + centre
    level, most = float(np.clip(coarse[0], low, high)), min(MOST_SPREAD, 2 * half)

    def distance(days: CustomerChunk) -> FloatArray:
        return np.minimum(np.abs(of_customer.log_level(days) - level), most)[:, None]

    seen = yield setting.ask("coarse spread of levels", 1, most, distance)
    reach = LEVEL_REACH * float(np.clip(1.25 * seen.value[0], *SPREADS))

    def place(days: CustomerChunk) -> FloatArray:
        at = np.clip((of_customer.log_level(days) - level) / reach, -1.0, 1.0)
        return np.column_stack([at, np.abs(at) - LEVEL_MIDDLE])

    seen = yield setting.ask("place of levels", 2, RADIUS_LEVEL, place)
    away = likely(seen, np.array([0.6, 0.3]))
    at, size = _unclipped(float(away[0]), float(away[1]) + LEVEL_MIDDLE)
    normal = level + reach * at, reach * size

    edges = normal[0] + normal[1] * np.linspace(-3.0, 3.0, LEVEL_BINS + 1)
    counted = yield setting.ask(
        "levels", LEVEL_BINS, 1.0, lambda days: of_customer.bin_of(of_customer.log_level(days), edges)
    )
    peak = yield from _ask_normal(setting, "peaks", 1, float(np.clip(coarse[1], 0.5, 3.0)), PEAK_REACH)
    base = yield from _ask_normal(setting, "bases", 2, float(np.clip(coarse[2], -3.5, -0.2)), BASE_REACH)

    prior = normal_shares(edges, *normal)
    usual = 0.5 * prior + 0.002  # shares of the normal law are right within a half
    usual = usual * usual
    trust = usual / (usual + counted.variance)
    shares = np.maximum(prior + trust * (counted.value - prior), 0.0)
    whole = float(shares.sum())
    shares = shares / whole if whole > 0.0 else prior
    middle = (edges[1:] + edges[:-1]) / 2
    mean = float(np.sum(shares * middle))
    std = float(np.sqrt(np.sum(shares * (middle - mean) ** 2)))
    means, stds = np.array([(mean, std), peak, (0.0, 0.0), base]).T
    return {
        "level_edges": edges,
        "level_shares": shares,
        "trait_mean": means.copy(),
        "trait_std": stds.copy(),
    }


def _ask_normal(
    setting: Setting, name: str, column: int, centre: float, reach: float
) -> Steps[tuple[float, float]]:
    """Mean and standard deviation of a trait, from a histogram around a coarse centre."""
    edges = centre + reach * np.linspace(-1.0, 1.0, TRAIT_BINS + 1)
    seen = yield setting.ask(
        name, TRAIT_BINS, 1.0, lambda days: of_customer.bin_of(of_customer.traits(days)[:, column], edges)
    )
    mean, std = best_normal(seen.value, edges, seen.noise, centre, reach / 2.5)
    return mean, std


@kernel
def _unclipped(place: float, size: float) -> tuple[float, float]:
    """Mean and spread of the normal law that, cut to ±1, has this mean and this mean size."""
    best, at, width = np.inf, 0.0, 0.5
    for i in range(81):
        mean = (i - 40) / 40
        for j in range(65):
            std = exp1(-2.5 + 0.05 * j)
            first, absolute, whole = 0.0, 0.0, 0.0
            for k in range(81):
                x = (k - 40) / 10
                weight = exp1(-x * x / 2)
                value = min(max(mean + std * x, -1.0), 1.0)
                first += weight * value
                absolute += weight * abs(value)
                whole += weight
            off, gap = first / whole - place, absolute / whole - size
            if off * off + gap * gap < best:
                best, at, width = off * off + gap * gap, mean, std
    return at, width


def ask_marginal(setting: Setting) -> Steps[tuple[FloatArray, Scores]]:
    """Histogram of load over mean (1 + bins,), and the map to scores."""
    low = setting.log_bounds[0]
    seen = yield setting.ask(
        "load over mean", 1 + BINS, RADIUS_HISTOGRAM, lambda days: of_customer.histogram(days, low)
    )
    shares = _cleaned(seen)
    edges = np.clip(ndtri(np.clip(np.cumsum(shares), 1e-4, 1 - 1e-4)), -_MOST_SCORE, _MOST_SCORE)
    at_floor = ndtri(np.array([max(float(shares[0]) / 2, 1e-4)]))[0]
    return shares, Scores(edges, float(np.clip(at_floor, -_MOST_SCORE, _MOST_SCORE)), low)


def _cleaned(seen: Seen) -> FloatArray:
    """A smooth histogram with one top, tilted so that loads over their mean have the mean one."""
    edges = of_customer.bin_edges()
    width = edges[1] - edges[0]
    atom, bins = max(float(seen.value[0]), 0.0), unimodal(smoothed(seen.value[1:], seen.noise, 0.03, 1.9))
    if atom < seen.noise:
        atom *= 0.0004 / (0.0004 + seen.noise * seen.noise)
    shares = np.concatenate([[atom], np.maximum(bins, 0.0) + 1e-6])
    shares /= shares.sum()
    middle = exp((edges[1:] + edges[:-1]) / 2) * ((exp1(width / 2) - exp1(-width / 2)) / width)
    load = np.concatenate([[exp1(LOWEST)], middle])
    low, high = -0.6, 3.0
    tilted = shares
    for _ in range(50):
        tilt = (low + high) / 2
        tilted = shares * exp(-tilt * load)
        tilted = tilted / tilted.sum()
        if float(np.sum(tilted * load)) > 1.0:
            low = tilt
        else:
            high = tilt
    return tilted


def ask_mean_days(setting: Setting, scores: Scores) -> Steps[tuple[FloatArray, FloatArray, FloatArray]]:
    """A coarse mean day, how far customers are from it, then the fine one, its bands and its lowest block.

    Gives the mean day, and the covariance of the lowest coefficients and the variance of the others, as the
    averages of customers over their days have them.
    """
    n_steps, n_all = setting.n_steps, setting.coefficients
    basis, n_coarse = fourier(n_steps, n_all // 2)[1:], min(COARSE_COEFFICIENTS, n_all)

    def coefficients(count: int) -> Callable[[CustomerChunk], FloatArray]:
        known = mean
        return lambda days: of_customer.shape_coefficients(days, scores, known, count)

    mean = np.zeros(n_steps)
    name = "coarse mean day"
    seen = yield setting.ask(name, n_coarse, RADIUS_COARSE_DAY, coefficients(n_coarse))
    mean = product(likely(seen, 0.5 / harmonic_of(n_coarse)), basis[:n_coarse])
    sizes = partial(of_customer.log_shape_size, known=scores, released=mean, usual=USUAL_SIZE)
    seen = yield setting.ask("size of mean days", 1, RADIUS_SIZE, sizes)
    size = USUAL_SIZE * exp1(float(np.clip(seen.value[0], -2.5, 1.0)))
    radius = float(np.clip(size, 0.02, 1.5))
    seen = yield setting.ask("mean day", n_all, radius, coefficients(n_all))
    kept = _kept_by_clip(size, radius)
    mean = mean + product(_octaves(Seen(seen.value / kept, seen.noise / kept)), basis)

    bands, block = _bands(n_all), min(BLOCK, n_all)
    every, lowest = coefficients(n_all), coefficients(block)

    def energies(days: CustomerChunk) -> FloatArray:
        square = every(days) ** 2
        # Contiguous by customer: the order of a sum must not depend on how many customers there are.
        return np.stack([np.ascontiguousarray(square[:, band]).sum(axis=1) for band in bands], axis=1)

    def moment(days: CustomerChunk) -> FloatArray:
        low = lowest(days)
        return symmetric_to_vector(low[:, :, None] * low[:, None, :])

    radius = float(np.clip(2.25 * size * size, 0.001, 2.0))
    energy = yield setting.ask("bands of mean days", len(bands), radius, energies)
    seen = yield setting.ask("block of mean days", block * (block + 1) // 2, radius, moment)
    variance = np.empty(n_all)
    for band, value in zip(bands, nonnegative_mean(energy.value, energy.noise).tolist(), strict=True):
        variance[band] = value / band.size
    off = vector_to_symmetric(seen.value, block)
    np.fill_diagonal(off, 0.0)
    noise = block * (block - 1) / 2 * seen.noise * seen.noise
    off *= max(0.0, 1.0 - noise / max(float(np.sum(off * off)), 1e-12))
    return mean, positive(np.diag(variance[:block]) + off), variance[block:]


def _bands(count: int) -> list[IntArray]:
    """Coefficients of every band of harmonics."""
    harmonic = harmonic_of(count)
    ends = (*BAND_STARTS[1:], count + 1)
    found = [np.flatnonzero((harmonic >= a) & (harmonic < b)) for a, b in zip(BAND_STARTS, ends, strict=True)]
    return [band for band in found if band.size]


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


def ask_contrast(setting: Setting, scores: Scores) -> Steps[Baseline]:
    """What days off add to the scores."""
    harmonics = min(OFF_HARMONICS, (setting.n_steps - 1) // 2)
    if not setting.two_kinds:
        return Baseline(scores, setting.off_weight, np.zeros(setting.n_steps))
    contrasts = partial(of_customer.off_contrast, known=scores, off=setting.off, harmonics=harmonics)
    seen = yield setting.ask("days off", 1 + 2 * harmonics, RADIUS_OFF, contrasts)
    prior = 0.1 / np.sqrt(np.concatenate([[1.0], 1.0 + harmonic_of(2 * harmonics)]))
    contrast = product(likely(seen, prior), fourier(setting.n_steps, harmonics))
    return Baseline(scores, setting.off_weight, contrast)


def ask_sizes(setting: Setting, frame: Baseline, traits: Fields) -> Steps[Fields]:
    """All traits with mean and spread of the log size of the own process, and with their correlations."""

    def moments(days: CustomerChunk) -> FloatArray:
        size = of_customer.log_spread(days, frame, CENTRE_SPREAD, MOST_LOG_SPREAD)
        return np.concatenate([size, size * size], axis=1)

    seen = yield setting.ask("size of the process", 2, RADIUS_SPREAD, moments)
    centre = float(np.clip(seen.value[0], -MOST_LOG_SPREAD, MOST_LOG_SPREAD))
    variance = float(np.clip(float(seen.value[1]) - centre * centre, 0.01, 0.16))
    mean: FloatArray = traits["trait_mean"].copy()
    spread: FloatArray = traits["trait_std"].copy()
    mean[SPREAD], spread[SPREAD] = centre + CENTRE_SPREAD, float(np.sqrt(variance))
    std = np.maximum(spread, 1e-3)
    rows, columns = _TRAITS

    def products(days: CustomerChunk) -> FloatArray:
        level, size = of_customer.traits(days), of_customer.log_spread(days, frame, 0.0, 10.0)
        both = np.column_stack([level[:, :2], size, level[:, 2]])
        away = np.clip((both - mean) / std, -MOST_DEVIATION, MOST_DEVIATION)
        return away[:, rows] * away[:, columns]

    seen = yield setting.ask("correlations of traits", 6, RADIUS_CORRELATIONS, products)
    matrix = np.eye(4)
    matrix[rows, columns] = np.clip(likely(seen, 0.35), -RADIUS_CORRELATIONS, RADIUS_CORRELATIONS)
    matrix[columns, rows] = matrix[rows, columns]
    values, vectors = eigh(matrix)
    matrix = product(vectors * np.maximum(values, 0.05), vectors.T)
    own = np.sqrt(np.diag(matrix))
    matrix = matrix / np.outer(own, own)
    return {"trait_mean": mean, "trait_std": spread, "trait_correlation": (matrix + matrix.T) / 2}


def ask_process(setting: Setting, frame: Baseline) -> Steps[Fields]:
    """How the own process varies over the day, what customers share, and what is left at every spacing."""
    n_steps, n_days, ladder = setting.n_steps, setting.n_days, setting.ladder
    harmonics = min(PROFILE_HARMONICS, (n_steps - 1) // 2)
    profiles = partial(of_customer.spread_profile, frame=frame, harmonics=harmonics)
    seen = yield setting.ask("profile of the process", 2 * harmonics, RADIUS_PROFILE, profiles)
    profile = np.clip(1.0 + product(likely(seen, 0.2), fourier(n_steps, harmonics)[1:]), 0.2, 4.0)
    profile = profile / profile.mean()
    factor = yield from _ask_factor(setting, frame)
    loadings = yield from _ask_loadings(setting, frame, factor)
    known = {"frame": frame, "shared": factor.at_steps(n_steps), "profile": profile, "ladder": ladder}
    own_energies: Any = partial(of_customer.process_energies, **known)
    seen = yield setting.ask("energies of the process", len(ladder.spacings), RADIUS_ENERGIES, own_energies)
    energies = np.maximum(seen.value, 0.0)
    total = float(energies.sum())
    share = energies / total if total > 0 else np.full(energies.size, 1 / energies.size)
    amplitudes = ladder.amplitudes(share, n_days)
    own = 1.0 - factor.energy
    means = ladder.covariance(amplitudes, n_steps)
    lag = np.arange(1, n_steps)
    daily = float(means[0] + 2 * np.sum((1 - lag / n_steps) * means[1:-1])) / n_steps
    noise = own * daily / max(factor.energy * n_days, 1e-3)
    spread = float(np.sqrt(np.clip(loadings - noise, 0.0, 0.36)))
    return {
        "profile": profile,
        "factor": factor.values,
        "factor_variance": factor.variance,
        "factor_memory": factor.memory,
        "covariates": factor.covariates,
        "loading_std": spread,
        "amplitudes": amplitudes,
    }


def _ask_factor(setting: Setting, frame: Baseline) -> Steps[Factor]:
    covariates, n_days = setting.covariates, setting.n_days
    explained, count = np.zeros(0), covariates.shape[1]

    def daily(days: CustomerChunk) -> FloatArray:
        return of_customer.process_of(days, frame).daily

    if count:
        seen = yield setting.ask(
            "covariates", count, RADIUS_FACTOR, lambda days: product(daily(days), covariates) / n_days
        )
        explained = likely(seen, 0.2)
    seen = yield setting.ask("shared factor", n_days, RADIUS_FACTOR * float(np.sqrt(n_days)), daily)
    return shared_factor(seen.value, seen.noise, covariates, explained)


def _ask_loadings(setting: Setting, frame: Baseline, factor: Factor) -> Steps[float]:
    """Variance of the estimated loadings."""
    scale = max(float(np.sum(factor.values * factor.values)), 1e-3)

    def moments(days: CustomerChunk) -> FloatArray:
        loading = product(of_customer.process_of(days, frame).daily, factor.values) / scale - 1.0
        loading = np.clip(loading, -MOST_LOADING, MOST_LOADING)
        return np.column_stack([loading, loading * loading / 2])

    seen = yield setting.ask("loadings", 2, RADIUS_LOADING, moments)
    return max(float(2 * seen.value[1] - seen.value[0] * seen.value[0]), 0.0)


# --- the law ----------------------------------------------------------------------------------------------
CUSTOMERS = 512
"""Customers by whom a law is calibrated."""
DAYS = 24
"""Days of each."""
TIMES = 48
"""Most times of day with their own tables of loads."""
PROBABILITIES = np.concatenate([[0.0005], (np.arange(65) + 0.5) / 65, [0.9995]])
"""At which loads of a time of day are tabulated."""
RANK_FUNCTIONS, TIME_HARMONICS = 4, 2
"""Cosines in rank and harmonics in time of the correction by ranks."""
MOST_KW = 1e100
"""As the bound of a history model: sums of loads stay finite."""
FEWEST_DAYS = 14
"""Days of meters: two weeks, so that every kind of day is there twice."""
FEWEST_STEPS = 8
"""Steps of a day."""
_PRIOR_RANKS = 0.06  # of the coefficients of the density of ranks: the law is within a tenth before it
_POINTS = 1000
_ROUNDS = 6
_NEVER = -9.0  # log of load over mean of the atom at zero
_LEAST_DENSITY = 0.05
_KEY = StreamKey.from_insecure_seed(19)


def times_of_day(n_steps: int) -> int:
    """How many times of day have tables: the most that divide the steps."""
    return max(count for count in range(1, min(n_steps, TIMES) + 1) if n_steps % count == 0)


def some_customers(law: HistoryLaw, count: int = CUSTOMERS) -> Individuals:
    """Customers drawn by a public key."""
    return Individuals.draw(law, count, _KEY)


def with_score_map(law: HistoryLaw, shares: FloatArray) -> HistoryLaw:
    """The law with the map that gives the released histogram (1 + bins,) of loads over mean."""
    people, grid = some_customers(law), score_grid()
    std = people.score_std(law)
    score_map = _quantile(shares, _normal_below(grid))
    offsets = np.zeros(len(people.shape))
    for _ in range(_ROUNDS):
        offsets = people.offsets(law, score_map, offsets)
        mean = people.shape + offsets[:, None]
        score_map = _quantile(shares, _pooled_below(grid, mean, std))
    return replace(law, score_map=score_map)


def _normal_below(grid: FloatArray) -> FloatArray:
    return _pooled_below(grid, np.zeros((1, 1)), np.ones((1, 1)))


def _pooled_below(grid: FloatArray, mean: FloatArray, std: FloatArray) -> FloatArray:
    """(point,) share of all scores below every point of the grid."""
    below = np.zeros(grid.size)

    # Every point is one sum, so it does not matter which thread adds it up. Long rows make better vectors.
    for _ in in_order(lambda part: _add_below(grid[part], mean, std, below[part]), slices(grid.size)):
        pass
    return below


@kernel
def _add_below(grid: FloatArray, mean: FloatArray, std: FloatArray, out: FloatArray) -> None:
    stride = max(1, mean.shape[1] // 48)
    place, below = np.empty(grid.size), np.empty(grid.size)
    count = 0
    for i in range(mean.shape[0]):
        for t in range(0, mean.shape[1], stride):
            for k in range(grid.size):
                place[k] = (grid[k] - mean[i, t]) / std[i, t]
            ndtr_each(place, below)
            for k in range(grid.size):
                out[k] += below[k]
            count += 1
    for k in range(grid.size):
        out[k] = out[k] / count


def _quantile(shares: FloatArray, below: FloatArray) -> FloatArray:
    """Log of load over mean at probabilities, by the histogram; far below everything in the atom."""
    cumulative = np.cumsum(shares)
    found = interpolate(below, cumulative, bin_edges())
    found[below < cumulative[0]] = _NEVER
    return found


@dataclass(frozen=True, eq=False)
class Ranks:
    """How ranks of loads under a law are asked for.

    Parameters
    ----------
    tables
        (time of day, quantile) log loads of the law.
    basis
        (function, point) of rank.
    times
        (function, step) of time.
    own
        (customer, feature) of the law's own customers.
    radius
        Clip radius of a real customer's features.
    """

    tables: FloatArray
    basis: FloatArray
    times: FloatArray
    own: FloatArray
    radius: float

    def features(self, log_load: FloatArray) -> FloatArray:
        """(customer, feature) over the radius."""
        return rank_features(log_load, self.tables, PROBABILITIES, self.basis, self.times) / self.radius

    @property
    def kept(self) -> float:
        """Share of the length of features that the clip leaves, of the law's own customers."""
        return float(np.mean(np.minimum(1.0, self.radius / np.maximum(norms(self.own), 1e-12))))

    @property
    def clipped_mean(self) -> FloatArray:
        """(feature,) over the radius, of the law's own customers, clipped as real ones are."""
        size = np.maximum(norms(self.own) / self.radius, 1.0)
        return np.asarray(np.mean(self.own / self.radius / size[:, None], axis=0))

    def corrected(self, density: FloatArray) -> FloatArray:
        """Tables of the loads that real ones have at the same probability.

        Parameters
        ----------
        density
            (function of rank, function of time) coefficients of the density of real ranks, less one.
        """
        at = np.arange(_POINTS + 1) / _POINTS
        bins, n_steps = len(self.tables), self.times.shape[1]
        times = self.times.reshape(len(self.times), bins, n_steps // bins).mean(axis=2)
        found = np.empty_like(self.tables)
        for k in range(bins):
            height = 1.0 + product(self.basis.T, product(density, times[:, k]))
            height = np.maximum(height, _LEAST_DENSITY)
            below = np.concatenate([[0.0], np.cumsum((height[1:] + height[:-1]) / 2)])
            rank = interpolate(PROBABILITIES, below / below[-1], at)
            found[k] = interpolate(rank, PROBABILITIES, self.tables[k])
        return found


def ranks_of(law: HistoryLaw, off: FloatArray, log_bounds: tuple[float, float]) -> Ranks:
    """Tables and features of a law on some days of its history; `off` (day,) weighs the contrast."""
    people = some_customers(law)
    chosen = np.unique(np.arange(DAYS) * (law.n_days - 1) // max(DAYS - 1, 1))
    log_load = _log_loads(law, people, off[chosen], law.factor[chosen], log_bounds)
    bins = times_of_day(law.n_steps)
    by_time = log_load.reshape(len(log_load), chosen.size, bins, -1).transpose(2, 0, 1, 3).reshape(bins, -1)
    tables = _quantiles(np.sort(by_time, axis=1))
    at = np.arange(_POINTS + 1)
    basis = np.array([np.sqrt(2.0) * cos(np.pi * (k + 1) * at / _POINTS) for k in range(RANK_FUNCTIONS)])
    times = fourier(law.n_steps, TIME_HARMONICS)
    own = rank_features(log_load, tables, PROBABILITIES, basis, times)
    radius = float(np.sort(norms(own))[len(own) // 2])
    return Ranks(tables, basis, times, own, max(radius, 1e-3))


def _quantiles(ordered: FloatArray) -> FloatArray:
    place = PROBABILITIES * (ordered.shape[1] - 1)
    lower = place.astype(np.int64)
    share = place - lower
    found: FloatArray = ordered[:, lower] + share * (ordered[:, lower + 1] - ordered[:, lower])
    return found


def mean_of(quantiles: FloatArray) -> float:
    """Mean load [kW] of tables (time of day, quantile) of log loads."""
    edges = np.concatenate([[0.0], (PROBABILITIES[1:] + PROBABILITIES[:-1]) / 2, [1.0]])
    return float(np.mean(np.sum(exp(quantiles) * np.diff(edges), axis=1)))


def _log_loads(
    law: HistoryLaw, people: Individuals, off: FloatArray, factor: FloatArray, log_bounds: tuple[float, float]
) -> FloatArray:
    """(customer, day, step) log loads on independent days: the memory of the process plays no part."""
    count, days = len(people.shape), len(off)
    offsets = people.offsets(law, law.score_map)
    maps = people.maps(law, offsets) + people.traits[:, :1]
    noise = standard_normal(_KEY.stream("days").generator, (count, days, law.n_steps))
    own = people.spread * people.own(law)
    scores = (people.shape + offsets[:, None])[:, None, :] + off[:, None] * law.contrast
    scores = scores + (people.spread * people.loading)[:, None, None] * factor[:, None]
    scores += own[:, None, None] * np.sqrt(law.profile) * noise
    _through(maps, scores.reshape(count, -1))
    return np.clip(scores, *log_bounds)


@kernel
def _through(maps: FloatArray, scores: FloatArray) -> None:
    """Scores (customer, value) → log loads, in place."""
    per_unit = (SCORES - 1) / (HIGHEST_SCORE - LOWEST_SCORE)
    for i in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            place = min(max(0.0, (scores[i, k] - LOWEST_SCORE) * per_unit), SCORES - 1.000001)  # nan: 0
            lower = int(place)
            low = maps[i, lower]
            scores[i, k] = low + (place - lower) * (maps[i, lower + 1] - low)


def _left_in_averages(setting: Setting, amplitudes: FloatArray) -> FloatArray:
    """(coefficient,) variance of the Fourier coefficients of the process averaged over all days."""
    n_steps, n_days = setting.n_steps, setting.n_days
    covariance = setting.ladder.covariance(amplitudes, n_steps * n_days)
    day = np.arange(1, n_days)
    weight = (n_days - day) / (n_days * n_days)
    lag = np.arange(n_steps)[:, None]
    later, earlier = covariance[day * n_steps + lag], covariance[day * n_steps - lag]
    average = covariance[:n_steps] / n_days + np.sum(weight * (later + earlier), axis=1)
    toeplitz = average[np.abs(np.subtract.outer(np.arange(n_steps), np.arange(n_steps)))]
    basis = fourier(n_steps, setting.coefficients // 2)[1:]
    result: FloatArray = np.sum(product(basis, toeplitz) * basis, axis=1) / (n_steps * n_steps)
    return result


def _history(setting: Setting, *, lists_only: bool) -> Steps[HistoryLaw]:
    """The law of one class.

    A plan wants no law, and calibration takes longer than all of its queries; it is left out there.
    """
    found = yield from ask_traits(setting)
    shares, scores = yield from ask_marginal(setting)
    mean_day, lowest, others = yield from ask_mean_days(setting, scores)
    frame = yield from ask_contrast(setting, scores)
    found |= yield from ask_sizes(setting, frame, found)
    found |= yield from ask_process(setting, frame)
    # A customer's mean over its days is not its mean day: the process is left in the averages.
    spread = found["trait_std"][SPREAD]
    left = _left_in_averages(setting, found["amplitudes"])
    left = left * exp1(2 * found["trait_mean"][SPREAD] + 2 * spread * spread)
    law = HistoryLaw(
        **found,
        mean_day=mean_day,
        shape_block=positive(lowest - np.diag(left[: len(lowest)])),
        shape_variance=np.maximum(others - left[len(lowest) :], 1e-7),
        contrast=frame.contrast,
        off_share=setting.off_share,
        score_map=np.zeros(SCORES),
        quantiles=np.zeros((times_of_day(setting.n_steps), 1)),
        corrected=np.zeros((times_of_day(setting.n_steps), 1)),
    )
    if not lists_only:
        law = with_score_map(law, shares)
        ranks = ranks_of(law, setting.off_weight, setting.log_bounds)
    # The last correction: where real loads lie among the loads of the law, by time of day.
    times = 1 + 2 * TIME_HARMONICS
    seen = yield setting.ask("ranks", RANK_FUNCTIONS * times, 1.0, lambda days: ranks.features(days.log_load))
    if lists_only:
        return law
    scale = ranks.radius / ranks.kept
    density = Seen((seen.value - ranks.clipped_mean) * scale, seen.noise * scale)
    order = np.arange(RANK_FUNCTIONS)[:, None] + 1.0
    harmonic = np.concatenate([[1.0], 1.0 + harmonic_of(times - 1)])
    height = likely(density, (_PRIOR_RANKS / np.sqrt(order * harmonic)).reshape(-1))
    corrected = ranks.corrected(height.reshape(RANK_FUNCTIONS, times))
    # Levels were asked for with less noise than ranks leave in the mean load.
    corrected = corrected + log1(mean_of(ranks.tables) / mean_of(corrected))
    return replace(law, quantiles=ranks.tables, corrected=corrected)


def _reactive(law: HistoryLaw, name: str, facts: HistoryFacts, choice: ReactiveChoice) -> HistoryReactive:
    """Reactive load of a class: declared angle, with or without a declared process."""
    if not isinstance(choice, PublicSpread):
        return HistoryReactive(choice.tan_theta(name))
    lag = np.arange(facts.n_days * facts.n_steps + 1) * facts.step_minutes
    covariance = (1 - choice.white) * exp(-lag / choice.correlation_minutes)
    covariance[0] += choice.white
    ladder = law.ladder
    amplitudes = ladder.amplitudes(ladder.energies_of(covariance, facts.n_days), facts.n_days)
    return HistoryReactive(choice.tan_theta(name), choice.spread, mean_of(law.corrected), amplitudes)


@dataclass(frozen=True)
class History(Estimator):
    """The estimator of whole histories: every customer is one record with all its days."""

    name: ClassVar = "history"
    whole: ClassVar = True

    def check(self, facts: HistoryFacts, options: FitOptions, unit: PrivacyUnit) -> None:
        """Refuse what no history model can be fitted to; all of it is public, and nothing is asked before.

        Raises
        ------
        PrivacyError
            Too few days, too long steps, a unit of single days, or facts that do not fit the history.
        """
        if unit is not PrivacyUnit.LOAD_POINT:
            raise PrivacyError(
                "a history model needs the unit load-point: it is about customers with all their days; use "
                "the structured estimator for single days"
            )
        if facts.n_days < FEWEST_DAYS or facts.n_steps < FEWEST_STEPS:
            raise PrivacyError(
                f"a history model needs at least {FEWEST_DAYS} days of at least {FEWEST_STEPS} steps; give "
                "more meter data, or use the structured estimator"
            )
        if facts.days is None:
            raise PrivacyError("a history model has one law for all days, by the facts of each; give them")
        classes, choice = facts.load_points_of_class, options.classes
        if len(facts.days.dates) != facts.n_days or any(count < 1 for _, count in classes):
            raise PrivacyError(
                "a history model needs facts of exactly the days of the history, and customers in every class"
            )
        names = choice.names if isinstance(choice, PrivateClasses) else tuple(name for name, _ in classes)
        low, high = options.widest(names)
        if low < 1 / MOST_KW or high > MOST_KW:
            raise PrivacyError(
                f"a history model needs load bounds between {1 / MOST_KW:g} and {MOST_KW:g} kW; declare "
                "others"
            )

    def classes(self, cell: Cell) -> list[HistoryClass]:
        """Asks and assembles; what is nearly all noise is noted."""
        facts, session, days = cell.facts, cell.session, cell.facts.days
        assert days is not None  # see `check`
        off = np.array(days.off)
        setting = Setting(facts.n_steps, facts.n_days, cell.rho, cell.log_bounds, off, days.orthonormal)
        large = [
            f"the {error.what} by {100 * error.error:.0f} %"
            for error in errors_of_class(cell.records, setting.n_days, setting.rho)
            if error.too_large
        ]
        if large:
            cell.notes.append(
                f"{cell.records:.0f} customers of {', '.join(cell.names)} are too few for this epsilon: "
                f"noise alone puts off {', '.join(large)}; raise epsilon or pool classes"
            )
        fits = [_history(setting, lists_only=session.lists_only) for _ in cell.groups]
        laws = fit_together(fits, cell.groups, session)
        if session.lists_only:
            return []
        return [
            HistoryClass(name, weight, own, law, _reactive(law, name, facts, cell.options.reactive))
            for name, weight, own, law in zip(cell.names, cell.weights, cell.margins, laws, strict=True)
        ]


@dataclass(frozen=True)
class PredictedError:
    """What noise will do to a figure, by public numbers.

    Attributes
    ----------
    what : the figure.
    error : root mean square of what noise adds, relative to the figure or its usual size; the largest of all
        spreads.
    usual : error from which on the model is of little use.
    between : where the error of eight in ten fits will lie, by fits to public stand-ins, however their levels
        spread; None of what no fit was made for.
    by_spread : root mean square of the whole error, for every spread of the levels of stand-ins.
    """

    what: str
    error: float
    usual: float
    between: tuple[float, float] | None = None
    by_spread: tuple[float, ...] = ()

    @property
    def too_large(self) -> bool:
        return self.error >= self.usual


_USUAL_FACTOR = 0.2  # size of the shared factor
_USUAL_DAY = 0.2  # size of the mean day of all customers


def errors_of_class(records: float, n_days: int, rho: float) -> tuple[PredictedError, ...]:
    """Mean day and shared factor of a class with this many customers, by the noise of their queries."""
    day = USUAL_SIZE * noise_of("mean day", records, rho) * math.sqrt(2 * 8)
    factor = RADIUS_FACTOR * math.sqrt(n_days) * noise_of("shared factor", records, rho)
    return (
        PredictedError("shape of the mean day", day / _USUAL_DAY, 0.5),
        PredictedError("shared factor of a day", factor / _USUAL_FACTOR, 1.5),
    )


def predicted_errors(facts: HistoryFacts, options: FitOptions, budget: Budget) -> tuple[PredictedError, ...]:
    """Of mean day and shared factor of the class with the fewest customers, before anything is spent."""
    rho = epsilon_to_rho(budget.epsilon, budget.delta)
    records = float(min(count for _, count in facts.load_points_of_class))
    if isinstance(options.classes, PrivateClasses):
        rho *= 1 - options.classes.share
        records /= options.classes.n_classes
    return errors_of_class(records, facts.n_days, rho)
