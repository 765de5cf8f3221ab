"""What a manifest says of the network if the voltages were solved on a twin: differential privacy."""

from __future__ import annotations

from typing import Any

from dp_powerflow.grid.parameters import Quantity
from dp_powerflow.pipeline.manifest import words as text
from dp_powerflow.pipeline.manifest.facts import Facts
from dp_powerflow.pipeline.manifest.policy import (
    GROUPS,
    NETWORK,
    TWIN_NETWORK,
    VOLTAGES,
    WITH_LOADS,
    TwinPolicy,
)
from dp_powerflow.pipeline.manifest.words import NetworkWords, at_most, in_digits

DIFFERENTIAL_PRIVACY = "differential privacy"
ANY_NUMBER = "any number"
COMMITMENT = (
    "SHA-256 of a secret salt and the internal report, which stays with the data owner; he can open it to an "
    "auditor (dp-powerflow verify --private)"
)
ACCOUNTING = (
    "the logarithm of every figure with a spread is rounded to a multiple of g = 2^-40 and gets exact "
    "discrete Gaussian noise of scale sigma = ceil(spread / g), in units of g; one element whose figures "
    "change by factors up to 1 + x moves them by at most D = ceil(ln(1 + x) / g) + 2, hence mu^2 = sum of "
    "(D / sigma)^2 over its figures; a conductor code drawn by randomised response with epsilon_c adds the "
    "square of -2 Phi^-1(1 / (1 + exp(epsilon_c))); mu is that of the worst kind of element, stated as "
    "(epsilon, delta) by Corollary 2.13 of Dong, Roth and Su (arXiv 1905.02383v3)"
)
COMPOSITION = (
    f"{text.COMPOSITION} A twin is charged once, when it is drawn, and every release made on it is covered "
    "by that charge; the network's account is stated as of that draw, and a later twin of the same network "
    "adds its mu^2. Customers and network are two secrets with a guarantee each, and both hold at once: "
    "against a reader who compares worlds that differ in one record and in one element together, epsilons "
    "and deltas of the two add up. Releases made on the true network are in another account, which this "
    "one does not count."
)
_FIGURES = {
    Quantity.LENGTH: "Lengths of lines",
    Quantity.RESISTANCE: "Resistances of lines per length",
    Quantity.REACTANCE: "Reactances of lines per length",
    Quantity.TRANSFORMER: "Impedances of transformers",
    Quantity.CAPACITOR: "Sizes of capacitors",
    Quantity.PV: "Capacities of PV systems",
}


def twin_words(facts: Facts, policy: TwinPolicy) -> NetworkWords:
    """The words of mode 'twin-network'."""
    warnings = text.warnings(facts)
    return NetworkWords(
        guarantee=_guarantee(policy),
        composition=COMPOSITION,
        declared=_declared(policy),
        after_noise=_after_noise(policy),
        unprotected=_unprotected(facts, policy),
        not_claimed=warnings + _not_claimed(policy),
        warnings=warnings,
        bound_to=(
            "release id, load model, and keyed hashes of the meter data and of the network; the noise of the "
            "twin: twin id and keyed hash of the network"
        ),
        commitment=COMMITMENT,
        attested=_attested(facts, policy),
    )


def _guarantee(policy: TwinPolicy) -> dict[str, Any]:
    return policy.figures() | {
        "mode": TWIN_NETWORK,
        "kind": DIFFERENTIAL_PRIVACY,
        "definition": text.LOADS_DEFINITION,
        "neighbours": policy.neighbours,
        "change_in_words": change_in_words(policy),
        "group_in_words": group_in_words(policy),
        "days": ANY_NUMBER,
        "twin": policy.twin_id,
        "published": policy.published,
        "all_nodes": policy.all_nodes,
        "scope": scope(policy),
        "accounting": ACCOUNTING,
        "attestation": attestation(policy),
    }


def change_in_words(policy: TwinPolicy) -> str:
    """x, and what it means of one element; the true network is not looked at."""
    if not any(True for _ in policy.spread.protected()):
        return "The conductor code of one line is protected, whatever it is changed to; no other figure is."
    up, down = (in_digits(round(100.0 * share, 2)) for share in _both_ways(policy.change))
    return (
        "Compared are networks in which the protected figures of one element differ by factors up to "
        f"{in_digits(1.0 + policy.change)} (about {up} % upwards, {down} % downwards), all else equal."
    )


def _both_ways(change: float) -> tuple[float, float]:
    return change, change / (1.0 + change)


def group_in_words(policy: TwinPolicy) -> str:
    """Several elements at once."""
    stated = [
        f"at most {at_most(group.epsilon)} for {group.elements}"
        for group in policy.groups
        if group.epsilon is not None
    ]
    figures = f", epsilon is then {' and '.join(stated)} elements" if stated else ""
    return (
        "The guarantee is for one element. If k elements change together mu grows to mu times the square "
        f"root of k{figures}. A factor of (1 + x)^m of one element costs at most m times mu."
    )


def scope(policy: TwinPolicy) -> str:
    """What is covered by the guarantee."""
    covered = {
        VOLTAGES: "the voltages",
        NETWORK: "the voltages and the published network",
        WITH_LOADS: "the voltages, the published network and the loads",
    }.get(policy.published, "")
    return (
        "The guarantee holds for every pair of networks that differ in one element as said, whatever else a "
        f"reader knows. It covers {covered} of this and of every other release made on twin "
        f"'{policy.twin_id}', and everything that anybody computes from them."
    )


