"""From scores to kW: the map of a class, and its last correction by ranks. All of it is post-processing.

The map of the class makes the loads over mean of all customers follow the released histogram. It is found
with customers drawn from the law by a public key, whose mean scores are those with which every customer's
expected load is its level. Their loads, by time of day, are the tables in which the ranks of real loads are
asked for; the difference to the model's own ranks bends the tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, kernel
from dp_powerflow._bits.linear import norms, product, standard_normal
from dp_powerflow._bits.normal_rows import ndtr_ascending
from dp_powerflow._threads import in_order, slices
from dp_powerflow.model.history.contributions import bin_edges, rank_features
from dp_powerflow.model.history.individuals import Individuals, score_grid
from dp_powerflow.model.history.law import HIGHEST_SCORE, LOADS, LOWEST_SCORE, SCORES, HistoryLaw
from dp_powerflow.model.history.numbers import fourier, interpolate, systematic
from dp_powerflow.model.records import Customers
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
