"""The sentences of the manifest: what is promised and what is not, in words, from public facts alone.

The wording belongs to the format of the manifest: `verify` makes it again and compares. Change a sentence and
the format's version changes with it (`manifest.FORMAT`).
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context

from dp_powerflow.certificate.calibration import CONFIDENCE
from dp_powerflow.certificate.theorem import SCOPE
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.release.manifest_facts import Facts

REFERENCE_LINE_PU = 200.0
"""Frobenius norm of a line's admittance matrix [p.u., 1 MVA per phase], median of the public IEEE 123."""

PER_INSTANCE = "per-instance evidence, not differential privacy"
COMMITMENT = (
    "SHA-256 of a secret salt and the internal report, which holds the evidence about the network; the data "
    "owner can open it to an auditor (dp-powerflow verify --private)"
)
LOADS_DEFINITION = "(epsilon, delta)-differential privacy"
LOADS_ACCOUNTING = (
    "exact discrete Gaussian noise on integer sums, rho = sensitivity^2 / (2 sigma^2) of zero-concentrated "
    "differential privacy; queries on every record add up, of queries on public classes the dearest class "
    "counts; stated as (epsilon, delta) by Proposition 12 of Canonne, Kamath and Steinke (arXiv 2004.00010v4)"
)
COMPOSITION = (
    "What this and all earlier releases from the same customers, and from the same network, add up to, as of "
    "this release, by the data owner's ledger. The data owner attests it; later releases add to it."
)


def at_most(value: float) -> str:
    """A figure in three digits, rounded up: a promise is never shown better than it is."""
    return in_digits(float(Context(prec=3, rounding=ROUND_UP).create_decimal(repr(value))))


def in_digits(value: float) -> str:
    """A declared constant as a person writes it: 1e-5, not 1e-05."""
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.12g}").replace("e+", "e")


def unit_in_words(unit: PrivacyUnit) -> str:
    """What one record is."""
    if unit is PrivacyUnit.LOAD_POINT:
        return (
            "All days of one load point. A load point is the sum of the customers behind one service, so "
            "whatever one of them does changes one load point: the guarantee covers every customer behind it."
        )
    return (
        "One day of one load point. A load point is the sum of the customers behind one service, so the "
        "guarantee covers one day of every customer behind it. A customer with d days is d records: the "
        "whole history of a customer is protected d^2 times less in rho."
    )


def neighbours(radius: float) -> str:
    """Whom the network is compared with."""
    return (
        "networks that differ from the true one on existing lines only, by a change of the full admittance "
        f"matrix with a Frobenius norm of at most r = {in_digits(radius)} p.u."
    )


def radius_in_words(radius: float) -> str:
    """The radius against a public yardstick; the true network is not looked at."""
    return (
        f"The median line of the public IEEE 123 test feeder has an admittance of {REFERENCE_LINE_PU:g} "
        f"p.u., so this r is a change of such a line by {at_most(radius / REFERENCE_LINE_PU)} of itself."
    )


def scope(facts: Facts) -> str:
    """Whom the network statement speaks of."""
    return SCOPE["full-support" if facts.full_support else "paper"]


def attestation(facts: Facts) -> str:
    """What the data owner says of the network evidence; nobody else can check it without the network."""
    if facts.policy.evidence_required:
        return (
            "The data owner attests that the internal evidence about the true network supports this policy: "
            "without that the release would have been refused. The evidence is a function of the secret "
            "network and is not published. It rests on a Monte Carlo calibration and holds with a confidence "
            f"of {CONFIDENCE:.0%} over it, which is not part of delta*."
        )
    return (
        "The release was made whether or not the internal evidence about the true network supports this "
        "policy. The figures are a target, not a statement about the network. The evidence is a function of "
        "the secret network and is not published."
    )


def before_noise(facts: Facts) -> list[str]:
    """What happens to the meter data before the noise."""
    model = facts.model
    relative = " Loads are divided by the public scale of their load point." if model.scaled else ""
    return [
        f"Readings are summed to load points and cut into days of {model.n_steps} steps of "
        f"{model.step_minutes} minutes.{relative}",
        "Gaps are filled from other readings of the same customer; a load point with too many gaps is "
        "replaced by a constant, so that the number of records does not depend on the readings.",
        "Loads are cut to the declared bounds before the logarithm is taken.",
        "What one record contributes to a query is clipped to a public radius and rounded to integers; the "
        "clipping is checked in integers.",
        "Splits of the budget, clip radii and block sizes come from public figures or from answers already "
        "paid for; nothing was tuned on the meter data.",
    ]


