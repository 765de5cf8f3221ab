"""Templates of pages and documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


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
    )
    found.filters |= filters
    return found
