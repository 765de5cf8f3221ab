"""The OpenDSS engine behind the interface of the batched solver, one snapshot at a time.

The circuit of the feeder's own commands is compiled again, its loads and generation replaced by one
constant-power load per retained node. What the engine calls converged is checked: the mismatch is measured
with the admittances of the `Feeder`. The engine is compiled C++ and Pascal: its last bits are not promised
to be the same on every processor.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, Engine, circuit_without_injections, run, solve
from dp_powerflow.grid.reduction import Network
from dp_powerflow.powerflow.batch import (
    Nodes,
    Solution,
    Solver,
    checked_output,
    checked_pair,
    refuse_bad_loads,
)
from dp_powerflow.powerflow.devices import VoltVar
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, admittance_base_siemens

ENGINE_TOLERANCE = 1e-10
"""Relative change of the voltages at which the engine stops."""
_VOLT_PER_KV = 1000.0
_LOAD_NAME = "dp_powerflow_node_{}"
_SAME_ADMITTANCE = 1e-9
_VOLTVAR_ROUNDS = 50
_VOLTVAR_STILL = 1e-11


class OpenDssSolver(Solver):
    """Solves snapshots of a feeder that was read from OpenDSS, with OpenDSS.

    Parameters
    ----------
    tolerance : largest power mismatch at a retained node [p.u.] of a converged snapshot, measured on the
        reduced network.
    max_iterations : of the engine, per snapshot.
    voltvar : curves that turn the generation of some nodes, None for constant generation.
    """

    def __init__(
        self,
        feeder: Feeder,
        *,
        tolerance: float = 1e-7,
        max_iterations: int = 200,
        voltvar: VoltVar | None = None,
    ) -> None:
        if not isinstance(feeder.origin, DssOrigin):
            raise PowerFlowError(
                f"feeder '{feeder.name}' was not read from OpenDSS, so OpenDSS cannot solve it; "
                "use the batched solver, or open the feeder from a .dss file"
            )
        super().__init__(feeder, tolerance)
        if max_iterations < 1:
            raise PowerFlowError("max_iterations must be at least 1")
        self._origin: DssOrigin = feeder.origin
        self._voltvar = voltvar
        self._network = Network(feeder)
        self._engine = circuit_without_injections(self._origin, feeder.taps)
        self._refuse_other_network()
        self._load_numbers = self._add_loads()
        # The node order of the engine may change when loads are added.
        order = {node.lower(): k for k, node in enumerate(self._engine.ActiveCircuit.YNodeOrder)}
        self._retained_at = np.array([order[feeder.nodes[k]] for k in feeder.retained])
        self._energised_at = np.array([order[feeder.nodes[k]] for k in feeder.energised])
        run(
            self._engine,
            f"Set Mode=Snapshot Algorithm=Normal MaxIterations={max_iterations} "
            f"Tolerance={ENGINE_TOLERANCE} LoadMult=1",
            self._origin,
        )

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> Solution:
        """Voltages of every snapshot, as `BatchSolver.solve`; iterations are those of the engine.

        The engine starts a snapshot from the voltages of the one before, and every call from no load: what
        it gives does not depend on earlier calls.
        """
        indices = self._asked(nodes)
        load, generation = checked_pair(self._feeder, load, generation)
        refuse_bad_loads(self._feeder, load, generation)
        places = self._retained_at if nodes == "retained" else self._energised_at
        v = checked_output((len(load), len(indices)), out)
        converged = np.zeros(len(load), dtype=np.bool_)
        iterations = np.zeros(len(load), dtype=np.int64)
        mismatch = np.full(len(load), np.nan)
        base_volts = _VOLT_PER_KV * self._feeder.base_kv[indices]
        self._start_afresh()
        for k in range(len(load)):
            injected = generation[k] if len(generation) else np.zeros_like(load[k])
            done, iterations[k], mismatch[k] = self._solve_one(load[k], injected)
            converged[k] = done and mismatch[k] <= self._tolerance
            v[k] = self._volts()[places] / base_volts if converged[k] else np.nan
            if not converged[k]:
                self._start_afresh()
        return Solution(v, converged, iterations, mismatch)

    def _solve_one(self, load: ComplexArray, generation: ComplexArray) -> tuple[bool, int, float]:
        """Whether the engine converged, its iterations, and the mismatch [p.u.]."""
        if self._voltvar is None:
            self._set_power(load - generation)
            done = solve(self._engine, self._origin)
            return done, self._iterations(), self._mismatch(load, generation)
        total = 0
        turned = generation * self._voltvar.rotation(np.ones(len(load)))
        for _ in range(_VOLTVAR_ROUNDS):
            self._set_power(load - turned)
            done = solve(self._engine, self._origin)
            total += self._iterations()
            if not done:
                break
            before, turned = turned, generation * self._voltvar.rotation(np.abs(self._retained_v()))
            if np.max(np.abs(turned - before), initial=0.0) <= _VOLTVAR_STILL:
                break
        return done, total, self._mismatch(load, turned)

    def _mismatch(self, load: ComplexArray, generation: ComplexArray) -> float:
        v = self._retained_v()
        if not np.isfinite(v).all():
            return float("nan")
        injected = v * np.conj(self._network.y @ v + self._network.b)
        return float(np.max(np.abs(injected - generation + load)))

    def _set_power(self, drawn: ComplexArray) -> None:
        loads = self._engine.ActiveCircuit.Loads
        kw = drawn * (self._feeder.base_mva * KW_PER_MW)
        for number, active, reactive in zip(
            self._load_numbers, kw.real.tolist(), kw.imag.tolist(), strict=True
        ):
            loads.idx = number
            loads.kW = active
            loads.kvar = reactive

    def _iterations(self) -> int:
        return int(self._engine.ActiveCircuit.Solution.Iterations)

    def _volts(self) -> ComplexArray:
        """Node voltages in the order of the engine [V]; its first entry is ground."""
        return np.asarray(self._engine.YMatrix.getV(), dtype=np.float64).view(np.complex128)[1:]

    def _retained_v(self) -> ComplexArray:
        base: FloatArray = _VOLT_PER_KV * self._feeder.base_kv[self._feeder.retained]
        return np.asarray(self._volts()[self._retained_at] / base)

    def _start_afresh(self) -> None:
        """Forget the voltages of the last snapshot, from which the engine would start the next."""
        self._set_power(np.zeros(len(self._load_numbers), dtype=np.complex128))
        run(self._engine, "Solve Mode=Direct", self._origin)
        run(self._engine, "Set Mode=Snapshot", self._origin)

    def _add_loads(self) -> list[int]:
        """One load per retained node, constant power at any voltage; their numbers in the engine."""
        feeder = self._feeder
        for k, node in enumerate(feeder.retained):
            command = (
                f"New Load.{_LOAD_NAME.format(k)} Bus1={feeder.nodes[node]} Phases=1 Conn=Wye "
                f"kV={float(feeder.base_kv[node])!r} kW=0 kvar=0 Model=1 Vminpu=0 Vlowpu=0 Vmaxpu=10"
            )
            run(self._engine, command, self._origin)
        solve(self._engine, self._origin)
        numbers = {name.lower(): k + 1 for k, name in enumerate(self._engine.ActiveCircuit.Loads.AllNames)}
        return [numbers[_LOAD_NAME.format(k)] for k in range(len(feeder.retained))]

    def _refuse_other_network(self) -> None:
        """The feeder's admittances may have been changed after it was read: then OpenDSS is no reference."""
        if not solve(self._engine, self._origin):
            raise PowerFlowError("OpenDSS cannot solve the feeder without load; check its sources")
        feeder = self._feeder
        own = sp.csr_array(feeder.y)[feeder.energised, :][:, feeder.energised]
        found = _system_admittance(self._engine, feeder)
        scale = np.sqrt(np.abs(own.diagonal()))
        relative = sp.diags_array(1.0 / scale) @ abs(found - own) @ sp.diags_array(1.0 / scale)
        if relative.max() > _SAME_ADMITTANCE:
            raise PowerFlowError(
                f"the admittances of feeder '{feeder.name}' are not those of the OpenDSS file it came from; "
                "solve a changed network with the batched solver"
            )


def _system_admittance(engine: Engine, feeder: Feeder) -> sp.csr_array:
    """The engine's Y without loads at the energised nodes of the feeder [p.u.]."""
    order = {node.lower(): k for k, node in enumerate(engine.ActiveCircuit.YNodeOrder)}
    missing = [feeder.nodes[k] for k in feeder.energised if feeder.nodes[k] not in order]
    if missing:
        raise PowerFlowError(
            f"{len(missing)} nodes of feeder '{feeder.name}' are not in the OpenDSS file it was read from; "
            "solve a changed network with the batched solver"
        )
    data, indices, pointers = engine.YMatrix.GetCompressedYMatrix()
    siemens = sp.csc_array((np.asarray(data), np.asarray(indices), np.asarray(pointers)))
    at = np.array([order[feeder.nodes[k]] for k in feeder.energised])
    base = admittance_base_siemens(feeder.base_kv[feeder.energised], feeder.base_mva)
    scale = sp.diags_array(1.0 / np.sqrt(base))
    return sp.csr_array(scale @ sp.csr_array(siemens)[at, :][:, at] @ scale)
