"""Checks a corpus on disk against its own description, value by value, without anything private."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.connections import FILES as CONNECTION_FILES
from dp_powerflow.corpus.connections import ConnectionFiles, Connections, read_connections
from dp_powerflow.corpus.extras import FOLDERS, ExtrasChecker, ExtrasReport
from dp_powerflow.corpus.listed import DAYS_FILE, DayTable, read_days
from dp_powerflow.corpus.reader import read_nodes
from dp_powerflow.corpus.schema import (
    DATA,
    NODES_FILE,
    VM_PER_PU,
    CorpusLayout,
    NodeTable,
    Phasors,
    list_values,
    on_grid,
    part_name,
    part_number,
    part_schema,
    rows_in_order,
    vm_counts,
)
from dp_powerflow.corpus.storage import Location, RemotePath, loading, location, open_parquet
from dp_powerflow.errors import CorpusError

RELEASE_FILES = frozenset(
    {
        *("manifest.json", "certificate.html", "quality.html", "model.json", "croissant.json"),
        *("registry.yaml", "README.md"),
    }
)
"""What a release may hold beside `data/` and the tables below."""
_TABLES = frozenset({NODES_FILE, DAYS_FILE, *CONNECTION_FILES})


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
    extras : what there is beside the voltages; its problems are among `problems`.
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
    extras: ExtrasReport = field(default_factory=ExtrasReport)
    days: DayTable | None = None
    connections: Connections | None = None

    @property
    def ok(self) -> bool:
        return not self.problems


def validate_corpus(
    path: str | os.PathLike[str] | RemotePath,
    *,
    other_files: Iterable[str] = RELEASE_FILES,
    vm_range_pu: tuple[float, float] | None = None,
) -> CorpusReport:
    """Check every file, row and value of a corpus, local or at a URL; memory does not depend on its size.

    Parameters
    ----------
    other_files : relative paths that may be there beside the corpus, for instance those a manifest lists;
        whether they are there is not checked.
    vm_range_pu : declared range of magnitudes [p.u.], None for the range of the grid.
    """
    directory, seen = location(path), _Seen()
    try:
        with loading(directory / NODES_FILE):
            source = seen.source(directory, NODES_FILE)
        layout, release_id, nodes = read_nodes(directory, source)
        parts, problems = _listing(directory, layout, frozenset(other_files))
        tables = {name for name in CONNECTION_FILES if (directory / name).exists()}
    except CorpusError as error:
        return CorpusReport((str(error),), None, None, 0, None, None, seen.hashes)
    problems += [
        found
        for own in in_order(partial(_look_at_part, directory, layout, release_id), parts[DATA])
        for found in seen.add(own)
    ]
    span = (seen.low, seen.high) if seen.low <= seen.high else None
    if vm_range_pu is not None and span is not None:
        low, high = vm_range_pu
        if not low <= span[0] <= span[1] <= high:
            problems.append(
                f"magnitudes span {span[0]:.6f} to {span[1]:.6f} p.u., "
                f"beyond the declared {low:g} to {high:g} p.u."
            )
    checker = ExtrasChecker(directory, layout, release_id, partial(seen.source, directory))
    beside = checker.check(parts, None)
    problems += beside.problems
    days = connections = None
    try:
        if (directory / DAYS_FILE).exists():
            days = read_days(directory, layout, release_id, seen.source(directory, DAYS_FILE))
    except (OSError, CorpusError):
        problems.append(f"{DAYS_FILE} is damaged, of another corpus, or contradicts itself.")
    try:
        there = [seen.source(directory, name) if name in tables else None for name in CONNECTION_FILES]
        files = ConnectionFiles(*there)
        connections = read_connections(directory, layout, release_id, nodes, files)
    except (OSError, CorpusError):
        problems.append(
            f"{' and '.join(CONNECTION_FILES)} are not both there and whole, or contradict each other or "
            "the nodes."
        )
    return CorpusReport(
        tuple(problems), layout, release_id, seen.n, span, nodes, seen.hashes, beside, days, connections
    )


@dataclass
class _Seen:
    """Count, range, hashes and problems of what was read."""

    n: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    hashes: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, other: _Seen) -> list[str]:
        """Add what was read elsewhere; gives its problems."""
        self.n += other.n
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.hashes.update(other.hashes)
        return other.problems

    def source(self, directory: Location, name: str) -> pa.BufferReader:
        """What a file is parsed from: its bytes, which are hashed on the way."""
        content = (directory / name).read_bytes()
        self.hashes[name] = hashlib.sha256(content).hexdigest()
        return pa.BufferReader(content)


Parts = dict[str, list[int]]
"""Numbers of the parts that are there, by folder."""


def _listing(
    directory: Location, layout: CorpusLayout, other_files: frozenset[str]
) -> tuple[Parts, list[str]]:
    """Parts that are there, and what is there that should not be or the other way round."""
    if isinstance(directory, RemotePath):
        parts, problems = _objects(directory, layout, other_files)
    else:
        parts, problems = _files(directory, layout, other_files)
    missing = layout.n_parts - len(parts[DATA])
    if missing:
        problems.append(f"{missing} of {layout.n_parts} parts are missing in {DATA}/.")
    return parts, problems


def _part_of(name: str, layout: CorpusLayout) -> tuple[str, int] | None:
    """Folder and number of the part of this relative name, None if it is none of the corpus."""
    folder, _, file = name.rpartition("/")
    part = part_number(file) if folder in (DATA, *FOLDERS) else None
    return None if part is None or part >= layout.n_parts else (folder, part)


def _objects(place: RemotePath, layout: CorpusLayout, other_files: frozenset[str]) -> tuple[Parts, list[str]]:
    parts, problems = _no_parts(), []
    with loading(place):
        names = place.below()
    for name in names:
        found = _part_of(name, layout)
        if found is not None:
            parts[found[0]].append(found[1])
        elif name not in other_files | _TABLES:
            problems.append(f"{name} does not belong to the corpus.")
    return parts, problems


def _no_parts() -> Parts:
    return {folder: [] for folder in (DATA, *FOLDERS)}


def _files(directory: Path, layout: CorpusLayout, other_files: frozenset[str]) -> tuple[Parts, list[str]]:
    parts, problems = _no_parts(), []
    folders = {parent.as_posix() for name in other_files for parent in Path(name).parents}
    folders |= {DATA, *(folder for folder in FOLDERS if any((directory / folder).glob("part-*")))}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        found = _part_of(name, layout)
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            problems.append(f"{name} is a link or a device; a release holds files only.")
        elif path.is_file() and found is not None:
            parts[found[0]].append(found[1])
        elif name not in (folders if path.is_dir() else other_files | _TABLES):
            problems.append(f"{name} does not belong to the corpus.")
    return parts, problems


def _look_at_part(directory: Location, layout: CorpusLayout, release_id: str, part: int) -> _Seen:
    """Read, hash and check a part."""
    name, seen = f"{DATA}/{part_name(part)}", _Seen()
    try:
        for found in _check_part(directory, layout, release_id, part, seen):
            seen.problems.append(f"{name}: {found}")
    except (OSError, pa.ArrowException, ValueError):
        seen.problems = [f"{name} is damaged or not a Parquet file."]
    return seen


def _check_part(
    directory: Location, layout: CorpusLayout, release_id: str, part: int, seen: _Seen
) -> Iterator[str]:
    groups = layout.groups_of(part)
    source = seen.source(directory, f"{DATA}/{part_name(part)}")
    with open_parquet(source, page_checksum_verification=True) as file:
        if not file.schema_arrow.equals(part_schema(layout, release_id, part), check_metadata=True):
            yield "columns, types or metadata are not those of this part of this corpus."
            return
        rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        if rows != [len(days) * layout.nodes for days in groups]:
            yield "rows or row groups are missing or too many."
            return
        for number, days in enumerate(groups):
            table = file.read_row_group(number, use_threads=False)
            if not rows_in_order(table, days, layout.nodes):
                yield f"days {days.start} to {days.stop - 1} do not hold every node exactly once, in order."
            yield from _check_values(table, days, seen)


def _check_values(table: pa.Table, days: range, seen: _Seen) -> Iterator[str]:
    phasors = Phasors(list_values(table, "vm_pu"), list_values(table, "va_deg"))
    seen.n += phasors.vm_pu.size
    valid = on_grid(phasors)
    if not valid.all():
        off = np.count_nonzero(~valid)
        yield f"{off} values of days {days.start} to {days.stop - 1} are not on the public grid."
    vm_pu = phasors.vm_pu if valid.all() else phasors.vm_pu[valid]
    if vm_pu.size:
        # Compared as grid points: the float32 nearest to 1.1 is above 1.1.
        low, high = vm_counts(np.array([vm_pu.min(), vm_pu.max()])).tolist()
        seen.low, seen.high = min(seen.low, low / VM_PER_PU), max(seen.high, high / VM_PER_PU)
