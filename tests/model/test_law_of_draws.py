"""What samplers draw is normal: the middle, the tails far out, and no trace of one draw in another.

Everything goes through the samplers. Limits are those that one key in a thousand million passes, or fewer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dp_powerflow import StreamKey
from dp_powerflow.lowlevel import ClassLaw, LoadLaw, LoadSampler
from dp_powerflow.model.history.law import HIGHEST_SCORE, LOADS, LOWEST_SCORE, SCORES
from dp_powerflow.model.history.sample import HistorySampler
from dp_powerflow.model.sample import CustomerLaw, CustomerSampler, LoadSource
from support.laws import alike, days_of
from support.populations import population

KEY = StreamKey.from_insecure_seed(11)
STEPS, NODES, DAYS = 25, 40, 2000
CHANCE = 1e-9
pytestmark = pytest.mark.slow


def day_law(q: float = 0.0) -> tuple[LoadLaw, np.ndarray, np.ndarray]:
    """A law of all nodes, its mean and its factor."""
    rng = np.random.default_rng(0)
    root, mean = rng.normal(0.0, 0.2, (STEPS, STEPS)), rng.normal(0.0, 0.3, STEPS)
    covariance = root @ root.T + 0.05 * np.eye(STEPS)
    part = ClassLaw.gaussian(mean, covariance, margins=(1e-30, 1e30), q_covariance=np.eye(STEPS))
    return alike(part, NODES, q=q or None), mean, np.linalg.cholesky(covariance)


def active_normals(source: LoadSource) -> np.ndarray:
    """(load, day, step) that the active loads of a law of days were made of."""
    _, mean, factor = day_law()
    found = np.linalg.solve(factor, (np.log(days_of(source)[0] / 2.0) - mean).reshape(-1, STEPS).T)
    return np.asarray(found.T.reshape(NODES, DAYS, STEPS))


def reactive_normals(source: LoadSource) -> np.ndarray:
    """The same of the random part of the reactive loads."""
    active, reactive = days_of(source)
    return np.asarray((reactive - 0.3 * active) / (2.0 * 0.1))


def by_loads() -> LoadSampler:
    return LoadSampler(day_law()[0], KEY, DAYS)


def by_customers() -> CustomerSampler:
    """Loads of one customer each."""
    return CustomerSampler(CustomerLaw(day_law()[0], np.arange(NODES), np.arange(NODES)), KEY, DAYS)


def by_random_part() -> LoadSampler:
    return LoadSampler(day_law(0.1)[0], KEY, DAYS)


def history_normals(level: int) -> np.ndarray:
    """(load, day, step or cell) of one level, of customers whose maps are straight."""
    people = population(np.ones(NODES, dtype=np.int64), steps=24, days=30, classes=1)
    part = people.classes[0]
    logs = np.linspace(LOWEST_SCORE, HIGHEST_SCORE, LOADS)
    straight = replace(
        people,
        classes=(
            replace(
                part,
                contrast=0.0 * part.contrast,
                own_profile=np.ones(24),
                amplitudes=np.eye(len(part.amplitudes))[level],
                bounds=(float(np.exp(LOWEST_SCORE)), float(np.exp(HIGHEST_SCORE))),
                last_map=np.tile(np.exp(logs), (len(part.last_map), 1)),
                reactive_amplitudes=None,
            ),
        ),
        scale_kw=np.ones(NODES),
        mean_day=0.0 * people.mean_day,
        shared=np.zeros(NODES),
        own=np.ones(NODES),
        log_map=np.tile(np.linspace(LOWEST_SCORE, HIGHEST_SCORE, SCORES), (NODES, 1)),
    )
    source = HistorySampler(straight, KEY, DAYS, np.zeros(DAYS), np.zeros((1, DAYS + 2)))
    return np.asarray(np.interp(days_of(source)[0], np.exp(logs), logs))


def white() -> np.ndarray:
    return history_normals(0)


def smooth() -> np.ndarray:
    """Every eighth step of the second level: four steps of two, so that no two share a cell."""
    course = history_normals(1).reshape(NODES, -1)[:, ::8]
    return np.asarray(course.reshape(NODES, DAYS, 3) / course.std())


DRAWS = {
    "loads": lambda: active_normals(by_loads()),
    "customers": lambda: active_normals(by_customers()),
    "reactive": lambda: reactive_normals(by_random_part()),
    "persistent, white": white,
    "persistent, smooth": smooth,
}


@pytest.fixture(scope="module", params=list(DRAWS))
def normals(request: pytest.FixtureRequest) -> np.ndarray:
    """(load, day, step)."""
    return np.asarray(DRAWS[request.param]())


def test_the_middle_is_that_of_the_normal_law(normals: np.ndarray) -> None:
    """Chi-square over 256 cells of equal probability, and the largest distance of the distributions."""
    counts = np.bincount((stats.norm.cdf(normals.reshape(-1)) * 256).astype(int), minlength=256)
    assert stats.chisquare(counts).pvalue > CHANCE
    assert stats.kstest(normals.reshape(-1)[::4], "norm").pvalue > CHANCE


def test_the_tails_are_those_of_the_normal_law(normals: np.ndarray) -> None:
    for side in (1.0, -1.0):
        for limit in (2.0, 3.0, 3.5, 4.0, 4.5, 5.0):
            count, expected = int(np.sum(side * normals > limit)), normals.size * stats.norm.sf(limit)
            assert stats.poisson.cdf(count, expected) > CHANCE, limit
            assert stats.poisson.sf(count - 1, expected) > CHANCE, limit
    largest = float(np.abs(normals).max())
    assert normals.size * 2 * stats.norm.sf(largest) < -np.log(CHANCE)
    assert normals.size * 2 * stats.norm.sf(largest) > CHANCE


def test_no_draw_tells_of_another(normals: np.ndarray) -> None:
    """Neighbours in time, days and loads, and neighbours of those: neither values nor sizes go together."""
    limit = stats.norm.isf(CHANCE)
    for values in (normals, normals * normals - 1.0, np.abs(normals) - np.sqrt(2 / np.pi)):
        scale = float(np.mean(values * values))
        for axis in range(3):
            for lag in (1, 2, 3, 4, 8, 16):
                if lag < values.shape[axis]:
                    head = np.take(values, np.arange(values.shape[axis] - lag), axis)
                    tail = np.take(values, np.arange(lag, values.shape[axis]), axis)
                    assert abs(np.mean(head * tail)) < 1.5 * limit * scale / np.sqrt(head.size), (axis, lag)
