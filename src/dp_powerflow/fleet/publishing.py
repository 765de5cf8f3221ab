"""The corpus of a fleet at its place: a folder, or a URL of an object store.

What is there already, where the release of a feeder is made, how it gets into the corpus, and `fleet.json` at
the end. Nothing private comes here: a shelf knows public names only.

A feeder of a folder is made in a staging directory next to it that other users cannot read, and moved when it
is finished. A store has no renaming: there a feeder is made where it will stay, its manifest last, and an
object `feeder=<name>.partial-<release id>` says so meanwhile (`RemoteStage`).

`fleet.html` shows the feeders in one table, with links to their pages, and key figures of all. It is a
function of the manifests of the feeders and of the key figures that their pages hold. Five thousand feeders
have a row of about 150 bytes each.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from dp_powerflow._files import is_temporary, sync_directory
from dp_powerflow._threads import in_order
from dp_powerflow.config import StorageUrl
from dp_powerflow.corpus.grid import VM_MAX_PU
from dp_powerflow.corpus.storage import (
    Location,
    RemotePath,
    loading,
    location,
    put,
    readers_of,
    storing,
)
from dp_powerflow.corpus.writer import PROBE, RemoteStage
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.fleet.manifest import (
    FLEET_FILE,
    ONE_MODEL,
    PAGE_FILE,
    FeederEntry,
    feeder_of,
    fleet_manifest,
    fleet_words,
    partition,
    read_entries,
    release_id_of,
)
from dp_powerflow.manifest.model import QUALITY_FILE, at_most, canonical_json
from dp_powerflow.manifest.render import Words, promise_of
from dp_powerflow.manifest.verify import release_at
from dp_powerflow.page import (
    Callout,
    Card,
    Link,
    Page,
    Section,
    Table,
    read_summary,
)
from dp_powerflow.quality.figures import percent

OF_THE_WHOLE = (FLEET_FILE, PAGE_FILE)
"""Files of the whole, written last."""
_PARTIAL = ".partial-"


class Shelf(ABC):
    """Where the corpus of a fleet is, and which feeders are in it.

    The place is listed once, when something is first asked; `publish` keeps the list.

    Attributes
    ----------
    place, fleet_id : where it is, and whose.
    in_place : whether a feeder is made where it will stay.
    """

    in_place: ClassVar[bool]

    def __init__(self, place: Location, fleet_id: str) -> None:
        self.place, self.fleet_id = place, fleet_id
        self._known: set[str] | None = None
        self._releases: dict[str, tuple[str, str]] = {}

    def has(self, name: str) -> bool:
        """Whether a feeder is in the corpus, finished."""
        return name in self._there

    @property
    def _there(self) -> set[str]:
        if self._known is None:
            self._known = self._listed()
        return self._known

    def refuse_other_contents(self) -> None:
        """Leave alone a place that holds anything but this fleet; clear up what a killed run left.

        Raises
        ------
        ConfigError : something at the place is not of this fleet.
        CorpusError : the place cannot be read.
        """
        directories = self._directories()
        found = in_order(lambda name: release_at(self.place / name), directories, readers_of(self.place))
        for directory, release in zip(directories, found, strict=True):
            name = feeder_of(directory)
            if name is None or release is None or release[0] != release_id_of(self.fleet_id, name):
                self._refuse(directory)
            self._releases[directory] = release

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(
            f"{self.place} holds {what}, which is not of fleet '{self.fleet_id}'; "
            "choose another fleet.output",
            code="output-unwritable",
        )

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

    def publish(self, name: str) -> None:
        """Put a feeder whose release is finished at `output_of` into the corpus."""
        self._there.add(name)

    def write_manifest(self, models: str) -> None:
        """The page and `fleet.json` from what is there; functions of the published feeders alone.

        Parameters
        ----------
        models : as of `fleet_manifest`.
        """
        names = sorted(self._there)
        if not names:  # no feeder, no statement about any
            with storing(self.place):
                for path in (self.place / name for name in OF_THE_WHOLE):
                    if path.exists():
                        path.unlink()
            return
        entries = read_entries(self.place, names)
        with storing(self.place):
            page = fleet_page(self.fleet_id, entries, read_summaries(self.place, entries)).to_html()
        digest = hashlib.sha256(page).hexdigest()
        content = canonical_json(fleet_manifest(self.fleet_id, models, entries, digest))
        with storing(self.place):
            put(self.place / PAGE_FILE, page)
            put(self.place / FLEET_FILE, content)

    @abstractmethod
    def output_of(self, name: str) -> Path | StorageUrl:
        """Where the release of a feeder is made: `release.output` of its config."""

    @abstractmethod
    def prepare(self) -> None:
        """Make room for releases in the making; CorpusError if nothing can be written there."""

    @abstractmethod
    def abandon(self, name: str, release_id: str) -> None:
        """Remove what the release of a feeder that failed has left where others may read."""

    @abstractmethod
    def discard_staging(self, keep: Collection[str]) -> None:
        """Remove what is left of releases in the making and of no use to the next run.

        Parameters
        ----------
        keep : public names of the feeders that the next run would go on with.
        """

    @abstractmethod
    def _listed(self) -> set[str]:
        """Public names of the feeders that are there, finished."""

    @abstractmethod
    def _directories(self) -> list[str]:
        """Names of everything but the files of the whole; what a killed run left is removed."""

    @abstractmethod
    def _stages(self) -> Iterable[tuple[str, str]]:
        """Where parts of feeders in the making lie, and the ids of their releases."""


class Folder(Shelf):
    """A directory of this machine, or one that all machines share."""

    in_place = False

    def __init__(self, place: Path, fleet_id: str) -> None:
        super().__init__(place, fleet_id)
        self.folder = place
        self.staging = place.with_name(f"{place.name}{_PARTIAL}{fleet_id}")

    def output_of(self, name: str) -> Path:
        """In the staging directory."""
        return self.staging / partition(name)

    def prepare(self) -> None:
        """Make the staging directory."""
        with storing(self.staging):
            self.staging.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.staging.chmod(0o700)  # also one that was there
        if self.folder.is_dir() and not os.access(self.folder, os.W_OK | os.X_OK):
            raise CorpusError(
                f"no permission to write {self.folder}; change its permissions "
                "or choose another fleet.output",
                code="output-unwritable",
            )

    def publish(self, name: str) -> None:
        target = self.folder / partition(name)
        with storing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            self.output_of(name).rename(target)
            sync_directory(target.parent)
        super().publish(name)

    def abandon(self, name: str, release_id: str) -> None:
        """Nothing: parts in the staging directory, which others cannot read, serve the next run."""

    def discard_staging(self, keep: Collection[str]) -> None:
        """The staging directory if it is empty; parts in it stay."""
        with storing(self.folder):
            if self.staging.is_dir() and not any(self.staging.iterdir()):
                self.staging.rmdir()

    def _listed(self) -> set[str]:
        if not self.folder.is_dir():
            return set()
        with loading(self.folder):
            return _feeders(os.listdir(self.folder))

    def _directories(self) -> list[str]:
        if not self.folder.exists():
            return []
        if not self.folder.is_dir():
            raise ConfigError(
                f"{self.folder} is not a directory; choose another fleet.output", code="output-unwritable"
            )
        directories = []
        with loading(self.folder):
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith(OF_THE_WHOLE) and is_temporary(path.name):
                    path.unlink(missing_ok=True)
                elif path.name not in OF_THE_WHOLE:
                    directories.append(path.name)
        return directories

    def _stages(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self.staging.glob(f"{partition('')}*{_PARTIAL}*")):
            release_id, dot, stage = path.name.partition(_PARTIAL)[2].partition(".")
            if dot + stage != PROBE:
                yield str(path), release_id


class Store(Shelf):
    """A prefix of an object store.

    `feeder=<name>.partial-<release id>` lies there while a feeder is made: what a killed run leaves is told
    from a release without looking into it.
    """

    in_place = True

    def __init__(self, place: RemotePath, fleet_id: str) -> None:
        super().__init__(place, fleet_id)
        self.prefix = place
        self._probe = place / f"{FLEET_FILE}{_PARTIAL}{fleet_id}"
        self._making: dict[str, str] = {}

    def output_of(self, name: str) -> StorageUrl:
        """Where it will stay; `publish` finds it there, its manifest was put last."""
        return StorageUrl(f"{self.prefix / partition(name)}")

    def prepare(self) -> None:
        """Try whether anything can be written."""
        with storing(self.prefix):
            self._probe.write_bytes(b"")
            self._probe.unlink()

    def abandon(self, name: str, release_id: str) -> None:
        """All of it, the manifest first."""
        RemoteStage(self.prefix / partition(name), release_id).discard()
        self._making.pop(name, None)

    def discard_staging(self, keep: Collection[str]) -> None:
        """What an earlier run began of feeders that the fleet no longer lists."""
        for name, release_id in tuple(self._making.items()):
            if name not in keep:
                self.abandon(name, release_id)

    def _listed(self) -> set[str]:
        return _feeders(self._look()) - self._making.keys()

    def _directories(self) -> list[str]:
        there = self._look()
        self._known = _feeders(there) - self._making.keys()
        if self._probe.name in there:
            with storing(self.prefix):
                self._probe.unlink()
        known = {*OF_THE_WHOLE, self._probe.name, *map(partition, self._making), *self._markers()}
        return [item for item in there if item not in known]

    def _stages(self) -> Iterator[tuple[str, str]]:
        for marker, name in self._markers().items():
            with loading(self.prefix / marker):
                if (self.prefix / marker).read_bytes():  # an empty one only reserves the place
                    where = f"{self.prefix / marker} with all below {self.prefix / partition(name)}"
                    yield where, self._making[name]

    def _markers(self) -> dict[str, str]:
        """Name of the object that says so → public name of a feeder that is being made."""
        return {f"{partition(name)}{_PARTIAL}{made}": name for name, made in self._making.items()}

    def _look(self) -> list[str]:
        """Names at the place, but for what a killed run has left of its tries."""
        with loading(self.prefix):
            names = list(self.prefix.children())
        tried = f".probe-{self.fleet_id}_"
        for name in (name for name in names if tried in name):
            with storing(self.prefix):
                (self.prefix / name).unlink()
        there, self._making = [name for name in names if tried not in name], {}
        for item in there:
            name, _, release_id = (feeder_of(item) or "").partition(_PARTIAL)
            if release_id and release_id == release_id_of(self.fleet_id, name):
                self._making[name] = release_id
        return there


def _feeders(items: Iterable[str]) -> set[str]:
    """Public names of the feeders among names of directories; they have no dot."""
    return {name for item in items if (name := feeder_of(item)) is not None and "." not in name}


def shelf_of(output: Path | StorageUrl, fleet_id: str) -> Shelf:
    """The corpus of a fleet at its place."""
    place = location(output)
    return Store(place, fleet_id) if isinstance(place, RemotePath) else Folder(place, fleet_id)


# ----------------------------------------------------------------------------------------------- the page

Summary = Mapping[str, Any]
MOST_WARNINGS = 10
_ABSURD = 2.0**63
"""No true figure of a page is as large."""
_HEADER = (
    *("feeder", "days", "nodes", "lowest voltage [p.u.]", "highest voltage [p.u.]", "within range A [%]"),
    *("peak [kW]", "snapshots scaled down", "ε, customers"),
)


def read_summaries(place: Location, entries: Sequence[FeederEntry]) -> dict[str, Summary]:
    """Key figures of the feeders that have a page, by name."""
    names = [entry.name for entry in entries]
    found = in_order(lambda name: summary_at(place / partition(name)), names, readers_of(place))
    return {name: summary for name, summary in zip(names, found, strict=True) if summary is not None}


def summary_at(release: Location) -> Summary | None:
    """Key figures that the page of a release holds; None if it has no page."""
    try:
        return read_summary((release / QUALITY_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(frozen=True)
class _Seen:
    """Key figures of a feeder's page that can be shown."""

    lowest: float
    highest: float
    inside_a: float
    phasors: int


