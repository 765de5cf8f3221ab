"""Partition of the records into classes: public labels, or differentially private K-means.

Private K-means after Ravi et al. 2022: noisy centroids, the noise coloured by a public smooth basis. Here
the basis is the cosine basis of the day: centroids live on its lowest coefficients, scaled by the public
prior, so the noise of a centroid is smooth over the day.

The class of a record is then a function of that record and of the released centroids. It is *private*: it
is used inside the fit only, never attached to a load point or a node.

Mixtures inside a class: private EM by moment perturbation on the lowest frequencies.

A class's released Gaussian is the start. Its q lowest cosine coefficients are whitened by it, y ~ N(0, I_q),
and a mixture of M Gaussians is fitted to y by a few EM steps whose moments are noisy sums. The higher
coefficients follow y by the linear regression that the released Gaussian implies, so the mixture changes
level and broad shape, where customers differ, and adds no noise to the rest.

Every day y is clipped to the radius ρ_y, its responsibilities r come from released parameters only, and a
record averages over its days:

- r: entries ≥ 0 and sum 1, so ORTHANT with radius 1;
- (r_m·y)_m: ‖·‖ = ‖r‖₂·‖y‖ ≤ ρ_y, BALL;
- (r_m·y·yᵀ)_m: positive semidefinite in every block, ‖·‖_F ≤ ρ_y², PSD (tr of blockwise products is ≥ 0).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dp_powerflow._bits.elementary import exp, log, log1
from dp_powerflow._bits.linear import cholesky, product, solve_lower, solve_upper, within_ball
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import (
    Ask,
    Bounds,
    Cell,
    Contribution,
    GaussianEstimate,
    PublicFacts,
    Records,
    Steps,
    fit_together,
    positive_part,
    prior_mean_std,
    symmetric_to_vector,
    synthesis_matrix,
    to_coefficients,
    vector_to_symmetric,
    with_floor,
    within_bounds,
)
from dp_powerflow.model.law import ClassModel, GaussianComponent, ReactiveModel
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.queries import MAX_DIMENSION, Query, Region, Session
from dp_powerflow.units import FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.model.options import FitOptions, HistoryFacts

TERMS = 6
ITERATIONS = 4
RADIUS = 3.0  # of a record's features, in prior standard deviations (level, shape, …), L2
_COUNT_SHARE = 0.2  # of an iteration's budget; the sums get the rest


@dataclass(frozen=True)
class PublicLabels:
    """Classes are the public labels of the load points (`LoadHistory.class_label`)."""


@dataclass(frozen=True)
class PrivateClasses:
    """Classes found by private K-means.

    Parameters
    ----------
    n_classes
        L, a public choice.
    share
        Of the budget spent on the partition and the class weights.
    """

    n_classes: int
    share: float = 0.25

    @property
    def names(self) -> tuple[str, ...]:
        """ "class 1" to "class L"; the public start has the lowest loads in class 1."""
        return tuple(f"class {k}" for k in range(1, self.n_classes + 1))

    def __post_init__(self) -> None:
        if not (2 <= self.n_classes <= MAX_DIMENSION and 0 < self.share < 1):
            raise PrivacyError(
                f"a private partition needs 2 to {MAX_DIMENSION} classes and a share of the budget between 0 "
                "and 1"
            )


@dataclass(frozen=True, eq=False)
class Centroids:
    """Released centroids (class, term) in prior standard deviations, and what turns a day into features."""

    points: FloatArray
    centre: float
    scale: FloatArray

    def features(self, days: FloatArray) -> FloatArray:
        """(record, day, T) → clipped features (record, term) of the record's mean day."""
        raw = to_coefficients(days.mean(axis=1) - self.centre, self.scale.size) / self.scale
        return within_ball(raw, RADIUS)

    def assign(self, features: FloatArray) -> IntArray:
        """Nearest centroid of each record (record,)."""
        distance = ((features[:, None, :] - self.points[None]) ** 2).sum(axis=2)
        nearest: IntArray = np.argmin(distance, axis=1)
        return nearest


