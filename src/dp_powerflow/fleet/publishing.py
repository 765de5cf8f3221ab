"""Where the corpus of a fleet is made: a folder, or a URL of an object store.

What is there already, where the release of a feeder is made, how it gets into the corpus, and `fleet.json` at
the end. Nothing private comes here: a shelf knows public names only.

A feeder of a folder is made in a staging directory next to it that other users cannot read, and moved when it
is finished. A store has no renaming: there a feeder is made where it will stay, its manifest last, and an
object `feeder=<name>.partial-<release id>` says so meanwhile (`RemoteStage`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from dp_powerflow._files import is_temporary, sync_directory
from dp_powerflow._threads import in_order
from dp_powerflow.config import StorageUrl
from dp_powerflow.corpus.storage import Location, RemotePath, loading, location, put, readers_of, storing
from dp_powerflow.corpus.writer import PROBE, RemoteStage
from dp_powerflow.errors import ConfigError
from dp_powerflow.fleet.manifest import (
    FLEET_FILE,
    PAGE_FILE,
    contents,
    feeder_of,
    fleet_manifest,
    fleet_page,
    partition,
    read_entries,
    release_id_of,
)
from dp_powerflow.manifest.model import SIGNATURES, canonical_json
from dp_powerflow.manifest.verify import release_at

OF_THE_WHOLE = (FLEET_FILE, PAGE_FILE)
"""Files of the whole, written last."""
_PARTIAL = ".partial-"


def staging_of(place: Location, fleet_id: str) -> Path | None:
    """The directory next to a folder where feeders are made; None at a URL, where they stay."""
    return place.with_name(f"{place.name}{_PARTIAL}{fleet_id}") if isinstance(place, Path) else None


def output_of(output: str | os.PathLike[str], fleet_id: str, name: str) -> Path | StorageUrl:
    """Where the release of a feeder is made: `release.output` of its config."""
    place = location(output)
    staging = staging_of(place, fleet_id)
    return StorageUrl(f"{place / partition(name)}") if staging is None else staging / partition(name)


class Shelf:
    """Where the corpus of a fleet is, and which feeders are in it.

    The place is listed once; `publish` keeps the list.

    Attributes
    ----------
    place, fleet_id : where it is, and whose.
    staging : directory next to a folder where feeders are made; None at a URL.
    """

    def __init__(self, output: str | os.PathLike[str] | RemotePath, fleet_id: str) -> None:
        self.place, self.fleet_id = location(output), fleet_id
        self.staging = staging_of(self.place, fleet_id)
        self._probe = f"{FLEET_FILE}{_PARTIAL}{fleet_id}"
        if isinstance(self.place, Path) and self.place.exists() and not self.place.is_dir():
            raise ConfigError(
                f"{self.place} is not a directory; choose another fleet.output", code="output-unwritable"
            )
        is_there = isinstance(self.place, RemotePath) or self.place.exists()
        self._names = list(contents(self.place)) if is_there else []
        self._making: dict[str, str] = {}
        for item in self._names if self.staging is None else ():
            name, _, release_id = (feeder_of(item) or "").partition(_PARTIAL)
            if release_id and release_id == release_id_of(fleet_id, name):
                self._making[name] = release_id
        finished = (feeder_of(item) for item in self._names)
        self._known = {name for name in finished if name and "." not in name} - self._making.keys()
        self._releases: dict[str, tuple[str, str]] = {}

    def has(self, name: str) -> bool:
        """Whether a feeder is in the corpus, finished."""
        return name in self._known

    def refuse_other_contents(self) -> None:
        """Leave alone a place that holds anything but this fleet; clear up what a killed run left.

        Raises
        ------
        ConfigError : something at the place is not of this fleet.
        CorpusError : the place cannot be read.
        """
        tries = set(filter(self._is_a_try, self._names))
        for name in tries:
            with storing(self.place):
                (self.place / name).unlink()
        begun = {*tries, SIGNATURES, *OF_THE_WHOLE, *map(partition, self._making), *self._markers()}
        directories = [name for name in self._names if name not in begun]
        found = in_order(lambda name: release_at(self.place / name), directories, readers_of(self.place))
        for directory, release in zip(directories, found, strict=True):
            feeder = feeder_of(directory)
            if feeder is None or release is None or release[0] != release_id_of(self.fleet_id, feeder):
                raise ConfigError(
                    f"{self.place} holds {directory}, which is not of fleet '{self.fleet_id}'; "
                    "choose another fleet.output",
                    code="output-unwritable",
                )
            self._releases[directory] = release

    def refuse_other_states(
        self, committed: Callable[[str], str | None], begun: Callable[[str], bool]
    ) -> None:
        """Refuse feeders that another private state has released or begun; after `refuse_other_contents`.

        Parameters
        ----------
        committed, begun : what a release of this private state commits to, and whether it has begun one.
        """
        others = [where for where, release_id in self._stages() if not begun(release_id)]
        for directory, (release_id, sha256) in self._releases.items():
            if committed(release_id) != sha256:
                others.append(str(self.place / directory))
        for where in others:
            raise ConfigError(
                f"{where} was made with another private state than fleet.state; correct fleet.state, choose "
                "another fleet.output, or remove it"
            )

    def prepare(self) -> None:
        """Make room for releases in the making; CorpusError if nothing can be written there."""
        if self.staging is None:
            with storing(self.place):
                (self.place / self._probe).write_bytes(b"")
                (self.place / self._probe).unlink()
            return
        with storing(self.staging):
            self.staging.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.staging.chmod(0o700)  # also one that was there

    def publish(self, name: str) -> None:
        """Put a feeder whose release is finished at `output_of` into the corpus."""
        if self.staging is not None:  # at a URL it is there: its manifest was put last
            target = Path(str(self.place)) / partition(name)
            with storing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                (self.staging / partition(name)).rename(target)
                sync_directory(target.parent)
        self._known.add(name)

    def abandon(self, name: str, release_id: str) -> None:
        """Remove what the release of a feeder that failed has left where others may read.

        Parts in the staging directory, which others cannot read, serve the next run.
        """
        if isinstance(self.place, RemotePath):
            RemoteStage(self.place / partition(name), release_id).discard()
            self._making.pop(name, None)

    def discard_staging(self, keep: Collection[str]) -> None:
        """Remove what is left of releases in the making and of no use to the next run.

        Parameters
        ----------
        keep : public names of the feeders that the next run would go on with.
        """
        for name in self._making.keys() - set(keep):
            self.abandon(name, self._making[name])
        if self.staging is not None and self.staging.is_dir() and not any(self.staging.iterdir()):
            with storing(self.place):
                self.staging.rmdir()

    def write_manifest(self) -> None:
        """The page and `fleet.json` from what is there; functions of the published feeders alone."""
        entries = read_entries(self.place, self._known)
        with storing(self.place):
            if entries:
                page = fleet_page(self.fleet_id, entries).to_html()
                whole = fleet_manifest(self.fleet_id, entries, hashlib.sha256(page).hexdigest())
                put(self.place / PAGE_FILE, page)
                put(self.place / FLEET_FILE, canonical_json(whole))
                return
            for path in (self.place / name for name in OF_THE_WHOLE):  # no feeder, no statement about any
                if path.exists():
                    path.unlink()

    def _is_a_try(self, name: str) -> bool:
        """Whether a killed run has left this where it tried to write."""
        unfinished = name.startswith(OF_THE_WHOLE) and is_temporary(name)
        return unfinished or f".probe-{self.fleet_id}_" in name or name == self._probe

    def _markers(self) -> dict[str, str]:
        """Name of the object of a store that says so → public name of a feeder that is being made."""
        return {f"{partition(name)}{_PARTIAL}{made}": name for name, made in self._making.items()}

    def _stages(self) -> Iterator[tuple[str, str]]:
        """Where parts of feeders in the making lie, and the ids of their releases."""
        for path in [] if self.staging is None else sorted(self.staging.glob(f"{partition('')}*{_PARTIAL}*")):
            release_id, dot, stage = path.name.partition(_PARTIAL)[2].partition(".")
            if dot + stage != PROBE:
                yield str(path), release_id
        for marker, name in self._markers().items():
            with loading(self.place / marker):
                if (self.place / marker).read_bytes():  # an empty one only reserves the place
                    where = f"{self.place / marker} with all below {self.place / partition(name)}"
                    yield where, self._making[name]
