"""Days of persistent customers, one after the other, added up per load.

For customer i of class c on day d at step t,

    z = m_i(t) + off(d)·contrast_c(t) + shared_i·f(d, t) + own_i·profile_c(t)·η_i(d, t)

is a normal score. Its load is the customer's own map of scores to loads, then the last map of the class.
f is the shared factor, linear between the middles of the days. Load k is Σ_i p_i, its reactive power
Σ_i tanθ_i·p_i and one random process per class, at most `MOST_DEVIATIONS` standard deviations.

A day's loads are a function of the key, the population, the factor and the day: not of blocks, workers or the
number of days. A block is one call of a kernel that lets other threads run: tile by tile of customers, day by
day, from the words of AES to the sums. Customers are in single precision, sums in double.

Cost of a step of a customer: 8 bytes of AES, two look-ups of 8 bytes, and 32 bytes read and written in the
sums; all of it in the cache but the sums of a block. `benchmarks/limits.py` counts the operations.

Nothing here sees meter data: it is all post-processing of a released model.

**Processes.** Many independent copies of a process of the ladder, in one kernel: AES, normals, splines.

**Noise.** The noise of (level, cell, copy) is a function of (key, purpose) and these three numbers: counter
cell·2⁶⁴ + level·2³² + copy/4 of one AES stream gives words of 32 bits for four copies, and cells 2k and
2k + 1 are one pair of normals. No two of them share a counter. So the copies have the same values whichever
days are asked for, in whatever order, however many copies there are.

**Splines.** A level is its noise smoothed by a cubic B-spline. A spline of spacing m·h is one of spacing h,
with averaged coefficients: one pass from the longest spacing to the shortest, adding the
noise of each on its way, gives the sum of all levels at a cost of two rows per step. `Ladder` says what the
sum is, level by level; the two agree to rounding.

Everything is single precision and fixed in order; a tile of `TILE` copies stays in the cache.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dp_powerflow._bits.aes import WordArray, counter_words
from dp_powerflow._bits.elementary import exp, kernel, log, log1
from dp_powerflow._bits.linear import product, standard_normal
from dp_powerflow._bits.normal_pairs import short_pair1
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.history.law import (
    HIGHEST_SCORE,
    LOADS,
    LOWEST_SCORE,
    SCORES,
    HistoryClass,
    HistoryLaw,
    Individuals,
)
from dp_powerflow.model.history.numbers import CELLS_AFTER, MARGIN, Ladder, at_steps, interpolate, path
from dp_powerflow.model.options import DayFacts
from dp_powerflow.model.sample import MOST_DEVIATIONS, Sampler, random_kvar
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, FloatArray, IntArray

ShortArray = NDArray[np.float32]
TILE = 128
"""Copies at a time; the values do not depend on it."""
_LANES = 16  # a tile that is not full is filled up to a multiple
_TAPS = CELLS_AFTER + 1
_SPARE = 3  # rows of a level's noise beyond one day: pairs begin at even cells


class Recipe(NamedTuple):
    """How the days of a process are made; levels of a day or more first, then from long spacings to short.

    Levels of amplitude 0 are left out, but for those between two others within a day.

    Attributes
    ----------
    keys : (22,) round keys of the stream.
    level : (smoothed level,) its number in the ladder.
    cells : (smoothed level,) cells of a day; minus the days of a cell where that is a day or more.
    rows : (smoothed level + 1,) where its noise begins in the work space.
    slow : (phase, 4, 4 per slow level) from the noise of slow levels to the spline of spacing one day, by the
        number of the day modulo the longest spacing.
    top : (cell, 4) from that spline to the one of the longest spacing within a day.
    scale : (level within a day,) what its noise is multiplied by.
    taps : (spacing, 4) of the shortest spline at its steps.
    white : (1,) amplitude of the first level.
    """

    keys: WordArray
    level: IntArray
    cells: IntArray
    rows: IntArray
    slow: ShortArray
    top: ShortArray
    scale: ShortArray
    taps: ShortArray
    white: ShortArray


class Work(NamedTuple):
    """Work space of one tile.

    Attributes
    ----------
    words, halves : (2 · tile / 2,), the same memory as (2 · tile,) words of 32 bits.
    noise : (row, copy) of all smoothed levels.
    held : (smoothed level, 2) first cell in `noise`, first that is not in it; both 0 before the first day.
    coarse, fine : (cell, copy) of splines.
    eta : (step + 2, copy) of one day; it begins at row `at_row`.
    """

    words: WordArray
    halves: NDArray[np.uint32]
    noise: ShortArray
    held: IntArray
    coarse: ShortArray
    fine: ShortArray
    eta: ShortArray


@dataclass(frozen=True, eq=False)
class Process:
    """Independent copies of one process.

    Parameters
    ----------
    ladder, amplitudes
        Of the process.
    key, purpose
        Of the stream.
    """

    ladder: Ladder
    amplitudes: FloatArray
    key: StreamKey
    purpose: str

    def work(self) -> Work:
        """Work space for the days of one tile after the other."""
        recipe, steps = self.recipe, self.ladder.n_steps
        halves = np.empty(2 * TILE, dtype=np.uint32)
        cells = max(_TAPS, steps // 2 + CELLS_AFTER)
        rows = (int(recipe.rows[-1]), cells, cells, steps + 2)
        noise, coarse, fine, eta = (np.zeros((count, TILE), dtype=np.float32) for count in rows)
        held = np.zeros((recipe.level.size, 2), dtype=np.int64)
        return Work(halves.view(np.uint64), halves, noise, held, coarse, fine, eta)

    @cached_property
    def recipe(self) -> Recipe:
        """What the kernel needs to know."""
        steps, spacings = self.ladder.n_steps, self.ladder.spacings
        used = [k for k in range(1, len(spacings)) if self.amplitudes[k] != 0.0]
        slow = [k for k in used if spacings[k] >= steps]
        ends = [k for k in used if spacings[k] < steps]
        within = list(range(max(ends), min(ends) - 1, -1)) if ends else []
        days = [spacings[k] // steps for k in slow]
        cells = np.array([*(-each for each in days), *(steps // spacings[k] for k in within)], dtype=np.int64)
        rows = np.cumsum([0, *(max(each, 1) + CELLS_AFTER + _SPARE for each in cells.tolist())])
        longest = spacings[within[0]] if within else steps
        shortest = spacings[within[-1]] if within else steps
        return Recipe(
            keys=self.key.stream(self.purpose).round_keys,
            level=np.array([*slow, *within], dtype=np.int64),
            cells=cells,
            rows=np.asarray(rows, dtype=np.int64),
            slow=self._slow(slow, days),
            top=_short(refinement(steps // longest, 0, steps // longest + CELLS_AFTER if within else 0)),
            scale=_short(np.array([self.amplitudes[k] * self._size(k) for k in within])),
            taps=_short(_taps(shortest)),
            white=_short(self.amplitudes[:1]),
        )

    def _size(self, level: int) -> float:
        """What a B-spline of this spacing is multiplied by; B-splines at a step add up to one."""
        return float(self.ladder.weights[level].sum()) / self.ladder.spacings[level]

    def _slow(self, levels: list[int], days: list[int]) -> ShortArray:
        period = max(days, default=1)
        found = np.zeros((period, _TAPS, _TAPS * len(levels)))
        for phase in range(period):
            for k, (level, spacing) in enumerate(zip(levels, days, strict=True)):
                part = refinement(spacing, phase % spacing, _TAPS)
                found[phase, :, _TAPS * k : _TAPS * (k + 1)] = (
                    self.amplitudes[level] * self._size(level) * part
                )
        return _short(found)


def refinement(ratio: int, first: int, count: int) -> FloatArray:
    """(count, 4): cubic B-spline coefficients at a `ratio`-th of the spacing, from a cell's own and the three
    after it. The first belongs to part `first` of the cell.
    """
    mask = np.ones(1)
    for _ in range(_TAPS):
        mask = np.convolve(mask, np.ones(ratio))
    shift = (first + np.arange(count))[:, None] - 1 - ratio * (np.arange(_TAPS) - 1) + 2 * (ratio - 1)
    inside = (shift >= 0) & (shift < mask.size)
    found: FloatArray = np.where(inside, mask[np.clip(shift, 0, mask.size - 1)], 0.0) / ratio**3
    return found


def _taps(spacing: int) -> FloatArray:
    """(spacing, 4) cubic B-spline at the middles of the steps of a cell: weights of it and the next three."""
    x = (np.arange(spacing) + 0.5) / spacing
    back = 1.0 - x
    middle = (2 / 3 - x * x + x * x * x / 2, 2 / 3 - back * back + back * back * back / 2)
    return np.stack([back * back * back / 6, *middle, x * x * x / 6], axis=1)


def _short(values: FloatArray) -> ShortArray:
    return np.ascontiguousarray(values, dtype=np.float32)


@kernel
def _words(keys: WordArray, level: int, cell: int, tile: tuple[int, int], words: WordArray) -> None:
    """The words of an even cell and of the next, for the copies of a tile."""
    low, blocks = (level << 32) + tile[0] // 4, tile[1] // 4
    counter_words(keys, low, cell, blocks, words, 0)
    counter_words(keys, low, cell + 1, blocks, words, TILE // 2)


@kernel
def _hold(recipe: Recipe, k: int, begin: int, count: int, tile: tuple[int, int], work: Work) -> int:
    """Have cells `begin` on of a smoothed level in the work space; the row of the first."""
    row, base, noise = int(recipe.rows[k]), begin - begin % 2, work.noise
    before, made = work.held[k, 0], work.held[k, 1]
    if not before <= base < made:
        made = base
    elif before < base:
        for r in range(row, row + made - base):
            for i in range(tile[1]):
                noise[r, i] = noise[r + base - before, i]
    for cell in range(made, begin + count, 2):
        _words(recipe.keys, recipe.level[k], cell, tile, work.words)
        at = row + cell - base
        for i in range(tile[1]):
            noise[at, i], noise[at + 1, i] = short_pair1(work.halves[i], work.halves[TILE + i])
        made = cell + 2
    work.held[k, 0], work.held[k, 1] = base, made
    return row + begin - base


@kernel
def _slow_splines(recipe: Recipe, day: int, tile: tuple[int, int], work: Work) -> int:
    """Spline of spacing one day, four coefficients, into `coarse`; how many levels it is the sum of."""
    width = tile[1]
    weights = recipe.slow[day % recipe.slow.shape[0]]
    for j in range(_TAPS):
        for i in range(width):
            work.coarse[j, i] = np.float32(0.0)
    levels = int(weights.shape[1] // _TAPS)
    for k in range(levels):
        row = _hold(recipe, k, day // -recipe.cells[k], _TAPS, tile, work)
        for j in range(_TAPS):
            a, b = weights[j, _TAPS * k], weights[j, _TAPS * k + 1]
            c, d = weights[j, _TAPS * k + 2], weights[j, _TAPS * k + 3]
            for i in range(width):
                one = a * work.noise[row, i] + b * work.noise[row + 1, i]
                two = c * work.noise[row + 2, i] + d * work.noise[row + 3, i]
                work.coarse[j, i] += one + two
    return levels


@kernel
def _finer(
    coarse: ShortArray, noise: ShortArray, row: int, scale: np.float32, width: int, fine: ShortArray
) -> None:
    """A spline at half the spacing, and the noise of that level."""
    half, eighth, most = np.float32(0.5), np.float32(0.125), np.float32(0.75)
    for m in range(fine.shape[0] // 2):
        for i in range(width):
            fine[2 * m, i] = scale * noise[row + 2 * m, i] + half * (coarse[m, i] + coarse[m + 1, i])
        for i in range(width):
            sides = eighth * (coarse[m, i] + coarse[m + 2, i])
            fine[2 * m + 1, i] = scale * noise[row + 2 * m + 1, i] + (sides + most * coarse[m + 1, i])
    if fine.shape[0] % 2:
        last = fine.shape[0] - 1
        for i in range(width):
            pair = coarse[last // 2, i] + coarse[last // 2 + 1, i]
            fine[last, i] = scale * noise[row + last, i] + half * pair


@kernel
def draw_day(recipe: Recipe, day: int, tile: tuple[int, int], work: Work) -> int:
    """One day of the copies of a tile into `work.eta`; the row of its first step.

    A tile is its first copy and how many there are, a multiple of 16. Ask for one tile's days in ascending
    order, and clear `work.held` before the next.
    """
    width = tile[1]
    slow = _slow_splines(recipe, day, tile, work)
    coarse, fine = work.coarse, work.fine
    for k in range(slow, recipe.level.size):
        cells = recipe.cells[k]
        row, scale = recipe.rows[k], recipe.scale[k - slow]
        if scale != np.float32(0.0):  # else its noise is 0 as it was made
            row = _hold(recipe, k, day * cells, cells + CELLS_AFTER, tile, work)
        if k == slow:
            for r in range(cells + CELLS_AFTER):
                a, b, c, d = recipe.top[r, 0], recipe.top[r, 1], recipe.top[r, 2], recipe.top[r, 3]
                for i in range(width):
                    one = a * coarse[0, i] + b * coarse[1, i]
                    two = c * coarse[2, i] + d * coarse[3, i]
                    fine[r, i] = scale * work.noise[row + r, i] + (one + two)
        else:
            _finer(coarse, work.noise, row, scale, width, fine[: cells + CELLS_AFTER])
        coarse, fine = fine, coarse
    return _add_up(recipe, day, tile, coarse, work)


@kernel
def _add_up(recipe: Recipe, day: int, tile: tuple[int, int], spline: ShortArray, work: Work) -> int:
    """White noise and the shortest spline, step by step."""
    width = tile[1]
    steps, spacing = work.eta.shape[0] - 2, recipe.taps.shape[0]
    before = int((day * steps) % 2)
    white = recipe.white[0]
    for pair in range(-before, steps, 2):
        _words(recipe.keys, 0, day * steps + pair, tile, work.words)
        at = before + pair
        for i in range(width):
            one, two = short_pair1(work.halves[i], work.halves[TILE + i])
            work.eta[at, i] = white * one
            work.eta[at + 1, i] = white * two
        for t in range(max(pair, 0), min(pair + 2, steps)):
            x, m = t % spacing, t // spacing
            a, b, c, d = recipe.taps[x, 0], recipe.taps[x, 1], recipe.taps[x, 2], recipe.taps[x, 3]
            for i in range(width):
                left = a * spline[m, i] + b * spline[m + 1, i]
                right = c * spline[m + 2, i] + d * spline[m + 3, i]
                work.eta[before + t, i] += left + right
    return before


@kernel
def tile_of(start: int, copies: int) -> tuple[int, int]:
    """First copy and width of the tile that begins at a copy."""
    return start, min(TILE, (copies - start + _LANES - 1) // _LANES * _LANES)


_SCORES_PER_UNIT = (SCORES - 1) / (HIGHEST_SCORE - LOWEST_SCORE)


@dataclass(frozen=True, eq=False)
class ClassPath:
    """What the customers of one class share from day to day.

    Parameters
    ----------
    name
        Of the class; part of the names of its streams.
    contrast
        (step,) added to the scores on a day off, in part.
    own_profile
        (step,) √v: spread of a customer's own process over the day.
    ladder
        Of the process.
    amplitudes
        (level,) of the ladder; their squares add up to one.
    bounds
        (p_min, p_max) [kW, or per public scale].
    last_map
        (time of day, `LOADS`) [kW, or per public scale]: the load that takes the place of the one tabulated,
        by times of day of equal length.
    reactive_amplitudes
        (level,) of the random part of the reactive load; their squares add up to one. None at a fixed power
        factor.
    """

    name: str
    contrast: FloatArray
    own_profile: FloatArray
    ladder: Ladder
    amplitudes: FloatArray
    bounds: tuple[float, float]
    last_map: FloatArray
    reactive_amplitudes: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Population:
    """Customers and what it takes to draw their days; made from a released model and a key.

    Parameters
    ----------
    classes
        What the customers of each class share.
    class_of
        (customer,) index into `classes`.
    load_of
        (customer,) number of the load that the customer is part of, ascending, none left out.
    scale_kw
        (customer,) public scale [kW]; 1 where the model is relative to none.
    tan_theta
        (customer,) tangent of the power-factor angle.
    mean_day
        (customer, step) scores of the mean day.
    shared
        (customer,) s·w, what the shared factor is multiplied by.
    own
        (customer,) s·a, what the customer's own process is multiplied by, besides the profile.
    log_map
        (customer, `SCORES`) log of the load [log kW, or log of kW per scale] at evenly spaced scores from
        `LOWEST_SCORE` to `HIGHEST_SCORE`; within the bounds of the class.
    reactive_kvar
        (class, load) standard deviation of the random part of q [kvar]; 0 at a fixed power factor.
    identity
        Hash of the model; the streams of the draws are bound to it.
    base_mva
        Power base [MVA per node].
    positions
        (load,) positions among the loads of the feeder; None for all in order.
    shares
        Complex (retained node, load of the feeder) nodal power per unit of load power, where power flow is
        solved node by node; None where it is solved load by load.
    """

    classes: tuple[ClassPath, ...]
    class_of: IntArray
    load_of: IntArray
    scale_kw: FloatArray
    tan_theta: FloatArray
    mean_day: FloatArray
    shared: FloatArray
    own: FloatArray
    log_map: FloatArray
    reactive_kvar: FloatArray
    identity: str = ""
    base_mva: float = 1.0
    positions: IntArray | None = None
    shares: sp.csr_array | None = None

    @property
    def n(self) -> int:
        """Number of loads."""
        return int(self.load_of[-1]) + 1

    @property
    def steps(self) -> int:
        """T."""
        return int(self.mean_day.shape[1])

    @property
    def most_kw(self) -> FloatArray:
        """(load,) [kW] that no draw passes."""
        highest = np.array([part.bounds[1] for part in self.classes])[self.class_of] * self.scale_kw
        return np.asarray(np.bincount(self.load_of, highest, minlength=self.n), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class HistorySampler(Sampler[Population]):
    """Draws consecutive days of a population; they do not depend on `block_days`.

    Parameters
    ----------
    off
        (day,) weight of the contrast: 1 minus the share of days off on a day off, minus that share else.
    factor
        (class, day + 2) shared factor of the day before the first, every day, and the day after the last.
    """

    off: FloatArray
    factor: FloatArray

    def _draw(self, block: int, first: int, loads: tuple[FloatArray, FloatArray]) -> None:
        days = loads[0].shape[1]
        for k, (part, (own, random)) in enumerate(zip(self.law.classes, self.processes, strict=True)):
            factor = at_steps(self.factor[k, first : first + days + 2], self.law.steps)
            contrast = _SCORES_PER_UNIT * (self.off[first : first + days, None] * part.contrast)
            shapes = _DayShapes(first, *map(_short, (contrast, factor, part.own_profile)))
            _add_customers(own.recipe, own.work(), self._customers[k], shapes, self._maps[k], loads)
            size_kvar = self.law.reactive_kvar[k]
            if random is not None and size_kvar.any():
                _add_random(random.recipe, random.work(), first, size_kvar, loads[1])

    @cached_property
    def processes(self) -> tuple[tuple[Process, Process | None], ...]:
        """(class,) the customers' own, copy k of customer k; the reactive loads', copy k of load k."""
        found = []
        for part in self.law.classes:
            own = Process(part.ladder, part.amplitudes, self._key, f"customers/{part.name}")
            random = part.reactive_amplitudes
            purpose = f"reactive/{part.name}"
            found.append((own, None if random is None else replace(own, amplitudes=random, purpose=purpose)))
        return tuple(found)

    @cached_property
    def _customers(self) -> tuple[_Members, ...]:
        return tuple(
            _members(self.law, np.flatnonzero(self.law.class_of == k)) for k in range(len(self.law.classes))
        )

    @cached_property
    def _maps(self) -> tuple[_LastMap, ...]:
        return tuple(_last_map(part) for part in self.law.classes)


class _Members(NamedTuple):
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


def _pieces(table: FloatArray) -> IntArray:
    """Values (..., n) at places 0, 1, … → (..., n − 1) words: where a piece begins, and its rise."""
    both = np.stack([table[..., :-1], np.diff(table, axis=-1)], axis=-1)
    return _short(both).view(np.int64)[..., 0]


def _members(people: Population, chosen: IntArray) -> _Members:
    mean = (people.mean_day[chosen] - LOWEST_SCORE) * _SCORES_PER_UNIT
    known = people.load_of[chosen], people.scale_kw[chosen], people.tan_theta[chosen]
    shared, own = (_short(each[chosen] * _SCORES_PER_UNIT) for each in (people.shared, people.own))
    return _Members(*known, _short(mean), shared, own, _pieces(people.log_map[chosen]))


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
    who: _Members,
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


def last_map(law: HistoryLaw, log_bounds: tuple[float, float]) -> FloatArray:
    """(time of day, `LOADS`) [kW]: what takes the place of loads evenly spaced in the log."""
    low, high = log_bounds
    at = np.asarray(low + (high - low) / (LOADS - 1) * np.arange(LOADS), dtype=np.float64)
    found = np.empty((len(law.quantiles), LOADS))
    for k, (before, after) in enumerate(zip(law.quantiles, law.corrected, strict=True)):
        shift = interpolate(at, before, after - before)
        found[k] = np.maximum.accumulate(np.clip(at + shift, low, high))
    return exp(found)


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
        (customer,) declared tangents; NaN for the tangent of the class.
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
    shared, own, tangent, random = (np.empty(n) for _ in range(4))
    bound, paths = key.bind("model", identity), []
    for ell, part in enumerate(used):
        chosen, law, reactive = np.flatnonzero(class_of == ell), part.law, part.reactive
        log_bounds = log1(part.bounds[0]), log1(part.bounds[1])
        # The class ends the names of streams: no label makes two of them, or a stream of days, the same.
        people = Individuals.draw(law, chosen.size, bound, f"/{part.name}")
        offsets = people.offsets(law, law.score_map)
        mean_day[chosen] = people.shape + offsets[:, None]
        log_map[chosen] = np.clip(people.maps(law, offsets) + people.traits[:, :1], *log_bounds)
        shared[chosen] = people.spread * people.loading
        own[chosen] = people.spread * people.own(law)
        tangent[chosen] = reactive.tan_theta
        random[chosen] = 0.0 if reactive.amplitudes is None else reactive.spread * reactive.reference
        paths.append(
            ClassPath(
                name=part.name,
                contrast=law.contrast,
                own_profile=np.sqrt(law.profile),
                ladder=law.ladder,
                amplitudes=law.amplitudes,
                bounds=part.bounds,
                last_map=last_map(law, log_bounds),
                reactive_amplitudes=reactive.amplitudes,
            )
        )
    return Population(
        classes=tuple(paths),
        class_of=class_of,
        load_of=load_of,
        scale_kw=scale,
        tan_theta=np.where(np.isfinite(tan_theta), tan_theta, tangent),
        mean_day=mean_day,
        shared=shared,
        own=own,
        log_map=log_map,
        reactive_kvar=random_kvar(scale * random, class_of, load_of, len(used)),
        identity=identity,
    )


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
            # The day before and the day after take the covariates of their neighbours.
            drawn += product(explained[[0, *range(len(days)), -1]], law.covariates)
        factor[ell] = np.where(metered >= 0, law.factor[np.maximum(metered, 0)], drawn)
    return np.asarray(off - classes[0].law.off_share, dtype=np.float64), factor
