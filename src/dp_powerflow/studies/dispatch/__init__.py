"""Settings of optimal dispatch, and the kind of derived release that they are."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dp_powerflow._parallel import Threads
from dp_powerflow._threads import cores
from dp_powerflow.errors import ConfigError, require
from dp_powerflow.studies.dispatch.days import DayResult, DispatchJob, Places, UnitFacts, ampacities, facts_of
from dp_powerflow.studies.dispatch.dispatcher import Options, TapMode, Unit, UnitsPowerFlow
from dp_powerflow.studies.dispatch.gridfm import gridfm_files, gridfm_tables, refuse_gridfm
from dp_powerflow.studies.dispatch.network import BusTree
from dp_powerflow.studies.dispatch.tables import figures_of, items_of, tables_of
from dp_powerflow.studies.study import Findings, Progress, Study
from dp_powerflow.units import FloatArray

_MOST = 1e9
"""Of any power, price and limit: beyond it a solver knows no difference from infinity."""
Positive = Annotated[float, Field(gt=0.0, le=_MOST)]
NotNegative = Annotated[float, Field(ge=0.0, le=_MOST)]
Finite = Annotated[float, Field(ge=-_MOST, le=_MOST)]


class DeclaredUnit(BaseModel):
    """One unit at a place of its own: by `node` of nodes.parquet, or by `bus` of buses.parquet.

    In experiments `bus` may be a name of the feeder's file; a derived release would publish it.

    Attributes
    ----------
    phases : of the bus; all of them by default.
    kw, kw_min : range of its active power [kW]; negative for one that can draw.
    kva : rating of its inverter [kVA]; by default the larger end of the range.
    cost_per_kwh, cost_per_kw2h : p kW for an hour cost cost_per_kwh·p + cost_per_kw2h·p².
    sun : whether `kw` is multiplied by the irradiance of the study.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    node: str | None = None
    bus: str | None = None
    phases: tuple[int, ...] = ()
    kw: NotNegative
    kw_min: Annotated[float, Field(le=0.0, ge=-_MOST)] = 0.0
    kva: Positive | None = None
    cost_per_kwh: Finite = 0.08
    cost_per_kw2h: NotNegative = 1e-5
    sun: bool = False

    @model_validator(mode="after")
    def _placed(self) -> DeclaredUnit:
        if (self.node is None) == (self.bus is None):
            raise ValueError("a unit stands at a node or at a bus; name one of the two")
        if self.node is not None and self.phases:
            raise ValueError("a node is of one phase; name a bus, or leave out phases")
        if self.kw == 0.0 and self.kw_min == 0.0 and self.kva is None:
            raise ValueError("a unit without active power needs a rating; set kva")
        return self


