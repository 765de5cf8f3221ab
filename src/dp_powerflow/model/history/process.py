"""Many independent copies of a process of the ladder, in one kernel: AES, normals, splines.

**Noise.** The noise of (level, cell, copy) is a function of (key, purpose) and these three numbers: counter
cell·2⁶⁴ + level·2³² + copy/4 of one AES stream gives words of 32 bits for four copies, and cells 2k and
2k + 1 are one pair of normals. No two of them share a counter. So the copies have the same values whichever
days are asked for, in whatever order, however many copies there are.

**Splines.** A level is its noise smoothed by a cubic B-spline. A spline of spacing m·h is one of spacing h,
with coefficients that are averages of its own: one pass from the longest spacing to the shortest, adding the
noise of each on its way, gives the sum of all levels at a cost of two rows per step. `Ladder` says what the
sum is, level by level; the two agree to rounding.

**Cost** of a step of a copy: `flops_per_value` floating-point operations and 8 bytes of AES, two normals'.
Everything is single precision and fixed in order; a tile of `TILE` copies stays in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dp_powerflow._bits.aes import WordArray, counter_words
from dp_powerflow._bits.elementary import kernel
from dp_powerflow._bits.normal_pairs import PAIR_FLOPS, short_pair1
from dp_powerflow.model.history.one_pass import MARGIN, Ladder
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

ShortArray = NDArray[np.float32]
TILE = 128
"""Copies at a time; the values do not depend on it."""
_LANES = 16  # a tile that is not full is filled up to a multiple
_TAPS = MARGIN + 1
_SPARE = 3  # rows of a level's noise beyond those of a day: pairs begin at even cells


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

    def courses(self, copies: int, first: int, days: int) -> FloatArray:
        """(copy, day, step) of some consecutive days."""
        out = np.empty((copies, days, self.ladder.n_steps))
        _courses(self.recipe, self.work(), first, out)
        return out

    def work(self) -> Work:
        """Work space for the days of one tile after the other."""
        recipe, steps = self.recipe, self.ladder.n_steps
        halves = np.empty(2 * TILE, dtype=np.uint32)
        cells = max(_TAPS, steps // 2 + MARGIN)
        rows = (int(recipe.rows[-1]), cells, cells, steps + 2)
        noise, coarse, fine, eta = (np.zeros((count, TILE), dtype=np.float32) for count in rows)
        held = np.zeros((recipe.level.size, 2), dtype=np.int64)
        return Work(halves.view(np.uint64), halves, noise, held, coarse, fine, eta)

    @cached_property
    def recipe(self) -> Recipe:
        """All that the kernel needs to know."""
        steps, spacings = self.ladder.n_steps, self.ladder.spacings
        used = [k for k in range(1, len(spacings)) if self.amplitudes[k] != 0.0]
        slow = [k for k in used if spacings[k] >= steps]
        ends = [k for k in used if spacings[k] < steps]
        within = list(range(max(ends), min(ends) - 1, -1)) if ends else []
        days = [spacings[k] // steps for k in slow]
        cells = np.array([*(-each for each in days), *(steps // spacings[k] for k in within)], dtype=np.int64)
        rows = np.cumsum([0, *(max(each, 1) + MARGIN + _SPARE for each in cells.tolist())])
        longest = spacings[within[0]] if within else steps
        shortest = spacings[within[-1]] if within else steps
        return Recipe(
            keys=self.key.stream(self.purpose).round_keys,
            level=np.array([*slow, *within], dtype=np.int64),
            cells=cells,
            rows=np.asarray(rows, dtype=np.int64),
            slow=self._slow(slow, days),
            top=_short(refinement(steps // longest, 0, steps // longest + MARGIN if within else 0)),
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


def flops_per_value(ladder: Ladder) -> float:
    """Floating-point operations of a step of a copy, levels of a day or more left out.

    Each sum, product, quotient and root is one: a normal for every step and every cell of a smoothed level,
    three operations to refine a cell (two of even cells, four of odd) and two to add its noise, nine for the
    sum at a step.
    """
    cells = sum(1 / spacing for spacing in ladder.spacings if 1 < spacing < ladder.n_steps)
    return (1 + cells) * PAIR_FLOPS["short_pair1"] / 2 + 5 * cells + 9


def refinement(ratio: int, first: int, count: int) -> FloatArray:
    """(count, 4): cubic B-spline coefficients at a `ratio`-th of the spacing, from those of a cell and the
    three after it. The first is that of part `first` of the cell.
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
            row = _hold(recipe, k, day * cells, cells + MARGIN, tile, work)
        if k == slow:
            for r in range(cells + MARGIN):
                a, b, c, d = recipe.top[r, 0], recipe.top[r, 1], recipe.top[r, 2], recipe.top[r, 3]
                for i in range(width):
                    one = a * coarse[0, i] + b * coarse[1, i]
                    two = c * coarse[2, i] + d * coarse[3, i]
                    fine[r, i] = scale * work.noise[row + r, i] + (one + two)
        else:
            _finer(coarse, work.noise, row, scale, width, fine[: cells + MARGIN])
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


@kernel
def _courses(recipe: Recipe, work: Work, first: int, out: FloatArray) -> None:
    copies, days, steps = out.shape
    for start in range(0, copies, TILE):
        tile = tile_of(start, copies)
        work.held[:] = 0
        for day in range(days):
            row = draw_day(recipe, first + day, tile, work)
            for i in range(min(TILE, copies - start)):
                for t in range(steps):
                    out[start + i, day, t] = work.eta[row + t, i]
