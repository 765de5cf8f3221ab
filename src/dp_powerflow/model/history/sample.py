"""Days of persistent customers, one after the other, added up per load.

For customer i of class c on day d at step t,

    z = m_i(t) + off(d)·contrast_c(t) + shared_i·f(d, t) + own_i·profile_c(t)·η_i(d, t)

is a normal score. Its load is the customer's own map of scores to loads, then the last map of the class.
f is the shared factor, linear between the middles of the days. Load k is Σ_i p_i, its reactive power
Σ_i tanθ_i·p_i and one random process per class, at most `MOST_DEVIATIONS` standard deviations.

A day's loads are a function of the key, the population, the factor and the day: not of blocks, workers or the
number of days. A block is one call of a kernel that lets other threads run: tile by tile of customers, day by
day, from the words of AES to the sums. Customers are in single precision, sums in double.

Cost of a step of a customer: `flops_per_value` floating-point operations, 8 bytes of AES, two look-ups of 8
bytes, and 32 bytes read and written in the sums; all of it in the cache but the sums of a block.

Nothing here sees meter data: it is all post-processing of a released model.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dp_powerflow._bits.elementary import kernel, log, log1
from dp_powerflow._bits.linear import product, standard_normal
from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history import process as own_process
from dp_powerflow.model.history.estimate import last_map
from dp_powerflow.model.history.individuals import Individuals
from dp_powerflow.model.history.law import (
    HIGHEST_SCORE,
    LOADS,
    LOWEST_SCORE,
    SCORES,
    ClassPath,
    HistoryClass,
    Population,
)
from dp_powerflow.model.history.numbers import MARGIN, at_steps, path, systematic
from dp_powerflow.model.history.one_pass import Ladder
from dp_powerflow.model.history.process import TILE, Process, Recipe, ShortArray, Work, draw_day, tile_of
from dp_powerflow.model.options import DayFacts
from dp_powerflow.model.sample import MOST_DEVIATIONS, Sampler
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, FloatArray, IntArray

_SCORES_PER_UNIT = (SCORES - 1) / (HIGHEST_SCORE - LOWEST_SCORE)


@dataclass(frozen=True, eq=False)
class PlacedPopulation:
    """Where the loads of a population belong.

    Parameters
    ----------
    population
        The customers.
    base_mva
        Power base [MVA per node].
    positions
        (load,) positions of the loads among those of the feeder.
    shares
        Complex (retained node, load of the feeder) nodal power per unit of load power, where power flow is
        solved node by node; None where it is solved load by load.
    """

    population: Population
    base_mva: float
    positions: IntArray
    shares: sp.csr_array | None = None

    def __post_init__(self) -> None:
        if len(self.positions) != self.population.n_loads:
            raise PrivacyError("the loads of a population need one position each among those of the feeder")

    @property
    def n(self) -> int:
        """Number of loads."""
        return len(self.positions)

    @property
    def steps(self) -> int:
        """T."""
        return self.population.steps

    @property
    def identity(self) -> str:
        """Hash of the model that the customers come from."""
        return self.population.identity


@dataclass(frozen=True, eq=False)
class HistorySampler(Sampler):
    """Draws consecutive days of a population.

    Parameters
    ----------
    law
        The customers, and where their loads belong.
    key
        Secret streams.
    n_days
        Days to draw.
    off
        (day,) weight of the contrast: 1 minus the share of days off on a day off, minus that share else.
    factor
        (class, day + 2) shared factor of the day before the first, every day, and the day after the last.
    block_days
        Days of one block; None for what `days_per_block` says. Draws do not depend on it.
    """

    law: PlacedPopulation
    key: StreamKey
    n_days: int
    off: FloatArray
    factor: FloatArray
    block_days: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = (len(self.law.population.classes), self.n_days + 2)
        if self.off.shape != (self.n_days,) or self.factor.shape != wanted:
            raise PrivacyError(
                "a history needs, for every day, the weight of the contrast and, for every class, the shared "
                "factor of every day, the one before and the one after"
            )

    def _draw(self, block: int, first: int, loads: tuple[FloatArray, FloatArray]) -> None:
        for number in range(len(self.law.population.classes)):
            own = self.process_of(number)
            shapes = self._day_shapes(number, first, loads[0].shape[1])
            _add_customers(own.recipe, own.work(), self._customers[number], shapes, self._maps[number], loads)
            self._add_random_part(number, first, loads[1])

    def process_of(self, number: int) -> Process:
        """The process that is the customers' own, of one class; copy k is its customer k."""
        return self._processes[number]

    def reactive_of(self, number: int) -> Process | None:
        """The random part of the reactive load, of one class; copy k is load k."""
        return self._reactive_processes[number]

    @cached_property
    def _processes(self) -> tuple[Process, ...]:
        return tuple(
            Process(part.ladder, part.amplitudes, self._key, f"customers/{part.name}")
            for part in self.law.population.classes
        )

    @cached_property
    def _reactive_processes(self) -> tuple[Process | None, ...]:
        return tuple(
            None
            if part.reactive_amplitudes is None
            else Process(part.ladder, part.reactive_amplitudes, self._key, f"reactive/{part.name}")
            for part in self.law.population.classes
        )

    @cached_property
    def _customers(self) -> tuple[_Customers, ...]:
        people = self.law.population
        return tuple(
            _customers(people, np.flatnonzero(people.class_of == k)) for k in range(len(people.classes))
        )

    @cached_property
    def _maps(self) -> tuple[_LastMap, ...]:
        return tuple(_last_map(part) for part in self.law.population.classes)

    def _day_shapes(self, number: int, first: int, days: int) -> _DayShapes:
        part = self.law.population.classes[number]
        factor = at_steps(self.factor[number, first : first + days + 2], self.law.steps)
        contrast = self.off[first : first + days, None] * part.contrast
        return _DayShapes(
            first, _short(_SCORES_PER_UNIT * contrast), _short(factor), _short(part.own_profile)
        )

    def _add_random_part(self, number: int, first: int, reactive: FloatArray) -> None:
        """Add the random part of q of the customers of one class: a process for each load."""
        process, size_kvar = self.reactive_of(number), self.law.population.reactive_kvar[number]
        if process is not None and size_kvar.any():
            _add_random(process.recipe, process.work(), first, size_kvar, reactive)


