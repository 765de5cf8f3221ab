"""`ledger`: what every account has spent. PRIVATE like the ledger."""

from __future__ import annotations

import json

from dp_powerflow.privacy.ledger.accounts import to_plain
from dp_powerflow.privacy.ledger.records import AccountSummary, LedgerSummary
from dp_powerflow.report import Rendered


def ledger_page(summary: LedgerSummary) -> Rendered:
    """All accounts with their spends."""
    lines = [
        "The ledger was made with an insecure seed: a demo or a test." if summary.insecure_seed else "",
        "",
    ]
    for account in summary.accounts:
        lines += _lines(account)
    if not summary.accounts:
        lines.append("Nothing has been spent.")
    content = {
        "insecure_seed": summary.insecure_seed,
        "entries": summary.entries,
        "accounts": [
            {
                "name": account.name,
                "kind": str(account.kind),
                "cap": to_plain(account.cap),
                "spent": account.balance.spent,
                "left": account.balance.left,
                "spends": [{"release": s.release_id, "at": s.at, **to_plain(s.cost)} for s in account.spends],
            }
            for account in summary.accounts
        ],
    }
    return Rendered(lines, json.dumps(content))


def _lines(account: AccountSummary) -> list[str]:
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
            + " |"
            for spend in account.spends
        ),
        "",
    ]
