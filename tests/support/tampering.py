"""Changing a release, and what `verify` finds of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dp_powerflow.manifest.model import canonical_json, digest_of, sha256_of
from dp_powerflow.manifest.verify import verify_release
from support.small import tree_hash

Where = tuple[str | int, ...]


def every(value: Any) -> Iterable[Any]:
    return value if isinstance(value, dict) else range(len(value))


def ends(value: Any) -> Iterable[Any]:
    """Of a list of many numbers the first and the last."""
    many = isinstance(value, list) and len(value) > 2 and not isinstance(value[0], dict | str)
    return (0, len(value) - 1) if many else every(value)


def failed(path: Path) -> set[str]:
    report = verify_release(path)
    assert report.ok == (not report.failures)
    return {check.name for check in report.failures}


def manifest_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return found


def rewrite(path: Path, manifest: dict[str, Any], *, sealed: bool) -> None:
    """Store a manifest, with its digest made to fit if it is to be sealed."""
    if sealed:
        manifest["manifest_sha256"] = digest_of(manifest)
    (path / "manifest.json").write_bytes(canonical_json(manifest))


def sealed(path: Path, manifest: dict[str, Any] | None = None) -> set[str]:
    """Make the hashes fit whatever is there now, and verify."""
    manifest = manifest_of(path) if manifest is None else manifest
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "manifest.json"]
    manifest["files"] = {file.relative_to(path).as_posix(): sha256_of(file.read_bytes()) for file in files}
    rewrite(path, manifest, sealed=True)
    return failed(path)


def leaves(value: Any, keys: Callable[[Any], Iterable[Any]] = every, path: Where = ()) -> Iterator[Where]:
    """Paths of all entries, or of those that `keys` chooses of an object or a list."""
    if isinstance(value, dict | list):
        for key in keys(value):
            yield from leaves(value[key], keys, (*path, key))
    else:
        yield path


def altered(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.999 if value else 0.001
    if value is None:
        return "something"
    if len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return value[::-1]
    return value.replace("a", "b", 1) if "a" in value else value + "x"


def value_at(content: Any, path: Where) -> Any:
    for key in path:
        content = content[key]
    return content


def changed(content: Any, path: Where, value: Any) -> Any:
    other = copy.deepcopy(content)
    value_at(other, path[:-1])[path[-1]] = value
    return other


def with_leaf(manifest: dict[str, Any], path: Where) -> Any:
    return changed(manifest, path, altered(value_at(manifest, path)))


def without_hashes(release: Path, name: str) -> str:
    """A released text with the hashes of files, the manifest's own hash and the commitment blanked."""
    manifest, text = manifest_of(release), (release / name).read_text()
    known = [*tree_hash(release).values(), manifest["manifest_sha256"], manifest["internal_report"]["sha256"]]
    for digest in known:
        text = text.replace(digest, "#")
    return text
