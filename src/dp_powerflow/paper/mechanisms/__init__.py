"""Release mechanisms: what every one is told, what it promises, and how it is asked for voltages.

A mechanism is a frozen object. Mechanisms that read true loads, and the searches the experiments make over
them, are for public data: a producer has one fit, one release and no look at the true voltages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.theorem import OperatingSet
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.sample import LoadSampler, solve_days
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.reference import ReferenceSolver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import ComplexArray

BY_RADIUS = "networks that differ by at most r in Frobenius norm of Y_full"
ON_LINES = "networks that differ on existing lines by at most r in Frobenius norm of Y_full"
SAME_MANIFOLD = (
    "networks within r in Frobenius norm of Y_full whose voltages lie on the same manifold: on a feeder of "
    "many nodes no change of a line is among them"
)
ONE_CUSTOMER_DAY = "histories in which one load point has other values on one day"


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) claimed for one secret.

    Attributes
    ----------
    epsilon, delta : as claimed.
    unit : what of the release is covered: "step", "day" or "any number of days".
    adjacency : in words, who cannot be told apart.
    proved : whether the claim is a bound under the stated adjacency; if not, `remark` says what it is.
    remark : one sentence.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    proved: bool
    remark: str = ""


@dataclass(frozen=True)
class Cost:
    """What a mechanism claims for the network and for the loads; None where it protects nothing."""

    network: Guarantee | None
    loads: Guarantee | None


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

    Attributes
    ----------
    network : the true network.
    solver : of the same feeder.
    true_load : complex (day, step, node) [p.u.], the loads behind the true voltages.
    load_range : p_max − p_min over all nodes [p.u.], public ("Δ_load").
    n_loads : number of nodes with load ("n_L").
    radius : r [p.u.].
    operating : voltage range and bound on ‖M̃⁻¹‖ the sensitivities are computed from.
    """

    network: Network
    solver: BatchSolver
    true_load: ComplexArray
    load_range: float
    n_loads: int
    radius: float
    operating: OperatingSet

    def __post_init__(self) -> None:
        if self.true_load.ndim != 3 or self.true_load.shape[2] != self.network.n:
            raise PrivacyError("the true load of a setting must be complex (day, step, retained node)")
        if self.solver.feeder is not self.network.feeder:
            raise PrivacyError("the solver of a setting must be that of its network's feeder")
        if not (self.radius > 0.0 and self.load_range > 0.0 and self.n_loads > 0):
            raise PrivacyError("a setting needs a positive radius, a positive load range and load points")

    @property
    def days(self) -> int:
        """Days of true load."""
        return int(self.true_load.shape[0])

    @property
    def steps(self) -> int:
        """T."""
        return int(self.true_load.shape[1])

    def first_days(self, days: int) -> ComplexArray:
        """Complex (day, step, node) true load of the first days."""
        if not 1 <= days <= self.days:
            raise PrivacyError(f"{days} days were asked of a setting that has {self.days}")
        return self.true_load[:days]

    def solve(self, load: ComplexArray) -> ComplexArray:
        """Complex (day, step, node) voltages on the true network [p.u.]; NaN where power flow fails."""
        return solve_loads(self.solver, load)

    def solve_law(self, law: LoadLaw, days: int, generator: np.random.Generator) -> ComplexArray:
        """Complex (day, step, node) voltages of days drawn from a law [p.u.]; NaN where power flow fails."""
        return solve_drawn(self.solver, law, days, generator)


def solve_loads(solver: BatchSolver | ReferenceSolver, load: ComplexArray) -> ComplexArray:
    """`Setting.solve` on any feeder."""
    flat = np.ascontiguousarray(load.reshape(-1, load.shape[-1]))
    return np.asarray(solver.solve(flat).v.reshape(load.shape))


def solve_drawn(solver: BatchSolver, law: LoadLaw, days: int, generator: np.random.Generator) -> ComplexArray:
    """`Setting.solve_law` on any feeder."""
    return solve_days(solver, LoadSampler(law, key_from(generator), days, block_days=days)).v


def key_from(generator: np.random.Generator) -> StreamKey:
    """A key for draws of the package; experiments have no secret."""
    return StreamKey.from_insecure_seed(int(generator.integers(2**63)))


class Mechanism(Protocol):
    """One way to release voltages."""

    @property
    def name(self) -> str:
        """As in tables and figures."""
        ...

    @property
    def protects(self) -> str:
        """ "nothing", "network", "loads" or "network and loads"."""
        ...

    @property
    def noise_std(self) -> dict[str, float]:
        """Standard deviation of every Gaussian noise it adds, by what it is on; empty if it adds none."""
        ...

    def cost(self) -> Cost:
        """What is claimed, for whom, and whether it is proved."""
        ...

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Complex (day, step, node) voltages [p.u.] of so many days; NaN where power flow fails.

        Mechanisms that read the true loads release the first days of their setting's history.
        """
        ...
