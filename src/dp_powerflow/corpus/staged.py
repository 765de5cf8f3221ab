"""A corpus in the making at a URL, where there is no renaming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from dp_powerflow.corpus.schema import MANIFEST_FILE
from dp_powerflow.corpus.storage import RemotePath, file_hash, loading, storing
from dp_powerflow.errors import CorpusError


def clear(place: RemotePath) -> None:
    """Remove all objects below: the manifest first, so that nobody takes the rest for a release."""
    for name in sorted(place.below(), key=lambda name: (name != MANIFEST_FILE, name)):
        (place / name).unlink()


@dataclass(frozen=True)
class RemoteStage:
    """A corpus in the making at a URL.

    A store has no renaming, so files go where they will stay. An object `<target>.partial-<release id>`
    beside them says that the release is in the making; the manifest is put last, and from then on there is
    a release.

    Attributes
    ----------
    known : SHA-256 of objects already read, by name and version, so that a corpus is fetched once.
    sound : parts already looked at, by name and version.
    """

    target: RemotePath
    release_id: str
    known: dict[tuple[str, str], str] = field(default_factory=dict, compare=False, repr=False)
    sound: set[tuple[str, str]] = field(default_factory=set, compare=False, repr=False)

    @property
    def marker(self) -> RemotePath:
        """Object that is there while the release is in the making."""
        return self.target.with_name(f"{self.target.name}.partial-{self.release_id}")

    @property
    def complete(self) -> bool:
        """Whether the manifest is there and no run has anything left to do."""
        with loading(self.target):
            return (self.target / MANIFEST_FILE).exists() and not self.marker.exists()

    def check(self) -> None:
        """Refuse a URL of other objects, or where this user cannot put and remove one; nothing stays."""
        split = urlsplit(self.target.url)
        if not split.path.strip("/") and split.scheme != "memory":
            raise CorpusError(f"{self.target} is a whole bucket; name a folder in it, such as …/release")
        with loading(self.target):
            begun = self.marker.exists()
            names = {} if begun else self.target.below()
            taken = bool(names) or self.target.exists()
        if taken and not begun:
            raise CorpusError(f"{self.target} exists already; choose another URL or remove it first")
        probe = self.target.with_name(f"{self.target.name}.probe-{self.release_id}")
        with storing(self.target):
            probe.write_bytes(b"")
            probe.unlink()

    def begin(self) -> None:
        """Begin, or continue what a killed run of the same release left; refuse any other object."""
        self.check()
        with storing(self.target):
            self.marker.write_bytes(b"")

    def begun(self) -> bool:
        """Whether this process sees the release in the making."""
        with loading(self.target):
            return self.marker.exists()

    def names(self) -> dict[str, str]:
        """Names of the objects and their versions."""
        with loading(self.target):
            return self.target.below()

    def hashes(self, written: Mapping[str, str]) -> dict[str, str]:
        """SHA-256 of every object; those `written` by this run are known, the others are fetched."""
        found = {}
        for name, version in self.names().items():
            if name in written:
                found[name] = written[name]
                continue
            if (name, version) not in self.known:
                with loading(self.target / name):
                    self.known[name, version] = file_hash(self.target / name)
            found[name] = self.known[name, version]
        return found

    def end(self) -> None:
        """The release is complete."""
        with storing(self.target):
            self.marker.unlink()

    def discard(self) -> None:
        """Remove what is written so far."""
        with storing(self.target):
            clear(self.target)
            self.marker.unlink()
