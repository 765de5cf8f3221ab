"""`plan`: what a release would cost, from public quantities only."""

from __future__ import annotations

import json

from dp_powerflow.config import Config, TrueNetwork
from dp_powerflow.pipeline.assembly import check_before_spending, feeder_of, history_of
from dp_powerflow.pipeline.charge import inputs_of, network_identity
from dp_powerflow.pipeline.plan import Plan, loads_chunks, plan_release
from dp_powerflow.pipeline.twin import guarantee_of, spread_of, twin_section
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.report import Rendered
from dp_powerflow.twin.guarantee import largest_change
from dp_powerflow.twin.utility import predict


def plan_config(config: Config) -> Rendered:
    """Plan a release; the ledger is looked at, nothing is recorded."""
    feeder = feeder_of(config)
    history = history_of(config, feeder)
    check_before_spending(config, feeder, history)
    state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
    plan = plan_release(config, history, inputs_of(config, state, feeder, history))
    ledger = Ledger.open(state)
    loads = ledger.preview(
        state.identity("loads", loads_chunks(history)),
        plan.loads_cap,
        plan.loads_cost,
        continues=config.release.continues_loads,
        release_id=config.model.reuse or config.release.id,
    )
    network = ledger.preview(
        network_identity(config, state, feeder),
        plan.network.cap,
        plan.network.cost,
        continues=config.release.continues_network,
        release_id=plan.network.paid_by,
    )
    return Rendered(_lines(config, plan, loads, network), _json(plan, loads, network))


def _lines(config: Config, plan: Plan, loads: Preview, network: Preview) -> list[str]:
    return [
        f"Release **{config.release.id}**: {config.release.days} days, network mode {config.network.mode}"
        + (f" ({config.network.bound})." if isinstance(config.network, TrueNetwork) else "."),
        "",
        f"Customers: ε = {plan.epsilon:.4g} at δ = {plan.delta:g} (ρ = {plan.rho:.4g}), unit "
        f"{plan.loads_cap.unit}, replace-one. " + _after(loads),
        "",
        "| query | cohort | dimension | sensitivity | noise σ | unit | ρ |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {q.query} | {q.cohort or 'all'} | {q.dimension} | {q.sensitivity:.4g} | {q.noise_std:.4g} | "
            f"{q.natural_unit} | {q.rho:.3g} |"
            for q in plan.queries
        ),
        "",
        *(
            _true_network_lines(config, plan, network)
            if isinstance(config.network, TrueNetwork)
            else _twin_lines(config, network)
        ),
        *(f"- note: {note}" for note in plan.notes),
    ]


def _true_network_lines(config: Config, plan: Plan, network: Preview) -> list[str]:
    return [
        f"Network policy (per-instance, not differential privacy): ε* = {config.network.epsilon:g}, "
        f"δ* = {config.network.delta:g} for {plan.network.cap.unit} " + _after(network),
        "",
        "What the network evidence says of this policy is INTERNAL and needs the fitted model: run "
        "`dp-powerflow certify` after the fit; `release` refuses where the policy is not supported.",
    ]


def _twin_lines(config: Config, network: Preview) -> list[str]:
    promised, spread, delta = guarantee_of(config), spread_of(config), config.network.delta
    covered = largest_change(spread, config.network.epsilon, delta)
    return [
        f"Network: twin **{twin_section(config).id}**, ε = {promised.epsilon:.4g} at δ = {delta:g} of "
        f"differential privacy (μ = {promised.mu:.4g}), for any number of days, for "
        f"{network.after.cap.unit}. " + _after(network, "This twin"),
        "",
        "| kind of element | μ |",
        "|---|---|",
        *(f"| {kind} | {mu:.4g} |" for kind, mu in promised.mu_of.items()),
        "",
        f"The policy ε = {config.network.epsilon:g} would cover factors up to {1.0 + covered:.4g}.",
        "",
        "What this spread costs on public feeders (nothing of the network is looked at): distance W1 of the",
        "voltage magnitudes [p.u.], median and largest of several twins:",
        "",
        "| feeder | twins | pooled | worst node |",
        "|---|---|---|---|",
        *(
            f"| {row.feeder} | {row.twins} | {row.median.pooled:.2g}, {row.largest.pooled:.2g} | "
            f"{row.median.worst_node:.2g}, {row.largest.worst_node:.2g} |"
            for row in predict(spread)
        ),
    ]


def _after(preview: Preview, what: str = "This release") -> str:
    if preview.already_charged:
        return f"{what} was charged already; using it again costs nothing more."
    left = preview.after.available
    if not preview.affordable:
        have = preview.before.available
        return f"**Not affordable**: ε = {have.epsilon:.4g} is left."
    return f"Left afterwards: ε = {left.epsilon:.4g} at δ = {left.delta:.3g}."


def _json(plan: Plan, loads: Preview, network: Preview) -> str:
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