def initial_centroids(n_classes: int, n_steps: int, log_low: float, log_high: float) -> Centroids:
    """Public start: levels spread evenly over the declared bounds, flat shapes."""
    scale = prior_mean_std((log_high - log_low) / 2, min(TERMS, n_steps))
    points = np.zeros((n_classes, scale.size))
    points[:, 0] = np.linspace(-1.0, 1.0, n_classes)
    return Centroids(points, (log_low + log_high) / 2, scale)


def one_hot(labels: IntArray, n_classes: int) -> FloatArray:
    """Contribution to the counts (record, class): ORTHANT, norm 1."""
    return np.eye(n_classes)[labels]


def feature_sums(features: FloatArray, labels: IntArray, n_classes: int) -> FloatArray:
    """Contribution to the sums (record, class × term): the features in the block of the class; BALL."""
    blocks = one_hot(labels, n_classes)[:, :, None] * features[:, None, :]
    return blocks.reshape(features.shape[0], -1)


def private_kmeans(
    records: Records, n_classes: int, log_low: float, log_high: float, rho: float, session: Session
) -> Centroids:
    """Noisy Lloyd iterations from a public start; spends ρ.

    Each iteration asks for the counts (ORTHANT, radius 1: a record is one in one place) and for the sums of
    features (BALL, radius `RADIUS`).
    """
    centroids = initial_centroids(n_classes, records.n_steps, log_low, log_high)
    terms, each = centroids.scale.size, rho / ITERATIONS
    unit = "prior standard deviations"
    for step in range(1, ITERATIONS + 1):
        name = f"K-means counts, iteration {step}"
        counts = session.ask(
            Query(name, n_classes, 1.0, Region.ORTHANT, each * _COUNT_SHARE, "records"),
            [_counts(records, centroids, n_classes)],
        )[0]
        name = f"K-means sums, iteration {step}"
        sums = session.ask(
            Query(name, n_classes * terms, RADIUS, Region.BALL, each * (1 - _COUNT_SHARE), unit),
            [_sums(records, centroids, n_classes)],
        )[0].reshape(n_classes, terms)
        noise = session.costs[-1].noise_std
        # A class with fewer records than the noise of its sum keeps its place.
        weight = np.clip(counts, 0.0, None)[:, None]
        mean = sums / np.maximum(weight, noise)
        trust = weight / (weight + noise)
        points = trust * mean + (1 - trust) * centroids.points
        centroids = replace(centroids, points=within_ball(points, RADIUS))
    return centroids