def after_noise(facts: Facts) -> list[str]:
    """What happens after the noise; none of it touches the meter data again."""
    drawn = (
        "Days of active and reactive load are drawn independently for every released node from the load "
        "model, untruncated; reactive load has randomness of its own."
        if facts.full_support
        else "Days of active load are drawn independently for every released node from the load model, "
        "truncated to the declared bounds; reactive load follows from the declared power factor."
    )
    return [
        "The noisy answers are shrunk towards a public prior, made positive definite and given the declared "
        "floor of variance, which is taken out of the log mean so that the mean load does not move.",
        drawn,
        "AC power flow is solved on the true network, with regulator taps fixed to declared positions; a "
        "snapshot without a solution aborts the release.",
        "Only nodes with a random load of their own are released; the loads behind the voltages never are.",
        "The released nodes are put in a secret random order under names that say nothing.",
        "Voltages are rounded to the public grid.",
    ]


def unprotected(facts: Facts) -> list[str]:
    """Outcomes that no guarantee covers, and that a reader learns."""
    model = facts.model
    evidence = (
        "the internal evidence does not support the network policy or if " * facts.policy.evidence_required
    )
    outcomes = [
        f"That this release was made: it is refused if {evidence}a draw has no power-flow solution, and that "
        "outcome depends on the true network.",
        f"That {facts.layout.nodes} nodes of the feeder carry a load of their own and are released.",
        f"That the history holds {model.n_load_points} load points and {model.n_days} days: declared public.",
        "When the files were written and how long it took.",
    ]
    if len(model.class_names) > 1 and model.public_labels:
        outcomes.append("The classes of the load points and the share of each: declared public.")
    return outcomes


def not_claimed(facts: Facts) -> list[str]:
    """What nobody should read into the guarantee."""
    claims = [
        "Nothing is claimed about connectivity, switch states, regulator taps, phases or base voltages of "
        "the network.",
        "The network statement compares this network with its neighbours. It is no bound over all pairs of "
        "networks, has no group privacy and is not differential privacy.",
        "Nothing is claimed about changes of the network larger than r, nor about lines added or removed.",
        "Every statement is conditional on what an attacker is assumed to know: the load model, power "
        "factors, generation and taps.",
        "Nothing is claimed about nodes without a random load of their own, such as nodes with generation "
        "only: their voltages are not released.",
        "Differential privacy hides one record at a time. It does not hide what is common to many customers, "
        "and the guarantee weakens for a person behind several load points.",
        "Nothing is claimed about how well the corpus resembles the true data: such figures are computed "
        "from private data and stay internal.",
        "Releases made without the data owner's ledger are not counted.",
    ]
    if not facts.full_support:
        claims.insert(
            0,
            "No change of a line's length, impedance or state is covered: with fixed power factors, who "
            "knows them can rule out any such change from one snapshot.",
        )
    return warnings(facts) + claims


def warnings(facts: Facts) -> list[str]:
    """Why this may not be a release at all; shown before everything else."""
    found = []
    if facts.insecure_seed:
        found.append(
            "The noise came from an insecure seed, so anybody can take it off: nothing is protected. This is "
            "a demonstration, not a release."
        )
    if facts.model.simulated:
        found.append("The loads are simulated: no customer's readings were used, and none are protected.")
    if not facts.policy.evidence_required:
        found.append(
            "The release was made whether or not the network evidence supports the policy: the figures for "
            "the network are a target only."
        )
    return found


def random_source(facts: Facts) -> dict[str, str]:
    """Where noise and draws come from."""
    return {
        "generator": "AES-128 in counter mode, one stream per purpose and block",
        "key": (
            "insecure seed, for demonstrations and tests"
            if facts.insecure_seed
            else "256 bits from the operating system, kept in the data owner's private state directory"
        ),
        "noise": "exact discrete Gaussian on integers, in integer arithmetic",
        "bound_to": "release id, load model, and keyed hashes of the meter data and of the network",
    }
