"""Tables of a TOML file: keys that are known, rules between keys, and every mistake at once.

A reader who corrects one mistake only to be shown the next gives up. So all mistakes of a file are said
together: misspelt keys are read under their right names, and a rule between keys is asked wherever the
keys that it reads are usable, whatever is wrong with the others.
"""

from __future__ import annotations

import copy
import datetime as dt
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dp_powerflow._names import refuse_unusable
from dp_powerflow.almanac.calendar import YEARS
from dp_powerflow.errors import Lines, printable

Rule = Callable[[Any], str | None]
"""What is wrong with a table although each of its keys is fine, as a sentence; None if nothing is."""


@dataclass(frozen=True)
class Forbidden:
    """A rule that forbids what a table states all in all.

    Attributes
    ----------
    what : whether a table states it.
    sentence : what is wrong and what to do; `{0.key}` stands for the value of a key of the table.
    """

    what: Callable[[Any], bool]
    sentence: str

    def __call__(self, table: Any) -> str | None:
        """The sentence; None if the table does not state it."""
        return self.sentence.format(table) if self.what(table) else None


BROKEN_RULES = "broken_rules"
_UNKNOWN, _NO_MODE, _MISSING = "extra_forbidden", "union_tag_not_found", "missing"
_LIKE = 0.6  # how alike a key must be to be taken for another one


def usable(value: Any) -> Any:
    """The value of any key, unless it has a text that names no file or a day of no calendar."""
    parts = (*value, *value.values()) if isinstance(value, dict) else value
    for part in parts if isinstance(parts, tuple) else ():
        usable(part)
    if isinstance(value, dt.date) and value.year not in YEARS:
        raise ValueError(f"a day lies between the years {YEARS[0]} and {YEARS[-1]}; correct it")
    if isinstance(value, str | Path):
        refuse_unusable(value, ValueError)
    return value


class Section(BaseModel):
    """A table of a config: unknown keys are errors, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rules: ClassVar[tuple[Rule, ...]] = ()

    _usable = field_validator("*")(usable)

    @model_validator(mode="after")
    def _follows_its_rules(self) -> Self:
        broken = [sentence for rule in self.rules if (sentence := rule(self)) is not None]
        if broken:
            raise PydanticCustomError(BROKEN_RULES, "{sentences}", {"sentences": "; ".join(broken)})
        return self


@dataclass(frozen=True)
class _Problem:
    """One error of pydantic.

    Attributes
    ----------
    path : the key that it is about, part by part.
    known : keys that the table of that key has.
    elsewhere : keys that it would have in another mode, by key.
    kind, message, context, value : as pydantic gives them.
    """

    path: tuple[str, ...]
    known: tuple[str, ...]
    elsewhere: Mapping[str, str]
    kind: str
    message: str
    context: Mapping[str, Any]
    value: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)


def sentence_of(mistakes: Iterable[str]) -> str:
    """All mistakes of a file in one message: a sentence, or a numbered list of them."""
    found = tuple(dict.fromkeys(map(printable, mistakes)))
    if len(found) == 1:
        return found[0]
    lines = (f"\n  {number}. {sentence}" for number, sentence in enumerate(found, start=1))
    return Lines(f"the config has {len(found)} mistakes:" + "".join(lines))


def mistakes_in(raw: Mapping[str, Any], model: type[BaseModel]) -> Iterator[str]:
    """Every mistake of a config that is not checked yet, a sentence each; none if it is one.

    Parameters
    ----------
    raw : content of the file.
    model : what it should be.
    """
    content = copy.deepcopy(dict(raw))
    while True:
        problems = _problems(content, model)
        misspelt = [problem for problem in problems if problem.kind == _UNKNOWN]
        for problem in misspelt:
            yield _set_right(content, problem)
        if not misspelt:
            break
    for problem in problems:
        yield _sentence(problem)
    yield from _all_broken(_usable_part(content, model, [problem.path for problem in problems]), ())


def _problems(content: dict[str, Any], model: type[BaseModel]) -> list[_Problem]:
    """What pydantic says of each key; broken rules are asked for apart."""
    try:
        model.model_validate(content)
    except ValidationError as error:
        found = [_problem(dict(item), model) for item in error.errors() if item["type"] != BROKEN_RULES]
        return [_misspelt_mode(problem) or problem for problem in found]
    return []


def _problem(item: dict[str, Any], model: type[BaseModel]) -> _Problem:
    return _Problem(
        *_place(item["loc"], model), item["type"], item["msg"], item.get("ctx", {}), item["input"]
    )


def _misspelt_mode(problem: _Problem) -> _Problem | None:
    """A table without a mode has a key that was meant to be one, perhaps; pydantic looks no further."""
    if problem.kind != _NO_MODE or not isinstance(problem.value, dict):
        return None
    near = difflib.get_close_matches("mode", map(str, problem.value), n=1, cutoff=_LIKE)
    return _Problem((*problem.path, near[0]), ("mode",), {}, _UNKNOWN, "", {}, None) if near else None


def _set_right(content: dict[str, Any], problem: _Problem) -> str:
    """Give an unknown key the name it was meant to have, or take it away; says so."""
    table, key = _table(content, problem.path), problem.path[-1]
    value = table.pop(key, None)
    if key in problem.elsewhere:
        section = ".".join(problem.path[:-1])
        return f"{problem.name} belongs to mode '{problem.elsewhere[key]}'; remove it from [{section}]"
    near = difflib.get_close_matches(key, problem.known, n=1, cutoff=0.0)
    if not near:
        return f"the config has an unknown key '{problem.name}'; remove it"
    if near[0] not in table and difflib.get_close_matches(key, near, n=1, cutoff=_LIKE):
        table[near[0]] = value
    return f"the config has an unknown key '{problem.name}'; did you mean '{near[0]}'?"


def _table(content: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The table that holds a key."""
    for part in path[:-1]:
        content = content[part]
    return content


