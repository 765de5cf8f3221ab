"""A private dispatch as a row of a comparison: what it releases, and what it claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dp_powerflow_paper.dvorkin2020.case import Case, Privacy, case_of
from dp_powerflow_paper.dvorkin2020.policy import Expected, Policy, TotalVariance, Variant, loads_from
from dp_powerflow_paper.dvorkin2020.program import Program, least_cost
from dp_powerflow_paper.mechanisms import key_from
from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.sources.entries import Occasion, OtherEntry

KIND = "a dispatch: set-points of generators and flows in lines"
DRAWS = 1000
"""Draws of noise behind the figures of one release."""
_OWN_LINE = "one load by at most {share:g} %, seen in the active flow of its own line and in nothing else"
_ALL_FLOWS = "one load by at most {share:g} %, seen in all active flows together"
_NOT_A_PROOF = (
    "the published proof takes the policy, and so the variance of the flow, as the same for both neighbours, "
    "and it covers no other flow and no set-point"
)
_MEASURED = "no bound exists: noise fills every direction, and ε is measured between neighbours"


@dataclass(frozen=True, eq=False)
class PrivateDispatch:
    """One variant on one feeder and one snapshot of loads.

    Attributes
    ----------
    policy : solved once; every release draws its own noise.
    least : cost without noise.
    jointly : ε of all flows together that was measured, None where there is none to claim.
    """

    policy: Policy
    privacy: Privacy
    least: float
    name: str
    kind: str = KIND
    jointly: float | None = None

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Of the own line; of all flows only where a figure was given, and never proved."""
        share = 100.0 * self.privacy.share
        own = Guarantee(
            self.privacy.epsilon,
            self.privacy.delta,
            "step",
            _OWN_LINE.format(share=share),
            proved=False,
            remark=_NOT_A_PROOF,
            jointly=False,
            composes="per snapshot",
            metric=f"{share:g} % of a load",
        )
        if self.jointly is None:
            return (own,)
        words = _ALL_FLOWS.format(share=share)
        joint = replace(own, epsilon=self.jointly, adjacency=words, remark=_MEASURED, jointly=True)
        return own, joint

    def measure(self, generator: np.random.Generator) -> Mapping[str, float]:
        """Figures of a thousand draws of noise."""
        policy = self.policy
        dispatch = policy.dispatch(policy.noise(key_from(generator), DRAWS))
        violations = policy.violations(dispatch)
        recovered = loads_from(policy.case, dispatch)
        return {
            "expected cost over that without noise [%]": 100.0 * (policy.cost / self.least - 1.0),
            "draws that pass a limit [share]": violations.jointly,
            "draws that pass the worst single limit [share]": max(
                violations.generators, violations.voltages, violations.flows
            ),
            "noise dimensions over noisy lines [share]": policy.rank / int((policy.sigma > 0.0).sum()),
            "error of loads computed from the release [p.u.]": float(
                np.abs(recovered - policy.case.load_p).max()
            ),
        }


def _at_noon(occasion: Occasion) -> Case:
    """The feeder of an occasion at noon of its first day."""
    feeder = occasion.data.feeder
    load = np.zeros(len(feeder.nodes), dtype=np.complex128)
    steps = occasion.true_load.shape[1]
    load[feeder.retained[feeder.loaded_nodes()[0]]] = occasion.true_load[0, steps // 2]
    return case_of(feeder, load=load)


def _make(occasion: Occasion, variant: Variant) -> PrivateDispatch:
    case = _at_noon(occasion)
    customers = int((case.load_p > 0.0).sum())
    privacy = Privacy(occasion.target.epsilon, 1.0 / customers)
    policy = Program(case, privacy.sigma(case), variant).solve()
    return PrivateDispatch(policy, privacy, least_cost(case), f"private dispatch, {variant.name}")


_AUDIT = "tests/audit/test_dispatch_audit.py"
OTHERS = (
    OtherEntry(
        key="dispatch-cc",
        title="private dispatch, CC",
        paper="dvorkin2020differentially",
        extra="opf",
        audited_by=_AUDIT,
        make=partial(_make, variant=Expected()),
    ),
    OtherEntry(
        key="dispatch-tov",
        title="private dispatch, ToV",
        paper="dvorkin2020differentially",
        extra="opf",
        audited_by=_AUDIT,
        make=partial(_make, variant=TotalVariance()),
    ),
)
