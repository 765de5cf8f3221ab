"""An audit from below: what a threshold test on released days proves about ε.

If days on Y and on Y′ are (ε, δ)-indistinguishable then P_Y(A) ≤ e^ε·P_Y′(A) + δ for every event A, so error
rates of *any* test bound ε from below. The score here is no part of the loss of `lines.py`: dense networks
reduced one by one, a few nodes, no determinant. A poor score only makes the bound weaker. INTERNAL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.evidence.lines.confidence import lower_share, upper_share
from dp_powerflow.evidence.lines.neighbours import Neighbour, with_change
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

Draw = Callable[[int], ComplexArray]
Release = Callable[[Feeder, int], ComplexArray]
"""Voltages of so many fresh days on a feeder: complex (day, step, node)."""
Progress = Callable[[int, int], None]

CONFIDENCE = 0.95
_PILOT_SHARE = 0.3
_MOST_NODES = 24
_THRESHOLDS = 41
_FLOOR_OF_LOAD = 1e-9


@dataclass(frozen=True, eq=False)
class Audit:
    """Lower confidence bounds on ε, all true together with the stated confidence.

    Attributes
    ----------
    lower : (neighbour, direction), 0 where the test shows nothing.
    days : under each network; `tested` of them after the thresholds were chosen.
    """

    lower: FloatArray
    delta: float
    days: int
    tested: int
    confidence: float

    def by_line(self, neighbours: Sequence[Neighbour]) -> dict[str, float]:
        """The largest lower bound of every line's changes and directions."""
        found: dict[str, float] = {}
        for item, row in zip(neighbours, self.lower, strict=True):
            found[item.line.name] = max(found.get(item.line.name, 0.0), float(row.max()))
        return found


def release_days(
    draw: Draw, *, released: IntArray | None = None, generation: ComplexArray | None = None
) -> Release:
    """The mechanism: draw loads of the released nodes, solve, give away their voltages.

    Parameters
    ----------
    released : positions among the retained nodes, None for all of them.
    generation : complex (step, retained) [p.u.].
    """

    def release(feeder: Feeder, days: int) -> ComplexArray:
        drawn = draw(days)
        steps = drawn.shape[1]
        at = np.arange(drawn.shape[2]) if released is None else released
        load = np.zeros((days * steps, len(feeder.retained)), dtype=np.complex128)
        load[:, at] = drawn.reshape(days * steps, -1)
        injected = None if generation is None else np.tile(generation, (days, 1))
        v = BatchSolver(feeder, tolerance=1e-11).solve(load, injected).v
        return np.asarray(v[:, at].reshape(drawn.shape))

    return release


def audit_lines(
    feeder: Feeder,
    law: NodeLaw,
    neighbours: Sequence[Neighbour],
    release: Release,
    days: int,
    delta: float,
    *,
    released: IntArray | None = None,
    generation: ComplexArray | None = None,
    confidence: float = CONFIDENCE,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Test Y against every neighbour on days drawn anew under both.

    Parameters
    ----------
    law : what the published load model says.
    release : the mechanism under audit, from a key that neither a release nor the losses use; it is called
        in the order of the neighbours, once for the true network first.
    """
    pilot = int(_PILOT_SHARE * days)
    if pilot < 5:
        raise PrivacyError("an audit needs at least 20 days under each network")
    view = partial(_Rough.of, released=released, generation=generation, steps=law.steps)
    true, on_true = view(feeder), release(feeder, days)
    each = (1.0 - confidence) / (len(neighbours) * 4)

    def score_both(item: tuple[_Rough, ComplexArray]) -> FloatArray:
        other, on_other = item
        score = _Score(law, true, other)
        return np.stack([_bound(*scores, pilot, delta, each) for scores in score.pairs(on_true, on_other)])

    workers = threads or len(os.sched_getaffinity(0))
    lower = np.empty((len(neighbours), 2))
    for start in range(0, len(neighbours), workers):
        batch = []
        for item in neighbours[start : start + workers]:
            changed = with_change(feeder, item)
            batch.append((view(changed), release(changed, days)))
        with ThreadPoolExecutor(workers) as pool:
            lower[start : start + len(batch)] = list(pool.map(score_both, batch))
        if progress is not None:
            progress(start + len(batch), len(neighbours))
    return Audit(lower, delta, days, days - pilot, confidence)


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
    def of(
        cls, feeder: Feeder, released: IntArray | None, generation: ComplexArray | None, steps: int
    ) -> _Rough:
        network = Network(feeder)
        n = network.n
        keep = np.arange(n) if released is None else released
        out = np.setdiff1d(np.arange(n), keep)
        injected = np.zeros((steps, n), dtype=np.complex128) if generation is None else generation
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

    def __init__(self, law: NodeLaw, true: _Rough, other: _Rough) -> None:
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
