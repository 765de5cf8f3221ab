"""Days of persistent customers, one after the other, added up per load.

For customer i of class c on day d at step t,

    z = m_i(t) + off(d)·contrast_c(t) + shared_i·f(d, t) + own_i·profile_c(t)·η_i(d, t)

is a normal score. Its load is the customer's own map of scores to loads, then the last map of the class.
f is the shared factor, linear between the middles of the days. Load k is Σ_i p_i, its reactive power
Σ_i tanθ_i·p_i and one random process per class, at most `MOST_DEVIATIONS` standard deviations.

A day's loads are a function of the key, the population, the factor and the day: not of blocks, workers or the
number of days.

Nothing here sees meter data: it is all post-processing of a released model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import kernel, log
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.customers import MOST_DEVIATIONS
from dp_powerflow.model.history.factor import at_steps
from dp_powerflow.model.history.population import (
    HIGHEST_SCORE,
    LOADS,
    LOWEST_SCORE,
    SCORES,
    ClassPath,
    Population,
)
from dp_powerflow.model.history.process import DayNoise, Process, add_levels
from dp_powerflow.model.sample import LoadBlock, days_per_block
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

AT_ONCE = 256
"""Customers, or loads, whose noise is one stream; the draws depend on it."""
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
class HistorySampler:
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
        if self.n_days < 1 or (self.block_days is not None and self.block_days < 1):
            raise PrivacyError("nothing to sample: name at least one day")
        wanted = (len(self.law.population.classes), self.n_days + 2)
        if self.off.shape != (self.n_days,) or self.factor.shape != wanted:
            raise PrivacyError(
                "a history needs, for every day, the weight of the contrast and, for every class, the shared "
                "factor of every day, the one before and the one after"
            )

    @property
    def days_per_block(self) -> int:
        """Days of one block."""
        return days_per_block(self.law.n) if self.block_days is None else self.block_days

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.n_days // self.days_per_block)

    def block(self, index: int) -> LoadBlock:
        """One block; a pure function of the sampler and the number."""
        if not 0 <= index < self.n_blocks:
            raise PrivacyError(f"there is no block {index}; blocks are numbered 0 to {self.n_blocks - 1}")
        first = index * self.days_per_block
        days = min(self.days_per_block, self.n_days - first)
        active, reactive = (np.zeros((self.law.n, days, self.law.steps)) for _ in range(2))
        for number in range(len(self.law.population.classes)):
            self._add_customers(number, first, active, reactive)
            self._add_random_part(number, first, reactive)
        return LoadBlock(first, active, reactive)

    @cached_property
    def _key(self) -> StreamKey:
        return self.key.bind("model", self.law.identity)

    def customers_of(self, number: int) -> Iterator[tuple[IntArray, Process]]:
        """Customers of a class, some at a time, and the process that is their own."""
        part = self.law.population.classes[number]
        members = np.flatnonzero(self.law.population.class_of == number)
        for chunk, start in enumerate(range(0, len(members), AT_ONCE)):
            chosen = members[start : start + AT_ONCE]
            purpose = f"customers/{chunk}/{part.name}"
            yield chosen, Process(part.ladder, part.amplitudes, len(chosen), self._key, purpose)

    def shared_factor(self, number: int, first: int, days: int) -> FloatArray:
        """(day, step) of a class: linear between the middles of the days."""
        return at_steps(self.factor[number, first : first + days + 2], self.law.steps)

    def _add_customers(self, number: int, first: int, active: FloatArray, reactive: FloatArray) -> None:
        """Add the customers of one class, in ascending order."""
        population, days = self.law.population, active.shape[1]
        part = population.classes[number]
        factor, maps = self.shared_factor(number, first, days), _last_map(part)
        contrast = self.off[first : first + days, None] * part.contrast
        for chosen, process in self.customers_of(number):
            customers = _Customers(
                population.load_of[chosen], population.scale_kw[chosen], population.tan_theta[chosen],
                population.mean_day[chosen], population.shared[chosen], population.own[chosen],
                population.log_map[chosen],
            )  # fmt: skip
            eta = np.empty((self.law.steps, len(chosen)))
            for day, noise in enumerate(process.days(first, days)):
                shape = _DayShape(contrast[day], factor[day], part.own_profile)
                _add_day(noise, customers, shape, maps, day, (active, reactive), eta)

    def _add_random_part(self, number: int, first: int, reactive: FloatArray) -> None:
        """Add the random part of q of the customers of one class: a process for each load."""
        part, size_kvar = self.law.population.classes[number], self.law.population.reactive_kvar[number]
        loads = np.flatnonzero(size_kvar > 0.0)
        if part.reactive_amplitudes is None:
            return
        for chunk, start in enumerate(range(0, len(loads), AT_ONCE)):
            chosen = loads[start : start + AT_ONCE]
            purpose = f"reactive/{chunk}/{part.name}"
            process = Process(part.ladder, part.reactive_amplitudes, len(chosen), self._key, purpose)
            courses = np.clip(process.courses(first, reactive.shape[1]), -MOST_DEVIATIONS, MOST_DEVIATIONS)
            reactive[chosen] += size_kvar[chosen, None, None] * courses


class _Customers(NamedTuple):
    """Some customers of one class; see `Population`."""

    load_of: IntArray
    scale_kw: FloatArray
    tan_theta: FloatArray
    mean_day: FloatArray
    shared: FloatArray
    own: FloatArray
    log_map: FloatArray


class _DayShape(NamedTuple):
    """(step,) what a class has in common on one day."""

    contrast: FloatArray
    factor: FloatArray
    profile: FloatArray


class _LastMap(NamedTuple):
    """Last map of a class.

    Attributes
    ----------
    loads : (time of day · `LOADS`,) at logs from `lowest` on, `per_log` of them to a unit.
    first : (step,) where the loads of its time of day begin.
    bounds : (lowest, highest) load.
    """

    loads: FloatArray
    first: IntArray
    lowest: float
    per_log: float
    bounds: tuple[float, float]


def _last_map(part: ClassPath) -> _LastMap:
    lowest, highest = log(np.array(part.bounds))
    steps = len(part.contrast)
    first = np.arange(steps) * len(part.last_map) // steps * LOADS
    return _LastMap(part.last_map.reshape(-1), first, lowest, (LOADS - 1) / (highest - lowest), part.bounds)


@kernel
def _between(table: FloatArray, first: int, size: int, x: float) -> float:
    """Entries `first` on of a table at a position from 0 on, linear between them; the ends hold beyond."""
    inside = min(max(0.0, x), size - 1.0)  # nan: 0
    k = min(int(inside), size - 2)
    low = table[first + k]
    value: float = low + (inside - k) * (table[first + k + 1] - low)
    return value


@kernel
def _add_day(
    noise: DayNoise,
    who: _Customers,
    shape: _DayShape,
    last: _LastMap,
    day: int,
    sums: tuple[FloatArray, FloatArray],
    eta: FloatArray,
) -> None:
    """Add one day of some customers to the sums of their loads (load, day, step).

    The loops are short and plain so that they run on vectors. `eta` (step, customer) is overwritten.
    """
    add_levels(noise, eta)
    steps = eta.shape[0]
    x = np.empty(steps)
    for i in range(who.load_of.size):
        mean, shared, own, own_map = who.mean_day[i], who.shared[i], who.own[i], who.log_map[i]
        for t in range(steps):
            x[t] = eta[t, i]
        for t in range(steps):
            z = mean[t] + shape.contrast[t] + shared * shape.factor[t] + own * shape.profile[t] * x[t]
            x[t] = (z - LOWEST_SCORE) * _SCORES_PER_UNIT
        for t in range(steps):
            x[t] = (_between(own_map, 0, SCORES, x[t]) - last.lowest) * last.per_log
        for t in range(steps):
            x[t] = _between(last.loads, last.first[t], LOADS, x[t])
        p_row, q_row = sums[0][who.load_of[i], day], sums[1][who.load_of[i], day]
        scale, tan_theta = who.scale_kw[i], who.tan_theta[i]
        for t in range(steps):
            power = scale * min(max(x[t], last.bounds[0]), last.bounds[1])
            p_row[t] += power
            q_row[t] += tan_theta * power
