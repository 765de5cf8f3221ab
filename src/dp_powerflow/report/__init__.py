"""One renderer per result, and text on any terminal: what inputs hold is shown and never obeyed.

Names in files may hold escape sequences, signs that turn the direction of a line, or bytes that are no text.
A terminal of an old code page cannot write ε. Both are shown as escapes, such as `\x1b` and `\u03b5`.
"""

from __future__ import annotations

import io
import logging
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from dp_powerflow._names import UNSEEN

_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """The text with signs that are not seen, or that steer a terminal, as escapes; lines stay lines."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(sign if _is_shown(sign) else _escape(sign) for sign in text)


def _is_shown(sign: str) -> bool:
    return sign in _KEPT or unicodedata.category(sign) not in UNSEEN


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Terminal(Console):
    """A console whose texts are `printable`."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As of `Console`."""
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)

    def print_json(self, json: str | None = None, **options: Any) -> None:
        """As of `Console`, in ASCII: JSON has escapes of its own."""
        super().print_json(json, **{"ensure_ascii": True} | options)


def write_what_can_be() -> None:
    """Let stdout and stderr write signs that their encoding lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


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


def markdown(template: str, filters: Mapping[str, Callable[..., object]], /, **facts: object) -> list[str]:
    """Lines of a template of `templates/`.

    Parameters
    ----------
    filters : of this template; `f` is Python's format of a figure, and what to write where there is none.
    facts : names that the template has.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("dp_powerflow.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    made.filters |= {"f": _number, **filters}
    return made.get_template(template).render(facts).removesuffix("\n").split("\n")


def _number(value: float | None, form: str, without: str = "") -> str:
    return without if value is None else format(value, form)


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
