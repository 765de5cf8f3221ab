"""What is asked before anything is recorded: of new data, of caps and of costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    Amounts,
    Cap,
    Cost,
    GdpCap,
    GdpCost,
    PureCost,
    Statement,
    TwinCap,
    accepts,
)
from dp_powerflow.privacy.ledger.books import Books, Page
from dp_powerflow.privacy.ledger.records import AccountSummary, Unrelated, spelled, unrelated_line


def check_new(books: Books, frame: str | None, kind: AccountKind, unrelated: Unrelated | None) -> None:
    """Refuse data that may be a version of what an account is of, unless a person says that they are not.

    Parameters
    ----------
    frame : of a network, what it has in common with its near copies.
    """
    earlier = frozenset(_earlier_twins(books, kind))
    named = frozenset() if unrelated is None else unrelated.accounts
    _check_earlier(earlier - named)
    _check_known(books, kind, named - earlier)
    alike = [] if frame is None else books.alike(kind, frame)
    unexplained = [
        page.name
        for page in alike
        if unrelated is None or not unrelated.explains(page.name, page.fleet, page.same_frame)
    ]
    others = books.names(kind, but_of=None if unrelated is None else unrelated.fleet)
    _check_named(kind, {name for name in others if name not in named}, named, unexplained)


def earlier_twins(accounts: Iterable[AccountSummary], kind: AccountKind) -> list[str]:
    """Charged accounts of twins of versions up to 0.2, which a new account of twins does not count."""
    old = kind is AccountKind.NETWORK_TWIN
    return [item.name for item in accounts if old and item.kind is AccountKind.NETWORK_GDP and item.spends]


def _earlier_twins(books: Books, kind: AccountKind) -> Iterator[str]:
    """The same, by the index."""
    for name in books.names(AccountKind.NETWORK_GDP) if kind is AccountKind.NETWORK_TWIN else ():
        page = books.page(name)
        if page is not None and page.n_spends:
            yield name


def _check_earlier(silent: Collection[str]) -> None:
    """Twins of earlier versions are about other neighbours: they cannot be added up, nor be forgotten."""
    if silent:
        raise PrivacyError(
            f"the ledger has {spelled(silent)} for twins that an earlier version drew, which the new account "
            "would not count, although a reader of both twins of one network learns from both; say why that "
            f"is right for each, in a release with {unrelated_line('unrelated_network', silent)}, in a fleet "
            "with fleet.unrelated; nothing was spent"
        )


def _check_known(books: Books, kind: AccountKind, named: Collection[str]) -> None:
    """No account that is yet to come can have been thought of."""
    pages = ((name, books.page(name)) for name in named)
    unknown = [name for name, page in pages if page is None or page.kind is not kind]
    if unknown:
        raise PrivacyError(
            f"the reason why these data are unrelated names {spelled(unknown)}, but the ledger has "
            f"{spelled({*books.names(kind), *_earlier_twins(books, kind)}) or 'no account'} of the kind "
            f"'{kind}'; name existing accounts"
        )


def _check_named(kind: AccountKind, silent: Set[str], named: Set[str], alike: Sequence[str]) -> None:
    """Every account must have been thought of."""
    what, whose = ("loads", "customers") if kind is AccountKind.LOADS else ("network", "lines")
    if silent:
        raise PrivacyError(
            f"these data are new to the ledger, which has {spelled(silent)} of the same kind"
            f"{f' ({spelled(alike)} with the same nodes and connections)' if alike else ''}; set "
            f"continues_{what} to the account whose {whose} these are, or, if they are about none of them, "
            f"write {unrelated_line(f'unrelated_{what}', named | silent)}"
        )
    if alike:
        raise PrivacyError(
            f"this network is new to the ledger and has the nodes and connections of account {alike[0]}; "
            f"set continues_network = '{alike[0]}' under overrides if it is a version of that network, or "
            "else name both feeders in fleet.same_frame, with a reason; nothing was spent"
        )


def price(cap: Cap, cost: Any) -> Statement:
    """What a cost alone promises; the cap must accept it."""
    return cap.promised([cost])


def same_cost(one: Cost, other: Cost) -> bool:
    scopes = [cost.scope if isinstance(cost, PureCost | GdpCost) else None for cost in (one, other)]
    return one.unit == other.unit and scopes[0] == scopes[1] and _same(one.amounts(), other.amounts())


def _same(one: Amounts, other: Amounts) -> bool:
    """Equal but for the last digits of a computed figure: version 0.1.0 computed it with other libraries."""
    return one.keys() == other.keys() and all(
        math.isclose(value, other[name], rel_tol=1e-12) for name, value in one.items()
    )


def check_cap(account: Page, cap: Cap) -> None:
    own = account.cap
    if (own.kind, own.unit, own.delta) != (cap.kind, cap.unit, cap.delta) or not _same(
        own.limits(), cap.limits()
    ):
        raise PrivacyError(
            f"account {account.name} has a cap of {_cap_words(account.cap)}, not of {_cap_words(cap)}; use "
            "the recorded cap, or change it with a reason"
        )


def check_cost(cap: Cap, cost: Cost) -> None:
    if not accepts(cap, cost):
        raise PrivacyError(
            f"a {type(cost).__name__} per '{cost.unit}' cannot be charged to an account in '{cap.kind}' per "
            f"'{cap.unit}'; use the same unit of privacy in both"
        )
    if isinstance(cap, TwinCap):
        price(cap, cost)  # Gaussian noise has none at delta 0


def _cap_words(cap: Cap) -> str:
    size = f"mu {cap.mu!r}" if isinstance(cap, GdpCap) else f"epsilon {cap.epsilon!r}"
    return f"{size} at delta {cap.delta!r} per {cap.unit}"


def words(statement: Statement) -> str:
    return f"epsilon {statement.epsilon:.4g} at delta {statement.delta:.4g}"
