"""OpenDSS with the controls of the file acting, snapshot after snapshot, from stated taps and capacitors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from dss import DSSException

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, build_circuit, enabled_names, run
from dp_powerflow.powerflow.operated import LEVELS, PER_NOMINAL, OperatedSolution, OperatedSolver
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

KW = 1000.0
MOST_ROUNDS = 300
_SOURCES = ("pvsystem", "storage", "storagecontroller", "invcontrol")


@dataclass(frozen=True, eq=False)
class EngineRun:
    """What OpenDSS found.

    Attributes
    ----------
    v : complex (snapshot, energised node) [p.u.].
    states : (snapshot, control) tap steps from neutral, then 1 for a closed capacitor.
    settled : (snapshot,) whether the controls came to rest and the power flow converged.
    """

    v: ComplexArray
    states: IntArray
    settled: BoolArray


class ControlledEngine:
    """The circuit that a feeder was read from, with its own models of loads and its own controls.

    Parameters
    ----------
    solar : whether PV systems and their controls take part; storage never does.
    step_min : minutes of a step, None for snapshots without time.
    """

    def __init__(
        self, feeder: Feeder, *, solar: bool = False, step_min: int | None = None, tolerance: float = 1e-9
    ) -> None:
        assert isinstance(feeder.origin, DssOrigin)
        self._feeder, self._origin, self._step_min = feeder, feeder.origin, step_min
        self._solar, self._tolerance = solar, tolerance
        self._reversible = any(each.reverse is not None for each in feeder.as_operated.regulators)
        self._engine: Any = None
        self._build()

    def _build(self) -> None:
        self._engine = build_circuit(self._origin, self._engine)
        self._circuit = self._engine.ActiveCircuit
        modelled = {unit.name for unit in self._feeder.as_operated.generators}
        for kind in ("storage", "storagecontroller") if self._solar else _SOURCES:
            for name in enabled_names(self._engine, kind):
                self._text(f'Disable "{kind}.{name}"')
        for name in enabled_names(self._engine, "generator"):
            if name not in modelled:
                self._text(f'Disable "generator.{name}"')
        self._text(f"Set ControlMode=Static MaxControlIter={MOST_ROUNDS} MaxIterations=500")
        self._text(f"Set Tolerance={self._tolerance}")
        self._numbers = {name.lower(): k + 1 for k, name in enumerate(self._circuit.Loads.AllNames)}
        self._order: list[int] | None = None
        self._clean = True

    def run(
        self, load: ComplexArray, starts: IntArray, *, steps: int = 1, irradiance: FloatArray | None = None
    ) -> EngineRun:
        """Solve days of so many steps, each from its own row of `starts`; without steps, single snapshots."""
        found = []
        for k, row in enumerate(load):
            if k % steps == 0:
                self._begin(starts[k // steps])
            self._set_loads(row)
            if k % steps == 0:
                # It starts as a circuit does that was just compiled: with every load an impedance.
                self._engine.YMatrix.SystemYChanged = True
            if irradiance is not None:
                for systems in self._circuit.PVSystems:
                    systems.Irradiance = float(irradiance[k])
            # The engine raises where controls hunt; `settled` says so.
            with suppress(DSSException):
                self._circuit.Solution.Solve()
            found.append((self._voltages(), self._states(), self._settled()))
            self._clean = self._clean and self._settled()
        v, states, settled = zip(*found, strict=True)
        return EngineRun(np.array(v), np.array(states).reshape(len(load), -1), np.array(settled))

    # ---------------------------------------------------------------------------------- inside

    def _text(self, command: str) -> None:
        run(self._engine, command, self._origin)

    def _begin(self, states: IntArray) -> None:
        operation = self._feeder.as_operated
        # The engine has no command that makes a regulator look forward again, or forgets what hunted.
        if self._reversible or not self._clean:
            self._build()
        self._text("Reset Controls")
        mode = "Snapshot" if self._step_min is None else f"Daily Number=1 StepSize={self._step_min}m"
        self._text(f"Set Mode={mode} Hour=0 Sec=0")
        for regulator, tap in zip(operation.regulators, states.tolist(), strict=False):
            transformers = self._circuit.Transformers
            transformers.Name, transformers.Wdg = regulator.transformer, regulator.winding
            transformers.Tap = 1.0 + tap * regulator.step
        for bank, closed in zip(
            operation.capacitors, states[len(operation.regulators) :].tolist(), strict=True
        ):
            self._circuit.Capacitors.Name = bank.name
            self._circuit.Capacitors.States = [int(closed)]
            self._circuit.SetActiveElement(f"capacitor.{bank.name}")
            element = self._circuit.ActiveCktElement
            (element.Close if closed else element.Open)(1, 0)

    def _set_loads(self, row: ComplexArray) -> None:
        kva = row * self._feeder.base_mva * KW
        loads = self._circuit.Loads
        for record, power in zip(self._feeder.loads, kva.tolist(), strict=True):
            loads.idx = self._numbers[record.name]
            loads.kW, loads.kvar = power.real, power.imag

    def _voltages(self) -> ComplexArray:
        feeder = self._feeder
        if self._order is None:
            at = {name.lower(): k for k, name in enumerate(self._circuit.YNodeOrder)}
            self._order = [at[feeder.nodes[k]] for k in feeder.energised]
        volts = np.asarray(self._engine.YMatrix.getV()).view(np.complex128)[1:]
        return np.asarray(volts[self._order] / (KW * feeder.base_kv[feeder.energised]))

    def _states(self) -> list[int]:
        found = []
        for regulator in self._feeder.as_operated.regulators:
            transformers = self._circuit.Transformers
            transformers.Name, transformers.Wdg = regulator.transformer, regulator.winding
            found.append(round((transformers.Tap - 1.0) / regulator.step))
        for bank in self._feeder.as_operated.capacitors:
            self._circuit.Capacitors.Name = bank.name
            found.append(int(self._circuit.Capacitors.States[0]))
        return found

    def _settled(self) -> bool:
        solution = self._circuit.Solution
        return bool(solution.Converged and solution.ControlIterations < MOST_ROUNDS)


# ------------------------------------------------------------------------------------- comparing


def random_loads(feeder: Feeder, n: int, seed: int = 0, low: float = 0.1, high: float = 1.6) -> ComplexArray:
    """Complex (snapshot, load): a level for all, and a factor for each [p.u.]."""
    rng = np.random.default_rng(seed)
    level = rng.uniform(low, high, (n, 1))
    return np.asarray(feeder.nominal_load * level * rng.uniform(0.5, 1.5, (n, len(feeder.loads))))


def random_days(feeder: Feeder, days: int, steps: int, seed: int = 0, mean: float = 0.65) -> ComplexArray:
    """Complex (day·step, load): a daily course for all, and a factor for each at every step [p.u.]."""
    rng = np.random.default_rng(seed)
    at = np.tile(np.arange(steps) / steps, days)
    course = mean - 0.45 * mean * np.cos(2.0 * np.pi * at)
    own = rng.lognormal(-0.02, 0.2, (days * steps, len(feeder.loads)))
    level = np.repeat(rng.uniform(0.7, 1.4, days), steps)
    return np.asarray(feeder.nominal_load * (course * level)[:, None] * own)


def starts_of(solver: OperatedSolver, load: ComplexArray) -> IntArray:
    """(snapshot, control) row of the public table that each snapshot starts from."""
    nominal = solver.feeder.nominal_load
    size = float(np.sum(nominal.real**2 + nominal.imag**2))
    share = (load.real @ nominal.real + load.imag @ nominal.imag) / size
    level = np.clip((np.clip(share, -1.0, 1.5) * PER_NOMINAL).astype(np.int64), 0, LEVELS - 1)
    return np.asarray(solver.first_states[np.minimum(level, len(solver.first_states) - 1)])


def states_of(solution: OperatedSolution) -> IntArray:
    """(snapshot, control) taps, then capacitors."""
    return np.concatenate([solution.taps, solution.capacitors], axis=1)


@dataclass(frozen=True)
class Agreement:
    """How far a batch agrees with OpenDSS, over the snapshots where the engine came to rest.

    Attributes
    ----------
    settled, same : number of those, and of those with the same taps and capacitors.
    largest : largest |ΔV| where they are the same [p.u.].
    """

    settled: int
    same: int
    largest: float


def agreement(solution: OperatedSolution, engine: EngineRun) -> Agreement:
    """Compare all nodes of all snapshots."""
    assert solution.converged[engine.settled].all()
    same = (states_of(solution) == engine.states).all(axis=1) & engine.settled
    largest = abs(solution.v - engine.v)[same].max(initial=0.0)
    return Agreement(int(engine.settled.sum()), int(same.sum()), float(largest))
