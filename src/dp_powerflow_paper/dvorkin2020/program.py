"""The cone program of a private dispatch (cvxpy and Clarabel, extra `opf`).

Every limit holds but for a small chance: limit − value ≥ z·(standard deviation of the value), a
second-order cone. Loads are parameters of the program, so a neighbour is solved without setting it up again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.stats import norm

from dp_powerflow.errors import FeederError, PowerFlowError, require
from dp_powerflow.units import BoolArray, FloatArray
from dp_powerflow_paper.dvorkin2020.case import Case
from dp_powerflow_paper.dvorkin2020.policy import APOTHEM, SIDES, Expected, Policy, ProgramTerms, Variant

_ZERO_BELOW = 1e-6
"""Shares of noise that are smaller are the solver's inaccuracy."""
_SOLVED = ("optimal", "optimal_inaccurate")


@dataclass(frozen=True)
class Chances:
    """With which a single limit may be passed: of generators, voltages and flows."""

    generators: float = 0.01
    voltages: float = 0.02
    flows: float = 0.10

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Standard deviations of a normal value that its limit is away, in the same order."""
        return tuple(float(norm.ppf(1.0 - each)) for each in (self.generators, self.voltages, self.flows))


def balanced_signs(case: Case) -> FloatArray:
    """(node, line) −1 below the line, +1 elsewhere: what some give back, all others take up."""
    return np.asarray(1.0 - 2.0 * case.network.below.T)


def published_signs(case: Case) -> FloatArray:
    """(node, line) as in the authors' public program: +1 on the path to the root, −1 everywhere else.

    A node on another branch is not below the line, yet has −1: its answer is subtracted where it should be
    added, and set-points no longer balance. For comparison only.
    """
    network = case.network
    signs = np.full((network.nodes, network.nodes - 1), -1.0)
    for node in network.order[1:]:
        line, at = network.line_above[node], network.parent[node]
        while at >= 0:
            signs[at, line], at = 1.0, network.parent[at]
    return signs


class Program:
    """One variant on one feeder, for any loads.

    Parameters
    ----------
    case : feeder; its loads are those that `solve` takes if it is given none.
    sigma : (line,) of the noise [p.u.]; it does not follow the loads of later calls.
    variant : what is minimised.
    chances : of passing limits.
    target : (line,) what flows are meant to vary by [p.u.], None for `sigma`.
    signs : (node, line), None for `balanced_signs`.

    Raises
    ------
    FeederError : a line with noise has no generator below it.
    MissingExtraError : cvxpy is not installed.
    """

    def __init__(
        self,
        case: Case,
        sigma: FloatArray,
        variant: Variant,
        chances: Chances | None = None,
        *,
        target: FloatArray | None = None,
        signs: FloatArray | None = None,
    ) -> None:
        self.case, self.sigma, self.variant = case, sigma, variant
        self.noisy = np.flatnonzero(sigma > 0.0)
        self.signs = balanced_signs(case) if signs is None else signs
        self._target = sigma if target is None else target
        self._below: BoolArray = case.network.below.T[np.ix_(case.generators, self.noisy)] > 0.0
        if not self._below.any(axis=0).all():
            raise FeederError(
                "a line with noise has no generator below it that could balance the noise; give σ = 0 to it"
            )
        self._set_up(chances or Chances())

    def solve(self, case: Case | None = None) -> Policy:
        """The policy for the loads of a case; everything else stays that of the program.

        Raises
        ------
        PowerFlowError : no dispatch keeps the limits.
        """
        case = self.case if case is None else replace(self.case, load_p=case.load_p, load_q=case.load_q)
        self._load_p.value, self._load_q.value = case.load_p, case.load_q
        self._problem.solve(solver="CLARABEL")
        if self._problem.status not in _SOLVED:
            raise PowerFlowError(
                "no dispatch keeps the limits with this noise; widen them, or the chances of passing them"
            )
        return self._polished(case)

    def _set_up(self, chances: Chances) -> None:
        cvxpy = require("cvxpy", "opf")
        require("clarabel", "opf")
        case, at, lines = self.case, self.case.generators, self.noisy
        self._p, self._q = cvxpy.Variable(len(at)), cvxpy.Variable(len(at))
        self._shares = cvxpy.Variable((len(at), max(len(lines), 1)))
        self._load_p, self._load_q = (cvxpy.Parameter(case.network.nodes) for _ in range(2))
        scaled = self.signs[np.ix_(at, lines)] * self.sigma[lines]
        answer = cvxpy.multiply(scaled if len(lines) else np.zeros((len(at), 1)), self._shares)
        moves = _Moves.of(cvxpy, case, answer)
        terms = ProgramTerms(
            cost=case.cost[at] @ self._p,
            cost_std=cvxpy.norm(case.cost[at] @ answer, 2),
            flow_std=moves.flow_std,
            sigma=self._target,
        )
        above = ~self._below if len(lines) else np.ones((len(at), 1))
        below = self._below if len(lines) else np.ones((len(at), 1))
        constraints = [
            cvxpy.sum(cvxpy.multiply(above, self._shares), axis=0) == 1.0,
            cvxpy.sum(cvxpy.multiply(below, self._shares), axis=0) == 1.0,
            *moves.ties,
            *self._generator_limits(cvxpy, moves, chances),
            *self._network_limits(cvxpy, moves, chances),
        ]
        self._problem = cvxpy.Problem(cvxpy.Minimize(self.variant.objective(terms)), constraints)

    def _generator_limits(self, cvxpy: Any, moves: _Moves, chances: Chances) -> list[Any]:
        """Balance, power factors, and set-points within their limits."""
        case, at = self.case, self.case.generators
        followers = np.flatnonzero(at != case.network.root)
        spread = cvxpy.Variable(len(at))
        margin = chances.quantiles[0] * spread
        margin_q = case.tan * margin
        return [
            cvxpy.sum(self._p) == cvxpy.sum(self._load_p),
            cvxpy.sum(self._q) == cvxpy.sum(self._load_q),
            self._q[followers] == case.tan * self._p[followers],
            _row_norms(cvxpy, moves.answer) <= spread,
            self._p >= margin,
            self._p + margin <= case.p_max[at],
            self._q >= margin_q,
            self._q + margin_q <= case.q_max[at],
        ]

    def _network_limits(self, cvxpy: Any, moves: _Moves, chances: Chances) -> list[Any]:
        """Voltages and flows within their limits."""
        case, place = self.case, _placing(self.case)
        _, z_voltage, z_flow = chances.quantiles
        drawn_p, drawn_q = self._load_p - place @ self._p, self._load_q - place @ self._q
        flow_p, flow_q = case.network.below @ drawn_p, case.network.below @ drawn_q
        u = 1.0 - 2.0 * (case.network.resistance @ drawn_p + case.network.reactance @ drawn_q)
        fed = np.delete(np.arange(case.network.nodes), case.network.root)
        margin = z_voltage * _row_norms(cvxpy, moves.u)[fed]
        limits = [u[fed] + margin <= case.u_max[fed], u[fed] - margin >= case.u_min[fed]]
        for along_p, along_q in SIDES:
            # Reactive power answers in proportion, so all sides see the same spread, each its share of it.
            margin = z_flow * abs(along_p + case.tan * along_q) * moves.flow_std
            flow = cvxpy.abs(along_p * flow_p + along_q * flow_q)
            limits.append(flow + margin <= APOTHEM * case.s_max)
        return limits

    def _polished(self, case: Case) -> Policy:
        """The solution with sums that hold to rounding: what the solver missed goes to the root."""
        at, root = case.generators, case.network.root
        nodes = case.network.nodes
        p, q, answer = np.zeros(nodes), np.zeros(nodes), np.zeros((nodes, nodes - 1))
        p[at], q[at] = (
            np.clip(self._p.value, 0.0, case.p_max[at]),
            np.clip(self._q.value, 0.0, case.q_max[at]),
        )
        p[root] = q[root] = 0.0
        p[root], q[root] = case.load_p.sum() - p.sum(), case.load_q.sum() - q.sum()
        if len(self.noisy):
            found = np.where(np.abs(self._shares.value) < _ZERO_BELOW, 0.0, self._shares.value)
            below, above = np.where(self._below, found, 0.0), np.where(self._below, 0.0, found)
            below /= below.sum(axis=0)
            above[at == root] = 0.0
            above[at == root] = 1.0 - above.sum(axis=0)
            answer[np.ix_(at, self.noisy)] = self.signs[np.ix_(at, self.noisy)] * (below + above)
        return Policy(case, self.sigma, p, q, answer)


@dataclass(frozen=True, eq=False)
class _Moves:
    """Expressions of what noise moves, each (…, noisy line), already times σ [p.u.].

    Flows and voltages are variables tied line by line, along the tree: the ties have few entries, where the
    matrices of sums over all nodes below a line are full.

    Attributes
    ----------
    answer : of generators.
    flow_std : (line,) bounds of the norms of active flows; reactive ones move in proportion.
    u : of nodes, squared voltages.
    ties : constraints.
    """

    answer: Any
    flow_std: Any
    u: Any
    ties: list[Any]

    @classmethod
    def of(cls, cvxpy: Any, case: Case, answer: Any) -> _Moves:
        network = case.network
        above = network.line_above
        flow = cvxpy.Variable((network.nodes - 1, answer.shape[1]))
        u = cvxpy.Variable((network.nodes, answer.shape[1]))
        std = cvxpy.Variable(network.nodes - 1)
        fed = network.order[1:]
        leaving = sp.csr_array(
            (np.ones(len(fed)), (network.parent[fed], above[fed])), shape=u.shape[:1] + std.shape
        )
        arriving = sp.csr_array((np.ones(len(fed)), (fed, above[fed])), shape=leaving.shape)
        drop = 2.0 * (network.r + case.tan * network.x)
        ties = [
            (arriving - leaving)[fed] @ flow == -(sp.csr_array(_placing(case))[fed] @ answer),
            (arriving - leaving).T @ u == -cvxpy.multiply(drop[:, None], flow),
            u[network.root] == 0.0,
            _row_norms(cvxpy, flow) <= std,
        ]
        return cls(answer, std, u, ties)


def least_cost(case: Case) -> float:
    """Cost of the dispatch without noise."""
    return Program(case, np.zeros_like(case.s_max), Expected()).solve().cost


def _placing(case: Case) -> FloatArray:
    """(node, generator) 1 where the generator is."""
    return np.asarray(np.eye(case.network.nodes)[:, case.generators])


def _row_norms(cvxpy: Any, matrix: Any) -> Any:
    return cvxpy.norm(matrix, 2, axis=1)
