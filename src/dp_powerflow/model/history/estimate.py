"""The history model: the law of every class from the answers, calibrated by customers of a public key.

`queries` says what is asked. Here the law is put together; its map from scores to load and its ranks are
found by simulating customers of the law, and the last query corrects what is left. All of it is free.

Reactive load: q = p·tan θ + c·p̄·ξ_i, ξ_i a process on the ladder; angle and process are declared public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, exp1, kernel, log1
from dp_powerflow._bits.linear import norms, product, standard_normal
from dp_powerflow._bits.normal_pairs import ndtr_ascending
from dp_powerflow._threads import in_order, slices
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import Cell, Seen, Steps, fit_together
from dp_powerflow.model.history.contributions import Baseline, bin_edges, rank_features
from dp_powerflow.model.history.law import (
    HIGHEST_SCORE,
    LOWEST_SCORE,
    SCORES,
    HistoryClass,
    HistoryLaw,
    HistoryReactive,
    Individuals,
    score_grid,
)
from dp_powerflow.model.history.numbers import fourier, harmonic_of, interpolate, systematic
from dp_powerflow.model.history.queries import (
    RADIUS_FACTOR,
    USUAL_SIZE,
    MeanDays,
    OwnProcess,
    Setting,
    TraitLaw,
    ask_contrast,
    ask_marginal,
    ask_mean_days,
    ask_process,
    ask_sizes,
    ask_traits,
    likely,
    noise_of,
    positive,
)
from dp_powerflow.model.options import FitOptions, HistoryFacts, PublicSpread, ReactiveChoice
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, epsilon_to_rho
from dp_powerflow.privacy.queries import Region
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


def _assembled(
    setting: Setting,
    traits: TraitLaw,
    size: tuple[float, float],
    correlation: FloatArray,
    days: MeanDays,
    frame: Baseline,
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


def _history(setting: Setting, *, lists_only: bool) -> Steps[HistoryLaw]:
    """The law of one class.

    A plan wants no law, and calibration takes longer than all of its queries; it is left out there.
    """
    traits = yield from ask_traits(setting)
    shares, scores = yield from ask_marginal(setting)
    days = yield from ask_mean_days(setting, scores)
    frame = yield from ask_contrast(setting, scores)
    size, correlation = yield from ask_sizes(setting, frame, traits)
    process = yield from ask_process(setting, frame)
    law = _assembled(setting, traits, size, correlation, days, frame, process)
    if not lists_only:
        law = with_score_map(law, shares)
        ranks = ranks_of(law, setting.off_weight, setting.log_bounds)
    # The last correction: where real loads lie among those of the law, by time of day.
    times = 1 + 2 * TIME_HARMONICS
    seen = yield setting.ask(
        "ranks", RANK_FUNCTIONS * times, Region.BALL, 1.0, lambda days: ranks.features(days.log_load)
    )
    if lists_only:
        return law
    scale = ranks.radius / ranks.kept
    density = Seen((seen.value - ranks.clipped_mean) * scale, seen.noise * scale)
    order = np.arange(RANK_FUNCTIONS)[:, None] + 1.0
    harmonic = np.concatenate([[1.0], 1.0 + harmonic_of(times - 1)])
    found = likely(density, (_PRIOR_RANKS / np.sqrt(order * harmonic)).reshape(-1))
    corrected = ranks.corrected(found.reshape(RANK_FUNCTIONS, times))
    # Levels were asked for with less noise than ranks leave in the mean load.
    corrected = corrected + log1(mean_of(ranks.tables) / mean_of(corrected))
    return replace(law, quantiles=ranks.tables, corrected=corrected)


def _reactive(law: HistoryLaw, name: str, facts: HistoryFacts, choice: ReactiveChoice) -> HistoryReactive:
    """Reactive load of a class: declared angle, and a declared process beside it or none."""
    if not isinstance(choice, PublicSpread):
        return HistoryReactive(choice.tan_theta(name))
    lag = np.arange(facts.n_days * facts.n_steps + 1) * facts.step_minutes
    covariance = (1 - choice.white) * exp(-lag / choice.correlation_minutes)
    covariance[0] += choice.white
    ladder = law.ladder
    amplitudes = ladder.amplitudes(ladder.energies_of(covariance, facts.n_days), facts.n_days)
    return HistoryReactive(choice.tan_theta(name), choice.spread, mean_of(law.corrected), amplitudes)


@dataclass(frozen=True)
class History:
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
        if facts.days is None or options.n_components > 1:
            raise PrivacyError(
                "a history model has one law for all days, by the facts of each, and one component; give "
                "facts of days, and components = 1"
            )
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
        log_bounds = log1(cell.bounds[0]), log1(cell.bounds[1])
        off = np.array(days.off)
        setting = Setting(facts.n_steps, facts.n_days, cell.rho, log_bounds, off, days.orthonormal)
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
    by_spread : root mean square of all that is wrong, for every spread of the levels of stand-ins.
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
    """Mean day and shared factor of a class with so many customers, by the noise of their queries."""
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
