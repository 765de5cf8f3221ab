"""What a reader is told: figures, sentences, and the charts of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dp_powerflow.derived.dispatch.days import DayResult, UnitFacts
from dp_powerflow.derived.study import Study
from dp_powerflow.opf.dispatch import STATUSES
from dp_powerflow.page.charts import CLOCK, Axis, Band, Histogram, Limit, Lines, Quantiles, Series
from dp_powerflow.page.document import Figure, Item
from dp_powerflow.units import FloatArray

SIZES_PU = (0.0, 0.001, 0.005, 0.01)
"""Voltages beyond a limit are counted by how far they are beyond it: more than each of these [p.u.]."""
SIZES_SHARE = (0.0, 0.01, 0.05, 0.1)
"""The same for currents, as shares of the limit."""
_LEVELS = (5.0, 25.0, 50.0, 75.0, 95.0)
_MINUTES = 1440.0
_BINS = 60


class Limits(Protocol):
    """Settings that are shown."""

    @property
    def v_min_pu(self) -> float: ...
    @property
    def v_max_pu(self) -> float: ...
    @property
    def corrections(self) -> int: ...


def figures_of(
    settings: Limits, days: Sequence[DayResult], facts: Sequence[UnitFacts], unnamed: int
) -> dict[str, Any]:
    """Plain figures of all snapshots; `unnamed` branches have no public name."""
    found = [day.found for day in days]
    counts = Counter(status for each in found for status in each.status)
    beyond_v = np.concatenate([day.beyond_v for day in days])
    beyond_i = np.concatenate([day.beyond_i for day in days])
    cost = np.concatenate([each.cost for each in found])
    linear = np.concatenate([each.linear_cost for each in found])
    without = np.concatenate([day.base_cost for day in days])
    known = np.isfinite(cost) & np.isfinite(linear)
    both = known & np.isfinite(without)
    vm = np.concatenate([day.vm for day in days])
    linear_vm = np.concatenate([each.linear_vm for each in found])
    solved = np.isfinite(vm) & np.isfinite(linear_vm)
    corrected = np.concatenate([each.corrected for each in found])
    uncorrected = corrected[known] < settings.corrections
    return {
        "snapshots": len(cost),
        "units": len(facts),
        "units_kw": round(float(sum(fact.unit.kw_max for fact in facts)), 3),
        "by_status": {name: counts[name] for name in STATUSES if counts[name]},
        "not_corrected": int(np.count_nonzero(uncorrected)),
        "mean_cost_per_h": _rounded(np.mean(cost[known])) if known.any() else None,
        "mean_cost_without_units_per_h": _rounded(np.mean(without[both])) if both.any() else None,
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
    return round(float(value), 6)


def _largest(values: FloatArray, digits: int = 4) -> float | None:
    return round(float(values.max()), digits) if len(values) else None


def _sizes(beyond: FloatArray, sizes: Sequence[float]) -> dict[str, int]:
    """How many are beyond by more than each size."""
    return {f"{size:g}": int(np.count_nonzero(beyond > size)) for size in sizes}


def sentences_of(figures: Mapping[str, Any]) -> list[str]:
    """What a reader must know, one sentence each."""
    total, status = figures["snapshots"], figures["by_status"]
    solved = status.get("solved", 0)
    found = [
        f"{solved:,} of {total:,} snapshots have a dispatch that is proved optimal for the linear equations."
    ]
    words = {
        "inaccurate": "have a dispatch of reduced accuracy",
        "infeasible": "have no dispatch within the limits; they are kept, without dispatch, and marked",
        "failed": "were given up by the solver; they are kept, without dispatch, and marked",
        "no power flow": "have no power flow without units; they are kept and marked",
        "unchecked": "have a dispatch that AC power flow could not check; they are kept and marked",
    }
    found += [f"{status[name]:,} snapshots {text}." for name, text in words.items() if status.get(name)]
    if figures["not_corrected"]:
        found.append(
            f"{figures['not_corrected']:,} snapshots have a dispatch that was corrected less often than "
            "asked, since the equations around its AC solution had none."
        )
    if figures["branches_without_flows"]:
        found.append(
            f"Flows of {figures['branches_without_flows']:,} of the branches are left out: a bus of theirs "
            "has no released node, and so no public name."
        )
    for name, what, unit in (
        ("snapshots_beyond_voltage", "a voltage", "p.u. of voltage"),
        ("snapshots_beyond_ampacity", "a current", "of the limit"),
    ):
        sizes = figures[name]
        steps = ", ".join(f"{count:,} by more than {size} {unit}" for size, count in list(sizes.items())[1:])
        text = f"After the AC check {sizes['0']:,} snapshots have {what} beyond its limit"
        found.append(f"{text}: {steps}." if sizes["0"] else f"{text}.")
    return found


# ---------------------------------------------------------------------------------- charts


def items_of(settings: Limits, study: Study, days: Sequence[DayResult]) -> list[Item]:
    """Charts of the page."""
    return [_cost(days), _band(study, days), _voltages(settings, days)]


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


def _voltages(settings: Limits, days: Sequence[DayResult]) -> Item:
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
