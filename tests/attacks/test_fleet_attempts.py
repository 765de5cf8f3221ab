"""A feeder that was corrected buys nothing: one draw of a true network, and one twin, for every charge."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.privacy.ledger.book import Ledger
from support.fleet_small import circuit, fleet_config, on_twins
from support.here import Here
from support.small import CORNERS, READING, tree_hash

POLICY = {"epsilon": 1e5, "delta": 0.2}
ENDLESS = circuit(1.0).replace("kw=300 ", "kw=3e7 ")
LONGER = (
    circuit(1.0) + "New Line.third phases=3 bus1=b bus2=c r1=0.3 x1=0.6 r0=0.9 x0=1.8 length=1 units=km\n"
)
"""The same feeder with one line more: another structure."""


def later(fleet_id: str) -> dict[str, Any]:
    """A later fleet of the same feeders, with their accounts and the load model."""
    if fleet_id == "north":
        return {"fleet": {}, "model": {}}
    return {
        "fleet": {"id": fleet_id, "continues": "north", "output": fleet_id},
        "model": {"reuse": "north"},
    }


def on_true(folder: Path, fleet_id: str = "north") -> FleetConfig:
    """The cap is that of two releases."""
    own = later(fleet_id)
    fleet = {"same_frame": None, "network_epsilon_cap": 2e5, "network_delta_cap": 0.4, **own["fleet"]}
    return fleet_config(folder, network=POLICY, fleet=fleet, model=own["model"])


def twins(folder: Path, fleet_id: str = "north", twin_id: str = "north", **own: Any) -> FleetConfig:
    """The cap is that of two twins."""
    sections = later(fleet_id)
    fleet = {"same_frame": None, "network_epsilon_cap": 8.0, "network_delta_cap": 1e-4, **sections["fleet"]}
    network = {"id": twin_id}
    overrides = {"alder": own} if own else {}
    return on_twins(folder, fleet=fleet, network=network, model=sections["model"], overrides=overrides)


def write(folder: Path, text: str, key: str = "alder") -> None:
    (folder / "feeders").mkdir(exist_ok=True)
    (folder / "feeders" / f"{key}.dss").write_text(text)


def charged(folder: Path) -> dict[str, list[str]]:
    """Account of a network → what it was charged for."""
    accounts = Ledger.inspect(folder / "state").summary().accounts
    networks = [account for account in accounts if account.name.startswith("network")]
    return {account.name: [spend.release_id for spend in account.spends] for account in networks}


@pytest.fixture(scope="module", autouse=True)
def late() -> Iterator[None]:
    """Loads without solution are found out when they are drawn, after the charge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CORNERS, lambda *_: None)
        patch.setattr(READING, lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A true network that was charged and has no solution."""
    folder = tmp_path_factory.mktemp("attempts")
    write(folder, ENDLESS)
    [outcome] = run_fleet(on_true(folder), engine=Here()).failed
    assert "no power-flow solution" in str(outcome.problem)
    return folder


@pytest.fixture
def copied(failed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(failed, tmp_path / "copy"))


def test_what_failed_stays_charged_and_is_not_gone_on_with_under_another_file(copied: Path) -> None:
    """Though the structure is another one, which as a new feeder would get an account without a question."""
    paid = {"network-instance-1": ["north_feeder-0001"]}
    assert charged(copied) == paid
    write(copied, LONGER)
    [outcome] = run_fleet(on_true(copied), engine=Here()).failed
    assert "was begun with another file of the feeder" in str(outcome.problem)
    assert charged(copied) == paid
    assert not (copied / "out").exists()


def test_every_further_draw_of_a_true_network_is_paid_for(copied: Path) -> None:
    write(copied, LONGER)
    paid = ["north_feeder-0001", "south_feeder-0001"]
    assert not run_fleet(on_true(copied, "south"), engine=Here()).failed
    assert charged(copied) == {"network-instance-1": paid}
    assert (copied / "south" / "fleet.json").is_file()
    [refused] = run_fleet(on_true(copied, "west"), engine=Here()).failed
    assert "needs ε = 1e+05 of the network, which has 0 left" in str(refused.problem)
    assert charged(copied) == {"network-instance-1": paid}
    assert not (copied / "west").exists()


def test_the_version_that_failed_has_no_budget_of_its_own(copied: Path) -> None:
    """A near copy of it under another key is asked about."""
    write(copied, circuit(1.0001), "birch")
    failed = {item.key: str(item.problem) for item in run_fleet(on_true(copied), engine=Here()).failed}
    assert "no power-flow solution" in failed["alder"]
    assert "has the nodes and connections of account network-instance-1" in failed["birch"]
    assert charged(copied) == {"network-instance-1": ["north_feeder-0001"]}


def test_every_twin_is_paid_for_and_one_that_is_paid_for_is_drawn_once(tmp_path: Path) -> None:
    write(tmp_path, circuit(1.0))
    assert not run_fleet(twins(tmp_path), engine=Here()).failed

    def kept() -> dict[str, str]:
        files = tree_hash(tmp_path / "state" / "internal")
        return {name: digest for name, digest in files.items() if "/twin-" in name}

    first, twin, name = kept(), "north_feeder-0001", "network-twin-1"
    # Other settings: another release on the same twin.
    config = twins(tmp_path, "south", nodes={"kw_per_customer": 25.0})
    assert not run_fleet(config, engine=Here()).failed
    assert (kept(), charged(tmp_path)) == (first, {name: [twin]})
    # Another design under the same id is refused; under another one it is paid for as a whole.
    own: dict[str, Any] = {"network": {"epsilon": 3.0}}
    [refused] = run_fleet(twins(tmp_path, "west", **own), engine=Here()).failed
    assert "choose a new twin id" in str(refused.problem)
    assert not run_fleet(twins(tmp_path, "west", "other", **own), engine=Here()).failed
    second, paid = kept(), {name: [twin, "other_feeder-0001"]}
    assert len(second) == 2
    assert charged(tmp_path) == paid
    # A third one does not fit into the cap, and nothing is drawn.
    config = twins(tmp_path, "east", "third", network={"epsilon": 2.0})
    [refused] = run_fleet(config, engine=Here()).failed
    assert "of the network, which has" in str(refused.problem)
    assert (kept(), charged(tmp_path)) == (second, paid)
