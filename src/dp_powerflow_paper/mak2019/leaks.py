"""What the least cost gives away when it goes into restored loads as it is."""

from __future__ import annotations

import numpy as np

from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.public import CostBand
from dp_powerflow_paper.mak2019.restoration import RestoredLoads, ServedGrid

_STEPS = 10
_NEAR = 1e-5
"""Relative distance from an end of the band at which loads count as lying on it."""


def load_from_cost(others: FloatArray, position: int, cost: float, served: ServedGrid) -> float:
    """The one load [p.u.] that an attacker does not know, from the least cost and all other loads.

    Newton's method from the mean of the others, with nodal prices for slopes.

    Parameters
    ----------
    others : (load,) active powers [p.u.]; what stands at `position` is not read.
    cost : O*.
    """
    known = np.delete(others, position)
    guess = np.insert(known, position, known.mean())
    for _ in range(_STEPS):
        found = served.dispatch(guess)
        if not found.feasible:
            guess[position] *= 0.5
            continue
        step = (cost - found.cost) / float(served.slope(found)[position])
        guess[position] = max(guess[position] + step, 0.0)
        if abs(step) < _NEAR * known.mean():
            break
    return float(guess[position])


def at_an_end(found: RestoredLoads, band: CostBand) -> bool:
    """Whether the least cost of restored loads is at an end of the band: then O* is one of two figures."""
    return found.solution.feasible and abs(abs(found.gap(band)) - band.share) <= _NEAR
