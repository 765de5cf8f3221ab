"""The records of the ledger: what it takes and what it shows."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    Amounts,
    Cap,
    Cost,
    Statement,
    TwinCap,
)
from dp_powerflow.privacy.ledger.chain import Entry
from dp_powerflow.privacy.ledger.kinds import left_of
from dp_powerflow.privacy.ledger.twins import Composed

_NAME = re.compile(r"[a-z]+(?:-[a-z]+)*-[0-9]{1,6}")
_ROW = re.compile(rf"({_NAME.pattern}) to ({_NAME.pattern})")
_PLACEHOLDER = "<why>"


@dataclass(frozen=True)
class Unrelated:
    """That data share nothing with those of some accounts of their kind.

    It names the accounts. A reason without names would go on speaking: left in a config, it would also speak
    for the account of the very data it was given for, and the next correction of these would start with a
    full budget.

    Attributes
    ----------
    accounts : names of the accounts it speaks of; all must be in the ledger.
    reason : why; the ledger records it.
    fleet : id of a fleet whose list of feeders says that they are different networks: accounts that were
        opened for feeders of this fleet need no name. A config file of one release cannot set it.
    listed : of the accounts, those that the list of a fleet names, and no person. They do not explain why a
        network has the same frame as another one.
    same_frame : that the fleet names this feeder among those that are different networks of the same frame.
    """

    accounts: frozenset[str]
    reason: str
    fleet: str | None = None
    listed: frozenset[str] = frozenset()
    same_frame: bool = False

    def __post_init__(self) -> None:
        if self.reason.strip() in ("", _PLACEHOLDER):
            raise PrivacyError("data declared unrelated need a reason; say why, and the ledger records it")
        if not all(_NAME.fullmatch(name) for name in self.accounts):
            raise PrivacyError("a reason why data are unrelated names accounts such as loads-1; correct it")

    @classmethod
    def to(cls, accounts: Iterable[str], reason: str) -> Unrelated:
        """Unrelated to accounts given by name, or as a row of them: ``"loads-3 to loads-5"``."""
        return cls(frozenset(name for item in accounts for name in _members(item)), reason)

    @classmethod
    def from_table(cls, table: object) -> Unrelated:
        """Read the table of a config: ``{ accounts = ["loads-1"], reason = "another town" }``."""
        if isinstance(table, dict) and table.keys() == {"accounts", "reason"}:
            accounts, reason = table["accounts"], table["reason"]
            if isinstance(accounts, list) and accounts and isinstance(reason, str):
                return cls.to((str(item) for item in accounts), reason)
        raise PrivacyError(
            "a reason why data are unrelated is a table that names the accounts it speaks of: "
            '{ accounts = ["loads-1", "loads-3 to loads-5"], reason = "another town" }'
        )

    def explains(self, name: str, fleet: str | None, same_frame: bool) -> bool:
        """Whether it says why data with the frame of an account are not of its network.

        Parameters
        ----------
        name, fleet, same_frame : of the account.
        """
        both_named = self.same_frame and same_frame and fleet == self.fleet
        return (name in self.accounts and name not in self.listed) or both_named


def rows_of(names: Iterable[str]) -> list[str]:
    """Names of accounts as `Unrelated.to` reads them, in order, with 'to' for three or more in a row."""
    parts: list[str] = []
    ordered = sorted(_split(name) for name in names)
    # Along a row of successive numbers, number and position grow alike.
    for _, row in itertools.groupby(enumerate(ordered), key=lambda item: (item[1][0], item[1][1] - item[0])):
        members = [f"{stem}-{number}" for _, (stem, number) in row]
        parts += [f"{members[0]} to {members[-1]}"] if len(members) > 2 else members
    return parts


def spelled(names: Iterable[str]) -> str:
    """Names of accounts in a sentence."""
    return ", ".join(rows_of(names))


def unrelated_line(key: str, names: Iterable[str]) -> str:
    """The line of a config that says so of these accounts; the reason is left to whoever copies it."""
    return f'{key} = {{ accounts = {json.dumps(rows_of(names))}, reason = "{_PLACEHOLDER}" }}'


def _members(item: str) -> Iterable[str]:
    row = _ROW.fullmatch(item)
    if row is None:
        return [item]  # checked with the names
    (stem, start), (other, end) = _split(row[1]), _split(row[2])
    if other != stem or end < start:
        raise PrivacyError(f"'{item}' is not a range of accounts; write it as 'loads-3 to loads-5'")
    return (f"{stem}-{number}" for number in range(start, end + 1))


def _split(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return stem, int(number)


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
    kind: AccountKind
    release_id: str
    request_sha256: str
    dataset: str
    cost: Cost
    at: str
    entry: int

    @classmethod
    def of(cls, entry: Entry, kind: AccountKind, dataset: str, cost: Cost) -> Spend:
        """The charge that an entry of the ledger records."""
        e = entry
        return cls(e.account, kind, e.release_id, e.request_sha256, dataset, cost, e.at, e.seq)


@dataclass(frozen=True)
class Change:
    """Something else that happened to an account.

    Attributes
    ----------
    what : ``"opened"``, ``"cap changed"`` or ``"data added"``.
    reason : what the data owner gave.
    at, entry : time (UTC) and number in the ledger.
    cap : the cap of the account from then on.
    unrelated : accounts that the reason speaks of, in rows; older entries have them in the reason itself.
    """

    what: str
    reason: str
    at: str
    entry: int
    cap: Cap
    unrelated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Balance:
    """Where an account stands.

    Parameters
    ----------
    limits, spent, left
        By quantity: rho; epsilon and delta; mu_squared; or the epsilon of the worst element of twins.
    promise
        What all spends together promise. Built from policy constants and query costs only.
    available
        What a single further spend could be.
    composed
        Of an account of twins: everything that touched the worst element.
    """

    cap: Cap
    n_spends: int
    limits: dict[str, float]
    spent: dict[str, float]
    left: dict[str, float]
    promise: Statement
    available: Statement
    composed: Composed | None = None


def balance_of(cap: Cap, tally: Any, n_spends: int) -> Balance:
    """Where an account with this cap stands after costs that come to `tally`."""
    standing, limits = cap.standing(tally), cap.limits()
    return Balance(
        cap=cap,
        n_spends=n_spends,
        limits=_floats(limits),
        spent=_floats(standing.spent),
        left=_floats(left_of(standing.spent, limits)),
        promise=standing.promise,
        available=standing.available,
        composed=cap.composed(tally) if isinstance(cap, TwinCap) else None,
    )


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
    """Everything about one account, as the entries of the ledger say.

    Attributes
    ----------
    datasets : the data it belongs to, oldest first.
    cap : the most that may ever be spent, as it is now.
    fleet : the fleet that opened it for one of its feeders.
    frames : data set → frame of a network: a keyed hash of its structure, which near copies share.
    same_frame : that its fleet named the feeder among different networks of the same frame.
    """

    name: str
    cap: Cap
    datasets: tuple[str, ...]
    spends: tuple[Spend, ...] = ()
    changes: tuple[Change, ...] = ()
    fleet: str | None = None
    frames: Mapping[str, str] = field(default_factory=dict)
    same_frame: bool = False

    @property
    def kind(self) -> AccountKind:
        return self.cap.kind

    @property
    def balance(self) -> Balance:
        costs: list[Any] = [spend.cost for spend in self.spends]
        return balance_of(self.cap, self.cap.tally(costs), len(costs))

    def as_of(self, entry: int) -> AccountSummary:
        """The account as it was just after an entry of the ledger; it was open then."""
        changes = tuple(change for change in self.changes if change.entry <= entry)
        spends = tuple(spend for spend in self.spends if spend.entry <= entry)
        return replace(self, cap=changes[-1].cap, spends=spends, changes=changes)


@dataclass(frozen=True)
class LostAnchor:
    """That a lost anchor was replaced: whether entries are missing before `entry`, nobody can tell."""

    reason: str
    at: str
    entry: int


@dataclass(frozen=True)
class LedgerSummary:
    """Everything in the ledger; PRIVATE like the ledger."""

    insecure_seed: bool
    created: str
    entries: int
    accounts: tuple[AccountSummary, ...]
    lost_anchors: tuple[LostAnchor, ...] = ()


def _floats(amounts: Amounts) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items()}
