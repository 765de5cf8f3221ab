"""What an open ledger remembers: it saves work, and it is never believed against the file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow import Ledger, PrivateState
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import InstanceCap, InstanceCost
from dp_powerflow.privacy.ledger.records import Books, Entry, HashChain, Unrelated
from dp_powerflow.privacy.ledger.store import Database
from support import ledgers

LINE = Neighbours("one line, admittance scaled by up to 1 %")
CAP = InstanceCap(10.0, 1e-5, LINE)
COST = InstanceCost(1.0, 1e-7, LINE)
REQUEST = "c" * 64
NORTH = Unrelated(frozenset(), "another feeder of fleet 'north'", "north")


def network(state: PrivateState, number: int) -> str:
    return state.identity("network", [str(number).encode()])


def feeder(state: PrivateState, ledger: Ledger, number: int) -> ledgers.Opened:
    frame = state.identity("frame", [str(number).encode()])
    return ledgers.account(ledger, network(state, number), CAP, unrelated=NORTH, frame=frame)


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    """A ledger with an account and three spends, which this process has checked."""
    state = PrivateState.open(tmp_path / "state", insecure_seed=3)
    ledger = Ledger.open(state)
    for number in range(3):
        ledgers.spend(ledger, feeder(state, ledger, 1), f"r{number}", REQUEST, COST)
    return state


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many entries are hashed, replayed and read."""
    work = Counter[str]()

    def count(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def counting(*arguments: Any) -> Any:
            found = real(*arguments)
            work[name] += len(found) if isinstance(found, list) else 1
            return found

        patch.setattr(kind, name, counting)

    with monkeypatch.context() as patch:
        for kind, name in ((HashChain, "mac"), (Books, "take"), (Database, "entries")):
            count(kind, name)
        yield work


def test_a_charge_costs_the_same_after_five_accounts_and_after_eighty(
    state: PrivateState, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: dict[int, Counter[str]] = {}
    ledger = Ledger.open(state)
    for number in range(2, 83):
        with counted(monkeypatch) as work:
            account = feeder(state, ledger, number)
            ledgers.preview(ledger, account.dataset, CAP, COST, release_id=f"f{number}")
            spend = ledgers.spend(ledger, account, f"f{number}", REQUEST, COST)
            ledgers.remaining(ledger, account, as_of=spend)
            ledger.spends(release_id=f"f{number}")
            assert ledger.find(CAP.kind, account.dataset) == ledger.named(account.name)
        costs[number] = work
    assert costs[5] == costs[82] == costs[40]
    assert (costs[82]["mac"], costs[82]["take"]) == (2, 2), "two entries are made and kept"
    with counted(monkeypatch) as work:
        Ledger.open(state)
    assert work == dict.fromkeys(("mac", "take", "entries"), 5 + 2 * 81)


def test_within_a_fleet_no_feeder_is_compared_with_every_other(
    state: PrivateState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accounts of the own fleet need no names, so a new one is not held against a list of them."""
    ledger, seen = Ledger.open(state), list[str]()
    names = Books.names

    def listed(self: Books, *arguments: Any, **options: Any) -> Iterator[str]:
        for name in names(self, *arguments, **options):
            seen.append(name)
            yield name

    monkeypatch.setattr(Books, "names", listed)
    for number in range(2, 30):
        feeder(state, ledger, number)
    assert seen == []
    with pytest.raises(PrivacyError, match="network-instance-1 to network-instance-29 of the same kind"):
        ledgers.account(ledger, network(state, 30), CAP)


def edit_early_entry(state: PrivateState) -> None:
    """Entry 2 gets cheaper, without a word to SQLite: as many bytes as before."""
    with state.ledger_path.open("r+b") as file:
        content = file.read()
        assert content.count(b'"epsilon":1.0,') >= 3
        file.seek(content.rindex(b'"epsilon":1.0,'))  # SQLite fills a page from its end
        file.write(b'"epsilon":0.1,')


def assert_found(state: PrivateState) -> None:
    with pytest.raises(PrivacyError, match="changed by hand at or before entry"):
        Ledger.open(state)


@pytest.mark.parametrize("another_file", [False, True])
def test_an_edit_that_the_file_system_does_not_tell_is_found(
    state: PrivateState, tmp_path: Path, another_file: bool
) -> None:
    """Opening checks everything: nothing is believed by time, place or size of the file."""
    Ledger.open(state)
    path, times, good = state.ledger_path, state.ledger_path.stat(), state.ledger_path.read_bytes()
    edit_early_entry(state)
    if another_file:
        shutil.copy2(path, tmp_path / "edited")
        path.write_bytes(good)
        Ledger.open(state)
        (tmp_path / "edited").rename(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert_found(state)


def test_a_charge_after_an_edit_does_not_vouch_for_it(state: PrivateState) -> None:
    """A ledger that is open goes on by what it remembers; opening it again finds the edit all the same."""
    ledger = Ledger.open(state)
    edit_early_entry(state)
    account = feeder(state, ledger, 1)
    ledgers.spend(ledger, account, "r3", REQUEST, COST)
    assert ledgers.remaining(ledger, account).spent["epsilon"] == 4.0
    assert_found(state)
    ledgers.spend(ledger, account, "r4", REQUEST, COST)
    assert_found(state)


def test_a_ledger_made_anew_at_the_same_place_with_the_same_key_is_not_taken_for_the_old_one(
    state: PrivateState,
) -> None:
    old = Ledger.open(state)
    shutil.rmtree(state.root)
    again = PrivateState.open(state.root, insecure_seed=3)
    assert Ledger.open(again).spends() == ()
    with pytest.raises(PrivacyError, match="lacks entries it had before"):
        old.spends()


def test_an_older_copy_is_refused_by_whoever_has_it_open_and_checked_anew_by_whoever_opens_it(
    state: PrivateState, tmp_path: Path
) -> None:
    ledger = Ledger.open(state)
    shutil.copytree(state.root, tmp_path / "backup")
    ledgers.spend(ledger, feeder(state, ledger, 1), "later", REQUEST, COST)
    shutil.rmtree(state.root)
    (tmp_path / "backup").rename(state.root)
    assert len(Ledger.open(state).spends()) == 3  # nothing inside can tell, see docs/reference/ledger.md
    for use in (ledger.summary, lambda: ledgers.spend(ledger, feeder(state, ledger, 1), "x", REQUEST, COST)):
        with pytest.raises(PrivacyError, match="lacks entries it had before"):
            use()


@pytest.mark.parametrize("at", ["making", "reading"])
def test_a_memory_that_was_interrupted_is_thrown_away(
    state: PrivateState, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """An interrupt in the middle of an entry: nothing half done is ever used, nor what was forgotten."""
    ledger, other = Ledger.open(state), Ledger.open(PrivateState.open(state.root, insecure_seed=3))
    account, take = feeder(state, ledger, 1), Books.take

    def interrupted(self: Books, entry: Entry) -> None:
        take(self, entry)
        raise KeyboardInterrupt

    if at == "reading":
        ledgers.spend(other, account, "r3", REQUEST, COST)
    older = {path: path.read_bytes() for path in (state.ledger_path, state.anchor_path)}
    with monkeypatch.context() as patch:
        patch.setattr(Books, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledgers.spend(ledger, account, "r3", REQUEST, COST)
    for each in (ledger, other, Ledger.open(state)):
        assert len(each.spends()) == (4 if at == "reading" else 3)
    assert ledgers.spend(ledger, account, "r3", REQUEST, COST).entry == 5
    assert ledgers.remaining(Ledger.open(state), account).spent["epsilon"] == 4.0
    with monkeypatch.context() as patch:
        patch.setattr(Books, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledgers.spend(ledger, account, "r4", REQUEST, COST)
    if at == "making":
        for path, content in older.items():
            path.write_bytes(content)
        with pytest.raises(PrivacyError, match="lacks entries it had before"):
            ledger.spends()


@pytest.mark.parametrize("share", [True, False])
def test_threads_never_pass_a_cap(state: PrivateState, share: bool) -> None:
    """Whether they share a ledger or open it at once."""
    shared = Ledger.open(state)

    def attempt(number: int) -> bool:
        ledger = shared if share else Ledger.open(PrivateState.open(state.root, insecure_seed=3))
        account = feeder(state, ledger, 1)
        try:
            spend = ledgers.spend(ledger, account, f"t{number}", REQUEST, InstanceCost(2.0, 0.0, LINE))
        except PrivacyError:
            return False
        return ledgers.remaining(ledger, account, as_of=spend).spent["epsilon"] <= 10.0

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(attempt, range(16))) == 3
    with closing(sqlite3.connect(state.ledger_path)) as connection:
        assert connection.execute("SELECT count(*) FROM entry").fetchone() == (8,)
    assert ledgers.remaining(Ledger.open(state), feeder(state, Ledger.open(state), 1)).spent["epsilon"] == 9.0
