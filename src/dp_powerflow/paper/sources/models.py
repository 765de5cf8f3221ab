"""Loads of models fitted under differential privacy: DP-GMM, plain and structured, DP K-means, histories.

Every fit uses the whole history of the data set, its public margins and the options of earlier experiments.
Nothing is chosen by a look at true loads.
"""

from __future__ import annotations

import datetime as dt
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.loads.history import SATURDAY
from dp_powerflow.model.derive import COUNT_SHARE
from dp_powerflow.model.estimators import Estimator, Records, from_coefficients
from dp_powerflow.model.estimators.plain import Plain
from dp_powerflow.model.estimators.structured import Structured
from dp_powerflow.model.fit import ONE_CLASS, MeterSource, WeakBudgetWarning, data_key, fit, history_facts
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.drawing import path_of, population_of
from dp_powerflow.model.history.plan import History
from dp_powerflow.model.history.sample import HistorySampler, PlacedPopulation
from dp_powerflow.model.law import ClassLaw
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.partition import PrivateClasses, assign_classes, private_counts, private_kmeans
from dp_powerflow.paper.datasets import Dataset
from dp_powerflow.paper.mechanisms import key_from
from dp_powerflow.paper.mechanisms.dp_powerflow import with_restored_mean
from dp_powerflow.paper.sources import (
    ONE_CUSTOMER,
    ONE_CUSTOMER_DAY,
    Guarantee,
    LoadMechanism,
)
from dp_powerflow.paper.sources.entries import LoadEntry, Occasion
from dp_powerflow.paper.sources.loads import LawLoads
from dp_powerflow.paper.sources.meters import Meters
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, epsilon_to_rho
from dp_powerflow.units import ComplexArray, FloatArray

HEADROOM = 1.5
"""On the upper margin of drawn loads, as in the earlier experiments."""
CENTROIDS = 8
"""K of DP K-means: a public choice, made once."""


def fit_claim(occasion: Occasion, unit: PrivacyUnit) -> Guarantee:
    """What a fit claims for the customers: any number of synthetic days follow from its noisy integers."""
    adjacency = ONE_CUSTOMER_DAY if unit is PrivacyUnit.LOAD_POINT_DAY else ONE_CUSTOMER
    target = occasion.target
    return Guarantee(
        target.epsilon, target.delta, "any number of days", adjacency, proved=True, remark="zCDP"
    )


def _options(data: Dataset, estimator: Estimator) -> FitOptions:
    return FitOptions(
        bounds=data.margins, use_scale=True, estimator=estimator, variance_floor=data.variance_floor
    )


def _fitted(occasion: Occasion, estimator: Estimator, unit: PrivacyUnit) -> LoadModel:
    """A fit of the whole history at the target."""
    budget = Budget(occasion.target.epsilon, occasion.target.delta, unit)
    key = key_from(occasion.generator(f"fit {estimator.name}"))
    with warnings.catch_warnings():
        # A weak budget is part of the comparison; its figures say what it is worth.
        warnings.simplefilter("ignore", WeakBudgetWarning)
        return fit(occasion.data.history, budget=budget, options=_options(occasion.data, estimator), key=key)


def gmm_loads(occasion: Occasion, estimator: Estimator) -> LawLoads:
    """One Gaussian of log days, within the margins, its mean load kept as far as it may."""
    data = occasion.data
    part = _fitted(occasion, estimator, data.unit).find(ONE_CLASS).components[0]
    margins = data.margins[0], HEADROOM * data.margins[1]
    law = data.law(ClassLaw.gaussian(part.mean, part.covariance))
    restored = with_restored_mean(law, 0.0, margins, occasion.generator(f"restored {estimator.name}"))
    name = f"DP-GMM, {estimator.name}"
    return LawLoads(restored.within(margins), fit_claim(occasion, data.unit), name=name)


