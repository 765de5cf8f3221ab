"""The records of the ledger, and the accounts rebuilt from its entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    Amounts,
    Cap,
    Cost,
    Statement,
    cap_from_plain,
    cost_from_plain,
    left_of,
    total,
)
from dp_powerflow.privacy.ledger.store import Entry


@dataclass(frozen=True)
class Account:
    """An account as seen by one data set; get it from `Ledger.account`."""

    name: str
    dataset: str
    cap: Cap

    @property
    def kind(self) -> AccountKind:
        return self.cap.kind


@dataclass(frozen=True)
class Spend:
    """One charge, as recorded. `entry` is its number in the ledger, `at` its time (UTC)."""

    account: str
    release_id: str
    request_sha256: str
    dataset: str
    cost: Cost
    at: str
    entry: int


@dataclass(frozen=True)
class Change:
    """Something else that happened to an account: ``"opened"``, ``"cap changed"`` or ``"data added"``."""

    what: str
    reason: str
    at: str
    entry: int


@dataclass(frozen=True)
class Balance:
    """Where an account stands.

    Parameters
    ----------
    limits, spent, left
        By quantity that adds up: rho; epsilon and delta; or mu_squared.
    promise
        What all spends together promise. Built from policy constants and query costs only.
    available
        What a single further spend could be.
    """

    cap: Cap
    n_spends: int
    limits: dict[str, float]
    spent: dict[str, float]
    left: dict[str, float]
    promise: Statement
    available: Statement


@dataclass(frozen=True)
class Preview:
    """What a spend would do, with nothing recorded. `account` is None if it would be opened."""

    account: str | None
    before: Balance
    after: Balance
    already_charged: bool
    affordable: bool


@dataclass(frozen=True)
class AccountSummary:
    """Everything about one account. `fleet` is the fleet that opened it for one of its feeders."""

    name: str
    kind: AccountKind
    datasets: tuple[str, ...]
    cap: Cap
    balance: Balance
    spends: tuple[Spend, ...]
    changes: tuple[Change, ...]
    fleet: str | None = None


@dataclass(frozen=True)
class LedgerSummary:
    """Everything in the ledger; PRIVATE like the ledger."""

    insecure_seed: bool
    created: str
    entries: int
    accounts: tuple[AccountSummary, ...]


@dataclass
class Book:
    """One account while the entries are replayed."""

    name: str
    cap: Cap
    datasets: list[str]
    spends: list[Spend] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    fleet: str | None = None

    def spent(self, also: Iterable[Cost] = ()) -> Amounts:
        costs = [spend.cost for spend in self.spends] + list(also)
        return total([cost.amounts() for cost in costs], self.cap.limits())

    def balance(self, also: Iterable[Cost] = ()) -> Balance:
        also = tuple(also)
        limits, spent = self.cap.limits(), self.spent(also)
        left = left_of(spent, limits)
        return Balance(
            cap=self.cap,
            n_spends=len(self.spends) + len(also),
            limits=_floats(limits),
            spent=_floats(spent),
            left=_floats(left),
            promise=self.cap.statement(spent),
            available=self.cap.statement(left),
        )


def replay(entries: tuple[Entry, ...]) -> dict[str, Book]:
    """Accounts by name, from the checked entries."""
    books: dict[str, Book] = {}
    for entry in entries[1:]:
        fields = entry.fields
        if entry.event == "open":
            cap = cap_from_plain(AccountKind(fields["kind"]), fields["cap"])
            books[entry.account] = Book(entry.account, cap, [fields["dataset"]], fleet=fields.get("fleet"))
            books[entry.account].changes.append(Change("opened", fields["reason"], entry.at, entry.seq))
        elif entry.event == "data":
            books[entry.account].datasets.append(fields["dataset"])
            books[entry.account].changes.append(Change("data added", "", entry.at, entry.seq))
        elif entry.event == "cap":
            book = books[entry.account]
            book.cap = cap_from_plain(book.cap.kind, fields["cap"])
            book.changes.append(Change("cap changed", fields["reason"], entry.at, entry.seq))
        else:
            book = books[entry.account]
            book.spends.append(to_spend(entry, cost_from_plain(book.cap.kind, fields["cost"])))
    return books


def to_spend(entry: Entry, cost: Cost) -> Spend:
    dataset = entry.fields["dataset"]
    return Spend(entry.account, entry.release_id, entry.request_sha256, dataset, cost, entry.at, entry.seq)


def _floats(amounts: Amounts) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items()}
