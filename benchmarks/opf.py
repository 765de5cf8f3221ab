"""How long optimal dispatch of IEEE 123 takes, and how much longer a loop over cvxpy.

    python benchmarks/opf.py                        # 480 snapshots
    python benchmarks/opf.py --snapshots 10000 --frame operated

Loads are drawn around 70 % of nominal with a daily swing; units by the rule of `derive opf`: a fifth of the
loads. Times are wall clock and CPU seconds; on a busy machine only the latter mean something.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter

import numpy as np
from peer_dispatch import solve_with_cvxpy

import dp_powerflow as dpf
from dp_powerflow import BatchSolver, Feeder, OperatedSolver
from dp_powerflow._threads import in_order
from dp_powerflow.lowlevel import Solver, cores
from dp_powerflow.studies.dispatch.dispatcher import Dispatched, Dispatcher, Options, Point, Snapshots, Unit

STEPS = 48
PRICE = 0.1


def units_of(feeder: Feeder) -> list[Unit]:
    return [
        Unit(f"u{k}", load.branches, 1.1 * load.kw, load.kw, 0.0, 0.08, 1e-5)
        for k, load in enumerate(feeder.loads[::5])
    ]


def solver_of(feeder: Feeder, frame: str) -> Solver:
    if frame == "operated":
        return OperatedSolver(feeder, controls="day", steps=STEPS, threads=1)
    return BatchSolver(feeder, threads=1)


def snapshots_of(feeder: Feeder, frame: str, day: int) -> Snapshots:
    rng = np.random.default_rng([5, day])
    swing = 0.7 + 0.2 * np.sin(np.arange(STEPS) * 2.0 * np.pi / STEPS)
    nominal = feeder.nominal_load if frame == "operated" else -feeder.nominal_injection[feeder.retained]
    spread = rng.uniform(0.8, 1.2, (STEPS, len(nominal)))
    one = np.ones(STEPS)
    return Snapshots(nominal * swing[:, None] * spread, None, PRICE * one, one, one > 0)


def cpu() -> float:
    found = os.times()
    return found.user + found.system


def peer_seconds(feeder: Feeder, options: Options, count: int) -> float:
    """CPU seconds per program of a plain loop over cvxpy, on the programs of the first snapshots."""
    dispatcher = Dispatcher(BatchSolver(feeder, threads=1), units_of(feeder), options)
    some = snapshots_of(feeder, "fixed", 0)
    none = np.zeros((STEPS, len(dispatcher.units)), dtype=np.complex128)
    states = dispatcher.flow.solve(some.load, None, none)[np.arange(count)]
    network = dispatcher.network
    linear = network.states(states.v, states.ratio, states.closed)
    flows, there = network.flows(linear), network.number >= 0
    imported, arrays = network.imported(flows).real, dispatcher.unit_arrays(1.0)
    begin = cpu()
    tangents = network.tangents(linear)
    for k in range(count):
        u, received = np.abs(linear.v[k][there]) ** 2, flows.received[k][there]
        point = Point(none[k], u, received, float(imported[k]))
        solve_with_cvxpy(dispatcher.limits, tangents[k], point, arrays, PRICE)
    return (cpu() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--snapshots", type=int, default=480)
    parser.add_argument("--frame", choices=("fixed", "operated"), default="operated")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--peer", type=int, default=24, help="snapshots of the loop over cvxpy; 0 for none")
    given = parser.parse_args()
    feeder = dpf.open_feeder("ieee123")
    options = Options()
    made: dict[int, Dispatcher] = {}

    def one_day(task: tuple[int, int]) -> Dispatched:
        worker, day = task
        return made[worker].run(snapshots_of(feeder, given.frame, day))

    for worker in range(given.workers):
        made[worker] = Dispatcher(solver_of(feeder, given.frame), units_of(feeder), options)
    made[0].run(snapshots_of(feeder, given.frame, 10**6))  # compiled and loaded before the clock runs
    days = -(-given.snapshots // STEPS)
    wall, used = time.perf_counter(), cpu()
    shares = [range(worker, days, given.workers) for worker in range(given.workers)]

    def some_days(worker: int) -> list[Dispatched]:
        return [one_day((worker, day)) for day in shares[worker]]

    found = [each for part in in_order(some_days, range(given.workers), given.workers) for each in part]
    wall, used = time.perf_counter() - wall, cpu() - used
    count = days * STEPS
    status = Counter(name for each in found for name in each.status)
    node_of = made[0].network.node_of
    vm = np.concatenate([np.abs(each.checked.v[:, node_of]) for each in found])
    beyond = np.maximum(vm - options.v_max, options.v_min - vm).max(axis=1)
    cost, linear = (np.concatenate([getattr(each, k) for each in found]) for k in ("cost", "linear_cost"))
    known = np.isfinite(linear)
    error = 100.0 * np.abs(linear[known] / cost[known] - 1.0)
    print(f"{count} snapshots of IEEE 123, {given.frame} frame, {given.workers} workers")
    print(
        f"  wall {wall:.1f} s ({count / wall:.0f} per s), CPU {used:.1f} s ({1e3 * used / count:.1f} ms each)"
    )
    print(f"  status {dict(status)}")
    sizes = {size: int((beyond > max(size, 1e-6)).sum()) for size in (0.0, 0.001, 0.005, 0.01)}
    print(f"  snapshots beyond a voltage limit after the AC check, by more than [p.u.]: {sizes}")
    if known.any():
        print(f"  error of the program's cost: median {np.median(error):.4f} %, most {error.max():.3f} %")
    if given.peer:
        seconds = peer_seconds(feeder, options, given.peer)
        ratio = (1 + options.corrections) * seconds / (used / count)
        print(
            f"  loop over cvxpy: {1e3 * seconds:.1f} ms per program, {ratio:.1f} times as long as all of this"
        )


if __name__ == "__main__":
    main()
