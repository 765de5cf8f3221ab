"""Restoration: from noisy loads, a band of costs and what is public to loads that can be served at that cost.

Pure functions of their arguments. They cannot import the true loads, so other true loads with the same noisy
ones give the same bytes, and whatever they return has the guarantee of the noise and of the band.

The loads d̂ nearest to the noisy ones are sought under |C*(d̂) − O*| ≤ β·O*, C* the optimum of AC optimal power
flow. `relaxed` replaces the optimum by the cost of *some* dispatch. That misses the band on the cheap side: a
wasteful dispatch costs O* while the best one costs less. `restore` then scales the loads by bisection until
their own optimum is in the band, or bounds it from below by nodal prices where the grid is at its limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dp_powerflow.errors import ConfigError, require
from dp_powerflow.paper.fioretto2019.acopf import PowerFlowProgram, Solution, optimal_power_flow
from dp_powerflow.paper.fioretto2019.public import Admittances, CostBand, PublicGrid
from dp_powerflow.units import BoolArray, FloatArray

_BISECTIONS = 12
_MOST_CUTS = 6
_WITHIN = 0.9
"""Share of the band that cuts aim at, since they are exact at one point only."""
_TOLERANCE = 1e-5
_FURTHEST = 8.0
"""Largest factor that is tried."""


@dataclass(frozen=True, eq=False)
class ServedGrid:
    """What is public of a grid whose loads are not.

    Attributes
    ----------
    grid : without loads.
    admittances : of its branches.
    loaded : boolean (bus,) where active load is drawn.
    tan_theta : (bus,) reactive over active power.
    fixed_q : (bus,) reactive power that is drawn without active power [p.u.].
    """

    grid: PublicGrid
    admittances: Admittances
    loaded: BoolArray
    tan_theta: FloatArray
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
        return replace(self.grid, load_p=at, load_q=at * self.tan_theta + self.fixed_q)

    def dispatch(self, active: FloatArray, start: Solution | None = None) -> Solution:
        """Cheapest dispatch for (load,) active powers, from a flat start and, if that fails, from another."""
        found = optimal_power_flow(self.with_loads(active), self.admittances)
        if found.feasible or start is None:
            return found
        return optimal_power_flow(self.with_loads(active), self.admittances, start)


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


def relaxed(
    noisy: FloatArray, served: ServedGrid, band: CostBand, cuts: tuple[Cut, ...] = ()
) -> RestoredLoads:
    """The nearest loads that *some* dispatch serves at a cost within the band.

    Parameters
    ----------
    noisy : (load,) active powers with noise [p.u.].
    cuts : by which the least cost must reach the band, too.
    """
    casadi = require("casadi", "nlp")
    opti = casadi.Opti()
    active = opti.variable(len(noisy))
    opti.set_initial(active, np.maximum(noisy, 0.0))
    opti.subject_to(active >= 0.0)
    ones, order = casadi.DM.ones(len(noisy)), list(range(len(noisy)))
    drawn = casadi.DM.triplet(served.places, order, ones, served.grid.buses, len(noisy)) @ active
    reactive = drawn * casadi.DM(served.tan_theta) + casadi.DM(served.fixed_q)
    g, b = casadi.DM(served.admittances.g), casadi.DM(served.admittances.b)
    program = PowerFlowProgram(casadi, served.grid, opti, g, b, loads=(drawn, reactive))
    opti.subject_to(opti.bounded(1.0 - band.share, program.cost / band.centre, 1.0 + band.share))
    for cut in cuts:
        reached = (cut.cost + casadi.DM(cut.slope).T @ (active - casadi.DM(cut.at))) / band.centre
        opti.subject_to(reached >= 1.0 - _WITHIN * band.share)
    some, read = program.minimise(casadi.sumsqr(active - casadi.DM(noisy)))
    found = np.maximum(read(active), 0.0)
    return RestoredLoads(found, served.dispatch(found, some))


def restore(noisy: FloatArray, served: ServedGrid, band: CostBand) -> RestoredLoads:
    """The relaxation; then, where its own least cost misses the band, scaled, or else cut until it does not.

    Scaling all loads by bisection is enough unless the grid is near its limits: then no factor serves the
    loads at that cost. There the nodal prices of the cheapest dispatch bound the least cost of other loads,
    and the relaxation is solved again under these bounds.
    """
    first = relaxed(noisy, served, band)
    found = scaled(first, served, band)
    cuts: tuple[Cut, ...] = ()
    last = first
    while not found.in_band(band) and len(cuts) < _MOST_CUTS and last.solution.feasible:
        cuts = (*cuts, _cut(last, served))
        last = relaxed(noisy, served, band, cuts)
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


def _cut(found: RestoredLoads, served: ServedGrid) -> Cut:
    assert found.solution.prices is not None
    prices = found.solution.prices[served.places]
    slope = prices[:, 0] + served.tan_theta[served.places] * prices[:, 1]
    return Cut(found.active, found.solution.cost, np.asarray(slope))


def nearest_with_total(noisy: FloatArray, total: FloatArray, share: float, high: FloatArray) -> FloatArray:
    """Loads in [0, high] nearest to the noisy ones whose sum is within a share of a total.

    A radial feeder without generators of its own has one dispatch: all is imported, and the cost is the
    total. So the program within the program is this projection: max(0, min(high, d̃ + λ)) with the one λ that
    brings the sum to the nearest end of the band, found by bisection.

    Parameters
    ----------
    noisy : (…, node) [p.u.].
    total : (…,) released totals [p.u.].
    share : β.
    high : (node,) public largest loads [p.u.].
    """
    inside = np.clip(noisy, 0.0, high)
    now = inside.sum(axis=-1)
    most = float(np.sum(high))
    wanted = np.clip(
        now, np.clip((1.0 - share) * total, 0.0, most), np.clip((1.0 + share) * total, 0.0, most)
    )
    reach = float(np.abs(noisy).max(initial=0.0) + high.max())
    low, top = np.full_like(now, -reach), np.full_like(now, reach)
    for _ in range(80):
        middle = 0.5 * (low + top)
        short = np.clip(noisy + middle[..., None], 0.0, high).sum(axis=-1) < wanted
        low, top = np.where(short, middle, low), np.where(short, top, middle)
    moved = np.clip(noisy + (0.5 * (low + top))[..., None], 0.0, high)
    return np.where((now == wanted)[..., None], inside, moved)