class _Customers(NamedTuple):
    """The customers of one class; see `Population`.

    Attributes
    ----------
    load_of, scale_kw, tan_theta : (customer,).
    mean_day : (customer, step) places in the own map.
    shared, own : (customer,) places per unit of factor and process.
    own_map : (customer, `SCORES` − 1) log of the load where each piece begins, and its rise over the piece:
        two numbers of single precision in one word.
    """

    load_of: IntArray
    scale_kw: FloatArray
    tan_theta: FloatArray
    mean_day: ShortArray
    shared: ShortArray
    own: ShortArray
    own_map: IntArray


class _DayShapes(NamedTuple):
    """What a class has in common: (day, step) places by contrast and factor, (step,) profile."""

    first: int
    contrast: ShortArray
    factor: ShortArray
    profile: ShortArray


class _LastMap(NamedTuple):
    """Last map of a class.

    Attributes
    ----------
    pieces : (time of day · (`LOADS` − 1),) load where each piece begins, and its rise, in one word.
    first : (step,) where the pieces of its time of day begin.
    lowest, per_log : log of the load of piece 0, pieces to a unit of it.
    bounds : (lowest, highest) load.
    """

    pieces: IntArray
    first: NDArray[np.uint32]
    lowest: np.float32
    per_log: np.float32
    bounds: tuple[float, float]


def _short(values: FloatArray) -> ShortArray:
    return np.ascontiguousarray(values, dtype=np.float32)


def _pieces(table: FloatArray) -> IntArray:
    """Values (..., n) at places 0, 1, … → (..., n − 1) words: where a piece begins, and its rise."""
    both = np.stack([table[..., :-1], np.diff(table, axis=-1)], axis=-1)
    return _short(both).view(np.int64)[..., 0]


