"""What a release would cost, before anything is spent, from public quantities only."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from dp_powerflow._names import __version__
from dp_powerflow.config import Config
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.derive import PlannedFit, planned_queries
from dp_powerflow.model.fit import history_facts
from dp_powerflow.pipeline.inputs import budget_of, fit_options_of, read_inputs
from dp_powerflow.pipeline.modes.base import NetworkCharge, NetworkMode, mode_of
from dp_powerflow.privacy.budget import QueryCost, rho_to_epsilon, total_rho
from dp_powerflow.privacy.ledger.accounts import LoadsCap, LoadsCost
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.privacy.state import PrivateState

_NOT_PART_OF_THE_REQUEST = {
    "release": {"output", "state", "epsilon_cap", "network_epsilon_cap", "network_delta_cap"},
    "feeder": {"source", "taps"},
    "loads": {"path", "services"},
    "pv": {"irradiance"},
}


@dataclass(frozen=True)
class Plan:
    """The cost of a release.

    Attributes
    ----------
    queries : every query of the fit, with its sensitivity, noise scale and cost; of second-round queries a
        typical scale.
    epsilon, delta, rho : what they add up to.
    loads_cost, loads_cap : what the ledger is asked of the customers.
    network : what it is asked of the network.
    request_sha256 : hash of everything public that decides the outcome.
    notes : public remarks, such as a budget too small to be useful.
    """

    queries: tuple[QueryCost, ...]
    rho: float
    epsilon: float
    delta: float
    loads_cost: LoadsCost
    loads_cap: LoadsCap
    network: NetworkCharge
    request_sha256: str
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PlannedRelease:
    """What a release would cost and what it would leave.

    Attributes
    ----------
    mode : how the network is treated.
    loads, network : both accounts of the ledger, before and after.
    """

    mode: NetworkMode[Any]
    plan: Plan
    loads: Preview
    network: Preview


def plan(config: Config) -> PlannedRelease:
    """Read and check all that a release is made from and look at the ledger; nothing is spent or recorded.

    Raises
    ------
    DpPowerflowError : the release would be refused.
    """
    state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
    inputs, mode = read_inputs(config, state), mode_of(config)
    mode.check(inputs)
    found = plan_release(config, inputs.history, inputs.identity)
    ledger = Ledger.open(state)
    loads = ledger.preview(
        inputs.loads_identity,
        found.loads_cap,
        found.loads_cost,
        continues=config.release.continues_loads,
        release_id=config.model.reuse or config.release.id,
    )
    return PlannedRelease(
        mode, found, loads, preview_network(ledger, config, found.network, mode.identity(inputs))
    )


def preview_network(ledger: Ledger, config: Config, asked: NetworkCharge, dataset: str) -> Preview:
    """What the charge of the network would do to the account of a data set."""
    continues = config.release.continues_network
    return ledger.preview(dataset, asked.cap, asked.cost, continues=continues, release_id=asked.paid_by)


def plan_release(config: Config, history: LoadHistory, inputs: str) -> Plan:
    """Plan from the public facts of the history: its size, labels and scales; no reading is looked at.

    Which queries are asked and what they cost in ρ is public; the natural scale of second-round queries
    follows the released answers of the first round, so those scales are typical ones. The ledger is charged
    all that the budget allows.

    Parameters
    ----------
    inputs : keyed hash of everything else that decides the outcome (`ReleaseInputs.identity`).
    """
    reused = config.model.reuse is not None  # a model that is paid for: nothing is asked of the customers
    asked = PlannedFit((), ()) if reused else _planned_fit(config, history)
    rho = total_rho(asked.queries)
    request = _request(config, inputs)
    loads_cap = LoadsCap(
        config.release.epsilon_cap or config.model.epsilon, config.model.delta, budget_of(config).unit
    )
    return Plan(
        queries=asked.queries,
        rho=rho,
        epsilon=rho_to_epsilon(rho, config.model.delta),
        delta=config.model.delta,
        loads_cost=LoadsCost.reserve(budget_of(config)),
        loads_cap=loads_cap,
        network=mode_of(config).charge(request),
        request_sha256=request,
        notes=asked.notes,
    )


def _planned_fit(config: Config, history: LoadHistory) -> PlannedFit:
    options, budget = fit_options_of(config), budget_of(config)
    return planned_queries(history_facts(history, options, budget.unit), options, budget)


def _request(config: Config, inputs: str) -> str:
    public = config.model_dump(mode="json", exclude=_NOT_PART_OF_THE_REQUEST)
    content = {"config": public, "inputs": inputs, "version": __version__}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
