"""Findings as tables in the layout of a corpus: one row per day and node, unit or branch, lists over steps.

Powers are multiples of 2⁻¹⁰ kW, voltages those of the corpus grid, prices of 1e-6 and duals of 1e-3 per
hour. What a snapshot without a dispatch, or without a power flow, has no value for is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dp_powerflow.corpus.grid import VM_PER_PU, round_power, round_to_grid
from dp_powerflow.page.charts import CLOCK, Axis, Band, Histogram, Limit, Lines, Quantiles, Series
from dp_powerflow.page.document import Figure, Item
from dp_powerflow.studies.dispatch.days import DayResult, Layout, UnitFacts
from dp_powerflow.studies.dispatch.dispatcher import STATUSES
from dp_powerflow.studies.study import Study
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.studies.dispatch import OptimalDispatch

DAYS_PER_PART = 32
_PRICE, _DUAL, _COST = 1e6, 1e3, 1e6
"""Counts per unit of the grids of prices, duals and costs."""
Values = NDArray[np.float32] | FloatArray
Columns = Mapping[str, Values]


def tables_of(
    study: Study, layout: Layout, facts: Sequence[UnitFacts], days: Sequence[DayResult]
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


def _voltages(study: Study, layout: Layout, day: DayResult) -> Columns:
    v = day.found.checked.v[:, study.released]
    known = np.isfinite(v)
    phasors = round_to_grid(np.where(known, v, 0.0))
    linear = _at(layout, day.found.linear_vm)
    return {
        "vm_pu": np.where(known, phasors.vm_pu, np.nan),
        "va_deg": np.where(known, phasors.va_deg, np.nan),
        "linear_vm_pu": on_grid(linear, VM_PER_PU),
    }


def _duals(layout: Layout, day: DayResult) -> Columns:
    found = day.found
    return {
        "price_per_kwh": on_grid(_at(layout, found.price.real), _PRICE),
        "price_per_kvarh": on_grid(_at(layout, found.price.imag), _PRICE),
        "v_max_dual": on_grid(_at(layout, found.upper), _DUAL),
        "v_min_dual": on_grid(_at(layout, found.lower), _DUAL),
        "ampacity_dual": on_grid(_at(layout, found.flow_dual), _DUAL),
    }


def _at(layout: Layout, values: FloatArray) -> FloatArray:
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


def _branches(layout: Layout) -> pa.Table:
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
