"""Which derived figures are compared, kind by kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from dp_powerflow.studies.dispatch import OptimalDispatch
from dp_powerflow.studies.hosting import HostingCapacity
from dp_powerflow.studies.reliability import Reliability
from dp_powerflow.studies.study import Findings, Kind
from dp_powerflow.units import FloatArray


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
    return (
        hosting(0.05, "ANSI C84.1, range A"),
        hosting(0.10, "EN 50160"),
        dispatch(),
        reliability(),
    )