def fleet_page(fleet_id: str, entries: Sequence[FeederEntry], summaries: Mapping[str, Summary]) -> Page:
    """The page of a fleet.

    Parameters
    ----------
    summaries : key figures by feeder; of a feeder without any, the manifest alone is shown.
    """
    seen = {entry.name: found for entry in entries if (found := _seen(summaries.get(entry.name)))}
    days = sum(entry.manifest.data.days for entry in entries)
    lead = (
        f"{_how_many(len(entries))} with {days:,} synthetic days of voltage phasors together, made from one "
        "source of meters with differential privacy.",
        "Every feeder has a page of its own: follow its name. All figures are computed from released files.",
    )
    sections = (
        *_warnings(entries),
        Section("feeders", "Feeders", (), (_table(entries, summaries, seen),)),
        Section("privacy", "What is protected", (), _promises(entries)),
    )
    return Page(
        f"Fleet {fleet_id}",
        None,
        lead,
        sections,
        _cards(entries, seen),
        summary={"fleet": fleet_id, "feeders": len(entries), "feeder_days": days, **_extremes(seen)},
    )


def _how_many(count: int) -> str:
    return f"{count:,} feeders" if count != 1 else "One feeder"


def _seen(summary: Summary | None) -> _Seen | None:
    """Key figures, which may be forged; None if they cannot be true."""
    most = {"inside_a": 1.0, "lowest_pu": VM_MAX_PU, "highest_pu": VM_MAX_PU, "phasors": 2.0**63}
    if summary is None or type(summary.get("phasors")) is not int or summary["phasors"] <= 0:
        return None
    if not all(
        type(summary.get(name)) in (int, float) and 0.0 <= summary[name] <= limit
        for name, limit in most.items()
    ):
        return None
    return _Seen(summary["lowest_pu"], summary["highest_pu"], summary["inside_a"], summary["phasors"])


