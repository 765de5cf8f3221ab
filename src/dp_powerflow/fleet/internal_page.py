"""`fleet-internal.html`: INTERNAL, what the data owner wants to know of a fleet, in the private state.

It names the feeders as their owner does and says which failed, so it is never published. `fleet.html` is the
page for everybody.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dp_powerflow.fleet.names import ENDS, STATES, FeederState
from dp_powerflow.page import Axis, Bars, Callout, Card, Figure, Page, Section, Series, Table
from dp_powerflow.pipeline.modes.base import INTERNAL
from dp_powerflow.pipeline.modes.twin import DISTANCE

INTERNAL_PAGE = "fleet-internal.html"
"""File in `state/internal/<fleet>/`."""
MOST_WARNINGS = 20
_UNKNOWN = "–"
_HEADER = (
    *("feeder", "public name", "state", "time [s]", "nodes", "days", "corpus [MB]"),
    *("account of the network", "ε charged", "ε left", "twin's distance [p.u.]", "worst node [p.u.]"),
)
_NUMERIC = frozenset(_HEADER.index(name) for name in (*_HEADER[3:7], *_HEADER[8:]))
_SLOWEST = 12


@dataclass(frozen=True)
class AccountRecord:
    """INTERNAL. What one account of the ledger was charged, and what is left of it.

    Attributes
    ----------
    account : its name.
    epsilon, delta : of the charge; None where it is not known.
    left_epsilon : ε that a further charge could have; None where it is not known.
    """

    account: str
    epsilon: float | None = None
    delta: float | None = None
    left_epsilon: float | None = None


@dataclass(frozen=True, eq=False)
class FeederRecord:
    """INTERNAL. One feeder of a fleet; None where something is not known (yet).

    Attributes
    ----------
    key, name : what its owner calls it, and its public name.
    state : where it is, at the time of the page.
    problem : why it failed, a sentence.
    release_id : of its release.
    seconds : how long its workers took.
    network : the account of its network.
    nodes, days, corpus_bytes : of its release.
    owner : content of its `owner.json`, which holds the distance of the twin to the true network.
    warnings : of its release.
    """

    key: str
    name: str
    state: FeederState
    problem: str | None = None
    release_id: str | None = None
    seconds: float | None = None
    network: AccountRecord | None = None
    nodes: int | None = None
    days: int | None = None
    corpus_bytes: int | None = None
    owner: bytes | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FleetRecord:
    """INTERNAL. A fleet as its owner sees it.

    Attributes
    ----------
    fleet_id : its name.
    feeders : in the order of public names.
    customers : the account of the meters.
    warnings : of the whole.
    """

    fleet_id: str
    feeders: tuple[FeederRecord, ...]
    customers: AccountRecord | None = None
    warnings: tuple[str, ...] = ()


def internal_page(record: FleetRecord) -> Page:
    """INTERNAL. The page for the data owner.

    Parameters
    ----------
    record : the fleet at this time; every feeder of the config, also those that were not begun.
    """
    feeders = record.feeders
    lead = (
        f"{len(feeders):,} feeders of fleet {record.fleet_id}: what became of each, what it was charged and "
        "what is left.",
        "This page names the feeders as you do and says which of them failed, which may depend on their "
        "networks. It stays in the private state; choosing settings by it is a leak.",
    )
    sections = [*_failed(feeders), *_warned(record)]
    table = Table(_HEADER, tuple(_row(each) for each in feeders), _CAPTION, _NUMERIC, sortable=True)
    sections.append(Section("feeders", "Feeders", (), (table,)))
    sections += _slowest(feeders)
    return Page(f"Fleet {record.fleet_id}, for its owner", INTERNAL, lead, tuple(sections), _cards(record))


_CAPTION = (
    "One row per feeder; – where nothing is known (yet). A click on a column sorts by it. The distance is "
    "that of voltages on the twin to those on the true network (W1), over all nodes and at the worst node."
)


def _cards(record: FleetRecord) -> tuple[Card, ...]:
    counts = Counter(each.state for each in record.feeders)
    others = ", ".join(
        f"{counts[state]:,} {state}" for state in STATES if counts[state] and state not in ENDS
    )
    cards = [
        Card("Released", f"{counts['released']:,} of {len(record.feeders):,}", others),
        Card("Failed", f"{counts['failed']:,}", "", "warning" if counts["failed"] else "good"),
    ]
    if record.customers is not None:
        paid = record.customers
        charged = f"{paid.account}, ε {_figure(paid.epsilon)} charged"
        cards.append(Card("Customers", f"ε {_figure(paid.left_epsilon)} left", charged))
    left = [each.network.left_epsilon for each in record.feeders if each.network is not None]
    known = [each for each in left if each is not None]
    if known:
        cards.append(Card("Networks", f"ε {_figure(min(known))} left", "of the account with least"))
    seconds = sum(each.seconds or 0.0 for each in record.feeders)
    if seconds:
        cards.append(Card("Time of the workers", _hours(seconds), "of all feeders together"))
    return tuple(cards)


def _failed(feeders: Sequence[FeederRecord]) -> list[Section]:
    rows = tuple(
        (each.key, each.name, each.problem or _UNKNOWN) for each in feeders if each.state == "failed"
    )
    if not rows:
        return []
    words = "Correct the feeder or its overrides, and run the fleet again: what is released stays as it is."
    table = Table(("feeder", "public name", "why"), rows, "Feeders that failed", sortable=len(rows) > 10)
    return [Section("failed", "Failed", (words,), (table,))]


def _warned(record: FleetRecord) -> list[Section]:
    counted = Counter(text for each in record.feeders for text in dict.fromkeys(each.warnings))
    said = [*record.warnings]
    said += [
        f"{text} ({count:,} of {len(record.feeders):,} feeders)"
        for text, count in counted.most_common(MOST_WARNINGS)
        if text not in record.warnings
    ]
    if len(counted) > MOST_WARNINGS:
        said.append(f"And {len(counted) - MOST_WARNINGS:,} more, in the manifests of the feeders.")
    if not said:
        return []
    return [Section("warnings", "Warnings", (), (Callout("Warnings", tuple(said), "warning", wide=True),))]


def _row(each: FeederRecord) -> tuple[str, ...]:
    paid = each.network
    distance, worst = _distances(each.owner)
    account = charged = left = _UNKNOWN
    if paid is not None:
        account, left = paid.account, _figure(paid.left_epsilon)
        charged = _figure(paid.epsilon)
    return (
        *(each.key, each.name, each.state),
        _UNKNOWN if each.seconds is None else f"{each.seconds:,.1f}",
        *(_count(each.nodes), _count(each.days)),
        _UNKNOWN if each.corpus_bytes is None else f"{each.corpus_bytes / 1e6:,.2f}",
        *(account, charged, left),
        *(distance, worst),
    )


def _distances(owner: bytes | None) -> tuple[str, str]:
    """Distances of the twin to the true network, as `owner.json` says: in the mean, and at the worst node."""
    try:
        found = json.loads(owner or b"null")[DISTANCE]
        return f"{found['pooled']:.5f}", f"{found['worst_node']:.5f}"
    except (ValueError, KeyError, TypeError):  # none: it says why, or the mode has no twin
        return _UNKNOWN, _UNKNOWN


def _slowest(feeders: Sequence[FeederRecord]) -> list[Section]:
    timed = sorted((each for each in feeders if each.seconds), key=lambda each: -(each.seconds or 0.0))
    shown = timed[:_SLOWEST]
    if len(shown) < 2:
        return []
    seconds = [round(each.seconds or 0.0, 1) for each in shown]
    series = Series("time of its worker", seconds)
    chart = Bars(Axis("time", "s", decimals=1), tuple(each.key for each in shown), (series,))
    caption = f"The {len(shown)} feeders that took longest, of {len(timed):,} that this run made."
    return [Section("time", "Time", (), (Figure("slowest", "What took longest", caption, chart),))]


def _count(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _figure(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.4g}"


def _hours(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60.0:,.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:,.1f} h"
