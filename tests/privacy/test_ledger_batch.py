"""Many charges in one transaction: all or none, whoever is killed and whoever else writes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dp_powerflow import Budget, Ledger, PrivateState
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import (
    InstanceCap,
    InstanceCost,
    LoadsCap,
    LoadsCost,
    PureCost,
    TwinCap,
)
from dp_powerflow.privacy.ledger.book import Charge, ChargedData
from dp_powerflow.privacy.ledger.records import LedgerSummary, Unrelated
from support import ledgers

LINE = Neighbours("one line, length changed by a factor up to 1.05")
CAP = TwinCap(1.0, 0.0, LINE)
HALF = PureCost(0.5, LINE)
REQUEST = "f" * 64
NORTH = Unrelated(frozenset(), "another feeder of fleet 'north'", "north")


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    state = PrivateState.open(tmp_path / "state", insecure_seed=5)
    Ledger.open(state)
    return state


def charge(state: PrivateState, number: int, unrelated: Unrelated | None = NORTH) -> Charge:
    network = state.identity("network", [str(number).encode()])
    frame = state.identity("frame", [str(number).encode()])
    data = ChargedData(network, CAP, unrelated=unrelated, frame=frame)
    return Charge(data, f"north_{number}", REQUEST, HALF)


def customers(state: PrivateState) -> Charge:
    data = ChargedData(state.identity("loads", [b"all"]), LoadsCap(1.0, 1e-5))
    return Charge(data, "north", REQUEST, LoadsCost.reserve(Budget(1.0)))


def without_times(summary: LedgerSummary) -> LedgerSummary:
    def timeless(records: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(replace(record, at="", entry=0) for record in records)

    every = (replace(a, spends=timeless(a.spends), changes=timeless(a.changes)) for a in summary.accounts)
    return replace(summary, created="", accounts=tuple(every))


def test_a_batch_says_what_its_charges_say_one_by_one(state: PrivateState, tmp_path: Path) -> None:
    charges = [customers(state), *(charge(state, number) for number in range(12))]
    spends = Ledger.open(state).charge_all(charges)
    assert [spend.release_id for spend in spends] == ["north", *(f"north_{k}" for k in range(12))]
    single = Ledger.open(PrivateState.open(tmp_path / "single", insecure_seed=5))
    for each in charges:
        single.charge_all([each])
    assert without_times(Ledger.open(state).summary()) == without_times(single.summary())
    assert Ledger.open(state).charge_all(charges) == spends == Ledger.open(state).spends()


def test_a_batch_with_one_charge_too_many_leaves_nothing_not_even_accounts(state: PrivateState) -> None:
    ledger = Ledger.open(state)
    before = ledger.summary()
    good = [charge(state, number) for number in range(3)]
    dear = replace(charge(state, 3), cost=PureCost(1.5, LINE))
    other, cheaper = replace(good[1], request_sha256="0" * 64), replace(good[1], cost=PureCost(0.1, LINE))
    third = replace(charge(state, 1), release_id="again", cost=PureCost(0.6, LINE))
    for wrong, match in (
        *((dear, "nothing was spent"), (third, "0.5 at delta")),
        *((each, "already charged") for each in (other, cheaper)),
    ):
        with pytest.raises(PrivacyError, match=match):
            ledger.charge_all([*good, wrong])
        assert ledger.summary() == Ledger.open(state).summary() == before
    ledger.charge_all([*good, replace(charge(state, 1), release_id="again")])
    account = ledger.find(CAP.kind, good[1].data.dataset)
    assert account is not None
    assert account.balance.left == {"epsilon": 0.0}


def test_within_a_batch_new_data_are_asked_about_those_before(state: PrivateState) -> None:
    """No batch may open two accounts for two exports of one network without a word."""
    ledger = Ledger.open(state)
    with pytest.raises(PrivacyError, match="new to the ledger, which has network-twin-1 "):
        ledger.charge_all([charge(state, 0), charge(state, 1, unrelated=None)])
    first, copy = charge(state, 0), charge(state, 1)
    assert isinstance(first.data, ChargedData)
    assert isinstance(copy.data, ChargedData)
    near = replace(copy, data=replace(copy.data, frame=first.data.frame))
    with pytest.raises(PrivacyError, match="has the nodes and connections of account network-twin-1"):
        ledger.charge_all([first, near])
    assert ledger.summary().accounts == ()
    same = replace(near, data=replace(copy.data, unrelated=None, continues="network-twin-1"))
    with pytest.raises(PrivacyError, match="left"):  # they share the cap
        ledger.charge_all([first, replace(same, cost=PureCost(0.6, LINE))])
    assert ledger.summary().accounts == ()
    spends = ledger.charge_all([first, same, first])
    assert [spend.account for spend in spends] == ["network-twin-1"] * 3
    with pytest.raises(PrivacyError, match="nothing was spent"):
        ledger.charge_all([replace(first, release_id="third")])
    assert len(ledger.spends()) == 2


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_forked_while_another_thread_holds_the_books_can_charge(state: PrivateState) -> None:
    """Its copy of the lock stays closed for ever; it must not wait for it, nor trust what is half done."""
    ledger, first = Ledger.open(state), charge(state, 0)
    ledger.charge_all([first])
    second, third = (replace(first, release_id=name) for name in ("second", "third"))
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
            ledger.charge_all([first, second])
            try:
                ledger.charge_all([third])
            except PrivacyError:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert [spend.release_id for spend in ledger.spends()] == ["north_0", "second"]
    with pytest.raises(PrivacyError, match="left"):
        ledger.charge_all([third])


def kill_at(line: int) -> Any:
    """A trace function that ends the process, as by power, at the n-th line that the ledger executes."""
    left = [line]
    package = f"{os.sep}privacy{os.sep}ledger{os.sep}"

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if package not in frame.f_code.co_filename and not frame.f_code.co_filename.endswith("_files.py"):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


@pytest.mark.slow
def test_a_kill_at_any_line_leaves_all_of_a_batch_or_nothing(state: PrivateState) -> None:
    """Then the same batch again: everything is there once."""
    kept, lost, line = 0, 0, 0
    charges = [charge(state, number) for number in range(3)]
    saved = {path.name: path.read_bytes() for path in state.root.iterdir()}
    while True:
        line += 25
        for path in state.root.iterdir():
            path.unlink()
        for name, content in saved.items():
            (state.root / name).write_bytes(content)
            (state.root / name).chmod(0o600)
        child = os.fork()
        if child == 0:
            sys.settrace(kill_at(line))
            Ledger.open(state).charge_all(charges)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        found = len(Ledger.open(state).spends())
        assert found in (0, 3)
        kept, lost = kept + (found == 3), lost + (found == 0)
        spends = Ledger.open(state).charge_all(charges)
        assert len(spends) == len(Ledger.open(state).spends()) == 3
        assert len(Ledger.open(state).summary().accounts) == 3
        assert sorted(path.name for path in state.root.iterdir()) == sorted(saved)
        if not os.WIFSIGNALED(status):
            break
    assert min(kept, lost) > 3


MANY = InstanceCap(1e6, 0.0, LINE)
ONE = InstanceCost(1.0, 0.0, LINE)


def race(root: Path, epsilon: float, release_id: str, barrier: Any, results: Any) -> None:
    """Open the state, wait for the others, then try to spend."""
    state = PrivateState.open(root)
    ledger = Ledger.open(state)
    account = ledgers.account(ledger, state.identity("network", [b"1"]), InstanceCap(10.0, 0.0, LINE))
    barrier.wait()
    try:
        ledgers.spend(ledger, account, release_id, REQUEST, InstanceCost(epsilon, 0.0, LINE))
    except PrivacyError as error:
        results.put((release_id, str(error)))
    else:
        results.put((release_id, "won"))


def run_race(root: Path, jobs: list[tuple[float, str]]) -> dict[str, list[str]]:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(len(jobs)), context.Queue()
    workers = [context.Process(target=race, args=(root, *job, barrier, results)) for job in jobs]
    for worker in workers:
        worker.start()
    said: dict[str, list[str]] = {}
    for release_id, outcome in [results.get(timeout=120) for _ in jobs]:
        said.setdefault(release_id, []).append(outcome)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return said


def test_of_eight_processes_that_race_for_the_last_of_the_budget_exactly_three_win(tmp_path: Path) -> None:
    """10 − 1 are left and each wants 3."""
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    account = ledgers.account(ledger, state.identity("network", [b"1"]), InstanceCap(10.0, 0.0, LINE))
    ledgers.spend(ledger, account, "earlier", REQUEST, ONE)
    jobs = [(3.0, f"r{number}") for number in range(8)]
    said = run_race(state.root, jobs)
    winners = {release_id for release_id, (outcome,) in said.items() if outcome == "won"}
    assert len(winners) == 3
    assert {spend.release_id for spend in ledger.spends()} == winners | {"earlier"}
    assert ledgers.remaining(ledger, account).left["epsilon"] == 0
    for release_id, (outcome,) in said.items():
        assert release_id in winners or "nothing was spent" in outcome


def test_processes_that_resume_the_same_release_are_charged_once(tmp_path: Path) -> None:
    root = tmp_path / "state"
    said = run_race(root, [(6.0, "r1")] * 8)
    assert said == {"r1": ["won"] * 8}
    assert len(Ledger.open(PrivateState.open(root)).spends()) == 1


def test_readers_never_see_half_of_a_release(tmp_path: Path) -> None:
    """Two accounts are always charged together, also for whoever looks while others write."""
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    first = ledgers.account(ledger, state.identity("network", [b"1"]), MANY)
    other = Unrelated.to(["network-instance-1"], "test")
    second = ledgers.account(ledger, state.identity("network", [b"2"]), MANY, unrelated=other)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number in range(40):
                ledger.charge_all([Charge(each, f"r{number}", REQUEST, ONE) for each in (first, second)])
            code = 0
        finally:
            os._exit(code)
    looked = 0
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        counts = [len(summary.spends) for summary in ledger.summary().accounts]
        assert counts[0] == counts[1]
        looked += 1
    assert looked > 3
    assert len(ledger.spends()) == 80
