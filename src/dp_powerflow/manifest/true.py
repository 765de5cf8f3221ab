"""Mode 'true-network': voltages solved on the true network. Evidence about it, not differential privacy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from dp_powerflow.evidence.scope import CONFIDENCE, SCOPE
from dp_powerflow.manifest import policy as text
from dp_powerflow.manifest.build import Facts
from dp_powerflow.manifest.histories import SHRUNK
from dp_powerflow.manifest.model import (
    Count,
    InWords,
    NetworkSection,
    Positive,
    Sentence,
    Statement,
    all_digits,
    at_most,
    in_digits,
)
from dp_powerflow.manifest.policy import (
    LARGEST_DELTA,
    LARGEST_EPSILON,
    NO_PROTECTION,
    NetworkPolicy,
    NetworkWords,
)
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import AccountKind, InstanceCap

if TYPE_CHECKING:
    from dp_powerflow.config import Config

REFERENCE_LINE_PU = 200.0
"""Frobenius norm of a line's admittance matrix [p.u., 1 MVA per phase], median of the public IEEE 123."""
SURROGATE, SURROGATE_LINE_PU = "IEEE 123", 45.98
"""The public feeder that r is measured by, and the Frobenius norm of the admittance of its weakest line, l103
(no switch) [p.u., 1 MVA per phase]. It goes with 1/base; the weakest line of IEEE 13 has 52.99."""
SMALLEST_SHARE = 0.01
"""Of that line: a smaller r protects the network from nothing that matters."""
AS_STATED: Literal["as the policy says"] = "as the policy says"
LEAST_SHARE = 0.05
"""Least load of a released node, as a share of the middle load: half of the feeder's load is at nodes of that
size or larger. At this size a node tells the lines around it about as well as the best-known line of the IEEE
feeders is known anyway (docs/results/lines.md, benchmarks/light_nodes.py)."""
_MIDDLE = (
    f"{LEAST_SHARE:g} of the feeder's middle load (half of the nominal load is at nodes of that size "
    "or larger)"
)
COMMITMENT = (
    "SHA-256 of a secret salt and the internal report, which holds the evidence about the network; the data "
    "owner can open it to an auditor (dp-powerflow verify --private)"
)


class TrueSection(NetworkSection):
    """`guarantee.network` of a release on the true network."""

    mode: Literal["true-network"]
    bound: Literal["paper", "corrected", "full-support"]
    kind: Literal["per-instance evidence, not differential privacy"]
    protection: Literal["as the policy says", "NO MEANINGFUL PROTECTION OF THE NETWORK"]
    weak_because: list[Sentence]
    radius: Positive
    base_mva: Positive
    radius_in_words: Sentence
    days: Count
    epsilon: Positive
    line_changes_covered: bool
    evidence_required: bool

    def in_one_sentence(self) -> str:
        weak = f"{NO_PROTECTION}. " if self.weak_because else ""
        return f"{weak}{super().in_one_sentence()}"

    def in_words(self) -> InWords:
        sentences = (
            *self.weak_because,
            "Evidence, not differential privacy: the voltages were solved on the true network, so they say "
            f"something about it. Compared are {self.neighbours}",
            self.radius_in_words,
            self.scope,
        )
        means = f"evidence, not differential privacy; δ* = {in_digits(self.delta)}"
        return InWords(f"ε* = {in_digits(self.epsilon)}", means, sentences, False)

    def in_full(self) -> str:
        weak = f"{NO_PROTECTION}: {' '.join(self.weak_because)} " if self.weak_because else ""
        return (
            f"{weak}The network is not covered by differential privacy. Policy ({self.kind}): neighbours are "
            f"{self.neighbours}; epsilon {in_digits(self.epsilon)} and delta {in_digits(self.delta)} for "
            f"{self.days} days. {self.scope}"
        )


