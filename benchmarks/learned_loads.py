"""Loads from trained networks: the tables of docs/results/systems.md.

    python benchmarks/learned_loads.py accounting           ε of both trainings
    python benchmarks/learned_loads.py federated            error of a forecaster: alone, DP-FedAvg, FedAvg
    python benchmarks/learned_loads.py wgan --data simbench  DPWGAN against ε, DP K-means and DP-GMM
    python benchmarks/learned_loads.py wgan --data oedi --oedi oedi-ieee123

Everything is public data; times are CPU seconds of one core. Settings are those of the package: none is
chosen here, and none by a score on these data. `--seeds` says how many trainings a figure is the mean of.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dp_powerflow.lowlevel import Structured, simulate_load_history
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow_paper.learned.accounting import SampledGaussian
from dp_powerflow_paper.learned.forecaster import (
    Clients,
    Federation,
    Local,
    LocalTraining,
    LogMargins,
    clients_of,
    mean_absolute_error,
    start_weights,
    train_federated,
    trained_alone,
)
from dp_powerflow_paper.learned.parts import FederatedSettings, forecast_loads, wgan_loads
from dp_powerflow_paper.mechanisms import Target
from dp_powerflow_paper.recovery.training import one_thread
from dp_powerflow_paper.sources import LoadMechanism
from dp_powerflow_paper.sources.entries import Occasion
from dp_powerflow_paper.sources.models import gmm_loads, kmeans_loads

DELTA = 1e-5
MARGINS = LogMargins(0.002, 1.0)
RECORDS = 91 * 365
ALONE = 500
"""Customers who also train alone; all would tell no more."""


def accounting() -> None:
    """ε of the published settings and of ours."""
    print("| training | q | z | steps | ε, added or removed | ε, replaced |\n|---|---:|---:|---:|---:|---:|")
    rows = (
        ("DP-FedAvg, 91 customers", 0.1, 1.0, 100),
        ("DP-FedAvg, 91 customers", 0.1, 4.0, 100),
        ("DP-FedAvg, 1,000 customers", 0.02, 1.0, 100),
        ("DP-FedAvg, 5,000 customers", 0.01, 1.0, 100),
        ("DPWGAN, B = 64", 64 / RECORDS, 1.0, 10_000),
        ("DPWGAN, B = 256", 256 / RECORDS, 2.0, 5_000),
    )
    for name, rate, noise, steps in rows:
        spent = SampledGaussian(rate, noise, steps)
        figures = f"{spent.epsilon(DELTA):.2f} | {spent.replaced_epsilon(DELTA):.2f}"
        print(f"| {name} | {rate:.4f} | {noise:g} | {steps:,} | {figures} |")


def federated(seeds: int) -> None:
    """Mean absolute error [% of the connection] by days of own readings, 5,000 and 91 customers."""
    print("| customers | days of own readings | alone | DP-FedAvg, z = 1 | FedAvg | as one step before |")
    print("|---:|---:|---:|---:|---:|---:|")
    for customers, rate, days in ((5000, 0.01, 1), (5000, 0.01, 2), (5000, 0.01, 7), (91, 0.1, 1)):
        history = simulate_load_history(customers, n_days=2 * days + 1, step_minutes=60, seed=20)
        assert history.scale_kw is not None
        scaled = MARGINS.scaled(history.load_kw / history.scale_kw[:, None, None])
        weekend = np.array([day.weekday() >= 5 for day in history.days])
        train = clients_of(scaled[:, : days + 1], weekend[: days + 1])
        test = clients_of(scaled[:, days:], weekend[days:])
        found = [_errors(train, test, rate, seed) for seed in range(seeds)]
        cells = [_cell([100 * row[k] for row in found]) for k in range(4)]
        print(f"| {customers:,} | {days} | " + " | ".join(cells) + " |", flush=True)


def _errors(train: Clients, test: Clients, rate: float, seed: int) -> list[float]:
    import torch

    def trained(clip: float, noise: float) -> float:
        generator = torch.Generator().manual_seed(seed)
        start = start_weights(generator).double()
        federation = Federation(len(train), rate, clip, noise, 100)
        weights = train_federated(federation, start, LocalTraining(train, Local()), generator)
        return mean_absolute_error(weights, test, MARGINS)

    with one_thread():
        start = start_weights(torch.Generator().manual_seed(seed))
        few = Clients(train.inputs[:ALONE], train.targets[:ALONE])
        own = trained_alone(start.expand(len(few), -1), few, Local(100, 0.1))
        alone = mean_absolute_error(own, Clients(test.inputs[:ALONE], test.targets[:ALONE]), MARGINS)
        private = trained(FederatedSettings().clip, 1.0)
        return [alone, private, trained(math.inf, 0.0), mean_absolute_error(start, test, MARGINS)]


def wgan(options: ExperimentOptions, seeds: int) -> None:
    """W1, mean and autocorrelation of drawn loads, by ε of a customer-day."""
    data = open_dataset(options)
    days = data.spread_days(60)
    print(f"{data.words}; true lag-1 autocorrelation {_memory(_relative(data, data.true_load(days))):.2f}\n")
    print("| loads | ε | W1 of loads, % | mean load / true | lag-1 | CPU s to fit |")
    print("|---|---:|---:|---:|---:|---:|")
    rows: list[tuple[str, float, Callable[[Occasion], LoadMechanism]]] = [
        ("DP K-means", 1.0, kmeans_loads),
        ("DP-GMM, structured", 1.0, lambda occasion: gmm_loads(occasion, Structured())),
        *(("DPWGAN", epsilon, wgan_loads) for epsilon in (1.0, 3.0, 10.0, math.inf)),
        *(("DP-FedAvg forecaster, per customer", epsilon, forecast_loads) for epsilon in (1.0, math.inf)),
    ]
    for name, epsilon, make in rows:
        found = []
        for seed in range(seeds):
            before = time.process_time()
            part = make(Occasion(data, days, Target(epsilon, DELTA), seed))
            spent = time.process_time() - before
            load = part.draw(np.random.default_rng(seed), len(days))
            found.append((*_scores(data, load, data.true_load(days)), spent))
        columns = list(zip(*found, strict=True))
        cells = [_cell(columns[0]), *(f"{np.mean(column):.2f}" for column in columns[1:3])]
        print(f"| {name} | {epsilon:g} | {' | '.join(cells)} | {np.mean(columns[3]):.0f} |", flush=True)


def _relative(data: Dataset, load: np.ndarray) -> np.ndarray:
    """(day, step, node) active load over nominal load."""
    return np.asarray(load.real / data.nominal.real)


def _scores(data: Dataset, load: np.ndarray, true: np.ndarray) -> tuple[float, float, float]:
    """W1 per time of day over all nodes [% of the mean], mean over true mean, lag-1 autocorrelation."""
    drawn, real = _relative(data, load), _relative(data, true)
    grid = (np.arange(400) + 0.5) / 400
    quantiles = [
        np.quantile(part.transpose(0, 2, 1).reshape(-1, part.shape[1]), grid, axis=0)
        for part in (drawn, real)
    ]
    w1 = 100 * float(np.abs(quantiles[0] - quantiles[1]).mean() / real.mean())
    return w1, float(drawn.mean() / real.mean()), _memory(drawn)


def _memory(relative: np.ndarray) -> float:
    centred = relative - relative.mean(axis=1, keepdims=True)
    power = np.maximum((centred**2).sum(axis=1), 1e-300)
    return float(np.mean((centred[:, 1:] * centred[:, :-1]).sum(axis=1) / power))


def _cell(values: object, digits: int = 2) -> str:
    found = np.asarray(values, dtype=float)
    error = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return f"{found.mean():.{digits}f} ± {error:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table", choices=("accounting", "federated", "wgan"))
    parser.add_argument("--data", default="simulated", choices=("oedi", "simbench", "simulated"))
    parser.add_argument("--oedi", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    if asked.table == "accounting":
        accounting()
    elif asked.table == "federated":
        federated(asked.seeds)
    else:
        wgan(ExperimentOptions(out=Path("."), oedi=asked.oedi, data=asked.data), asked.seeds)


if __name__ == "__main__":
    main()
