"""Levels, peaks and bases of customers, and the histogram of their loads over their means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1, kernel
from dp_powerflow.model.history import contributions as of_customer
from dp_powerflow.model.history import one_pass, plan
from dp_powerflow.model.history.asking import Asker, OfCustomer, Seen, shrunk
from dp_powerflow.model.history.contributions import Scores
from dp_powerflow.model.history.numbers import best_normal, ndtri, normal_shares, smoothed, unimodal
from dp_powerflow.model.records import Customers
from dp_powerflow.privacy.queries import Region
from dp_powerflow.units import FloatArray

_MOST_SCORE = 3.3


@dataclass(frozen=True, eq=False)
class Traits:
    """What is known of levels, peaks and bases of a class."""

    level_edges: FloatArray
    level_shares: FloatArray
    mean: FloatArray
    std: FloatArray

    @property
    def level(self) -> tuple[float, float]:
        """Mean and standard deviation of the log level."""
        middle = (self.level_edges[1:] + self.level_edges[:-1]) / 2
        mean = float(np.sum(self.level_shares * middle))
        return mean, float(np.sqrt(np.sum(self.level_shares * (middle - mean) ** 2)))


def ask_traits(asker: Asker) -> list[Traits]:
    low, high = asker.setting.log_bounds
    half = (high - low) / 2
    centre = np.array([(low + high) / 2, plan.CENTRE_PEAK, plan.CENTRE_BASE])
    radius = max(half, plan.RADIUS_COARSE)
    count = len(asker.groups)
    coarse = asker.ask(
        "coarse traits",
        3,
        Region.BALL,
        [partial(of_customer.coarse_traits, centre=centre, radius=radius)] * count,
        [radius] * count,
    )
    prior = np.array([half / 2, 0.6, 0.8])
    centres = [shrunk(seen, prior) + centre for seen in coarse]
    levels = [float(np.clip(own[0], low, high)) for own in centres]
    most = min(plan.MOST_SPREAD, 2 * half)
    spreads = asker.ask(
        "coarse spread of levels",
        1,
        Region.ORTHANT,
        [partial(of_customer.distance_of_level, centre=level, most=most) for level in levels],
        [most] * count,
    )
    reaches = [plan.LEVEL_REACH * float(np.clip(1.25 * seen.value[0], *plan.SPREADS)) for seen in spreads]
    placed = asker.ask(
        "place of levels",
        2,
        Region.BALL,
        [
            partial(
                of_customer.place_of_level,
                centre=level,
                reach=reach,
                middle=plan.LEVEL_MIDDLE,
                radius=plan.RADIUS_LEVEL,
            )
            for level, reach in zip(levels, reaches, strict=True)
        ],
        [plan.RADIUS_LEVEL] * count,
    )
    normals = []
    for seen, level, reach in zip(placed, levels, reaches, strict=True):
        away = shrunk(seen, np.array([0.6, 0.3]))
        place, size = _unclipped(float(away[0]), float(away[1]) + plan.LEVEL_MIDDLE)
        normals.append((level + reach * place, reach * size))
    edges = [mean + std * np.linspace(-3.0, 3.0, plan.LEVEL_BINS + 1) for mean, std in normals]
    counted = asker.ask(
        "levels",
        plan.LEVEL_BINS,
        Region.ORTHANT,
        [_binned(of_customer.log_level, own) for own in edges],
    )
    peaks = _ask_normal(asker, "peaks", 1, [np.clip(own[1], 0.5, 3.0) for own in centres], plan.PEAK_REACH)
    bases = _ask_normal(asker, "bases", 2, [np.clip(own[2], -3.5, -0.2) for own in centres], plan.BASE_REACH)
    found = []
    for index, seen in enumerate(counted):
        prior = normal_shares(edges[index], *normals[index])
        trust = plan.trust_in_shares(prior, seen.noise)
        shares = np.maximum(prior + trust * (seen.value - prior), 0.0)
        whole = float(shares.sum())
        shares = shares / whole if whole > 0.0 else prior
        own = Traits(edges[index], shares, np.empty(0), np.empty(0))
        columns = (own.level, peaks[index], (0.0, 0.0), bases[index])
        mean, std = (np.array([column[k] for column in columns]) for k in range(2))
        found.append(Traits(own.level_edges, own.level_shares, mean, std))
    return found


def _binned(value: OfCustomer, edges: FloatArray) -> OfCustomer:
    return lambda days: of_customer.bin_of(value(days), edges)


def _column(days: Customers, column: int) -> FloatArray:
    found: FloatArray = of_customer.traits(days)[:, column]
    return found


def _ask_normal(
    asker: Asker, name: str, column: int, centres: Sequence[float], reach: float
) -> list[tuple[float, float]]:
    """Mean and standard deviation of a trait of every class, from a histogram around a coarse centre."""
    edges = [float(c) + reach * np.linspace(-1.0, 1.0, plan.TRAIT_BINS + 1) for c in centres]
    seen = asker.ask(
        name,
        plan.TRAIT_BINS,
        Region.ORTHANT,
        [_binned(partial(_column, column=column), own) for own in edges],
    )
    return [
        best_normal(one.value, own, one.noise, float(centre), reach / 2.5)
        for one, own, centre in zip(seen, edges, centres, strict=True)
    ]


@kernel
def _unclipped(place: float, size: float) -> tuple[float, float]:
    """Mean and spread of the normal law that, cut to ±1, has this mean and this mean size."""
    best, at, width = np.inf, 0.0, 0.5
    for i in range(81):
        mean = (i - 40) / 40
        for j in range(65):
            std = exp1(-2.5 + 0.05 * j)
            first, absolute, whole = 0.0, 0.0, 0.0
            for k in range(81):
                x = (k - 40) / 10
                weight = exp1(-x * x / 2)
                value = min(max(mean + std * x, -1.0), 1.0)
                first += weight * value
                absolute += weight * abs(value)
                whole += weight
            off, gap = first / whole - place, absolute / whole - size
            if off * off + gap * gap < best:
                best, at, width = off * off + gap * gap, mean, std
    return at, width


def ask_marginal(asker: Asker) -> tuple[list[FloatArray], list[Scores]]:
    """Histogram of load over mean (1 + bins,), and the map to scores, of every class."""
    low = asker.setting.log_bounds[0]
    radius, count = plan.RADIUS_HISTOGRAM, len(asker.groups)
    seen = asker.ask(
        "load over mean",
        1 + one_pass.BINS,
        Region.ORTHANT,
        [partial(of_customer.histogram, log_floor=low, radius=radius)] * count,
        [radius] * count,
    )
    shares = [_cleaned(one) for one in seen]
    return shares, [_scores(own, low) for own in shares]


def _cleaned(seen: Seen) -> FloatArray:
    """A smooth histogram with one top, tilted so that loads over their mean have the mean one."""
    edges = of_customer.bin_edges()
    width = edges[1] - edges[0]
    atom, bins = max(float(seen.value[0]), 0.0), unimodal(smoothed(seen.value[1:], seen.noise, 0.03, 1.9))
    if atom < seen.noise:
        atom *= 0.0004 / (0.0004 + seen.noise * seen.noise)
    shares = np.concatenate([[atom], np.maximum(bins, 0.0) + 1e-6])
    shares /= shares.sum()
    middle = exp((edges[1:] + edges[:-1]) / 2) * ((exp1(width / 2) - exp1(-width / 2)) / width)
    load = np.concatenate([[exp1(one_pass.LOWEST)], middle])
    low, high = -0.6, 3.0
    tilted = shares
    for _ in range(50):
        tilt = (low + high) / 2
        tilted = shares * exp(-tilt * load)
        tilted = tilted / tilted.sum()
        if float(np.sum(tilted * load)) > 1.0:
            low = tilt
        else:
            high = tilt
    return tilted


def _scores(shares: FloatArray, log_floor: float) -> Scores:
    below = np.clip(np.cumsum(shares), 1e-4, 1 - 1e-4)
    edges = np.clip(ndtri(below), -_MOST_SCORE, _MOST_SCORE)
    at_floor = ndtri(np.array([max(float(shares[0]) / 2, 1e-4)]))[0]
    return Scores(edges, float(np.clip(at_floor, -_MOST_SCORE, _MOST_SCORE)), log_floor)
