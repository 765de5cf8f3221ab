"""Obfuscated loads of a transmission case as a row of a comparison that releases no voltages.

Figures of obfuscated loads: whether they can be served, at which cost, how far from the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.acopf import CostBand
from dp_powerflow_paper.fioretto2019.cases import TrueCase, read_case
from dp_powerflow_paper.mak2019.noise import LoadPrivacy, obfuscate, served_grid, true_loads
from dp_powerflow_paper.mak2019.restoration import AcGrid, restore
from dp_powerflow_paper.mechanisms import key_from
from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.sources.entries import Occasion, OtherEntry

MOST_OFF = 1e-3
"""Beyond β, that the least cost of restored loads may be off: tolerance of the solvers."""


@dataclass(frozen=True)
class Draw:
    """Figures of one draw of the noise. INTERNAL: they are compared with the truth.

    Attributes
    ----------
    noisy_feasible, feasible : whether a dispatch serves the loads: noisy ones (negative ones as 0), restored.
    noisy_gap, relaxed_gap, gap : least cost over the true one, less 1, of noisy loads, of the relaxation
        alone and of restored loads; NaN where nothing serves them.
    noisy_distance, distance : ‖d̃ − d‖₁ and ‖d̂ − d‖₁ [p.u.].
    """

    noisy_feasible: bool
    feasible: bool
    noisy_gap: float
    relaxed_gap: float
    gap: float
    noisy_distance: float
    distance: float


def measure_draw(true: FloatArray, noisy: FloatArray, served: AcGrid, band: CostBand) -> Draw:
    """Noise, relaxation and restoration of one draw.

    Parameters
    ----------
    true : PRIVATE (load,) active powers [p.u.].
    noisy : (load,) the same with noise.
    band : round the least cost of the true loads.
    """
    plain = served.dispatch(np.maximum(noisy, 0.0))
    relaxed, found = served.relaxed(noisy, band), restore(noisy, served, band)
    return Draw(
        noisy_feasible=plain.feasible,
        feasible=found.solution.feasible,
        noisy_gap=plain.cost / band.centre - 1.0 if plain.feasible else float("nan"),
        relaxed_gap=relaxed.gap(band),
        gap=found.gap(band),
        noisy_distance=float(np.abs(noisy - true).sum()),
        distance=float(np.abs(found.active - true).sum()),
    )


def kept(gap: float, band: CostBand) -> bool:
    """Whether a gap is within the band, to the tolerance of the solvers."""
    return abs(gap) <= band.share + MOST_OFF


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
        extra="nlp",
        audited_by="tests/paper/test_mak2019.py",
        make=_make,
    ),
)
