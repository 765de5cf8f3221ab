"""A release at a URL, read as one set of bytes: nothing of it is copied to a disk.

Checking a release reads some files twice. What fits is kept in memory, so that a small release is fetched
once; of a large one, pieces are fetched again. Before and after, the store says what is there: an object that
was put, changed or removed meanwhile, or that could not be read, ends the check without a verdict.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from dp_powerflow.corpus.storage import Location, RemotePath, loading
from dp_powerflow.errors import CorpusError

KEPT_BYTES = 256 << 20
"""Of all releases together that are looked at at the same time."""


class _Memory:
    """Objects of one release: names and versions as they were listed, contents as far as there is room."""

    def __init__(self, place: RemotePath, room: int) -> None:
        self.versions = place.below()
        self.failure: BaseException | None = None
        self._prefix, self._room = f"{place}/", room
        self._contents: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def name_of(self, place: RemotePath) -> str:
        return place.url.removeprefix(self._prefix)

    def kept(self, name: str) -> bytes | None:
        return self._contents.get(name)

    def has_room(self, size: int) -> bool:
        return size <= self._room

    def keep(self, name: str, content: bytes) -> None:
        """What came first stays: files are looked at again in the same order."""
        with self._lock:
            if name not in self._contents and self.has_room(len(content)):
                self._room -= len(content)
                self._contents[name] = content

    def forget(self) -> None:
        self._contents.clear()


@dataclass(frozen=True)
class Snapshot(RemotePath):
    """A place of a release that was listed; whatever it says of names, it says of that listing.

    Attributes
    ----------
    memory : what all places of the release share.
    """

    memory: _Memory = field(kw_only=True, compare=False, repr=False)

    def __truediv__(self, name: str | PurePosixPath) -> Snapshot:
        return Snapshot(f"{self.url}/{name}", memory=self.memory)

    def exists(self) -> bool:
        """Whether there is an object of this name."""
        return self._name in self.memory.versions

    def below(self) -> dict[str, str]:
        """Relative names of all objects below and their versions."""
        prefix = f"{self._name}/" if self._name != self.url else ""
        listed = self.memory.versions.items()
        return {name.removeprefix(prefix): version for name, version in listed if name.startswith(prefix)}

    def read_bytes(self) -> bytes:
        """The object."""
        content = self.memory.kept(self._name)
        if content is None:
            with self._watched():
                content = super().read_bytes()
            self.memory.keep(self._name, content)
        return content

    def open(self) -> Any:
        """The object as a binary file."""
        content = self.memory.kept(self._name)
        if content is not None:
            return pa.BufferReader(content)
        with self._watched():
            file = super().open()
            if not self.memory.has_room(file.size):
                return file
            with file:
                content = file.read()
        self.memory.keep(self._name, content)
        return pa.BufferReader(content)

    @property
    def _name(self) -> str:
        return self.memory.name_of(self)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """An object that is listed and cannot be read is no damage to the release: remember why."""
        if not self.exists():
            raise FileNotFoundError(self.url)
        try:
            yield
        except OSError as error:
            self.memory.failure = error
            raise


@contextmanager
def one_reading(place: Location, room: int = KEPT_BYTES) -> Iterator[Location]:
    """A release to be checked: its directory, or a `Snapshot` of a URL.

    Parameters
    ----------
    room : bytes of its objects that may be kept in memory.

    Raises
    ------
    CorpusError : the store did not answer, or the release changed; whatever was found meanwhile, it is no
        verdict on a release.
    """
    if isinstance(place, Path):
        yield place
        return
    with loading(place):
        memory = _Memory(place, room)
    try:
        yield Snapshot(place.url, memory=memory)
        if memory.failure is not None:
            with loading(place):
                raise memory.failure
        with loading(place):
            unchanged = place.below() == memory.versions
    finally:
        memory.forget()
    if not unchanged:
        raise CorpusError(f"{place} changed while it was read; wait until nobody writes there, then verify")
