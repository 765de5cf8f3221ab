"""How close are drawn load histories to real ones? The table of docs/results/loads.md.

    python benchmarks/load_model.py              every population at hand, 5 seeds, n of 300, 1,000, 5,000
    python benchmarks/load_model.py --quick      one population, one seed, n = 1,000: under two minutes
    python benchmarks/load_model.py --population swiss simbench --sizes 1000
    python benchmarks/load_model.py --meters homes.parquet --sizes 1000 --history
    python benchmarks/load_model.py --kl         KL per dimension of the day model (docs/results/loads.md)
    python benchmarks/load_model.py --sampling   customer-days drawn per minute
    python benchmarks/load_model.py --planned    errors of mean load and upper tail, and what `plan` predicts

Customers are split at random into halves A (fitted) and B (compared with). A seed is a split, a noise and a
draw. Figures are means over seeds ± standard errors. The column "real B" is what a drawn history should show;
"floor" is half A in place of a drawn one: no model does better but by chance. What the figures mean and their
units: `dp_powerflow.fidelity.metrics`. Populations: `load_populations.py`. Models: `load_columns.py`.

NOT PRIVATE: half A is fitted, but with the noise of n customers. See `load_columns.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from load_columns import BUDGET, as_history, columns, lived
from load_model_kl import kl_tables, sampling_rate
from load_populations import MAKERS, Customers, meters, open_populations

from dp_powerflow import FitOptions
from dp_powerflow.fidelity.metrics import COINCIDENT, Fidelity, compare
from dp_powerflow.lowlevel import Plain, Structured
from dp_powerflow.model.fit import history_facts
from dp_powerflow.model.history.estimate import History, PredictedError
from dp_powerflow.pipeline.plan import stand_in_errors
from dp_powerflow.units import FloatArray


@dataclass(frozen=True)
class Row:
    """A row of the table: title, name in `Fidelity`, decimals, and whether real B has it too."""

    title: str
    name: str
    decimals: int
    trait: bool = False


ROWS = (
    Row("W1 per time of day, % of mean", "w1_percent", 1),
    Row("autocorrelation error, lags to 7 days", "autocorrelation_error", 3),
    Row("day-to-day correlation of daily energy", "day_to_day", 2, trait=True),
    Row("between-customer share of variance", "between_customers", 2, trait=True),
    Row("pairwise correlation of daily energy", "pairwise", 2, trait=True),
    Row("coincidence factor of 50 customers", "coincidence", 2, trait=True),
    Row("customer's peak over mean", "peak_over_mean", 1, trait=True),
    Row("sd of the feeder's daily energy", "feeder_daily_sd", 3, trait=True),
    Row("midnight step of the feeder", "midnight_step", 3, trait=True),
    Row("classifier AUC, customer-day", "auc_day", 2),
    Row("classifier AUC, customer-week", "auc_week", 2),
    Row("classifier AUC, feeder-day", "auc_feeder", 2),
    Row("next-day score, customer", "next_day", 3),
    Row("next-day score, feeder", "next_day_feeder", 3),
)
Figures = dict[str, float]


def flat(result: Fidelity) -> dict[str, float]:
    """The figures by name; traits of the drawn side only."""
    return {**result.between, **result.drawn}


def measure(seed: int, population: Customers, sizes: list[int], history_only: bool = False) -> list[Figures]:
    """Figures of real B, then of every column, for one split."""
    half_a, half_b = population.halves(seed)
    results = [
        compare(column.draw(half_a, population, seed), half_b, population.setting(seed))
        for column in columns(sizes, history_only=history_only)
    ]
    return [results[0].real, *(flat(result) for result in results)]


def cell(values: list[float], decimals: int) -> str:
    """Mean ± standard error; the mean alone of a single value."""
    text = f"{round(float(np.mean(values)), decimals) + 0.0:.{decimals}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.{decimals}f}"
    return text


def print_table(population: Customers, titles: list[str], seeds: list[list[Figures]]) -> None:
    """The table of one population, in Markdown."""
    n, days, steps = population.load_kw.shape
    notes = [f"{n // 2} customers in each half", f"{days} days of {steps} steps", f"seeds: {len(seeds)}"]
    if population.quantum_kw is not None:
        notes.append(f"classifier on loads dithered over {population.quantum_kw} kW")
    if n // 2 < COINCIDENT:
        notes.append(f"coincidence of {n // 2} customers")
    print(f"\n**{population.name}**: {', '.join(notes)}. NOT PRIVATE: the noise is that of n customers.\n")
    print("| | real B | " + " | ".join(titles) + " |")
    print("|---|" + "--:|" * (1 + len(titles)))
    for row in ROWS:
        shown = [
            cell([seed[k][row.name] for seed in seeds], row.decimals) if k or row.trait else ""
            for k in range(1 + len(titles))
        ]
        print(f"| {row.title} | " + " | ".join(shown) + " |", flush=True)


def yardstick(
    populations: Iterable[Customers], sizes: list[int], seeds: int, workers: int, history_only: bool = False
) -> None:
    """The table of every population."""
    for population in populations:
        start = time.perf_counter()
        job = partial(measure, population=population, sizes=sizes, history_only=history_only)
        if workers > 1 and seeds > 1:
            with ProcessPoolExecutor(workers) as pool:
                found = list(pool.map(job, range(seeds)))
        else:
            found = [job(seed) for seed in range(seeds)]
        titles = [column.title for column in columns(sizes, history_only=history_only)]
        print_table(population, titles, found)
        print(f"\n{time.perf_counter() - start:.0f} s", flush=True)


def off_by(seed: int, population: Customers, n: int) -> tuple[float, float]:
    """Errors of mean load and 99th percentile of one fit of histories to n customers, drawn at random.

    Where there are fewer, all of them with the noise of n.
    """
    chosen = np.random.default_rng(seed).permutation(len(population.load_kw))[:n]
    real = population.load_kw[np.sort(chosen)]
    drawn = lived(n)(real, population, seed)
    return drawn.mean() / real.mean() - 1, np.quantile(drawn, 0.99) / np.quantile(real, 0.99) - 1


def planned(population: Customers, n: int) -> tuple[PredictedError, ...]:
    """What `plan` predicts for n customers with the days, steps and bounds of a population."""
    options = FitOptions(bounds=population.bounds, estimator=History())
    history = as_history(np.broadcast_to(1.0, (n, *population.load_kw.shape[1:])), population.weekend)
    return stand_in_errors(history_facts(history, options, BUDGET.unit), options, BUDGET)


def planned_table(populations: Iterable[Customers], sizes: list[int], seeds: int, workers: int) -> None:
    """Measured and predicted errors; `within`: share of fits in the range that is predicted for 80 %."""
    print(
        "| population | log levels spread by | n | mean load: RMS | predicted | 10 to 90 % | predicted | "
        "within | upper tail: RMS | predicted |"
    )
    print("|---|" + "--:|" * 9)
    for population in populations:
        levels = np.log(population.load_kw.mean(axis=(1, 2)))
        for n in sizes:
            job = partial(off_by, population=population, n=n)
            with ProcessPoolExecutor(workers) as pool:
                mean, tail = np.array(list(pool.map(job, range(seeds)))).T
            of_mean, _, of_tail = planned(population, n)
            assert of_mean.between is not None
            low, high = of_mean.between
            shown = (
                f"{levels.std():.2f}", f"{n:,}", _rms(mean), _by_spread(of_mean),
                _range(*np.quantile(mean, (0.1, 0.9))), _range(low, high),
                f"{100 * np.mean((mean >= low) & (mean <= high)):.0f} %", _rms(tail), _by_spread(of_tail),
            )  # fmt: skip
            print(f"| {population.name} | " + " | ".join(shown) + " |", flush=True)


def _rms(off: FloatArray) -> str:
    return f"{100 * np.sqrt(np.mean(off * off)):.0f} %"


def _by_spread(error: PredictedError) -> str:
    return " to ".join(f"{100 * own:.0f}" for own in error.by_spread) + " %"


def _range(low: float, high: float) -> str:
    return f"{100 * low:+.0f} to {100 * high:+.0f} %".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--population", choices=list(MAKERS), nargs="+", default=list(MAKERS))
    parser.add_argument("--sizes", type=int, nargs="+", default=None, help="n of the noise")
    parser.add_argument("--seeds", type=int, default=5, help="splits; repetitions of --kl")
    parser.add_argument("--workers", type=int, default=2, help="processes; a seed is done by one of them")
    parser.add_argument("--meters", type=Path, default=None, help="Parquet or CSV of other homes, instead")
    parser.add_argument("--quantity", choices=["kWh", "kW"], default="kWh", help="of --meters, per interval")
    parser.add_argument("--bounds", type=float, nargs=2, default=(0.02, 40.0), help="of --meters [kW]")
    parser.add_argument("--history", action="store_true", help="only the floor and the history model")
    parser.add_argument("--quick", action="store_true", help="first population at hand, one seed, n = 1,000")
    parser.add_argument("--kl", action="store_true", help="KL per dimension of the day model instead")
    parser.add_argument(
        "--estimator", choices=["structured", "plain"], default=None, help="of --kl; else both"
    )
    parser.add_argument("--sampling", action="store_true", help="customer-days drawn per minute instead")
    parser.add_argument(
        "--planned", action="store_true", help="measured errors beside those of `plan` instead"
    )
    chosen = parser.parse_args()
    if chosen.sampling:
        sampling_rate()
    elif chosen.planned:
        found = open_populations([name for name in chosen.population if name in ("swiss", "simulated")])
        planned_table(found, chosen.sizes or [400, 800, 1000], chosen.seeds, chosen.workers)
    elif chosen.kl:
        estimators = [e for e in (Structured(), Plain()) if chosen.estimator in (None, e.name)]
        names = [name for name in chosen.population if name in ("simulated", "simbench")]
        kl_tables(names, estimators, chosen.sizes or [100, 1000, 10_000], chosen.seeds)
    elif chosen.quick:
        yardstick(islice(open_populations(chosen.population), 1), [1000], 1, 1)
    else:
        populations: Iterable[Customers] = open_populations(chosen.population)
        if chosen.meters is not None:
            populations = [meters(chosen.meters, chosen.quantity, tuple(chosen.bounds))]
        sizes = chosen.sizes or [300, 1000, 5000]
        yardstick(populations, sizes, chosen.seeds, chosen.workers, chosen.history)


if __name__ == "__main__":
    main()