def private_counts(labels: IntArray, n_classes: int, rho: float, session: Session) -> FloatArray:
    """Released number of records (class,), at least 1; spends ρ.

    Parameters
    ----------
    labels
        PRIVATE class of every record (record,). A record is one in one place, so ORTHANT with radius 1.
    """
    counts = session.ask(
        Query("class weights", n_classes, 1.0, Region.ORTHANT, rho, "records"),
        [(one_hot(part, n_classes) for part in np.array_split(labels, 1 + len(labels) // 2**16))],
    )[0]
    return np.maximum(counts, 1.0)


def assign_classes(records: Records, centroids: Centroids) -> IntArray:
    """PRIVATE. Class of every record (record,)."""
    chunks = records.contributions(centroids.features)
    labels = [centroids.assign(features) for features in chunks]
    return np.concatenate([np.empty(0, dtype=np.int64), *labels])


def _counts(records: Records, centroids: Centroids, n_classes: int) -> Iterator[FloatArray]:
    for features in records.contributions(centroids.features):
        yield one_hot(centroids.assign(features), n_classes)


def _sums(records: Records, centroids: Centroids, n_classes: int) -> Iterator[FloatArray]:
    for features in records.contributions(centroids.features):
        yield feature_sums(features, centroids.assign(features), n_classes)


LOW_FREQUENCIES = 3
CLIP = 3.0  # radius of y, whose entries have unit variance
MIN_WEIGHT = 0.02
MIN_VARIANCE = 0.05
_SHARES = {"weights": 0.2, "means": 0.4, "moments": 0.4}


@dataclass(frozen=True, eq=False)
class _Low:
    """The whitened low frequencies of a class: y = factor⁻¹·(coefficients − centre)."""

    base: GaussianEstimate
    transform: FloatArray
    factor: FloatArray

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
            flat = (y - mean).reshape(-1, mean.size).T
            z = solve_lower(factor, flat)
            quadratic = (z**2).sum(axis=0).reshape(y.shape[:-1])
            log_density[..., m] = log1(weight) - log(np.diag(factor)).sum() - quadratic / 2
        log_density -= log_density.max(axis=-1, keepdims=True)
        density = exp(log_density)
        shares: FloatArray = density / density.sum(axis=-1, keepdims=True)
        return shares


def fit_mixtures(
    groups: Sequence[Records],
    bases: Sequence[GaussianEstimate],
    n_components: int,
    rho: float,
    session: Session,
) -> list[list[tuple[float, GaussianEstimate]]]:
    """Weights and components of each class, in lockstep; spends ρ."""
    fits = [
        _mixture(base, n_components, group.count, rho / ITERATIONS)
        for base, group in zip(bases, groups, strict=True)
    ]
    return fit_together(fits, groups, session)


def _mixture(
    base: GaussianEstimate, n_components: int, count: float, rho: float
) -> Steps[list[tuple[float, GaussianEstimate]]]:
    """EM steps of one class; each spends ρ."""
    low = _low(base)
    size = len(low.factor)
    pairs = size * (size + 1) // 2
    mixture = _start(n_components, size)
    kinds = (
        ("weights", n_components, 1.0, Region.ORTHANT),
        ("means", n_components * size, CLIP, Region.BALL),
        ("moments", n_components * pairs, CLIP * CLIP, Region.PSD),
    )
    for step in range(1, ITERATIONS + 1):
        seen = []
        for of, (name, dimension, radius, region) in zip(
            moment_contributions(low, mixture), kinds, strict=True
        ):
            query = Query(
                f"EM {name}, iteration {step}", dimension, radius, region, rho * _SHARES[name], "whitened"
            )
            answer = yield Ask(query, of)
            seen.append(answer)
        weights, first, moments = seen
        second = [vector_to_symmetric(own, size) for own in moments.total.reshape(n_components, pairs)]
        first_moments = first.value.reshape(n_components, size)
        mixture = _updated(weights.value, first_moments, np.array(second) / count)
    return _components(low, mixture)


def _low(base: GaussianEstimate) -> _Low:
    n_steps = base.mean.size
    transform = synthesis_matrix(n_steps).T / math.sqrt(n_steps)
    size = min(LOW_FREQUENCIES, n_steps)
    low = product(product(transform[:size], base.covariance), transform[:size].T)
    return _Low(base, transform, cholesky(low))


def _start(n_components: int, size: int) -> _Mixture:
    """Public start: components spread along the level, ±1 standard deviation."""
    means = np.zeros((n_components, size))
    means[:, 0] = np.linspace(-1.0, 1.0, n_components)
    covariances = np.tile(np.eye(size), (n_components, 1, 1))
    covariances[:, 0, 0] = 0.5
    return _Mixture(np.full(n_components, 1 / n_components), means, covariances)


def moment_contributions(low: _Low, mixture: _Mixture) -> tuple[Contribution, ...]:
    """Contributions to weights, means and second moments, each (record, dimension)."""

    def weights(days: FloatArray) -> FloatArray:
        average: FloatArray = mixture.responsibilities(low.whiten(days)).mean(axis=1)
        return average

    def means(days: FloatArray) -> FloatArray:
        y = low.whiten(days)
        first: FloatArray = (mixture.responsibilities(y)[..., :, None] * y[..., None, :]).mean(axis=1)
        return first.reshape(len(days), -1)

    def moments(days: FloatArray) -> FloatArray:
        y = low.whiten(days)
        shares = mixture.responsibilities(y)
        outer = y[..., :, None] * y[..., None, :]
        second = (shares[..., :, None, None] * outer[..., None, :, :]).mean(axis=1)
        return symmetric_to_vector(second).reshape(len(days), -1)

    return weights, means, moments


def _updated(weights: FloatArray, first: FloatArray, second: FloatArray) -> _Mixture:
    """Parameters from noisy moments; always valid, whatever the noise."""
    weights = np.maximum(weights, MIN_WEIGHT)
    means = within_ball(first / weights[:, None], CLIP)
    covariances = np.array(
        [
            positive_part(moment / weight - np.outer(mean, mean), MIN_VARIANCE)
            for weight, mean, moment in zip(weights, means, second, strict=True)
        ]
    )
    return _Mixture(weights / weights.sum(), means, covariances)


def _components(low: _Low, mixture: _Mixture) -> list[tuple[float, GaussianEstimate]]:
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
        components.append((float(weight), GaussianEstimate(centre, (day + day.T) / 2)))
    return components


MIXTURE_SHARE = 0.4  # of a cell's budget, if a class holds more than one component


class DayEstimator(ABC):
    """Fits Gaussians of single days to the classes of a cell: the loop that such estimators share."""

    name: str
    whole: ClassVar = False

    @abstractmethod
    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: Session
    ) -> list[GaussianEstimate]:
        """One Gaussian per group; spends at most `facts.rho` of the session."""

    @abstractmethod
    def prior_would_do(self, facts: PublicFacts) -> bool:
        """Whether, by public figures alone, the budget is too small for the data to matter."""

    def check(self, facts: HistoryFacts, options: FitOptions, unit: PrivacyUnit) -> None:  # noqa: B027
        """Every history has single days."""

    def classes(self, cell: Cell) -> list[ClassModel]:
        """The Gaussians, split into components where more are asked for, within the declared bounds."""
        n_components, choice, n_steps = cell.options.n_components, cell.options.reactive, cell.facts.n_steps
        rho_mixture = cell.rho * (MIXTURE_SHARE if n_components > 1 else 0.0)
        low, high = log1(cell.bounds[0]), log1(cell.bounds[1])
        facts = PublicFacts(cell.records, n_steps, cell.rho - rho_mixture, low, high)
        if self.prior_would_do(facts):
            cell.notes.append(
                f"{facts.records:.0f} records of {', '.join(cell.names)} are too few for this epsilon: the "
                "noise outweighs the data and the public prior would do as well; raise epsilon or pool "
                "classes"
            )

        def finished(part: GaussianEstimate, margins: Bounds) -> GaussianEstimate:
            bounded = within_bounds(part, log1(margins[0]), log1(margins[1]))
            return with_floor(bounded.mean, bounded.covariance, cell.options.variance_floor)

        bases = self.estimate(cell.groups, facts, cell.session)
        bases = [finished(base, own) for base, own in zip(bases, cell.margins, strict=True)]
        mixtures: list[list[tuple[float, GaussianEstimate]]] = [[(1.0, base)] for base in bases]
        if n_components > 1:
            found = fit_mixtures(cell.groups, bases, n_components, rho_mixture, cell.session)
            mixtures = [
                [(weight, finished(part, own)) for weight, part in parts]
                for parts, own in zip(found, cell.margins, strict=True)
            ]
        covariance = choice.covariance(n_steps, cell.facts.step_minutes)
        classes = []
        for name, weight, own, parts in zip(cell.names, cell.weights, cell.margins, mixtures, strict=True):
            components = tuple(GaussianComponent(share, part.mean, part.covariance) for share, part in parts)
            # p̄: released mean load over the day
            reference = float(sum(part.weight * part.mean_load.mean() for part in components))
            law = ReactiveModel(choice.tan_theta(name), choice.spread, reference, covariance)
            classes.append(ClassModel(name, weight, components, own, law))
        return classes
