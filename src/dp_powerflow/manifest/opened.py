"""A release as it is on disk, read and understood: nothing is compared with anything yet.

Each file is read and hashed once. Somebody may have changed a file: whatever is in it, no exception escapes
but those that are named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow.corpus.grid import VM_MAX_PU
from dp_powerflow.corpus.schema import BESIDE, DATA
from dp_powerflow.corpus.storage import Location, RemotePath, file_hash, loading
from dp_powerflow.corpus.validate import CorpusReport, validate_corpus
from dp_powerflow.manifest import model_again
from dp_powerflow.manifest.build import Facts, assemble, read_facts
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    CROISSANT_FILE,
    MALFORMED,
    MANIFEST_FILE,
    MODEL_FILE,
    QUALITY_FILE,
    REGISTRY_FILE,
    UNREADABLE,
    Manifest,
    ReleaseError,
    json_object,
)
from dp_powerflow.manifest.policy import parse_manifest
from dp_powerflow.model.gaussian import LoadModel

PAGES = (CERTIFICATE_FILE, CROISSANT_FILE, REGISTRY_FILE, CARD_FILE)
"""What is made again from the manifest alone."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A release that was read from disk.

    Attributes
    ----------
    content, raw : the file `manifest.json`, and the object in it.
    manifest : the same as a model; None if an entry is missing, unknown, of another type or out of range.
    problem : why there is no manifest.
    hashes : SHA-256 of every file; what is no plain file gets a name instead.
    small : content of the files that are made again.
    facts : what the release says without sentences; None if manifest or files do not tell.
    """

    directory: Location
    content: bytes
    raw: dict[str, Any]
    manifest: Manifest[Any] | None
    problem: str
    corpus: CorpusReport
    hashes: dict[str, str]
    small: dict[str, bytes]
    model: LoadModel | None
    facts: Facts | None

    def readable(self) -> tuple[Manifest[Any], Facts]:
        """Manifest and facts; ReleaseError if there are none."""
        if self.manifest is None or self.facts is None:
            raise ReleaseError(UNREADABLE)
        return self.manifest, self.facts


def manifest_content(directory: Location) -> bytes:
    """Bytes of `manifest.json`; ReleaseError if there is none."""
    if isinstance(directory, RemotePath):
        with loading(directory / MANIFEST_FILE):
            return (directory / MANIFEST_FILE).read_bytes()
    if not directory.is_dir():
        raise ReleaseError(
            f"{directory} is not a directory; give the directory of a release", code="release-not-found"
        )
    try:
        return (directory / MANIFEST_FILE).read_bytes()
    except FileNotFoundError as error:
        raise ReleaseError(
            f"{directory} has no {MANIFEST_FILE}; give the directory of a finished release",
            code="release-not-found",
        ) from error
    except OSError as error:
        raise ReleaseError(f"{directory / MANIFEST_FILE} cannot be read: {error.strerror}") from error


def release_at(place: Location) -> tuple[str, str] | None:
    """Id of the release at a place and what it commits to, unchecked; None if there is none."""
    try:
        content = (place / MANIFEST_FILE).read_bytes()
    except OSError as error:
        if isinstance(place, Path) or isinstance(error, FileNotFoundError):
            return None
        with loading(place):
            raise
    try:
        raw = json_object(content)
        return str(raw["release"]["id"]), str(raw["internal_report"]["sha256"])
    except (RecursionError, *MALFORMED):
        return None


def read_manifest(directory: Location) -> tuple[Manifest[Any], str]:
    """The manifest of a release, compared with nothing, and the SHA-256 of its file; ReleaseError if none."""
    return parsed_manifest(directory, manifest_content(directory))


def parsed_manifest(directory: Location, content: bytes) -> tuple[Manifest[Any], str]:
    """The same of bytes that were read there."""
    try:
        return parse_manifest(json_object(content)), sha256_of(content)
    except (ValueError, RecursionError):
        raise ReleaseError(
            f"{directory / MANIFEST_FILE} is not JSON; this is not a release", code="release-not-found"
        ) from None


Meanwhile = Callable[[Location, CorpusReport, Mapping[str, str]], None]
"""Told directory, corpus and hashes of a release once its files were read; see `Opened`."""


def open_release(directory: Location, content: bytes, meanwhile: Meanwhile | None = None) -> Opened:
    """Read a release, given its `manifest.json`; ValueError or RecursionError if that is no JSON.

    Parameters
    ----------
    meanwhile : called as soon as all files were read; the load model may still be being derived.
    """
    listed = json_object(content).get("files")
    model = model_again.begin(directory)
    corpus = validate_corpus(
        directory,
        other_files={
            name
            for name in (*(listed if isinstance(listed, dict) else ()), MANIFEST_FILE)
            if name.split("/")[0] not in (DATA, *BESIDE)
        },
        vm_range_pu=(0.0, VM_MAX_PU),
    )
    known = dict(corpus.hashes) | {MANIFEST_FILE: sha256_of(content)}
    hashes, small = _read_files(directory, known, {} if model is None else {MODEL_FILE: model})
    if meanwhile is not None:
        meanwhile(directory, corpus, hashes)
    return understand(directory, content, corpus, hashes, small)


def understand(
    directory: Location, content: bytes, corpus: CorpusReport, hashes: dict[str, str], small: dict[str, bytes]
) -> Opened:
    """What was read from disk, parsed; parameters as in `Opened`. ValueError or RecursionError if no JSON."""
    raw = json_object(content)
    model = model_again.model_of(small.get(MODEL_FILE, b""))
    manifest, problem, facts = None, "", None
    try:
        manifest = parse_manifest(raw)
        if model is not None and corpus.layout is not None:
            facts = read_facts(manifest, model, corpus)
            assemble(facts)  # raises if its constants promise nothing that can be stated
    except MALFORMED as error:
        problem, facts = str(error) if manifest is None else "", None
    return Opened(directory, content, raw, manifest, problem, corpus, hashes, small, model, facts)


def _read_files(
    directory: Location, known: dict[str, str], read: dict[str, bytes]
) -> tuple[dict[str, str], dict[str, bytes]]:
    """SHA-256 of everything below the directory, and the content of what is made again.

    Parameters
    ----------
    known, read : hashes, and contents, of files that were read already.
    """
    hashes: dict[str, str] = {}
    small: dict[str, bytes] = {}
    for name, plain in files_below(directory).items():
        if not plain:
            hashes[name] = "not a plain file"
        elif name in known:
            hashes[name] = known[name]
        else:
            try:
                if name in (MODEL_FILE, QUALITY_FILE, *PAGES):
                    small[name] = read[name] if name in read else (directory / name).read_bytes()
                    hashes[name] = sha256_of(small[name])
                else:
                    hashes[name] = file_hash(directory / name)
            except OSError:
                hashes[name] = "unreadable"
    return hashes, small


def files_below(directory: Location) -> dict[str, bool]:
    """Relative names, sorted, of all that is no folder, and whether each is a plain file."""
    if isinstance(directory, RemotePath):
        return dict.fromkeys(directory.below(), True)
    found = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*"))}
    plain = {name: path.is_file() and not path.is_symlink() for name, path in found.items()}
    return {name: plain[name] for name, path in found.items() if plain[name] or not _is_folder(path)}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def sha256_of(content: bytes) -> str:
    """SHA-256 as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
