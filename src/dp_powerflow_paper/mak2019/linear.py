"""A radial feeder by LinDistFlow whose loads are restored: the relaxation, and the exact program (SCIP).

    C*(d) = min c'g   such that 1'g = 1'd,  0 ≤ g ≤ ḡ,  |f| ≤ f̄,  u_min ≤ u ≤ u_max

with flows f and squared voltages u linear in loads d and generators g. C* is the largest of many linear
functions of d. "At most" is a convex condition, "at least" is not. The exact program states that g is optimal
by its optimality conditions; complementarity is a special ordered set. Distances are Σ|d̂ − d̃|.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import linprog

from dp_powerflow.errors import PowerFlowError, require
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.fioretto2019.acopf import Solution
from dp_powerflow_paper.fioretto2019.public import CostBand
from dp_powerflow_paper.mak2019.restoration import Cut, RestoredLoads
from dp_powerflow_paper.radial import RadialNetwork


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
