"""Checks a corpus on disk against its own description, value by value, without anything private."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dp_powerflow._threads import in_order
from dp_powerflow.corpus import schema
from dp_powerflow.corpus import tables as stored
from dp_powerflow.corpus.grid import VM_PER_PU, Phasors, on_grid, power_on_grid, vm_counts
from dp_powerflow.corpus.schema import CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.storage import Location, RemotePath, loading, location, open_parquet
from dp_powerflow.corpus.tables import Connections, DayTable, NodeTable
from dp_powerflow.errors import CorpusError

RELEASE_FILES = frozenset(
    {
        *("manifest.json", "certificate.html", "quality.html", "model.json", "croissant.json"),
        *("registry.yaml", "README.md"),
    }
)
"""What a release may hold besides `data/` and the tables below."""
_TABLES = frozenset({schema.NODES_FILE, schema.DAYS_FILE, *schema.CONNECTION_FILES})
_NOT_CONNECTED = (
    f"{' and '.join(schema.CONNECTION_FILES)} are not both there and whole, or contradict each other or the "
    "nodes."
)


@dataclass(frozen=True)
class CorpusReport:
    """What `validate_corpus` found.

    Attributes
    ----------
    problems : one sentence each; empty if the corpus is sound.
    layout : shape the corpus declares, None if that cannot be read.
    release_id : name of the release, None if that cannot be read.
    n_phasors : phasors that were read and checked.
    vm_range_pu : smallest and largest magnitude [p.u.] on the grid, None if there are none.
    nodes : the node table, None if that cannot be read.
    hashes : SHA-256 of the files that were read, by relative path.
    extras : what there is besides the voltages.
    n_powers : pairs of active and reactive power that were read and checked.
    n_scaled_down : snapshots whose powers were scaled down until there was a solution.
    days : dates and weather of the days, None if there are none or they cannot be read.
    connections : buses and what joins them, None if there are none or they cannot be read.
    """

    problems: tuple[str, ...]
    layout: CorpusLayout | None
    release_id: str | None
    n_phasors: int
    vm_range_pu: tuple[float, float] | None
    nodes: NodeTable | None
    hashes: Mapping[str, str]
    extras: ExtrasLayout = schema.NOTHING
    n_powers: int = 0
    n_scaled_down: int = 0
    days: DayTable | None = None
    connections: Connections | None = None

    @property
    def ok(self) -> bool:
        return not self.problems


def validate_corpus(
    path: str | os.PathLike[str] | RemotePath, *, other_files: Iterable[str] = RELEASE_FILES
) -> CorpusReport:
    """Check every file, row and value of a corpus, local or at a URL; memory does not depend on its size.

    Parameters
    ----------
    other_files : relative paths that may be there besides the corpus, for instance those a manifest lists;
        whether they are there is not checked.
    """
    directory, seen = location(path), _Seen()
    try:
        with loading(directory / schema.NODES_FILE):
            source = seen.source(directory, schema.NODES_FILE)
        layout, release_id, nodes = stored.read_nodes(directory, source)
        parts, problems = _listing(directory, layout, frozenset(other_files))
        tables = {name for name in _TABLES if (directory / name).exists()}
    except CorpusError as error:
        return CorpusReport((str(error),), None, None, 0, None, None, seen.hashes)
    extras, beside = schema.NOTHING, list[str]()
    try:
        extras = stored.find_extras(
            directory, layout, release_id, (name for name in schema.BESIDE if 0 in parts[name])
        )
    except CorpusError as error:
        beside = [str(error)]
    for folder in schema.FOLDERS:
        missing, own = layout.n_parts - len(parts[folder]), folder in (schema.DATA, *extras.folders)
        if own and missing:
            problems.append(f"{missing} of {layout.n_parts} parts are missing in {folder}/.")
        if own:
            check = partial(_look_at_part, directory, layout, release_id, folder, extras)
            problems += [found for part in in_order(check, parts[folder]) for found in seen.add(part)]
        elif parts[folder] and not beside:
            problems.append(f"{folder}/ does not hold its first part.")
    problems += beside

    def source_of(name: str) -> pa.BufferReader | None:
        return seen.source(directory, name) if name in tables else None

    days = connections = None
    try:
        days = stored.read_days(directory, layout, release_id, source_of(schema.DAYS_FILE))
    except (OSError, CorpusError):
        problems.append(f"{schema.DAYS_FILE} is damaged, of another corpus, or contradicts itself.")
    try:
        buses, pairs = map(source_of, schema.CONNECTION_FILES)
        connections = stored.read_connections(directory, layout, release_id, buses, pairs, nodes)
    except (OSError, CorpusError):
        problems.append(_NOT_CONNECTED)
    between = (seen.low, seen.high) if seen.low <= seen.high else None
    others = extras, seen.powers // 2, seen.scaled_down, days, connections
    return CorpusReport(tuple(problems), layout, release_id, seen.n, between, nodes, seen.hashes, *others)


@dataclass
class _Seen:
    """Counts, range, hashes and problems of what was read."""

    n: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    powers: int = 0
    scaled_down: int = 0
    hashes: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, other: _Seen) -> list[str]:
        """Add what was read elsewhere; gives its problems."""
        self.n += other.n
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.powers += other.powers
        self.scaled_down += other.scaled_down
        self.hashes.update(other.hashes)
        return other.problems

    def source(self, directory: Location, name: str) -> pa.BufferReader:
        """What a file is parsed from: its bytes, which are hashed on the way."""
        content = (directory / name).read_bytes()
        self.hashes[name] = hashlib.sha256(content).hexdigest()
        return pa.BufferReader(content)


def _listing(
    directory: Location, layout: CorpusLayout, other_files: frozenset[str]
) -> tuple[dict[str, list[int]], list[str]]:
    """Numbers of the parts that are there by folder, and what should not be there."""
    parts: dict[str, list[int]] = {folder: [] for folder in schema.FOLDERS}
    names, problems = _names_below(directory, other_files)
    for name in names:
        folder, _, file = name.rpartition("/")
        part = schema.part_number(file) if folder in schema.FOLDERS else None
        if part is not None and part < layout.n_parts:
            parts[folder].append(part)
        elif name not in other_files | _TABLES:
            problems.append(f"{name} does not belong to the corpus.")
    return parts, problems


def _names_below(directory: Location, other_files: frozenset[str]) -> tuple[list[str], list[str]]:
    """Names of all files, and what is there that is neither a file nor a folder of a release."""
    if isinstance(directory, RemotePath):
        with loading(directory):
            return list(directory.below()), []
    names, problems = [], []
    folders = {parent.as_posix() for name in other_files for parent in Path(name).parents}
    beside = (folder for folder in schema.BESIDE if any((directory / folder).glob("part-*")))
    folders |= {schema.DATA, *beside}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            problems.append(f"{name} is a link or a device; a release holds files only.")
        elif path.is_file():
            names.append(name)
        elif name not in folders:
            problems.append(f"{name} does not belong to the corpus.")
    return names, problems


def _look_at_part(
    directory: Location, layout: CorpusLayout, release_id: str, folder: str, extras: ExtrasLayout, part: int
) -> _Seen:
    """Read, hash and check a part."""
    name, seen = f"{folder}/{schema.part_name(part)}", _Seen()
    try:
        source = seen.source(directory, name)
        fields = schema.part_schema(folder, layout, extras, release_id, part)
        found = _check_part(source, fields, layout, folder, part, seen)
        seen.problems += [f"{name}: {problem}" for problem in found]
    except (OSError, pa.ArrowException, ValueError):
        seen.problems = [f"{name} is damaged or not a Parquet file."]
    return seen


def _check_part(
    source: pa.BufferReader, fields: pa.Schema, layout: CorpusLayout, folder: str, part: int, seen: _Seen
) -> Iterator[str]:
    groups, per_day = stored.row_groups(folder, layout, part), 1 if folder == schema.FEEDER else layout.nodes
    with open_parquet(source, page_checksum_verification=True) as file:
        if not file.schema_arrow.equals(fields, check_metadata=True):
            yield "columns, types or metadata are not those of this part of this corpus."
            return
        rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        if rows != [len(days) * per_day for days in groups]:
            yield "rows or row groups are missing or too many."
            return
        for number, days in enumerate(groups):
            table = file.read_row_group(number, use_threads=False)
            where = f"days {days.start} to {days.stop - 1}"
            if not stored.rows_in_order(table, days, layout.nodes):
                what = "are not there" if folder == schema.FEEDER else "do not hold every node"
                yield f"{where} {what} exactly once, in order."
            series = {f.name: table.column(f.name) for f in fields if pa.types.is_fixed_size_list(f.type)}
            values = {name: stored.list_numbers(column) for name, column in series.items()}
            if any(
                column.null_count or values[name].size != len(table) * layout.steps
                for name, column in series.items()
            ):
                yield f"{where} lack values."
                return
            yield from _check_values(folder, values, where, seen)


def _check_values(folder: str, values: dict[str, NDArray[Any]], where: str, seen: _Seen) -> Iterator[str]:
    """Count the values of a row group; what is wrong with them."""
    if folder == schema.DATA:
        phasors = Phasors(values["vm_pu"], values["va_deg"])
        seen.n += phasors.vm_pu.size
        valid = on_grid(phasors)
        off = int(np.count_nonzero(~valid))
        vm_pu = phasors.vm_pu[valid] if off else phasors.vm_pu
        if vm_pu.size:
            # Compared as grid points: the float32 nearest to 1.1 is above 1.1.
            low, high = vm_counts(np.array([vm_pu.min(), vm_pu.max()])).tolist()
            seen.low, seen.high = min(seen.low, low / VM_PER_PU), max(seen.high, high / VM_PER_PU)
    else:
        powers = [series for series in values.values() if series.dtype == np.float32]
        seen.powers += sum(series.size for series in powers)
        off = sum(int(np.count_nonzero(~power_on_grid(series))) for series in powers)
        scaled_down = values.get("scaled_down", np.zeros(0, dtype=np.int16))
        seen.scaled_down += int(np.count_nonzero(scaled_down))
        if np.any(scaled_down < 0):
            yield f"{where} hold snapshots that were scaled down less than 0 times."
    if off:
        yield f"{off} values of {where} are not on the public grid."
