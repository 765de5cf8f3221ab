"""The pages of a derived release: certificate and card follow from the manifests.

`derived.html` shows the findings. All are self-contained and name both guarantees, which are
those of the release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import yaml
from jinja2 import Environment

from dp_powerflow.manifest.model import Manifest, at_most, in_digits
from dp_powerflow.manifest.release import promise_of
from dp_powerflow.manifest.render import NOT_STATED, Words, cited_as, license_of, literally
from dp_powerflow.page import Callout, Item, Page, Section, Table
from dp_powerflow.page.document import environment
from dp_powerflow.pipeline.deriving.manifest import Column, DerivedStatement, TableSection

_PART = "part-"
_MOST_FIGURES = 60
"""Rows of figures on a page; the manifest has all."""


@dataclass(frozen=True)
class NamedTable:
    """A table with all its parts.

    Attributes
    ----------
    name : as `open_derived` calls it.
    files : relative path, or a pattern of several.
    """

    name: str
    files: str
    rows: int
    columns: tuple[Column, ...]


def named_tables(tables: Sequence[TableSection]) -> list[NamedTable]:
    """Tables by name, those in parts as one."""
    found: dict[str, list[TableSection]] = {}
    for table in tables:
        found.setdefault(table_name(table.file), []).append(table)
    return [
        NamedTable(
            name,
            _pattern(parts[0].file),
            sum(part.rows for part in parts),
            tuple(parts[0].columns),
        )
        for name, parts in found.items()
    ]


def table_name(file: str) -> str:
    """Name of the table that a file is, or is part of.

    `dispatch/part-00000.parquet` is part of `dispatch`, and a file in a folder `key=value` of what is above.
    """
    path = PurePosixPath(file)
    if "=" in path.parent.name:
        return str(path.parent.parent.with_suffix(""))
    return str(path.parent) if path.name.startswith(_PART) else str(path.with_suffix(""))


def _pattern(file: str) -> str:
    """All files of the table that a file is, or is part of."""
    path = PurePosixPath(file)
    if "=" in path.parent.name:
        return f"{path.parent.parent}/*/*.parquet"
    return f"{path.parent}/*.parquet" if path.name.startswith(_PART) else file


def title_of(statement: DerivedStatement[Any]) -> str:
    """Title of the pages."""
    return f"{statement.derived.kind} of release {statement.source.id}"


def certificate_html(statement: DerivedStatement[Any], source: Manifest[Any]) -> bytes:
    """The page that a privacy officer reads; hashes do not enter."""
    return _environment(html=True).get_template("certificate.html").render(_shown(statement, source)).encode()


def card_bytes(statement: DerivedStatement[Any], source: Manifest[Any]) -> bytes:
    """`README.md`, the card that dataset hubs show; hashes do not enter."""
    tables = named_tables(statement.tables)
    head = {
        "pretty_name": title_of(statement),
        **license_of(source.publication),
        "tags": ["distribution-grid", "energy", "synthetic", "differential-privacy", "dp-powerflow"],
        "configs": [
            {"config_name": table.name.replace("/", "-"), "data_files": table.files} for table in tables
        ],
    }
    shown = {
        **_shown(statement, source),
        "title": title_of(statement),
        "tables": tables,
        "publication": source.publication,
        "not_stated": NOT_STATED,
        "citation": cited_as(source.publication, source.release.id).splitlines(),
    }
    front: str = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=110)
    return f"---\n{front}---\n\n{_environment(html=False).get_template('card.md').render(shown)}".encode()


def derived_html(statement: DerivedStatement[Any], source: Manifest[Any], items: Sequence[Item]) -> bytes:
    """The page of what was found."""
    promise, release = promise_of(source), statement.source.id
    promised: list[Item] = [
        Callout(of.title, of.sentences, "good" if of.holds else "warning")
        for of in (promise.loads, promise.network)
    ]
    if promise.warnings:
        promised.insert(0, Callout("Read this first", promise.warnings, "warning", wide=True))
    figures = list(flat(statement.figures))
    rows = tuple(figures[:_MOST_FIGURES])
    more = f" The manifest has {len(figures) - len(rows)} more." if len(figures) > len(rows) else ""
    found: list[Item] = list(items)
    if rows:
        found.append(Table(("figure", "value"), rows, f"Figures of the manifest.{more}", frozenset({1})))
    settings = tuple(flat(statement.settings))
    study = statement.study
    about = (
        f"{study.days:,} days of {study.steps_per_day} steps, {study.nodes:,} nodes. "
        f"Irradiance of new PV: {study.irradiance}. All settings are public."
    )
    sections = [
        Section("found", "What was found", tuple(statement.sentences), tuple(found)),
        Section("privacy", "What is protected", (statement.cost.because,), tuple(promised)),
        Section(
            "settings",
            "Settings",
            (about,),
            (Table(("setting", "value"), settings, "Public settings."),) if settings else (),
        ),
    ]
    return Page(
        title=title_of(statement),
        marking=None,
        lead=(
            f"Computed from the synthetic loads and the twin network of release {release}. It spends "
            f"{statement.cost.spends}: both guarantees are those of the release.",
        ),
        sections=tuple(sections),
        footer=(statement.source.can_be_checked,),
        summary={"kind": statement.derived.kind, "release": release, "figures": statement.figures},
    ).to_html()


def flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of nested figures, as texts."""
    for name, value in values.items():
        path = f"{where}.{name}" if where else name
        if isinstance(value, dict) and value:
            yield from flat(value, path)
        else:
            yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(statement: DerivedStatement[Any], source: Manifest[Any]) -> dict[str, Any]:
    return {
        "derived": statement.derived,
        "source": statement.source,
        "cost": statement.cost,
        "loads": statement.guarantee.loads,
        "promised": promise_of(source).network,
        "unit": Words.of(source).text("unit"),
        "study": statement.study,
        "settings": list(flat(statement.settings)),
        "figures": list(flat(statement.figures)),
        "sentences": statement.sentences,
        "software": statement.software,
    }


@cache
def _environment(*, html: bool) -> Environment:
    filters: dict[str, Callable[..., Any]] = {
        "at_most": at_most,
        "in_digits": in_digits,
        "literally": literally,
        "cell": _cell,
    }
    return environment("dp_powerflow.pipeline.deriving", "templates", html=html, filters=filters)


def _cell(words: str) -> str:
    """A text in a cell of a Markdown table."""
    return literally(" ".join(words.split()))
