"""What a release charges, and when.

The customers are charged before the fit: afterwards noise has met their data. A twin is charged before it is
drawn. The true network is charged before anything about it leaves the private state directory, which is when
the corpus gets its name; that it can be charged is checked at the start. A run that fails in between has cost
the true network nothing, and the load model or twin that it paid for can be used again. At a URL the true
network is charged before the first part is written, because whoever reads the store sees parts as they come:
a run that fails afterwards has spent it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.pipeline.inputs import ReleaseInputs
from dp_powerflow.pipeline.modes.base import NetworkMode
from dp_powerflow.pipeline.plan import Plan, plan_release, preview_network
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.state import PrivateState

REQUEST_FILE = "request.sha256"


@dataclass(frozen=True, eq=False)
class Charged:
    """A release whose load model is paid for, and whose network can be."""

    plan: Plan
    ledger: Ledger
    loads: tuple[Account, Spend]
    network: Account


def charge_loads(inputs: ReleaseInputs, mode: NetworkMode[Any]) -> Charged:
    """Plan, refuse what cannot be paid or was begun otherwise, and charge the customers."""
    config, state = inputs.config, inputs.state
    plan = plan_release(config, inputs.history, inputs.identity)
    ledger = Ledger.open(state)
    loads = ledger.account(
        inputs.loads_identity,
        plan.loads_cap,
        continues=config.release.continues_loads,
        unrelated=config.release.unrelated_loads,
    )
    reused = None if config.model.reuse is None else _spend_of(ledger, loads, config.model.reuse)
    dataset = mode.identity(inputs)
    preview = preview_network(ledger, config, plan.network, dataset)
    refuse_another_request(config.release.id, plan.request_sha256, state, ledger)
    _refuse_another_charge(ledger, plan, dataset, preview.account, mode)
    if not preview.affordable:
        left = preview.before.available
        raise PrivacyError(
            f"release '{config.release.id}' needs ε = {_needed(plan):.4g} of the network, which has "
            f"{left.epsilon:.4g} left; ask for less, or raise the cap with a recorded reason; nothing was "
            "spent"
        )
    network = ledger.account(
        dataset,
        plan.network.cap,
        continues=config.release.continues_network,
        unrelated=config.release.unrelated_network,
    )
    paid = reused or ledger.spend(loads, config.release.id, plan.request_sha256, plan.loads_cost)
    # A release that reuses a model is in the ledger only when it is published; this stands for it until then.
    state.write_internal(config.release.id, REQUEST_FILE, plan.request_sha256.encode())
    return Charged(plan, ledger, (loads, paid), network)


def charge_network(charged: Charged) -> tuple[Account, Spend]:
    """Charge the network; when that is, the mode says."""
    asked = charged.plan.network
    spend = charged.ledger.spend(charged.network, asked.paid_by, asked.request_sha256, asked.cost)
    return charged.network, spend


def _needed(plan: Plan) -> float:
    return plan.network.cap.statement(plan.network.cost.amounts()).epsilon


def refuse_another_request(release_id: str, request_sha256: str, state: PrivateState, ledger: Ledger) -> None:
    """One release id, one request: draws, model and evidence kept under the id belong to it alone."""
    begun = state.read_internal(release_id, REQUEST_FILE)
    charged = {
        spend.request_sha256
        for spend in ledger.spends()
        # The charge of a twin is recorded under the twin's id, which may be that of a release.
        if spend.release_id == release_id and spend.cost.kind is not AccountKind.NETWORK_GDP
    }
    known = charged | ({begun.decode()} if begun is not None else set())
    if known - {request_sha256}:
        raise PrivacyError(
            f"release '{release_id}' was already charged for another request or other data; choose a "
            "new release id, or restore the configuration and the files to resume that one"
        )


def _refuse_another_charge(
    ledger: Ledger, plan: Plan, dataset: str, account: str | None, mode: NetworkMode[Any]
) -> None:
    """One id, one thing that is paid for: found out before the customers are charged."""
    asked = plan.network
    spends = [
        spend
        for summary in ledger.summary().accounts
        if summary.name == account
        for spend in summary.spends
        if spend.release_id == asked.paid_by
    ]
    if any((spend.request_sha256, spend.dataset) != (asked.request_sha256, dataset) for spend in spends):
        raise PrivacyError(mode.charged_otherwise())


def _spend_of(ledger: Ledger, account: Account, release_id: str) -> Spend:
    """The spend that paid for the load model of an earlier release of the same meter data."""
    for spend in ledger.spends(account):
        if spend.release_id == release_id:
            return spend
    raise PrivacyError(
        f"model.reuse names release '{release_id}', which these customers were never charged for; "
        "name a release of the same meter data, or remove the key to fit anew"
    )
