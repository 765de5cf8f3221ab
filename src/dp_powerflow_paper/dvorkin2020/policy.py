"""Dispatch that answers to noise: set-points p(ξ) = p + A·ξ, with what follows for flows and voltages.

The noise ξ_l of line l is taken up by generators that are not below l and given back by those below. So the
flow in l moves by ξ_l itself and by the answers to other lines' noise, and the sum of all set-points does
not move.

What a private dispatch minimises: the variants of the paper, each an object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.stats import norm

from dp_powerflow import StreamKey
from dp_powerflow.errors import require
from dp_powerflow.lowlevel import discrete_gaussian
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2020.case import Case

NOISE_GRID = 2.0**-40
"""Unit of the integers that noise is drawn as [p.u.]."""
SLACK = 1e-6
"""By how much a limit may be passed before it counts as violated [p.u.]; the solver's accuracy."""
RANK_BELOW = 1e-6
"""A singular value of the noise that is smaller, beside the largest, is none."""
_SIDES = np.deg2rad(15.0 + 30.0 * np.arange(6))
SIDES = np.stack([np.cos(_SIDES), np.sin(_SIDES)], axis=1)
"""(6, 2) normals of a regular polygon with twelve sides, one of each two that are opposite."""
APOTHEM = math.cos(math.pi / 12.0)
"""Of that polygon, which lies within the unit circle."""


@dataclass(frozen=True, eq=False)
class Dispatch:
    """What is set and what flows for drawn noise, each (draw, node or line) [p.u.].

    Attributes
    ----------
    p, q : (draw, node) of the generators.
    flow_p, flow_q : (draw, line) away from the root.
    u : (draw, node) squared voltage.
    """

    p: FloatArray
    q: FloatArray
    flow_p: FloatArray
    flow_q: FloatArray
    u: FloatArray


@dataclass(frozen=True, eq=False)
class Violations:
    """Shares of draws that pass a limit.

    Attributes
    ----------
    generators, voltages, flows : the worst single limit of its kind.
    jointly : any limit at all.
    """

    generators: float
    voltages: float
    flows: float
    jointly: float