class OptimalDispatch(BaseModel):
    """Least-cost dispatch of units at every snapshot, with AC check.

    Attributes
    ----------
    units : declared one by one; without any they are placed by the rule of the next four settings.
    unit_share : share of the loads that get a unit: every k-th in the order of the public node names.
    unit_size : its largest active power, as a share of the load's nominal power.
    unit_kva_per_kw : rating of its inverter over that power.
    unit_cost_per_kwh, unit_cost_per_kw2h, unit_sun : as of a declared unit.
    price_per_kwh : price of import at the source, which export earns too: one figure, one per step of a day,
        or one per step of all days.
    v_min_pu, v_max_pu : voltage magnitudes to keep at every node [p.u.].
    ampacity_a : current limit of every line and phase [A]; none by default.
    ampacities_a : two public buses with a dash between → its own limit [A]; in experiments also the name
        of a line.
    taps : "as operated", or "optimised" together with the units.
    corrections : how often a dispatch is written again around its own AC solution.
    days : only the first so many days.
    every : only every so many steps of a day.
    gridfm : also write the tables of gridfm-datakit in its OPF mode; publishes the network.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    template: ClassVar[str] = "opf.txt"

    units: tuple[DeclaredUnit, ...] = ()
    unit_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    unit_size: Annotated[float, Field(gt=0.0, le=1e3)] = 1.0
    unit_kva_per_kw: Annotated[float, Field(ge=1.0, le=10.0)] = 1.1
    unit_cost_per_kwh: Finite = 0.08
    unit_cost_per_kw2h: NotNegative = 1e-5
    unit_sun: bool = False
    price_per_kwh: tuple[Finite, ...] = (0.1,)
    v_min_pu: Positive = 0.95
    v_max_pu: Positive = 1.05
    ampacity_a: Positive | None = None
    ampacities_a: dict[str, Positive] = {}
    taps: TapMode = "as operated"
    corrections: Annotated[int, Field(ge=0, le=5)] = 1
    days: Annotated[int, Field(ge=1)] | None = None
    every: Annotated[int, Field(ge=1)] = 1
    gridfm: bool = False

    @model_validator(mode="after")
    def _possible(self) -> OptimalDispatch:
        if not self.v_min_pu < self.v_max_pu:
            raise ValueError("v_min_pu must lie below v_max_pu")
        if not self.price_per_kwh:
            raise ValueError("price_per_kwh needs at least one figure")
        return self

    @property
    def name(self) -> str:
        return "opf"

    def check(self, study: Study) -> None:
        """Refuse a missing extra, a meshed feeder, and places or prices that do not fit."""
        require("clarabel", "opf")
        tree = BusTree.of(study.feeder)
        facts = self._facts(study, tree)
        ampacities(study, tree, self.ampacity_a, self.ampacities_a)
        self._prices(study)
        if any(fact.unit.sun for fact in facts) and study.irradiance is None:
            raise ConfigError("a unit follows the sun, but the study has no irradiance; set its sun to false")
        if self.taps == "optimised" and not study.feeder.as_operated.regulators:
            raise ConfigError('the feeder has no regulator to optimise; set taps to "as operated"')
        solver = study.make_solver(1)
        UnitsPowerFlow(solver, [fact.unit for fact in facts])
        if self.gridfm:
            refuse_gridfm(solver, optimised=self.taps == "optimised")

    def find(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Findings:
        """Dispatch every chosen snapshot; the same bits for any number of workers."""
        self.check(study)
        tree = BusTree.of(study.feeder)
        facts = self._facts(study, tree)
        job = DispatchJob(
            study=study,
            units=tuple(fact.unit for fact in facts),
            options=Options(self.v_min_pu, self.v_max_pu, self.taps, self.corrections),
            ampacity=ampacities(study, tree, self.ampacity_a, self.ampacities_a),
            price=self._prices(study),
            every=self.every,
        )
        count = min(study.days, self.days or study.days)
        results: dict[int, DayResult] = {}

        def kept(result: DayResult) -> None:
            results[result.day] = result
            if progress is not None:
                progress(len(results), count)

        Threads(workers or cores()).map(job, range(count), kept)
        days = [results[day] for day in range(count)]
        layout = job.layout(tree)
        unnamed = int(np.count_nonzero(tree.parent >= 0)) - len(set(layout.branch_of.tolist()))
        tables = tables_of(study, layout, facts, days)
        if self.gridfm:
            tables |= gridfm_tables(study, self, facts, days)
        return Findings(
            tables=tables,
            figures=figures_of(self, days, facts, unnamed),
            items=items_of(self, study, days),
            files=gridfm_files(days) if self.gridfm else {},
        )

    def _facts(self, study: Study, tree: BusTree) -> list[UnitFacts]:
        """Units with their public names, in order."""
        places, units = Places.of(study, tree), []
        for number, own in enumerate(self.units):
            kva = own.kva or max(own.kw, -own.kw_min)
            low, high = max(own.kw_min, -kva), min(own.kw, kva)
            costs = own.cost_per_kwh, own.cost_per_kw2h
            units.append(Unit(f"unit {number}", places.branches(own), kva, high, low, *costs, own.sun))
        for number, at in enumerate(() if self.units else places.loads(self.unit_share)):
            load, costs = study.feeder.loads[at], (self.unit_cost_per_kwh, self.unit_cost_per_kw2h)
            kw = load.kw * self.unit_size
            kva = kw * self.unit_kva_per_kw
            units.append(Unit(f"unit {number}", load.branches, kva, kw, 0.0, *costs, self.unit_sun))
        if not units:
            raise ConfigError("no released node has a load, so the rule places no unit; declare units")
        return [facts_of(study, unit) for unit in units]

    def _prices(self, study: Study) -> FloatArray:
        """(day, step) prices of import."""
        given, days, steps = np.array(self.price_per_kwh), study.days, study.steps
        if len(given) == 1:
            return np.full((days, steps), given[0])
        if len(given) == steps:
            return np.tile(given, (days, 1))
        if len(given) == days * steps:
            return given.reshape(days, steps)
        raise ConfigError(
            f"price_per_kwh has {len(given)} figures; give one, one for each of {steps} steps, or "
            f"{days * steps} for all days"
        )
