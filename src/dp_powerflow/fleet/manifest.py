"""The corpus of a fleet: names on disk, `fleet.json`, its page, and the reader.

    out/fleet.json, out/fleet.html   of the whole
    out/feeder=<public name>/…       a release for every feeder

Manifest and page are pure functions of the manifests of the feeders that are there. They add what only the
whole can say: what all of it costs one customer, and that the networks are separate secrets. Feeders that
were not released are not mentioned. `verify` makes both files again and compares them. Each of five thousand
feeders has a row of about 150 bytes in the page.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_powerflow._names import PUBLIC_NAME
from dp_powerflow._threads import in_order
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.schema import DATA, part_name
from dp_powerflow.corpus.storage import Location, RemotePath, children, loading, location, readers_of
from dp_powerflow.errors import CorpusError
from dp_powerflow.manifest.model import (
    DIGEST,
    FORMAT,
    MALFORMED,
    MODEL_FILE,
    QUALITY_FILE,
    Manifest,
    ReleaseError,
    at_most,
    digest_of,
    json_object,
    refuse_other_format,
)
from dp_powerflow.manifest.render import Words, promise_of
from dp_powerflow.manifest.verify import read_manifest
from dp_powerflow.page import Callout, Link, Page, Section, Table

if TYPE_CHECKING:
    import pyarrow.dataset as ds

FLEET_FILE, PAGE_FILE = "fleet.json", "fleet.html"


@cache
def fleet_words() -> Words:
    """What only the whole fleet can say."""
    return Words("fleet.txt", {})


def partition(name: str) -> str:
    """Directory of a feeder, in the form that readers of partitioned data sets know."""
    return f"feeder={name}"


def feeder_of(directory: str) -> str | None:
    """Public name of the feeder whose directory this is; None if it is of no feeder."""
    prefix, equals, name = directory.partition("=")
    return name if prefix + equals == partition("") else None


def release_id_of(fleet_id: str, name: str) -> str:
    """Id of a feeder's release, or of its twin; neither fleet nor name has an underscore."""
    return f"{fleet_id}_{name}"


def is_fleet(path: str | os.PathLike[str] | RemotePath) -> bool:
    """Whether a directory or a URL is the corpus of a fleet, finished or not."""
    place = location(path)
    if isinstance(place, RemotePath):
        with loading(place):
            there = place.children()
        return FLEET_FILE in there or any(feeder_of(item) is not None for item in there)
    return (place / FLEET_FILE).is_file() or (place.is_dir() and any(place.glob(f"{partition('')}*")))


# --------------------------------------------------------------------------------------------- fleet.json


@dataclass(frozen=True, eq=False)
class FeederEntry:
    """A feeder that is there: its public name, its manifest, and the SHA-256 of that file."""

    name: str
    manifest: Manifest[Any]
    sha256: str


def read_entries(place: Location, names: Iterable[str] | None = None) -> list[FeederEntry]:
    """The feeders at a place, in the order of their names.

    Parameters
    ----------
    names : which; by default all that are there.

    Raises
    ------
    ReleaseError : a feeder's manifest cannot be read.
    """
    wanted = sorted(feeders_at(place) if names is None else names)
    found: list[FeederEntry] = []
    read = in_order(lambda name: read_manifest(place / partition(name)), wanted, readers_of(place))
    for name, (manifest, sha256) in zip(wanted, read, strict=True):
        found.append(FeederEntry(name, shared(manifest, found[0].manifest if found else None), sha256))
    return found


def shared(manifest: Manifest[Any], other: Manifest[Any] | None) -> Manifest[Any]:
    """The same manifest, with the sections of another one wherever they are equal.

    Manifests of a fleet say much the same; of thousands, it is kept once.
    """
    alike = {} if other is None else {name: kept for name, kept in other if getattr(manifest, name) == kept}
    return manifest.model_copy(update=alike)


def feeders_at(place: Location) -> list[str]:
    """Public names of the feeders whose directories are at a place."""
    local = isinstance(place, Path)  # a link to a feeder is a feeder to a reader
    found = (feeder_of(name) for name, is_folder in contents(place).items() if is_folder or local)
    return [name for name in found if name is not None]


def contents(place: Location) -> dict[str, bool]:
    """Names at a place, sorted, and whether each is a folder and no link."""
    with loading(place):
        return children(place)


