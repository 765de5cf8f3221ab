"""Small histories of whole customers, customers made to break a sensitivity claim, and a watched fit.

Adaptive composition argues query by query: what a customer adds to one is a function of that customer, with
all its days, and of answers released before. So answers of one fit are held fixed while customers change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.derive import derive
from dp_powerflow.model.fit import MeterSource, data_key, history_facts
from dp_powerflow.model.options import DayFacts, FitOptions, HistoryFacts
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, QueryCost
from dp_powerflow.privacy.queries import Answer, Blocks, Query, ReplaySession, Session, quantise
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

MONDAY = dt.date(2024, 1, 1)
BOUNDS = (0.02, 20.0)


def history_of(
    load_kw: FloatArray,
    load_kvar: FloatArray | None = None,
    *,
    labels: Sequence[str | None] | None = None,
    scale_kw: FloatArray | None = None,
    first: dt.date = MONDAY,
) -> LoadHistory:
    """A simulated history of loads (customer, day, step) from a day on."""
    n, days, steps = load_kw.shape
    return LoadHistory(
        load_kw=load_kw,
        load_kvar=load_kvar,
        load_points=tuple(f"point {i:05d}" for i in range(n)),
        days=tuple(first + dt.timedelta(days=k) for k in range(days)),
        step_minutes=1440 // steps,
        node_of=(None,) * n,
        class_label=(None,) * n if labels is None else tuple(labels),
        scale_kw=scale_kw,
        simulated=True,
    )


def customers(n: int, days: int, steps: int, seed: int = 0, weather: FloatArray | None = None) -> FloatArray:
    """(customer, day, step) [kW] of plausible homes: own level, evening peak, late weekends, shared weather.

    `weather` (day,) is what it adds to the log of every load.
    """
    rng = np.random.default_rng(seed)
    hour = 24.0 * (np.arange(steps) + 0.5) / steps
    peak = rng.normal(19.0, 1.0, (n, 1, 1))
    off = (np.arange(days) % 7 >= 5)[None, :, None]
    level = rng.normal(-1.0, 0.5, (n, 1, 1))
    evening = np.exp(-0.5 * ((hour - peak) / 2.5) ** 2)
    morning = 0.4 * off * np.exp(-0.5 * ((hour - 11.0) / 2.0) ** 2)
    white = 0.4 * rng.standard_normal((n, days, steps))
    slow = 0.3 * rng.standard_normal((n, days, 1))
    shared = 0.0 if weather is None else weather[None, :, None]
    return np.exp(level + evening + morning + white + slow + shared)


def day_facts(history: LoadHistory, **covariates: FloatArray) -> DayFacts:
    """Weekends, and covariates (day,) by name."""
    return DayFacts(
        tuple(day.isoformat() for day in history.days),
        tuple(day.weekday() >= 5 for day in history.days),
        tuple((name, tuple(values.tolist())) for name, values in covariates.items()),
    )


def adversaries(days: int, steps: int, bounds: tuple[float, float], seed: int = 0) -> FloatArray:
    """(customer, day, step) [kW] made by hand: at, within and beyond the bounds, with all kinds of memory."""
    rng = np.random.default_rng(seed)
    low, high = np.log(bounds)
    middle, half = (low + high) / 2, (high - low) / 2
    day, step = np.arange(days)[:, None], np.arange(steps)[None, :]
    time = day * steps + step
    off = day % 7 >= 5
    signs: list[FloatArray] = [  # each is tried with both signs
        np.ones((days, steps)),
        np.where(day % 2 == 0, 1.0, -1.0) + 0.0 * step,
        np.where(step % 2 == 0, 1.0, -1.0) + 0.0 * day,
        np.where(day < days // 2, 1.0, -1.0) + 0.0 * step,
        np.where(off, 1.0, -1.0) + 0.0 * step,
        np.where((time // 4) % 2 == 0, 1.0, -1.0),
        np.where((time // (2 * steps)) % 2 == 0, 1.0, -1.0),
        np.where(time == time[days // 2, steps // 3], 1.0, -1.0),
        np.where((day == days // 2) & (step >= 0), 1.0, -1.0),
        np.where(step < steps // 3, 1.0, -1.0) + 0.0 * day,
        rng.choice([-1.0, 1.0], (days, steps)),
        rng.choice([-1.0, 1.0], (days, 1)) + np.zeros((1, steps)),
        2.0 * time / time.max() - 1.0,
    ]
    for harmonic in (1, 2, 3):
        angle = 2.0 * np.pi * harmonic * (step + 0.5) / steps + 0.0 * day
        signs += [np.cos(angle), np.sin(angle), 0.2 * np.cos(angle), 0.2 * np.sin(angle)]
    shapes = [middle + sign * size * half for sign in signs for size in (1.0, -1.0)]
    shapes += [middle + sign * 0.1 * half for sign in signs]  # what is small within wide bounds
    shapes += [middle + shift * half + 0.0 * time for shift in (-0.5, -0.1, 0.1, 0.5)]
    shapes += [rng.normal(middle, std, (days, steps)) for std in (0.05, 0.5, 2.0, 50.0)]
    shapes += [rng.normal(middle, 1.0, (days, 1)) + rng.normal(0.0, 0.3, (days, steps)) for _ in range(4)]
    found: FloatArray = np.exp(np.array(shapes))
    return found


@dataclass(frozen=True, eq=False)
class Watched:
    """One query: what it claims, and what every customer adds to it.

    Parameters
    ----------
    cost
        As recorded.
    values
        (customer, dimension) of each block, as asked for.
    grids
        (customer, dimension) of each block, the integers that are summed.
    """

    cost: QueryCost
    values: list[FloatArray]
    grids: list[IntArray]

    @property
    def sums(self) -> IntArray:
        """(block, dimension) exact sums."""
        return np.array([grid.sum(axis=0) for grid in self.grids])

    def moved(self, other: Watched) -> Fraction:
        """How far the exact sums of two neighbours lie apart, over what the cost claims; both squared."""
        apart = (self.sums - other.sums).reshape(-1).astype(object)
        return Fraction(int(apart @ apart), self.cost.sensitivity_squared)

    def worst(self) -> Fraction:
        """The same over all replacements of one customer by another, also of another class."""
        claim, worst = self.cost.sensitivity_squared, 0
        norms = [np.einsum("nd,nd->n", grid, grid) for grid in self.grids]
        for grid, norm in zip(self.grids, norms, strict=True):
            if len(grid):
                inner = np.array([np.einsum("nd,d->n", grid, row) for row in grid])  # below 2⁴⁸·n: exact
                worst = max(worst, int((norm[:, None] + norm[None, :] - 2 * inner).max()))
        across = sorted((int(norm.max()) for norm in norms if norm.size), reverse=True)[:2]
        if len(across) == 2:
            worst = max(worst, sum(across))
        return Fraction(worst, claim)


class HeldSession(ReplaySession):
    """Answers as an earlier fit did, and keeps what every customer adds."""

    def __init__(
        self,
        published: Iterator[Answer],
        unit: PrivacyUnit,
        cohort: str | None,
        rho: float,
        seen: list[Watched],
    ) -> None:
        super().__init__(published, unit, cohort, rho)
        self._seen = seen

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        nobody = np.empty((0, query.dimension))
        values = [np.concatenate([nobody, *block]) for block in blocks]
        self._seen.append(Watched(cost, values, [quantise(each, query) for each in values]))
        return super()._answer(query, cost, blocks)


@dataclass(frozen=True, eq=False, repr=False)
class HeldMeters(MeterSource):
    """Meters whose queries are answered by an earlier fit."""

    published: Iterator[Answer]
    seen: list[Watched]

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        return HeldSession(self.published, self.unit, cohort, rho, self.seen)


def released(history: LoadHistory, options: FitOptions, budget: Budget, seed: int = 0) -> tuple[Answer, ...]:
    """The answers of a fit."""
    key = data_key(history, options, budget, StreamKey.from_insecure_seed(seed))
    facts = history_facts(history, options, budget.unit)
    return derive(MeterSource(facts, history, options, budget.unit, key), options, budget).answers


def watch(
    history: LoadHistory,
    options: FitOptions,
    budget: Budget,
    answers: tuple[Answer, ...],
    facts: HistoryFacts,
) -> list[Watched]:
    """What the customers of a history add to every query of a fit, its answers held fixed."""
    key, seen = StreamKey.from_insecure_seed(0), list[Watched]()
    derive(HeldMeters(facts, history, options, budget.unit, key, iter(answers), seen), options, budget)
    return seen
