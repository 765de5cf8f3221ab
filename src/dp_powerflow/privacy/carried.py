"""The private state as a worker has it: the key and some files, neither directory nor ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.state import INTERNAL_DIRECTORY, PrivateState, check_release_id

Files = Mapping[tuple[str, str], bytes]
"""Release id, or whatever else files are kept under, and name of a file → content."""


@dataclass(frozen=True, repr=False)
class CarriedState(PrivateState):
    """PRIVATE. Key and internal files of the state, away from its directory.

    What is written stays in memory, for the data owner to keep.

    Attributes
    ----------
    files : what the directory holds of a release, and what was written here.
    """

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _new: set[tuple[str, str]] = field(default_factory=set, init=False)

    @property
    def ledger_path(self) -> Path:
        """There is none: whoever makes a release elsewhere asks to be paid for."""
        raise PrivacyError("a worker has no ledger; this is a bug, report it")

    def internal_directory(self, release_id: str) -> Path:
        """Where the files will be kept, as the data owner knows it; nothing is made."""
        return self.root / INTERNAL_DIRECTORY / check_release_id(release_id)

    def write_internal(self, release_id: str, name: str, data: bytes) -> Path:
        """Remember a file."""
        self.files[check_release_id(release_id), name] = data
        self._new.add((release_id, name))
        return self.internal_directory(release_id) / name

    def read_internal(self, release_id: str, name: str) -> bytes | None:
        """Content of a file, None if there is none."""
        return self.files.get((release_id, name))

    def internal_files(self, only: str | None = None) -> Iterator[tuple[str, frozenset[str]]]:
        """What is known here, as of the directory."""
        for release_id in sorted({where for where, _ in self.files if only in (None, where)}):
            yield release_id, frozenset(name for where, name in self.files if where == release_id)

    def taken(self) -> dict[tuple[str, str], bytes]:
        """What was written and not taken before."""
        found = {place: self.files[place] for place in sorted(self._new)}
        self._new.clear()
        return found
