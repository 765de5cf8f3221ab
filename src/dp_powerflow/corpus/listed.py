"""Files of a release against the SHA-256 that its manifest lists, each when it is first read.

The bytes that are hashed are the bytes that are decoded: a file is read once. What was found sound is known
to the process until the file changes (size, times and number of a local file, what a store says of an
object), so that a second pass over a corpus hashes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.schema import MANIFEST_FILE
from dp_powerflow.corpus.storage import Location, RemotePath, file_hash, loading, readers_of
from dp_powerflow.errors import CorpusError

WHOLE_BYTES = 256 << 20
"""Files up to this size are hashed and decoded from the same memory; larger ones are hashed in pieces."""
KEPT_BYTES = 128 << 20
"""Of objects of a store that stay in memory, so that the next row group is not fetched again."""

Version = tuple[int, ...] | str
"""What changes when a file does."""

_sound: dict[str, tuple[Version, str]] = {}
"""Place → version of a file that was hashed in this process, and its SHA-256."""
_fetched: OrderedDict[str, tuple[Version, bytes]] = OrderedDict()
"""Objects of stores that were used last."""


@dataclass(frozen=True)
class Listed:
    """The files of a release, as its manifest lists them.

    Attributes
    ----------
    root : directory or URL of the release.
    hashes : SHA-256 by relative path; None checks nothing.
    """

    root: Location
    hashes: Mapping[str, str] | None = field(default=None, repr=False)

    def source(self, name: str) -> Location | pa.BufferReader:
        """What a file is parsed from: its bytes, if they had to be hashed, or its place.

        Raises
        ------
        CorpusError : it is not the file that the manifest lists.
        """
        place = self.root / name
        expected = self._expected(name)
        if expected is None:
            return place
        with loading(place):
            version = version_of(place)
            if _sound.get(str(place)) == (version, expected):
                kept = _fetched.get(str(place))
                return pa.BufferReader(kept[1]) if kept is not None and kept[0] == version else place
            content = place.read_bytes() if _size(place, version) <= WHOLE_BYTES else None
            found = file_hash(place) if content is None else hashlib.sha256(content).hexdigest()
        if found != expected:
            raise CorpusError(
                f"{place} is damaged: it is not the file that {MANIFEST_FILE} lists; fetch it again"
            )
        _sound[str(place)] = version, found
        if content is None:
            return place
        if isinstance(place, RemotePath):
            _keep(place, version, content)
        return pa.BufferReader(content)

    def has(self, name: str) -> bool:
        """Whether there is such a file, or should be."""
        return (self.root / name).exists() if self.hashes is None else name in self.hashes

    def check(self, names: Iterable[str]) -> None:
        """Make sure of many files before somebody else reads them, on all cores; raises as `source`."""
        for _ in in_order(self.source, names if self.hashes is not None else (), readers_of(self.root)):
            pass

    def check_folder(self, folder: str) -> None:
        """The same of all files below a folder."""
        self.check(name for name in self.hashes or () if name.startswith(f"{folder}/"))

    def mark(self, name: str) -> int:
        """A number of a local file as it is now, for processes that tell each other what is sound; or 0."""
        place = self.root / name
        if self._expected(name) is None or isinstance(place, RemotePath):
            return 0
        with loading(place):
            words = f"{version_of(place)}".encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:7], "little") + 1

    def accept(self, name: str) -> None:
        """Another process found the file sound as it is now."""
        place, expected = self.root / name, self._expected(name)
        if expected is not None:
            _sound[str(place)] = version_of(place), expected

    def _expected(self, name: str) -> str | None:
        if self.hashes is None:
            return None
        if name not in self.hashes:
            raise CorpusError(
                f"{self.root / name} is not a file of the release: {MANIFEST_FILE} does not list it"
            )
        return self.hashes[name]


def read_listed(root: Location, *, sha256: str | None = None) -> Listed:
    """The list of a release; one without a manifest, or whose manifest lists no files, is not checked.

    Parameters
    ----------
    sha256 : of `manifest.json`, where something else states it.

    Raises
    ------
    CorpusError : the manifest is damaged.
    """
    place = root / MANIFEST_FILE
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        return Listed(root)
    except OSError:
        with loading(place):
            raise
    damaged = CorpusError(f"{place} is damaged; fetch it again, then check with: dp-powerflow verify")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise damaged
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        raise damaged from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if files is None:
        return Listed(root)
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise damaged
    return Listed(root, files)


def version_of(place: Location) -> Version:
    """What changes when the file does; OSError if there is none."""
    if isinstance(place, RemotePath):
        return place.version()
    found = os.stat(place)
    return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _size(place: Location, version: Version) -> int:
    """Of a local file; an object of a store is fetched whole."""
    return 0 if isinstance(version, str) else version[0]


def _keep(place: RemotePath, version: Version, content: bytes) -> None:
    held = sum(len(known) for _, known in _fetched.values()) + len(content)
    while _fetched and held > KEPT_BYTES:
        held -= len(_fetched.popitem(last=False)[1][1])
    if held <= KEPT_BYTES:
        _fetched[str(place)] = version, content
