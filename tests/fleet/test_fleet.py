"""A fleet of six feeders, one of them broken: what is written, what is charged, what is said of it."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as pd
import pytest

from dp_powerflow import _parallel
from dp_powerflow.cli import main
from dp_powerflow.errors import ConfigError
from dp_powerflow.fleet import run as fleet_run
from dp_powerflow.fleet.feeders import feeders_of, read_register
from dp_powerflow.fleet.manifest import fleet_words, open_fleet
from dp_powerflow.fleet.run import FleetResult, plan_fleet, run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account
from dp_powerflow.privacy.state import PrivateState
from support.fleet_small import BROKEN, KEYS, circuit, fleet_config, toml_of, write_feeders
from support.here import Here
from support.small import tree_hash


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FleetResult]:
    folder = tmp_path_factory.mktemp("fleet")
    write_feeders(folder)
    return folder, run_fleet(fleet_config(folder), engine=Here())


@pytest.fixture
def copied(made: tuple[Path, FleetResult], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "copy"))


def accounts(folder: Path, kind: AccountKind) -> list[Account]:
    ledger = Ledger.inspect(folder / "state")
    return [account for account in ledger.summary().accounts if account.kind is kind]


def test_five_feeders_are_released_and_the_broken_one_is_reported(made: tuple[Path, FleetResult]) -> None:
    folder, result = made
    assert {outcome.key for outcome in result.outcomes} == set(KEYS)
    [failed] = result.failed
    assert failed.key == BROKEN
    assert "OpenDSS rejects" in str(failed.problem)
    kept = json.loads((folder / "state" / "internal" / "north" / "failures.json").read_text())
    assert kept["marking"].startswith("INTERNAL")
    assert [item["feeder"] for item in kept["failed"]] == [BROKEN]
    assert result.warnings[-1].startswith("NO MEANINGFUL PROTECTION OF THE NETWORK")
    released = {outcome.name for outcome in result.outcomes} - {failed.name}
    assert {path.name for path in (folder / "out").iterdir()} == {
        "fleet.json",
        "fleet.html",
        *(f"feeder={name}" for name in released),
    }
    assert {path.name for path in folder.iterdir()} == {"feeders", "out", "state"}


def test_result_and_plan_are_shown_in_one_line_without_names(made: tuple[Path, FleetResult]) -> None:
    folder, result = made
    assert repr(result) == f"FleetResult('{folder / 'out'}': 5 of 6 feeders released, 1 failed)"
    assert not [key for key in KEYS if key in repr(plan_fleet(fleet_config(folder), engine=Here()))]


def test_nothing_published_names_a_file_or_the_feeder_that_failed(made: tuple[Path, FleetResult]) -> None:
    folder, result = made
    canaries = [key.encode() for key in KEYS] + [
        result.failed[0].name.encode(),
        str(folder).encode(),
        b".dss",
    ]
    for path in (folder / "out").rglob("*"):
        assert not [canary for canary in canaries if canary in str(path.relative_to(folder)).encode()]
        if path.is_file():
            content = path.read_bytes()
            assert not [canary for canary in canaries if canary in content], path.name
    manifest = json.loads((folder / "out" / "fleet.json").read_text())
    assert "neither presence nor absence" in " ".join(fleet_words()["unprotected"])
    assert manifest["fleet"]["feeders"] == 5


def test_names_follow_a_keyed_hash_and_not_the_file_names(
    made: tuple[Path, FleetResult], tmp_path: Path
) -> None:
    def order(seed: int) -> list[str]:
        config = fleet_config(made[0], fleet={"insecure_seed": seed, "state": str(tmp_path / str(seed))})
        state = PrivateState.open(config.fleet.state, insecure_seed=seed)
        feeders = feeders_of(config, state, Ledger.open(state))
        assert [feeder.name for feeder in feeders] == [f"feeder-{k:04d}" for k in range(1, 7)]
        return [feeder.key for feeder in feeders]

    orders = [order(seed) for seed in range(4)]
    assert len({tuple(keys) for keys in orders}) == 4
    assert all(sorted(keys) == list(KEYS) for keys in orders)


def test_customers_pay_once_and_every_network_has_an_account_of_its_own(
    made: tuple[Path, FleetResult],
) -> None:
    [loads] = accounts(made[0], AccountKind.LOADS)
    assert [spend.release_id for spend in loads.spends] == ["north"]
    networks = accounts(made[0], AccountKind.NETWORK_INSTANCE)
    assert len(networks) == 5
    assert all(len(account.spends) == 1 for account in networks)
    assert {account.changes[0].reason for account in networks} == {
        "another feeder of fleet 'north'; same frame: a standard design"
    }
    models = {path.read_bytes() for path in (made[0] / "out").glob("feeder=*/model.json")}
    assert len(models) == 1
    manifest = json.loads((made[0] / "out" / "fleet.json").read_text())
    model = json.loads(models.pop())
    assert manifest["customers"]["epsilon"] == model["spent_epsilon"]
    assert manifest["customers"]["rho"] == model["rho"]
    assert manifest["customers"]["with_earlier_releases"]["spent"]["rho"] >= model["rho"]
    assert manifest["customers"]["load_points"] == 60


def test_one_call_of_pyarrow_reads_all_feeders(made: tuple[Path, FleetResult]) -> None:
    out = made[0] / "out"
    files = [str(path) for path in sorted(out.glob("feeder=*/data/*.parquet"))]
    plain = pd.dataset(files, format="parquet", partitioning="hive")
    names = {outcome.name for outcome in made[1].outcomes if outcome.problem is None}
    assert set(plain.to_table(columns=["feeder"]).column("feeder").to_pylist()) == names
    opened = open_fleet(out)
    assert set(opened.names) == names
    dataset = opened.dataset()
    assert dataset.count_rows() == plain.count_rows() == 5 * 3 * 6
    one = opened.names[2]
    rows = dataset.to_table(filter=pd.field("feeder") == one)
    corpus = opened.feeder(one)
    assert rows.num_rows == corpus.layout.days * corpus.layout.nodes
    assert rows.column("vm_pu").to_pylist() == corpus.dataset().to_table().column("vm_pu").to_pylist()


def test_running_again_changes_and_costs_nothing(copied: Path) -> None:
    assert verify_fleet(copied / "out", copied / "state").verdict == "demonstration"
    before = tree_hash(copied / "out")
    entries = (copied / "state" / "ledger.sqlite").read_bytes()
    result = run_fleet(fleet_config(copied), engine=Here())
    assert [outcome.key for outcome in result.failed] == [BROKEN]
    assert tree_hash(copied / "out") == before
    assert (copied / "state" / "ledger.sqlite").read_bytes() == entries


def test_a_repaired_feeder_joins_and_a_new_one_gets_the_next_number(copied: Path) -> None:
    before = tree_hash(copied / "out")
    register = read_register(PrivateState.inspect(copied / "state"), "north")
    write_feeders(copied, repaired=True)
    (copied / "feeders" / "aa-first-in-the-alphabet.dss").write_text(circuit(3.0))
    alike = {"feeders": [*KEYS, "aa-first-in-the-alphabet"], "reason": "a standard design"}
    result = run_fleet(fleet_config(copied, fleet={"same_frame": alike}), engine=Here())
    assert not result.failed
    after = tree_hash(copied / "out")
    of_all = {"fleet.json": "", "fleet.html": ""}  # list all feeders
    assert {name: digest for name, digest in after.items() if name in before} | of_all == before | of_all
    names = {outcome.key: outcome.name for outcome in result.outcomes}
    assert {key: entry.name for key, entry in register.items()} | {
        "aa-first-in-the-alphabet": "feeder-0007"
    } == names
    assert [len(account.spends) for account in accounts(copied, AccountKind.LOADS)] == [1]
    assert verify_fleet(copied / "out").verdict == "demonstration"
    assert json.loads((copied / "state" / "internal" / "north" / "failures.json").read_text())["failed"] == []


def test_a_defect_of_the_program_on_one_feeder_stops_nothing_and_prints_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_feeders(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise KeyError("load 17.25 kW of customer 9")

    monkeypatch.setattr(fleet_run, "make_ready", fail)
    result = run_fleet(fleet_config(tmp_path), engine=Here())
    assert len(result.failed) == 6
    problems = " ".join(str(outcome.problem) for outcome in result.failed)
    assert "a defect of the program" in problems
    assert "17.25" not in problems
    [first, *_] = sorted(result.internal.parent.glob("north_*/traceback.txt"))
    assert "17.25" in first.read_text()
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert not (tmp_path / "out").exists()


def test_a_fleet_of_which_no_feeder_can_be_read_charges_nobody(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    result = run_fleet(fleet_config(tmp_path, fleet={"feeders": [f"feeders/{BROKEN}.dss"]}), engine=Here())
    assert len(result.failed) == 1
    assert accounts(tmp_path, AccountKind.LOADS) == []


def test_another_config_under_the_same_id_and_a_foreign_directory_are_refused(copied: Path) -> None:
    with pytest.raises(ConfigError, match="released with another config"):
        run_fleet(fleet_config(copied, fleet={"days": 4}), engine=Here())
    with pytest.raises(ConfigError, match="not of fleet 'south'"):
        run_fleet(fleet_config(copied, fleet={"id": "south", "continues": "north"}), engine=Here())
    (copied / "out" / "notes.txt").write_text("")
    with pytest.raises(ConfigError, match="which is not of fleet"):
        run_fleet(fleet_config(copied), engine=Here())


Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs a command in a folder, all in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(_parallel, "engine_of", lambda *_: Here())

    def run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["dp-powerflow", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        captured = capsys.readouterr()
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return run


def test_the_command_says_which_feeder_failed_on_stderr_and_by_its_exit_code(
    copied: Path, shell: Shell
) -> None:
    (copied / "fleet.toml").write_text(toml_of())
    code, out, err = shell("fleet", "fleet.toml", "--workers", "1", cwd=copied)
    assert code == 1
    assert out == ""
    assert f"({BROKEN}) failed: OpenDSS rejects" in err
    assert "5 of 6 feeders" in err
    write_feeders(copied, repaired=True)
    code, out, err = shell("fleet", "fleet.toml", "--workers", "1", "--json", cwd=copied)
    assert code == 0
    assert json.loads(out)["released"] == 6
    code, out, _ = shell("verify", "out", cwd=copied)
    assert code == 0
    assert "ok    releases: 6 feeders intact." in out
    assert "feeder-0001:" not in out
    assert "verdict: demonstration: intact" in out


def test_the_plan_shows_costs_and_spends_nothing(tmp_path: Path, shell: Shell) -> None:
    write_feeders(tmp_path)
    (tmp_path / "fleet.toml").write_text(toml_of())
    code, out, err = shell("fleet", "fleet.toml", "--plan", cwd=tmp_path)
    assert code == 3  # one of them would fail
    assert "INTERNAL" in err
    assert "6 feeders, 5 of them usable" in out
    assert "ε at most 4 at δ = 1e-05" in out
    assert "cannot be released: OpenDSS rejects" in " ".join(out.split())
    assert accounts(tmp_path, AccountKind.LOADS) == []
    assert not (tmp_path / "out").exists()
