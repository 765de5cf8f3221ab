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
from dp_powerflow.manifest.build import ManifestInputs, make_statement
from dp_powerflow.manifest.model import ReleaseError
from dp_powerflow.manifest.render import Words, croissant_bytes, registry_bytes
from dp_powerflow.privacy.ledger.accounts import ComposedCosts
from dp_powerflow.twin.design import TwinDesign, twin_guarantee, twin_neighbours
from support.manifest_releases import (
    build_manifest,
    config,
    load_model,
    make_inputs,
    said,
    twin_config,
)

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "manifest.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TABLE = "twin/branch_data.parquet/scenario_partition=0/from-000000000.parquet"
PAGES = ("croissant.json", "registry.yaml", "certificate.html", "quality.html")
NAMES = ("nodes.parquet", "days.parquet", "README.md", "model.json", "twin/rows.parquet", *PAGES, TABLE)
HASHES = {name: f"{k:064x}" for k, name in enumerate(NAMES)}


@pytest.fixture
def inputs(tmp_path: Path) -> ManifestInputs:
    return make_inputs(tmp_path, twin_config(), load_model())[0]


def design_of(inputs: ManifestInputs) -> TwinDesign:
    assert isinstance(inputs.config.network, TwinNetwork)
    return inputs.config.network.design


def words_of(inputs: ManifestInputs, part: str) -> str:
    return said(build_manifest(inputs, HASHES), part)


def network_of(inputs: ManifestInputs) -> dict[str, Any]:
    found: dict[str, Any] = build_manifest(inputs, HASHES)["guarantee"]["network"]
    return found


