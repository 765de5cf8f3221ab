"""One renderer per result: what the numbers of the layers below mean, for a reader."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Rendered:
    """A result, rendered.

    Attributes
    ----------
    lines : list of str
        Markdown for a person.
    json_text : str
        The same as JSON for a machine.
    """

    lines: list[str]
    json_text: str


@contextmanager
def without_log_of(package: str) -> Iterator[None]:
    """What a package logs meanwhile is not shown, but for errors."""
    logger = logging.getLogger(package)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
