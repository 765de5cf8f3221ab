"""What a release charges, and when.

The customers are charged before the fit: afterwards noise has met their data. The network is charged before
anything about it leaves the private state directory, which is when the corpus gets its name; that it can be
charged is checked at the start. A run that fails in between has cost the network nothing, and the load
model that it paid for can be reused.
"""

from __future__ import annotations

from dataclasses import dataclass

from dp_powerflow.config import Config
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.privacy.ledger import Ledger
from dp_powerflow.privacy.ledger_records import Account, Spend
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.release.plan import Plan, input_chunks, loads_chunks, network_chunks, plan_release
from dp_powerflow.release.solar import solar_of

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


def charge_loads(config: Config, state: PrivateState, feeder: Feeder, history: LoadHistory) -> Charged:
    """Plan, refuse what cannot be paid or was begun otherwise, and charge the customers."""
    inputs = inputs_of(config, state, feeder, history)
    plan = plan_release(config, history, inputs)
    ledger = Ledger.open(state)
    loads = ledger.account(
        state.identity("loads", loads_chunks(history)),
        plan.loads_cap,
        continues=config.release.continues_loads,
        unrelated=config.release.unrelated,
    )
    reused = None if config.model.reuse is None else _spend_of(ledger, loads, config.model.reuse)
    dataset = state.identity("network", network_chunks(feeder))
    continues = config.release.continues_network
    preview = ledger.preview(
        dataset, plan.network_cap, plan.network_cost, continues=continues, release_id=config.release.id
    )
    _refuse_another_request(config, state, ledger, plan)
    if not preview.affordable:
        left = preview.before.available
        raise PrivacyError(
            f"release '{config.release.id}' needs ε* = {plan.network_cost.epsilon:g} of the network, which "
            f"has {left.epsilon:.4g} left; ask for less, or raise the cap with a recorded reason; nothing "
            "was spent"
        )
    network = ledger.account(
        dataset, plan.network_cap, continues=continues, unrelated=config.release.unrelated
    )
    paid = reused or ledger.spend(loads, config.release.id, plan.request_sha256, plan.loads_cost)
    # A release that reuses a model is in the ledger only when it is published; this stands for it until then.
    state.write_internal(config.release.id, REQUEST_FILE, plan.request_sha256.encode())
    return Charged(plan, inputs, ledger, (loads, paid), network)


def charge_network(config: Config, charged: Charged) -> tuple[Account, Spend]:
    """Charge the network's policy, before anything is published."""
    plan = charged.plan
    spend = charged.ledger.spend(charged.network, config.release.id, plan.request_sha256, plan.network_cost)
    return charged.network, spend


def _refuse_another_request(config: Config, state: PrivateState, ledger: Ledger, plan: Plan) -> None:
    """One release id, one request: draws, model and evidence kept under the id belong to it alone."""
    begun = state.read_internal(config.release.id, REQUEST_FILE)
    charged = {spend.request_sha256 for spend in ledger.spends() if spend.release_id == config.release.id}
    known = charged | ({begun.decode()} if begun is not None else set())
    if known - {plan.request_sha256}:
        raise PrivacyError(
            f"release '{config.release.id}' was already charged for another request or other data; choose a "
            "new release id, or restore the configuration and the files to resume that one"
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
