"""Public settings of a reliability study: rates, times, protection, customers, simulation.

Rates and times of lines and transformers come from the distribution feeders of the Roy Billinton Test
System (R. N. Allan, R. Billinton, I. Sjarief, L. Goel, K. S. So, "A reliability test system for educational
purposes: basic distribution system data and results", IEEE Transactions on Power Systems 6(2), 1991): 11 kV
lines, cables, and transformers that are replaced by a spare. All others are assumptions. A utility states its
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from pydantic import AfterValidator, Field

from dp_powerflow._bits.elementary import exp, log
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.page import Axis, Bars, Figure, Histogram, Item, Series, Table
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.studies.reliability.feeder import (
    Part,
    Sections,
    Tree,
    bus_numbers,
    customers_of,
    in_public_order,
    load_buses,
    mean_day,
    public_buses,
    rates_of,
    require_customers,
    sections_of,
    tree_of,
)
from dp_powerflow.studies.study import Findings, Kind, Progress, Study, network_map
from dp_powerflow.units import BoolArray, FloatArray, IntArray

Rate = Annotated[float, Field(ge=0.0, le=1000.0)]
Hours = Annotated[float, Field(gt=0.0, le=8760.0)]
BusPair = Annotated[tuple[str, str], Field(strict=False)]


def _two_buses(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    if any(one == other for one, other in pairs):
        raise ValueError("a pair of buses names one bus twice; name the two buses that the element joins")
    return pairs


BusPairs = Annotated[tuple[BusPair, ...], Field(strict=False), AfterValidator(_two_buses)]


@dataclass(frozen=True, eq=False)
class Found:
    """What a study of reliability computes.

    Attributes
    ----------
    node_kw : (node, step) mean drawn load of every node of the feeder [kW].
    """

    tree: Tree
    sections: Sections
    node_kw: FloatArray
    expected: ClosedForm
    simulated: Simulated


class Reliability(Kind):
    """SAIFI, SAIDI, CAIDI, ASAI and energy not served of a radial feeder; settings are public.

    Attributes
    ----------
    overhead_per_km_year, underground_per_km_year : permanent faults of a line per km and year.
    switch_per_year, transformer_per_year, regulator_per_year : permanent faults of an element per year. What
        joins two buses of one base voltage and is neither line nor switch is a regulator.
    overhead_repair_hours, underground_repair_hours, switch_repair_hours, transformer_repair_hours,
        regulator_repair_hours : mean time to repair or replace [h].
    underground_codes : conductor codes of cables; all other lines are overhead.
    repair_law : law of a repair time about its mean.
    lateral_fuses : which laterals have a fuse at their head: "single-phase" those that leave a bus of more
        phases with one, "fewer-phases" those that leave with fewer, "none" none.
    transformer_fuses : whether every transformer has a fuse before it.
    devices : pairs of buses between which a recloser or fuse stands, at the end towards the source.
    sectionalise : whether normally closed switches isolate a fault.
    ties : whether normally open switches of the feeder restore load.
    more_ties : pairs of buses that a further normally open switch joins, with the phases that both have.
    switching_hours : time after which switches have isolated a fault and restored what they can [h].
    kw_per_customer : nominal load of one customer, where no numbers of customers are declared [kW]: a load
        has as many as it takes, and at least one.
    years : simulated years.
    seed : of the simulation; nothing private is in it.

    Examples
    --------
    >>> Reliability(overhead_per_km_year=0.1, lateral_fuses="none").name
    'reliability'
    """

    name: ClassVar[str] = "reliability"
    template: ClassVar[str] = "reliability.txt"

    overhead_per_km_year: Rate = 0.065
    underground_per_km_year: Rate = 0.04
    switch_per_year: Rate = 0.006
    transformer_per_year: Rate = 0.015
    regulator_per_year: Rate = 0.015
    overhead_repair_hours: Hours = 5.0
    underground_repair_hours: Hours = 30.0
    switch_repair_hours: Hours = 4.0
    transformer_repair_hours: Hours = 10.0
    regulator_repair_hours: Hours = 10.0
    underground_codes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    repair_law: Literal["exponential", "fixed"] = "exponential"
    lateral_fuses: Literal["none", "single-phase", "fewer-phases"] = "single-phase"
    transformer_fuses: bool = True
    devices: BusPairs = ()
    sectionalise: bool = True
    ties: bool = True
    more_ties: BusPairs = ()
    switching_hours: Hours = 1.0
    kw_per_customer: Annotated[float, Field(gt=0.0, le=1e6)] = 5.0
    years: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    seed: Annotated[int, Field(ge=0)] = 0

    def check(self, study: Study) -> None:
        """Refuse a study without lengths or customers, a feeder that is not radial, and unknown buses.

        Raises
        ------
        FeederError : a line has no length, or lines form a loop.
        ConfigError : no customers, or a setting names a bus that is none.
        """
        require_customers(study)
        tree = tree_of(study.feeder, self)
        sections_of(tree, self, bus_numbers(study, tree.graph))

    def find(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Findings:
        """Compute the indices; the same bits for any number of workers."""
        return findings_of(study, self.compute(study, workers=workers, progress=progress))

    def compute(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Found:
        """The figures behind the tables, as arrays that are not rounded."""
        self.check(study)
        tree = in_public_order(study, tree_of(study.feeder, self))
        sections = sections_of(tree, self, bus_numbers(study, tree.graph))
        node_kw = mean_day(study, workers, progress)
        at_load = sections.of_bus[load_buses(study.feeder, tree.graph)]
        each = customers_of(study, self.kw_per_customer)
        customers = np.bincount(at_load, weights=each, minlength=sections.count).astype(np.int64)
        load_kw = np.zeros((sections.count, study.steps))
        np.add.at(load_kw, sections.of_bus[tree.graph.bus_of], node_kw)
        expected = closed_form(tree, sections, self, customers, load_kw.mean(axis=1))
        return Found(tree, sections, node_kw, expected, simulate(tree, sections, self, customers, load_kw))


# --- what is published, rounded to public grids ------------------------------------------------------------
DIGITS = {"saifi": 6, "saidi_hours": 6, "ens_kwh": 3, "caidi_hours": 6, "asai": 9, "aens_kwh": 6}
"""Digits after the point of published indices. The first three are summed up, and simulated too."""
SUMMED = tuple(DIGITS)[:3]
INTERRUPTIONS, HOURS, KWH = (DIGITS[name] for name in SUMMED)
_MOST_BARS = 15
_BINS = 40


def findings_of(study: Study, found: Found) -> Findings:
    """What is published of a study."""
    rows = _pairs(study, found)
    tables = {
        "system.parquet": _system(found),
        "distribution.parquet": _distribution(found),
        "nodes.parquet": _nodes(study, found),
    }
    if study.connections is not None:
        tables["elements.parquet"] = _elements(rows)
    return Findings(tables=tables, figures=_figures(study, found), items=tuple(_items(study, found, rows)))


def _estimates(found: Found) -> dict[str, tuple[float, float | None, float | None]]:
    """Index → in closed form, simulated, and its standard error; rounded."""
    years, result = len(found.simulated.saifi), {}
    for name, digits in DIGITS.items():
        exact, mean, error = round(getattr(found.expected.system, name), digits), None, None
        if name in SUMMED:
            of_years = getattr(found.simulated, name)
            mean = round(float(of_years.mean()), digits)
            error = round(float(of_years.std(ddof=1)) / years**0.5, digits)
        result[name] = exact, mean, error
    return result


def _rounded(values: FloatArray) -> dict[str, float]:
    """SAIFI, SAIDI and energy not served by name."""
    return {name: round(float(value), DIGITS[name]) for name, value in zip(SUMMED, values, strict=True)}


def _figures(study: Study, found: Found) -> dict[str, Any]:
    estimates, simulated, sections = _estimates(found), found.simulated, found.sections
    parts: dict[str, dict[str, float]] = {}
    for part in Part:
        mine = np.array([element.part is part for element in found.tree.elements], dtype=np.bool_)
        if mine.any():
            added = found.expected.of_element[mine].sum(axis=0)
            parts[part.value] = {"elements": int(mine.sum()), **_rounded(added)}
    percentiles = np.round(np.percentile(simulated.saidi_hours, PERCENT), HOURS).tolist()
    return {
        **{name: exact for name, (exact, _, _) in estimates.items()},
        "customers": found.expected.system.customers,
        "customers_declared": study.customers is not None,
        "simulated": {
            name: {"mean": estimates[name][1], "standard_error": estimates[name][2]} for name in SUMMED
        },
        "simulated_years": len(simulated.saifi),
        "simulated_faults": simulated.faults,
        "saidi_hours_percentiles": {
            f"{level:g}": hours for level, hours in zip(PERCENT, percentiles, strict=True)
        },
        "by_part": parts,
        "devices": sections.devices,
        "sectionalisers": sections.sectionalisers,
        "ties": sections.ties,
        "sections": sections.count,
        "doubled_lines": found.tree.doubled,
    }


# ------------------------------------------------------------------------------------------ tables


def _system(found: Found) -> pa.Table:
    estimates = _estimates(found)
    columns = {"index": pa.array(estimates, pa.string())}
    for k, name in enumerate(("closed_form", "simulated", "standard_error")):
        columns[name] = pa.array([each[k] for each in estimates.values()], pa.float64())
    return pa.table(columns)


def _distribution(found: Found) -> pa.Table:
    columns = {"percentile": np.array(PERCENT)}
    for name in SUMMED:
        columns[name] = np.round(np.percentile(getattr(found.simulated, name), PERCENT), DIGITS[name])
    return pa.table(columns)


def _nodes(study: Study, found: Found) -> pa.Table:
    expected = found.expected
    section = found.sections.of_bus[found.tree.graph.bus_of[study.released]]
    mean_kw = found.node_kw.mean(axis=1)[study.released]
    return pa.table(
        {
            "node": pa.array(study.node_ids, pa.string()),
            "interruptions_per_year": np.round(expected.interruptions[section], INTERRUPTIONS),
            "hours_per_year": np.round(expected.hours[section], HOURS),
            "ens_kwh_per_year": np.round(mean_kw * expected.hours[section], KWH),
        }
    )


_Row = tuple[Any, ...]


def _pairs(study: Study, found: Found) -> list[_Row]:
    """What every pair of buses adds: its public names in order, kind, SAIFI, SAIDI and energy.

    Two buses that the release does not tell apart share a row without a name.
    """
    names = public_buses(study, found.tree.graph)
    summed: dict[tuple[str | None, str | None, str], FloatArray] = {}
    for element, added in zip(found.tree.elements, found.expected.of_element, strict=True):
        ends = sorted((names.get(bus) for bus in element.pair), key=lambda name: (name is None, name or ""))
        key = (ends[0], ends[1], found.tree.graph.kind_of[element.pair])
        summed[key] = summed.get(key, np.zeros(3)) + added
    order = sorted(summed, key=lambda key: tuple((name is None, name or "") for name in key))
    return [(*key, *_rounded(summed[key]).values()) for key in order]


def _elements(rows: list[_Row]) -> pa.Table:
    names = ("from_bus", "to_bus", "kind", *SUMMED)
    types = (*[pa.string()] * 3, *[pa.float64()] * 3)
    return pa.table({name: pa.array([row[k] for row in rows], types[k]) for k, name in enumerate(names)})


# -------------------------------------------------------------------------------------- the page


def _items(study: Study, found: Found, rows: list[_Row]) -> Iterator[Item]:
    estimates = _estimates(found)
    yield Table(
        header=("index", "closed form", "simulated", "standard error"),
        rows=tuple((name, *(f"{value:.4g}" for value in estimates[name])) for name in SUMMED),
        caption="Expected figures of a year, computed exactly and by simulation.",
        numeric=frozenset({1, 2, 3}),
    )
    named = [row for row in rows if row[0] is not None and row[1] is not None]
    largest = sorted(named, key=lambda row: (-row[4], row[0] or "", row[1] or ""))[:_MOST_BARS]
    if largest:
        yield Figure(
            id="contribution",
            title="What adds most to SAIDI",
            caption="Hours a year per customer that faults between two buses add, the largest first.",
            chart=Bars(
                value=Axis("added to SAIDI", "h", decimals=4),
                groups=tuple(f"{row[0]}–{row[1]} ({row[2]})" for row in largest),
                series=(Series("SAIDI", [row[4] for row in largest]),),
            ),
        )
    yield _histogram(found)
    if study.connections is not None:
        yield _map(study, study.connections, found)


def _histogram(found: Found) -> Figure:
    values = found.simulated.saidi_hours
    most = float(np.percentile(values, 99.5)) or 1.0
    edges = np.round(np.linspace(0.0, most, _BINS + 1), HOURS)
    counts = np.histogram(values, edges)[0]
    return Figure(
        id="years",
        title="SAIDI of simulated years",
        caption=f"Share of {len(values)} simulated years; the longest half per cent of them are not shown.",
        chart=Histogram(
            x=Axis("SAIDI", "h", decimals=3),
            y=Axis("years", "%"),
            edges=edges,
            series=(Series("years", np.round(100.0 * counts / len(values), 4)),),
        ),
        wide=False,
    )


def _map(study: Study, connections: Connections, found: Found) -> Figure:
    """Hours of every bus with a public name."""
    hours = np.full(connections.n_buses, np.nan)
    place = {name: row for row, name in enumerate(connections.bus_ids)}
    for bus, name in public_buses(study, found.tree.graph).items():
        section = found.sections.of_bus[bus]
        hours[place[name]] = found.expected.hours[section] if section >= 0 else np.nan
    chart = network_map(connections, Axis("hours a year", "h", decimals=3), {"expected": hours})
    return Figure("map", "Hours without supply", "Expected hours a year at every bus.", chart)


# --- indices, in closed form and by simulation -------------------------------------------------------------
# What the closed form cannot say: how much one year differs from the next. Faults come as a Poisson process,
# each from an element in proportion to its rate; a year is 365 days, and any time of day is as likely. Draws
# come from AES streams with a public seed.
def mean_cut_short(mean: FloatArray, hours: float, settings: Reliability) -> FloatArray:
    """E[min(R, hours)] of repair times R with these means [h]."""
    if settings.repair_law == "fixed":
        return np.asarray(np.minimum(mean, hours))
    return np.asarray(mean * (1.0 - exp(-hours / mean)))


def drawn_hours(mean: FloatArray, generator: np.random.Generator, settings: Reliability) -> FloatArray:
    """A repair time for every mean [h]."""
    if settings.repair_law == "fixed":
        return mean
    return -mean * log(1.0 - generator.random(len(mean)))


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
_BUNDLE = 1 << 16


@dataclass(frozen=True, eq=False)
class Simulated:
    """Figures of simulated years.

    Attributes
    ----------
    saifi, saidi_hours, ens_kwh : (year,) of the system.
    faults : how many there were.
    """

    saifi: FloatArray
    saidi_hours: FloatArray
    ens_kwh: FloatArray
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
    at_hour, element, until_repair = draw_faults(tree, settings)
    of = sections.of_element[element]
    until_switched = np.minimum(until_repair, settings.switching_hours)
    share = customers / customers.sum()
    energy, reached, hours = np.zeros(len(of)), np.zeros(len(of)), np.zeros(len(of))
    for mask, duration in ((sections.switched, until_switched), (sections.repaired, until_repair)):
        weights = _rows(mask, share)[of]
        reached += weights
        hours += weights * duration
        energy += _energy(_rows(mask, load_kw), of, at_hour, duration)
    year = np.minimum(at_hour // HOURS_PER_YEAR, settings.years - 1).astype(np.int64)

    def by_year(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(year, weights=values, minlength=settings.years))

    return Simulated(by_year(reached), by_year(hours), by_year(energy), len(of))


def draw_faults(tree: Tree, settings: Reliability) -> tuple[FloatArray, IntArray, FloatArray]:
    """Faults over all years in the order of time: when [h], of which element, hours until it was repaired."""
    key = StreamKey.from_insecure_seed(settings.seed).bind("derived", "reliability")
    rate = rates_of(tree.elements)
    at_year = _times(key, float(rate.sum()), settings.years)
    edges = np.cumsum(rate)
    place = key.stream("elements").generator.random(len(at_year)) * (edges[-1] if len(edges) else 0.0)
    last = np.flatnonzero(rate)[-1] if np.any(rate) else 0
    element = np.minimum(np.searchsorted(edges, place, side="right"), last).astype(np.int64)
    mean = np.array([each.repair_hours for each in tree.elements])[element]
    repair = drawn_hours(mean, key.stream("repair times").generator, settings)
    return at_year * HOURS_PER_YEAR, element, repair


def _times(key: StreamKey, per_year: float, years: int) -> FloatArray:
    """Times of a Poisson process over some years [years]."""
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
    """(fault,) energy of a load that repeats every day, from a time on for some hours [kWh].

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
