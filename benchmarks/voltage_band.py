"""Figure of the daily voltage band of IEEE 123: taps frozen at nominal load against acting regulators.

    DP_POWERFLOW_OEDI=... python benchmarks/voltage_band.py [--out docs/figures/voltage-band.png]

A year of OEDI's load profiles (15 minutes, 91 loads) is solved twice: in the fixed frame with loads of
constant power, and with the loads of the file, every day starting from the table of taps. Printed are the
shares of all voltages within ANSI C84.1 range A, 0.95 to 1.05 p.u.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from cases import nodal_load
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dp_powerflow import BatchSolver, Feeder, OperatedSolver, Solution, open_feeder
from dp_powerflow.units import FloatArray

ROOT = Path(__file__).resolve().parents[1]
STEPS = 96
RANGE_A = (0.95, 1.05)
FOLDER = "DP_POWERFLOW_OEDI"


def oedi_factors(feeder: Feeder) -> FloatArray | None:
    """(snapshot, load) multipliers of nominal load, None where the profiles are not at hand."""
    folder = os.environ.get(FOLDER)
    if folder is None or not (Path(folder) / "profiles" / "load_profiles").is_dir():
        return None
    profiles = Path(folder) / "profiles" / "load_profiles"
    files = {path.stem.removeprefix("loadshape_").lower(): path for path in profiles.glob("loadshape_*.csv")}
    return np.stack([np.loadtxt(files[load.name.lower()]) for load in feeder.loads], axis=1)


def panel(axes: Axes, vm: FloatArray, title: str) -> None:
    """Band over nodes and days at every step of the day."""
    by_step = vm.reshape(-1, STEPS, vm.shape[1]).transpose(1, 0, 2).reshape(STEPS, -1)
    hours = 24.0 * (np.arange(STEPS) + 1) / STEPS
    low, first, middle, third, high = np.quantile(by_step, [0.0, 0.01, 0.5, 0.99, 1.0], axis=1)
    axes.fill_between(hours, low, high, color="#cfe0f1", label="lowest to highest")
    axes.fill_between(hours, first, third, color="#7fb0dc", label="1 % to 99 %")
    axes.plot(hours, middle, color="#1f4e79", label="median")
    for limit in RANGE_A:
        axes.axhline(limit, color="#b03a2e", linewidth=1.0, linestyle="--")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("hour of the day")
    axes.set_xlim(hours[0], 24)
    axes.set_xticks(range(0, 25, 6))


def inside(vm: FloatArray) -> float:
    return float(np.mean((vm >= RANGE_A[0]) & (vm <= RANGE_A[1])))


def magnitudes(solution: Solution, name: str) -> FloatArray:
    solution.raise_if_failed()
    vm = np.abs(solution.v)
    above = np.mean(vm > RANGE_A[1])
    print(f"{name}: {inside(vm):.2%} within range A, {above:.2%} above, largest {vm.max():.4f}")
    return vm


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "voltage-band.png")
    options = parser.parse_args()
    feeder = open_feeder("ieee123")
    factors = oedi_factors(feeder)
    if factors is None:
        print(f"left out: set {FOLDER} to the folder of the OEDI profiles of IEEE 123")
        return
    load = np.ascontiguousarray(factors * feeder.nominal_load)
    frozen = magnitudes(BatchSolver(feeder).solve(nodal_load(feeder, factors)), "frozen")
    solution = OperatedSolver(feeder, controls="day", steps=STEPS).solve(load)
    acting = magnitudes(solution, "acting")
    locked = int(solution.locked.sum())
    print(f"{solution.rounds.mean():.3f} moves per step, {locked} snapshots with a locked control")
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    panel(left, frozen, "taps frozen at nominal load")
    panel(right, acting, "regulators act")
    left.set_ylabel("voltage [p.u.]")
    left.set_ylim(0.935, 1.085)
    left.legend(loc="lower left", bbox_to_anchor=(0.0, 0.1), fontsize=8, frameon=False)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=150)
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
