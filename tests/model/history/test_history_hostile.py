"""The history model under attack: absurd answers, extreme customers, names made to collide."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, LoadModel, StreamKey
from dp_powerflow._bits.elementary import log
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import PrivacyUnit, simulate_load_history
from dp_powerflow.model.derive import FitOutcome, NoRecords, derive
from dp_powerflow.model.estimators import Bounds, CustomerChunk, Records, vector_to_symmetric
from dp_powerflow.model.fit import fit
from dp_powerflow.model.history.contributions import Scores, mean_day, rank_features
from dp_powerflow.model.history.estimate import History, _through
from dp_powerflow.model.history.law import SCORES, HistoryClass
from dp_powerflow.model.history.numbers import interpolate
from dp_powerflow.model.history.sample import HistorySampler, path_of, population_of
from dp_powerflow.model.options import DayFacts, HistoryFacts, PublicSpread
from dp_powerflow.model.partition import PrivateClasses, PublicLabels
from dp_powerflow.privacy.budget import QueryCost
from dp_powerflow.privacy.queries import GRID_RADIUS, Blocks, Query, Region, Session, exact_sum
from dp_powerflow.privacy.random import Stream
from dp_powerflow.units import FloatArray, IntArray

KEY = StreamKey.from_insecure_seed(1)
BOUNDS = (1e-3, 10.0)
CUSTOMERS = 9
Forge = Callable[[Query, QueryCost, IntArray], Any]

ANSWERS: dict[str, Forge] = {
    "zero": lambda query, cost, total: 0,
    "all at the radius": lambda query, cost, total: CUSTOMERS * GRID_RADIUS,
    "all below zero": lambda query, cost, total: -CUSTOMERS * GRID_RADIUS,
    "largest integer": lambda query, cost, total: 2**63 - 1,
    "smallest integer": lambda query, cost, total: -(2**63),
    "100 deviations up": lambda query, cost, total: total + 100 * cost.sigma,
    "100 deviations down": lambda query, cost, total: total - 100 * cost.sigma,
    "10 deviations to and fro": lambda query, cost, total: (
        total + 10 * cost.sigma * (-1) ** np.arange(query.dimension)
    ),
    "1000 deviations to and fro": lambda query, cost, total: (
        total - 1000 * cost.sigma * (-1) ** np.arange(query.dimension)
    ),
}


class Forged(Session):
    """Evaluates contributions, checks where they lie, and answers something else."""

    def __init__(self, forge: Forge, cohort: str | None, rho: float) -> None:
        super().__init__(PrivacyUnit.LOAD_POINT, cohort, rho)
        self.forge = forge

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        found = np.empty((len(blocks), query.dimension), dtype=np.int64)
        for row, block in zip(found, blocks, strict=True):
            chunks = list(block)
            for chunk in chunks:
                _check_region(query, chunk)
            row[:] = self.forge(query, cost, exact_sum(chunks, query))
        return found


def _check_region(query: Query, chunk: FloatArray) -> None:
    assert chunk.shape[1] == query.dimension
    assert np.all(np.isfinite(chunk)), query.name
    if query.region is Region.ORTHANT:
        assert np.all(chunk >= 0.0), query.name
    if query.region is Region.PSD:
        size = (int(np.sqrt(8 * query.dimension + 1)) - 1) // 2
        for row in chunk:
            values = np.linalg.eigvalsh(vector_to_symmetric(row, size))
            assert values[0] >= -1e-12 * max(values[-1], 1.0)


class ExtremeCustomers(NoRecords):
    """Extreme ones: at a bound, beyond it, at both, all alike, at one bound but for one step."""

    def _load_kw(self) -> FloatArray:
        shape = (CUSTOMERS, self.facts.n_days, self.facts.n_steps)
        low, high = BOUNDS
        load: FloatArray = np.exp(np.random.default_rng(0).standard_normal(shape)) / 3
        load[0], load[1], load[2], load[3] = low, high, -5.0, 1e308
        load[4], load[5] = low, high
        load[4, 0, 0], load[5, 0, 0] = high, low
        load[6] = np.where(np.arange(shape[2]) % 2, low, high)
        return load

    def log_load(self, name: str | None, bounds: Bounds) -> FloatArray:
        return log(np.clip(self._load_kw(), *bounds))


def facts_of(steps: int, days: int, customers: int = CUSTOMERS) -> HistoryFacts:
    dates = [dt.date(2024, 1, 1) + dt.timedelta(day) for day in range(days)]
    off = tuple(date.weekday() >= 5 for date in dates)
    warmth = tuple(float(day % 5) for day in range(days))
    known = DayFacts(tuple(date.isoformat() for date in dates), off, (("temperature", warmth),))
    return HistoryFacts(1440 // steps, (("a", customers),), days, known)


def derived(
    forge: Forge, steps: int, days: int, epsilon: float = 2.0, *, private: bool = False
) -> FitOutcome:
    classes = PrivateClasses(2) if private else PublicLabels()
    options = FitOptions(BOUNDS, History(), classes, reactive=PublicSpread())
    source = ExtremeCustomers(facts_of(steps, days), lambda cohort, rho: Forged(forge, cohort, rho))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return derive(source, options, Budget(epsilon))


def check_loads(classes: tuple[HistoryClass, ...], facts: DayFacts) -> None:
    """Every number of the laws is finite, and the loads drawn from them lie within the bounds."""
    for part in classes:
        assert all(np.all(np.isfinite(value)) for value in vars(part.law).values())
    names = [part.name for part in classes for _ in range(4)]
    count, days = len(names), 5
    own = population_of(classes, "x", names, np.arange(count), None, np.full(count, np.nan), KEY)
    calendar = [dt.date(2024, 1, 12) + dt.timedelta(day) for day in range(days)]
    warmth = {"temperature": np.linspace(-1e3, 1e3, days)}
    off, factor = path_of(classes, facts, calendar, np.arange(days) % 2 == 0, warmth, KEY)
    block = HistorySampler(own, KEY, days, off, factor).block(0)
    assert np.all(block.load_kw >= BOUNDS[0] * (1 - 1e-9))
    assert np.all(block.load_kw <= BOUNDS[1] * (1 + 1e-9))
    assert np.all(np.abs(block.load_kvar) < 100 * BOUNDS[1])


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(
    ("steps", "days", "epsilon", "private"),
    [(8, 14, 2.0, True), (8, 49, 0.01, False), (24, 15, 100.0, False)],
)
def test_no_answer_breaks_a_fit(answer: str, steps: int, days: int, epsilon: float, private: bool) -> None:
    found = derived(ANSWERS[answer], steps, days, epsilon, private=private)
    known = facts_of(steps, days).days
    assert known is not None
    check_loads(tuple(part for part in found.classes if isinstance(part, HistoryClass)), known)


def test_no_contribution_depends_on_how_many_customers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: with private classes, who else is in a class is private."""
    asked = []

    def of_customers(self: Records, of: Callable[[CustomerChunk], FloatArray]) -> Iterator[FloatArray]:
        log_load = self.log_load[:]
        together = of(CustomerChunk(log_load))
        for index, own in enumerate(together):
            assert np.array_equal(of(CustomerChunk(log_load[index : index + 1]))[0], own)
        assert np.array_equal(of(CustomerChunk(log_load[::-2])), together[::-2])
        asked.append(together.shape)
        yield together

    monkeypatch.setattr(Records, "of_customers", of_customers)
    for steps, days in ((24, 49), (96, 14)):  # ladders of eight levels or more, bands of eight or more
        derived(lambda query, cost, total: total, steps, days)
    assert len(asked) == 2 * 21  # queries


