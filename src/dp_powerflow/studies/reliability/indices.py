"""Indices by simulation: faults at random times of many years, repair times drawn.

What the closed form cannot say: how much one year differs from the next. Faults come as a Poisson process,
each from an element in proportion to its rate; a year is 365 days, and any time of day is as likely. Draws
come from AES streams with a public seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import cos, exp, log
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.studies.reliability.feeder import Sections, Tree, rates_of
from dp_powerflow.units import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.studies.reliability import Reliability


def mean_cut_short(mean: FloatArray, hours: float, settings: Reliability) -> FloatArray:
    """E[min(R, hours)] of repair times R with these means [h]."""
    if settings.repair_law == "fixed":
        return np.asarray(np.minimum(mean, hours))
    if settings.repair_law == "exponential":
        return np.asarray(mean * (1.0 - exp(-hours / mean)))
    spread = settings.repair_spread
    far = (np.array([math.log(hours / each) for each in mean]) + 0.5 * spread**2) / spread
    below = np.array([_normal(x - spread) for x in far])
    return np.asarray(mean * below + hours * (1.0 - np.array([_normal(x) for x in far])))


def drawn_hours(mean: FloatArray, generator: np.random.Generator, settings: Reliability) -> FloatArray:
    """A repair time for every mean [h]."""
    if settings.repair_law == "fixed":
        return mean
    first = log(1.0 - generator.random(len(mean)))
    if settings.repair_law == "exponential":
        return -mean * first
    normal = np.sqrt(-2.0 * first) * cos(2.0 * math.pi * generator.random(len(mean)))
    spread = settings.repair_spread
    return mean * exp(spread * normal - 0.5 * spread**2)


def _normal(x: float) -> float:
    """Φ."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True)
