"""A third network mode is one module and one member of the config's union: nothing else is touched."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import jsonschema
import pytest
from pydantic import Field

import dp_powerflow
from dp_powerflow.config import Config, NetworkSection, TrueNetwork, TwinNetwork
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.manifest.build import Facts
from dp_powerflow.manifest.model import (
    _REGISTERED,
    NetworkPolicy,
    ReleaseError,
    manifest_schema,
    parse_manifest,
)
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.inputs import NetworkInputs
from dp_powerflow.pipeline.modes import base
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import AccountKind, InstanceCap, InstanceCost
from dp_powerflow.privacy.ledger.records import Spend
from support.small import RAW
from support.tampering import manifest_of

SOURCE = Path(dp_powerflow.__file__).parent
ROOMS = ("config", "paper")
ALLOWED = (
    *(f"pipeline/modes/{name}.py" for name in ("true", "twin")),
    *(f"manifest/{name}.py" for name in ("true", "twin")),
    "setup/__init__.py",
    "cli/demo.py",
)
"""Beside the union: the modes and their policies, the example config, what `init` writes of each mode,
configs of the demonstration."""

# --------------------------------------------------------------- what the one new module would hold


class OpenNetwork(NetworkSection):
    """A network that its owner declares public, as that of a test feeder is."""

    mode: Literal["open-network"]
    licence: str


class OpenPolicy(NetworkPolicy):
    """`guarantee.network` of such a release: nothing is promised of the network."""

    account_kind = AccountKind.NETWORK_INSTANCE
    template: ClassVar[str] = """{% extends "words.txt" %}
{% block scope %}
- Nothing is hidden.
{% endblock %}
{% block made %}
- Power flow on the public network, under {{ network.licence }}.
{% endblock %}
{% block plan %}The network is public under {{ section.licence }}.{% endblock %}
{% block outcome %}solved on a public network{% endblock %}
"""

    mode: Literal["open-network"]
    kind: Literal["a public network"]
    licence: str

    @classmethod
    def of(cls, config: Config, absent: Any = None) -> Self:
        return cls(**config.network.model_dump(), kind="a public network")

    def recomputed(self) -> Self:
        return self

    def contradictions(self, facts: Facts) -> Iterator[str]:
        return iter(())


class OpenMode(base.NetworkMode[OpenNetwork]):
    """Power flow on the network as it is."""

    section_type = OpenNetwork

    def charge(self, request_sha256: str) -> base.NetworkCharge:
        unit, figures = Neighbours("none: the network is public"), (self.section.epsilon, self.section.delta)
        cost, cap = InstanceCost(*figures, unit), InstanceCap(*figures, unit)
        return base.NetworkCharge(cost, cap, self.config.release.id, request_sha256)

    def network_to_solve(
        self, inputs: NetworkInputs, dataset: str, paid: Spend | None = None
    ) -> base.Solvable:
        return base.Solvable(inputs.feeder, inputs.solar, dataset)

    def report(
        self, inputs: NetworkInputs, scene: base.Scene, progress: base.Progress | None = None
    ) -> base.InternalReport:
        return base.InternalReport.make(self.config.release.id, True, {"licence": self.section.licence})


class WithOpenNetworks(Config):
    """The config with one more member of its union."""

    network: Annotated[TrueNetwork | TwinNetwork | OpenNetwork, Field(discriminator="mode")]  # type: ignore[assignment]


# ------------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Config]]:
    folder = tmp_path_factory.mktemp("third")
    network = {"mode": "open-network", "epsilon": 1.0, "delta": 1e-6, "licence": "CC BY 4.0"}
    places = {"days": 4, "output": folder / "out", "state": folder / "state"}
    raw = {**RAW, "network": network, "release": {**RAW["release"], **places}}
    config = WithOpenNetworks.model_validate(raw)
    run_release(config, workers=1)
    yield folder, config
    del _REGISTERED["open-network"]  # the schema of the next test lists the modes of the product


def test_a_mode_of_its_own_makes_a_release_that_verifies(released: tuple[Path, Config]) -> None:
    folder, config = released
    assert {check.name for check in verify_release(folder / "out").checks if not check.ok} == {
        "random source"
    }
    private = verify_private(folder / "out", folder / "state")
    assert {check.name for check in private.checks if not check.ok} == {"random source"}
    stated = manifest_of(folder / "out")["guarantee"]["network"]
    assert (stated["mode"], stated["licence"]) == ("open-network", "CC BY 4.0")
    assert open_corpus(folder / "out").layout.days == config.release.days


def test_what_it_states_is_checked_like_that_of_the_others(released: tuple[Path, Config]) -> None:
    folder, _ = released
    path = folder / "out" / "manifest.json"
    kept = path.read_text()
    path.write_text(kept.replace("CC BY 4.0", "no licence"))
    try:
        assert not verify_release(folder / "out").intact
    finally:
        path.write_text(kept)


def test_the_schema_lists_it_and_no_mode_that_nobody_registered(released: tuple[Path, Config]) -> None:
    manifest = manifest_of(released[0] / "out")
    validator = jsonschema.Draft202012Validator(manifest_schema())
    assert not list(validator.iter_errors(manifest))
    network = manifest["guarantee"]["network"]
    network["licence"] = 1
    assert list(validator.iter_errors(manifest))
    network["mode"] = "other"
    with pytest.raises(ReleaseError, match="mode is unknown"):
        parse_manifest(manifest)


def test_plan_and_command_line_speak_in_its_words(released: tuple[Path, Config]) -> None:
    _, config = released
    found = plan(config)
    assert found.mode.plan_lines(found.network) == ["The network is public under CC BY 4.0."]
    assert found.network.already_charged
    assert base.mode_of(config).said("outcome", met=True) == "solved on a public network"


def test_nobody_else_asks_which_mode_it_is() -> None:
    """Neither by the name of a mode nor by the type of its section, mode or policy."""
    kinds = {"TrueNetwork", "TwinNetwork", "TrueMode", "TwinMode", "TruePolicy", "TwinPolicy"}
    asked = []
    for path in SOURCE.rglob("*.py"):
        inside = path.relative_to(SOURCE)
        if inside.parts[0] in ROOMS or inside.as_posix() in ALLOWED:
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and node.value in ("true-network", "twin-network"):
                asked.append(f"{inside}:{node.lineno} {node.value}")
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                asked += [f"{inside}:{node.lineno} {name}" for name in names & kinds]
    assert asked == []
