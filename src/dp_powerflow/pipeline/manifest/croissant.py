"""`croissant.json`: metadata for dataset hubs, in the Croissant 1.0 format of MLCommons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dp_powerflow.corpus.gridfm.schema import table_directory
from dp_powerflow.corpus.schema import NODES_FILE
from dp_powerflow.pipeline.manifest.model import MODEL_FILE, PARTS, Column, Statement
from dp_powerflow.pipeline.manifest.words import at_most, in_digits

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
_PARTS, _NODES, _MODEL = "parts", "nodes-file", "load-model"
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
    hashes : SHA-256 by relative path; those of `nodes.parquet` and `model.json` are needed, and of the parts
        the manifest tells.
    """
    voltages = [column for column in statement.data.columns if column.file == PARTS]
    nodes = [column for column in statement.data.columns if column.file == NODES_FILE]
    dataset = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": f"dp-powerflow-{statement.release.id}",
        "conformsTo": CONFORMS_TO,
        "description": _description(statement),
        "keywords": ["power flow", "distribution grid", "voltage phasors", "synthetic data"],
        "version": "1.0.0",
        "isLiveDataset": False,
        "distribution": [
            _file_set(_PARTS, f"{statement.data.parts} files of voltages", PARTS),
            _file(_NODES, NODES_FILE, _PARQUET, "the released nodes", hashes),
            _file(_MODEL, MODEL_FILE, _JSON, "the differentially private load model", hashes),
            *_tables(statement),
        ],
        "recordSet": [
            _records("voltages", "One row per day and node.", {"fileSet": {"@id": _PARTS}}, voltages),
            _records("nodes", "One row per node.", {"fileObject": {"@id": _NODES}}, nodes),
        ],
    }
    return (json.dumps(dataset, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def _description(statement: Statement[Any]) -> str:
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


def _tables(statement: Statement[Any]) -> list[dict[str, Any]]:
    """The published network, if there is one."""
    tables = statement.data.network_tables
    if tables is None:
        return []
    return [
        _file_set(
            f"{tables.directory}-{table}",
            f"{table} of the {tables.directory} ({tables.holds}), {tables.layout}",
            f"{tables.directory}/{table_directory(table)}/*/*.parquet",
        )
        for table in tables.tables
    ]


def _file_set(node: str, means: str, includes: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": node,
        "name": node,
        "description": means,
        "encodingFormat": _PARQUET,
        "includes": includes,
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


def _records(name: str, description: str, source: dict[str, Any], columns: list[Column]) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": description,
        "field": [_field(name, column, source) for column in columns],
    }


def _field(records: str, column: Column, source: dict[str, Any]) -> dict[str, Any]:
    kind = {"string": "sc:Text", "int32": "sc:Integer"}.get(column.type, "sc:Float")
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
