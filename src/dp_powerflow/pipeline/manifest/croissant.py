"""`croissant.json`: metadata for dataset hubs, in the Croissant 1.0 format of MLCommons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dp_powerflow.corpus.gridfm.schema import table_directory
from dp_powerflow.corpus.schema import DATA, NODES_FILE
from dp_powerflow.pipeline.manifest.build import MODEL_FILE, ManifestInputs, build_manifest
from dp_powerflow.pipeline.manifest.policy import TWIN_NETWORK
from dp_powerflow.pipeline.manifest.words import at_most, in_digits

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
_PARTS, _NODES, _MODEL, _TWIN = "parts", "nodes-file", "load-model", "twin"
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


def croissant_bytes(inputs: ManifestInputs, hashes: Mapping[str, str]) -> bytes:
    """The metadata of a release.

    Parameters
    ----------
    hashes : SHA-256 by relative path; those of `nodes.parquet` and `model.json` are needed.
    """
    return render_croissant(build_manifest(inputs, hashes))


def render_croissant(manifest: Mapping[str, Any]) -> bytes:
    """The metadata that a manifest determines; hashes of the parts are in the manifest only."""
    files = manifest["files"]
    dataset = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": f"dp-powerflow-{manifest['release']['id']}",
        "conformsTo": CONFORMS_TO,
        "description": _description(manifest),
        "keywords": ["power flow", "distribution grid", "voltage phasors", "synthetic data"],
        "version": "1.0.0",
        "isLiveDataset": False,
        "distribution": [
            {
                "@type": "cr:FileSet",
                "@id": _PARTS,
                "name": _PARTS,
                "description": f"{manifest['data']['parts']} files of voltages",
                "encodingFormat": _PARQUET,
                "includes": f"{DATA}/part-*.parquet",
            },
            _file(_NODES, NODES_FILE, _PARQUET, "the released nodes", files),
            _file(_MODEL, MODEL_FILE, _JSON, "the differentially private load model", files),
            *_twin_tables(manifest),
        ],
        "recordSet": [
            _records("voltages", "One row per day and node.", {"fileSet": {"@id": _PARTS}}, manifest),
            _records("nodes", "One row per node.", {"fileObject": {"@id": _NODES}}, manifest),
        ],
    }
    return (json.dumps(dataset, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def _description(manifest: Mapping[str, Any]) -> str:
    data, loads = manifest["data"], manifest["guarantee"]["loads"]
    network = manifest["guarantee"]["network"]
    return " ".join(
        [
            *manifest["release"]["warnings"],
            f"{data['days']} synthetic days of voltage phasors at {data['nodes']} nodes of a distribution "
            f"feeder, every {data['step_minutes']} minutes, that obey AC power flow.",
            f"The loads behind them come from a model with epsilon at most {at_most(loads['epsilon'])} at "
            f"delta {in_digits(loads['delta'])} of differential privacy per {loads['unit']}.",
            _network(network),
            "Read manifest.json and certificate.html before use.",
        ]
    )


def _network(network: Mapping[str, Any]) -> str:
    if network["mode"] != TWIN_NETWORK:
        return f"The network is covered by {network['kind']}."
    return (
        f"They were solved on a twin of the network, with epsilon at most {at_most(network['epsilon'])} at "
        f"delta {in_digits(network['delta'])} of differential privacy for {network['neighbours']}."
    )


def _twin_tables(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The published twin, if there is one."""
    tables = manifest["data"]["twin_tables"]
    if tables is None:
        return []
    return [
        {
            "@type": "cr:FileSet",
            "@id": f"{_TWIN}-{table}",
            "name": f"{_TWIN}-{table}",
            "description": f"{table} of the twin ({tables['holds']}), {tables['layout']}",
            "encodingFormat": _PARQUET,
            "includes": f"{tables['directory']}/{table_directory(table)}/*/*.parquet",
        }
        for table in tables["tables"]
    ]


def _file(node: str, path: str, encoding: str, means: str, files: Mapping[str, str]) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": node,
        "name": path,
        "description": means,
        "contentUrl": path,
        "encodingFormat": encoding,
        "sha256": files[path],
    }


def _records(
    name: str, description: str, source: dict[str, Any], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    of_nodes = name == "nodes"
    columns = [c for c in manifest["data"]["columns"] if (c["file"] == NODES_FILE) == of_nodes]
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": description,
        "field": [_field(name, column, source) for column in columns],
    }


def _field(records: str, column: Mapping[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    kind = column["type"]
    unit = "" if column["unit"] is None else f" [{column['unit']}]"
    field = {
        "@type": "cr:Field",
        "@id": f"{records}/{column['name']}",
        "name": column["name"],
        "description": f"{column['means']}{unit}",
        "dataType": "sc:Text" if kind == "string" else "sc:Integer" if kind == "int32" else "sc:Float",
        "source": source | {"extract": {"column": column["name"]}},
    }
    return field | ({"repeated": True} if kind.startswith("list") else {})
