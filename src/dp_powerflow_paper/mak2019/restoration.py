"""Restoration: from noisy loads, a band of costs and what is public to loads that can be served at that cost.

Pure functions of their arguments. They cannot import the true loads, so other true loads with the same noisy
ones give the same bytes, and whatever they return has the guarantee of the noise and of the band.

The loads d̂ nearest to the noisy ones are sought under |C*(d̂) − O*| ≤ β·O*, C* the least cost of dispatch. The
usual relaxation (`ServedGrid.relaxed`) replaces the least cost by the cost of *some* dispatch. That misses
the band on the cheap side: a wasteful dispatch costs O* while the best one costs less. `restore` then scales
the loads by bisection until their own least cost is in the band, or bounds it from below by nodal prices
where the grid is at its limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.acopf import Solution
from dp_powerflow_paper.fioretto2019.public import CostBand

_BISECTIONS = 12
_MOST_CUTS = 6
_WITHIN = 0.9
"""Share of the band that cuts aim at, since they are exact at one point only."""
_TOLERANCE = 1e-5
_FURTHEST = 8.0
"""Largest factor that is tried."""
_HALVINGS = 100


@dataclass(frozen=True, eq=False)
class RestoredLoads:
    """Loads and the dispatch that serves them.

    Attributes
    ----------
    active : (load,) [p.u.].
    solution : their own cheapest dispatch.
    scaled : factor that the bisection found; 1 where none was needed.
    """

    active: FloatArray
    solution: Solution
    scaled: float = 1.0

    def gap(self, band: CostBand) -> float:
        """Own least cost over the centre of the band, less 1; NaN where nothing serves the loads."""
        return self.solution.cost / band.centre - 1.0 if self.solution.feasible else float("nan")

    def in_band(self, band: CostBand) -> bool:
        """Whether the own least cost is; to the tolerance of the solver."""
        return self.solution.feasible and abs(self.gap(band)) <= band.share + _TOLERANCE


@dataclass(frozen=True, eq=False)
class Cut:
    """A bound on the least cost from below, exact at one point: cost + slope·(d − at)."""

    at: FloatArray
    cost: float
    slope: FloatArray

    def least(self, band: CostBand) -> float:
        """What slope·d must reach for the least cost to be in the band."""
        return float((1.0 - _WITHIN * band.share) * band.centre - self.cost + self.slope @ self.at)


class ServedGrid(Protocol):
    """What is public of a grid whose loads are not, and its dispatch."""

    def dispatch(self, active: FloatArray, start: Solution | None = None) -> Solution:
        """Cheapest dispatch for (load,) active powers [p.u.]; `start` is that of nearby loads."""
        ...

    def relaxed(self, noisy: FloatArray, band: CostBand, cuts: tuple[Cut, ...] = ()) -> RestoredLoads:
        """The nearest loads that *some* dispatch serves at a cost within the band.

        Parameters
        ----------
        noisy : (load,) active powers with noise [p.u.].
        cuts : by which the least cost must reach the band, too.
        """
        ...

    def slope(self, solution: Solution) -> FloatArray:
        """(load,) cost of one more unit of active load and the reactive load that comes with it."""
        ...


def restore(noisy: FloatArray, served: ServedGrid, band: CostBand) -> RestoredLoads:
    """The relaxation; then, where its own least cost misses the band, scaled, or else cut until it does not.

    Scaling all loads by bisection is enough unless the grid is near its limits: then no factor serves the
    loads at that cost. There the nodal prices of the cheapest dispatch bound the least cost of other loads,
    and the relaxation is solved again under these bounds. On a linear grid the bounds are exact; on an AC
    grid they are locally. Whether the result is in the band is checked by its own dispatch in any case.
    """
    first = served.relaxed(noisy, band)
    found = scaled(first, served, band)
    cuts: tuple[Cut, ...] = ()
    last = first
    while not found.in_band(band) and len(cuts) < _MOST_CUTS and last.solution.feasible:
        cuts = (*cuts, Cut(last.active, last.solution.cost, served.slope(last.solution)))
        last = served.relaxed(noisy, band, cuts)
        found = scaled(last, served, band)
    return found


def scaled(first: RestoredLoads, served: ServedGrid, band: CostBand) -> RestoredLoads:
    """All loads times the factor, found by bisection, at which their own least cost is in the band.

    What comes nearest is given where there is none.
    """
    cheap = first.solution.feasible and first.solution.cost < band.centre
    low, high = (1.0, _FURTHEST) if cheap else (0.0, 1.0)
    best, tried = first, first
    for _ in range(_BISECTIONS):
        if tried.in_band(band):
            return tried
        factor = 0.5 * (low + high)
        tried = RestoredLoads(
            factor * first.active, served.dispatch(factor * first.active, best.solution), factor
        )
        if tried.solution.feasible and not abs(tried.gap(band)) > abs(best.gap(band)):
            best = tried
        cheap = tried.solution.feasible and tried.solution.cost < band.centre
        low, high = (factor, high) if cheap else (low, factor)
    return best


@dataclass(frozen=True, eq=False)
class TotalBand:
    """A total that restored readings must have, within a share.

    Attributes
    ----------
    total : (…,) released totals.
    amounts : (meter,) what a reading of 1 adds to the total, at least 0.
    share : β.
    """

    total: FloatArray
    amounts: FloatArray
    share: float = 0.01


def nearest_with_total(noisy: FloatArray, band: TotalBand, low: FloatArray, high: FloatArray) -> FloatArray:
    """(…, meter) readings within [low, high] nearest to the noisy ones whose total is in a band.

    A feeder without generators of its own has one dispatch: all is imported, and the cost is the total. So
    the program within the program is this projection: r = max(low, min(high, r̃ + λ·amount)) with the one λ
    that brings the total to the nearest end of the band, found by bisection. A band out of reach counts as
    the nearest total that can be reached.

    Parameters
    ----------
    noisy : (…, meter) readings, all with noise of one scale.
    low, high : public range of readings; they broadcast to those.
    """
    weights = band.amounts / band.amounts.max()
    least, most = (np.broadcast_to(edge, noisy.shape) @ weights for edge in (low, high))
    inside = np.clip(noisy, low, high)
    now = inside @ weights
    centre = band.total / band.amounts.max()
    ends = (np.clip((1.0 + side * band.share) * centre, least, most) for side in (-1.0, 1.0))
    wanted = np.clip(now, *ends)
    reach = float(np.abs(noisy).max(initial=0.0) + np.abs(high).max() + np.abs(low).max())
    reach /= float(weights[weights > 0.0].min())
    below, above = np.full_like(now, -reach), np.full_like(now, reach)
    for _ in range(_HALVINGS):
        middle = 0.5 * (below + above)
        short = np.clip(noisy + middle[..., None] * weights, low, high) @ weights < wanted
        below, above = np.where(short, middle, below), np.where(short, above, middle)
    moved = np.clip(noisy + (0.5 * (below + above))[..., None] * weights, low, high)
    return np.where((now == wanted)[..., None], inside, moved)
