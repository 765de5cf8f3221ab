"""What a command found, for a person and for a machine: `plan`, `fleet --plan`.

The plan of a fleet is INTERNAL, since it names the feeders.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dp_powerflow.fleet.manifest import fleet_words
from dp_powerflow.fleet.plan import FeederPlan, FleetPlan
from dp_powerflow.fleet.refusals import refusals
from dp_powerflow.fleet.run import FleetResult
from dp_powerflow.pipeline.feasibility import RANGE_A, Corner, Look
from dp_powerflow.pipeline.modes.base import INTERNAL, left_afterwards
from dp_powerflow.pipeline.outlook import SPREADS, YearlyCost
from dp_powerflow.pipeline.plan import Plan, PlannedRelease, in_words
from dp_powerflow.privacy.ledger.accounts import Statement
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.report import Rendered
from dp_powerflow.report.refusals import refusal_entries, refusal_lines

MOST_FEEDERS = 20
"""Feeders of a plan that are listed though nothing is wrong with them; the JSON has all."""
FLEET_MARKING = "INTERNAL: names feeders and says which of them can be released; not for publication"


def render_plan(found: PlannedRelease) -> Rendered:
    """The cost of a release, query by query, what it leaves of both budgets, and whether it would work.

    The lines are public. The JSON also holds the INTERNAL look, marked so; as lines it is `internal_lines`.
    """
    plan, release = found.plan, found.mode.config.release
    loads, network = found.loads, found.network
    warnings = (*found.mode.warnings, *plan.warnings, *found.feasibility.warnings)
    lines = [
        *(line for warning in warnings for line in (f"**{_escaped(warning)}**", "")),
        f"Release **{release.id}**: {release.days} days, network mode {found.mode.title}, about "
        f"{found.corpus_bytes / 1e6:,.1f} MB.",
        "",
        f"Customers: ε = {plan.epsilon:.4g} at δ = {plan.delta:g} (ρ = {plan.rho:.4g}), unit "
        f"{plan.loads_cap.unit}, replace-one. " + left_afterwards(loads) + _way_out(loads),
        "",
        "| query | cohort | dimension | sensitivity | noise σ | unit | ρ |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {q.query} | {q.cohort or 'all'} | {q.dimension} | {q.sensitivity:.4g} | {q.noise_std:.4g} | "
            f"{q.natural_unit} | {q.rho:.3g} |"
            for q in plan.queries
        ),
        "",
        *_estimator_lines(plan),
        *found.mode.plan_lines(network),
        "",
        *_yearly_lines(found.yearly),
        *_public_look_lines(found.feasibility.public),
        *(f"- note: {note}" for note in plan.notes),
    ]
    content = {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "rho": plan.rho,
        "unit": str(plan.loads_cap.unit),
        "queries": [query.to_dict() for query in plan.queries],
        "loads": {"affordable": loads.affordable, "left": loads.after.left},
        "network": {"affordable": network.affordable, "left": network.after.left},
        "affordable": found.affordable,
        "yearly": [_yearly(cost) for cost in found.yearly],
        "feasibility": _look(found.feasibility.public),
        "suggested_kw_per_customer": found.feasibility.kw_per_customer,
        "corpus_bytes": found.corpus_bytes,
        "internal": {"marking": INTERNAL, "feasibility": _look(found.feasibility.internal)},
        "request_sha256": plan.request_sha256,
        "estimator": None if plan.estimator is None else asdict(plan.estimator),
        "predicted_errors": [asdict(error) | {"too_large": error.too_large} for error in plan.predicted],
        "warnings": list(warnings),
        "notes": list(plan.notes),
        "ingest": None if found.ingest is None else found.ingest.to_json(),
    }
    return Rendered(lines, json.dumps(content))


def _way_out(loads: Preview) -> str:
    """What customers without budget still allow."""
    if loads.already_charged or loads.affordable:
        return ""
    return " Another draw from a load model that was paid for is free: set model.reuse to its release id."


def _estimator_lines(plan: Plan) -> list[str]:
    """Which load model it is, why, and how wrong noise will make it."""
    if plan.estimator is None:
        return []
    lines = [f"Load model: **{plan.estimator.name}**, because {plan.estimator.why}."]
    fitted, noise = (
        "; ".join(in_words(error) for error in plan.predicted if (error.between is None) is by_noise)
        for by_noise in (False, True)
    )
    if fitted:
        lines.append(
            "How far its loads will be off, by fits to public stand-ins for customers (eight fits in ten, "
            f"and RMS for log levels that spread by {SPREADS[0][0]:g} to {SPREADS[-1][0]:g}): {fitted}."
        )
    if noise:
        lines.append(
            f"By noise in its smallest class, one standard deviation: {noise}. It publishes the dates of the "
            "meters' days; set model.estimator = 'structured' if they are not public."
        )
    return [" ".join(lines), ""]


def internal_lines(found: PlannedRelease) -> list[str]:
    """INTERNAL. What public loads do on the network itself, for the data owner alone."""
    look = found.feasibility.internal
    if look is None:
        return []
    unsolved = f"{look.unsolved} of {look.snapshots} snapshots of public customers have no solution"
    if not look.unsolved and not found.mode.mends:  # one refuses the release; the rule of three
        unsolved += f", so that with 95 % confidence at most {300.0 / look.snapshots:.2g} % of them have none"
    return [
        f"{INTERNAL}; choosing settings by it is a leak, and a release states what was changed after it",
        f"on the network itself {unsolved}; {_voltages(look)}",
        *(f"{name}: {_corner(corner)}" for name, corner in look.corners.items()),
    ]


def _yearly_lines(costs: Sequence[YearlyCost]) -> list[str]:
    kept = any(cost.kept_network is not None for cost in costs)
    head = "the network, this twin kept | the network, a new twin every year" if kept else "the network"
    rows = [
        f"| {cost.releases} | {_promise(cost.customers)} | "
        + (f"{_promise(cost.kept_network)} | " if cost.kept_network is not None else "")
        + f"{_promise(cost.network)} |"
        for cost in costs
    ]
    columns = 4 if kept else 3
    return [
        "A release like this every year, of the same customers and network:",
        "",
        f"| releases | the customers | {head} |",
        "|" + "---|" * columns,
        *rows,
        "",
    ]


def _promise(stated: Statement) -> str:
    at = f" at δ = {min(stated.delta, 1.0):.3g}" if stated.delta else ""
    return f"ε = {stated.epsilon:.4g}{at}"


def _yearly(cost: YearlyCost) -> dict[str, Any]:
    kept = cost.kept_network
    return {
        "releases": cost.releases,
        "customers": {"epsilon": cost.customers.epsilon, "delta": cost.customers.delta},
        "network": {"epsilon": cost.network.epsilon, "delta": cost.network.delta},
        "network_kept": None if kept is None else {"epsilon": kept.epsilon, "delta": kept.delta},
    }


def _public_look_lines(look: Look | None) -> list[str]:
    if look is None:
        return []
    return [
        f"Power flow of public customers within the declared bounds, on {look.networks} public networks of "
        f"this structure: {100.0 * look.unsolved_share:.2g} % of {look.snapshots} snapshots would be mended; "
        f"{_voltages(look)}.",
        "",
        *(f"- {name}: {_corner(corner)}" for name, corner in look.corners.items()),
        "",
    ]


def _voltages(look: Look) -> str:
    if look.lowest is None or look.highest is None or look.within is None:
        return "no voltages, because no snapshot was solved"
    return (
        f"voltages {look.lowest:.3f} to {look.highest:.3f} p.u., {100.0 * look.within:.3g} % of them in "
        f"{RANGE_A[0]:g} to {RANGE_A[1]:g}"
    )


def _corner(corner: Corner) -> str:
    if corner.lowest is None or corner.highest is None:
        return "no solution"
    voltages = f"{corner.lowest:.3f} to {corner.highest:.3f} p.u."
    return voltages if corner.solved else f"no solution on every network; {voltages} on the others"


def _look(look: Look | None) -> dict[str, Any] | None:
    return None if look is None else asdict(look) | {"unsolved_share": look.unsolved_share}


def _escaped(text: str) -> str:
    """A sentence in Markdown whose stars are stars."""
    return text.replace("*", "\\*")


def render_fleet_plan(planned: FleetPlan) -> Rendered:
    """INTERNAL. What a fleet would cost the customers and every network."""
    config, cost, loads, plans = planned.config, planned.cost, planned.loads, planned.feeders
    fleet, usable = config.fleet, sum(plan.problem is None for plan in plans)
    failing = [(plan.key, plan.name, plan.problem) for plan in plans if not plan.released]
    refused = refusals([(key, name, problem) for key, name, problem in failing if problem is not None])
    lines = [
        f"Fleet **{fleet.id}**: {len(plans):,} feeders, {usable:,} of them usable, {fleet.days} days each, "
        f"network mode {config.network.mode}.",
        "",
        f"Customers: ε at most {config.model.epsilon:.4g} at δ = {cost.delta:g} for all feeders together, "
        f"unit {cost.loads_cap.unit}, replace-one. {_after(loads)}",
        "",
        *fleet_words(fleet.models)["customers"],
        "",
        *_estimator_lines(cost),
        *(f"- warning: {warning}" for warning in cost.warnings),
        *(f"- note: {note}" for note in cost.notes),
        "",
        *_feeder_rows(plans),
        *refusal_lines(refused, config.overrides),
    ]
    content = {
        "marking": FLEET_MARKING,
        "fleet": fleet.id,
        "customers": {
            "epsilon": config.model.epsilon,
            "delta": cost.delta,
            "unit": str(cost.loads_cap.unit),
            "models": fleet.models,
            "already_charged": loads.already_charged,
            "affordable": loads.affordable,
            "left": loads.after.left,
        },
        "ingest": None if planned.ingest is None else planned.ingest.to_json(),
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
        **refusal_entries(refused, config.overrides),
    }
    return Rendered(lines, json.dumps(content))


def _feeder_rows(plans: Sequence[FeederPlan]) -> list[str]:
    """A table of feeders: all that cannot be released, and of a large fleet the first of the others."""
    others = [plan for plan in plans if plan.problem is None]
    left_out = {plan.name for plan in others[MOST_FEEDERS:]}
    rows = [f"| {plan.key} | {plan.name} | {_state(plan)} |" for plan in plans if plan.name not in left_out]
    more = [] if not left_out else ["", f"And {len(left_out):,} more that can be released; --json lists all."]
    return ["| feeder | public name | network |", "|---|---|---|", *rows, *more]


def render_fleet_result(result: FleetResult) -> Rendered:
    """INTERNAL. How many feeders of a fleet are released, and where to look."""
    failed, all_of = len(result.failed), len(result.outcomes)
    lines = [
        f"INTERNAL: {all_of - failed:,} of {all_of:,} feeders are in {result.path}; see {result.internal}"
    ]
    content = {
        "fleet": str(result.path),
        "released": all_of - failed,
        "internal": str(result.internal),
    }
    return Rendered(lines, json.dumps(content))


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
