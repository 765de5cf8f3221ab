"""Forgers: they change entries, models and pages of a release and make hashes and digests fit.

What follows from the record is recomputed, so a change of it is found. What is left is listed here by name:
what the data owner declares or attests, and the noise itself. A new entry that nothing checks fails a test.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import dp_powerflow as dpf
from dp_powerflow import Budget, FitOptions, StreamKey
from dp_powerflow.corpus.schema import ExtrasLayout
from dp_powerflow.corpus.tables import encode_nodes
from dp_powerflow.errors import ConfigError, CorpusError, PrivacyError
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.lowlevel import PublicSpread, simulate_load_history
from dp_powerflow.manifest import verify
from dp_powerflow.manifest.build import Facts
from dp_powerflow.manifest.model import (
    DIGEST,
    MALFORMED,
    Generation,
    LoadFactor,
    NodeCustomers,
    NodeScales,
    at_least,
    canonical_json,
    digest_of,
    parse_manifest,
)
from dp_powerflow.manifest.render import registry_bytes
from dp_powerflow.manifest.verify import check_release, manifest_content, open_release, read_manifest
from dp_powerflow.model.fit import fit
from dp_powerflow.model.gaussian import LoadModel, _derived_again, _from_plain
from dp_powerflow.pipeline.deriving.derived import card_bytes, certificate_html, check_derived, open_files
from dp_powerflow.pipeline.modes.twin import public_places
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.quality import measure
from dp_powerflow.quality.measure import MOST_COUNT, Controls
from dp_powerflow.studies.study import KINDS
from support.corpora import ring
from support.derived_kind import PLACE
from support.forgery import PAGES, Forger, sha256
from support.lognormal import LOGNORMAL_CLASSES
from support.made import Released
from support.manifest_releases import LAYOUT, load_model, make_release, twin_config
from support.quality_corpora import Feeder3
from support.small import small_config
from support.tampering import changed, ends, failed, leaves, manifest_of, rewrite, sealed, value_at

Where = tuple[str | int, ...]


@pytest.fixture(scope="module")
def forger(tmp_path_factory: pytest.TempPathFactory) -> Forger:
    """Of a release on the true network."""
    return Forger.of(make_release(tmp_path_factory.mktemp("made"), earlier=1).path)


@pytest.fixture(scope="module", params=["laplace", "gaussian"])
def twin_forger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forger:
    network = {"noise": request.param, "delta": 1e-6 if request.param == "gaussian" else 0.0}
    chosen = twin_config(network=network, release={"network_epsilon_cap": 50.0})
    beside: dict[str, Any] = {"extras": ExtrasLayout(scaled_down=True), "connections": ring(LAYOUT.nodes)}
    return Forger.of(make_release(tmp_path_factory.mktemp("twin"), chosen, earlier=1, **beside).path)


@pytest.fixture(scope="module")
def page_forger(tmp_path_factory: pytest.TempPathFactory) -> Forger:
    """Of a plain release on a twin."""
    made = make_release(tmp_path_factory.mktemp("plain"), twin_config(), connections=ring(LAYOUT.nodes))
    return Forger.of(made.path)


@pytest.fixture(scope="module")
def on_true(forger: Forger) -> Path:
    return Path(str(forger.opened.directory))


def variants(value: Any) -> list[Any]:
    """Other values of one entry: plausible ones first, then those that a parser might let pass."""
    if isinstance(value, bool):
        return [not value, int(value)]
    if isinstance(value, int):
        return [value * 2, value // 100, -value, value + 1, float(value), True, 10**400]
    if isinstance(value, float):
        others: list[Any] = [value * 2, value / 100, -value, value * (1 + 1e-6), int(value), True]
        return [*others, str(value), 0.0, 5e-324]
    if value is None:
        return ["something", 0]
    if len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return [value[::-1], value[:-1], value.upper(), value[:-1] + "٣", f"{value}\n"]
    return [f"{value}x", value[:-1], value.swapcase(), "", 0]


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


OF_POLICY = {("guarantee", "network", "delta"), ("guarantee", "network", "epsilon")}
"""A policy within what the ledger was charged: that the evidence supports it is attested."""
ATTESTED = OF_POLICY | {
    ("declared_public", "node_scales", "factor"),
    ("internal_report", "sha256"),
    *(("declared_public", "net_loads", name) for name in ("floor_kw", "most_export")),
    *(("publication", name) for name in ("publisher", "license", "citation", "require_signatures")),
}


NAMED = {("guarantee", "network", name) for name in ("twin", "all_nodes")}
"""What the data owner calls the twin; whether nodes without a load are released."""
PER_KM = {("guarantee", "network", "protected", name) for name in ("c_nf_per_km", "x_ohm_per_km")}
"""Declared figures of lines without a conductor code; sentences name them where they count."""
OF_CUSTOMERS = {("declared_public", "node_scales", "kw_per_customer")}
"""How many customers are drawn follows from a declared number, as the factor of a node is."""
ATTESTED_OF_TWIN = ((ATTESTED | NAMED | PER_KM) - OF_POLICY) | OF_CUSTOMERS
EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.campaign)])
"""One change of each entry; in the campaign every change, and the forger's pages are looked at as well."""