def variants(tmp_path: Path) -> Iterator[tuple[str, ManifestInputs]]:
    kinds = {
        "plain": twin_config(),
        "all nodes": twin_config(network={"released": "all"}),
        "network": twin_config(network={"controls": "frozen", "publish": "network"}),
        "network and loads": twin_config(
            network={"controls": "frozen", "publish": "network and loads", "graph_days": 2}
        ),
        "lengths": twin_config(network={"lines": "length"}),
        "codes": twin_config(network={"lines": "length", "code_epsilon": 0.4}),
        "charging": twin_config(network={"charging_epsilon": 0.5}),
        "lines only": twin_config(network={"transformers": False, "capacitors": False}),
        "pv": twin_config(network={"pv": True}),
        "gaussian": twin_config(network={"noise": "gaussian", "delta": 1e-6}),
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
    true["guarantee"]["network"]["advantage"] = 0.5
    assert list(VALIDATOR.iter_errors(true))


def test_the_network_is_promised_what_the_twin_costs(inputs: ManifestInputs) -> None:
    network, design = network_of(inputs), design_of(inputs)
    promised = twin_guarantee(design)
    assert network["kind"] == "differential privacy"
    assert network["epsilon"] == promised.epsilon <= network["epsilon_granted"] == 4.0
    assert network["delta"] == 0.0
    assert network["mu"] is None
    assert network["advantage"] == promised.advantage
    assert network["epsilon_by_element"] == promised.epsilon_of
    assert words_of(inputs, "neighbours") == twin_neighbours(design.protected, 0.05).words
    assert network["scales"] == {name: part.scale for name, part in design.parts.items()}
    assert network["protected"]["lines"] == "impedance"


def test_changes_and_groups_follow_from_the_noise(tmp_path: Path) -> None:
    for name, inputs in variants(tmp_path):
        network, design = network_of(inputs), design_of(inputs)
        for row in network["changes"] + network["groups"]:
            promised = twin_guarantee(design, row["change"], elements=row["elements"])
            assert (row["epsilon"], row["advantage"]) == (promised.epsilon, promised.advantage), name
        assert [row["change"] for row in network["changes"]] == [0.05, 0.5]
        assert [row["elements"] for row in network["groups"]] == [2, 10]
        assert "for 10 elements" in words_of(inputs, "group")


def test_a_change_too_large_for_any_statement_has_none(tmp_path: Path) -> None:
    chosen = twin_config(
        network={"noise": "gaussian", "delta": 1e-6, "epsilon": 1.1e5, "lines": "length"},
        release={"network_epsilon_cap": 1.1e5},
    )
    inputs = make_inputs(tmp_path, chosen, load_model())[0]
    network = network_of(inputs)
    assert network["changes"][1]["epsilon"] is None
    assert network["groups"][1]["advantage"] is None
    assert "for 10" not in words_of(inputs, "group")


def test_what_has_no_noise_is_declared_public(tmp_path: Path) -> None:
    for name, inputs in variants(tmp_path):
        declared = Words.of(make_statement(inputs))["declared"]
        chosen = design_of(inputs).protected
        for start, covered in (
            ("Impedances of transformers", chosen.transformers),
            ("Sizes of capacitors", chosen.capacitors),
            ("Capacities of PV", chosen.pv),
            ("Conductor codes", chosen.codes),
            ("Charging of lines per km", chosen.charging),
        ):
            assert any(sentence.startswith(start) for sentence in declared) != covered, (name, start)
        text = " ".join(declared)
        for public in ("Connectivity", "Switch states", "taps", "base voltages", "Shapes", "sources"):
            assert public in text, (name, public)


def test_a_true_network_declares_nothing_of_a_twin(tmp_path: Path) -> None:
    without_tables = {name: digest for name, digest in HASHES.items() if not name.startswith("twin/")}
    manifest = build_manifest(make_inputs(tmp_path, config(), load_model())[0], without_tables)
    assert said(manifest, "declared").startswith("the least nominal load of a released node")
    assert manifest["data"]["network_tables"] is None
    assert "twin" not in json.dumps(manifest | {"files": {}})


def test_what_is_published_is_what_is_said(tmp_path: Path) -> None:
    kinds = {name: build_manifest(inputs, HASHES) for name, inputs in variants(tmp_path)}

    def after(name: str) -> str:
        return said(kinds[name], "after_noise")

    assert "Neither the twin nor the loads" in after("plain")
    assert "they follow from both" in after("network")
    assert "of 2 days" in after("network and loads")
    assert "Only nodes with their own random load" in after("plain")
    assert "All energised nodes" in after("all nodes")
    assert "randomised response" in after("codes")
    assert "randomised response" not in after("plain")
    assert all("not on the true network" in after(name) for name in kinds)
    assert all(manifest["declared_public"]["reactive"]["spread"] > 0 for manifest in kinds.values())


def test_the_words_promise_no_more_than_the_twin_holds(inputs: ManifestInputs) -> None:
    manifest = build_manifest(inputs, HASHES)
    claims = said(manifest, "not_claimed")
    for words in (
        "connectivity",
        "not power flow on the true network",
        "two elements",
        "one element changed by 50 %: epsilon at most 33.3",
        "1.05",
        "can be read from the angles",
        "switches",
        "Coordinates are not published",
    ):
        assert words in claims
    assert "per-instance" not in json.dumps(manifest)
    assert "the network passed the checks before anything was spent" in said(manifest, "unprotected")
    assert "epsilons and deltas of the two add up" in said(manifest, "composition")
    assert "another account" in said(manifest, "composition")


def test_the_composition_counts_twins(tmp_path: Path) -> None:
    inputs, _ = make_inputs(tmp_path, twin_config(), load_model(), earlier=2)
    account = build_manifest(inputs, HASHES)["composition"]["network"]
    own = twin_guarantee(design_of(inputs)).epsilon
    assert account["spent"] == {"pure_epsilons": [own] * 3, "mu_squared": 0.0}
    assert math.isclose(account["promise"]["epsilon"], 3 * own)
    assert account["promise"]["delta"] == 0.0  # all costs are pure, whatever delta the cap allows


@pytest.mark.parametrize("what", ["less", "change", "granted", "kind"])
def test_an_account_that_does_not_hold_the_twin_is_refused(
    inputs: ManifestInputs, tmp_path: Path, what: str
) -> None:
    other = make_inputs(tmp_path / "other", config(), load_model())[0]
    own = twin_guarantee(design_of(inputs)).epsilon
    changes: dict[str, dict[str, Any]] = {
        "less": {"network": replace(inputs.network, composed=ComposedCosts((0.999 * own,)))},
        "change": {"config": twin_config(network={"change": 0.0500001})},
        "granted": {"config": twin_config(network={"epsilon": 4.1})},
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
        assert words_of(inputs, "neighbours") in told
        assert "not covered by differential privacy" not in told
        description = json.loads(croissant_bytes(make_statement(inputs), HASHES))["description"]
        assert "twin of the network" in description
