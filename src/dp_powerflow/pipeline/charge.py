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

from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.rebuild import network_parameters
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.pipeline.plan import Plan, input_chunks, loads_chunks, network_chunks, plan_release
from dp_powerflow.pipeline.solar import solar_of
from dp_powerflow.pipeline.twin import parameter_chunks, spread_of
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.draw import parameters_of, rebuilder_of

REQUEST_FILE = "request.sha256"


@dataclass(frozen=True, eq=False)
class Charged:
    """A release whose load model is paid for; `inputs` is the keyed hash of all it is made from."""

    plan: Plan
    inputs: str
    ledger: Ledger
    loads: tuple[Account, Spend]
    network: Account


def inputs_of(config: Config, state: PrivateState, feeder: Feeder, history: LoadHistory) -> str:
    """Keyed hash of everything beside the config that decides the release."""
    solar = solar_of(config, feeder, history.n_steps)
    return state.identity("inputs", input_chunks(feeder, history, solar))


def network_identity(config: Config, state: PrivateState, feeder: Feeder) -> str:
    """Keyed hash of the network that is protected."""
    if isinstance(config.network, TwinNetwork):
        spread = spread_of(config)
        parameters_of(rebuilder_of(feeder, spread), spread)  # what cannot be protected is refused here
        absolute = network_parameters(feeder)  # whatever the spread: another one is the same network
        return state.identity("network", (*network_chunks(feeder), *parameter_chunks(absolute)))
    return state.identity("network", network_chunks(feeder))


def charge_loads(config: Config, state: PrivateState, feeder: Feeder, history: LoadHistory) -> Charged:
    """Plan, refuse what cannot be paid or was begun otherwise, and charge the customers."""
    inputs = inputs_of(config, state, feeder, history)
    plan = plan_release(config, history, inputs)
    ledger = Ledger.open(state)
    loads = ledger.account(
        state.identity("loads", loads_chunks(history)),
        plan.loads_cap,
        continues=config.release.continues_loads,
        unrelated=config.release.unrelated_loads,
    )
    reused = None if config.model.reuse is None else _spend_of(ledger, loads, config.model.reuse)
    dataset = network_identity(config, state, feeder)
    continues = config.release.continues_network
    asked = plan.network
    preview = ledger.preview(dataset, asked.cap, asked.cost, continues=continues, release_id=asked.paid_by)
    refuse_another_request(config.release.id, plan.request_sha256, state, ledger)
    _refuse_another_twin(ledger, plan, dataset, preview.account)
    if not preview.affordable:
        left = preview.before.available
        raise PrivacyError(
            f"release '{config.release.id}' needs ε = {_needed(plan):.4g} of the network, which has "
            f"{left.epsilon:.4g} left; ask for less, or raise the cap with a recorded reason; nothing was "
            "spent"
        )
    network = ledger.account(
        dataset, asked.cap, continues=continues, unrelated=config.release.unrelated_network
    )
    paid = reused or ledger.spend(loads, config.release.id, plan.request_sha256, plan.loads_cost)
    # A release that reuses a model is in the ledger only when it is published; this stands for it until then.
    state.write_internal(config.release.id, REQUEST_FILE, plan.request_sha256.encode())
    return Charged(plan, inputs, ledger, (loads, paid), network)


def charge_network(charged: Charged) -> tuple[Account, Spend]:
    """Charge the network: its policy before anything is published, a twin before it is drawn."""
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


def _refuse_another_twin(ledger: Ledger, plan: Plan, dataset: str, account: str | None) -> None:
    """One twin id, one twin: found out before the customers are charged."""
    asked = plan.network
    if asked.cost.kind is not AccountKind.NETWORK_GDP:
        return
    spends = [
        spend
        for summary in ledger.summary().accounts
        if summary.name == account
        for spend in summary.spends
        if spend.release_id == asked.paid_by
    ]
    if any((spend.request_sha256, spend.dataset) != (asked.request_sha256, dataset) for spend in spends):
        raise PrivacyError(
            f"twin '{asked.paid_by}' of this network was drawn with other spreads, for another change or "
            "from another version of the network; restore those, or choose a new twin id, which is paid for "
            "anew; nothing was spent"
        )


def _spend_of(ledger: Ledger, account: Account, release_id: str) -> Spend:
    """The spend that paid for the load model of an earlier release of the same meter data."""
    for spend in ledger.spends(account):
        if spend.release_id == release_id:
            return spend
    raise PrivacyError(
        f"model.reuse names release '{release_id}', which these customers were never charged for; "
        "name a release of the same meter data, or remove the key to fit anew"
    )
