"""`manifest.json` of a derived release: what was computed, from which release, and what it keeps.

It holds figures, settings, names and hashes; sentences are in templates. What follows from the release, the
settings and the tables (`determined`) is made again by `verify`. The two guarantees are those of the release,
entry by entry. Parsing is strict. docs/derived.schema.json is generated from the models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Generic, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, JsonValue, TypeAdapter

from dp_powerflow.corpus.storage import Location, RemotePath
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    FORMAT,
    MANIFEST_FILE,
    Count,
    Guarantee,
    Manifest,
    Network,
    ReleaseId,
    Section,
    Sha256,
    Version,
    all_policies,
    json_object,
    sha256_of,
)
from dp_powerflow.manifest.model import Name as Sentence
from dp_powerflow.manifest.model import parse as parse_kind
from dp_powerflow.studies.study import Kind, settings_of

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
        "settings": settings_of(kind),
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
    models = [_of_mode(policy) for policy in all_policies() if policy.derivable]
    schema = TypeAdapter(reduce(or_, models)).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manifest.json of a derived release of dp-powerflow, version 1",
    } | schema


@cache
def _of_mode(section: Any) -> Any:
    return DerivedManifest.__class_getitem__(section)


def is_derived(place: Location) -> bool:
    """Whether a folder is a derived release, of any version."""
    if isinstance(place, RemotePath):
        return False
    try:
        found = json_object((place / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return found.get("kind") == KIND or str(found.get("format")).startswith(FAMILY)
