"""`ledger`: what every account has spent. PRIVATE like the ledger."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.accounts import GdpCap, to_plain
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import AccountSummary
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.report import Rendered


def show_ledger(state: Path) -> Rendered:
    """All accounts with their spends, after checking the whole ledger."""
    summary = Ledger.open(PrivateState.inspect(state), create=False).summary()
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


def change_cap(state: Path, name: str, epsilon: float | None, delta: float | None, reason: str) -> None:
    """Replace ε or δ of an account's cap, with a reason."""
    ledger = Ledger.open(PrivateState.inspect(state), create=False)
    found = [account for account in ledger.summary().accounts if account.name == name]
    if not found:
        raise PrivacyError(
            f"the ledger has no account '{name}'; list them with 'dp-powerflow ledger {state}'"
        )
    cap = found[0].cap
    if isinstance(cap, GdpCap):
        raise PrivacyError(
            "the cap of a twin is a mu of Gaussian differential privacy; it cannot be changed here"
        )
    epsilon, delta = epsilon or cap.epsilon, delta or cap.delta
    ledger.change_cap(name, replace(cap, epsilon=epsilon, delta=delta), reason)


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