def _sentence(problem: _Problem) -> str:
    name, said = problem.name, problem.message.removeprefix("Value error, ")
    detail = said.replace("Input should", "it should", 1)
    if problem.kind in (_MISSING, _NO_MODE):
        name = f"{name}.mode" if problem.kind == _NO_MODE else name
        return f"the config lacks '{name}'; add it ('dp-powerflow init' writes an example with every key)"
    if problem.kind == "union_tag_invalid":
        name, detail = f"{name}.mode", f"it is one of {problem.context['expected_tags']}"
    if problem.kind in ("model_type", "model_attributes_type"):
        return f"the config's '{name}' is not usable: it is a table; write [{name}] and its keys below"
    if problem.kind == "string_type" and not isinstance(problem.value, list | dict):
        detail = "it is text; write it in quotes"
    return f"the config's '{name}' is not usable: {detail}" if name else f"the config is not usable: {detail}"


# -------------------------------------------------------------------------------- rules between the keys


def _broken(section: Section) -> Iterator[str]:
    """The rules that the usable part of a section breaks; one that reads another key says nothing.

    Values are as they were written: a number may still be text, or too large, which no rule compares.
    """
    for rule in section.rules:
        try:
            sentence = rule(section)
        except (AttributeError, TypeError, ArithmeticError):
            continue
        if sentence is not None:
            yield sentence


def _all_broken(section: BaseModel, path: tuple[str, ...]) -> Iterator[str]:
    """The rules that a section and those within it break, as sentences that say where."""
    if isinstance(section, Section):
        where = f"the config's '{'.'.join(path)}'" if path else "the config"
        yield from (f"{where} is not usable: {sentence}" for sentence in _broken(section))
    for name, value in section:
        if isinstance(value, BaseModel):
            yield from _all_broken(value, (*path, name))


def _usable_part(
    content: dict[str, Any], model: type[BaseModel], bad: Iterable[tuple[str, ...]]
) -> BaseModel:
    """The model without the keys that are not usable: reading one of those is an AttributeError."""
    wrong = [path for path in bad if path]
    values: dict[str, Any] = {}
    unusable = {path[0] for path in wrong}
    for name, field in model.model_fields.items():
        inner = _chosen(_sections_in(field.annotation), content.get(name))
        if inner is not None and (name,) not in wrong:
            below = [path[1:] for path in wrong if path[0] == name]
            values[name] = _usable_part(content[name], inner, below)
            unusable.discard(name)
        elif name in content and name not in unusable:
            values[name] = content[name]
    made = model.model_construct(**values)
    for name in unusable:
        made.__dict__.pop(name, None)
    return made


def _chosen(sections: list[type[BaseModel]], value: Any) -> type[BaseModel] | None:
    """Which section a table is, by its mode where there are several."""
    if not isinstance(value, dict) or not sections:
        return None
    if len(sections) == 1:
        return sections[0]
    return next((section for section in sections if value.get("mode") in _tags(section)), None)


# ------------------------------------------------------------------------------------- where an error is


def _place(
    location: tuple[int | str, ...], model: type[BaseModel]
) -> tuple[tuple[str, ...], tuple[str, ...], Mapping[str, str]]:
    """The key that an error is about, part by part, the keys of its section, and the keys of other modes."""
    path: list[str] = []
    sections: list[type[BaseModel]] = [model]
    known: list[str] = []
    elsewhere: dict[str, str] = {}
    chosen = False
    for part in map(str, location):
        tagged = [section for section in sections if not chosen and part in _tags(section)]
        chosen = bool(tagged)
        if tagged:  # errors of a union name its member by the mode, which is no key
            others = (section for section in sections if section not in tagged)
            elsewhere = {
                key: mode for section in others for mode in _tags(section) for key in section.model_fields
            }
            sections = tagged
            continue
        path.append(part)
        known = [key for section in sections for key in section.model_fields]
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        sections = [found for field in fields for found in _sections_in(field.annotation)]
    return tuple(path), tuple(known), elsewhere


def _tags(section: type[BaseModel]) -> tuple[Any, ...]:
    mode = section.model_fields.get("mode")
    return () if mode is None else get_args(mode.annotation)


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field may hold: X, X | None, or X | Y."""
    choices = get_args(annotation) or (annotation,)
    return [item for item in choices if isinstance(item, type) and issubclass(item, BaseModel)]
