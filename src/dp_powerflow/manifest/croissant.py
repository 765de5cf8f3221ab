"""`croissant.json`: metadata for dataset hubs, in the Croissant 1.0 format of MLCommons.

License, date and publisher are what the data owner declares ([publication]). Nothing stands in for a date
that is not declared. A license that is not declared is said to be so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dp_powerflow.manifest.model import MODEL_FILE, NOT_STATED, Statement, at_most, in_digits
from dp_powerflow.manifest.published import PublishedColumn, PublishedTable, published_tables

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
_MODEL = "load-model"
_KINDS = {
    **{"string": "sc:Text", "date": "sc:Date", "bool": "sc:Boolean"},
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "sc:Integer"),
}
_PARQUET, _JSON = "application/x-parquet", "application/json"
_TERMS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes "
    "isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform"
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
} | {term: f"cr:{term}" for term in _TERMS.split()}


def croissant_bytes(statement: Statement[Any], hashes: Mapping[str, str]) -> bytes:
    """The metadata of a release.

    Parameters
    ----------
    hashes : SHA-256 by relative path; those of `model.json` and of the tables of nodes and, where there are
        any, of buses, connections and days are needed; of the parts the manifest tells.
    """
    tables = list(published_tables(statement))
    model = _file(_MODEL, MODEL_FILE, _JSON, "the differentially private load model", hashes)
    dataset = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": f"dp-powerflow-{statement.release.id}",
        "conformsTo": CONFORMS_TO,
        "description": in_words(statement),
        "keywords": ["power flow", "distribution grid", "voltage phasors", "synthetic data"],
        "version": "1.0.0",
        "isLiveDataset": False,
        **_published(statement),
        "distribution": [*(_files(table, statement.data.parts, hashes) for table in tables), model],
        "recordSet": [_records(table) for table in tables],
    }
    return (json.dumps(dataset, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def in_words(statement: Statement[Any]) -> str:
    """What a release is, in a few sentences."""
    data, loads = statement.data, statement.guarantee.loads
    return " ".join(
        [
            *statement.release.warnings,
            f"{data.days} synthetic days of voltage phasors at {data.nodes} nodes of a distribution "
            f"feeder, every {data.step_minutes} minutes, that obey AC power flow.",
            f"The loads behind them come from a model with epsilon at most {at_most(loads.epsilon)} at "
            f"delta {in_digits(loads.delta)} of differential privacy per {loads.unit}.",
            statement.guarantee.network.in_one_sentence(),
            "Read manifest.json and certificate.html before use.",
        ]
    )


def _published(statement: Statement[Any]) -> dict[str, Any]:
    """What the data owner declares of the publication."""
    stated = statement.publication
    entries: dict[str, Any] = {
        "license": stated.license_url or stated.license or NOT_STATED,
        "citeAs": stated.cited_as(statement.release.id),
    }
    if stated.date is not None:
        entries["datePublished"] = stated.date
    if stated.url is not None:
        entries["url"] = stated.url
    if stated.publisher is not None:
        owner = {"@type": "sc:Organization", "name": stated.publisher}
        entries |= {"creator": owner, "publisher": owner}
    return entries


def _files(table: PublishedTable, parts: int, hashes: Mapping[str, str]) -> dict[str, Any]:
    if not table.in_parts:
        return _file(table.node, table.files, _PARQUET, table.means, hashes)
    counted = f"{parts} files: " if table.files.count("*") == 1 else ""
    return {
        "@type": "cr:FileSet",
        "@id": table.node,
        "name": table.node,
        "description": f"{counted}{table.means}",
        "encodingFormat": _PARQUET,
        "includes": table.files,
    }


def _file(node: str, path: str, encoding: str, means: str, hashes: Mapping[str, str]) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": node,
        "name": path,
        "description": means,
        "contentUrl": path,
        "encodingFormat": encoding,
        "sha256": hashes[path],
    }


def _records(table: PublishedTable) -> dict[str, Any]:
    source = {"fileSet" if table.in_parts else "fileObject": {"@id": table.node}}
    return {
        "@type": "cr:RecordSet",
        "@id": table.name,
        "name": table.name,
        "description": table.rows,
        "field": [_field(table.name, column, source) for column in table.columns],
    }


def _field(records: str, column: PublishedColumn, source: dict[str, Any]) -> dict[str, Any]:
    kind = _KINDS.get(column.type.split()[-1], "sc:Float")
    unit = "" if column.unit is None else f" [{column.unit}]"
    field = {
        "@type": "cr:Field",
        "@id": f"{records}/{column.name}",
        "name": column.name,
        "description": f"{column.means}{unit}",
        "dataType": kind,
        "source": source | {"extract": {"column": column.name}},
    }
    return field | ({"repeated": True} if column.type.startswith("list") else {})
