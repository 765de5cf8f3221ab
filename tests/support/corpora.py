"""Small corpora for the tests, and the steps of a run that writes one."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np

from dp_powerflow.corpus.schema import NOTHING, CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.storage import RemotePath
from dp_powerflow.corpus.tables import Connections, DayTable, NodeTable, opaque_buses
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.grid.quantities import KINDS
from dp_powerflow.units import ComplexArray

LAYOUT = CorpusLayout(days=11, steps=24, nodes=7, days_per_part=4)
RELEASE_ID = "r-2024_01"


def voltages(layout: CorpusLayout, days: range, seed: int = 0) -> ComplexArray:
    """Voltages (day, step, node); a day does not depend on which other days are asked for."""
    out = np.empty((len(days), layout.steps, layout.nodes), dtype=np.complex128)
    for position, day in enumerate(days):
        rng = np.random.default_rng([seed, day])
        magnitude = rng.uniform(0.9, 1.1, (layout.steps, layout.nodes))
        out[position] = magnitude * np.exp(1j * rng.uniform(-np.pi, np.pi, (layout.steps, layout.nodes)))
    return out


EXTRAS = ExtrasLayout(
    loads=True, generation=True, source_phases=3, regulators=2, capacitors=12, scaled_down=True
)


def beside(
    layout: CorpusLayout, days: range, extras: ExtrasLayout = EXTRAS, seed: int = 0
) -> dict[str, np.ndarray]:
    """Powers [kW + j kvar] and states of some days; a day does not depend on which others are asked for."""
    days_found: list[dict[str, np.ndarray]] = []
    for day in days:
        rng, drawn = np.random.default_rng([seed, day, 1]), {}
        for name in ("loads", "generation", "head"):
            shape = extras.shape_of(name, 1, layout)[1:]
            drawn[name] = rng.normal(0.0, 300.0, shape) + 1j * rng.normal(0.0, 100.0, shape)
        drawn["taps"] = rng.integers(-16, 17, extras.shape_of("taps", 1, layout)[1:])
        drawn["capacitors"] = rng.integers(0, 2, extras.shape_of("capacitors", 1, layout)[1:])
        drawn["locked"] = rng.random(layout.steps) < 0.1
        drawn["scaled_down"] = np.where(rng.random(layout.steps) < 0.1, rng.integers(1, 9, layout.steps), 0)
        days_found.append(drawn)
    return {name: np.stack([drawn[name] for drawn in days_found]) for name in extras.holds}


def ring(nodes: int, *, coordinates: bool = False) -> Connections:
    """A ring of buses, two nodes at each as long as there are any, with a source that has no node."""
    bus_of = np.arange(nodes) // 2
    buses = int(bus_of[-1]) + 2
    pairs = np.array([[0, buses - 1], *([k, k + 1] for k in range(buses - 1))]) if buses > 2 else [[0, 1]]
    pairs = np.unique(pairs, axis=0)
    source = np.zeros(buses, dtype=np.bool_)
    source[-1] = True
    angle = 2.0 * np.pi * np.arange(buses) / buses
    return Connections(
        bus_ids=opaque_buses(buses),
        bus_of=bus_of,
        phase=np.arange(nodes) % 2 + 1,
        pairs=pairs,
        kinds=tuple(KINDS[k % len(KINDS)] for k in range(len(pairs))),
        source=source,
        coordinates=np.stack([np.cos(angle), np.sin(angle)], axis=1) if coordinates else None,
    )


def write_parts(writer: CorpusWriter, seed: int = 0, v: ComplexArray | None = None) -> None:
    for part in writer.missing_parts():
        days = writer.layout.days_of(part)
        extras = beside(writer.layout, days, writer.extras, seed) if writer.extras.holds else None
        own = voltages(writer.layout, days, seed) if v is None else v[days.start : days.stop]
        writer.write_part(part, own, extras)


Target = TypeVar("Target", Path, RemotePath)


def write_corpus(
    target: Target,
    layout: CorpusLayout = LAYOUT,
    *,
    nodes: NodeTable | None = None,
    connections: Connections | None = None,
    days: DayTable | None = None,
    seed: int = 0,
    release_id: str = RELEASE_ID,
    extras: ExtrasLayout = NOTHING,
    v: ComplexArray | None = None,
) -> Target:
    """A whole run: what a release does, and what a run after a kill does again."""
    writer = CorpusWriter(target, layout, release_id, extras)
    writer.prepare()
    write_parts(writer, seed, v)
    table = nodes or NodeTable.opaque(layout.nodes)
    writer.write_nodes(table if connections is None else connections.of_nodes(table))
    writer.write_connections(connections)
    writer.write_days(days)
    writer.add_file("manifest.json", b"{}\n")
    writer.finish()
    return target