def _extremes(seen: Mapping[str, _Seen]) -> dict[str, float]:
    if not seen:
        return {}
    phasors = sum(each.phasors for each in seen.values())
    return {
        "inside_a": sum(each.inside_a * each.phasors for each in seen.values()) / phasors,
        "lowest_pu": min(each.lowest for each in seen.values()),
        "highest_pu": max(each.highest for each in seen.values()),
    }


def _cards(entries: Sequence[FeederEntry], seen: Mapping[str, _Seen]) -> tuple[Card, ...]:
    phasors = sum(entry.manifest.data.phasors for entry in entries)
    nodes = sum(entry.manifest.data.nodes for entry in entries)
    cards = [Card("Feeders", f"{len(entries):,}", f"{nodes:,} nodes, {phasors:,} phasors")]
    if seen:
        all_of = _extremes(seen)
        highest = f"of all feeders; the highest is {all_of['highest_pu']:.4f} p.u."
        cards += [
            Card("Lowest voltage", f"{all_of['lowest_pu']:.4f} p.u.", highest),
            Card("Within ANSI range A", percent(all_of["inside_a"]), "of all voltages, 0.95 to 1.05 p.u."),
        ]
    loads = max(entry.manifest.guarantee.loads.epsilon for entry in entries)
    network = max(entries, key=lambda entry: entry.manifest.guarantee.network.epsilon)
    return (
        *cards,
        Card("The customers", f"ε ≤ {at_most(loads)}", "all feeders together"),
        Card("Every network", network.manifest.guarantee.network.figure, "by itself, at most"),
    )


