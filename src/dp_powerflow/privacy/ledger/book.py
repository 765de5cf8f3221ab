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

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dp_powerflow._spending import charge_begins, charge_is_done
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import AccountKind, Cap, Cost, GdpCap, to_plain
from dp_powerflow.privacy.ledger.books import Page
from dp_powerflow.privacy.ledger.charging import Charge, Data, named, page_of
from dp_powerflow.privacy.ledger.checks import check_cap, check_cost
from dp_powerflow.privacy.ledger.records import (
    Account,
    AccountSummary,
    Balance,
    LedgerSummary,
    Preview,
    Spend,
    Unrelated,
    balance_of,
)
from dp_powerflow.privacy.ledger.store import Store
from dp_powerflow.privacy.state import RECEIPT, PrivateState


class Ledger:
    """The ledger of one private state directory (PRIVATE): what may be spent, and what has been.

    Any number of processes and threads may use it at once. A process checks and replays all of it when it
    first opens it, and again if somebody else has written to the file when it is opened again; every use
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

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, state: PrivateState, *, create: bool = True) -> Ledger:
        """Open the ledger and check all of it, unless this process has and nobody has written since.

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
        store.open()
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
        data = Data(dataset, cap, continues, unrelated, frame)
        with self._store.reading() as (books, _):
            known = data.known(books)
        if known is not None:
            return known
        with self._store.transaction() as transaction:
            return data.enter(transaction)

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
        if len({account.name for account, _ in charges}) < len(charges):
            raise PrivacyError("a release charges the same account twice; add up its costs and charge once")
        return self.charge_all(
            [Charge(account, release_id, request_sha256, cost) for account, cost in charges]
        )

    def charge_all(self, charges: Sequence[Charge]) -> tuple[Spend, ...]:
        """Record many charges, of any releases and accounts, all of them or none, in one transaction.

        It is as safe as a charge of its own for each and needs one write to the disk. Accounts that are not
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
        with self._store.reading() as (books, _):
            data = Data(dataset, cap, continues)
            found = data.found(books)
            if found is None and continues is not None:
                found = named(books, continues, cap.kind)
                check_cap(found, cap)
            page = Page("", cap, (dataset,), (), cap.nothing()) if found is None else found
            charged = release_id is not None and books.paid(page.name, release_id) is not None
            after = page if charged else page.with_cost(cost)
            return Preview(
                account=None if found is None else found.name,
                before=page.balance,
                after=after.balance,
                already_charged=charged,
                affordable=charged or after.fits,
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
            account = named(transaction.books, name, cap.kind)
            if cap.unit != account.cap.unit and not restated:
                raise PrivacyError(
                    f"account {name} is per '{account.cap.unit}', and what was spent cannot be restated in "
                    "another unit; change the figures of the cap only"
                )
            balance_of(cap, account.tally, account.n_spends)  # refused where it has no figure at this delta
            transaction.append("cap", name, {"cap": to_plain(cap), "reason": reason})

    def change_figures(self, name: str, epsilon: float | None, delta: float | None, reason: str) -> None:
        """Replace ε or δ of the cap of an account, with a reason; see `change_cap`."""
        account = self.named(name)
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
        with self._store.reading() as (books, _):
            page = page_of(books, account)
            return books.balance(page, None if as_of is None else as_of.entry)

    def spends(self, account: Account | None = None, *, release_id: str | None = None) -> tuple[Spend, ...]:
        """All spends in the order they were made, of one account, of one release, or of all."""
        with self._store.reading() as (books, _):
            name = None if account is None else page_of(books, account).name
            if release_id is None:
                return books.spends(name)
            return tuple(s for s in books.charges_of(release_id) if name in (None, s.account))

    def find(self, kind: AccountKind, dataset: str) -> AccountSummary | None:
        """Everything about the account that data belong to; None if there is none."""
        with self._store.reading() as (books, _):
            page = books.find(kind, dataset)
            return None if page is None else books.summary_of(page.name)

    def named(self, name: str) -> AccountSummary | None:
        """Everything about the account of a name; None if there is none."""
        with self._store.reading() as (books, _):
            return books.summary_of(name)

    def summary(self) -> LedgerSummary:
        """Everything, for showing."""
        with self._store.reading() as (books, entries):
            return books.summary(entries)
