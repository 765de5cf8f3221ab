"""One section [network] for feeders of all kinds: what each has is protected, and the manifest states it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dp_powerflow.fleet.feeders import FleetConfig, parse_fleet_config
from dp_powerflow.fleet.run import plan_fleet, run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from support.here import Here
from support.manifest_releases import said
from support.small import raw_config
from support.small_circuits import script
from support.tampering import manifest_of, rewrite

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "manifest.schema.json").read_text())
LACKS = {"bare": ["transformers", "capacitors", "pv"], "with-bank": ["transformers", "pv"], "with-all": []}
"""Feeders with different frames, and what each has none of."""


def write_feeders(folder: Path) -> None:
    (folder / "feeders").mkdir(exist_ok=True)
    for key in LACKS:
        (folder / "feeders" / f"{key}.dss").write_text(script(f"mixed-{key}"))


def mixed_config(folder: Path, **network: Any) -> FleetConfig:
    """The config of the fleet, on twins that protect all kinds of figures."""
    content = raw_config("mixed")
    return parse_fleet_config(content | {"network": {**content["network"], **network}}, base=folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """Folder, and directory of every feeder by its key."""
    folder = tmp_path_factory.mktemp("mixed")
    write_feeders(folder)
    result = run_fleet(mixed_config(folder), engine=Here())
    assert not result.failed, result.failed
    return folder, {item.key: folder / "out" / f"feeder={item.name}" for item in result.outcomes}


def test_every_manifest_says_what_its_network_has_and_promises_the_declared_design(
    made: tuple[Path, dict[str, Path]],
) -> None:
    assert verify_fleet(made[0] / "out", made[0] / "state").verdict == "demonstration"
    manifests = {key: manifest_of(directory) for key, directory in made[1].items()}
    networks = [manifest["guarantee"]["network"] for manifest in manifests.values()]
    for entry in ("epsilon", "change", "scales", "epsilon_by_element", "protected"):
        assert all(network[entry] == networks[0][entry] for network in networks), entry
    for key, manifest in manifests.items():
        jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
        presence = manifest["guarantee"]["network"]["presence"]
        assert presence["absent"] == LACKS[key]
        assert sorted(presence["present"] + presence["absent"]) == ["capacitors", "pv", "transformers"]
        assert ("has no transformer" in said(manifest, "unprotected")) == ("transformers" in LACKS[key])
    accounts = Ledger.inspect(made[0] / "state").summary().accounts
    spent = [account for account in accounts if account.kind is AccountKind.NETWORK_TWIN]
    assert len(spent) == len(LACKS)
    assert {account.spends[0].cost.amounts()["epsilon"] for account in spent} == {networks[0]["epsilon"]}


@pytest.mark.parametrize(
    ("absent", "told"),
    [
        (["capacitors", "pv"], "no transformer, and one of its connections"),
        (["transformers", "codes"], "lack figures that the twin does not protect"),
    ],
)
def test_a_manifest_that_says_otherwise_does_not_verify(
    made: tuple[Path, dict[str, Path]], tmp_path: Path, absent: list[str], told: str
) -> None:
    directory = made[1]["with-all"]
    content = manifest_of(directory)
    content["guarantee"]["network"]["presence"] = {
        "present": [],
        "absent": ["transformers", *absent] if "capacitors" in absent else absent,
    }
    forged = Path(shutil.copytree(directory, tmp_path / "forged"))
    rewrite(forged, content, sealed=True)
    result = verify_release(forged)
    assert result.verdict == "not intact"
    assert any(told in check.sentence for check in result.checks if not check.ok)


def test_a_fleet_may_insist_that_every_feeder_has_all(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    strict = plan_fleet(mixed_config(tmp_path, protect="all"), engine=Here())
    assert {plan.key: plan.problem is None for plan in strict.feeders} == {
        "bare": False,
        "with-bank": False,
        "with-all": True,
    }
