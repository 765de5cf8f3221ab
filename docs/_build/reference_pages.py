"""What reference pages hold that is made from the source: keys of the config, codes of errors."""

from __future__ import annotations

import ast
import datetime as dt
import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dp_powerflow.config import Config, StorageUrl

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
    """Every section and key, in Markdown."""
    parts = []
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


ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "dp_powerflow"
FEEDERS = PACKAGE / "grid" / "data" / "sentences.toml"
"""Sentences about feeders by code, and by other names that `refusal` does not take."""


def errors_page() -> str:
    """Every code with its error classes, and what they are for, or one sentence that has the code."""
    docs, sentences = documented_codes(), stated_codes()
    codes = {name: code for name, (code, _) in docs.items()}
    parts = ["| code | error | says |", "|---|---|---|"]
    for code in sorted({*codes.values(), *(code for code, _ in sentences)}):
        of_classes = [name for name, own in codes.items() if own == code]
        names = sorted({*of_classes, *(name for found, name in sentences if found == code)})
        stated = [text for key, texts in sentences.items() if key[0] == code for text in texts]
        said = [docs[name][1] for name in of_classes] or [
            min(stated, key=lambda text: (text == "…", text.count("…"), text))
        ]
        cells = (f"`{code}`", ", ".join(f"`{name}`" for name in names), "<br>".join(said))
        parts.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(parts) + "\n"


def documented_codes() -> dict[str, tuple[str, str]]:
    """Error class → its code, and what the class is for."""
    found = {}
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                for line in node.body:
                    if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
                        first = (ast.get_docstring(node) or "").partition("\n")[0]
                        found[node.name] = (str(ast.literal_eval(line.value)), first)
    return found


def stated_codes() -> dict[tuple[str, str], list[str]]:
    """Code and error class → sentences, of `SomeError(…, code="…")` and of `refusal("code.name")`."""
    found: dict[tuple[str, str], list[str]] = {}
    feeders = tomllib.loads(FEEDERS.read_text(encoding="utf-8"))
    owners = {code: name for name, (code, _) in documented_codes().items()}
    for tree in _trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            for keyword in node.keywords:
                if (
                    keyword.arg == "code"
                    and name.endswith("Error")
                    and isinstance(keyword.value, ast.Constant)
                ):
                    found.setdefault((str(keyword.value.value), name), []).append(_sentence(node.args[0]))
            code = _sentence(node.args[0]).partition(".")[0] if name == "refusal" and node.args else None
            if code in feeders:
                found[code, owners.get(code, "FeederError")] = [*map(_open, feeders[code].values())]
    return found


def _open(text: str) -> str:
    """A sentence with … where words are filled in."""
    return re.sub(r"\{[^{}]*\}", "…", text)


@cache
def _trees() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def _constants() -> Mapping[str, str]:
    """Texts that modules give a name, such as a sentence that is said at several places."""
    lines = (line for tree in _trees() for line in tree.body if isinstance(line, ast.Assign))
    return {
        ast.unparse(line.targets[0]): _open(line.value.value)
        for line in lines
        if isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
    }


def _sentence(node: ast.expr) -> str:
    """A sentence in Markdown, with … for what is not known before it is said."""
    if isinstance(node, ast.Constant):
        text = str(node.value).replace("…", "")
        return re.sub(r"([*_<\[])", r"\\\1", text)
    if isinstance(node, ast.JoinedStr):
        return "".join(_sentence(part) for part in node.values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _sentence(node.func.value)
    if isinstance(node, ast.Name | ast.Attribute):
        return _constants().get(node.id if isinstance(node, ast.Name) else node.attr, "…")
    return "…"
