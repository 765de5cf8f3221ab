"""`fleet --plan`: what a fleet would cost the customers and every network. INTERNAL: it names the feeders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from dp_powerflow._parallel import engine_of
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.fleet.accounts import feeders_of
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.customers import Customers, plan_customers
from dp_powerflow.fleet.feeders import FleetFeeder
from dp_powerflow.fleet.manifest import CUSTOMERS
from dp_powerflow.fleet.process import maker_of
from dp_powerflow.pipeline.inputs import history_of, loads_chunks
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import preview_network
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.report import Rendered

MARKING = "INTERNAL: names feeders and says which of them can be released; not for publication"


@dataclass(frozen=True)
class FeederPlan:
    """INTERNAL. One feeder: what its network would be charged, or why it cannot be released."""

    key: str
    name: str
    released: bool
    problem: str | None
    network: Preview | None


def plan_fleet(
    config: FleetConfig,
    progress: Callable[[int, int], None] | None = None,
    feeders_per_process: int | None = None,
) -> Rendered:
    """Plan a fleet; every feeder is opened, the ledger is looked at, nothing is recorded.

    Parameters
    ----------
    feeders_per_process : as of `run_fleet`.
    """
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    ledger = Ledger.open(state)
    feeders = feeders_of(config, state, ledger)
    history = history_of(feeders[0].config, None)
    plans = []
    with maker_of(engine_of(1, None), history, feeders_per_process) as maker:
        for done, feeder in enumerate(feeders, start=1):
            network, problem = None, None
            try:
                network = _network(feeder, ledger, maker.examine(feeder.config))
            except (DpPowerflowError, OSError) as error:
                problem = str(error)
            released = (config.fleet.output / feeder.directory).exists()
            plans.append(FeederPlan(feeder.key, feeder.name, released, problem, network))
            if progress is not None:
                progress(done, len(feeders))
    customers = plan_customers(config, feeders[0].config, state, history)
    loads = _loads(config, state, ledger, customers)
    content = _content(config, customers, loads, plans)
    return Rendered(_lines(config, customers, loads, plans), json.dumps(content))


def _network(feeder: FleetFeeder, ledger: Ledger, dataset: str) -> Preview:
    return preview_network(ledger, feeder.config, mode_of(feeder.config).charge(""), dataset)


def _loads(config: FleetConfig, state: PrivateState, ledger: Ledger, customers: Customers) -> Preview:
    return ledger.preview(
        state.identity("loads", loads_chunks(customers.history)),
        customers.plan.loads_cap,
        customers.plan.loads_cost,
        continues=config.fleet.continues_loads,
        release_id=config.charged_under,
    )


def _lines(config: FleetConfig, customers: Customers, loads: Preview, plans: list[FeederPlan]) -> list[str]:
    fleet, cost = config.fleet, customers.plan
    usable = sum(plan.problem is None for plan in plans)
    return [
        f"Fleet **{fleet.id}**: {len(plans)} feeders, {usable} of them usable, {fleet.days} days each, "
        f"network mode {config.network.mode}.",
        "",
        f"Customers: ε at most {config.model.epsilon:.4g} at δ = {cost.delta:g} for all feeders together, "
        f"unit {cost.loads_cap.unit}, replace-one. {_after(loads)}",
        "",
        CUSTOMERS[fleet.models],
        "",
        *(f"- note: {note}" for note in cost.notes),
        "",
        "| feeder | public name | network |",
        "|---|---|---|",
        *(f"| {plan.key} | {plan.name} | {_state(plan)} |" for plan in plans),
    ]


def _state(plan: FeederPlan) -> str:
    if plan.released:
        return "released"
    if plan.problem is not None:
        return "cannot be released: " + plan.problem.replace("|", "/").replace("\n", " ")
    return "" if plan.network is None else _after(plan.network)


def _after(preview: Preview) -> str:
    if preview.already_charged:
        return "Charged already; costs nothing more."
    if not preview.affordable:
        return f"**Not affordable**: ε = {preview.before.available.epsilon:.4g} is left."
    promise, left = preview.after.promise, preview.after.available
    return (
        f"With all earlier charges ε = {promise.epsilon:.4g} at δ = {promise.delta:.3g}; "
        f"left ε = {left.epsilon:.4g}."
    )


def _content(
    config: FleetConfig, customers: Customers, loads: Preview, plans: list[FeederPlan]
) -> dict[str, object]:
    return {
        "marking": MARKING,
        "fleet": config.fleet.id,
        "customers": {
            "epsilon": config.model.epsilon,
            "delta": customers.plan.delta,
            "unit": str(customers.plan.loads_cap.unit),
            "models": config.fleet.models,
            "already_charged": loads.already_charged,
            "affordable": loads.affordable,
            "left": loads.after.left,
        },
        "feeders": [
            {
                "feeder": plan.key,
                "name": plan.name,
                "released": plan.released,
                "problem": plan.problem,
                "affordable": None if plan.network is None else plan.network.affordable,
                "left": None if plan.network is None else plan.network.after.left,
            }
            for plan in plans
        ],
    }
