"""`manifest.json` of a derived release, format 1: what was computed, from which release, and what it keeps.

It is a function of `DerivedFacts` (`assemble`), which `verify` reads back from the files and assembles again.
The two guarantees are those of the release that it came from, entry by entry. Parsing is strict, as that of
the manifest of a release. docs/derived.schema.json is generated from the models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Generic, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from dp_powerflow.corpus.storage import Location, RemotePath
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    DIGEST,
    MANIFEST_FILE,
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
    canonical_json,
    digest_of,
    json_object,
    registered,
)
from dp_powerflow.manifest.render import Words

FORMAT: Literal["dp-powerflow derived manifest, version 1"] = "dp-powerflow derived manifest, version 1"
"""Fixes form and wording: any change of either is another version."""
FAMILY = "dp-powerflow derived manifest, "
PAGE_FILE = "derived.html"
SOURCE_FILE = "source/manifest.json"
"""The manifest of the release that it came from, as it was."""
Origin = Literal["released files", "private state of the data owner"]
FROM_FILES: Origin = "released files"
FROM_STATE: Origin = "private state of the data owner"

SPENDS = "nothing"
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

Sentence = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*$")]


class Origins(Section):
    """The release that it came from.

    Attributes
    ----------
    manifest_sha256 : of its file `manifest.json`, which is in `file`.
    derived_from : what the computation read.
    """

    id: ReleaseId
    file: Literal["source/manifest.json"]
    manifest_sha256: Sha256
    derived_from: Origin
    can_be_checked: Sentence


class Derivation(Section):
    """What was computed, and why it may not be a release at all."""

    kind: Name
    software: Literal["dp-powerflow"]
    insecure_seed: bool
    simulated_loads: bool
    warnings: list[Sentence]


class Spending(Section):
    """What it costs, and why."""

    spends: Literal["nothing"]
    because: Sentence
    settings: Sentence


class Study(Section):
    """What was studied: sizes, and the public sun of new PV.

    Attributes
    ----------
    loads : loads of the feeder, or loaded nodes where it was read from released files.
    customers : public number of customers of all loads; None where none are known.
    irradiance : where the irradiance of new PV comes from.
    """

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


class DerivedStatement(Section, Generic[Network]):
    """All that a derived release says but for the hashes of its files."""

    format: Literal["dp-powerflow derived manifest, version 1"]
    derived: Derivation
    source: Origins
    cost: Spending
    guarantee: Guarantee[Network]
    settings: dict[str, JsonValue]
    study: Study
    figures: dict[str, JsonValue]
    sentences: list[Sentence]
    tables: list[TableSection]
    software: dict[str, Version]


class DerivedManifest(DerivedStatement[Network], Generic[Network]):
    """`manifest.json`: the statement, the SHA-256 of every other file, and that of all of this."""

    files: dict[FileName, Sha256]
    manifest_sha256: Sha256

    def to_bytes(self) -> bytes:
        """The file `manifest.json`."""
        return canonical_json(self.model_dump())


@dataclass(frozen=True, eq=False)
class DerivedFacts:
    """What a derived release says, without sentences of its own.

    Attributes
    ----------
    source, source_sha256 : manifest of the release, and the SHA-256 of its file.
    derived_from : what the computation read.
    kind, settings : name and public settings.
    study : what was studied.
    figures, sentences : what was found.
    tables : schemas of the tables.
    software : versions of the packages that computed it.
    """

    source: Manifest[Any]
    source_sha256: str
    derived_from: Origin
    kind: str
    settings: Mapping[str, Any]
    study: Study
    figures: Mapping[str, Any]
    sentences: Sequence[str]
    tables: Sequence[TableSection]
    software: Mapping[str, str]


def assemble(facts: DerivedFacts) -> DerivedStatement[Any]:
    """The statement that the facts determine."""
    release = facts.source.release
    content = {
        "format": FORMAT,
        "derived": {
            "kind": facts.kind,
            "software": "dp-powerflow",
            "insecure_seed": release.insecure_seed,
            "simulated_loads": release.simulated_loads,
            "warnings": Words.of(facts.source)["warnings"],
        },
        "source": {
            "id": release.id,
            "file": SOURCE_FILE,
            "manifest_sha256": facts.source_sha256,
            "derived_from": facts.derived_from,
            "can_be_checked": FOLLOWS[facts.derived_from],
        },
        "cost": {"spends": SPENDS, "because": BECAUSE, "settings": SETTINGS_PUBLIC},
        "guarantee": facts.source.guarantee.model_dump(),
        "settings": _sorted(facts.settings),
        "study": facts.study.model_dump(),
        "figures": _sorted(facts.figures),
        "sentences": list(facts.sentences),
        "tables": [table.model_dump() for table in facts.tables],
        "software": dict(facts.software),
    }
    section: Any = type(facts.source.guarantee.network)
    model = _of_mode(DerivedStatement, section)
    return cast("DerivedStatement[Any]", model.model_validate(content))


def read_facts(
    manifest: DerivedManifest[Any], source: Manifest[Any], sha256: str, tables: Sequence[TableSection]
) -> DerivedFacts:
    """The facts of a derived release: tables from its files, the rest from the two manifests.

    Parameters
    ----------
    source, sha256 : manifest of the release that it came from, and the SHA-256 of its file.
    """
    return DerivedFacts(
        source=source,
        source_sha256=sha256,
        derived_from=manifest.source.derived_from,
        kind=manifest.derived.kind,
        settings=manifest.settings,
        study=manifest.study,
        figures=manifest.figures,
        sentences=manifest.sentences,
        tables=tables,
        software=manifest.software,
    )


def seal(statement: DerivedStatement[Any], hashes: Mapping[str, str]) -> DerivedManifest[Any]:
    """The manifest, given the SHA-256 of every other file."""
    content = statement.model_dump() | {"files": dict(sorted(hashes.items()))}
    section: Any = type(statement.guarantee.network)
    model = _of_mode(DerivedManifest, section)
    return cast("DerivedManifest[Any]", model.model_validate(content | {DIGEST: digest_of(content)}))


def parse(content: Mapping[str, Any]) -> DerivedManifest[Any]:
    """The manifest in a JSON object.

    Raises
    ------
    ReleaseError : an entry is missing, unknown, of another type or out of range.
    """
    try:
        mode = content["guarantee"]["network"]["mode"]
    except (LookupError, TypeError):
        raise ReleaseError("the manifest has no entry guarantee.network.mode") from None
    try:
        model = _of_mode(DerivedManifest, registered(mode))
        return cast("DerivedManifest[Any]", model.model_validate(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReleaseError(f"the manifest's {where} is not usable: {first['msg']}") from None


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
    models = [_of_mode(DerivedManifest, policy) for policy in all_policies() if policy.derivable]
    schema = TypeAdapter(reduce(or_, models)).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manifest.json of a derived release of dp-powerflow, version 1",
    } | schema


def _sorted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with their keys in order, as the file has them: pages are made from either."""
    found: dict[str, Any] = json.loads(json.dumps(dict(values), sort_keys=True, allow_nan=False))
    return found


@cache
def _of_mode(model: Any, section: Any) -> Any:
    return model.__class_getitem__(section)


REQUIRED = (CERTIFICATE_FILE, CARD_FILE, PAGE_FILE, SOURCE_FILE)
"""Files beside the manifest and the tables."""


def is_derived(place: Location) -> bool:
    """Whether a folder is a derived release, of any version."""
    if isinstance(place, RemotePath):
        return False
    try:
        found = json_object((place / MANIFEST_FILE).read_bytes()).get("format")
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, str) and found.startswith(FAMILY)
