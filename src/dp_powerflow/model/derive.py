"""From answered queries to the classes of a load model: one code for the fit, its plan and its recomputation.

A `Source` gives the records of the classes and sessions that answer queries about them. Meter data under a
budget are one (`model.fit`); published integers and a plan are others: they have no records, and their
sessions never look at any. Everything after a query is post-processing of its noisy integers.

With public labels every class is a cohort: its label is public and fixed, a neighbour replaces a record
within it, and classes compose in parallel. With private classes all classes are asked together, for one
charge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dp_powerflow._bits.elementary import log1
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import Bounds, Cell, LogLoads, Records
from dp_powerflow.model.options import FitOptions, HistoryFacts
from dp_powerflow.model.partition import PrivateClasses, assign_classes, private_counts, private_kmeans
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, QueryCost, epsilon_to_rho
from dp_powerflow.privacy.queries import Answer, PlanSession, ReplaySession, Session
from dp_powerflow.units import FloatArray, IntArray

COUNT_SHARE = 0.2  # of the partition's budget
PARTITION, CLASSES = ("stage", "partition"), ("day type", "")
"""Stages of a fit; each has its own noise streams. Days had types once, so the second says."""


class Source(Protocol):
    """Records of the classes, and sessions that answer queries about them."""

    @property
    def facts(self) -> HistoryFacts:
        """Public size of the history."""

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        """A session for one stage of the fit."""

    def log_load(self, name: str | None, bounds: Bounds) -> FloatArray | LogLoads:
        """Log loads (record, day, step) of a class, None for all."""


@dataclass(frozen=True, eq=False)
class NoRecords:
    """Public facts, and sessions that need no records.

    Parameters
    ----------
    facts
        Public size of the history.
    make_session
        (cohort, ρ) → a session.
    """

    facts: HistoryFacts
    make_session: Callable[[str | None, float], Session]

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        return self.make_session(cohort, rho)

    def log_load(self, name: str | None, bounds: Bounds) -> FloatArray:
        return np.empty((0, 1, self.facts.n_steps))


@dataclass(frozen=True, eq=False)
class FitOutcome:
    """The outcome of a fit.

    Parameters
    ----------
    classes
        One entry per class.
    answers
        Every query in the order it was asked.
    notes
        Public remarks, such as a budget too small to be useful.
    """

    classes: tuple[Any, ...] = ()
    answers: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def queries(self) -> tuple[QueryCost, ...]:
        """What the answers cost."""
        return tuple(answer.cost for answer in self.answers)


def planned_queries(facts: HistoryFacts, options: FitOptions, budget: Budget) -> FitOutcome:
    """Every query a fit would ask, from public facts: names, sensitivities, noise scales and costs.

    The natural scale of a second-round query follows the released answers of the first round; here it is the
    one that the public prior gives.

    Parameters
    ----------
    facts
        Public size of the history.
    options
        Public choices.
    budget
        (ε, δ) and the unit of privacy.
    """
    return derive(NoRecords(facts, lambda *of: PlanSession(budget.unit, *of)), options, budget)


def replay(
    facts: HistoryFacts, options: FitOptions, budget: Budget, answers: tuple[Answer, ...]
) -> FitOutcome:
    """The classes again, from published integers alone.

    Parameters
    ----------
    facts, options, budget
        As in the fit.
    answers
        As published, in the order they were asked.

    Raises
    ------
    PrivacyError
        If this fit would not ask for these answers.
    """
    left = iter(answers)
    derived = derive(NoRecords(facts, lambda *of: ReplaySession(left, budget.unit, *of)), options, budget)
    if next(left, None) is not None:
        raise PrivacyError("more answers are published than the fit asks queries; the file was changed")
    return derived


def derive(source: Source, options: FitOptions, budget: Budget) -> FitOutcome:
    """Ask and post-process: the one loop of every estimator."""
    classes: list[Any] = []
    answers: list[Answer] = []
    notes: list[str] = []
    options.estimator.check(source.facts, options, budget.unit)
    for cell in _cells(source, options, budget, answers, notes):
        classes += options.estimator.classes(cell)
        answers += cell.session.answers
    return FitOutcome(tuple(classes), tuple(answers), tuple(notes))


def _cells(
    source: Source, options: FitOptions, budget: Budget, answers: list[Answer], notes: list[str]
) -> Iterator[Cell]:
    """A cell per public label, or one of all private classes, which a private K-means finds first."""
    facts, choice = source.facts, options.classes
    rho = epsilon_to_rho(budget.epsilon, budget.delta)
    per_point = facts.n_days if budget.unit is PrivacyUnit.LOAD_POINT_DAY else 1
    if not isinstance(choice, PrivateClasses):
        for name, n_points in facts.load_points_of_class:
            records, session = float(n_points * per_point), source.session(CLASSES, name, rho)
            groups = [Records(source.log_load(name, options.bounds_of(name)), records)]
            share = n_points / facts.n_load_points
            yield Cell(facts, options, (name,), (share,), groups, records, rho, session, notes)
        return
    names, spent = choice.names, rho * choice.share
    bounds = options.widest(names)
    log_load = source.log_load(None, bounds)
    everyone, session = Records(log_load, 0.0), source.session(PARTITION, None, spent)
    log_bounds = log1(bounds[0]), log1(bounds[1])
    centroids = private_kmeans(everyone, choice.n_classes, *log_bounds, spent * (1 - COUNT_SHARE), session)
    labels = assign_classes(everyone, centroids)
    counts = private_counts(labels, choice.n_classes, session.rho_left, session)
    answers += session.answers
    weights, rest = tuple((counts / counts.sum()).tolist()), rho * (1 - choice.share)
    groups, session = _split(log_load, labels, counts), source.session(CLASSES, None, rest)
    records = float(facts.n_load_points * per_point) / len(names)
    yield Cell(facts, options, names, weights, groups, records, rest, session, notes)


def _split(values: FloatArray | LogLoads, labels: IntArray, counts: FloatArray) -> list[Records]:
    """PRIVATE. The records of each class, with the released counts in place of the true ones."""
    groups: list[FloatArray | LogLoads] = [
        replace(values, rows=values.rows[labels == k])
        if isinstance(values, LogLoads)
        else values[labels == k]
        for k in range(len(counts))
    ]
    return [Records(group, float(count)) for group, count in zip(groups, counts, strict=True)]
