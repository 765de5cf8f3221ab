"""INTERNAL. What the data owner learns of a run: every feeder on its way, what failed and why, one page.

It names the feeders as their owner does and says which failed, so it stays in the private state:

    state/internal/<fleet>/failures.json          for programs
    state/internal/<fleet>/fleet-internal.html    the page; `fleet.html` is the one for everybody
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dp_powerflow.fleet.feeders import FleetFeeder
from dp_powerflow.fleet.making import Examined
from dp_powerflow.page import Callout, Card, Page, Section, Table
from dp_powerflow.pipeline.modes.base import INTERNAL, OWNER_FILE
from dp_powerflow.pipeline.modes.twin import DISTANCE
from dp_powerflow.pipeline.release import Paid
from dp_powerflow.privacy.ledger.accounts import Balance
from dp_powerflow.privacy.ledger.book import price
from dp_powerflow.privacy.ledger.records import Spend
from dp_powerflow.privacy.state import PrivateState

FAILURES_FILE, INTERNAL_PAGE = "failures.json", "fleet-internal.html"
MOST_WARNINGS = 20
"""Of feeders, that the page shows, the most common first; the manifests have all."""
DRAWS_PER_NODE = 20
"""Customers that are drawn in the time in which a node is solved and written, about."""
_UNKNOWN = "–"
_HEADER = (
    *("feeder", "public name", "state", "time [s]", "nodes", "days", "corpus [MB]"),
    *("account of the network", "ε charged", "ε left", "twin's distance [p.u.]", "worst node [p.u.]"),
)
_NUMERIC = frozenset(_HEADER.index(name) for name in (*_HEADER[3:7], *_HEADER[8:]))
_CAPTION = (
    "One row per feeder; – where nothing is known (yet). A click on a column sorts by it. The distance is "
    "that of voltages on the twin to those on the true network (W1), over all nodes and at the worst node."
)


@dataclass(frozen=True)
class Outcome:
    """INTERNAL. What became of one feeder.

    `problem` is a sentence, None if it is released; `code` is the kind of refusal.
    """

    key: str
    name: str
    problem: str | None = None
    code: str | None = None


@dataclass(eq=False, repr=False)
class Way:
    """PRIVATE. One feeder on its way.

    Attributes
    ----------
    released : whether it is in the corpus.
    examined, paid : what its check found, and what was paid for it; None before.
    problem, code : why it failed.
    seconds : that its workers took.
    """

    feeder: FleetFeeder
    released: bool
    examined: Examined | None = None
    paid: Paid | None = None
    problem: str | None = None
    code: str | None = None
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        return self.released or self.problem is not None

    @property
    def state(self) -> str:
        """How far it has come, in a word."""
        if self.ended:
            return "released" if self.released else "failed"
        return "paid" if self.paid else "checked" if self.examined else "waiting"

    @property
    def work(self) -> int:
        """What making it takes, about, in node-days; to draw a customer takes less than to solve a node."""
        if self.examined is None:
            return 0
        return (self.examined.nodes + self.examined.draws // DRAWS_PER_NODE) * self.feeder.config.release.days

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.feeder.key, self.feeder.name, self.problem, self.code)


_FIGURE = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?")


class Warned:
    """What the feeders of a fleet were warned of, in the order in which it came up.

    Sentences that differ in figures only are one.
    """

    def __init__(self) -> None:
        self._of_all: dict[str, None] = {}
        self._of_feeders: dict[str, list[tuple[str, str]]] = {}

    def of_all(self, *sentences: str) -> None:
        """What holds for the whole fleet, or for all feeders alike."""
        self._of_all.update(dict.fromkeys(sentences))

    def of_feeder(self, name: str, *sentences: str) -> None:
        """What holds for one feeder, by its public name."""
        for sentence in sentences:
            self._of_feeders.setdefault(_FIGURE.sub("#", sentence), []).append((name, sentence))

    def sentences(self) -> tuple[str, ...]:
        """All of it."""
        told = []
        for alike in self._of_feeders.values():
            name, sentence = min(alike)
            others = f" and {len(alike) - 1:,} more, with figures of their own" if len(alike) > 1 else ""
            told.append(f"{name}{others}: {sentence}")
        return (*told, *self._of_all)


def read_failures(state: PrivateState, fleet_id: str) -> list[dict[str, str | None]]:
    """Feeders that failed in the last run: key, public name, code and why; none if the file is damaged."""
    try:
        failed = json.loads(state.read_internal(fleet_id, FAILURES_FILE) or b"")["failed"]
        whole = all(isinstance(item[key], str) for item in failed for key in ("feeder", "name"))
        return [dict(item) for item in failed] if whole else []
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def write_owner_files(
    state: PrivateState,
    fleet_id: str,
    ways: Sequence[Way],
    customers: tuple[Spend, Balance] | None,
    warnings: Sequence[str],
) -> None:
    """Keep what became of every feeder: for programs, and as a page.

    Parameters
    ----------
    ways : of all feeders of the config, in the order of public names.
    customers : their charge, and how the account stood just after it; None before.
    warnings : of the whole.
    """
    failed = [
        {"feeder": way.feeder.key, "name": way.feeder.name, "code": way.code, "problem": way.problem}
        for way in ways
        if way.problem is not None
    ]
    waiting = {way.feeder.name for way in ways if way.state == "waiting"}  # this run did not come to them
    failed += [item for item in read_failures(state, fleet_id) if item.get("name") in waiting]
    content = {"marking": INTERNAL, "fleet": fleet_id, "failed": failed}
    failures = json.dumps(content, indent=1, ensure_ascii=False)
    state.write_internal(fleet_id, FAILURES_FILE, failures.encode())
    if not any(way.examined for way in ways) and state.read_internal(fleet_id, INTERNAL_PAGE) is not None:
        return  # nothing was left to do: the page of the run that did it says more
    lead = (
        f"{len(ways):,} feeders of fleet {fleet_id}: what became of each, what it was charged and what is "
        "left.",
        "This page names the feeders as you do and says which of them failed, which may depend on their "
        "networks. It stays in the private state; choosing settings by it is a leak.",
    )
    rows = tuple(_row(way, state.read_internal(way.feeder.release_id, OWNER_FILE)) for way in ways)
    table = Table(_HEADER, rows, _CAPTION, _NUMERIC, sortable=True)
    sections = (
        *_failed(ways),
        *_warned(ways, warnings),
        Section("feeders", "Feeders", (), (table,)),
    )
    page = Page(f"Fleet {fleet_id}, for its owner", INTERNAL, lead, sections, _cards(ways, customers))
    state.write_internal(fleet_id, INTERNAL_PAGE, page.to_html())


def _cards(ways: Sequence[Way], customers: tuple[Spend, Balance] | None) -> tuple[Card, ...]:
    counts = Counter(way.state for way in ways)
    others = ", ".join(
        f"{counts[state]:,} {state}" for state in ("waiting", "checked", "paid") if counts[state]
    )
    cards = [
        Card("Released", f"{counts['released']:,} of {len(ways):,}", others),
        Card("Failed", f"{counts['failed']:,}", "", "warning" if counts["failed"] else "good"),
    ]
    if customers is not None:
        account, charged, left = _account(*customers)
        cards.append(Card("Customers", f"ε {left} left", f"{account}, ε {charged} charged"))
    return tuple(cards)


def _failed(ways: Sequence[Way]) -> list[Section]:
    rows = tuple((way.feeder.key, way.feeder.name, way.problem) for way in ways if way.problem is not None)
    if not rows:
        return []
    words = "Correct the feeder or its overrides, and run the fleet again: what is released stays."
    table = Table(("feeder", "public name", "why"), rows, "Feeders that failed", sortable=len(rows) > 10)
    return [Section("failed", "Failed", (words,), (table,))]


def _warned(ways: Sequence[Way], warnings: Sequence[str]) -> list[Section]:
    counted = Counter(text for way in ways if way.examined for text in dict.fromkeys(way.examined.warnings))
    told = (
        f"{text} ({count:,} of {len(ways):,} feeders)" for text, count in counted.most_common(MOST_WARNINGS)
    )
    said = (*warnings, *told)
    return (
        [Section("warnings", "Warnings", (), (Callout("Warnings", said, "warning", wide=True),))]
        if said
        else []
    )


def _row(way: Way, owner: bytes | None) -> tuple[str, ...]:
    shape, money = (_UNKNOWN,) * 3, (_UNKNOWN,) * 3
    if way.examined is not None:
        days, size = way.feeder.config.release.days, way.examined.corpus_bytes / 1e6
        shape = (f"{way.examined.nodes:,}", f"{days:,}", f"{size:,.2f}")
    if way.paid is not None:
        money = _account(way.paid.spend, way.paid.network)
    seconds = f"{way.seconds:,.1f}" if way.seconds else _UNKNOWN
    return (way.feeder.key, way.feeder.name, way.state, seconds, *shape, *money, *_distances(owner))


def _account(spend: Spend, balance: Balance) -> tuple[str, str, str]:
    """Its name, ε that was charged, and ε that a further charge could have."""
    charged = price(balance.cap, spend.cost).epsilon
    return spend.account, f"{charged:.4g}", f"{balance.available.epsilon:.4g}"


def _distances(owner: bytes | None) -> tuple[str, str]:
    """Distances of the twin to the true network, as `owner.json` says: in the mean, and at the worst node."""
    try:
        found = json.loads(owner or b"null")[DISTANCE]
        return f"{found['pooled']:.5f}", f"{found['worst_node']:.5f}"
    except (ValueError, KeyError, TypeError):  # none: it says why, or the mode has no twin
        return _UNKNOWN, _UNKNOWN
