"""Charges what a release costs.

The customers are charged before the fit: afterwards noise has met their data. A twin is charged before it is
drawn. The true network is charged before anything about it leaves the private state directory, which is when
the corpus gets its name; that it can be charged is checked at the start. A run that fails in between has cost
the true network nothing, and the load model or twin that it paid for can be used again. At a URL the true
network is charged before the first part is written, because whoever reads the store sees parts as they come:
a run that fails afterwards has spent it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dp_powerflow.config import Config
from dp_powerflow.errors import ChangedRequestError, PrivacyError
from dp_powerflow.manifest.model import kinds_of_shared_accounts
from dp_powerflow.pipeline.inputs import ReleaseInputs
from dp_powerflow.pipeline.modes.base import NetworkFacts, NetworkMode
from dp_powerflow.pipeline.plan import Plan, planned, preview_network, refuse_unpaid_model, with_charge
from dp_powerflow.pipeline.receipts import REQUEST_FILE, keep_receipt, open_ledger
from dp_powerflow.privacy.ledger.book import Charge, Data, Ledger, price
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.state import PrivateState


@dataclass(frozen=True, eq=False)
class Charged:
    """A release whose load model is paid for, and whose network can be."""

    inputs: ReleaseInputs
    plan: Plan
    ledger: Ledger
    loads: tuple[Account, Spend]
    network: Account


def charge_loads(
    inputs: ReleaseInputs, mode: NetworkMode[Any], say: Callable[[str], None] = lambda _: None
) -> Charged:
    """Plan, refuse what cannot be paid or was begun otherwise, and charge the customers.

    Parameters
    ----------
    say : told why the load model would be worth little, before anything is spent.
    """
    config, state = inputs.config, inputs.state
    ledger, facts = open_ledger(state), mode.facts(inputs)
    plan = with_charge(planned(inputs, say), facts, mode, state, ledger)
    for warning in plan.warnings:
        say(warning)
    loads = ledger.account(
        inputs.loads_identity,
        plan.loads_cap,
        continues=config.release.continues_loads,
        unrelated=config.release.unrelated_loads,
    )
    reused = ledger.spends(loads, release_id=config.model.reuse) if config.model.reuse else ()
    refuse_unpaid_model(config, state, paid=bool(reused))
    refuse_unpayable(plan, facts, mode, state, ledger)
    data = network_data(config, plan, facts)
    network = ledger.account(
        data.dataset, data.cap, continues=data.continues, unrelated=data.unrelated, frame=data.frame
    )
    bought = reused or (ledger.spend(loads, config.release.id, plan.request_sha256, plan.loads_cost),)
    paid = bought[0]
    keep_begun(state, config.release.id, plan, paid, network.name)
    return Charged(inputs, plan, ledger, (loads, paid), network)


def charge_network(charged: Charged) -> tuple[Account, Spend]:
    """Charge the network; when that is, the mode says."""
    asked = charged.plan.network
    spend = charged.ledger.spend(charged.network, asked.paid_by, asked.request_sha256, asked.cost)
    keep_receipt(charged.inputs.state, charged.inputs.config.release.id, spend)
    return charged.network, spend


def network_data(config: Config, plan: Plan, facts: NetworkFacts) -> Data:
    """The network as the ledger is asked about it."""
    release = config.release
    return Data(
        facts.dataset, plan.network.cap, release.continues_network, release.unrelated_network, facts.frame
    )


def network_charge(data: Data | Account, plan: Plan) -> Charge:
    """What the network is charged."""
    asked = plan.network
    return Charge(data, asked.paid_by, asked.request_sha256, asked.cost)


def keep_begun(state: PrivateState, release_id: str, plan: Plan, loads: Spend, network: str) -> None:
    """Remember that a release is begun, of which request, and what paid for its load model.

    A release that reuses a model is in the ledger only when it is published; this stands for it until then.

    Parameters
    ----------
    network : account that its network belongs to.
    """
    state.write_internal(release_id, REQUEST_FILE, plan.request_sha256.encode())
    keep_receipt(state, release_id, loads, network)


def refuse_unpayable(
    plan: Plan, facts: NetworkFacts, mode: NetworkMode[Any], state: PrivateState, ledger: Ledger
) -> None:
    """Refuse a release that was begun otherwise, and one whose network cannot pay.

    Raises
    ------
    PrivacyError : says what to do; nothing was spent.
    """
    config = mode.config
    preview = preview_network(ledger, config, plan.network, facts.dataset)
    refuse_another_request(config.release.id, plan.request_sha256, state, ledger)
    _refuse_another_charge(ledger, plan, facts.dataset, preview.account, mode)
    if not preview.affordable:
        left, needed = preview.before.available, price(plan.network.cap, plan.network.cost)
        raise PrivacyError(
            f"release '{config.release.id}' needs ε = {needed.epsilon:.4g} of the network, which has "
            f"{left.epsilon:.4g} left; ask for less, or raise the cap with a recorded reason; nothing was "
            "spent"
        )


def refuse_another_request(release_id: str, request_sha256: str, state: PrivateState, ledger: Ledger) -> None:
    """One release id, one request: draws, model and evidence kept under the id belong to it alone."""
    begun = state.read_internal(release_id, REQUEST_FILE)
    shared = kinds_of_shared_accounts()  # a twin is charged under its own id, which may be that of a release
    charged = {
        spend.request_sha256 for spend in ledger.spends(release_id=release_id) if spend.kind not in shared
    }
    known = charged | ({begun.decode(errors="replace")} if begun is not None else set())
    if known - {request_sha256}:
        raise ChangedRequestError(
            f"release '{release_id}' was already charged for another request or other data; choose a "
            "new release id, or restore the configuration and the files to resume that one"
        )


def _refuse_another_charge(
    ledger: Ledger, plan: Plan, dataset: str, account: str | None, mode: NetworkMode[Any]
) -> None:
    """One id, one thing that is paid for: found out before the customers are charged."""
    asked = plan.network
    spends = [spend for spend in ledger.spends(release_id=asked.paid_by) if spend.account == account]
    if any((spend.request_sha256, spend.dataset) != (asked.request_sha256, dataset) for spend in spends):
        raise PrivacyError(mode.charged_otherwise())
