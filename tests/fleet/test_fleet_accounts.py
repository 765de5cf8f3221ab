"""A fleet and the accounts of its networks: no other name of a file buys a fresh budget."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.errors import ConfigError, LoadDataError, PrivacyError
from dp_powerflow.fleet.feeders import FleetConfig, feeders_of
from dp_powerflow.fleet.run import plan_fleet, read_feeder_map, run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import AccountKind, PureCost, TwinCap
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Unrelated
from dp_powerflow.privacy.state import PrivateState
from support import ledgers
from support.fleet_small import circuit, fleet_config, on_twins
from support.here import Here

SAME = {"feeders": ["alder", "alder-2", "alder-3", "birch", "cedar", "elm"], "reason": "two lines each"}
FLEET: dict[str, Any] = {"network_epsilon_cap": 9.0, "same_frame": SAME}
ASKED = (
    r"feeder 'alder' was charged to account network-twin-\d and is no longer listed, while 'alder-2' is new; "
    r'list it again, .*\n    \[overrides."alder-2"\]\n    continues_network = "network-twin-\d"\n'
    r'.*under \[fleet\].*\n    unrelated = { accounts = \["network-twin-\d"\], reason = "<why>" }'
)


def twins(folder: Path, *, overrides: dict[str, Any] | None = None, **fleet: Any) -> FleetConfig:
    return on_twins(folder, fleet={**FLEET, **fleet}, overrides=overrides or {})


def table(*accounts: str) -> dict[str, Any]:
    """What `fleet.unrelated` is set to."""
    return {"accounts": list(accounts), "reason": "that line was taken down"}


def write(folder: Path, **length_km: float) -> None:
    """Feeders by key; an underscore stands for a hyphen."""
    (folder / "feeders").mkdir(exist_ok=True)
    for key, km in length_km.items():
        (folder / "feeders" / f"{key.replace('_', '-')}.dss").write_text(circuit(km))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accounts")
    write(folder, alder=1.0, birch=2.0)
    assert not run_fleet(twins(folder), engine=Here()).failed
    return folder


@pytest.fixture
def renamed(made: Path, tmp_path: Path) -> Path:
    """The fleet after one file was exported again, slightly corrected, under another name."""
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    (folder / "feeders" / "alder.dss").unlink()
    write(folder, alder_2=1.0001)
    return folder


def charged(folder: Path) -> dict[str, list[str]]:
    """Account of a network → what it was charged for."""
    ledger = Ledger.inspect(folder / "state")
    accounts = [account for account in ledger.summary().accounts if account.kind is not AccountKind.LOADS]
    return {account.name: [spend.release_id for spend in account.spends] for account in accounts}


def account_of(folder: Path, key: str) -> str:
    config = twins(folder, feeders=[f"feeders/{key}.dss"])
    state = PrivateState.inspect(folder / "state")
    [feeder] = feeders_of(config, state, Ledger.open(state, create=False))
    [account] = [name for name, ids in charged(folder).items() if feeder.charged_under in ids]
    return account


def test_a_renamed_export_of_a_feeder_is_asked_about_before_anything_is_spent(renamed: Path) -> None:
    before = charged(renamed)
    with pytest.raises(PrivacyError, match=ASKED):
        run_fleet(twins(renamed), engine=Here())
    with pytest.raises(PrivacyError, match=ASKED):
        plan_fleet(twins(renamed), engine=Here())
    assert charged(renamed) == before
    assert len(before) == 2


def test_a_name_that_was_registered_but_never_charged_is_new_as_well(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    (folder / "feeders" / "alder-2.dss").write_text(circuit(1.0).replace("New Line", "New Lnie"))
    assert [outcome.key for outcome in run_fleet(twins(folder), engine=Here()).failed] == ["alder-2"]
    (folder / "feeders" / "alder.dss").unlink()
    write(folder, alder_2=1.0001)
    with pytest.raises(PrivacyError, match=ASKED):
        run_fleet(twins(folder), engine=Here())


def test_a_new_version_of_a_feeder_is_charged_to_the_account_it_continues(renamed: Path) -> None:
    before, account = charged(renamed), account_of(renamed, "birch")
    [other] = before.keys() - {account}
    continues = {"alder-2": {"continues_network": other}}
    assert not run_fleet(twins(renamed, overrides=continues), engine=Here()).failed
    after = charged(renamed)
    assert after == {**before, other: [*before[other], "north_feeder-0003"]}
    # What was declared stays true: the next name is asked about, this one no longer.
    (renamed / "feeders" / "alder-2.dss").rename(renamed / "feeders" / "alder-3.dss")
    with pytest.raises(PrivacyError, match=f"was charged to account {other} and .* 'alder-3' is new"):
        run_fleet(twins(renamed), engine=Here())


def test_a_reason_that_names_the_account_lets_a_new_feeder_in_and_no_later_one(renamed: Path) -> None:
    [account] = charged(renamed).keys() - {account_of(renamed, "birch")}
    reason = table(account)
    assert not run_fleet(twins(renamed, unrelated=reason), engine=Here()).failed
    assert list(charged(renamed)) == ["network-twin-1", "network-twin-2", "network-twin-3"]
    ledger = Ledger.inspect(renamed / "state")
    opened = ledger.summary().accounts[-1]
    assert opened.changes[0].reason == (
        "another feeder of fleet 'north'; that line was taken down; same frame: two lines each"
    )
    assert opened.changes[0].unrelated == ("network-twin-1", "network-twin-2")
    assert opened.fleet == "north"
    (renamed / "feeders" / "alder-2.dss").unlink()
    write(renamed, alder_3=1.0002)
    with pytest.raises(PrivacyError, match="feeder 'alder-2' was charged to account network-twin-3"):
        run_fleet(twins(renamed, unrelated=reason), engine=Here())


def test_the_lines_of_the_question_can_be_pasted(renamed: Path) -> None:
    with pytest.raises(PrivacyError) as asked:
        run_fleet(twins(renamed), engine=Here())
    lines = [line.strip() for line in str(asked.value).splitlines() if line.startswith("    ")]
    version = tomllib.loads("\n".join(lines[:2]))["overrides"]
    state = PrivateState.inspect(renamed / "state")
    ledger = Ledger.open(state, create=False)
    [other] = charged(renamed).keys() - {account_of(renamed, "birch")}
    found = feeders_of(twins(renamed, overrides=version), state, ledger)
    assert {item.config.release.continues_network for item in found if item.key == "alder-2"} == {other}
    unrelated = tomllib.loads(lines[2].replace("<why>", "taken down"))["unrelated"]
    found = feeders_of(twins(renamed, unrelated=unrelated), state, ledger)
    assert [other] == [
        name
        for item in found
        if item.key == "alder-2" and item.config.release.unrelated_network is not None
        for name in item.config.release.unrelated_network.accounts & {other}
    ]


def test_a_later_fleet_asks_about_feeders_that_the_earlier_one_listed(renamed: Path) -> None:
    later: dict[str, Any] = {"id": "later", "output": "later", "continues": "north"}
    with pytest.raises(PrivacyError, match=ASKED):
        run_fleet(twins(renamed, **later), engine=Here())
    account = account_of(renamed, "birch")
    [other] = charged(renamed).keys() - {account}
    config = twins(renamed, overrides={"alder-2": {"continues_network": other}}, **later)
    state = PrivateState.inspect(renamed / "state")
    feeders = feeders_of(config, state, Ledger.open(state, create=False))
    assert {item.key: item.config.release.continues_network for item in feeders} == {
        "birch": account,
        "alder-2": other,
    }


def test_a_feeder_that_joins_a_later_fleet_gets_an_account_without_a_question(
    made: Path, tmp_path: Path
) -> None:
    """The accounts of the earlier fleet are those of feeders in the same list: different networks."""
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    write(folder, cedar=3.0)
    config = twins(folder, id="later", output="later", continues="north")
    reused = config.model_copy(update={"model": config.model.model_copy(update={"reuse": "north"})})
    assert not run_fleet(reused, engine=Here()).failed
    assert [len(ids) for ids in charged(folder).values()] == [2, 2, 1]


def test_a_feeder_that_joins_names_no_account_of_its_own_fleet(made: Path, tmp_path: Path) -> None:
    """Thousands of feeders would name each other for ever; only those that others charged need a name."""
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    write(folder, elm=3.0)
    state = PrivateState.inspect(folder / "state")
    config = on_twins(folder, fleet={"network_epsilon_cap": 9.0})
    said = {
        feeder.key: feeder.config.release.unrelated_network
        for feeder in feeders_of(config, state, Ledger.open(state, create=False))
    }
    assert said["elm"] == Unrelated(frozenset(), "another feeder of fleet 'north'", "north")


def test_an_account_from_elsewhere_must_be_named_and_a_newer_one_again(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    state = PrivateState.inspect(folder / "state")
    ledger = Ledger.open(state, create=False)

    def elsewhere(name: str, *accounts: str) -> None:
        cap = TwinCap(1.0, 0.0, Neighbours("one line"))
        account = ledgers.account(
            ledger, state.identity("x", [name.encode()]), cap, unrelated=Unrelated.to(accounts, name)
        )
        ledgers.spend(ledger, account, name, "a" * 64, PureCost(0.5, cap.unit))

    elsewhere("mine", "network-twin-1", "network-twin-2")
    assert not run_fleet(twins(folder), engine=Here()).failed  # nothing new, nothing to ask
    write(folder, cedar=3.0)
    with pytest.raises(
        PrivacyError, match=r"(?s)not of fleet 'north': network-twin-3; .*accounts = \[\"network-twin-3\"\]"
    ):
        run_fleet(twins(folder), engine=Here())
    with pytest.raises(PrivacyError, match="names network-twin-4 to network-twin-9, but the ledger has"):
        run_fleet(twins(folder, unrelated=table("network-twin-3 to network-twin-9")), engine=Here())
    reason = table("network-twin-3")
    assert not run_fleet(twins(folder, unrelated=reason), engine=Here()).failed
    elsewhere("port", "network-twin-1 to network-twin-4")
    write(folder, elm=4.0)
    with pytest.raises(PrivacyError, match=r'accounts = \["network-twin-3", "network-twin-5"\]'):
        run_fleet(twins(folder, unrelated=reason), engine=Here())


def test_a_lost_register_does_not_lose_what_was_charged(renamed: Path) -> None:
    (renamed / "state" / "internal" / "north" / "feeders.json").unlink()
    with pytest.raises(PrivacyError, match="network-twin-1, network-twin-2"):
        run_fleet(twins(renamed), engine=Here())


def test_what_a_feeder_continues_must_be_an_account_of_its_kind(renamed: Path) -> None:
    for name in ("network-twin-9", "loads-1", "alder"):
        with pytest.raises(
            PrivacyError, match=f"continue the account '{name}', and the ledger has network-twin-1"
        ):
            run_fleet(twins(renamed, overrides={"alder-2": {"continues_network": name}}), engine=Here())


def test_a_later_fleet_on_the_same_twins_and_model_costs_nobody_anything(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    before = Ledger.inspect(folder / "state").spends()
    later: dict[str, Any] = {**FLEET, "id": "later", "output": "later", "continues": "north"}
    config = on_twins(folder, fleet=later, model={"reuse": "north"}, network={"id": "north"})
    assert not run_fleet(config, engine=Here()).failed
    assert Ledger.inspect(folder / "state").spends() == before
    assert verify_fleet(folder / "later", folder / "state").verdict == "demonstration"
    for path in (folder / "out").glob("feeder=*/model.json"):
        assert (folder / "later" / path.parent.name / path.name).read_bytes() == path.read_bytes()


def test_feeders_of_a_fleet_that_continues_another_are_charged_to_the_accounts_they_have(
    tmp_path: Path,
) -> None:
    write(tmp_path, alder=1.0)
    policy = {"epsilon": 1e5, "delta": 0.2}
    caps = {"network_epsilon_cap": 3e5, "network_delta_cap": 0.9, "same_frame": None}
    run_fleet(fleet_config(tmp_path, network=policy, fleet=caps), engine=Here())
    write(tmp_path, alder=1.01)  # a correction of the network
    later = {**caps, "id": "later", "output": "later"}
    model = {"reuse": "north"}
    with pytest.raises(PrivacyError, match=r"set fleet\.continues"):
        run_fleet(fleet_config(tmp_path, network=policy, fleet=later, model=model), engine=Here())
    continued = fleet_config(tmp_path, network=policy, fleet={**later, "continues": "north"}, model=model)
    assert not run_fleet(continued, engine=Here()).failed
    loads, first, second = Ledger.inspect(tmp_path / "state").spends()
    assert (loads.kind, first.account) == (AccountKind.LOADS, second.account)
    assert first.dataset != second.dataset


def test_a_fleet_that_continues_an_unknown_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path, alder=1.0)
    with pytest.raises(ConfigError, match="does not know"):
        run_fleet(fleet_config(tmp_path, fleet={"continues": "south"}), engine=Here())


def test_the_map_of_customers_to_feeders_is_read_by_load_point(tmp_path: Path) -> None:
    path = tmp_path / "services.csv"
    path.write_text("customer,load_point,feeder\na,p1,x\nb,p1,x\nc,p2,y\nd,p3,\n")
    assert read_feeder_map(path) == {"x": ("p1",), "y": ("p2",)}
    path.write_text("customer,load_point\na,p1\n")
    with pytest.raises(LoadDataError, match="no column 'feeder'"):
        read_feeder_map(path)
    path.write_text("customer,load_point,feeder\na,p1,x\nb,p1,y\n")
    with pytest.raises(LoadDataError, match="puts a load point on a second feeder"):
        read_feeder_map(path)
