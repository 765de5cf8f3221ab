"""What a fit of histories knows before it asks, and how it asks: with radius one, classes in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1, kernel
from dp_powerflow._bits.linear import eigh, product
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import (
    Customers,
    OfCustomers,
    Records,
    ask_averages,
    symmetric_to_vector,
    vector_to_symmetric,
)
from dp_powerflow.model.history import contributions as of_customer
from dp_powerflow.model.history import one_pass, plan
from dp_powerflow.model.history.contributions import Frame, Scores
from dp_powerflow.model.history.numbers import (
    Factor,
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
from dp_powerflow.model.history.one_pass import Ladder
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import BoolArray, FloatArray, IntArray

OfCustomer = Callable[[Customers], FloatArray]
"""Customers → what each adds to a sum (customer, dimension), over the radius."""
_LEAST_EIGENVALUE = 1e-5
_LEAST_SHARE = 1e-10  # of the largest eigenvalue: what rounding cannot turn negative


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


class Asker:
    """Asks queries of radius one; a class has its own scale."""

    def __init__(self, groups: Sequence[Records], setting: Setting, session: Session) -> None:
        self.groups, self.setting, self.session = groups, setting, session

    def ask(
        self,
        name: str,
        dimension: int,
        region: Region,
        of: Sequence[OfCustomer],
        radii: Sequence[float] | None = None,
    ) -> list[Seen]:
        """Averages; `of` gives vectors over the radius."""
        query = Query(name, dimension, 1.0, region, self.setting.rho * self.setting.shares[name], "radius")
        made = [OfCustomers(each) for each in of]
        averages, variances = ask_averages(self.session, query, self.groups, made)
        radii = [1.0] * len(of) if radii is None else radii
        return [
            Seen(average * radius, float(np.sqrt(variance)) * radius)
            for average, variance, radius in zip(averages, variances, radii, strict=True)
        ]


def scaled(value: Callable[..., FloatArray], radius: float, *known: object) -> OfCustomer:
    return lambda days: value(days, *known) / radius


def shrunk(seen: Seen, prior_std: FloatArray | float) -> FloatArray:
    """Posterior mean around zero."""
    prior = np.multiply(prior_std, prior_std)  # a power of one number is not the same on every processor
    result: FloatArray = seen.value * (prior / (prior + seen.noise * seen.noise))
    return result


def positive(matrix: FloatArray) -> FloatArray:
    """Nearest symmetric matrix that has a Cholesky factor, however large noise has made it."""
    values, vectors = eigh((matrix + matrix.T) / 2)
    least = max(_LEAST_EIGENVALUE, _LEAST_SHARE * float(np.max(np.abs(values))))
    found = product(vectors * np.maximum(values, least), vectors.T)
    return (found + found.T) / 2


_MOST_SCORE = 3.3


@dataclass(frozen=True, eq=False)
class Traits:
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


def ask_traits(asker: Asker) -> list[Traits]:
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
    prior = np.array([half / 2, 0.6, 0.8])
    centres = [shrunk(seen, prior) + centre for seen in coarse]
    levels = [float(np.clip(own[0], low, high)) for own in centres]
    most = min(plan.MOST_SPREAD, 2 * half)
    spreads = asker.ask(
        "coarse spread of levels",
        1,
        Region.ORTHANT,
        [partial(of_customer.distance_of_level, centre=level, most=most) for level in levels],
        [most] * count,
    )
    reaches = [plan.LEVEL_REACH * float(np.clip(1.25 * seen.value[0], *plan.SPREADS)) for seen in spreads]
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
        away = shrunk(seen, np.array([0.6, 0.3]))
        place, size = _unclipped(float(away[0]), float(away[1]) + plan.LEVEL_MIDDLE)
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
        trust = plan.trust_in_shares(prior, seen.noise)
        shares = np.maximum(prior + trust * (seen.value - prior), 0.0)
        whole = float(shares.sum())
        shares = shares / whole if whole > 0.0 else prior
        own = Traits(edges[index], shares, np.empty(0), np.empty(0))
        columns = (own.level, peaks[index], (0.0, 0.0), bases[index])
        mean, std = (np.array([column[k] for column in columns]) for k in range(2))
        found.append(Traits(own.level_edges, own.level_shares, mean, std))
    return found


def _binned(value: OfCustomer, edges: FloatArray) -> OfCustomer:
    return lambda days: of_customer.bin_of(value(days), edges)


def _column(days: Customers, column: int) -> FloatArray:
    found: FloatArray = of_customer.traits(days)[:, column]
    return found


def _ask_normal(
    asker: Asker, name: str, column: int, centres: Sequence[float], reach: float
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


def ask_marginal(asker: Asker) -> tuple[list[FloatArray], list[Scores]]:
    """Histogram of load over mean (1 + bins,), and the map to scores, of every class."""
    low = asker.setting.log_bounds[0]
    radius, count = plan.RADIUS_HISTOGRAM, len(asker.groups)
    seen = asker.ask(
        "load over mean",
        1 + one_pass.BINS,
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
    load = np.concatenate([[exp1(one_pass.LOWEST)], middle])
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
