"""What a release is composed of: loads, a network, noise on voltages; and what each part promises.

A part is a frozen object that states its `Guarantee`. `composition.Composition` draws a network and loads,
solves and adds the noise. What releases something else than voltages is an `OtherRelease`. `registry` lists
the parts that a comparison knows. Parts read true data of public data sets: nothing here is for a producer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np

from dp_powerflow import Feeder
from dp_powerflow.errors import PowerFlowError, PrivacyError
from dp_powerflow.lowlevel import Solver
from dp_powerflow.units import ComplexArray

if TYPE_CHECKING:
    from dp_powerflow_paper.mechanisms import Setting

BY_RADIUS = "networks that differ by at most r in Frobenius norm of Y_full"
ON_LINES = "networks that differ on existing lines by at most r in Frobenius norm of Y_full"
SAME_MANIFOLD = (
    "networks within r in Frobenius norm of Y_full whose voltages lie on the same manifold: on a feeder of "
    "many nodes no change of a line is among them"
)
ONE_CUSTOMER = "histories in which one load point has other values"
ONE_CUSTOMER_DAY = "histories in which one load point has other values on one day"
ONE_CUSTOMER_STEP = "histories in which one load point has another value at one step"
ANY_NUMBER_OF_DAYS = "any number of days"

Composes = Literal["once", "per day", "per snapshot"]


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) claimed for one secret.

    Attributes
    ----------
    epsilon, delta : as claimed.
    unit : what of the release is covered: "step", "day", so many steps, or "any number of days".
    adjacency : in words, who cannot be told apart.
    proved : whether the claim is a bound under the stated adjacency; if not, `remark` says what it is.
    remark : one sentence.
    jointly : whether all that is released of one unit is covered together; False for one number by itself.
    composes : when the claim is spent again on the same secret: "once" never, whatever is released.
    metric : α, the size of the change that is hidden, in words or as a number in the unit of the figure; None
        where any change within the adjacency is.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    proved: bool
    remark: str = ""
    jointly: bool = True
    composes: Composes = "once"
    metric: float | str | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon < 0.0 or not 0.0 <= self.delta < 1.0:
            raise PrivacyError("a guarantee needs an ε of at least 0 and a δ from 0 to below 1")
        if not (self.unit and self.adjacency):
            raise PrivacyError("a guarantee needs its unit and its adjacency in words")
        if self.composes not in get_args(Composes):
            raise PrivacyError(f"a guarantee composes {' or '.join(get_args(Composes))}")
        if (self.composes == "once") != (self.unit == ANY_NUMBER_OF_DAYS):
            raise PrivacyError(f"a guarantee composes once exactly if its unit is '{ANY_NUMBER_OF_DAYS}'")
        if not (self.proved or self.remark):
            raise PrivacyError("a claim that is not proved needs a remark that says what it is")


@dataclass(frozen=True)
class Cost:
    """What a mechanism claims for the network and for the loads; None where it protects nothing."""

    network: Guarantee | None
    loads: Guarantee | None

    @property
    def protects(self) -> str:
        """ "nothing", "network", "loads" or "network and loads"."""
        claims = {"network": self.network, "loads": self.loads}
        return " and ".join(secret for secret, claim in claims.items() if claim is not None) or "nothing"


class UnusableDrawError(PowerFlowError):
    """What was drawn is no network that can be set up; all voltages of its release have failed."""


class Part(Protocol):
    """What every part of a composition says of itself."""

    @property
    def name(self) -> str:
        """As in tables and figures."""
        ...

    @property
    def guarantee(self) -> Guarantee | None:
        """What it claims for its secret, None for nothing."""
        ...

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Standard deviation of every noise it adds, by what it is on; empty if it adds none."""
        ...


class Noiseless:
    """A part that adds no noise to what it gives: it is true, or the noise is in what it was fitted to."""

    @property
    def noise_std(self) -> Mapping[str, float]:
        """None."""
        return {}


class LoadMechanism(Part, Protocol):
    """Where the loads of a release come from; `guarantee` is for the customers."""

    @property
    def unlimited(self) -> bool:
        """Whether it gives any number of days at the same cost."""
        ...

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Complex (day, step, loaded node) loads [p.u.].

        Raises
        ------
        PrivacyError : it reads true days, and there are not so many.
        """
        ...


class NetworkMechanism(Part, Protocol):
    """The network that a release is solved on; `guarantee` is for the network."""

    @property
    def uses_true_network(self) -> bool:
        """Whether power flow is solved on the true network itself."""
        ...

    def draw(self, generator: np.random.Generator) -> Feeder:
        """One network.

        Raises
        ------
        UnusableDrawError : the noise left no network.
        """
        ...

    def solver(self, feeder: Feeder, setting: Setting) -> Solver:
        """Of what was drawn: `setting.solver_of(feeder)`, unless it needs another.

        Raises
        ------
        UnusableDrawError : power flow cannot be set up on it.
        """
        ...


class OtherRelease(Protocol):
    """A row that releases something else than voltages."""

    @property
    def name(self) -> str:
        """As in tables and figures."""
        ...

    @property
    def kind(self) -> str:
        """What is released, in words: "a dispatch", "line capacities", "a model"."""
        ...

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Every claim, one per secret."""
        ...

    def measure(self, generator: np.random.Generator) -> Mapping[str, float]:
        """Figures of one release, by name with the unit in it; NaN for one that failed."""
        ...
