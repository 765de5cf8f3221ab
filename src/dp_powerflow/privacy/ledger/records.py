"""The records of the ledger, and the accounts rebuilt from its entries."""

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
    cap_from_plain,
    cost_from_plain,
)
from dp_powerflow.privacy.ledger.kinds import left_of
from dp_powerflow.privacy.ledger.store import OF_THE_LEDGER, Entry
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
            raise PrivacyError("that data are unrelated needs a reason; say why, the ledger records it")
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

    def silent_on(self, accounts: Mapping[str, str | None]) -> set[str]:
        """Of the accounts, given with the fleets that opened them, those it says nothing about."""
        own = {name for name, fleet in accounts.items() if self.fleet is not None and fleet == self.fleet}
        return accounts.keys() - self.accounts - own

    def explains(self, twin: AccountSummary) -> bool:
        """Whether it says why data with the frame of an account are not of its network."""
        both_named = self.same_frame and twin.same_frame and twin.fleet == self.fleet
        return twin.name in self.accounts - self.listed or both_named


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
        raise PrivacyError(f"'{item}' is no row of accounts; write it as 'loads-3 to loads-5'")
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
    def of(cls, entry: Entry, kind: AccountKind, cost: Cost) -> Spend:
        """The charge that an entry of the ledger records."""
        e = entry
        return cls(e.account, kind, e.release_id, e.request_sha256, e.fields["dataset"], cost, e.at, e.seq)


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
        return self.balance_with()

    def spent(self, also: Iterable[Cost] = ()) -> Amounts:
        """What has been spent, exactly, with further costs."""
        return self.cap.spent(self._costs(also))

    def balance_with(self, also: Iterable[Cost] = ()) -> Balance:
        """Where the account would stand with further costs."""
        costs = self._costs(also)
        limits, spent = self.cap.limits(), self.cap.spent(costs)
        return Balance(
            cap=self.cap,
            n_spends=len(costs),
            limits=_floats(limits),
            spent=_floats(spent),
            left=_floats(left_of(spent, limits)),
            promise=self.cap.promised(costs),
            available=self.cap.available(costs),
            composed=self.cap.composed(costs) if isinstance(self.cap, TwinCap) else None,
        )

    def _costs(self, also: Iterable[Cost]) -> list[Any]:
        """Charged and further costs, in order; the cap takes them all."""
        return [spend.cost for spend in self.spends] + list(also)

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


Accounts = Mapping[str, AccountSummary]
"""By name, in the order they were opened."""


def replay(before: Accounts, entries: Iterable[Entry]) -> Accounts:
    """The accounts after further checked entries; `before` stays as it is."""
    accounts = dict(before)
    for entry in entries:
        if entry.event not in OF_THE_LEDGER:
            accounts[entry.account] = _after(accounts.get(entry.account), entry)
    return accounts


def _after(account: AccountSummary | None, entry: Entry) -> AccountSummary:
    fields = entry.fields
    if account is None or entry.event == "open":
        cap = cap_from_plain(AccountKind(fields["kind"]), fields["cap"])
        named = tuple(fields.get("unrelated", ()))
        opened = Change("opened", fields["reason"], entry.at, entry.seq, cap, named)
        return AccountSummary(
            entry.account,
            cap,
            (fields["dataset"],),
            changes=(opened,),
            fleet=fields.get("fleet"),
            frames=_frame(fields),
            same_frame=fields.get("same_frame", False),
        )
    if entry.event == "spend":
        spend = Spend.of(entry, account.kind, cost_from_plain(account.kind, fields["cost"]))
        return replace(account, spends=(*account.spends, spend))
    if entry.event == "data":
        change = Change("data added", "", entry.at, entry.seq, account.cap)
        datasets, frames = (*account.datasets, fields["dataset"]), {**account.frames, **_frame(fields)}
        return replace(account, datasets=datasets, changes=(*account.changes, change), frames=frames)
    if entry.event == "frame":
        return replace(account, frames={**account.frames, **_frame(fields)})
    cap = cap_from_plain(account.kind, fields["cap"])
    change = Change("cap changed", fields["reason"], entry.at, entry.seq, cap)
    return replace(account, cap=cap, changes=(*account.changes, change))


def _frame(fields: Mapping[str, Any]) -> dict[str, str]:
    return {fields["dataset"]: fields["frame"]} if "frame" in fields else {}


def _floats(amounts: Amounts) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items()}
