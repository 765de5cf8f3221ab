"""From answered queries to the classes of a load model: one code for the fit, its plan and its recomputation.

A `Source` gives the records of the classes and sessions that answer queries about them. Meter data under a
budget are one (`model.fit`); published integers and a plan are others: they have no records, and their
sessions never look at any. Everything after a query is post-processing of its noisy integers.

With public labels every class is a cohort: its label is public and fixed, a neighbour replaces a record
within it, and classes compose in parallel. With private classes all classes are asked together, for one
charge. Public day types split a class: with unit `load-point` a record has days of every type, so the types
share the budget; with `load-point-day` a record's type is public and the types are cohorts too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dp_powerflow._bits.elementary import log1
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import (
    Chosen,
    GaussianEstimate,
    PublicFacts,
    Records,
    with_floor,
    within_bounds,
)
from dp_powerflow.model.history.asking import Setting
from dp_powerflow.model.history.estimate import estimate_histories, reactive_of
from dp_powerflow.model.history.law import HistoryClass
from dp_powerflow.model.history.plan import History, check, errors_of_class
from dp_powerflow.model.law import ClassModel, GaussianComponent, ReactiveModel
from dp_powerflow.model.options import (
    Bounds,
    FitOptions,
    FittedReactive,
    HistoryFacts,
    PublicSpread,
    fit_reactive,
)
from dp_powerflow.model.partition import (
    PrivateClasses,
    assign_classes,
    fit_mixtures,
    private_counts,
    private_kmeans,
)
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, QueryCost, epsilon_to_rho
from dp_powerflow.privacy.queries import Answer, PlanSession, ReplaySession, Session
from dp_powerflow.units import FloatArray, IntArray

MIXTURE_SHARE = 0.4  # of a class's budget, if it holds more than one component
COUNT_SHARE = 0.2  # of the partition's budget
MOST_KW = 1e100  # as the bound of a history model: sums of loads stay finite


class Source(Protocol):
    """Records of the classes, and sessions that answer queries about them."""

    @property
    def facts(self) -> HistoryFacts:
        """Public size of the history."""

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        """A session for one stage of the fit."""

    def log_load(self, name: str | None, day_type: str | None, bounds: Bounds) -> FloatArray | Chosen:
        """Log loads (record, day, step) of a class, None for all, on days of a type, None for all."""

    def pairs(self, name: str | None, day_type: str | None) -> FloatArray | Chosen:
        """p and q side by side (record, day, 2·step)."""

    def slots(self) -> IntArray:
        """Public day type (index) of every record, all load points and days; 0 if a record has many days."""


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

    def log_load(self, name: str | None, day_type: str | None, bounds: Bounds) -> FloatArray:
        return np.empty((0, 1, self.facts.n_steps))

    def pairs(self, name: str | None, day_type: str | None) -> FloatArray:
        return np.empty((0, 1, 2 * self.facts.n_steps))

    def slots(self) -> IntArray:
        return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Derived:
    """The outcome of a fit.

    Parameters
    ----------
    classes
        One entry per class, or per class and day type.
    answers
        Every query in the order it was asked.
    notes
        Public remarks, such as a budget too small to be useful.
    """

    classes: tuple[ClassModel, ...] | tuple[HistoryClass, ...]
    answers: tuple[Answer, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PlannedFit:
    """What a fit would ask; see `planned_queries`."""

    queries: tuple[QueryCost, ...]
    notes: tuple[str, ...]


def planned_queries(facts: HistoryFacts, options: FitOptions, budget: Budget) -> PlannedFit:
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
    derived = derive(NoRecords(facts, lambda *of: PlanSession(budget.unit, *of)), options, budget)
    return PlannedFit(tuple(answer.cost for answer in derived.answers), derived.notes)


def replay(facts: HistoryFacts, options: FitOptions, budget: Budget, answers: tuple[Answer, ...]) -> Derived:
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
        If the answers are not those of this fit.
    """
    left = iter(answers)
    derived = derive(NoRecords(facts, lambda *of: ReplaySession(left, budget.unit, *of)), options, budget)
    if next(left, None) is not None:
        raise PrivacyError("more answers are published than the fit asks queries; the file was changed")
    return derived


