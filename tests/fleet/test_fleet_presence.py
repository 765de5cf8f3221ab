"""One section [network] for feeders of all kinds: what each has is protected, and the manifest states it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dp_powerflow.fleet.run import plan_fleet, run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.manifest.model import DIGEST, canonical_json, digest_of
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from support.fleet_mixed import MIXED, mixed_config, mixed_scripts, write_feeders
from support.here import Here
from support.manifest_releases import said

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "manifest.schema.json").read_text())
LACKS = {
    "bare": ["transformers", "capacitors", "pv"],
    "with-bank": ["transformers", "pv"],
    "with-all": [],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """Folder, and directory of every feeder by its key."""
    folder = tmp_path_factory.mktemp("mixed")
    write_feeders(folder, mixed_scripts())
    result = run_fleet(mixed_config(folder), engine=Here())
    assert not result.failed, result.failed
    return folder, {item.key: folder / "out" / f"feeder={item.name}" for item in result.outcomes}


def manifest_of(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return content


def test_every_manifest_says_what_its_network_has_and_what_it_has_not(
    made: tuple[Path, dict[str, Path]],
) -> None:
    for key, directory in made[1].items():
        manifest = manifest_of(directory)
        jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
        presence = manifest["guarantee"]["network"]["presence"]
        assert presence["absent"] == LACKS[key]
        assert sorted(presence["present"] + presence["absent"]) == ["capacitors", "pv", "transformers"]
        told = said(manifest, "unprotected")
        assert ("has no transformer" in told) == ("transformers" in LACKS[key])
        page = (directory / "certificate.html").read_text()
        assert page.count("the network has none") == len(LACKS[key])


def test_every_feeder_is_charged_and_promised_the_declared_design(made: tuple[Path, dict[str, Path]]) -> None:
    assert verify_fleet(made[0] / "out", made[0] / "state").verdict == "demonstration"
    networks = [manifest_of(directory)["guarantee"]["network"] for directory in made[1].values()]
    for entry in ("epsilon", "change", "scales", "epsilon_by_element", "protected"):
        assert all(network[entry] == networks[0][entry] for network in networks), entry
    accounts = Ledger.inspect(made[0] / "state").summary().accounts
    spent = [account for account in accounts if account.kind is AccountKind.NETWORK_TWIN]
    assert len(spent) == len(MIXED)
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
    (forged / "manifest.json").write_bytes(canonical_json(content | {DIGEST: digest_of(content)}))
    result = verify_release(forged)
    assert result.verdict == "not intact"
    assert any(told in check.sentence for check in result.checks if not check.ok)


def test_a_fleet_may_insist_that_every_feeder_has_all(tmp_path: Path) -> None:
    write_feeders(tmp_path, mixed_scripts())
    strict = plan_fleet(mixed_config(tmp_path, network={"protect": "all"}), engine=Here())
    assert {plan.key: plan.problem is None for plan in strict.feeders} == {
        "bare": False,
        "with-bank": False,
        "with-all": True,
    }
