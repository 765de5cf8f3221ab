"""Hole 4: ways to make a ledger forget what was spent. Each of them got a full budget back before 0.3."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_powerflow.cli import app
from dp_powerflow.cli.checks import render_ledger
from dp_powerflow.config import Config
from dp_powerflow.errors import PrivacyError
from dp_powerflow.fleet.witness import hear_witnesses
from dp_powerflow.manifest.twin import charged_as
from dp_powerflow.pipeline.plan import keep_receipt, make_ready, open_ledger
from dp_powerflow.pipeline.release import charge, fitted_model
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import InstanceCap, InstanceCost, PureCost, TwinCap
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support import ledgers
from support.manifest_releases import config as release_config
from support.manifest_releases import load_model, make_inputs, write_release
from support.small import small_config

CAP = InstanceCap(2.0, 0.0, Neighbours("one line, admittance scaled by up to 1 %"))
ONE = InstanceCost(1.0, 0.0, CAP.unit)
REQUEST = "a" * 64


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    """Two spends, and nothing left."""
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    for release_id in ("one", "two"):
        ledgers.spend(ledger, account(ledger, state), release_id, REQUEST, ONE)
    return state


def account(ledger: Ledger, state: PrivateState) -> ledgers.Opened:
    return ledgers.account(ledger, state.identity("network", [b"feeder"]), CAP)


def cut_last_entry(state: PrivateState) -> tuple[int, str]:
    """Remove the last spend by hand; number and keyed hash of what is then the last entry, in the clear."""
    with closing(sqlite3.connect(state.ledger_path)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)")
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()
        number, mac = connection.execute("SELECT seq, mac FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    return int(number), str(mac)


def assert_refused(state: PrivateState, match: str) -> None:
    with pytest.raises(PrivacyError, match=match):
        Ledger.open(state)
    with pytest.raises(PrivacyError, match=match):
        Ledger.inspect(state.root)


def test_deleting_the_anchor_does_not_hide_that_entries_were_cut_off(state: PrivateState) -> None:
    """Before: a ledger without an anchor was opened, and the last spend was free again."""
    state.anchor_path.unlink()
    assert_refused(state, "has lost its anchor.*--accept-unanchored REASON")
    cut_last_entry(state)
    assert_refused(state, "has lost its anchor")


@pytest.mark.parametrize("form", ["{number} {mac}", "dp-powerflow-anchor-1 {number} {mac} {mac}"])
def test_an_anchor_rewritten_from_the_clear_column_is_found(state: PrivateState, form: str) -> None:
    """Before: the anchor was a number and a column of the database, so anybody could write it."""
    number, mac = cut_last_entry(state)
    state.anchor_path.write_text(form.format(number=number, mac=mac) + "\n")
    assert_refused(state, "damaged anchor|was not written with its key")


def test_an_anchor_of_another_place_of_the_chain_is_not_bent(state: PrivateState) -> None:
    tag = state.anchor_path.read_text().split()[3]
    number, mac = cut_last_entry(state)
    state.anchor_path.write_text(f"dp-powerflow-anchor-1 {number} {mac} {tag}\n")
    assert_refused(state, "was not written with its key")


def test_a_lost_anchor_is_replaced_by_command_only_and_the_ledger_says_so_for_ever(
    state: PrivateState,
) -> None:
    state.anchor_path.unlink()
    runner, command = CliRunner(), ["ledger", str(state.root), "--accept-unanchored"]
    assert runner.invoke(app, [*command, " "]).exit_code != 0
    assert_refused(state, "has lost its anchor")
    assert runner.invoke(app, [*command, "disk failure of 3 May"]).exit_code == 0
    ledger = Ledger.open(state)
    shown = render_ledger(ledger.summary())
    assert any("Its anchor was lost" in line and "disk failure of 3 May" in line for line in shown.lines)
    assert json.loads(shown.json_text)["lost_anchors"][0]["reason"] == "disk failure of 3 May"
    with pytest.raises(PrivacyError, match="nothing was spent"):
        ledgers.spend(ledger, account(ledger, state), "three", REQUEST, ONE)
    with pytest.raises(PrivacyError, match="has its anchor"):
        Ledger.accept_unanchored(state.root, "again")


def test_a_ledger_that_claims_to_be_of_an_earlier_version_is_refused(state: PrivateState) -> None:
    """Before: one of the first format needed no keyed hash in its anchor."""
    number, mac = cut_last_entry(state)
    with closing(sqlite3.connect(state.ledger_path)) as connection:
        connection.execute(f"PRAGMA application_id = {0x64707066}")
    sentence = "is of an earlier version.*0.5.0, the last version that reads it; nothing was spent"
    state.anchor_path.write_text(f"{number} {mac}\n")
    assert_refused(state, sentence)
    state.anchor_path.unlink()
    assert_refused(state, sentence)
    with pytest.raises(PrivacyError, match=sentence):
        Ledger.accept_unanchored(state.root, "copied without it")


def begin(config: Config) -> PrivateState:
    """A release up to where its data have been used."""
    state = PrivateState.open(config.release.state, insecure_seed=7)
    ready = make_ready(config, state)
    inputs, (plan, _) = ready.inputs, charge(ready)
    fitted_model(config, state, inputs.readings, plan, inputs.key, inputs.almanac)
    return state


def test_an_old_ledger_with_its_old_anchor_is_found_by_the_files_of_later_releases(tmp_path: Path) -> None:
    """Before: both were put back, everything fitted, and the release was charged a second time."""
    config = small_config(tmp_path)
    state = PrivateState.open(config.release.state, insecure_seed=7)
    Ledger.open(state)
    backup = {path: path.read_bytes() for path in (state.ledger_path, state.anchor_path)}
    begin(config)
    open_ledger(state)
    for path, content in backup.items():
        path.write_bytes(content)
    with pytest.raises(PrivacyError, match=r"lacks a charge of release 'small' \(entry \d, which paid"):
        open_ledger(state)
    with pytest.raises(PrivacyError, match=r"lacks a charge of release 'small'.*nothing was spent"):
        begin(small_config(tmp_path, release={"id": "again"}))
    for path in backup:  # a fresh ledger is no better
        path.unlink()
    with pytest.raises(PrivacyError, match="lacks a charge of release 'small'"):
        open_ledger(state)
    for receipt in (state.root / "internal" / "small").glob("paid-*.json"):
        receipt.unlink()  # as versions before 0.3 left it
    with pytest.raises(PrivacyError, match="the one that paid for its load model"):
        open_ledger(state)
    kept = state.root / "internal" / "twin-north"
    kept.mkdir(mode=0o700)
    (kept / f"twin-{'0' * 16}.json").touch(0o600)
    shutil.rmtree(state.root / "internal" / "small")
    with pytest.raises(PrivacyError, match=r"charge of release 'north' \(the one that paid for the twin\)"):
        open_ledger(state)


def test_a_later_version_of_a_twin_has_its_charge(state: PrivateState) -> None:
    ledger, dataset = Ledger.open(state), state.identity("network", [b"feeder, a line replaced"])
    cap = TwinCap(2.0, 0.0, CAP.unit)
    later = ledgers.account(ledger, dataset, cap)
    state.write_internal("twin-north", f"twin-{dataset[:16]}.json", b"{}")
    with pytest.raises(PrivacyError, match="the one that paid for the twin"):
        open_ledger(state)
    ledgers.spend(ledger, later, charged_as("north", 2), REQUEST, PureCost(1.0, CAP.unit))
    open_ledger(state)


def test_another_charge_in_the_place_of_a_lost_one_is_found(tmp_path: Path) -> None:
    """The ledger was put back and went on: it is as long as before, with another charge."""
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    own = account(ledger, state)
    backup = {path: path.read_bytes() for path in (state.ledger_path, state.anchor_path)}
    lost = ledgers.spend(ledger, own, "one", REQUEST, ONE)
    keep_receipt(state, "one", lost)
    open_ledger(state)
    for path, content in backup.items():
        path.write_bytes(content)
    assert ledgers.spend(Ledger.open(state), own, "other", REQUEST, ONE).entry == lost.entry
    with pytest.raises(PrivacyError, match="lacks a charge of release 'one'"):
        open_ledger(state)
    state.write_internal("one", f"paid-{lost.entry}.json", b"{")
    with pytest.raises(PrivacyError, match="is damaged"):
        open_ledger(state)


def test_a_whole_directory_put_back_is_found_by_earlier_releases(tmp_path: Path) -> None:
    """Before: nothing could tell. Now nothing *inside* can, and every release outside is a witness."""
    inputs, state = make_inputs(tmp_path, release_config(), load_model())
    first = write_release(tmp_path / "first", inputs)
    shutil.copytree(state.root, tmp_path / "backup")
    second_config = release_config(release={"id": "r-2"})
    ledger = Ledger.open(state)
    inputs, state = make_inputs(tmp_path, second_config, load_model())
    second = write_release(tmp_path / "second", inputs)
    fleet = tmp_path / "fleet"
    shutil.copytree(second, fleet / "feeder=north")
    (fleet / "fleet.json").write_text(json.dumps({"feeders": [{"name": "north"}]}))
    assert ledger.summary().accounts
    for places in ([first], [first, second], [fleet, first]):
        heard = hear_witnesses(state.root, map(str, places))
        assert heard.contradictions == ()
        assert heard.releases == len(places)
    runner, command = CliRunner(), ["ledger", str(state.root), "--witness"]
    said = runner.invoke(app, [*command, str(first), str(second)])
    assert said.exit_code == 0
    assert "every charge that 2 earlier releases state" in said.output
    shutil.rmtree(state.root)
    shutil.copytree(tmp_path / "backup", state.root)
    open_ledger(state)  # it cannot be told from inside
    for place in (second, fleet):
        heard = hear_witnesses(state.root, [str(first), str(place)])
        assert [sentence[:50] for sentence in heard.contradictions] == [
            "The ledger lacks the charge of release 'r-2' to th"
        ] * 2
    said = runner.invoke(app, [*command, str(first), str(second)])
    assert said.exit_code == 1
    assert "older copy" in said.output
    # The budget is used a second time, under another name: the witness still says so.
    make_inputs(tmp_path, release_config(release={"id": "r-3"}), load_model())
    assert len(hear_witnesses(state.root, [str(second)]).contradictions) == 2
    # Or under the same name, for another price.
    shutil.rmtree(state.root)
    shutil.copytree(tmp_path / "backup", state.root)
    cheaper = release_config(release={"id": "r-2"}, network={"epsilon": 1.0})
    make_inputs(tmp_path, cheaper, load_model())
    [sentence] = hear_witnesses(state.root, [str(second)]).contradictions
    assert "disagrees with release 'r-2' on what had been spent on the network" in sentence


def test_the_witness_of_another_model_or_report_is_heard(tmp_path: Path) -> None:
    """The same id and the same price after the rollback, and other data."""
    inputs, state = make_inputs(tmp_path, release_config(), load_model())
    first = write_release(tmp_path / "first", inputs)
    state.write_internal("r-1", "model.json", inputs.model.to_json().encode())
    assert hear_witnesses(state.root, [str(first)]).contradictions == ()
    state.write_internal("r-1", "model.json", load_model(classes=2).to_json().encode())
    state.write_internal("r-1", "report.json", b"{}")
    lacks, report = hear_witnesses(state.root, [str(first)]).contradictions
    assert lacks.startswith("The ledger lacks the charge of release 'r-1' to the customers")
    assert report.startswith("Release 'r-1' commits to another internal report")


def test_a_witness_must_be_a_release(tmp_path: Path, state: PrivateState) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    said = CliRunner().invoke(app, ["ledger", str(state.root), "--witness", str(tmp_path)])
    assert said.exit_code not in (0, 1) or "not the manifest" in said.output + str(said.exception)
    for arguments in (["--witness"], [str(tmp_path)]):
        said = CliRunner().invoke(app, ["ledger", str(state.root), *arguments])
        assert "with --witness" in said.output + str(said.exception)
