"""Tables, figures, sentences and page items of a study of reliability, rounded to public grids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dp_powerflow.corpus.tables import Connections
from dp_powerflow.page import Axis, Bars, Figure, Histogram, Item, NetworkMap, Series, Table
from dp_powerflow.studies.reliability.feeder import Part, public_buses
from dp_powerflow.studies.reliability.indices import PERCENT
from dp_powerflow.studies.study import Findings, Study
from dp_powerflow.units import FloatArray

if TYPE_CHECKING:
    from dp_powerflow.studies.reliability import Found

INTERRUPTIONS, HOURS, KWH = 6, 6, 3
"""Digits after the point of published interruptions, hours and energies."""
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


def _estimates(found: Found) -> dict[str, tuple[float, float, float]]:
    """Index → in closed form, simulated, and its standard error; rounded."""
    system, simulated = found.expected.system, found.simulated
    years = len(simulated.saifi)
    result = {}
    for name, exact, of_years, digits in (
        ("saifi", system.saifi, simulated.saifi, INTERRUPTIONS),
        ("saidi_hours", system.saidi_hours, simulated.saidi_hours, HOURS),
        ("ens_kwh", system.ens_kwh, simulated.ens_kwh, KWH),
    ):
        error = float(of_years.std(ddof=1)) / years**0.5
        result[name] = (
            round(exact, digits),
            round(float(of_years.mean()), digits),
            round(error, digits),
        )
    return result


def _figures(found: Found) -> dict[str, Any]:
    system, estimates = found.expected.system, _estimates(found)
    parts: dict[str, dict[str, float]] = {}
    for part in Part:
        mine = np.array([element.part is part for element in found.tree.elements], dtype=np.bool_)
        if mine.any():
            saifi, saidi, ens = found.expected.of_element[mine].sum(axis=0).tolist()
            parts[part.value] = {
                "elements": int(mine.sum()),
                "saifi": round(saifi, INTERRUPTIONS),
                "saidi_hours": round(saidi, HOURS),
                "ens_kwh": round(ens, KWH),
            }
    return {
        "saifi": estimates["saifi"][0],
        "saidi_hours": estimates["saidi_hours"][0],
        "caidi_hours": round(system.caidi_hours, HOURS),
        "asai": round(system.asai, 9),
        "ens_kwh": estimates["ens_kwh"][0],
        "aens_kwh": round(system.aens_kwh, HOURS),
        "customers": system.customers,
        "customers_declared": found.points.declared,
        "simulated": {
            name: {"mean": mean, "standard_error": error} for name, (_, mean, error) in estimates.items()
        },
        "simulated_years": len(found.simulated.saifi),
        "simulated_faults": found.simulated.faults,
        "saidi_hours_percentiles": dict(
            zip(
                (f"{level:g}" for level in PERCENT),
                np.round(np.percentile(found.simulated.saidi_hours, PERCENT), HOURS).tolist(),
                strict=True,
            )
        ),
        "by_part": parts,
        "devices": found.sections.devices,
        "sectionalisers": found.sections.sectionalisers,
        "ties": found.sections.ties,
        "sections": found.sections.count,
        "doubled_lines": found.tree.doubled,
    }


# ------------------------------------------------------------------------------------------ tables


def _system(found: Found) -> pa.Table:
    system, estimates = found.expected.system, _estimates(found)
    others = {
        "caidi_hours": round(system.caidi_hours, HOURS),
        "asai": round(system.asai, 9),
        "aens_kwh": round(system.aens_kwh, HOURS),
    }
    return pa.table(
        {
            "index": pa.array([*estimates, *others], pa.string()),
            "closed_form": pa.array(
                [*(each[0] for each in estimates.values()), *others.values()], pa.float64()
            ),
            "simulated": pa.array([*(each[1] for each in estimates.values()), *[None] * 3], pa.float64()),
            "standard_error": pa.array(
                [*(each[2] for each in estimates.values()), *[None] * 3], pa.float64()
            ),
        }
    )


def _distribution(found: Found) -> pa.Table:
    simulated = found.simulated
    columns = {"percentile": np.array(PERCENT)}
    for name, values, digits in (
        ("saifi", simulated.saifi, INTERRUPTIONS),
        ("saidi_hours", simulated.saidi_hours, HOURS),
        ("ens_kwh", simulated.ens_kwh, KWH),
    ):
        columns[name] = np.round(np.percentile(values, PERCENT), digits)
    columns["customer_hours"] = np.round(simulated.customer_percentiles, HOURS)
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


_Row = tuple[str | None, str | None, str, float, float, float]


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
    return [
        (
            *key,
            round(float(summed[key][0]), INTERRUPTIONS),
            round(float(summed[key][1]), HOURS),
            round(float(summed[key][2]), KWH),
        )
        for key in order
    ]


def _elements(rows: list[_Row]) -> pa.Table:
    names = ("from_bus", "to_bus", "kind", "saifi", "saidi_hours", "ens_kwh")
    types = (*[pa.string()] * 3, *[pa.float64()] * 3)
    return pa.table(
        {name: pa.array([row[k] for row in rows], types[k]) for k, name in enumerate(names)},
    )


# -------------------------------------------------------------------------------------- the page


def _items(study: Study, found: Found, rows: list[_Row]) -> Iterator[Item]:
    estimates = _estimates(found)
    yield Table(
        header=("index", "closed form", "simulated", "standard error"),
        rows=tuple((name, *(f"{value:.4g}" for value in values)) for name, values in estimates.items()),
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
        chart=NetworkMap(
            value=Axis("hours a year", "h", decimals=3),
            buses=connections.bus_ids,
            pairs=connections.pairs,
            kinds=connections.kinds,
            source=connections.source.tolist(),
            at=[0],
            views={"expected": counts},
            per_unit=per_unit,
            domain=(round(lowest, 3), round(highest, 3)),
            middle=round((lowest + highest) / 2.0, 3),
            coordinates=None if connections.coordinates is None else connections.coordinates.tolist(),
        ),
    )
