"""Tables, figures, sentences and page items of a study of reliability, rounded to public grids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dp_powerflow.corpus.tables import Connections
from dp_powerflow.page import Axis, Bars, Figure, Histogram, Item, Series, Table
from dp_powerflow.studies.reliability.feeder import Part, public_buses
from dp_powerflow.studies.reliability.indices import PERCENT
from dp_powerflow.studies.study import Findings, Study, network_map
from dp_powerflow.units import FloatArray

if TYPE_CHECKING:
    from dp_powerflow.studies.reliability import Found

DIGITS = {"saifi": 6, "saidi_hours": 6, "ens_kwh": 3, "caidi_hours": 6, "asai": 9, "aens_kwh": 6}
"""Digits after the point of published indices. The first three are summed up, and simulated too."""
SUMMED = tuple(DIGITS)[:3]
INTERRUPTIONS, HOURS, KWH = (DIGITS[name] for name in SUMMED)
_MOST_BARS = 15
_BINS = 40
_COLOURS = 1000
_MOST_COUNT = 65_000


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
    return Findings(
        tables=tables,
        figures=_figures(found),
        items=tuple(_items(study, found, rows)),
    )


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


def _figures(found: Found) -> dict[str, Any]:
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
        "customers_declared": found.points.declared,
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
    columns["customer_hours"] = np.round(found.simulated.customer_percentiles, HOURS)
    return pa.table(columns)


def _nodes(study: Study, found: Found) -> pa.Table:
    expected = found.expected
    section = found.sections.of_bus[found.tree.graph.bus_of[study.released]]
    mean_kw = found.points.node_kw.mean(axis=1)[study.released]
    late = PERCENT.index(95.0)
    return pa.table(
        {
            "node": pa.array(study.node_ids, pa.string()),
            "interruptions_per_year": np.round(expected.interruptions[section], INTERRUPTIONS),
            "hours_per_year": np.round(expected.hours[section], HOURS),
            "hours_95th_percentile": np.round(found.simulated.section_percentiles[late][section], HOURS),
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
    return pa.table(
        {name: pa.array([row[k] for row in rows], types[k]) for k, name in enumerate(names)},
    )


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
    """Hours of every bus with a public name; 0 where there is none."""
    hours = np.zeros(connections.n_buses)
    place = {name: row for row, name in enumerate(connections.bus_ids)}
    for bus, name in public_buses(study, found.tree.graph).items():
        section = found.sections.of_bus[bus]
        hours[place[name]] = found.expected.hours[section] if section >= 0 else 0.0
    highest = float(hours.max()) or 1.0
    per_unit = max(1, min(_COLOURS, int(_MOST_COUNT / highest)))
    counts = np.round(hours * per_unit).astype(np.int64)[None, :]
    lowest = float(hours[hours > 0.0].min()) if np.any(hours > 0.0) else 0.0
    return Figure(
        id="map",
        title="Hours without supply",
        caption="Expected hours a year at every bus.",
        chart=network_map(
            connections,
            Axis("hours a year", "h", decimals=3),
            {"expected": counts},
            per_unit,
            (round(lowest, 3), round(highest, 3)),
            round((lowest + highest) / 2.0, 3),
        ),
    )
