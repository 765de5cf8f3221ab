"""`fleet.json`, the certificate of a fleet, and the reader of its corpus.

The manifest is a pure function of the manifests of the feeders that are there. It adds what only the whole
can say: what all of it costs one customer, and that the networks are secrets of their own. Feeders that were
not released are not mentioned. Form and wording belong to `FORMAT`; `verify` makes the file again and
compares, so any change of a sentence is another version of the format.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.schema import DATA, part_name
from dp_powerflow.corpus.storage import loading
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.fleet.names import FLEET_FILE, attempt_of, partition
from dp_powerflow.pipeline.manifest.model import (
    CERTIFICATE_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    QUALITY_FILE,
    Manifest,
    ReleaseError,
    canonical_json,
    json_object,
)
from dp_powerflow.pipeline.opened import MALFORMED, read_manifest

if TYPE_CHECKING:
    import pyarrow.dataset as ds

FORMAT = "dp-powerflow fleet manifest, version 2"
FORMAT_1 = "dp-powerflow fleet manifest, version 1"
"""Of fleets without a page of their quality."""
FLEET_DIGEST = "fleet_sha256"

ONE_MODEL, PER_FEEDER = "one", "per-feeder"

CUSTOMERS = {
    ONE_MODEL: (
        "One load model was fitted from all customers and paid for once; every feeder's corpus is drawn from "
        "it, so all feeders together cost a load point what the one model costs. No customer needs to be on "
        "one feeder only for this. That it is one model can be checked: its file has one SHA-256."
    ),
    PER_FEEDER: (
        "Every feeder has a load model of its own, fitted from the load points that a public map puts on "
        "this feeder. No load point is on two feeders, so what one load point does changes one model only, "
        "and all feeders together cost it what the dearest model costs (parallel composition). The program "
        "refuses a map with a load point on two feeders; that the map does not depend on the readings is "
        "attested by the data owner. A person behind load points on several feeders is several records."
    ),
}
"""What all feeders together cost one load point, by the models that the fleet has."""

NETWORKS = (
    "Every feeder's network is a secret of its own with an account of its own, and its own manifest says "
    "what is promised of it. For an element that is modelled in one feeder the figures of that feeder count; "
    "those of different feeders do not add up. For an element that is modelled in several feeders, such as a "
    "transformer of their substation, the figures of these feeders have to be added up."
)

UNPROTECTED = (
    "Which feeders are here. A feeder is absent if nobody asked for it or if it could not be released, and "
    "the latter may depend on its network: neither presence nor absence, nor a gap in the numbers of the "
    "feeders, is protected.",
    "How many feeders, and how many nodes of each, are released.",
)

NAMES = (
    "The public names of the feeders are numbers in an order drawn from the data owner's secret key, or "
    "names that the data owner declared public."
)


@dataclass(frozen=True, eq=False)
class FeederEntry:
    """A feeder that is there: its public name, its manifest, and the SHA-256 of that file."""

    name: str
    manifest: Manifest[Any]
    sha256: str


def read_entries(directory: Path) -> list[FeederEntry]:
    """The feeders in a directory, in the order of their names.

    Raises
    ------
    ReleaseError : a feeder's manifest cannot be read.
    """
    prefix = partition("")
    return [
        FeederEntry(path.name.removeprefix(prefix), *read_manifest(path))
        for path in sorted(directory.iterdir())
        if path.name.startswith(prefix)
    ]


def release_at(directory: Path) -> str | None:
    """Id of the release in a directory, None if there is none."""
    try:
        return str(read_manifest(directory)[0].release.id)
    except DpPowerflowError:
        return None


def fleet_manifest(
    fleet_id: str, models: str, entries: Sequence[FeederEntry], page_sha256: str | None
) -> dict[str, Any]:
    """The manifest of a fleet.

    Parameters
    ----------
    models : ``"one"`` or ``"per-feeder"``.
    page_sha256 : SHA-256 of its page; None for the manifest of version 1, which knows no page.

    Raises
    ------
    ReleaseError : there is no feeder, or the feeders cannot be of one fleet: other customers, another unit.
    """
    problems = contradictions(fleet_id, models, entries)
    if problems:
        raise ReleaseError(f"the manifest of the fleet would contradict itself: {problems[0]}")
    manifest = {
        "format": FORMAT_1 if page_sha256 is None else FORMAT,
        "fleet": {
            "id": fleet_id,
            "feeders": len(entries),
            "feeder_days": sum(entry.manifest.data.days for entry in entries),
            "phasors": sum(entry.manifest.data.phasors for entry in entries),
            "insecure_seed": any(entry.manifest.release.insecure_seed for entry in entries),
            "simulated_loads": any(entry.manifest.release.simulated_loads for entry in entries),
            "warnings": sorted({text for entry in entries for text in entry.manifest.release.warnings}),
        },
        "customers": _customers(models, entries),
        "networks": {"statement": NETWORKS},
        "names": NAMES,
        "unprotected": list(UNPROTECTED),
        "feeders": [_feeder(entry) for entry in entries],
    }
    if page_sha256 is not None:
        manifest |= {"quality": {"file": QUALITY_FILE, "sha256": page_sha256}}
    return manifest | {FLEET_DIGEST: fleet_digest(manifest)}


def fleet_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON without the entry that holds it; no signature."""
    rest = {name: value for name, value in manifest.items() if name != FLEET_DIGEST}
    return hashlib.sha256(canonical_json(rest)).hexdigest()


