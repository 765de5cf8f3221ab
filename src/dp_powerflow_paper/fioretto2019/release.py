"""Restored networks as a row of a comparison that releases no voltages: a transmission case.

Figures of one released network: whether it admits power flow, at which cost, how far from the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow import StreamKey
from dp_powerflow_paper.fioretto2019.acopf import Admittances, CostBand, optimal_power_flow
from dp_powerflow_paper.fioretto2019.cases import TrueCase, read_case
from dp_powerflow_paper.fioretto2019.noise import BranchPrivacy, as_published, obfuscate
from dp_powerflow_paper.fioretto2019.restoration import restore
from dp_powerflow_paper.mechanisms import key_from
from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.sources.entries import Occasion, OtherEntry


@dataclass(frozen=True)
class Draw:
    """Figures of one draw of the noise. INTERNAL: they are compared with the truth.

    Attributes
    ----------
    published_feasible, noisy_feasible, feasible : whether the optimal power flow of the network has a
        solution: with the published noise, with ours, and restored. Restored networks are solved anew, from
        a flat start.
    noisy_gap, gap : share by which the least cost differs from the true one; NaN if there is none.
    noisy_distance, distance : ‖g̃ − g‖₁ and ‖ġ − g‖₁ [p.u.].
    """

    published_feasible: bool
    noisy_feasible: bool
    feasible: bool
    noisy_gap: float
    gap: float
    noisy_distance: float
    distance: float


def measure_draw(case: TrueCase, privacy: BranchPrivacy, cost: float, key: StreamKey) -> Draw:
    """One draw; `cost` is the least cost of the true network, taken as public."""
    noisy = obfuscate(case, privacy, key)
    restored = restore(noisy, case.public, CostBand(cost))
    published = optimal_power_flow(case.public, as_published(case, privacy, key))
    before = optimal_power_flow(case.public, noisy.branches)
    after = optimal_power_flow(case.public, restored.admittances)

    def gap(feasible: bool, found: float) -> float:
        return abs(found / cost - 1.0) if feasible else math.nan

    def distance(figures: Admittances) -> float:
        return float(np.abs(figures.g - case.true.g).sum())

    return Draw(
        published_feasible=published.feasible,
        noisy_feasible=before.feasible,
        feasible=restored.solution.feasible and after.feasible,
        noisy_gap=gap(before.feasible, before.cost),
        gap=gap(after.feasible, after.cost),
        noisy_distance=distance(noisy.branches),
        distance=distance(restored.admittances),
    )


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
        extra="nlp",
        audited_by="tests/audit/test_branch_noise_audit.py",
        make=_make,
    ),
)
