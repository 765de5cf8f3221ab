"""The pages of a derived release: certificate and card follow from its manifest and that of the release.

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
from jinja2 import Environment, TemplateError

from dp_powerflow.manifest.model import UNREADABLE, Manifest, ReleaseError, at_most, in_digits
from dp_powerflow.manifest.render import NOT_STATED, Words, cited_as, license_of, literally, promise_of
from dp_powerflow.page import Callout, Item, Page, Section, Table
from dp_powerflow.page.document import environment
from dp_powerflow.pipeline.deriving.manifest import (
    FROM_FILES,
    FROM_STATE,
    Column,
    DerivedManifest,
    TableSection,
)
from dp_powerflow.studies.study import kind_of, sentences_of

BECAUSE = (
    "Everything here is a function of synthetic loads and a twin network, which the release paid for, and of "
    "public settings. No function of them, and no number of functions, tells more of a customer or of the "
    "network than they do: both guarantees hold for the release and everything derived from it together."
)
SETTINGS_PUBLIC = (
    "The settings are public and were not chosen by looking at private data, as the data owner says."
)
FOLLOWS = {
    FROM_FILES: "Whoever has the released files computes every byte again: dp-powerflow verify --release.",
    FROM_STATE: (
        "The data owner, or an auditor who has the private state, computes every byte again: dp-powerflow "
        "verify --private --config."
    ),
}
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


def certificate_html(manifest: DerivedManifest[Any], source: Manifest[Any]) -> bytes:
    """The page that a privacy officer reads; hashes do not enter."""
    return _rendered("certificate.html", _shown(manifest, source)).encode()


def card_bytes(manifest: DerivedManifest[Any], source: Manifest[Any]) -> bytes:
    """`README.md`, the card that dataset hubs show; hashes do not enter."""
    tables = named_tables(manifest.tables)
    head = {
        "pretty_name": _title(manifest),
        **license_of(source.publication),
        "tags": ["distribution-grid", "energy", "synthetic", "differential-privacy", "dp-powerflow"],
        "configs": [
            {"config_name": table.name.replace("/", "-"), "data_files": table.files} for table in tables
        ],
    }
    shown = {
        **_shown(manifest, source),
        "title": _title(manifest),
        "tables": tables,
        "publication": source.publication,
        "not_stated": NOT_STATED,
        "citation": cited_as(source.publication, source.release.id).splitlines(),
    }
    front: str = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=110)
    return f"---\n{front}---\n\n{_rendered('card.md', shown)}".encode()


def _rendered(name: str, shown: Mapping[str, Any]) -> str:
    """A page; ReleaseError if an entry that it shows is missing, as in a manifest that somebody changed."""
    try:
        return _environment(html=name.endswith(".html")).get_template(name).render(shown)
    except TemplateError:
        raise ReleaseError(UNREADABLE) from None


def derived_html(manifest: DerivedManifest[Any], source: Manifest[Any], items: Sequence[Item]) -> bytes:
    """The page of what was found."""
    promise, study = promise_of(source), manifest.study
    promised: list[Item] = [
        Callout(of.title, of.sentences, "good" if of.holds else "warning")
        for of in (promise.loads, promise.network)
    ]
    if promise.warnings:
        promised.insert(0, Callout("Read this first", promise.warnings, "warning", wide=True))
    figures, settings = list(flat(manifest.figures)), tuple(flat(manifest.settings))
    rows = tuple(figures[:_MOST_FIGURES])
    more = f" The manifest has {len(figures) - len(rows)} more." if len(figures) > len(rows) else ""
    found: list[Item] = list(items)
    if rows:
        found.append(Table(("figure", "value"), rows, f"Figures of the manifest.{more}", frozenset({1})))
    about = (
        f"{study.days:,} days of {study.steps_per_day} steps, {study.nodes:,} nodes. "
        f"Irradiance of new PV: {study.irradiance}. All settings are public."
    )
    shown = (Table(("setting", "value"), settings, "Public settings."),) if settings else ()
    return Page(
        title=_title(manifest),
        marking=None,
        lead=(
            f"Computed from the synthetic loads and the twin network of release {source.release.id}. It "
            "spends nothing: both guarantees are those of the release.",
        ),
        sections=(
            Section("found", "What was found", tuple(words_of(manifest)), tuple(found)),
            Section("privacy", "What is protected", (BECAUSE,), tuple(promised)),
            Section("settings", "Settings", (about,), shown),
        ),
        footer=(FOLLOWS[manifest.source.derived_from],),
        summary={"kind": manifest.study.name, "release": source.release.id, "figures": manifest.figures},
    ).to_html()


def words_of(manifest: DerivedManifest[Any]) -> list[str]:
    """What a reader must know, from settings and figures."""
    return sentences_of(
        kind_of(manifest.study.name, manifest.settings), manifest.figures, manifest.study.days
    )


def flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of nested figures, as texts."""
    for name, value in values.items():
        path = f"{where}.{name}" if where else name
        if isinstance(value, dict) and value:
            yield from flat(value, path)
        else:
            yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _title(manifest: DerivedManifest[Any]) -> str:
    return f"{manifest.study.name} of release {manifest.source.id}"


def _shown(manifest: DerivedManifest[Any], source: Manifest[Any]) -> dict[str, Any]:
    words = Words.of(source)
    return {
        "kind": manifest.study.name,
        "release": source.release,
        "derived_from": manifest.source.derived_from,
        "because": BECAUSE,
        "settings_public": SETTINGS_PUBLIC,
        "follows": FOLLOWS[manifest.source.derived_from],
        "loads": source.guarantee.loads,
        "promised": promise_of(source).network,
        "unit": words.text("unit"),
        "warnings": words["warnings"],
        "study": manifest.study,
        "settings": list(flat(manifest.settings)),
        "figures": list(flat(manifest.figures)),
        "sentences": words_of(manifest),
        "software": manifest.software,
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
