"""Repair of a fleet on twins: a corrected feeder, one more, one less, and what failed again."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow import _parallel
from dp_powerflow.cli import main
from dp_powerflow.errors import ConfigError
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.feeders import read_register
from dp_powerflow.fleet.manifest import FeederEntry, contradictions, open_fleet, read_entries
from dp_powerflow.fleet.names import attempt_of, first_id_of, release_id_of
from dp_powerflow.fleet.repair import Repair, read_failures, withdraw
from dp_powerflow.fleet.run import run_fleet, withdraw_feeders
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.fleet.witness import hear_witnesses
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.fleet_small import KEYS, circuit, on_twins, toml_of, write_feeders, write_meters
from support.here import Here
from support.small import CORNERS, READING, tree_hash

SAME = {"feeders": ["alder", "birch", "cedar"], "reason": "two lines each"}


def twins(folder: Path, *, overrides: dict[str, Any] | None = None, **fleet: Any) -> FleetConfig:
    fleet = {"network_epsilon_cap": 9.0, "network_delta_cap": 1e-5, "same_frame": SAME, **fleet}
    return on_twins(folder, fleet=fleet, overrides=overrides or {})


def write(folder: Path, **length_km: float) -> None:
    (folder / "feeders").mkdir(exist_ok=True)
    for key, km in length_km.items():
        (folder / "feeders" / f"{key}.dss").write_text(circuit(km))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repair")
    write(folder, alder=1.0, birch=2.0)
    assert not run_fleet(twins(folder), engine=Here()).failed
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture
def begun(copied: Path) -> Path:
    """The fleet without the corpus of 'alder', which was begun and paid for: as if it had failed then."""
    shutil.rmtree(copied / "out" / f"feeder={name_of(copied, 'alder')}")
    return copied


def state_of(folder: Path) -> PrivateState:
    return PrivateState.inspect(folder / "state")


def name_of(folder: Path, key: str) -> str:
    return read_register(state_of(folder), "north")[key].name


def charged(folder: Path) -> dict[str, list[str]]:
    """Account → what it was charged for."""
    accounts = Ledger.inspect(folder / "state").summary().accounts
    return {account.name: [spend.release_id for spend in account.spends] for account in accounts}


def account_of(folder: Path, key: str) -> str:
    [account] = [name for name, ids in charged(folder).items() if f"north_{name_of(folder, key)}" in ids]
    return account


def released(folder: Path) -> dict[str, str]:
    """Public name → release id."""
    return {entry.name: entry.manifest.release.id for entry in read_entries(folder / "out")}


def corpus(folder: Path, key: str) -> dict[str, str]:
    return tree_hash(folder / "out" / f"feeder={name_of(folder, key)}")


def test_a_corrected_feeder_is_finished_under_a_new_attempt_and_nothing_else_is_touched(begun: Path) -> None:
    before, birch = charged(begun), corpus(begun, "birch")
    name, account = name_of(begun, "alder"), account_of(begun, "alder")
    write(begun, alder=1.01)
    [refused] = run_fleet(twins(begun), engine=Here()).failed
    assert f"dp-powerflow fleet <fleet file> --retry {name}" in str(refused.problem)
    assert charged(begun) == before
    assert [item["name"] for item in read_failures(state_of(begun), "north")] == [name]

    assert not run_fleet(twins(begun), engine=Here(), repair=Repair(retry_failed=True)).failed
    assert released(begun)[name] == f"north_{name}_2"
    # The network goes on in its account, for the line that was corrected; the customers pay nothing.
    assert charged(begun) == before | {account: [f"north_{name}", f"north_{name}_version-2"]}
    assert read_failures(state_of(begun), "north") == []
    assert corpus(begun, "birch") == birch
    assert verify_fleet(begun / "out", begun / "state").verdict == "demonstration"
    assert hear_witnesses(begun / "state", [str(begun / "out")]).contradictions == ()

    # An attempt that was interrupted goes on without being asked for. Whatever is said of other accounts
    # meanwhile is no other request.
    after, paid = tree_hash(begun / "out"), charged(begun)
    shutil.rmtree(begun / "out" / f"feeder={name}")
    other = {"accounts": [account_of(begun, "birch")], "reason": "another street"}
    assert not run_fleet(twins(begun, unrelated=other), engine=Here()).failed
    assert tree_hash(begun / "out") == after
    assert charged(begun) == paid


def test_a_released_or_unknown_feeder_cannot_be_retried(made: Path) -> None:
    with pytest.raises(ConfigError, match=r"is released; to replace it, first .* --withdraw feeder-000\d"):
        run_fleet(twins(made), engine=Here(), repair=Repair(("birch",)))
    with pytest.raises(ConfigError, match="the fleet has no feeder 'larch'"):
        run_fleet(twins(made), engine=Here(), repair=Repair(("larch",)))
    with pytest.raises(ConfigError, match="was not withdrawn"):
        run_fleet(twins(made), engine=Here(), repair=Repair(restore=("birch",)))
    with pytest.raises(ConfigError, match="the fleet has no feeder 'larch'"):
        withdraw_feeders(twins(made), ["larch"])


def test_a_feeder_is_added_taken_out_and_made_again(copied: Path) -> None:
    first = tree_hash(copied / "out")
    write(copied, cedar=3.0)
    assert not run_fleet(twins(copied), engine=Here()).failed
    cedar, three, paid = corpus(copied, "cedar"), tree_hash(copied / "out"), charged(copied)
    assert name_of(copied, "cedar") == "feeder-0003"
    assert {file: digest for file, digest in three.items() if file in first and "=" in file} == {
        file: digest for file, digest in first.items() if "=" in file
    }
    assert len(paid) == 4  # customers and three networks, each charged once
    assert {len(ids) for ids in paid.values()} == {1}

    assert withdraw_feeders(twins(copied), ["cedar"]) == ("feeder-0003",)
    assert open_fleet(copied / "out").names == ("feeder-0001", "feeder-0002")
    assert tree_hash(copied / "out") == first
    assert not (copied / "out.partial-north").exists()
    (copied / "feeders" / "cedar.dss").rename(copied / "cedar.dss")
    write(copied, elm=4.0)
    with pytest.raises(Exception, match="feeder 'cedar' was charged to account"):
        run_fleet(twins(copied, same_frame=None), engine=Here())  # that it was taken out is no answer
    (copied / "feeders" / "elm.dss").unlink()
    (copied / "cedar.dss").rename(copied / "feeders" / "cedar.dss")
    assert len(run_fleet(twins(copied), engine=Here()).outcomes) == 2
    assert tree_hash(copied / "out") == first

    assert not run_fleet(twins(copied), engine=Here(), repair=Repair(restore=("feeder-0003",))).failed
    assert corpus(copied, "cedar") == cedar
    assert tree_hash(copied / "out") == three
    assert charged(copied) == paid


def test_a_withdrawn_name_is_never_given_again(copied: Path) -> None:
    write(copied, cedar=3.0)
    (copied / "feeders" / "cedar.dss").write_text("nothing of a feeder\n")
    assert [item.key for item in run_fleet(twins(copied), engine=Here()).failed] == ["cedar"]
    withdraw_feeders(twins(copied), ["cedar"])
    assert read_failures(state_of(copied), "north") == []
    write(copied, elm=4.0)
    alike = {"feeders": ["alder", "birch", "elm"], "reason": "two lines each"}
    result = run_fleet(twins(copied, same_frame=alike), engine=Here())
    assert [(item.key, item.name) for item in result.outcomes if item.key == "elm"] == [
        ("elm", "feeder-0004")
    ]
    assert not result.failed


def test_a_withdrawal_that_was_killed_is_finished_by_the_next_run(copied: Path) -> None:
    def killed(name: str) -> None:
        raise KeyboardInterrupt(name)

    with pytest.raises(KeyboardInterrupt):
        withdraw(twins(copied), state_of(copied), ["birch"], killed)
    assert len(read_entries(copied / "out")) == 2
    assert [item.key for item in run_fleet(twins(copied), engine=Here()).outcomes] == ["alder"]
    assert list(released(copied)) == [name_of(copied, "alder")]
    assert verify_fleet(copied / "out").verdict == "demonstration"
    withdraw_feeders(twins(copied), ["alder"])
    assert list((copied / "out").iterdir()) == []
    with pytest.raises(ConfigError, match="were withdrawn; make one again with --restore"):
        run_fleet(twins(copied), engine=Here())


def test_a_model_per_feeder_is_fitted_once_for_all_attempts(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    loads = {**write_meters(tmp_path, points=48), "load_points": None, "days": None}
    fleet = {"models": "per-feeder", "feeders": [f"feeders/{KEYS[0]}.dss"], "network_epsilon_cap": 9.0}
    config = on_twins(tmp_path, loads=loads, fleet=fleet)
    assert not run_fleet(config, engine=Here()).failed
    model = (tmp_path / "out" / "feeder=feeder-0001" / "model.json").read_bytes()
    withdraw_feeders(config, ["feeder-0001"])
    (tmp_path / "feeders" / f"{KEYS[0]}.dss").write_text(circuit(1.01))
    again = Repair(retry=("feeder-0001",), restore=("feeder-0001",))
    assert not run_fleet(config, engine=Here(), repair=again).failed
    assert released(tmp_path) == {"feeder-0001": "north_feeder-0001_2"}
    assert (tmp_path / "out" / "feeder=feeder-0001" / "model.json").read_bytes() == model
    loads_paid = [s for s in Ledger.inspect(tmp_path / "state").spends() if s.kind is AccountKind.LOADS]
    assert [spend.release_id for spend in loads_paid] == ["north"]
    assert hear_witnesses(tmp_path / "state", [str(tmp_path / "out")]).contradictions == ()


def test_each_repair_is_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_feeders(tmp_path, repaired=True)
    for key in KEYS[2:]:
        (tmp_path / "feeders" / f"{key}.dss").unlink()
    (tmp_path / "fleet.toml").write_text(toml_of())
    monkeypatch.setattr(_parallel, "engine_of", lambda *_: Here())
    monkeypatch.chdir(tmp_path)

    def command(*options: str) -> tuple[int, str]:
        arguments = ["dp-powerflow", "fleet", "fleet.toml", *options]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), capsys.readouterr().err

    monkeypatch.setattr(CORNERS, lambda *_: None)
    monkeypatch.setattr(READING, lambda *_, **__: None)
    endless = circuit(1.0).replace("kw=300 ", "kw=3e7 ")  # no snapshot has a solution
    (tmp_path / "feeders" / f"{KEYS[0]}.dss").write_text(endless)
    assert command("--workers", "1")[0] == 1
    name = name_of(tmp_path, KEYS[0])
    (tmp_path / "feeders" / f"{KEYS[0]}.dss").write_text(circuit(1.0))
    code, err = command("--workers", "1")
    assert code == 1
    assert f"--retry {name}" in err
    assert command("--retry", name, "--workers", "1")[0] == 0
    assert released(tmp_path)[name] == f"north_{name}_2"
    code, err = command("--withdraw", name)
    assert code == 0
    assert name not in released(tmp_path)
    assert command("--withdraw", name, "--plan")[0] == 2
    assert command("--restore", name, "--workers", "1")[0] == 0
    assert json.loads((tmp_path / "out" / "fleet.json").read_text())["fleet"]["feeders"] == 2


def test_ids_of_attempts_are_told_apart_from_all_others(made: Path) -> None:
    assert [release_id_of("north", "f-1", attempt) for attempt in (1, 2, 11)] == [
        "north_f-1",
        "north_f-1_2",
        "north_f-1_11",
    ]
    for release_id in ("north_f-1", "north_f-1_2", "north_f-1_11"):
        assert first_id_of(release_id) == "north_f-1"
        assert release_id == release_id_of("north", "f-1", attempt_of(release_id, "north", "f-1") or 0)
    for other in ("north_f-1_1", "north_f-1_02", "north_f-1_", "north_f-12", "north_f-1_version-2", "f-1"):
        assert attempt_of(other, "north", "f-1") is None
    entries = read_entries(made / "out")
    swapped = [
        FeederEntry(one.name, other.manifest, other.sha256)
        for one, other in zip(entries, entries[::-1], strict=True)
    ]
    assert "is not the one of this feeder" in contradictions("north", "one", swapped)[0]
