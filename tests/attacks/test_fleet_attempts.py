"""Attempts at a feeder buy nothing: one draw of a true network, and one twin, for every charge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.manifest import read_entries
from dp_powerflow.fleet.repair import Repair
from dp_powerflow.fleet.run import run_fleet, withdraw_feeders
from dp_powerflow.privacy.ledger.book import Ledger
from support.fleet_small import circuit, fleet_config, on_twins
from support.here import Here
from support.small import CORNERS, READING, tree_hash

POLICY = {"epsilon": 1e5, "delta": 0.2}
AGAIN = Repair(retry=("alder",), restore=("alder",))
ENDLESS = circuit(1.0).replace("kw=300 ", "kw=3e7 ")
LONGER = (
    circuit(1.0) + "New Line.third phases=3 bus1=b bus2=c r1=0.3 x1=0.6 r0=0.9 x0=1.8 length=1 units=km\n"
)
"""The same feeder with one line more: another structure."""


def on_true(folder: Path, **own: Any) -> FleetConfig:
    """The cap is that of two releases."""
    fleet = {"same_frame": None, "network_epsilon_cap": 2e5, "network_delta_cap": 0.4}
    return fleet_config(folder, network=POLICY, fleet=fleet, overrides={"alder": own} if own else {})


def twins(folder: Path, **own: Any) -> FleetConfig:
    """The cap is that of two twins."""
    fleet = {"same_frame": None, "network_epsilon_cap": 8.0, "network_delta_cap": 1e-4}
    return on_twins(folder, fleet=fleet, overrides={"alder": own} if own else {})


def write(folder: Path, text: str, key: str = "alder") -> None:
    (folder / "feeders").mkdir(exist_ok=True)
    (folder / "feeders" / f"{key}.dss").write_text(text)


def charged(folder: Path) -> dict[str, list[str]]:
    """Account of a network → what it was charged for."""
    accounts = Ledger.inspect(folder / "state").summary().accounts
    networks = [account for account in accounts if account.name.startswith("network")]
    return {account.name: [spend.release_id for spend in account.spends] for account in networks}


def released(folder: Path) -> list[str]:
    return [entry.manifest.release.id for entry in read_entries(folder / "out")]


@pytest.fixture(scope="module", autouse=True)
def late() -> Iterator[None]:
    """Loads without solution are found out when they are drawn, after the account is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CORNERS, lambda *_: None)
        patch.setattr(READING, lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A true network that failed once, was corrected, and is released by its second attempt."""
    folder = tmp_path_factory.mktemp("attempts")
    write(folder, ENDLESS)
    [failed] = run_fleet(on_true(folder), engine=Here()).failed
    assert "no power-flow solution" in str(failed.problem)
    assert charged(folder) == {"network-instance-1": []}
    write(folder, LONGER)
    assert not run_fleet(on_true(folder), engine=Here(), repair=Repair(retry_failed=True)).failed
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_what_failed_cost_nothing_and_the_correction_has_the_account_of_the_feeder(made: Path) -> None:
    """Though the structure is another one, which as a new feeder would get an account without a question."""
    assert charged(made) == {"network-instance-1": ["north_feeder-0001_2"]}
    assert released(made) == ["north_feeder-0001_2"]
    assert not (made / "out.partial-north").exists()


def test_taking_out_and_making_again_is_no_second_draw(copied: Path) -> None:
    before, paid = tree_hash(copied / "out"), charged(copied)
    withdraw_feeders(on_true(copied), ["alder"])
    assert not run_fleet(on_true(copied), engine=Here(), repair=AGAIN).failed
    assert tree_hash(copied / "out") == before
    assert charged(copied) == paid


def test_every_further_draw_of_a_true_network_is_paid_for(copied: Path) -> None:
    first, paid = tree_hash(copied / "out"), ["north_feeder-0001_2", "north_feeder-0001_3"]
    config = on_true(copied, nodes={"scale_factor": 0.04})
    withdraw_feeders(config, ["alder"])
    assert not run_fleet(config, engine=Here(), repair=AGAIN).failed
    assert charged(copied) == {"network-instance-1": paid}
    data = [name for name in first if "/data/" in name]
    assert data
    assert all(tree_hash(copied / "out")[name] != first[name] for name in data)

    config = on_true(copied, nodes={"scale_factor": 0.03})
    withdraw_feeders(config, ["alder"])
    for repair in (AGAIN, Repair(retry_failed=True)):
        [refused] = run_fleet(config, engine=Here(), repair=repair).failed
        assert "needs ε = 1e+05 of the network, which has 0 left" in str(refused.problem)
    assert charged(copied) == {"network-instance-1": paid}
    assert list((copied / "out").iterdir()) == []
    assert not (copied / "out.partial-north").exists()


def test_the_version_that_failed_has_no_budget_of_its_own(copied: Path) -> None:
    """Under another key it belongs to the account of the corrected feeder; a near copy is asked about."""
    write(copied, circuit(1.0001), "birch")
    write(copied, ENDLESS, "cedar")
    failed = {item.key: str(item.problem) for item in run_fleet(on_true(copied), engine=Here()).failed}
    assert "no power-flow solution" in failed["cedar"]
    assert "has the nodes and connections of account network-instance-1" in failed["birch"]
    assert charged(copied) == {"network-instance-1": ["north_feeder-0001_2"]}


def test_an_account_that_no_receipt_names_is_asked_about(tmp_path: Path) -> None:
    """As in a private state that an earlier version has left."""
    write(tmp_path, ENDLESS)
    run_fleet(on_true(tmp_path), engine=Here())
    for path in (tmp_path / "state" / "internal" / "north_feeder-0001").glob("paid-*.json"):
        fields = {key: value for key, value in json.loads(path.read_text()).items() if "network" not in key}
        path.write_text(json.dumps(fields))
    write(tmp_path, LONGER)
    [asked] = run_fleet(on_true(tmp_path), engine=Here(), repair=Repair(("alder",))).failed
    assert 'continues_network = "network-instance-1"' in str(asked.problem)
    assert charged(tmp_path) == {"network-instance-1": []}
    config = on_true(tmp_path, continues_network="network-instance-1")
    assert not run_fleet(config, engine=Here(), repair=Repair(("alder",))).failed
    assert charged(tmp_path) == {"network-instance-1": ["north_feeder-0001_2"]}


def test_every_twin_is_paid_for_and_one_that_is_paid_for_is_drawn_once(tmp_path: Path) -> None:
    write(tmp_path, circuit(1.0))
    assert not run_fleet(twins(tmp_path), engine=Here()).failed

    def again(**own: Any) -> list[str]:
        withdraw_feeders(twins(tmp_path, **own), ["alder"])
        result = run_fleet(twins(tmp_path, **own), engine=Here(), repair=AGAIN)
        return [str(item.problem) for item in result.failed]

    def kept() -> dict[str, str]:
        files = tree_hash(tmp_path / "state" / "internal")
        return {name: digest for name, digest in files.items() if "/twin-" in name}

    first, twin, name = kept(), "north_feeder-0001", "network-twin-1"
    # Other settings: another release on the same twin.
    assert again(nodes={"kw_per_customer": 25.0}) == []
    assert (kept(), charged(tmp_path)) == (first, {name: [twin]})
    # Another design: another twin, paid for as a whole.
    assert again(network={"epsilon": 3.0}) == []
    second = kept()
    assert len(second) == 2
    assert charged(tmp_path) == {name: [twin, f"{twin}_2"]}
    # The first design again: the twin that was paid for.
    assert again(nodes={"kw_per_customer": 15.0}) == []
    assert (kept(), charged(tmp_path)) == (second, {name: [twin, f"{twin}_2"]})
    # A third one does not fit into the cap, and nothing is drawn.
    [problem] = again(network={"epsilon": 2.0})
    assert "of the network, which has" in problem
    assert (kept(), charged(tmp_path)) == (second, {name: [twin, f"{twin}_2"]})
    assert list((tmp_path / "out").iterdir()) == []
