"""INTERNAL. Drawn customers against real ones, half by half: every figure beside its floor.

Drawn and real customers are compared in samples of the same size. In every split half A of the real customers
stands in for the drawn ones once, which gives the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np

from dp_powerflow.fidelity.effort import Effort
from dp_powerflow.fidelity.gaps import gap_error
from dp_powerflow.fidelity.likeness import nearest_distance
from dp_powerflow.fidelity.metrics import (
    Fidelity,
    Setting,
    Traits,
    autocorrelation,
    compare,
    hourly,
    lags,
)
from dp_powerflow.fidelity.ramps import changes_w1_percent, high_ramp
from dp_powerflow.fidelity.verdicts import TOLD, USE, Finding, Titled
from dp_powerflow.units import FloatArray, IntArray

BAND = (0.1, 0.5, 0.9)
"""Quantiles over customers and days that a daily profile is shown by."""
CUSTOMERS, IN_USE = "customers", "use"
_DISTANCES = (
    Titled(CUSTOMERS, "w1_percent", "loads at a time of day, W1", "% of mean", matters=2.0),
    Titled(CUSTOMERS, "autocorrelation_error", "autocorrelation to 7 days, error", matters=0.01),
    Titled(CUSTOMERS, "changes_w1", "step changes, W1", "% of mean", matters=0.5),
    Titled(CUSTOMERS, "nearest", "distance to the nearest real customer", "sd of traits", matters=0.1),
)
_FIGURES = (
    Titled(CUSTOMERS, "day_to_day", "day-to-day correlation of energy", matters=0.05),
    Titled(CUSTOMERS, "between_customers", "variance between customers, share", matters=0.05),
    Titled(CUSTOMERS, "pairwise", "correlation of two customers' energy", matters=0.05),
    Titled(CUSTOMERS, "coincidence", "coincidence factor of 50 customers", matters=0.05),
    Titled(CUSTOMERS, "peak_over_mean", "a customer's peak over its mean", matters=0.05),
    Titled(CUSTOMERS, "high_ramp", "99th percentile of step changes over the mean", matters=0.05),
    Titled(CUSTOMERS, "feeder_daily_sd", "sd of all customers' daily energy", matters=0.05),
    Titled(CUSTOMERS, "midnight_step", "step of all customers at midnight", matters=0.1),
)
_AREAS = (
    Titled(IN_USE, "auc_day", "classifier told them apart: customer-day", "AUC", TOLD),
    Titled(IN_USE, "auc_week", "classifier told them apart: customer-week", "AUC", TOLD),
    Titled(IN_USE, "auc_feeder", "classifier told them apart: feeder-day", "AUC", TOLD),
)
_USES = (
    Titled(IN_USE, "next_day", "forecast of a customer's next day, trained on it", "log kW", USE),
    Titled(IN_USE, "next_day_feeder", "forecast of a feeder's next day, trained on it", "log kW", USE),
    Titled(IN_USE, "gap", "four hidden hours filled, trained on it", "log kW", USE),
)


@dataclass(frozen=True, eq=False)
class Curves:
    """INTERNAL. What the figures of a page show of both sides.

    Attributes
    ----------
    hours : (step,) of the day.
    drawn_band, real_band : (quantile of `BAND`, step) loads over the mean of all [1].
    lag_hours : (lag,).
    drawn_memory, real_memory, floor_memory : (lag,) autocorrelation: drawn, real half B, real half A.
    """

    hours: FloatArray
    drawn_band: FloatArray
    real_band: FloatArray
    lag_hours: FloatArray
    drawn_memory: FloatArray
    real_memory: FloatArray
    floor_memory: FloatArray


@dataclass(frozen=True, eq=False)
class CustomerComparison:
    """INTERNAL. All figures of customers, and their curves."""

    findings: tuple[Finding, ...]
    curves: Curves


def compare_customers(
    drawn: FloatArray,
    real: FloatArray,
    setting: Setting,
    effort: Effort,
    on_split: Callable[[int, int], None] = lambda done, total: None,
) -> CustomerComparison:
    """INTERNAL. Every figure of drawn customers, its floor and its verdict.

    Parameters
    ----------
    drawn, real
        Loads (customer, day, step) [kW] on the same days.
    setting
        Calendar, resolution of the meters, seed.
    effort
        Number of splits, and customers of a half.
    """
    pairs = []
    for index, (own, first, second) in enumerate(_thirds(len(drawn), len(real), setting.seed, effort)):
        halves = drawn[own], real[first], real[second]
        pairs.append((_figures(halves[0], halves[2], setting), _figures(halves[1], halves[2], setting)))
        on_split(index + 1, effort.splits)
    return CustomerComparison(tuple(_findings(pairs)), _curves(halves))


def _thirds(n_drawn: int, n_real: int, seed: int, effort: Effort) -> Iterator[tuple[IntArray, ...]]:
    """Drawn customers, half A and half B, all of the same size, for every split."""
    size = min(n_real // 2, n_drawn, effort.customers)
    for split in range(effort.splits):
        rng = np.random.default_rng([seed, 7, split])
        drawn, real = rng.permutation(n_drawn), rng.permutation(n_real)
        yield drawn[:size], real[:size], real[size : 2 * size]


@dataclass(frozen=True)
class _Figures:
    """One side against real half B: what `compare` finds, and what it does not look at."""

    found: Fidelity
    changes_w1: float
    high_ramps: tuple[float, float]
    gap: float
    nearest: float


def _figures(side: FloatArray, real: FloatArray, setting: Setting) -> _Figures:
    return _Figures(
        compare(side, real, setting),
        changes_w1_percent(side, real),
        (high_ramp(side), high_ramp(real)),
        gap_error(hourly(side), hourly(real), setting.weekend, setting.seed),
        nearest_distance(side, real),
    )


def _findings(pairs: list[tuple[_Figures, _Figures]]) -> Iterator[Finding]:
    """Of every split: the drawn side against B, and A against B."""
    drawn, floor = ([pair[side] for pair in pairs] for side in range(2))

    for titled in (*_DISTANCES, *_USES):
        yield titled.of_distances(*([_distance(one, titled.name) for one in side] for side in (drawn, floor)))
    for titled in _AREAS:
        yield titled.of_areas(*([_distance(one, titled.name) for one in side] for side in (drawn, floor)))
    for titled in _FIGURES:
        own, first, second = (
            [_figure(one, titled.name, of_real) for one in side]
            for side, of_real in ((drawn, False), (floor, False), (floor, True))
        )
        yield titled.of_figures(own, first, second)


def _distance(one: _Figures, name: str) -> float:
    return float(getattr(one, name) if hasattr(one, name) else getattr(one.found, name))


def _figure(one: _Figures, name: str, of_real: bool) -> float:
    if name == "high_ramp":
        return one.high_ramps[of_real]
    assert name in {field.name for field in fields(Traits)}
    return float(getattr(one.found.real if of_real else one.found.drawn, name))


def _curves(halves: tuple[FloatArray, FloatArray, FloatArray]) -> Curves:
    drawn, first, second = halves
    steps = drawn.shape[2]
    mean = float(second.mean())
    bands = [np.quantile(load.reshape(-1, steps) / mean, BAND, axis=0) for load in (drawn, second)]
    memories = [autocorrelation(load) for load in (drawn, second, first)]
    return Curves(
        np.arange(steps) * 24.0 / steps,
        bands[0],
        bands[1],
        lags(steps) * 24.0 / steps,
        memories[0],
        memories[1],
        memories[2],
    )
