"""The accounts as the entries of the ledger say, kept up entry by entry.

Every question that a charge asks (which account has these data, this frame, this release; how many are there;
who opened them) is a look into an index. What a charge costs therefore does not depend on how many accounts
and charges there are. Exact sums are kept per account and equal those of all its charges, added up anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dp_powerflow.privacy.ledger.accounts import (
    AccountKind,
    Cap,
    Tally,
    cap_from_plain,
    cost_from_plain,
    fits,
)
from dp_powerflow.privacy.ledger.chain import FIRST, OF_THE_LEDGER, UNANCHORED, Entry, says_anchored
from dp_powerflow.privacy.ledger.records import (
    AccountSummary,
    Balance,
    Change,
    LedgerSummary,
    LostAnchor,
    Spend,
    balance_of,
)


@dataclass(frozen=True, slots=True)
class Page:
    """One account: an `AccountSummary` with the exact sum of its charges in place of the charges.

    Attributes
    ----------
    tally : what all its charges come to.
    n_spends, last_spend : how many there are, and the number of the last entry that is one.
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
        self.anchored: bool = before is not None and before.anchored

    def take(self, entry: Entry) -> None:
        """Go on with one further, checked entry."""
        self.anchored = self.anchored or says_anchored(entry)
        if entry.event in OF_THE_LEDGER:
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
            self._shown[name] = AccountSummary(
                page.name,
                page.cap,
                page.datasets,
                self.spends(name),
                page.changes,
                page.fleet,
                page.frames,
                page.same_frame,
            )
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
        cap = [change.cap for change in page.changes if change.entry <= as_of][-1]
        costs: list[Any] = [spend.cost for spend in self._spends[page.name] if spend.entry <= as_of]
        return balance_of(cap, cap.tally(costs), len(costs))

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
