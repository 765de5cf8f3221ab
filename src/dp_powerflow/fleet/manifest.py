"""`fleet.json`: the certificate of a fleet, a pure function of the manifests of the feeders that are there.

It adds to the feeders' own manifests what only the whole can say: what all of it costs one customer, and that
the networks are secrets of their own. Feeders that were not released are not mentioned. Form and wording
belong to `FORMAT`; `fleet_verify` makes the file again and compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.fleet.feeders import partition, release_id_of
from dp_powerflow.fleet.text import CUSTOMERS, NAMES, NETWORKS, ONE_MODEL, PER_FEEDER, UNPROTECTED
from dp_powerflow.pipeline.manifest.build import (
    CERTIFICATE_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    manifest_bytes,
)
from dp_powerflow.pipeline.manifest.entries import ReleaseError, find
from dp_powerflow.pipeline.verify.files import manifest_content, parse_manifest, read_manifest

FORMAT = "dp-powerflow fleet manifest, version 1"
FLEET_FILE = "fleet.json"
FLEET_DIGEST = "fleet_sha256"


@dataclass(frozen=True, eq=False)
class FeederEntry:
    """A feeder that is there: its public name, its manifest, and the SHA-256 of that file."""

    name: str
    manifest: Mapping[str, Any]
    sha256: str


def read_entries(directory: Path) -> list[FeederEntry]:
    """The feeders in a directory, in the order of their names.

    Raises
    ------
    ReleaseError : a feeder's manifest cannot be read.
    """
    prefix = partition("")
    return [
        read_entry(path, path.name.removeprefix(prefix))
        for path in sorted(directory.iterdir())
        if path.name.startswith(prefix)
    ]


def read_entry(directory: Path, name: str) -> FeederEntry:
    """The entry of one feeder's release."""
    content = manifest_content(directory)
    try:
        manifest = parse_manifest(content)
    except (ValueError, RecursionError):
        raise ReleaseError(f"{directory / MANIFEST_FILE} is not JSON; this is not a release") from None
    return FeederEntry(name, manifest, hashlib.sha256(content).hexdigest())


def release_at(directory: Path) -> str | None:
    """Id of the release in a directory, None if there is none."""
    try:
        return str(find(read_manifest(directory), "release.id"))
    except DpPowerflowError:
        return None


def fleet_manifest(fleet_id: str, models: str, entries: Sequence[FeederEntry]) -> dict[str, Any]:
    """The manifest of a fleet.

    Parameters
    ----------
    models : ``"one"`` or ``"per-feeder"``.

    Raises
    ------
    ReleaseError : there is no feeder, or the feeders cannot be of one fleet: other customers, another unit.
    """
    problems = contradictions(fleet_id, models, entries)
    if problems:
        raise ReleaseError(f"the manifest of the fleet would contradict itself: {problems[0]}")
    manifest = {
        "format": FORMAT,
        "fleet": {
            "id": fleet_id,
            "feeders": len(entries),
            "feeder_days": sum(entry.manifest["data"]["days"] for entry in entries),
            "phasors": sum(entry.manifest["data"]["phasors"] for entry in entries),
            "insecure_seed": any(entry.manifest["release"]["insecure_seed"] for entry in entries),
            "simulated_loads": any(entry.manifest["release"]["simulated_loads"] for entry in entries),
            "warnings": sorted({text for entry in entries for text in entry.manifest["release"]["warnings"]}),
        },
        "customers": _customers(models, entries),
        "networks": {"statement": NETWORKS},
        "names": NAMES,
        "unprotected": list(UNPROTECTED),
        "feeders": [_feeder(entry) for entry in entries],
    }
    return manifest | {FLEET_DIGEST: fleet_digest(manifest)}


def fleet_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Canonical JSON, as that of a manifest."""
    return manifest_bytes(manifest)


def fleet_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON without the entry that holds it; no signature."""
    rest = {name: value for name, value in manifest.items() if name != FLEET_DIGEST}
    return hashlib.sha256(fleet_bytes(rest)).hexdigest()


def contradictions(fleet_id: str, models: str, entries: Sequence[FeederEntry]) -> list[str]:
    """Why these feeders are not one fleet, one sentence each."""
    if not entries:
        return ["There is no feeder."]
    if models not in CUSTOMERS:
        return ["What models the fleet has is none of the things that can be."]
    problems = [
        f"The release in {partition(entry.name)} is not the one of this feeder."
        for entry in entries
        if find(entry.manifest, "release.id") != release_id_of(fleet_id, entry.name)
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
        if len({_model_sha256(entry) for entry in entries}) > 1:
            problems.append(f"The feeders do not have the same {MODEL_FILE}.")
    problems += [
        f"The feeders do not agree on {path}."
        for path in shared
        if any(find(entry.manifest, path) != find(entries[0].manifest, path) for entry in entries)
    ]
    return problems


def _model_sha256(entry: FeederEntry) -> str:
    files = find(entry.manifest, "files")
    return str(files.get(MODEL_FILE)) if isinstance(files, dict) else ""


def _customers(models: str, entries: Sequence[FeederEntry]) -> dict[str, Any]:
    dearest = max((entry.manifest["guarantee"]["loads"] for entry in entries), key=lambda loads: loads["rho"])
    points = [entry.manifest["declared_public"]["load_points"] for entry in entries]
    return {
        "definition": dearest["definition"],
        "unit": dearest["unit"],
        "unit_in_words": dearest["unit_in_words"],
        "adjacency": dearest["adjacency"],
        "epsilon": dearest["epsilon"],
        "delta": dearest["delta"],
        "rho": dearest["rho"],
        "models": models,
        "composition": CUSTOMERS[models],
        "load_points": sum(points) if models == PER_FEEDER else points[0],
        "with_earlier_releases": dict(entries[0].manifest["composition"]["loads"]),
    }


def _feeder(entry: FeederEntry) -> dict[str, Any]:
    manifest, directory = entry.manifest, partition(entry.name)
    loads, network = manifest["guarantee"]["loads"], manifest["guarantee"]["network"]
    return {
        "name": entry.name,
        "directory": directory,
        "release": manifest["release"]["id"],
        "manifest": f"{directory}/{MANIFEST_FILE}",
        "manifest_file_sha256": entry.sha256,
        "certificate": f"{directory}/{CERTIFICATE_FILE}",
        "days": manifest["data"]["days"],
        "steps_per_day": manifest["data"]["steps_per_day"],
        "nodes": manifest["data"]["nodes"],
        "customers": {
            "epsilon": loads["epsilon"],
            "delta": loads["delta"],
            "rho": loads["rho"],
            "load_points": manifest["declared_public"]["load_points"],
        },
        "network": {name: network[name] for name in ("mode", "kind", "neighbours", "epsilon", "delta")},
        "network_with_earlier_releases": manifest["composition"]["network"]["promise"],
    }
