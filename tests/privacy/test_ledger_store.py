"""What happens to the ledger's file: edits by hand, damage, a full or read-only disk, other versions."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_powerflow import Ledger, PrivateState
from dp_powerflow.cli import app
from dp_powerflow.cli.checks import render_ledger
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger import store as ledger_store
from dp_powerflow.privacy.ledger.accounts import InstanceCap, InstanceCost
from support import ledgers
from support.faults.looking import in_child

LINE = Neighbours("one line, admittance scaled by up to 1 %")
CAP = InstanceCap(10.0, 1e-5, LINE)
COST = InstanceCost(1.0, 1e-7, LINE)
REQUEST = "c" * 64
NOBODY = 65534
COPY = "INSERT INTO entry SELECT {}, at, event, account, 'r5', request_sha256, body, mac"
COLUMNS = ("seq", "at", "event", "account", "release_id", "request_sha256", "body", "mac")


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    """A ledger with an account and three spends: entries 0 to 4."""
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    account = ledgers.account(ledger, state.identity("network", [b"1"]), CAP)
    for number in range(3):
        ledgers.spend(ledger, account, f"r{number}", REQUEST, COST)
    return state


def account_of(state: PrivateState) -> ledgers.Opened:
    return ledgers.Opened(state.identity("network", [b"1"]), CAP, name="network-instance-1")


@contextmanager
def by_hand(state: PrivateState) -> Iterator[sqlite3.Connection]:
    """The database with its triggers and index out of the way, put back at the end as if untouched."""
    with closing(sqlite3.connect(state.ledger_path)) as connection:
        schema = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'index')"
        ).fetchall()
        for kind, name, _ in schema:
            connection.execute(f"DROP {kind} {name}")
        yield connection
        for _, _, sql in schema:
            connection.execute(sql)
        connection.commit()


def assert_refused(state: PrivateState, match: str) -> None:
    """Neither reading nor spending works, each with one sentence, and the file is left as it was."""
    before = state.ledger_path.read_bytes()
    with pytest.raises(PrivacyError, match=match) as caught:
        Ledger.open(state)
    assert "\n" not in str(caught.value)
    ledger = Ledger(ledger_store.LedgerStore(state))
    for use in (
        lambda: Ledger.inspect(state.root),
        ledger.summary,
        lambda: ledgers.account(ledger, state.identity("network", [b"1"]), CAP),
        lambda: ledgers.spend(ledger, account_of(state), "r9", REQUEST, COST),
        lambda: ledgers.spend(ledger, account_of(state), "r0", REQUEST, COST),  # not even a resumption
    ):
        with pytest.raises(PrivacyError, match=match):
            use()
    assert state.ledger_path.read_bytes() == before


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("column", COLUMNS)
def test_an_edit_of_any_column_of_any_entry_is_noticed(state: PrivateState, column: str, row: int) -> None:
    with by_hand(state) as connection:
        (value,) = connection.execute(f"SELECT {column} FROM entry WHERE seq = ?", (row,)).fetchone()
        edited = value + 100 if column == "seq" else f"{value} "
        connection.execute(f"UPDATE entry SET {column} = ? WHERE seq = ?", (edited, row))
    assert_refused(state, "changed")


ANCHOR = "dp-powerflow-anchor-1 {number} {mac}"


def cut_last_entry(state: PrivateState) -> tuple[int, str]:
    """Remove the last spend; number and keyed hash of what is then the last entry, in the clear."""
    with by_hand(state) as connection:
        connection.execute("DELETE FROM entry WHERE seq = 4")
        number, mac = connection.execute("SELECT seq, mac FROM entry WHERE seq = 3").fetchone()
    return int(number), str(mac)


def test_deleting_the_anchor_does_not_hide_that_entries_were_cut_off(state: PrivateState) -> None:
    """Before: a ledger without an anchor was opened, and the last spend was free again."""
    state.anchor_path.unlink()
    assert_refused(state, "has lost its anchor.*--accept-unanchored REASON")
    cut_last_entry(state)
    assert_refused(state, "has lost its anchor")


@pytest.mark.parametrize("form", ["{number} {mac}", f"{ANCHOR} {{mac}}", f"{ANCHOR} {{tag}}"])
def test_an_anchor_rewritten_from_the_clear_column_is_found(state: PrivateState, form: str) -> None:
    """Before: the anchor was a number and a column of the database, so anybody could write it."""
    tag = state.anchor_path.read_text().split()[3]
    number, mac = cut_last_entry(state)
    state.anchor_path.write_text(form.format(number=number, mac=mac, tag=tag) + "\n")
    assert_refused(state, "damaged anchor|was not written with its key")


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
        ledgers.spend(ledger, account_of(state), "dear", REQUEST, InstanceCost(8.0, 0.0, LINE))
    with pytest.raises(PrivacyError, match="has its anchor"):
        Ledger.accept_unanchored(state.root, "again")


def test_a_ledger_that_claims_to_be_of_an_earlier_version_is_refused(state: PrivateState) -> None:
    """Before: one of the first format needed no keyed hash in its anchor."""
    number, mac = cut_last_entry(state)
    statement(f"PRAGMA application_id = {0x64707066}")(state)
    sentence = "is of an earlier version.*0.5.0, the last version that reads it; nothing was spent"
    state.anchor_path.write_text(f"{number} {mac}\n")
    assert_refused(state, sentence)
    state.anchor_path.unlink()
    assert_refused(state, sentence)
    with pytest.raises(PrivacyError, match=sentence):
        Ledger.accept_unanchored(state.root, "copied without it")


def test_an_entry_from_another_course_of_events_is_noticed(tmp_path: Path, state: PrivateState) -> None:
    """A valid entry with the right number, made with the right key on a copy of the ledger."""
    shutil.copytree(state.root, tmp_path / "copy")
    for root, cost in [(state.root, COST), (tmp_path / "copy", InstanceCost(1e-6, 0.0, LINE))]:
        ledger = Ledger.open(PrivateState.open(root))
        ledgers.spend(ledger, account_of(state), "r3", REQUEST, cost)
        ledgers.spend(ledger, account_of(state), "r4", REQUEST, COST)
    with closing(sqlite3.connect(tmp_path / "copy" / "ledger.sqlite")) as copy:
        cheap = copy.execute("SELECT * FROM entry WHERE seq = 5").fetchone()
    with by_hand(state) as connection:
        connection.execute("DELETE FROM entry WHERE seq = 5")
        connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", cheap)
    assert_refused(state, "changed by hand at or before entry 6")


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        ("UPDATE entry SET release_id = 'r9' WHERE seq = 4", "lacks entries it had before"),
        ("DELETE FROM entry WHERE seq = 4", "lacks entries it had before"),
        ("DELETE FROM entry", "lacks entries it had before"),
        *(
            (f"{COPY.format(k)} FROM entry WHERE seq = 4", "changed by hand at or before entry 5")
            for k in (5, 6)
        ),
    ],
)
def test_an_open_ledger_notices_edits_of_its_end(state: PrivateState, edit: str, match: str) -> None:
    ledger = Ledger.open(state)
    with by_hand(state) as connection:
        connection.execute(edit)
    for use in (ledger.summary, lambda: ledgers.spend(ledger, account_of(state), "r9", REQUEST, COST)):
        with pytest.raises(PrivacyError, match=match):
            use()
    assert_refused(state, "changed by hand|lacks entries|another key")


def test_an_anchor_that_lags_after_a_crash_is_caught_up(state: PrivateState) -> None:
    old = state.anchor_path.read_bytes()
    ledgers.spend(Ledger.open(state), account_of(state), "r3", REQUEST, COST)
    new = state.anchor_path.read_bytes()
    state.anchor_path.write_bytes(old)  # as if killed between the commit and the anchor
    assert len(Ledger.open(state).spends()) == 4
    assert state.anchor_path.read_bytes() == old, "looking at it changes nothing"
    # Resumed: nothing more is charged.
    ledgers.spend(Ledger.open(state), account_of(state), "r3", REQUEST, COST)
    assert state.anchor_path.read_bytes() == new
    ledgers.spend(Ledger.open(state), account_of(state), "r4", REQUEST, COST)
    assert int(state.anchor_path.read_text().split()[1]) == int(new.split()[1]) + 1


def statement(text: str) -> Callable[[PrivateState], object]:
    """Damage by the database's own means."""

    def execute(state: PrivateState) -> None:
        with closing(sqlite3.connect(state.ledger_path)) as connection:
            connection.executescript(text)

    return execute


