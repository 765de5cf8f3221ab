"""INTERNAL. One figure of a release next to the real one and its floor, and what to say of it.

The rule is public and the same for every release. Real customers are split at random into halves A and B,
several times over. The distance of the release from B is divided by the distance of A from B, which is the
floor: a ratio of 1 is as close as real customers are to other real customers. The ratio less its
standard deviation over the splits decides:

    as close as real to real ≤ first limit < close ≤ second < visibly different ≤ third < wrong

A ratio that is large, but within its error of the first limit, says nothing: there are too few customers. The
same holds of a classifier that tells even half A from half B: no release could do worse. A distance far below
its floor is suspicious: nothing but copies of the real customers is that close.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files

import numpy as np

COPIES = 0.4
"""A distance that stays below this share of its floor, with its error, is closer than real to real.

A model that is fitted on both halves and drawn without any chance reaches 0.5.
"""
DEVIATIONS = 1.0
"""Standard deviations over the splits that a ratio is given the benefit of: about two standard errors."""


class Verdict(StrEnum):
    """What to say of a figure, from best to worst; the last two stand apart."""

    SAME = "as close as real to real"
    CLOSE = "close"
    VISIBLE = "visibly different"
    WRONG = "wrong"
    UNSURE = "too few customers to tell"
    COPIES = "suspicious: closer than real to real"


@dataclass(frozen=True)
class Scale:
    """How a ratio to the floor reads.

    Attributes
    ----------
    name : of the kind of figure.
    limits : of the ratio, for the first three verdicts.
    """

    name: str
    limits: tuple[float, float, float]

    def verdict(self, ratio: float, error: float) -> Verdict:
        """By the rule of this module.

        Parameters
        ----------
        ratio : distance of the release over the floor.
        error : standard deviation of the ratio over the splits.
        """
        surely = ratio - DEVIATIONS * error
        if ratio > self.limits[1] and surely <= self.limits[0]:
            return Verdict.UNSURE
        order = (Verdict.SAME, Verdict.CLOSE, Verdict.VISIBLE, Verdict.WRONG)
        return order[int(np.sum(surely > np.array(self.limits)))]


DISTANCE = Scale("distance", (1.25, 2.0, 4.0))
"""Distances of distributions, and differences of single figures."""
USE = Scale("use", (1.03, 1.10, 1.30))
"""Errors of forecasts: what a user of the data pays."""
TOLD = Scale("classifier", (1.05, 1.20, 1.50))
"""Areas under the curve of a classifier, from 0.5 to 1."""
UNTOLD, _ALWAYS_TOLD = 0.5, 1.0
BELOW_CHANCE = 0.42
"""An area under the curve that stays below it is one of copies: the classifier has learnt them by heart."""


@dataclass(frozen=True)
class Finding:
    """INTERNAL. One figure of a release.

    Attributes
    ----------
    group : what it is about: customers, use, feeder, voltages.
    name, title : key and words.
    unit : of the figures, empty where there is none.
    drawn : the figure of the release.
    real : the same of the real side; None where the figure is a distance from it.
    distance, floor : of the release from real half B, of real half A from B; the floor is not below the
        smallest difference that matters, a public constant.
    ratio, error : distance over floor, and its standard deviation over the splits.
    verdict : in words.
    """

    group: str
    name: str
    title: str
    unit: str
    drawn: float
    real: float | None
    distance: float
    floor: float
    ratio: float
    error: float
    verdict: Verdict


@dataclass(frozen=True)
class Titled:
    """PUBLIC. What a figure is called, and how it is judged.

    Attributes
    ----------
    group, name, title, unit : see `Finding`.
    scale : of its verdict.
    matters : smallest difference that matters: absolute for distances, a share of the real figure otherwise.
    """

    group: str
    name: str
    title: str
    unit: str = ""
    scale: Scale = DISTANCE
    matters: float = 0.0

    def of_distances(self, drawn: Sequence[float], floor: Sequence[float]) -> Finding:
        """A figure that is a distance by itself: of the release from B, of A from B, split by split."""
        apart, real = np.asarray(drawn), float(np.mean(floor))
        found = self._finding(float(np.mean(apart)), None, apart, max(real, self.matters))
        highest = float(apart.mean()) + DEVIATIONS * _spread(apart)
        return replace(found, verdict=Verdict.COPIES) if highest < COPIES * real else found

    def of_figures(self, drawn: Sequence[float], first: Sequence[float], second: Sequence[float]) -> Finding:
        """A figure of one side by itself: of the release, of A and of B, split by split."""
        own, a, b = (np.asarray(values, dtype=np.float64) for values in (drawn, first, second))
        real = float(np.mean([a, b]))
        least = max(float(np.sqrt(np.mean((a - b) ** 2))), self.matters * abs(real))
        return self._finding(float(own.mean()), real, np.abs(own - b), least)

    def of_areas(self, drawn: Sequence[float], floor: Sequence[float]) -> Finding:
        """An area under the curve, of the release against B and of A against B; copies are below chance."""
        areas = np.asarray(drawn)
        least = max(float(np.mean(floor)), UNTOLD)
        found = self._finding(float(areas.mean()), None, np.maximum(areas, UNTOLD), least)
        highest = float(areas.mean()) + DEVIATIONS * _spread(areas)
        if highest < min(BELOW_CHANCE, float(np.mean(floor))):
            return replace(found, verdict=Verdict.COPIES)
        if (
            least * self.scale.limits[0] >= _ALWAYS_TOLD
        ):  # the worst release would be as close as real to real
            return replace(found, verdict=Verdict.UNSURE)
        return found

    def _finding(self, drawn: float, real: float | None, apart: np.ndarray, least: float) -> Finding:
        ratios = apart / least if least > 0.0 else np.where(apart > 0.0, np.inf, 1.0)
        ratio, error = float(np.mean(ratios)), _spread(ratios)
        distance = float(np.mean(apart))
        verdict = self.scale.verdict(ratio, error)
        return Finding(
            self.group, self.name, self.title, self.unit, drawn, real, distance, least, ratio, error, verdict
        )


@cache
def titled(by: str) -> tuple[Titled, ...]:
    """PUBLIC. The figures of `metrics.csv` that are measured together, in the order of their measures."""
    scales = {scale.name: scale for scale in (DISTANCE, USE, TOLD)}
    rows = csv.DictReader(files(__package__).joinpath("metrics.csv").read_text("utf-8").splitlines())
    return tuple(
        Titled(
            *(row["group"], row["name"], row["title"], row["unit"]),
            scale=scales[row["scale"]],
            matters=float(row["matters"]),
        )
        for row in rows
        if row["by"] == by
    )


def _spread(values: np.ndarray) -> float:
    """Standard deviation; 0 of a single value."""
    finite = values[np.isfinite(values)]
    return float(np.std(finite, ddof=1)) if finite.size > 1 else 0.0


# --- effort -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effort:
    """PUBLIC. Sizes of a comparison; memory and time follow from them alone.

    Attributes
    ----------
    splits : how often real customers are split into halves.
    customers : of a half, at most.
    days : of histories, at most.
    network_splits : how often the meters of a half are solved on the true feeder.
    network_days : of voltages and loads, at most.
    fits_per_kind : fits per kind of planted customer, half of them with it.
    membership_fits : fits on half of the customers.
    attacked : customers of an attacked fit, at most.
    attacked_days : days of it, at most.
    """

    splits: int = 6
    customers: int = 256
    days: int = 56
    network_splits: int = 4
    network_days: int = 28
    fits_per_kind: int = 60
    membership_fits: int = 6
    attacked: int = 48
    attacked_days: int = 28


FULL = Effort()
QUICK = Effort(
    splits=3,
    customers=96,
    days=28,
    network_splits=2,
    network_days=4,
    fits_per_kind=12,
    membership_fits=2,
    attacked=24,
    attacked_days=14,
)
