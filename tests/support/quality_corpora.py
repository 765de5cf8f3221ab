"""Small corpora of which everything is published, for the tests of the quality page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.schema import NOTHING, CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.tables import Connections, opaque_buses
from dp_powerflow.units import ComplexArray, FloatArray
from support.corpora import write_corpus

EXTRAS = ExtrasLayout(
    loads=True, generation=True, source_phases=3, regulators=2, capacitors=2, scaled_down=True
)


@dataclass(frozen=True, eq=False)
class Feeder3:
    """A line of three-phase buses.

    Attributes
    ----------
    buses : how many.
    days, steps, days_per_part : shape of the corpus.
    """

    buses: int = 5
    days: int = 9
    steps: int = 24
    days_per_part: int = 4

    @property
    def layout(self) -> CorpusLayout:
        return CorpusLayout(self.days, self.steps, 3 * self.buses, self.days_per_part)

    def connections(self, *, coordinates: bool = False) -> Connections:
        """Bus k is joined to bus k + 1; the first is the source, the second pair a switch."""
        buses = np.arange(self.buses)
        kinds = ("line", "switch", "transformer", *("line",) * self.buses)[: self.buses - 1]
        return Connections(
            bus_ids=opaque_buses(self.buses),
            bus_of=np.repeat(buses, 3),
            phase=np.tile([1, 2, 3], self.buses),
            pairs=np.stack([buses[:-1], buses[1:]], axis=1),
            kinds=kinds,
            source=buses == 0,
            coordinates=np.stack([buses * 1.5, buses % 2], axis=1).astype(float) if coordinates else None,
        )

    def magnitudes(self, seed: int = 0) -> FloatArray:
        """(day, step, node) [p.u.] that sag along the feeder and in the evening."""
        rng = np.random.default_rng(seed)
        level = 1.0 + 0.5 * np.sin(2 * np.pi * np.arange(self.steps) / self.steps)
        level = level[None, :, None] * rng.uniform(0.8, 1.2, (self.days, self.steps, 1))
        bus = np.repeat(np.arange(self.buses), 3)
        noise = rng.normal(0.0, 0.002, (self.days, self.steps, 3 * self.buses))
        return np.asarray(1.03 - 0.03 * level * bus / self.buses + noise)

    def voltages(self, seed: int = 0) -> ComplexArray:
        """The same as phasors, with angles near 0, −120 and 120 degrees."""
        rng = np.random.default_rng([seed, 1])
        angle = np.tile([0.0, -120.0, 120.0], self.buses) + rng.normal(
            0.0, 0.3, (self.days, self.steps, 3 * self.buses)
        )
        return np.asarray(self.magnitudes(seed) * np.exp(1j * np.deg2rad(angle)))

    def write(
        self,
        target: Path,
        voltages: ComplexArray | None = None,
        *,
        connections: bool = True,
        coordinates: bool = False,
        extras: bool = True,
    ) -> Corpus:
        """A corpus on disk."""
        joined = self.connections(coordinates=coordinates) if connections else None
        held, v = EXTRAS if extras else NOTHING, self.voltages() if voltages is None else voltages
        return open_corpus(write_corpus(target, self.layout, connections=joined, extras=held, v=v))