@dataclass(frozen=True)
class TruePolicy(NetworkPolicy):
    """The policy of a release on the true network.

    Attributes
    ----------
    bound : `paper`, `corrected` or `full-support`.
    radius : r [p.u.], largest Frobenius norm of the change of the full admittance matrix.
    base_mva : power base that r is per unit of [MVA per phase, or of the three phases of a balanced node].
    epsilon, delta : ε*, δ* for all days of the release together.
    evidence_required : whether the release would have been refused without supporting evidence.
    """

    mode: ClassVar[str] = "true-network"
    section: ClassVar[type[NetworkSection]] = TrueSection
    account_kind: ClassVar[AccountKind] = AccountKind.NETWORK_INSTANCE
    template: ClassVar[str] = "true.html"

    bound: str
    radius: float
    base_mva: float
    epsilon: float
    delta: float
    evidence_required: bool

    @classmethod
    def of(cls, config: Config) -> Self:
        network = config.network
        assert network.mode == "true-network"
        return cls(
            bound=network.bound,
            radius=network.radius,
            base_mva=config.feeder.base_mva,
            epsilon=network.epsilon,
            delta=network.delta,
            evidence_required=network.require_evidence,
        )

    @classmethod
    def read(cls, statement: Statement[Any]) -> Self:
        stated = statement.guarantee.network
        return cls(**{field.name: getattr(stated, field.name) for field in fields(cls)})

    @property
    def full_support(self) -> bool:
        """Whether reactive load is drawn at random, so that a change of a line can be covered."""
        return self.bound == "full-support"

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """By ε*, δ* and r: r is compared with the weakest line of a public feeder, on the same power base."""
        found = []
        if self.epsilon > LARGEST_EPSILON:
            found.append(f"epsilon* = {all_digits(self.epsilon)} is above {LARGEST_EPSILON:g}.")
        if self.delta > LARGEST_DELTA:
            found.append(f"delta* = {all_digits(self.delta)} is above {all_digits(LARGEST_DELTA)}.")
        line = SURROGATE_LINE_PU / self.base_mva
        if self.radius < SMALLEST_SHARE * line:
            found.append(
                f"r = {all_digits(self.radius)} p.u. is below {SMALLEST_SHARE:.0%} of the weakest line of "
                f"the public {SURROGATE} test feeder, whose admittance is {in_digits(line)} p.u. at "
                f"{in_digits(self.base_mva)} MVA."
            )
        return tuple(found)

    def words(self, facts: Facts) -> NetworkWords:
        warnings = [
            *(self.warnings or text.composed_weakness(facts)),
            *text.warnings(facts),
            *_no_evidence(self),
        ]
        return NetworkWords(
            section=_section(facts, self),
            composition=text.COMPOSITION,
            declared=[f"the least nominal load of a released node: {_MIDDLE}"],
            after_noise=_after_noise(self),
            unprotected=_unprotected(facts, self),
            not_claimed=warnings + _not_claimed(self),
            warnings=warnings,
            bound_to=(
                "the draws: release id, load model and keyed hash of the network; the noise of the load "
                "model: release id and keyed hash of the meter data"
            ),
            commitment=COMMITMENT,
            attested=_attested(facts, self),
        )

    def contradictions(self, facts: Facts) -> Iterator[str]:
        if not isinstance(facts.network.law, InstanceCap):
            yield "The account of the network is not that of releases on the true network."
            return
        if facts.network.law.unit != account_neighbours(self.radius, self.base_mva):
            yield "The account of the network is about other neighbours than the policy."
        for name, own in (("epsilon", self.epsilon), ("delta", self.delta)):
            if not facts.network.holds(name, own):
                yield f"The account of the network does not hold this release's {name}."


def account_neighbours(radius: float, base_mva: float) -> Neighbours:
    """Whom the ledger's account is about, in words that it keeps."""
    short = f"{radius:g}"
    digits = short if float(short) == radius else repr(radius)
    base = "" if base_mva == 1.0 else f" on a base of {all_digits(base_mva)} MVA"
    return Neighbours(f"changes of existing lines with Frobenius norm of at most r = {digits} p.u.{base}")


def _section(facts: Facts, policy: TruePolicy) -> TrueSection:
    return TrueSection.model_validate(
        {
            "mode": policy.mode,
            "bound": policy.bound,
            "kind": "per-instance evidence, not differential privacy",
            "protection": NO_PROTECTION if policy.weaknesses else AS_STATED,
            "weak_because": list(policy.weaknesses),
            "neighbours": _neighbours(policy.radius),
            "radius": policy.radius,
            "base_mva": policy.base_mva,
            "radius_in_words": _radius_in_words(policy),
            "days": facts.layout.days,
            "epsilon": policy.epsilon,
            "delta": policy.delta,
            "scope": {str(mode): words for mode, words in SCOPE.items()}[policy.bound],
            "line_changes_covered": policy.full_support,
            "evidence_required": policy.evidence_required,
            "attestation": _attestation(policy),
        }
    )


