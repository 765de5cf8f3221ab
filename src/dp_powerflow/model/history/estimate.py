"""The queries of the history model in their order, and the law that follows from their answers.

Classes are asked in lockstep, each query of all of them for one charge. A contribution is a function of one
customer, with all its days, and of answers before it; sensitivities are those of `privacy.queries`. Whatever
is made of the answers is free: posterior means under public priors, and calibration by a public key.

Reactive load: q = p·tan θ_i + c·p̄·ξ_i, θ_i persistent, ξ_i a process on the ladder. Angles and process are
declared public or fitted; fitted, a customer's own angle is taken out before its process is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Protocol

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, exp1, kernel, log, log1, tan, tan1
from dp_powerflow._bits.linear import norms, product, standard_normal
from dp_powerflow._bits.normal_pairs import ndtr_ascending
from dp_powerflow._threads import in_order, slices
from dp_powerflow.model.estimators import Contribution, Customers, Records, ask_averages
from dp_powerflow.model.history import plan
from dp_powerflow.model.history.asking import (
    Asker,
    MeanDays,
    OwnProcess,
    Seen,
    Setting,
    Traits,
    ask_contrast,
    ask_marginal,
    ask_mean_days,
    ask_process,
    ask_sizes,
    ask_traits,
    positive,
    shrunk,
)
from dp_powerflow.model.history.contributions import Frame, bin_edges, rank_features
from dp_powerflow.model.history.individuals import Individuals, score_grid
from dp_powerflow.model.history.law import (
    HIGHEST_SCORE,
    LOADS,
    LOWEST_SCORE,
    SCORES,
    HistoryLaw,
    HistoryReactive,
)
from dp_powerflow.model.history.numbers import fourier, harmonic_of, interpolate, systematic
from dp_powerflow.model.history.one_pass import Ladder, energies
from dp_powerflow.model.options import (
    MAX_ANGLE,
    FittedReactive,
    HistoryFacts,
    PublicSpread,
    ReactiveChoice,
    angle_contribution,
)
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray

CUSTOMERS = 512
"""Customers by whom a law is calibrated."""
DAYS = 24
"""Days of each."""
TIMES = 48
"""Most times of day whose loads have tables of their own."""
PROBABILITIES = np.concatenate([[0.0005], (np.arange(65) + 0.5) / 65, [0.9995]])
"""At which loads of a time of day are tabulated."""
RANK_FUNCTIONS, TIME_HARMONICS = 4, 2
"""Cosines in rank and harmonics in time of the correction by ranks."""
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
    coefficients = len(law.shape_block) + law.shape_variance.size
    generator = _KEY.stream("traits").generator
    trait = systematic(generator.random((count, 4)))
    shape = standard_normal(_KEY.stream("shapes").generator, (count, coefficients))
    loading = systematic(_KEY.stream("loadings").generator.random((count, 1)))[:, 0]
    return Individuals.draw(law, trait, shape, loading)


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

    # Every point is a sum of its own, so it does not matter who adds it up. Long rows make better vectors.
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
            ndtr_ascending(place, below)
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
    basis = np.array(
        [
            np.sqrt(2.0) * cos(np.pi * (k + 1) * np.arange(_POINTS + 1) / _POINTS)
            for k in range(RANK_FUNCTIONS)
        ]
    )
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
    """(customer, day, step) log loads on days of their own: the memory of the process plays no part."""
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


class Calibrated:
    """A law with its map and its ranks, found when they are first wanted.

    Parameters
    ----------
    assembled
        The law without its map.
    shares
        (1 + bins,) released histogram of loads over mean.
    off
        (day,) weight of the contrast.
    log_bounds
        Declared bounds [log kW].
    """

    def __init__(
        self, assembled: HistoryLaw, shares: FloatArray, off: FloatArray, log_bounds: tuple[float, float]
    ) -> None:
        self.assembled, self._shares = assembled, shares
        self._off, self._log_bounds = off, log_bounds
        self._lock = Lock()
        self._found: tuple[HistoryLaw, Ranks] | None = None

    def _calibrated(self) -> tuple[HistoryLaw, Ranks]:
        with self._lock:  # customers are looked at by several threads
            if self._found is None:
                law = with_score_map(self.assembled, self._shares)
                self._found = law, ranks_of(law, self._off, self._log_bounds)
            return self._found

    @property
    def law(self) -> HistoryLaw:
        """With the map of the class."""
        return self._calibrated()[0]

    @property
    def ranks(self) -> Ranks:
        """How ranks under the law are asked for."""
        return self._calibrated()[1]

    def features(self, days: Customers) -> FloatArray:
        """(customer, feature) of ranks, over the radius."""
        return self.ranks.features(days.log_load)


def last_map(law: HistoryLaw, log_bounds: tuple[float, float]) -> FloatArray:
    """(time of day, `LOADS`) [kW]: what takes the place of loads evenly spaced in the log."""
    low, high = log_bounds
    at = np.asarray(low + (high - low) / (LOADS - 1) * np.arange(LOADS), dtype=np.float64)
    found = np.empty((len(law.quantiles), LOADS))
    for k, (before, after) in enumerate(zip(law.quantiles, law.corrected, strict=True)):
        shift = interpolate(at, before, after - before)
        found[k] = np.maximum.accumulate(np.clip(at + shift, low, high))
    return exp(found)


def estimate_histories(groups: Sequence[Records], setting: Setting, session: Session) -> list[HistoryLaw]:
    """The law of every class; spends the budget of the setting.

    Parameters
    ----------
    groups
        PRIVATE. Customers of each class with all their days; each customer is in exactly one.
    """
    asker = Asker(groups, setting, session)
    traits = ask_traits(asker)
    shares, scores = ask_marginal(asker)
    days = ask_mean_days(asker, scores)
    frames = ask_contrast(asker, scores)
    sizes, correlations = ask_sizes(asker, frames, traits)
    processes = ask_process(asker, frames)
    laws = []
    for index in range(len(groups)):
        law = _assembled(
            setting, traits[index], sizes[index], correlations[index], days[index], frames[index],
            processes[index],
        )  # fmt: skip
        laws.append(Calibrated(law, shares[index], setting.off_weight, setting.log_bounds))
    return _ask_ranks(asker, laws)


def _assembled(
    setting: Setting,
    traits: Traits,
    size: tuple[float, float],
    correlation: FloatArray,
    days: MeanDays,
    frame: Frame,
    process: OwnProcess,
) -> HistoryLaw:
    """The law, but for its maps: a customer's mean over its days is not its mean day, so the spread of
    mean days is that of the averages less what the process leaves in them."""
    mean, std = traits.mean.copy(), traits.std.copy()
    mean[2], std[2] = size
    left = _left_in_averages(setting, process.amplitudes) * exp1(2 * size[0] + 2 * size[1] * size[1])
    block = len(days.block)
    return HistoryLaw(
        mean_day=days.mean_day,
        shape_block=positive(days.block - np.diag(left[:block])),
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
    result: FloatArray = np.sum(product(basis, toeplitz) * basis, axis=1) / (n_steps * n_steps)
    return result


def _ask_ranks(asker: Asker, laws: Sequence[Calibrated]) -> list[HistoryLaw]:
    """The last correction: where real loads lie among those of the law, by time of day.

    A plan wants no law, and calibration takes longer than all of its queries; it is left out there.
    """
    times = 1 + 2 * TIME_HARMONICS
    seen = asker.ask("ranks", RANK_FUNCTIONS * times, Region.BALL, [own.features for own in laws])
    if asker.session.lists_only:
        return [own.assembled for own in laws]
    found = []
    for calibrated, one in zip(laws, seen, strict=True):
        law, own = calibrated.law, calibrated.ranks
        scale = own.radius / own.kept
        density = Seen((one.value - own.clipped_mean) * scale, one.noise * scale)
        order = np.arange(RANK_FUNCTIONS)[:, None] + 1.0
        harmonic = np.concatenate([[1.0], 1.0 + harmonic_of(times - 1)])
        found_density = shrunk(density, (plan.PRIOR_RANKS / np.sqrt(order * harmonic)).reshape(-1))
        corrected = own.corrected(found_density.reshape(RANK_FUNCTIONS, times))
        # Levels were asked for with less noise than ranks leave in the mean load.
        corrected = corrected + log1(mean_of(own.tables) / mean_of(corrected))
        found.append(replace(law, quantiles=own.tables, corrected=corrected))
    return found


MOST_ANGLE_SPREAD = 0.5  # rad
_SHARES = {"angle": 0.25, "spread": 0.15, "size": 0.2, "energies": 0.4}


class Cell(Protocol):
    """Classes that are fitted together; see `derive`."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def pairs(self) -> list[Records]: ...

    @property
    def bounds(self) -> tuple[float, float]: ...

    @property
    def session(self) -> Session: ...


