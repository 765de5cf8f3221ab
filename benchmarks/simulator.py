"""Simulated homes beside real ones: traits, autocorrelation, distribution, course of the day.

    DP_POWERFLOW_SWISS=… python benchmarks/simulator.py [--seeds 10] [--quantum 0.01]

Real homes are those of `load_populations.swiss`, seven weeks of autumn; without their folder their column is
empty. Simulated homes are 600 over seven weeks of winter, one population per seed: mean and range over the
seeds, because seven weeks have few spells of cold. Loads are raised to 0.02 kW on both sides.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from load_populations import DAYS, swiss

from dp_powerflow.fidelity.metrics import LAG_MINUTES, autocorrelation, hourly, traits
from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.lowlevel import simulate_load_history
from dp_powerflow.units import FloatArray

HOMES = 600
FLOOR_KW = 0.02
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quantum", type=float, help="what meters count in [kWh]")
    arguments = parser.parse_args()
    drawn = [figures(homes(seed, arguments.quantum)) for seed in range(arguments.seeds)]
    real = swiss()
    beside = None if real is None else figures(real.load_kw)
    print("| | Swiss homes | simulated | from | to |\n|---|--:|--:|--:|--:|")
    for name in drawn[0]:
        own = [each[name] for each in drawn]
        shown = "" if beside is None else f"{beside[name]:.3g}"
        print(f"| {name} | {shown} | {np.mean(own):.3g} | {min(own):.3g} | {max(own):.3g} |")
    if beside is not None:
        lags = [name for name in beside if name.startswith("autocorrelation")]
        error = [np.mean([abs(each[name] - beside[name]) for name in lags]) for each in drawn]
        print(f"\nautocorrelation error: {np.mean(error):.3f} (from {min(error):.3f} to {max(error):.3f})")
    started = time.process_time()
    homes(0, arguments.quantum)
    spent = (time.process_time() - started) / HOMES / (DAYS + 1)
    print(f"{1e6 * spent:.1f} µs of processor time per home and day")


def homes(seed: int, quantum_kwh: float | None) -> FloatArray:
    """Loads (home, day, step) [kW] from Monday 2 January."""
    load = simulate_load_history(HOMES, n_days=DAYS + 1, seed=seed, classes=DEMO_CLASSES[:1]).load_kw
    if quantum_kwh is not None:  # a meter counts: what is left of a step is counted with the next one
        quantum_kw = quantum_kwh * load.shape[2] / 24
        reading = np.floor(np.cumsum(load.reshape(HOMES, -1) / quantum_kw, axis=1))
        load = (quantum_kw * np.diff(reading, axis=1, prepend=0.0)).reshape(load.shape)
    return np.maximum(load[:, 1:], FLOOR_KW)


def figures(load: FloatArray) -> dict[str, float]:
    """All figures of a population by name."""
    mean = load.mean(axis=(1, 2))
    shown = {name.replace("_", " "): value for name, value in traits(load).items()}
    for lag, value in zip(LAG_MINUTES, autocorrelation(load), strict=True):
        shown[f"autocorrelation at {lag} min"] = value
    shown["mean load [kW], median home"] = np.median(mean)
    shown["spread of log mean load"] = np.log(mean).std()
    shown["spread of log load, median home"] = np.median(np.log(load).std(axis=(1, 2)))
    shown["share of readings at 0.02 kW or less"] = np.mean(load <= FLOOR_KW)
    shown["share of readings at 0.06 kW or less"] = np.mean(load <= 3 * FLOOR_KW)
    for q, value in zip(QUANTILES, np.quantile(load / mean[:, None, None], QUANTILES), strict=True):
        shown[f"load over the home's mean, {100 * q:.4g} %"] = value
    course = hourly(load).mean(axis=(0, 1)) / load.mean()
    for hour in range(0, 24, 3):
        shown[f"mean load from {hour} h over the day's"] = course[hour]
    return shown


if __name__ == "__main__":
    main()
