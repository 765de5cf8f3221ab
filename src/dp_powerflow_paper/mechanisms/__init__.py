"""Release mechanisms: what every one is told, what it promises, and how it is asked for voltages.

A mechanism is a `Composition`. Mechanisms that read true loads, and the searches the experiments make over
them, are for public data: a producer has one fit, one release and no look at the true voltages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dp_powerflow import BatchSolver, Feeder, StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import Generation, LoadLaw, Network, OperatingSet, Solver, VoltVar
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from dp_powerflow_paper.sources import Guarantee


@dataclass(frozen=True)
class Target:
    """(ε, δ) that a mechanism is built for."""

    epsilon: float
    delta: float


@dataclass(frozen=True, eq=False)
class FittedLoads:
    """A load law fitted under differential privacy, and what the fit claims for the customers."""

    law: LoadLaw
    claim: Guarantee


@dataclass(frozen=True, eq=False)
class Setting:
    """The network and the history that mechanisms are compared on.

    Nodes are those with a load of their own: they alone have random loads and released voltages. Nodes with
    PV only are solved with them.

    Attributes
    ----------
    network : the true network.
    solver : of the same feeder, with its volt-var control.
    true_load : complex (day, step, loaded node) [p.u.], the loads behind the true voltages.
    load_range : p_max − p_min over all nodes [p.u.], public ("Δ_load").
    n_loads : number of nodes with load ("n_L").
    radius : r [p.u.].
    operating : voltage range and bound on ‖M̃⁻¹‖ the sensitivities are computed from.
    generation : public; day j of any release, true or synthetic, has that of day j modulo its horizon.
    voltvar : control of the PV systems, for solvers of other networks.
    make_solver : of another network, such as a twin; None for the one with fixed taps.
    tan_theta : (loaded node,) public; None for the feeder's nominal power factors.
    """

    network: Network
    solver: Solver
    true_load: ComplexArray
    load_range: float
    n_loads: int
    radius: float
    operating: OperatingSet
    generation: Generation | None = None
    voltvar: VoltVar | None = None
    tan_theta: FloatArray | None = None
    make_solver: Callable[[Feeder], Solver] | None = None

    def solver_of(self, feeder: Feeder) -> Solver:
        """Solver of any network, such as a twin; that of the true one is at hand."""
        if feeder is self.network.feeder:
            return self.solver
        return (
            BatchSolver(feeder, voltvar=self.voltvar)
            if self.make_solver is None
            else self.make_solver(feeder)
        )

    def __post_init__(self) -> None:
        if self.true_load.ndim != 3 or self.true_load.shape[2] != len(self.loaded):
            raise PrivacyError("the true load of a setting must be complex (day, step, loaded node)")
        if self.solver.feeder is not self.network.feeder:
            raise PrivacyError("the solver of a setting must be that of its network's feeder")
        if not (self.radius > 0.0 and self.load_range > 0.0 and self.n_loads > 0):
            raise PrivacyError("a setting needs a positive radius, a positive load range and load points")

    @cached_property
    def loaded(self) -> IntArray:
        """Positions among the retained nodes of those with a load of their own."""
        return self.network.feeder.loaded_nodes()[0]

    @cached_property
    def tangents(self) -> FloatArray:
        """(loaded node,) tangent of the public power-factor angles."""
        if self.tan_theta is not None:
            return self.tan_theta
        feeder = self.network.feeder
        nominal = feeder.nominal_injection[feeder.retained[self.loaded]]
        return np.asarray(nominal.imag / nominal.real)

    @property
    def days(self) -> int:
        """Days of true load."""
        return int(self.true_load.shape[0])

    @property
    def steps(self) -> int:
        """T."""
        return int(self.true_load.shape[1])

    def solve(self, load: ComplexArray) -> ComplexArray:
        """Complex (day, step, node) voltages on the true network [p.u.]; NaN where power flow fails."""
        return solve_loads(self.solver, load, self.generation)


def solve_loads(solver: Solver, load: ComplexArray, generation: Generation | None = None) -> ComplexArray:
    """`Setting.solve` on any feeder."""
    loaded = solver.feeder.loaded_nodes()[0]
    everywhere = np.zeros((load.shape[0] * load.shape[1], len(solver.feeder.retained)), dtype=np.complex128)
    everywhere[:, loaded] = load.reshape(-1, load.shape[2])
    injected = None if generation is None else generation.of(np.arange(len(load)))
    return np.asarray(solver.solve(everywhere, injected).v[:, loaded].reshape(load.shape))


def key_from(generator: np.random.Generator) -> StreamKey:
    """A key for draws of the package; experiments have no secret."""
    return StreamKey.from_insecure_seed(int(generator.integers(2**63)))