def derive(source: Source, options: FitOptions, budget: Budget) -> Derived:
    """Ask and post-process."""
    job = (
        _HistoryJob(source, options, budget)
        if isinstance(options.estimator, History)
        else _Job(source, options, budget)
    )
    if isinstance(options.classes, PrivateClasses):
        job.private_classes(options.classes)
    else:
        job.public_classes()
    return Derived(tuple(job.classes), tuple(job.answers), tuple(job.notes))


@dataclass(frozen=True, eq=False)
class _Cell:
    """Classes fitted in lockstep on days of one type, and the session that pays for them.

    Records are cut to `bounds`, which hold the `margins` of every class.
    """

    names: tuple[str, ...]
    day_type: str | None
    weights: tuple[float, ...]
    bounds: Bounds
    margins: tuple[Bounds, ...]
    groups: list[Records]
    pairs: list[Records]
    records: float
    rho: float
    session: Session


class _Job:
    """One fit: builds the cells, fits them, collects classes, answers and notes."""

    def __init__(self, source: Source, options: FitOptions, budget: Budget) -> None:
        self.source = source
        self.facts = source.facts
        self.options = options
        self.unit = budget.unit
        self.rho = epsilon_to_rho(budget.epsilon, budget.delta)
        self.classes: list[Any] = []
        self.answers: list[Answer] = []
        self.notes: list[str] = []

    def public_classes(self) -> None:
        """One cohort per public label."""
        for name, n_points in self.facts.load_points_of_class:
            bounds = self.options.bounds_of(name)
            for day_type, n_days in self.facts.days_of_type:
                records = self._records(n_points, n_days)
                cell = _Cell(
                    names=(name,),
                    day_type=day_type,
                    weights=(n_points / self.facts.n_load_points,),
                    bounds=bounds,
                    margins=(bounds,),
                    groups=[Records(self.source.log_load(name, day_type, bounds), records)],
                    pairs=[Records(self.source.pairs(name, day_type), records)]
                    if self._fits_reactive
                    else [],
                    records=records,
                    rho=self._day_type_rho(self.rho),
                    session=self._session(name, day_type, self.rho),
                )
                self._fit_cell(cell)

    def private_classes(self, choice: PrivateClasses) -> None:
        """Private K-means, then all classes in lockstep."""
        names = choice.names
        bounds = self.options.widest(names)
        everyone = Records(self.source.log_load(None, None, bounds), 0.0)
        spent = self.rho * choice.share
        session = self.source.session(("stage", "partition"), None, spent)
        logs = _logs(bounds)
        centroids = private_kmeans(everyone, choice.n_classes, *logs, spent * (1 - COUNT_SHARE), session)
        labels = assign_classes(everyone, centroids)
        per_day = self.unit is PrivacyUnit.LOAD_POINT_DAY
        shape = (len(self.facts.days_of_type) if per_day else 1, choice.n_classes)
        counts = private_counts(labels, self.source.slots(), shape, session.rho_left, session)
        self.answers += session.answers
        for index, (day_type, n_days) in enumerate(self.facts.days_of_type):
            log_load = self.source.log_load(None, day_type, bounds)
            of_record = assign_classes(Records(log_load, 0.0), centroids) if per_day else labels
            of_class = counts[index if per_day else 0]
            rho = self.rho * (1 - choice.share)
            cell = _Cell(
                names=names,
                day_type=day_type,
                weights=tuple((of_class / of_class.sum()).tolist()),
                bounds=bounds,
                margins=tuple(self.options.bounds_of(name) for name in names),
                groups=_split(log_load, of_record, of_class),
                pairs=_split(self.source.pairs(None, day_type), of_record, of_class)
                if self._fits_reactive
                else [],
                records=self._records(self.facts.n_load_points, n_days) / len(names),
                rho=self._day_type_rho(rho),
                session=self._session(None, day_type, rho),
            )
            self._fit_cell(cell)

    @property
    def _fits_reactive(self) -> bool:
        return isinstance(self.options.reactive, FittedReactive)

    def _records(self, n_points: int, n_days: int) -> float:
        """Public number of records."""
        return float(n_points * n_days if self.unit is PrivacyUnit.LOAD_POINT_DAY else n_points)

    def _day_type_rho(self, rho: float) -> float:
        """Budget of one day type: types are cohorts only if a record has one day."""
        if self.unit is PrivacyUnit.LOAD_POINT_DAY:
            return rho
        return rho / len(self.facts.days_of_type)

    def _session(self, name: str | None, day_type: str | None, rho: float) -> Session:
        cohort = name
        if self.unit is PrivacyUnit.LOAD_POINT_DAY and day_type is not None:
            cohort = day_type if name is None else f"{name} / {day_type}"
        return self.source.session(("day type", day_type or ""), cohort, self._day_type_rho(rho))

    def _fit_cell(self, cell: _Cell) -> None:
        choice, n_components = self.options.reactive, self.options.n_components
        rho_reactive = cell.rho * choice.share if isinstance(choice, FittedReactive) else 0.0
        rho_mixture = (cell.rho - rho_reactive) * (MIXTURE_SHARE if n_components > 1 else 0.0)
        rest = cell.rho - rho_reactive - rho_mixture
        facts = PublicFacts(cell.records, self.facts.n_steps, rest, *_logs(cell.bounds))
        self._note_weak_budget(cell, facts)
        bases = self.options.estimator.estimate(cell.groups, facts, cell.session)
        floored = [self._finished(base, own) for base, own in zip(bases, cell.margins, strict=True)]
        if n_components > 1:
            mixtures = fit_mixtures(cell.groups, floored, n_components, rho_mixture, cell.session)
            components = [
                tuple(self._finished_part(part, own) for part in parts)
                for parts, own in zip(mixtures, cell.margins, strict=True)
            ]
        else:
            components = [(GaussianComponent(1.0, base.mean, base.covariance),) for base in floored]
        references = [_reference(parts) for parts in components]
        reactive = self._reactive(cell, references, rho_reactive)
        fitted = zip(cell.names, cell.weights, components, cell.margins, reactive, strict=True)
        self.classes += [
            ClassModel(name, cell.day_type, weight, parts, own, law)
            for name, weight, parts, own, law in fitted
        ]
        self.answers += cell.session.answers

    def _finished(self, estimate: GaussianEstimate, margins: Bounds) -> GaussianEstimate:
        """Free post-processing from public values: the declared bounds of the class and the floor."""
        bounded = within_bounds(estimate, *_logs(margins))
        return with_floor(bounded.mean, bounded.covariance, self.options.variance_floor)

    def _finished_part(self, part: GaussianComponent, margins: Bounds) -> GaussianComponent:
        estimate = self._finished(GaussianEstimate(part.mean, part.covariance), margins)
        return GaussianComponent(part.weight, estimate.mean, estimate.covariance)

    def _reactive(self, cell: _Cell, references: list[float], rho: float) -> list[ReactiveModel]:
        choice = self.options.reactive
        if isinstance(choice, FittedReactive):
            return fit_reactive(cell.pairs, references, cell.bounds[1], cell.records, rho, cell.session)
        if isinstance(choice, PublicSpread):
            angles, spread = choice.power_factor, choice.spread
            covariance = choice.covariance(self.facts.n_steps, self.facts.step_minutes)
        else:
            angles, spread, covariance = choice, 0.0, None
        return [
            ReactiveModel(angles.tan_theta(name), spread, reference, covariance)
            for name, reference in zip(cell.names, references, strict=True)
        ]

    def _note_weak_budget(self, cell: _Cell, facts: PublicFacts) -> None:
        if self.options.estimator.prior_would_do(facts):
            names = ", ".join(cell.names)
            of_days = "" if cell.day_type is None else f" on days of type '{cell.day_type}'"
            self.notes.append(
                f"{facts.records:.0f} records of {names}{of_days} are too few for this epsilon: the noise "
                "outweighs the data and the public prior would do as well; raise epsilon or pool classes"
            )


