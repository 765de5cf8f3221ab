"""Loads of models fitted under differential privacy: DP-GMM, DP K-means, histories.

A DP-GMM is one class with one Gaussian, several classes found by a private partition (Algorithm 1's
PARTITION), or one class with a mixture. Every fit uses the whole history of the data set, its public margins
and the options of earlier experiments. Nothing is chosen by a look at true loads.
"""

from __future__ import annotations

import datetime as dt
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dp_powerflow import Budget, FitOptions, LoadModel, fit
from dp_powerflow._bits.elementary import exp, log, log1
from dp_powerflow._bits.linear import cholesky, product, solve_lower, solve_upper, within_ball
from dp_powerflow.lowlevel import (
    ONE_CLASS,
    Estimator,
    GaussianComponent,
    LoadLaw,
    Plain,
    PrivacyUnit,
    Structured,
    WeakBudgetWarning,
    epsilon_to_rho,
)
from dp_powerflow.model.derive import COUNT_SHARE
from dp_powerflow.model.estimators import (
    Ask,
    Cell,
    Records,
    Steps,
    fit_together,
    symmetric_to_vector,
    vector_to_symmetric,
)
from dp_powerflow.model.fit import MeterSource, data_key, history_facts
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.history.sample import HistorySampler, path_of, population_of
from dp_powerflow.model.partition import (
    RADIUS,
    Centroids,
    PrivateClasses,
    assign_classes,
    feature_sums,
    private_counts,
    private_kmeans,
)
from dp_powerflow.model.sample import draw_node_classes
from dp_powerflow.model.single_days import (
    DayEstimator,
    PublicFacts,
    finished,
    from_coefficients,
    positive_part,
    synthesis_matrix,
)
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.datasets import Dataset
from dp_powerflow_paper.mechanisms import key_from
from dp_powerflow_paper.mechanisms.dp_powerflow import with_restored_mean
from dp_powerflow_paper.sources import ONE_CUSTOMER, ONE_CUSTOMER_DAY, Guarantee, Noiseless
from dp_powerflow_paper.sources.entries import LoadEntry, Occasion
from dp_powerflow_paper.sources.loads import LawLoads
from dp_powerflow_paper.sources.meters import Meters

_SATURDAY = 5
HEADROOM = 1.5
"""On the upper margin of drawn loads, as in the earlier experiments."""
CENTROIDS = 8
"""K of DP K-means: a public choice, made once."""
SPREAD_SHARE = 0.2
"""Of the budget of DP K-means for the spread around its centroids; the rest is split as without it."""
CLASSES = PrivateClasses(4)
"""L, and a quarter of ρ for the partition and the weights of its classes: public choices, made once."""
COMPONENTS = 4
"""M of the mixture, which takes 0.4 of ρ after the Gaussian that it starts from: a public choice."""


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


def _fitted(occasion: Occasion, options: FitOptions, unit: PrivacyUnit, name: str) -> LoadModel:
    """A fit of the whole history at the target."""
    budget = Budget(occasion.target.epsilon, occasion.target.delta, unit)
    key = key_from(occasion.generator(f"fit {name}"))
    with warnings.catch_warnings():
        # A weak budget is part of the comparison; its figures say what it is worth.
        warnings.simplefilter("ignore", WeakBudgetWarning)
        return fit(occasion.data.history, budget=budget, options=options, key=key)


def gmm_law(occasion: Occasion, options: FitOptions, name: str) -> LoadLaw:
    """The law of a fit at the loaded nodes, untruncated; a node's class is drawn from the released weights.

    Without a public label a node has its class on all days, as in Algorithm 1.
    """
    data = occasion.data
    model = _fitted(occasion, options, data.unit, name)
    drawn = draw_node_classes(model, len(data.nominal), key_from(occasion.generator(f"classes {name}")))
    used = [part for part in model.days if part.name in drawn]
    names = [part.name for part in used]
    classes = tuple(replace(part.law, margins=None) for part in used)
    class_of = np.array([names.index(own) for own in drawn], dtype=np.int64)
    return replace(data.law(classes[0]), classes=classes, class_of=class_of)


