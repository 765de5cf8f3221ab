"""A decade of IEEE 123 with persistent customers: drawn, summed per load, and solved with acting controls.

    python benchmarks/decade.py [--days 3650] [--customers 2000] [--workers 2]
    python benchmarks/decade.py --drawing [--against COMMIT]

Every worker is a process with one thread. Wall time counts all that the machine does meanwhile; processor
time does not, so the busier worker's is what an idle machine with a core per worker would need. The customers
are drawn from a history model of simulated homes. For comparison, independent days of as many customers are
drawn by `CustomerSampler`, without solving.

`--drawing` draws only, in one thread: persistent customers, independent days of as many, and one draw per
load; processor time per step of a customer or load, best of three. `--against` does it with the package of
another commit too, in turns.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from workloads import REPOSITORY, archived

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from dp_powerflow.almanac.calendar import Calendar  # noqa: E402
from dp_powerflow.grid.feeder import Feeder  # noqa: E402
from dp_powerflow.grid.sources import open_feeder  # noqa: E402
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history  # noqa: E402
from dp_powerflow.model.fit import fit  # noqa: E402
from dp_powerflow.model.gaussian import LoadModel  # noqa: E402
from dp_powerflow.model.history.estimate import History  # noqa: E402
from dp_powerflow.model.history.sample import HistorySampler, path_of, population_of  # noqa: E402
from dp_powerflow.model.law import LoadNodes  # noqa: E402
from dp_powerflow.model.options import FitOptions  # noqa: E402
from dp_powerflow.model.sample import (  # noqa: E402
    CustomerLaw,
    CustomerSampler,
    LoadBlock,
    LoadSampler,
    LoadSource,
    PlacedLaw,
    solve_days,
)
from dp_powerflow.powerflow.operated import OperatedSolution, OperatedSolver  # noqa: E402
from dp_powerflow.privacy.budget import Budget, PrivacyUnit  # noqa: E402
from dp_powerflow.privacy.random import StreamKey  # noqa: E402
from dp_powerflow.units import KW_PER_MW, IntArray  # noqa: E402

STEPS = 96
KEY = StreamKey.from_insecure_seed(1)
TOLERANCE = 1e-12  # that of a release
COMPARED_DAYS = 200
BOUNDS = (0.005, 20.0)  # [kW]
FITTED = 1000  # homes


@dataclass
class Timed:
    """A source that keeps the processor time of its draws [s]."""

    source: LoadSource
    seconds: float = 0.0

    @property
    def law(self) -> PlacedLaw:
        return self.source.law

    @property
    def n_days(self) -> int:
        return self.source.n_days

    @property
    def n_blocks(self) -> int:
        return self.source.n_blocks

    def block(self, index: int) -> LoadBlock:
        began = time.process_time()
        drawn = self.source.block(index)
        self.seconds += time.process_time() - began
        return drawn


@dataclass(frozen=True)
class Spent:
    """By one worker on one block: processor time [s]; what was solved."""

    worker: int
    drawing: float
    solving: float
    failed: int
    moves: float
    mean_kw: float


def customers_per_load(feeder: Feeder, customers: int) -> IntArray:
    """By nominal power, at least one each."""
    share = np.array([load.kw for load in feeder.loads])
    bounds = np.rint(np.cumsum(share) / share.sum() * (customers - len(share))).astype(np.int64)
    return np.asarray(1 + np.diff(bounds, prepend=0))


@cache
def fitted_model() -> LoadModel:
    """Of simulated homes, at ε = 1."""
    homes = simulate_load_history(FITTED, n_days=49, step_minutes=1440 // STEPS, classes=DEMO_CLASSES[:1])
    options = FitOptions(bounds=BOUNDS, estimator=History())
    return fit(homes, budget=Budget(1.0, 1e-5, unit=PrivacyUnit.LOAD_POINT), options=options, key=KEY)


def history(feeder: Feeder, customers: int, days: int) -> HistorySampler:
    model, counts = fitted_model(), customers_per_load(feeder, customers)
    load_of = np.repeat(np.arange(len(counts)), counts)
    names = (model.histories[0].name,) * customers
    no_factor = np.full(customers, np.nan)
    people = population_of(model.histories, model.sha256, names, load_of, None, no_factor, KEY)
    assert model.origin is not None
    assert model.origin.facts.days is not None
    calendar, bound = Calendar.starting(dt.date(2030, 1, 1), days), KEY.bind("model", model.sha256)
    off, factor = path_of(model.histories, model.origin.facts.days, calendar.days, calendar.off, {}, bound)
    return HistorySampler(replace(people, base_mva=feeder.base_mva), KEY, days, off, factor)


@cache
def model_of_days() -> LoadModel:
    """Of single days of simulated homes; one class."""
    meters = simulate_load_history(300, n_days=30, seed=1, classes=DEMO_CLASSES[:1])
    return fit(meters, budget=Budget(10.0), options=FitOptions(BOUNDS), key=KEY)


def one_per_load(feeder: Feeder, days: int) -> LoadSampler:
    """Independent days, one draw for each load."""
    model, count = model_of_days(), len(feeder.loads)
    return LoadSampler(model.at(LoadNodes((model.class_names[0],) * count, None, feeder.base_mva)), KEY, days)


def independent(feeder: Feeder, customers: int, days: int) -> CustomerSampler:
    """Independent days of as many customers; one class."""
    model = model_of_days()
    load_of = np.repeat(np.arange(len(feeder.loads)), customers_per_load(feeder, customers))
    each = model.at(LoadNodes((model.class_names[0],) * customers, None, feeder.base_mva))
    return CustomerSampler(CustomerLaw(each, load_of, np.arange(len(feeder.loads))), KEY, days)


@cache
def worker(customers: int, days: int) -> tuple[OperatedSolver, Timed]:
    """Solver and source of this process, compiled."""
    feeder = open_feeder("ieee123")
    solver = OperatedSolver(feeder, controls="day", steps=STEPS, tolerance=TOLERANCE, threads=1)
    source = Timed(history(feeder, customers, days))
    solve_days(solver, source, 0)
    return solver, source


def one_block(customers: int, days: int, index: int) -> Spent:
    """Draw and solve one block."""
    solver, source = worker(customers, days)
    source.seconds, began = 0.0, time.process_time()
    solved = solve_days(solver, source, index)
    solving = time.process_time() - began - source.seconds
    assert isinstance(solved.solution, OperatedSolution)
    moves = float(solved.solution.rounds.mean())
    mean_kw = float(solved.load.real.sum(axis=1).mean()) * solver.feeder.base_mva * KW_PER_MW
    return Spent(os.getpid(), source.seconds, solving, solved.solution.n_failed, moves, mean_kw)


def seconds_per_customer_day(source: LoadSource, customers: int) -> float:
    """Processor time of drawing alone."""
    source.block(0)
    began = time.process_time()
    days = sum(source.block(index).load_kw.shape[1] for index in range(1, source.n_blocks))
    return (time.process_time() - began) / days / customers


def times_of_drawing(customers: int, days: int) -> dict[str, float]:
    """Processor time [ns] per step of a customer or load."""
    feeder = open_feeder("ieee123")
    sources: dict[str, tuple[LoadSource, int]] = {
        "persistent customers": (history(feeder, customers, days), customers),
        "independent days": (independent(feeder, customers, days), customers),
        "one draw per load": (one_per_load(feeder, 20 * days), len(feeder.loads)),
    }
    return {
        name: 1e9 / STEPS * min(seconds_per_customer_day(source, count) for _ in range(3))
        for name, (source, count) in sources.items()
    }


def drawing_with(package: Path, options: list[str]) -> dict[str, float]:
    """The same with another copy of the package, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--json", *options],
        env={**os.environ, "PYTHONPATH": str(package)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(commit: str, options: list[str]) -> None:
    """This package and that of a commit, in turns, best of three."""
    with tempfile.TemporaryDirectory() as folder:
        packages = (archived(commit, Path(folder) / "archive"), REPOSITORY / "src")
        turns = [[drawing_with(package, options) for package in packages] for _ in range(3)]
    for name in turns[0][0]:
        then, now = (min(turn[side][name] for turn in turns) for side in range(2))
        print(f"  {name}: {then:.2f} ns at {commit}, {now:.2f} ns now: {then / now:.2f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=3650)
    parser.add_argument("--customers", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--drawing", action="store_true", help="draw only, in this process")
    parser.add_argument("--against", metavar="COMMIT", help="with --drawing: compare with a commit")
    parser.add_argument("--json", action="store_true", help="with --drawing: times as JSON")
    options = parser.parse_args()
    customers, days = options.customers, options.days
    if options.drawing or options.json or options.against:
        few = min(days, COMPARED_DAYS)
        if options.against:
            compare(options.against, ["--days", str(few), "--customers", str(customers)])
            return
        times = times_of_drawing(customers, few)
        lines = [f"  {name}: {nanoseconds:.2f} ns" for name, nanoseconds in times.items()]
        print(json.dumps(times) if options.json else "\n".join(lines))
        return
    feeder = open_feeder("ieee123")
    numbers = range(history(feeder, customers, days).n_blocks)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        ready = [pool.submit(one_block, customers, days, 0) for _ in range(4 * options.workers)]
        compiled = {each.result().worker for each in ready}
        began = time.perf_counter()
        pending = [pool.submit(one_block, customers, days, index) for index in numbers]
        spent = [each.result() for each in pending]
        wall = time.perf_counter() - began
    drawing, solving = sum(each.drawing for each in spent), sum(each.solving for each in spent)
    busy = [sum(e.drawing + e.solving for e in spent if e.worker == pid) for pid in compiled]
    print(f"{days} days of {customers} customers on IEEE 123, {len(compiled)} workers")
    print(f"  wall time {wall:.1f} s; processor time of the busiest worker {max(busy):.1f} s")
    print(f"  processor time of all: drawing {drawing:.1f} s, solving {solving:.1f} s")
    print(f"  {days * customers / drawing:,.0f} customer-days drawn per second and core")
    failed, moves = sum(each.failed for each in spent), np.mean([each.moves for each in spent])
    print(
        f"  {1e6 * solving / days / STEPS:.1f} µs per snapshot, {moves:.3f} moves; {failed} without solution"
    )
    mean = np.mean([each.mean_kw for each in spent])
    print(f"  mean load {mean:,.0f} kW of {sum(load.kw for load in feeder.loads):,.0f} nominal")
    compared = min(days, COMPARED_DAYS)
    own = seconds_per_customer_day(history(feeder, customers, compared), customers)
    today = seconds_per_customer_day(independent(feeder, customers, compared), customers)
    print(
        f"  drawing alone: {1e6 * own:.2f} µs per customer-day, independent days {1e6 * today:.2f} µs: "
        f"{own / today:.2f} of it"
    )


if __name__ == "__main__":
    main()
