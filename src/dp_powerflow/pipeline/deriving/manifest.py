"""What a derived release states: `manifest.json` and the pages that are made from it.

The manifest holds figures, settings, names and hashes; sentences are in templates. What follows from the
release, the settings and the tables (`determined`) is made again by `verify`. The two guarantees are those of
the release, entry by entry. Parsing is strict. docs/derived.schema.json is generated from the models.

Certificate and card follow from the manifest and from that of the release; `derived.html` shows the findings.
All are self-contained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from jinja2 import Environment, TemplateError
from pydantic import Field, JsonValue, TypeAdapter

from dp_powerflow import page
from dp_powerflow.corpus.storage import Location, RemotePath
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    FORMAT,
    MANIFEST_FILE,
    UNREADABLE,
    Count,
    Guarantee,
    Manifest,
    Network,
    ReleaseError,
    ReleaseId,
    Section,
    Sha256,
    Version,
    all_policies,
    at_most,
    in_digits,
    in_mode,
    json_object,
    sha256_of,
)
from dp_powerflow.manifest.model import Name as Sentence
from dp_powerflow.manifest.model import parse as parse_kind
from dp_powerflow.manifest.render import NOT_STATED, Words, cited_as, license_of, literally, promise_of
from dp_powerflow.page import environment
from dp_powerflow.studies.study import Kind, kind_of, sentences_of

KIND: Literal["study"] = "study"
FAMILY = "dp-powerflow derived manifest, "
"""Of formats that are no longer read."""
PAGE_FILE = "derived.html"
SOURCE_FILE = "source/manifest.json"
"""The manifest of the release that it came from, as it was."""
REQUIRED = (CERTIFICATE_FILE, CARD_FILE, PAGE_FILE, SOURCE_FILE)
"""Files beside the manifest and the tables."""
Origin = Literal["released files", "private state of the data owner"]
FROM_FILES: Origin = "released files"
FROM_STATE: Origin = "private state of the data owner"

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*$")]


class Origins(Section):
    """The release that it came from.

    Attributes
    ----------
    manifest_sha256 : of its file `manifest.json`, which is `source/manifest.json` here.
    derived_from : what the computation read.
    """

    id: ReleaseId
    manifest_sha256: Sha256
    derived_from: Origin


class Study(Section):
    """What was computed and studied: sizes, and the public sun of new PV.

    Attributes
    ----------
    name : of the kind, as in `dp-powerflow derive NAME`.
    loads : loads of the feeder, or loaded nodes where it was read from released files.
    irradiance : where the irradiance of new PV comes from.
    """

    name: Name
    days: Count
    steps_per_day: Count
    nodes: Count
    loads: Count
    latitude_deg: Annotated[float, Field(ge=-90.0, le=90.0)]
    irradiance: Sentence


class Column(Section):
    """A column of a table; unit and meaning where the kind states them."""

    name: Sentence
    type: Sentence
    unit: str | None
    means: str | None


class TableSection(Section):
    """A table: its file, or one of several parts."""

    file: FileName
    rows: Annotated[int, Field(ge=0)]
    columns: Annotated[list[Column], Field(min_length=1)]


class DerivedManifest(Section, Generic[Network]):
    """`manifest.json`: all that a derived release states, and the SHA-256 of every file."""

    format: Literal["dp-powerflow manifest, version 1"]
    kind: Literal["study"]
    source: Origins
    guarantee: Guarantee[Network]
    study: Study
    settings: dict[str, JsonValue]
    figures: dict[str, JsonValue]
    tables: list[TableSection]
    software: dict[str, Version]
    files: dict[FileName, Sha256]
    manifest_sha256: Sha256


def determined(
    source: Manifest[Any], content: bytes, derived_from: Origin, kind: Kind, tables: Sequence[TableSection]
) -> dict[str, Any]:
    """The entries that follow from the release, the settings and the tables.

    Parameters
    ----------
    source, content : manifest of the release, and its file.
    """
    return {
        "format": FORMAT,
        "kind": KIND,
        "source": {
            "id": source.release.id,
            "manifest_sha256": sha256_of(content),
            "derived_from": derived_from,
        },
        "guarantee": source.guarantee.model_dump(),
        "settings": kind.model_dump(mode="json"),
        "tables": [table.model_dump() for table in tables],
    }


def parse(content: Mapping[str, Any]) -> DerivedManifest[Any]:
    """The manifest in a JSON object.

    Raises
    ------
    ReleaseError : it has another format, or an entry is missing, unknown, of another type or out of range.
    """
    return cast("DerivedManifest[Any]", parse_kind(content, KIND, cast("Any", DerivedManifest)))


def described(name: str, content: bytes) -> TableSection:
    """A Parquet file as the manifest describes it; units and meanings are metadata of its columns."""
    file = pq.ParquetFile(pa.BufferReader(content))
    columns = []
    for column in file.schema_arrow:
        said = {key.decode(): words.decode() for key, words in (column.metadata or {}).items()}
        columns.append(
            Column(name=column.name, type=str(column.type), unit=said.get("unit"), means=said.get("means"))
        )
    return TableSection(file=name, rows=file.metadata.num_rows, columns=columns)


def derived_schema() -> dict[str, Any]:
    """The JSON schema of `manifest.json` of a derived release, in every mode that one is derived from."""
    whole = cast("Any", DerivedManifest)
    models: list[Any] = [in_mode(whole, policy) for policy in all_policies() if policy.derivable]
    schema = TypeAdapter(reduce(or_, models)).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manifest.json of a derived release of dp-powerflow, version 1",
    } | schema


def is_derived(place: Location) -> bool:
    """Whether a folder is a derived release, of any version."""
    if isinstance(place, RemotePath):
        return False
    try:
        found = json_object((place / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return found.get("kind") == KIND or str(found.get("format")).startswith(FAMILY)


# --- pages -------------------------------------------------------------------------------------------------
BECAUSE = (
    "Everything here is a function of synthetic loads and a twin network, which the release paid for, and of "
    "public settings. No function of them, and no number of functions, tells more of a customer or of the "
    "network than they do: both guarantees hold for the release and everything derived from it together."
)
SETTINGS_PUBLIC = (
    "The settings are public and were not chosen by looking at private data, as the data owner says."
)
FOLLOWS = {
    FROM_FILES: "From the released files anyone computes every byte again: dp-powerflow verify --release.",
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
            _name_and_files(parts[0].file)[1],
            sum(part.rows for part in parts),
            tuple(parts[0].columns),
        )
        for name, parts in found.items()
    ]


def table_name(file: str) -> str:
    """Name of the table that a file is, or is part of.

    `dispatch/part-00000.parquet` is part of `dispatch`, and a file in a folder `key=value` of what is above.
    """
    return _name_and_files(file)[0]


def _name_and_files(file: str) -> tuple[str, str]:
    """The same, and a pattern of all its files."""
    path = PurePosixPath(file)
    if "=" in path.parent.name:
        table = path.parent.parent
        return str(table.with_suffix("")), f"{table}/*/*.parquet"
    if path.name.startswith(_PART):
        return str(path.parent), f"{path.parent}/*.parquet"
    return str(path.with_suffix("")), file


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


def derived_html(manifest: DerivedManifest[Any], source: Manifest[Any], items: Sequence[page.Item]) -> bytes:
    """The page of what was found."""
    promise, study = promise_of(source), manifest.study
    promised: list[page.Item] = [
        page.Callout(of.title, of.sentences, "good" if of.holds else "warning")
        for of in (promise.loads, promise.network)
    ]
    if promise.warnings:
        promised.insert(0, page.Callout("Read this first", promise.warnings, "warning", wide=True))
    figures, settings = list(flat(manifest.figures)), tuple(flat(manifest.settings))
    rows = tuple(figures[:_MOST_FIGURES])
    more = f" The manifest has {len(figures) - len(rows)} more." if len(figures) > len(rows) else ""
    found: list[page.Item] = list(items)
    if rows:
        found.append(page.Table(("figure", "value"), rows, f"Figures of the manifest.{more}", frozenset({1})))
    about = (
        f"{study.days:,} days of {study.steps_per_day} steps, {study.nodes:,} nodes. "
        f"Irradiance of new PV: {study.irradiance}. All settings are public."
    )
    shown = (page.Table(("setting", "value"), settings, "Public settings."),) if settings else ()
    return page.Page(
        title=_title(manifest),
        marking=None,
        lead=(
            f"Computed from the synthetic loads and the twin network of release {source.release.id}. It "
            "spends nothing: both guarantees are those of the release.",
        ),
        sections=(
            page.Section("found", "What was found", tuple(words_of(manifest)), tuple(found)),
            page.Section("privacy", "What is protected", (BECAUSE,), tuple(promised)),
            page.Section("settings", "Settings", (about,), shown),
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
