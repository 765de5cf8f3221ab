"""This package with acting controls, one thread; seconds are CPU time, so that other work does not count.

Variants: "batch", the frozen solver on the same loads; "day", "snapshot" and "frozen" of the feeder as
operated; "solved" and "failing", snapshots of loads of constant power with and without a solution.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
from cases import daily_factors, nodal_load, open_case
from outcome import Outcome

from dp_powerflow import BatchSolver, OperatedSolution, OperatedSolver, Solution
from dp_powerflow.grid.operation import CONSTANT_POWER
from dp_powerflow.powerflow.operated import ControlMode

STEPS = 96
PASSES = 3
OVERLOAD = 30.0


def run(case: str, snapshots: int, variant: str) -> Outcome:
    feeder = open_case(case)
    factors = daily_factors(len(feeder.loads), snapshots)
    load = factors * feeder.nominal_load
    out = np.ones((snapshots, len(feeder.retained)), dtype=np.complex128)
    if variant == "batch":
        batch, nodal = BatchSolver(feeder, threads=1), nodal_load(feeder, factors)
        return _timed(lambda count: batch.solve(nodal[:count], out=out[:count]), snapshots)
    if variant in ("solved", "failing"):
        rigid = tuple(replace(record, response=CONSTANT_POWER) for record in feeder.loads)
        feeder = replace(feeder, loads=rigid)
        load = OVERLOAD * load if variant == "failing" else load
    mode = "snapshot" if variant in ("solved", "failing") else variant
    solver = OperatedSolver(feeder, controls=cast(ControlMode, mode), steps=STEPS, threads=1)
    return _timed(lambda count: solver.solve(load[:count], out=out[:count]), snapshots)


def _timed(solve: Callable[[int], Solution], snapshots: int) -> Outcome:
    solve(STEPS)
    begin = time.process_time()
    for _ in range(PASSES):
        solution = solve(snapshots)
    seconds = (time.process_time() - begin) / PASSES
    note = f"mean {solution.iterations.mean():.1f} sweeps, {solution.n_failed} failed"
    if isinstance(solution, OperatedSolution):
        note += f", {solution.rounds.mean():.2f} moves, {solution.locked.sum()} locked"
    # No voltages: agreement with OpenDSS is tested, not measured here.
    return Outcome(seconds, [], np.zeros((0, 0), dtype=np.complex128), note)
