"""Fit the load model under differential privacy: the one place that reads meters and spends the budget."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import LoadDataError, ServiceMapError
from dp_powerflow.loads.history import SATURDAY, LoadHistory
from dp_powerflow.model.derive import derive
from dp_powerflow.model.estimators import Bounds, LogLoads
from dp_powerflow.model.gaussian import LoadModel, Origin, words_of
from dp_powerflow.model.options import DayFacts, FitOptions, HistoryFacts
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import Budget, PrivacyUnit
from dp_powerflow.privacy.queries import QuerySession, Session
from dp_powerflow.privacy.random import StreamKey

ONE_CLASS = "all"


class WeakBudgetWarning(UserWarning):
    """By public figures alone, the budget is too small for the data to matter."""


def fit(history: LoadHistory, *, budget: Budget, options: FitOptions, key: StreamKey) -> LoadModel:
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
        Publishable, with its noisy integers and their costs.
    """
    facts = history_facts(history, options, budget.unit)
    key = data_key(history, options, budget, key)
    derived = derive(MeterSource(facts, history, options, budget.unit, key), options, budget)
    for note in derived.notes:
        warnings.warn(note, WeakBudgetWarning, stacklevel=2)
    return LoadModel(
        classes=derived.classes,
        unit=budget.unit,
        epsilon=budget.epsilon,
        delta=budget.delta,
        costs=derived.queries,
        insecure_seed=key.insecure_seed,
        simulated=history.simulated,
        notes=derived.notes,
        origin=Origin(facts, options, tuple(answer.integers for answer in derived.answers)),
        **words_of(facts, options),
    )


def data_key(history: LoadHistory, options: FitOptions, budget: Budget, key: StreamKey) -> StreamKey:
    """Streams of a fit's noise, bound to its options and, under the secret, to its data."""
    return key.bind("fit", options.sha256(budget)).bind("data", key.keyed_hash(_chunks(history)))


def history_facts(history: LoadHistory, options: FitOptions, unit: PrivacyUnit) -> HistoryFacts:
    """The public size of a history, without its readings.

    Raises
    ------
    LoadDataError
        If the history lacks what the options ask for, or its days are no records.
    """
    if unit is PrivacyUnit.LOAD_POINT_DAY and history.days_mixed:
        raise LoadDataError(
            "gaps were filled from other days or load points rejected for them, so a day is not a record of "
            "its own; use the unit load-point, or give meter data without gaps",
            code="meters-gaps",
        )
    if options.use_scale and history.scale_kw is None:
        raise ServiceMapError(
            "the fit divides by a public scale but the history has none; add scale_kw to it"
        )
    private = isinstance(options.classes, PrivateClasses)
    labels = (ONE_CLASS,) * history.n_load_points if private else _labels(history)
    counted = tuple((name, labels.count(name)) for name in dict.fromkeys(labels))
    return HistoryFacts(history.step_minutes, counted, history.n_days, _day_facts(history, options))


def _day_facts(history: LoadHistory, options: FitOptions) -> DayFacts | None:
    """Public facts of the days, for an estimator that reads them."""
    if not options.estimator.whole:
        return None
    found = options.days
    if found is None:
        off = tuple(day.weekday() >= SATURDAY for day in history.days)
        found = DayFacts(tuple(day.isoformat() for day in history.days), off)
    if found.dates != tuple(day.isoformat() for day in history.days):
        raise LoadDataError("the facts of days are of other days than the history's; make them anew")
    return found


def _labels(history: LoadHistory) -> tuple[str, ...]:
    """Public class of every load point."""
    known = tuple(label for label in history.class_label if label is not None)
    if not known:
        return (ONE_CLASS,) * history.n_load_points
    if len(known) < history.n_load_points:
        raise LoadDataError(
            f"{history.n_load_points - len(known)} load points have no class label; label them all or none"
        )
    return known


def _chunks(history: LoadHistory) -> Iterator[bytes]:
    """The bytes that the noise is bound to."""
    yield repr((history.load_points, history.class_label, history.days)).encode()
    for array in (history.load_kw, history.load_kvar, history.scale_kw):
        for row in array if array is not None else ():
            yield np.ascontiguousarray(row).tobytes()


@dataclass(frozen=True, eq=False, repr=False)
class MeterSource:
    """PRIVATE. The history as records of the chosen unit, and sessions that ask them."""

    facts: HistoryFacts
    history: LoadHistory
    options: FitOptions
    unit: PrivacyUnit
    key: StreamKey

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        """A session with the noise streams of its stage."""
        return QuerySession(self.key.bind(*stage), self.unit, cohort, rho)

    def log_load(self, name: str | None, bounds: Bounds) -> LogLoads:
        """Log loads of a class, None for all."""
        history, load_kw = self.history, self.history.load_kw
        chosen = np.ones(history.n_load_points, dtype=np.bool_)
        if name is not None:
            chosen = np.array([label == name for label in _labels(history)])
        scale = history.scale_kw if self.options.use_scale else None
        scale = np.ones(history.n_load_points) if scale is None else scale
        if self.unit is PrivacyUnit.LOAD_POINT_DAY:
            load_kw = load_kw.reshape(-1, 1, history.n_steps)
            chosen, scale = np.repeat(chosen, history.n_days), np.repeat(scale, history.n_days)
        return LogLoads(load_kw, np.flatnonzero(chosen), scale, bounds)
