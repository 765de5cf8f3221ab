"""A circuit of OpenDSS whose admittance matrix can be another: driven from outside, or with reactors added.

`DrivenCircuit` runs the iteration of OpenDSS on its system matrix plus any other: the currents of source and
loads, and the test of convergence, are those of OpenDSS; only the linear solve is ours. `as_reactors` writes
a symmetric matrix into the circuit, for OpenDSS to solve as ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from cffi import FFI
from scipy.linalg import lu_factor, lu_solve

from dp_powerflow import Feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import DssOrigin, Engine, circuit_without_injections, solve
from dp_powerflow.grid.opendss.engine import run as command
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, admittance_base_siemens

FLOATING_BUS = "610."
"""Of IEEE 123, behind a delta-delta transformer: only a millionth of its rating ties it to ground."""
_WHOLE_MATRIX = 2
_COMPLEX_BYTES = 16


@dataclass(frozen=True, eq=False)
class Unit:
    """Of r and of the noise. `siemens` (node, node) is one unit in every entry of the system matrix."""

    name: str
    siemens: FloatArray


@dataclass(frozen=True)
class Loads:
    """How OpenDSS models the loads: text commands' properties, empty for those of the file."""

    name: str
    properties: str = ""


AS_IN_FILE = Loads("as in the file")
CONSTANT_POWER = Loads("constant power at any voltage", "Model=1 Vminpu=0 Vlowpu=0 Vmaxpu=10")


@dataclass(frozen=True)
class Outcome:
    """One solution.

    Attributes
    ----------
    converged : as OpenDSS judges it.
    iterations : linear solves.
    v : complex (node,) [V], in the engine's order.
    """

    converged: bool
    iterations: int
    v: ComplexArray


class DrivenCircuit:
    """A circuit of OpenDSS whose iteration is driven from outside, so that its matrix can be another."""

    def __init__(self, feeder: Feeder, loads: Loads = AS_IN_FILE) -> None:
        self.origin = _origin(feeder)
        self.engine: Engine = circuit_without_injections(self.origin, feeder.taps, but="load")
        for name in self.engine.ActiveCircuit.Loads.AllNames:
            if loads.properties:
                command(self.engine, f'Edit "Load.{name}" {loads.properties}', self.origin)
        command(self.engine, "Set Mode=Snapshot", self.origin)
        solve(self.engine, self.origin)
        self.nodes = tuple(node.lower() for node in self.engine.ActiveCircuit.YNodeOrder)
        place = {node: k for k, node in enumerate(feeder.nodes)}
        self.base_kv = np.array([feeder.base_kv[place[node]] for node in self.nodes])
        self.place = np.array([place[node] for node in self.nodes])

    def set_load(self, kw: dict[str, complex]) -> None:
        """Power of every load [kW + j kvar], by its name."""
        for loads in self.engine.ActiveCircuit.Loads:
            power = kw[loads.Name.lower()]
            loads.kW, loads.kvar = power.real, power.imag

    def solve(self) -> Outcome:
        """By OpenDSS alone."""
        done = solve(self.engine, self.origin)
        return Outcome(done, int(self.engine.ActiveCircuit.Solution.Iterations), self._view("V").copy())

    def matrix(self) -> ComplexArray:
        """Complex (node, node) system matrix at the present loads [S], their admittances in it."""
        matrices = self.engine.YMatrix
        matrices.BuildYMatrixD(_WHOLE_MATRIX, False)
        data, indices, pointers = matrices.GetCompressedYMatrix()
        return np.asarray(sp.csc_array((data, indices, pointers)).toarray())

    def solve_with(self, matrix: ComplexArray) -> Outcome:
        """The same iteration on another matrix [S], from the voltages without the loads' own currents."""
        matrices, limit = self.engine.YMatrix, int(self.engine.ActiveCircuit.Solution.MaxIterations)
        factor = lu_factor(matrix)
        v, current = self._view("V"), self._view("I")
        matrices.ZeroInjCurr()
        matrices.GetSourceInjCurrents()
        v[:] = lu_solve(factor, current)
        for iteration in range(1, limit + 1):
            matrices.ZeroInjCurr()
            matrices.GetSourceInjCurrents()
            matrices.GetPCInjCurr()
            if not np.isfinite(current).all():
                break
            v[:] = lu_solve(factor, current)
            matrices.LoadsNeedUpdating = False
            if matrices.CheckConvergence() and iteration > 1:
                return Outcome(True, iteration, v.copy())
        return Outcome(False, limit, v.copy())

    def magnitude(self, v: ComplexArray) -> FloatArray:
        """(node,) |v| [p.u.]."""
        return np.asarray(np.abs(v) / (1000.0 * self.base_kv))

    def units(self, base_mva: float) -> tuple[Unit, Unit]:
        """Per unit and siemens."""
        base = admittance_base_siemens(self.base_kv, base_mva)
        return Unit("p.u.", np.sqrt(np.outer(base, base))), Unit("siemens", np.ones((len(base), len(base))))

    @property
    def tied(self) -> BoolArray:
        """(node,) whether a node has a firm path to ground."""
        return np.array([not node.startswith(FLOATING_BUS) for node in self.nodes])

    def _view(self, which: str) -> ComplexArray:
        """The engine's own vector of node voltages or currents, without ground."""
        matrices = self.engine.YMatrix
        pointer = matrices.GetVPointer() if which == "V" else matrices.GetIPointer()
        memory = FFI().buffer(pointer, _COMPLEX_BYTES * (len(self.nodes) + 1))
        return np.frombuffer(memory, dtype=np.complex128)[1:]


def as_reactors(nodes: tuple[str, ...], noise: ComplexArray) -> list[str]:
    """Commands that add a symmetric matrix of noise [S] to the system matrix."""
    commands = []
    for i, node in enumerate(nodes):
        commands += [
            _reactor(f"noise_{i}_{j}", f"bus1={node} bus2={nodes[j]}", -noise[i, j])
            for j in range(i + 1, len(nodes))
        ]
        commands.append(_reactor(f"noise_{i}", f"bus1={node}", noise[i].sum()))
    return commands


def _reactor(name: str, buses: str, admittance: complex) -> str:
    impedance = 1.0 / complex(admittance)
    return f"New Reactor.{name} phases=1 {buses} R={impedance.real!r} X={impedance.imag!r}"


def _origin(feeder: Feeder) -> DssOrigin:
    if not isinstance(feeder.origin, DssOrigin):
        raise FeederError("only a feeder read from OpenDSS can be solved by it; open it from a .dss file")
    return feeder.origin
