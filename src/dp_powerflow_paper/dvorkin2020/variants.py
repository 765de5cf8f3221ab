"""What a private dispatch minimises: the variants of the paper, each an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from scipy.stats import norm

from dp_powerflow.errors import require
from dp_powerflow.units import FloatArray

PENALTY = 1e6
"""ψ, price of a unit of standard deviation."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Expressions of the program that an objective is made of.

    Attributes
    ----------
    cost : expected cost.
    cost_std : standard deviation of the cost.
    flow_std : (line,) standard deviations of active flows [p.u.].
    sigma : (line,) what every flow is meant to have [p.u.], a figure.
    """

    cost: Any
    cost_std: Any
    flow_std: Any
    sigma: FloatArray


class Variant(Protocol):
    """One objective."""

    @property
    def name(self) -> str:
        """As in the paper."""

    def objective(self, terms: Terms) -> Any:
        """Convex expression to minimise."""


@dataclass(frozen=True)
class Expected:
    """CC: the expected cost alone. The policy is cheap, and its noise lies in few dimensions."""

    name: str = "CC"

    def objective(self, terms: Terms) -> Any:
        """The expected cost."""
        return terms.cost


@dataclass(frozen=True)
class TotalVariance:
    """ToV: flows vary as little as they may."""

    penalty: float = PENALTY
    name: str = "ToV"

    def objective(self, terms: Terms) -> Any:
        """The cost, scaled so that the larger of two prices is one."""
        return terms.cost / self.penalty + require("cvxpy", "opf").sum(terms.flow_std)


@dataclass(frozen=True)
class TargetVariance:
    """TaV: fewer lines have noise of their own, and no flow varies more than it is meant to.

    A flow may vary *less* than it is meant to, without penalty, because only upper bounds of standard
    deviations are convex. `Policy.flow_std` says which lines are left short.

    Attributes
    ----------
    lines : with noise of their own.
    """

    lines: tuple[int, ...]
    penalty: float = PENALTY
    name: str = "TaV"

    def objective(self, terms: Terms) -> Any:
        """What flows vary too much, and the scaled cost."""
        cvxpy = require("cvxpy", "opf")
        return terms.cost / self.penalty + cvxpy.sum(cvxpy.pos(terms.flow_std - terms.sigma))


@dataclass(frozen=True)
class TailCost:
    """CVaR: the mean cost of the dearest draws, mixed with the expected cost.

    Attributes
    ----------
    share : ϱ of the draws that are the dearest.
    weight : θ of their cost.
    """

    share: float = 0.1
    weight: float = 1.0
    name: str = "CVaR"

    def objective(self, terms: Terms) -> Any:
        """(1 − θ)·cost + θ·CVaR of normal cost."""
        tail = float(norm.pdf(norm.ppf(1.0 - self.share))) / self.share
        return terms.cost + self.weight * tail * terms.cost_std
