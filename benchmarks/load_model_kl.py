"""The Gaussian of a released day model against that of its population: `load_model.py --kl` and `--sampling`.

KL(true ‖ released) per dimension, the part of it due to the covariance alone, the error of the mean and of
the covariance, and the released mean load over that of the fitted days, for load points × ε × unit of
privacy, plain and structured, at T = 96, δ = 1e-5. Medians over repetitions of data and noise. "True" is the
Gaussian of the population: the non-private mean and covariance of many more customer-days than are fitted. So
none of it can see what the Gaussian of a day leaves out: memory, customers that differ, weather that they
share.

Populations
-----------
simulated  residential demo customers, the same 7 days of each, drawn from 10,000 without replacement; truth
           from 6,000 other customers.
simbench   the household, commercial and agricultural profiles of SimBench 2016 as one class. There are few
           profiles, so a load point is a resample: a profile drawn with replacement and a window of 7
           consecutive days of its year. Truth is the Gaussian of all profiles and days. Load points are thus
           independent draws from the empirical population, not independent customers.
"""

from __future__ import annotations

import datetime as dt
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dp_powerflow import Budget, FitOptions, LoadHistory, StreamKey
from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.lowlevel import (
    Estimator,
    LoadSampler,
    PrivacyUnit,
    PublicSpread,
    WeakBudgetWarning,
    simulate_load_history,
)
from dp_powerflow.model.fit import fit
from dp_powerflow.model.law import LoadNodes
from dp_powerflow.units import FloatArray

DAYS = 7
STEPS = 96
FAMILIES = ("household", "commercial", "agricultural")
SIMBENCH_FLOOR = 1e-3  # of nominal power; some profiles are zero at night


@dataclass(frozen=True, eq=False)
class Population:
    """A law of load points: its Gaussian, declared bounds, and a way to draw histories."""

    name: str
    mean: FloatArray
    covariance: FloatArray
    bounds: tuple[float, float]
    draw: Callable[[int, int], FloatArray]


def simulated() -> Population:
    everyone = simulate_load_history(16_000, n_days=DAYS, classes=DEMO_CLASSES[:1]).load_kw
    fitted, others = everyone[:10_000], everyone[10_000:]

    def draw(n: int, seed: int) -> FloatArray:
        chosen: FloatArray = fitted[np.random.default_rng(seed).permutation(len(fitted))[:n]]
        return chosen

    days = np.log(others).reshape(-1, STEPS)
    return Population("simulated", days.mean(axis=0), np.cov(days.T), (0.005, 50.0), draw)


def simbench() -> Population:
    from dp_powerflow_paper.datasets import read_simbench

    year = np.clip(read_simbench(FAMILIES).load_kw, SIMBENCH_FLOOR, 1.0)
    days = np.log(year).reshape(-1, STEPS)
    print(f"simbench: {year.shape[0]} profiles × {year.shape[1]} days")

    def draw(n: int, seed: int) -> FloatArray:
        rng = np.random.default_rng(seed)
        profile = rng.integers(0, year.shape[0], n)
        first = rng.integers(0, year.shape[1] - DAYS + 1, n)
        resampled: FloatArray = year[profile[:, None], first[:, None] + np.arange(DAYS)]
        return resampled

    return Population("simbench", days.mean(axis=0), np.cov(days.T), (SIMBENCH_FLOOR, 1.0), draw)