def margins_of(data: Dataset) -> tuple[float, float]:
    """(p_min, p_max) of drawn loads, relative to nominal."""
    return data.margins[0], HEADROOM * data.margins[1]


def _within_margins(occasion: Occasion, options: FitOptions, name: str) -> LawLoads:
    """Log days of a fit, within the margins, their mean load kept as far as it may."""
    margins = margins_of(occasion.data)
    law = gmm_law(occasion, options, name)
    restored = with_restored_mean(law, 0.0, margins, occasion.generator(f"restored {name}"))
    claim = fit_claim(occasion, occasion.data.unit)
    return LawLoads(restored.within(margins), claim, name=f"DP-GMM, {name}")


def gmm_loads(occasion: Occasion, estimator: Estimator) -> LawLoads:
    """One class with one Gaussian."""
    return _within_margins(occasion, _options(occasion.data, estimator), estimator.name)


def class_law(occasion: Occasion) -> LoadLaw:
    """L classes by private PARTITION, one Gaussian each, untruncated: Phase 1 of Algorithm 1."""
    return gmm_law(occasion, _class_options(occasion.data), "classes")


def class_loads(occasion: Occasion) -> LawLoads:
    """The same within the margins."""
    return _within_margins(occasion, _class_options(occasion.data), "classes")


def _class_options(data: Dataset) -> FitOptions:
    return replace(_options(data, data.estimator), classes=CLASSES)


# ----------------------------------------------------------------------------------------------------------
# Mixtures inside a class: private EM by moment perturbation on the lowest frequencies.
#
# A class's released Gaussian is the start. Its q lowest cosine coefficients are whitened by it, y ~ N(0, I),
# and a mixture of M Gaussians is fitted to y by a few EM steps whose moments are noisy sums. The higher
# coefficients follow y by the linear regression that the released Gaussian implies, so the mixture changes
# level and broad shape, where customers differ, and adds no noise to the rest.
#
# Every day y is clipped to the radius ρ_y, its responsibilities r come from released parameters only, and a
# record averages over its days:
#
# - r: entries ≥ 0 and sum 1, so ORTHANT with radius 1;
# - (r_m·y)_m: ‖·‖ = ‖r‖₂·‖y‖ ≤ ρ_y, BALL;
# - (r_m·y·yᵀ)_m: positive semidefinite in every block, ‖·‖_F ≤ ρ_y², PSD (tr of blockwise products is ≥ 0).


MIXTURE_SHARE = 0.4
"""Of the budget; the rest is for the Gaussian that the mixture starts from."""
LOW_FREQUENCIES = 3
EM_STEPS = 4
CLIP = 3.0  # radius of y, whose entries have unit variance
MIN_WEIGHT = 0.02
MIN_COMPONENT_VARIANCE = 0.05


@dataclass(frozen=True, eq=False)
class _Low:
    """The whitened low frequencies of a class: y = factor⁻¹·(coefficients − centre)."""

    base: GaussianComponent
    transform: FloatArray
    factor: FloatArray

    @classmethod
    def of(cls, base: GaussianComponent) -> _Low:
        n_steps = base.mean.size
        transform = synthesis_matrix(n_steps).T / math.sqrt(n_steps)
        low = transform[: min(LOW_FREQUENCIES, n_steps)]
        return cls(base, transform, cholesky(product(product(low, base.covariance), low.T)))

    def whiten(self, days: FloatArray) -> FloatArray:
        """(record, day, T) → clipped y (record, day, q)."""
        low = product(days - self.base.mean, self.transform[: len(self.factor)].T)
        y = solve_lower(self.factor, low.reshape(-1, low.shape[-1]).T).T.reshape(low.shape)
        # A value that is not finite must not stop the fit: an exception would depend on the data. It travels
        # on and counts as nothing when the contribution is quantised.
        return within_ball(y, CLIP)


