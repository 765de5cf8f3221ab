"""AC optimal power flow as a nonlinear program (casadi with its IPOPT, extra `nlp`).

Branch: series admittance g + jb, half of its charging at either end, an ideal transformer at the start.
Admittances are figures, or variables of the program: restoration uses the same equations.

What restoration may know: the public part of a network, and figures that already have noise.

Nothing here can reach true figures of branches; an import contract keeps it so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dp_powerflow.errors import ConfigError, require
from dp_powerflow.units import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Generators:
    """Generators of a network; limits per unit.

    Attributes
    ----------
    bus : (generator,).
    p_min, p_max, q_min, q_max : (generator,) limits [p.u.].
    cost : (generator, 3) of active power in MW: square, linear and constant term.
    """

    bus: IntArray
    p_min: FloatArray
    p_max: FloatArray
    q_min: FloatArray
    q_max: FloatArray
    cost: FloatArray


@dataclass(frozen=True, eq=False)
class Branches:
    """Public figures of branches.

    Attributes
    ----------
    start, end : (branch,) buses.
    charging : (branch,) total line charging [p.u.].
    ratio, shift : (branch,) of an ideal transformer at the start; 1 and 0 without [rad].
    rating : (branch,) apparent power [p.u.], infinite without a limit.
    level : (branch,) number of its group: voltage level, line or transformer, with losses or without.
    lossless : (branch,) whether it is modelled without resistance, a choice of the model as its type is.
    """

    start: IntArray
    end: IntArray
    charging: FloatArray
    ratio: FloatArray
    shift: FloatArray
    rating: FloatArray
    level: IntArray
    lossless: BoolArray

    @property
    def levels(self) -> int:
        """Number of groups."""
        return int(self.level.max()) + 1

    @property
    def sizes(self) -> IntArray:
        """(level,) branches of every group."""
        return np.bincount(self.level, minlength=self.levels)


@dataclass(frozen=True, eq=False)
class PublicGrid:
    """A network without the series admittances of its branches.

    Attributes
    ----------
    base_mva : power base.
    load_p, load_q : (bus,) [p.u.].
    shunt_g, shunt_b : (bus,) [p.u.].
    v_min, v_max : (bus,) [p.u.].
    reference : bus whose angle is zero.
    """

    name: str
    base_mva: float
    load_p: FloatArray
    load_q: FloatArray
    shunt_g: FloatArray
    shunt_b: FloatArray
    v_min: FloatArray
    v_max: FloatArray
    reference: int
    generators: Generators
    branches: Branches

    @property
    def buses(self) -> int:
        """Number of buses."""
        return len(self.load_p)


@dataclass(frozen=True, eq=False)
class Admittances:
    """Series admittances g + jb of branches, each (branch,) [p.u.]; b is negative for an inductance."""

    g: FloatArray
    b: FloatArray


@dataclass(frozen=True, eq=False)
class NoisyFigures:
    """What noise leaves of a network. Publishable.

    Attributes
    ----------
    branches : noisy admittances.
    mean_g, mean_b : (level,) noisy means over a group; that of g of a lossless group is 0.
    scale_g, scale_b : of the Laplace noise of a branch [p.u.]; public.
    mean_scale_g, mean_scale_b : (level,) of the means [p.u.]; public.
    """

    branches: Admittances
    mean_g: FloatArray
    mean_b: FloatArray
    scale_g: float
    scale_b: float
    mean_scale_g: FloatArray
    mean_scale_b: FloatArray


@dataclass(frozen=True)
class CostBand:
    """Costs that a restored network must admit: centre·(1 ± share). The centre is public."""

    centre: float
    share: float = 0.01

    def __post_init__(self) -> None:
        if not (self.centre > 0.0 and 0.0 < self.share < 1.0):
            raise ConfigError("a band of costs needs a positive centre and a share between 0 and 1")


@dataclass(frozen=True, eq=False)
class NoisyLengths:
    """What noise leaves of the lengths of a feeder's lines. Publishable.

    Attributes
    ----------
    inverse : (line,) noisy inverse lengths [1/km].
    mean : noisy mean of them.
    mean_scale : of the mean's noise; public.
    """

    inverse: FloatArray
    mean: float
    mean_scale: float


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
        self.balances = (made @ self.p - self._loads[0] == out_p, made @ self.q - self._loads[1] == out_q)
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