def fleet_manifest(fleet_id: str, entries: Sequence[FeederEntry], page_sha256: str) -> dict[str, Any]:
    """The manifest of a fleet.

    Parameters
    ----------
    page_sha256 : SHA-256 of its page.

    Raises
    ------
    ReleaseError : there is no feeder, or the feeders cannot be of one fleet: other customers, another unit.
    """
    problems = contradictions(fleet_id, entries)
    if problems:
        raise ReleaseError(f"the manifest of the fleet would contradict itself: {problems[0]}")
    stated = [entry.manifest for entry in entries]
    first = stated[0]  # all say the same of the customers
    manifest = {
        "format": FORMAT,
        "kind": "fleet",
        "fleet": {
            "id": fleet_id,
            "feeders": len(entries),
            "feeder_days": sum(each.data.days for each in stated),
            "phasors": sum(each.data.phasors for each in stated),
            "insecure_seed": any(each.release.insecure_seed for each in stated),
            "simulated_loads": any(each.release.simulated_loads for each in stated),
            "warnings": sorted({text for each in stated for text in each.release.warnings}),
        },
        "customers": first.guarantee.loads.model_dump(exclude={"epsilon_granted"})
        | {
            "load_points": first.declared_public.load_points,
            "with_earlier_releases": first.composition.loads.model_dump(),
        },
        "feeders": [_feeder(entry) for entry in entries],
        "page_sha256": page_sha256,
    }
    return manifest | {DIGEST: digest_of(manifest)}


_ALIKE: Mapping[str, Callable[[Manifest[Any]], object]] = {
    "composition.loads": attrgetter("composition.loads"),
    "guarantee.loads": attrgetter("guarantee.loads"),
    "load_queries": attrgetter("load_queries"),
    MODEL_FILE: lambda manifest: manifest.files.get(MODEL_FILE),
}
"""What the manifests of all feeders say alike: one charge paid for the one model."""


def contradictions(fleet_id: str, entries: Sequence[FeederEntry]) -> list[str]:
    """Why these feeders are not one fleet, one sentence each."""
    if not entries:
        return ["There is no feeder."]
    problems = [
        f"The release in {partition(entry.name)} is not the one of this feeder."
        for entry in entries
        if entry.manifest.release.id != release_id_of(fleet_id, entry.name)
    ]
    return problems + [
        f"The feeders do not agree on {name}."
        for name, of in _ALIKE.items()
        if len({repr(of(entry.manifest)) for entry in entries}) > 1
    ]


def _feeder(entry: FeederEntry) -> dict[str, Any]:
    manifest = entry.manifest
    loads, network = manifest.guarantee.loads, manifest.guarantee.network
    return {
        "name": entry.name,
        "release": manifest.release.id,
        "manifest_file_sha256": entry.sha256,
        **manifest.data.model_dump(include={"days", "steps_per_day", "nodes"}),
        "customers": loads.model_dump(include={"epsilon", "delta", "rho"})
        | {"load_points": manifest.declared_public.load_points},
        "network": network.model_dump(include={"mode", "kind", "epsilon", "delta"}),
        "network_with_earlier_releases": manifest.composition.network.promise.model_dump(),
    }


# ----------------------------------------------------------------------------------------------- the page

MOST_WARNINGS = 10


def fleet_page(fleet_id: str, entries: Sequence[FeederEntry]) -> Page:
    """The page of a fleet: a table of its feeders, what is protected, what a reader is warned of."""
    days = sum(entry.manifest.data.days for entry in entries)
    lead = (
        f"{_how_many(len(entries))} with {days:,} synthetic days of voltage phasors together, made from one "
        "source of meters with differential privacy.",
        "Every feeder has a page: follow its name. All figures are computed from released files.",
    )
    # ε, or ε* where no differential privacy is promised of some network.
    sign = " or ".join(sorted({entry.manifest.guarantee.network.sign for entry in entries}))
    header = ("feeder", "days", "nodes", "ε, customers", f"{sign}, network")
    caption, numeric = "One row per feeder. A click on a column sorts by it.", range(1, len(header))
    table = Table(header, tuple(map(_row, entries)), caption, frozenset(numeric), sortable=True)
    sections = (
        *_warnings(entries),
        Section("feeders", "Feeders", (), (table,)),
        Section("privacy", "What is protected", (), _promises(entries)),
    )
    return Page(f"Fleet {fleet_id}", None, lead, sections)


def _how_many(count: int) -> str:
    return f"{count:,} feeders" if count != 1 else "One feeder"


def _row(entry: FeederEntry) -> tuple[str | Link, ...]:
    data, promised = entry.manifest.data, entry.manifest.guarantee
    network = promised.network.figure.partition(" ")[2].lstrip("≤= ")
    name = Link(entry.name, f"{partition(entry.name)}/{QUALITY_FILE}")
    return (name, f"{data.days:,}", f"{data.nodes:,}", at_most(promised.loads.epsilon), network)


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


# --------------------------------------------------------------------------------------------- the reader


