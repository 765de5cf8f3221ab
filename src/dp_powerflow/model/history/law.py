"""What is released of the histories of a class: few numbers, all from noisy integers or public constants.

And single customers of a class: their traits, their mean days, and the maps from their scores to kW.

The map of the class is bent for each customer: loads above `TOP` times its mean so that the expected peak of
a history is the customer's own, loads below `BOTTOM` so that its base is. It never passes the peak. Then it
is scaled so that the customer's expected load is its level.

How much a map is bent is found by halving an interval. A bisection ends between two neighbours of an even
grid of 2ⁿ cells: the function is below its target at the lower one and not below at the upper one. These
two values give the end of the bisection, if the function rises, from fewer values and with the same bits.
Computed values rise but for rounding, so both must differ from the target by more than that (`sure`);
otherwise the interval is halved in earnest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1, kernel, log1
from dp_powerflow._bits.linear import cholesky, ndtr1, ndtri1, product, standard_normal
from dp_powerflow._threads import in_slices
from dp_powerflow.model.history.contributions import BASE_SHARE
from dp_powerflow.model.history.numbers import Ladder, fourier, interpolate, ndtr, systematic
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray

LEVEL, PEAK, SPREAD, BASE = range(4)
"""Order of the traits of a customer."""
LOWEST_SCORE, HIGHEST_SCORE, SCORES = -7.0, 7.0, 141
"""Normal scores at which the map of a customer is tabulated."""
LOADS = 257
"""Loads at which the last map of a class is tabulated, evenly in the log between the bounds."""


@dataclass(frozen=True, eq=False)
class HistoryLaw:
    """Law of the histories of one class. Scores are normal; what they mean in kW is `score_map`'s business.

    Parameters
    ----------
    mean_day
        (step,) scores of the mean day of all customers, about their own mean.
    shape_block
        (K, K) covariance of the lowest Fourier coefficients of a customer's mean day about it.
    shape_variance
        (coefficient,) variance of the others, in order.
    level_edges, level_shares
        Histogram of log level [log kW, or log of kW per scale].
    trait_mean, trait_std, trait_correlation
        (4,), (4,), (4, 4) of log level, log of peak over mean, log size of the own process, log of base over
        mean. The mean and spread of the level are those of the histogram.
    contrast
        (step,) scores of days off less other days.
    off_share
        Share of days off in the history.
    profile
        (step,) variance of the own process over the day; its mean is one.
    factor
        (day,) shared factor on the days of the history, drawn from its posterior.
    factor_variance, factor_memory
        Of the part of the factor that covariates do not explain: variance, and correlation from day to day.
    covariates
        (covariate,) what one standard deviation of each adds to the factor, in the order of the facts, made
        orthogonal in that order.
    loading_std
        Spread of the loadings around one.
    amplitudes
        (level,) of the ladder of the own process.
    score_map
        (score,) log of load over mean at the scores of `population`.
    quantiles, corrected
        (time of day, quantile) log loads of the model at `calibrate.PROBABILITIES`, and what takes their
        place.
    """

    mean_day: FloatArray
    shape_block: FloatArray
    shape_variance: FloatArray
    level_edges: FloatArray
    level_shares: FloatArray
    trait_mean: FloatArray
    trait_std: FloatArray
    trait_correlation: FloatArray
    contrast: FloatArray
    off_share: float
    profile: FloatArray
    factor: FloatArray
    factor_variance: float
    factor_memory: float
    covariates: FloatArray
    loading_std: float
    amplitudes: FloatArray
    score_map: FloatArray
    quantiles: FloatArray
    corrected: FloatArray

    @property
    def n_steps(self) -> int:
        """T."""
        return int(self.mean_day.size)

    @property
    def n_days(self) -> int:
        """Days of the history."""
        return int(self.factor.size)

    @property
    def ladder(self) -> Ladder:
        return Ladder.of(self.n_steps, self.n_days)

    @property
    def factor_energy(self) -> float:
        """Mean square of the factor over the history."""
        return float(np.sum(self.factor * self.factor)) / self.n_days


@dataclass(frozen=True, eq=False)
class HistoryReactive:
    """Reactive load of a class: q = p·tan θ + c·p̄·ξ_i, ξ_i its own process.

    Parameters
    ----------
    tan_theta
        tan θ of the class.
    spread
        c; 0 without a random part.
    reference
        p̄ [kW, or per public scale], the mean load of the class.
    amplitudes
        (level,) of the ladder of ξ; None without a random part.
    """

    tan_theta: float
    spread: float = 0.0
    reference: float = 0.0
    amplitudes: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class HistoryClass:
    """The histories of one class.

    Parameters
    ----------
    name
        Class: a public label, or "class 1", … if the partition was private.
    weight
        Share of the load points: public, or released under differential privacy.
    bounds
        Declared public (p_min, p_max) [kW, or per public scale].
    law
        Of active load.
    reactive
        Of reactive load.
    """

    name: str
    weight: float
    bounds: tuple[float, float]
    law: HistoryLaw
    reactive: HistoryReactive


HALVINGS = 28
CELLS = 1 << HALVINGS
MOST_LOOKS = 14
"""After this many values in vain the interval is halved."""


TOP, BOTTOM = 1.5, 0.7
"""Loads over mean above and below which the map of the class is bent for a customer."""
STANDBY = 0.8
"""Share of its base that a customer's load does not fall below."""
EXPECTED_PASSES = 0.7
"""Steps of a history that are expected above the score whose load is the peak: half of all peaks pass it."""
LEAST_OWN = 0.3
"""The own process keeps at least this share of its variance, whatever the loading."""
_NODES, _REACH = 15, 3.5
_ROUNDS = 3
_BEND = (0.4, 1.8)
_BASE_BEND = (0.1, 2.0)
_LEAST_PEAK = 0.4
_SCALE = (0.6, 1.5)


