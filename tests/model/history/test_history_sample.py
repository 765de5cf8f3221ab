"""Days of persistent customers: the formula, windows and blocks, the process, bounds, persistence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from randomgen import AESCounter

from dp_powerflow import StreamKey
from dp_powerflow._bits.normal_pairs import short_pair1
from dp_powerflow.model.history.law import HIGHEST_SCORE, LOADS, LOWEST_SCORE, SCORES
from dp_powerflow.model.history.numbers import CELLS_AFTER, Ladder
from dp_powerflow.model.history.sample import TILE, HistorySampler, Population, Process
from dp_powerflow.model.sample import MOST_DEVIATIONS
from support.laws import days_of
from support.populations import courses, days_off, population, shared_factor

KEY = StreamKey.from_insecure_seed(5)
STEPS = 24
PER_LOAD = np.array([1, 300, 4, 290])  # more than one tile per class, and a last one that is not full


def sampler(
    people: Population, days: int, *, of: int | None = None, block_days: int | None = None
) -> HistorySampler:
    """The first days of a corpus of `of` days."""
    whole = days if of is None else of
    factor = shared_factor(len(people.classes), whole)[:, : days + 2]
    return HistorySampler(people, KEY, days, days_off(days), factor, block_days=block_days)


def drawn(source: HistorySampler) -> tuple[np.ndarray, np.ndarray]:
    firsts = [source.block(number).first_day for number in range(source.n_blocks)]
    assert firsts == [number * source.days_per_block for number in range(source.n_blocks)]
    return days_of(source)


@pytest.fixture(scope="module")
def people() -> Population:
    return population(PER_LOAD, steps=STEPS, days=30)


@pytest.mark.parametrize("block_days", [1, 2, 7, 16, 40])
def test_draws_do_not_depend_on_blocks(people: Population, block_days: int) -> None:
    whole = drawn(sampler(people, 40))
    for one, other in zip(whole, drawn(sampler(people, 40, block_days=block_days)), strict=True):
        assert np.array_equal(one, other)


def test_the_first_days_of_a_long_corpus_are_those_of_a_short_one(people: Population) -> None:
    long, short = drawn(sampler(people, 400)), drawn(sampler(people, 10, of=400))
    for one, other in zip(long, short, strict=True):
        assert np.array_equal(one[:, :10], other)


def words_of(process: Process, level: int, copies: int, cell: int) -> np.ndarray:
    """(copy,) 32 bits each."""
    key = process.recipe.keys[:2].tobytes()  # the first round key is the key
    stream = AESCounter(key=int.from_bytes(key, "little"), counter=(cell << 64) + (level << 32))
    return np.asarray(stream.random_raw(copies // 2 + 1).view(np.uint32)[:copies])


def noise_of(process: Process, level: int, copies: int, cells: int) -> np.ndarray:
    """(copy, cell) of one level from the first day on, from randomgen's words."""
    found = np.empty((cells + 1, copies))
    for cell in range(0, cells, 2):
        radius, angle = (words_of(process, level, copies, cell + k) for k in range(2))
        found[cell : cell + 2] = np.array([short_pair1(*each) for each in zip(radius, angle, strict=True)]).T
    return found[:cells].T


def course_of(process: Process, copies: int, days: int) -> np.ndarray:
    """(copy, day, step) of the process, by its definition."""
    ladder, steps = process.ladder, process.ladder.n_steps
    total = np.zeros((copies, days * steps))
    at = np.arange(days * steps)
    for level, (spacing, weights) in enumerate(zip(ladder.spacings, ladder.weights, strict=True)):
        cell, x = at // spacing, at % spacing
        noise = noise_of(process, level, copies, int(cell[-1]) + CELLS_AFTER + 1)
        for j, weight in enumerate(weights):
            total += process.amplitudes[level] * weight[x] * noise[:, cell + j]
    return total.reshape(copies, days, steps)