def _neighbours(radius: float) -> str:
    """Whom the network is compared with."""
    return (
        "networks that differ from the true one on existing lines only, by a change of the full admittance "
        f"matrix with a Frobenius norm of at most r = {all_digits(radius)} p.u."
    )


def _radius_in_words(policy: TruePolicy) -> str:
    """The radius against a public yardstick; the true network is not looked at."""
    line = REFERENCE_LINE_PU / policy.base_mva
    return (
        f"The median line of the public IEEE 123 test feeder has an admittance of {in_digits(line)} p.u. at "
        f"{in_digits(policy.base_mva)} MVA, the power base of r, so this r is a change of such a line by "
        f"{at_most(policy.radius / line)} of itself."
    )


def _attestation(policy: TruePolicy) -> str:
    """What the data owner says of the network evidence; nobody else can check it without the network."""
    if policy.evidence_required:
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


def _after_noise(policy: TruePolicy) -> list[str]:
    """What happens after the noise; none of it touches the meter data again."""
    drawn = (
        "Days of active and reactive load are drawn independently for every released node from the load "
        "model, untruncated; reactive load has randomness of its own."
        if policy.full_support
        else "Days of active load are drawn independently for every released node from the load model, "
        "truncated to the declared bounds; reactive load follows from the declared power factor."
    )
    return [
        SHRUNK,
        drawn,
        "AC power flow is solved on the true network, with regulator taps fixed to declared positions; a "
        "snapshot without a solution aborts the release.",
        "Only nodes with a random load of their own are released, and only where its nominal size is at "
        f"least {_MIDDLE}; the loads behind the voltages never are.",
        text.HIDDEN_ORDER,
        text.ROUNDED,
    ]


def _unprotected(facts: Facts, policy: TruePolicy) -> list[str]:
    """Outcomes that no guarantee covers, and that a reader learns."""
    evidence = "the internal evidence does not support the network policy or if " * policy.evidence_required
    sun = facts.declared.generation
    steep = "volt-var control is too steep for the network or if " * (
        sun is not None and sun.volt_var != "none"
    )
    return [
        f"That this release was made: it is refused if {evidence}{steep}a draw, or loads at their "
        "declared bounds, have no power-flow solution, and that outcome depends on the true network.",
        f"That {facts.layout.nodes} nodes of the feeder carry a load of the least size and are released.",
        *text.public_sizes(facts),
    ]


def _not_claimed(policy: TruePolicy) -> list[str]:
    """What nobody should read into the guarantee."""
    claims = [
        "Nothing is claimed about connectivity, switch states, regulator taps, phases or base voltages of "
        "the network.",
        "The network statement compares this network with its neighbours. It is no bound over all pairs of "
        "networks, has no group privacy and is not differential privacy.",
        "Nothing is claimed about changes of the network larger than r, nor about lines added or removed.",
        "Every statement is conditional on what an attacker is assumed to know: the load model, power "
        "factors, generation and taps.",
        "Nothing is claimed about nodes without a random load of the least size, such as nodes with "
        "generation only: their voltages are not released.",
        text.ABOUT_RECORDS,
        text.ABOUT_QUALITY,
        text.ABOUT_OTHERS,
    ]
    if not policy.full_support:
        claims.insert(
            0,
            "No change of a line's length, impedance or state is covered: with fixed power factors, who "
            "knows them can rule out any such change from one snapshot.",
        )
    return claims


def _no_evidence(policy: TruePolicy) -> list[str]:
    if policy.evidence_required:
        return []
    return [
        "The release was made whether or not the network evidence supports the policy: the figures for "
        "the network are a target only."
    ]


def _attested(facts: Facts, policy: TruePolicy) -> tuple[str, ...]:
    target = "evidence supports" if policy.evidence_required else "target only, evidence not required for"
    return (
        f"Network ({target} the policy): epsilon* = {in_digits(policy.epsilon)} and delta* = "
        f"{in_digits(policy.delta)} over {facts.layout.days} days against changes of existing lines up to "
        f"r = {all_digits(policy.radius)} p.u., bound '{policy.bound}'. Per-instance evidence, not "
        "differential privacy.",
        text.attested_composition(facts, "epsilon*"),
        "Declared-public inputs are what the data owner says they are, and the key was kept secret.",
    )
