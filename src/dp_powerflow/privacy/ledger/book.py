"""The ledger: what every protected data set may spend in its lifetime, and what it has spent.

An account belongs to data (a keyed hash of the meter data, or of the network) and to a kind of arithmetic
(see `accounts`). A spend is checked against the cap and recorded in one transaction *before* the data
are used. A crash afterwards loses budget, never privacy, and not even budget if the release is run again: the
same release with the same request on the same data returns the spend it made before, and since its noise
comes from the key it gives the same bits.

    state = PrivateState.open("state")
    ledger = Ledger.open(state)
    account = ledger.account(state.identity("loads", chunks), LoadsCap(epsilon=4, delta=1e-5))
    ledger.spend(account, "2024-q1", request_sha256, LoadsCost.reserve(PrivacyBudget(1.0)))

A corrected or extended file has another hash. It is not taken for new data without a word, or every
re-export would start with a full budget: `account` asks whether it `continues` an account or is `unrelated`
to every one of them, by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import AccountKind, Cap, Cost, GdpCap, Statement, fits, to_plain
from dp_powerflow.privacy.ledger.records import (
    Account,
    AccountSummary,
    Balance,
    Book,
    LedgerSummary,
    Preview,
    Spend,
    replay,
    to_spend,
)
from dp_powerflow.privacy.ledger.store import Store, Transaction
from dp_powerflow.privacy.ledger.unrelated import Unrelated, spelled
from dp_powerflow.privacy.state import PrivateState, check_release_id

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAMES = {
    AccountKind.LOADS: "loads",
    AccountKind.NETWORK_INSTANCE: "network-instance",
    AccountKind.NETWORK_GDP: "network-gdp",
}


class Ledger:
    """The ledger of one private state directory. Safe to use from any number of processes at once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, state: PrivateState, *, create: bool = True) -> Ledger:
        """Open the ledger and check all of it; create it if asked to and it was never there."""
        store = Store(state)
        if create:
            store.create()
        store.read()
        return cls(store)

    def account(
        self, dataset: str, cap: Cap, *, continues: str | None = None, unrelated: Unrelated | None = None
    ) -> Account:
        """The account of a data set, opened if there is none.

        Parameters
        ----------
        dataset
            `PrivateState.identity` of the meter data or the network.
        cap
            Its kind, its unit and the most that may ever be spent. An existing account must have the same.
        continues
            Name of the account whose customers or lines these are, in a corrected or extended version:
            both versions are charged to it.
        unrelated
            Why these data share nothing with those of the other accounts of the kind, all of which it must
            name. Without one of the two, data never seen before are refused if there is another account of
            the kind.
        """
        _check_sha256(dataset, "identity of a data set")
        if continues is not None and unrelated is not None:
            raise PrivacyError("data cannot both continue an account and be unrelated to it; say one of them")
        known = _find(replay(self._store.read()), dataset, cap, continues)
        if known is not None:
            return Account(known.name, dataset, known.cap)
        with self._store.transaction() as transaction:
            books = replay(transaction.entries)
            book = _find(books, dataset, cap, continues)  # another process may have been first
            if book is not None:
                return Account(book.name, dataset, book.cap)
            if continues is not None:
                return _attach(transaction, books, dataset, cap, continues)
            return _open(transaction, books, dataset, cap, unrelated)

    def spend(self, account: Account, release_id: str, request_sha256: str, cost: Cost) -> Spend:
        """Check the cap and record a spend, before the data are used; see `spend_all`."""
        return self.spend_all(release_id, request_sha256, [(account, cost)])[0]

    def spend_all(
        self, release_id: str, request_sha256: str, charges: Sequence[tuple[Account, Cost]]
    ) -> tuple[Spend, ...]:
        """Record what a release costs several accounts, all of it or nothing, in one transaction.

        Parameters
        ----------
        release_id
            Names the release, or the twin or load model if several releases share it: those are paid once.
        request_sha256
            Hash of everything public that decides the outcome (not of the caps, which may be raised between
            a crash and its resumption). With release id and data it says that a run is the same run, which
            is then not charged again.
        """
        check_release_id(release_id)
        _check_sha256(request_sha256, "hash of a request")
        for account, cost in charges:
            _check_cost(account.cap, cost)
        if len({account.name for account, _ in charges}) < len(charges):
            raise PrivacyError("a release charges the same account twice; add up its costs and charge once")
        with self._store.transaction() as transaction:
            books = replay(transaction.entries)
            return tuple(
                _spend(transaction, _book_of(books, account), account, release_id, request_sha256, cost)
                for account, cost in charges
            )

    def preview(
        self,
        dataset: str,
        cap: Cap,
        cost: Cost,
        *,
        continues: str | None = None,
        release_id: str | None = None,
    ) -> Preview:
        """What a spend would do; opens no account and records nothing.

        Data never seen before are shown with the account they would get; whether `account` would refuse them
        for want of `continues` or `unrelated` is asked there. A release that was charged costs nothing more.
        """
        _check_cost(cap, cost)
        books = replay(self._store.read())
        book = _find(books, dataset, cap, continues)
        if book is None and continues is not None:
            book = _named(books, continues, cap.kind)
            _check_cap(book, cap)
        name = None if book is None else book.name
        book = Book("", cap, [dataset]) if book is None else book
        charged = any(spend.release_id == release_id for spend in book.spends)
        extra = () if charged else (cost,)
        return Preview(
            account=name,
            before=book.balance(),
            after=book.balance(extra),
            already_charged=charged,
            affordable=charged or fits(book.spent(extra), book.cap.limits()),
        )

    def change_cap(self, name: str, cap: Cap, reason: str) -> None:
        """Replace the cap of an account; the reason is kept for ever. What was spent stays spent."""
        if not reason.strip():
            raise PrivacyError("changing a cap needs a reason; say who decided it and why")
        with self._store.transaction() as transaction:
            book = _named(replay(transaction.entries), name, cap.kind)
            if cap.unit != book.cap.unit:
                raise PrivacyError(
                    f"account {name} is per '{book.cap.unit}', and what was spent cannot be restated in "
                    "another unit; change the figures of the cap only"
                )
            transaction.append("cap", name, {"cap": to_plain(cap), "reason": reason})

    def remaining(self, account: Account, *, as_of: Spend | None = None) -> Balance:
        """Where the account stands, now or just after an earlier spend.

        A manifest states the balance as of its own spend: a release that is resumed after others were made
        then says what it would have said at once.
        """
        entries = self._store.read()
        if as_of is not None:
            entries = entries[: as_of.entry + 1]
        return _book_of(replay(entries), account).balance()

    def spends(self, account: Account | None = None) -> tuple[Spend, ...]:
        """All spends in the order they were made, of one account or of all."""
        books = replay(self._store.read())
        chosen = books.values() if account is None else [_book_of(books, account)]
        found = [spend for book in chosen for spend in book.spends]
        return tuple(sorted(found, key=lambda spend: spend.entry))

    def summary(self) -> LedgerSummary:
        """Everything, for showing."""
        entries = self._store.read()
        accounts = tuple(
            AccountSummary(
                name=book.name,
                kind=book.cap.kind,
                datasets=tuple(book.datasets),
                cap=book.cap,
                balance=book.balance(),
                spends=tuple(book.spends),
                changes=tuple(book.changes),
                fleet=book.fleet,
            )
            for book in replay(entries).values()
        )
        return LedgerSummary(bool(entries[0].fields["insecure_seed"]), entries[0].at, len(entries), accounts)


