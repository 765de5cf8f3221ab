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

import numpy as np

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.derive import derive
from dp_powerflow.model.estimators import Estimator
from dp_powerflow.model.estimators.plain import Plain
from dp_powerflow.model.estimators.structured import Structured
from dp_powerflow.model.fit import MeterSource, data_key, history_facts
from dp_powerflow.model.law import ClassLaw, GaussianComponent, LoadLaw
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.sample import LoadSampler
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, QueryCost
from dp_powerflow.privacy.queries import Query, QuerySession, Session, add_noise, exact_sum
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

BUDGET = Budget(1.0, 1e-5, PrivacyUnit.LOAD_POINT)
Bounds = tuple[float, float]
Draw = Callable[[FloatArray, Bounds, int], FloatArray]
"""Half A (customer, day, step) [kW], bounds, seed → as many drawn histories."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its title, and how histories are drawn."""

    title: str
    draw: Draw


def columns(sizes: Sequence[int]) -> list[Column]:
    """Floor, class without privacy, and every estimator at every size."""
    found = [Column("floor: real A", real), Column("Gaussian days, no privacy", without_privacy)]
    estimators: tuple[tuple[str, Estimator], ...] = (("day model", Structured()), ("DP-GMM", Plain()))
    for title, estimator in estimators:
        found += [Column(f"{title}, ε = {BUDGET.epsilon:g}, n = {n:,}", fitted(estimator, n)) for n in sizes]
    return found


def real(half: FloatArray, bounds: Bounds, seed: int) -> FloatArray:
    """Half A itself."""
    return half


def without_privacy(half: FloatArray, bounds: Bounds, seed: int) -> FloatArray:
    """Days of the Gaussian of all log days of half A: today's class, fitted without noise."""
    days = np.log(half).reshape(-1, half.shape[2])
    covariance = np.cov(days.T) + 1e-9 * np.eye(days.shape[1])
    law = ClassLaw("all", (GaussianComponent(1.0, days.mean(axis=0), covariance),), bounds)
    return drawn_days(law, half.shape[:2], StreamKey.from_insecure_seed(seed).bind("column", "no privacy"))


def fitted(estimator: Estimator, n: int) -> Draw:
    """Days of the model that an estimator fits with the noise of n customers. NOT PRIVATE."""

    def draw(half: FloatArray, bounds: Bounds, seed: int) -> FloatArray:
        options = FitOptions(bounds=bounds, estimator=estimator)
        key = StreamKey.from_insecure_seed(seed)
        law = fitted_law(as_history(half), options, key, n)
        return drawn_days(law, half.shape[:2], key.bind("column", f"{estimator.name} {n}"))

    return draw


def fitted_law(history: LoadHistory, options: FitOptions, key: StreamKey, n: int) -> ClassLaw:
    """Law of the one class of a history, with the noise of n load points. NOT PRIVATE."""
    own = history_facts(history, options, BUDGET.unit)
    ((name, _),) = own.load_points_of_class
    facts = replace(own, load_points_of_class=((name, n),))
    source = ScaledMeters(facts, history, options, BUDGET.unit, data_key(history, options, BUDGET, key))
    (part,) = derive(source, options, BUDGET).classes
    return part.law


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
        return np.array(
            [add_noise(each, cost.sigma, self._noise(query, block)) for block, each in enumerate(sums)]
        )


def drawn_days(law: ClassLaw, shape: tuple[int, int], key: StreamKey) -> FloatArray:
    """(customer, day, step) [kW]: every day of every customer by itself, clipped to the bounds."""
    customers, days = shape
    nothing = np.zeros(customers)
    each = LoadLaw((law,), np.zeros(customers, dtype=np.int64), np.ones(customers), nothing)
    blocks = [block.load_kw for block in LoadSampler(each, key, days).blocks()]
    return np.clip(np.concatenate(blocks, axis=1), *law.p_min_max)


def as_history(load_kw: FloatArray) -> LoadHistory:
    """A history without labels; its dates are nominal."""
    n, days, steps = load_kw.shape
    dates = tuple(dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(days))
    names = tuple(f"point{i}" for i in range(n))
    return LoadHistory(load_kw, None, names, dates, 1440 // steps, (None,) * n, (None,) * n, None, True)
