"""What is entered for a charge: the account of the data, found or opened, and the spend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import AccountKind, Cap, Cost, to_plain
from dp_powerflow.privacy.ledger.books import Books, Page
from dp_powerflow.privacy.ledger.checks import check_cap, check_cost, check_new, price, same_cost, words
from dp_powerflow.privacy.ledger.records import Account, Spend, Unrelated, rows_of
from dp_powerflow.privacy.ledger.store import Transaction
from dp_powerflow.privacy.state import check_release_id

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Data:
    """Data to be charged, and what they have to do with those of other accounts; see `Ledger.account`.

    Attributes
    ----------
    dataset : `PrivateState.identity` of the meter data or the network.
    cap : kind and unit of the account, and the most that may ever be spent.
    continues : account whose customers or lines these are, in a corrected or extended version.
    unrelated : why they share nothing with those of the other accounts of the kind.
    frame : of a network, keyed hash of what it has in common with its near copies.
    """

    dataset: str
    cap: Cap
    continues: str | None = None
    unrelated: Unrelated | None = None
    frame: str | None = None

    def __post_init__(self) -> None:
        _check_sha256(self.dataset, "identity of a data set")
        if self.continues is not None and self.unrelated is not None:
            raise PrivacyError("data cannot both continue an account and be unrelated to it; say one of them")

    @property
    def _fields(self) -> dict[str, str]:
        return {"dataset": self.dataset} | ({} if self.frame is None else {"frame": self.frame})

    def found(self, books: Books) -> Page | None:
        """The account these data belong to already, if its cap is the one expected."""
        page = books.find(self.cap.kind, self.dataset)
        if page is None:
            return None
        if self.continues not in (None, page.name):
            raise PrivacyError(
                f"these data belong to account {page.name} and cannot continue another; "
                f"leave out continues or set it to {page.name}"
            )
        check_cap(page, self.cap)
        return page

    def known(self, books: Books) -> Account | None:
        """The account, if there is nothing to record about these data."""
        page = self.found(books)
        if page is None or (self.frame is not None and page.frames.get(self.dataset) != self.frame):
            return None
        return Account(page.name, self.dataset, page.cap)

    def enter(self, transaction: Transaction) -> Account:
        """The account, with whatever is new about these data on record."""
        books = transaction.books
        page = self.found(books)  # another process may have been first
        if page is None and self.continues is None:
            return self._open(transaction)
        account = page or named(books, self.continues or "", self.cap.kind)
        if page is None:
            check_cap(account, self.cap)
            transaction.append("data", account.name, self._fields)
        elif self.frame is not None and page.frames.get(self.dataset) != self.frame:
            transaction.append("frame", account.name, self._fields)  # opened by an earlier version
        return Account(account.name, self.dataset, account.cap)

    def _open(self, transaction: Transaction) -> Account:
        cap, unrelated = self.cap, self.unrelated
        check_new(transaction.books, self.frame, cap.kind, unrelated)
        name = f"{cap.kind.stem}-{1 + transaction.books.count(cap.kind)}"
        fields: dict[str, Any] = {
            "kind": str(cap.kind),
            **self._fields,
            "cap": to_plain(cap),
            "reason": "",
        }
        if unrelated is not None:
            fields |= {"reason": unrelated.reason, "unrelated": rows_of(unrelated.accounts)}
            fields |= {} if unrelated.fleet is None else {"fleet": unrelated.fleet}
            fields |= {"same_frame": True} if unrelated.same_frame else {}
        transaction.append("open", name, fields)
        return Account(name, self.dataset, cap)


@dataclass(frozen=True)
class Charge:
    """One charge: for what, of which data, and how much.

    Attributes
    ----------
    data : whose account is charged, opened if there is none; or the account itself.
    release_id : names the release, or the twin or load model if several releases share it: those are paid
        once.
    request_sha256 : hash of everything public that decides the outcome (not of the caps, which may be raised
        between a crash and its resumption). With release id and data it says that a run is the same run,
        which is then not charged again.
    """

    data: Data | Account
    release_id: str
    request_sha256: str
    cost: Cost

    def __post_init__(self) -> None:
        check_release_id(self.release_id)
        _check_sha256(self.request_sha256, "hash of a request")
        check_cost(self.data.cap, self.cost)

    def enter(self, transaction: Transaction) -> Spend:
        """The spend: made now, or before by the same run."""
        account = self.data.enter(transaction) if isinstance(self.data, Data) else self.data
        page = page_of(transaction.books, account)
        check_cap(page, account.cap)
        before = transaction.books.paid(page.name, self.release_id)
        if before is not None:
            self._check_same(before, account)
            return before
        if not page.with_cost(self.cost).fits:
            needed, left = price(page.cap, self.cost), page.balance.available
            raise PrivacyError(
                f"release '{self.release_id}' needs {words(needed)} of account {page.name}, which has "
                f"{words(left)} left; ask for less, or raise the cap with a recorded reason; nothing was "
                "spent"
            )
        entry = transaction.append(
            "spend",
            page.name,
            {"dataset": account.dataset, "cost": to_plain(self.cost)},
            release_id=self.release_id,
            request_sha256=self.request_sha256,
        )
        return Spend.of(entry, page.kind, account.dataset, self.cost)

    def _check_same(self, before: Spend, account: Account) -> None:
        same = (before.request_sha256, before.dataset) == (self.request_sha256, account.dataset)
        if not (same and same_cost(before.cost, self.cost)):
            raise PrivacyError(
                f"release '{self.release_id}' was already charged to account {before.account} for another "
                "request or other data; choose a new release id, or restore the configuration to resume that "
                "one"
            )


def page_of(books: Books, account: Account) -> Page:
    """The page of an account that `Ledger.account` gave."""
    page = books.page(account.name)
    if page is None or account.dataset not in page.datasets or page.kind is not account.kind:
        raise PrivacyError(f"account {account.name} is not of this ledger; get it from Ledger.account")
    return page


def named(books: Books, name: str, kind: AccountKind) -> Page:
    """The account of a kind that a person has named."""
    page = books.page(name)
    if page is None or page.kind is not kind:
        raise PrivacyError(
            f"the ledger has no account '{name}' of the kind '{kind}'; it has "
            f"{', '.join(sorted(books.names(kind), key=lambda known: (len(known), known))) or 'none'}"
        )
    return page


def _check_sha256(value: str, what: str) -> None:
    if not _SHA256.fullmatch(value):
        raise PrivacyError(f"the {what} must have 64 lower-case hexadecimal digits")