def _table(
    entries: Sequence[FeederEntry], summaries: Mapping[str, Summary], seen: Mapping[str, _Seen]
) -> Table:
    header = (*_HEADER, f"{_sign(entries)}, network")
    return Table(
        header,
        tuple(_row(entry, summaries.get(entry.name, {}), seen.get(entry.name)) for entry in entries),
        "One row per feeder; – where a release does not say. A click on a column sorts by it. Range A of "
        "ANSI C84.1 is 0.95 to 1.05 p.u.; a snapshot had no solution until its powers were scaled down.",
        frozenset(range(1, len(header))),
        sortable=True,
    )


def _sign(entries: Sequence[FeederEntry]) -> str:
    """ε, or ε* where no differential privacy is promised of some network."""
    return " or ".join(sorted({entry.manifest.guarantee.network.sign for entry in entries}))


def _row(entry: FeederEntry, summary: Summary, seen: _Seen | None) -> tuple[str | Link, ...]:
    manifest = entry.manifest
    loads, network = manifest.guarantee.loads, manifest.guarantee.network
    name: str | Link = entry.name
    shown = ["–"] * 5
    if seen is not None:
        name = Link(entry.name, f"{partition(entry.name)}/{QUALITY_FILE}")
        peak, mended = summary.get("peak_kw"), summary.get("mended")
        shown = [
            f"{seen.lowest:.4f}",
            f"{seen.highest:.4f}",
            percent(seen.inside_a).removesuffix(" %"),
            f"{peak:,.0f}" if _is_a_figure(peak, int, float) else "–",
            f"{mended:,}" if _is_a_figure(mended, int) else "–",
        ]
    figures = (at_most(loads.epsilon), network.figure.partition(" ")[2].lstrip("≤= "))
    return (name, f"{manifest.data.days:,}", f"{manifest.data.nodes:,}", *shown, *figures)


