"""Small corpora for the tests, and the steps of a run that writes one."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np

from dp_powerflow.corpus.schema import CorpusLayout, NodeTable
from dp_powerflow.corpus.storage import RemotePath
from dp_powerflow.corpus.writer import CorpusWriter
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


def write_parts(writer: CorpusWriter, seed: int = 0) -> None:
    for part in writer.missing_parts():
        writer.write_part(part, voltages(writer.layout, writer.layout.days_of(part), seed))


Target = TypeVar("Target", Path, RemotePath)


def write_corpus(
    target: Target,
    layout: CorpusLayout = LAYOUT,
    *,
    nodes: NodeTable | None = None,
    seed: int = 0,
    release_id: str = RELEASE_ID,
) -> Target:
    """A whole run: what a release does, and what a run after a kill does again."""
    writer = CorpusWriter(target, layout, release_id)
    writer.prepare()
    write_parts(writer, seed)
    writer.write_nodes(nodes or NodeTable.opaque(layout.nodes))
    writer.add_file("manifest.json", b"{}\n")
    writer.finish()
    return target
