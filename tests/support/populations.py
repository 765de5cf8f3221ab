"""A population made by hand: persistent customers with plausible days, from no meter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.law import HIGHEST_SCORE, LOADS, LOWEST_SCORE, SCORES
from dp_powerflow.model.history.numbers import Ladder
from dp_powerflow.model.history.sample import (
    TILE,
    ClassPath,
    Population,
    Process,
    draw_day,
    path_of,
    population_of,
    tile_of,
)
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

BOUNDS = (0.02, 20.0)
TIMES_OF_DAY = 6


def path(name: str, ladder: Ladder, rng: np.random.Generator, *, reactive: bool = True) -> ClassPath:
    """What one class shares: evening peak, late mornings on days off, a last map that bends a little."""
    steps = ladder.n_steps
    hour = 24.0 * (np.arange(steps) + 0.5) / steps
    squares = 1.0 / (1.0 + np.arange(len(ladder.spacings)))
    grid = np.linspace(np.log(BOUNDS[0]), np.log(BOUNDS[1]), LOADS)
    bend = 0.1 * np.sin(np.pi * np.linspace(0.0, 1.0, LOADS)) * rng.uniform(-1.0, 1.0, (TIMES_OF_DAY, 1))
    squares_q = squares[::-1]
    return ClassPath(
        name=name,
        contrast=0.5 * np.exp(-0.5 * ((hour - 11.0) / 2.0) ** 2),
        own_profile=0.7 + 0.4 * np.sin(np.pi * hour / 24.0),
        ladder=ladder,
        amplitudes=np.sqrt(squares / squares.sum()),
        bounds=BOUNDS,
        last_map=np.clip(np.exp(grid + bend), *BOUNDS),
        reactive_amplitudes=np.sqrt(squares_q / squares_q.sum()) if reactive else None,
    )


def population(
    per_load: IntArray, *, steps: int = 96, days: int = 365, classes: int = 2, seed: int = 1
) -> Population:
    """Customers of loads with so many each, classes mixed; about 0.5 kW each."""
    rng = np.random.default_rng(seed)
    load_of = np.repeat(np.arange(len(per_load)), per_load)
    n, ladder = len(load_of), Ladder.of(steps, days)
    hour = 24.0 * (np.arange(steps) + 0.5) / steps
    peak = rng.normal(19.0, 1.5, (n, 1))
    mean_day = np.exp(-0.5 * ((hour - peak) / 2.5) ** 2) + 0.3 * rng.standard_normal((n, 1)) - 0.3
    level, spread = np.log(0.3) + 0.5 * rng.standard_normal((n, 1)), rng.uniform(0.4, 0.9, (n, 1))
    log_map = level + spread * np.linspace(LOWEST_SCORE, HIGHEST_SCORE, SCORES)
    kvar = np.sqrt(0.02**2 * np.bincount(load_of))
    paths = [path(f"class {k}", ladder, rng, reactive=k % 2 == 0) for k in range(classes)]
    return Population(
        classes=tuple(paths),
        class_of=rng.integers(0, classes, n),
        load_of=load_of,
        scale_kw=rng.uniform(0.8, 1.2, n),
        tan_theta=rng.uniform(0.1, 0.4, n),
        mean_day=mean_day,
        shared=0.4 * np.abs(rng.standard_normal(n)),
        own=rng.uniform(0.6, 1.0, n),
        log_map=np.clip(log_map, *np.log(BOUNDS)),
        reactive_kvar=np.stack([kvar * (each.reactive_amplitudes is not None) for each in paths]),
        identity="by hand",
    )


def days_off(days: int) -> FloatArray:
    """(day,) weight of the contrast, from a Monday on."""
    return np.where(np.arange(days) % 7 >= 5, 5.0 / 7.0, -2.0 / 7.0)


def shared_factor(classes: int, days: int, seed: int = 2) -> FloatArray:
    """(class, day + 2) weather of some days, and of one before and one after: a year's course and spells."""
    rng = np.random.default_rng(seed)
    spells = np.convolve(rng.standard_normal(days + 8), np.ones(7) / np.sqrt(7.0), mode="valid")
    season = np.cos(2.0 * np.pi * np.arange(days + 2) / 365.0)
    return np.repeat((0.8 * season + 0.5 * spells)[None], classes, axis=0)


def drawn(
    model: LoadModel,
    names: Sequence[str],
    load_of: np.ndarray,
    scale_kw: np.ndarray | None,
    tan_theta: np.ndarray,
    key: StreamKey,
) -> Population:
    """Customers drawn from a fitted model, as the pipeline draws them."""
    return population_of(model.histories, model.sha256, names, load_of, scale_kw, tan_theta, key)


def course(
    model: LoadModel,
    people: Population,
    calendar: Calendar,
    covariates: Mapping[str, np.ndarray],
    key: StreamKey,
) -> tuple[np.ndarray, np.ndarray]:
    """Weight of the contrast, and shared factor of the classes of a population, on the days of a calendar."""
    assert model.origin is not None
    assert model.origin.facts.days is not None
    used = {part.name for part in people.classes}
    classes = [part for part in model.histories if part.name in used]
    facts, bound = model.origin.facts.days, key.bind("model", model.sha256)
    return path_of(classes, facts, calendar.days, calendar.off, covariates, bound)


def courses(process: Process, copies: int, first: int, days: int) -> np.ndarray:
    """(copy, day, step) of some consecutive days of a process."""
    steps = process.ladder.n_steps
    out = np.empty((copies, days, steps))
    for start in range(0, copies, TILE):
        work, own = process.work(), out[start : start + TILE]
        for day in range(days):
            row = draw_day(process.recipe, first + day, tile_of(start, copies), work)
            own[:, day] = work.eta[row : row + steps, : len(own)].T
    return out