def _is_a_figure(value: Any, *kinds: type) -> bool:
    return type(value) in kinds and abs(value) < _ABSURD


def _promises(entries: Sequence[FeederEntry]) -> tuple[Callout, ...]:
    """What the customers are promised, whose dearest model counts, and the network that is promised least."""
    dearest = max(entries, key=lambda entry: entry.manifest.guarantee.loads.rho)
    weakest = max(entries, key=lambda entry: entry.manifest.guarantee.network.epsilon)
    loads, network = promise_of(dearest.manifest).loads, promise_of(weakest.manifest).network
    words, largest = fleet_words(ONE_MODEL), f"No network has a larger epsilon than that of {weakest.name}:"
    tones = ["good" if of.holds else "warning" for of in (loads, network)]
    return (
        Callout(loads.title, loads.sentences, tones[0]),
        Callout("The networks", (*words["networks"], largest, *network.sentences), tones[1]),
        Callout("Every reader learns", tuple(words["unprotected"]), wide=True),
    )


def _warnings(entries: Sequence[FeederEntry]) -> tuple[Section, ...]:
    """Each once, with how many feeders it is about unless it is about all; the most common first."""
    counted, known = Counter[str](), dict[str, list[str]]()
    for entry in entries:
        if entry.manifest.release.warnings:
            stated = entry.manifest
            same = repr((stated.release.warnings, stated.guarantee, stated.composition))
            known[same] = known.get(same) or Words.of(stated)["warnings"]
            # In their order: that of a set differs from process to process.
            counted.update([*dict.fromkeys(known[same])])
    shown = [
        text if count == len(entries) else f"{count:,} of {_how_many(len(entries))}: {text}"
        for text, count in counted.most_common(MOST_WARNINGS)
    ]
    if len(counted) > len(shown):
        shown.append(f"And {len(counted) - len(shown):,} more, on the pages of the feeders.")
    told = Callout("Warnings", tuple(shown), "warning", wide=True)
    return (Section("warnings", "Read this first", (), (told,)),) if shown else ()
