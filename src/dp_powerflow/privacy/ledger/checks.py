"""What is asked before anything is recorded: of new data, of caps and of costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from dp_powerflow.privacy.ledger.records import Accounts, AccountSummary, Unrelated, spelled, unrelated_line


def check_new(accounts: Accounts, frame: str | None, kind: AccountKind, unrelated: Unrelated | None) -> None:
    """Refuse data that may be a version of what an account is of, unless a person says that they are not.

    Parameters
    ----------
    frame : of a network, what it has in common with its near copies.
    """
    others = {item.name: item.fleet for item in accounts.values() if item.kind is kind}
    earlier = dict.fromkeys(earlier_twins(accounts.values(), kind))
    _check_earlier(earlier, unrelated)
    _check_unrelated(kind, others | earlier, unrelated, _alike(accounts, frame, kind, unrelated))


def earlier_twins(accounts: Iterable[AccountSummary], kind: AccountKind) -> list[str]:
    """Charged accounts of twins of versions up to 0.2, which a new account of twins does not count."""
    old = kind is AccountKind.NETWORK_TWIN
    return [item.name for item in accounts if old and item.kind is AccountKind.NETWORK_GDP and item.spends]


def _check_earlier(earlier: Collection[str], unrelated: Unrelated | None) -> None:
    """Twins of earlier versions are about other neighbours: they cannot be added up, nor be forgotten."""
    silent = set(earlier) - (frozenset() if unrelated is None else unrelated.accounts)
    if silent:
        raise PrivacyError(
            f"the ledger has {spelled(silent)} of twins that an earlier version drew, which the new account "
            "would not count, and whoever has twins of one network from both has both; say of each why "
            f"that is right, in a release with {unrelated_line('unrelated_network', silent)}, in a fleet "
            "with fleet.unrelated; nothing was spent"
        )


def _alike(
    accounts: Accounts, frame: str | None, kind: AccountKind, unrelated: Unrelated | None
) -> list[str]:
    """Accounts of networks with the same structure, most likely versions of this one, if nobody says not."""
    return [
        item.name
        for item in accounts.values()
        if item.kind is kind and frame is not None and frame in item.frames.values()
        if unrelated is None or not unrelated.explains(item)
    ]


def _check_unrelated(
    kind: AccountKind, others: Mapping[str, str | None], unrelated: Unrelated | None, alike: Sequence[str]
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


def check_cap(account: AccountSummary, cap: Cap) -> None:
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
