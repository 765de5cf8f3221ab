"""Partition of the records into classes: public labels, or differentially private K-means.

Private K-means after Ravi et al. 2022: noisy centroids, the noise coloured by a public smooth basis. Here
the basis is the cosine basis of the day: centroids live on its lowest coefficients, scaled by the public
prior, so the noise of a centroid is smooth over the day.

The class of a record is then a function of that record and of the released centroids. It is *private*: it
is used inside the fit only, never attached to a load point or a node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow._bits.linear import within_ball
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import Records
from dp_powerflow.model.single_days import prior_mean_std, to_coefficients
from dp_powerflow.privacy.queries import MAX_DIMENSION, Query, Region, Session
from dp_powerflow.units import FloatArray, IntArray

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
    for step in range(1, ITERATIONS + 1):
        start = centroids

        def counted(days: FloatArray, start: Centroids = start) -> FloatArray:
            return one_hot(start.assign(start.features(days)), n_classes)

        def summed(days: FloatArray, start: Centroids = start) -> FloatArray:
            features = start.features(days)
            return feature_sums(features, start.assign(features), n_classes)

        name = f"K-means counts, iteration {step}"
        query = Query(name, n_classes, 1.0, Region.ORTHANT, each * _COUNT_SHARE, "records")
        counts = session.ask(query, [records.contributions(counted)])[0]
        name, rho_sums = f"K-means sums, iteration {step}", each * (1 - _COUNT_SHARE)
        query = Query(name, n_classes * terms, RADIUS, Region.BALL, rho_sums, "prior standard deviations")
        sums = session.ask(query, [records.contributions(summed)])[0].reshape(n_classes, terms)
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
    query = Query("class weights", n_classes, 1.0, Region.ORTHANT, rho, "records")
    parts = np.array_split(labels, 1 + len(labels) // 2**16)
    return np.maximum(session.ask(query, [(one_hot(part, n_classes) for part in parts)])[0], 1.0)


def assign_classes(records: Records, centroids: Centroids) -> IntArray:
    """PRIVATE. Class of every record (record,)."""
    chunks = records.contributions(centroids.features)
    labels = [centroids.assign(features) for features in chunks]
    return np.concatenate([np.empty(0, dtype=np.int64), *labels])
