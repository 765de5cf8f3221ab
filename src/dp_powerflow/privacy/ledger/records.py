"""The records of the ledger: its chained entries, and the accounts as the entries say.

The keyed hash of an entry binds it to all entries before it (`HashChain`). `Books` are kept up entry by
entry: every question that a charge asks (which account has these data, this frame, this release; how many are
there; who opened them) is a look into an index. What a charge costs therefore does not depend on how many
accounts and charges there are. Exact sums are kept per account and equal those of all its charges, added up
anew.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    Balance,
    Cap,
    Cost,
    cap_from_plain,
    cost_from_plain,
)
from dp_powerflow.privacy.state import PrivateState

FIRST, UNANCHORED, ROLES, APPROVAL = "ledger", "unanchored", "roles", "approval"
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


class HashChain:
    """How entries follow one another under the key of a private state directory.

    The keyed hash of an entry is one of its fields and of the keyed hash of the entry before, so it vouches
    for all entries up to there.
    """

    def __init__(self, state: PrivateState) -> None:
        self._keyed_hash = state.stream_key().bind("ledger", "version 1").keyed_hasher()

    def follows(self, before: Entry | None, entry: Entry) -> bool:
        """Whether an entry is the genuine next one after another, or the first one."""
        number, mac = self.place(before)
        return entry.seq == number and entry.mac == self.mac(mac, entry)

    @staticmethod
    def place(before: Entry | None) -> tuple[int, str]:
        """Number of the entry after another, and the keyed hash it goes on from."""
        return (0, _GENESIS) if before is None else (before.seq + 1, before.mac)

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
    """That data share nothing with the data of some accounts of their kind.

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
    """The line of a config that says so of these accounts; the reason is left to the reader."""
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


@dataclass(frozen=True)
class Account:
    """One account at some time: what it may spend, and every charge.

    Attributes
    ----------
    cap : the most that may ever be spent.
    datasets : the data it belongs to, oldest first.
    tally : what all its charges come to, kept up charge by charge.
    fleet : the fleet that opened it for one of its feeders.
    frames : data set → frame of a network: a keyed hash of its structure, which near copies share.
    same_frame : that its fleet named the feeder among different networks of the same frame.
    """

    name: str
    cap: Cap
    datasets: tuple[str, ...]
    changes: tuple[Change, ...]
    tally: Any
    spends: tuple[Spend, ...] = ()
    fleet: str | None = None
    frames: Mapping[str, str] = field(default_factory=dict)
    same_frame: bool = False

    @property
    def kind(self) -> AccountKind:
        return self.cap.kind

    @property
    def balance(self) -> Balance:
        return self.cap.balance(self.tally)

    def as_of(self, entry: int) -> Account:
        """The account as it was just after an entry of the ledger; it was open then."""
        if entry >= max(self.changes[-1].entry, *(spend.entry for spend in self.spends[-1:]), 0):
            return self
        changes = tuple(change for change in self.changes if change.entry <= entry)
        spends = tuple(spend for spend in self.spends if spend.entry <= entry)
        cap = changes[-1].cap
        tally = cap.tally(spend.cost for spend in spends)
        return replace(self, cap=cap, changes=changes, spends=spends, tally=tally)


@dataclass(frozen=True)
class LedgerSummary:
    """Everything in the ledger; PRIVATE like the ledger."""

    insecure_seed: bool
    created: str
    entries: int
    accounts: tuple[Account, ...]
    lost_anchors: tuple[LostAnchor, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)


_RESTORE = "restore the newest backup of the private state directory"


def is_raised(before: Cap, after: Cap) -> bool:
    """Whether a cap allows more of anything than another one, or is about another unit."""
    limits = before.limits()
    more = any(value > limits.get(name, 0.0) for name, value in after.limits().items())
    return before.unit != after.unit or more or after.delta > before.delta


def wanted_of(account: Account, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a role signs to approve a change of a cap: once the cap has changed, all have to ask again."""
    cap = json.dumps(asked["cap"], sort_keys=True)
    return {"account": account.name, "changes": len(account.changes), "cap": cap, "reason": asked["reason"]}


def signed_bytes(wanted: Mapping[str, Any], role: str) -> bytes:
    """The bytes of an approval."""
    return json.dumps({**wanted, "role": role}, sort_keys=True).encode()


def _signed(fields: dict[str, Any], roles: Mapping[str, str]) -> dict[str, Any]:
    """An approval whose signature holds."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    wanted = {name: value for name, value in fields.items() if name not in ("role", "signature")}
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(roles[fields["role"]]))
        key.verify(bytes.fromhex(fields["signature"]), signed_bytes(wanted, fields["role"]))
    except (InvalidSignature, KeyError, ValueError):
        raise PrivacyError(f"an approval in the ledger is not signed by its role; {_RESTORE}") from None
    return fields


