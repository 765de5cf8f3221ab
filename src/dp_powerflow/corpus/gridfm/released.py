"""The tables of a release as a network and its states, whatever version and frame they were written in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dp_powerflow.corpus.gridfm.network import SN_MVA, PublishedNetwork, nominal_angles, phases_of
from dp_powerflow.corpus.gridfm.reader import GridfmData, count_scenarios, read_gridfm
from dp_powerflow.corpus.gridfm.scenarios import BusStates
from dp_powerflow.corpus.gridfm.schema import SCENARIOS_PER_PARTITION
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import IntArray

TWIN = "twin"


@dataclass(frozen=True, eq=False)
class ReleasedTables:
    """The published twin of a release.

    Attributes
    ----------
    corpus : the release.
    directory : its tables.
    """

    corpus: Corpus
    directory: Path

    @classmethod
    def of(cls, release: Path) -> ReleasedTables:
        """The tables of a release; refused where it has none."""
        corpus = open_corpus(release)
        if not (release / TWIN).is_dir():
            raise CorpusError(
                f"{release} holds no tables of its network; they are released on a twin with "
                'network.publish = "network and loads" and network.controls = "frozen"'
            )
        corpus.files.check_folder(TWIN)
        return cls(corpus, release / TWIN)

    @cached_property
    def n_scenarios(self) -> int:
        """How many there are."""
        return count_scenarios(self.directory)

    @property
    def partitions(self) -> range:
        """Partitions of the scenarios."""
        return range(-(-self.n_scenarios // SCENARIOS_PER_PARTITION))

    def read(self, partition: int) -> GridfmData:
        """One partition, checked."""
        return read_gridfm(self.directory, partition)

    def days(self, scenarios: IntArray) -> IntArray:
        """Day of each scenario."""
        return np.asarray(scenarios // self.corpus.layout.steps)

    @cached_property
    def bus_of_row(self) -> IntArray:
        """(row,) bus of every row of `data/`; older tables begin with them."""
        own = self._first.bus_of_row
        return np.arange(self.corpus.layout.nodes) if own is None else own

    @cached_property
    def is_current(self) -> bool:
        """Whether they say phase, row and turn of every bus."""
        return "turn" in self._first.bus.column_names

    @cached_property
    def network(self) -> PublishedNetwork:
        """The network, in the frame of the tables."""
        data = self._first
        turn, v = data.turn_deg()[0], data.voltage()[0]
        angle = turn if turn.any() else nominal_angles(v)
        row = np.full(data.n_buses, -1, dtype=np.int64)
        for number in reversed(range(len(self.bus_of_row))):
            row[self.bus_of_row[number]] = number
        reference = np.flatnonzero(data.column("bus", "REF")[0])
        y = data.admittance()
        y.sum_duplicates()
        return PublishedNetwork(
            y=y,
            sn_mva=SN_MVA,
            reference=reference,
            v_reference=v[reference],
            loaded=np.setdiff1d(self._loaded, reference),
            angle_deg=angle,
            phase=data.column("bus", "phase")[0] if self.is_current else phases_of(angle),
            row=row,
            vn_kv=data.column("bus", "vn_kv")[0],
            turn_deg=turn,
        )

    @cached_property
    def _first(self) -> GridfmData:
        return self.read(0)

    @cached_property
    def _loaded(self) -> IntArray:
        """Buses that draw or inject power in any scenario."""
        found = np.zeros(self._first.n_buses, dtype=np.bool_)
        for partition in self.partitions:
            states = states_of(self.read(partition))
            found |= (states.demand != 0).any(axis=0) | (states.static != 0).any(axis=0)
        return np.flatnonzero(found)


def states_of(data: GridfmData) -> BusStates:
    """Powers and voltages as they are written."""
    demand, static = (
        data.column("bus", real) + 1j * data.column("bus", imaginary)
        for real, imaginary in (("Pd", "Qd"), ("Psgen", "Qsgen"))
    )
    return BusStates(demand, static, data.voltage())
