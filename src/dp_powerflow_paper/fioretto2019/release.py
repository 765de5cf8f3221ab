"""Restored networks as a row of a comparison that releases no voltages: a transmission case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow_paper.fioretto2019.acopf import optimal_power_flow
from dp_powerflow_paper.fioretto2019.cases import TrueCase, read_case
from dp_powerflow_paper.fioretto2019.measure import measure_draw
from dp_powerflow_paper.fioretto2019.noise import BranchPrivacy
from dp_powerflow_paper.mechanisms import key_from
from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.sources.entries import Occasion, OtherEntry

CASE, ALPHA = "case39", 1.0


@dataclass(frozen=True, eq=False)
class RestoredCase:
    """Noise on the branches of a case, restored at a cost near the public one."""

    case: TrueCase
    privacy: BranchPrivacy
    cost: float
    name: str = "noise on branches, restored"
    kind: str = "a network: admittances of its branches"

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Of the network; loads, limits and the least cost are public by declaration."""
        return (self.privacy.guarantee,)

    def measure(self, generator: np.random.Generator) -> Mapping[str, float]:
        """Figures of one draw."""
        found = measure_draw(self.case, self.privacy, self.cost, key_from(generator))
        return {
            "restored network has a power flow [share]": float(found.feasible),
            "noisy network has a power flow [share]": float(found.noisy_feasible),
            "least cost off the true one [%]": 100.0 * found.gap,
            "distance of conductances, restored over noisy": found.distance / found.noisy_distance,
        }


def _make(occasion: Occasion) -> RestoredCase:
    case = read_case(CASE)
    cost = optimal_power_flow(case.public, case.true).cost
    return RestoredCase(case, BranchPrivacy(ALPHA, occasion.target.epsilon), cost, f"restored {CASE}")


OTHERS = (
    OtherEntry(
        key="restored-case39",
        title="noise on branches of case39, restored (PLO)",
        paper="fioretto2019differential",
        matched=False,
        extra="nlp",
        audited_by="tests/audit/test_branch_noise_audit.py",
        make=_make,
    ),
)
