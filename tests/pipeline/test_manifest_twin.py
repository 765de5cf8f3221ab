"""What the documents of a release on a twin say: a guarantee that follows from public constants."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dp_powerflow.config import TwinNetwork
from dp_powerflow.grid.feeder import Quantity
from dp_powerflow.pipeline.manifest.documents import croissant_bytes, registry_bytes
from dp_powerflow.pipeline.manifest.facts import ManifestInputs, make_statement
from dp_powerflow.pipeline.manifest.model import ReleaseError
from dp_powerflow.privacy.budget import gdp_epsilon
from dp_powerflow.twin import Spread, twin_guarantee, twin_neighbours
from support.manifest_releases import (
    CANARY,
    build_manifest,
    config,
    load_model,
    make_inputs,
    make_release,
    twin_config,
)

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "manifest.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TABLE = "twin/branch_data.parquet/scenario_partition=0/from-000000000.parquet"
NAMES = ("nodes.parquet", "model.json", "croissant.json", "registry.yaml", "certificate.html", TABLE)
HASHES = {name: f"{k:064x}" for k, name in enumerate(NAMES)}
NOTHING = dict.fromkeys(("length", "resistance", "reactance", "transformer", "capacitor"))


@pytest.fixture
def inputs(tmp_path: Path) -> ManifestInputs:
    return make_inputs(tmp_path, twin_config(), load_model())[0]


def spread_of(inputs: ManifestInputs) -> Spread:
    assert isinstance(inputs.config.network, TwinNetwork)
    return inputs.config.network.spread


def network_of(inputs: ManifestInputs) -> dict[str, Any]:
    found: dict[str, Any] = build_manifest(inputs, HASHES)["guarantee"]["network"]
    return found


def variants(tmp_path: Path) -> Iterator[tuple[str, ManifestInputs]]:
    kinds = {
        "plain": twin_config(),
        "all nodes": twin_config(network={"released": "all"}),
        "network": twin_config(network={"publish": "network"}),
        "network and loads": twin_config(network={"publish": "network and loads", "graph_days": 2}),
        "codes": twin_config(network={"code_epsilon": 0.4}),
        "codes only": twin_config(network={**NOTHING, "code_epsilon": 0.5}),
        "lengths only": twin_config(network={**NOTHING, "length": 0.1}),
        "pv": twin_config(network={"pv": 0.3}),
    }
    for name, chosen in kinds.items():
        yield name, make_inputs(tmp_path / name, chosen, load_model())[0]


def test_every_kind_of_twin_fits_the_schema(tmp_path: Path) -> None:
    for name, inputs in variants(tmp_path):
        manifest = build_manifest(inputs, HASHES)
        assert not [error.message for error in VALIDATOR.iter_errors(manifest)], name


def test_the_schema_keeps_the_two_modes_apart(tmp_path: Path, inputs: ManifestInputs) -> None:
    twin = build_manifest(inputs, HASHES)
    true = build_manifest(make_inputs(tmp_path / "true", config(), load_model())[0], HASHES)
    twin["guarantee"]["network"]["mode"] = "true-network"
    assert list(VALIDATOR.iter_errors(twin))
    true["guarantee"]["network"]["mu"] = 0.5
    assert list(VALIDATOR.iter_errors(true))


def test_the_network_is_promised_what_the_twin_costs(inputs: ManifestInputs) -> None:
    network, promised = network_of(inputs), twin_guarantee(spread_of(inputs), 0.05, 1e-5)
    assert network["kind"] == "differential privacy"
    assert network["days"] == "any number"
    assert network["epsilon"] == promised.epsilon <= network["epsilon_granted"] == 4.0
    assert network["mu"] == promised.mu == max(network["mu_by_element"].values())
    assert network["neighbours"] == twin_neighbours(spread_of(inputs), 0.05).words
    assert network["spread"] == {
        "length": 0.2,
        "resistance": 0.2,
        "reactance": 0.25,
        "transformer": 0.1,
        "capacitor": 0.15,
        "pv": None,
    }


def test_groups_and_the_largest_change_follow_from_the_noise(inputs: ManifestInputs) -> None:
    network, spread = network_of(inputs), spread_of(inputs)
    for group in network["groups"]:
        assert math.isclose(group["mu"], network["mu"] * math.sqrt(group["elements"]))
        assert group["epsilon"] == gdp_epsilon(group["mu"], 1e-5)
        assert f"for {group['elements']}" in network["group_in_words"]
    largest = network["largest_change_at_epsilon_granted"]
    assert twin_guarantee(spread, largest, 1e-5).epsilon <= 4.0
    assert twin_guarantee(spread, largest * 1.001, 1e-5).epsilon > 4.0


def test_a_group_too_large_for_any_statement_has_none(tmp_path: Path) -> None:
    chosen = twin_config(
        network={**NOTHING, "length": 1e-4, "epsilon": 2e5},
        release={"network_epsilon_cap": 2e5},
    )
    network = network_of(make_inputs(tmp_path, chosen, load_model())[0])
    two, ten = network["groups"]
    assert two["epsilon"] > network["epsilon"]
    assert ten["mu"] > 1e3
    assert ten["epsilon"] is None
    assert "for 10" not in network["group_in_words"]


def test_codes_alone_have_no_largest_change(tmp_path: Path) -> None:
    network = network_of(dict(variants(tmp_path))["codes only"])
    assert network["largest_change_at_epsilon_granted"] is None
    assert "whatever it is changed to" in network["change_in_words"]
    assert network["mu_by_element"] == {"line": network["mu"]}


def test_what_has_no_spread_is_declared_public(tmp_path: Path) -> None:
    kinds = dict(variants(tmp_path))
    words = {
        Quantity.LENGTH: "Lengths of lines",
        Quantity.RESISTANCE: "Resistances",
        Quantity.REACTANCE: "Reactances",
        Quantity.TRANSFORMER: "Impedances of transformers",
        Quantity.CAPACITOR: "Sizes of capacitors",
        Quantity.PV: "Capacities of PV",
    }
    for name, inputs in kinds.items():
        declared = build_manifest(inputs, HASHES)["declared_public"]["network"]
        spread = spread_of(inputs)
        for quantity, start in words.items():
            named = any(sentence.startswith(start) for sentence in declared)
            assert named == (spread.of(quantity) is None), (name, quantity)
        codes = any(sentence.startswith("Conductor codes") for sentence in declared)
        assert codes == (spread.code_epsilon is None), name
        text = " ".join(declared)
        for public in ("Connectivity", "Switch states", "taps", "base voltages", "R/X", "sources"):
            assert public in text, (name, public)


def test_figures_of_a_code_that_is_drawn_are_public_only_relative_to_it(tmp_path: Path) -> None:
    kinds = dict(variants(tmp_path))
    for name, relative in (("codes only", True), ("lengths only", False)):
        declared = build_manifest(kinds[name], HASHES)["declared_public"]["network"]
        sentence = next(words for words in declared if words.startswith("Resistances"))
        assert ("relative to those of the line's conductor code" in sentence) == relative


def test_a_true_network_declares_nothing_of_a_twin(tmp_path: Path) -> None:
    without_tables = {name: digest for name, digest in HASHES.items() if name != TABLE}
    manifest = build_manifest(make_inputs(tmp_path, config(), load_model())[0], without_tables)
    assert manifest["declared_public"]["network"] == []
    assert manifest["data"]["network_tables"] is None
    assert "twin" not in json.dumps(manifest)


def test_what_is_published_is_what_is_said(tmp_path: Path) -> None:
    kinds = {name: build_manifest(inputs, HASHES) for name, inputs in variants(tmp_path)}

    def after(name: str) -> str:
        return " ".join(kinds[name]["processing"]["after_noise"])

    assert "Neither the twin nor the loads" in after("plain")
    assert "they follow from both" in after("network")
    assert "of 2 days" in after("network and loads")
    assert "Only nodes with a random load" in after("plain")
    assert "All energised nodes" in after("all nodes")
    assert "randomised response" in after("codes")
    assert "randomised response" not in after("plain")
    assert all("not on the true network" in after(name) for name in kinds)
    assert all(manifest["declared_public"]["reactive"]["spread"] > 0 for manifest in kinds.values())


def test_the_tables_of_a_published_twin_are_described(tmp_path: Path) -> None:
    kinds = dict(variants(tmp_path))
    assert build_manifest(kinds["plain"], HASHES)["data"]["network_tables"] is None
    alone = build_manifest(kinds["network"], HASHES)["data"]["network_tables"]
    assert (alone["days"], alone["scenarios"]) == (0, 1)
    loads = build_manifest(kinds["network and loads"], HASHES)["data"]["network_tables"]
    assert (loads["days"], loads["scenarios"]) == (2, 48)
    sets = file_sets(kinds["network"])
    assert sets["twin-y_bus_data"]["includes"] == "twin/y_bus_data.parquet/*/*.parquet"
    assert not any(name.startswith("twin") for name in file_sets(kinds["plain"]))


def file_sets(inputs: ManifestInputs) -> dict[str, dict[str, Any]]:
    dataset = json.loads(croissant_bytes(make_statement(inputs), HASHES))
    return {item["@id"]: item for item in dataset["distribution"]}


def test_the_words_promise_no_more_than_the_twin_holds(inputs: ManifestInputs) -> None:
    manifest = build_manifest(inputs, HASHES)
    claims = " ".join(manifest["not_claimed"])
    for words in (
        "connectivity",
        "not power flow on the true network",
        "two elements",
        "square root",
        "1.05",
    ):
        assert words in claims
    assert "per-instance" not in json.dumps(manifest)
    assert "depends on the twin, not on the true network" in manifest["unprotected"][0]
    assert "epsilons and deltas of the two add up" in manifest["composition"]["statement"]
    assert "another account" in manifest["composition"]["statement"]


def test_the_composition_counts_twins(tmp_path: Path) -> None:
    inputs, _ = make_inputs(tmp_path, twin_config(), load_model(), earlier=2)
    account = build_manifest(inputs, HASHES)["composition"]["network"]
    mu = twin_guarantee(spread_of(inputs), 0.05, 1e-5).mu
    assert account["charges"] == 3
    assert math.isclose(account["spent"]["mu_squared"], 3 * mu**2)
    assert math.isclose(account["promise"]["epsilon"], gdp_epsilon(mu * math.sqrt(3), 1e-5))
    assert math.isclose(account["cap"]["epsilon"], 20.0, rel_tol=1e-6)
    assert account["cap"]["epsilon"] >= 19.999
    assert math.isclose(gdp_epsilon(account["cap"]["mu"], 1e-5), account["cap"]["epsilon"])


@pytest.mark.parametrize("what", ["less", "more", "past the cap", "delta", "change", "granted", "kind"])
def test_an_account_that_does_not_hold_the_twin_is_refused(
    inputs: ManifestInputs, tmp_path: Path, what: str
) -> None:
    spent = inputs.network.spent["mu_squared"]
    other = make_inputs(tmp_path / "other", config(), load_model())[0]
    cap = inputs.network.cap
    changes: dict[str, dict[str, Any]] = {
        "less": {"network": replace(inputs.network, spent={"mu_squared": spent * 0.999})},
        "more": {"network": replace(inputs.network, spent={"mu_squared": spent * 1.001})},
        "past the cap": {"network": replace(inputs.network, n_spends=9, spent={"mu_squared": 100.0})},
        "delta": {"network": replace(inputs.network, cap=replace(cap, delta=1e-6))},
        "change": {"config": twin_config(network={"change": 0.0500001})},
        "granted": {"config": twin_config(network={"epsilon": 1.9})},
        "kind": {"network": other.network},
    }
    build_manifest(inputs, HASHES)
    with pytest.raises(ReleaseError):
        build_manifest(replace(inputs, **changes[what]), HASHES)


def test_a_true_network_cannot_be_paid_from_the_account_of_twins(
    inputs: ManifestInputs, tmp_path: Path
) -> None:
    true = make_inputs(tmp_path / "true", config(), load_model())[0]
    with pytest.raises(ReleaseError, match="true network"):
        build_manifest(replace(true, network=inputs.network), HASHES)


def test_the_registry_and_the_hub_are_told_of_the_second_guarantee(tmp_path: Path) -> None:
    for name, inputs in variants(tmp_path):
        deployment = yaml.safe_load(registry_bytes(make_statement(inputs)))["deployment"]
        told = deployment["implementation"]["additional_information"]
        assert "second guarantee" in told, name
        assert network_of(inputs)["neighbours"] in told
        assert "not covered by differential privacy" not in told
        description = json.loads(croissant_bytes(make_statement(inputs), HASHES))["description"]
        assert "twin of the network" in description


def test_no_private_name_is_released_with_a_twin(tmp_path: Path) -> None:
    made = make_release(tmp_path, twin_config())
    for path in made.path.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