class _HistoryJob(_Job):
    """A fit of whole histories: every customer is one record with all its days."""

    def __init__(self, source: Source, options: FitOptions, budget: Budget) -> None:
        super().__init__(source, options, budget)
        check(self.facts.n_days, self.facts.n_steps, self.unit)
        if self.facts.days is None or len(self.facts.days_of_type) > 1 or options.n_components > 1:
            raise PrivacyError(
                "a history model has one law for all days, by the facts of each, and one component; give "
                "facts of days instead of day types, and components = 1"
            )
        self.days = self.facts.days
        self._check_facts()

    def _check_facts(self) -> None:
        """All of it is public, and nothing is asked before."""
        classes = self.facts.load_points_of_class
        if len(self.days.dates) != self.facts.n_days or any(count < 1 for _, count in classes):
            raise PrivacyError(
                "a history model needs facts of exactly the days of the history, and customers in every class"
            )
        choice = self.options.classes
        names = choice.names if isinstance(choice, PrivateClasses) else tuple(name for name, _ in classes)
        low, high = self.options.widest(names)
        if low < 1 / MOST_KW or high > MOST_KW:
            raise PrivacyError(
                f"a history model needs load bounds between {1 / MOST_KW:g} and {MOST_KW:g} kW; declare "
                "others"
            )

    def _fit_cell(self, cell: _Cell) -> None:
        choice = self.options.reactive
        rho_reactive = cell.rho * choice.share if isinstance(choice, FittedReactive) else 0.0
        setting = Setting(
            n_steps=self.facts.n_steps,
            n_days=self.facts.n_days,
            rho=cell.rho - rho_reactive,
            log_bounds=_logs(cell.bounds),
            off=np.array(self.days.off),
            covariates=self.days.orthonormal,
        )
        large = [
            f"the {error.what} by {100 * error.error:.0f} %"
            for error in errors_of_class(cell.records, setting.n_days, setting.rho)
            if error.too_large
        ]
        if large:
            self.notes.append(
                f"{cell.records:.0f} customers of {', '.join(cell.names)} are too few for this epsilon: "
                f"noise alone puts off {', '.join(large)}; raise epsilon or pool classes"
            )
        laws = estimate_histories(cell.groups, setting, cell.session)
        if cell.session.lists_only and not self._fits_reactive:
            self.answers += cell.session.answers
            return
        reactive = reactive_of(cell, laws, choice, self.facts, rho_reactive)
        fitted = zip(cell.names, cell.weights, cell.margins, laws, reactive, strict=True)
        self.classes += [HistoryClass(*each) for each in fitted]
        self.answers += cell.session.answers


def _logs(bounds: Bounds) -> tuple[float, float]:
    return log1(bounds[0]), log1(bounds[1])


def _split(values: FloatArray | Chosen, labels: IntArray, counts: FloatArray) -> list[Records]:
    """PRIVATE. The records of each class, with the released counts in place of the true ones."""
    chosen = values.where if isinstance(values, Chosen) else values.__getitem__
    return [Records(chosen(labels == k), float(count)) for k, count in enumerate(counts)]


def _reference(parts: tuple[GaussianComponent, ...]) -> float:
    """p̄: released mean load over the day [kW, or per public scale]."""
    return float(sum(part.weight * part.mean_load.mean() for part in parts))
