"""Everything about the lines of one network: losses, evidence and audit. INTERNAL.

**Audit.** An audit from below: what a threshold test on released days proves about ε.

If days on Y and on Y′ are (ε, δ)-indistinguishable then P_Y(A) ≤ e^ε·P_Y′(A) + δ for every event A, so error
rates of *any* test bound ε from below. The score here is no part of the loss of `lines.evidence`: dense
networks reduced one by one, a few nodes, no determinant. A poor score only makes the bound weaker. INTERNAL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.lines.evidence import (
    SOLVER_TOLERANCE,
    LineEvidence,
    LineLoss,
    LineRow,
    Neighbour,
    Progress,
    judge,
    lower_share,
    scaled_both_ways,
    upper_share,
    with_change,
)
from dp_powerflow.evidence.theorem import CONFIDENCE
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.sample import LoadSampler, solve_days
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

Release = Callable[[Feeder, int], ComplexArray]
"""Voltages of fresh days on a feeder, which has a number: complex (day, step, node)."""

_PILOT_SHARE = 0.3
_MOST_NODES = 24
_THRESHOLDS = 41
_FLOOR_OF_LOAD = 1e-9


def fresh_days(law: LoadLaw, key: StreamKey, days: int, generation: ComplexArray | None = None) -> Release:
    """The mechanism: draw days of a law anew for every network, solve, give away the voltages of its nodes.

    Parameters
    ----------
    key : which neither a release nor the losses use.
    generation : complex (step, retained) [p.u.], the same every day.
    """
    daily = None if generation is None else Generation.every_day(generation)

    def release(feeder: Feeder, number: int) -> ComplexArray:
        sampler = LoadSampler(law, key.bind("network", str(number)), days, block_days=days)
        solver = BatchSolver(feeder, tolerance=SOLVER_TOLERANCE)
        made = solve_days(solver, sampler, generation=daily)
        return np.asarray(made.v[..., made.positions])

    return release


def audit_lines(
    engine: LineLoss,
    neighbours: Sequence[Neighbour],
    release: Release,
    delta: float,
    progress: Progress | None = None,
) -> FloatArray:
    """Test Y against every neighbour on days drawn anew under both.

    Parameters
    ----------
    engine : network, published load law and generation; its losses are not used.
    release : the mechanism under audit; number 0 is the true network, k + 1 neighbour k.
    delta : of the claim.
    Returns
    -------
    (neighbour, direction) lower bounds on ε, all true together with `CONFIDENCE`, 0 where the test shows
    nothing.
    """
    law = engine.law
    true, on_true = _Rough.of(engine.feeder, engine), release(engine.feeder, 0)
    days = len(on_true)
    pilot = int(_PILOT_SHARE * days)
    if pilot < 5:
        raise PrivacyError("an audit needs at least 20 days under each network")
    each = (1.0 - CONFIDENCE) / (len(neighbours) * 4)

    def score_both(item: tuple[_Rough, ComplexArray]) -> FloatArray:
        other, on_other = item
        score = _Score(law, true, other)
        return np.stack([_bound(*scores, pilot, delta, each) for scores in score.pairs(on_true, on_other)])

    lower = np.empty((len(neighbours), 2))
    for start in range(0, len(neighbours), engine.threads):
        batch = []
        for number in range(start, min(start + engine.threads, len(neighbours))):
            changed = with_change(engine.feeder, neighbours[number])
            batch.append((_Rough.of(changed, engine), release(changed, number + 1)))
        with ThreadPoolExecutor(engine.threads) as pool:
            lower[start : start + len(batch)] = list(pool.map(score_both, batch))
        if progress is not None:
            progress(start + len(batch), len(neighbours))
    return lower


@dataclass(frozen=True, eq=False)
class _Rough:
    """A network as the score sees it: nodes that are not released are constant currents, eliminated.

    Attributes
    ----------
    y : complex (released, released) [p.u.].
    b, generation : complex (step, released) [p.u.].
    """

    y: ComplexArray
    b: ComplexArray
    generation: ComplexArray

    @classmethod
    def of(cls, feeder: Feeder, engine: LineLoss) -> _Rough:
        network = Network(feeder)
        keep, injected = engine.released, engine.generation
        out = np.setdiff1d(np.arange(network.n), keep)
        idle = np.linalg.solve(network.y, -network.b)
        back = np.linalg.solve(network.y[np.ix_(out, out)].T, network.y[np.ix_(keep, out)].T).T
        current = network.b[out] - np.conj(injected[:, out] / idle[out])
        return cls(
            network.y[np.ix_(keep, keep)] - back @ network.y[np.ix_(out, keep)],
            network.b[keep] - current @ back.T,
            injected[:, keep],
        )


class _Score:
    """Likelihood ratio of the implied loads at the nodes that the change moves most."""

    def __init__(self, law: LoadLaw, true: _Rough, other: _Rough) -> None:
        if law.q_sigma is None or law.q_covariance is None:
            raise PrivacyError("the audit needs random reactive load (network.bound = 'full-support')")
        moved = np.linalg.norm(other.y - true.y, axis=1) + np.abs(other.b - true.b).max(axis=0)
        order: IntArray = np.argsort(moved)[::-1][:_MOST_NODES]
        self._nodes = order[moved[order] > 1e-3 * moved.max(initial=0.0)]
        self._law, self._networks = law, (true, other)
        self._precision = [np.linalg.inv(covariance) for covariance in law.covariance]
        self._precision_q = np.linalg.inv(law.q_covariance)
        self._q_sigma = law.q_sigma[self._nodes]

    def pairs(
        self, on_true: ComplexArray, on_other: ComplexArray
    ) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Scores (day,) of days under (own, other) network, high where the own network is likelier."""
        first, second = self._ratio(on_true), self._ratio(on_other)
        return (first, second), (-second, -first)

    def _ratio(self, v: ComplexArray) -> FloatArray:
        true, other = (self._log_density(network, v) for network in self._networks)
        return np.asarray(true - other)

    def _log_density(self, network: _Rough, v: ComplexArray) -> FloatArray:
        law, nodes = self._law, self._nodes
        current = v @ network.y[nodes].T + network.b[:, nodes]
        load = network.generation[:, nodes] - v[..., nodes] * np.conj(current)
        p = np.maximum(load.real, _FLOOR_OF_LOAD)
        xi = np.log(p / law.scale[nodes])
        total = -xi.sum(axis=(1, 2))
        for column, node in enumerate(nodes):
            ell = law.class_of[node]
            away = xi[:, :, column] - law.mean[ell]
            total -= 0.5 * ((away @ self._precision[ell]) * away).sum(axis=1)
            zeta = load.imag[:, :, column] - law.tan_theta[node] * load.real[:, :, column]
            zeta = zeta / self._q_sigma[column]
            total -= 0.5 * ((zeta @ self._precision_q) * zeta).sum(axis=1)
        return np.asarray(total)


