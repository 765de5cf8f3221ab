"""Writes a corpus: part by part, from any number of processes, and whole or not at all.

Everything goes to `<target>.partial-<release id>` beside the target, which other users cannot read. A killed
run leaves finished parts there, and the next run with the same release id keeps them. `finish` gives the
directory its name once everything is there.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow.corpus.encode import NodeTable, encode_nodes, encode_part
from dp_powerflow.corpus.errors import CorpusError, writing
from dp_powerflow.corpus.files import (
    file_hashes,
    is_temporary,
    remove_temporaries,
    sync_directory,
    write_whole,
)
from dp_powerflow.corpus.schema import (
    DATA,
    NODES_FILE,
    CorpusLayout,
    check_release_id,
    part_name,
    part_number,
    part_schema,
    read_metadata,
)
from dp_powerflow.units import ComplexArray

_BYTES_PER_PHASOR = 4
"""A corpus of a feeder takes 4.7 bytes per phasor; with less free space than this it cannot fit."""


@dataclass(frozen=True)
class CorpusWriter:
    """Where a corpus goes and its shape: no open file and no state, so it can be sent to worker processes.

    Order of calls: one process calls `prepare`; any process calls `write_part` for the `missing_parts`; one
    process calls `write_nodes`, `add_file` and then `finish`.

    Attributes
    ----------
    target : the directory to be made; must not exist.
    layout : shape and split into parts.
    release_id : public name of the release; a run with another id never continues this one.
    """

    target: Path
    layout: CorpusLayout
    release_id: str

    def __post_init__(self) -> None:
        check_release_id(self.release_id)
        # Workers may run in another directory.
        object.__setattr__(self, "target", Path(os.path.abspath(self.target)))

    @property
    def partial(self) -> Path:
        """Directory that is written until the corpus is finished."""
        return self.target.with_name(f"{self.target.name}.partial-{self.release_id}")

    @property
    def finished(self) -> bool:
        """Whether the target is this release already, of this shape, in full."""
        try:
            metadata = pq.read_schema(self.target / NODES_FILE).metadata
            return read_metadata(metadata) == (self.layout, self.release_id)
        except (OSError, KeyError, ValueError, CorpusError):
            return False

    def prepare(self) -> None:
        """Make the directory or continue in one left by a killed run; refuse what is bound to fail later.

        Raises
        ------
        CorpusError : the target exists, cannot be written or has too little space, or the parts that are
            there are of another shape.
        """
        self._refuse_existing_target()
        with writing(self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.partial.mkdir(mode=0o700, exist_ok=True)
            (self.partial / DATA).mkdir(exist_ok=True)
            remove_temporaries(self.partial)
            probe = self.partial / "probe"
            write_whole(probe, b"")
            probe.unlink()
            free = shutil.disk_usage(self.partial).free
        for path in (self.partial / DATA).iterdir():
            part = part_number(path.name)
            if part is None or part >= self.layout.n_parts:
                raise self._foreign()
        missing = sum(len(self.layout.days_of(part)) for part in self.missing_parts())
        needed = missing * self.layout.nodes * self.layout.steps * _BYTES_PER_PHASOR
        if free < needed:
            raise CorpusError(
                f"the corpus takes at least {needed / 1e6:,.1f} MB and the disk of {self.target} has "
                f"{free / 1e6:,.1f} MB left; free some space, choose another directory or release fewer days"
            )

    def has_part(self, part: int) -> bool:
        """Whether a part is written in full."""
        path = self._part_path(part)
        if not path.exists():
            return False
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowException):
            return False  # A disk that lost power may keep the name and lose the bytes: write it again.
        if not schema.equals(part_schema(self.layout, self.release_id, part), check_metadata=True):
            raise self._foreign()
        return True

    def missing_parts(self) -> tuple[int, ...]:
        """Parts that are still to be written."""
        return tuple(part for part in range(self.layout.n_parts) if not self.has_part(part))

    def write_part(self, part: int, voltages: ComplexArray) -> None:
        """Round the voltages of a part to the public grid and write it, whole or not at all.

        Parameters
        ----------
        part : which part; it holds the days `layout.days_of(part)`.
        voltages : complex array (day, step, node) [p.u.].
        """
        content = encode_part(self.layout, self.release_id, part, voltages)
        with writing(self.target):
            write_whole(self._part_path(part), content)

    def write_nodes(self, nodes: NodeTable) -> None:
        """Write `nodes.parquet`; the caller has put the nodes in their secret random order."""
        content = encode_nodes(self.layout, self.release_id, nodes)
        with writing(self.target):
            write_whole(self.partial / NODES_FILE, content)

    def add_file(self, name: str, content: bytes) -> None:
        """Write another file of the release, for instance `manifest.json`; a second call replaces it.

        Parameters
        ----------
        name : path relative to the release, with forward slashes.
        """
        relative = PurePosixPath(name)
        if relative.is_absolute() or not relative.parts or {"..", DATA, NODES_FILE} & set(relative.parts):
            raise CorpusError(f"a file added to a release has a relative path outside {DATA}/, not {name!r}")
        with writing(self.target):
            path = self.partial / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every file written so far, by relative path."""
        hashes = file_hashes(self.partial)
        return {name: digest for name, digest in hashes.items() if not is_temporary(name)}

    def finish(self) -> Path:
        """Check that everything is there and give the directory its name.

        Raises
        ------
        CorpusError : a part or the node table is missing, or the target has come into being since; nothing is
            then left at the target that was not there before.
        """
        missing = self.missing_parts()
        if missing or not (self.partial / NODES_FILE).exists():
            what = f"{len(missing)} of {self.layout.n_parts} parts" if missing else NODES_FILE
            raise CorpusError(f"the corpus is not complete, missing: {what}; run the same command again")
        with writing(self.target):
            remove_temporaries(self.partial)
            for directory, _, _ in os.walk(self.partial):
                sync_directory(Path(directory))
            self._refuse_existing_target()
            # Readable for whom new directories are: data/ was made with the mask of the user.
            self.partial.chmod(stat.S_IMODE((self.partial / DATA).stat().st_mode))
            self.partial.rename(self.target)
            sync_directory(self.target.parent)
        return self.target

    def discard(self) -> None:
        """Remove what is written so far."""
        with writing(self.target):
            if self.partial.exists():
                shutil.rmtree(self.partial)

    def _part_path(self, part: int) -> Path:
        self.layout.days_of(part)  # refuses a part that does not exist
        return self.partial / DATA / part_name(part)

    def _refuse_existing_target(self) -> None:
        if os.path.lexists(self.target):
            raise CorpusError(f"{self.target} exists already; choose another directory or remove it first")

    def _foreign(self) -> CorpusError:
        return CorpusError(
            f"{self.partial} holds parts of another corpus under the same release id; "
            "remove it, or use the configuration it was written with"
        )
