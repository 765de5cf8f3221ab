"""From exact losses to evidence with confidence: per line, the least ε of a fixed grid at some δ.

Probabilistic DP: Pr[Λ > ε] ≤ δ. Hockey stick: E[(1 − exp(ε − Λ))₊] ≤ δ. Both are upper confidence bounds from
independent draws, all of them true together with the stated confidence (union bound over lines, changes,
directions, grid and both statistics). INTERNAL (paper correction 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.lines.losses import LineLosses
from dp_powerflow.units import FloatArray

GRID = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0)
"""ε that are tried; fixed before anything is drawn."""
HORIZONS = (2, 5, 10)
"""Days over which sums of losses are judged as well, on disjoint groups of the draws."""
CONFIDENCE = 0.95
_STATISTICS = 2
_BISECTIONS = 60


def upper_share(hits: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Clopper–Pearson: the share is larger with probability at most α."""
    _check(trials, alpha)
    k = np.asarray(hits, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(k >= trials, 1.0, betainccinv(k + 1.0, trials - k, alpha))


def lower_share(hits: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Clopper–Pearson: the share is smaller with probability at most α."""
    return np.asarray(1.0 - upper_share(trials - np.asarray(hits, dtype=np.float64), trials, alpha))


def upper_mean(mean: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Upper bound of an expectation from the mean of independent values in [0, 1].

    Hoeffding (1963), Theorem 1: Pr[mean ≤ m] ≤ exp(−trials·kl(m, μ)) for m ≤ μ, with kl of two coins. The
    bound is the largest μ with trials·kl(mean, μ) ≤ log(1/α), rounded up.
    """
    _check(trials, alpha)
    m = np.clip(np.asarray(mean, dtype=np.float64), 0.0, 1.0)
    limit = -np.log(alpha) / trials
    low, high = m.copy(), np.ones_like(m)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        inside = _divergence(m, middle) <= limit
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.asarray(high)


def smallest_share(trials: int, alpha: float) -> float:
    """Upper bound of a share that never showed: no smaller δ can be claimed from so many trials."""
    _check(trials, alpha)
    return float(-np.expm1(np.log(alpha) / trials))


def _divergence(a: FloatArray, b: FloatArray) -> FloatArray:
    """kl(a, b) of two coins, b ≥ a."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = np.where(a > 0.0, a * np.log(a / b), 0.0)
        tails = np.where(a < 1.0, (1.0 - a) * np.log((1.0 - a) / (1.0 - b)), 0.0)
    return np.asarray(heads + tails)


def _check(trials: int, alpha: float) -> None:
    if trials < 1 or not 0.0 < alpha < 1.0:
        raise PrivacyError("a confidence bound needs at least one trial and an α between 0 and 1")


@dataclass(frozen=True, eq=False)
class DeltaBounds:
    """Upper confidence bounds of δ at every ε of the grid: (neighbour, direction, grid).

    Attributes
    ----------
    tail : of Pr[Λ > ε].
    hockey : of E[(1 − exp(ε − Λ))₊].
    supported : smallest δ that the draws support.
    """

    tail: FloatArray
    hockey: FloatArray
    supported: float
    trials: int


def delta_bounds(losses: FloatArray, alpha: float, grid: tuple[float, ...] = GRID) -> DeltaBounds:
    """Bounds from independent losses (neighbour, direction, draw), all true together but for α."""
    neighbours, directions, trials = losses.shape
    each = alpha / (neighbours * directions * len(grid) * _STATISTICS)
    tail = np.empty((neighbours, directions, len(grid)))
    hockey = np.empty_like(tail)
    for column, epsilon in enumerate(grid):
        tail[..., column] = upper_share((losses > epsilon).sum(axis=-1), trials, each)
        excess = -np.expm1(np.minimum(epsilon - losses, 0.0))
        # The hockey stick never exceeds the tail, so the tail's bound is one of its own.
        hockey[..., column] = np.minimum(tail[..., column], upper_mean(excess.mean(axis=-1), trials, each))
    return DeltaBounds(tail, hockey, smallest_share(trials, each), trials)


def least_epsilon(bound: FloatArray, delta: float, grid: tuple[float, ...] = GRID) -> FloatArray:
    """Least ε of the grid whose bound is at most δ, +∞ where there is none: (...,) for (..., grid)."""
    holds = bound <= delta * (1.0 + 1e-12)  # δ = smallest supported δ is meant to hold
    first = holds.argmax(axis=-1)
    return np.where(holds.any(axis=-1), np.asarray(grid)[first], np.inf)


@dataclass(frozen=True)
class Horizon:
    """ε of one line over several days: by adding up, and by sums over disjoint groups of drawn days.

    ε is None where there is none in the grid or δ reaches 1.
    """

    days: int
    added_epsilon: float | None
    added_delta: float
    summed_epsilon: float | None
    summed_delta: float


@dataclass(frozen=True)
class LineRow:
    """One line, worst of all its changes.

    Attributes
    ----------
    epsilon : (ε, δ)-indistinguishable, both directions: the hockey stick's; None where there is none.
    epsilon_tail : probabilistic DP, both directions.
    forward, reverse : ε of each direction by itself (hockey stick).
    mean, worst : of Λ over all draws, finite ones; `infinite` the share of draws with Λ = +∞.
    lower : lower confidence bound on ε from the audit, None without one.
    protected : largest x tried at which the policy holds, None if none or not asked.
    attack_error : root mean square error of the attack's estimate of x, None if not asked;
        `attack_error_with_loads` the same when the loads behind the voltages are published.
    """

    line: str
    is_switch: bool
    epsilon: float | None
    epsilon_tail: float | None
    forward: float | None
    reverse: float | None
    mean: float
    worst: float
    infinite: float
    horizons: tuple[Horizon, ...]
    lower: float | None = None
    protected: float | None = None
    attack_error: float | None = None
    attack_error_with_loads: float | None = None


@dataclass(frozen=True)
class LineEvidence:
    """Every line of one network at one x.

    Attributes
    ----------
    changes : in words.
    delta : at which every ε of a day was read off; never below `supported`.
    confidence : with which all upper bounds of a day hold together; those over several days hold together
        with the same confidence again.
    """

    x: float
    steps: int
    changes: tuple[str, ...]
    draws: int
    delta: float
    supported: float
    confidence: float
    rows: tuple[LineRow, ...]


def judge(
    losses: LineLosses,
    x: float,
    steps: int,
    delta: float,
    *,
    confidence: float = CONFIDENCE,
    horizons: tuple[int, ...] = HORIZONS,
) -> LineEvidence:
    """Evidence of a day, and of several, from losses on independent draws."""
    if not (0.0 < delta < 1.0 and 0.0 < confidence < 1.0):
        raise PrivacyError("δ and the confidence of the line evidence must lie between 0 and 1")
    by_direction = losses.by_direction
    bounds = delta_bounds(by_direction, 1.0 - confidence)
    used = max(delta, bounds.supported)
    day = least_epsilon(bounds.hockey, used)
    tail = least_epsilon(bounds.tail, used)
    sums = {days: _summed(by_direction, days, delta, confidence, len(horizons)) for days in horizons}
    rows = []
    names = list(dict.fromkeys(item.line.name for item in losses.neighbours))
    for name in names:
        own = [k for k, item in enumerate(losses.neighbours) if item.line.name == name]
        values = by_direction[own]
        finite = values[np.isfinite(values)]
        epsilon = float(day[own].max())
        rows.append(
            LineRow(
                line=name,
                is_switch=losses.neighbours[own[0]].line.is_switch,
                epsilon=_or_none(epsilon),
                epsilon_tail=_or_none(float(tail[own].max())),
                forward=_or_none(float(day[own, 0].max())),
                reverse=_or_none(float(day[own, 1].max())),
                mean=float(finite.mean()) if len(finite) else float("inf"),
                worst=float(finite.max()) if len(finite) else float("inf"),
                infinite=float(1.0 - len(finite) / values.size),
                horizons=tuple(_horizon(days, epsilon, used, sums[days], own) for days in horizons),
            )
        )
    changes = tuple(dict.fromkeys(item.what for item in losses.neighbours))
    return LineEvidence(
        x, steps, changes, by_direction.shape[-1], used, bounds.supported, confidence, tuple(rows)
    )


def _summed(
    losses: FloatArray, days: int, delta: float, confidence: float, horizons: int
) -> tuple[FloatArray, float]:
    """Least ε (neighbour, direction) of so many days, and its δ.

    Days are independent given the network, so the loss of D days is the sum of D independent losses; disjoint
    groups of the draws are independent samples of it. No draw is used twice.
    """
    groups = losses.shape[-1] // days
    if groups == 0:
        return np.full(losses.shape[:2], np.inf), 1.0
    total = losses[..., : groups * days].reshape(*losses.shape[:2], groups, days).sum(axis=-1)
    bounds = delta_bounds(total, (1.0 - confidence) / horizons)
    used = max(delta, bounds.supported)
    return least_epsilon(bounds.hockey, used), used


def _horizon(
    days: int, epsilon: float, delta: float, summed: tuple[FloatArray, float], own: list[int]
) -> Horizon:
    added = days * delta
    return Horizon(
        days=days,
        added_epsilon=_or_none(days * epsilon) if added < 1.0 else None,
        added_delta=added,
        summed_epsilon=_or_none(float(summed[0][own].max())),
        summed_delta=summed[1],
    )


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
