"""A forger changes one entry of a release and makes every page, hash and digest fit: what `verify` finds.

What follows from the record is recomputed, so a change of it is found. What is left is listed here by name:
what the data owner declares or attests, and the noise itself. A new entry that nothing checks fails a test.

On the code of ffefb60 sensitivities that do not follow from their region, floors and factors below zero, and
a commitment of 63 digits were found already. Not found were: a floor of variance and a correlation time that
the load model does not have, a model without its noisy answers whose costs follow from nothing, texts and
truth values in place of numbers in `model.json`, keys that are there twice in it, and a budget or noise
scale that is off by one in a million.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dp_powerflow.corpus.schema import ExtrasLayout
from dp_powerflow.errors import PrivacyError
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.manifest import verify
from dp_powerflow.manifest.build import Facts
from dp_powerflow.manifest.model import MALFORMED, Generation, LoadFactor, NodeCustomers, NodeScales
from dp_powerflow.model.fit import fit
from dp_powerflow.model.gaussian import LoadModel, _derived_again, _from_plain
from dp_powerflow.model.options import FitOptions, PublicSpread
from dp_powerflow.privacy.budget import Budget
from dp_powerflow.privacy.random import StreamKey
from support.corpora import ring
from support.forgery import PAGES, Forger
from support.lognormal import LOGNORMAL_CLASSES
from support.manifest_releases import LAYOUT, load_model, make_release, twin_config
from support.tampering import leaves

Where = tuple[str | int, ...]


@pytest.fixture(scope="module")
def forger(tmp_path_factory: pytest.TempPathFactory) -> Forger:
    return Forger.of(make_release(tmp_path_factory.mktemp("made"), earlier=1).path)


@pytest.fixture(scope="module", params=["laplace", "gaussian"])
def twin_forger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forger:
    network = {"noise": request.param, "delta": 1e-6 if request.param == "gaussian" else 0.0}
    chosen = twin_config(network=network, release={"network_epsilon_cap": 50.0})
    beside: dict[str, Any] = {"extras": ExtrasLayout(mended=True), "connections": ring(LAYOUT.nodes)}
    return Forger.of(make_release(tmp_path_factory.mktemp("twin"), chosen, earlier=1, **beside).path)


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


def value_at(content: Any, path: Where) -> Any:
    for key in path:
        content = content[key]
    return content


def changed(content: Any, path: Where, value: Any) -> Any:
    other = copy.deepcopy(content)
    value_at(other, path[:-1])[path[-1]] = value
    return other


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


OF_POLICY = {("guarantee", "network", "delta"), ("guarantee", "network", "epsilon")}
"""A policy within what the ledger was charged: that the evidence supports it is attested."""
ATTESTED = OF_POLICY | {
    ("declared_public", "node_scales", "factor"),
    *(("declared_public", "net_loads", name) for name in ("floor_kw", "most_export", "on_export")),
    ("internal_report", "sha256"),
    *(("declared_public", "net_loads", name) for name in ("floor_kw", "most_export")),
    *(("publication", name) for name in ("publisher", "license", "citation")),
}


def unnoticed(forger: Forger, paths: list[Where], every: bool) -> set[Where]:
    manifest, left = forger.manifest, set()
    for number, path in enumerate(paths):
        value = value_at(manifest, path)
        others = [other for other in variants(value) if not same(other, value)]
        for other in others if every else others[number % len(others) :][:1]:
            if not forger.found(changed(manifest, path, other)):
                left.add(path)
    return left


def entries(forger: Forger) -> list[Where]:
    """Entries of the manifest but for what the forger makes to fit anyway."""
    made_to_fit = {("files", name) for name in PAGES} | {("manifest_sha256",)}
    return [p for p in leaves(forger.manifest) if p not in made_to_fit]


def test_a_changed_entry_of_the_manifest_is_found_unless_it_is_attested(
    forger: Forger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One change of each entry. The forger's pages say what his manifest says, so they are not looked at."""
    monkeypatch.setattr(verify, "check_pages", lambda _: ())
    quick = replace(forger, pages=False)
    assert quick.found(forger.manifest) == set()
    # Each query is a row of the same form; two of them stand for all.
    paths = [path for path in entries(forger) if path[0] != "load_queries" or path[1] in (0, 7)]
    assert len(paths) > 100
    assert unnoticed(quick, paths, every=False) <= ATTESTED


NAMED = {("guarantee", "network", name) for name in ("twin", "all_nodes")}
"""What the data owner calls the twin; whether nodes without a load are released."""
PER_KM = {("guarantee", "network", "protected", name) for name in ("c_nf_per_km", "x_ohm_per_km")}
"""Declared figures of lines without a conductor code; sentences name them where they count."""


def test_a_changed_figure_of_a_twin_is_found_unless_it_is_attested(
    twin_forger: Forger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "check_pages", lambda _: ())
    quick = replace(twin_forger, pages=False)
    assert quick.found(quick.manifest) == set()
    of_network = [
        p for p in entries(quick) if p[:2] in (("guarantee", "network"), ("composition", "network"))
    ]
    assert len(of_network) > 40
    assert unnoticed(quick, of_network, every=False) <= (ATTESTED | NAMED | PER_KM) - OF_POLICY


OF_CUSTOMERS = {("declared_public", "node_scales", "kw_per_customer")}
"""How many customers are drawn follows from a declared number, as the factor of a node is."""


@pytest.mark.campaign
def test_every_change_of_every_entry_of_a_twin_is_found_unless_it_is_attested(twin_forger: Forger) -> None:
    paths = [path for path in entries(twin_forger) if path[0] != "load_queries"]
    free = ((ATTESTED | NAMED | PER_KM) - OF_POLICY) | OF_CUSTOMERS
    assert unnoticed(twin_forger, paths, every=True) <= free


