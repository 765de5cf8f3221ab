"""A derived release as it is on disk: hashes of its files, its two manifests, the schemas of its tables.

Somebody may have changed a file: whatever is in it, no exception escapes but those that are named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dp_powerflow.corpus.storage import Location, RemotePath
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    MALFORMED,
    MANIFEST_FILE,
    Manifest,
    json_object,
)
from dp_powerflow.manifest.policy import parse_manifest
from dp_powerflow.manifest.verify import files_below, manifest_content, sha256_of
from dp_powerflow.pipeline.deriving.manifest import (
    FAMILY,
    SOURCE_FILE,
    DerivedManifest,
    TableSection,
    described,
    parse,
)

_SMALL = (CERTIFICATE_FILE, CARD_FILE, SOURCE_FILE)


def is_derived(place: Location) -> bool:
    """Whether a folder is a derived release, of any version."""
    if isinstance(place, RemotePath):
        return False
    try:
        found = json_object((place / MANIFEST_FILE).read_bytes()).get("format")
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, str) and found.startswith(FAMILY)


@dataclass(frozen=True, eq=False)
class OpenedDerived:
    """A derived release that was read.

    Attributes
    ----------
    content, raw : the file `manifest.json`, and the object in it.
    manifest : the same as a model; None if an entry cannot be used, for which `problem` says why.
    hashes : SHA-256 of every other file; what is no plain file gets a name instead.
    small : content of the files that are made again.
    source_raw, source : the manifest of the release as JSON and as a model; None if it is none.
    tables : schemas of the tables; None of one that cannot be read.
    """

    directory: Path
    content: bytes
    raw: dict[str, Any]
    manifest: DerivedManifest[Any] | None
    problem: str
    hashes: dict[str, str]
    small: dict[str, bytes]
    source_raw: dict[str, Any] | None
    source: Manifest[Any] | None
    tables: dict[str, TableSection | None]


def open_files(directory: Path) -> OpenedDerived:
    """Read a derived release; ValueError or RecursionError if its manifest is no JSON."""
    content = manifest_content(directory)
    raw = json_object(content)
    manifest, problem = None, ""
    try:
        manifest = parse(raw)
    except MALFORMED as error:
        problem = str(error)
    hashes, small, tables = _read(directory)
    source_raw, source = _source(small.get(SOURCE_FILE))
    return OpenedDerived(
        directory, content, raw, manifest, problem, hashes, small, source_raw, source, tables
    )


def _read(directory: Path) -> tuple[dict[str, str], dict[str, bytes], dict[str, TableSection | None]]:
    """Each file is read once: hashed, and kept or parsed."""
    hashes: dict[str, str] = {}
    small: dict[str, bytes] = {}
    tables: dict[str, TableSection | None] = {}
    for name, plain in files_below(directory).items():
        if name == MANIFEST_FILE:
            continue
        if not plain:
            hashes[name] = "not a plain file"
            continue
        try:
            content = (directory / name).read_bytes()
        except OSError:
            hashes[name] = "unreadable"
            continue
        hashes[name] = sha256_of(content)
        if name in _SMALL:
            small[name] = content
        elif name.endswith(".parquet"):
            tables[name] = _table(name, content)
    return hashes, small, tables


def _table(name: str, content: bytes) -> TableSection | None:
    try:
        return described(name, content)
    except (pa.ArrowException, OSError, UnicodeDecodeError, *MALFORMED):
        return None


def _source(content: bytes | None) -> tuple[dict[str, Any] | None, Manifest[Any] | None]:
    if content is None:
        return None, None
    try:
        raw = json_object(content)
    except (ValueError, RecursionError):
        return None, None
    try:
        return raw, parse_manifest(raw)
    except MALFORMED:
        return raw, None
