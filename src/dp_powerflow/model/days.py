"""Kernels that draw days of loads from a Gaussian law, eight at a time.

Every value is a function of the key of the stream, the component and its place, so bits are the same on every
processor and for any number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from dp_powerflow._bits.aes import WordArray, counter_words
from dp_powerflow._bits.elementary import exp1, kernel
from dp_powerflow._bits.normal_pairs import pair1
from dp_powerflow.powerflow._kernels.simd import Emitter, instruction
from dp_powerflow.units import FloatArray, IntArray

LANES = 8
"""Days side by side."""
_COLUMNS = 6  # steps at a time: with two registers of lanes each, twelve sums in sixteen registers
_INDEX = ir.IntType(64)


class DayLaw(NamedTuple):
    """A Gaussian law of a day, as the kernel reads it.

    Attributes
    ----------
    mean : (step,) and zeros, up to a multiple of 6.
    factor : L by blocks of 6 steps: (pair of steps, 2, 6) of each block, as far as the block reaches.
    first : (block + 1,) where a block begins.
    steps : T.
    """

    mean: FloatArray
    factor: FloatArray
    first: IntArray
    steps: int


class Days(NamedTuple):
    """Which days to draw.

    Attributes
    ----------
    keys : (22,) round keys of the stream.
    component : number of the component of the law.
    places : (day r,) what place each is for; a place is (load or customer)·(days of the block) + day.
    """

    keys: WordArray
    component: int
    places: IntArray


class _Work(NamedTuple):
    """Work space: words and normals of eight days, each in two halves, and (step, lane) of the days.

    The halves are separate arrays, since the compiler cannot tell that a sum of indices is not negative.
    """

    words: WordArray
    radius: WordArray
    angle: WordArray
    normal: FloatArray
    even: FloatArray
    odd: FloatArray
    day: FloatArray


def day_law(mean: FloatArray | None, factor: FloatArray) -> DayLaw:
    """Of a mean (step,), None for 0, and a lower triangular factor (step, step)."""
    steps = len(factor)
    blocks, pairs = -(-steps // _COLUMNS), -(-steps // 2)
    padded = np.zeros((blocks * _COLUMNS, 2 * pairs))
    padded[:steps, :steps] = factor
    reach = [min(pairs, (block + 1) * _COLUMNS // 2) for block in range(blocks)]
    parts = [
        padded[block * _COLUMNS : (block + 1) * _COLUMNS, : 2 * count].T.reshape(-1)
        for block, count in enumerate(reach)
    ]
    first = np.concatenate([[0], np.cumsum([part.size for part in parts])])
    centre = np.zeros(blocks * _COLUMNS)
    if mean is not None:
        centre[:steps] = mean
    return DayLaw(centre, np.concatenate(parts), np.asarray(first, dtype=np.int64), steps)


@instruction(LANES)
def _steps_of(e: Emitter, law: Any, work: Any, block: Any, pairs: Any, all_pairs: Any) -> None:
    """Six steps of eight days: mean + Σ_k L·z, k ascending up to `pairs` pairs."""
    b = e.builder
    column = b.mul(block, ir.Constant(_INDEX, _COLUMNS))
    places = [b.add(column, ir.Constant(_INDEX, j)) for j in range(_COLUMNS)]
    begin = e.item(law.first, block)

    def step(k: Any, sums: list[Any]) -> list[Any]:
        at = b.add(begin, b.mul(k, ir.Constant(_INDEX, 2 * _COLUMNS)))
        for odd, row in enumerate((k, b.add(k, all_pairs))):
            z = e.row(work.normal, row)
            for j in range(_COLUMNS):
                entry = e.item(law.factor, b.add(at, ir.Constant(_INDEX, odd * _COLUMNS + j)))
                sums[j] = e.add(sums[j], e.spread(entry), z)
        return sums

    start = [e.spread(e.item(law.mean, place)) for place in places]
    found = e.added_up(start, (ir.Constant(_INDEX, 0), pairs), step)
    for place, value in zip(places, found, strict=True):
        e.put(value, work.day, place)


@kernel
def _work_of(law: DayLaw) -> _Work:
    half = LANES * ((law.steps + 1) // 2)
    words, normal = np.empty(2 * half, dtype=np.uint64), np.empty(2 * half)
    days = np.empty(LANES * law.mean.size)
    return _Work(words, words[:half], words[half:], normal, normal[:half], normal[half:], days)


@kernel
def _eight_days(law: DayLaw, days: Days, group: int, work: _Work) -> None:
    """Days 8·group on, into `work.day` (step, lane)."""
    pairs = (law.steps + 1) // 2
    half = LANES * pairs
    counter_words(days.keys, group * half, days.component, half, work.words, 0)
    for k in range(half):
        work.even[k], work.odd[k] = pair1(work.radius[k], work.angle[k])
    for block in range(law.first.size - 1):
        reach = (law.first[block + 1] - law.first[block]) // (2 * _COLUMNS)
        _steps_of(law, work, np.int64(block), np.int64(reach), np.int64(pairs))


@kernel
def _exponentials(work: _Work) -> None:
    for k in range(work.day.size):
        work.day[k] = exp1(work.day[k])


class Customers(NamedTuple):
    """Customers of one class: (customer,) their loads, public scales and tangents, and the margins."""

    load_of: IntArray
    scale: FloatArray
    tan_theta: FloatArray
    margins: tuple[float, float]


@kernel
def add_customers(law: DayLaw, days: Days, who: Customers, sums: tuple[FloatArray, FloatArray]) -> None:
    """Add days of customers to the sums of their loads (load, day, step), clipped to the margins."""
    work, per_customer = _work_of(law), sums[0].shape[1]
    for group in range((days.places.size + LANES - 1) // LANES):
        _eight_days(law, days, group, work)
        _exponentials(work)
        for lane in range(min(LANES, days.places.size - LANES * group)):
            place = days.places[LANES * group + lane]
            i, day = place // per_customer, place % per_customer
            load, scale, tan_theta = who.load_of[i], who.scale[i], who.tan_theta[i]
            for t in range(law.steps):
                power = scale * min(max(work.day[LANES * t + lane], who.margins[0]), who.margins[1])
                sums[0][load, day, t] += power
                sums[1][load, day, t] += tan_theta * power


@kernel
def add_random(law: DayLaw, days: Days, size: FloatArray, most: FloatArray, out: FloatArray) -> None:
    """Add days, cut at ±`most` (step,), times the size (load,) of each, to (load, day, step)."""
    work, per_load = _work_of(law), out.shape[1]
    for group in range((days.places.size + LANES - 1) // LANES):
        _eight_days(law, days, group, work)
        for lane in range(min(LANES, days.places.size - LANES * group)):
            place = days.places[LANES * group + lane]
            load, day = place // per_load, place % per_load
            for t in range(law.steps):
                zeta = min(max(work.day[LANES * t + lane], -most[t]), most[t])
                out[load, day, t] += size[load] * zeta
