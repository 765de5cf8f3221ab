"""What a practitioner can turn: r for a target ε, the public floor of the covariance, the number of days.

No lever refits the load model: every refit spends the customers' budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.theorem import Bound, NetworkFacts, OperatingSet
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.law import LoadLaw

Evaluate = Callable[[NetworkFacts, LoadLaw, OperatingSet, float, float], Bound]

_SMALLEST_RADIUS = 1e-15
_BISECTIONS = 60


@dataclass(frozen=True, eq=False)
class Case:
    """One mode's bound on one network under one load law, as a function of r and δ.

    Attributes
    ----------
    evaluate : the mode's bound, such as `full_support_bound`.
    """

    evaluate: Evaluate
    facts: NetworkFacts
    law: LoadLaw
    operating: OperatingSet

    def bound(self, radius: float, delta: float) -> Bound:
        """Of one day at r; δ is the share of the tail."""
        return self.evaluate(self.facts, self.law, self.operating, radius, delta)

    def largest_radius(self, epsilon: float, delta: float, total_delta: float = 1.0) -> float | None:
        """Largest r with a bound of at most ε, None if not even the smallest has one; ε and δ grow with r.

        Parameters
        ----------
        delta : share of the tail, as in the bound.
        total_delta : the most that all parts of δ may add up to.
        """

        def within(radius: float) -> bool:
            bound = self.bound(radius, delta)
            return bound.epsilon is not None and bound.epsilon <= epsilon and bound.delta <= total_delta

        if not epsilon > 0.0:
            raise PrivacyError("a target ε must be positive")
        low, high = math.log(_SMALLEST_RADIUS), math.log(min(1.0, self.facts.amplification.largest_radius))
        if not within(math.exp(low)):
            return None
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if within(math.exp(middle)) else (low, middle)
        return math.exp(low)

    def per_step(self, radius: float, delta: float) -> Bound:
        """The bound for one released step by itself, of the worst step of the day.

        Loads that are truncated as whole days have no truncated Gaussian at a single step; there the bound
        of the day is given, which covers a step as post-processing of the day.
        """
        if self.law.truncated:
            return self.bound(radius, delta)
        steps = range(self.law.steps)
        bounds = [replace(self, law=self.law.at_step(t)).bound(radius, delta) for t in steps]
        refused = [bound for bound in bounds if bound.epsilon is None]
        return refused[0] if refused else max(bounds, key=lambda bound: bound.terms.formula)


@dataclass(frozen=True)
class Composed:
    """A bound for D days by basic composition: D·ε and D·δ."""

    days: int
    epsilon: float | None
    delta: float
    rule: str = "basic composition: the days are independent given the network, ε and δ add up"


def over_days(bound: Bound, days: int) -> Composed:
    """The bound of a day for D of them; no number once δ reaches 1."""
    if days < 1:
        raise PrivacyError("a corpus has at least one day")
    delta = bound.delta * days
    epsilon = None if bound.epsilon is None or delta >= 1.0 else bound.epsilon * days
    return Composed(days, epsilon, min(delta, 1.0))


@dataclass(frozen=True)
class RadiusInLines:
    """r as a change of one line: a share of its admittance, and metres of its length.

    Shares and metres are None where the feeder has no line, or no line with a length.
    """

    weakest: float | None
    median: float | None
    strongest: float | None
    median_metres: float | None


def radius_in_lines(feeder: Feeder, radius: float) -> RadiusInLines:
    """What r means for the lines of the feeder, switches left out."""
    lines = [line for line in feeder.lines if not line.is_switch]
    if not lines:
        return RadiusInLines(None, None, None, None)
    norms = np.array([np.linalg.norm(line.primitive) for line in lines])
    metres = [
        radius / norm * line.length_m
        for norm, line in zip(norms, lines, strict=True)
        if line.length_m is not None
    ]
    return RadiusInLines(
        weakest=radius / float(norms.min()),
        median=radius / float(np.median(norms)),
        strongest=radius / float(norms.max()),
        median_metres=float(np.median(metres)) if metres else None,
    )
