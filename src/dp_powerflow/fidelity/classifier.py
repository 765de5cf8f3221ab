"""INTERNAL. A classifier that tells drawn from real: gradient-boosted trees, small and without dependencies.

Logistic loss, Newton steps, features cut into quantile bins, trees grown level by level: 200 trees of 16
leaves, a random part of the features for each. Area under the curve, here and by scikit-learn's histogram
gradient boosting (120 trees of 15 leaves), for days of Swiss homes against days drawn from their Gaussian:
0.909 and 0.907 for customers, 0.911 and 0.924 for feeders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata

from dp_powerflow.units import BoolArray, FloatArray, IntArray

TREES = 200
DEPTH = 4
RATE = 0.15
BINS = 32
_FEATURES = 32  # of a tree, at most
_PENALTY = 1.0  # on the square of a leaf
_FEWEST = 5.0  # rows of a leaf, as a sum of 4·p(1 − p)
_TESTED = 0.4  # share of the customers that the classifier is tested on

Sample = tuple[FloatArray, IntArray]
"""(row, feature), and whose row it is."""


def told_apart(drawn: Sample, real: Sample, *, seed: int = 0) -> float:
    """Area under the curve on customers, drawn and real, that the classifier was not trained on."""
    features = np.concatenate([drawn[0], real[0]])
    is_real = np.repeat([False, True], [len(drawn[0]), len(real[0])])
    rng = np.random.default_rng([seed, 9])
    tested = np.concatenate([_held_out(of, rng) for _, of in (drawn, real)])
    forest = grow(features[~tested], is_real[~tested], rng)
    return area_under_curve(forest.score(features[tested]), is_real[tested])


def area_under_curve(score: FloatArray, positive: BoolArray) -> float:
    """Probability that a positive row scores above a negative one; ties count half."""
    n, of = int(positive.sum()), positive.size
    above = float(rankdata(score)[positive].sum()) - n * (n + 1) / 2
    return above / (n * (of - n))


def _held_out(of: IntArray, rng: np.random.Generator) -> BoolArray:
    """(row,) whether its owner is held out; at least one owner is, and one is not."""
    owners = rng.permutation(np.unique(of))
    held = owners[: min(max(1, round(_TESTED * owners.size)), owners.size - 1)]
    return np.isin(of, held)


@dataclass(frozen=True, eq=False)
class Tree:
    """A complete tree: node k has the children 2k + 1 and 2k + 2.

    Parameters
    ----------
    feature, limit
        (inner node,) a row goes right if its bin of `feature` is above `limit`.
    leaf
        (leaf,) what is added to the score.
    """

    feature: IntArray
    limit: IntArray
    leaf: FloatArray

    def score(self, bins: IntArray) -> FloatArray:
        """(row,) of bins (row, feature)."""
        node, rows = np.zeros(len(bins), dtype=np.int64), np.arange(len(bins))
        for _ in range(DEPTH):
            right = bins[rows, self.feature[node]] > self.limit[node]
            node = 2 * node + 1 + right
        return self.leaf[node - self.feature.size]


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees, and the edges (feature, edge) of their bins."""

    edges: FloatArray
    trees: tuple[Tree, ...]

    def score(self, features: FloatArray) -> FloatArray:
        """(row,) log odds but for a constant."""
        bins = _binned(features, self.edges)
        total: FloatArray = np.sum([tree.score(bins) for tree in self.trees], axis=0)
        return total


def grow(features: FloatArray, positive: BoolArray, rng: np.random.Generator) -> Forest:
    """Trees that tell positive rows from the others, each mending what is left by those before."""
    edges = np.quantile(features, np.arange(1, BINS) / BINS, axis=0).T
    bins = _binned(features, edges)
    score = np.full(len(bins), np.log(positive.mean() / (1 - positive.mean())))
    trees = []
    for _ in range(TREES):
        chosen = np.sort(rng.permutation(bins.shape[1])[:_FEATURES])
        chance = expit(score)
        tree = _grow_one(bins, chosen, positive - chance, chance * (1 - chance))
        trees.append(tree)
        score = score + tree.score(bins)
    return Forest(edges, tuple(trees))


def _binned(features: FloatArray, edges: FloatArray) -> IntArray:
    """(row, feature) bins: how many edges lie below the value."""
    columns = [
        np.searchsorted(own, column, side="left") for own, column in zip(edges, features.T, strict=True)
    ]
    return np.column_stack(columns).astype(np.int64)


def _grow_one(bins: IntArray, chosen: IntArray, slope: FloatArray, curvature: FloatArray) -> Tree:
    """One tree on the chosen features, from slope and curvature of the loss at every row."""
    inner = 2**DEPTH - 1
    feature, limit = np.zeros(inner, dtype=np.int64), np.full(inner, BINS, dtype=np.int64)
    cell = bins[:, chosen] + BINS * np.arange(chosen.size)
    each = [np.repeat(values, chosen.size) for values in (slope, curvature)]
    place, rows = np.zeros(len(bins), dtype=np.int64), np.arange(len(bins))
    for level in range(DEPTH):
        width, first = 2**level, 2**level - 1
        key = (cell + (place * (BINS * chosen.size))[:, None]).ravel()
        shape = (width, chosen.size, BINS)
        sums = [np.bincount(key, values, width * BINS * chosen.size).reshape(shape) for values in each]
        column, cut, gain = _best_splits(*sums)
        splits = gain > 0
        nodes = slice(first, first + width)
        feature[nodes] = chosen[column]
        limit[nodes] = np.where(splits, cut, BINS)  # no bin is above: all rows go left
        node = first + place
        place = 2 * place + (bins[rows, feature[node]] > limit[node])
    totals = [np.bincount(place, values, 2**DEPTH) for values in (slope, curvature)]
    return Tree(feature, limit, RATE * totals[0] / (totals[1] + _PENALTY))


def _best_splits(slope: FloatArray, curvature: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """(node,) feature, last bin on the left and gain of the best split; from sums (node, feature, bin)."""
    left = [np.cumsum(values, axis=2)[:, :, :-1] for values in (slope, curvature)]
    whole = [values.sum(axis=2, keepdims=True) for values in (slope, curvature)]
    right = [total - part for total, part in zip(whole, left, strict=True)]
    gain = sum(part[0] ** 2 / (part[1] + _PENALTY) for part in (left, right))
    gain = gain - whole[0] ** 2 / (whole[1] + _PENALTY)
    enough = np.minimum(left[1], right[1]) >= _FEWEST / 4
    by_node = np.where(enough, gain, -np.inf).reshape(len(slope), -1)
    best = np.argmax(by_node, axis=1)
    return best // (BINS - 1), best % (BINS - 1), by_node[np.arange(len(slope)), best]
