"""Neighbouring histories: a search for the one replaced record that moves a query's sum most.

Released answers are held fixed: a query of a later round is a function of the records and of answers that
were paid for, and its sensitivity is claimed for every value of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import numpy as np

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model import derive as deriving
from dp_powerflow.model.fit import MeterSource, history_facts
from dp_powerflow.model.options import FitOptions
from dp_powerflow.privacy import queries
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, QueryCost
from dp_powerflow.privacy.queries import Query, Session, add_noise
from dp_powerflow.privacy.random import StreamKey

STEP_MINUTES, STEPS = 180, 8
BOUNDS = (0.01, 4.0)
KEY = StreamKey.from_insecure_seed(5)
Name = tuple[tuple[str, str], str | None, str]
"""A query: stage, cohort and name."""


@dataclass(eq=False)
class Seen:
    """What a run saw of one query: exact sums (block, dimension), every record's block and integers."""

    cost: QueryCost
    sums: np.ndarray
    block: np.ndarray
    integers: np.ndarray


@dataclass(eq=False)
class Fixed(Session):
    """Answers the first time with noise and from then on with the same answer, whoever is asked."""

    def __init__(self, stage: tuple[str, str], cohort: str | None, rho: float, run: Run) -> None:
        super().__init__(run.lab.unit, cohort, rho)
        self._stage, self._run = stage, run

    def _answer(self, query: Query, cost: QueryCost, blocks: Sequence[Iterable[np.ndarray]]) -> np.ndarray:
        name = (self._stage, self._cohort, query.name)
        parts = [
            np.concatenate([np.empty((0, query.dimension), dtype=np.int64), *_quantised(block, query)])
            for block in blocks
        ]
        sums = np.array([part.sum(axis=0) for part in parts])
        owner = np.concatenate([np.full(len(part), k) for k, part in enumerate(parts)])
        order = np.argsort(np.argsort(self._run.labels, kind="stable")) if len(parts) > 1 else slice(None)
        integers = np.concatenate(parts)
        self._run.seen[name] = Seen(cost, sums, owner[order], integers[order])
        released = self._run.lab.released
        if name not in released:
            noise = [add_noise(row, cost.sigma, KEY.stream(str(name), k)) for k, row in enumerate(sums)]
            released[name] = np.array(noise)
        return released[name]


def _quantised(chunks: Iterable[np.ndarray], query: Query) -> list[np.ndarray]:
    return [queries.quantise(chunk, query) for chunk in chunks]


@dataclass(eq=False)
class Run:
    """One run of the fit on one history."""

    lab: Lab
    seen: dict[Name, Seen] = field(default_factory=dict)
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, eq=False, repr=False)
class WatchedSource(MeterSource):
    """The history as the fit sees it, with sessions that answer as released before."""

    run: Any = None

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        return Fixed(stage, cohort, rho, self.run)


