"""The ledger: what every protected data set may spend in its lifetime, and what it has spent.

An account belongs to data (a keyed hash of the meter data, or of the network) and to a kind of arithmetic
(see `accounts`). A spend is checked against the cap and recorded in one transaction *before* the data are
used. A crash afterwards loses budget, never privacy, and not even budget if the release is run again: the
same release with the same request on the same data returns the spend it made before, and since its noise
comes from the key it gives the same bits.

    state = PrivateState.open("state")
    ledger = Ledger.open(state)
    data = ChargedData(state.identity("loads", chunks), LoadsCap(epsilon=4, delta=1e-5))
    ledger.charge_all([Charge(data, "2024-q1", request_sha256, LoadsCost.reserve(Budget(1.0)))])

A corrected or extended file has another hash. It is not taken for new data without a word, or every
re-export would start with a full budget: the ledger asks whether it `continues` an account or is `unrelated`
to every one of them, by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_powerflow._spending import charge_begins, charge_is_done
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    Amounts,
    Balance,
    Cap,
    Cost,
    GdpCost,
    PureCost,
    TwinCap,
    to_plain,
)
from dp_powerflow.privacy.ledger.records import (
    APPROVAL,
    ROLES,
    UNANCHORED,
    Account,
    Books,
    LedgerSummary,
    Preview,
    Spend,
    Unrelated,
    is_raised,
    rows_of,
    signed_bytes,
    spelled,
    unrelated_line,
    wanted_of,
)
from dp_powerflow.privacy.ledger.store import LedgerStore, Transaction
from dp_powerflow.privacy.state import RECEIPT, PrivateState, check_release_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def check_new(books: Books, frame: str | None, kind: AccountKind, unrelated: Unrelated | None) -> None:
    """Refuse data that may be a version of what an account is of, unless a person says that they are not.

    Parameters
    ----------
    frame : of a network, what it has in common with its near copies.
    """
    named = frozenset() if unrelated is None else unrelated.accounts
    known = {name for name in named if name in books.accounts and books.accounts[name].kind is kind}
    unknown = named - known
    if unknown:  # no account that is yet to come can have been thought of
        raise PrivacyError(
            f"the reason why these data are unrelated names {spelled(unknown)}, but the ledger has "
            f"{spelled(books.names(kind)) or 'no account'} of the kind "
            f"'{kind}'; name existing accounts"
        )
    alike = [
        account.name
        for account in ([] if frame is None else books.alike(kind, frame))
        if unrelated is None or not unrelated.explains(account.name, account.fleet, account.same_frame)
    ]
    others = books.names(kind, but_of=None if unrelated is None else unrelated.fleet)
    silent = {name for name in others if name not in named}
    what, whose = ("loads", "customers") if kind is AccountKind.LOADS else ("network", "lines")
    if silent:
        raise PrivacyError(
            f"these data are new to the ledger, which has {spelled(silent)} of the same kind"
            f"{f' ({spelled(alike)} with the same nodes and connections)' if alike else ''}; set "
            f"continues_{what} to the account whose {whose} these are, or, if they are about none of them, "
            f"write {unrelated_line(f'unrelated_{what}', named | silent)}",
            code="data-new-to-ledger",
        )
    if alike:
        raise PrivacyError(
            f"this network is new to the ledger and has the nodes and connections of account {alike[0]}; "
            f"set continues_network = '{alike[0]}' under overrides if it is a version of that network, or "
            "else name both feeders in fleet.same_frame, with a reason; nothing was spent",
            code="data-new-to-ledger",
        )


def same_cost(one: Cost, other: Cost) -> bool:
    scopes = [cost.scope if isinstance(cost, PureCost | GdpCost) else None for cost in (one, other)]
    return one.unit == other.unit and scopes[0] == scopes[1] and _same(one.amounts(), other.amounts())


def _same(one: Amounts, other: Amounts) -> bool:
    """Equal but for the last digits of a computed figure, which depend on the libraries."""
    close = (math.isclose(value, other.get(name, math.nan), rel_tol=1e-12) for name, value in one.items())
    return one.keys() == other.keys() and all(close)


def check_cap(account: Account, cap: Cap) -> None:
    """Refuse an account whose cap is not the one expected."""
    own = account.cap
    alike = (own.kind, own.unit, own.delta) == (cap.kind, cap.unit, cap.delta)
    if not (alike and _same(own.limits(), cap.limits())):
        recorded, asked = (f"epsilon {c.epsilon!r} at delta {c.delta!r} per {c.unit}" for c in (own, cap))
        raise PrivacyError(
            f"account {account.name} has a cap of {recorded}, not of {asked}; use "
            "the recorded cap, or change it with a reason"
        )


def check_cost(cap: Cap, cost: Cost) -> None:
    if not cap.accepts(cost):
        raise PrivacyError(
            f"a {type(cost).__name__} per '{cost.unit}' cannot be charged to an account in '{cap.kind}' per "
            f"'{cap.unit}'; use the same unit of privacy in both"
        )
    if isinstance(cap, TwinCap):
        cap.promised([cost])  # Gaussian noise has none at delta 0


_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ChargedData:
    """Data to be charged, and how they relate to other accounts.

    Attributes
    ----------
    dataset : `PrivateState.identity` of the meter data or the network.
    cap : kind and unit of the account, and the most that may ever be spent.
    continues : account whose customers or lines these are, in a corrected or extended version.
    unrelated : why they share nothing with the data of other accounts of the kind.
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

    def found(self, books: Books) -> Account | None:
        """The account these data belong to already, if its cap is the one expected."""
        account = books.find(self.cap.kind, self.dataset)
        if account is None:
            return None
        if self.continues not in (None, account.name):
            raise PrivacyError(
                f"these data belong to account {account.name} and cannot continue another; "
                f"leave out continues or set it to {account.name}"
            )
        check_cap(account, self.cap)
        return account

    def has_frame(self, account: Account) -> bool:
        """Whether the account knows the frame of these data."""
        return self.frame is None or account.frames.get(self.dataset) == self.frame

    def continued(self, books: Books) -> Account:
        """The account that these data continue."""
        account = named(books, self.continues or "", self.cap.kind)
        check_cap(account, self.cap)
        return account

    def enter(self, transaction: Transaction) -> Account:
        """The account, with whatever is new about these data on record."""
        books = transaction.books
        account = self.found(books)  # another process may have been first
        if account is None and self.continues is None:
            name = f"{self.cap.kind.stem}-{1 + books.count(self.cap.kind)}"
            transaction.append("open", name, self._opening(books))
        elif account is None:
            name = self.continued(books).name
            transaction.append("data", name, self._fields)
        else:
            name = account.name
            if not self.has_frame(account):
                transaction.append("frame", name, self._fields)  # opened without one
        return books.accounts[name]

    def _opening(self, books: Books) -> dict[str, Any]:
        """What the ledger records of an account that is opened."""
        cap, unrelated = self.cap, self.unrelated
        check_new(books, self.frame, cap.kind, unrelated)
        fields: dict[str, Any] = {"kind": str(cap.kind), **self._fields, "cap": to_plain(cap), "reason": ""}
        if unrelated is not None:
            fields |= {"reason": unrelated.reason, "unrelated": rows_of(unrelated.accounts)}
            fields |= {} if unrelated.fleet is None else {"fleet": unrelated.fleet}
            fields |= {"same_frame": True} if unrelated.same_frame else {}
        return fields