def contradictions(fleet_id: str, models: str, entries: Sequence[FeederEntry]) -> list[str]:
    """Why these feeders are not one fleet, one sentence each."""
    if not entries:
        return ["There is no feeder."]
    if models not in CUSTOMERS:
        return ["What models the fleet has is none of the things that can be."]
    problems = [
        f"The release in {partition(entry.name)} is not the one of this feeder."
        for entry in entries
        if attempt_of(entry.manifest.release.id, fleet_id, entry.name) is None
    ]
    # One charge paid for all models, so all manifests state the same account as of that charge.
    shared = [
        "composition.loads",
        "guarantee.loads.unit",
        "guarantee.loads.delta",
        "guarantee.loads.adjacency",
    ]
    if models == ONE_MODEL:
        shared += ["guarantee.loads", "load_queries"]
        if len({entry.manifest.files.get(MODEL_FILE) for entry in entries}) > 1:
            problems.append(f"The feeders do not have the same {MODEL_FILE}.")
    problems += [
        f"The feeders do not agree on {path}."
        for path in shared
        if len({repr(attrgetter(path)(entry.manifest)) for entry in entries}) > 1
    ]
    return problems


def _customers(models: str, entries: Sequence[FeederEntry]) -> dict[str, Any]:
    dearest = max((entry.manifest.guarantee.loads for entry in entries), key=lambda loads: loads.rho)
    points = [entry.manifest.declared_public.load_points for entry in entries]
    return dearest.model_dump(exclude={"epsilon_granted", "accounting"}) | {
        "models": models,
        "composition": CUSTOMERS[models],
        "load_points": sum(points) if models == PER_FEEDER else points[0],
        "with_earlier_releases": entries[0].manifest.composition.loads.model_dump(),
    }


def _feeder(entry: FeederEntry) -> dict[str, Any]:
    manifest, directory = entry.manifest, partition(entry.name)
    loads, network = manifest.guarantee.loads, manifest.guarantee.network
    return {
        "name": entry.name,
        "directory": directory,
        "release": manifest.release.id,
        "manifest": f"{directory}/{MANIFEST_FILE}",
        "manifest_file_sha256": entry.sha256,
        "certificate": f"{directory}/{CERTIFICATE_FILE}",
        "days": manifest.data.days,
        "steps_per_day": manifest.data.steps_per_day,
        "nodes": manifest.data.nodes,
        "customers": {
            "epsilon": loads.epsilon,
            "delta": loads.delta,
            "rho": loads.rho,
            "load_points": manifest.declared_public.load_points,
        },
        "network": network.model_dump(include={"mode", "kind", "neighbours", "epsilon", "delta"}),
        "network_with_earlier_releases": manifest.composition.network.promise.model_dump(),
    }


@dataclass(frozen=True)
class Fleet:
    """The corpus of a fleet on disk; `open_fleet` makes it.

    Attributes
    ----------
    path : its directory.
    manifest : `fleet.json`, unchecked.
    names : public names of the feeders.
    """

    path: Path
    manifest: dict[str, Any]
    names: tuple[str, ...]

    def feeder(self, name: str) -> Corpus:
        """The corpus of one feeder."""
        if name not in self.names:
            raise CorpusError(f"the fleet has no feeder {name!r}; its feeders are listed in {FLEET_FILE}")
        return open_corpus(self.path / partition(name))

    def files(self) -> list[str]:
        """Paths of all files with voltages, feeder by feeder."""
        return [
            str(self.path / partition(name) / DATA / part_name(part))
            for name in self.names
            for part in range(self.feeder(name).layout.n_parts)
        ]

    def dataset(self) -> ds.Dataset:
        """The rows of all feeders as they are stored, with a column `feeder` from the directories.

        A filter on the feeder reads the files of that feeder only.
        """
        import pyarrow.dataset as ds  # brings pandas, where that is installed

        partitioning = ds.HivePartitioning.discover(infer_dictionary=True)
        with loading(self.path):
            return ds.dataset(self.files(), format="parquet", partitioning=partitioning)


def release_paths(path: str | os.PathLike[str]) -> list[Path]:
    """The releases of a fleet, or the one release itself."""
    if "://" in os.fspath(path):
        raise CorpusError("tables for graph models are read from a folder; copy the release here first")
    place = Path(path)
    if not (place / FLEET_FILE).exists():
        return [place]
    return [place / partition(name) for name in open_fleet(place).names]


def open_fleet(path: str | os.PathLike[str]) -> Fleet:
    """Open the corpus of a fleet.

    Raises
    ------
    CorpusError : the directory is not the corpus of a fleet, or one of another version.
    """
    directory = Path(path)
    try:
        manifest = json_object((directory / FLEET_FILE).read_bytes())
        names = tuple(str(item["name"]) for item in manifest["feeders"])
    except (OSError, RecursionError, *MALFORMED) as error:
        raise CorpusError(
            f"{directory} has no {FLEET_FILE} that can be read; give the directory of a finished fleet"
        ) from error
    if manifest.get("format") not in (FORMAT, FORMAT_1):
        raise CorpusError(
            f"{directory / FLEET_FILE} has another format than '{FORMAT}'; use the program that made it"
        )
    return Fleet(directory, manifest, names)
