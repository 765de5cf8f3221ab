"""A ledger written by version 0.1.0 opens, says what it said then, and goes on.

`tests/data/old_ledger` has its state directory (insecure seed 14) and what the old program said about it.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    GdpCap,
    GdpCost,
    LoadsCap,
    TwinCap,
    to_plain,
)
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import AccountSummary, Unrelated
from dp_powerflow.privacy.state import PrivateState

OLD = Path(__file__).parents[1] / "data" / "old_ledger"
REQUEST = "a" * 64
LENGTH = Neighbours("one line, length changed by a factor up to 1.05")


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    """A copy with the modes that a state directory has; a repository does not keep them."""
    root = Path(shutil.copytree(OLD / "state", tmp_path / "state"))
    root.chmod(0o700)
    for path in root.iterdir():
        path.chmod(0o600)
    return PrivateState.open(root, create=False, insecure_seed=14)


def shown(account: AccountSummary) -> dict[str, Any]:
    balance = account.balance
    return {
        "name": account.name,
        "kind": str(account.kind),
        "datasets": list(account.datasets),
        "cap": to_plain(account.cap),
        "fleet": account.fleet,
        "limits": balance.limits,
        "spent": balance.spent,
        "left": balance.left,
        "epsilon": balance.promise.epsilon,
        "spends": [
            [spend.release_id, spend.at, spend.entry, to_plain(spend.cost)] for spend in account.spends
        ],
        "changes": [[change.what, change.reason, change.at, change.entry] for change in account.changes],
    }


def close(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of what is computed again: logarithms are ours since 0.2.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-13)
    return bool(one == other)


def test_an_old_ledger_says_what_it_said(state: PrivateState) -> None:
    summary = Ledger.open(state, create=False).summary()
    said = json.loads((OLD / "summary.json").read_text())
    assert summary.insecure_seed is said["insecure_seed"] is True
    assert (summary.created, summary.entries) == (said["created"], said["entries"])
    assert close([shown(account) for account in summary.accounts], said["accounts"])
    assert summary.accounts[2].changes[0].reason == "not loads-1: another town"
    assert summary.accounts[2].changes[0].unrelated == ()


def test_an_old_ledger_goes_on(state: PrivateState) -> None:
    """Old data are known, a resumed release costs nothing, new data are asked about, new spends count."""
    ledger = Ledger.open(state)
    cap = GdpCap.from_epsilon(9.0, 1e-5, LENGTH)
    twin = ledger.account(state.identity("network", [b"feeder"]), cap)
    before = ledger.summary().entries
    ledger.spend(twin, "twin-1", REQUEST, GdpCost(cap.mu / 3, cap.unit))
    assert ledger.summary().entries == before + 1, "that its anchor has a keyed hash from now on"
    ledger.spend(twin, "twin-1", REQUEST, GdpCost(cap.mu / 3, cap.unit))
    assert ledger.summary().entries == before + 1
    ledger.spend(twin, "twin-2", REQUEST, GdpCost(cap.mu / 3, cap.unit))
    assert ledger.remaining(twin).n_spends == 2
    new = state.identity("loads", [b"new"])
    with pytest.raises(PrivacyError, match=r'accounts = \["loads-1", "loads-2"\]'):
        ledger.account(new, LoadsCap(4.0, 1e-5))
    named = Unrelated.to(["loads-1", "loads-2"], "an island")
    assert ledger.account(new, LoadsCap(4.0, 1e-5), unrelated=named).name == "loads-3"
    corrected = state.identity("loads", [b"meters, corrected"])
    assert ledger.account(corrected, LoadsCap(5.0, 1e-5)).name == "loads-1"
    assert Ledger.open(state).summary() == ledger.summary()


def test_a_new_twin_names_the_twins_of_earlier_versions(state: PrivateState) -> None:
    """They are about other neighbours, so nobody can add them up; a fresh budget needs a word."""
    ledger, cap = Ledger.open(state), TwinCap(1.0, 0.0, LENGTH)
    dataset = state.identity("network", [b"feeder"])
    old = [item.name for item in ledger.summary().accounts if item.kind is AccountKind.NETWORK_GDP]
    charged = [item.name for item in ledger.summary().accounts if item.name in old and item.spends]
    for unrelated in (None, Unrelated(frozenset(), "another feeder", "north")):
        with pytest.raises(PrivacyError, match="for twins that an earlier version drew"):
            ledger.account(dataset, cap, unrelated=unrelated)
    named = Unrelated.to(charged, "the twins of 2025, read by nobody who gets the new one")
    assert ledger.account(dataset, cap, unrelated=named).name == "network-twin-1"
