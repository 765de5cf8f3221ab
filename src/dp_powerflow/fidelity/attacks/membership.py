"""INTERNAL. Membership inference: was this customer among those whom the model was fitted to?

The design of the release is fitted to half of the customers. The attacker sees customers drawn from the
model, knows every real customer, and scores each of them: by its distance to the drawn customers nearest to
it, and by how much likelier it is under the drawn customers than under the real ones. A threshold is learnt
on one half of the customers, members and others, and tried on the other half.

Customers of one fit share its noise, so the intervals are narrower than the truth where there are few fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dp_powerflow.fidelity.attacks.chances import Allowed, Guesses
from dp_powerflow.fidelity.attacks.design import Design
from dp_powerflow.fidelity.classifier import area_under_curve
from dp_powerflow.fidelity.effort import Effort
from dp_powerflow.fidelity.likeness import distances, traits_of
from dp_powerflow.pipeline.drawing import draw_customers
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, FloatArray

NEAREST = 3
_SHRUNK = 0.1  # of every variance, added to the diagonal


@dataclass(frozen=True, eq=False)
class MembershipAttack:
    """INTERNAL. What the attacker got out of draws.

    Attributes
    ----------
    area, area_error : area under the curve of the better score, mean over fits, and its standard error.
    guesses : on customers that the threshold was not learnt on.
    score : which score it was.
    false_rate, true_rate : (point,) of the curve of all fits together.
    allowed : what the release states of a whole customer.
    """

    area: float
    area_error: float
    guesses: Guesses
    score: str
    false_rate: FloatArray
    true_rate: FloatArray
    allowed: Allowed


def by_distance(real: FloatArray, drawn: FloatArray) -> FloatArray:
    """(customer,) minus the mean distance to the nearest drawn customers, in standard deviations."""
    apart = distances(real, drawn, real.std(axis=0))
    nearest: FloatArray = -np.sort(apart, axis=1)[:, :NEAREST].mean(axis=1)
    return nearest


def by_likelihood(real: FloatArray, drawn: FloatArray) -> FloatArray:
    """(customer,) log likelihood under the Gaussian of the drawn customers less that under the real ones."""
    return _log_density(real, drawn) - _log_density(real, real)


SCORES: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "distance to drawn customers": by_distance,
    "likelihood under drawn customers": by_likelihood,
}


def attack_membership(
    design: Design,
    effort: Effort,
    key: StreamKey,
    on_fit: Callable[[int, int], None] = lambda done, total: None,
) -> MembershipAttack:
    """INTERNAL. Fit on halves, draw, score and guess.

    Parameters
    ----------
    design : of the release, with many customers.
    key : secret of the noise; every fit has streams of its own.
    """
    count, lowest = design.history.n_load_points, float(min(design.bounds_kw(0)[0], 1e-3))
    features = traits_of(np.maximum(design.history.load_kw, lowest))
    scores: dict[str, list[FloatArray]] = {name: [] for name in SCORES}
    members: list[BoolArray] = []
    for index in range(effort.membership_fits):
        own = key.bind("membership", str(index))
        chosen = own.stream("members").generator.permutation(count)[: count // 2]
        drawn = draw_customers(
            design.fitted(chosen, own),
            design.history.select([design.history.load_points[k] for k in chosen]),
            own,
        )
        inside = np.zeros(count, dtype=np.bool_)
        inside[chosen] = True
        members.append(inside)
        for name, score in SCORES.items():
            scores[name].append(score(features, traits_of(np.maximum(drawn, lowest))))
        on_fit(index + 1, effort.membership_fits)
    found = [
        _judged((name, design.allowed_of_customer), per_fit, members) for name, per_fit in scores.items()
    ]
    return max(found, key=lambda attack: attack.area)


def _judged(of: tuple[str, Allowed], scores: list[FloatArray], members: list[BoolArray]) -> MembershipAttack:
    """From the name of a score and what is allowed; scores and members fit by fit."""
    name, allowed = of
    areas = np.array([area_under_curve(*pair) for pair in zip(scores, members, strict=True)])
    error = float(areas.std(ddof=1) / np.sqrt(len(areas))) if len(areas) > 1 else 0.0
    guesses = Guesses(0, 0)
    for score, inside in zip(scores, members, strict=True):
        for learnt in (0, 1):
            known, tried = (np.arange(score.size) % 2 == side for side in (learnt, 1 - learnt))
            guess = score[tried] > _threshold(score[known], inside[known])
            guesses += Guesses(int(np.sum(guess == inside[tried])), int(tried.sum()))
    pooled = np.concatenate([(score - score.mean()) / max(score.std(), 1e-12) for score in scores])
    false_rate, true_rate = curve(pooled, np.concatenate(members))
    return MembershipAttack(float(areas.mean()), error, guesses, name, false_rate, true_rate, allowed)


def curve(score: FloatArray, positive: BoolArray, points: int = 101) -> tuple[FloatArray, FloatArray]:
    """False and true positive rates (point,) at falling thresholds."""
    limits = np.quantile(score, np.linspace(1, 0, points))
    rates = [(score[None, own] >= limits[:, None]).mean(axis=1) for own in (~positive, positive)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def _threshold(score: FloatArray, inside: BoolArray) -> float:
    """The threshold with most right guesses."""
    order = np.argsort(score)
    right = np.cumsum(np.where(inside[order], -1, 1))
    best = int(np.argmax(right))
    return float(score[order[best]])


def _log_density(at: FloatArray, sample: FloatArray) -> FloatArray:
    """(row,) log density of a Gaussian fitted to a sample, but for a constant."""
    centre, covariance = sample.mean(axis=0), np.cov(sample.T)
    covariance = covariance + _SHRUNK * np.diag(np.diag(covariance)) + 1e-9 * np.eye(len(covariance))
    away = at - centre
    size = np.linalg.slogdet(covariance)[1]
    density: FloatArray = -0.5 * (np.sum(away * np.linalg.solve(covariance, away.T).T, axis=1) + size)
    return density
