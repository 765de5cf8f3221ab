"""What must hold between the facts of a manifest; `verify` and the release itself both look."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from dp_powerflow.pipeline.manifest.entries import RELATIVE
from dp_powerflow.pipeline.manifest.facts import Facts
from dp_powerflow.pipeline.manifest.policy import PUBLISHED, WITH_LOADS, TruePolicy, TwinPolicy
from dp_powerflow.privacy.ledger.accounts import GdpCap, InstanceCap, LoadsCap, fits


def contradictions(facts: Facts) -> list[str]:
    """What cannot be true of a release, one sentence each; empty if the facts agree."""
    return [*_model_contradictions(facts), *_account_contradictions(facts)]


def _model_contradictions(facts: Facts) -> list[str]:
    model, layout = facts.model, facts.layout
    problems = []
    if model.insecure_seed != facts.insecure_seed:
        problems.append("The load model and the release disagree on whether the noise came from a seed.")
    if model.n_steps != layout.steps or model.n_steps * model.step_minutes != 24 * 60:
        problems.append("The steps of the corpus are not those of the load model's day.")
    if model.spent_epsilon > model.epsilon * (1 + RELATIVE):
        problems.append("The queries cost more than the budget that was granted.")
    tan_theta = math.tan(math.acos(facts.declared.power_factor))
    for part in model.classes:
        if not math.isclose(part.reactive.tan_theta, tan_theta, rel_tol=RELATIVE, abs_tol=RELATIVE):
            problems.append("The load model's power factor is not the declared one.")
            break
    spreads = {part.reactive.spread for part in model.classes}
    if len(spreads) != 1 or (min(spreads) > 0) != facts.full_support:
        problems.append("The load model's reactive spread does not go with the bound of the network policy.")
    if (facts.declared.reactive_correlation_minutes is not None) != facts.full_support:
        problems.append("The declared reactive correlation does not go with the bound of the network policy.")
    return problems


def _account_contradictions(facts: Facts) -> list[str]:
    model, loads, network = facts.model, facts.loads, facts.network
    problems = []
    if not isinstance(loads.cap, LoadsCap) or loads.cap.unit is not model.unit:
        problems.append("The account of the loads is about another unit than the load model.")
    if loads.charges < 1 or network.charges < 1:
        problems.append("An account of the composition does not count this release.")
    if loads.spent["rho"] < model.rho * (1 - RELATIVE):
        problems.append("The account of the loads holds less than the queries of this release cost.")
    if isinstance(facts.policy, TwinPolicy):
        problems += _twin_contradictions(facts, facts.policy)
    else:
        problems += _instance_contradictions(facts, facts.policy)
    for account, what in ((loads, "loads"), (network, "network")):
        amounts = {name: Fraction(value) for name, value in account.spent.items()}
        limits = {name: value * (1 + Fraction(RELATIVE)) for name, value in account.cap.limits().items()}
        if not fits(amounts, limits):
            problems.append(f"The account of the {what} has passed its cap.")
    return problems


def _instance_contradictions(facts: Facts, policy: TruePolicy) -> Iterator[str]:
    if not isinstance(facts.network.cap, InstanceCap):
        yield "The account of the network is not that of releases on the true network."
        return
    for name, own in (("epsilon", policy.epsilon), ("delta", policy.delta)):
        if not _holds(facts, name, own):
            yield f"The account of the network does not hold this release's {name}."


def _twin_contradictions(facts: Facts, policy: TwinPolicy) -> Iterator[str]:
    cap, promised = facts.network.cap, policy.guarantee
    if not isinstance(cap, GdpCap):
        yield "The account of the network is not that of twins."
        return
    if policy.published not in PUBLISHED:
        yield "What is published of the twin is none of the things that can be."
    if not 0 <= policy.table_days <= facts.layout.days:
        yield "The tables of the twin hold more days than the corpus."
    if (policy.table_days > 0) != (policy.published == WITH_LOADS):
        yield "The days of the tables do not go with what is published of the twin."
    if promised.epsilon > policy.epsilon * (1 + RELATIVE):
        yield "The twin costs more than the epsilon that was granted."
    if cap.unit != policy.neighbours:
        yield "The account of the network is about other neighbours than the twin."
    if cap.delta != policy.delta:
        yield "The account of the network is stated at another delta than the twin."
    if not _holds(facts, "mu_squared", promised.mu**2):
        yield "The account of the network does not hold this twin's mu."


def _holds(facts: Facts, name: str, own: float) -> bool:
    """Whether the account of the network holds at least this release, and no more if it was charged once."""
    spent, alone = facts.network.spent[name], facts.network.charges == 1
    return spent >= own * (1 - RELATIVE) and (not alone or math.isclose(spent, own, rel_tol=RELATIVE))
