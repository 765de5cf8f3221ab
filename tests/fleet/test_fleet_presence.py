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
from dp_powerflow.manifest.model import DIGEST, canonical_json, digest_of
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from support.here import Here
from support.manifest_releases import said
from support.small import raw_config

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "manifest.schema.json").read_text())
HEAD = "Clear\nNew Circuit.tiny basekv=12.47 pu=1.0 R1=0.01 X1=0.05 R0=0.01 X0=0.05\n"
TAIL = "Set VoltageBases=[12.47 0.48]\nCalcVoltageBases\n"
LINE = "phases=3 r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 units=km"
PARTS = {
    "transformer": "New Transformer.step phases=3 windings=2 buses=[b c] conns=[wye wye] kvs=[12.47 0.48] "
    "kvas=[500 500] xhl=4 %rs=[0.6 0.6]\nNew Load.lc bus1=c phases=3 kv=0.48 kw=90 kvar=20\n",
    "capacitor": "New Capacitor.bank bus1=b phases=3 kvar=60 kv=12.47\n",
    "pv": "New PVSystem.roof bus1=b phases=3 kv=12.47 kva=50 pmpp=40 irradiance=1\n",
}
MIXED = {"bare": (), "with-bank": ("capacitor",), "with-all": ("transformer", "capacitor", "pv")}


def circuit(parts: tuple[str, ...], laterals: int) -> str:
    """OpenDSS script of a source, two lines, a load at either end, and some of `PARTS`.

    Parameters
    ----------
    laterals : further lines with a load; feeders with different numbers have different frames.
    """
    lines = (
        f"New Line.first bus1=sourcebus bus2=a length=1.0 {LINE}\n"
        f"New Line.second bus1=a bus2=b length=1.5 {LINE}\n"
        "New Load.la bus1=a phases=3 kv=12.47 kw=300 kvar=90\n"
        "New Load.lb bus1=b phases=3 kv=12.47 kw=200 kvar=60\n"
    )
    for k in range(laterals):
        lines += f"New Line.side{k} bus1=a bus2=s{k} length=0.4 {LINE}\n"
        lines += f"New Load.ls{k} bus1=s{k} phases=3 kv=12.47 kw=60 kvar=20\n"
    return HEAD + lines + "".join(PARTS[part] for part in parts) + TAIL


def mixed_scripts() -> dict[str, str]:
    """Key → script of feeders with different frames."""
    return {key: circuit(parts, k) for k, (key, parts) in enumerate(MIXED.items())}


def write_feeders(folder: Path, scripts: dict[str, str]) -> None:
    (folder / "feeders").mkdir(exist_ok=True)
    for key, script in scripts.items():
        (folder / "feeders" / f"{key}.dss").write_text(script)


def mixed_config(folder: Path, **network: Any) -> FleetConfig:
    """The config of the fleet, on twins that protect all kinds of figures."""
    content = raw_config("mixed")
    return parse_fleet_config(content | {"network": {**content["network"], **network}}, base=folder)


LACKS = {"bare": ["transformers", "capacitors", "pv"], "with-bank": ["transformers", "pv"], "with-all": []}


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
    strict = plan_fleet(mixed_config(tmp_path, protect="all"), engine=Here())
    assert {plan.key: plan.problem is None for plan in strict.feeders} == {
        "bare": False,
        "with-bank": False,
        "with-all": True,
    }