@dataclass(frozen=True)
class Charge:
    """One charge: for what, of which data, and how much.

    Attributes
    ----------
    data : whose account is charged, opened if there is none.
    release_id : names the release, or the twin or load model if several releases share it: those are paid
        once.
    request_sha256 : hash of everything public that decides the outcome (not of the caps, which may be raised
        between a crash and its resumption). With release id and data it says that a run is the same run,
        which is then not charged again.
    """

    data: ChargedData
    release_id: str
    request_sha256: str
    cost: Cost

    def __post_init__(self) -> None:
        check_release_id(self.release_id)
        _check_sha256(self.request_sha256, "hash of a request")
        check_cost(self.data.cap, self.cost)

    def enter(self, transaction: Transaction) -> Spend:
        """The spend: made now, or before by the same run."""
        account, dataset = self.data.enter(transaction), self.data.dataset
        before = transaction.books.paid(account.name, self.release_id)
        if before is not None:
            same = (before.request_sha256, before.dataset) == (self.request_sha256, dataset)
            if not (same and same_cost(before.cost, self.cost)):
                raise PrivacyError(
                    f"release '{self.release_id}' was already charged to account {before.account} for "
                    "another request or other data; choose a new release id, or restore the configuration "
                    "to resume that one",
                    code="request-changed",
                )
            return before
        if not account.cap.holds(account.tally.plus(self.cost)):
            promises = account.cap.promised([self.cost]), account.balance.available
            needed, left = (f"epsilon {each.epsilon:.4g} at delta {each.delta:.4g}" for each in promises)
            raise PrivacyError(
                f"release '{self.release_id}' needs {needed} of account {account.name}, which has "
                f"{left} left; ask for less, or raise the cap with a recorded reason; nothing was "
                "spent",
                code="cap-exceeded",
            )
        fields = {"dataset": dataset, "cost": to_plain(self.cost)}
        transaction.append("spend", account.name, fields, self.release_id, self.request_sha256)
        return transaction.books.accounts[account.name].spends[-1]


