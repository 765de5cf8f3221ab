"""Charges one by one, as tests make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dp_powerflow import Ledger
from dp_powerflow.privacy.ledger.accounts import Balance, Cap, Cost
from dp_powerflow.privacy.ledger.book import Charge, ChargedData
from dp_powerflow.privacy.ledger.records import Preview, Spend


@dataclass(frozen=True)
class Opened(ChargedData):
    """Data whose account is open, with the name of the account."""

    name: str = ""


def account(ledger: Ledger, dataset: str, cap: Cap, **relation: Any) -> Opened:
    return Opened(dataset, cap, name=ledger.account(ChargedData(dataset, cap, **relation)).name)


def spend(ledger: Ledger, data: ChargedData, release_id: str, request: str, cost: Cost) -> Spend:
    return ledger.charge_all([Charge(data, release_id, request, cost)])[0]


def preview(
    ledger: Ledger, dataset: str, cap: Cap, cost: Cost, *, release_id: str | None = None, **relation: Any
) -> Preview:
    return ledger.preview(ChargedData(dataset, cap, **relation), cost, release_id)


def remaining(ledger: Ledger, data: ChargedData, *, as_of: Spend | None = None) -> Balance:
    """Where the account of data stands, now or just after a spend."""
    if as_of is not None:
        return ledger.balance_after(as_of)
    found = ledger.find(data.cap.kind, data.dataset)
    assert found is not None
    return found.balance
