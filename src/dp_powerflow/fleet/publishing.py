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
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from dp_powerflow._files import is_temporary, sync_directory
from dp_powerflow._threads import in_order
from dp_powerflow.config import StorageUrl
from dp_powerflow.corpus.grid import VM_MAX_PU
from dp_powerflow.corpus.storage import Location, RemotePath, loading, location, put, readers_of, storing
from dp_powerflow.corpus.writer import PROBE, RemoteStage
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.fleet.manifest import (
    FLEET_FILE,
    PAGE_FILE,
    FeederEntry,
    contents,
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
from dp_powerflow.page import Callout, Link, Page, Section, Table, read_summary
from dp_powerflow.quality.figures import percent

OF_THE_WHOLE = (FLEET_FILE, PAGE_FILE)
"""Files of the whole, written last."""
_PARTIAL = ".partial-"


class Shelf:
    """Where the corpus of a fleet is, and which feeders are in it.

    The place is listed once, when something is first asked; `publish` keeps the list.

    Attributes
    ----------
    place, fleet_id : where it is, and whose.
    staging : directory next to a folder where feeders are made; None at a URL.
    """

    def __init__(self, output: str | os.PathLike[str] | RemotePath, fleet_id: str) -> None:
        self.place, self.fleet_id = location(output), fleet_id
        beside = f"{self.place.name}{_PARTIAL}{fleet_id}"
        self.staging = self.place.with_name(beside) if isinstance(self.place, Path) else None
        self._probe = f"{FLEET_FILE}{_PARTIAL}{fleet_id}"
        self._names: list[str] | None = None
        self._tries: list[str] = []
        self._known: set[str] = set()
        self._making: dict[str, str] = {}
        self._releases: dict[str, tuple[str, str]] = {}

    @property
    def in_place(self) -> bool:
        """Whether a feeder is made where it will stay."""
        return self.staging is None

    def output_of(self, name: str) -> Path | StorageUrl:
        """Where the release of a feeder is made: `release.output` of its config."""
        if self.staging is None:
            return StorageUrl(f"{self.place / partition(name)}")
        return self.staging / partition(name)

    def has(self, name: str) -> bool:
        """Whether a feeder is in the corpus, finished."""
        self._listed()
        return name in self._known

    def refuse_other_contents(self) -> None:
        """Leave alone a place that holds anything but this fleet; clear up what a killed run left.

        Raises
        ------
        ConfigError : something at the place is not of this fleet.
        CorpusError : the place cannot be read.
        """
        self._names = None
        there = self._listed()
        for name in self._tries:
            with storing(self.place):
                (self.place / name).unlink()
        begun = {*OF_THE_WHOLE, *map(partition, self._making), *self._markers()}
        directories = [name for name in there if name not in begun]
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
        folder = Path(str(self.place))
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise CorpusError(
                f"no permission to write {folder}; change its permissions or choose another fleet.output",
                code="output-unwritable",
            )

    def publish(self, name: str) -> None:
        """Put a feeder whose release is finished at `output_of` into the corpus."""
        self._listed()
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
        if self.staging is None:
            for name, release_id in tuple(self._making.items()):
                if name not in keep:
                    self.abandon(name, release_id)
            return
        with storing(self.place):
            if self.staging.is_dir() and not any(self.staging.iterdir()):
                self.staging.rmdir()

    def write_manifest(self) -> None:
        """The page and `fleet.json` from what is there; functions of the published feeders alone."""
        self._listed()
        names = sorted(self._known)
        if not names:  # no feeder, no statement about any
            with storing(self.place):
                for path in (self.place / name for name in OF_THE_WHOLE):
                    if path.exists():
                        path.unlink()
            return
        entries = read_entries(self.place, names)
        with storing(self.place):
            page = fleet_page(self.fleet_id, entries, read_summaries(self.place, entries)).to_html()
            content = canonical_json(fleet_manifest(self.fleet_id, entries, hashlib.sha256(page).hexdigest()))
            put(self.place / PAGE_FILE, page)
            put(self.place / FLEET_FILE, content)

    def _listed(self) -> list[str]:
        """Names at the place, but for what a killed run has left where it tried to write."""
        if self._names is None:
            if isinstance(self.place, Path) and self.place.exists() and not self.place.is_dir():
                raise ConfigError(
                    f"{self.place} is not a directory; choose another fleet.output", code="output-unwritable"
                )
            is_there = isinstance(self.place, RemotePath) or self.place.exists()
            there = list(contents(self.place)) if is_there else []
            self._tries = list(filter(self._is_a_try, there))
            self._names = [name for name in there if not self._is_a_try(name)]
            self._making = {}
            for item in self._names if self.staging is None else ():
                name, _, release_id = (feeder_of(item) or "").partition(_PARTIAL)
                if release_id and release_id == release_id_of(self.fleet_id, name):
                    self._making[name] = release_id
            finished = (feeder_of(item) for item in self._names)
            self._known = {name for name in finished if name and "." not in name} - self._making.keys()
        return self._names

    def _is_a_try(self, name: str) -> bool:
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


def fleet_page(fleet_id: str, entries: Sequence[FeederEntry], summaries: Mapping[str, Summary]) -> Page:
    """The page of a fleet.

    Parameters
    ----------
    summaries : key figures by feeder; of a feeder without any, the manifest alone is shown.
    """
    seen = {entry.name: found for entry in entries if (found := _credible(summaries.get(entry.name)))}
    days = sum(entry.manifest.data.days for entry in entries)
    lead = (
        f"{_how_many(len(entries))} with {days:,} synthetic days of voltage phasors together, made from one "
        "source of meters with differential privacy.",
        "Every feeder has a page: follow its name. All figures are computed from released files.",
    )
    sections = (
        *_warnings(entries),
        Section("feeders", "Feeders", (), (_table(entries, seen),)),
        Section("privacy", "What is protected", (), _promises(entries)),
    )
    summary = {"fleet": fleet_id, "feeders": len(entries), "feeder_days": days}
    return Page(f"Fleet {fleet_id}", None, lead, sections, summary=summary)


def _how_many(count: int) -> str:
    return f"{count:,} feeders" if count != 1 else "One feeder"


def _credible(summary: Summary | None) -> Summary | None:
    """Key figures, which may be forged; None if they cannot be true."""
    most = {"inside_a": 1.0, "lowest_pu": VM_MAX_PU, "highest_pu": VM_MAX_PU, "phasors": _ABSURD}
    if summary is None or type(summary.get("phasors")) is not int or summary["phasors"] <= 0:
        return None
    figures = ((summary.get(name), limit) for name, limit in most.items())
    return summary if all(_is_a_figure(value) and 0.0 <= value <= limit for value, limit in figures) else None


def _table(entries: Sequence[FeederEntry], seen: Mapping[str, Summary]) -> Table:
    # ε, or ε* where no differential privacy is promised of some network.
    sign = " or ".join(sorted({entry.manifest.guarantee.network.sign for entry in entries}))
    header = (*_HEADER, f"{sign}, network")
    return Table(
        header,
        tuple(_row(entry, seen.get(entry.name)) for entry in entries),
        "One row per feeder; – where a release does not say. A click on a column sorts by it. Range A of "
        "ANSI C84.1 is 0.95 to 1.05 p.u.; a snapshot had no solution until its powers were scaled down.",
        frozenset(range(1, len(header))),
        sortable=True,
    )


def _row(entry: FeederEntry, seen: Summary | None) -> tuple[str | Link, ...]:
    manifest = entry.manifest
    loads, network = manifest.guarantee.loads, manifest.guarantee.network
    name: str | Link = entry.name
    shown = ["–"] * 5
    if seen is not None:
        name = Link(entry.name, f"{partition(entry.name)}/{QUALITY_FILE}")
        peak, scaled_down = seen.get("peak_kw"), seen.get("scaled_down")
        shown = [
            f"{seen['lowest_pu']:.4f}",
            f"{seen['highest_pu']:.4f}",
            percent(seen["inside_a"]).removesuffix(" %"),
            f"{peak:,.0f}" if _is_a_figure(peak) else "–",
            f"{scaled_down:,}" if type(scaled_down) is int and _is_a_figure(scaled_down) else "–",
        ]
    figures = (at_most(loads.epsilon), network.figure.partition(" ")[2].lstrip("≤= "))
    return (name, f"{manifest.data.days:,}", f"{manifest.data.nodes:,}", *shown, *figures)


def _is_a_figure(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) < _ABSURD


def _promises(entries: Sequence[FeederEntry]) -> tuple[Callout, ...]:
    """What the customers are promised, whose dearest model counts, and the network that is promised least."""
    dearest = max(entries, key=lambda entry: entry.manifest.guarantee.loads.rho)
    weakest = max(entries, key=lambda entry: entry.manifest.guarantee.network.epsilon)
    loads, network = promise_of(dearest.manifest).loads, promise_of(weakest.manifest).network
    words, largest = fleet_words(), f"No network has a larger epsilon than {weakest.name}:"
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
            # In their order: a set has another one in every process.
            counted.update([*dict.fromkeys(known[same])])
    shown = [
        text if count == len(entries) else f"{count:,} of {_how_many(len(entries))}: {text}"
        for text, count in counted.most_common(MOST_WARNINGS)
    ]
    if len(counted) > len(shown):
        shown.append(f"And {len(counted) - len(shown):,} more, on the pages of the feeders.")
    told = Callout("Warnings", tuple(shown), "warning", wide=True)
    return (Section("warnings", "Read this first", (), (told,)),) if shown else ()