@dataclass(frozen=True, eq=False)
class Individuals:
    """Customers of one class.

    Parameters
    ----------
    traits
        (customer, 4) in the order of `law`.
    shape
        (customer, step) scores of the mean day about its own mean.
    loading
        (customer,) w.
    """

    traits: FloatArray
    shape: FloatArray
    loading: FloatArray

    @classmethod
    def draw(cls, law: HistoryLaw, count: int, key: StreamKey, of: str = "") -> Individuals:
        """Customers by streams of a key, whose names end with `of`."""
        trait, shapes, loading = (
            key.stream(f"{what}{of}").generator for what in ("traits", "shapes", "loadings")
        )
        joint = product(systematic(trait.random((count, 4))), cholesky(law.trait_correlation).T)
        found = law.trait_mean + law.trait_std * joint
        below = np.concatenate([[0.0], np.cumsum(law.level_shares)])
        found[:, LEVEL] = interpolate(ndtr(joint[:, LEVEL]), below, law.level_edges)
        block = len(law.shape_block)
        shape = standard_normal(shapes, (count, block + law.shape_variance.size))
        coefficients = shape * np.sqrt(np.concatenate([np.zeros(block), law.shape_variance]))
        if block:
            coefficients[:, :block] = product(shape[:, :block], cholesky(law.shape_block).T)
        basis = fourier(law.n_steps, (coefficients.shape[1] + 1) // 2)[1 : 1 + coefficients.shape[1]]
        days = law.mean_day + product(coefficients, basis)
        weight = 1.0 + law.loading_std * systematic(loading.random((count, 1)))[:, 0]
        return cls(found, days - days.mean(axis=1, keepdims=True), weight)

    @property
    def spread(self) -> FloatArray:
        """(customer,) s."""
        return exp(self.traits[:, SPREAD])

    def own(self, law: HistoryLaw) -> FloatArray:
        """(customer,) a: what is left for the own process."""
        return np.sqrt(np.maximum(1.0 - self.loading * self.loading * law.factor_energy, LEAST_OWN))

    def score_std(self, law: HistoryLaw) -> FloatArray:
        """(customer, step) of the scores about the mean day."""
        own, shared = self.own(law), self.loading * self.loading * law.factor_energy
        variance = shared[:, None] + (own * own)[:, None] * law.profile
        return self.spread[:, None] * np.sqrt(variance)

    def offsets(self, law: HistoryLaw, score_map: FloatArray, near: FloatArray | None = None) -> FloatArray:
        """(customer,) mean score with which the expected load is the level, by the map of the class.

        Parameters
        ----------
        near
            (customer,) guesses; nothing but time depends on them.
        """
        found = np.zeros(len(self.shape)) if near is None else near.copy()
        table, std, (nodes, weights) = exp(score_map), self.score_std(law), _normal_nodes()

        def some(own: slice) -> None:
            _offsets(table, self.shape[own], std[own], nodes, weights, found[own])

        in_slices(some, len(found))
        return found

    def maps(self, law: HistoryLaw, offsets: FloatArray) -> FloatArray:
        """(customer, score) log of load over level."""
        tables = np.empty((len(self.shape), SCORES))
        peaks, bases = np.ascontiguousarray(self.traits[:, PEAK]), np.ascontiguousarray(self.traits[:, BASE])
        table, mean, std = exp(law.score_map), self.shape + offsets[:, None], self.score_std(law)
        quadrature = _normal_nodes()

        def some(own: slice) -> None:
            days = float(law.n_days)
            _bend(table, mean[own], std[own], peaks[own], bases[own], days, quadrature, tables[own])

        in_slices(some, len(tables))
        return tables


def score_grid() -> FloatArray:
    """(SCORES,) scores at which maps are tabulated."""
    step = (HIGHEST_SCORE - LOWEST_SCORE) / (SCORES - 1)
    return np.asarray(LOWEST_SCORE + step * np.arange(SCORES), dtype=np.float64)


def _normal_nodes() -> tuple[FloatArray, FloatArray]:
    nodes: FloatArray = np.asarray(-_REACH + 2 * _REACH / (_NODES - 1) * np.arange(_NODES), dtype=np.float64)
    weights = exp(-nodes * nodes / 2)
    return nodes, weights / weights.sum()


@kernel
def _at(table: FloatArray, score: float) -> float:
    """Linear interpolation in a table over the scores, ends held."""
    place = (score - LOWEST_SCORE) * ((SCORES - 1) / (HIGHEST_SCORE - LOWEST_SCORE))
    place = min(max(0.0, place), SCORES - 1.000001)  # nan: 0
    lower = int(place)
    result: float = table[lower] + (place - lower) * (table[lower + 1] - table[lower])
    return result


@kernel
def _expected(
    table: FloatArray,
    mean: FloatArray,
    offset: float,
    std: FloatArray,
    nodes: FloatArray,
    weights: FloatArray,
) -> float:
    """Mean over the day of the expected load of normal scores."""
    total = 0.0
    for t in range(mean.size):
        for k in range(nodes.size):
            total += weights[k] * _at(table, mean[t] + offset + std[t] * nodes[k])
    return total / mean.size


class _Curve(NamedTuple):
    """A rising function of a score, less its target: expected load, or without a table the steps below.

    Attributes
    ----------
    table : (score,) load over mean; empty for the steps below.
    mean, std : (step,) of the scores of a day.
    nodes, weights : quadrature of the normal law.
    target : what is taken away.
    """

    table: FloatArray
    mean: FloatArray
    std: FloatArray
    nodes: FloatArray
    weights: FloatArray
    target: float


@kernel
def _value(curve: _Curve, score: float) -> float:
    if curve.table.size:
        load = _expected(curve.table, curve.mean, score, curve.std, curve.nodes, curve.weights)
        return load - curve.target
    below = 0.0
    for t in range(curve.mean.size):
        below += ndtr1((score - curve.mean[t]) / curve.std[t])
    return below - curve.target


@kernel
def _root(
    curve: _Curve, interval: tuple[float, float], near: float, slope: float, rounding: float, looks: int
) -> float:
    """What halvings of an interval find; looks first near a guess, with a guess of the slope."""
    low, high = interval
    width = (high - low) / CELLS
    # The target lies between two places, numbers of grid points; values there, less the target.
    below, above, under, over = 0, CELLS, -np.inf, np.inf
    place = int(min(max(1.0, (near - low) / (high - low) * CELLS), CELLS - 1.0))  # nan: 1
    rise, before, value_before = slope * width, place, 0.0
    for _ in range(looks):
        value = _value(curve, place * width + low)
        if value < 0.0:
            below, under = place, value
        else:
            above, over = place, value
        if above - below == 1:
            if (below == 0 or under < -rounding) and (above == CELLS or over > rounding):
                return ((below * width + low) + (above * width + low)) / 2
            break
        if place != before:
            rise = (value - value_before) / (place - before)
        to = place - value / rise
        if not below < to < above:  # nan too
            to = (below + above) / 2
        before, value_before = place, value
        place = min(max(below + 1, int(to)), above - 1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _value(curve, middle) < 0.0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@kernel
def _offsets(
    table: FloatArray,
    shape: FloatArray,
    std: FloatArray,
    nodes: FloatArray,
    weights: FloatArray,
    out: FloatArray,
) -> None:
    """Looks first at what `out` holds; all terms are positive, so rounding is relative to their sum."""
    rising = table[0] >= 0.0 and table[table.size - 1] < np.inf
    for k in range(1, table.size):
        rising = rising and table[k] >= table[k - 1]
    looks = MOST_LOOKS if rising else 0
    rounding = 1e-15 * (shape.shape[1] * nodes.size + 16)
    for i in range(shape.shape[0]):
        curve = _Curve(table, shape[i], std[i], nodes, weights, 1.0)
        out[i] = _root(curve, (-4.0, 4.0), out[i], 1.0, rounding, looks)


@kernel
def _score_below(mean: FloatArray, std: FloatArray, share: float) -> float:
    """Score that this share of all steps lies below."""
    size, none = mean.size, np.empty(0)
    rounding = 8e-15 * size + 4e-16 * size * size
    centre, square, quantile = mean.mean(), 0.0, ndtri1(share)
    for t in range(size):
        square += std[t] * std[t] + (mean[t] - centre) * (mean[t] - centre)
    spread = np.sqrt(square / size)
    density = exp1(-quantile * quantile / 2) / 2.5066282746310002
    curve = _Curve(none, mean, std, none, none, share * size)
    near, slope = centre + quantile * spread, size * density / spread
    return _root(curve, (LOWEST_SCORE, HIGHEST_SCORE), near, slope, rounding, MOST_LOOKS)


@kernel
def _bend(
    table: FloatArray,
    mean: FloatArray,
    std: FloatArray,
    log_peak: FloatArray,
    log_base: FloatArray,
    n_days: float,
    quadrature: tuple[FloatArray, FloatArray],
    out: FloatArray,
) -> None:
    own = np.empty(SCORES)
    for i in range(mean.shape[0]):
        at_peak = _at(table, _score_below(mean[i], std[i], 1 - EXPECTED_PASSES / (n_days * mean.shape[1])))
        at_base = _at(table, _score_below(mean[i], std[i], BASE_SHARE))
        scale = 1.0
        for _ in range(_ROUNDS):  # a scale moves peak and base, which move the scale
            moved = log1(min(max(scale, _SCALE[0]), _SCALE[1]))
            peak, base = max(log_peak[i], _LEAST_PEAK) + moved, log_base[i] + moved
            top = log1(max(exp1(peak) / TOP, 1.05)) / log1(max(at_peak / TOP, 1.01))
            top = min(max(top, _BEND[0]), _BEND[1])
            bottom = min(base - log1(BOTTOM), -0.05) / min(log1(max(at_base, 1e-4) / BOTTOM), -0.05)
            bottom = min(max(bottom, _BASE_BEND[0]), _BASE_BEND[1])
            for k in range(SCORES):
                if table[k] > TOP:
                    own[k] = min(TOP * exp1(log1(table[k] / TOP) * top), exp1(peak))
                elif table[k] < BOTTOM:
                    low = BOTTOM * exp1(log1(max(table[k], 1e-9) / BOTTOM) * bottom)
                    own[k] = max(low, STANDBY * exp1(base))
                else:
                    own[k] = min(table[k], exp1(peak))
            scale = _expected(own, mean[i], 0.0, std[i], quadrature[0], quadrature[1])
        for k in range(SCORES):
            out[i, k] = log1(own[k] / scale)
