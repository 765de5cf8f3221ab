"""This package: the batched solver, voltages of every snapshot kept and their mismatch measured."""

from __future__ import annotations

import time

import numpy as np
from cases import load_factors, nodal_load, open_case
from outcome import Outcome

from dp_powerflow.powerflow.batch import BatchSolver

KEEP = 32


def run(case: str, snapshots: int, variant: str) -> Outcome:
    feeder = open_case(case)
    solver = BatchSolver(feeder, threads=1 if variant == "one thread" else None)
    load = nodal_load(feeder, load_factors(len(feeder.loads), snapshots))
    out = np.zeros_like(load)
    solver.solve(load[:64])
    seconds = np.inf
    for _ in range(3):
        begin = time.perf_counter()
        solution = solver.solve(load, out=out)
        seconds = min(seconds, time.perf_counter() - begin)
    solution.raise_if_failed()
    note = (
        f"mean {solution.iterations.mean():.1f} iterations, mismatch up to {solution.mismatch.max():.1e} p.u."
    )
    flops = solver.flops(float(solution.iterations.mean()))
    return Outcome(seconds, list(range(KEEP)), out[:KEEP].copy(), note, flops)
