"""What a release says of itself: manifest, schema, certificate, card, metadata, registry, promise."""

from __future__ import annotations

import hashlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml
from scipy import stats

import dp_powerflow as dpf
from dp_powerflow.config import TwinNetwork
from dp_powerflow.manifest import model as form
from dp_powerflow.manifest import render
from dp_powerflow.manifest.build import ManifestInputs, make_statement
from dp_powerflow.pipeline.modes.base import promise_warnings
from dp_powerflow.privacy.ledger.accounts import ComposedCosts
from dp_powerflow.twin.design import TwinDesign, twin_guarantee, twin_neighbours
from support import manifest_releases as by_hand
from support.corpora import EXTRAS, ring
from support.small import raw_config
from support.tampering import manifest_of

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "manifest.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TABLE = "twin/branch_data.parquet/scenario_partition=0/from-000000000.parquet"
NAMES = sorted({*form.REQUIRED, "data/part-00000.parquet", "days.parquet", "twin/rows.parquet", TABLE})
HASHES = {name: f"{k:064x}" for k, name in enumerate(NAMES)}
PAPER: dict[str, Any] = {"network": {"bound": "paper", "require_evidence": False}}
SOLAR: dict[str, Any] = {"pv": {"irradiance": f"{by_hand.CANARY}.csv", "volt_var": "category B"}}
TWINS = raw_config("twins")


@pytest.fixture(scope="module")
def on_true(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ManifestInputs]:
    """Inputs of manifests of the true network, by what is special of them."""
    root, seeded = tmp_path_factory.mktemp("true"), by_hand.load_model(insecure_seed=True)
    kinds: dict[str, Any] = {
        "full-support": (by_hand.config(), by_hand.load_model()),
        "paper": (by_hand.config("paper"), by_hand.load_model("paper")),
        "per day": (by_hand.config(), by_hand.load_model(unit="load-point-day")),
        "private classes": (by_hand.config(), by_hand.load_model(classes=2)),
        "simulated": (by_hand.config(), by_hand.load_model(simulated=True)),
        "solar": (by_hand.config(**SOLAR), by_hand.load_model()),
        "evidence not required": (by_hand.config(**PAPER), by_hand.load_model("paper")),
    }
    found = {name: by_hand.make_inputs(root / name, *kind)[0] for name, kind in kinds.items()}
    return found | {"seed": by_hand.make_inputs(root / "seed", by_hand.config(), seeded, seed=1)[0]}


