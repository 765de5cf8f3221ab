"""What a released dispatch tells of a load: exact losses between neighbours, of one flow and of all flows.

Both neighbours are solved to their own optimum, so the loss counts what the published proof leaves out: the
policy, and with it the variance of a flow, follows the loads too. Figures are INTERNAL measurements on
chosen neighbours: a lower bound on what is lost, never a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2020.case import Privacy
from dp_powerflow_paper.dvorkin2020.policy import RANK_BELOW, SLACK, Policy
from dp_powerflow_paper.dvorkin2020.program import Program

_LARGEST = 1e4
_OUTSIDE = 1e-2
"""Share of a difference outside the noise from which on noise cannot hide it; more than solvers miss."""


@dataclass(frozen=True)
class Normal:
    """Law of one flow [p.u.]."""

    mean: float
    std: float


@dataclass(frozen=True, eq=False)
class LoadNeighbour:
    """One neighbour, both policies optimal for their loads.

    Attributes
    ----------
    node : whose load differs.
    change : of the load [p.u.].
    moved : by how much the flow in the own line moves, as a share of the change.
    own : ε of the flow in the own line alone, at the claimed δ.
    elsewhere : the largest ε of the flow in any other single line.
    jointly : ε of all flows together, math.inf if noise cannot hide the difference.
    outside : share of the difference of all flows that lies where there is no noise.
    """

    node: int
    change: float
    moved: float
    own: float
    elsewhere: float
    jointly: float
    outside: float


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Exact ε of one Gaussian query whose noise is so many times its sensitivity."""
    return epsilon_between(Normal(0.0, multiplier), Normal(1.0, multiplier), delta)


def epsilon_between(first: Normal, second: Normal, delta: float) -> float:
    """Least ε ≥ 0 at which two normal laws are (ε, δ)-indistinguishable; math.inf if there is none."""
    if min(first.std, second.std) <= 0.0:
        same = first.mean == second.mean and first.std == second.std
        return 0.0 if same else math.inf

    def excess(epsilon: float) -> float:
        return max(_delta(first, second, epsilon), _delta(second, first, epsilon)) - delta

    return _least(excess)


def _delta(first: Normal, second: Normal, epsilon: float) -> float:
    """sup over events of P(first) − e^ε·P(second), on {log density ratio > ε}."""
    # The log ratio is a·x² + b·x + c in x = value − mean of the first.
    shift = second.mean - first.mean
    w1, w2 = 1.0 / first.std**2, 1.0 / second.std**2
    a, b = 0.5 * (w2 - w1), -shift * w2
    c = 0.5 * w2 * shift**2 + math.log(second.std / first.std) - epsilon
    pieces = _above_zero(a, b, c)

    def mass(law: Normal, centre: float) -> float:
        return sum(
            float(norm.cdf((high - centre) / law.std) - norm.cdf((low - centre) / law.std))
            for low, high in pieces
        )

    beyond = mass(second, shift)
    return mass(first, 0.0) - (math.exp(epsilon) * beyond if beyond > 0.0 else 0.0)


def _above_zero(a: float, b: float, c: float) -> list[tuple[float, float]]:
    """Intervals on which a·x² + b·x + c > 0."""
    scale = max(abs(a), abs(b), 1e-300)
    if abs(a) < 1e-12 * scale:
        if b == 0.0:
            return [(-math.inf, math.inf)] if c > 0.0 else []
        return [(-c / b, math.inf)] if b > 0.0 else [(-math.inf, -c / b)]
    inner = b * b - 4.0 * a * c
    if inner <= 0.0:
        return [(-math.inf, math.inf)] if a > 0.0 else []
    # The stable form: the larger root in magnitude first.
    larger = -0.5 * (b + math.copysign(math.sqrt(inner), b))
    low, high = sorted((larger / a, c / larger))
    return [(-math.inf, low), (high, math.inf)] if a > 0.0 else [(low, high)]


