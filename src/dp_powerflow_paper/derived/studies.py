"""Studies of a public feeder: true days on the true network, and what privacy makes of both.

`compared` says which derived figures are compared, kind by kind.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow.compute as pc

from dp_powerflow import Budget, Feeder, FitOptions, OperatedSolver, Protected, StreamKey, TwinDesign, fit
from dp_powerflow.lowlevel import (
    ClassLaw,
    LoadLaw,
    LoadSampler,
    Rebuilder,
    Solver,
    Study,
    WeakBudgetWarning,
    clear_sky,
    draw_twin,
    nominal_law,
    parameters_of,
)
from dp_powerflow.model.sample import LoadSource
from dp_powerflow.studies.dispatch import OptimalDispatch
from dp_powerflow.studies.hosting import HostingCapacity
from dp_powerflow.studies.reliability import Reliability
from dp_powerflow.studies.study import Findings, GivenDays, GivenLaw, Kind
from dp_powerflow.units import KW_PER_MW, FloatArray, IntArray
from dp_powerflow_paper.datasets import Dataset

CHANGE = 0.05
"""Neighbours differ in one line, its R and X by factors up to 1 + this."""
DELTA_LOAD = 1e-6
LATITUDE, MIDSUMMER = 40.0, 172
"""New PV sees a clear midsummer day at this latitude [degrees], every day."""


@dataclass(frozen=True)
class Case:
    """What a study is made of.

    Attributes
    ----------
    name : for files.
    words : for readers.
    load_epsilon : ε of the fit of the loads for one customer-day, a million for a fit without noise to speak
        of; None for true loads.
    twin_epsilon : ε of the twin for one line changed by 5 %; None for the true network.
    other_days : whether true loads are those of other days.
    """

    name: str
    words: str
    load_epsilon: float | None = None
    twin_epsilon: float | None = None
    other_days: bool = False

    @property
    def repeats(self) -> bool:
        """Whether anything of it is drawn."""
        return self.load_epsilon is not None or self.twin_epsilon is not None


TRUE = Case("true", "true loads, true network")
OTHER_DAYS = Case("other-days", "other true days, true network", other_days=True)
CASES = (
    Case("model", "fitted loads without noise, true network", load_epsilon=1e6),
    Case("loads", "DP loads ε = 1, true network", load_epsilon=1.0),
    Case("twin", "true loads, twin ε = 1", twin_epsilon=1.0),
    Case("both", "DP loads ε = 1, twin ε = 1", load_epsilon=1.0, twin_epsilon=1.0),
    Case("both-1.5", "DP loads ε = 1, twin ε = 1.5", load_epsilon=1.0, twin_epsilon=1.5),
)


@dataclass(frozen=True, eq=False)
class Bench:
    """Makes the studies of a data set.

    Attributes
    ----------
    data : public.
    days : days of a study.
    seed : of fits, draws and twins.
    """

    data: Dataset
    days: int
    seed: int
    _laws: dict[tuple[float, int], LoadLaw] = field(default_factory=dict)

    def study(self, case: Case, run: int) -> Study:
        """The study of a case; run k draws fit, days and twin with streams of its own."""
        feeder = self.data.feeder if case.twin_epsilon is None else self._twin(case.twin_epsilon, run)
        days = self._other_days if case.other_days else self._days
        released = feeder.retained[self.data.loaded]
        return Study(
            feeder=feeder,
            source=self._source(case, run, days),
            make_solver=self._solver_of(feeder),
            released=released,
            node_ids=tuple(f"n{k:03d}" for k in range(len(released))),
            generation=self.data.sun(days),
            irradiance=clear_sky(LATITUDE, 1, self.data.n_steps, MIDSUMMER),
        )

    @cached_property
    def _days(self) -> IntArray:
        return self.data.spread_days(self.days)

    @cached_property
    def _other_days(self) -> IntArray:
        gap = max(1, self.data.n_days // (2 * self.days))
        return (self._days + gap) % self.data.n_days

    def _source(self, case: Case, run: int, days: IntArray) -> LoadSource:
        if case.load_epsilon is None:
            base = self.data.feeder.base_mva
            law = GivenLaw(self.data.n_steps, base, self._drawn)
            relative = self.data.relative[self._drawn][:, days]
            nominal = self.data.feeder.nominal_load[self._drawn, None, None]
            power = relative * nominal * (KW_PER_MW * base)
            return GivenDays(law, power.real, power.imag, block_days=1)
        return LoadSampler(self._law(case.load_epsilon, run), self._key("days", run), self.days, block_days=1)

    @cached_property
    def _drawn(self) -> IntArray:
        """Loads of the feeder that are drawn, one by one, as in a release whose controls act."""
        return self.data.feeder.drawn_loads()[0]

    def _at_loads(self, of_class: ClassLaw) -> LoadLaw:
        return replace(
            nominal_law(self.data.feeder.nominal_load[self._drawn], of_class), positions=self._drawn
        )

    def _solver_of(self, feeder: Feeder) -> Callable[[int | None], Solver]:
        data = self.data

        def make(threads: int | None) -> Solver:
            curve = None if data.voltvar is None else data.voltvar.curves[0]
            return OperatedSolver(feeder, controls="day", steps=data.n_steps, volt_var=curve, threads=threads)

        return make

    def _key(self, purpose: str, run: int) -> StreamKey:
        return StreamKey.from_insecure_seed(self.seed).bind(purpose, str(run))

    def _twin(self, epsilon: float, run: int) -> Feeder:
        """The default twin of a release: Laplace noise on R and X of every line; lengths follow from X."""
        design = TwinDesign(epsilon, CHANGE, Protected(), "laplace", 0.0)
        source = self._rebuilder
        return draw_twin(parameters_of(source, design), design, self._key("twin", run)).feeder(source)

    @cached_property
    def _rebuilder(self) -> Rebuilder:
        return Rebuilder(self.data.feeder, Protected())

    def _law(self, epsilon: float, run: int) -> LoadLaw:
        if (epsilon, run) not in self._laws:
            data = self.data
            options = FitOptions(
                bounds=data.margins,
                use_scale=True,
                estimator=data.estimator,
                variance_floor=data.variance_floor,
            )
            budget = Budget(epsilon, DELTA_LOAD, data.unit)
            with warnings.catch_warnings():
                # How weak the budget is shows in the figures.
                warnings.simplefilter("ignore", WeakBudgetWarning)
                model = fit(data.history, budget=budget, options=options, key=self._key("fit", run))
            part = model.days[0].components[0]
            self._laws[epsilon, run] = self._at_loads(ClassLaw.gaussian(part.mean, part.covariance))
        return self._laws[epsilon, run]


@dataclass(frozen=True)
class Measure:
    """One figure of a kind.

    Attributes
    ----------
    name : for readers and files.
    unit : of the figure.
    of : (figure,) values in an order that is the same in every study: one of the system, or one per node.
    relative : whether errors are relative; else they are differences, as for shares and counts that may be 0.
    """

    name: str
    unit: str
    of: Callable[[Findings], FloatArray]
    relative: bool = True


@dataclass(frozen=True)
class Compared:
    """A kind with its settings, and what is compared of it.

    Attributes
    ----------
    name : for files.
    words : for readers.
    """

    name: str
    words: str
    kind: Kind
    measures: tuple[Measure, ...]


def figure(name: str) -> Callable[[Findings], FloatArray]:
    """A figure of the findings."""
    return lambda findings: np.array([float(findings.figures[name])])


def column(table: str, name: str) -> Callable[[Findings], FloatArray]:
    """A column of a table, in its order."""
    return lambda findings: np.asarray(findings.tables[table].column(name).to_numpy(), dtype=np.float64)


def total(table: str, name: str) -> Callable[[Findings], FloatArray]:
    """Sum of a column."""
    of = column(table, name)
    return lambda findings: of(findings).sum(keepdims=True)


def mean_of(table: str, name: str) -> Callable[[Findings], FloatArray]:
    """Mean of a column."""
    of = column(table, name)
    return lambda findings: np.nanmean(of(findings), keepdims=True)


def reliability() -> Compared:
    """Interruptions, hours and energy, with default rates."""
    return Compared(
        "reliability",
        "Reliability",
        Reliability(years=1000),
        (
            Measure("SAIFI", "1/yr", figure("saifi")),
            Measure("SAIDI", "h/yr", figure("saidi_hours")),
            Measure("energy not served", "kWh/yr", figure("ens_kwh")),
            Measure("hours of a node", "h/yr", column("nodes.parquet", "hours_per_year")),
            Measure("energy of a node", "kWh/yr", column("nodes.parquet", "ens_kwh_per_year")),
        ),
    )


def hosting(limit: float, standard: str) -> Compared:
    """Capacity of every node with a load, on the middle day and on the worst, within a limit of voltage."""
    return Compared(
        f"hosting-{100 * limit:.0f}",
        f"Hosting capacity, voltages within {100 * limit:.0f} % ({standard})",
        HostingCapacity(v_min_pu=round(1.0 - limit, 6), v_max_pu=round(1.0 + limit, 6)),
        (
            Measure("capacity of a node, median day", "kW", column("hosting.parquet", "q050_kw")),
            Measure("capacity of a node, worst day", "kW", column("hosting.parquet", "q000_kw")),
            Measure("sum of the nodes, median day", "kW", total("hosting.parquet", "q050_kw")),
        ),
    )


def dispatch() -> Compared:
    """Least cost, and power of the units, at six snapshots of every day."""
    return Compared(
        "opf",
        "Optimal dispatch of units at every fifth load",
        # Large units whose marginal cost meets the price within their range: network and limits matter.
        OptimalDispatch(every=16, unit_size=4.0, unit_cost_per_kwh=0.09, unit_cost_per_kw2h=5e-5),
        (
            Measure("cost", "per h", figure("mean_cost_per_h")),
            Measure("cost without units", "per h", figure("mean_cost_without_units_per_h")),
            Measure("power of all units", "kW", mean_of("snapshots.parquet", "units_kw")),
            Measure("power of a unit", "kW", _power_of_units),
            Measure("snapshots with a voltage beyond its limit", "%", _beyond, relative=False),
            Measure("snapshots without a dispatch", "%", _without, relative=False),
        ),
    )


def _power_of_units(findings: Findings) -> FloatArray:
    """(unit,) mean over snapshots [kW]."""
    table = findings.tables["dispatch/part-00000.parquet"]
    units = np.repeat(table.column("unit").to_numpy(), pc.list_value_length(table.column("p_kw")).to_numpy())
    power = np.asarray(pc.list_flatten(table.column("p_kw")).to_numpy(zero_copy_only=False), dtype=np.float64)
    known = np.isfinite(power)
    count = np.bincount(units[known], minlength=int(units.max()) + 1)
    return np.bincount(units[known], weights=power[known], minlength=len(count)) / np.maximum(count, 1)


def _beyond(findings: Findings) -> FloatArray:
    figures = findings.figures
    return np.array([100.0 * figures["snapshots_beyond_voltage"]["0"] / figures["snapshots"]])


def _without(findings: Findings) -> FloatArray:
    figures = findings.figures
    return np.array([100.0 * (1.0 - figures["by_status"].get("solved", 0) / figures["snapshots"])])


def compared() -> tuple[Compared, ...]:
    """Every kind of derived release."""
    return (hosting(0.05, "ANSI C84.1, range A"), hosting(0.10, "EN 50160"), dispatch(), reliability())
