"""Reads the files of a release that somebody may have changed: whatever is in them, no exception escapes."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow.corpus.errors import CorpusError
from dp_powerflow.corpus.reader import read_nodes
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.manifest.build import MANIFEST_FILE, MODEL_FILE
from dp_powerflow.pipeline.manifest.entries import ReleaseError

MALFORMED = (DpPowerflowError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading an entry of a file that somebody changed may raise."""


@dataclass(frozen=True, eq=False)
class Opened:
    """The files of a release that everything else is compared with; None where one cannot be read."""

    directory: Path
    content: bytes
    manifest: dict[str, Any]
    hashes: dict[str, str]
    model: LoadModel | None
    layout: CorpusLayout | None


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a release, unchecked."""
    try:
        return parse_manifest(manifest_content(directory))
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{directory / MANIFEST_FILE} is not JSON; this is not a release") from error


def manifest_content(directory: Path) -> bytes:
    """Bytes of `manifest.json`."""
    if not directory.is_dir():
        raise ReleaseError(f"{directory} is not a directory; give the directory of a release")
    try:
        return (directory / MANIFEST_FILE).read_bytes()
    except FileNotFoundError as error:
        raise ReleaseError(
            f"{directory} has no {MANIFEST_FILE}; give the directory of a finished release"
        ) from error
    except OSError as error:
        raise ReleaseError(f"{directory / MANIFEST_FILE} cannot be read: {error.strerror}") from error


def parse_manifest(content: bytes) -> dict[str, Any]:
    """The object in JSON bytes; ValueError or RecursionError if there is none."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a number of JSON")

    parsed = json.loads(content.decode("utf-8"), parse_constant=refuse)
    if not isinstance(parsed, dict):
        raise ValueError("not an object")
    return parsed


def hash_files(directory: Path) -> dict[str, str]:
    """SHA-256 of everything below the directory; what is no plain file gets a name instead of a hash."""
    hashes = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            hashes[name] = "not a plain file"
        elif path.is_file():
            try:
                with path.open("rb") as file:
                    hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError:
                hashes[name] = "unreadable"
    return hashes


def read_model(directory: Path) -> LoadModel | None:
    """The load model, None if `model.json` holds none whose cost can be stated."""
    try:
        model = LoadModel.from_json((directory / MODEL_FILE).read_text(encoding="utf-8"))
        return model if model.n_steps and math.isfinite(model.spent_epsilon) else None
    except (OSError, *MALFORMED):
        return None


def read_layout(directory: Path) -> CorpusLayout | None:
    """Shape of the corpus, None if `nodes.parquet` does not tell."""
    try:
        return read_nodes(directory)[0]
    except (CorpusError, *MALFORMED):
        return None
