"""The queries of the history model in their order, with their public constants and what each asks.

A fit of one class is a row of steps: it asks, sees the noisy average of its customers, and asks the next.
Classes are fitted together, each query asked of all of them for one charge (`estimators.fit_together`). What
a customer adds is a function of that customer, with all its days, and of answers before it; it is divided by
its clip radius, so that every query has the radius one and classes with different radii can be asked
together. Sensitivities are those of `privacy.queries`. Whatever is made of the answers is free.

Scores are standardised by construction, so the radii are of order one whatever the loads are; every centre
and every scale that is not is asked for first, coarsely. None of these figures follows from the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1, kernel
from dp_powerflow._bits.linear import eigh, product
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import (
    Ask,
    CustomerChunk,
    Seen,
    Steps,
    symmetric_to_vector,
    vector_to_symmetric,
)
from dp_powerflow.model.history import contributions as of_customer
from dp_powerflow.model.history.contributions import BINS, LOWEST, Baseline, Scores
from dp_powerflow.model.history.numbers import (
    Factor,
    Ladder,
    best_normal,
    fourier,
    harmonic_of,
    ndtri,
    nonnegative_mean,
    normal_shares,
    shared_factor,
    smoothed,
    unimodal,
)
from dp_powerflow.privacy.queries import Query, Region
from dp_powerflow.units import BoolArray, FloatArray, IntArray

SHARES = {
    "coarse traits": 0.02,
    "coarse spread of levels": 0.01,
    "place of levels": 0.07,
    "levels": 0.03,
    "load over mean": 0.08,
    "peaks": 0.03,
    "bases": 0.03,
    "coarse mean day": 0.04,
    "size of mean days": 0.01,
    "mean day": 0.28,
    "bands of mean days": 0.08,
    "block of mean days": 0.05,
    "days off": 0.05,
    "size of the process": 0.03,
    "correlations of traits": 0.03,
    "profile of the process": 0.03,
    "shared factor": 0.12,
    "covariates": 0.06,
    "loadings": 0.02,
    "energies of the process": 0.06,
    "ranks": 0.20,
}
"""Weights in the budget of those queries that are asked."""

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

    def __post_init__(self) -> None:
        if not len(self.off) == len(self.covariates) == self.n_days:
            raise PrivacyError("there are facts of more or fewer days than the history has; make them anew")

    def ask(
        self,
        name: str,
        dimension: int,
        region: Region,
        radius: float,
        of: Callable[[CustomerChunk], FloatArray],
    ) -> Ask:
        """A query with its share of the budget; the answer is an average in the unit of `of`."""
        query = Query(name, dimension, 1.0, region, self.rho * self.shares[name], "radius")
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
        asked = {name: share for name, share in SHARES.items() if name not in left_out}
        whole = sum(asked.values())
        return {name: share / whole for name, share in asked.items()}

    @property
    def coefficients(self) -> int:
        """Fourier coefficients of a mean day about its mean."""
        return 2 * ((self.n_steps - 1) // 2)

    @property
    def ladder(self) -> Ladder:
        return Ladder.of(self.n_steps, self.n_days)


def noise_of(name: str, records: float, rho: float) -> float:
    """Standard deviation of the average of a query of radius one, where there are no covariates."""
    share = SHARES[name] / sum(weight for query, weight in SHARES.items() if query != "covariates")
    return 2.0 / math.sqrt(2 * share * rho) / records


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


@dataclass(frozen=True, eq=False)
class TraitLaw:
    """What is known of levels, peaks and bases of a class."""

    level_edges: FloatArray
    level_shares: FloatArray
    mean: FloatArray
    std: FloatArray


def ask_traits(setting: Setting) -> Steps[TraitLaw]:
    """Coarse centres first; then levels, peaks and bases around them, each as a histogram."""
    low, high = setting.log_bounds
    half = (high - low) / 2
    centre = np.array([(low + high) / 2, CENTRE_PEAK, CENTRE_BASE])
    seen = yield setting.ask(
        "coarse traits",
        3,
        Region.BALL,
        max(half, RADIUS_COARSE),
        lambda days: of_customer.traits(days) - centre,
    )
    coarse = likely(seen, np.array([half / 2, 0.6, 0.8])) + centre
    level, most = float(np.clip(coarse[0], low, high)), min(MOST_SPREAD, 2 * half)

    def distance(days: CustomerChunk) -> FloatArray:
        return np.minimum(np.abs(of_customer.log_level(days) - level), most)[:, None]

    seen = yield setting.ask("coarse spread of levels", 1, Region.ORTHANT, most, distance)
    reach = LEVEL_REACH * float(np.clip(1.25 * seen.value[0], *SPREADS))

    def place(days: CustomerChunk) -> FloatArray:
        at = np.clip((of_customer.log_level(days) - level) / reach, -1.0, 1.0)
        return np.column_stack([at, np.abs(at) - LEVEL_MIDDLE])

    seen = yield setting.ask("place of levels", 2, Region.BALL, RADIUS_LEVEL, place)
    away = likely(seen, np.array([0.6, 0.3]))
    at, size = _unclipped(float(away[0]), float(away[1]) + LEVEL_MIDDLE)
    normal = level + reach * at, reach * size

    edges = normal[0] + normal[1] * np.linspace(-3.0, 3.0, LEVEL_BINS + 1)
    counted = yield setting.ask(
        "levels",
        LEVEL_BINS,
        Region.ORTHANT,
        1.0,
        lambda days: of_customer.bin_of(of_customer.log_level(days), edges),
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
    return TraitLaw(edges, shares, means.copy(), stds.copy())


def _ask_normal(
    setting: Setting, name: str, column: int, centre: float, reach: float
) -> Steps[tuple[float, float]]:
    """Mean and standard deviation of a trait, from a histogram around a coarse centre."""
    edges = centre + reach * np.linspace(-1.0, 1.0, TRAIT_BINS + 1)
    seen = yield setting.ask(
        name,
        TRAIT_BINS,
        Region.ORTHANT,
        1.0,
        lambda days: of_customer.bin_of(of_customer.traits(days)[:, column], edges),
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
        "load over mean",
        1 + BINS,
        Region.ORTHANT,
        RADIUS_HISTOGRAM,
        lambda days: of_customer.histogram(days, low),
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


@dataclass(frozen=True, eq=False)
class MeanDays:
    """Mean day of a class, and how customers differ from it."""

    mean_day: FloatArray
    block: FloatArray
    variance: FloatArray


def ask_mean_days(setting: Setting, scores: Scores) -> Steps[MeanDays]:
    """A coarse mean day, how far customers are from it, then the fine one, its bands and its lowest block."""
    n_steps, n_all = setting.n_steps, setting.coefficients
    basis, n_coarse = fourier(n_steps, n_all // 2)[1:], min(COARSE_COEFFICIENTS, n_all)

    def coefficients(count: int) -> Callable[[CustomerChunk], FloatArray]:
        known = mean
        return lambda days: of_customer.shape_coefficients(days, scores, known, count)

    mean = np.zeros(n_steps)
    name = "coarse mean day"
    seen = yield setting.ask(name, n_coarse, Region.BALL, RADIUS_COARSE_DAY, coefficients(n_coarse))
    mean = product(likely(seen, 0.5 / harmonic_of(n_coarse)), basis[:n_coarse])
    coarse = mean
    seen = yield setting.ask(
        "size of mean days",
        1,
        Region.BALL,
        RADIUS_SIZE,
        lambda days: of_customer.log_shape_size(days, scores, coarse, USUAL_SIZE),
    )
    size = USUAL_SIZE * exp1(float(np.clip(seen.value[0], -2.5, 1.0)))
    radius = float(np.clip(size, 0.02, 1.5))
    seen = yield setting.ask("mean day", n_all, Region.BALL, radius, coefficients(n_all))
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
    energy = yield setting.ask("bands of mean days", len(bands), Region.ORTHANT, radius, energies)
    seen = yield setting.ask("block of mean days", block * (block + 1) // 2, Region.PSD, radius, moment)
    variance = np.empty(n_all)
    for band, value in zip(bands, nonnegative_mean(energy.value, energy.noise).tolist(), strict=True):
        variance[band] = value / band.size
    off = vector_to_symmetric(seen.value, block)
    np.fill_diagonal(off, 0.0)
    noise = block * (block - 1) / 2 * seen.noise * seen.noise
    off *= max(0.0, 1.0 - noise / max(float(np.sum(off * off)), 1e-12))
    return MeanDays(mean, positive(np.diag(variance[:block]) + off), variance[block:])


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
    seen = yield setting.ask(
        "days off",
        1 + 2 * harmonics,
        Region.BALL,
        RADIUS_OFF,
        lambda days: of_customer.off_contrast(days, scores, setting.off, harmonics),
    )
    prior = 0.1 / np.sqrt(np.concatenate([[1.0], 1.0 + harmonic_of(2 * harmonics)]))
    contrast = product(likely(seen, prior), fourier(setting.n_steps, harmonics))
    return Baseline(scores, setting.off_weight, contrast)


def ask_sizes(
    setting: Setting, frame: Baseline, traits: TraitLaw
) -> Steps[tuple[tuple[float, float], FloatArray]]:
    """Mean and spread of the log size of the own process, and the correlations of all traits."""

    def moments(days: CustomerChunk) -> FloatArray:
        size = of_customer.log_spread(days, frame, CENTRE_SPREAD, MOST_LOG_SPREAD)
        return np.concatenate([size, size * size], axis=1)

    seen = yield setting.ask("size of the process", 2, Region.BALL, RADIUS_SPREAD, moments)
    centre = float(np.clip(seen.value[0], -MOST_LOG_SPREAD, MOST_LOG_SPREAD))
    variance = float(np.clip(float(seen.value[1]) - centre * centre, 0.01, 0.16))
    size = centre + CENTRE_SPREAD, float(np.sqrt(variance))
    mean, std = traits.mean.copy(), np.maximum(traits.std, 1e-3)
    mean[2], std[2] = size
    rows, columns = _TRAITS

    def products(days: CustomerChunk) -> FloatArray:
        level, spread = of_customer.traits(days), of_customer.log_spread(days, frame, 0.0, 10.0)
        both = np.column_stack([level[:, :2], spread, level[:, 2]])
        away = np.clip((both - mean) / std, -MOST_DEVIATION, MOST_DEVIATION)
        return away[:, rows] * away[:, columns]

    seen = yield setting.ask("correlations of traits", 6, Region.BALL, RADIUS_CORRELATIONS, products)
    matrix = np.eye(4)
    matrix[rows, columns] = np.clip(likely(seen, 0.35), -RADIUS_CORRELATIONS, RADIUS_CORRELATIONS)
    matrix[columns, rows] = matrix[rows, columns]
    values, vectors = eigh(matrix)
    matrix = product(vectors * np.maximum(values, 0.05), vectors.T)
    own = np.sqrt(np.diag(matrix))
    matrix = matrix / np.outer(own, own)
    return size, (matrix + matrix.T) / 2


@dataclass(frozen=True, eq=False)
class OwnProcess:
    """Profile over the day, shared factor, spread of loadings and amplitudes of the ladder."""

    profile: FloatArray
    factor: Factor
    loading_std: float
    amplitudes: FloatArray


def ask_process(setting: Setting, frame: Baseline) -> Steps[OwnProcess]:
    """How the own process varies over the day, what customers share, and what is left at every spacing."""
    n_steps, n_days, ladder = setting.n_steps, setting.n_days, setting.ladder
    harmonics = min(PROFILE_HARMONICS, (n_steps - 1) // 2)
    seen = yield setting.ask(
        "profile of the process",
        2 * harmonics,
        Region.BALL,
        RADIUS_PROFILE,
        lambda days: of_customer.spread_profile(days, frame, harmonics),
    )
    profile = np.clip(1.0 + product(likely(seen, 0.2), fourier(n_steps, harmonics)[1:]), 0.2, 4.0)
    profile = profile / profile.mean()
    factor = yield from _ask_factor(setting, frame)
    loadings = yield from _ask_loadings(setting, frame, factor)
    shared = factor.at_steps(n_steps)
    seen = yield setting.ask(
        "energies of the process",
        len(ladder.spacings),
        Region.ORTHANT,
        RADIUS_ENERGIES,
        lambda days: of_customer.process_energies(days, frame, shared, profile, ladder),
    )
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
    return OwnProcess(profile, factor, spread, amplitudes)


def _ask_factor(setting: Setting, frame: Baseline) -> Steps[Factor]:
    covariates, n_days = setting.covariates, setting.n_days
    explained = np.zeros(0)
    if covariates.shape[1]:
        seen = yield setting.ask(
            "covariates",
            covariates.shape[1],
            Region.BALL,
            RADIUS_FACTOR,
            lambda days: product(of_customer.process_of(days, frame).daily, covariates) / n_days,
        )
        explained = likely(seen, 0.2)
    seen = yield setting.ask(
        "shared factor",
        n_days,
        Region.BALL,
        RADIUS_FACTOR * float(np.sqrt(n_days)),
        lambda days: of_customer.process_of(days, frame).daily,
    )
    return shared_factor(seen.value, seen.noise, covariates, explained)


def _ask_loadings(setting: Setting, frame: Baseline, factor: Factor) -> Steps[float]:
    """Variance of the estimated loadings."""
    scale = max(float(np.sum(factor.values * factor.values)), 1e-3)

    def moments(days: CustomerChunk) -> FloatArray:
        loading = product(of_customer.process_of(days, frame).daily, factor.values) / scale - 1.0
        loading = np.clip(loading, -MOST_LOADING, MOST_LOADING)
        return np.column_stack([loading, loading * loading / 2])

    seen = yield setting.ask("loadings", 2, Region.BALL, RADIUS_LOADING, moments)
    return max(float(2 * seen.value[1] - seen.value[0] * seen.value[0]), 0.0)
