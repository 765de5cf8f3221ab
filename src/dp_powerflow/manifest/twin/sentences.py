"""The sentences of the manifest on a twin, from public facts alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dp_powerflow.manifest import policy as text
from dp_powerflow.manifest.beside import SHOWS_NODES, released_beside
from dp_powerflow.manifest.build import Facts
from dp_powerflow.manifest.connected import (
    released_connections,
    shown_by_connections,
)
from dp_powerflow.manifest.histories import drawn_loads
from dp_powerflow.manifest.model import at_most, in_digits
from dp_powerflow.manifest.twin.section import lacks
from dp_powerflow.manifest.twin.tables import NETWORK, VOLTAGES, WITH_LOADS

if TYPE_CHECKING:
    from dp_powerflow.manifest.twin.policy import TwinPolicy

COMMITMENT = (
    "SHA-256 of a secret salt and the internal report, which stays with the data owner; he can open it to an "
    "auditor (dp-powerflow verify --private)"
)
ACCOUNTING = {
    "laplace": (
        "the logarithm of every protected figure is rounded to a multiple of g = 2^-40; one element whose "
        "figures change by factors up to 1 + x moves each by at most D = ceil(ln(1 + x) / g) + 2 units; one "
        "figure gets exact discrete Laplace noise of scale t, the pair of a line's R and X exact discrete "
        "noise with probability proportional to exp(-max(|n1|, |n2|) / t), in units of g, so that "
        "epsilon = D / t and delta = 0; what is added to a line, its charging or its conductor code, adds "
        "its epsilon; the advantage is 1 - exp(-D / 2t)"
    ),
    "gaussian": (
        "the logarithm of every protected figure is rounded to a multiple of g = 2^-40 and gets exact "
        "discrete Gaussian noise of scale sigma, in units of g; one element whose figures change by "
        "factors up to 1 + x moves each by at most D = ceil(ln(1 + x) / g) + 2, hence mu^2 = sum of (D / "
        "sigma)^2 over its figures; a conductor code drawn by randomised response with epsilon_c adds the "
        "square of -2 Phi^-1(1 / (1 + exp(epsilon_c))); mu is stated as (epsilon, delta) by Corollary 2.13 "
        "of Dong, Roth and Su (arXiv 1905.02383v3); the advantage is 2 Phi(mu / 2) - 1"
    ),
}
COMPOSITION = (
    f"{text.COMPOSITION} A twin is charged once, when it is drawn, and every release made on it is covered "
    "by that charge; the network's account is stated as of that draw, for the element that was touched most. "
    "A later twin of the same network adds to it, and an element that is replaced or added gets fresh noise, "
    "charged to that element alone. A new element that shares a bus with one of its kind that was replaced "
    "or is gone may be a part of it: both have one past from then on, and the charge counts how often "
    "figures of one old element can enter. Pure epsilons add up, mu^2 of Gaussian noise adds up, and both "
    "together compose by their privacy-loss distributions. Customers and network are two secrets with a "
    "guarantee each, and both hold at once: against a reader who compares worlds that differ in one record "
    "and in one element together, epsilons and deltas of the two add up. Releases made on the true network "
    "are in another account, which this one does not count."
)

TAPS: Mapping[str, str] = {
    "frozen": "declared, or solved once on the twin; then frozen",
    "snapshot": "as operated: regulators and capacitors act on the twin, every snapshot for itself",
    "day": "as operated: regulators and capacitors act on the twin, step after step through a day",
}
"""What the manifest says of taps, by `network.controls`."""
_OPERATED = (
    "AC power flow is solved on the twin as operated, not on the true network: loads answer to their voltage "
    "as the feeder's file says, regulators and switched capacitors act by its settings. "
)
_HUNTING = (
    " A control that changes its direction six times within a snapshot is locked, and the snapshot is marked."
)
_MENDED = (
    "The power of a load is the sum of the customers drawn for it, each cut to the declared bounds at every "
    "step. A snapshot without a solution has loads and PV multiplied by 0.95 until it has one, and is "
    "marked: the rule reads the twin, the drawn loads and the controls, nothing else. The twin is never "
    "drawn again."
)
_SOLVED: Mapping[str, str] = {
    "frozen": "AC power flow is solved on the twin, not on the true network; regulator taps are declared, or "
    "solved once on the twin at nominal load.",
    "snapshot": _OPERATED
    + "Every snapshot starts from taps that were solved on the twin at the nearest of 25 levels of the "
    "nominal load." + _HUNTING,
    "day": _OPERATED
    + "Every day starts from taps that were solved on the twin at the nearest of 25 levels of the nominal "
    "load, and keeps its taps from step to step." + _HUNTING,
}


def changes_in_words(rows: list[dict[str, Any]]) -> str:
    """Changes and what is promised of them, in one phrase."""
    parts = [
        f"one element changed by {100.0 * row['change']:.3g} %: epsilon at most {at_most(row['epsilon'])}, "
        f"advantage of the best test at most {at_most(row['advantage'])}"
        for row in rows
        if row["epsilon"] is not None
    ]
    return "; ".join(parts) or "no figure for larger changes"


def change_in_words(policy: TwinPolicy) -> str:
    """x, and what it means of one element; the true network is not looked at."""
    change = policy.design.change
    both_ways = change, change / (1.0 + change)
    up, down = (in_digits(round(100.0 * share, 2)) for share in both_ways)
    return (
        "Compared are networks in which the protected figures of one element differ by factors up to "
        f"{in_digits(1.0 + change)} (about {up} % upwards, {down} % downwards), all else equal."
    )


def group_in_words(policy: TwinPolicy) -> str:
    """Several elements at once."""
    stated = [
        f"at most {at_most(group['epsilon'])} for {group['elements']}"
        for group in policy.figures()["groups"]
        if group["epsilon"] is not None
    ]
    figures = f" Epsilon is then {' and '.join(stated)} elements." if stated else ""
    if policy.design.noise == "laplace":
        grows = "If k elements change together epsilon is k times as large."
    else:
        grows = "If k elements change together mu is larger by the square root of k."
    return (
        f"The guarantee is for one element. {grows}{figures} A factor of (1 + x)^m of one element costs at "
        f"most m times {'epsilon' if policy.design.noise == 'laplace' else 'mu'}."
    )


def scope_of(policy: TwinPolicy, facts: Facts) -> str:
    """What is covered by the guarantee."""
    voltages = "the voltages, the powers and states beside them" if facts.extras.holds else "the voltages"
    covered = {
        VOLTAGES: voltages,
        NETWORK: f"{voltages} and the published network",
        WITH_LOADS: f"{voltages}, the published network and the loads",
    }[policy.published]
    return (
        "The guarantee holds for every pair of networks that differ in one element as said, whatever else a "
        f"reader knows. It covers {covered} of this and of every other release made on twin "
        f"'{policy.twin_id}', and everything that anybody computes from them.{_but_coordinates(policy)}"
    )


def _but_coordinates(policy: TwinPolicy) -> str:
    return (
        " It does not cover the published coordinates and the lengths that follow from them."
        if policy.coordinates
        else ""
    )


def attestation_of(policy: TwinPolicy) -> str:
    """What the data owner says of the twin, beyond what everybody can recompute."""
    return (
        "Anybody can recompute epsilon and advantage from the noise and x. The data owner attests that twin "
        f"'{policy.twin_id}' was drawn once, as said, from the network that this release is about, that "
        "the noise was chosen without looking at that network, and that the key is kept secret."
    )


def declared_network(policy: TwinPolicy) -> list[str]:
    """What of the network every neighbour has in common."""
    chosen = policy.design.protected
    known = [
        "Connectivity: which elements there are, which nodes and phases they join, and their names.",
        "Switch states and all figures of switches, base voltages and phases; settings of the controls of "
        "regulators, capacitors and inverters, line drop compensation rounded to whole volts; taps that the "
        "data owner declared. All other taps are found on the twin, and so are the states of switched "
        "capacitors where controls act.",
        "Shapes of elements, rounded to 2^-7: ratios between the phases of R and of X, ratios of windings of "
        "transformers; and which figures are zero.",
        "Numbers of parallel circuits; ratings, no-load losses and magnetising currents of transformers; "
        "states of capacitors as the feeder's file has them; reactors, autotransformers, impedance elements "
        "and sources; each rounded.",
        "Nominal loads, rounded to three digits, as scales of the loads; how a load follows its voltage; "
        "generators that run as the feeder's file states them. Loads, set points or settings that were "
        "fitted to the network before they were declared carry what they were fitted to.",
    ]
    if chosen.codes:
        known.append("The catalogue of conductor codes, and which lines have a code of it.")
    else:
        known.append(
            "Conductor codes of lines and their catalogue: who knows the code of a line knows its resistance "
            "and reactance per length, whatever the noise."
        )
    if not chosen.charging:
        known.append(
            "Charging of lines per km: of the conductor code, or "
            f"{in_digits(chosen.c_nf_per_km)} nF per km and {in_digits(chosen.x_ohm_per_km)} ohm of "
            "reactance per km for lines without one."
        )
    if policy.coordinates:
        known.append("Coordinates of all buses, and with them the lengths of the lines.")
    public = {
        "Impedances of transformers: no noise.": chosen.transformers,
        "Sizes of capacitors: no noise.": chosen.capacitors,
        "Capacities of PV systems: no noise.": chosen.pv,
    }
    return known + [words for words, covered in public.items() if not covered]


def after_noise(policy: TwinPolicy, facts: Facts) -> list[str]:
    codes = (
        ""
        if policy.design.code_epsilon is None
        else " Conductor codes are replaced by randomised response over the public catalogue."
    )
    return [
        *drawn_loads(facts.model),
        f"The twin '{policy.twin_id}' is drawn once per network: the logarithm of every protected figure is "
        f"rounded to a public grid and gets exact discrete {policy.design.noise.capitalize()} noise; nothing "
        f"else of the figure enters.{codes} The same twin serves every release under its id; an element that "
        "is replaced gets fresh noise.",
        _SOLVED[policy.controls],
        _MENDED,
        "All energised nodes but those of the source are released."
        if policy.all_nodes
        else "Only nodes with a random load of their own are released.",
        _published(policy, facts),
        *released_connections(facts.connections),
        text.HIDDEN_ORDER,
        text.ROUNDED,
        *released_beside(facts.extras),
    ]


def _published(policy: TwinPolicy, facts: Facts) -> str:
    extras, connected = facts.extras, facts.connections is not None
    if policy.published == VOLTAGES:
        if extras.loads:
            twin = "Of the twin itself only its connections are" if connected else "The twin itself is not"
            return f"{twin} released."
        twin = "figures of the twin" if connected else "the twin"
        return f"Neither {twin} nor the loads behind the voltages are released."
    if policy.published == NETWORK:
        if extras.loads:
            return "The twin's branches and admittances are released beside the voltages."
        return (
            "The twin's branches and admittances are released beside the voltages. The loads behind the "
            "voltages are not, but they follow from both up to rounding."
        )
    return (
        "The twin's branches and admittances, and the loads behind the voltages of "
        f"{policy.table_days} days, are released beside the voltages; the tables below twin/ are not rounded."
    )


def unprotected(facts: Facts, policy: TwinPolicy) -> list[str]:
    nodes = (
        f"That the feeder has {facts.layout.nodes} energised nodes beside its source, all of them released."
        if policy.all_nodes
        else f"That {facts.layout.nodes} nodes of the feeder carry a load of their own and are released."
    )
    return [
        "That this release was made: the network passed the checks before anything was spent. Its file can "
        "be read, what of it is not modelled is known, and without load its power flow has a solution.",
        nodes,
        "Everything of the network that is declared public.",
        *_lacking(policy),
        *shown_by_connections(facts),
        *([SHOWS_NODES] if facts.extras.loads else []),
        *text.public_sizes(facts),
    ]


def _lacking(policy: TwinPolicy) -> list[str]:
    """Which of the protected figures the network has not; that is part of which elements there are."""
    if policy.absent is None:
        return []
    if not policy.absent:
        return ["That the network has all the kinds of figures that the twin protects: declared public."]
    return [
        f"{lacks(policy.absent)} That is part of which elements there are, which is declared public and "
        "which all neighbours have in common. Noise and epsilon are those of a network that has them."
    ]


def _about_coordinates(policy: TwinPolicy) -> str:
    """That lengths are not protected from whom has the coordinates."""
    if policy.coordinates:
        return (
            "Coordinates are published, and the lengths of the lines follow from them: lengths are NOT "
            "PROTECTED from anybody."
        )
    return (
        "Coordinates are not published. Who has them from elsewhere, as from a map, knows the lengths of the "
        "lines: lengths are NOT PROTECTED from him."
    )


def not_claimed(policy: TwinPolicy) -> list[str]:
    change = in_digits(1.0 + policy.design.change)
    return [
        "Nothing is claimed about connectivity, switches, settings of controls, phases, base voltages or "
        "anything else of the network that is declared public, nor about elements added or removed. The "
        "phase of a node can be read from the angles of its voltages.",
        _about_coordinates(policy),
        "This is not power flow on the true network. It is power flow on a network whose protected figures "
        "differ from the true ones by noise of the stated scales.",
        "The guarantee hides one element at a time. It weakens for figures that are known to go together, "
        "such as two circuits in one trench, which are two elements, or one rule that set many lengths. It "
        "does not hide what is common to many elements.",
        f"A change of one element by more than a factor of {change} is covered less: "
        f"{changes_in_words(policy.figures()['changes'])}.",
        "What releases on the true network, or anything else published of it, tell is not covered and adds "
        "to what is known. That an element was replaced between two releases on one twin can be seen. Lines "
        "that became one line were elements of their own: its past is the largest of theirs, not their sum.",
        "The secret order and the names of the nodes are no protection of the network: who knows its "
        "connectivity may find out which node is which.",
        text.ABOUT_RECORDS,
        text.ABOUT_QUALITY,
        text.ABOUT_OTHERS,
    ]


def attested(facts: Facts, policy: TwinPolicy) -> tuple[str, ...]:
    return (
        f"Network: twin '{policy.twin_id}' was drawn once, with the stated noise, from the network that "
        "this release is about, and all was solved on it. Its epsilon is recomputed, not attested.",
        text.attested_composition(facts, f"epsilon at delta {in_digits(facts.network.law.delta)} at most"),
        "Declared-public inputs are what the data owner says they are, and the key was kept secret.",
    )
