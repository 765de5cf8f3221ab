"""The auditor's part of `verify`: opens the commitment to the internal report and looks at the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.pipeline.manifest.entries import entry, find
from dp_powerflow.pipeline.manifest.facts import AccountFacts
from dp_powerflow.pipeline.manifest.policy import TWIN_NETWORK
from dp_powerflow.pipeline.verify.files import MALFORMED, read_manifest
from dp_powerflow.pipeline.verify.report import Check, VerifyReport, check
from dp_powerflow.pipeline.verify.run import verify_release
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, AccountSummary, Balance
from dp_powerflow.privacy.state import PrivateState

REPORT_FILE = "report.json"
PURPOSE = "internal report"


def verify_private(
    path: str | os.PathLike[str],
    state_path: str | os.PathLike[str],
    recompute: Callable[[], bytes] | None = None,
    redraw: Callable[[], bool] | None = None,
) -> VerifyReport:
    """Everything `verify_release` checks, then the commitment, the ledger and the evidence. INTERNAL.

    Parameters
    ----------
    state_path : private state directory of the data owner.
    recompute : makes the internal report again from the private inputs; without it the evidence is opened
        and not recomputed.
    redraw : of a release on a twin: whether the twin kept in the private state directory is the one that key
        and network give; without it the twin is not looked at.

    Raises
    ------
    DpPowerflowError : there is no release or no private state directory.
    """
    report = verify_release(path)
    state = PrivateState.inspect(Path(state_path))
    manifest = read_manifest(Path(path))
    try:
        release_id = entry(manifest, "release.id", str)
        stored = state.read_internal(release_id, REPORT_FILE)
    except DpPowerflowError:
        unknown = Check("commitment", False, "The manifest names no release of this private state directory.")
        return replace(report, checks=(*report.checks, unknown))
    checks = [
        _check_commitment(state, manifest, release_id, stored),
        _check_ledger(state, manifest, release_id),
    ]
    if recompute is not None:
        checks.append(_check_evidence(stored, recompute))
    if redraw is not None and _on_twin(manifest):
        checks.append(_check_twin(redraw))
    return replace(report, checks=(*report.checks, *checks))


def _check_commitment(
    state: PrivateState, manifest: Mapping[str, Any], release_id: str, stored: bytes | None
) -> Check:
    def problems() -> Iterator[str]:
        if stored is None:
            yield f"The private state directory has no internal report of release '{release_id}'."
        elif state.commit(release_id, PURPOSE, stored).sha256 != _at(manifest, "internal_report.sha256"):
            yield "The internal report, or the key, is not the one the manifest commits to."
        if state.insecure_seed is not _at(manifest, "release.insecure_seed"):
            yield "The manifest and the private state directory disagree on the key's source."

    good = "The manifest's commitment opens to the internal report of the private state directory."
    return check("commitment", problems(), good)


def _at(manifest: Mapping[str, Any], path: str) -> Any:
    try:
        return find(manifest, path)
    except DpPowerflowError:
        return None


def _check_ledger(state: PrivateState, manifest: Mapping[str, Any], release_id: str) -> Check:
    """The composition statement against the ledger, as of the spend of this release."""
    try:
        ledger = Ledger.open(state, create=False)
        accounts = ledger.summary().accounts
    except DpPowerflowError as error:
        return Check("ledger", False, f"The ledger cannot be read: {error}.")

    of_loads = [account for account in accounts if account.kind is AccountKind.LOADS]
    on_twin = _on_twin(manifest)
    kind = AccountKind.NETWORK_GDP if on_twin else AccountKind.NETWORK_INSTANCE
    of_network = [account for account in accounts if account.kind is kind]
    # A twin is charged once, under its own id, whatever releases are made on it.
    payer = str(_at(manifest, "guarantee.network.twin")) if on_twin else release_id

    def problems() -> Iterator[str]:
        # A release that reuses an earlier load model has no charge of its own to the loads.
        loads = _balances(ledger, of_loads, release_id if _charged(of_loads, release_id) else None)
        network = _balances(ledger, of_network, payer)
        for name, balances in (("loads", loads), ("network", network)):
            if not balances:
                yield f"The ledger has no charge of this release, or of its twin, to the {name}."
            elif not any(_same(balance, _at(manifest, f"composition.{name}")) for balance in balances):
                yield f"The ledger and the manifest disagree on what was spent on the {name}."

    charged = "this release and its twin" if on_twin else "this release"
    good = f"The ledger was charged for {charged} and says what the manifest says of earlier ones."
    return check("ledger", problems(), good)


def _on_twin(manifest: Mapping[str, Any]) -> bool:
    return bool(_at(manifest, "guarantee.network.mode") == TWIN_NETWORK)


def _charged(accounts: list[AccountSummary], release_id: str) -> bool:
    return any(spend.release_id == release_id for account in accounts for spend in account.spends)


def _balances(ledger: Ledger, accounts: list[AccountSummary], release_id: str | None) -> list[Balance]:
    """Balances just after the spends of a release, or after every spend."""
    return [
        ledger.remaining(Account(account.name, spend.dataset, account.cap), as_of=spend)
        for account in accounts
        for spend in account.spends
        if release_id is None or spend.release_id == release_id
    ]


def _same(balance: Balance, stated: Any) -> bool:
    try:
        return bool(AccountFacts.of(balance).to_plain() == stated)
    except MALFORMED:
        return False


def _check_evidence(stored: bytes | None, recompute: Callable[[], bytes]) -> Check:
    same = stored is not None and recompute() == stored
    sentence = (
        "The internal report, made again from the private inputs, is the committed one."
        if same
        else "The internal report, made again from the private inputs, differs from the committed one."
    )
    return Check("network evidence", same, sentence)


def _check_twin(redraw: Callable[[], bool]) -> Check:
    same = redraw()
    sentence = (
        "The twin, drawn again from the key and the true network, is the one that was kept."
        if same
        else "The twin, drawn again from the key and the true network, is not the one that was kept."
    )
    return Check("twin", same, sentence)
