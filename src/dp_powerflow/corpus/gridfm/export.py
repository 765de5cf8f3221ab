"""Released tables as gridfm-graphkit reads them: `<folder>/<network>/raw/`, and a config that trains on them.

Post-processing of releases: nothing private is read, nothing is written into a release. One folder may hold
several networks, each with its own perturbed scenarios.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa

from dp_powerflow.corpus.gridfm import schema
from dp_powerflow.corpus.gridfm.network import (
    GridfmBranches,
    PublishedLine,
    PublishedNetwork,
    places_of,
    supplied,
    with_shares,
)
from dp_powerflow.corpus.gridfm.tables import BusStates, ReleasedTables, scenario_tables, write_index
from dp_powerflow.corpus.storage import put, refuse_taken, whole_folder
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

PLAUSIBLE_PU = (0.8, 1.2)
"""Perturbed scenarios with a voltage outside are drawn again; how many is reported."""
_TRIES = 40


@dataclass(frozen=True)
class GridfmVariety:
    """What is drawn at random, all factors uniformly.

    Attributes
    ----------
    scenarios : how many perturbed scenarios.
    seed : of the draws, public.
    per_network : scenarios on each drawn network.
    switched : share of the networks in which a line is out and a tie closed, where the feeder is radial.
    line_spread : admittances of lines are multiplied by up to 1 + this, or divided by it.
    load_levels : factor of all loads of a scenario.
    load_spread : factor of every single load, 1 ± this.
    pv_share : share of the loaded buses with their own PV, drawn per network.
    pv_level : largest PV of such a bus, as a multiple of its mean load.
    """

    scenarios: int
    seed: int = 0
    per_network: int = 8
    switched: float = 0.5
    line_spread: float = 0.3
    load_levels: tuple[float, float] = (0.4, 1.4)
    load_spread: float = 0.2
    pv_share: float = 0.3
    pv_level: float = 3.0


def _perturbed_batch(
    released: ReleasedTables, variety: GridfmVariety, first: int, count: int, rng: np.random.Generator
) -> tuple[int, dict[str, pa.Table]]:
    """Scenarios on a drawn network, numbered from `first` on: how many are plausible, and their tables."""
    lines, loaded = released.lines, released.network.loaded
    strength = rng.uniform(-variety.line_spread, variety.line_spread, len(lines))
    factor = np.where(strength < 0.0, 1.0 / (1.0 - strength), 1.0 + strength)
    switches = rng.uniform() < variety.switched
    pv = rng.uniform(size=len(loaded)) < variety.pv_share
    network = with_shares(released.network, lines, factor - 1.0)
    if switches:
        scaled = zip(lines, factor.tolist(), strict=True)
        network = _switched(
            network, tuple(replace(line, series=line.series * share) for line, share in scaled), rng
        )
    picked = rng.integers(released.loaded_powers.shape[1], size=count)
    demand, static = _drawn_powers(released, picked, pv, variety, rng)
    v = network.solve(-demand, allow_failures=True)
    size = np.abs(v)
    good = ((size > PLAUSIBLE_PU[0]) & (size < PLAUSIBLE_PU[1])).all(axis=1)  # false of NaN
    kept = int(np.sum(good))
    at_buses = np.zeros((2, kept, network.n), dtype=np.complex128)
    at_buses[:, :, loaded] = demand[good], static[good]
    keys = first + np.arange(kept), picked[good] // released.corpus.layout.steps
    opened = _opened(released.network.branches, network.branches)
    return kept, scenario_tables(network, keys, BusStates(at_buses[0], at_buses[1], v[good]), opened)


def _drawn_powers(
    released: ReleasedTables,
    picked: IntArray,
    pv: BoolArray,
    variety: GridfmVariety,
    rng: np.random.Generator,
) -> tuple[ComplexArray, ComplexArray]:
    """Complex (scenario, loaded) net demand and generation under other levels of load and PV."""
    demand, static = released.loaded_powers[:, picked]
    count, buses = demand.shape
    level = rng.uniform(*variety.load_levels, (count, 1))
    single = rng.uniform(1.0 - variety.load_spread, 1.0 + variety.load_spread, (count, buses))
    own_sun = rng.uniform(0.0, 1.0, (count, 1))
    sun = rng.uniform(0.0, variety.pv_level, (count, 1)) * rng.uniform(0.0, 1.0, (1, buses))
    generation = static * own_sun + np.where(pv, sun * released.usual_mw, 0.0)
    load = (demand + static) * level * single
    return np.asarray(load - generation), np.asarray(generation, dtype=np.complex128)


def _switched(
    network: PublishedNetwork, lines: tuple[PublishedLine, ...], rng: np.random.Generator
) -> PublishedNetwork:
    """The network with one line out, and a tie closed where that would leave nodes without supply.

    Where no tie of `_TRIES` draws supplies all nodes again, the network stays the same.
    """
    place = places_of(network)
    for _ in range(_TRIES):
        line = lines[int(rng.integers(len(lines)))]
        without = with_shares(network, (line,), np.array([-1.0]))
        fed = supplied(without)
        if fed.all():
            return without
        lost, rest = (_end(network, place, line, side, rng) for side in (~fed, fed))
        strength = float(rng.uniform(0.5, 1.5))
        if lost is None or rest is None:
            continue
        tie = PublishedLine(lost, rest, line.series)
        if np.array_equal(np.sort(tie.nodes), np.sort(line.nodes)):
            continue
        closed = with_shares(without, (tie,), np.array([strength]))
        if supplied(closed).all():
            return closed
    return network


def _end(
    network: PublishedNetwork, place: IntArray, line: PublishedLine, side: BoolArray, rng: np.random.Generator
) -> IntArray | None:
    """Nodes of a random place on one side that has every phase of the line; None if there is none."""
    angles = network.angle_deg[line.first]
    candidates = [
        nodes
        for number in np.unique(place[side])
        for nodes in [_phases(network, np.flatnonzero((place == number) & side), angles)]
        if nodes is not None and not np.isin(nodes, network.reference).any()
    ]
    return candidates[int(rng.integers(len(candidates)))] if candidates else None


def _phases(network: PublishedNetwork, nodes: IntArray, angles: FloatArray) -> IntArray | None:
    """The nodes of a place with these nominal angles, in their order; None if one is missing."""
    found = {float(network.angle_deg[node]): int(node) for node in nodes}
    if any(float(angle) not in found for angle in angles):
        return None
    return np.array([found[float(angle)] for angle in angles], dtype=np.int64)


def _opened(before: GridfmBranches, now: GridfmBranches) -> GridfmBranches | None:
    """Branches that are no more."""
    left = set(zip(now.from_bus.tolist(), now.to_bus.tolist(), strict=True))
    pairs = zip(before.from_bus.tolist(), before.to_bus.tolist(), strict=True)
    gone = np.array([pair not in left for pair in pairs])
    return before.at(np.flatnonzero(gone)) if gone.any() else None


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
    buses : in the tables.
    released, perturbed : scenarios of the release, and perturbed ones after them.
    networks : different networks among the perturbed scenarios.
    refused : perturbed scenarios without a plausible solution, drawn again.
    """

    name: str
    buses: int
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
    variety: GridfmVariety | None = None,
    on_progress: Progress | None = None,
) -> GridfmExport:
    """Write the published twins of some releases into a new folder.

    Parameters
    ----------
    variety : perturbed scenarios to add, as many to every network; None adds none.
    on_progress : told how many scenarios are done, and of how many.
    """
    refuse_taken(directory)
    for release in releases:
        if directory.resolve().is_relative_to(release.resolve()):
            raise CorpusError(f"{directory} lies inside the release {release}; name a folder outside it")
    found = [ReleasedTables.of(release) for release in releases]
    names = [tables.corpus.release_id for tables in found]
    if len(set(names)) < len(names):
        raise CorpusError("two of the releases have one id, and a folder for each is named by it")
    extra = 0 if variety is None else variety.scenarios
    total, done = sum(len(tables.powers[0]) + extra for tables in found), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    with whole_folder(directory) as working:
        exported = []
        for tables, name in zip(found, names, strict=True):
            raw, count = working / name / RAW, len(tables.powers[0])
            shutil.copytree(tables.directory, raw)
            advance(count)
            drawn = (0, 0) if variety is None else _write_perturbed(tables, raw, variety, advance)
            write_index(raw, count + extra, tables.bus_of_row)
            exported.append(ExportedNetwork(name, tables.network.n, count, extra, *drawn))
        (working / CONFIG_FILE).write_text(config_text(exported), encoding="utf-8")
    return GridfmExport(directory, directory / CONFIG_FILE, tuple(exported))