def _bound(own: FloatArray, other: FloatArray, pilot: int, delta: float, alpha: float) -> float:
    """log((P_own − δ)/P_other) of the event score > t, t chosen on the pilot, by Clopper–Pearson."""
    usable = np.concatenate([own[:pilot], other[:pilot]])
    candidates = np.quantile(usable[np.isfinite(usable)], np.linspace(0.02, 0.98, _THRESHOLDS))
    guesses = [_ratio(own[:pilot], other[:pilot], t, delta, 0.2) for t in candidates]
    threshold = float(candidates[int(np.argmax(guesses))])
    return max(0.0, _ratio(own[pilot:], other[pilot:], threshold, delta, alpha))


def _ratio(own: FloatArray, other: FloatArray, threshold: float, delta: float, alpha: float) -> float:
    hit = lower_share(np.count_nonzero(own > threshold), len(own), alpha)
    false = upper_share(np.count_nonzero(other > threshold), len(other), alpha)
    return float(np.log(max(float(hit) - delta, 1e-300) / float(false)))


@dataclass(frozen=True)
class LineRequest:
    """What is asked about the lines; public constants.

    Attributes
    ----------
    x : neighbours scale one line's admittance by 1 ± x.
    delta : of one day.
    draws : days drawn under each network; the smallest δ that can be stated follows from it.
    audit_days : days drawn under each network for the audit; 0 leaves it out.
    """

    x: float = 0.01
    delta: float = 1e-5
    draws: int = 500
    audit_days: int = 200


@dataclass(frozen=True)
class LineReport:
    """The evidence, and what surrounds it.

    Attributes
    ----------
    contradicted : lines whose lower bound passes their upper one: there is a bug if there is any.
    """

    request: LineRequest
    evidence: LineEvidence
    contradicted: tuple[str, ...]


def collect_lines(
    engine: LineLoss, request: LineRequest, key: StreamKey, progress: Progress | None = None
) -> LineReport:
    """All lines of a feeder, each scaled both ways, both directions.

    Parameters
    ----------
    engine : the network, the load law of the released nodes and the public generation.
    key : which no release uses; every part of the report has its own streams.
    """
    if not engine.feeder.lines:
        raise PrivacyError("the feeder has no line records, so there is nothing to say line by line")
    neighbours = scaled_both_ways(engine.feeder.lines, request.x)
    days = engine.draws(key.bind("purpose", "losses of lines"), request.draws)
    losses = engine.losses(neighbours, days, progress)
    evidence = judge(losses, request.x, engine.law.steps, request.delta)
    lower: dict[str, float] = {}
    if request.audit_days:
        audit_key = key.bind("purpose", "audit of lines")
        release = fresh_days(engine.law, audit_key, request.audit_days, engine.generation)
        bounds = audit_lines(engine, neighbours, release, evidence.delta, progress)
        for item, row in zip(neighbours, bounds, strict=True):
            lower[item.line.name] = max(lower.get(item.line.name, 0.0), float(row.max()))
    rows = tuple(replace(row, lower=lower.get(row.line)) for row in evidence.rows)
    return LineReport(
        request=request,
        evidence=replace(evidence, rows=rows),
        contradicted=tuple(row.line for row in rows if contradicted(row)),
    )


def contradicted(row: LineRow) -> bool:
    """Whether the audit's lower bound passes the evidence's upper one."""
    return row.lower is not None and row.epsilon is not None and row.lower > row.epsilon
