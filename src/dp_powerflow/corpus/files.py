"""Files that are there whole or not at all, and their hashes."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from dp_powerflow.corpus.storage import Location, RemotePath

_TEMPORARY = ".tmp-"


def write_whole(path: Location, content: bytes) -> None:
    """Write a file under a name of its own, wait for the disk, then give it its name; put an object.

    A reader sees the old file, or the new one, never half of it; so do several processes that write the same
    file at once.
    """
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    # The name is random, not drawn from any stream of the release: it never outlives this call.
    temporary = path.with_name(f"{path.name}{_TEMPORARY}{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def remove_temporaries(directory: Path) -> None:
    """Remove what killed processes left of files they had not finished."""
    for path in directory.rglob(f"*{_TEMPORARY}*"):
        path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    if os.name != "posix":
        return  # Windows cannot open a directory, and needs not.
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Whether this is a file that `write_whole` has not finished."""
    return _TEMPORARY in name


def file_hashes(directory: Location) -> dict[str, str]:
    """SHA-256 of every file below a directory, by its relative path with forward slashes, sorted."""
    if isinstance(directory, RemotePath):
        return {name: object_hash(directory / name) for name in directory.below()}
    hashes = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            hashes[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return dict(sorted(hashes.items()))


def object_hash(place: RemotePath) -> str:
    """SHA-256 of an object, read in pieces."""
    with place.open() as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