def as_history(load_kw: FloatArray) -> LoadHistory:
    n = len(load_kw)
    days = tuple(dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(DAYS))
    names = tuple(f"point{i}" for i in range(n))
    return LoadHistory(load_kw, None, names, days, 1440 // STEPS, (None,) * n, (None,) * n, None, True)


def kl_per_step(
    mean: FloatArray, covariance: FloatArray, other_mean: FloatArray, other_covariance: FloatArray
) -> tuple[float, float]:
    """KL(first ‖ second)/T of two Gaussians, and the part that does not depend on the means."""
    factor = np.linalg.cholesky(other_covariance)
    half = np.linalg.solve(factor, np.linalg.cholesky(covariance))
    shift = np.linalg.solve(factor, other_mean - mean)
    log_det = 2 * np.log(np.diag(factor)).sum() - np.linalg.slogdet(covariance)[1]
    size = mean.size
    spread = (float((half**2).sum()) - size + float(log_det)) / 2 / size
    return spread + float(shift @ shift) / 2 / size, spread


def measure(
    population: Population, estimator: Estimator, n: int, epsilon: float, unit: PrivacyUnit, seed: int
) -> FloatArray:
    """KL, KL of the covariance, rms error of the mean, relative error of the covariance, and the mean load.

    The mean load is relative to that of the lognormal with the moments of the fitted days, so that neither
    the choice of customers nor the shape of their law counts as an error.
    """
    history = as_history(population.draw(n, seed))
    options = FitOptions(bounds=population.bounds, estimator=estimator)
    key = StreamKey.from_insecure_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        model = fit(history, budget=Budget(epsilon, 1e-5, unit), options=options, key=key)
    released = model.classes[0].components[0]
    mean_error = float(np.sqrt(np.mean((released.mean - population.mean) ** 2)))
    difference = float(np.linalg.norm(released.covariance - population.covariance))
    kl = kl_per_step(population.mean, population.covariance, released.mean, released.covariance)
    days = np.log(history.load_kw)
    fitted = float(np.exp(days.mean(axis=(0, 1)) + days.var(axis=(0, 1)) / 2).mean())
    load = float(released.mean_load.mean()) / fitted
    return np.array([*kl, mean_error, difference / float(np.linalg.norm(population.covariance)), load])


def table(population: Population, estimators: list[Estimator], sizes: list[int], repetitions: int) -> None:
    print(
        "\n| population | unit | n | ε | estimator | KL/T | covariance part | mean error | covariance error "
        "| mean load |"
    )
    print("|---|---|--:|--:|---|--:|--:|--:|--:|--:|")
    for unit in PrivacyUnit:
        for n in sizes:
            for epsilon in (0.5, 1.0, 4.0):
                for estimator in estimators:
                    seeds = range(repetitions if n < 10_000 else max(1, repetitions // 5))
                    rows = [measure(population, estimator, n, epsilon, unit, seed) for seed in seeds]
                    kl, spread, mean, covariance, load = np.median(rows, axis=0)
                    print(
                        f"| {population.name} | {unit} | {n} | {epsilon:g} | {estimator.name} | {kl:.3g} "
                        f"| {spread:.3g} | {mean:.2g} | {covariance:.2g} | {load:.3f} |",
                        flush=True,
                    )


def sampling_rate() -> None:
    """Customer-days per minute in one process, active and reactive, 96 nodes; margins from wide to narrow."""
    history = simulate_load_history(1000, n_days=DAYS, classes=DEMO_CLASSES[:1])
    key = StreamKey.from_insecure_seed(0)
    margins = ((0.02, 20.0), (0.08, 5.0), (0.15, 3.0))
    for truncated, bounds in ((False, (0.005, 50.0)), *((True, margin) for margin in margins)):
        options = FitOptions(bounds=bounds, reactive=PublicSpread())
        model = fit(history, budget=Budget(4.0), options=options, key=key)
        law = model.at(LoadNodes(("residential",) * 96), truncated=truncated)
        sampler = LoadSampler(law, key, 100_000)
        accepted = f"{law.classes[0].acceptance[0].value:.3g}" if truncated else "—"
        start, drawn = time.perf_counter(), 0
        for block in map(sampler.block, range(sampler.n_blocks)):
            drawn += block.load_kw.shape[0] * block.load_kw.shape[1]
            if time.perf_counter() - start > 5:
                break
        rate = 60 * drawn / (time.perf_counter() - start)
        print(
            f"truncated {truncated}, acceptance {accepted}: {rate:.3g} customer-days per minute", flush=True
        )


def kl_tables(names: list[str], estimators: list[Estimator], sizes: list[int], repetitions: int) -> None:
    """The table of every population."""
    makers = {"simulated": simulated, "simbench": simbench}
    for name in names:
        if name in makers:
            table(makers[name](), estimators, sizes, repetitions)
        else:
            print(f"{name}: the table of KL has no such population; it has {', '.join(makers)}")