def config_text(networks: Sequence[ExportedNetwork]) -> str:
    """A configuration of gridfm-graphkit (version 1) for power flow, split by day, for a laptop."""
    content = json.loads((resources.files("dp_powerflow.corpus.gridfm") / "graphkit.json").read_text("utf-8"))
    content["data"]["networks"] = [network.name for network in networks]
    content["data"]["scenarios"] = [network.released + network.perturbed for network in networks]
    return json.dumps(content, indent=2) + "\n"  # JSON is YAML


def _write_perturbed(
    tables: ReleasedTables, directory: Path, variety: GridfmVariety, advance: Callable[[int], None]
) -> tuple[int, int]:
    """Write perturbed scenarios after the released ones; how many networks, and how many were refused."""
    if not tables.lines:
        raise CorpusError("no line was found in the tables of the network, so there is nothing to vary")
    rng = np.random.default_rng(variety.seed)
    networks = refused = in_a_row = 0
    for piece in schema.pieces(len(tables.powers[0]), variety.scenarios):
        parts: list[dict[str, pa.Table]] = []
        number = piece.start
        while number < piece.stop:
            asked = min(piece.stop - number, variety.per_network)
            count, made = _perturbed_batch(tables, variety, number, asked, rng)
            refused += asked - count
            in_a_row = 0 if count else in_a_row + 1
            if in_a_row == _GIVE_UP:
                raise CorpusError(
                    f"{_GIVE_UP} perturbed networks in a row have no plausible power flow; the levels of "
                    "load or PV, or the spread of the lines, are too large for this feeder"
                )
            networks += count > 0
            parts += [made] * (count > 0)
            number += count
            advance(count)
        for table in schema.TABLES:
            content = pa.concat_tables([part[table] for part in parts]).combine_chunks()
            put(directory / schema.file_name(table, piece), schema.encode_table(content), make_folder=True)
    return networks, refused
