"""Restoration: from noisy loads, a band of costs and what is public to loads that can be served at that cost.

Pure functions of their arguments. They cannot import the true loads, so other true loads with the same noisy
ones give the same bytes, and whatever they return has the guarantee of the noise and of the band.

The loads d̂ nearest to the noisy ones are sought under |C*(d̂) − O*| ≤ β·O*, C* the least cost of dispatch. The
usual relaxation (`ServedGrid.relaxed`) replaces the least cost by the cost of *some* dispatch. That misses
the band on the cheap side: a wasteful dispatch costs O* while the best one costs less. `restore` then scales
the loads by bisection until their own least cost is in the band, or bounds it from below by nodal prices
where the grid is at its limits.

`AcGrid` is a grid by AC optimal power flow (casadi with its IPOPT, extra `nlp`). `LinearGrid` is a radial
feeder by LinDistFlow, with the relaxation and the exact program (SCIP):

    C*(d) = min c'g   such that 1'g = 1'd,  0 ≤ g ≤ ḡ,  |f| ≤ f̄,  u_min ≤ u ≤ u_max

with flows f and squared voltages u linear in loads d and generators g. C* is the largest of many linear
functions of d. "At most" is a convex condition, "at least" is not. The exact program states that g is optimal
by its optimality conditions; complementarity is a special ordered set. Distances are Σ|d̂ − d̃|.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.optimize import linprog

from dp_powerflow.errors import ConfigError, PowerFlowError, require
from dp_powerflow.units import BoolArray, FloatArray, IntArray
from dp_powerflow_paper.fioretto2019.acopf import (
    Admittances,
    CostBand,
    PowerFlowProgram,
    PublicGrid,
    Solution,
    optimal_power_flow,
)
from dp_powerflow_paper.radial import RadialNetwork

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


@dataclass(frozen=True, eq=False)
class LinearLimits:
    """Public limits of a feeder.

    Attributes
    ----------
    capacity : (line,) largest active flow [p.u.].
    u_min, u_max : (node,) squared voltages [p.u.]; the source has 1.
    """

    capacity: FloatArray
    u_min: FloatArray
    u_max: FloatArray


@dataclass(frozen=True, eq=False)
class LinearGrid:
    """What is public of a feeder whose loads are not.

    Attributes
    ----------
    generators : (generator,) nodes; the source is one of them.
    price, most : (generator,) price of a unit of power and largest power [p.u.], at unit power factor.
    places : (load,) nodes with load.
    tan_theta : (load,) reactive over active power.
    """

    network: RadialNetwork
    limits: LinearLimits
    generators: IntArray
    price: FloatArray
    most: FloatArray
    places: IntArray
    tan_theta: FloatArray

    @cached_property
    def rows(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """A_g (row, generator), A_d (row, load) and h (row,) of A_g·g + A_d·d ≤ h."""
        below, resistance, reactance = self.network.below, self.network.resistance, self.network.reactance
        by_p = np.concatenate([below, 2.0 * resistance])
        by_q = np.concatenate([np.zeros_like(below), 2.0 * reactance])
        into, out = -by_p[:, self.generators], by_p[:, self.places] + by_q[:, self.places] * self.tan_theta
        most = np.concatenate([self.limits.capacity, 1.0 - self.limits.u_min])
        least = np.concatenate([self.limits.capacity, self.limits.u_max - 1.0])
        return np.concatenate([into, -into]), np.concatenate([out, -out]), np.concatenate([most, least])

    def dispatch(self, active: FloatArray, start: Solution | None = None) -> Solution:
        """Cheapest dispatch, a linear program; it needs no start."""
        into, out, most = self.rows
        solved = linprog(
            self.price,
            A_ub=into,
            b_ub=most - out @ active,
            A_eq=np.ones((1, len(self.price))),
            b_eq=[active.sum()],
            bounds=list(zip(np.zeros_like(self.most), self.most, strict=True)),
            method="highs",
        )
        nodes = self.network.nodes
        if solved.status != 0:
            empty = np.full(nodes, np.nan)
            none = np.full(len(self.price), np.nan)
            return Solution(False, float("nan"), empty, empty, none, none, str(solved.message))
        p, q = np.zeros(nodes), np.zeros(nodes)
        p[self.places], q[self.places] = active, active * self.tan_theta
        p[self.generators] -= solved.x
        v = np.sqrt(self.network.squared_voltages(p, q))
        prices = self._prices(float(solved.eqlin.marginals[0]), np.asarray(solved.ineqlin.marginals))
        idle = np.zeros(len(self.price))
        return Solution(
            True, float(solved.fun), v, np.zeros(nodes), solved.x, idle, str(solved.message), prices
        )

    def _prices(self, balance: float, rows: FloatArray) -> FloatArray:
        """(node, 2) cost of one more unit of active and of reactive load."""
        half = len(rows) // 2
        pressed = rows[half:] - rows[:half]
        lines = len(self.limits.capacity)
        active = balance + pressed @ np.concatenate([self.network.below, 2.0 * self.network.resistance])
        return np.stack([active, pressed[lines:] @ (2.0 * self.network.reactance)], axis=1)

    def slope(self, solution: Solution) -> FloatArray:
        """(load,) nodal prices of active load with its reactive load."""
        assert solution.prices is not None
        prices = solution.prices[self.places]
        return np.asarray(prices[:, 0] + self.tan_theta * prices[:, 1])

    def relaxed(self, noisy: FloatArray, band: CostBand, cuts: tuple[Cut, ...] = ()) -> RestoredLoads:
        """min Σ|d − d̃| such that some dispatch serves d ≥ 0 at a cost within the band: a linear program."""
        into, out, most = self.rows
        loads, count = len(noisy), len(self.price)
        # Columns: d, |d − d̃|, g.
        eye, none = np.eye(loads), np.zeros((loads, count))
        costs = np.concatenate([np.zeros(2 * loads), self.price])[None]
        bounds_on_cost = band.centre * np.array([1.0 + band.share, band.share - 1.0])
        matrix = [
            np.hstack([out, np.zeros((len(most), loads)), into]),
            np.hstack([eye, -eye, none]),
            np.hstack([-eye, -eye, none]),
            costs,
            -costs,
        ]
        right = [most, noisy, -noisy, bounds_on_cost]
        for cut in cuts:
            matrix.append(np.concatenate([-cut.slope, np.zeros(loads + count)])[None])
            right.append(np.array([-cut.least(band)]))
        solved = linprog(
            np.concatenate([np.zeros(loads), np.ones(loads), np.zeros(count)]),
            A_ub=np.concatenate(matrix),
            b_ub=np.concatenate(right),
            A_eq=np.concatenate([np.ones(loads), np.zeros(loads), -np.ones(count)])[None],
            b_eq=[0.0],
            bounds=[(0.0, None)] * (2 * loads) + [(0.0, float(limit)) for limit in self.most],
            method="highs",
        )
        found = np.maximum(noisy if solved.status != 0 else solved.x[:loads], 0.0)
        return RestoredLoads(found, self.dispatch(found))


@dataclass(frozen=True)
class ExactLoads:
    """The nearest loads whose *least* cost is in the band (pyscipopt, extra `milp`).

    Attributes
    ----------
    nodes : most nodes of the search; it then gives the best that it has.
    gap : relative gap at which it stops.
    """

    nodes: int = 100_000
    gap: float = 1e-6

    def __call__(self, noisy: FloatArray, served: LinearGrid, band: CostBand) -> RestoredLoads:
        """A mixed-integer program.

        Raises
        ------
        PowerFlowError : the search ended without loads.
        """
        scip = require("pyscipopt", "milp")
        model = scip.Model()
        model.hideOutput()
        model.setParam("limits/totalnodes", self.nodes)
        model.setParam("limits/gap", self.gap)
        total = scip.quicksum
        active = [model.addVar(lb=0.0) for _ in noisy]
        power = [model.addVar(lb=0.0, ub=limit) for limit in served.most.tolist()]
        model.addCons(total(power) == total(active))
        pull = _row_limits(model, total, served, (active, power))
        balance = model.addVar(lb=None)
        for k, (price, limit) in enumerate(zip(served.price.tolist(), served.most.tolist(), strict=True)):
            above, below, room = (model.addVar(lb=0.0) for _ in range(3))
            model.addCons(room == limit - power[k])
            model.addConsSOS1([above, room])
            model.addConsSOS1([below, power[k]])
            model.addCons(price - balance + total(pull[k]) + above - below == 0.0)
        cost = total(price * output for price, output in zip(served.price.tolist(), power, strict=True))
        model.addCons(cost <= (1.0 + band.share) * band.centre)
        model.addCons(cost >= (1.0 - band.share) * band.centre)
        apart = []
        for load, target in zip(active, noisy.tolist(), strict=True):
            far = model.addVar(lb=0.0)
            model.addCons(load - target <= far)
            model.addCons(target - load <= far)
            apart.append(far)
        model.setObjective(total(apart))
        model.optimize()
        if not model.getNSols():
            raise PowerFlowError(
                f"SCIP found no loads with that cost in {self.nodes} nodes; allow more, or widen the band"
            )
        found = np.array([max(model.getVal(load), 0.0) for load in active])
        return RestoredLoads(found, served.dispatch(found))


def _row_limits(
    model: Any, total: Any, served: LinearGrid, variables: tuple[list[Any], list[Any]]
) -> list[list[Any]]:
    """Adds the limits with their duals; (generator,) the terms that the duals add to its reduced cost."""
    active, power = variables
    into, out, most = served.rows
    pull: list[list[Any]] = [[] for _ in power]
    for by_power, by_load, limit in zip(into, out, most.tolist(), strict=True):
        pulled = np.flatnonzero(by_power).tolist()
        terms = [float(by_power[k]) * power[k] for k in pulled]
        terms += [float(by_load[k]) * active[k] for k in np.flatnonzero(by_load).tolist()]
        if not terms:
            continue
        dual, room = model.addVar(lb=0.0), model.addVar(lb=0.0)
        model.addCons(room == limit - total(terms))
        model.addConsSOS1([dual, room])
        for k in pulled:
            pull[k].append(float(by_power[k]) * dual)
    return pull
