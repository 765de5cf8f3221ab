"""Entries of a manifest by path, and how two of them are compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

from dp_powerflow.errors import DpPowerflowError

RELATIVE = 1e-9
"""Figures that are computed again may differ by this share: other versions of scipy, other last digits."""

T = TypeVar("T", str, int, float, bool)


class ReleaseError(DpPowerflowError):
    """A release cannot be described, or a directory is not a release."""


def find(manifest: Any, path: str) -> Any:
    """What is at a path such as ``"release.id"``."""
    found = manifest
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            raise ReleaseError(f"the manifest has no entry {path}")
        found = found[name]
    return found


def entry(manifest: Any, path: str, kind: type[T]) -> T:
    """The value at a path, or an error if it is of another type; a truth value is not a number."""
    found = find(manifest, path)
    if type(found) is not kind:
        raise ReleaseError(f"the manifest's {path} is not of the type {kind.__name__}")
    return found


def optional(manifest: Any, path: str, kind: type[T]) -> T | None:
    """As `entry`; None if null is there."""
    return None if find(manifest, path) is None else entry(manifest, path, kind)


def differences(stated: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Paths of the entries that differ; recomputed numbers may differ in the last digits."""
    if isinstance(stated, dict) and isinstance(expected, dict):
        for key in sorted(stated.keys() | expected.keys()):
            path = f"{where}.{key}" if where else key
            if key not in stated or key not in expected:
                yield path
            else:
                yield from differences(stated[key], expected[key], path)
    elif isinstance(stated, list) and isinstance(expected, list):
        if len(stated) != len(expected):
            yield where
        for k, (one, other) in enumerate(zip(stated, expected, strict=False)):
            yield from differences(one, other, f"{where}[{k}]")
    elif type(stated) is float and type(expected) is float:
        if not math.isclose(stated, expected, rel_tol=RELATIVE):
            yield where
    elif type(stated) is not type(expected) or stated != expected:
        yield where
