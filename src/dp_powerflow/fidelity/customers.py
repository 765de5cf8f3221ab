"""INTERNAL. Drawn customers against real ones, half by half: every figure beside its floor.

Drawn and real customers are compared in samples of the same size. In every split half A of the real customers
stands in for the drawn ones once, which gives the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dp_powerflow.fidelity.metrics import Fidelity, Setting, autocorrelation, compare, lags
from dp_powerflow.fidelity.verdicts import Effort, Finding, titled
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.customers import days_off
from dp_powerflow.units import BoolArray, FloatArray, IntArray

BAND = (0.1, 0.5, 0.9)
"""Quantiles over customers and days that a daily profile is shown by."""


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
        pairs.append((compare(halves[0], halves[2], setting), compare(halves[1], halves[2], setting)))
        on_split(index + 1, effort.splits)
    return CustomerComparison(tuple(_findings(pairs)), _curves(halves))


def _thirds(n_drawn: int, n_real: int, seed: int, effort: Effort) -> Iterator[tuple[IntArray, ...]]:
    """Drawn customers, half A and half B, all of the same size, for every split."""
    size = min(n_real // 2, n_drawn, effort.customers)
    for split in range(effort.splits):
        rng = np.random.default_rng([seed, 7, split])
        drawn, real = rng.permutation(n_drawn), rng.permutation(n_real)
        yield drawn[:size], real[:size], real[size : 2 * size]


def _findings(pairs: list[tuple[Fidelity, Fidelity]]) -> Iterator[Finding]:
    """Of every split: the drawn side against B, and A against B."""
    drawn, floor = ([pair[side] for pair in pairs] for side in range(2))
    for by in ("distances", "uses", "areas"):
        for one in titled(by):
            values = [[float(getattr(found, one.name)) for found in side] for side in (drawn, floor)]
            yield one.of_areas(*values) if by == "areas" else one.of_distances(*values)
    for one in titled("figures"):
        yield one.of_figures(
            [getattr(found.drawn, one.name) for found in drawn],
            [getattr(found.drawn, one.name) for found in floor],
            [getattr(found.real, one.name) for found in floor],
        )


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


# --- the meters -------------------------------------------------------------------------------------------


MOST_DIGITS = 4
_EXACT = 1e-3  # of a quantum
_NEARLY_ALL = 0.99
_COMMON = 0.1  # share of the customers


@dataclass(frozen=True, eq=False, repr=False)
class Customers:
    """PRIVATE. Some customers and days of a history, with what the release's model says of them.

    Attributes
    ----------
    history : the meters.
    off : (day,) whether it is a day off.
    floor_kw : (customer,) lowest load that the model knows [kW].
    """

    history: LoadHistory
    off: BoolArray
    floor_kw: FloatArray

    @property
    def load_kw(self) -> FloatArray:
        """(customer, day, step) raised to the floor, as the fit does [kW]."""
        return np.maximum(self.history.load_kw, self.floor_kw[:, None, None])


def some_customers(
    model: LoadModel, history: LoadHistory, most: tuple[int, int], rng: np.random.Generator
) -> Customers:
    """PRIVATE. At most so many customers, drawn at random, and so many first days.

    Parameters
    ----------
    most : customers and days.
    """
    chosen = np.sort(rng.permutation(history.n_load_points)[: most[0]])
    names = [history.load_points[k] for k in chosen]
    part = history.select(names, history.days[: most[1]])
    return Customers(part, days_off(model, part), _floors(model, part))


def quantum_of(history: LoadHistory) -> float | None:
    """INTERNAL. Resolution of the meters [kW], None where none is seen.

    Energies of an interval with up to four digits, or powers: the coarsest of which, for one customer in ten
    or more, nearly all readings are multiples. A lowest reading, such as a floor, does not count.
    """
    per_hour = 60.0 / history.step_minutes
    grids = {scale * 10.0**-digits for digits in range(MOST_DIGITS + 1) for scale in (1.0, per_hour)}
    some = history.load_kw[:: max(1, history.n_load_points // 200)]
    some = some.reshape(len(some), -1)
    thin = max(1, some.shape[1] // 1000)
    for quantum in sorted(grids, reverse=True):
        fitting = [_multiples(own[::thin], quantum) for own in some]
        if np.mean(fitting) >= _COMMON:
            return quantum
    return None


def _multiples(values: FloatArray, quantum: float) -> bool:
    """Whether nearly all values above the lowest are multiples of a quantum, and not one and the same."""
    above = values[values > values.min()]
    if np.unique(above).size < 2:
        return False
    return bool(np.mean(np.abs(above / quantum - np.round(above / quantum)) < _EXACT) > _NEARLY_ALL)


def _floors(model: LoadModel, history: LoadHistory) -> FloatArray:
    low = {part.name: part.bounds[0] for part in model.classes}
    lowest = min(low.values())
    each = np.array([low.get(label or ONE_CLASS, lowest) for label in history.class_label])
    return each * history.scale_kw if model.scaled and history.scale_kw is not None else each