def _find(books: dict[str, Book], dataset: str, cap: Cap, continues: str | None) -> Book | None:
    """The account these data belong to already, if its cap is the one expected."""
    for book in books.values():
        if book.cap.kind is cap.kind and dataset in book.datasets:
            if continues not in (None, book.name):
                raise PrivacyError(
                    f"these data belong to account {book.name} and cannot continue another; "
                    f"leave out continues or set it to {book.name}"
                )
            _check_cap(book, cap)
            return book
    return None


def _attach(
    transaction: Transaction, books: dict[str, Book], dataset: str, cap: Cap, continues: str
) -> Account:
    book = _named(books, continues, cap.kind)
    _check_cap(book, cap)
    transaction.append("data", book.name, {"dataset": dataset})
    return Account(book.name, dataset, book.cap)


def _open(
    transaction: Transaction, books: dict[str, Book], dataset: str, cap: Cap, unrelated: Unrelated | None
) -> Account:
    others = {book.name: book.fleet for book in books.values() if book.cap.kind is cap.kind}
    _check_unrelated(cap.kind, others, unrelated)
    name = f"{_NAMES[cap.kind]}-{len(others) + 1}"
    fields = {"kind": str(cap.kind), "dataset": dataset, "cap": to_plain(cap), "reason": ""}
    if unrelated is not None:
        fields["reason"] = unrelated.reason
        fields |= {} if unrelated.fleet is None else {"fleet": unrelated.fleet}
    transaction.append("open", name, fields)
    return Account(name, dataset, cap)