@dataclass(eq=False)
class Lab:
    """A fit, the answers that it released, and records to try.

    A record (day, step, 2) holds p and q [kW, kvar, both per public scale] of a load point.
    """

    options: FitOptions
    unit: PrivacyUnit
    epsilon: float = 20.0
    days: int = 2
    released: dict[Name, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(3)
        level = rng.normal(-1.0, 0.8, (24, 1, 1)) + rng.normal(0, 0.4, (24, self.days, STEPS))
        self.usual = np.stack([np.exp(level), 0.3 * np.exp(level) + rng.normal(0, 0.05, level.shape)], axis=3)
        self.facts = history_facts(self.history(self.usual), self.options, self.unit)
        self.of(self.usual)  # what is released is released now

    @property
    def per_day(self) -> bool:
        return self.unit is PrivacyUnit.LOAD_POINT_DAY

    def history(self, records: np.ndarray) -> LoadHistory:
        """Load points of two public classes in turn, with public scales if the fit divides by them."""
        count = len(records)
        scale = np.where(np.arange(count) % 2 == 0, 2.0, 0.5) if self.options.use_scale else np.ones(count)
        kw = records * scale[:, None, None, None]
        return LoadHistory(
            load_points=tuple(f"p{k}" for k in range(count)),
            days=tuple(date(2024, 1, 1) + timedelta(days=k) for k in range(self.days)),
            step_minutes=STEP_MINUTES,
            load_kw=kw[..., 0],
            load_kvar=kw[..., 1],
            scale_kw=scale,
            node_of=(None,) * count,
            class_label=tuple("ab"[k % 2] for k in range(count)),
        )

    def of(self, records: np.ndarray) -> dict[Name, Seen]:
        """Every query on these records, with the answers that were released at first.

        Public sizes are those of the usual history, however many records are tried at once.
        """
        history, run = self.history(records), Run(self)
        source = WatchedSource(self.facts, history, self.options, self.unit, KEY, run)
        split = deriving._split

        def watched(values: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> Any:
            run.labels = labels
            return split(values, labels, counts)

        deriving._split = watched
        try:
            deriving.derive(source, self.options, Budget(self.epsilon, 1e-5, self.unit))
        finally:
            deriving._split = split
        return run.seen

    def replaced(self, record: np.ndarray) -> dict[Name, Seen]:
        """The usual history with its first record replaced: a load point's days, or its first day."""
        records = self.usual.copy()
        if self.per_day:
            records[0, 0] = record[0]
        else:
            records[0] = record
        return self.of(records)


def pair_ratios(seen: Seen) -> np.ndarray:
    """Change of the sum over the claim for every pair of records, also from one block to another."""
    z, scale = seen.integers.astype(np.float64), float(seen.cost.sensitivity_squared)
    norms = (z**2).sum(axis=1)
    apart = norms[:, None] + norms[None, :]
    together = apart - 2 * z @ z.T
    same = seen.block[:, None] == seen.block[None, :]
    ratios: np.ndarray = np.sqrt(np.maximum(np.where(same, together, apart), 0.0) / scale)
    return ratios


def extremes(days: int) -> np.ndarray:
    """Hand-made records at and beyond the bounds."""
    t, (low, high) = np.arange(STEPS), np.log(BOUNDS)
    middle, half = (low + high) / 2, (high - low) / 2
    shapes = [np.full(STEPS, level) for level in (low, middle, high, -40.0, 40.0)]
    for k in range(1, STEPS):
        wave = np.cos(np.pi * k * (t + 0.5) / STEPS)
        shapes += [middle + half * size * wave for size in (-1.0, -0.3, 0.3, 1.0)]
    for at in range(0, STEPS, 2):
        spike = np.where(np.abs(t - at) <= 1, high, low)
        ripple = middle + np.where(np.abs(t - at) <= 1, half * (-1.0) ** t, 0.0)
        shapes += [spike, low + high - spike, ripple]
    p = np.exp(np.array(shapes))[:, None, :].repeat(days, axis=1)
    signs = np.array([-30.0, -1.0, 0.0, 0.4, 30.0])[np.arange(len(p)) % 5, None, None]
    return np.stack([p, signs * p * np.where(t % 3 == 0, 1.0, 0.5)], axis=3)


def children(parents: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Records near their parents: some steps moved, to a bound or at random; days alike or not."""
    count, days, steps, _ = parents.shape
    log_p = np.log(np.clip(parents[..., 0], 1e-6, 1e6))
    moved = rng.random((count, 1, steps)) < rng.choice([0.15, 0.5, 1.0], (count, 1, 1))
    size = 10.0 ** rng.uniform(-2, 0.7, (count, 1, 1))
    shape = (count, rng.choice([1, days]), steps)
    step = np.where(moved, size * rng.normal(size=shape), 0.0)
    to_bound = moved & (rng.random((count, 1, 1)) < 0.3)
    bound = np.log(BOUNDS)[rng.integers(0, 2, shape)]
    p = np.exp(np.clip(np.where(to_bound, bound, log_p + step), -30, 30))
    q = parents[..., 1] * np.exp(rng.normal(0, 0.5, (count, 1, 1))) + size * rng.normal(size=shape)
    return np.stack([p, q * rng.choice([1.0, 1.0, -1.0], (count, 1, 1))], axis=3)


@dataclass(frozen=True, eq=False)
class Worst:
    """The pair of records that moves a query most, of what was tried; `within` compares exact integers."""

    ratio: float
    within: bool
    pair: tuple[np.ndarray, np.ndarray]


def search(lab: Lab, generations: int, seed: int = 0) -> dict[Name, Worst]:
    """For every query the worst pair: extremes first, then children of the worst pairs so far."""
    rng, worst = np.random.default_rng(seed), dict[Name, Worst]()
    records = extremes(lab.days)
    for _ in range(generations):
        # Of both classes and of every slot: each record stands twice side by side.
        doubled = np.repeat(records, 2, axis=0)
        for name, seen in lab.of(doubled).items():
            ratios = pair_ratios(seen)
            i, j = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
            if name not in worst or ratios[i, j] > worst[name].ratio:
                one, other = (_record(lab, doubled, name, int(k), len(ratios)) for k in (i, j))
                worst[name] = Worst(float(ratios[i, j]), _within(seen, int(i), int(j)), (one, other))
        poor = sorted(worst.values(), key=lambda found: found.ratio)[:12]
        parents = np.array([record for found in poor for record in found.pair])
        records = children(np.repeat(parents, 3, axis=0), rng)
    return worst


def _within(seen: Seen, i: int, j: int) -> bool:
    """Whether replacing one record by the other stays within the claim, in exact integers."""
    one, other = (seen.integers[k].tolist() for k in (i, j))
    if seen.block[i] != seen.block[j]:
        one, other = one + [0] * len(one), [0] * len(one) + other
    return bool(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) <= seen.cost.sensitivity_squared)


def _record(lab: Lab, records: np.ndarray, name: Name, k: int, count: int) -> np.ndarray:
    """The load point that the k-th record of a query belongs to; a record of one day as all its days."""
    days = count // len(records) if name[1] is None else max(1, 2 * count // len(records))
    cohort = (name[1] or "").split(" / ")[0]
    if not lab.per_day:
        days = 1
    point = k // days
    chosen = point if cohort not in ("a", "b") else 2 * point + "ab".index(cohort)
    record = records[chosen]
    return np.repeat(record[k % days][None], lab.days, axis=0) if lab.per_day else record


def exact_change(one: Seen, other: Seen) -> tuple[float, int]:
    """Change of the exact sums between two histories over the claim, and how many records changed."""
    assert one.cost == other.cost
    change = [int(a) - int(b) for a, b in zip(one.sums.ravel(), other.sums.ravel(), strict=True)]
    squared = sum(value * value for value in change)
    moved = (one.integers != other.integers).any(axis=1) | (one.block != other.block)
    return (squared / one.cost.sensitivity_squared) ** 0.5, int(moved.sum())
