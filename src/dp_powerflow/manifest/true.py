"""Mode 'true-network': voltages solved on the true network. Evidence about it, not differential privacy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from dp_powerflow.manifest import model as form
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import AccountKind

if TYPE_CHECKING:
    from dp_powerflow.config import Config
    from dp_powerflow.manifest.build import Facts

REFERENCE_LINE_PU = 200.0
"""Frobenius norm of a line's admittance matrix [p.u., 1 MVA per phase], median of the public IEEE 123."""
SURROGATE, SURROGATE_LINE_PU = "IEEE 123", 45.98
"""The public feeder that r is measured by, and the Frobenius norm of the admittance of its weakest line, l103
(no switch) [p.u., 1 MVA per phase]. It goes with 1/base; the weakest line of IEEE 13 has 52.99."""
SMALLEST_SHARE = 0.01
"""Of that line: a smaller r protects the network from nothing that matters."""
LEAST_SHARE = 0.05
"""Least load of a released node, as a share of the middle load: half of the feeder's load is at nodes of that
size or larger. At this size a node tells the lines around it about as well as the best-known line of the IEEE
feeders is known anyway (docs/results/network.md, benchmarks/light_nodes.py)."""

Weak = Literal["epsilon", "delta", "radius"]


class TruePolicy(form.NetworkPolicy):
    """`guarantee.network` of a release on the true network.

    Attributes
    ----------
    bound : `paper`, `corrected` or `full-support`.
    radius : r [p.u.], largest Frobenius norm of the change of the full admittance matrix.
    base_mva : power base that r is per unit of [MVA per phase, or of the three phases of a balanced node].
    epsilon, delta : ε*, δ* for all days of the release together.
    evidence_required : whether the release would have been refused without supporting evidence.
    """

    account_kind: ClassVar[AccountKind] = AccountKind.NETWORK_INSTANCE
    template: ClassVar[str] = "true.txt"

    mode: Literal["true-network"]
    kind: Literal["per-instance evidence"]
    bound: Literal["paper", "corrected", "full-support"]
    radius: form.Positive
    base_mva: form.Positive
    days: form.Count
    epsilon: form.Positive
    evidence_required: bool
    weak: list[Weak]

    @classmethod
    def of(cls, config: Config, absent: object = None) -> Self:
        network = config.network
        assert network.mode == "true-network"
        return cls(
            kind="per-instance evidence",
            **{name: getattr(network, name) for name in ("mode", "bound", "radius", "epsilon", "delta")},
            base_mva=config.feeder.base_mva,
            days=config.release.days,
            evidence_required=network.require_evidence,
            weak=[],
        ).recomputed()

    def recomputed(self) -> Self:
        """r is compared with the weakest line of a public feeder, on the same power base."""
        found: dict[Weak, bool] = {
            "epsilon": self.epsilon > form.LARGEST_EPSILON,
            "delta": self.delta > form.LARGEST_DELTA,
            "radius": self.radius < SMALLEST_SHARE * self.weakest_line_pu,
        }
        return self.model_copy(update={"weak": [name for name, is_weak in found.items() if is_weak]})

    @property
    def full_support(self) -> bool:
        """Whether reactive load is drawn at random, so that a change of a line can be covered."""
        return self.bound == "full-support"

    @property
    def weakest_line_pu(self) -> float:
        """Admittance of the weakest line of the public yardstick, on this power base."""
        return SURROGATE_LINE_PU / self.base_mva

    @property
    def reference_line_pu(self) -> float:
        """Admittance of the median line of the same feeder."""
        return REFERENCE_LINE_PU / self.base_mva

    @property
    def warnings(self) -> tuple[form.WarningCode, ...]:
        unsupported: tuple[form.WarningCode, ...] = (
            () if self.evidence_required else ("evidence-not-required",)
        )
        return ("network", *unsupported) if self.recomputed().weak else unsupported

    def contradictions(self, facts: Facts) -> Iterator[str]:
        if self.days != facts.layout.days:
            yield "The policy is for another number of days than the corpus has."
        if not isinstance(facts.network, form.InstanceAccount):
            yield "The account of the network is not that of releases on the true network."
            return
        if facts.network.unit != str(account_neighbours(self.radius, self.base_mva)):
            yield "The account of the network is about other neighbours than the policy."
        for name, own in (("epsilon", self.epsilon), ("delta", self.delta)):
            if getattr(facts.network.spent, name) < own * (1 - form.RELATIVE):
                yield f"The account of the network does not hold this release's {name}."


def account_neighbours(radius: float, base_mva: float) -> Neighbours:
    """Whom the ledger's account is about, in words that it keeps."""
    short = f"{radius:g}"
    digits = short if float(short) == radius else repr(radius)
    base = "" if base_mva == 1.0 else f" on a base of {form.all_digits(base_mva)} MVA"
    return Neighbours(f"changes of existing lines with Frobenius norm of at most r = {digits} p.u.{base}")
