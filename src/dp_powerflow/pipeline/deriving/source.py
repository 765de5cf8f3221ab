"""A study of released files alone: the published twin, its lines found in Y, the loads of its tables.

A third party has no more than this. What the tables do not say is not known: lengths, customers, taps that
move. Volt-var control is in the released generation as it was solved, and stays so.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import scipy.sparse as sp
from pydantic import Field, ValidationError
from scipy.sparse.csgraph import connected_components

from dp_powerflow.corpus.gridfm.network import (
    MERGED_ABOVE_MVA,
    SN_MVA,
    PublishedNetwork,
    lines_of,
    places_of,
    published_feeder,
)
from dp_powerflow.corpus.gridfm.tables import ReleasedTables
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.storage import Location
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.grid.feeder import GROUND, Feeder, Line, Load
from dp_powerflow.grid.quantities import TRANSFORMER
from dp_powerflow.manifest.model import (
    MANIFEST_FILE,
    Manifest,
    ReleaseError,
    Section,
    form_problems,
    json_object,
)
from dp_powerflow.manifest.verify import manifest_content, parsed_manifest
from dp_powerflow.model.sample import OneDay, days_per_block, solve_days
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.powerflow.sun import DAYS_OF_YEAR, Generation, clear_sky
from dp_powerflow.studies.study import GivenDays, GivenLaw, Study
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

Origin = Literal[
    "released files", "private state of the data owner", "private state of the data owner, on new days"
]
FROM_FILES: Origin = "released files"
FROM_STATE: Origin = "private state of the data owner"
ON_NEW_DAYS: Origin = "private state of the data owner, on new days"
"""What a study was read from. Days of a sealed release cannot be drawn again: others of the same law are."""
OF_STUDY = "study"
"""Table of the settings that is for the study, whatever its kind."""
DEFAULT_LATITUDE = 45.0
AGREE_PU = 2e-5
"""Voltages of study and release may differ by this [p.u.]: rounding, and switches merged in tables."""
ON_THE_TRUE_NETWORK = (
    "release '{id}' was solved on the true network, and figures computed on it, such as hosting capacity, "
    "give the resistances of its paths back to who inverts them; derive from a release of mode "
    "'twin-network' (experiments may use a public true network)"
)


class StudySettings(Section):
    """Public settings of every study.

    Attributes
    ----------
    latitude_deg : of the clear sky over new PV, where the release declares no irradiance [degrees].
    """

    latitude_deg: Annotated[float, Field(ge=-90.0, le=90.0)] = DEFAULT_LATITUDE


def split_settings(given: Mapping[str, Any] | None) -> tuple[StudySettings, dict[str, Any]]:
    """Settings as a file or a caller gives them: of the study, in the table `study`, and of the kind.

    Raises
    ------
    ConfigError : a setting of the study is unknown or out of range.
    """
    rest = dict(given or {})
    own = rest.pop(OF_STUDY, {})
    try:
        return StudySettings.model_validate(own), rest
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join([OF_STUDY, *(str(part) for part in first["loc"])])
        raise ConfigError(f"setting {where} cannot be used: {first['msg']}") from None


@dataclass(frozen=True, eq=False, repr=False)
class Basis:
    """A release and a study of it.

    Attributes
    ----------
    content, source : the file `manifest.json` of the release, and the manifest in it.
    derived_from : what the study was read from.
    settings : of the study.
    irradiance : in words, where the irradiance of new PV comes from.
    """

    content: bytes
    source: Manifest[Any]
    derived_from: Origin
    settings: StudySettings
    irradiance: str
    study: Study


def derivable_manifest(directory: Location, content: bytes) -> Manifest[Any]:
    """The manifest of a release that figures may be derived from, given its file.

    Raises
    ------
    ReleaseError : it was changed after the release, or is of an earlier version.
    PrivacyError : the release was not solved on a twin.
    """
    source = parsed_manifest(directory, content)[0]
    if any(form_problems(content, json_object(content))):
        raise ReleaseError(f"{directory / MANIFEST_FILE} was changed after the release; fetch it again")
    if not source.guarantee.network.derivable:
        raise PrivacyError(ON_THE_TRUE_NETWORK.format(id=source.release.id))
    return source


def clear_sky_year(settings: StudySettings, steps: int, first_day: int) -> tuple[FloatArray, str]:
    """(day, step) irradiance of a public year without clouds, and words for it.

    Parameters
    ----------
    first_day : day of the year that the first day of the release is.
    """
    return clear_sky(settings.latitude_deg, DAYS_OF_YEAR, steps, first_day), sky_in_words(settings)


def sky_in_words(settings: StudySettings) -> str:
    """The clear sky of the settings."""
    return f"a clear sky at latitude {settings.latitude_deg!r} degrees, declared public"


def refuse_another_scene(study: Study, corpus: Corpus, *, same_days: bool = True) -> None:
    """Compare with the release: its days and connections, and the voltages of the first day, solved again.

    Parameters
    ----------
    same_days : whether the study has the days of the release; else no voltages are compared.

    Raises
    ------
    ReleaseError : the release holds others.
    """
    if study.days > corpus.layout.days or not _same(study.connections, corpus.connections):
        raise ReleaseError(
            f"release '{corpus.release_id}' has other days or connections than its config asks for now; "
            "restore the config as it was when the release was made"
        )
    solver = study.make_solver(None)
    if not same_days:
        return
    day, sun = OneDay(study.source, 0), study.generation
    made = solve_days(solver, day, generation=sun, nodes="all", scale_down=study.scales_down)
    at = np.searchsorted(study.feeder.energised, study.released)
    released = corpus.voltages([0])[0]
    same_shape = made.v[0].shape[0] == released.shape[0] and len(at) == released.shape[1]
    if not same_shape or not np.abs(made.v[0][:, at] - released).max() < AGREE_PU:
        raise ReleaseError(
            f"release '{corpus.release_id}' holds other voltages than its loads give on its network; restore "
            "the config, the files it names and the private state as they were when it was made"
        )


def _same(one: Connections | None, other: Connections | None) -> bool:
    """Whether the same is published of two networks: a study may show no bus that the release hides."""
    if one is None or other is None:
        return one is other
    each = (getattr(found, item.name) for item in fields(Connections) for found in (one, other))
    return all(np.array_equal(mine, its) for mine, its in zip(each, each, strict=True))


def buses_of(
    network: PublishedNetwork, connections: Connections | None, bus_of_row: IntArray
) -> tuple[IntArray, tuple[str, ...], frozenset[tuple[int, ...]]]:
    """Which nodes of a published network stand at one bus.

    Returns
    -------
    (node,) number of the bus; (node,) "bus.phase", "emf(bus).phase" of a source; pairs of buses that a
    transformer joins, as far as the release says.

    Parameters
    ----------
    connections : of the release; None where it publishes none.
    bus_of_row : (released node,) node of the network.
    """
    bus, phase = places_of(network), np.asarray(network.phase, dtype=np.int64).copy()
    transformers: frozenset[tuple[int, ...]] = frozenset()
    if connections is not None:
        merged = _merged(connections, bus_of_row)
        known = merged[connections.bus_of]
        bus = bus + connections.n_buses  # a place without a released node keeps another number
        for place in np.unique(bus[bus_of_row]):
            here = bus_of_row[bus[bus_of_row] == place]
            own = known[bus[bus_of_row] == place]
            bus[bus == place] = own[np.argmin(here)]
        bus[bus_of_row] = known
        phase[bus_of_row] = connections.phase
        transformers = frozenset(
            tuple(sorted(pair))
            for pair, kind in zip(merged[connections.pairs].tolist(), connections.kinds, strict=True)
            if kind == TRANSFORMER
        )
    bus = _with_sources(network, bus)
    return bus, _names(network, bus, phase), transformers


def _merged(connections: Connections, bus_of_row: IntArray) -> IntArray:
    """(bus of the release,) the smallest number of the buses that it was merged with."""
    first: dict[int, int] = {}
    joined = []
    for bus, node in zip(connections.bus_of.tolist(), bus_of_row.tolist(), strict=True):
        joined.append((first.setdefault(node, bus), bus))
    one, other = np.array(joined, dtype=np.int64).T
    count = connections.n_buses
    pattern = sp.coo_array((np.ones(len(joined)), (one, other)), shape=(count, count))
    group = connected_components(pattern.tocsr(), directed=False)[1]
    smallest = np.full(count, count, dtype=np.int64)
    np.minimum.at(smallest, group, np.arange(count))
    return np.asarray(smallest[group], dtype=np.int64)


def _with_sources(network: PublishedNetwork, bus: IntArray) -> IntArray:
    """Sources stand at the bus that they feed."""
    found, y = bus.copy(), sp.csr_array(network.y)
    for node in network.reference.tolist():
        near = [k for k in y.indices[y.indptr[node] : y.indptr[node + 1]] if k not in network.reference]
        if near:
            found[node] = bus[min(near)]
    return found


def _names(network: PublishedNetwork, bus: IntArray, phase: IntArray) -> tuple[str, ...]:
    sources = set(network.reference.tolist())
    names = [
        f"emf({bus[k]}).{phase[k]}" if k in sources else f"{bus[k]}.{phase[k]}" for k in range(network.n)
    ]
    if len(set(names)) < len(names):  # two nodes of one phase cannot be told apart by their bus
        names = [f"{k}.{phase[k]}" for k in range(network.n)]
    return tuple(names)


TOLERANCE = 1e-12
"""Mismatch of the power flow [p.u.], as of releases."""

_ENDS = np.array([[1.0, -1.0], [-1.0, 1.0]])
"""What a series admittance adds to Y at its two ends."""


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
    demand, static = tables.powers
    plain, energised = published_feeder(network)
    place = np.empty(network.n, dtype=np.int64)
    place[np.concatenate([energised, network.reference])] = np.arange(network.n)
    feeder = _described(plain, tables, place, demand)
    loaded = network.loaded
    at = np.searchsorted(feeder.retained, place[loaded])  # ascending: the order of nodes is kept
    by_day = demand[:, loaded].reshape(-1, steps, len(loaded)).transpose(2, 0, 1) * KW_PER_MW
    active, reactive = (np.ascontiguousarray(part) for part in (by_day.real, by_day.imag))
    law = GivenLaw(steps, feeder.base_mva, at)
    source = GivenDays(law, active, reactive, days_per_block(len(loaded)))
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


def _described(plain: Feeder, tables: ReleasedTables, place: IntArray, demand: ComplexArray) -> Feeder:
    """The feeder with lines, buses of its nodes, and the largest power of every load as its nominal one."""
    network, connections = tables.network.as_phasors(), tables.corpus.connections
    bus, names, transformers = buses_of(network, connections, tables.bus_of_row)
    lines = tuple(
        Line(
            name=f"line-{number}",
            nodes=tuple(place[line.nodes].tolist()),
            primitive=np.asarray(np.kron(_ENDS, line.series * SN_MVA), dtype=np.complex128),
            length_m=None,
            is_switch=bool(np.abs(line.series).max() * SN_MVA >= MERGED_ABOVE_MVA),
        )
        for number, line in enumerate(lines_of(network))
        if tuple(sorted(set(bus[line.nodes].tolist()))) not in transformers
    )
    loads = []
    for k in network.loaded.tolist():
        largest = demand[int(np.argmax(demand[:, k].real)), k] * KW_PER_MW
        drawn = (float(largest.real), float(largest.imag))
        loads.append(Load(f"load-{k}", ((int(place[k]), GROUND),), *drawn, "wye"))
    nodes = tuple(names[k] for k in np.argsort(place).tolist())
    return replace(plain, nodes=nodes, base_kv=np.ones(network.n), lines=lines, loads=tuple(loads))


def _generation(static: ComplexArray, steps: int, at: IntArray, retained: int) -> Generation | None:
    """Released generation of every day [p.u. of 1 MVA]; None without any."""
    if not static.any():
        return None
    shares = sp.csr_array((np.ones(len(at)), (at, np.arange(len(at)))), shape=(retained, len(at)))
    return Generation(static.reshape(-1, steps, static.shape[1]), shares)
