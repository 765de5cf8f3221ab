"""Attacks on charges that are made together: nobody gets past a cap, or past paying, within one batch."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import PureCost, TwinCap
from dp_powerflow.privacy.ledger.book import Charge, ChargedData, Ledger
from dp_powerflow.privacy.state import PrivateState

LINE = Neighbours("one line, length changed by a factor up to 1.05")
CAP = TwinCap(1.0, 0.0, LINE)
REQUEST = "f" * 64


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    state = PrivateState.open(tmp_path / "state", insecure_seed=5)
    Ledger.open(state)
    return state


def charge(
    state: PrivateState, release_id: str, epsilon: float = 0.4, data: ChargedData | None = None
) -> Charge:
    found = ChargedData(state.identity("network", [b"one"]), CAP) if data is None else data
    return Charge(found, release_id, REQUEST, PureCost(epsilon, LINE))


def spent(state: PrivateState) -> list[str]:
    """What a new process finds in the file."""
    return [spend.release_id for spend in Ledger.open(state).spends()]


def test_a_batch_counts_its_own_charges_against_the_cap(state: PrivateState) -> None:
    ledger = Ledger.open(state)
    with pytest.raises(PrivacyError, match=r"0\.2 at delta 0 left"):
        ledger.charge_all([charge(state, name) for name in "abc"])
    assert spent(state) == []
    ledger.charge_all([charge(state, name) for name in "ab"])
    with pytest.raises(PrivacyError, match="left"):
        ledger.charge_all([charge(state, "a"), charge(state, "c")])
    assert spent(state) == ["a", "b"]


def test_a_release_twice_in_a_batch_is_one_charge_and_never_a_cheaper_one(state: PrivateState) -> None:
    ledger = Ledger.open(state)
    with pytest.raises(PrivacyError, match="another request"):
        ledger.charge_all([charge(state, "a"), charge(state, "a", 0.1)])
    with pytest.raises(PrivacyError, match="another request"):
        ledger.charge_all([charge(state, "a"), replace(charge(state, "a"), request_sha256="0" * 64)])
    assert spent(state) == []
    one, two = ledger.charge_all([charge(state, "a"), charge(state, "a")])
    assert one == two
    assert spent(state) == ["a"]


def test_data_that_continue_an_account_of_the_same_batch_share_its_cap(state: PrivateState) -> None:
    ledger = Ledger.open(state)
    later = ChargedData(state.identity("network", [b"one, corrected"]), CAP, continues="network-twin-1")
    with pytest.raises(PrivacyError, match="left"):
        ledger.charge_all([charge(state, "a"), charge(state, "b", 0.7, later)])
    assert spent(state) == []
    assert ledger.summary().accounts == ()
    ledger.charge_all([charge(state, "a"), charge(state, "b", 0.6, later)])
    assert [len(account.spends) for account in ledger.summary().accounts] == [2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_forked_while_another_thread_holds_the_books_can_charge(state: PrivateState) -> None:
    """Its copy of the lock stays closed for ever; it must not wait for it, nor trust what is half done."""
    ledger = Ledger.open(state)
    ledger.charge_all([charge(state, "a")])
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger._store.reading():
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ledger.charge_all([charge(state, "a"), charge(state, "b")])
            try:
                ledger.charge_all([charge(state, "c")])
            except PrivacyError:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert [spend.release_id for spend in ledger.spends()] == ["a", "b"]
    with pytest.raises(PrivacyError, match="left"):
        ledger.charge_all([charge(state, "c")])
