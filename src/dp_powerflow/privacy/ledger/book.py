"""The ledger: what every protected data set may spend in its lifetime, and what it has spent.

An account belongs to data (a keyed hash of the meter data, or of the network) and to a kind of arithmetic
(see `accounts`). A spend is checked against the cap and recorded in one transaction *before* the data are
used. A crash afterwards loses budget, never privacy, and not even budget if the release is run again: the
same release with the same request on the same data returns the spend it made before, and since its noise
comes from the key it gives the same bits.

    state = PrivateState.open("state")
    ledger = Ledger.open(state)
    account = ledger.account(state.identity("loads", chunks), LoadsCap(epsilon=4, delta=1e-5))
    ledger.spend(account, "2024-q1", request_sha256, LoadsCost.reserve(Budget(1.0)))

A corrected or extended file has another hash. It is not taken for new data without a word, or every
re-export would start with a full budget: `account` asks whether it `continues` an account or is `unrelated`
to every one of them, by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    Cap,
    Cost,
    GdpCap,
    fits,
    to_plain,
)
from dp_powerflow.privacy.ledger.checks import check_cap, check_cost, check_new, price, same_cost, words
from dp_powerflow.privacy.ledger.records import (
    Account,
    Accounts,
    AccountSummary,
    Balance,
    LedgerSummary,
    LostAnchor,
    Preview,
    Spend,
    Unrelated,
    replay,
    rows_of,
)
from dp_powerflow.privacy.ledger.store import UNANCHORED, Entry, Store, Transaction
from dp_powerflow.privacy.state import PrivateState, check_release_id

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Ledger:
    """The ledger of one private state directory (PRIVATE): what may be spent, and what has been.

    Any number of processes and threads may use it at once. All of it is checked and replayed when it is
    opened; every use after that checks and replays what was appended since, by this process or another one.
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

    def __init__(self, store: Store) -> None:
        self._store = store
        self._replayed: tuple[int, Accounts] = (0, {})

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
        store = Store(state)
        if create:
            store.create()
        ledger = cls(store)
        ledger._accounts(store.read())
        return ledger

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
        return cls.open(PrivateState.inspect(path), create=False)

    @classmethod
    def accept_unanchored(cls, path: Path | str, reason: str) -> Ledger:
        """Go on with a ledger whose anchor is lost; the reason is shown with the ledger from then on.

        Raises
        ------
        PrivacyError
            There is an anchor, there is no reason, or the ledger does not pass the check.
        """
        store = Store(PrivateState.inspect(path))
        store.accept_unanchored(reason)
        return cls(store)

    def account(
        self,
        dataset: str,
        cap: Cap,
        *,
        continues: str | None = None,
        unrelated: Unrelated | None = None,
        frame: str | None = None,
    ) -> Account:
        """The account of a data set, opened if there is none.

        Parameters
        ----------
        dataset : str
            `PrivateState.identity` of the meter data or the network.
        cap : LoadsCap, InstanceCap, TwinCap or GdpCap
            Its kind, its unit and the most that may ever be spent. An existing account must have the same.
        continues : str, optional
            Name of the account whose customers or lines these are, in a corrected or extended version:
            both versions are charged to it.
        unrelated : Unrelated, optional
            Why these data share nothing with those of the other accounts of the kind, all of which it must
            name.
        frame : str, optional
            Keyed hash of what a network has in common with its near copies. New data with the frame of an
            account are asked about even within a fleet.

        Returns
        -------
        Account

        Raises
        ------
        PrivacyError
            The cap is another one; or the data are new, there is another account of the kind, and neither
            `continues` nor `unrelated` says what they have to do with it.
        """
        _check_sha256(dataset, "identity of a data set")
        if continues is not None and unrelated is not None:
            raise PrivacyError("data cannot both continue an account and be unrelated to it; say one of them")
        data = {"dataset": dataset} | ({} if frame is None else {"frame": frame})
        known = _find(self._accounts(self._store.read()), dataset, cap, continues)
        if known is not None and (frame is None or known.frames.get(dataset) == frame):
            return Account(known.name, dataset, known.cap)
        with self._store.transaction() as transaction:
            accounts = self._accounts(transaction.entries)
            found = _find(accounts, dataset, cap, continues)  # another process may have been first
            if found is None and continues is None:
                return _open(transaction, accounts, data, cap, unrelated)
            account = found or _named(accounts, continues or "", cap.kind)
            if found is None:
                check_cap(account, cap)
                transaction.append("data", account.name, data)
            elif frame is not None and found.frames.get(dataset) != frame:  # opened by an earlier version
                transaction.append("frame", account.name, data)
            return Account(account.name, dataset, account.cap)

    def spend(self, account: Account, release_id: str, request_sha256: str, cost: Cost) -> Spend:
        """Check the cap and record a spend, before the data are used; see `spend_all`."""
        return self.spend_all(release_id, request_sha256, [(account, cost)])[0]

    def spend_all(
        self, release_id: str, request_sha256: str, charges: Sequence[tuple[Account, Cost]]
    ) -> tuple[Spend, ...]:
        """Record what a release costs several accounts, all of it or nothing, in one transaction.

        Parameters
        ----------
        release_id : str
            Names the release, or the twin or load model if several releases share it: those are paid once.
        request_sha256 : str
            Hash of everything public that decides the outcome (not of the caps, which may be raised between
            a crash and its resumption). With release id and data it says that a run is the same run, which
            is then not charged again.
        charges : sequence of (Account, cost)
            What each account is charged.

        Returns
        -------
        tuple of Spend
            In the order of the charges: made now, or before by the same run.

        Raises
        ------
        PrivacyError
            An account has not enough left, or the release id was charged for something else.
        """
        check_release_id(release_id)
        _check_sha256(request_sha256, "hash of a request")
        for account, cost in charges:
            check_cost(account.cap, cost)
        if len({account.name for account, _ in charges}) < len(charges):
            raise PrivacyError("a release charges the same account twice; add up its costs and charge once")
        with self._store.transaction() as transaction:
            accounts = self._accounts(transaction.entries)
            return tuple(
                _spend(transaction, _summary_of(accounts, account), account, release_id, request_sha256, cost)
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

        Returns
        -------
        Preview
        """
        check_cost(cap, cost)
        accounts = self._accounts(self._store.read())
        found = _find(accounts, dataset, cap, continues)
        if found is None and continues is not None:
            found = _named(accounts, continues, cap.kind)
            check_cap(found, cap)
        shown = AccountSummary("", cap, (dataset,)) if found is None else found
        charged = any(spend.release_id == release_id for spend in shown.spends)
        extra = () if charged else (cost,)
        return Preview(
            account=None if found is None else found.name,
            before=shown.balance,
            after=shown.balance_with(extra),
            already_charged=charged,
            affordable=charged or fits(shown.spent(extra), shown.cap.limits()),
        )

    def change_cap(self, name: str, cap: Cap, reason: str) -> None:
        """Replace the cap of an account; the reason is kept for ever. What was spent stays spent.

        Raises
        ------
        PrivacyError
            There is no such account, the cap has another unit, or there is no reason.
        """
        self._replace_cap(name, cap, reason, restated=False)

    def change_unit(self, name: str, cap: Cap, reason: str) -> None:
        """Replace the cap of an account by one in another unit, in which every cost is an upper bound.

        Whether it is one the caller must know: what was charged for changes up to r holds for smaller ones.
        Manifests state the unit as of their own charge, so those of earlier releases stay true.

        Raises
        ------
        PrivacyError
            There is no such account, or there is no reason.
        """
        self._replace_cap(name, cap, reason, restated=True)

    def _replace_cap(self, name: str, cap: Cap, reason: str, *, restated: bool) -> None:
        if not reason.strip():
            raise PrivacyError("changing a cap needs a reason; say who decided it and why")
        with self._store.transaction() as transaction:
            account = _named(self._accounts(transaction.entries), name, cap.kind)
            if cap.unit != account.cap.unit and not restated:
                raise PrivacyError(
                    f"account {name} is per '{account.cap.unit}', and what was spent cannot be restated in "
                    "another unit; change the figures of the cap only"
                )
            replace(account, cap=cap).spent()  # refused where what was spent has no figure at this delta
            transaction.append("cap", name, {"cap": to_plain(cap), "reason": reason})

    def change_figures(self, name: str, epsilon: float | None, delta: float | None, reason: str) -> None:
        """Replace ε or δ of the cap of an account, with a reason; see `change_cap`."""
        account = self._accounts(self._store.read()).get(name)
        if account is None:
            raise PrivacyError(f"the ledger has no account '{name}'; list them with 'dp-powerflow ledger'")
        cap = account.cap
        if isinstance(cap, GdpCap):
            raise PrivacyError(
                f"the cap of account {name}, of an earlier version of dp-powerflow, is a mu of Gaussian "
                "differential privacy; it cannot be changed, so draw a new twin, whose account has an epsilon"
            )
        epsilon, delta = cap.epsilon if epsilon is None else epsilon, cap.delta if delta is None else delta
        self.change_cap(name, replace(cap, epsilon=epsilon, delta=delta), reason)

    def remaining(self, account: Account, *, as_of: Spend | None = None) -> Balance:
        """Where the account stands, now or just after an earlier spend.

        A manifest states the balance as of its own spend: a release that is resumed after others were made
        then says what it would have said at once.
        """
        found = _summary_of(self._accounts(self._store.read()), account)
        return found.balance if as_of is None else found.as_of(as_of.entry).balance

    def spends(self, account: Account | None = None) -> tuple[Spend, ...]:
        """All spends in the order they were made, of one account or of all."""
        accounts = self._accounts(self._store.read())
        chosen = accounts.values() if account is None else [_summary_of(accounts, account)]
        return tuple(sorted((s for item in chosen for s in item.spends), key=lambda spend: spend.entry))

    def summary(self) -> LedgerSummary:
        """Everything, for showing."""
        entries = self._store.read()
        accounts = tuple(self._accounts(entries).values())
        lost = (e for e in entries if e.event == UNANCHORED)
        return LedgerSummary(
            bool(entries[0].fields["insecure_seed"]),
            entries[0].at,
            len(entries),
            accounts,
            tuple(LostAnchor(e.fields["reason"], e.at, e.seq) for e in lost),
        )

    def _accounts(self, entries: tuple[Entry, ...]) -> Accounts:
        """The accounts after these checked entries."""
        count, accounts = self._replayed
        if len(entries) > count:
            accounts = replay(accounts, entries[count:])
            self._replayed = len(entries), accounts
        return accounts


def _find(accounts: Accounts, dataset: str, cap: Cap, continues: str | None) -> AccountSummary | None:
    """The account these data belong to already, if its cap is the one expected."""
    for account in accounts.values():
        if account.kind is cap.kind and dataset in account.datasets:
            if continues not in (None, account.name):
                raise PrivacyError(
                    f"these data belong to account {account.name} and cannot continue another; "
                    f"leave out continues or set it to {account.name}"
                )
            check_cap(account, cap)
            return account
    return None


def _open(
    transaction: Transaction,
    accounts: Accounts,
    data: Mapping[str, str],
    cap: Cap,
    unrelated: Unrelated | None,
) -> Account:
    check_new(accounts, data.get("frame"), cap.kind, unrelated)
    name = f"{cap.kind.stem}-{1 + sum(item.kind is cap.kind for item in accounts.values())}"
    fields: dict[str, Any] = {"kind": str(cap.kind), **data, "cap": to_plain(cap), "reason": ""}
    if unrelated is not None:
        fields |= {"reason": unrelated.reason, "unrelated": rows_of(unrelated.accounts)}
        fields |= {} if unrelated.fleet is None else {"fleet": unrelated.fleet}
        fields |= {"same_frame": True} if unrelated.same_frame else {}
    transaction.append("open", name, fields)
    return Account(name, data["dataset"], cap)


def _spend(
    transaction: Transaction,
    found: AccountSummary,
    account: Account,
    release_id: str,
    request_sha256: str,
    cost: Cost,
) -> Spend:
    check_cap(found, account.cap)
    for spend in found.spends:
        if spend.release_id == release_id:
            same = (spend.request_sha256, spend.dataset) == (request_sha256, account.dataset)
            if not (same and same_cost(spend.cost, cost)):
                raise PrivacyError(
                    f"release '{release_id}' was already charged to account {found.name} for another request "
                    "or other data; choose a new release id, or restore the configuration to resume that one"
                )
            return spend
    if not fits(found.spent([cost]), found.cap.limits()):
        needed, left = price(found.cap, cost), found.balance.available
        raise PrivacyError(
            f"release '{release_id}' needs {words(needed)} of account {found.name}, which has "
            f"{words(left)} left; ask for less, or raise the cap with a recorded reason; nothing was spent"
        )
    fields = {"dataset": account.dataset, "cost": to_plain(cost)}
    entry = transaction.append(
        "spend", found.name, fields, release_id=release_id, request_sha256=request_sha256
    )
    return Spend.of(entry, found.kind, cost)


def _summary_of(accounts: Accounts, account: Account) -> AccountSummary:
    found = accounts.get(account.name)
    if found is None or account.dataset not in found.datasets or found.kind is not account.kind:
        raise PrivacyError(f"account {account.name} is not of this ledger; get it from Ledger.account")
    return found


def _named(accounts: Accounts, name: str, kind: AccountKind) -> AccountSummary:
    found = accounts.get(name)
    if found is None or found.kind is not kind:
        known = [item.name for item in accounts.values() if item.kind is kind]
        raise PrivacyError(
            f"the ledger has no account '{name}' of the kind '{kind}'; it has {', '.join(known) or 'none'}"
        )
    return found


def _check_sha256(value: str, what: str) -> None:
    if not _SHA256.fullmatch(value):
        raise PrivacyError(f"the {what} must have 64 lower-case hexadecimal digits")
