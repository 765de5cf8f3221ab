"""Writes a corpus: part by part, from any number of processes, and whole or not at all.

Everything goes to the stage `<target>.partial-<release id>.<digest>` beside the target, which other users
cannot read. The digest is of everything that decides the bytes: a killed run leaves finished parts there, and
only a run that makes the same bytes keeps them. `finish` gives the directory its name once everything is
there. At a URL there is no renaming: see `RemoteStage`.
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dp_powerflow._files import is_temporary, remove_temporaries, sync_directory
from dp_powerflow.corpus import schema, storage, tables
from dp_powerflow.corpus.grid import Float32Array, NodeColumns, round_power, rounded_powers, rounded_voltages
from dp_powerflow.corpus.schema import Column, CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.storage import Location, RemotePath, Version
from dp_powerflow.corpus.tables import Connections, DayTable, NodeTable
from dp_powerflow.errors import CorpusError, OutputTakenError
from dp_powerflow.units import ComplexArray


def clear(place: RemotePath) -> None:
    """Remove all objects below: the manifest first, so that nobody takes the rest for a release."""
    for name in sorted(place.below(), key=lambda name: (name != schema.MANIFEST_FILE, name)):
        (place / name).unlink()


def foreign_stage(what: str) -> CorpusError:
    """Why a corpus in the making is not continued, and what to do."""
    return CorpusError(
        f"a release of the same id was begun with another key, network, load model, request or version of "
        f"the program, and what it left is never continued; remove {what}, then run the same command again",
        code="request-changed",
    )


@dataclass(frozen=True)
class RemoteStage:
    """A corpus in the making at a URL.

    A store has no renaming, so files go where they will stay. An object `<target>.partial-<release id>`
    beside them says that the release is in the making, and holds the digest of what decides its bytes. An
    empty one reserves the place. The manifest is put last, and from then on there is a release.

    Attributes
    ----------
    digest : of what decides the bytes; see `CorpusWriter.stage`.
    """

    target: RemotePath
    release_id: str
    digest: str = ""

    @property
    def marker(self) -> RemotePath:
        """Object that is there while the release is in the making."""
        return self.target.with_name(f"{self.target.name}.partial-{self.release_id}")

    @property
    def complete(self) -> bool:
        """Whether the manifest is there and no run has anything left to do."""
        with storage.loading(self.target):
            return (self.target / schema.MANIFEST_FILE).exists() and not self.marker.exists()

    def reserve(self, *, begun: bool) -> None:
        """Refuse a place that is taken or cannot be written, before anything is spent.

        Parameters
        ----------
        begun : whether the release is paid for already: what a killed run of it left may lie there.
        """
        if not (begun and self._held()):
            self._take(b"")

    def begin(self) -> None:
        """Begin, or continue what a killed run left that had the same digest; refuse anything else."""
        if not self.begun():
            self._take(self._content)

    def begun(self) -> bool:
        """Whether this process sees the release in the making, and it is this one."""
        return self._held() == self._content

    def leave(self) -> None:
        """Give a place back that is only reserved."""
        if self._held() == b"":
            self.end()

    @property
    def _content(self) -> bytes:
        return f"stage {self.digest}".encode()

    def _held(self) -> bytes | None:
        """What the marker holds; None if there is none."""
        with storage.loading(self.target):
            return self.marker.read_bytes() if self.marker.exists() else None

    def check(self, *, begun: bool) -> None:
        """Refuse a place that is taken, or where no object can be put and removed; nothing stays.

        Parameters
        ----------
        begun : as of `reserve`.
        """
        held = self._held()
        self.reserve(begun=begun)
        if held is None:
            self.leave()

    def _take(self, content: bytes) -> None:
        """Mark a place where nothing lies; CorpusError if it is not free."""
        self._refuse_taken()
        with storage.storing(self.target):
            self.marker.write_bytes(content)

    def _refuse_taken(self) -> None:
        split = urlsplit(self.target.url)
        if not split.path.strip("/") and split.scheme != "memory":
            raise OutputTakenError(f"{self.target} is a whole bucket; name a folder in it, such as …/release")
        held = self._held()
        with storage.loading(self.target):
            taken = bool(self.target.below()) or self.target.exists()
        if held or (taken and held is not None):
            raise foreign_stage(f"{self.marker} and all below {self.target}")
        if taken:
            raise OutputTakenError(f"{self.target} exists already; choose another URL or remove it first")

    def end(self) -> None:
        """The release is complete."""
        with storage.storing(self.target):
            self.marker.unlink()

    def discard(self) -> None:
        """Remove what is written so far."""
        with storage.storing(self.target):
            clear(self.target)
            self.marker.unlink()


_BYTES_PER_PHASOR = 4
"""A corpus of a feeder takes 4.7 bytes per phasor; with less free space than this it cannot fit."""
PROBE = ".probe"
"""Ending of the folder that is made and removed to try whether a place can be written."""


@dataclass(frozen=True)
class CorpusWriter:
    """Where a corpus goes and its shape: no open file, so it can be sent to worker processes.

    Order of calls: one process calls `check` before anything is spent, and `prepare`, once the stage is
    known; any process calls `write_part` for the `missing_parts`; one process calls `write_nodes`,
    `write_connections`, `write_days`, `add_file` and then `finish`.

    Attributes
    ----------
    target : the directory to be made, or the URL; must not exist.
    layout : shape and split into parts.
    release_id : public name of the release; a run with another id never continues this one.
    extras : what is written besides the voltages; by default nothing.
    stage : hexadecimal digest of everything that decides the bytes; a stage of any other is never continued.
    sound : files that this process has written or checked, by name and version.
    """

    target: Location
    layout: CorpusLayout
    release_id: str
    extras: ExtrasLayout = schema.NOTHING
    stage: str = ""
    sound: set[tuple[str, Version]] = field(default_factory=set, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        schema.check_release_id(self.release_id)
        object.__setattr__(self, "target", storage.location(self.target))

    @cached_property
    def remote(self) -> RemoteStage | None:
        """The release in the making at a URL, None for a directory."""
        at = self.target
        return RemoteStage(at, self.release_id, self.stage) if isinstance(at, RemotePath) else None

    @property
    def partial(self) -> Path:
        """Directory that is written until the corpus is finished; a URL has none."""
        return self._beside(f".{self.stage}" if self.stage else "")

    @property
    def root(self) -> Location:
        """Where files are written until the corpus is finished."""
        return self.partial if isinstance(self.target, Path) else self.target

    @property
    def finished(self) -> bool:
        """Whether the target is a release of this id and shape, in full; whose, its manifest says."""
        if self.remote is not None and not self.remote.complete:
            return False
        try:
            with storage.open_parquet(self.target / schema.NODES_FILE) as file:
                found = schema.read_metadata(file.schema_arrow.metadata)
            if found != (self.layout, self.release_id):
                return False
            return tables.find_extras(self.target, self.layout, self.release_id) == self.extras
        except (OSError, KeyError, ValueError, CorpusError):
            return False

    def refuse_unseen(self) -> None:
        """Fail in a process that does not see what `prepare` has made, such as a worker elsewhere."""
        seen = (self.partial / schema.DATA).is_dir() if self.remote is None else self.remote.begun()
        if not seen:
            raise CorpusError(
                f"a worker does not see {self.target}; the output of a release that several machines make is "
                "a path that all of them share, or the URL of a store",
                code="output-unwritable",
            )

    def stages(self) -> tuple[str, ...]:
        """Digests of all stages of this release id beside the target; a URL has none beside it."""
        if self.remote is not None:
            return ()
        stem = self._beside("")
        found = (path.name.removeprefix(stem.name) for path in stem.parent.glob(f"{glob.escape(stem.name)}*"))
        return tuple(rest[1:] for rest in found if rest[:1] in ("", ".") and rest != PROBE)

    def refuse_other_stages(self, own: str | None = None) -> None:
        """Refuse to write beside a stage that a run of the same release id left, but for one's own."""
        for stage in self.stages():
            if stage != own:
                raise foreign_stage(str(replace(self, stage=stage).partial))

    def check(self, *, begun: bool) -> None:
        """Refuse a place that is taken or cannot be written; at a URL it is reserved.

        Parameters
        ----------
        begun : whether the release is paid for already: its own stage may lie there.
        """
        if self.remote is not None:
            self.remote.reserve(begun=begun)
            return
        storage.refuse_taken(self._directory)
        if not begun:
            self.refuse_other_stages()
        probe = self._beside(PROBE)
        with storage.storing(self.target):
            try:
                storage.put(probe / "file", b"", make_folder=True)
            finally:
                shutil.rmtree(probe, ignore_errors=True)

    def prepare(self) -> None:
        """Make the stage or continue in the one that a killed run left; refuse what is bound to fail later.

        Raises
        ------
        CorpusError : the target exists, cannot be written or has too little space, or a stage of another
            digest or shape is there.
        """
        if self.remote is not None:
            self.remote.begin()
            self._refuse_foreign()
            return
        storage.refuse_taken(self._directory)
        self.refuse_other_stages(self.stage)
        with storage.storing(self.target):
            self.partial.parent.mkdir(parents=True, exist_ok=True)
            self.partial.mkdir(mode=0o700, exist_ok=True)
            for folder in self._folders:
                (self.partial / folder).mkdir(exist_ok=True)
            remove_temporaries(self.partial)
            free = shutil.disk_usage(self.partial).free
        self._refuse_foreign()
        missing = sum(len(self.layout.days_of(part)) for part in self.missing_parts())
        needed = missing * self.layout.nodes * self.layout.steps * _BYTES_PER_PHASOR
        if free < needed:
            raise CorpusError(
                f"the corpus takes at least {needed / 1e6:,.1f} MB and the disk of {self.target} has "
                f"{free / 1e6:,.1f} MB left; free some space, choose another directory or release fewer days",
                code="disk-full",
            )

    def missing_parts(self) -> tuple[int, ...]:
        """Parts that are still to be written."""
        there = self._there()
        names = [
            [f"{folder}/{schema.part_name(part)}" for folder in self._folders]
            for part in range(self.layout.n_parts)
        ]
        return tuple(
            part
            for part, files in enumerate(names)
            if not all(name in there and self._is_sound(name, part, there[name]) for name in files)
        )

    def write_part(
        self, part: int, voltages: ComplexArray | NodeColumns, extras: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """Round a part to the public grid and write it, each file whole or not at all, the voltages last.

        Parameters
        ----------
        part : which part; it holds the days `layout.days_of(part)`.
        voltages : complex array (day, step, node) [p.u.], or where a solver left it.
        extras : what goes besides them: exactly what `CorpusWriter.extras` says.

        Returns
        -------
        Relative names of the files and their SHA-256, for `hashes`.
        """
        return self.write_files(self.encoded(part, voltages, extras))

    def encoded(
        self, part: int, voltages: ComplexArray | NodeColumns, extras: Mapping[str, Any] | None = None
    ) -> dict[str, memoryview]:
        """Files of a part by relative name, voltages last, on the public grid; parameters as of `write_part`.

        Raises
        ------
        CorpusError : something is missing that the corpus holds, or there that it does not hold, or of
            another shape.
        """
        layout, days, arrays = self.layout, self.layout.days_of(part), extras or {}
        if arrays.keys() != set(self.extras.holds):
            wanted, got = (", ".join(names) or "nothing" for names in (self.extras.holds, arrays))
            raise CorpusError(f"besides its voltages part {part} needs {wanted}, and got {got}")
        for name, values in ("voltages", voltages), *arrays.items():
            shape = self.extras.shape_of(name, len(days), layout)
            if values.shape != shape:
                raise CorpusError(f"part {part} needs {name} of shape {shape}, not {values.shape}")
        made = {}
        for folder in (*self.extras.folders, schema.DATA):
            fields = schema.part_schema(folder, layout, self.extras, self.release_id, part)
            if folder == schema.FEEDER:  # one row group: a part has few days, and a day few columns
                columns = self.extras.columns(layout.steps, folder=folder)
                stored = [_stored(column, arrays[column.of]) for column in columns]
                groups = iter([[np.arange(days.start, days.stop), *stored]])
            elif folder == schema.LOADS:
                powers = [arrays[array.name] for array in self.extras.arrays if array.folder == folder]
                groups = _groups(layout, part, powers, rounded_powers)
            else:
                groups = _groups(layout, part, [voltages], rounded_voltages)
            made[f"{folder}/{schema.part_name(part)}"] = tables.encode_groups(fields, groups)
        return made

    def write_files(self, files: Mapping[str, bytes | memoryview]) -> dict[str, str]:
        """Write files, such as `encoded` gives, one after the other; relative names and their SHA-256."""
        with storage.storing(self.target):
            hashes = {name: storage.put(self.root / name, content) for name, content in files.items()}
            if self.remote is None:
                self.sound.update((name, storage.version_of(self.partial / name)) for name in files)
        return hashes

    def write_nodes(self, nodes: NodeTable) -> dict[str, str]:
        """Write `nodes.parquet`; the caller has put the nodes in their secret random order."""
        return self.write_files({schema.NODES_FILE: tables.encode_nodes(self.layout, self.release_id, nodes)})

    def write_connections(self, connections: Connections | None) -> dict[str, str]:
        """Write `buses.parquet` and `connections.parquet`; nothing where they are not published.

        The node table has their columns too (`Connections.of_nodes`).
        """
        if connections is None:
            return {}
        return self.write_files(tables.encode_connections(self.layout, self.release_id, connections))

    def write_days(self, days: DayTable | None) -> dict[str, str]:
        """Write `days.parquet`: dates, days off and weather; nothing where days have no dates."""
        if days is None:
            return {}
        return self.write_files({schema.DAYS_FILE: tables.encode_days(self.layout, self.release_id, days)})

    def add_file(self, name: str, content: bytes) -> dict[str, str]:
        """Write another file of the release, for instance `manifest.json`; a second call replaces it.

        Parameters
        ----------
        name : path relative to the release, with forward slashes.
        """
        relative = PurePosixPath(name)
        tables = schema.NODES_FILE, schema.DAYS_FILE, *schema.CONNECTION_FILES
        taken = {"..", *tables, *schema.FOLDERS}
        if relative.is_absolute() or not relative.parts or taken & set(relative.parts):
            raise CorpusError(
                f"a file added to a release has a relative path outside {schema.DATA}/, not {name!r}"
            )
        if self.remote is not None and name == schema.MANIFEST_FILE:
            self._refuse_incomplete()  # from now on readers take it for a release
            if not self.remote.begun():  # two runs that began at the same moment: the later mark counts
                raise foreign_stage(f"{self.remote.marker} and all below {self.target}")
        with storage.storing(self.target):
            return {relative.as_posix(): storage.put(self.root / relative, content, make_folder=True)}

    def hashes(self, written: Mapping[str, str] | None = None) -> dict[str, str]:
        """SHA-256 of every file written so far, by relative path.

        Parameters
        ----------
        written : of files whose bytes this run has hashed while it wrote them; only others are read.
        """
        known, names = written or {}, self._there()
        with storage.loading(self.target):
            read = storage.hashes_of(self.root, (name for name in names if name not in known))
        return {name: known[name] if name in known else read[name] for name in names}

    def finish(self) -> Location:
        """Check that everything is there and give the directory its name; at a URL, the manifest too.

        Raises
        ------
        CorpusError : a part or the node table is missing, or the target has come into being since; nothing is
            then left at the target that was not there before.
        """
        self._refuse_incomplete()
        if self.remote is not None:
            if schema.MANIFEST_FILE not in self._there():
                raise CorpusError(f"the corpus is not complete, missing: {schema.MANIFEST_FILE}; add it last")
            self.remote.end()
            return self.target
        target = self._directory
        self.settle()
        with storage.storing(target):
            storage.refuse_taken(target)
            # Readable for whom new directories are: data/ was made with the mask of the user.
            self.partial.chmod(stat.S_IMODE((self.partial / schema.DATA).stat().st_mode))
            self.partial.rename(target)
            sync_directory(target.parent)
        return target

    def settle(self) -> None:
        """Have the disk keep the names of all files; a URL keeps them itself."""
        if self.remote is None:
            with storage.storing(self._directory):
                remove_temporaries(self.partial, also_locked=True)  # of workers that were given up
                for directory, _, _ in os.walk(self.partial):
                    sync_directory(Path(directory))

    def discard(self) -> None:
        """Remove what is written so far."""
        if self.remote is not None:
            self.remote.discard()
            return
        with storage.storing(self.target):
            if self.partial.exists():
                shutil.rmtree(self.partial)

    def _beside(self, ending: str) -> Path:
        return self._directory.with_name(f"{self._directory.name}.partial-{self.release_id}{ending}")

    @property
    def _directory(self) -> Path:
        if not isinstance(self.target, Path):
            raise CorpusError(f"{self.target} is a URL and not a directory; give a path")
        return self.target

    @property
    def _folders(self) -> tuple[str, ...]:
        """Folders of the parts."""
        return (schema.DATA, *self.extras.folders)

    def _there(self) -> dict[str, Version]:
        """Names of the files that are written, each with what changes when the file does."""
        with storage.loading(self.target):
            return {
                name: version for name, version in storage.below(self.root).items() if not is_temporary(name)
            }

    def _is_sound(self, name: str, part: int, version: Version) -> bool:
        """Whether a file of a part is written in full; CorpusError if it is of another corpus."""
        if (name, version) in self.sound:
            return True
        try:
            with storage.open_parquet(self.root / name) as file:
                fields = file.schema_arrow
        except (OSError, pa.ArrowException):
            return False  # A disk that lost power may keep the name and lose the bytes: write it again.
        folder = name.partition("/")[0]
        expected = schema.part_schema(folder, self.layout, self.extras, self.release_id, part)
        if not fields.equals(expected, check_metadata=True):
            raise self._foreign()
        self.sound.add((name, version))
        return True

    def _refuse_foreign(self) -> None:
        for name in self._there():
            folder, _, file = name.rpartition("/")
            part = schema.part_number(file)
            known = folder in self._folders and part is not None and part < self.layout.n_parts
            if folder in schema.FOLDERS and not known:
                raise self._foreign()
        self.missing_parts()

    def _refuse_incomplete(self) -> None:
        missing = self.missing_parts()
        if missing or not (self.root / schema.NODES_FILE).exists():
            what = f"{len(missing)} of {self.layout.n_parts} parts" if missing else schema.NODES_FILE
            raise CorpusError(f"the corpus is not complete, missing: {what}; run the same command again")

    def _foreign(self) -> CorpusError:
        return CorpusError(
            f"{self.root} holds parts of another corpus under the same release id; "
            "remove it, or use the configuration it was written with",
            code="request-changed",
        )


def _groups(
    layout: CorpusLayout,
    part: int,
    given: Sequence[ComplexArray | NodeColumns],
    rounded: Callable[[NodeColumns, range], tuple[Float32Array, Float32Array]],
) -> Iterator[list[NDArray[Any]]]:
    """Columns of the row groups of a part: day, node, and two for each array (day, step, node)."""
    first, nodes = layout.days_of(part).start, np.arange(layout.nodes)
    columns = [NodeColumns.of(values) for values in given]
    for days in layout.groups_of(part):
        rows = [np.repeat(np.arange(days.start, days.stop), layout.nodes), np.tile(nodes, len(days))]
        within = range(days.start - first, days.stop - first)
        yield [*rows, *(made for values in columns for made in rounded(values, within))]


def _stored(column: Column, values: NDArray[Any]) -> NDArray[Any]:
    """Values (day, step) as the type of the column; refuses what it cannot hold."""
    own = values if column.index is None else values[..., column.index]
    if column.value == "float32":
        return round_power(getattr(own, column.part or "real"))
    if column.value == "bool" and not np.all((own == 0) | (own == 1)):
        raise CorpusError(f"the {column.of} of a corpus are 1 or 0")
    if column.value == "int16" and not np.array_equal(own, own.astype(np.int16)):
        raise CorpusError("a tap is not a whole number of steps away from neutral that a corpus can hold")
    return own.astype(column.dtype)