@dataclass(frozen=True, eq=False)
class CentroidLoads:
    """Days that are released centroids, drawn by their released weights for every meter and day.

    Attributes
    ----------
    meters : their places; no reading is used.
    days : (class, step) centroids as relative loads.
    weights : (class,) that sum to 1.
    """

    meters: Meters
    days: FloatArray
    weights: FloatArray
    guarantee: Guarantee
    name: str = "DP K-means"
    unlimited: bool = True

    @property
    def noise_std(self) -> Mapping[str, float]:
        """The noise is in the centroids, whose costs say how much."""
        return {}

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Synthetic days."""
        of_day = generator.choice(len(self.weights), size=(self.meters.n, days), p=self.weights)
        return self.meters.nodal(self.meters.cut(self.days[of_day]))


def kmeans_loads(occasion: Occasion) -> CentroidLoads:
    """Private K-means of customer-days with all of the budget, after Ravi et al."""
    data, target = occasion.data, occasion.target
    classes = PrivateClasses(CENTROIDS)
    options = FitOptions(bounds=data.margins, use_scale=True, classes=classes)
    budget = Budget(target.epsilon, target.delta, data.unit)
    key = data_key(data.history, options, budget, key_from(occasion.generator("fit K-means")))
    facts = history_facts(data.history, options, data.unit)
    source = MeterSource(facts, data.history, options, data.unit, key)
    everyone = Records(source.log_load(None, None, data.margins), 0.0)
    rho = epsilon_to_rho(target.epsilon, target.delta)
    session = source.session(("stage", "K-means"), None, rho)
    logs = math.log(data.margins[0]), math.log(data.margins[1])
    centroids = private_kmeans(everyone, CENTROIDS, *logs, rho * (1 - COUNT_SHARE), session)
    labels = assign_classes(everyone, centroids)
    counts = private_counts(labels, source.slots(), (1, CENTROIDS), session.rho_left, session)[0]
    log_days = centroids.centre + from_coefficients(centroids.points * centroids.scale, data.n_steps)
    meters = Meters.of(data, occasion.days)
    return CentroidLoads(meters, np.exp(log_days), counts / counts.sum(), fit_claim(occasion, data.unit))


@dataclass(frozen=True, eq=False)
class HistoryLoads:
    """Customers who persist, one per meter, over consecutive days from the first of the history.

    Attributes
    ----------
    meters : their places; no reading is used.
    model : of whole histories.
    first_day : of the drawn days.
    """

    meters: Meters
    model: LoadModel
    first_day: dt.date
    guarantee: Guarantee
    name: str = "DP histories"
    unlimited: bool = True

    @property
    def noise_std(self) -> Mapping[str, float]:
        """The noise is in the integers of the fit, whose costs say how much."""
        return {}

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Synthetic days of one freshly drawn population."""
        key, count, model = key_from(generator), self.meters.n, self.model
        people = population_of(
            model.histories,
            model.sha256,
            (ONE_CLASS,) * count,
            np.arange(count),
            np.ones(count),
            np.zeros(count),
            key,
        )
        dates = [self.first_day + dt.timedelta(days=k) for k in range(days)]
        facts = None if model.origin is None else model.origin.facts.days
        assert facts is not None  # no model of histories is fitted without the facts of its days
        off = np.array([day.weekday() >= SATURDAY for day in dates])
        weight, factor = path_of(model.histories, facts, dates, off, {}, key.bind("model", model.sha256))
        law = PlacedPopulation(people, 1.0, np.arange(count))
        drawn = HistorySampler(law, key, days, weight, factor, block_days=days).block(0)
        return self.meters.nodal(drawn.load_kw)


def history_loads(occasion: Occasion) -> HistoryLoads:
    """A model of whole histories; its unit is a customer with all days, stricter than a customer-day."""
    data = occasion.data
    model = _fitted(occasion, History(), PrivacyUnit.LOAD_POINT)
    return HistoryLoads(
        Meters.of(data, occasion.days),
        model,
        data.history.days[0],
        fit_claim(occasion, PrivacyUnit.LOAD_POINT),
    )


def _plain(occasion: Occasion) -> LoadMechanism:
    return gmm_loads(occasion, Plain())


def _structured(occasion: Occasion) -> LoadMechanism:
    return gmm_loads(occasion, Structured())


LOADS = (
    LoadEntry(
        key="kmeans",
        title="DP K-means",
        paper="ravi2022",
        make=kmeans_loads,
        audited_by="tests/audit/test_epsilon_audit.py",
    ),
    LoadEntry(
        key="gmm-plain",
        title="DP-GMM, plain",
        paper="ours",
        make=_plain,
        audited_by="tests/audit/test_fit_audit.py",
    ),
    LoadEntry(
        key="gmm-structured",
        title="DP-GMM, structured",
        paper="ours",
        make=_structured,
        audited_by="tests/audit/test_fit_audit.py",
    ),
    LoadEntry(
        key="history",
        title="DP histories",
        paper="ours",
        matched=False,
        make=history_loads,
        audited_by="tests/audit/test_history_audit.py",
    ),
)
