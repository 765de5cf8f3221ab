"""A grid by AC optimal power flow whose loads are restored (casadi with its IPOPT, extra `nlp`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dp_powerflow.errors import ConfigError, require
from dp_powerflow.units import BoolArray, FloatArray
from dp_powerflow_paper.fioretto2019.acopf import PowerFlowProgram, Solution, optimal_power_flow
from dp_powerflow_paper.fioretto2019.public import Admittances, CostBand, PublicGrid
from dp_powerflow_paper.mak2019.restoration import Cut, RestoredLoads


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
