"""Optimal dispatch: settings, the kind of derived release that they are, its days, tables and page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dp_powerflow._parallel import Threads
from dp_powerflow._threads import cores
from dp_powerflow.corpus.grid import VM_PER_PU, round_power, round_to_grid
from dp_powerflow.corpus.gridfm.network import NodeFacts, PublishedNetwork, network_of
from dp_powerflow.corpus.gridfm.schema import (
    COUNT_FILE,
    SCENARIOS_PER_PARTITION,
    SETTINGS,
    SETTINGS_FILE,
    Column,
    ScenarioKeys,
    file_name,
    table_of,
)
from dp_powerflow.corpus.gridfm.tables import BusStates, scenario_tables
from dp_powerflow.errors import ConfigError, require
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.model.sample import LoadBlock, PlacedDays, columns_of, placed_load, solve_placed
from dp_powerflow.page import CLOCK, Axis, Band, Figure, Histogram, Item, Limit, Lines, Quantiles, Series
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.studies.dispatch.dispatcher import (
    INACCURATE,
    SOLVED,
    STATUSES,
    Dispatched,
    Dispatcher,
    Options,
    Snapshots,
    TapMode,
    Unit,
    UnitsPowerFlow,
    unit_shares,
    with_units,
)
from dp_powerflow.studies.dispatch.network import BusTree, LinDistFlow
from dp_powerflow.studies.study import Findings, Kind, Progress, Study
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

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


class OptimalDispatch(Kind):
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

    name: ClassVar[str] = "opf"
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
    ampacities_a: dict[str, Positive] = Field(default_factory=dict)
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
        layout = layout_of(study, LinDistFlow(tree), job.ampacity)
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
        places, units = UnitPlaces.of(study, tree), []
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


# --- tables and page --------------------------------------------------------------------------------------
# Tables have the layout of a corpus: one row per day and node, unit or branch, lists over steps. Powers are
# multiples of 2⁻¹⁰ kW, voltages those of the corpus grid, prices of 1e-6 and duals of 1e-3 per hour. What a
# snapshot without a dispatch, or without a power flow, has no value for is null.
DAYS_PER_PART = 32
_PRICE, _DUAL, _COST = 1e6, 1e3, 1e6
"""Counts per unit of the grids of prices, duals and costs."""
Values = NDArray[np.float32] | FloatArray
Columns = Mapping[str, Values]


def tables_of(
    study: Study, layout: PublishedPlaces, facts: Sequence[UnitFacts], days: Sequence[DayResult]
) -> dict[str, pa.Table]:
    """All tables but those of gridfm, by file name."""
    tables = {"units.parquet": _units(facts), "snapshots.parquet": _snapshots(days)}
    if layout.pairs:
        tables["branches.parquet"] = _branches(layout)
    for part in range(-(-len(days) // DAYS_PER_PART)):
        some = days[part * DAYS_PER_PART : (part + 1) * DAYS_PER_PART]
        name = f"part-{part:05d}.parquet"
        tables[f"dispatch/{name}"] = _series("unit", len(facts), some, lambda day: _power(day.found.power))
        tables[f"loads/{name}"] = _series("node", len(study.released), some, lambda day: _power(day.load))
        tables[f"voltages/{name}"] = _series(
            "node", len(study.released), some, lambda day: _voltages(study, layout, day)
        )
        tables[f"duals/{name}"] = _series("node", len(study.released), some, lambda day: _duals(layout, day))
        if layout.pairs:
            tables[f"flows/{name}"] = _series(
                "branch", len(layout.pairs), some, lambda day: _power(day.flows)
            )
    return tables


def on_grid(values: FloatArray, per_unit: float) -> FloatArray:
    """Rounded to a grid; one zero."""
    return np.asarray(np.rint(values * per_unit) / per_unit + 0.0)


# ---------------------------------------------------------------------------------- series


def _series(
    of: str, count: int, days: Sequence[DayResult], columns: Callable[[DayResult], Columns]
) -> pa.Table:
    """One row per day and element; `columns` gives (step, element) values of a day."""
    found = [columns(day) for day in days]
    numbers = np.repeat([day.day for day in days], count).astype(np.int32)
    elements = np.tile(np.arange(count), len(days)).astype(np.int32)
    arrays: dict[str, pa.Array] = {"day": pa.array(numbers), of: pa.array(elements)}
    for name in found[0]:
        arrays[name] = _lists([each[name] for each in found])
    return pa.table(arrays)


def _lists(parts: Sequence[Values]) -> pa.ListArray:
    """(step, element) values of every day as lists, float32, null for NaN."""
    values = np.concatenate([np.asarray(part, dtype=np.float32).T.ravel() for part in parts])
    lengths = np.concatenate([np.full(part.shape[1], part.shape[0]) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, mask=np.isnan(values)))


def _power(values: ComplexArray) -> Columns:
    """Active and reactive power on the grid, NaN where there is none."""
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0)
    parts = round_power(filled.real), round_power(filled.imag)
    return {"p_kw": np.where(known, parts[0], np.nan), "q_kvar": np.where(known, parts[1], np.nan)}


def _voltages(study: Study, layout: PublishedPlaces, day: DayResult) -> Columns:
    v = day.found.checked.v[:, study.released]
    known = np.isfinite(v)
    phasors = round_to_grid(np.where(known, v, 0.0))
    linear = _at(layout, day.found.linear_vm)
    return {
        "vm_pu": np.where(known, phasors.vm_pu, np.nan),
        "va_deg": np.where(known, phasors.va_deg, np.nan),
        "linear_vm_pu": on_grid(linear, VM_PER_PU),
    }


def _duals(layout: PublishedPlaces, day: DayResult) -> Columns:
    found = day.found
    return {
        "price_per_kwh": on_grid(_at(layout, found.price.real), _PRICE),
        "price_per_kvarh": on_grid(_at(layout, found.price.imag), _PRICE),
        "v_max_dual": on_grid(_at(layout, found.upper), _DUAL),
        "v_min_dual": on_grid(_at(layout, found.lower), _DUAL),
        "ampacity_dual": on_grid(_at(layout, found.flow_dual), _DUAL),
    }


def _at(layout: PublishedPlaces, values: FloatArray) -> FloatArray:
    """(step, released node) of values of places; NaN at a source."""
    wide = np.concatenate([values, np.full((len(values), 1), np.nan)], axis=1)
    return np.asarray(wide[:, layout.places])


# ---------------------------------------------------------------------------------- plain tables


def _units(facts: Sequence[UnitFacts]) -> pa.Table:
    units = [fact.unit for fact in facts]
    return pa.table(
        {
            "unit": pa.array(range(len(units)), pa.int32()),
            "nodes": pa.array([list(fact.nodes) for fact in facts], pa.list_(pa.string())),
            "connection": ["delta" if min(unit.branches[0]) >= 0 else "wye" for unit in units],
            "kva": [unit.kva for unit in units],
            "kw_min": [unit.kw_min for unit in units],
            "kw_max": [unit.kw_max for unit in units],
            "cost_per_kwh": [unit.cost_per_kwh for unit in units],
            "cost_per_kw2h": [unit.cost_per_kw2h for unit in units],
            "sun": [unit.sun for unit in units],
        }
    )


def _branches(layout: PublishedPlaces) -> pa.Table:
    limit = np.where(np.isfinite(layout.limit_a), layout.limit_a, np.nan)
    return pa.table(
        {
            "branch": pa.array(range(len(layout.pairs)), pa.int32()),
            "from_bus": [pair[0] for pair in layout.pairs],
            "to_bus": [pair[1] for pair in layout.pairs],
            "phase": pa.array(layout.phase, pa.int32()),
            "ampacity_a": pa.array(limit, mask=np.isnan(limit)),
        }
    )


def _joined(days: Sequence[DayResult], of: Callable[[DayResult], FloatArray | IntArray]) -> FloatArray:
    """An array of every day, one after the other."""
    return np.concatenate([np.asarray(of(day)) for day in days])


def _snapshots(days: Sequence[DayResult]) -> pa.Table:
    """One row per dispatched snapshot."""
    columns: dict[str, pa.Array] = {
        "day": pa.array(np.repeat([day.day for day in days], [len(day.steps) for day in days]), pa.int32()),
        "step": pa.array(_joined(days, lambda day: day.steps), pa.int32()),
        "status": pa.array([status for day in days for status in day.found.status]),
        "corrections": pa.array(_joined(days, lambda day: day.found.corrected), pa.int32()),
    }
    numbers: dict[str, tuple[Callable[[DayResult], FloatArray], float | None]] = {
        "price_per_kwh": (lambda day: day.price, None),
        "cost_per_h": (lambda day: day.found.cost, _COST),
        "linear_cost_per_h": (lambda day: day.found.linear_cost, _COST),
        "cost_without_units_per_h": (lambda day: day.base_cost, _COST),
        "import_kw": (lambda day: day.found.import_kw, 1024.0),
        "units_kw": (lambda day: np.nansum(day.found.power.real, axis=1), 1024.0),
        "vm_min_pu": (lambda day: day.vm.min(axis=1), VM_PER_PU),
        "vm_max_pu": (lambda day: day.vm.max(axis=1), VM_PER_PU),
        "worst_voltage_pu": (lambda day: day.beyond_v.max(axis=1), VM_PER_PU),
        "worst_current_share": (lambda day: day.beyond_i.max(axis=1), 1e4),
    }
    for name, (of, per_unit) in numbers.items():
        values = _joined(days, of) if per_unit is None else on_grid(_joined(days, of), per_unit)
        columns[name] = pa.array(values, mask=np.isnan(values))
    for name, of in (
        ("voltages_beyond", lambda day: np.count_nonzero(day.beyond_v, axis=1)),
        ("currents_beyond", lambda day: np.count_nonzero(day.beyond_i, axis=1)),
    ):
        columns[name] = pa.array(_joined(days, of), pa.int32())
    return pa.table(columns)


SIZES_PU = (0.0, 0.001, 0.005, 0.01)
"""Voltages beyond a limit are counted by how far they are beyond it: more than each of these [p.u.]."""
SIZES_SHARE = (0.0, 0.01, 0.05, 0.1)
"""The same for currents, as shares of the limit."""
_LEVELS = (5.0, 25.0, 50.0, 75.0, 95.0)
_MINUTES = 1440.0
_BINS = 60


def figures_of(
    settings: OptimalDispatch, days: Sequence[DayResult], facts: Sequence[UnitFacts], unnamed: int
) -> dict[str, Any]:
    """Plain figures of all snapshots; `unnamed` branches have no public name."""
    counts = Counter(status for day in days for status in day.found.status)
    beyond_v, beyond_i = _joined(days, lambda day: day.beyond_v), _joined(days, lambda day: day.beyond_i)
    cost, linear = _joined(days, lambda day: day.found.cost), _joined(days, lambda day: day.found.linear_cost)
    without = _joined(days, lambda day: day.base_cost)
    known = np.isfinite(cost) & np.isfinite(linear)
    both = known & np.isfinite(without)
    vm, linear_vm = _joined(days, lambda day: day.vm), _joined(days, lambda day: day.found.linear_vm)
    solved = np.isfinite(vm) & np.isfinite(linear_vm)
    uncorrected = _joined(days, lambda day: day.found.corrected)[known] < settings.corrections
    return {
        "snapshots": len(cost),
        "units": len(facts),
        "units_kw": round(float(sum(fact.unit.kw_max for fact in facts)), 3),
        "by_status": {name: counts[name] for name in STATUSES if counts[name]},
        "not_corrected": int(np.count_nonzero(uncorrected)),
        "mean_cost_per_h": _rounded(float(np.mean(cost[known]))) if known.any() else None,
        "mean_cost_without_units_per_h": _rounded(float(np.mean(without[both]))) if both.any() else None,
        "largest_cost_error_percent": _largest(_error_percent(linear[known], cost[known])),
        "largest_voltage_error_pu": _largest(np.abs(vm - linear_vm)[solved], 6),
        "snapshots_beyond_voltage": _sizes(beyond_v.max(axis=1), SIZES_PU),
        "voltages_beyond": _sizes(beyond_v, SIZES_PU),
        "snapshots_beyond_ampacity": _sizes(beyond_i.max(axis=1), SIZES_SHARE),
        "branches_without_flows": unnamed,
        "v_min_pu": settings.v_min_pu,
        "v_max_pu": settings.v_max_pu,
    }


def _error_percent(linear: FloatArray, cost: FloatArray) -> FloatArray:
    """How far the cost of the program is from the checked one, where that is not zero [%]."""
    paid = cost != 0.0
    return np.asarray(100.0 * np.abs(linear[paid] - cost[paid]) / np.abs(cost[paid]))


def _rounded(value: float) -> float:
    return round(value, 6)


def _largest(values: FloatArray, digits: int = 4) -> float | None:
    return round(float(values.max()), digits) if len(values) else None


def _sizes(beyond: FloatArray, sizes: Sequence[float]) -> dict[str, int]:
    """How many are beyond by more than each size."""
    return {f"{size:g}": int(np.count_nonzero(beyond > size)) for size in sizes}


# ---------------------------------------------------------------------------------- charts


def items_of(settings: OptimalDispatch, study: Study, days: Sequence[DayResult]) -> list[Item]:
    """Charts of the page."""
    return [_cost(days), _band(study, days), _shown_voltages(settings, days)]


def _cost(days: Sequence[DayResult]) -> Item:
    with_units = [_sum(day.found.cost) for day in days]
    without = [_sum(day.base_cost) for day in days]
    chart = Lines(
        x=Axis("day", decimals=0),
        y=Axis("mean cost per hour", decimals=2),
        at=[day.day for day in days],
        series=(Series("with dispatch", with_units), Series("without units", without)),
    )
    caption = "Mean over the dispatched snapshots of a day; import and units, after the AC check."
    return Figure("cost", "Cost of every day", caption, chart)


def _sum(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return round(float(np.mean(known)), 4) if len(known) else None


def _band(study: Study, days: Sequence[DayResult]) -> Item:
    power = np.stack([np.nansum(day.found.power.real, axis=1) for day in days])
    steps = days[0].steps
    quantiles = np.round(np.percentile(power, _LEVELS, axis=0), 3)
    chart = Band(
        x=CLOCK,
        y=Axis("power of all units", "kW", decimals=1),
        at=np.round(steps * (_MINUTES / study.steps), 3),
        bands=(Quantiles("dispatch", _LEVELS, quantiles),),
    )
    caption = "Quantiles over days: 5, 25, 50, 75 and 95 %. A snapshot without dispatch counts as 0."
    return Figure("dispatch", "Dispatch over the day", caption, chart)


def _shown_voltages(settings: OptimalDispatch, days: Sequence[DayResult]) -> Item:
    base = np.concatenate([day.base_vm.ravel() for day in days])
    checked = np.concatenate([day.vm.ravel() for day in days])
    base, checked = base[np.isfinite(base)], checked[np.isfinite(checked)]
    both = np.concatenate([base, checked, [settings.v_min_pu, settings.v_max_pu]])
    edges = np.linspace(both.min() - 1e-3, both.max() + 1e-3, _BINS + 1).round(5)
    shares = [
        np.round(np.histogram(values, edges)[0] / max(len(values), 1) * 100.0, 4)
        for values in (base, checked)
    ]
    chart = Histogram(
        x=Axis("voltage", "p.u.", decimals=4),
        y=Axis("share of node-snapshots", "%", decimals=3),
        edges=edges,
        series=(Series("without units", shares[0]), Series("with dispatch", shares[1])),
        limits=(Limit(settings.v_min_pu, "lowest"), Limit(settings.v_max_pu, "highest")),
    )
    caption = "All nodes and dispatched snapshots, by AC power flow."
    return Figure("voltages", "Voltages before and after", caption, chart)


# --- the layout of gridfm-datakit, OPF mode ---------------------------------------------------------------
# That of its power-flow mode, and what differs: `settings.mode` is `opf`; units are rows of `gen_data` with
# costs and limits; `bus_data` has the voltage limits, and a bus with a unit is a PV bus. It holds the whole
# network, so it is written on request only. Snapshots without a checked dispatch are no scenario;
# `scenarios.parquet` says which snapshot a scenario is.
FOLDER = "gridfm"


def refuse_gridfm(solver: Solver, *, optimised: bool) -> None:
    """The layout has one network for all scenarios, so taps must stay."""
    if not isinstance(solver, BatchSolver) or optimised:
        raise ConfigError(
            "tables of gridfm hold one network for all snapshots; leave out gridfm, or take a release of the "
            'fixed frame and taps "as operated"'
        )


def gridfm_tables(
    study: Study, limits: OptimalDispatch, facts: Sequence[UnitFacts], days: Sequence[DayResult]
) -> dict[str, pa.Table]:
    """Tables by file name, in partitions of 200 scenarios, and which snapshot a scenario is."""
    return _Writer(study, limits, facts).tables(days)


def gridfm_files(days: Sequence[DayResult]) -> dict[str, bytes]:
    """The two texts of the layout: number of scenarios, and mode."""
    count = sum(int(np.count_nonzero(_good(day))) for day in days)
    settings = SETTINGS.replace(b"mode: pf", b"mode: opf")
    return {f"{FOLDER}/{COUNT_FILE}": str(count).encode(), f"{FOLDER}/{SETTINGS_FILE}": settings}


class _Writer:
    def __init__(self, study: Study, limits: OptimalDispatch, facts: Sequence[UnitFacts]) -> None:
        self.limits, self.units = limits, [fact.unit for fact in facts]
        plain = study.feeder
        feeder = with_units(plain, self.units, as_loads=False)
        n = len(feeder.nodes)
        # Released tables merge switches: two released nodes may be one node of their network.
        own = np.array(list(dict.fromkeys(study.released.tolist())), dtype=np.int64)
        self.order = np.concatenate([own, np.setdiff1d(np.arange(n), own)])
        nodes = network_of(feeder, NodeFacts(order=self.order, released=len(own)))
        bus_of = nodes.groups()
        self.network: PublishedNetwork = nodes.merged(bus_of).turned()
        self.bus_of_node = np.empty(n, dtype=np.int64)
        self.bus_of_node[self.order] = bus_of
        self.bus_of_row: IntArray = self.bus_of_node[study.released]
        self.feeder, self.retained = feeder, plain.retained
        self.shares = unit_shares(plain, self.units)

    def tables(self, days: Sequence[DayResult]) -> dict[str, pa.Table]:
        found: dict[str, pa.Table] = {}
        parts = [self._scenarios(day) for day in days]
        chosen = [np.flatnonzero(_good(day)) for day in days]
        number = np.concatenate([np.full(len(at), day.day) for day, at in zip(days, chosen, strict=True)])
        price = np.concatenate([day.price[at] for day, at in zip(days, chosen, strict=True)])
        demand, power = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
        count = len(number)
        for first in range(0, count, SCENARIOS_PER_PARTITION):
            piece = range(first, min(first + SCENARIOS_PER_PARTITION, count))
            at = slice(piece.start, piece.stop)
            keys = ScenarioKeys(np.arange(piece.start, piece.stop), number[at].astype(np.int64))
            some = self._tables(keys, demand[at], power[at], price[at])
            for name, table in some.items():
                found[f"{FOLDER}/{file_name(name, piece)}"] = table
        step = np.concatenate([day.steps[at] for day, at in zip(days, chosen, strict=True)])
        found[f"{FOLDER}/scenarios.parquet"] = pa.table(
            {"scenario": np.arange(count), "day": number, "step": step}
        )
        found[f"{FOLDER}/rows.parquet"] = pa.table(
            {"row": np.arange(len(self.bus_of_row)), "bus": self.bus_of_row}
        )
        return found

    def _scenarios(self, day: DayResult) -> tuple[ComplexArray, ComplexArray]:
        """Net load of every bus without units [MW], and power of every unit [MW], of the good snapshots."""
        at = np.flatnonzero(_good(day))
        demand = np.zeros((len(at), self.network.n), dtype=np.complex128)
        net = day.column_load[at].copy()
        if day.column_generation is not None:
            net -= day.column_generation[at]
        np.add.at(demand.T, self.bus_of_node[self.retained], net.T * self.feeder.base_mva)
        return demand, day.found.power[at] / KW_PER_MW

    def _tables(
        self, keys: ScenarioKeys, demand: ComplexArray, power: ComplexArray, price: FloatArray
    ) -> dict[str, pa.Table]:
        network = self.network
        injected = np.zeros_like(demand)
        np.add.at(injected.T, self.bus_of_node, (power @ self.shares.T).T)
        v = network.solve((injected - demand)[:, network.loaded])
        tables = scenario_tables(network, keys, BusStates(demand - injected, np.zeros_like(demand), v))
        bus = tables["bus_data"]
        drawn, shape = bus.column("Pd").to_numpy(), demand.shape
        has_unit = np.isin(np.arange(network.n), self.bus_of_node[np.flatnonzero(self.shares.any(axis=1))])
        pv = (has_unit & ~np.isin(np.arange(network.n), network.reference)).astype(np.int8)
        given: dict[str, Column] = {
            "Pd": drawn.reshape(shape) + injected.real,
            "Qd": bus.column("Qd").to_numpy().reshape(shape) + injected.imag,
            "Pg": bus.column("Pg").to_numpy().reshape(shape) + injected.real,
            "Qg": bus.column("Qg").to_numpy().reshape(shape) + injected.imag,
            "min_vm_pu": self.limits.v_min_pu,
            "max_vm_pu": self.limits.v_max_pu,
            "PV": pv,
            "PQ": bus.column("PQ").to_numpy().reshape(shape) * (1 - pv),
        }
        tables["bus_data"] = _replaced(bus, given)
        tables["gen_data"] = self._generators(keys, tables["gen_data"], power, price)
        return tables

    def _generators(
        self, keys: ScenarioKeys, sources: pa.Table, power: ComplexArray, price: FloatArray
    ) -> pa.Table:
        """Sources at the price of import, then units: one row for every phase that a unit injects at."""
        count, slack = len(keys.scenario), len(self.network.reference)
        node, unit = (axis.astype(np.int64) for axis in np.nonzero(self.shares))
        order = np.lexsort((self.bus_of_node[node], unit))
        node, unit = node[order], unit[order]
        share = self.shares[node, unit]
        at = power[:, unit] * share
        part = np.abs(share)
        units = [self.units[k] for k in unit.tolist()]
        kva = np.array([each.kva for each in units]) * part / KW_PER_MW
        whole = np.ones((count, 1))

        def both(name: str, of_units: Column, of_sources: Column | None = None) -> Column:
            first = (
                sources.column(name).to_numpy().reshape(count, slack) if of_sources is None else of_sources
            )
            return np.concatenate([np.broadcast_to(first, (count, slack)), of_units * whole], axis=1)

        active = share.real
        # Between two phases the power of a node goes with q of the unit too: only the rating limits it.
        between = np.abs(share.imag) > 0.0
        least, most = (
            np.where(
                between, side * kva, np.array([getattr(each, name) for each in units]) * active / KW_PER_MW
            )
            for side, name in ((-1.0, "kw_min"), (1.0, "kw_max"))
        )
        cost = np.array([each.cost_per_kwh for each in units]) * KW_PER_MW
        # p of the unit is p of this row over its share; the quadratic cost is shared likewise.
        second = np.array([each.cost_per_kw2h for each in units]) * KW_PER_MW**2
        with np.errstate(divide="ignore", invalid="ignore"):
            second = np.where(active > 0.0, second / active, 0.0)
        columns: dict[str, Column] = {
            "idx": np.arange(slack + len(unit)),
            "bus": np.concatenate([self.network.reference, self.bus_of_node[node]]),
            "p_mw": both("p_mw", at.real),
            "q_mvar": both("q_mvar", at.imag),
            "min_p_mw": both("min_p_mw", least),
            "max_p_mw": both("max_p_mw", most),
            "min_q_mvar": both("min_q_mvar", -kva),
            "max_q_mvar": both("max_q_mvar", kva),
            "cp0_eur": 0.0,
            "cp1_eur_per_mw": both("cp1_eur_per_mw", cost, price[:, None] * KW_PER_MW),
            "cp2_eur_per_mw2": both("cp2_eur_per_mw2", second),
            "in_service": 1,
            "is_slack_gen": (np.arange(slack + len(unit)) < slack).astype(np.int8),
        }
        return table_of("gen_data", keys, slack + len(unit), columns)


def _good(day: DayResult) -> FloatArray:
    """(step,) whether a snapshot has a checked dispatch."""
    return np.array([status in (SOLVED, INACCURATE) for status in day.found.status], dtype=np.bool_)


def _replaced(table: pa.Table, columns: dict[str, Column]) -> pa.Table:
    """The table with some columns anew."""
    rows = table.num_rows
    for name, values in columns.items():
        k = table.schema.get_field_index(name)
        array = np.asarray(values)
        flat = array.ravel() if array.size == rows else np.resize(array, rows)
        table = table.set_column(k, table.schema.field(k), pa.array(flat, type=table.schema.field(k).type))
    return table


# --- days as tasks: loads drawn, dispatched and checked ----------------------------------------------------
Branches = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class UnitPlaces:
    """What units can be placed by.

    Attributes
    ----------
    tree : of the feeder.
    node_of : public name of a node → its index in the feeder.
    bus_of : name of a bus, in lower case → its number in the tree.
    """

    tree: BusTree
    node_of: Mapping[str, int]
    bus_of: Mapping[str, int]

    @classmethod
    def of(cls, study: Study, tree: BusTree) -> UnitPlaces:
        nodes = dict(zip(study.node_ids, study.released.tolist(), strict=True))
        buses = {bus.lower(): k for k, bus in enumerate(tree.buses)} if study.file_names else {}
        return cls(tree, nodes, buses | {name: k for k, name in public_buses(study, tree).items()})

    def loads(self, share: float) -> list[int]:
        """Every k-th load with active power, k = 1/share rounded, in the order of the public node names.

        A load stands where the first of its released nodes does; loads without any are left out.
        """
        feeder = self.tree.feeder
        at: dict[int, list[int]] = {}
        for number, load in enumerate(feeder.loads):
            for node in {node for pair in load.branches for node in pair} if load.kw > 0.0 else ():
                at.setdefault(node, []).append(number)
        found: dict[int, None] = {}
        for node in self.node_of.values():
            # Of loads at one node the larger comes first: their order in the file is not public.
            for number in sorted(at.get(node, ()), key=lambda k: -feeder.loads[k].kw):
                found.setdefault(number)
        step = max(1, round(1.0 / share))
        return list(found)[::step]

    def branches(self, declared: DeclaredUnit) -> Branches:
        """Between which nodes a declared unit injects."""
        if declared.node is not None:
            return self._at_node(declared.node)
        return self._at_bus(declared.bus or "", declared.phases)

    def _at_node(self, name: str) -> Branches:
        if name not in self.node_of:
            raise ConfigError(f"there is no released node '{name}'; name one of nodes.parquet, or a bus")
        node = self.node_of[name]
        bus = int(np.argwhere(self.tree.nodes == node)[0][0])
        if self.tree.floating[bus]:
            raise ConfigError(f"nothing grounds the bus of node '{name}'; place the unit by its bus instead")
        return ((node, GROUND),)

    def _at_bus(self, name: str, phases: tuple[int, ...]) -> Branches:
        feeder, tree = self.tree.feeder, self.tree
        number = self.bus_of.get(name.lower())
        if number is None or tree.parent[number] < 0:
            raise ConfigError(f"there is no bus '{name}' with a released node; name one of buses.parquet")
        nodes = [node for node in tree.nodes[number].tolist() if node >= 0]
        chosen = [node for node in nodes if not phases or phase_of(feeder, node) in phases]
        if not chosen or (phases and len(chosen) < len(set(phases))):
            raise ConfigError(f"bus '{name}' lacks a phase of the unit; name phases that it has")
        if not tree.floating[number]:
            return tuple((node, GROUND) for node in chosen)
        if len(chosen) < 2:
            raise ConfigError(f"nothing grounds bus '{name}'; name two phases or three for the unit")
        if len(chosen) == 2:
            return ((chosen[0], chosen[1]),)
        return tuple((chosen[k], chosen[(k + 1) % len(chosen)]) for k in range(len(chosen)))


def phase_of(feeder: Feeder, node: int) -> int:
    """Number of the conductor of a node."""
    return int(feeder.nodes[node].rsplit(".", 1)[1])


@dataclass(frozen=True)
class UnitFacts:
    """What is published of a unit.

    Attributes
    ----------
    unit : as it is dispatched.
    nodes : public names of the nodes that it injects at; those that are not released are left out.
    """

    unit: Unit
    nodes: tuple[str, ...]


def facts_of(study: Study, unit: Unit) -> UnitFacts:
    """A unit with the public names of its nodes."""
    names = dict(zip(study.released.tolist(), study.node_ids, strict=True))
    at = {node for pair in unit.branches for node in pair if node in names}
    return UnitFacts(unit, tuple(sorted(names[node] for node in at)))


def ampacities(
    study: Study, tree: BusTree, default: float | None, own: Mapping[str, float]
) -> dict[str, float]:
    """Bus → current limit of the branch above it [A].

    Parameters
    ----------
    default : of every line; None for no limit.
    own : two public bus names with a dash between, or, where the study knows it, the name of a line of the
        file → its limit.
    """
    found: dict[str, float] = {}
    if default is not None:
        found = {bus: default for bus, line in zip(tree.buses, tree.lines, strict=True) if line}
    pairs = branch_pairs(study, tree)
    by_line = {line.lower(): k for k, line in enumerate(tree.lines) if line and study.file_names}
    by_pair = {
        name: k for k, pair in pairs.items() for name in (f"{pair[0]}-{pair[1]}", f"{pair[1]}-{pair[0]}")
    }
    for name, limit in own.items():
        k = by_line.get(name.lower(), by_pair.get(name))
        if k is None:
            raise ConfigError(
                f"no branch is called '{name}' in ampacities; name two buses of buses.parquet with a dash "
                "between"
            )
        found[tree.buses[k]] = limit
    return found


def branch_pairs(study: Study, tree: BusTree) -> dict[int, tuple[str, str]]:
    """Bus of the tree → public names of the two buses of the branch above it, the parent first.

    Only branches between two buses with a released node have public names; none without connections.
    """
    public = public_buses(study, tree)
    parents = tree.parent.tolist()
    return {k: (public[p], public[k]) for k, p in enumerate(parents) if p in public and k in public}


def public_buses(study: Study, tree: BusTree) -> dict[int, str]:
    """Bus of the tree → its public name, of those with a released node; none without connections."""
    known, public = study.public_bus, {}
    for k, nodes in enumerate(tree.nodes.tolist()):
        names = {known[node] for node in nodes if node in known}
        if len(names) == 1:
            public[k] = names.pop()
    return public


BEYOND_PU = 1e-6
"""Voltages beyond a limit by no more than the public grid are within it."""
BEYOND_SHARE = 1e-4
"""Currents beyond a limit by no more than this share are within it."""


@dataclass(frozen=True, eq=False)
class PublishedPlaces:
    """Which places are published, and under which names.

    Attributes
    ----------
    places : (released,) place among the unknowns of every released node, −1 for one of a source.
    branch_of : (row,) bus of the tree below a published branch, and `slot`, its phase there.
    pairs : (row,) public names of its two buses.
    phase : (row,) number of the phase.
    limit_a : (row,) current limit [A], infinity for none.
    """

    places: IntArray
    branch_of: IntArray
    slot: IntArray
    pairs: tuple[tuple[str, str], ...]
    phase: IntArray
    limit_a: FloatArray


@dataclass(frozen=True, eq=False)
class DayResult:
    """One day; the first axis of every array is the dispatched step.

    Attributes
    ----------
    steps : (step,) numbers of the steps.
    load : complex (step, released node) drawn at rated voltage [kW + j·kvar].
    price : (step,) of import, per kWh.
    found : of the dispatched steps.
    base_vm, vm : (step, place) magnitudes without units and with them, by AC power flow [p.u.].
    flows : complex (step, branch row) power delivered, by AC power flow [kW + j·kvar].
    column_load, column_generation : what the solver was given, for tables of the whole network.
    beyond_v : (step, place) how far a voltage is beyond its limit [p.u.]; 0 within.
    beyond_i : (step, place) how far a current is, as a share of its limit.
    base_cost : (step,) of import without units, per hour.
    """

    day: int
    steps: IntArray
    load: ComplexArray
    price: FloatArray
    found: Dispatched
    base_vm: FloatArray
    vm: FloatArray
    flows: ComplexArray
    column_load: ComplexArray
    column_generation: ComplexArray | None
    beyond_v: FloatArray
    beyond_i: FloatArray
    base_cost: FloatArray


@dataclass(frozen=True, eq=False)
class DispatchJob:
    """All days of a study.

    Attributes
    ----------
    ampacity : bus → current limit of the branch above it [A].
    price : (day, step) of import, per kWh.
    every : steps between two that are dispatched.
    """

    study: Study
    units: tuple[Unit, ...]
    options: Options
    ampacity: dict[str, float]
    price: FloatArray
    every: int

    def start(self, threads: int | None) -> Callable[[int], DayResult]:
        return _Worker(self).day


class _Worker:
    """Does one day after the other; keeps the block of loads that it drew last."""

    def __init__(self, job: DispatchJob) -> None:
        self.job, study = job, job.study
        self.solver = study.make_solver(1)
        self.dispatcher = Dispatcher(self.solver, job.units, job.options, job.ampacity)
        self.layout = layout_of(study, self.dispatcher.network, job.ampacity)
        self.size = max(1, study.source.block(0).load_kw.shape[1])
        self.kept: tuple[int, LoadBlock] | None = None

    def day(self, day: int) -> DayResult:
        job, study = self.job, self.job.study
        law, steps = study.source.law, study.steps
        load = placed_load(law, self._drawn(day), columns_of(self.solver, law))
        placed = PlacedDays(law, day, load)
        solved = solve_placed(self.solver, placed, generation=study.generation, nodes="all", mend=study.mends)
        chosen = np.zeros(steps, dtype=np.bool_)
        at = np.arange(0, steps, job.every)
        chosen[at] = True
        sun = np.ones(steps) if study.irradiance is None else study.irradiance[day % len(study.irradiance)]
        price = job.price[day]
        found = self.dispatcher.run(Snapshots(solved.load, solved.generation, price, sun, chosen))
        return self._result(day, at, found, solved.load, solved.generation)

    def _drawn(self, day: int) -> LoadBlock:
        """The loads of one day."""
        block = day // self.size
        if self.kept is None or self.kept[0] != block:
            self.kept = (block, self.job.study.source.block(block))
        drawn = self.kept[1]
        at = slice(day - drawn.first_day, day - drawn.first_day + 1)
        return LoadBlock(day, drawn.load_kw[:, at], drawn.load_kvar[:, at])

    def _result(
        self, day: int, at: IntArray, found: Dispatched, load: ComplexArray, generation: ComplexArray | None
    ) -> DayResult:
        dispatcher, study = self.dispatcher, self.job.study
        feeder, network = study.feeder, dispatcher.network
        found = found.at(at)
        base_kva = feeder.base_mva * KW_PER_MW
        price = self.job.price[day][at]
        states = [network.states(each.v, each.ratio, each.closed) for each in (found.base, found.checked)]
        flows = [network.flows(each) for each in states]
        vm = [np.abs(each.v[:, network.node_of]) for each in (found.base, found.checked)]
        limits, there = dispatcher.limits, network.number >= 0
        beyond_v = np.maximum(vm[1] - limits.highest, limits.lowest - vm[1])
        with np.errstate(invalid="ignore"):
            beyond_i = np.abs(flows[1].current[:, there]) / limits.current - 1.0
        layout = self.layout
        delivered = flows[1].received[:, layout.branch_of, layout.slot] * base_kva
        return DayResult(
            day=day,
            steps=at,
            load=self._at_released(load[at]) * base_kva,
            price=price,
            found=found,
            base_vm=vm[0],
            vm=vm[1],
            flows=delivered,
            column_load=load[at],
            column_generation=None if generation is None else generation[at],
            beyond_v=np.where(beyond_v > BEYOND_PU, beyond_v, 0.0),
            beyond_i=np.where(beyond_i > BEYOND_SHARE, beyond_i, 0.0),
            base_cost=price * network.imported(flows[0]).real * base_kva,
        )

    def _at_released(self, load: ComplexArray) -> ComplexArray:
        """Complex (snapshot, released node) of loads as the solver takes them [p.u.]."""
        feeder, released = self.job.study.feeder, self.job.study.released
        if self.solver.columns == "elements":
            shares = feeder.load_shares.tocsr()[released]
            return np.asarray((shares @ load.T).T)
        spread = np.zeros((len(load), len(feeder.nodes)), dtype=np.complex128)
        spread[:, feeder.retained] = load
        return np.asarray(spread[:, released])


def layout_of(study: Study, network: LinDistFlow, ampacity: dict[str, float]) -> PublishedPlaces:
    """What of a network is published."""
    tree, feeder = network.tree, study.feeder
    place_of = {int(node): place for place, node in enumerate(network.node_of.tolist())}
    places = np.array([place_of.get(node, -1) for node in study.released.tolist()], dtype=np.int64)
    pairs = branch_pairs(study, tree)
    # In the order of the public names, as in connections.parquet: that of the tree is the file's.
    in_order = sorted(pairs, key=lambda k: sorted(pairs[k]))
    rows = [
        (k, slot)
        for k in in_order
        for slot in sorted(
            np.flatnonzero(tree.there[k]).tolist(), key=lambda at: phase_of(feeder, int(tree.nodes[k, at]))
        )
    ]
    nodes = [int(tree.nodes[k, slot]) for k, slot in rows]
    return PublishedPlaces(
        places=places,
        branch_of=np.array([k for k, _ in rows], dtype=np.int64),
        slot=np.array([slot for _, slot in rows], dtype=np.int64),
        pairs=tuple(pairs[k] for k, _ in rows),
        phase=np.array([phase_of(feeder, node) for node in nodes], dtype=np.int64),
        limit_a=np.array([ampacity.get(tree.buses[k], np.inf) for k, _ in rows], dtype=np.float64),
    )
