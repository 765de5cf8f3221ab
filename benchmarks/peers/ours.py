"""This package: the batched solver, voltages of every snapshot kept and their mismatch measured."""

from __future__ import annotations

import time

import numpy as np
from cases import load_factors, nodal_load, open_case
from outcome import Outcome

from dp_powerflow import BatchSolver

KEEP = 32
PASSES = 8


def run(case: str, snapshots: int, variant: str) -> Outcome:
    feeder = open_case(case)
    solver = BatchSolver(feeder, threads=1 if variant == "one thread" else None)
    load = nodal_load(feeder, load_factors(len(feeder.loads), snapshots))
    # The output is preallocated and its pages touched, as in a stream.
    out = np.ones_like(load)
    solver.solve(load[:64])
    # A pass takes a fraction of a peer's run; the mean of several lasts about as long as theirs. No minimum:
    # the peers are timed once per process too.
    begin, worked = time.perf_counter(), time.process_time()
    for _ in range(PASSES):
        solution = solver.solve(load, out=out)
    seconds = (time.perf_counter() - begin) / PASSES
    processor_s = (time.process_time() - worked) / PASSES
    solution.raise_if_failed()
    note = (
        f"mean {solution.iterations.mean():.1f} iterations, mismatch up to {solution.mismatch.max():.1e} p.u."
    )
    operations = flops(solver, float(solution.iterations.mean()))
    return Outcome(seconds, list(range(KEEP)), out[:KEEP].copy(), note, operations, processor_s)


def flops(solver: BatchSolver, iterations: float) -> float:
    """Floating-point operations of a snapshot that takes so many iterations; a division is one."""
    plan, check = solver.plans.plan, solver.plans.core_check
    entries = int(plan.lower_ptr[plan.n_core]) + len(plan.upper_col)
    each = 8 * entries + 6 * plan.n_core + 32 * len(plan.at)
    return iterations * each + 8 * len(check.col) + 20 * plan.n_core