def _customers(people: Population, chosen: IntArray) -> _Customers:
    mean = (people.mean_day[chosen] - LOWEST_SCORE) * _SCORES_PER_UNIT
    return _Customers(
        people.load_of[chosen],
        people.scale_kw[chosen],
        people.tan_theta[chosen],
        _short(mean),
        _short(people.shared[chosen] * _SCORES_PER_UNIT),
        _short(people.own[chosen] * _SCORES_PER_UNIT),
        _pieces(people.log_map[chosen]),
    )


def _last_map(part: ClassPath) -> _LastMap:
    lowest, highest = log(np.array(part.bounds))
    steps = len(part.contrast)
    first = (np.arange(steps) * len(part.last_map) // steps * (LOADS - 1)).astype(np.uint32)
    per_log = (LOADS - 1) / (highest - lowest)
    pieces = _pieces(part.last_map).reshape(-1)
    return _LastMap(pieces, first, np.float32(lowest), np.float32(per_log), part.bounds)


class _Row(NamedTuple):
    """Work space of one customer's day, (step,): places, then values; pieces; what they hold."""

    x: ShortArray
    piece: NDArray[np.uint32]
    word: IntArray


@kernel
def _look_up(row: _Row, table: IntArray, first: NDArray[np.uint32], pieces: int) -> None:
    """The map at the places of a row: pieces from `first` on, linear in each; the ends hold beyond, nan is 0.

    Three loops: only the second, of plain loads, does not run on vectors. Unsigned numbers need no check.
    """
    x, piece, word = row.x, row.piece, row.word
    end, last = np.float32(pieces), np.int32(pieces - 1)
    for t in range(x.size):
        inside = min(max(np.float32(0.0), x[t]), end)
        k = np.int32(min(np.int32(inside), last))
        x[t] = inside - np.float32(k)
        piece[t] = np.uint32(first[t] + np.uint32(k))
    for t in range(x.size):
        word[t] = table[piece[t]]
    for t in range(x.size):
        begins, rises = np.int32(word[t]).view(np.float32), np.int32(word[t] >> 32).view(np.float32)
        x[t] = begins + x[t] * rises


@kernel
def _add_customers(
    recipe: Recipe,
    work: Work,
    who: _Customers,
    shapes: _DayShapes,
    last: _LastMap,
    sums: tuple[FloatArray, FloatArray],
) -> None:
    """Add the customers of one class to the sums of their loads (load, day, step), in ascending order."""
    steps, customers = sums[0].shape[2], who.load_of.size
    row = _Row(
        np.empty(steps, dtype=np.float32), np.empty(steps, dtype=np.uint32), np.empty(steps, dtype=np.int64)
    )
    start_of_map = np.zeros(steps, dtype=np.uint32)
    for start in range(0, customers, TILE):
        tile = tile_of(start, customers)
        work.held[:] = 0
        for day in range(sums[0].shape[1]):
            at = draw_day(recipe, shapes.first + day, tile, work)
            for k in range(min(TILE, customers - start)):
                i = start + k
                shared, own, x = who.shared[i], who.own[i], row.x
                for t in range(steps):
                    x[t] = work.eta[at + t, k]
                for t in range(steps):
                    common = who.mean_day[i, t] + shapes.contrast[day, t] + shared * shapes.factor[day, t]
                    x[t] = common + own * shapes.profile[t] * x[t]
                _look_up(row, who.own_map[i], start_of_map, SCORES - 1)
                for t in range(steps):
                    x[t] = (x[t] - last.lowest) * last.per_log
                _look_up(row, last.pieces, last.first, LOADS - 1)
                load, scale, tan_theta = who.load_of[i], who.scale_kw[i], who.tan_theta[i]
                for t in range(steps):
                    power = scale * min(max(np.float64(x[t]), last.bounds[0]), last.bounds[1])
                    sums[0][load, day, t] += power
                    sums[1][load, day, t] += tan_theta * power


@kernel
def _add_random(recipe: Recipe, work: Work, first: int, size: FloatArray, reactive: FloatArray) -> None:
    """Add a process of each load, cut at `MOST_DEVIATIONS`, times its size (load,)."""
    loads, days, steps = reactive.shape
    for start in range(0, loads, TILE):
        tile = tile_of(start, loads)
        work.held[:] = 0
        for day in range(days):
            row = draw_day(recipe, first + day, tile, work)
            for i in range(min(TILE, loads - start)):
                for t in range(steps):
                    zeta = min(max(np.float64(work.eta[row + t, i]), -MOST_DEVIATIONS), MOST_DEVIATIONS)
                    reactive[start + i, day, t] += size[start + i] * zeta


def flops_per_value(ladder: Ladder) -> float:
    """Floating-point operations of a step of a customer, from words to sums; see `process.flops_per_value`.

    Six to the place in the own map, three in each look-up, two between them, and four to the sums.
    """
    return own_process.flops_per_value(ladder) + 18


MOST_TAN_DEVIATIONS = 2.0
"""A customer's tan θ lies within so many standard deviations of its class's."""


def population_of(
    classes: Sequence[HistoryClass],
    identity: str,
    names: Sequence[str],
    load_of: IntArray,
    scale_kw: FloatArray | None,
    tan_theta: FloatArray,
    key: StreamKey,
) -> Population:
    """Draw the customers of a corpus.

    Parameters
    ----------
    classes
        Of the model.
    identity
        Hash of the model.
    names
        Class of every customer.
    load_of
        (customer,) number of the load that the customer is part of, ascending.
    scale_kw
        (customer,) public scale [kW]; None where the model is relative to none.
    tan_theta
        (customer,) declared tangents; NaN where that of the class holds.
    key
        Secret of the draws.
    """
    known = {part.name: part for part in classes}
    missing = sorted(set(names) - known.keys())
    if missing:
        raise PrivacyError(f"the load model has no class '{missing[0]}'; it has {', '.join(known)}")
    used = [part for part in classes if part.name in set(names)]
    index = {part.name: k for k, part in enumerate(used)}
    class_of = np.array([index[name] for name in names], dtype=np.int64)
    n, n_steps = len(names), used[0].law.n_steps
    scale = np.ones(n) if scale_kw is None else np.asarray(scale_kw, dtype=np.float64)
    mean_day, log_map = np.empty((n, n_steps)), np.empty((n, used[0].law.score_map.size))
    shared, own, tangent = (np.empty(n) for _ in range(3))
    bound = key.bind("model", identity)
    for ell, part in enumerate(used):
        chosen, law = np.flatnonzero(class_of == ell), part.law
        people = _people(part, chosen.size, bound)
        offsets = people.offsets(law, law.score_map)
        low, high = log1(part.bounds[0]), log1(part.bounds[1])
        mean_day[chosen] = people.shape + offsets[:, None]
        log_map[chosen] = np.clip(people.maps(law, offsets) + people.traits[:, :1], low, high)
        shared[chosen] = people.spread * people.loading
        own[chosen] = people.spread * people.own(law)
        tangent[chosen] = _tangents(part, chosen.size, bound)
    declared = np.isfinite(tan_theta)
    return Population(
        classes=tuple(_path_of(part) for part in used),
        class_of=class_of,
        load_of=load_of,
        scale_kw=scale,
        tan_theta=np.where(declared, tan_theta, tangent),
        mean_day=mean_day,
        shared=shared,
        own=own,
        log_map=log_map,
        reactive_kvar=_reactive_kvar(used, class_of, load_of, scale),
        identity=identity,
    )


def _people(part: HistoryClass, count: int, key: StreamKey) -> Individuals:
    law = part.law
    coefficients = len(law.shape_block) + law.shape_variance.size
    # The class comes last in the names of streams: no label makes two of them, or those of days, the same.
    trait = systematic(key.stream(f"traits/{part.name}").generator.random((count, 4)))
    shape = standard_normal(key.stream(f"shapes/{part.name}").generator, (count, coefficients))
    loading = systematic(key.stream(f"loadings/{part.name}").generator.random((count, 1)))[:, 0]
    return Individuals.draw(law, trait, shape, loading)


def _tangents(part: HistoryClass, count: int, key: StreamKey) -> FloatArray:
    normal = standard_normal(key.stream(f"angles/{part.name}").generator, (count,))
    away = np.clip(normal, -MOST_TAN_DEVIATIONS, MOST_TAN_DEVIATIONS)
    found: FloatArray = part.reactive.tan_theta + part.reactive.tan_std * away
    return found


def _path_of(part: HistoryClass) -> ClassPath:
    law = part.law
    return ClassPath(
        name=part.name,
        contrast=law.contrast,
        own_profile=np.sqrt(law.profile),
        ladder=law.ladder,
        amplitudes=law.amplitudes,
        bounds=part.bounds,
        last_map=last_map(law, (log1(part.bounds[0]), log1(part.bounds[1]))),
        reactive_amplitudes=part.reactive.amplitudes,
    )


def _reactive_kvar(
    used: Sequence[HistoryClass], class_of: IntArray, load_of: IntArray, scale_kw: FloatArray
) -> FloatArray:
    """(class, load) standard deviation of the sum of the customers' random parts [kvar]."""
    size = np.array(
        [p.reactive.spread * p.reactive.reference if p.reactive.amplitudes is not None else 0.0 for p in used]
    )
    variance = (scale_kw * size[class_of]) ** 2
    loads = int(load_of[-1]) + 1
    own = [np.where(class_of == ell, variance, 0.0) for ell in range(len(used))]
    return np.sqrt([np.bincount(load_of, each, minlength=loads) for each in own])


def path_of(
    classes: Sequence[HistoryClass],
    facts: DayFacts,
    days: Sequence[dt.date],
    off: BoolArray,
    covariates: Mapping[str, FloatArray],
    key: StreamKey,
) -> tuple[FloatArray, FloatArray]:
    """Weight of the contrast (day,), and shared factor (class, day + 2), of consecutive days.

    On days of the history the factor is the released one. On others it is what the covariates of the day
    explain, and a draw of the rest that all classes share.

    Parameters
    ----------
    facts
        Of the days of the history.
    days
        Of the corpus.
    off
        (day,) whether a day is a day off.
    covariates
        Name → (day,) values on the days of the corpus, for the covariates of the facts.
    key
        Secret of the draws, bound to the model.
    """
    normal = standard_normal(key.stream("shared factor").generator, (MARGIN + len(days) + 2,))
    explained = facts.orthonormal_at(covariates, len(days))
    before, after = (days[0] - dt.timedelta(1)).isoformat(), (days[-1] + dt.timedelta(1)).isoformat()
    dates = [before, *(day.isoformat() for day in days), after]
    place = {date: k for k, date in enumerate(facts.dates)}
    metered = np.array([place.get(date, -1) for date in dates])
    factor = np.empty((len(classes), len(dates)))
    for ell, part in enumerate(classes):
        law = part.law
        drawn = path(law.factor_variance, law.factor_memory, normal)
        if explained.shape[1]:
            # The covariates of the day before and of the day after are taken to be those of their neighbours.
            drawn += product(explained[[0, *range(len(days)), -1]], law.covariates)
        factor[ell] = np.where(metered >= 0, law.factor[np.maximum(metered, 0)], drawn)
    share = classes[0].law.off_share
    return np.asarray(off - share, dtype=np.float64), factor


def draw_population(
    model: LoadModel,
    names: Sequence[str],
    load_of: IntArray,
    scale_kw: FloatArray | None,
    tan_theta: FloatArray,
    key: StreamKey,
) -> Population:
    """Draw the customers of a corpus from a released model; see `population_of`.

    Raises
    ------
    PrivacyError
        If a class is unknown, or scales are missing or not wanted.
    """
    if model.scaled != (scale_kw is not None):
        raise PrivacyError("give a public scale for every customer if, and only if, the model is scaled")
    return population_of(model.histories, model.sha256, names, load_of, scale_kw, tan_theta, key)


def shared_path(
    model: LoadModel,
    population: Population,
    calendar: Calendar,
    covariates: Mapping[str, FloatArray],
    key: StreamKey,
) -> tuple[FloatArray, FloatArray]:
    """Weight of the contrast, and shared factor of the classes of a population, on the days of a calendar."""
    if model.origin is None or model.origin.facts.days is None:
        raise PrivacyError("this load model does not say what days it was fitted on; use one of a release")
    used = {part.name for part in population.classes}
    classes = [part for part in model.histories if part.name in used]
    bound = key.bind("model", model.sha256)
    return path_of(classes, model.origin.facts.days, calendar.days, calendar.off, covariates, bound)
