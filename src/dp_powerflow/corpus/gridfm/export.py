"""Released tables as gridfm-graphkit reads them: `<folder>/<network>/raw/`, and a config that trains on them.

Post-processing of releases: nothing private is read, nothing is written into a release. One folder may hold
several networks, each with perturbed scenarios of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dp_powerflow.corpus.gridfm.network import GridfmStyle, PublishedNetwork, lines_of, turned_back
from dp_powerflow.corpus.gridfm.released import ReleasedTables, states_of
from dp_powerflow.corpus.gridfm.scenarios import BusStates, scenario_tables
from dp_powerflow.corpus.gridfm.schema import (
    SCENARIOS_PER_PARTITION,
    TABLES,
    ScenarioKeys,
    encode_table,
    file_name,
    partition_name,
    table_directory,
)
from dp_powerflow.corpus.gridfm.variety import Batch, GridfmVariety, Released, draw_batch
from dp_powerflow.corpus.gridfm.writer import write_index
from dp_powerflow.errors import CorpusError, OutputTakenError
from dp_powerflow.units import ComplexArray, IntArray

RAW = "raw"
CONFIG_FILE = "graphkit.yaml"
_GIVE_UP = 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ExportedNetwork:
    """What was written of one release.

    Attributes
    ----------
    name : folder of the network.
    buses, merged : buses in the tables, and how many nodes were merged into others.
    released, perturbed : scenarios of the release, and perturbed ones after them.
    networks : different networks among the perturbed scenarios.
    refused : perturbed scenarios without a plausible solution, drawn again.
    """

    name: str
    buses: int
    merged: int
    released: int
    perturbed: int
    networks: int
    refused: int


@dataclass(frozen=True)
class GridfmExport:
    """A folder for gridfm-graphkit.

    Attributes
    ----------
    path : the folder.
    config : a configuration that trains on it, split by day.
    networks : what is in it.
    """

    path: Path
    config: Path
    networks: tuple[ExportedNetwork, ...]


def export_gridfm(
    releases: Sequence[Path],
    directory: Path,
    *,
    style: GridfmStyle | None = None,
    variety: GridfmVariety | None = None,
    on_progress: Progress | None = None,
) -> GridfmExport:
    """Write the published twins of some releases into a new folder.

    Parameters
    ----------
    variety : perturbed scenarios to add, as many to every network; None adds none.
    on_progress : told how many scenarios are done, and of how many.
    """
    _refuse_folder(directory, releases)
    found = [ReleasedTables.of(release) for release in releases]
    names = [tables.corpus.release_id for tables in found]
    if len(set(names)) < len(names):
        raise CorpusError("two of the releases have one id, and a folder for each is named by it")
    extra = 0 if variety is None else variety.scenarios
    total, done = sum(tables.n_scenarios + extra for tables in found), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    working = directory.with_name(f".{directory.name}.unfinished")
    shutil.rmtree(working, ignore_errors=True)
    try:
        exported = tuple(
            _Network(tables, working / name / RAW, style or GridfmStyle(), advance).write(name, variety)
            for tables, name in zip(found, names, strict=True)
        )
        (working / CONFIG_FILE).write_text(config_text(exported), encoding="utf-8")
        os.rename(working, directory)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return GridfmExport(directory, directory / CONFIG_FILE, exported)


def config_text(networks: Iterable[ExportedNetwork]) -> str:
    """A configuration of gridfm-graphkit (version 1) for power flow, split by day, for a laptop."""
    networks = list(networks)
    content = {
        "version": 1,
        "seed": 0,
        "verbose": False,
        "task": {"task_name": "PowerFlow"},
        "callbacks": {"patience": 100, "tol": 0},
        "data": {
            "baseMVA": 100,
            "mask_value": 0.0,
            "normalization": "HeteroDataMVANormalizer",
            "networks": [network.name for network in networks],
            "scenarios": [network.released + network.perturbed for network in networks],
            "split_by_load_scenario_idx": True,
            "val_ratio": 0.1,
            "test_ratio": 0.1,
            "workers": 0,
        },
        "model": {
            "type": "GNS_heterogeneous",
            "num_layers": 4,
            "hidden_size": 8,
            "attention_head": 4,
            "edge_dim": 10,
            "input_bus_dim": 15,
            "input_gen_dim": 6,
            "output_bus_dim": 2,
            "output_gen_dim": 1,
        },
        "optimizer": {
            "type": "AdamW",
            "learning_rate": 0.002,
            "optimizer_params": {"betas": [0.9, 0.999]},
            "scheduler_type": "ReduceLROnPlateau",
            "scheduler_params": {"mode": "min", "factor": 0.7, "patience": 5},
        },
        "training": {
            "epochs": 12,
            "batch_size": 8,
            "losses": ["MaskedBusMSE"],
            "loss_weights": [1.0],
            "loss_args": [{}],
            "accelerator": "auto",
            "devices": 1,
            "strategy": "auto",
        },
    }
    return json.dumps(content, indent=2) + "\n"  # JSON is YAML


class _Network:
    """Writes one network: the released scenarios, then perturbed ones."""

    def __init__(
        self, tables: ReleasedTables, directory: Path, style: GridfmStyle, advance: Callable[[int], None]
    ) -> None:
        self._tables, self._directory, self._advance = tables, directory, advance
        nodes = tables.network
        self._bus_of = nodes.groups() if style.merged else np.arange(nodes.n)
        self._merges = bool(self._bus_of.max() + 1 < nodes.n)
        network = nodes.merged(self._bus_of) if self._merges else nodes
        self._network: PublishedNetwork = network.turned() if style.turned else network.as_phasors()
        same_frame = np.array_equal(self._network.turn_deg, network.turn_deg)
        self._as_released = tables.is_current and same_frame and not self._merges

    def write(self, name: str, variety: GridfmVariety | None) -> ExportedNetwork:
        """Everything of the network."""
        count, extra = self._tables.n_scenarios, 0 if variety is None else variety.scenarios
        powers = [self._released(partition) for partition in self._tables.partitions]
        networks = refused = 0
        if variety is not None:
            demand, static = (np.concatenate(part) for part in zip(*powers, strict=True))
            networks, refused = self._perturbed(demand, static, variety)
        write_index(self._directory, count + extra, self._bus_of[self._tables.bus_of_row])
        merged = len(self._bus_of) - self._network.n
        return ExportedNetwork(name, self._network.n, merged, count, extra, networks, refused)

    def _released(self, partition: int) -> tuple[ComplexArray, ComplexArray]:
        """Write the scenarios of a partition; their powers at the loaded buses, demand and generation."""
        data, network = self._tables.read(partition), self._network
        numbers = np.arange(data.scenarios.start, data.scenarios.stop)
        keys = ScenarioKeys(numbers, self._tables.days(numbers))
        states = self._states(states_of(data))
        if self._as_released:
            self._copy(partition)
        else:
            self._put(data.scenarios, scenario_tables(network, keys, states))
        self._advance(len(numbers))
        return states.demand[:, network.loaded], states.static[:, network.loaded]

    def _states(self, states: BusStates) -> BusStates:
        """Released states on the network as it is exported."""
        network, nodes = self._network, self._tables.network
        if not self._merges:
            v = turned_back(states.v, network.turn_deg - nodes.turn_deg)
            return BusStates(states.demand, states.static, v)
        demand, static = (self._summed(power) for power in (states.demand, states.static))
        return BusStates(demand, static, network.solve(-demand[:, network.loaded], threads=None))

    def _summed(self, power: ComplexArray) -> ComplexArray:
        total = np.zeros((len(power), self._network.n), dtype=np.complex128)
        for node, bus in enumerate(self._bus_of):
            total[:, bus] += power[:, node]
        return total

    def _perturbed(
        self, demand: ComplexArray, static: ComplexArray, variety: GridfmVariety
    ) -> tuple[int, int]:
        """Write perturbed scenarios after the released ones; how many networks, and how many were refused."""
        lines = lines_of(self._network)
        if not lines:
            raise CorpusError("no line was found in the tables of the network, so there is nothing to vary")
        rng = np.random.default_rng(variety.seed)
        pending = _Pending(self._put, len(demand))
        released = Released(self._network, lines, demand, static)
        networks = refused = in_a_row = 0
        left = variety.scenarios
        while left:
            batch = draw_batch(released, variety, min(left, variety.per_network), rng)
            refused += batch.refused
            in_a_row = 0 if len(batch.picked) else in_a_row + 1
            if in_a_row == _GIVE_UP:
                raise CorpusError(
                    f"{_GIVE_UP} perturbed networks in a row have no plausible power flow; the levels of "
                    "load or PV, or the spread of the lines, are too large for this feeder"
                )
            if len(batch.picked):
                networks += 1
                pending.add(batch, self._tables.days(batch.picked))
                self._advance(len(batch.picked))
                left -= len(batch.picked)
        pending.finish()
        return networks, refused

    def _copy(self, partition: int) -> None:
        for table in TABLES:
            name = Path(table_directory(table)) / partition_name(partition)
            shutil.copytree(self._tables.directory / name, self._directory / name)

    def _put(self, piece: range, tables: Mapping[str, pa.Table]) -> None:
        for table, content in tables.items():
            path = self._directory / file_name(table, piece)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_table(content))


class _Pending:
    """Scenarios on their way into files, which end where a partition ends."""

    def __init__(self, put: Callable[[range, Mapping[str, pa.Table]], None], first: int) -> None:
        self._put, self._start, self._next = put, first, first
        self._tables: dict[str, list[pa.Table]] = {table: [] for table in TABLES}

    def add(self, batch: Batch, days: IntArray) -> None:
        """Number the scenarios of a batch and write what fills a partition."""
        keys = ScenarioKeys(self._next + np.arange(len(days)), days)
        found = scenario_tables(batch.network, keys, batch.states, batch.opened)
        for table, content in found.items():
            self._tables[table].append(content)
        self._next += len(days)
        end = (self._start // SCENARIOS_PER_PARTITION + 1) * SCENARIOS_PER_PARTITION
        if self._next >= end:
            self._flush(end)

    def finish(self) -> None:
        """Write the rest."""
        if self._next > self._start:
            self._flush(self._next)

    def _flush(self, end: int) -> None:
        written = {}
        for table, parts in self._tables.items():
            whole = pa.concat_tables(parts).combine_chunks()
            rows = int(np.searchsorted(whole["scenario"].to_numpy(), end))
            written[table], self._tables[table] = whole.slice(0, rows), [whole.slice(rows)]
        self._put(range(self._start, end), written)
        self._start = end


def _refuse_folder(directory: Path, releases: Sequence[Path]) -> None:
    if directory.exists():
        raise OutputTakenError(f"{directory} exists already; name a new folder")
    place = directory.resolve()
    for release in releases:
        if place.is_relative_to(release.resolve()):
            raise CorpusError(f"{directory} lies inside the release {release}; name a folder outside it")