@pytest.mark.campaign
def test_every_change_of_every_entry_of_the_manifest_is_found_unless_it_is_attested(forger: Forger) -> None:
    assert unnoticed(forger, entries(forger), every=True) == ATTESTED


def test_a_forger_who_states_all_that_follows_gets_no_further(forger: Forger) -> None:
    """Every constant that the manifest is made of changed by itself, and the whole of it made anew."""
    facts = forger.opened.facts
    assert facts is not None
    assert forger.found_of(facts) == set()
    free = {name for name, other in other_facts(facts) if not forger.found_of(other)}
    assert free == {
        "commitment_sha256",
        "declared.node_scales",
        "declared.load_power_factors",
        "declared.generation",
        "policy.epsilon",
        "policy.delta",
        "policy.evidence_required",
        "loads.spent",
        "network.spent",
    }


def other_facts(facts: Facts) -> Iterator[tuple[str, Facts]]:
    """Facts that differ in one constant, by its name."""
    yield "release_id", replace(facts, release_id="r-2")
    yield "insecure_seed", replace(facts, insecure_seed=not facts.insecure_seed)
    yield "commitment_sha256", replace(facts, commitment_sha256="0" * 64)
    yield "software", replace(facts, software="dp-powerflow 9.9.9")
    declared = {
        "generation": Generation(days=2, per_system=True, volt_var="category A"),
        "node_scales": NodeScales(rule="nominal load", factor=9.0),
        "node_scales, otherwise": NodeCustomers(
            rule="sum of customers", kw_per_customer=1.0, kw_per_customer_of_class={}
        ),
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
    yield "mended", replace(facts, mended=3, extras=replace(facts.extras, mended=True))
    for name, value in facts.policy.model_dump().items():
        if isinstance(value, bool | float):
            policy = facts.policy.model_copy(
                update={name: not value if isinstance(value, bool) else value * 0.9}
            )
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


def some_leaves(value: Any, path: Where = ()) -> Iterator[Where]:
    """Every entry, of a list of many numbers the first and the last."""
    if isinstance(value, dict | list):
        keys: Any = list(value) if isinstance(value, dict) else range(len(value))
        if isinstance(value, list) and len(value) > 2 and not isinstance(value[0], dict | str):
            keys = (0, len(value) - 1)
        for key in keys:
            yield from some_leaves(value[key], (*path, key))
    else:
        yield path


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
    for path in some_leaves(tiny):
        value = value_at(tiny, path)
        # Numbers of a list are compared within a share of the largest of them.
        for other in variants(value)[: 3 if isinstance(path[-1], int) else None]:
            if not same(other, value) and accepted(text(changed(tiny, path, other))):
                left.add(path)
    assert {path for path in left if "integers" not in path} == STATED | NO_TRACE


DECLARED = {
    ("facts", "load_points_of_class"),
    ("facts", "days_of_type"),
    ("facts", "step_minutes"),
    ("options", "bounds"),
    ("options", "use_scale"),
    ("options", "variance_floor"),
    ("options", "reactive"),
}


def test_a_forger_who_derives_the_model_anew_can_only_declare_and_draw(tiny: dict[str, Any]) -> None:
    """Whatever else he changes, sensitivities, noise scales, grids and budgets included, is found."""
    kinds = set()
    for path in some_leaves(tiny):
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


def cheaper(tiny: dict[str, Any], **change: Any) -> list[dict[str, Any]]:
    return [query | change for query in tiny["queries"]]


def test_queries_are_those_that_the_public_options_ask(tiny: dict[str, Any]) -> None:
    queries = tiny["queries"]
    smaller = [query | {"sensitivity_squared": query["sensitivity_squared"] // 100} for query in queries]
    louder = [query | {"sigma": query["sigma"] * 2} for query in queries]
    for forged in (
        smaller,
        louder,
        queries[1:],
        queries[:-1],
        [*queries, queries[-1]],
        [queries[1], queries[0], *queries[2:]],
        cheaper(tiny, cohort="nobody"),
        cheaper(tiny, unit="load-point-day"),
        cheaper(tiny, region="orthant", sensitivity_squared=2 * 2**48),
        cheaper(tiny, dimension=1),
        cheaper(tiny, grid_step=queries[0]["grid_step"] / 100),
        cheaper(tiny, natural_unit="MW"),
    ):
        assert not accepted(text(tiny | {"queries": forged}))


@pytest.mark.parametrize(
    "write",
    [
        lambda plain: '{"epsilon":0.01,' + plain[1:],
        lambda plain: plain.replace('"epsilon":4.0', '"epsilon":4.00'),
        lambda plain: plain.replace('"epsilon":4.0', '"epsilon":4'),
        lambda plain: plain.replace('"epsilon":4.0', '"epsilon":NaN'),
        lambda plain: plain.replace('"epsilon":4.0', '"epsilon":1e-400'),
        lambda plain: plain.replace('"delta":1e-05', '"delta":"1e-05"'),
        lambda plain: plain.replace('"n_days":2', '"n_days":٢'),
        lambda plain: plain.replace('"weight":1.0', '"weight":true'),
        lambda plain: plain.rstrip("\n"),
    ],
    ids=["twice", "4.00", "4", "NaN", "1e-400", "text", "other digits", "true", "no newline"],
)
def test_a_model_in_another_spelling_is_not_read(tiny: dict[str, Any], write: Any) -> None:
    plain = text(tiny)
    assert write(plain) != plain
    assert not accepted(write(plain))


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
