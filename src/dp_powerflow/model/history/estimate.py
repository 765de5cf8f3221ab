"""The queries of the history model in their order, and the law that follows from their answers.

Classes are asked in lockstep, each query of all of them for one charge. A contribution is a function of one
customer, with all its days, and of answers before it; sensitivities are those of `privacy.queries`. Whatever
is made of the answers is free: posterior means under public priors, and calibration by a public key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1, kernel, log1
from dp_powerflow._bits.linear import eigh, product
from dp_powerflow.model.estimators import (
    Contribution,
    Records,
    ask_averages,
    symmetric_to_vector,
    vector_to_symmetric,
)
from dp_powerflow.model.history import contributions as of_customer
from dp_powerflow.model.history import plan
from dp_powerflow.model.history.calibrate import (
    RANK_FUNCTIONS,
    TIME_HARMONICS,
    mean_of,
    ranks_of,
    times_of_day,
    with_score_map,
)
from dp_powerflow.model.history.contributions import Frame, Scores
from dp_powerflow.model.history.factor import Factor, shared_factor
from dp_powerflow.model.history.ladder import Ladder
from dp_powerflow.model.history.law import HistoryLaw
from dp_powerflow.model.history.numbers import (
    best_normal,
    fourier,
    harmonic_of,
    ndtri,
    nonnegative_mean,
    normal_shares,
    smoothed,
    unimodal,
)
from dp_powerflow.model.history.population import SCORES
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import BoolArray, FloatArray, IntArray

_MOST_SCORE = 3.3
_BAND_STARTS = (1, 2, 3, 4, 6, 9, 14, 25)  # harmonics
_LEAST_EIGENVALUE = 1e-5


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

    @property
    def off_share(self) -> float:
        """Share of days off."""
        return float(np.sum(self.off)) / self.n_days

    @property
    def off_weight(self) -> FloatArray:
        """(day,) weight of the contrast."""
        return self.off - self.off_share

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
        asked = {name: share for name, share in plan.SHARES.items() if name not in left_out}
        whole = sum(asked.values())
        return {name: share / whole for name, share in asked.items()}

    @property
    def coefficients(self) -> int:
        """Fourier coefficients of a mean day about its mean."""
        return 2 * ((self.n_steps - 1) // 2)

    @property
    def ladder(self) -> Ladder:
        return plan.ladder_of(self.n_steps, self.n_days)


@dataclass(frozen=True, eq=False)
class Seen:
    """Average of a class and the standard deviation of its noise."""

    value: FloatArray
    noise: float


class _Asker:
    """Asks queries of radius one; a class has its own scale."""

    def __init__(self, groups: Sequence[Records], setting: Setting, session: Session) -> None:
        self.groups, self.setting, self.session = groups, setting, session

    def ask(
        self,
        name: str,
        dimension: int,
        region: Region,
        of: Sequence[Contribution],
        radii: Sequence[float] | None = None,
    ) -> list[Seen]:
        """Averages; `of` gives vectors over the radius."""
        query = Query(name, dimension, 1.0, region, self.setting.rho * self.setting.shares[name], "radius")
        averages, variances = ask_averages(self.session, query, self.groups, of)
        radii = [1.0] * len(of) if radii is None else radii
        return [
            Seen(average * radius, float(np.sqrt(variance)) * radius)
            for average, variance, radius in zip(averages, variances, radii, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class _Traits:
    """What is known of levels, peaks and bases of a class."""

    level_edges: FloatArray
    level_shares: FloatArray
    mean: FloatArray
    std: FloatArray

    @property
    def level(self) -> tuple[float, float]:
        """Mean and standard deviation of the log level."""
        middle = (self.level_edges[1:] + self.level_edges[:-1]) / 2
        mean = float(np.sum(self.level_shares * middle))
        return mean, float(np.sqrt(np.sum(self.level_shares * (middle - mean) ** 2)))


def estimate_histories(groups: Sequence[Records], setting: Setting, session: Session) -> list[HistoryLaw]:
    """The law of every class; spends the budget of the setting.

    Parameters
    ----------
    groups
        PRIVATE. Customers of each class with all their days; each customer is in exactly one.
    """
    asker = _Asker(groups, setting, session)
    traits = _ask_traits(asker)
    shares, scores = _ask_marginal(asker)
    days = _ask_mean_days(asker, scores)
    frames = _ask_contrast(asker, scores)
    sizes, correlations = _ask_sizes(asker, frames, traits)
    processes = _ask_process(asker, frames)
    laws = []
    for index in range(len(groups)):
        law = _assembled(
            setting, traits[index], sizes[index], correlations[index], days[index], frames[index],
            processes[index],
        )  # fmt: skip
        laws.append(with_score_map(law, shares[index]))
    return _ask_ranks(asker, laws)


# --- traits ----------------------------------------------------------------------------------------------
def _ask_traits(asker: _Asker) -> list[_Traits]:
    low, high = asker.setting.log_bounds
    half = (high - low) / 2
    centre = np.array([(low + high) / 2, plan.CENTRE_PEAK, plan.CENTRE_BASE])
    radius = max(half, plan.RADIUS_COARSE)
    count = len(asker.groups)
    coarse = asker.ask(
        "coarse traits",
        3,
        Region.BALL,
        [partial(of_customer.coarse_traits, centre=centre, radius=radius)] * count,
        [radius] * count,
    )
    centres = [seen.value + centre for seen in coarse]
    levels = [float(np.clip(own[0], low, high)) for own in centres]
    most = min(plan.MOST_SPREAD, 2 * half)
    spreads = asker.ask(
        "coarse spread of levels",
        1,
        Region.ORTHANT,
        [partial(of_customer.distance_of_level, centre=level, most=most) for level in levels],
        [most] * count,
    )
    reaches = [plan.LEVEL_REACH * float(np.clip(1.25 * seen.value[0], 0.03, 1.5)) for seen in spreads]
    placed = asker.ask(
        "place of levels",
        2,
        Region.BALL,
        [
            partial(
                of_customer.place_of_level,
                centre=level,
                reach=reach,
                middle=plan.LEVEL_MIDDLE,
                radius=plan.RADIUS_LEVEL,
            )
            for level, reach in zip(levels, reaches, strict=True)
        ],
        [plan.RADIUS_LEVEL] * count,
    )
    normals = []
    for seen, level, reach in zip(placed, levels, reaches, strict=True):
        place, size = _unclipped(float(seen.value[0]), float(seen.value[1]) + plan.LEVEL_MIDDLE)
        normals.append((level + reach * place, reach * size))
    edges = [mean + std * np.linspace(-3.0, 3.0, plan.LEVEL_BINS + 1) for mean, std in normals]
    counted = asker.ask(
        "levels",
        plan.LEVEL_BINS,
        Region.ORTHANT,
        [_binned(of_customer.log_level, own) for own in edges],
    )
    peaks = _ask_normal(asker, "peaks", 1, [np.clip(own[1], 0.5, 3.0) for own in centres], plan.PEAK_REACH)
    bases = _ask_normal(asker, "bases", 2, [np.clip(own[2], -3.5, -0.2) for own in centres], plan.BASE_REACH)
    found = []
    for index, seen in enumerate(counted):
        prior = normal_shares(edges[index], *normals[index])
        trust = 0.5 * prior + 0.002
        trust = trust * trust / (trust * trust + seen.noise * seen.noise)
        shares = np.maximum(prior + trust * (seen.value - prior), 0.0)
        own = _Traits(edges[index], shares / shares.sum(), np.empty(0), np.empty(0))
        columns = (own.level, peaks[index], (0.0, 0.0), bases[index])
        mean, std = (np.array([column[k] for column in columns]) for k in range(2))
        found.append(_Traits(own.level_edges, own.level_shares, mean, std))
    return found


def _binned(value: Callable[[FloatArray], FloatArray], edges: FloatArray) -> Contribution:
    return lambda days: of_customer.bin_of(value(days), edges)


def _column(days: FloatArray, column: int) -> FloatArray:
    found: FloatArray = of_customer.traits(days)[:, column]
    return found


def _ask_normal(
    asker: _Asker, name: str, column: int, centres: Sequence[float], reach: float
) -> list[tuple[float, float]]:
    """Mean and standard deviation of a trait of every class, from a histogram around a coarse centre."""
    edges = [float(c) + reach * np.linspace(-1.0, 1.0, plan.TRAIT_BINS + 1) for c in centres]
    seen = asker.ask(
        name,
        plan.TRAIT_BINS,
        Region.ORTHANT,
        [_binned(partial(_column, column=column), own) for own in edges],
    )
    return [
        best_normal(one.value, own, one.noise, float(centre), reach / 2.5)
        for one, own, centre in zip(seen, edges, centres, strict=True)
    ]


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


# --- load over mean --------------------------------------------------------------------------------------
def _ask_marginal(asker: _Asker) -> tuple[list[FloatArray], list[Scores]]:
    """Histogram of load over mean (1 + bins,), and the map to scores, of every class."""
    low = asker.setting.log_bounds[0]
    radius, count = plan.RADIUS_HISTOGRAM, len(asker.groups)
    seen = asker.ask(
        "load over mean",
        1 + of_customer.BINS,
        Region.ORTHANT,
        [partial(of_customer.histogram, log_floor=low, radius=radius)] * count,
        [radius] * count,
    )
    shares = [_cleaned(one) for one in seen]
    return shares, [_scores(own, low) for own in shares]


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
    load = np.concatenate([[exp1(of_customer.LOWEST)], middle])
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


def _scores(shares: FloatArray, log_floor: float) -> Scores:
    below = np.clip(np.cumsum(shares), 1e-4, 1 - 1e-4)
    edges = np.clip(ndtri(below), -_MOST_SCORE, _MOST_SCORE)
    at_floor = ndtri(np.array([max(float(shares[0]) / 2, 1e-4)]))[0]
    return Scores(edges, float(np.clip(at_floor, -_MOST_SCORE, _MOST_SCORE)), log_floor)


# --- mean days -------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _MeanDays:
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


def _ask_mean_days(asker: _Asker, scores: Sequence[Scores]) -> list[_MeanDays]:
    setting, count = asker.setting, len(asker.groups)
    n_steps, n_all = setting.n_steps, setting.coefficients
    basis, n_coarse = fourier(n_steps, n_all // 2)[1:], min(plan.COARSE_COEFFICIENTS, n_all)
    flat = np.zeros(n_steps)
    coarse = asker.ask(
        "coarse mean day",
        n_coarse,
        Region.BALL,
        [
            _scaled(of_customer.shape_coefficients, plan.RADIUS_COARSE_DAY, own, flat, n_coarse)
            for own in scores
        ],
        [plan.RADIUS_COARSE_DAY] * count,
    )
    prior = 0.5 / harmonic_of(n_coarse)
    means = [product(_shrunk(seen, prior), basis[:n_coarse]) for seen in coarse]
    sizes = asker.ask(
        "size of mean days",
        1,
        Region.BALL,
        [
            _scaled(of_customer.log_shape_size, plan.RADIUS_SIZE, own, mean, plan.USUAL_SIZE)
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
            _scaled(of_customer.shape_coefficients, radius, own, mean, n_all)
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
    asker: _Asker, scores: Sequence[Scores], means: Sequence[FloatArray], usual: Sequence[float]
) -> list[_MeanDays]:
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
        found.append(_MeanDays(mean, _positive(np.diag(variance[:block]) + off), variance[block:]))
    return found


def _scaled(value: Callable[..., FloatArray], radius: float, *known: object) -> Contribution:
    return lambda days: value(days, *known) / radius


def _band_energies(
    known: Scores, mean: FloatArray, bands: Sequence[IntArray], count: int, radius: float
) -> Contribution:
    def contribution(days: FloatArray) -> FloatArray:
        square = of_customer.shape_coefficients(days, known, mean, count) ** 2
        return np.stack([square[:, band].sum(axis=1) for band in bands], axis=1) / radius

    return contribution


def _low_moment(known: Scores, mean: FloatArray, block: int, radius: float) -> Contribution:
    def contribution(days: FloatArray) -> FloatArray:
        low = of_customer.shape_coefficients(days, known, mean, block)
        return symmetric_to_vector(low[:, :, None] * low[:, None, :]) / radius

    return contribution


def _shrunk(seen: Seen, prior_std: FloatArray | float) -> FloatArray:
    """Posterior mean around zero."""
    prior = np.asarray(prior_std) ** 2
    result: FloatArray = seen.value * (prior / (prior + seen.noise * seen.noise))
    return result


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


def _positive(matrix: FloatArray) -> FloatArray:
    values, vectors = eigh((matrix + matrix.T) / 2)
    found = product(vectors * np.maximum(values, _LEAST_EIGENVALUE), vectors.T)
    return (found + found.T) / 2


# --- days off, sizes and correlations --------------------------------------------------------------------
def _ask_contrast(asker: _Asker, scores: Sequence[Scores]) -> list[Frame]:
    setting = asker.setting
    harmonics = min(plan.OFF_HARMONICS, (setting.n_steps - 1) // 2)
    if not setting.two_kinds:
        return [Frame(own, setting.off_weight, np.zeros(setting.n_steps)) for own in scores]
    seen = asker.ask(
        "days off",
        1 + 2 * harmonics,
        Region.BALL,
        [_scaled(of_customer.off_contrast, plan.RADIUS_OFF, own, setting.off, harmonics) for own in scores],
        [plan.RADIUS_OFF] * len(scores),
    )
    prior = 0.1 / np.sqrt(np.concatenate([[1.0], 1.0 + harmonic_of(2 * harmonics)]))
    basis = fourier(setting.n_steps, harmonics)
    return [
        Frame(own, setting.off_weight, product(_shrunk(one, prior), basis))
        for own, one in zip(scores, seen, strict=True)
    ]


def _ask_sizes(
    asker: _Asker, frames: Sequence[Frame], traits: Sequence[_Traits]
) -> tuple[list[tuple[float, float]], list[FloatArray]]:
    """Mean and spread of the log size of the own process, and the correlations of all traits."""
    count = len(frames)

    def moments(frame: Frame) -> Contribution:
        def contribution(days: FloatArray) -> FloatArray:
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
        mean, square = float(one.value[0]), float(one.value[1])
        variance = float(np.clip(square - mean * mean, 0.01, 0.16))
        sizes.append((mean + plan.CENTRE_SPREAD, float(np.sqrt(variance))))
    rows, columns = np.triu_indices(4, 1)

    def products(frame: Frame, own: _Traits, size: tuple[float, float]) -> Contribution:
        mean, std = own.mean.copy(), np.maximum(own.std, 1e-3)
        mean[2], std[2] = size

        def contribution(days: FloatArray) -> FloatArray:
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
        matrix[rows, columns] = _shrunk(one, 0.35)
        matrix[columns, rows] = matrix[rows, columns]
        values, vectors = eigh(matrix)
        matrix = product(vectors * np.maximum(values, 0.05), vectors.T)
        std = np.sqrt(np.diag(matrix))
        matrix = matrix / np.outer(std, std)
        correlations.append((matrix + matrix.T) / 2)
    return sizes, correlations


# --- the process -----------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Process:
    """Profile over the day, shared factor, spread of loadings and amplitudes of the ladder."""

    profile: FloatArray
    factor: Factor
    loading_std: float
    amplitudes: FloatArray


def _ask_process(asker: _Asker, frames: Sequence[Frame]) -> list[_Process]:
    setting, count = asker.setting, len(frames)
    harmonics = min(plan.PROFILE_HARMONICS, (setting.n_steps - 1) // 2)
    seen = asker.ask(
        "profile of the process",
        2 * harmonics,
        Region.BALL,
        [_scaled(of_customer.spread_profile, plan.RADIUS_PROFILE, frame, harmonics) for frame in frames],
        [plan.RADIUS_PROFILE] * count,
    )
    profiles = []
    for one in seen:
        profile = np.clip(1.0 + product(_shrunk(one, 0.2), fourier(setting.n_steps, harmonics)[1:]), 0.2, 4.0)
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
            _scaled(of_customer.process_energies, plan.RADIUS_ENERGIES, frame, own, profile, ladder)
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
        found.append(_Process(profiles[index], factor, spread, amplitudes))
    return found


def _ask_factor(asker: _Asker, frames: Sequence[Frame]) -> list[Factor]:
    setting = asker.setting
    covariates, days = setting.covariates, setting.n_days
    count = covariates.shape[1]
    explained = [Seen(np.zeros(0), 0.0)] * len(frames)
    if count:

        def regressed(frame: Frame) -> Contribution:
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
        [_scaled(of_customer.daily_means, radius, frame) for frame in frames],
        [radius] * len(frames),
    )
    found = []
    for own, one in zip(explained, seen, strict=True):
        of_covariates = _shrunk(own, 0.2) if count else own.value
        found.append(shared_factor(one.value, one.noise, covariates, of_covariates))
    return found


def _ask_loadings(asker: _Asker, frames: Sequence[Frame], factors: Sequence[Factor]) -> list[float]:
    """Variance of the estimated loadings of every class."""

    def moments(frame: Frame, factor: Factor) -> Contribution:
        scale = max(float(np.sum(factor.values * factor.values)), 1e-3)

        def contribution(days: FloatArray) -> FloatArray:
            if not len(days):
                return np.empty((0, 2))
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
    return [max(2 * float(one.value[1]) - float(one.value[0]) ** 2, 0.0) for one in seen]


# --- together --------------------------------------------------------------------------------------------
def _assembled(
    setting: Setting,
    traits: _Traits,
    size: tuple[float, float],
    correlation: FloatArray,
    days: _MeanDays,
    frame: Frame,
    process: _Process,
) -> HistoryLaw:
    """The law, but for its maps: a customer's mean over its days is not its mean day, so the spread of
    mean days is that of the averages less what the process leaves in them."""
    mean, std = traits.mean.copy(), traits.std.copy()
    mean[2], std[2] = size
    left = _left_in_averages(setting, process.amplitudes) * exp1(2 * size[0] + 2 * size[1] * size[1])
    block = len(days.block)
    return HistoryLaw(
        mean_day=days.mean_day,
        shape_block=_positive(days.block - np.diag(left[:block])),
        shape_variance=np.maximum(days.variance - left[block:], 1e-7),
        level_edges=traits.level_edges,
        level_shares=traits.level_shares,
        trait_mean=mean,
        trait_std=std,
        trait_correlation=correlation,
        contrast=frame.contrast,
        off_share=setting.off_share,
        profile=process.profile,
        factor=process.factor.values,
        factor_variance=process.factor.variance,
        factor_memory=process.factor.memory,
        covariates=process.factor.covariates,
        loading_std=process.loading_std,
        amplitudes=process.amplitudes,
        score_map=np.zeros(SCORES),
        quantiles=np.zeros((times_of_day(setting.n_steps), 1)),
        corrected=np.zeros((times_of_day(setting.n_steps), 1)),
    )


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
    return np.sum(product(basis, toeplitz) * basis, axis=1) / (n_steps * n_steps)


def _ask_ranks(asker: _Asker, laws: Sequence[HistoryLaw]) -> list[HistoryLaw]:
    """The last correction: where real loads lie among those of the law, by time of day."""
    setting = asker.setting
    ranks = [ranks_of(law, setting.off_weight, setting.log_bounds) for law in laws]
    times = 1 + 2 * TIME_HARMONICS
    seen = asker.ask("ranks", RANK_FUNCTIONS * times, Region.BALL, [own.features for own in ranks])
    found = []
    for law, own, one in zip(laws, ranks, seen, strict=True):
        scale = own.radius / own.kept
        density = Seen((one.value - own.clipped_mean) * scale, one.noise * scale)
        order = np.arange(RANK_FUNCTIONS)[:, None] + 1.0
        harmonic = np.concatenate([[1.0], 1.0 + harmonic_of(times - 1)])
        shrunk = _shrunk(density, (0.15 / np.sqrt(order * harmonic)).reshape(-1))
        corrected = own.corrected(shrunk.reshape(RANK_FUNCTIONS, times))
        # Levels were asked for with less noise than ranks leave in the mean load.
        corrected = corrected + log1(mean_of(own.tables) / mean_of(corrected))
        found.append(replace(law, quantiles=own.tables, corrected=corrected))
    return found
