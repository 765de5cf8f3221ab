"""The models that `load_model.py` compares: each makes histories of customers from half A.

NOT PRIVATE. A model is fitted on half A with the noise of a history of n customers: every sum over the
records of A is multiplied by n over the size of A before noise is added, and the plan of the fit is told n.
For the customers of A the guarantee is void. The switch is here and nowhere else: no config, no part of the
API and no file of the package knows it, and no `LoadModel` is made that could be released.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from load_populations import Customers

from dp_powerflow import Budget, FitOptions, LoadHistory, StreamKey
from dp_powerflow.lowlevel import (
    ClassLaw,
    Estimator,
    GaussianComponent,
    LoadLaw,
    LoadSampler,
    Plain,
    PrivacyUnit,
    Structured,
)
from dp_powerflow.model.derive import derive
from dp_powerflow.model.fit import MeterSource, data_key, history_facts
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.history.sample import HistorySampler, path_of, population_of
from dp_powerflow.model.options import DayFacts
from dp_powerflow.privacy.budget import QueryCost
from dp_powerflow.privacy.queries import Query, QuerySession, Session, add_noise, exact_sum
from dp_powerflow.units import BoolArray, FloatArray, IntArray

BUDGET = Budget(1.0, 1e-5, PrivacyUnit.LOAD_POINT)
NO_NOISE = 10**8
"""So many customers that noise plays no part; clipping does."""
Draw = Callable[[FloatArray, Customers, int], FloatArray]
"""Half A (customer, day, step) [kW] of a population, seed → as many drawn histories."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its title, and how histories are drawn."""

    title: str
    draw: Draw


def columns(sizes: Sequence[int], *, history_only: bool = False) -> list[Column]:
    """Floor, class without privacy, and every estimator at every size."""
    found = [Column("floor: real A", real), Column("history model, no noise", lived(NO_NOISE))]
    found += [Column(f"history model, ε = {BUDGET.epsilon:g}, n = {n:,}", lived(n)) for n in sizes]
    if history_only:
        return found
    found.append(Column("Gaussian days, no privacy", without_privacy))
    estimators: tuple[tuple[str, Estimator], ...] = (("day model", Structured()), ("DP-GMM", Plain()))
    for title, estimator in estimators:
        found += [Column(f"{title}, ε = {BUDGET.epsilon:g}, n = {n:,}", fitted(estimator, n)) for n in sizes]
    return found


def real(half: FloatArray, population: Customers, seed: int) -> FloatArray:
    """Half A itself."""
    return half


def without_privacy(half: FloatArray, population: Customers, seed: int) -> FloatArray:
    """Days of the Gaussian of all log days of half A: today's class, fitted without noise."""
    days = np.log(half).reshape(-1, half.shape[2])
    covariance = np.cov(days.T) + 1e-9 * np.eye(days.shape[1])
    law = ClassLaw("all", (GaussianComponent(1.0, days.mean(axis=0), covariance),), population.bounds)
    return drawn_days(law, half.shape[:2], StreamKey.from_insecure_seed(seed).bind("column", "no privacy"))


def fitted(estimator: Estimator, n: int) -> Draw:
    """Days of the model that an estimator fits with the noise of n customers. NOT PRIVATE."""

    def draw(half: FloatArray, population: Customers, seed: int) -> FloatArray:
        options = FitOptions(bounds=population.bounds, estimator=estimator)
        key = StreamKey.from_insecure_seed(seed)
        (part,) = fitted_classes(as_history(half, population.weekend), options, key, n)
        law = part.law
        return drawn_days(law, half.shape[:2], key.bind("column", f"{estimator.name} {n}"))

    return draw


def lived(n: int) -> Draw:
    """Histories of the history model, fitted with the noise of n customers. NOT PRIVATE."""

    def draw(half: FloatArray, population: Customers, seed: int) -> FloatArray:
        history = as_history(half, population.weekend)
        dates = tuple(day.isoformat() for day in history.days)
        facts = DayFacts(dates, tuple(population.weekend.tolist()))
        options = FitOptions(bounds=population.bounds, estimator=History(), days=facts)
        key = StreamKey.from_insecure_seed(seed)
        classes = fitted_classes(history, options, key, n)
        own = key.bind("column", f"history {n}")
        count, each = len(half), np.arange(len(half))
        people = population_of(
            classes, "benchmark", (classes[0].name,) * count, each, None, np.zeros(count), own
        )
        off, factor = path_of(classes, facts, history.days, population.weekend, {}, own)
        sampler = HistorySampler(people, own, half.shape[1], off, factor)
        return np.concatenate([sampler.block(k).load_kw for k in range(sampler.n_blocks)], axis=1)

    return draw


def fitted_classes(history: LoadHistory, options: FitOptions, key: StreamKey, n: int) -> tuple[Any, ...]:
    """Classes of a model with the noise of n load points; one class. NOT PRIVATE."""
    own = history_facts(history, options, BUDGET.unit)
    ((name, _),) = own.load_points_of_class
    facts = replace(own, load_points_of_class=((name, n),))
    source = ScaledMeters(facts, history, options, BUDGET.unit, data_key(history, options, BUDGET, key))
    return derive(source, options, BUDGET).classes


class ScaledMeters(MeterSource):
    """NOT PRIVATE. Meters that answer as a history of the size that their facts state."""

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        factor = self.facts.n_load_points / self.history.n_load_points
        return ScaledSession(self.key.bind(*stage), self.unit, cohort, rho, factor)


class ScaledSession(QuerySession):
    """NOT PRIVATE. Multiplies every exact sum by a factor, then adds the noise that is due."""

    def __init__(
        self, key: StreamKey, unit: PrivacyUnit, cohort: str | None, rho: float, factor: float
    ) -> None:
        super().__init__(key, unit, cohort, rho)
        self._factor = factor

    def _answer(self, query: Query, cost: QueryCost, blocks: Sequence[Iterable[FloatArray]]) -> IntArray:
        sums = [np.rint(self._factor * exact_sum(chunks, query)).astype(np.int64) for chunks in blocks]
        purpose = f"noise/{'*' if self._cohort is None else self._cohort}/{query.name}"
        streams = [self._key.stream(purpose, block) for block in range(len(sums))]
        return np.array([add_noise(each, cost.sigma, own) for each, own in zip(sums, streams, strict=True)])


def drawn_days(law: ClassLaw, shape: tuple[int, int], key: StreamKey) -> FloatArray:
    """(customer, day, step) [kW]: every day of every customer by itself, clipped to the bounds."""
    customers, days = shape
    nothing = np.zeros(customers)
    each = LoadLaw((law,), np.zeros(customers, dtype=np.int64), np.ones(customers), nothing)
    sampler = LoadSampler(each, key, days)
    blocks = [sampler.block(index).load_kw for index in range(sampler.n_blocks)]
    return np.clip(np.concatenate(blocks, axis=1), *law.p_min_max)


def as_history(load_kw: FloatArray, weekend: BoolArray) -> LoadHistory:
    """A history without labels; its dates are nominal, but Saturdays fall on the first day of a weekend."""
    n, days, steps = load_kw.shape
    monday = dt.date(2024, 1, 1)
    saturday = next(k for k in range(7) if weekend[k] and weekend[(k + 1) % 7 + 7 * (k == 6)])
    first = monday + dt.timedelta(days=(5 - saturday) % 7)
    dates = tuple(first + dt.timedelta(days=i) for i in range(days))
    names = tuple(f"point{i}" for i in range(n))
    return LoadHistory(load_kw, None, names, dates, 1440 // steps, (None,) * n, (None,) * n, None, True)
