"""Many processes at one ledger, and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow import Ledger, PrivateState
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import InstanceCap, InstanceCost
from dp_powerflow.privacy.ledger.book import Charge
from dp_powerflow.privacy.ledger.records import Unrelated
from support import ledgers

LINE = Neighbours("one line, admittance scaled by up to 1 %")
REQUEST = "d" * 64
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


def run_race(context: Any, root: Path, jobs: list[tuple[float, str]]) -> dict[str, list[str]]:
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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", *["fork"] * 5])
def test_of_eight_processes_that_race_for_the_last_of_the_budget_exactly_three_win(
    tmp_path: Path, method: str
) -> None:
    """10 − 1 are left and each wants 3."""
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    account = ledgers.account(ledger, state.identity("network", [b"1"]), InstanceCap(10.0, 0.0, LINE))
    ledgers.spend(ledger, account, "earlier", REQUEST, ONE)
    jobs = [(3.0, f"r{number}") for number in range(8)]
    said = run_race(multiprocessing.get_context(method), state.root, jobs)
    winners = {release_id for release_id, (outcome,) in said.items() if outcome == "won"}
    assert len(winners) == 3
    assert {spend.release_id for spend in ledger.spends()} == winners | {"earlier"}
    assert ledgers.remaining(ledger, account).left["epsilon"] == 0
    for release_id, (outcome,) in said.items():
        assert release_id in winners or "nothing was spent" in outcome


def test_processes_that_resume_the_same_release_are_charged_once(tmp_path: Path) -> None:
    root = tmp_path / "state"
    said = run_race(multiprocessing.get_context("fork"), root, [(6.0, "r1")] * 8)
    assert said == {"r1": ["won"] * 8}
    assert len(Ledger.open(PrivateState.open(root)).spends()) == 1


def test_readers_never_see_half_of_a_release(tmp_path: Path) -> None:
    """Two accounts are always charged together, also for whoever looks while others write."""
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    first = ledgers.account(ledger, state.identity("network", [b"1"]), MANY)
    second = ledgers.account(
        ledger,
        state.identity("network", [b"2"]),
        MANY,
        unrelated=Unrelated.to(["network-instance-1"], "test"),
    )
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
