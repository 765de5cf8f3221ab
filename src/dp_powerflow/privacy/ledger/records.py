"""The records of the ledger: its chained entries, and the accounts as the entries say.

The keyed hash of an entry binds it to all entries before it (`Chain`). `Books` are kept up entry by entry:
every question that a charge asks (which account has these data, this frame, this release; how many are there;
who opened them) is a look into an index. What a charge costs therefore does not depend on how many accounts
and charges there are. Exact sums are kept per account and equal those of all its charges, added up anew.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    Amounts,
    Cap,
    Composed,
    Cost,
    Statement,
    Tally,
    TwinCap,
    cap_from_plain,
    cost_from_plain,
    fits,
    left_of,
)
from dp_powerflow.privacy.state import PrivateState

FIRST, UNANCHORED = "ledger", "unanchored"
"""Entries about the ledger itself, and no account: its first one, and that its lost anchor was replaced."""
COLUMNS = "seq, at, event, account, release_id, request_sha256, body, mac"
_GENESIS = "0" * 64


class Entry(NamedTuple):
    """One line of the ledger; a tuple, since a check makes one of every line."""

    seq: int
    at: str
    event: str
    account: str
    release_id: str
    request_sha256: str
    body: str
    mac: str

    @property
    def fields(self) -> dict[str, Any]:
        """The body as plain values."""
        fields: dict[str, Any] = json.loads(self.body)
        return fields


class Chain:
    """How entries follow one another under the key of a private state directory.

    The keyed hash of an entry is one of its fields and of the keyed hash of the entry before, so it vouches
    for all entries up to there.
    """

    def __init__(self, state: PrivateState) -> None:
        self._keyed_hash = state.stream_key().bind("ledger", "version 1").keyed_hasher()

    def follows(self, before: Entry | None, entry: Entry) -> bool:
        """Whether an entry is the genuine next one after another, or the first one."""
        number, mac = (0, _GENESIS) if before is None else (before.seq + 1, before.mac)
        return entry.seq == number and entry.mac == self.mac(mac, entry)

    def next(
        self,
        before: Entry | None,
        event: str,
        account: str,
        fields: dict[str, Any],
        *,
        release_id: str = "",
        request_sha256: str = "",
    ) -> Entry:
        """The next entry after another, or the first one."""
        body = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        number, mac = (0, _GENESIS) if before is None else (before.seq + 1, before.mac)
        entry = Entry(number, at, event, account, release_id, request_sha256, body, "")
        return entry._replace(mac=self.mac(mac, entry))

    def mac(self, previous: str, entry: Entry) -> str:
        """The keyed hash of an entry after the one with the keyed hash `previous`."""
        # Types are part of what is hashed: SQLite would compare 1 and '1' as the same in places.
        signed = [f"{type(value).__name__}:{value}".encode() for value in entry[:-1]]
        return self._keyed_hash([previous.encode(), *signed])


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
    unrelated : accounts that the reason speaks of, in rows.
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
        By quantity: rho; epsilon and delta; or the epsilon of the worst element of twins.
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
class LostAnchor:
    """That a lost anchor was replaced: whether entries are missing before `entry`, nobody can tell."""

    reason: str
    at: str
    entry: int


def _floats(amounts: Amounts) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items()}


@dataclass(frozen=True)
class Page:
    """One account, with the exact sum of its charges.

    Attributes
    ----------
    cap : the most that may ever be spent, as it is now.
    datasets : the data it belongs to, oldest first.
    tally : what all its charges come to.
    fleet : the fleet that opened it for one of its feeders.
    frames : data set → frame of a network: a keyed hash of its structure, which near copies share.
    same_frame : that its fleet named the feeder among different networks of the same frame.
    n_spends, last_spend : how many charges there are, and the number of the last entry that is one.
    """

    name: str
    cap: Cap
    datasets: tuple[str, ...]
    changes: tuple[Change, ...]
    tally: Tally
    fleet: str | None = None
    frames: Mapping[str, str] = field(default_factory=dict)
    same_frame: bool = False
    n_spends: int = 0
    last_spend: int = -1

    @property
    def kind(self) -> AccountKind:
        return self.cap.kind

    @property
    def balance(self) -> Balance:
        return balance_of(self.cap, self.tally, self.n_spends)

    @property
    def fits(self) -> bool:
        """Whether its charges stay within the cap."""
        tally: Any = self.tally
        return fits(self.cap.spent_by(tally), self.cap.limits())

    def with_cost(self, cost: Any, entry: int | None = None) -> Page:
        """As it is, or would be, with one further charge; the cap takes the cost."""
        last = self.last_spend if entry is None else entry
        return replace(self, tally=self.tally.plus(cost), n_spends=self.n_spends + 1, last_spend=last)


@dataclass(frozen=True)
class AccountSummary(Page):
    """Everything about one account, as the entries of the ledger say: a page with every charge."""

    spends: tuple[Spend, ...] = ()

    def as_of(self, entry: int) -> AccountSummary:
        """The account as it was just after an entry of the ledger; it was open then."""
        changes = tuple(change for change in self.changes if change.entry <= entry)
        spends = tuple(spend for spend in self.spends if spend.entry <= entry)
        cap, costs = changes[-1].cap, [spend.cost for spend in spends]
        tally: Any = cap.tally(costs)  # type: ignore[arg-type]  # of one kind
        found = replace(self, cap=cap, changes=changes, spends=spends, tally=tally, n_spends=len(spends))
        return replace(found, last_spend=spends[-1].entry if spends else -1)


@dataclass(frozen=True)
class LedgerSummary:
    """Everything in the ledger; PRIVATE like the ledger."""

    insecure_seed: bool
    created: str
    entries: int
    accounts: tuple[AccountSummary, ...]
    lost_anchors: tuple[LostAnchor, ...] = ()


class Books:
    """Accounts and charges, to look things up in.

    Parameters
    ----------
    before : Books, optional
        What these go on from and leave untouched: a draft, until its entries are in the ledger.
    """

    def __init__(self, before: Books | None = None) -> None:
        self._before = before
        self._pages: dict[str, Page] = {}
        self._of_data: dict[tuple[AccountKind, str], str] = {}
        self._of_frame: dict[tuple[AccountKind, str], dict[str, None]] = {}
        self._opened: dict[AccountKind, dict[str | None, dict[str, None]]] = {}
        self._spends: dict[str, list[Spend]] = {}
        self._of_release: dict[str, list[Spend]] = {}
        self._paid: dict[tuple[str, str], Spend] = {}
        self._shown: dict[str, AccountSummary] = {}
        self._first: Entry | None = None
        self._lost: list[LostAnchor] = []

    def take(self, entry: Entry) -> None:
        """Go on with one further, checked entry."""
        if entry.event in (FIRST, UNANCHORED):
            self._first = entry if entry.event == FIRST else self._first
            if entry.event == UNANCHORED:
                self._lost.append(LostAnchor(entry.fields["reason"], entry.at, entry.seq))
            return
        fields, page = entry.fields, self.page(entry.account)
        if page is None or entry.event == "open":
            page = _opened(entry, fields)
            self._opened.setdefault(page.kind, {}).setdefault(page.fleet, {})[page.name] = None
            self._index(page, fields)
        elif entry.event == "spend":
            cost = cost_from_plain(page.kind, fields["cost"])
            self._record(Spend.of(entry, page.kind, fields["dataset"], cost))
            page = page.with_cost(cost, entry.seq)
        elif entry.event in ("data", "frame"):
            self._index(page, fields)
            page = _with_data(page, entry, fields)
        else:
            cap = cap_from_plain(page.kind, fields["cap"])
            change = Change("cap changed", fields["reason"], entry.at, entry.seq, cap)
            page = replace(page, cap=cap, changes=(*page.changes, change))
        self._pages[page.name] = page
        self._shown.pop(page.name, None)

    def page(self, name: str) -> Page | None:
        """An account by its name."""
        found = self._pages.get(name)
        return self._before.page(name) if found is None and self._before is not None else found

    def find(self, kind: AccountKind, dataset: str) -> Page | None:
        """The account of a kind that data belong to."""
        name = self._of_data.get((kind, dataset))
        if name is not None:
            return self.page(name)
        found = None if self._before is None else self._before.find(kind, dataset)
        return None if found is None else self.page(found.name)

    def alike(self, kind: AccountKind, frame: str) -> list[Page]:
        """Accounts of a kind that have data with this frame, in the order they were opened."""
        before = [] if self._before is None else [page.name for page in self._before.alike(kind, frame)]
        names = dict.fromkeys(before) | self._of_frame.get((kind, frame), {})
        pages = (self.page(name) for name in names)
        found = [page for page in pages if page is not None and frame in page.frames.values()]
        return sorted(found, key=lambda page: page.changes[0].entry)

    def paid(self, name: str, release_id: str) -> Spend | None:
        """The charge of a release to an account."""
        found = self._paid.get((name, release_id))
        return self._before.paid(name, release_id) if found is None and self._before is not None else found

    def count(self, kind: AccountKind) -> int:
        """How many accounts of a kind there are."""
        before = 0 if self._before is None else self._before.count(kind)
        return before + sum(map(len, self._opened.get(kind, {}).values()))

    def names(self, kind: AccountKind, *, but_of: str | None = None) -> Iterator[str]:
        """Accounts of a kind, but for those that a fleet opened for its feeders."""
        if self._before is not None:
            yield from self._before.names(kind, but_of=but_of)
        for fleet, names in self._opened.get(kind, {}).items():
            if fleet is None or fleet != but_of:
                yield from names

    def spends(self, name: str | None = None) -> tuple[Spend, ...]:
        """The charges to an account, or to all, in the order they were made."""
        if name is not None:
            return tuple(self._spends.get(name, ()))
        return tuple(sorted((s for each in self._spends.values() for s in each), key=lambda s: s.entry))

    def charges_of(self, release_id: str) -> tuple[Spend, ...]:
        """The charges of a release to any account, in the order they were made."""
        return tuple(self._of_release.get(release_id, ()))

    def summary_of(self, name: str) -> AccountSummary | None:
        """Everything about an account."""
        page = self._pages.get(name)
        if page is not None and name not in self._shown:
            self._shown[name] = AccountSummary(**vars(page), spends=self.spends(name))
        return self._shown.get(name)

    def summary(self, entries: int) -> LedgerSummary:
        """Everything, of a ledger with so many entries."""
        assert self._first is not None
        accounts = tuple(found for found in map(self.summary_of, self._pages) if found is not None)
        seeded = bool(self._first.fields["insecure_seed"])
        return LedgerSummary(seeded, self._first.at, entries, accounts, tuple(self._lost))

    def balance(self, page: Page, as_of: int | None = None) -> Balance:
        """Where an account stands, now or just after an entry of the ledger."""
        if as_of is None or (as_of >= page.last_spend and as_of >= page.changes[-1].entry):
            return page.balance
        summary = self.summary_of(page.name)
        assert summary is not None
        return summary.as_of(as_of).balance

    def _record(self, spend: Spend) -> None:
        self._spends.setdefault(spend.account, []).append(spend)
        self._of_release.setdefault(spend.release_id, []).append(spend)
        self._paid.setdefault((spend.account, spend.release_id), spend)

    def _index(self, page: Page, fields: Mapping[str, Any]) -> None:
        self._of_data.setdefault((page.kind, fields["dataset"]), page.name)
        if "frame" in fields:
            self._of_frame.setdefault((page.kind, fields["frame"]), {})[page.name] = None


def _opened(entry: Entry, fields: Mapping[str, Any]) -> Page:
    cap = cap_from_plain(AccountKind(fields["kind"]), fields["cap"])
    named = tuple(fields.get("unrelated", ()))
    change = Change("opened", fields["reason"], entry.at, entry.seq, cap, named)
    return Page(
        entry.account,
        cap,
        (fields["dataset"],),
        (change,),
        cap.nothing(),
        fleet=fields.get("fleet"),
        frames=_frame(fields),
        same_frame=fields.get("same_frame", False),
    )


def _with_data(page: Page, entry: Entry, fields: Mapping[str, Any]) -> Page:
    frames = {**page.frames, **_frame(fields)}
    if entry.event == "frame":
        return replace(page, frames=frames)
    change = Change("data added", "", entry.at, entry.seq, page.cap)
    datasets, changes = (*page.datasets, fields["dataset"]), (*page.changes, change)
    return replace(page, datasets=datasets, changes=changes, frames=frames)


def _frame(fields: Mapping[str, Any]) -> dict[str, str]:
    return {fields["dataset"]: fields["frame"]} if "frame" in fields else {}
