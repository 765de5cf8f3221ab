"""Fit the load model under differential privacy: the one place that reads meter data and spends the budget.

With public labels every class is a cohort: its label is public and fixed, a neighbour replaces a record
within it, and classes compose in parallel. With private classes all classes are asked together, for one
charge. Public day types split a class: with unit `load-point` a record has days of every type, so the types
share the budget; with `load-point-day` a record's type is public and the types are cohorts too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.estimators import PublicFacts
from dp_powerflow.model.estimators.base import GaussianEstimate, with_floor, within_bounds
from dp_powerflow.model.fit_source import Source, check_history
from dp_powerflow.model.gaussian import ClassModel, LoadModel, ReactiveModel
from dp_powerflow.model.law import GaussianComponent
from dp_powerflow.model.mixture import fit_mixtures
from dp_powerflow.model.options import Bounds, FitOptions
from dp_powerflow.model.partition import PrivateClasses, assign_classes, private_counts, private_kmeans
from dp_powerflow.model.reactive import FittedReactive, PublicSpread, fit_reactive
from dp_powerflow.model.records import Records
from dp_powerflow.privacy.accounting import epsilon_to_rho
from dp_powerflow.privacy.budget import PrivacyBudget, PrivacyUnit, QueryCost
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.session import QuerySession
from dp_powerflow.units import FloatArray, IntArray

MIXTURE_SHARE = 0.4  # of a class's budget, if it holds more than one component
COUNT_SHARE = 0.2  # of the partition's budget


class WeakBudgetWarning(UserWarning):
    """By public figures alone, the budget is too small for the data to matter."""


def fit(history: LoadHistory, *, budget: PrivacyBudget, options: FitOptions, key: StreamKey) -> LoadModel:
    """Fit a load model within a privacy budget.

    Parameters
    ----------
    history
        PRIVATE meter data.
    budget
        (ε, δ) and the unit of privacy.
    options
        Public choices.
    key
        Streams of the noise. They are bound to the options and, under the secret, to the data, so the same
        noise never meets two data sets.

    Returns
    -------
    LoadModel
        Publishable, with its cost records.
    """
    check_history(history, options, budget.unit)
    source = Source(history, options, budget.unit)
    key = key.bind("fit", options.sha256(budget)).bind("data", source.keyed_hash(key))
    job = _Job(source, options, budget, epsilon_to_rho(budget.epsilon, budget.delta), key)
    private = isinstance(options.classes, PrivateClasses)
    classes, costs = job.private_classes() if private else job.public_classes()
    for note in job.notes:
        warnings.warn(note, WeakBudgetWarning, stacklevel=2)
    return LoadModel(
        classes=tuple(classes),
        step_minutes=history.step_minutes,
        scaled=options.use_scale,
        unit=budget.unit,
        epsilon=budget.epsilon,
        delta=budget.delta,
        costs=tuple(costs),
        n_load_points=history.n_load_points,
        n_days=history.n_days,
        public_labels=not private,
        estimator=options.estimator.name,
        insecure_seed=key.insecure_seed,
        simulated=history.simulated,
        notes=tuple(job.notes),
    )


@dataclass(frozen=True, eq=False)
class _Cell:
    """Classes fitted in lockstep on days of one type, and the session that pays for them."""

    names: tuple[str, ...]
    day_type: str | None
    weights: tuple[float, ...]
    bounds: Bounds
    groups: list[Records]
    pairs: list[Records]
    records: float
    rho: float
    session: QuerySession


class _Job:
    """One fit: builds the cells, fits them, collects costs and notes."""

    def __init__(
        self, source: Source, options: FitOptions, budget: PrivacyBudget, rho: float, key: StreamKey
    ) -> None:
        self.source = source
        self.options = options
        self.unit = budget.unit
        self.rho = rho
        self.key = key
        self.notes: list[str] = []

    def public_classes(self) -> tuple[list[ClassModel], list[QueryCost]]:
        """One cohort per public label."""
        labels = np.array(self.source.labels())
        models: list[ClassModel] = []
        costs: list[QueryCost] = []
        for name in dict.fromkeys(labels.tolist()):
            points = np.flatnonzero(labels == name)
            bounds = self.options.bounds_of(name)
            for day_type, days in self.source.day_types().items():
                log_load = self.source.log_load(points, days, bounds)
                records = float(len(log_load))
                cell = _Cell(
                    names=(name,),
                    day_type=day_type,
                    weights=(points.size / labels.size,),
                    bounds=bounds,
                    groups=[Records(log_load, records)],
                    pairs=[Records(self.source.pairs(points, days), records)] if self._fits_reactive else [],
                    records=records,
                    rho=self._day_type_rho(self.rho),
                    session=self._session(name, day_type, self.rho),
                )
                models += self._fit_cell(cell)
                costs += cell.session.costs
        return models, costs

    def private_classes(self) -> tuple[list[ClassModel], list[QueryCost]]:
        """Private K-means, then all classes in lockstep."""
        assert isinstance(self.options.classes, PrivateClasses)
        n_classes, share = self.options.classes.n_classes, self.options.classes.share
        names = tuple(f"class {k}" for k in range(1, n_classes + 1))
        bounds = self._common_bounds(names)
        everyone = np.arange(self.source.history.n_load_points)
        every_day = np.arange(self.source.history.n_days)
        records = Records(self.source.log_load(everyone, every_day, bounds), 0.0)
        spent = self.rho * share
        session = QuerySession(self.key.bind("stage", "partition"), self.unit, None, spent)
        logs = (math.log(bounds[0]), math.log(bounds[1]))
        centroids = private_kmeans(records, n_classes, *logs, spent * (1 - COUNT_SHARE), session)
        labels = assign_classes(records, centroids)
        slots = self.source.slots()
        counts = private_counts(labels, slots, n_classes, session.rho_left, session)
        models: list[ClassModel] = []
        costs = list(session.costs)
        for index, (day_type, days) in enumerate(self.source.day_types().items()):
            of_slot = counts[min(index, len(counts) - 1)]
            cell = self._private_cell(names, day_type, days, bounds, of_slot, labels)
            models += self._fit_cell(cell)
            costs += cell.session.costs
        return models, costs

    def _private_cell(
        self,
        names: tuple[str, ...],
        day_type: str | None,
        days: IntArray,
        bounds: Bounds,
        counts: FloatArray,
        labels: IntArray,
    ) -> _Cell:
        assert isinstance(self.options.classes, PrivateClasses)
        everyone = np.arange(self.source.history.n_load_points)
        if self.unit is PrivacyUnit.LOAD_POINT_DAY:
            labels = labels.reshape(everyone.size, -1)[:, days].ravel()
        log_load = self.source.log_load(everyone, days, bounds)
        pairs = self.source.pairs(everyone, days) if self._fits_reactive else None
        rho = self.rho * (1 - self.options.classes.share)
        return _Cell(
            names=names,
            day_type=day_type,
            weights=tuple((counts / counts.sum()).tolist()),
            bounds=bounds,
            groups=_split(log_load, labels, counts),
            pairs=[] if pairs is None else _split(pairs, labels, counts),
            records=len(log_load) / len(names),
            rho=self._day_type_rho(rho),
            session=self._session(None, day_type, rho),
        )

    def _common_bounds(self, names: tuple[str, ...]) -> Bounds:
        if isinstance(self.options.bounds, Mapping):
            raise PrivacyError("private classes need one pair of load bounds for all; declare a single pair")
        return self.options.bounds_of(names[0])

    @property
    def _fits_reactive(self) -> bool:
        return isinstance(self.options.reactive, FittedReactive)

    def _day_type_rho(self, rho: float) -> float:
        """Budget of one day type: types are cohorts only if a record has one day."""
        if self.unit is PrivacyUnit.LOAD_POINT_DAY:
            return rho
        return rho / len(self.source.day_types())

    def _session(self, name: str | None, day_type: str | None, rho: float) -> QuerySession:
        cohort = name
        if self.unit is PrivacyUnit.LOAD_POINT_DAY and day_type is not None:
            cohort = day_type if name is None else f"{name} / {day_type}"
        key = self.key.bind("day type", day_type or "")
        return QuerySession(key, self.unit, cohort, self._day_type_rho(rho))

    def _fit_cell(self, cell: _Cell) -> list[ClassModel]:
        reactive_choice = self.options.reactive
        rho_reactive = (
            cell.rho * reactive_choice.share if isinstance(reactive_choice, FittedReactive) else 0.0
        )
        rho_mixture = (cell.rho - rho_reactive) * (MIXTURE_SHARE if self.options.n_components > 1 else 0.0)
        rest = cell.rho - rho_reactive - rho_mixture
        n_steps = cell.groups[0].n_steps
        facts = PublicFacts(cell.records, n_steps, rest, *(math.log(bound) for bound in cell.bounds))
        self._note_weak_budget(cell, facts)
        bases = self.options.estimator.estimate(cell.groups, facts, cell.session)
        floored = [self._finished(base, facts) for base in bases]
        if self.options.n_components > 1:
            mixtures = fit_mixtures(
                cell.groups, floored, self.options.n_components, rho_mixture, cell.session
            )
            components = [tuple(self._finished_part(part, facts) for part in parts) for parts in mixtures]
        else:
            components = [(_single(estimate),) for estimate in floored]
        references = [_reference(parts) for parts in components]
        reactive = self._reactive(cell, references, rho_reactive, n_steps)
        return [
            ClassModel(name, cell.day_type, weight, parts, cell.bounds, law)
            for name, weight, parts, law in zip(cell.names, cell.weights, components, reactive, strict=True)
        ]

    def _finished(self, estimate: GaussianEstimate, facts: PublicFacts) -> GaussianEstimate:
        """Free post-processing from public values: the declared bounds and the floor."""
        bounded = within_bounds(estimate, facts.log_low, facts.log_high)
        return with_floor(bounded.mean, bounded.covariance, self.options.variance_floor)

    def _finished_part(self, part: GaussianComponent, facts: PublicFacts) -> GaussianComponent:
        estimate = self._finished(GaussianEstimate(part.mean, part.covariance), facts)
        return GaussianComponent(part.weight, estimate.mean, estimate.covariance)

    def _reactive(
        self, cell: _Cell, references: list[float], rho: float, n_steps: int
    ) -> list[ReactiveModel]:
        choice = self.options.reactive
        if isinstance(choice, FittedReactive):
            bound = cell.bounds[1]
            return fit_reactive(cell.pairs, references, bound, cell.records, rho, cell.session)
        if isinstance(choice, PublicSpread):
            covariance = choice.covariance(n_steps, self.source.history.step_minutes)
            return [
                ReactiveModel(choice.power_factor.tan_theta(name), choice.spread, reference, covariance)
                for name, reference in zip(cell.names, references, strict=True)
            ]
        return [
            ReactiveModel(choice.tan_theta(name), 0.0, reference)
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


def _split(values: FloatArray, labels: IntArray, counts: FloatArray) -> list[Records]:
    """PRIVATE. The records of each class, with the released counts in place of the true ones."""
    return [Records(values[labels == k], float(count)) for k, count in enumerate(counts)]


def _single(estimate: GaussianEstimate) -> GaussianComponent:
    return GaussianComponent(1.0, estimate.mean, estimate.covariance)


def _reference(parts: tuple[GaussianComponent, ...]) -> float:
    """p̄: released mean load over the day [kW, or per public scale]."""
    return float(sum(part.weight * part.mean_load.mean() for part in parts))