class Books:
    """Accounts and charges by the entries taken so far, to look things up in.

    Attributes
    ----------
    entries : all of them.
    accounts : by name, in the order they were opened.
    roles : role → public key, of those who must approve a raised cap together; mostly empty.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.accounts: dict[str, Account] = {}
        self.roles: dict[str, str] = {}
        self._approvals: list[dict[str, Any]] = []
        self._of_data: dict[tuple[AccountKind, str], str] = {}
        self._of_frame: dict[tuple[AccountKind, str], dict[str, None]] = {}
        self._opened: dict[AccountKind, dict[str | None, list[str]]] = {}
        self._spends: list[Spend] = []
        self._of_release: dict[str, list[Spend]] = {}
        self._lost: list[LostAnchor] = []

    def take(self, entry: Entry) -> None:
        """Go on with one further, checked entry."""
        self.entries.append(entry)
        fields = entry.fields
        if entry.event == FIRST:
            return
        if entry.event == UNANCHORED:
            self._lost.append(LostAnchor(fields["reason"], entry.at, entry.seq))
            return
        if entry.event == ROLES:
            self.roles = fields["roles"]
            return
        if entry.event == APPROVAL:
            self._approvals.append(_signed(fields, self.roles))
            return
        account = self.accounts.get(entry.account)
        if account is None or entry.event == "open":
            account = _opened(entry, fields)
            self._opened.setdefault(account.kind, {}).setdefault(account.fleet, []).append(account.name)
            self._index(account, fields)
        elif entry.event == "spend":
            _, at, _, name, release_id, request, _, _ = entry
            cost = cost_from_plain(account.kind, fields["cost"])
            spend = Spend(name, account.kind, release_id, request, fields["dataset"], cost, at, entry.seq)
            self._spends.append(spend)
            self._of_release.setdefault(spend.release_id, []).append(spend)
            tally, spends = account.tally.plus(cost), (*account.spends, spend)
            account = replace(account, tally=tally, spends=spends)
        elif entry.event in ("data", "frame"):
            self._index(account, fields)
            account = replace(account, frames={**account.frames, **_frame(fields)})
            if entry.event == "data":
                change = Change("data added", "", entry.at, entry.seq, account.cap)
                datasets = (*account.datasets, fields["dataset"])
                account = replace(account, datasets=datasets, changes=(*account.changes, change))
        else:
            cap = cap_from_plain(account.kind, fields["cap"])
            if is_raised(account.cap, cap) and self.lacking(account, fields):
                raise PrivacyError(f"the cap of {account.name} was raised without its approvals; {_RESTORE}")
            change = Change("cap changed", fields["reason"], entry.at, entry.seq, cap)
            account = replace(account, cap=cap, changes=(*account.changes, change))
        self.accounts[account.name] = account

    def lacking(self, account: Account, asked: Mapping[str, Any]) -> frozenset[str]:
        """Roles that have not approved this change of a cap, as the cap is now."""
        wanted = wanted_of(account, asked).items()
        return frozenset(self.roles) - {each["role"] for each in self._approvals if wanted <= each.items()}

    def has(self, number: int, mac: str) -> bool:
        """Whether an entry with this number and keyed hash was taken."""
        return number < len(self.entries) and self.entries[number].mac == mac

    def find(self, kind: AccountKind, dataset: str) -> Account | None:
        """The account of a kind that data belong to."""
        return self.accounts.get(self._of_data.get((kind, dataset), ""))

    def alike(self, kind: AccountKind, frame: str) -> list[Account]:
        """Accounts of a kind that have data with this frame, in the order they were opened."""
        accounts = (self.accounts[name] for name in self._of_frame.get((kind, frame), {}))
        found = [account for account in accounts if frame in account.frames.values()]
        return sorted(found, key=lambda account: account.changes[0].entry)

    def paid(self, name: str, release_id: str) -> Spend | None:
        """The charge of a release to an account."""
        return next((spend for spend in self.spends(release_id) if spend.account == name), None)

    def count(self, kind: AccountKind) -> int:
        """How many accounts of a kind there are."""
        return sum(map(len, self._opened.get(kind, {}).values()))

    def names(self, kind: AccountKind, *, but_of: str | None = None) -> Iterator[str]:
        """Accounts of a kind, but for those that a fleet opened for its feeders."""
        for fleet, names in self._opened.get(kind, {}).items():
            if fleet is None or fleet != but_of:
                yield from names

    def spends(self, release_id: str | None) -> tuple[Spend, ...]:
        """All charges in the order they were made, or the charges of one release to any account."""
        return tuple(self._spends if release_id is None else self._of_release.get(release_id, ()))

    def summary(self) -> LedgerSummary:
        first, accounts = self.entries[0], tuple(self.accounts.values())
        seeded = first.fields["insecure_seed"]
        return LedgerSummary(seeded, first.at, len(self.entries), accounts, tuple(self._lost), self.roles)

    def _index(self, account: Account, fields: Mapping[str, Any]) -> None:
        self._of_data.setdefault((account.kind, fields["dataset"]), account.name)
        if "frame" in fields:
            self._of_frame.setdefault((account.kind, fields["frame"]), {})[account.name] = None


def _opened(entry: Entry, fields: Mapping[str, Any]) -> Account:
    cap = cap_from_plain(AccountKind(fields["kind"]), fields["cap"])
    named = tuple(fields.get("unrelated", ()))
    return Account(
        entry.account,
        cap,
        (fields["dataset"],),
        (Change("opened", fields["reason"], entry.at, entry.seq, cap, named),),
        cap.nothing(),
        fleet=fields.get("fleet"),
        frames=_frame(fields),
        same_frame=fields.get("same_frame", False),
    )


def _frame(fields: Mapping[str, Any]) -> dict[str, str]:
    return {fields["dataset"]: fields["frame"]} if "frame" in fields else {}
