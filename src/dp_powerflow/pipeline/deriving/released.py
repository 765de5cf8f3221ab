"""A study of released files alone: the published twin, its lines found in Y, the loads of its tables.

A third party has no more than this. What the tables do not say is not known: lengths, customers, taps that
move. Volt-var control is in the released generation as it was solved, and stays so.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow.corpus.gridfm.network import MERGED_ABOVE_MVA, lines_of, published_feeder
from dp_powerflow.corpus.gridfm.released import ReleasedTables, states_of
from dp_powerflow.derived.study import Study
from dp_powerflow.grid.feeder import GROUND, Feeder, Line, Load
from dp_powerflow.manifest.model import Manifest, ReleaseError
from dp_powerflow.manifest.verify import manifest_content
from dp_powerflow.model.sample import LoadBlock, days_per_block
from dp_powerflow.pipeline.deriving.basis import (
    Basis,
    StudySettings,
    clear_sky_year,
    derivable_manifest,
    refuse_another_scene,
)
from dp_powerflow.pipeline.deriving.buses import buses_of
from dp_powerflow.pipeline.deriving.manifest import FROM_FILES
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

TOLERANCE = 1e-12
"""Mismatch of the power flow [p.u.], as of releases."""

_ENDS = np.array([[1.0, -1.0], [-1.0, 1.0]])
"""What a series admittance adds to Y at its two ends."""


@dataclass(frozen=True)
class _Place:
    """Where the loads of the tables belong; see `PlacedLaw`."""

    steps: int
    base_mva: float
    positions: IntArray | None
    shares: sp.csr_array | None = None


@dataclass(frozen=True, eq=False, repr=False)
class TableLoads:
    """Loads of published tables as a source of days.

    Attributes
    ----------
    law : where they belong.
    load_kw, load_kvar : (node, day, step) [kW], [kvar].
    """

    law: _Place
    load_kw: FloatArray
    load_kvar: FloatArray

    @property
    def n_days(self) -> int:
        """Days of the tables."""
        return int(self.load_kw.shape[1])

    @property
    def n_blocks(self) -> int:
        """Blocks of days, as long as those of a sampler."""
        return -(-self.n_days // self._block_days)

    @property
    def _block_days(self) -> int:
        return days_per_block(len(self.load_kw))

    def block(self, index: int) -> LoadBlock:
        """Some consecutive days."""
        first = index * self._block_days
        chosen = slice(first, first + self._block_days)
        return LoadBlock(
            first,
            np.ascontiguousarray(self.load_kw[:, chosen]),
            np.ascontiguousarray(self.load_kvar[:, chosen]),
        )


def basis_of_release(directory: Path, settings: StudySettings) -> Basis:
    """The study of a release that publishes its twin with its loads.

    Raises
    ------
    ReleaseError, CorpusError : there is no finished release, a file of it is damaged, or it does not publish
        its twin.
    PrivacyError : it was not solved on a twin.
    """
    content = manifest_content(directory)
    source = derivable_manifest(directory, content)
    tables = source.data.network_tables
    if tables is None or not tables.days:
        raise ReleaseError(
            f"release '{source.release.id}' does not publish its twin with its loads; its owner derives from "
            'the config instead, or publishes them with network.publish = "network and loads" and '
            'network.controls = "frozen"'
        )
    found = ReleasedTables.of(directory)
    sun, words = clear_sky_year(settings, found.corpus.layout.steps, _first_day(source))
    study = replace(_study(found), irradiance=sun)
    refuse_another_scene(study, found.corpus)
    return Basis(content, source, FROM_FILES, settings, words, study)


def _first_day(source: Manifest[Any]) -> int:
    """Day of the year of the first day; 1 of a release without dates."""
    calendar = source.data.calendar
    return 1 if calendar is None else dt.date.fromisoformat(calendar.first_day).timetuple().tm_yday


def _study(tables: ReleasedTables) -> Study:
    """The tables as a network with its loads."""
    network, steps = tables.network.as_phasors(), tables.corpus.layout.steps
    demand, static = _powers(tables)
    plain, energised = published_feeder(network)
    place = np.empty(network.n, dtype=np.int64)
    place[np.concatenate([energised, network.reference])] = np.arange(network.n)
    feeder = _described(plain, tables, place, demand)
    loaded = network.loaded
    at = np.searchsorted(feeder.retained, place[loaded])  # ascending: the order of nodes is kept
    by_day = demand[:, loaded].reshape(-1, steps, len(loaded)).transpose(2, 0, 1) * KW_PER_MW
    source = TableLoads(
        _Place(steps, feeder.base_mva, at),
        np.ascontiguousarray(by_day.real),
        np.ascontiguousarray(by_day.imag),
    )
    return Study(
        feeder=feeder,
        source=source,
        make_solver=partial(_solver, feeder),
        released=place[tables.bus_of_row],
        node_ids=tables.corpus.nodes.ids,
        generation=_generation(static[:, loaded], steps, at, len(feeder.retained)),
        connections=tables.corpus.connections,
    )


def _solver(feeder: Feeder, threads: int | None) -> Solver:
    return BatchSolver(feeder, tolerance=TOLERANCE, threads=threads)


def _powers(tables: ReleasedTables) -> tuple[ComplexArray, ComplexArray]:
    """Complex (scenario, node) power that is drawn, and that is generated [MVA]."""
    demand, static = [], []
    for partition in tables.partitions:
        states = states_of(tables.read(partition))
        demand.append(states.demand)
        static.append(states.static)
    return np.concatenate(demand), np.concatenate(static)


def _described(plain: Feeder, tables: ReleasedTables, place: IntArray, demand: ComplexArray) -> Feeder:
    """The feeder with lines, buses of its nodes, and the largest power of every load as its nominal one."""
    network, connections = tables.network.as_phasors(), tables.corpus.connections
    buses = buses_of(network, connections, tables.bus_of_row)
    lines = tuple(
        Line(
            name=f"line-{number}",
            nodes=tuple(place[line.nodes].tolist()),
            primitive=np.asarray(np.kron(_ENDS, line.series * network.sn_mva), dtype=np.complex128),
            length_m=None,
            is_switch=bool(np.abs(line.series).max() * network.sn_mva >= MERGED_ABOVE_MVA),
        )
        for number, line in enumerate(lines_of(network))
        if not buses.joined_by_transformer(line.nodes)
    )
    loads = []
    for k in network.loaded.tolist():
        largest = demand[int(np.argmax(demand[:, k].real)), k] * KW_PER_MW
        drawn = (float(largest.real), float(largest.imag))
        loads.append(Load(f"load-{k}", ((int(place[k]), GROUND),), *drawn, "wye"))
    return replace(
        plain,
        nodes=tuple(buses.names[k] for k in np.argsort(place).tolist()),
        base_kv=network.vn_kv[np.argsort(place)],
        lines=lines,
        loads=tuple(loads),
    )


def _generation(static: ComplexArray, steps: int, at: IntArray, retained: int) -> Generation | None:
    """Released generation of every day [p.u. of 1 MVA]; None without any."""
    if not static.any():
        return None
    shares = sp.csr_array((np.ones(len(at)), (at, np.arange(len(at)))), shape=(retained, len(at)))
    return Generation(static.reshape(-1, steps, static.shape[1]), shares)