def test_a_number_that_is_none_never_leaves_a_table() -> None:
    """Kernels do not check their indices: one beyond the table would read anywhere."""
    nan = CustomerChunk(np.full((2, 3, 8), np.nan))
    edges = np.linspace(-3.0, 3.0, 33)
    assert np.all(mean_day(nan, Scores(edges, -3.0, -6.0)) == -3.0)
    place = np.array([[np.nan, np.inf, -np.inf]])
    _through(np.tile(np.arange(float(SCORES)), (1, 1)), place)
    assert place[0] == pytest.approx([0.0, SCORES - 1.0, 0.0], abs=1e-3)
    assert interpolate(np.array([np.nan]), np.arange(3.0), np.arange(3.0)).shape == (1,)
    probabilities, basis = np.linspace(0.001, 0.999, 5), np.arange(12.0).reshape(1, 12)
    tables = np.full((1, 5), np.nan)
    found = rank_features(np.zeros((1, 2, 8)), tables, probabilities, basis, np.ones((1, 8)))
    assert np.all(found >= 0.0)
    assert np.all(found <= 11.0)


@pytest.fixture(scope="module")
def model() -> LoadModel:
    history = simulate_load_history(40, n_days=14, step_minutes=120, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(history, budget=Budget(5.0), options=FitOptions(BOUNDS, History()), key=KEY)


def test_no_label_of_a_class_makes_two_streams_one(model: LoadModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[str, ...], str, int]] = []
    stream = StreamKey.stream

    def recorded(self: StreamKey, purpose: str, block: int = 0) -> Stream:
        if "model" in self.context:
            asked.append((self.context, purpose, block))
        return stream(self, purpose, block)

    part = model.histories[0]
    labels = ("a", "a/slow", "0", "traits", "0/traits", "customers/a", "reactive/a", "shapes", "")
    classes = [HistoryClass(label, 1.0, part.bounds, part.law, part.reactive) for label in labels]
    monkeypatch.setattr(StreamKey, "stream", recorded)
    count = len(labels)
    own = population_of(classes, "x", labels, np.arange(count), None, np.full(count, np.nan), KEY)
    HistorySampler(own, KEY, 2, np.zeros(2), np.zeros((count, 4))).block(0)
    assert len(asked) == 4 * count
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    "dates", [("hello", "2024-01-02"), ("2024-01-02", "2024-01-01"), ("2024-01-01",) * 2]
)
def test_dates_that_are_none_or_out_of_order_are_refused(dates: tuple[str, str]) -> None:
    with pytest.raises(PrivacyError, match="dates of a history"):
        DayFacts(dates, (False, False))