def joint_epsilon(first: Policy, second: Policy, delta: float, draws: int = 20_000, seed: int = 0) -> float:
    """ε of all active flows together at δ, estimated from draws; math.inf if noise cannot hide the change.

    Flows of a policy are normal. Where the noise of either does not fill the direction in which they
    differ, an observer of all flows tells the neighbours apart for certain.
    """
    if not (_hides(first, second) and _hides(second, first)):
        return math.inf
    generator = np.random.default_rng(seed)
    losses = [_losses(one, other, generator, draws) for one, other in ((first, second), (second, first))]

    def excess(epsilon: float) -> float:
        # E[(1 − e^{ε − L})⁺] over the loss L is the δ of this side.
        return max(float(np.mean(-np.expm1(np.minimum(epsilon - loss, 0.0)))) for loss in losses) - delta

    return _least(excess)


def outside_noise(policy: Policy, other: Policy) -> float:
    """Share of the difference of two policies' flows that lies where the first has no noise at all."""
    difference = other.flow - policy.flow
    filled = _filled(policy)
    return float(np.linalg.norm(difference - filled @ (filled.T @ difference)) / np.linalg.norm(difference))


def _hides(policy: Policy, other: Policy) -> bool:
    """Whether the difference of flows, and the other's noise, lie in the space that the noise fills."""
    filled, noise = _filled(policy), other.flow_answer * other.sigma
    beyond = np.linalg.norm(noise - filled @ (filled.T @ noise))
    return bool(beyond <= _OUTSIDE * np.linalg.norm(noise)) and outside_noise(policy, other) <= _OUTSIDE


def _filled(policy: Policy) -> FloatArray:
    """(line, dimension) orthonormal directions that the noise of all flows fills."""
    directions, values, _ = np.linalg.svd(policy.flow_answer * policy.sigma)
    return np.asarray(directions[:, : len(values)][:, values > RANK_BELOW * values[0]])


def _losses(one: Policy, other: Policy, generator: np.random.Generator, draws: int) -> FloatArray:
    """(draw,) log density ratio of flows that the first policy releases, within the space they fill."""
    filled = _filled(one)
    mine, theirs = (filled.T @ each.flow_covariance @ filled for each in (one, other))
    root = np.linalg.cholesky(mine)
    drawn = generator.standard_normal((draws, len(root)))
    moved = drawn @ root.T - filled.T @ (other.flow - one.flow)
    quadratic = np.einsum("di,di->d", moved, np.linalg.solve(theirs, moved.T).T)
    determinants = np.linalg.slogdet(theirs)[1] - np.linalg.slogdet(mine)[1]
    return np.asarray(0.5 * (quadratic - (drawn**2).sum(axis=1) + determinants))


def neighbours(
    program: Program, privacy: Privacy, lines: Sequence[int] | None = None, *, joint: bool = True
) -> Iterator[LoadNeighbour]:
    """Every customer with the largest change in either direction, against the program's own loads.

    Single flows are taken as accurate to `SLACK`: what solvers miss tells nobody apart.

    Parameters
    ----------
    lines : own lines of the customers that are looked at, None for all.
    joint : whether the loss of all flows together is estimated; NaN if not.
    """
    case = program.case
    first = program.solve()
    reach = privacy.reach(case)
    for line in range(len(reach)) if lines is None else lines:
        node = case.customer[line]
        for change in (reach[line], -reach[line]):
            if change == 0.0:
                continue
            second = program.solve(case.with_load(int(node), float(change)))
            single = [
                epsilon_between(
                    Normal(a, math.hypot(s, SLACK)), Normal(b, math.hypot(t, SLACK)), privacy.delta
                )
                for a, s, b, t in zip(first.flow, first.flow_std, second.flow, second.flow_std, strict=True)
            ]
            own = single.pop(line)
            yield LoadNeighbour(
                node=int(node),
                change=float(change),
                moved=float((second.flow[line] - first.flow[line]) / change),
                own=own,
                elsewhere=max(single, default=0.0),
                jointly=joint_epsilon(first, second, privacy.delta) if joint else math.nan,
                outside=outside_noise(first, second),
            )


def _least(excess: Callable[[float], float]) -> float:
    """Least ε at which a decreasing excess of δ is not positive."""
    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
        if high > _LARGEST:
            return math.inf
    return float(brentq(excess, 0.0, high, xtol=1e-9))
