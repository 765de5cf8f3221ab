"""`fleet --plan` (INTERNAL: it names the feeders) and `verify` on the corpus of a fleet."""

from __future__ import annotations

import json

from dp_powerflow.fleet.manifest import CUSTOMERS
from dp_powerflow.fleet.run import FeederPlan, FleetPlan
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.report import Rendered

MARKING = "INTERNAL: names feeders and says which of them can be released; not for publication"


def plan_page(planned: FleetPlan) -> Rendered:
    """INTERNAL. What a fleet would cost the customers and every network."""
    return Rendered(_plan_lines(planned), json.dumps(_plan_content(planned)))


def _plan_lines(planned: FleetPlan) -> list[str]:
    config, cost, plans = planned.config, planned.cost, planned.feeders
    fleet, usable = config.fleet, sum(plan.problem is None for plan in plans)
    return [
        f"Fleet **{fleet.id}**: {len(plans)} feeders, {usable} of them usable, {fleet.days} days each, "
        f"network mode {config.network.mode}.",
        "",
        f"Customers: ε at most {config.model.epsilon:.4g} at δ = {cost.delta:g} for all feeders together, "
        f"unit {cost.loads_cap.unit}, replace-one. {_after(planned.loads)}",
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


def _plan_content(planned: FleetPlan) -> dict[str, object]:
    config, cost, loads = planned.config, planned.cost, planned.loads
    return {
        "marking": MARKING,
        "fleet": config.fleet.id,
        "customers": {
            "epsilon": config.model.epsilon,
            "delta": cost.delta,
            "unit": str(cost.loads_cap.unit),
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
            for plan in planned.feeders
        ],
    }