@dataclass(frozen=True, eq=False)
class Policy:
    """An optimal policy. PRIVATE: its figures follow from the loads.

    Attributes
    ----------
    case : the feeder with its loads.
    sigma : (line,) standard deviation of the noise [p.u.].
    p, q : (node,) set-points without noise [p.u.].
    answer : (node, line) A: change of a set-point per unit of noise.
    """

    case: Case
    sigma: FloatArray
    p: FloatArray
    q: FloatArray
    answer: FloatArray

    @property
    def cost(self) -> float:
        """Expected cost, as the noise has mean zero."""
        return float(self.case.cost @ self.p)

    def cvar(self, share: float) -> float:
        """Mean cost of the dearest share of draws."""
        spread = float(np.linalg.norm(self.sigma * (self.case.cost @ self.answer)))
        return self.cost + spread * float(norm.pdf(norm.ppf(1.0 - share))) / share

    @cached_property
    def flow(self) -> FloatArray:
        """(line,) active flow without noise [p.u.]."""
        return self.case.network.flows(self.case.load_p - self.p)

    @cached_property
    def flow_answer(self) -> FloatArray:
        """(line, line) F: change of the flow in the first line per unit of noise of the second."""
        return np.asarray(-self.case.network.below @ self.answer)

    @cached_property
    def flow_std(self) -> FloatArray:
        """(line,) standard deviation of active flows [p.u.]."""
        return np.asarray(np.linalg.norm(self.flow_answer * self.sigma, axis=1))

    @property
    def flow_covariance(self) -> FloatArray:
        """(line, line) of the active flows [p.u.²]."""
        scaled = self.flow_answer * self.sigma
        return np.asarray(scaled @ scaled.T)

    @property
    def rank(self) -> int:
        """Dimensions that the noise of all flows together fills; lines it cannot hide where it is less."""
        values = np.linalg.svd(self.flow_answer * self.sigma, compute_uv=False)
        return int((values > RANK_BELOW * values[0]).sum())

    def noise(self, key: StreamKey, draws: int) -> FloatArray:
        """(draw, line) ξ [p.u.], exact discrete Gaussian noise on a grid of 2⁻⁴⁰ p.u."""
        noise = np.zeros((draws, len(self.sigma)))
        for line in np.flatnonzero(self.sigma > 0.0):
            units = math.ceil(self.sigma[line] / NOISE_GRID)
            stream = key.stream("noise of a line", int(line))
            noise[:, line] = NOISE_GRID * discrete_gaussian(stream, units, draws)
        return noise

    def dispatch(self, noise: FloatArray) -> Dispatch:
        """Set-points, flows and voltages for noise (draw, line) [p.u.]."""
        case, network = self.case, self.case.network
        moved = noise @ self.answer.T
        p, q = self.p + moved, self.q + case.tan * moved
        drawn_p, drawn_q = case.load_p - p, case.load_q - q
        # The root draws nothing from itself, so its columns of R and X, which are zero, do not matter.
        return Dispatch(
            p, q, network.flows(drawn_p), network.flows(drawn_q), network.squared_voltages(drawn_p, drawn_q)
        )

    def violations(self, dispatch: Dispatch) -> Violations:
        """How often limits are passed."""
        case = self.case
        at = case.generators
        low = np.minimum(dispatch.p[:, at], dispatch.q[:, at]) < -SLACK
        high_p = dispatch.p[:, at] > case.p_max[at] + SLACK
        high_q = dispatch.q[:, at] > case.q_max[at] + SLACK
        under, over = dispatch.u < case.u_min - SLACK, dispatch.u > case.u_max + SLACK
        along = SIDES[:, :1, None] * dispatch.flow_p.T[None] + SIDES[:, 1:, None] * dispatch.flow_q.T[None]
        limit = APOTHEM * case.s_max[None, :, None] + SLACK
        passed = np.concatenate([along > limit, along < -limit])
        flows = passed.reshape(-1, len(dispatch.p)).T
        kinds = (np.hstack([low, high_p, high_q]), np.hstack([under, over]), flows)
        generators, voltages, flow = (float(kind.mean(axis=0).max()) for kind in kinds)
        return Violations(generators, voltages, flow, float(np.hstack(kinds).any(axis=1).mean()))


def loads_from(case: Case, dispatch: Dispatch) -> FloatArray:
    """(draw, node) active loads that follow from released flows and set-points, with no noise left in them.

    What flows into a node and is generated there either flows on or is drawn: balance at every node is
    public, so a release of both is a release of the loads. Only the network of the case is used.
    """
    network = case.network
    arriving = np.zeros_like(dispatch.p)
    leaving = np.zeros_like(dispatch.p)
    for node in network.order[1:]:
        line = network.line_above[node]
        arriving[:, node] = dispatch.flow_p[:, line]
        leaving[:, network.parent[node]] += dispatch.flow_p[:, line]
    return np.asarray(dispatch.p + arriving - leaving)


PENALTY = 1e6
"""ψ, price of a unit of standard deviation."""


@dataclass(frozen=True, eq=False)
class ProgramTerms:
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

    def objective(self, terms: ProgramTerms) -> Any:
        """Convex expression to minimise."""


@dataclass(frozen=True)
class Expected:
    """CC: the expected cost alone. The policy is cheap, and its noise lies in few dimensions."""

    name: str = "CC"

    def objective(self, terms: ProgramTerms) -> Any:
        """The expected cost."""
        return terms.cost


@dataclass(frozen=True)
class TotalVariance:
    """ToV: flows vary as little as they may."""

    penalty: float = PENALTY
    name: str = "ToV"

    def objective(self, terms: ProgramTerms) -> Any:
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

    def objective(self, terms: ProgramTerms) -> Any:
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

    def objective(self, terms: ProgramTerms) -> Any:
        """(1 − θ)·cost + θ·CVaR of normal cost."""
        tail = float(norm.pdf(norm.ppf(1.0 - self.share))) / self.share
        return terms.cost + self.weight * tail * terms.cost_std
