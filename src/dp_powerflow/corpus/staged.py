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


def foreign_stage(what: str) -> CorpusError:
    """Why a corpus in the making is not continued, and what to do."""
    return CorpusError(
        f"a release of the same id was begun with another key, network, load model, request or version of "
        f"the program, and what it left is never continued; remove {what}, then run the same command again"
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
    known : SHA-256 of objects already read, by name and version, so that a corpus is fetched once.
    sound : parts already looked at, by name and version.
    """

    target: RemotePath
    release_id: str
    digest: str = ""
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
        with loading(self.target):
            return self.marker.read_bytes() if self.marker.exists() else None

    def check(self, *, begun: bool) -> None:
        """Refuse a place that is taken, or where no object can be put and removed; nothing stays.

        Parameters
        ----------
        begun : as of `reserve`.
        """
        held = self._held()
        if not (begun and held):
            self._refuse_taken()
        if held is None:  # the name of a reservation: what a killed run leaves is known for what it is
            with storing(self.target):
                self.marker.write_bytes(b"")
            self.leave()

    def _take(self, content: bytes) -> None:
        """Mark a place where nothing lies; CorpusError if it is not free."""
        self._refuse_taken()
        with storing(self.target):
            self.marker.write_bytes(content)

    def _refuse_taken(self) -> None:
        split = urlsplit(self.target.url)
        if not split.path.strip("/") and split.scheme != "memory":
            raise CorpusError(f"{self.target} is a whole bucket; name a folder in it, such as …/release")
        held = self._held()
        with loading(self.target):
            taken = bool(self.target.below()) or self.target.exists()
        if held or (taken and held is not None):
            raise foreign_stage(f"{self.marker} and all below {self.target}")
        if taken:
            raise CorpusError(f"{self.target} exists already; choose another URL or remove it first")

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
