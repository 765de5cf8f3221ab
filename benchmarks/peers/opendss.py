"""OpenDSS through dss-python: a loop over snapshots, or its yearly mode in one or two contexts.

In yearly mode the engine reads every load's power from a load shape; no voltages are recorded but those of
the last step, so the figure is the engine's own, without any output.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import numpy as np
from cases import KV, Z_BASE, balanced_branches, load_factors, nodal_load, open_case
from dss import DSS
from outcome import Outcome

from dp_powerflow import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, circuit_without_injections
from dp_powerflow.units import ComplexArray

KEEP = 32
VOLT = 1e3
KW_PER_PU = 1e3
TOLERANCE = 1e-8


def run(case: str, snapshots: int, variant: str) -> Outcome:
    feeder = open_case(case)
    load = nodal_load(feeder, load_factors(len(feeder.loads), snapshots))
    if variant == "snapshot":
        return _snapshot_loop(feeder, load)
    return _yearly(feeder, load, 2 if variant == "yearly-2" else 1)


class Circuit:
    """A feeder in an engine of its own, with one constant-power load per retained node."""

    def __init__(self, feeder: Feeder) -> None:
        if isinstance(feeder.origin, DssOrigin):
            self.engine = circuit_without_injections(feeder.origin, feeder.taps)
            self.buses = [feeder.nodes[k] for k in feeder.retained]
            self.kv = feeder.base_kv[feeder.retained]
            self.turn = np.ones(len(feeder.retained), dtype=np.complex128)
        else:
            self.engine = DSS.NewContext()
            self._build(feeder)
        self.engine.AllowForms = False
        for k, (bus, kv) in enumerate(zip(self.buses, self.kv, strict=True)):
            self.text(
                f"New Load.d{k} Bus1={bus} Phases=1 Conn=Wye kV={float(kv)!r} kW=1 kvar=0.5 "
                "Model=1 Vminpu=0 Vlowpu=0 Vmaxpu=10"
            )
        self.text(f"Set ControlMode=Off MaxIterations=100 Tolerance={TOLERANCE} Algorithm=Normal")
        self.text("Solve Mode=Snapshot")
        order = {name.lower(): k for k, name in enumerate(self.engine.ActiveCircuit.YNodeOrder)}
        self.at = np.array([order[bus.lower()] for bus in self.buses])
        names = [name.lower() for name in self.engine.ActiveCircuit.Loads.AllNames]
        self.numbers = [names.index(f"d{k}") + 1 for k in range(len(self.buses))]

    def _build(self, feeder: Feeder) -> None:
        branches = balanced_branches(feeder)
        source = f"Bus1=b{branches.source}.1 Phases=1 BasekV={KV} pu={abs(branches.v_source)!r}"
        self.text("Clear")
        self.text(f"New Circuit.c {source} R1=1e-7 X1=1e-7 R0=1e-7 X0=1e-7")
        for k, ((i, j), z) in enumerate(zip(branches.ends, branches.z[:, 0, 0] * Z_BASE, strict=True)):
            self.text(
                f"New Line.l{k} Bus1=b{i}.1 Bus2=b{j}.1 Phases=1 R1={z.real!r} X1={z.imag!r} "
                f"R0={z.real!r} X0={z.imag!r} C1=0 C0=0 Length=1"
            )
        for k, y in enumerate(branches.shunt[:, 0]):
            if abs(y) > 1e-9 and k != branches.source:
                z = Z_BASE / y
                self.text(f"New Reactor.s{k} Bus1=b{k}.1 Phases=1 R={z.real!r} X={z.imag!r}")
        self.text(f"Set VoltageBases=[{KV * np.sqrt(3.0)!r}]")
        self.text("CalcVoltageBases")
        self.buses = [f"b{bus}.1" for bus in branches.place[:, 0]]
        self.kv = np.full(len(self.buses), KV)
        self.turn = branches.turn

    def text(self, command: str) -> None:
        self.engine.Text.Command = command.replace("np.float64(", "").replace(")", "")

    def voltages(self) -> ComplexArray:
        v = np.asarray(self.engine.YMatrix.getV(), dtype=np.float64).view(np.complex128)[1:]
        return v[self.at] / (self.kv * VOLT) * self.turn


def _snapshot_loop(feeder: Feeder, load: ComplexArray) -> Outcome:
    circuit = Circuit(feeder)
    loads, solution = circuit.engine.ActiveCircuit.Loads, circuit.engine.ActiveCircuit.Solution
    p, q = (load.real * KW_PER_PU).tolist(), (load.imag * KW_PER_PU).tolist()
    kept = []
    begin = time.perf_counter()
    for k in range(len(load)):
        for number, kw, kvar in zip(circuit.numbers, p[k], q[k], strict=True):
            loads.idx = number
            loads.kW = kw
            loads.kvar = kvar
        solution.Solve()
        if k < KEEP:
            kept.append(circuit.voltages())
    seconds = time.perf_counter() - begin
    assert solution.Converged
    return Outcome(seconds, list(range(len(kept))), np.array(kept), "one context, powers set through the API")


def _yearly(feeder: Feeder, load: ComplexArray, actors: int) -> Outcome:
    """Solve the snapshots in equal parts at the same time, one engine in a process of its own for each.

    Threads with a context each are as fast but crash the engine (0.14.5) now and then.
    """
    parts = np.array_split(np.arange(len(load)), actors)
    if actors == 1:
        seconds, v = _solve_year(_with_shapes(Circuit(feeder), load))
        return Outcome(seconds, [len(load) - 1], v[None, :], "one engine, nothing recorded")
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(actors), context.Queue()
    workers = [
        context.Process(target=_work, args=(k, feeder, load[part], barrier, answers))
        for k, part in enumerate(parts)
    ]
    for worker in workers:
        worker.start()
    found = sorted((answers.get(timeout=240) for _ in workers), key=lambda answer: answer[0])
    for worker in workers:
        worker.join()
    seconds = max(answer[1] for answer in found)
    v = np.array([answer[2] for answer in found])
    return Outcome(seconds, [int(part[-1]) for part in parts], v, f"{actors} engines, nothing recorded")


def _work(number: int, feeder: Feeder, load: ComplexArray, barrier: Any, answers: Any) -> None:
    circuit = _with_shapes(Circuit(feeder), load)
    barrier.wait(timeout=240)
    seconds, v = _solve_year(circuit)
    answers.put((number, seconds, v))


def _solve_year(circuit: Circuit) -> tuple[float, ComplexArray]:
    begin = time.perf_counter()
    circuit.engine.ActiveCircuit.Solution.Solve()
    return time.perf_counter() - begin, circuit.voltages()


def _with_shapes(circuit: Circuit, load: ComplexArray) -> Circuit:
    shapes = circuit.engine.ActiveCircuit.LoadShapes
    for k in range(load.shape[1]):
        circuit.text(f"New Loadshape.s{k} npts={len(load)} interval=1 UseActual=Yes")
        shapes.Name = f"s{k}"
        shapes.Pmult = np.ascontiguousarray(load[:, k].real) * KW_PER_PU
        shapes.Qmult = np.ascontiguousarray(load[:, k].imag) * KW_PER_PU
        circuit.text(f"Edit Load.d{k} Yearly=s{k}")
    circuit.text(f"Set Mode=Yearly Number={len(load)} StepSize=1h Hour=0 Sec=0 ControlMode=Off")
    return circuit
