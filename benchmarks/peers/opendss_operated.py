"""OpenDSS in yearly mode with the loads and the controls of the file, two engines in a process each.

Seconds are CPU time of the slower engine. Nothing is recorded, so the figure is the engine's own.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import numpy as np
from cases import daily_factors, open_case
from outcome import Outcome

from dp_powerflow import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, Engine, build_circuit
from dp_powerflow.units import FloatArray

ENGINES = 2
TOLERANCE = 1e-8
MOST_ROUNDS = 300


def run(case: str, snapshots: int, variant: str) -> Outcome:
    parts = np.array_split(daily_factors(len(open_case(case).loads), snapshots), ENGINES)
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(ENGINES), context.Queue()
    workers = [context.Process(target=_work, args=(case, part, barrier, answers)) for part in parts]
    for worker in workers:
        worker.start()
    seconds = max(answers.get(timeout=280) for _ in workers)
    for worker in workers:
        worker.join()
    return Outcome(seconds, [], np.zeros((0, 0), dtype=np.complex128), f"{ENGINES} engines, nothing recorded")


def _work(case: str, factors: FloatArray, barrier: Any, answers: Any) -> None:
    engine = _with_shapes(open_case(case), factors)
    barrier.wait(timeout=240)
    begin = time.process_time()
    engine.ActiveCircuit.Solution.Solve()
    seconds = time.process_time() - begin
    assert engine.ActiveCircuit.Solution.Converged
    answers.put(seconds)


def _with_shapes(feeder: Feeder, factors: FloatArray) -> Engine:
    """The circuit of the file, every load with a shape of its own."""
    assert isinstance(feeder.origin, DssOrigin)
    engine = build_circuit(feeder.origin)
    text, shapes = engine.Text, engine.ActiveCircuit.LoadShapes
    for k, load in enumerate(feeder.loads):
        text.Command = f"New Loadshape.s{k} npts={len(factors)} minterval=15"
        shapes.Name = f"s{k}"
        shapes.Pmult = np.ascontiguousarray(factors[:, k])
        text.Command = f"Edit Load.{load.name} Yearly=s{k} status=variable"
    text.Command = (
        f"Set ControlMode=Static MaxControlIter={MOST_ROUNDS} MaxIterations=100 Tolerance={TOLERANCE}"
    )
    text.Command = f"Set Mode=Yearly Number={len(factors)} StepSize=15m Hour=0 Sec=0"
    return engine
