"""What the ledger says, and what earlier releases say of it, for a person and for a machine. PRIVATE."""

from __future__ import annotations

import json
from dataclasses import asdict

from dp_powerflow.fleet.witness import Testimony
from dp_powerflow.privacy.ledger.accounts import Cost, GdpCost, PureCost, to_plain
from dp_powerflow.privacy.ledger.records import AccountSummary, Change, LedgerSummary
from dp_powerflow.report import Rendered


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