def reactive_of(
    cell: Cell, laws: Sequence[HistoryLaw], choice: ReactiveChoice, facts: HistoryFacts, rho: float
) -> list[HistoryReactive]:
    """The reactive load of every class; spends ρ where it is fitted."""
    references = [mean_of(law.corrected) for law in laws]
    if isinstance(choice, FittedReactive):
        return _fitted(cell, laws, references, rho)
    if not isinstance(choice, PublicSpread):
        return [HistoryReactive(choice.tan_theta(name)) for name in cell.names]
    ladder = laws[0].ladder
    lag = np.arange(facts.n_days * facts.n_steps + 1) * facts.step_minutes
    covariance = (1 - choice.white) * exp(-lag / choice.correlation_minutes)
    covariance[0] += choice.white
    amplitudes = ladder.amplitudes(ladder.energies_of(covariance, facts.n_days), facts.n_days)
    return [
        HistoryReactive(choice.power_factor.tan_theta(name), 0.0, choice.spread, reference, amplitudes)
        for name, reference in zip(cell.names, references, strict=True)
    ]


def _fitted(
    cell: Cell, laws: Sequence[HistoryLaw], references: Sequence[float], rho: float
) -> list[HistoryReactive]:
    n_steps, ladder, count = laws[0].n_steps, laws[0].ladder, len(laws)
    bound = cell.bounds[1]

    def ask(
        name: str, size: int, radius: float, region: Region, share: str, of: list[Contribution]
    ) -> list[FloatArray]:
        query = Query(
            name, size, radius, region, rho * _SHARES[share], "rad" if share in ("angle", "spread") else "1"
        )
        return ask_averages(cell.session, query, cell.pairs, of)[0]

    own = angle_contribution(n_steps, bound)
    angles = [
        float(np.clip(value[0], -MAX_ANGLE, MAX_ANGLE))
        for value in ask("power-factor angle", 1, MAX_ANGLE, Region.BALL, "angle", [own] * count)
    ]
    most = MOST_ANGLE_SPREAD * MOST_ANGLE_SPREAD
    squares = ask(
        "spread of angles", 1, most, Region.ORTHANT, "spread",
        [partial(_square_away, own=own, centre=angle, most=most) for angle in angles],
    )  # fmt: skip
    sizes = ask(
        "size of the reactive process", 1, plan.RADIUS_REACTIVE, Region.BALL, "size",
        [partial(_log_size, own=own, bound=bound)] * count,
    )  # fmt: skip
    found = ask(
        "energies of the reactive process", len(ladder.spacings), plan.RADIUS_ENERGIES, Region.ORTHANT,
        "energies", [partial(_energies, own=own, bound=bound, ladder=ladder)] * count,
    )  # fmt: skip
    result = []
    for index, law in enumerate(laws):
        tangent = tan1(angles[index])
        slope = 1 + tangent * tangent
        spread = slope * float(np.sqrt(np.clip(squares[index][0], 0.0, most)))
        size = exp1(
            float(np.clip(sizes[index][0], -plan.RADIUS_REACTIVE, plan.RADIUS_REACTIVE))
            + plan.CENTRE_REACTIVE
        )
        positive = np.maximum(found[index], 0.0)
        positive = positive / max(float(positive.sum()), 1e-12)
        amplitudes = ladder.amplitudes(positive, law.n_days)
        result.append(HistoryReactive(tangent, spread, size, references[index], amplitudes))
    return result


