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

from dp_powerflow.corpus.grid import VM_PER_PU, round_power, round_to_grid
from dp_powerflow.errors import ConfigError, require
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.model.sample import BlockSolver, LoadBlock, columns_of, placed_load
from dp_powerflow.page import CLOCK, Axis, Band, Figure, Histogram, Item, Limit, Lines, Quantiles, Series
from dp_powerflow.studies.dispatch.dispatcher import (
    STATUSES,
    Dispatched,
    Dispatcher,
    Options,
    Snapshots,
    Unit,
    UnitsPowerFlow,
)
from dp_powerflow.studies.dispatch.network import BusTree
from dp_powerflow.studies.study import Findings, Kind, Progress, Study, ampacities_of, each_in_order
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

_MOST = 1e9
"""Of any power, price and limit: beyond it a solver knows no difference from infinity."""
Positive = Annotated[float, Field(gt=0.0, le=_MOST)]
NotNegative = Annotated[float, Field(ge=0.0, le=_MOST)]
Finite = Annotated[float, Field(ge=-_MOST, le=_MOST)]


class DeclaredUnit(BaseModel):
    """One unit at one place: by `node` of nodes.parquet, or by `bus` of buses.parquet.

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
    ampacities_a : of single lines [A], as in `ampacities_of`.
    corrections : how often a dispatch is written again around its own AC solution.
    days : only the first days.
    every : only every n-th step of a day.
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
    corrections: Annotated[int, Field(ge=0, le=5)] = 1
    days: Annotated[int, Field(ge=1)] | None = None
    every: Annotated[int, Field(ge=1)] = 1

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
        units = self._units(study)
        ampacities_of(study, self.ampacity_a, self.ampacities_a)
        self._prices(study)
        if any(unit.sun for unit in units) and study.irradiance is None:
            raise ConfigError("a unit follows the sun, but the study has no irradiance; set its sun to false")
        UnitsPowerFlow(study.make_solver(1), units)

    def find(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Findings:
        """Dispatch every chosen snapshot; the same bits for any number of workers."""
        self.check(study)
        units, price = self._units(study), self._prices(study)
        options = Options(self.v_min_pu, self.v_max_pu, self.corrections)
        limits = ampacities_of(study, self.ampacity_a, self.ampacities_a)
        job = _DispatchedDays(study, units, options, limits, price, self.every)
        count = min(study.days, self.days or study.days)
        days = list(each_in_order(job.day, count, workers, progress))
        layout, tree = job.layout, job.dispatcher.tree
        unnamed = int(np.count_nonzero(tree.parent >= 0)) - len(set(layout.branch_of.tolist()))
        return Findings(
            tables=tables_of(study, layout, units, days),
            figures=figures_of(self, days, units, unnamed),
            items=[_cost(days), _band(study, days), _shown_voltages(self, days)],
        )

    def _units(self, study: Study) -> list[Unit]:
        """Units in order."""
        places, units = UnitPlaces.of(study, BusTree.of(study.feeder)), []
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
        return units

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
# multiples of 2⁻¹⁰ kW, voltages lie on the corpus grid, prices are multiples of 1e-6 and duals of 1e-3 per
# hour. What a snapshot without a dispatch, or without a power flow, has no value for is null.
DAYS_PER_PART = 32
_PRICE, _DUAL, _COST = 1e6, 1e3, 1e6
"""Counts per unit of the grids of prices, duals and costs."""
Values = NDArray[np.float32] | FloatArray
Columns = Mapping[str, Values]


def tables_of(
    study: Study, layout: PublishedPlaces, units: Sequence[Unit], days: Sequence[DayResult]
) -> dict[str, pa.Table]:
    """All tables, by file name."""
    tables = {"units.parquet": _units(study, units), "snapshots.parquet": _snapshots(days)}
    series: dict[str, tuple[str, int, Callable[[DayResult], Columns]]] = {
        "dispatch": ("unit", len(units), lambda day: _power(day.found.power)),
        "loads": ("node", len(study.released), lambda day: _power(day.load)),
        "voltages": ("node", len(study.released), lambda day: _voltages(study, layout, day)),
        "duals": ("node", len(study.released), lambda day: _duals(layout, day)),
    }
    if layout.pairs:
        tables["branches.parquet"] = _branches(layout)
        series["flows"] = ("branch", len(layout.pairs), lambda day: _power(day.flows))
    for part in range(-(-len(days) // DAYS_PER_PART)):
        some = days[part * DAYS_PER_PART : (part + 1) * DAYS_PER_PART]
        tables |= {f"{name}/part-{part:05d}.parquet": _series(some, *of) for name, of in series.items()}
    return tables


def on_grid(values: FloatArray, per_unit: float) -> FloatArray:
    """Rounded to a grid; one zero."""
    return np.asarray(np.rint(values * per_unit) / per_unit + 0.0)


# ---------------------------------------------------------------------------------- series


def _series(
    days: Sequence[DayResult], of: str, count: int, columns: Callable[[DayResult], Columns]
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


_UNIT_COLUMNS = ("kva", "kw_min", "kw_max", "cost_per_kwh", "cost_per_kw2h", "sun")


def _units(study: Study, units: Sequence[Unit]) -> pa.Table:
    """Units with the public names of their nodes; those that are not released are left out."""
    names = dict(zip(study.released.tolist(), study.node_ids, strict=True))
    nodes = [sorted({names[k] for pair in unit.branches for k in pair if k in names}) for unit in units]
    return pa.table(
        {
            "unit": pa.array(range(len(units)), pa.int32()),
            "nodes": pa.array(nodes, pa.list_(pa.string())),
            "connection": ["delta" if min(unit.branches[0]) >= 0 else "wye" for unit in units],
            **{name: [getattr(unit, name) for unit in units] for name in _UNIT_COLUMNS},
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
    settings: OptimalDispatch, days: Sequence[DayResult], units: Sequence[Unit], unnamed: int
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
        "units": len(units),
        "units_kw": round(float(sum(unit.kw_max for unit in units)), 3),
        "by_status": {name: counts[name] for name in STATUSES if counts[name]},
        "not_corrected": int(np.count_nonzero(uncorrected)),
        "mean_cost_per_h": _mean(cost[known], 6),
        "mean_cost_without_units_per_h": _mean(without[both], 6),
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


def _mean(values: FloatArray, digits: int) -> float | None:
    """Of the values that are there."""
    known = values[np.isfinite(values)]
    return round(float(np.mean(known)), digits) if len(known) else None


def _largest(values: FloatArray, digits: int = 4) -> float | None:
    return round(float(values.max()), digits) if len(values) else None


def _sizes(beyond: FloatArray, sizes: Sequence[float]) -> dict[str, int]:
    """How many are beyond by more than each size."""
    return {f"{size:g}": int(np.count_nonzero(beyond > size)) for size in sizes}


# ---------------------------------------------------------------------------------- charts


def _cost(days: Sequence[DayResult]) -> Item:
    chart = Lines(
        x=Axis("day", decimals=0),
        y=Axis("mean cost per hour", decimals=2),
        at=[day.day for day in days],
        series=(
            Series("with dispatch", [_mean(day.found.cost, 4) for day in days]),
            Series("without units", [_mean(day.base_cost, 4) for day in days]),
        ),
    )
    caption = "Mean over the dispatched snapshots of a day; import and units, after the AC check."
    return Figure("cost", "Cost of every day", caption, chart)


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
        return list(found)[:: max(1, round(1.0 / share))]

    def branches(self, declared: DeclaredUnit) -> Branches:
        """Between which nodes a declared unit injects."""
        feeder, tree, name = self.tree.feeder, self.tree, declared.bus or ""
        if declared.node is not None:
            if declared.node not in self.node_of:
                raise ConfigError(
                    f"there is no released node '{declared.node}'; name one of nodes.parquet, or a bus"
                )
            node = self.node_of[declared.node]
            if tree.floating[np.argwhere(tree.nodes == node)[0][0]]:
                raise ConfigError(
                    f"nothing grounds the bus of node '{declared.node}'; place the unit by its bus instead"
                )
            return ((node, GROUND),)
        number, phases = self.bus_of.get(name.lower()), declared.phases
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
        following = [*chosen[1:], chosen[0]]
        return tuple(zip(chosen, following, strict=True))[: 1 if len(chosen) == 2 else None]


def phase_of(feeder: Feeder, node: int) -> int:
    """Number of the conductor of a node."""
    return int(feeder.nodes[node].rsplit(".", 1)[1])


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
    beyond_v: FloatArray
    beyond_i: FloatArray
    base_cost: FloatArray


class _DispatchedDays:
    """Dispatches one day after the other, in any order; keeps the block of loads that was drawn last.

    Parameters
    ----------
    limits : line → current limit [A].
    price : (day, step) of import, per kWh.
    every : steps between two that are dispatched.
    """

    def __init__(
        self,
        study: Study,
        units: Sequence[Unit],
        options: Options,
        limits: Mapping[int, float],
        price: FloatArray,
        every: int,
    ) -> None:
        self.study, self.price, self.every = study, price, every
        self.solver = study.make_solver(1)
        of_name = {line.name: limits[k] for k, line in enumerate(study.feeder.lines) if k in limits}
        tree = BusTree.of(study.feeder)
        joined = zip(tree.buses, tree.lines, strict=True)
        ampacity = {bus: of_name[line] for bus, line in joined if line in of_name}
        self.dispatcher = Dispatcher(self.solver, units, options, ampacity)
        self.layout = layout_of(study, self.dispatcher, ampacity)
        self.size = max(1, study.source.block(0).load_kw.shape[1])
        self.kept: tuple[int, LoadBlock] | None = None

    def day(self, day: int) -> DayResult:
        """One day."""
        study = self.study
        law, steps = study.source.law, study.steps
        load = placed_load(law, self._drawn(day), columns_of(self.solver, law))
        solver = BlockSolver(self.solver, study.source, study.generation, "all", study.scales_down)
        solved = solver.solve_placed(day, load)
        at = np.arange(0, steps, self.every)
        chosen = np.isin(np.arange(steps), at)
        sun = np.ones(steps) if study.irradiance is None else study.irradiance[day % len(study.irradiance)]
        snapshots = Snapshots(solved.load, solved.generation, self.price[day], sun, chosen)
        return self._result(day, at, self.dispatcher.run(snapshots).at(at), solved.load)

    def _drawn(self, day: int) -> LoadBlock:
        """The loads of one day."""
        block, kept = day // self.size, self.kept
        if kept is None or kept[0] != block:
            kept = self.kept = (block, self.study.source.block(block))
        drawn = kept[1]
        at = slice(day - drawn.first_day, day - drawn.first_day + 1)
        return LoadBlock(day, drawn.load_kw[:, at], drawn.load_kvar[:, at])

    def _result(self, day: int, at: IntArray, found: Dispatched, load: ComplexArray) -> DayResult:
        network, base_kva = self.dispatcher.network, self.study.feeder.base_mva * KW_PER_MW
        price = self.price[day][at]
        flows = [network.flows(each) for each in (found.base, found.checked)]
        vm = [np.abs(each.v[:, network.node_of]) for each in (found.base, found.checked)]
        limits, there = self.dispatcher.limits, network.number >= 0
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
            beyond_v=np.where(beyond_v > BEYOND_PU, beyond_v, 0.0),
            beyond_i=np.where(beyond_i > BEYOND_SHARE, beyond_i, 0.0),
            base_cost=price * network.imported(flows[0]).real * base_kva,
        )

    def _at_released(self, load: ComplexArray) -> ComplexArray:
        """Complex (snapshot, released node) of loads as the solver takes them [p.u.]."""
        feeder, released = self.study.feeder, self.study.released
        if self.solver.columns == "elements":
            shares = feeder.load_shares.tocsr()[released]
            return np.asarray((shares @ load.T).T)
        spread = np.zeros((len(load), len(feeder.nodes)), dtype=np.complex128)
        spread[:, feeder.retained] = load
        return np.asarray(spread[:, released])


def layout_of(study: Study, dispatcher: Dispatcher, ampacity: Mapping[str, float]) -> PublishedPlaces:
    """What of a network is published."""
    tree, feeder = dispatcher.tree, study.feeder
    place_of = {int(node): place for place, node in enumerate(dispatcher.network.node_of.tolist())}
    places = np.array([place_of.get(node, -1) for node in study.released.tolist()], dtype=np.int64)
    pairs = branch_pairs(study, tree)
    # In the order of the public names, as in connections.parquet: the tree has the file's order.
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