def named(books: Books, name: str, kind: AccountKind) -> Account:
    """The account of a kind that a person has named."""
    account = books.accounts.get(name)
    if account is None or account.kind is not kind:
        raise PrivacyError(
            f"the ledger has no account '{name}' of the kind '{kind}'; it has "
            f"{', '.join(sorted(books.names(kind), key=lambda known: (len(known), known))) or 'none'}"
        )
    return account


def _check_sha256(value: str, what: str) -> None:
    if not _SHA256.fullmatch(value):
        raise PrivacyError(f"the {what} must have 64 lower-case hexadecimal digits")


def _approved(
    transaction: Transaction, account: Account, asked: dict[str, Any], key: Ed25519PrivateKey | None
) -> frozenset[str]:
    """Record that a role approves a change of a cap; roles that have not approved this very change yet."""
    roles = transaction.books.roles
    public = None if key is None else key.public_key().public_bytes_raw().hex()
    role = next((role for role, own in roles.items() if own == public), None)
    if key is None or role is None:
        raise PrivacyError(
            f"a cap of this ledger is raised by {' and '.join(sorted(roles))} together; run the same command "
            "with --approve and the key of each, one after the other"
        )
    wanted = wanted_of(account, asked)
    signature = key.sign(signed_bytes(wanted, role)).hex()
    transaction.append(APPROVAL, account.name, wanted | {"role": role, "signature": signature})
    return transaction.books.lacking(account, asked)