@dataclass(frozen=True, repr=False)
class Fleet:
    """The corpus of a fleet in a directory or at a URL; `open_fleet` makes it.

    Attributes
    ----------
    path : its directory or URL.
    manifest : `fleet.json`, unchecked.
    names : public names of the feeders.
    check : whether files are compared with their SHA-256 when they are first read.
    """

    path: Location
    manifest: dict[str, Any]
    names: tuple[str, ...]
    check: bool = True

    def __repr__(self) -> str:
        whole = self.manifest.get("fleet")
        known = whole if isinstance(whole, dict) else {}
        count, days = len(self.names), known.get("feeder_days")
        feeders = f"{count:,} feeder{'' if count == 1 else 's'}"
        return f"Fleet({known.get('id')!r}, {feeders}, {days} feeder-days, {str(self.path)!r})"

    def feeder(self, name: str) -> Corpus:
        """The corpus of one feeder."""
        if name not in self.names:
            raise CorpusError(f"the fleet has no feeder {name!r}; its feeders are listed in {FLEET_FILE}")
        entry = self.manifest["feeders"][self.names.index(name)]
        stated = entry.get("manifest_file_sha256") if self.check and isinstance(entry, dict) else None
        return open_corpus(self.path / partition(name), check=self.check, manifest_sha256=stated)

    def files(self) -> list[str]:
        """Paths or URLs of all files with voltages, feeder by feeder."""
        return [str(place) for place in self._parts()]

    def dataset(self) -> ds.Dataset:
        """The rows of all feeders as they are stored, with a column `feeder` from the directories.

        A filter on the feeder reads the files of that feeder only. pyarrow reads them later, so all files
        are compared with the manifests now.
        """
        import pyarrow.dataset as ds  # brings pandas, where that is installed

        partitioning = ds.HivePartitioning.discover(infer_dictionary=True)
        store = self.path.store()[0] if isinstance(self.path, RemotePath) else None
        parts = self._parts(check=self.check)
        names = [part.store()[1] if isinstance(part, RemotePath) else str(part) for part in parts]
        with loading(self.path):
            return ds.dataset(names, format="parquet", partitioning=partitioning, filesystem=store)

    def _parts(self, *, check: bool = False) -> list[Location]:
        def count(name: str) -> int:
            corpus = self.feeder(name)
            if check:
                corpus.files.check_folder(DATA)
            return corpus.layout.n_parts

        counts = in_order(count, self.names, readers_of(self.path))
        return [
            self.path / partition(name) / DATA / part_name(part)
            for name, count in zip(self.names, counts, strict=True)
            for part in range(count)
        ]


def release_paths(path: str | os.PathLike[str]) -> list[Path]:
    """The releases of a fleet, or the one release itself."""
    place = location(path)
    if isinstance(place, RemotePath):
        raise CorpusError(
            f"tables for graph models are read from a folder; copy {place} to one first, then name the folder"
        )
    if not (place / FLEET_FILE).exists():
        return [place]
    return [place / partition(name) for name in open_fleet(place).names]


def open_fleet(path: str | os.PathLike[str] | RemotePath, *, check: bool = True) -> Fleet:
    """Open the corpus of a fleet in a directory, or at a URL such as 's3://bucket/fleet'.

    Parameters
    ----------
    check : as of `open_corpus`.

    Raises
    ------
    CorpusError : there is no corpus of a fleet that can be read.
    ReleaseError : it is of another version.
    """
    place = location(path)
    content = fleet_file(place)
    try:
        manifest = json_object(content)
        names = tuple(str(item["name"]) for item in manifest["feeders"])
    except (RecursionError, *MALFORMED) as error:
        raise CorpusError(f"{place / FLEET_FILE} cannot be read; fetch it again") from error
    if not all(re.fullmatch(PUBLIC_NAME, name) for name in names) or len(set(names)) < len(names):
        raise CorpusError(f"{place / FLEET_FILE} has a name that no feeder of a fleet has; fetch it again")
    refuse_other_format(manifest, "fleet", str(place / FLEET_FILE))
    return Fleet(place, manifest, names, check)


def fleet_file(place: Location) -> bytes:
    """The bytes of `fleet.json`.

    Raises
    ------
    CorpusError : there is none, or the store does not let anybody read it.
    """
    try:
        return (place / FLEET_FILE).read_bytes()
    except OSError as error:
        if isinstance(place, Path) or isinstance(error, FileNotFoundError):
            raise CorpusError(
                f"{place} has no {FLEET_FILE} that can be read; give the place of a finished fleet, or run "
                "the fleet again to finish it",
                code="release-not-found",
            ) from error
        with loading(place):
            raise
