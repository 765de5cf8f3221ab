"""AC optimal power flow as a nonlinear program (casadi with its IPOPT, extra `nlp`).

Branch: series admittance g + jb, half of its charging at either end, an ideal transformer at the start.
Admittances are figures, or variables of the program: restoration uses the same equations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dp_powerflow.errors import require
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.fioretto2019.public import Admittances, PublicGrid

_COST_UNIT = 1e3
_MOST_ITERATIONS = 500
_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found.

    Attributes
    ----------
    feasible : whether it converged to a point that keeps all limits.
    cost : per hour; of the last point where it did not converge.
    v, angle : (bus,) [p.u.], [rad].
    p, q : (generator,) [p.u.].
    status : the solver's own word.
    prices : (bus, 2) cost of one more unit of active and of reactive load; None where cost is not minimised.
    """

    feasible: bool
    cost: float
    v: FloatArray
    angle: FloatArray
    p: FloatArray
    q: FloatArray
    status: str
    prices: FloatArray | None = None


class PowerFlowProgram:
    """The equations of a network, before anything is minimised.

    Parameters
    ----------
    g, b : (branch,) figures or variables.
    loads : (bus,) active and reactive ones, figures or variables; None for those of the grid.
    """

    def __init__(
        self, casadi: Any, grid: PublicGrid, opti: Any, g: Any, b: Any, loads: tuple[Any, Any] | None = None
    ) -> None:
        self.casadi, self.grid, self.opti = casadi, grid, opti
        self._loads = (casadi.DM(grid.load_p), casadi.DM(grid.load_q)) if loads is None else loads
        buses, generators = grid.buses, grid.generators
        self.angle, self.v = opti.variable(buses), opti.variable(buses)
        self.p, self.q = opti.variable(len(generators.bus)), opti.variable(len(generators.bus))
        opti.set_initial(self.v, np.clip(1.0, grid.v_min, grid.v_max))
        opti.set_initial(self.p, np.clip(0.5 * (generators.p_min + generators.p_max), -50.0, 50.0))
        self._balance(g, b)
        self._limits()
        mw = self.p * grid.base_mva
        square, linear, constant = (casadi.DM(column) for column in generators.cost.T)
        self.cost = casadi.sum1(square * mw**2 + linear * mw + constant)

    def begin_at(self, start: Solution) -> None:
        """Begin at a solution of nearby figures."""
        for variable, value in (
            (self.v, start.v),
            (self.angle, start.angle),
            (self.p, start.p),
            (self.q, start.q),
        ):
            self.opti.set_initial(variable, value)

    def _balance(self, g: Any, b: Any) -> None:
        casadi, grid, branches = self.casadi, self.grid, self.grid.branches
        start, end = branches.start.tolist(), branches.end.tolist()
        angle = self.angle[start] - self.angle[end] - casadi.DM(branches.shift)
        sending, receiving = self.v[start] / casadi.DM(branches.ratio), self.v[end]
        half = casadi.DM(branches.charging / 2.0)
        cos, sin, product = casadi.cos(angle), casadi.sin(angle), sending * receiving
        p_start = g * sending**2 - product * (g * cos + b * sin)
        q_start = -(b + half) * sending**2 - product * (g * sin - b * cos)
        p_end = g * receiving**2 - product * (g * cos - b * sin)
        q_end = -(b + half) * receiving**2 + product * (g * sin + b * cos)
        at_start, at_end = (self._incidence(ends) for ends in (branches.start, branches.end))
        made = self._incidence(grid.generators.bus)
        out_p = at_start @ p_start + at_end @ p_end + casadi.DM(grid.shunt_g) * self.v**2
        out_q = at_start @ q_start + at_end @ q_end - casadi.DM(grid.shunt_b) * self.v**2
        self.balances = (
            made @ self.p - self._loads[0] == out_p,
            made @ self.q - self._loads[1] == out_q,
        )
        for balance in self.balances:
            self.opti.subject_to(balance)
        limited = np.flatnonzero(np.isfinite(branches.rating))
        if len(limited):
            square = casadi.DM(branches.rating[limited] ** 2)
            at = limited.tolist()
            self.opti.subject_to(p_start[at] ** 2 + q_start[at] ** 2 <= square)
            self.opti.subject_to(p_end[at] ** 2 + q_end[at] ** 2 <= square)

    def _limits(self) -> None:
        opti, grid, generators = self.opti, self.grid, self.grid.generators
        opti.subject_to(self.angle[grid.reference] == 0.0)
        opti.subject_to(opti.bounded(grid.v_min, self.v, grid.v_max))
        opti.subject_to(opti.bounded(generators.p_min, self.p, generators.p_max))
        opti.subject_to(opti.bounded(generators.q_min, self.q, generators.q_max))

    def _incidence(self, places: IntArray) -> Any:
        """(bus, element) 1 where the element is."""
        count = len(places)
        shape = (places.tolist(), list(range(count)), self.casadi.DM.ones(count), self.grid.buses, count)
        return self.casadi.DM.triplet(*shape)

    def minimise(self, objective: Any) -> tuple[Solution, Any]:
        """The solution, and a function that reads any expression at it."""
        self.opti.minimize(objective)
        settings = {"print_level": 0, "sb": "yes", "max_iter": _MOST_ITERATIONS, "tol": _TOLERANCE}
        self.opti.solver("ipopt", {"print_time": False, "error_on_fail": False}, settings)
        try:
            self.opti.solve_limited()
            stats = self.opti.stats()
            feasible, status = bool(stats["success"]), str(stats["return_status"])
        except RuntimeError:  # casadi raises it where the solver stops at a point that has no value
            feasible, status = False, "Invalid_Number_Detected"
        read = self.opti.debug.value

        def array(expression: Any) -> FloatArray:
            return np.asarray(read(expression), dtype=np.float64).reshape(-1)

        v, angle, p, q = (array(each) for each in (self.v, self.angle, self.p, self.q))
        return Solution(feasible, float(read(self.cost)), v, angle, p, q, status), array


def optimal_power_flow(grid: PublicGrid, admittances: Admittances, start: Solution | None = None) -> Solution:
    """Cheapest dispatch of a network.

    Parameters
    ----------
    start : where to begin, such as the dispatch of nearby loads; None for a flat start.

    Raises
    ------
    MissingExtraError : casadi is not installed.
    """
    casadi = require("casadi", "nlp")
    program = PowerFlowProgram(
        casadi, grid, casadi.Opti(), casadi.DM(admittances.g), casadi.DM(admittances.b)
    )
    if start is not None:
        program.begin_at(start)
    solution, read = program.minimise(program.cost / _COST_UNIT)
    duals = [read(program.opti.dual(balance)) for balance in program.balances]
    return replace(solution, prices=-_COST_UNIT * np.stack(duals, axis=1))