def edited(*texts: str) -> Callable[[PrivateState], object]:
    """Damage behind the back of the database."""

    def edit(state: PrivateState) -> None:
        with by_hand(state) as connection:
            for text in texts:
                connection.execute(text)

    return edit


def cut(size: int) -> Callable[[PrivateState], object]:
    return lambda state: state.ledger_path.write_bytes(state.ledger_path.read_bytes()[:size])


def anchor(text: bytes) -> Callable[[PrivateState], object]:
    return lambda state: state.anchor_path.write_bytes(text)


def another_database(state: PrivateState) -> None:
    state.ledger_path.unlink()
    statement("CREATE TABLE entry (x)")(state)
    state.ledger_path.chmod(0o600)


def linked(state: PrivateState) -> None:
    state.ledger_path.rename(state.root.parent / "elsewhere")
    state.ledger_path.symlink_to(state.root.parent / "elsewhere")


def old_copy(state: PrivateState) -> None:
    backup = state.ledger_path.read_bytes()
    ledgers.spend(Ledger.open(state), account_of(state), "r3", REQUEST, COST)
    state.ledger_path.write_bytes(backup)


DAMAGE = json.loads(Path(__file__).with_name("damage.json").read_bytes())
"""Statements behind the back of the database or by its own means, and what is then said."""


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        *((edited(*texts), said) for texts, said in DAMAGE["by hand"]),
        *((statement(text), said) for text, said in DAMAGE["statements"]),
        (old_copy, "lacks entries it had before"),
        (another_database, "corrupt"),
        *((cut(size), "corrupt|cannot be used|tables changed|be read") for size in (0, 1, 100, 4096, 5000)),
        (lambda state: state.ledger_path.write_text("nothing has been spent\n" * 500), "is corrupt"),
        *((lambda state, bits=bits: state.ledger_path.chmod(bits), "chmod 600") for bits in (0o640, 0o644)),
        (linked, "not a plain file"),
        *(
            (anchor(text), "damaged anchor")
            for text in (b"\xff\x00", b"dp-powerflow-anchor-1 2 " + b"0" * 64, b"2 " + b"0" * 64)
        ),
    ],
)
def test_a_damaged_ledger_is_refused(
    state: PrivateState, damage: Callable[[PrivateState], object], match: str
) -> None:
    damage(state)
    assert_refused(state, match)


