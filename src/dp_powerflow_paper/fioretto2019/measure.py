"""Figures of one released network: whether it admits power flow, at which cost, how far from the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow import StreamKey
from dp_powerflow_paper.fioretto2019.acopf import optimal_power_flow
from dp_powerflow_paper.fioretto2019.cases import TrueCase
from dp_powerflow_paper.fioretto2019.noise import BranchPrivacy, as_published, obfuscate
from dp_powerflow_paper.fioretto2019.public import Admittances, CostBand
from dp_powerflow_paper.fioretto2019.restoration import restore


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