def unnoticed(forger: Forger, every: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[int, set[Where]]:
    """How many entries were changed, and those whose change nothing finds."""
    if not every:
        monkeypatch.setattr(verify, "check_pages", lambda _: ())
        forger = replace(forger, pages=False)
    manifest, left = forger.manifest, set()
    assert forger.found(manifest) == set()
    made_to_fit = {("files", name) for name in PAGES} | {("manifest_sha256",)}
    # Each query is a row of the same form; two of them stand for all.
    paths = [path for path in leaves(manifest) if path not in made_to_fit]
    paths = [path for path in paths if every or path[0] != "load_queries" or path[1] in (0, 7)]
    for number, path in enumerate(paths):
        value = value_at(manifest, path)
        others = [other for other in variants(value) if not same(other, value)]
        for other in others if every else others[number % len(others) :][:1]:
            if not forger.found(changed(manifest, path, other)):
                left.add(path)
    return len(paths), left


@EVERY
def test_every_change_of_every_entry_of_the_manifest_is_found_unless_it_is_attested(
    forger: Forger, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    count, left = unnoticed(forger, every, monkeypatch)
    assert count > 100
    assert left == ATTESTED if every else left <= ATTESTED


@EVERY
def test_every_change_of_every_entry_of_a_twin_is_found_unless_it_is_attested(
    twin_forger: Forger, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    count, left = unnoticed(twin_forger, every, monkeypatch)
    assert count > 100
    assert left <= ATTESTED_OF_TWIN


def test_a_forger_who_states_all_that_follows_gets_no_further(forger: Forger) -> None:
    """Every constant that the manifest is made of changed by itself, and the whole of it made anew."""
    facts = forger.opened.facts
    assert facts is not None
    assert forger.found_of(facts) == set()
    free = {name for name, other in other_facts(facts) if not forger.found_of(other)}
    declared = {f"declared.{name}" for name in ("node_scales", "load_power_factors", "generation")}
    policy = {f"policy.{name}" for name in ("epsilon", "delta", "evidence_required")}
    assert free == {"commitment_sha256", "loads.spent", "network.spent"} | declared | policy


def other_facts(facts: Facts) -> Iterator[tuple[str, Facts]]:
    """Facts that differ in one constant, by its name."""
    yield "release_id", replace(facts, release_id="r-2")
    yield "insecure_seed", replace(facts, insecure_seed=not facts.insecure_seed)
    yield "commitment_sha256", replace(facts, commitment_sha256="0" * 64)
    yield "software", replace(facts, software="dp-powerflow 9.9.9")
    of_class: dict[str, Any] = {"kw_per_customer": 1.0, "kw_per_customer_of_class": {}}
    declared = {
        "generation": Generation(days=2, per_system=True, volt_var="category A"),
        "node_scales": NodeScales(rule="nominal load", factor=9.0),
        "node_scales, otherwise": NodeCustomers(rule="sum of customers", **of_class),
        "load_power_factors": [LoadFactor(power_factor=-0.9, loads=3)],
    }
    declared |= {name: value * 0.9 for name, value in facts.declared if isinstance(value, float)}
    minutes = facts.declared.reactive.correlation_minutes
    if minutes is not None:
        other = facts.declared.reactive.model_copy(update={"correlation_minutes": minutes * 0.9})
        declared["reactive"] = other
    for name, value in declared.items():
        changed = facts.declared.model_copy(update={name.split(",")[0]: value})
        yield f"declared.{name}", replace(facts, declared=changed)
    yield "scaled_down", replace(facts, scaled_down=3, extras=replace(facts.extras, scaled_down=True))
    for name, value in facts.policy.model_dump().items():
        if isinstance(value, bool | float):
            changed_value = not value if isinstance(value, bool) else value * 0.9
            policy = facts.policy.model_copy(update={name: changed_value})
            yield f"policy.{name}", replace(facts, policy=policy.recomputed())
    bound = "paper" if facts.policy.full_support else "full-support"
    yield "policy.bound", replace(facts, policy=facts.policy.model_copy(update={"bound": bound}))
    yield "policy.days", replace(facts, policy=facts.policy.model_copy(update={"days": 1}))
    for name in ("loads", "network"):
        account = getattr(facts, name)
        for name_of, factor in (("spent", 1.01), ("spent, too little", 1e-3)):
            spent = account.spent.model_copy(update={q: factor * value for q, value in account.spent})
            changed_account = account.model_copy(update={"spent": spent})
            yield f"{name}.{name_of}", replace(facts, **{name: changed_account})
    promise = facts.loads.promise.model_copy(update={"delta": 1.1 * facts.loads.promise.delta})
    loads = facts.loads.model_copy(update={"promise": promise})
    yield "loads.delta", replace(facts, loads=loads)


# ---------------------------------------------------------------------------------------------- model.json


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    """A load model of four steps as JSON; nothing in it is too small to matter."""
    history = simulate_load_history(400, n_days=2, step_minutes=360, seed=3, classes=LOGNORMAL_CLASSES)
    model = fit(
        replace(history, class_label=(None,) * 400),
        budget=Budget(4.0, 1e-5),
        options=FitOptions((0.01, 2.0), use_scale=True, reactive=PublicSpread(), variance_floor=0.3),
        key=StreamKey.from_insecure_seed(1),
    )
    content: dict[str, Any] = json.loads(model.to_json())
    return content


def text(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n"


def accepted(content: str) -> bool:
    return verify.model_of(content.encode()) is not None


STATED = {("insecure_seed",), ("simulated",)}
"""Of a model by itself; the manifest says the same of the release, or it is found."""
NO_TRACE = {("options", "variance_floor")}
"""A floor that no variance comes down to; the manifest declares the same floor, or it is found."""


def test_a_changed_entry_of_the_model_is_found_unless_it_is_noise_or_says_where_it_came_from(
    tiny: dict[str, Any],
) -> None:
    assert accepted(text(tiny))
    left = set()
    for path in leaves(tiny, ends):
        value = value_at(tiny, path)
        # Numbers of a list are compared within a share of the largest of them.
        for other in variants(value)[: 3 if isinstance(path[-1], int) else None]:
            if not same(other, value) and accepted(text(changed(tiny, path, other))):
                left.add(path)
    assert {path for path in left if "integers" not in path} == STATED | NO_TRACE


DECLARED = {("facts", name) for name in ("load_points_of_class", "days_of_type", "step_minutes")}
DECLARED |= {("options", name) for name in ("bounds", "use_scale", "variance_floor", "reactive")}


def test_a_forger_who_derives_the_model_anew_can_only_declare_and_draw(tiny: dict[str, Any]) -> None:
    """Whatever else he changes, sensitivities, noise scales, grids and budgets included, is found."""
    kinds = set()
    for path in leaves(tiny, ends):
        value = value_at(tiny, path)
        for other in variants(value)[:4]:
            try:
                stated = _from_plain(changed(tiny, path, other))
                forged = _derived_again(stated).to_json()
            except MALFORMED:
                continue
            if forged != text(tiny) and accepted(forged):
                kinds.add(("queries", "integers") if "integers" in path else path[:2])
    # A noise scale that is off by one is how another version of scipy rounds.
    assert kinds - {("queries", k) for k in range(20)} <= DECLARED | STATED | {("queries", "integers")}


def test_queries_are_those_that_the_public_options_ask(tiny: dict[str, Any]) -> None:
    queries = tiny["queries"]
    others: tuple[dict[str, Any], ...] = (
        {"cohort": "nobody"},
        {"unit": "load-point-day"},
        {"region": "orthant", "sensitivity_squared": 2 * 2**48},
        {"dimension": 1},
        {"grid_step": queries[0]["grid_step"] / 100},
        {"natural_unit": "MW"},
    )
    for forged in (
        [query | {"sensitivity_squared": query["sensitivity_squared"] // 100} for query in queries],
        [query | {"sigma": query["sigma"] * 2} for query in queries],
        queries[1:],
        queries[:-1],
        [*queries, queries[-1]],
        [queries[1], queries[0], *queries[2:]],
        *([query | other for query in queries] for other in others),
    ):
        assert not accepted(text(tiny | {"queries": forged}))


CASES = json.loads(Path(__file__).with_name("forged_cases.json").read_bytes())
"""Spellings of a model, old and new; statements beside a guarantee that no config can declare."""


@pytest.mark.parametrize("spelling", CASES["spellings"])
def test_a_model_in_another_spelling_is_not_read(tiny: dict[str, Any], spelling: str) -> None:
    old, new = CASES["spellings"][spelling]
    assert old in text(tiny)
    assert not accepted(text(tiny).replace(old, new, 1))


def test_a_manifest_with_a_key_twice_is_found(forger: Forger) -> None:
    content = forger.opened.content.replace(b'"format"', b'"format": "better", "format"', 1)
    opened = replace(forger.opened, content=content)
    assert "manifest" in {check.name for check in verify.check_release(opened).failures}


def test_a_model_without_answers_cannot_carry_invented_costs(forger: Forger) -> None:
    """The attack: strip the answers and state one cheap query instead of all: ε fell from 4 to 0.006."""
    model = load_model()
    cheap = replace(model, origin=None, costs=(replace(model.costs[0], sigma=model.costs[0].sigma * 1000),))
    facts = forger.opened.facts
    assert facts is not None
    assert cheap.spent_epsilon < 0.01 < model.spent_epsilon
    with pytest.raises(PrivacyError, match="not a load model"):
        LoadModel.from_json(cheap.to_json())
    assert "load privacy" in forger.found_of(replace(facts, model=cheap), cheap.to_json().encode())


def test_figures_that_do_not_go_with_the_templates_are_found_without_a_traceback(
    on_true: Path, page_forger: Forger, tmp_path: Path
) -> None:
    """A warning of the other mode, or the account of the other mode, made jinja2 raise out of `verify`."""
    on_twin = Path(str(page_forger.opened.directory))
    true, twin = manifest_of(on_true), manifest_of(on_twin)
    true["release"]["warnings"] = ["coordinates"]
    twin["composition"]["network"] = manifest_of(on_true)["composition"]["network"]
    for source, manifest in ((on_true, true), (on_twin, twin)):
        copy = tmp_path / source.parent.name
        shutil.copytree(source, copy)
        rewrite(copy, manifest, sealed=True)
        assert {"statement", "pages"} <= {check.name for check in verify.verify_release(copy).failures}


@pytest.mark.parametrize("sign", ["\x7f", "\x85", "\x92", "\u2028", "\ufeff", "\uffff", "\x85---\x85", '"\\'])
def test_a_publisher_with_an_odd_sign_leaves_the_registry_record_readable(on_true: Path, sign: str) -> None:
    """0x92 is the apostrophe of Windows-1252 read as Latin-1; YAML takes it escaped only."""
    content = manifest_of(on_true)
    content["publication"]["publisher"] = f"Grid{sign}Co"
    record = yaml.safe_load(registry_bytes(parse_manifest(content)))
    curator = record["deployment"]["basic"]["data_curators"][0]
    assert curator["data_curator_name"] == f"Grid{sign}Co"


def test_pages_that_are_not_compared_are_warned_of(on_true: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once two versions can be named, a forger names the other one and writes what he likes on the pages."""
    opened = Forger.of(on_true).opened
    assert not any("NOT COMPARED" in text for text in check_release(opened).warnings)
    monkeypatch.setattr(verify, "__version__", "9.9.9")
    assert check_release(opened).warnings[0].startswith("THE PAGES WERE NOT COMPARED")


def test_noise_is_never_shown_larger_than_it_is(twin_release: Released) -> None:
    """A scale that was rounded up promised more than the release keeps."""
    stated = read_manifest(twin_release.path)[0]
    page = (twin_release.path / "certificate.html").read_text()
    shown = re.findall(r"noise, scale ([0-9.e-]+) of the logarithm", page)
    largest = max(stated.guarantee.network.scale_of(part) for part in stated.guarantee.network.scales)
    assert shown
    assert all(float(scale) <= largest for scale in shown)
    assert all(float(at_least(query.noise_std, 4)) <= query.noise_std for query in stated.load_queries)


def test_what_was_spent_of_evidence_has_its_star(on_true: Path) -> None:
    page = (on_true / "certificate.html").read_text()
    assert "ε* = " in page.partition("Spent so far")[2].partition("What was asked")[0]


# ---------------------------------------------------------------------------------------------- derived


KIND = "lowest-voltage"


@pytest.fixture(autouse=True)
def _a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, KIND, PLACE)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of a release whose twin is weak."""
    folder = tmp_path_factory.mktemp("study")
    twin = {"mode": "twin-network", "id": "t1", "epsilon": 20.0, "change": 0.05, "released": "all"}
    twin |= {"controls": "frozen", "publish": "network and loads", "graph_days": 2}
    release = {"days": 2, "network_epsilon_cap": 50.0}
    run_release(small_config(folder, network=twin, release=release), workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, KIND, PLACE)
        dpf.derive(KIND, folder / "out", folder / "found", workers=1)
    return folder / "found"


def sealed_anew(folder: Path, source: dict[str, Any], **files: bytes) -> None:
    """Both manifests and both pages made to fit."""
    source |= {DIGEST: digest_of(source)}
    written = {"source/manifest.json": canonical_json(source), **files}
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["source"]["manifest_sha256"] = sha256(written["source/manifest.json"])
    (folder / "source" / "manifest.json").write_bytes(written["source/manifest.json"])
    opened = open_files(folder)
    assert opened.manifest is not None
    parsed = read_manifest(folder / "source")[0]
    written["certificate.html"] = certificate_html(opened.manifest, parsed)
    written["README.md"] = card_bytes(opened.manifest, parsed)
    for name, content in written.items():
        (folder / name).write_bytes(content)
        manifest["files"][name] = sha256(content)
    rewrite(folder, manifest, sealed=True)


def found_in(folder: Path) -> set[str]:
    return {check.name for check in check_derived(open_files(folder)).failures}


def test_a_forged_study_is_found_without_a_traceback(study: Path, tmp_path: Path) -> None:
    """It loses a warning of its release, has a file that only looks like a table, or names no software."""
    folder = shutil.copytree(study, tmp_path / "a")
    source = json.loads((folder / "source" / "manifest.json").read_text())
    sealed_anew(folder, source)
    assert check_derived(open_files(folder)).intact
    sealed_anew(folder, source, **{"secret.parquet": b"no table"})
    assert "statement" in found_in(folder)
    source["release"]["warnings"].remove("network")
    sealed_anew(folder, source)
    assert "source" in found_in(folder)
    folder = shutil.copytree(study, tmp_path / "b")
    rewrite(folder, manifest_of(folder) | {"software": {}}, sealed=True)
    assert "pages" in found_in(folder)


SMALL = Feeder3(buses=2, days=2, steps=4, days_per_part=1)


# -------------------------------------------------------------------------- what a page must survive
@pytest.mark.parametrize("level", [0.0, 1e-6, 7.999])
def test_no_voltage_that_can_be_written_keeps_a_paid_release_from_its_page(
    tmp_path: Path, level: float
) -> None:
    """The page is made when the budget is spent: what it cannot show would be paid for and never finished."""
    v = np.full((SMALL.days, SMALL.steps, SMALL.layout.nodes), level, dtype=np.complex128)
    found = measure(SMALL.write(tmp_path / "corpus", v), workers=1)
    assert found.network is not None
    assert found.to_html().startswith(b"<!DOCTYPE html>")
    # 16 bits hold 6.5535 p.u.: a higher voltage is the highest, not one of 1.4 p.u.
    assert np.all(found.network.vm == min(max(round(level * 10_000), 1), MOST_COUNT))


def test_a_phase_of_its_own_for_every_node_does_not_fill_the_memory_of_who_verifies(tmp_path: Path) -> None:
    """Counts and maps are kept by phase: 20,000 of them would take 77 GB."""
    many = Feeder3(buses=20, days=1, steps=4, days_per_part=1)
    nodes = np.arange(many.layout.nodes)
    odd = replace(many.connections(), phase=nodes + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feeder3, "connections", lambda *_, **__: odd)
        found = measure(many.write(tmp_path / "corpus"), workers=1)
    assert (found.voltages.grouped_by, len(found.voltages.groups), found.network) == ("angle", 3, None)
    assert b"or too many of them" in found.to_html()


def test_coordinates_that_no_page_can_show_are_refused_before_the_spend() -> None:
    feeder = open_feeder("ieee13")
    far = dict.fromkeys(feeder.coordinates, (1e305, 0.0))
    with pytest.raises(ConfigError, match="has no coordinates for"):
        public_places(feeder, far)
    with pytest.raises(CorpusError, match="not two finite coordinates"):
        replace(ring(4), coordinates=np.full((3, 2), 1e305))


def test_capacitors_that_are_left_out_of_the_table_are_said_to_be(tmp_path: Path) -> None:
    none = np.zeros(0)
    many = Controls(none.reshape(0, 3, 0).astype(np.int64), none, np.full(30, 0.5), np.zeros(30), 0.0)
    found = measure(SMALL.write(tmp_path / "corpus"), workers=1)
    assert b"the first 12 of 30" in replace(found, controls=many).to_html()


# ------------------------------------------------------------------------------------ what verify must see
def test_names_of_nodes_that_are_no_positions_are_found(tmp_path: Path, page_forger: Forger) -> None:
    """True names in the node table, hashes and pages made to fit: the manifest says that they are opaque."""
    path = Path(shutil.copytree(str(page_forger.opened.directory), tmp_path / "copy"))
    assert not failed(path)
    opened = open_release(path, manifest_content(path))
    assert opened.corpus.nodes is not None
    assert opened.corpus.layout is not None
    named = replace(opened.corpus.nodes, ids=("bus650.1", "bus632.1", "bus671.1", "bus680.1"))
    encoded = encode_nodes(opened.corpus.layout, str(opened.corpus.release_id), named)
    (path / "nodes.parquet").write_bytes(encoded)
    assert "voltages" in sealed(path)


@pytest.mark.parametrize("stated", CASES["stated"].values(), ids=CASES["stated"])
def test_what_no_config_can_declare_of_the_publication_is_found(
    page_forger: Forger, stated: dict[str, str]
) -> None:
    """The card repeats it beside the guarantees: with a line break its owner writes sections of his own."""
    manifest = page_forger.manifest
    manifest["publication"] |= stated
    assert page_forger.found(manifest)


def test_a_publisher_cannot_write_markup_into_the_card(tmp_path: Path) -> None:
    chosen = twin_config(publication={"publisher": "**Proved** <h1>epsilon = 0</h1> [x](https://a.example)"})
    card = make_release(tmp_path, chosen, load_model()).path / "README.md"
    (line,) = (text for text in card.read_text().splitlines() if text.startswith("Publisher: "))
    assert line.startswith(r"Publisher: \*\*Proved\*\* \<h1\>epsilon = 0\</h1\> \[x\](https://a.example). ")