def attestation(policy: TwinPolicy) -> str:
    """What the data owner says of the twin, beyond what everybody can recompute."""
    return (
        "Anybody can recompute mu and epsilon from the spreads and x. The data owner attests that twin "
        f"'{policy.twin_id}' was drawn once, as said, from the network that this release is about, that "
        "the spreads were chosen without looking at that network, and that the key is kept secret."
    )


def _declared(policy: TwinPolicy) -> list[str]:
    """What of the network every neighbour has in common."""
    known = [
        "Connectivity: which elements there are and which nodes they join; names, coordinates and grouping.",
        "Switch states and all figures of switches, regulator taps, base voltages and phases.",
        "Shapes of elements, rounded to 2^-7: ratios between the phases of R and of X, R/X and ratios of "
        "windings of transformers; and which figures are zero.",
        "Charging and conductance of lines per length, numbers of parallel circuits; ratings, no-load losses "
        "and magnetising currents of transformers; states of capacitors.",
        "Reactors, autotransformers, impedance elements and sources.",
        "Nominal loads, as scales of the nodes.",
    ]
    if policy.spread.code_epsilon is None:
        known.append(
            "Conductor codes of lines: who knows the code of a line and its catalogue knows resistance and "
            "reactance per length, whatever the noise on them."
        )
    else:
        known.append("The catalogue of conductor codes, and which lines have a code of it.")
    return known + [_without_spread(policy, quantity) for quantity in policy.public_quantities]


def _without_spread(policy: TwinPolicy, quantity: Quantity) -> str:
    of_code = policy.spread.code_epsilon is not None and quantity in (Quantity.RESISTANCE, Quantity.REACTANCE)
    relative = ", relative to those of the line's conductor code" if of_code else ""
    return f"{_FIGURES[quantity]}{relative}: no spread."


def _after_noise(policy: TwinPolicy) -> list[str]:
    codes = (
        ""
        if policy.spread.code_epsilon is None
        else " Conductor codes are replaced by randomised response over the public catalogue."
    )
    return [
        text.SHRUNK,
        "Days of active and reactive load are drawn independently for every node with a load from the load "
        "model, untruncated; reactive load has randomness of its own.",
        f"The twin '{policy.twin_id}' is drawn once per network: the logarithm of every figure with a spread "
        "is rounded to a public grid and gets exact discrete Gaussian noise, whose standard deviation is the "
        f"spread; nothing else of the figure enters.{codes} The same twin serves every release under its id.",
        "AC power flow is solved on the twin, not on the true network, with regulator taps fixed to declared "
        "positions; a snapshot without a solution aborts the release.",
        "All energised nodes but those of the source are released."
        if policy.all_nodes
        else "Only nodes with a random load of their own are released.",
        _published(policy),
        text.HIDDEN_ORDER,
        text.ROUNDED,
    ]


def _published(policy: TwinPolicy) -> str:
    if policy.published == VOLTAGES:
        return "Neither the twin nor the loads behind the voltages are released."
    if policy.published == NETWORK:
        return (
            "The twin's branches and admittances are released beside the voltages. The loads behind the "
            "voltages are not, but they follow from both up to rounding."
        )
    return (
        "The twin's branches and admittances, and the loads behind the voltages of "
        f"{policy.table_days} days, are released beside the voltages; the tables below twin/ are not rounded."
    )


def _unprotected(facts: Facts, policy: TwinPolicy) -> list[str]:
    nodes = (
        f"That the feeder has {facts.layout.nodes} energised nodes beside its source, all of them released."
        if policy.all_nodes
        else f"That {facts.layout.nodes} nodes of the feeder carry a load of their own and are released."
    )
    return [
        "That this release was made: it is refused if a draw has no power-flow solution. That outcome "
        "depends on the twin, not on the true network, so the network's guarantee covers it.",
        nodes,
        "Everything of the network that is declared public.",
        *text.public_sizes(facts),
    ]


def _not_claimed(policy: TwinPolicy) -> list[str]:
    groups = " and ".join(str(elements) for elements in GROUPS)
    return [
        "Nothing is claimed about connectivity, switch states, regulator taps, phases, base voltages or "
        "anything else of the network that is declared public, nor about elements added or removed.",
        "This is not power flow on the true network. It is power flow on a network whose protected figures "
        "differ from the true ones by noise of the stated spreads.",
        "The guarantee hides one element at a time. It weakens for figures that are known to go together, "
        "such as two circuits in one trench, which are two elements, or one rule that set many lengths: k "
        f"elements count as mu times the square root of k (stated for {groups}). It does not hide what is "
        "common to many elements.",
        f"A change of one element by more than a factor of {in_digits(1.0 + policy.change)} is covered less: "
        "mu grows in proportion to its logarithm.",
        "What releases on the true network, or anything else published of it, tell is not covered and adds "
        "to what is known.",
        "The secret order and the names of the nodes are no protection of the network: who knows its "
        "connectivity may find out which node is which.",
        text.ABOUT_RECORDS,
        text.ABOUT_QUALITY,
        text.ABOUT_OTHERS,
    ]


def _attested(facts: Facts, policy: TwinPolicy) -> tuple[str, ...]:
    return (
        f"Network: twin '{policy.twin_id}' was drawn once, with the stated spreads, from the network that "
        "this release is about, and all was solved on it. Its epsilon is recomputed, not attested.",
        text.attested_composition(facts, f"epsilon at delta {in_digits(policy.delta)} at most"),
        "Declared-public inputs are what the data owner says they are, and the key was kept secret.",
    )