def _split(pair: FloatArray, bound: float) -> tuple[FloatArray, FloatArray]:
    n_steps = pair.shape[2] // 2
    clipped = np.clip(pair, -bound, bound)
    return clipped[..., :n_steps], clipped[..., n_steps:]


def _square_away(pair: FloatArray, own: Contribution, centre: float, most: float) -> FloatArray:
    """Squared distance of a customer's angle from that of its class."""
    away = own(pair) - centre
    return np.minimum(away * away, most)


def _process(pair: FloatArray, own: Contribution, bound: float) -> FloatArray:
    """(customer, day, step) reactive load beside its own power factor, over its mean load."""
    active, reactive = _split(pair, bound)
    level = np.maximum(active.mean(axis=(1, 2)), 1e-9)
    rest = reactive - tan(own(pair))[:, :, None] * active
    rest = rest - rest.mean(axis=1, keepdims=True)
    result: FloatArray = rest / level[:, None, None]
    return result


def _log_size(pair: FloatArray, own: Contribution, bound: float) -> FloatArray:
    """Log of the root mean square of the process, around a public centre."""
    process = _process(pair, own, bound)
    flat = process.reshape(len(process), -1)
    square = np.sum(flat * flat, axis=1) / max(flat.shape[1], 1)
    return (log(np.maximum(square, 1e-12)) / 2 - plan.CENTRE_REACTIVE)[:, None]


def _energies(pair: FloatArray, own: Contribution, bound: float, ladder: Ladder) -> FloatArray:
    """Energies of the process, which add up to one."""
    found = energies(_process(pair, own, bound), ladder)
    result: FloatArray = found / np.maximum(found.sum(axis=1, keepdims=True), 1e-12)
    return result