def summed(source: HistorySampler) -> tuple[np.ndarray, np.ndarray]:
    """(load, day, step) by the formula, one customer at a time."""
    people, days, steps = source.law, source.n_days, source.law.steps
    active, reactive = (np.zeros((people.n, days, steps)) for _ in range(2))
    scores = np.linspace(LOWEST_SCORE, HIGHEST_SCORE, SCORES)
    middles = np.arange(-1, days + 1) + 0.5
    times = (np.arange(days * steps) + 0.5) / steps
    for c, part in enumerate(people.classes):
        factor = np.interp(times, middles, source.factor[c]).reshape(days, steps)
        lowest, highest = part.bounds
        logs = np.linspace(np.log(lowest), np.log(highest), LOADS)
        time_of_day = np.arange(steps) * len(part.last_map) // steps
        chosen = np.flatnonzero(people.class_of == c)
        for i, eta in zip(chosen, course_of(source.processes[c][0], chosen.size, days), strict=True):
            z = people.mean_day[i] + source.off[:, None] * part.contrast + people.shared[i] * factor
            z = z + people.own[i] * part.own_profile * eta
            log_load = np.interp(z, scores, people.log_map[i])
            load = np.stack(
                [np.interp(log_load[:, t], logs, part.last_map[time_of_day[t]]) for t in range(steps)], axis=1
            )
            active[people.load_of[i]] += people.scale_kw[i] * load
            reactive[people.load_of[i]] += people.tan_theta[i] * people.scale_kw[i] * load
        random = source.processes[c][1]
        if random is not None:
            zeta = np.clip(course_of(random, people.n, days), -MOST_DEVIATIONS, MOST_DEVIATIONS)
            reactive += people.reactive_kvar[c][:, None, None] * zeta
    return active, reactive


def test_sums_follow_the_formula(people: Population) -> None:
    """Customers are in single precision."""
    source = sampler(people, 20, block_days=9)
    for got, want in zip(drawn(source), summed(source), strict=True):
        assert np.max(np.abs(got - want)) < 1e-6 * np.max(np.abs(want))


@pytest.mark.parametrize("steps", [1, 2, 5, 24, 25, 96, 144])
def test_a_process_is_the_sum_of_its_levels_whatever_the_day_and_the_amplitudes(steps: int) -> None:
    ladder, rng = Ladder.of(steps, 60), np.random.default_rng(steps)
    for case in range(3):
        amplitudes = rng.uniform(0.1, 1.0, len(ladder.spacings)) * (
            rng.random(len(ladder.spacings)) < 1 / (1 + case / 2)
        )
        process = Process(ladder, amplitudes, KEY, "test")
        whole = courses(process, 19, 0, 20)
        assert np.max(np.abs(whole - course_of(process, 19, 20))) < 4e-6
        assert np.array_equal(courses(process, 19, 7, 3), whole[:, 7:10])
        assert np.array_equal(courses(process, TILE + 5, 19, 1)[:19], whole[:, 19:])


def test_scores_beyond_the_tables_hold_the_ends(people: Population) -> None:
    """Half of the scores lie beyond: 1e6 standard deviations, of either sign."""
    wild = sampler(replace(people, own=1e6 * people.own), 2)
    for got, want in zip(drawn(wild), summed(wild), strict=True):
        assert np.max(np.abs(got - want)) < 1e-6 * np.max(np.abs(want))


@pytest.mark.parametrize("level", range(len(Ladder.of(STEPS, 30).spacings)))
def test_a_level_has_the_autocovariance_of_the_ladder(level: int) -> None:
    """Averaged over 400 copies and whole cells; six standard errors, found from the copies themselves."""
    ladder = Ladder.of(STEPS, 30)
    amplitudes = np.eye(len(ladder.spacings))[level]
    eta = courses(Process(ladder, amplitudes, KEY, "test"), 400, 3, 48).reshape(400, -1)
    spacing = ladder.spacings[level]
    lags = sorted({0, 1, spacing // 2, spacing, 2 * spacing, 3 * spacing, 4 * spacing + 1})
    expected = ladder.autocovariance(level, max(lags))
    whole = (eta.shape[1] - max(lags)) // spacing * spacing
    for lag in lags:
        each = np.mean(eta[:, :whole] * eta[:, lag : lag + whole], axis=1)
        assert abs(each.mean() - expected[lag]) < 6.0 * each.std() / np.sqrt(len(each)), lag


def test_no_draw_passes_the_bounds(people: Population) -> None:
    wild = replace(people, own=5.0 * people.own, reactive_kvar=0.0 * people.reactive_kvar)
    active, reactive = drawn(sampler(wild, 20))
    lowest = np.array([part.bounds[0] for part in wild.classes])[wild.class_of] * wild.scale_kw
    least = np.bincount(wild.load_of, lowest)
    assert np.all(active <= wild.most_kw[:, None, None] * (1 + 1e-12))
    assert np.all(active >= least[:, None, None] * (1 - 1e-12))
    assert active[0].max() == pytest.approx(wild.most_kw[0])  # a single customer does reach them
    assert active[0].min() == pytest.approx(least[0])
    assert np.all(reactive >= 0.1 * active)
    assert np.all(reactive <= 0.4 * active)
