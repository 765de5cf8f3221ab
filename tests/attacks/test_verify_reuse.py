"""A load model that is used again: the manifest states its constants, or nothing is released."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.fleet.witness import hear_witnesses
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import ReleaseError
from dp_powerflow.pipeline.audit import audit_release
from dp_powerflow.pipeline.plan import make_ready, plan
from dp_powerflow.pipeline.release import charge, fitted_model, run_release
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.manifest_releases import config, load_model, make_inputs
from support.small import small_config, tree_hash

CAP = {"days": 2, "network_epsilon_cap": 2e6, "network_delta_cap": 0.9995}


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose state holds the model of release `small`, which the customers paid for."""
    folder = tmp_path_factory.mktemp("paid")
    chosen = small_config(folder, network={"delta": 0.4}, release=CAP)
    ready = make_ready(chosen, PrivateState.open(folder / "state", insecure_seed=7))
    inputs, (plan_of, _) = ready.inputs, charge(ready)
    fitted_model(chosen, inputs.state, inputs.readings, plan_of, inputs.key, inputs.almanac)
    return folder


def later(folder: Path, name: str = "later", **sections: Any) -> Any:
    """A second release that takes the model of the first."""
    chosen: dict[str, Any] = {"network": {"delta": 0.4}, **sections}
    chosen["model"] = {"reuse": "small", **chosen.get("model", {})}
    return small_config(folder, release={**CAP, "id": name, "output": name}, **chosen)


CHANGES = [
    ({"model": {"epsilon": 3.0}}, ["model.epsilon"]),
    ({"model": {"variance_floor": 0.5}}, ["model.variance_floor"]),
    ({"model": {"bounds": [0.02, 1.5]}}, ["model.bounds", "model.bounds_of_class"]),
    ({"model": {"power_factor": 0.8}}, ["model.power_factor", "model.power_factor_of_class"]),
    ({"model": {"reactive_correlation_minutes": 7.0}}, ["model.reactive_correlation_minutes"]),
    ({"model": {"reactive_spread": 0.3, "components": 2}}, ["model.components", "model.reactive_spread"]),
    ({"model": {"delta": 1e-6, "unit": "load-point-day"}}, ["model.delta", "model.unit"]),
    ({"model": {"estimator": "plain", "use_scale": False}}, ["model.estimator", "model.use_scale"]),
    (
        {"network": {"bound": "paper", "delta": 0.4}, "model": {"power_factor": 0.8}},
        ["model.power_factor", "model.power_factor_of_class"],
    ),
]


@pytest.mark.parametrize(("sections", "named"), CHANGES, ids=[", ".join(named) for _, named in CHANGES])
def test_other_constants_than_those_of_the_model_are_refused_by_name(
    paid: Path, sections: dict[str, Any], named: list[str]
) -> None:
    """The attack: a first release with one floor, the second takes its model and states another.

    On the code of ffefb60 the second was published with variance floor 0.5 and correlation 7 minutes in
    manifest and certificate, and `verify` found it intact: the model had 0.01 and 120 minutes.
    """
    before, spends = tree_hash(paid), Ledger.inspect(paid / "state").spends()
    for attempt in (plan, lambda chosen: run_release(chosen, workers=1)):
        with pytest.raises(PrivacyError) as refused:
            attempt(later(paid, **sections))
        assert all(name in str(refused.value) for name in named)
        assert str(refused.value).count("model.") - str(refused.value).count("model.reuse") == sum(
            name.startswith("model.") for name in named
        )
    assert Ledger.inspect(paid / "state").spends() == spends
    assert {name for name in tree_hash(paid) if not name.endswith("lock")} <= set(before)


def test_the_same_constants_cost_nothing(paid: Path) -> None:
    planned = plan(later(paid, "same"))
    assert planned.plan.queries == ()
    assert planned.loads.already_charged


@pytest.mark.slow
def test_a_model_is_derived_again_where_only_the_randomness_of_reactive_load_differs(tmp_path: Path) -> None:
    """It is public and asks nothing: the same noisy answers, nobody pays twice, anybody can check it."""
    third: dict[str, Any] = {"epsilon": 5e5, "delta": 0.3}
    first = small_config(tmp_path, network=third, release=CAP)
    run_release(first, workers=1)
    fixed = later(tmp_path, "fixed", network={"bound": "paper", **third})
    planned = plan(fixed)
    assert planned.plan.queries == ()
    assert planned.loads.already_charged
    run_release(fixed, workers=1)
    back = later(tmp_path, "back", network=third)
    run_release(back, workers=1)
    names = ("out", "fixed", "back")
    models = {name: json.loads((tmp_path / name / "model.json").read_text()) for name in names}
    assert models["back"] == models["out"]
    assert models["fixed"]["queries"] == models["out"]["queries"]
    changed = {key for key, value in models["out"].items() if models["fixed"][key] != value}
    assert changed == {"options", "classes"}
    for part, other in zip(models["out"]["classes"], models["fixed"]["classes"], strict=True):
        assert {key for key in part if part[key] != other[key]} == {"reactive"}
    stated = json.loads((tmp_path / "fixed" / "manifest.json").read_text())["declared_public"]
    assert stated["reactive"] == {"spread": 0.0, "correlation_minutes": None}
    kinds = [spend.kind for spend in Ledger.inspect(tmp_path / "state").spends()]
    assert kinds.count(AccountKind.LOADS) == 1
    for name, made in {"out": first, "fixed": fixed, "back": back}.items():
        assert audit_release(tmp_path / name, made, tmp_path / "state").intact, name
    heard = hear_witnesses(tmp_path / "state", [str(tmp_path / name) for name in models])
    assert heard.contradictions == ()


def test_a_model_without_its_answers_is_not_used_again(paid: Path) -> None:
    """What nobody could check is not released; the request is refused before the ledger is asked."""
    state = PrivateState.open(paid / "state", insecure_seed=7)
    old = replace(load_model(insecure_seed=True), origin=None).to_json()
    state.write_internal("ancient", "model.json", old.encode())
    with pytest.raises(PrivacyError, match="not a load model"):
        plan(later(paid, model={"reuse": "ancient"}))


def test_a_statement_takes_its_constants_from_the_model(tmp_path: Path) -> None:
    """Should a config that differs get that far, the manifest still says what the model was fitted with."""
    other = {"variance_floor": 0.5, "reactive_correlation_minutes": 7.0}
    inputs, _ = make_inputs(tmp_path, config(model=other), load_model())
    stated = make_statement(inputs).declared_public
    assert (stated.variance_floor, stated.reactive.correlation_minutes) == (0.01, 120.0)
    with pytest.raises(ReleaseError, match="holds no noisy answers"):
        make_statement(replace(inputs, model=replace(load_model(), origin=None)))
