"""Figures of obfuscated loads: whether they can be served, at which cost, how far from the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.public import CostBand
from dp_powerflow_paper.mak2019.restoration import ServedGrid, restore

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


def measure_draw(true: FloatArray, noisy: FloatArray, served: ServedGrid, band: CostBand) -> Draw:
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