@dataclass(frozen=True, eq=False)
class _Mixture:
    """weights (M,), means (M, q), covariances (M, q, q) of y."""

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray

    def responsibilities(self, y: FloatArray) -> FloatArray:
        """(..., q) → (..., M), entries ≥ 0 that sum to 1."""
        log_density = np.empty((*y.shape[:-1], self.weights.size))
        for m, (weight, mean, covariance) in enumerate(
            zip(self.weights, self.means, self.covariances, strict=True)
        ):
            factor = cholesky(covariance)
            z = solve_lower(factor, (y - mean).reshape(-1, mean.size).T)
            quadratic = (z**2).sum(axis=0).reshape(y.shape[:-1])
            log_density[..., m] = log1(weight) - log(np.diag(factor)).sum() - quadratic / 2
        log_density -= log_density.max(axis=-1, keepdims=True)
        density = exp(log_density)
        shares: FloatArray = density / density.sum(axis=-1, keepdims=True)
        return shares


def mixture_of(
    base: GaussianComponent, n_components: int, count: float, rho: float
) -> Steps[list[GaussianComponent]]:
    """EM steps of one class; spends ρ. The start is public: ±1 standard deviation along the level."""
    low = _Low.of(base)
    size = len(low.factor)
    pairs = size * (size + 1) // 2
    means = np.zeros((n_components, size))
    means[:, 0] = np.linspace(-1.0, 1.0, n_components)
    covariances = np.tile(np.eye(size), (n_components, 1, 1))
    covariances[:, 0, 0] = 0.5
    mixture = _Mixture(np.full(n_components, 1 / n_components), means, covariances)
    for step in range(1, EM_STEPS + 1):
        seen = []
        for order, (name, dimension, radius, region, share) in enumerate(
            (
                ("weights", n_components, 1.0, Region.ORTHANT, 0.2),
                ("means", n_components * size, CLIP, Region.BALL, 0.4),
                ("moments", n_components * pairs, CLIP * CLIP, Region.PSD, 0.4),
            )
        ):
            spent = rho / EM_STEPS * share
            query = Query(f"EM {name}, iteration {step}", dimension, radius, region, spent, "whitened")
            answer = yield Ask(query, partial(moment_contribution, order, low, mixture))
            seen.append(answer)
        weights, first, moments = seen
        second = [vector_to_symmetric(own, size) for own in moments.total.reshape(n_components, pairs)]
        first_moments = first.value.reshape(n_components, size)
        mixture = _updated(weights.value, first_moments, np.array(second) / count)
    return _components(low, mixture)


def moment_contribution(order: int, low: _Low, mixture: _Mixture, days: FloatArray) -> FloatArray:
    """Contributions to weights, means or second moments (order 0, 1, 2), each (record, dimension)."""
    y = low.whiten(days)
    shares = mixture.responsibilities(y)
    if order == 0:
        average: FloatArray = shares.mean(axis=1)
        return average
    if order == 1:
        first: FloatArray = (shares[..., :, None] * y[..., None, :]).mean(axis=1)
        return first.reshape(len(days), -1)
    outer = y[..., :, None] * y[..., None, :]
    second = (shares[..., :, None, None] * outer[..., None, :, :]).mean(axis=1)
    return symmetric_to_vector(second).reshape(len(days), -1)


def _updated(weights: FloatArray, first: FloatArray, second: FloatArray) -> _Mixture:
    """Parameters from noisy moments; always valid, whatever the noise."""
    weights = np.maximum(weights, MIN_WEIGHT)
    means = within_ball(first / weights[:, None], CLIP)
    covariances = np.array(
        [
            positive_part(moment / weight - np.outer(mean, mean), MIN_COMPONENT_VARIANCE)
            for weight, mean, moment in zip(weights, means, second, strict=True)
        ]
    )
    return _Mixture(weights / weights.sum(), means, covariances)


