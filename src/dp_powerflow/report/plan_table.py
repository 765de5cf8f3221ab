"""`plan`: what a release would cost, from public quantities only."""

from __future__ import annotations

import json

from dp_powerflow.pipeline.modes.base import left_afterwards
from dp_powerflow.pipeline.plan import PlannedRelease
from dp_powerflow.report import Rendered


def render_plan(found: PlannedRelease) -> Rendered:
    """The cost of a release, query by query, and what it leaves of both budgets."""
    return Rendered(_lines(found), _json(found))


def _lines(found: PlannedRelease) -> list[str]:
    plan, release = found.plan, found.mode.config.release
    return [
        f"Release **{release.id}**: {release.days} days, network mode {found.mode.title}.",
        "",
        f"Customers: ε = {plan.epsilon:.4g} at δ = {plan.delta:g} (ρ = {plan.rho:.4g}), unit "
        f"{plan.loads_cap.unit}, replace-one. " + left_afterwards(found.loads),
        "",
        "| query | cohort | dimension | sensitivity | noise σ | unit | ρ |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {q.query} | {q.cohort or 'all'} | {q.dimension} | {q.sensitivity:.4g} | {q.noise_std:.4g} | "
            f"{q.natural_unit} | {q.rho:.3g} |"
            for q in plan.queries
        ),
        "",
        *found.mode.plan_lines(found.network),
        *(f"- note: {note}" for note in plan.notes),
    ]


def _json(found: PlannedRelease) -> str:
    plan, loads, network = found.plan, found.loads, found.network
    content = {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "rho": plan.rho,
        "unit": str(plan.loads_cap.unit),
        "queries": [query.to_dict() for query in plan.queries],
        "loads": {"affordable": loads.affordable, "left": loads.after.left},
        "network": {"affordable": network.affordable, "left": network.after.left},
        "request_sha256": plan.request_sha256,
        "notes": list(plan.notes),
    }
    return json.dumps(content)
