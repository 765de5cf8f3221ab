"""Findings as tables in the layout of a corpus: one row per day and node, unit or branch, lists over steps.

Powers are multiples of 2⁻¹⁰ kW, voltages those of the corpus grid, prices of 1e-6 and duals of 1e-3 per
hour. What a snapshot without a dispatch, or without a power flow, has no value for is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dp_powerflow.corpus.grid import VM_PER_PU, round_power, round_to_grid
from dp_powerflow.derived.dispatch.days import DayResult, Layout, UnitFacts
from dp_powerflow.derived.study import Study
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

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
        tables[f"dispatch/{name}"] = _series("unit", len(facts), some, _dispatch)
        tables[f"loads/{name}"] = _series("node", len(study.released), some, _loads)
        tables[f"voltages/{name}"] = _series(
            "node", len(study.released), some, lambda day: _voltages(study, layout, day)
        )
        tables[f"duals/{name}"] = _series("node", len(study.released), some, lambda day: _duals(layout, day))
        if layout.pairs:
            tables[f"flows/{name}"] = _series(
                "branch", len(layout.pairs), some, lambda day: _flows(layout, day)
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


def _power(values: ComplexArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Active and reactive power on the grid, NaN where there is none."""
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0)
    parts = round_power(filled.real), round_power(filled.imag)
    return np.where(known, parts[0], np.nan), np.where(known, parts[1], np.nan)


def _dispatch(day: DayResult) -> Columns:
    p, q = _power(day.found.power)
    return {"p_kw": p, "q_kvar": q}


def _loads(day: DayResult) -> Columns:
    p, q = _power(day.load)
    return {"p_kw": p, "q_kvar": q}


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


def _flows(layout: Layout, day: DayResult) -> Columns:
    p, q = _power(day.flows)
    return {"p_kw": p, "q_kvar": q}


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


def _snapshots(days: Sequence[DayResult]) -> pa.Table:
    """One row per dispatched snapshot."""
    found = [day.found for day in days]
    power = [np.nansum(each.power.real, axis=1) for each in found]
    columns: dict[str, pa.Array] = {
        "day": pa.array(np.repeat([day.day for day in days], [len(day.steps) for day in days]), pa.int32()),
        "step": pa.array(np.concatenate([day.steps for day in days]), pa.int32()),
        "status": pa.array([status for each in found for status in each.status]),
        "corrections": pa.array(np.concatenate([each.corrected for each in found]), pa.int32()),
    }
    numbers: dict[str, FloatArray] = {
        "price_per_kwh": np.concatenate([day.price for day in days]),
        "cost_per_h": on_grid(np.concatenate([each.cost for each in found]), _COST),
        "linear_cost_per_h": on_grid(np.concatenate([each.linear_cost for each in found]), _COST),
        "cost_without_units_per_h": on_grid(np.concatenate([day.base_cost for day in days]), _COST),
        "import_kw": on_grid(np.concatenate([each.import_kw for each in found]), 1024.0),
        "units_kw": on_grid(np.concatenate(power), 1024.0),
        "vm_min_pu": on_grid(np.concatenate([day.vm.min(axis=1) for day in days]), VM_PER_PU),
        "vm_max_pu": on_grid(np.concatenate([day.vm.max(axis=1) for day in days]), VM_PER_PU),
        "worst_voltage_pu": on_grid(np.concatenate([day.beyond_v.max(axis=1) for day in days]), VM_PER_PU),
        "worst_current_share": on_grid(np.concatenate([day.beyond_i.max(axis=1) for day in days]), 1e4),
    }
    columns |= {name: pa.array(values, mask=np.isnan(values)) for name, values in numbers.items()}
    counts: dict[str, list[IntArray]] = {
        "voltages_beyond": [np.count_nonzero(day.beyond_v, axis=1) for day in days],
        "currents_beyond": [np.count_nonzero(day.beyond_i, axis=1) for day in days],
    }
    return pa.table(columns | {k: pa.array(np.concatenate(v), pa.int32()) for k, v in counts.items()})
