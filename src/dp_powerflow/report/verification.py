"""What `verify` and `ledger` found; short commands, so this imports nothing that solves or fits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from dp_powerflow.fleet.checked import FleetReport
from dp_powerflow.fleet.names import partition
from dp_powerflow.manifest.model import NO_PROTECTION, NO_PROTECTION_OF_CUSTOMERS, Check
from dp_powerflow.manifest.verify import SEED, VerifyReport
from dp_powerflow.privacy.ledger.accounts import Cost, GdpCost, PureCost, to_plain
from dp_powerflow.privacy.ledger.records import AccountSummary, Change, LedgerSummary
from dp_powerflow.report import Rendered

if TYPE_CHECKING:
    from dp_powerflow.fleet.witness import Testimony

MOST_FEEDERS = 20
"""Feeders that failed and are shown with their sentences; the JSON has all."""
MOST_STATEMENTS = 20


def render_verification(report: VerifyReport) -> Rendered:
    """Every check of a release; of a fleet those of the whole, and its feeders together.

    Feeders that are as they should be are counted; of the others, the first have a line each.
    """
    checks = (f"{_mark(check, report)}  {check.name}: {check.sentence}" for check in _of_the_whole(report))
    feeders = _feeder_lines(report) if isinstance(report, FleetReport) else ()
    attested = (f"attested, not checked  {statement}" for statement in _once(report.attested))
    warnings = (f"WARNING  {warning}" for warning in _once(report.warnings))
    marks = (NO_PROTECTION, NO_PROTECTION_OF_CUSTOMERS)
    weak = "".join(f"; {mark}" for mark in marks if any(text.startswith(mark) for text in report.warnings))
    found = f"{report.verdict}: intact" if report.verdict == "demonstration" else report.verdict
    lines = [*warnings, *checks, *feeders, *attested, f"verdict: {found}{weak}"]
    return Rendered(lines, json.dumps(report.to_json()))


def _once(statements: Sequence[str]) -> Iterator[str]:
    """Statements that differ in a name between quotes only become one: of a fleet, every twin has its own."""
    alike: dict[str, list[str]] = {}
    for text in statements:
        alike.setdefault(re.sub(r"(?<!\w)'[^'\s]+'", "''", text), []).append(text)
    for first, *others in list(alike.values())[:MOST_STATEMENTS]:
        yield f"{first} The same holds for {len(others):,} more." if others else first
    if len(alike) > MOST_STATEMENTS:
        yield f"And {len(alike) - MOST_STATEMENTS:,} more; --json lists all."


def _is_of_a_feeder(check: Check) -> bool:
    return check.name.startswith(partition(""))


def _of_the_whole(report: VerifyReport) -> Iterator[Check]:
    return (check for check in report.checks if not _is_of_a_feeder(check))


def _feeder_lines(report: FleetReport) -> Iterator[str]:
    """How many feeders are intact; which kinds of checks failed, how often, and where."""
    feeders = [check for check in report.checks if _is_of_a_feeder(check)]
    failed = [check for check in feeders if not check.ok]
    if not feeders:
        return
    if not failed:
        yield f"ok    releases: {_feeders(len(feeders))} intact: {_checks_each(report)} each."
        return
    yield f"FAIL  releases: {len(feeders) - len(failed):,} of {_feeders(len(feeders))} intact."
    good = [kind for kind in report.feeder_checks if not kind.failed]
    for kind in report.feeder_checks:
        if kind.failed:
            yield f"FAIL    {kind.name}: fails in {kind.failed:,} of {_feeders(kind.feeders)}."
    if good:
        yield f"ok      {', '.join(kind.name for kind in good)}: no feeder fails."
    for check in failed[:MOST_FEEDERS]:
        yield f"FAIL  {check.name}: {check.sentence}"
    if len(failed) > MOST_FEEDERS:
        yield f"FAIL  and {len(failed) - MOST_FEEDERS:,} more feeders; --json lists all."


def _feeders(count: int) -> str:
    return f"{count:,} feeders" if count != 1 else "1 feeder"


def _checks_each(report: FleetReport) -> str:
    """So many checks of a feeder; a span where some have more, such as those of dates."""
    counts = [kind.feeders for kind in report.feeder_checks]
    everywhere = sum(count == max(counts) for count in counts)
    return f"{everywhere} checks" if everywhere == len(counts) else f"{everywhere} to {len(counts)} checks"


def _mark(check: Check, report: VerifyReport) -> str:
    """Of a demonstration that is intact, the seed is no failure but what makes it one."""
    if check.name == SEED and not check.ok and report.intact:
        return "demo"
    return "ok  " if check.ok else "FAIL"


def render_ledger(summary: LedgerSummary) -> Rendered:
    """All accounts with their spends."""
    lines = [
        "The ledger was made with an insecure seed: a demo or a test." if summary.insecure_seed else "",
        *(
            f"**Its anchor was lost** before entry {lost.entry} ({lost.at}): {lost.reason}. Only earlier "
            "releases can tell whether entries are missing: `ledger --witness`."
            for lost in summary.lost_anchors
        ),
        "",
    ]
    for account in summary.accounts:
        lines += _account_lines(account)
    if not summary.accounts:
        lines.append("Nothing has been spent.")
    content = {
        "insecure_seed": summary.insecure_seed,
        "entries": summary.entries,
        "lost_anchors": [asdict(lost) for lost in summary.lost_anchors],
        "accounts": [
            {
                "name": account.name,
                "kind": str(account.kind),
                "cap": to_plain(account.cap),
                "spent": account.balance.spent,
                "left": account.balance.left,
                "spends": [{"release": s.release_id, "at": s.at, **to_plain(s.cost)} for s in account.spends],
                "changes": [
                    {"what": c.what, "at": c.at, "reason": c.reason, "cap": to_plain(c.cap)}
                    for c in account.changes
                ],
            }
            for account in summary.accounts
        ],
    }
    return Rendered(lines, json.dumps(content))


def render_testimony(found: Testimony) -> Rendered:
    """What earlier releases say of the ledger."""
    stated = "1 earlier release states" if found.releases == 1 else f"{found.releases} earlier releases state"
    agreed = f"The ledger has every charge that {stated}."
    lines = [f"- {sentence}" for sentence in found.contradictions] or [agreed]
    content = {"releases": found.releases, "contradictions": list(found.contradictions)}
    return Rendered(lines, json.dumps(content))


def _account_lines(account: AccountSummary) -> list[str]:
    promise, left = account.balance.promise, account.balance.available
    return [
        f"**{account.name}** ({account.kind}; {promise.definition}), unit: {promise.unit}",
        "",
        f"spent ε = {promise.epsilon:.4g} at δ = {promise.delta:.3g}; left ε = {left.epsilon:.4g} "
        f"at δ = {left.delta:.3g}",
        "",
        "| release | when (UTC) | amount |",
        "|---|---|---|",
        *(
            f"| {spend.release_id} | {spend.at} | "
            + ", ".join(f"{name} {float(value):.4g}" for name, value in spend.cost.amounts().items())
            + f"{_touched(spend.cost)} |"
            for spend in account.spends
        ),
        "",
        *(_change_line(change) for change in account.changes if change.reason),
        "",
    ]


def _change_line(change: Change) -> str:
    """What somebody decided about an account, and why."""
    figures = ", ".join(
        f"{name} {value:.4g}" for name, value in to_plain(change.cap).items() if isinstance(value, float)
    )
    return f"- {change.what} {change.at}, cap from then on: {figures}. Reason: {change.reason}"


def _touched(cost: Cost) -> str:
    """Whom a cost is of, where that is not everybody."""
    if not isinstance(cost, PureCost | GdpCost):
        return ""
    parts = {"replaced": cost.scope.replaced, "added": cost.scope.added, "with one past": cost.scope.joined}
    return "".join(f"; {what} {', '.join(names)}" for what, names in parts.items() if names)
