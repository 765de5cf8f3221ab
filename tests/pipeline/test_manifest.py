"""The manifest, its schema, and the metadata made from it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dp_powerflow.manifest.build import ManifestInputs, make_statement
from dp_powerflow.manifest.model import ReleaseError, at_most, in_digits
from dp_powerflow.manifest.render import registry_bytes
from support.manifest_releases import (
    CANARY,
    LAYOUT,
    build_manifest,
    config,
    load_model,
    make_inputs,
    make_release,
    said,
)

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
SCHEMA = json.loads(SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
FILES = (
    "data/part-00000.parquet",
    "nodes.parquet",
    "README.md",
    "model.json",
    "croissant.json",
    "registry.yaml",
    "certificate.html",
    "quality.html",
)
HASHES = {name: f"{k:064x}" for k, name in enumerate(FILES)}


@pytest.fixture
def inputs(tmp_path: Path) -> ManifestInputs:
    return make_inputs(tmp_path, config(), load_model())[0]


def variants(tmp_path: Path) -> Iterator[tuple[str, ManifestInputs]]:
    solar: dict[str, Any] = {"pv": {"irradiance": f"{CANARY}.csv", "volt_var": "category B"}}
    paper: dict[str, Any] = {"network": {"bound": "paper", "require_evidence": False}}
    kinds: dict[str, Any] = {
        "full-support": (config(), load_model()),
        "paper": (config("paper"), load_model("paper")),
        "per day": (config(), load_model(unit="load-point-day")),
        "private classes": (config(), load_model(classes=2)),
        "simulated": (config(), load_model(simulated=True)),
        "solar": (config(**solar), load_model()),
        "evidence not required": (config(**paper), load_model("paper")),
    }
    for name, (chosen, model) in kinds.items():
        yield name, make_inputs(tmp_path / name, chosen, model)[0]
    seeded = load_model(insecure_seed=True)
    yield "seed", make_inputs(tmp_path / "seed", config(), seeded, seed=1)[0]


def test_every_kind_of_release_fits_the_schema(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for name, inputs in variants(tmp_path):
        manifest = build_manifest(inputs, HASHES)
        assert not list(VALIDATOR.iter_errors(manifest)), name


def test_the_schema_is_the_one_of_the_models() -> None:
    """Otherwise write it again: make schema. In a process of its own, where no test has added a mode."""
    program = (
        "import json; import dp_powerflow.manifest; from dp_powerflow.manifest.model import manifest_schema; "
    )
    program += "print(json.dumps(manifest_schema()))"
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(made.stdout) == SCHEMA


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema and "type" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def test_the_schema_is_strict_everywhere() -> None:
    found = list(objects(SCHEMA))
    assert len(found) > 15
    for part in found:
        assert part["additionalProperties"] is False
        assert set(part["properties"]) == set(part["required"])


def test_no_path_or_private_name_of_the_config_is_released(tmp_path: Path) -> None:
    solar: dict[str, Any] = {
        "pv": {"irradiance": f"{CANARY}.csv"},
        "loads": {"reactive_column": f"{CANARY}_kvar"},
    }
    made = make_release(tmp_path, config(**solar))
    for path in made.path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert CANARY.encode() not in content, path
            assert str(tmp_path).encode() not in content, path
            assert b"/home" not in content, path


def test_the_guarantee_is_what_the_model_cost(inputs: ManifestInputs) -> None:
    manifest = build_manifest(inputs, HASHES)
    loads, model = manifest["guarantee"]["loads"], inputs.model
    assert loads["epsilon"] == model.spent_epsilon <= loads["epsilon_granted"] == 4.0
    assert loads["rho"] == model.rho
    assert manifest["load_queries"] == [cost.to_dict() for cost in model.costs]
    assert manifest["composition"]["loads"]["promise"]["epsilon"] == inputs.loads.promise.epsilon
    assert manifest["composition"]["network"]["promise"]["epsilon"] == inputs.network.promise.epsilon


def test_earlier_releases_are_in_the_composition(tmp_path: Path) -> None:
    inputs, _ = make_inputs(tmp_path, config(), load_model(), earlier=2)
    composition = build_manifest(inputs, HASHES)["composition"]
    assert composition["network"]["spent"]["epsilon"] == 15.0
    assert composition["loads"]["promise"]["epsilon"] > inputs.model.spent_epsilon


def test_the_bound_decides_what_is_claimed_of_lines(tmp_path: Path) -> None:
    kinds = dict(variants(tmp_path))
    full = build_manifest(kinds["full-support"], HASHES)
    paper = build_manifest(kinds["paper"], HASHES)
    assert "are covered up to that size" in said(full, "scope")
    assert "no change of a line's length" in said(paper, "scope")
    assert "No change of a line" in said(paper, "not_claimed")
    assert "No change of a line" not in said(full, "not_claimed")
    assert paper["declared_public"]["reactive"] == {"spread": 0.0, "correlation_minutes": None}


def test_seeds_simulated_loads_and_missing_evidence_are_warned_of(tmp_path: Path) -> None:
    kinds = dict(variants(tmp_path))
    assert build_manifest(kinds["full-support"], HASHES)["release"]["warnings"] == []
    for name, word in (("seed", "seed"), ("simulated", "simulated"), ("evidence not required", "target")):
        manifest = build_manifest(kinds[name], HASHES)
        assert word in said(manifest, "warnings"), name
    attested = said(build_manifest(kinds["evidence not required"], HASHES), "attestation")
    assert "whether or not" in attested


def test_the_manifest_never_lists_itself(inputs: ManifestInputs) -> None:
    assert build_manifest(inputs, HASHES | {"manifest.json": "0" * 64}) == build_manifest(inputs, HASHES)


@pytest.mark.parametrize("what", ["seed", "account", "network account", "days", "steps", "power factor"])
def test_inputs_that_contradict_each_other_are_refused(inputs: ManifestInputs, what: str) -> None:
    changes: dict[str, dict[str, Any]] = {
        "seed": {"insecure_seed": True},
        "account": {"loads": replace(inputs.loads, spent={"rho": inputs.model.rho * 0.99})},
        "network account": {"network": replace(inputs.network, spent={"epsilon": 4.9, "delta": 1e-3})},
        "days": {"layout": replace(LAYOUT, days=6)},
        "steps": {"layout": replace(LAYOUT, steps=96)},
        "power factor": {"config": config(model={"power_factor": 0.9})},
    }
    with pytest.raises(ReleaseError):
        build_manifest(replace(inputs, **changes[what]), HASHES)


def test_figures_are_never_rounded_to_a_better_one() -> None:
    assert at_most(0.99999) == "1"
    assert at_most(4.1101) == "4.12"
    assert float(at_most(math.pi * 1e-7)) >= math.pi * 1e-7
    assert in_digits(1e-5) == "1e-5"
    assert in_digits(100.0) == "100"


def test_the_registry_record_is_yaml_in_the_layout_of_the_registry(tmp_path: Path) -> None:
    for name, inputs in variants(tmp_path):
        record = yaml.safe_load(registry_bytes(make_statement(inputs)))
        deployment = record["deployment"]
        assert list(record) == ["url_slug", "deployment"]
        assert list(deployment) == [
            "basic",
            "dp_variant",
            "privacy_loss",
            "deployment_model",
            "implementation",
            "administrative",
        ]
        assert deployment["privacy_loss"]["privacy_parameters"] == {
            "epsilon": inputs.model.spent_epsilon,
            "delta": 1e-5,
            "rho": inputs.model.rho,
        }, name
        assert isinstance(deployment["basic"]["publication_date"], str)
        assert "Not claimed" in deployment["implementation"]["additional_information"]
        assert deployment["administrative"]["status"] == "Draft"
