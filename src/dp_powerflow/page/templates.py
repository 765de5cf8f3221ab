"""Templates of pages and documents, compiled once: to compile them takes longer than to fill them in.

Compiled ones are shipped with the kernels, else kept beside them, by their content (`_bits.kept`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import BytecodeCache, Environment, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket

from dp_powerflow._bits.kept import Folder, shipped_archive


def environment(
    package: str, folder: str, *, html: bool, filters: Mapping[str, Callable[..., Any]]
) -> Environment:
    """Where a package's templates are filled in.

    Parameters
    ----------
    package, folder : where they are.
    html : whether what is filled in is escaped.
    filters : what templates may call, by name.
    """
    found = Environment(
        loader=PackageLoader(package, folder),
        autoescape=html,  # off for Markdown and JSON only # nosec B701
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=_Kept(html),
    )
    found.filters |= filters
    return found


class _Kept(BytecodeCache):
    """Compiled templates of one environment."""

    def __init__(self, html: bool) -> None:
        self._html = html

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """By name alone: what is shipped is used wherever the package is installed."""
        return super().get_cache_key(name)

    def _key(self, bucket: Bucket) -> str:
        """The checksum is that of the source; jinja marks each entry with the version of Python."""
        content = f"{jinja2.__version__} {self._html} {bucket.key} {bucket.checksum}"
        return f"template.{bucket.key[:12]}-{hashlib.sha256(content.encode()).hexdigest()[:40]}"

    def load_bytecode(self, bucket: Bucket) -> None:
        key = self._key(bucket)
        found = shipped_archive().find(key) or Folder.of_user().find(key)
        if found is not None:
            bucket.bytecode_from_string(found)

    def dump_bytecode(self, bucket: Bucket) -> None:
        # A template is compiled soon: nobody need be told where it cannot be kept.
        Folder.of_user().keep(self._key(bucket), bucket.bytecode_to_string(), quietly=True)