class Ledger:
    """The ledger of one private state directory (PRIVATE): what may be spent, and what has been.

    Any number of processes and threads may use it at once. Opening checks and replays all of it; every use
    after that checks and replays what was appended since, by this process or another one.
    Every method raises `PrivacyError` if the ledger was changed by hand, lacks entries it had, or cannot be
    read or written; nothing is spent then.

    Examples
    --------
    >>> import tempfile
    >>> from dp_powerflow.privacy.state import PrivateState
    >>> state = PrivateState.open(tempfile.mkdtemp() + "/state", insecure_seed=1)
    >>> Ledger.open(state).summary().accounts
    ()
    >>> Ledger.inspect(state.root).spends()
    ()
    """

    def __init__(self, store: LedgerStore) -> None:
        self._store = store

    @classmethod
    def open(cls, state: PrivateState, *, create: bool = True) -> Ledger:
        """Open the ledger and check all of it.

        Parameters
        ----------
        state : PrivateState
            Where it lies, and the key that its entries are chained with.
        create : bool
            Make an empty one if it was never there.

        Returns
        -------
        Ledger

        Raises
        ------
        PrivacyError
            It is missing although it was in use, or does not pass the check.
        """
        store = LedgerStore(state)
        if create:
            store.create()
        with store.reading():
            return cls(store)

    @classmethod
    def inspect(cls, path: Path | str) -> Ledger:
        """Open the ledger of an existing private state directory to look at it, and check all of it.

        Parameters
        ----------
        path : path-like
            The private state directory, whether its key is a secret or an insecure seed.

        Returns
        -------
        Ledger

        Raises
        ------
        PrivacyError
            There is none, or it does not pass the check.
        """
        state = PrivateState.inspect(path)
        left = [name for _, names in state.internal_files() for name in names if name.startswith(RECEIPT)]
        if not (left or state.ledger_path.exists() or state.anchor_path.exists()):
            raise PrivacyError(
                f"{state.root} has no ledger yet: nothing was spent; run a release to make one"
            )
        return cls.open(state, create=False)

    @classmethod
    def accept_unanchored(cls, path: Path | str, reason: str) -> Ledger:
        """Go on with a ledger whose anchor is lost; the reason is shown with the ledger from then on.

        Raises
        ------
        PrivacyError
            There is an anchor, there is no reason, or the ledger does not pass the check.
        """
        if not reason.strip():
            raise PrivacyError("a ledger without its anchor needs a reason; say how the anchor was lost")
        store = LedgerStore(PrivateState.inspect(path))
        with store.transaction(may_lack_anchor=True) as transaction:
            transaction.append(UNANCHORED, "", {"reason": reason})
        return cls(store)

    def account(self, data: ChargedData) -> Account:
        """The account of a data set, opened if there is none.

        Raises
        ------
        PrivacyError
            The cap is another one; or the data are new, there is another account of the kind, and neither
            `continues` nor `unrelated` says what they have to do with it.
        """
        with self._store.reading() as books:
            known = data.found(books)
        if known is not None and data.has_frame(known):
            return known
        with self._store.transaction() as transaction:
            return data.enter(transaction)

    def charge_all(self, charges: Sequence[Charge]) -> tuple[Spend, ...]:
        """Check the caps and record many charges, all of them or none, in one transaction.

        The charges may be of any releases and accounts: the customers and the networks of a whole fleet. It
        is as safe as a charge of its own for each and needs one write to the disk. Accounts that are not
        there are opened, each after the ones before it, so that a later one is asked about an earlier one.

        Parameters
        ----------
        charges : sequence of Charge
            In the order in which they are entered.

        Returns
        -------
        tuple of Spend
            In the order of the charges: made now, or before by the same run.

        Raises
        ------
        PrivacyError
            One of them is refused; then nothing is recorded and no account is opened.
        """
        with self._store.transaction() as transaction:
            spends = tuple(charge.enter(transaction) for charge in charges)
            charge_begins()
        charge_is_done()
        return spends

    def preview(self, data: ChargedData, cost: Cost, release_id: str | None = None) -> Preview:
        """What a spend would do; opens no account and records nothing.

        Data never seen before are shown with the account they would get; whether `account` would refuse them
        for want of `continues` or `unrelated` is asked there. A release that was charged costs nothing more.
        """
        cap = data.cap
        check_cost(cap, cost)
        with self._store.reading() as books:
            found = data.found(books)
            if found is None and data.continues is not None:
                found = data.continued(books)
            name, tally = ("", cap.nothing()) if found is None else (found.name, found.tally)
            charged = release_id is not None and books.paid(name, release_id) is not None
        after = tally if charged else tally.plus(cost)
        affordable = charged or cap.holds(after)
        return Preview(name or None, cap.balance(tally), cap.balance(after), charged, affordable)

    def declare_roles(self, roles: Mapping[str, str]) -> None:
        """From now on, and for ever, a cap is raised by all of these together.

        Parameters
        ----------
        roles : mapping
            Role → public Ed25519 key, 64 hexadecimal digits. At least two, with different keys.

        Raises
        ------
        PrivacyError
            Roles are declared already, or fewer than two keys are.
        """
        for public in roles.values():
            _check_sha256(public, "public key of a role")
        if len(roles) < 2 or len(set(roles.values())) < len(roles):
            raise PrivacyError("two roles with two keys approve a raised cap; name both with --role")
        with self._store.transaction() as transaction:
            if transaction.books.roles:
                raise PrivacyError("this ledger has its roles, and they stay; look at them without --role")
            transaction.append(ROLES, "", {"roles": dict(roles)})

    def change_cap(
        self,
        name: str,
        cap: Cap,
        reason: str,
        *,
        restated: bool = False,
        key: Ed25519PrivateKey | None = None,
    ) -> frozenset[str]:
        """Replace the cap of an account; the reason is kept for ever. What was spent stays spent.

        Where roles are declared, a cap is raised once all of them have asked for the same, each with its key.

        Parameters
        ----------
        key : Ed25519PrivateKey, optional
            Of one of the roles.
        restated : bool
            The cap is in another unit, in which every cost is an upper bound. Whether it is one the caller
            must know: what was charged for changes up to r holds for smaller ones. Manifests state the unit
            as of their own charge, so earlier manifests stay true.

        Returns
        -------
        frozenset of str
            Roles that have not approved yet; the cap is as before until they have.

        Raises
        ------
        PrivacyError
            There is no such account, the cap has another unit, there is no reason, or the key is of no role.
        """
        if not reason.strip():
            raise PrivacyError("changing a cap needs a reason; say who decided it and why")
        with self._store.transaction() as transaction:
            account = named(transaction.books, name, cap.kind)
            if cap.unit != account.cap.unit and not restated:
                raise PrivacyError(
                    f"account {name} is per '{account.cap.unit}', and what was spent cannot be restated in "
                    "another unit; change the figures of the cap only"
                )
            cap.balance(account.tally)  # refused where it has no figure at this delta
            asked = {"cap": to_plain(cap), "reason": reason}
            if transaction.books.roles and is_raised(account.cap, cap):
                missing = _approved(transaction, account, asked, key)
                if missing:
                    return missing
            transaction.append("cap", name, asked)
            return frozenset()

    def change_figures(
        self,
        name: str,
        epsilon: float | None,
        delta: float | None,
        reason: str,
        key: Ed25519PrivateKey | None = None,
    ) -> frozenset[str]:
        """Replace ε or δ of the cap of an account, with a reason; see `change_cap`."""
        account = self.named(name)
        if account is None:
            raise PrivacyError(f"the ledger has no account '{name}'; list them with 'dp-powerflow ledger'")
        cap = account.cap
        epsilon, delta = cap.epsilon if epsilon is None else epsilon, cap.delta if delta is None else delta
        return self.change_cap(name, replace(cap, epsilon=epsilon, delta=delta), reason, key=key)

    def balance_after(self, spend: Spend) -> Balance:
        """Where an account stood just after a spend.

        A manifest states it: a release that is resumed after others were made then says what it would have
        said at once.
        """
        with self._store.reading() as books:
            account = books.accounts.get(spend.account)
        if account is None:
            raise PrivacyError(f"account {spend.account} is not of this ledger")
        return account.as_of(spend.entry).balance

    def spends(self, *, release_id: str | None = None) -> tuple[Spend, ...]:
        """All spends in the order they were made, or the spends of one release."""
        with self._store.reading() as books:
            return books.spends(release_id)

    def find(self, kind: AccountKind, dataset: str) -> Account | None:
        """The account of a kind that data belong to; None if there is none."""
        with self._store.reading() as books:
            return books.find(kind, dataset)

    def named(self, name: str) -> Account | None:
        """The account of a name; None if there is none."""
        with self._store.reading() as books:
            return books.accounts.get(name)

    def summary(self) -> LedgerSummary:
        """Everything, for showing."""
        with self._store.reading() as books:
            return books.summary()