class Indices:
    """Of a system, a year.

    Attributes
    ----------
    saifi : interruptions per customer.
    saidi_hours : hours of interruption per customer.
    ens_kwh : energy not served [kWh].
    customers : number of them.
    """

    saifi: float
    saidi_hours: float
    ens_kwh: float
    customers: int

    @property
    def caidi_hours(self) -> float:
        """Hours per interruption; 0 without any."""
        return self.saidi_hours / self.saifi if self.saifi > 0.0 else 0.0

    @property
    def asai(self) -> float:
        """Share of the time that customers are served."""
        return 1.0 - self.saidi_hours / HOURS_PER_YEAR

    @property
    def aens_kwh(self) -> float:
        """Energy not served per customer [kWh]."""
        return self.ens_kwh / self.customers


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Expected figures of a year.

    Attributes
    ----------
    system : of all customers.
    interruptions, hours : (section,) of a customer there.
    of_element : (element, 3) what its faults add to SAIFI, SAIDI [h] and energy not served [kWh].
    """

    system: Indices
    interruptions: FloatArray
    hours: FloatArray
    of_element: FloatArray


def closed_form(
    tree: Tree, sections: Sections, settings: Reliability, customers: IntArray, mean_kw: FloatArray
) -> ClosedForm:
    """Indices by enumeration.

    Parameters
    ----------
    customers, mean_kw : (section,) customers and mean drawn load [kW].
    """
    rate = rates_of(tree.elements)
    repair = np.array([element.repair_hours for element in tree.elements])
    switching = mean_cut_short(repair, settings.switching_hours, settings)
    of, total = sections.of_element, int(customers.sum())
    faults, repairs, switchings = (
        np.asarray(np.bincount(of, weights=each, minlength=sections.count), dtype=np.float64)
        for each in (rate, rate * repair, rate * switching)
    )
    switched, repaired = sections.switched.astype(np.float64), sections.repaired.astype(np.float64)
    interruptions = _weighted(faults, switched + repaired)
    hours: FloatArray = _weighted(switchings, switched) + _weighted(repairs, repaired)
    reached = _weighted(customers.astype(np.float64), (switched + repaired).T)
    shares: tuple[FloatArray, FloatArray] = (np.asarray(customers / total, dtype=np.float64), mean_kw)
    added = [rate * reached[of] / total]
    for weight in shares:
        until_switched, until_repaired = _weighted(weight, switched.T)[of], _weighted(weight, repaired.T)[of]
        added.append(rate * (switching * until_switched + repair * until_repaired))
    system = Indices(
        saifi=float(np.sum(customers * interruptions)) / total,
        saidi_hours=float(np.sum(customers * hours)) / total,
        ens_kwh=float(np.sum(mean_kw * hours)),
        customers=total,
    )
    return ClosedForm(system, interruptions, hours, np.stack(added, axis=1))


def _weighted(weights: FloatArray, matrix: FloatArray) -> FloatArray:
    """Sum of the rows of a matrix, each times its weight, in their order: the same bits everywhere."""
    return np.asarray((weights[:, None] * matrix).sum(axis=0))


PERCENT = (5.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)
"""Quantiles that are published."""
_HOURS_PER_DAY = 24.0
_COLUMNS = 64
_BUNDLE = 1 << 16


@dataclass(frozen=True, eq=False)
class Faults:
    """Simulated faults in the order of time.

    Attributes
    ----------
    at_hour : since the beginning of the first year [h].
    element : which has failed.
    repair_hours : until it was repaired [h].
    """

    at_hour: FloatArray
    element: IntArray
    repair_hours: FloatArray

    @property
    def year(self) -> IntArray:
        """Of every fault."""
        return (self.at_hour // HOURS_PER_YEAR).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Simulated:
    """Figures of simulated years.

    Attributes
    ----------
    saifi, saidi_hours, ens_kwh : (year,) of the system.
    section_percentiles : (percentile, section) hours that a customer there is without supply in a year.
    customer_percentiles : (percentile,) the same of all customers and years together.
    faults : how many there were.
    """

    saifi: FloatArray
    saidi_hours: FloatArray
    ens_kwh: FloatArray
    section_percentiles: FloatArray
    customer_percentiles: FloatArray
    faults: int


def simulate(
    tree: Tree, sections: Sections, settings: Reliability, customers: IntArray, load_kw: FloatArray
) -> Simulated:
    """Simulate years.

    Parameters
    ----------
    customers : (section,) customers.
    load_kw : (section, step) mean drawn load [kW].
    """
    faults = draw_faults(tree, settings)
    of = sections.of_element[faults.element]
    until_repair = faults.repair_hours
    until_switched = np.minimum(until_repair, settings.switching_hours)
    share = customers / customers.sum()
    if settings.load == "mean":
        load_kw = load_kw.mean(axis=1, keepdims=True)
    energy, reached, hours = np.zeros(len(of)), np.zeros(len(of)), np.zeros(len(of))
    for mask, duration in ((sections.switched, until_switched), (sections.repaired, until_repair)):
        weights = _rows(mask, share)[of]
        reached += weights
        hours += weights * duration
        energy += _energy(_rows(mask, load_kw), of, faults.at_hour, duration)
    year = np.minimum(faults.year, settings.years - 1)

    def by_year(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(year, weights=values, minlength=settings.years))

    by_section, pooled = _percentiles(
        sections, settings.years, (year, of, until_switched, until_repair), customers
    )
    return Simulated(by_year(reached), by_year(hours), by_year(energy), by_section, pooled, len(of))


def draw_faults(tree: Tree, settings: Reliability) -> Faults:
    """Faults of all elements over all years."""
    key = StreamKey.from_insecure_seed(settings.seed).bind("derived", "reliability")
    rate = rates_of(tree.elements)
    at_year = _times(key, float(rate.sum()), settings.years)
    edges = np.cumsum(rate)
    place = key.stream("elements").generator.random(len(at_year)) * (edges[-1] if len(edges) else 0.0)
    last = np.flatnonzero(rate)[-1] if np.any(rate) else 0
    element = np.minimum(np.searchsorted(edges, place, side="right"), last).astype(np.int64)
    mean = np.array([each.repair_hours for each in tree.elements])[element]
    repair = drawn_hours(mean, key.stream("repair times").generator, settings)
    return Faults(at_year * HOURS_PER_YEAR, element, repair)


def _times(key: StreamKey, per_year: float, years: int) -> FloatArray:
    """Times of a Poisson process until so many years are over [years]."""
    if per_year <= 0.0:
        return np.zeros(0)
    generator = key.stream("times").generator
    found: list[FloatArray] = []
    reached = 0.0
    while reached < years:
        times = reached + np.cumsum(-log(1.0 - generator.random(_BUNDLE))) / per_year
        reached = float(times[-1])
        found.append(times)
    times = np.concatenate(found)
    return times[times < years]


def _rows(mask: BoolArray, weights: FloatArray) -> FloatArray:
    """Sums of the weights of the sections in each row of a mask, in a fixed order."""
    return np.asarray(sp.csr_array(mask.astype(np.float64)) @ weights)


def _energy(load_kw: FloatArray, of: IntArray, at_hour: FloatArray, hours: FloatArray) -> FloatArray:
    """(fault,) energy of a load that repeats every day, from a time on for so many hours [kWh].

    Parameters
    ----------
    load_kw : (section, step) load that a fault in each section interrupts.
    """
    steps = load_kw.shape[1]
    step_hours = _HOURS_PER_DAY / steps
    until = np.concatenate([np.zeros((len(load_kw), 1)), np.cumsum(load_kw, axis=1) * step_hours], axis=1)

    def before(time: FloatArray) -> FloatArray:
        day = np.floor(time / _HOURS_PER_DAY)
        within = (time - day * _HOURS_PER_DAY) / step_hours
        step = np.minimum(within.astype(np.int64), steps - 1)
        return np.asarray(
            day * until[of, -1] + until[of, step] + (within - step) * step_hours * load_kw[of, step]
        )

    begin = at_hour % _HOURS_PER_DAY
    return before(begin + hours) - before(begin)


def _percentiles(
    sections: Sections,
    years: int,
    faults: tuple[IntArray, IntArray, FloatArray, FloatArray],
    customers: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Percentiles of the yearly hours of a customer, by section and of all."""
    year, of, until_switched, until_repair = faults
    shape = (years, sections.count)
    switched, repaired = (
        sp.csr_array((hours, (year, of)), shape=shape) for hours in (until_switched, until_repair)
    )
    masks = [sp.csc_array(mask.astype(np.float64)) for mask in (sections.switched, sections.repaired)]
    by_section = np.zeros((len(PERCENT), sections.count))
    values: list[FloatArray] = []
    weights: list[FloatArray] = []
    for first in range(0, sections.count, _COLUMNS):
        columns = slice(first, first + _COLUMNS)
        hours = (switched @ masks[0][:, columns] + repaired @ masks[1][:, columns]).toarray()
        by_section[:, columns] = np.percentile(hours, PERCENT, axis=0)
        for column, count in zip(hours.T, customers[columns].tolist(), strict=True):
            if count:
                some = column[column > 0.0]
                values.append(some)
                weights.append(np.full(len(some), float(count)))
    return by_section, _weighted_percentiles(values, weights, float(customers.sum()) * years)


def _weighted_percentiles(values: list[FloatArray], weights: list[FloatArray], total: float) -> FloatArray:
    """Percentiles of weighted values, all others of the total being 0."""
    every, weight = np.concatenate(values), np.concatenate(weights)
    order = np.argsort(every, kind="stable")
    reached = (total - weight.sum()) + np.cumsum(weight[order])
    found = np.searchsorted(reached, np.array(PERCENT) / 100.0 * total)
    zero = np.array(PERCENT) / 100.0 * total <= total - weight.sum()
    if not len(every):
        return np.zeros(len(PERCENT))
    return np.where(zero, 0.0, every[order][np.minimum(found, len(every) - 1)])
