"""Restoration: from noisy loads, a band of costs and what is public to loads that can be served at that cost.

Pure functions of their arguments. They cannot import the true loads, so other true loads with the same noisy
ones give the same bytes, and whatever they return has the guarantee of the noise and of the band.

The loads d̂ nearest to the noisy ones are sought under |C*(d̂) − O*| ≤ β·O*, C* the least cost of dispatch. The
usual relaxation (`AcGrid.relaxed`) replaces the least cost by the cost of *some* dispatch. That misses
the band on the cheap side: a wasteful dispatch costs O* while the best one costs less. `restore` then scales
the loads by bisection until their own least cost is in the band, or bounds it from below by nodal prices
where the grid is at its limits.

Dispatch is AC optimal power flow (casadi with its IPOPT, extra `nlp`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dp_powerflow.errors import ConfigError, require
from dp_powerflow.units import BoolArray, FloatArray
from dp_powerflow_paper.fioretto2019.acopf import (
    Admittances,
    CostBand,
    PowerFlowProgram,
    PublicGrid,
    Solution,
    optimal_power_flow,
)

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


def restore(noisy: FloatArray, served: AcGrid, band: CostBand) -> RestoredLoads:
    """The relaxation; then, where its own least cost misses the band, scaled, or else cut until it does not.

    Scaling all loads by bisection is enough unless the grid is near its limits: then no factor serves the
    loads at that cost. There the nodal prices of the cheapest dispatch bound the least cost of other loads,
    and the relaxation is solved again under these bounds, which are exact locally. Whether the result is in
    the band is checked by its own dispatch in any case.
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


def scaled(first: RestoredLoads, served: AcGrid, band: CostBand) -> RestoredLoads:
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


@dataclass(frozen=True, eq=False)
class AcGrid:
    """What is public of a grid whose loads are not.

    Attributes
    ----------
    grid : without loads.
    admittances : of its branches.
    loaded : boolean (bus,) where active load is drawn.
    tan_theta : (bus,) reactive over active power.
    fixed_p, fixed_q : (bus,) power that is drawn or fed in at other buses, public [p.u.].
    """

    grid: PublicGrid
    admittances: Admittances
    loaded: BoolArray
    tan_theta: FloatArray
    fixed_p: FloatArray
    fixed_q: FloatArray

    def __post_init__(self) -> None:
        if self.grid.load_p.any() or self.grid.load_q.any():
            raise ConfigError("what is public of a grid must not hold its loads; set them to zero")

    @cached_property
    def places(self) -> list[int]:
        """Buses with active load."""
        return [int(bus) for bus in np.flatnonzero(self.loaded)]

    def with_loads(self, active: FloatArray) -> PublicGrid:
        """The grid that draws (load,) active powers [p.u.] at its places."""
        at = np.zeros(self.grid.buses)
        at[self.places] = active
        return replace(self.grid, load_p=at + self.fixed_p, load_q=at * self.tan_theta + self.fixed_q)

    def dispatch(self, active: FloatArray, start: Solution | None = None) -> Solution:
        """Cheapest dispatch for (load,) active powers, from a flat start and, if that fails, from another."""
        found = optimal_power_flow(self.with_loads(active), self.admittances)
        if found.feasible or start is None:
            return found
        return optimal_power_flow(self.with_loads(active), self.admittances, start)

    def relaxed(self, noisy: FloatArray, band: CostBand, cuts: tuple[Cut, ...] = ()) -> RestoredLoads:
        """min ‖d − d̃‖² such that some dispatch serves d ≥ 0 at a cost within the band."""
        casadi = require("casadi", "nlp")
        opti = casadi.Opti()
        active = opti.variable(len(noisy))
        opti.set_initial(active, np.maximum(noisy, 0.0))
        opti.subject_to(active >= 0.0)
        ones, order = casadi.DM.ones(len(noisy)), list(range(len(noisy)))
        at = casadi.DM.triplet(self.places, order, ones, self.grid.buses, len(noisy)) @ active
        loads = (at + casadi.DM(self.fixed_p), at * casadi.DM(self.tan_theta) + casadi.DM(self.fixed_q))
        g, b = casadi.DM(self.admittances.g), casadi.DM(self.admittances.b)
        program = PowerFlowProgram(casadi, self.grid, opti, g, b, loads=loads)
        opti.subject_to(opti.bounded(1.0 - band.share, program.cost / band.centre, 1.0 + band.share))
        for cut in cuts:
            reached = casadi.DM(cut.slope).T @ active / band.centre
            opti.subject_to(reached >= cut.least(band) / band.centre)
        some, read = program.minimise(casadi.sumsqr(active - casadi.DM(noisy)))
        found = np.maximum(read(active), 0.0)
        return RestoredLoads(found, self.dispatch(found, some))

    def slope(self, solution: Solution) -> FloatArray:
        """(load,) nodal prices of active load with its reactive load."""
        assert solution.prices is not None
        prices = solution.prices[self.places]
        return np.asarray(prices[:, 0] + self.tan_theta[self.places] * prices[:, 1])