@pytest.fixture(scope="module")
def on_twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ManifestInputs]:
    root = tmp_path_factory.mktemp("twins")
    return {
        name: by_hand.make_inputs(root / name, by_hand.twin_config(network=network), by_hand.load_model())[0]
        for name, network in TWINS.items()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> by_hand.Made:
    """Powers, states, connections with coordinates, dates with weather."""
    return by_hand.everything(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> by_hand.Made:
    """The same without coordinates."""
    return by_hand.everything(tmp_path_factory.mktemp("hidden"), coordinates=False)


def design_of(inputs: ManifestInputs) -> TwinDesign:
    assert isinstance(inputs.config.network, TwinNetwork)
    return inputs.config.network.design


def words_of(inputs: ManifestInputs, part: str) -> str:
    return by_hand.said(by_hand.build_manifest(inputs, HASHES), part)


def network_of(inputs: ManifestInputs) -> dict[str, Any]:
    found: dict[str, Any] = by_hand.build_manifest(inputs, HASHES)["guarantee"]["network"]
    return found


# --- schema -----------------------------------------------------------------------------------------------
def test_every_kind_of_release_fits_the_schema(
    on_true: dict[str, ManifestInputs], on_twins: dict[str, ManifestInputs]
) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for name, inputs in (on_true | on_twins).items():
        assert not list(VALIDATOR.iter_errors(by_hand.build_manifest(inputs, HASHES))), name


def test_the_schema_is_the_one_of_the_models() -> None:
    """Otherwise write it again: make schema. In a process of its own, where no test has added a mode."""
    program = (
        "import json; import dp_powerflow.manifest; from dp_powerflow.manifest.model import manifest_schema; "
        "print(json.dumps(manifest_schema()))"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(made.stdout) == SCHEMA


def test_the_schema_is_strict_everywhere_and_keeps_the_modes_apart(
    on_true: dict[str, ManifestInputs], on_twins: dict[str, ManifestInputs]
) -> None:
    def objects(schema: Any) -> Iterator[dict[str, Any]]:
        if isinstance(schema, dict) and "properties" in schema and "type" in schema:
            yield schema
        if isinstance(schema, dict | list):
            for value in schema.values() if isinstance(schema, dict) else schema:
                yield from objects(value)

    found = list(objects(SCHEMA))
    assert len(found) > 15
    for part in found:
        assert part["additionalProperties"] is False
        assert set(part["properties"]) == set(part["required"])
    twin, true = (
        by_hand.build_manifest(kinds, HASHES) for kinds in (on_twins["plain"], on_true["full-support"])
    )
    twin["guarantee"]["network"]["mode"] = "true-network"
    true["guarantee"]["network"]["advantage"] = 0.5
    assert list(VALIDATOR.iter_errors(twin))
    assert list(VALIDATOR.iter_errors(true))


def test_no_path_or_private_name_of_the_config_is_released(tmp_path: Path) -> None:
    made = by_hand.make_release(
        tmp_path, by_hand.config(**SOLAR, loads={"reactive_column": f"{by_hand.CANARY}_kvar"})
    )
    for path in made.path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for private in (by_hand.CANARY.encode(), str(tmp_path).encode(), b"/home"):
                assert private not in content, path


# --- figures ----------------------------------------------------------------------------------------------


def test_the_network_is_promised_what_the_twin_costs(on_twins: dict[str, ManifestInputs]) -> None:
    for name, inputs in on_twins.items():
        network, design = network_of(inputs), design_of(inputs)
        promised = twin_guarantee(design)
        assert network["kind"] == "differential privacy"
        assert network["epsilon"] == promised.epsilon <= network["epsilon_granted"] == 4.0
        assert (network["delta"], network["mu"]) == (promised.delta, promised.mu)
        assert network["advantage"] == promised.advantage
        assert network["epsilon_by_element"] == promised.epsilon_of
        assert network["scales"] == {part: of.scale for part, of in design.parts.items()}
        assert words_of(inputs, "neighbours") == twin_neighbours(design.protected, 0.05).words
        for row in network["changes"] + network["groups"]:
            of_row = twin_guarantee(design, row["change"], elements=row["elements"])
            assert (row["epsilon"], row["advantage"]) == (of_row.epsilon, of_row.advantage), name
        assert [row["change"] for row in network["changes"]] == [0.05, 0.5]
        assert [row["elements"] for row in network["groups"]] == [2, 10]
        assert "for 10 elements" in words_of(inputs, "group")


def test_a_change_too_large_for_any_statement_has_none(tmp_path: Path) -> None:
    network = {"noise": "gaussian", "delta": 1e-6, "epsilon": 1.1e5, "lines": "length"}
    chosen = by_hand.twin_config(network=network, release={"network_epsilon_cap": 1.1e5})
    inputs = by_hand.make_inputs(tmp_path, chosen, by_hand.load_model())[0]
    stated = network_of(inputs)
    assert stated["changes"][1]["epsilon"] is None
    assert stated["groups"][1]["advantage"] is None
    assert "for 10" not in words_of(inputs, "group")


def test_earlier_releases_are_in_the_composition(tmp_path: Path) -> None:
    inputs, _ = by_hand.make_inputs(tmp_path / "true", by_hand.config(), by_hand.load_model(), earlier=2)
    composition = by_hand.build_manifest(inputs, HASHES)["composition"]
    assert composition["network"]["spent"]["epsilon"] == 15.0
    assert composition["loads"]["promise"]["epsilon"] > inputs.model.spent_epsilon
    inputs, _ = by_hand.make_inputs(tmp_path / "twin", by_hand.twin_config(), by_hand.load_model(), earlier=2)
    account = by_hand.build_manifest(inputs, HASHES)["composition"]["network"]
    own = twin_guarantee(design_of(inputs)).epsilon
    assert account["spent"] == {"pure_epsilons": [own] * 3, "mu_squared": 0.0}
    assert math.isclose(account["promise"]["epsilon"], 3 * own)
    assert account["promise"]["delta"] == 0.0  # all costs are pure, whatever delta the cap allows


def test_inputs_that_contradict_each_other_are_refused(
    on_true: dict[str, ManifestInputs], on_twins: dict[str, ManifestInputs]
) -> None:
    true, twin = on_true["full-support"], on_twins["plain"]
    less = ComposedCosts((0.999 * twin_guarantee(design_of(twin)).epsilon,))
    wrong: list[tuple[ManifestInputs, dict[str, Any]]] = [
        (true, {"insecure_seed": True}),
        (true, {"loads": replace(true.loads, spent={"rho": true.model.rho * 0.99})}),
        (true, {"network": replace(true.network, spent={"epsilon": 4.9, "delta": 1e-3})}),
        (true, {"layout": replace(by_hand.LAYOUT, days=6)}),
        (true, {"layout": replace(by_hand.LAYOUT, steps=96)}),
        (true, {"config": by_hand.config(model={"power_factor": 0.9})}),
        (true, {"extras": EXTRAS}),
        (true, {"connections": ring(4)}),
        (true, {"network": twin.network}),
        (true, {"days": twin.days}),
        (twin, {"network": true.network}),
        (twin, {"network": replace(twin.network, composed=less)}),
        (twin, {"config": by_hand.twin_config(network={"change": 0.0500001})}),
        (twin, {"config": by_hand.twin_config(network={"epsilon": 4.1})}),
        (twin, {"days": None}),
        (twin, {"connections": ring(4, coordinates=True)}),
    ]
    for inputs, change in wrong:
        with pytest.raises(form.ReleaseError, match="would contradict itself"):
            by_hand.build_manifest(replace(inputs, **change), HASHES)


def test_figures_are_never_rounded_to_a_better_one() -> None:
    assert form.at_most(0.99999) == "1"
    assert form.at_most(4.1101) == "4.12"
    assert float(form.at_most(math.pi * 1e-7)) >= math.pi * 1e-7
    assert form.in_digits(1e-5) == "1e-5"
    assert form.in_digits(100.0) == "100"


@pytest.mark.parametrize("mu", [0.01, 0.1, 1.0, 3.0, 10.0])
def test_the_advantage_bounds_that_of_the_gaussian_mechanism(mu: float) -> None:
    """Of noise with sensitivity over scale μ: ρ = μ²/2, the advantage is 2Φ(μ/2) − 1."""
    exact, delta = 2 * stats.norm.cdf(mu / 2) - 1, 1e-6
    epsilon = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    stated = render.advantage_of(guarantee(epsilon, delta, mu**2 / 2))
    assert exact <= stated <= 1.0
    assert stated <= mu / 2 + 1e-12


def test_the_advantage_of_a_small_epsilon_is_that_of_randomised_response() -> None:
    assert render.advantage_of(guarantee(0.1, 0.0, 10.0)) == pytest.approx(math.tanh(0.05))
    assert render.advantage_of(guarantee(1e4, 1e-6, 1e6)) == 1.0


def guarantee(epsilon: float, delta: float, rho: float) -> form.LoadsGuarantee:
    return form.LoadsGuarantee.model_construct(epsilon=epsilon, delta=delta, rho=rho)


# --- words ------------------------------------------------------------------------------------------------
def test_the_bound_decides_what_is_claimed_of_lines(on_true: dict[str, ManifestInputs]) -> None:
    full, paper = (by_hand.build_manifest(on_true[name], HASHES) for name in ("full-support", "paper"))
    assert "are covered up to that size" in by_hand.said(full, "scope")
    assert "no change of a line's length" in by_hand.said(paper, "scope")
    assert "No change of a line" in by_hand.said(paper, "not_claimed")
    assert "No change of a line" not in by_hand.said(full, "not_claimed")
    assert paper["declared_public"]["reactive"] == {"spread": 0.0, "correlation_minutes": None}


def test_seeds_simulated_loads_and_missing_evidence_are_warned_of(on_true: dict[str, ManifestInputs]) -> None:
    assert by_hand.build_manifest(on_true["full-support"], HASHES)["release"]["warnings"] == []
    for name, word in (("seed", "seed"), ("simulated", "simulated"), ("evidence not required", "target")):
        assert word in words_of(on_true[name], "warnings"), name
    assert "whether or not" in words_of(on_true["evidence not required"], "attestation")


def test_what_has_no_noise_is_declared_public(on_twins: dict[str, ManifestInputs]) -> None:
    for name, inputs in on_twins.items():
        declared = render.Words.of(make_statement(inputs))["declared"]
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


def test_what_is_published_is_what_is_said(on_twins: dict[str, ManifestInputs], made: by_hand.Made) -> None:
    after = {name: words_of(inputs, "after_noise") for name, inputs in on_twins.items()}
    assert "Neither the twin nor the loads" in after["plain"]
    assert "they follow from both" in after["network"]
    assert "of 2 days" in after["network and loads"]
    assert "Only nodes with their own random load" in after["plain"]
    assert "All energised nodes" in after["all nodes"]
    assert "randomised response" in after["codes"]
    assert "randomised response" not in after["plain"]
    assert all("not on the true network" in words for words in after.values())
    whole = by_hand.said(manifest_of(made.path), "after_noise")
    assert "taps of the regulators; states of the switched capacitors" in whole
    assert "nor the loads behind the voltages are released" not in whole
    assert "the powers and states published with them" in by_hand.said(manifest_of(made.path), "scope")


def test_the_words_promise_no_more_than_the_twin_holds(on_twins: dict[str, ManifestInputs]) -> None:
    manifest = by_hand.build_manifest(on_twins["plain"], HASHES)
    claims = by_hand.said(manifest, "not_claimed")
    for words in (
        *("connectivity", "not power flow on the true network", "two elements"),
        "one element changed by 50 %: epsilon at most 33.3",
        *("1.05", "can be read from the angles", "switches", "Coordinates are not published"),
    ):
        assert words in claims
    assert "per-instance" not in json.dumps(manifest)
    assert "the network passed the checks before anything was spent" in by_hand.said(manifest, "unprotected")
    assert "epsilons and deltas of the two add up" in by_hand.said(manifest, "composition")
    assert "another account" in by_hand.said(manifest, "composition")


def test_connections_are_stated_and_coordinates_are_said_loudly(
    made: by_hand.Made, hidden: by_hand.Made
) -> None:
    quiet, loud = manifest_of(hidden.path), manifest_of(made.path)
    stated = quiet["data"]["connections"]
    assert (stated["buses"], stated["pairs"], stated["sources"], stated["coordinates"]) == (3, 3, 1, False)
    assert "How the network is connected: its 3 buses" in by_hand.said(quiet, "unprotected")
    assert "Of the twin itself only its connections are released." in by_hand.said(quiet, "after_noise")
    page = (hidden.path / "certificate.html").read_text()
    assert "<dt>Connections</dt>" in page
    assert "COORDINATES" not in page
    words = "COORDINATES ARE PUBLISHED, SO LENGTHS OF LINES ARE NOT PROTECTED"
    assert loud["release"]["warnings"] == ["coordinates"]
    assert by_hand.said(loud, "warnings").startswith(words)
    assert words in by_hand.said(loud, "unprotected")
    assert "then gives its resistance and reactance" in by_hand.said(loud, "warnings")
    assert "Coordinates are not published" not in by_hand.said(loud, "not_claimed")
    report = dpf.verify(made.path)
    assert any(warning.startswith(words) for warning in report.warnings)
    checked = {check.name: check.sentence for check in report.checks}
    assert "the LENGTH OF A LINE" in checked["network privacy"]
    assert "All 3 buses are connected to a source by 3 joined pairs, with" in checked["voltages"]
    assert "scaled_down: 1,320 powers" in checked["voltages"]
    page = (made.path / "certificate.html").read_text()
    assert words in page
    assert "the LENGTH OF A LINE, which follows from the published coordinates" in page
    assert "against a reader who has its coordinates" not in page


@pytest.mark.parametrize(
    ("network", "weak"),
    [
        ({"lines": "length"}, True),
        ({"lines": "length", "code_epsilon": 0.5}, False),
        ({"lines": "impedance"}, False),
    ],
)
def test_nothing_of_a_line_is_left_where_its_length_and_code_are_public(
    network: dict[str, Any], weak: bool
) -> None:
    warnings = promise_warnings(by_hand.twin_config(network={**network, "coordinates": "public"}))
    loud = [words for words in warnings if words.startswith(form.NO_PROTECTION)]
    assert bool(loud) == weak
    assert all("nothing of a line with a code is left protected" in words for words in loud)
    assert not promise_warnings(by_hand.twin_config(network=network))
    assert warnings[-1].startswith("COORDINATES ARE PUBLISHED")
    assert ("conductor code" in warnings[-1]) == ("code_epsilon" not in network)


# --- tables for hubs --------------------------------------------------------------------------------------
def test_every_column_that_is_there_is_described_and_links_resolve(made: by_hand.Made) -> None:
    manifest = manifest_of(made.path)
    stated = manifest["data"]["extras"]
    assert stated["holds"] == list(EXTRAS.holds)
    assert (stated["source_phases"], stated["regulators"], stated["capacitors"]) == (3, 2, 12)
    tables = {table.name: table for table in render.published_tables(form.parse_manifest(manifest))}
    dataset = json.loads((made.path / "croissant.json").read_text())
    files = {item["@id"]: item for item in dataset["distribution"]}
    assert len(files) == len(dataset["distribution"])
    records = {item["@id"]: item["field"] for item in dataset["recordSet"]}
    for name, table in tables.items():
        place = next(iter(sorted(made.path.glob(table.files))))
        names = pq.read_schema(place).names
        assert [column.name for column in table.columns] == names
        assert [field["name"] for field in records[name]] == names
        for field in records[name]:
            source = field["source"].get("fileSet") or field["source"]["fileObject"]
            assert source["@id"] in files
        if not table.in_parts:
            assert files[table.node]["sha256"] == hashlib.sha256(place.read_bytes()).hexdigest()
    kinds = {field["name"]: field["dataType"] for field in records["feeder"] + records["buses"]}
    assert (kinds["s0_p_kw"], kinds["r0_tap"], kinds["locked"]) == ("sc:Float", "sc:Integer", "sc:Boolean")
    assert (kinds["bus"], kinds["source"], kinds["x"]) == ("sc:Text", "sc:Boolean", "sc:Float")
    days = {field["dataType"] for field in records["days"]}
    assert days == {"sc:Integer", "sc:Date", "sc:Boolean", "sc:Float"}
    assert "With the voltages</dt>" in (made.path / "certificate.html").read_text()


def test_the_registry_record_is_yaml_in_the_layout_of_the_registry(
    on_true: dict[str, ManifestInputs], on_twins: dict[str, ManifestInputs]
) -> None:
    for name, inputs in (on_true | on_twins).items():
        record = yaml.safe_load(render.registry_bytes(make_statement(inputs)))
        deployment, told = record["deployment"], record["deployment"]["implementation"]
        assert list(record) == ["url_slug", "deployment"]
        assert list(deployment) == [
            *("basic", "dp_variant", "privacy_loss", "deployment_model", "implementation", "administrative")
        ]
        parameters = {"epsilon": inputs.model.spent_epsilon, "delta": 1e-5, "rho": inputs.model.rho}
        assert deployment["privacy_loss"]["privacy_parameters"] == parameters, name
        assert isinstance(deployment["basic"]["publication_date"], str)
        assert "Not claimed" in told["additional_information"]
        assert deployment["administrative"]["status"] == "Draft"
        assert ("second guarantee" in told["additional_information"]) == (name in on_twins)
        if name in on_twins:
            assert words_of(inputs, "neighbours") in told["additional_information"]
            described = json.loads(render.croissant_bytes(make_statement(inputs), HASHES))["description"]
            assert "twin of the network" in described


# --- the page a privacy officer reads ---------------------------------------------------------------------


def text_of(content: bytes, between: str = "") -> str:
    """The text of a page, with a blank where a tag was if cells of a table are to stand apart."""
    text = re.sub(r"<style>.*?</style>", "", content.decode(), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", between, text)).split())


@pytest.fixture
def plain(on_true: dict[str, ManifestInputs]) -> form.Statement[Any]:
    return make_statement(on_true["full-support"])


@pytest.fixture
def twin(on_twins: dict[str, ManifestInputs]) -> form.Statement[Any]:
    return make_statement(on_twins["network and loads"])


def test_the_page_asks_the_network_for_nothing(plain: form.Statement[Any]) -> None:
    page = render.certificate_html(plain).decode()
    assert not re.search(r"<(script|link|img|iframe|object|form|a)\b", page)
    assert not re.search(r"\s(src|href|srcset|action|background|on\w+)=", page)
    assert not re.search(r"url\(|@import|https?://", page)
    assert re.search(r"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'", page)


def test_a_plain_release_has_no_banner_and_a_demonstration_has(
    plain: form.Statement[Any], on_true: dict[str, ManifestInputs], tmp_path: Path
) -> None:
    assert b'class="banner"' not in render.certificate_html(plain)
    model = by_hand.load_model("paper", simulated=True, insecure_seed=True)
    content = render.certificate_html(
        make_statement(by_hand.make_inputs(tmp_path, by_hand.config("paper"), model, seed=5)[0])
    )
    assert b'class="banner"' in content
    text = text_of(content)
    assert "Demonstration, not a release" in text
    assert "simulated" in text
    assert "Not covered: any change of a line" in text


def test_the_page_says_what_the_manifest_says(plain: form.Statement[Any], twin: form.Statement[Any]) -> None:
    common = ("not_claimed", "unprotected", "after_noise", "scope", "attestation")
    of_twin = ("declared", "composition", "neighbours", "change", "group", "network_accounting", "meaning")
    for statement, parts in ((plain, ("before_noise", "unit")), (twin, of_twin)):
        text = text_of(render.certificate_html(statement))
        for sentence in (words for part in (*common, *parts) for words in render.Words.of(statement)[part]):
            assert sentence in text
        assert "dp-powerflow verify RELEASE" in text
    text = text_of(render.certificate_html(plain))
    assert "ε ≤ 4" in text
    assert "not differential privacy" in text.lower()


def test_the_card_of_a_twin_is_that_of_differential_privacy(
    plain: form.Statement[Any], twin: form.Statement[Any]
) -> None:
    assert b'<div class="card evidence">' in render.certificate_html(plain)
    content = render.certificate_html(twin)
    assert b'<div class="card evidence">' not in content
    assert content.count(b'<div class="kind">Differential privacy</div>') == 2
    text = text_of(content)
    assert "5 % 4 0.865 93.3 % 50 % 33.3 1 100 %" in text_of(content, " ")
    for words in (
        "Not protected: which elements there are and how they are connected; phases, which the angles",
        "Regulator tapsdeclared, or solved once on the twin; then frozen",
        "exact discrete Gaussian (loads) and Laplace (twin)",
        "Capacity of a PV systemNOT PROTECTED: declared public",
        "Conductor code of a lineNOT PROTECTED: declared public",
    ):
        assert words in text
    assert "not differential privacy" not in text.lower()


def test_the_first_screen_of_a_twin_shows_both_changes_with_the_advantage(tmp_path: Path) -> None:
    """At ε(5 %) = 1: 8.3 at 50 %, advantage 0.39; a Gaussian at δ = 1e-6 has 10.8 and 0.094."""
    shown = {}
    for noise, delta in (("laplace", 0.0), ("gaussian", 1e-6)):
        chosen = by_hand.twin_config(network={"epsilon": 1.0, "delta": delta, "noise": noise, "change": 0.05})
        made = make_statement(by_hand.make_inputs(tmp_path / noise, chosen, by_hand.load_model())[0])
        text = text_of(render.certificate_html(made), " ")
        shown[noise] = text[: text.index("What this means for customers")]
    assert "5 % 1 0.394 69.7 % 50 % 8.32 0.985 99.3 %" in shown["laplace"]
    assert "Laplace noise, δ = 0, any number of days." in shown["laplace"]
    assert "0.0943 54.8 % 50 % 10.8 0.675 83.8 %" in shown["gaussian"]
    assert "Gaussian noise, ε at δ = 1e-6, any number of days." in shown["gaussian"]
    for text in shown.values():
        assert "Protected: one line (total resistance and reactance)" in text
        assert "the length of a line against a reader who has its coordinates." in text


def test_a_change_of_its_own_gets_a_row_of_its_own(tmp_path: Path) -> None:
    chosen = by_hand.twin_config(network={"epsilon": 1.0, "change": 0.2})
    content = render.certificate_html(
        make_statement(by_hand.make_inputs(tmp_path, chosen, by_hand.load_model())[0])
    )
    assert re.findall(r"<tr><td>([0-9.]+) %</td>", content.decode()) == ["5", "20", "50"]


def test_hashes_do_not_enter_the_page_and_what_the_manifest_holds_is_escaped(
    plain: form.Statement[Any],
) -> None:
    sealed = form.seal(plain, HASHES | {"data/part-00000.parquet": "1" * 64})
    other = sealed.internal_report.model_copy(update={"sha256": "3" * 64})
    changed = sealed.model_copy(update={"internal_report": other, "manifest_sha256": "2" * 64})
    assert render.certificate_html(changed) == render.certificate_html(plain)
    release = plain.release.model_copy(update={"id": "<script>alert(1)</script>"})
    content = render.certificate_html(plain.model_copy(update={"release": release}))
    assert b"<script>" not in content
    assert b"&lt;script&gt;" in content


# --- the page of the quality ------------------------------------------------------------------------------
def test_the_released_page_is_what_anybody_makes_again(made: by_hand.Made) -> None:
    page = (made.path / "quality.html").read_bytes()
    assert dpf.quality(dpf.open_corpus(made.path), workers=1).to_html() == page
    assert manifest_of(made.path)["files"]["quality.html"] == hashlib.sha256(page).hexdigest()
