"""The reference page of the config, from its schema: every key with type, default and meaning."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dp_powerflow.config import Config, StorageUrl

_HEAD = """\
# Reference: the config of a release

One TOML file says everything about a release. `dp-powerflow init` writes one; this page has every key.
`make reference` writes the page from the schema.

All of it is declared public: never set a key by what private data show. Paths are relative to the file.
Unknown keys are errors, and all mistakes of a file are reported at once. A key without default must be given.
"""
_TYPES: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dt.date: "date",
    Path: "path",
    StorageUrl: "URL",
}
_LIMITS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_ATTRIBUTE = re.compile(r"^(?P<names>\w+(?:, \w+)*) : (?P<text>.*)$")


def config_page() -> str:
    """The page, in Markdown."""
    parts = [_HEAD]
    for name, field in Config.model_fields.items():
        sections = [item for item in _members(field.annotation) if issubclass(item, BaseModel)]
        needed = "" if field.is_required() else " (may be left out)"
        parts.append(f"## [{name}]{needed}\n")
        for section in sections:
            parts += _section(section, one_of_many=len(sections) > 1)
    return "\n".join(parts)


def meanings(section: type[BaseModel]) -> dict[str, str]:
    """Key → meaning, from the attributes in the docstring of a section."""
    text = inspect.getdoc(section) or ""
    _, _, attributes = text.partition("Attributes\n----------\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in attributes.splitlines():
        match = _ATTRIBUTE.match(line)
        if match is not None:
            names = match["names"].split(", ")
            found |= dict.fromkeys(names, match["text"])
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return {name: said.strip().rstrip(".") for name, said in found.items()}


def _section(section: type[BaseModel], *, one_of_many: bool) -> Iterator[str]:
    words, _, _ = (inspect.getdoc(section) or "").partition("Attributes\n----------\n")
    if one_of_many:
        (mode,) = get_args(section.model_fields["mode"].annotation)
        yield f"### {mode}\n"
    yield words.strip() + "\n"
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    said = meanings(section)
    for key, field in section.model_fields.items():
        cells = (f"`{key}`", _type(field), _default(field), said[key])
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
    yield ""


def _type(field: FieldInfo) -> str:
    words = _words(field.annotation)
    limits = [_limit(item) for item in field.metadata]
    return ", ".join([words, *(limit for limit in limits if limit)])


def _limit(item: Any) -> str:
    for name, sign in _LIMITS.items():
        value = getattr(item, name, None)
        if value is not None:
            return f"{sign} {value:g}"
    return ""


def _words(annotation: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [_limit(found) for item in inner[1:] for found in (item, *getattr(item, "metadata", ()))]
        return ", ".join([_words(inner[0]), *(limit for limit in limits if limit)])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(item) for item in inner if item is not NoneType))
    if origin is tuple:
        return (
            f"list of {_words(inner[0])}" if inner[-1] is Ellipsis else f"{len(inner)} of: {_words(inner[0])}"
        )
    if origin is dict:
        return f"table of {_words(inner[1])}"
    return _TYPES.get(annotation, "table")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "—"
    if value is None:
        return "none"
    if value == {}:
        return "empty"
    return f"`{json.dumps(value)}`"


def _members(annotation: Any) -> list[type]:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return [item for item in (get_args(annotation) or (annotation,)) if item is not NoneType]
