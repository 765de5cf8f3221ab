"""Obfuscated loads of a transmission case as a row of a comparison that releases no voltages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow_paper.fioretto2019.cases import TrueCase, read_case
from dp_powerflow_paper.fioretto2019.public import CostBand
from dp_powerflow_paper.mak2019.measure import kept, measure_draw
from dp_powerflow_paper.mak2019.noise import LoadPrivacy, obfuscate, served_grid, true_loads
from dp_powerflow_paper.mechanisms import key_from
from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.sources.entries import Occasion, OtherEntry

CASE, ALPHA = "case39", 1.0


@dataclass(frozen=True, eq=False)
class ObfuscatedCase:
    """Noise on the loads of a case, restored at the true least cost, as published."""

    case: TrueCase
    privacy: LoadPrivacy
    name: str = f"obfuscated loads of {CASE}"
    kind: str = "loads of one snapshot of a transmission grid"

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Of the loads; the least cost is not paid for."""
        return (self.privacy.guarantee_at_cost,)

    def measure(self, generator: np.random.Generator) -> Mapping[str, float]:
        """Figures of one draw."""
        served, true = served_grid(self.case), true_loads(self.case)
        band = CostBand(served.dispatch(true).cost)
        found = measure_draw(true, obfuscate(true, self.privacy, key_from(generator)), served, band)
        return {
            "restored loads can be served [share]": float(found.feasible),
            "noisy loads can be served [share]": float(found.noisy_feasible),
            "least cost within the band [share]": float(kept(found.gap, band)),
            "the same, relaxation alone [share]": float(kept(found.relaxed_gap, band)),
            "least cost off the true one [%]": 100.0 * abs(found.gap),
            "distance of loads, restored over noisy": found.distance / found.noisy_distance,
        }


def _make(occasion: Occasion) -> ObfuscatedCase:
    return ObfuscatedCase(read_case(CASE), LoadPrivacy(ALPHA, occasion.target.epsilon))


OTHERS = (
    OtherEntry(
        key="obfuscated-case39",
        title="noise on loads of case39, restored at the true cost",
        paper="mak2019privacy",
        matched=False,
        extra="nlp",
        audited_by="tests/paper/mak2019/test_linear_loads.py",
        make=_make,
    ),
)
