"""Noise on loads, part by part: the tables of docs/results/systems.md.

    DP_POWERFLOW_SWISS=… python benchmarks/noise_on_loads.py
    DP_POWERFLOW_SWISS=… python benchmarks/noise_on_loads.py --oedi DIR       also voltages on IEEE 123

It takes some 15 seconds of processor time. Without the Swiss homes their column is
empty. Seeds are fixed: the same figures come out again.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from load_populations import swiss
from scipy import stats

from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.lowlevel import simulate_load_history
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.datasets import ExperimentOptions, open_dataset
from dp_powerflow_paper.mechanisms import Target, solve_loads
from dp_powerflow_paper.sources import iid
from dp_powerflow_paper.sources.entries import Occasion
from dp_powerflow_paper.sources.iid import DivisibleLaplace, LaplaceLoads
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters, ReadingUnit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.auditing import epsilon_lower_bound
from support.shares import delta_of_part, mass_up_to, pure_epsilon

FUSE_KW = 17.25
"""Three phases of 25 A: the public range of a home is 0 to this."""
SIZES = (100, 300, 1000, 3000, 10_000, 30_000)
RUNS = 20_000
DAYS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oedi", type=Path, help="folder of the OEDI profiles")
    arguments = parser.parse_args()
    laws()
    missing()
    audits()
    groups()
    if arguments.oedi is not None:
        voltages(arguments.oedi)


def meters(relative: FloatArray, high: float = 1.0) -> Meters:
    """Meters (meter, day, step) of nominal load 1 at one node, from 0 to a public maximum."""
    shares = sp.csr_array(np.ones((1, len(relative)), dtype=np.complex128))
    steps = relative.shape[2]
    return Meters(relative, shares, np.zeros(steps), np.full(steps, high))


def laws() -> None:
    """The sum of all shares, and one share."""
    print("\n| meters n | KS p of the sum | sd of the sum over λ | one share below 1e-6 λ | below 0.01 λ |")
    print("|--:|--:|--:|--:|--:|")
    for count in (10, 100, 1000):
        mechanism = DivisibleLaplace(meters(np.zeros((count, 40, 100))), 1.0)
        noise = (mechanism.total(np.random.default_rng(count), 40) / mechanism.scale).ravel()
        p = stats.kstest(noise, stats.laplace().cdf).pvalue
        tiny, small = (2.0 * mass_up_to(top, 1.0 / count) for top in (1e-6, 1e-2))
        print(f"| {count:,} | {p:.2f} | {noise.std():.3f} | {tiny:.0%} | {small:.0%} |")


def missing() -> None:
    """What is left of ε = 1 if some meters do not add their share."""
    print("\n| meters that add their share | δ at ε = 1 | δ at ε = 2 | pure ε |\n|--:|--:|--:|--:|")
    for part in (1.0, 0.9, 0.7, 0.5, 0.3):
        at_one, at_two = (delta_of_part(part, epsilon) for epsilon in (1.0, 2.0))
        pure = pure_epsilon(part)
        shown = f"{pure:.2f}" if math.isfinite(pure) else "none"
        print(f"| {part:.0%} | {at_one:.3f} | {at_two:.3f} | {shown} |")


@dataclass(frozen=True, eq=False)
class HalfLoads(LaplaceLoads):
    """λ/2."""

    @property
    def scale(self) -> FloatArray:
        return super().scale / 2.0


@dataclass(frozen=True, eq=False)
class HalfTotal(DivisibleLaplace):
    """λ/2."""

    @property
    def scale(self) -> FloatArray:
        return super().scale / 2.0


def audits() -> None:
    """ε from below of one meter at its lowest and highest load."""
    print("\n| what is released | claimed ε | audited, at least | with λ/2 |\n|---|--:|--:|--:|")
    for unit in (SLOT, DAY):
        kept, broken = (_audit_of_loads(kind, unit) for kind in (LaplaceLoads, HalfLoads))
        print(f"| a meter's readings, per {unit.key} | 1 | {kept:.2f} | {broken:.2f} |")
    for honest in (1.0, 0.7):
        kept, broken = (_audit_of_total(kind, honest) for kind in (DivisibleLaplace, HalfTotal))
        print(f"| total of 20 meters, {honest:.0%} of them honest | 1 | {kept:.2f} | {broken:.2f} |")
    own = DivisibleLaplace(meters(np.zeros((20, 1, 1))), 1.0)
    sent = own.shares_of_noise(np.random.default_rng(3), (RUNS,))[:2]
    print(
        f"| what one of 20 meters sends | none | {epsilon_lower_bound(sent[1] + 1.0, sent[0], 0.0):.2f} | |"
    )


def _audit_of_loads(kind: type[LaplaceLoads], unit: ReadingUnit) -> float:
    steps = 2 if unit.whole_day else 1
    found = []
    for seed, level in enumerate((0.0, 1.0)):
        mechanism = kind(meters(np.full((1, RUNS, steps), level)), 1.0, unit)
        released = mechanism.draw(np.random.default_rng([seed, 1]), RUNS)
        found.append(released.real.sum(axis=(1, 2)))
    return epsilon_lower_bound(found[1], found[0], 0.0)


def _audit_of_total(kind: type[DivisibleLaplace], honest: float) -> float:
    found = []
    for seed, level in enumerate((0.0, 1.0)):
        readings = np.full((20, 200, RUNS // 200), 0.4)
        readings[0] = level
        mechanism = kind(meters(readings), 1.0, SLOT, honest, honest)
        found.append(mechanism.total(np.random.default_rng([seed, 2]), 200).ravel())
    return epsilon_lower_bound(found[1], found[0], 0.0)


def groups() -> None:
    """Median relative error of a total, by the number of homes."""
    simulated = simulate_load_history(500, n_days=2, seed=2, classes=DEMO_CLASSES[:1]).load_kw
    real = swiss()
    homes = {"simulated": simulated} | ({} if real is None else {"Swiss": real.load_kw[:, :2]})
    columns = [(name, unit) for name in homes for unit in (SLOT, DAY)]
    print("\n| homes | " + " | ".join(f"{name}, ε = 1 per {unit.key}" for name, unit in columns) + " |")
    print("|--:|" + "--:|" * len(columns))
    for count in SIZES:
        errors = [_error_of_total(homes[name], count, unit) for name, unit in columns]
        print(f"| {count:,} | " + " | ".join(f"{100 * error:.3g} %" for error in errors) + " |")
    needed = [_error_of_total(homes[name], 1000, unit) * 1000 / 0.10 for name, unit in columns]
    print("| needed for 10 % | " + " | ".join(f"{count:,.0f}" for count in needed) + " |")
    for name, load in homes.items():
        print(f"\n{name} homes: mean load {load.mean():.2f} kW, public range 0 to {FUSE_KW} kW")


def _error_of_total(homes: FloatArray, count: int, unit: ReadingUnit) -> float:
    chosen = np.resize(np.arange(len(homes)), count)
    mechanism = DivisibleLaplace(meters(homes[chosen], FUSE_KW), 1.0, unit)
    days = homes.shape[1]
    true = mechanism.meters.first_days(days).sum(axis=0)
    total = mechanism.total(np.random.default_rng(4), days)
    return float(np.median(np.abs(total / true - 1.0)))


def voltages(folder: Path) -> None:
    """W1 of loads and voltages on the true network of IEEE 123, mean of three draws."""
    print("\n| loads | data | W1 of relative load per node | W1 of \\|v\\| [p.u.] |\n|---|---|--:|--:|")
    for name in ("oedi", "simbench"):
        data = open_dataset(replace(ExperimentOptions(Path("unused")), oedi=folder, data=name))
        days = data.spread_days(DAYS)
        occasion = Occasion(data, days, Target(1.0, 1e-5))
        solver, sun, nominal = data.solver(), data.sun(days), data.nominal.real
        true = np.abs(solve_loads(solver, occasion.true_load, sun)).ravel()
        relative = occasion.true_load.real / nominal
        for entry in iid.LOADS:
            part, found = entry.make(occasion), []
            for seed in range(3):
                load = part.draw(np.random.default_rng(seed), DAYS)
                own = load.real / nominal
                of_loads = [
                    stats.wasserstein_distance(own[..., k].ravel(), relative[..., k].ravel())
                    for k in range(len(nominal))
                ]
                v = np.abs(solve_loads(solver, load, sun)).ravel()
                found.append((np.mean(of_loads), stats.wasserstein_distance(v[np.isfinite(v)], true)))
            of_load, of_v = np.mean(found, axis=0)
            print(f"| {entry.title} | {name} | {of_load:.3f} | {of_v:.5f} |")


if __name__ == "__main__":
    main()