def _components(low: _Low, mixture: _Mixture) -> list[GaussianComponent]:
    """Days of the full horizon: y from a component, the rest by the released Gaussian's regression."""
    size = len(low.factor)
    full = product(product(low.transform, low.base.covariance), low.transform.T)
    factor = cholesky(full[:size, :size])
    regression = solve_upper(factor, solve_lower(factor, full[:size, size:])).T
    rest = full[size:, size:] - product(regression, full[:size, size:])
    lift = product(np.vstack([np.eye(size), regression]), low.factor)
    inverse = low.transform.T
    components = []
    for weight, mean, covariance in zip(mixture.weights, mixture.means, mixture.covariances, strict=True):
        total = product(product(lift, covariance), lift.T)
        total[size:, size:] += rest
        day = product(product(inverse, total), inverse.T)
        centre = low.base.mean + product(inverse, product(lift, mean))
        components.append(GaussianComponent(float(weight), centre, (day + day.T) / 2))
    return components


@dataclass(frozen=True)
class Mixture(DayEstimator):
    """Splits the Gaussian that another estimator finds of a class into components."""

    base: DayEstimator
    n_components: int = 4
    name: str = "mixture"

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianComponent]:
        return self.base.estimate(groups, facts, session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        return self.base.prior_would_do(facts)

    def laws(self, cell: Cell) -> list[tuple[GaussianComponent, ...]]:
        rho, floor = MIXTURE_SHARE * cell.rho, cell.options.variance_floor
        fits = [
            mixture_of(base, self.n_components, group.count, rho)
            for (base,), group in zip(
                super().laws(replace(cell, rho=cell.rho - rho)), cell.groups, strict=True
            )
        ]
        return [
            tuple(finished(part, own, floor) for part in parts)
            for parts, own in zip(fit_together(fits, cell.groups, cell.session), cell.margins, strict=True)
        ]


def mixture_loads(occasion: Occasion) -> LawLoads:
    """One class with a mixture of Gaussians and released weights, drawn anew for every node and day."""
    base = occasion.data.estimator
    assert isinstance(base, DayEstimator)
    options = _options(occasion.data, Mixture(base, COMPONENTS))
    return _within_margins(occasion, options, "mixture")


@dataclass(frozen=True, eq=False)
class CentroidLoads(Noiseless):
    """Days that are released centroids, drawn by their released weights for every meter and day.

    Attributes
    ----------
    meters : their places; no reading is used.
    days : (class, step) centroids as relative loads.
    weights : (class,) that sum to 1.
    spread : (class, term) released standard deviation of the lowest cosine coefficients of a log day around
        its centroid; None draws bare centroids.
    """

    meters: Meters
    days: FloatArray
    weights: FloatArray
    guarantee: Guarantee
    spread: FloatArray | None = None
    name: str = "DP K-means"
    unlimited: bool = True

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Synthetic days."""
        of_day = generator.choice(len(self.weights), size=(self.meters.n, days), p=self.weights)
        relative = self.days[of_day]
        if self.spread is not None:
            apart = self.spread[of_day] * generator.standard_normal((*of_day.shape, self.spread.shape[1]))
            relative = relative * np.exp(from_coefficients(apart, self.meters.steps))
        return self.meters.nodal(self.meters.cut(relative))


def private_spread(
    records: Records, centroids: Centroids, counts: FloatArray, rho: float, session: Session
) -> FloatArray:
    """Released standard deviation (class, term) of features around their centroid; spends ρ.

    A record's distance from its centroid is clipped to `RADIUS`. Its squares are at least 0 and sum to at
    most `RADIUS`²: ORTHANT. A class with fewer records than the noise is taken to be as large as the noise.
    """
    shape = centroids.points.shape

    def squares(days: FloatArray) -> FloatArray:
        features = centroids.features(days)
        labels = centroids.assign(features)
        apart = within_ball(features - centroids.points[labels], RADIUS)
        return feature_sums(apart**2, labels, shape[0])

    query = Query("K-means spread", shape[0] * shape[1], RADIUS**2, Region.ORTHANT, rho, "prior variances")
    sums = session.ask(query, [records.contributions(squares)])[0].reshape(shape)
    noise = session.costs[-1].noise_std
    return np.sqrt(np.clip(sums / np.maximum(counts, noise)[:, None], 0.0, RADIUS**2))


def kmeans_loads(occasion: Occasion, spread_share: float = 0.0) -> CentroidLoads:
    """Private K-means of customer-days, after Ravi et al.; a share of ρ buys the spread within classes."""
    data, target = occasion.data, occasion.target
    classes = PrivateClasses(CENTROIDS)
    options = FitOptions(bounds=data.margins, use_scale=True, classes=classes)
    budget = Budget(target.epsilon, target.delta, data.unit)
    key = data_key(data.history, options, budget, key_from(occasion.generator("fit K-means")))
    facts = history_facts(data.history, options, data.unit)
    source = MeterSource(facts, data.history, options, data.unit, key)
    everyone = Records(source.log_load(None, data.margins), 0.0)
    rho = epsilon_to_rho(target.epsilon, target.delta)
    session = source.session(("stage", "K-means"), None, rho)
    logs = math.log(data.margins[0]), math.log(data.margins[1])
    kept = rho * spread_share
    centroids = private_kmeans(everyone, CENTROIDS, *logs, (rho - kept) * (1 - COUNT_SHARE), session)
    labels = assign_classes(everyone, centroids)
    counts = private_counts(labels, CENTROIDS, session.rho_left - kept, session)
    log_days = centroids.centre + from_coefficients(centroids.points * centroids.scale, data.n_steps)
    bare = CentroidLoads(
        Meters.of(data, occasion.days),
        np.exp(log_days),
        counts / counts.sum(),
        fit_claim(occasion, data.unit),
    )
    if not kept:
        return bare
    spread = private_spread(everyone, centroids, counts, session.rho_left, session)
    return replace(bare, spread=spread * centroids.scale, name="DP K-means with spread")


spread_kmeans_loads = partial(kmeans_loads, spread_share=SPREAD_SHARE)
"""K-means with its spread within classes."""


@dataclass(frozen=True, eq=False)
class HistoryLoads(Noiseless):
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
        off = np.array([day.weekday() >= _SATURDAY for day in dates])
        weight, factor = path_of(model.histories, facts, dates, off, {}, key.bind("model", model.sha256))
        drawn = HistorySampler(people, key, days, weight, factor, block_days=days).block(0)
        return self.meters.nodal(drawn.load_kw)


def history_loads(occasion: Occasion) -> HistoryLoads:
    """A model of whole histories; its unit is a customer with all days, stricter than a customer-day."""
    data = occasion.data
    estimator = History()
    model = _fitted(occasion, _options(data, estimator), PrivacyUnit.LOAD_POINT, estimator.name)
    return HistoryLoads(
        Meters.of(data, occasion.days),
        model,
        data.history.days[0],
        fit_claim(occasion, PrivacyUnit.LOAD_POINT),
    )


_FIT_AUDIT = "tests/audit/test_fit_audit.py"


def _gmm(key: str, title: str, make: Callable[[Occasion], LawLoads]) -> LoadEntry:
    return LoadEntry(
        key=f"gmm-{key}", title=f"DP-GMM, {title}", paper="ours", make=make, audited_by=_FIT_AUDIT
    )


LOADS = (
    LoadEntry(
        key="kmeans",
        title="DP K-means",
        paper="ravi2022",
        make=kmeans_loads,
        audited_by="tests/audit/test_epsilon_audit.py",
    ),
    LoadEntry(
        key="kmeans-spread",
        title="DP K-means with its spread",
        paper="ravi2022",
        make=spread_kmeans_loads,
        audited_by=_FIT_AUDIT,
    ),
    _gmm("plain", "plain", partial(gmm_loads, estimator=Plain())),
    _gmm("structured", "structured", partial(gmm_loads, estimator=Structured())),
    _gmm("classes", "4 classes by private partition", class_loads),
    _gmm("mixture", "mixture of 4 with weights", mixture_loads),
    LoadEntry(
        key="history",
        title="DP histories",
        paper="ours",
        matched=False,
        make=history_loads,
        audited_by="tests/audit/test_history_audit.py",
    ),
)