def test_a_ledger_of_another_key_and_one_that_was_never_there_are_refused(
    tmp_path: Path, state: PrivateState
) -> None:
    other = PrivateState.open(tmp_path / "other")
    with pytest.raises(PrivacyError, match="cannot be found"):
        Ledger.open(other, create=False)
    assert not other.ledger_path.exists()
    Ledger.open(other)
    other.ledger_path.write_bytes(state.ledger_path.read_bytes())
    other.anchor_path.write_bytes(state.anchor_path.read_bytes())
    with pytest.raises(PrivacyError, match="written with another key"):
        Ledger.open(other)


def test_the_database_itself_refuses_changes_and_is_not_started_anew(state: PrivateState) -> None:
    replaced = "INSERT OR REPLACE INTO entry VALUES (4, '', '', '', '', '', '', '')"
    for text in ("UPDATE entry SET body = '{}'", "DELETE FROM entry WHERE seq = 4", replaced):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            statement(text)(state)
    edited()(state)  # the helper of these tests is not noticed by itself
    assert len(Ledger.open(state).spends()) == 3
    state.ledger_path.unlink()
    with pytest.raises(PrivacyError, match="is missing although it was in use"):
        Ledger.open(state)
    assert not state.ledger_path.exists()


def test_flipped_bytes_never_make_a_spend_disappear(state: PrivateState) -> None:
    """Any byte of the file, at random: the ledger is refused, or it still says exactly what it said."""
    good = state.ledger_path.read_bytes()
    said = Ledger.open(state).summary()
    chooser = random.Random(5)
    refused = 0
    for _ in range(300):
        position = chooser.randrange(len(good))
        flipped = bytes([good[position] ^ chooser.randrange(1, 256)])
        state.ledger_path.write_bytes(good[:position] + flipped + good[position + 1 :])
        try:
            assert Ledger.open(state).summary() == said
        except PrivacyError:
            refused += 1
    assert refused > 10


def test_a_locked_ledger_is_reported_after_a_while(
    state: PrivateState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_store, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(state.ledger_path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        ledger = Ledger.open(state)  # reading goes on
        with pytest.raises(PrivacyError, match="locked by another process"):
            ledgers.spend(ledger, account_of(state), "r3", REQUEST, COST)
    assert len(ledger.spends()) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to hand the directory to a user without privileges")
def test_a_read_only_directory_can_be_looked_at_and_spends_nothing(
    state: PrivateState, tmp_path: Path
) -> None:
    def look(root: Path) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        ledger = Ledger.open(PrivateState.open(root))
        os.write(1, f"{len(ledger.spends())}\n".encode())
        try:
            ledgers.spend(ledger, account_of(state), "r9", REQUEST, COST)
        except PrivacyError as error:
            os.write(1, str(error).encode())

    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(state.root, Path(folder) / "state"))
        for path in (Path(folder), root, *root.iterdir()):
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o500 if path.is_dir() else 0o400)
        said = in_child(lambda: look(root), tmp_path / "log").text.splitlines()
    assert "3" in said
    remedy = "make the private state directory writable; nothing was spent"
    assert any(line.endswith(f"cannot be written; {remedy}") for line in said), said