def _check_unrelated(
    kind: AccountKind, others: Mapping[str, str | None], unrelated: Unrelated | None
) -> None:
    """Every account must have been thought of, and none that is yet to come can have been."""
    what, whose = ("loads", "customers") if kind is AccountKind.LOADS else ("network", "lines")
    named = frozenset() if unrelated is None else unrelated.accounts
    unknown = named - others.keys()
    silent = set(others) if unrelated is None else unrelated.silent_on(others)
    if unknown:
        raise PrivacyError(
            f"the reason why these data are unrelated names {spelled(unknown)}, and the ledger has "
            f"{spelled(others) or 'no account'} of the kind '{kind}'; name accounts that are there"
        )
    if silent:
        raise PrivacyError(
            f"these data are new to the ledger, which has {spelled(silent)} of the same kind; set "
            f"continues_{what} to the account whose {whose} these are, or, if they are about none of them, "
            f"unrelated_{what} to 'not {spelled(named | silent)}: <why>'"
        )


def _spend(
    transaction: Transaction, book: Book, account: Account, release_id: str, request_sha256: str, cost: Cost
) -> Spend:
    _check_cap(book, account.cap)
    for spend in book.spends:
        if spend.release_id == release_id:
            same = (spend.request_sha256, spend.dataset, spend.cost)
            if same != (request_sha256, account.dataset, cost):
                raise PrivacyError(
                    f"release '{release_id}' was already charged to account {book.name} for another request "
                    "or other data; choose a new release id, or restore the configuration to resume that one"
                )
            return spend
    if not fits(book.spent([cost]), book.cap.limits()):
        needed, left = book.cap.statement(cost.amounts()), book.balance().available
        raise PrivacyError(
            f"release '{release_id}' needs {_words(needed)} of account {book.name}, which has "
            f"{_words(left)} left; ask for less, or raise the cap with a recorded reason; nothing was spent"
        )
    fields = {"dataset": account.dataset, "cost": to_plain(cost)}
    entry = transaction.append(
        "spend", book.name, fields, release_id=release_id, request_sha256=request_sha256
    )
    return to_spend(entry, cost)


def _book_of(books: dict[str, Book], account: Account) -> Book:
    book = books.get(account.name)
    if book is None or account.dataset not in book.datasets or book.cap.kind is not account.kind:
        raise PrivacyError(f"account {account.name} is not of this ledger; get it from Ledger.account")
    return book


def _named(books: dict[str, Book], name: str, kind: AccountKind) -> Book:
    book = books.get(name)
    if book is None or book.cap.kind is not kind:
        known = [book.name for book in books.values() if book.cap.kind is kind]
        raise PrivacyError(
            f"the ledger has no account '{name}' of the kind '{kind}'; it has {', '.join(known) or 'none'}"
        )
    return book


def _check_cap(book: Book, cap: Cap) -> None:
    if book.cap != cap:
        raise PrivacyError(
            f"account {book.name} has a cap of {_cap_words(book.cap)}, not of {_cap_words(cap)}; use the "
            "recorded cap, or change it with a reason"
        )


def _check_cost(cap: Cap, cost: Cost) -> None:
    if cost.kind is not cap.kind or cost.unit != cap.unit:
        raise PrivacyError(
            f"a cost in '{cost.kind}' per '{cost.unit}' cannot be charged to an account in '{cap.kind}' per "
            f"'{cap.unit}'; use the same unit of privacy in both"
        )


def _check_sha256(value: str, what: str) -> None:
    if not _SHA256.fullmatch(value):
        raise PrivacyError(f"the {what} must have 64 lower-case hexadecimal digits")


def _cap_words(cap: Cap) -> str:
    size = f"mu {cap.mu!r}" if isinstance(cap, GdpCap) else f"epsilon {cap.epsilon!r}"
    return f"{size} at delta {cap.delta!r} per {cap.unit}"


def _words(statement: Statement) -> str:
    return f"epsilon {statement.epsilon:.4g} at delta {statement.delta:.4g}"
