"""Units whose power is dispatched, and power flow of a feeder with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem, Tap
from dp_powerflow.opf.tree import frozen_ratios, ratios
from dp_powerflow.powerflow.batch import BatchSolver, Solution, Solver
from dp_powerflow.powerflow.operated import ActingSolver, OperatedSolution, OperatedSolver
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray

_NO_LOAD_KW = -1e-6
"""Nominal power of a unit that stands among the loads: negative, so that it may inject."""


@dataclass(frozen=True)
class Unit:
    """One unit: an inverter with storage, a generator, or photovoltaics.

    Attributes
    ----------
    branches : pairs of node indices between which it injects equal shares, as of a load.
    kva : rating of its apparent power [kVA].
    kw_max, kw_min : range of its active power [kW]; negative for one that can draw.
    cost_per_kwh, cost_per_kw2h : cost of p kW for an hour, cost_per_kwh·p + cost_per_kw2h·p².
    sun : whether `kw_max` is multiplied by the irradiance.
    """

    name: str
    branches: tuple[tuple[int, int], ...]
    kva: float
    kw_max: float
    kw_min: float = 0.0
    cost_per_kwh: float = 0.0
    cost_per_kw2h: float = 0.0
    sun: bool = False


@dataclass(frozen=True, eq=False)
class AcStates:
    """AC solutions of some snapshots.

    Attributes
    ----------
    v : complex (snapshot, node) of all nodes of the feeder, sources included [p.u.]; NaN where not converged.
    ratio : (snapshot, regulator).
    closed : (snapshot, switched capacitor) 1 closed, 0 open.
    converged : (snapshot,).
    """

    v: ComplexArray
    ratio: FloatArray
    closed: FloatArray
    converged: BoolArray

    def __getitem__(self, which: IntArray) -> AcStates:
        return AcStates(self.v[which], self.ratio[which], self.closed[which], self.converged[which])


class UnitsPowerFlow:
    """Power flow of a feeder with units, by the solver that the study names.

    Parameters
    ----------
    solver : of the feeder without units; what it takes as loads and generation is kept.
    units : where power is injected.
    threads : of the solver.
    """

    def __init__(self, solver: Solver, units: Sequence[Unit], threads: int | None = 1) -> None:
        if not isinstance(solver, BatchSolver | OperatedSolver | ActingSolver):
            raise PowerFlowError("units are dispatched with the batch solvers only; leave out the engine")
        self._threads = threads
        self.feeder = solver.feeder
        self._by_element = solver.columns == "elements"
        self._with = with_units(self.feeder, units, as_loads=self._by_element)
        self._solver: Solver = solver.on(self._with, threads=threads)
        self._fixed: dict[tuple[float, ...], Solver] = {}

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None,
        power: ComplexArray,
        ratio: FloatArray | None = None,
    ) -> AcStates:
        """Voltages of every snapshot.

        Parameters
        ----------
        load, generation : as the solver of the study takes them; whole days where its controls remember.
        power : complex (snapshot, unit) injected [p.u.].
        ratio : (snapshot, regulator) at which regulators are held; None to let the solver decide.
        """
        load, injected = self._columns(load, generation, power)
        if ratio is None:
            return self._states(self._solver.solve(load, injected, nodes="all"))
        found = [np.zeros((len(load), len(self.feeder.nodes)), dtype=np.complex128)]
        closed = np.tile(self._closed, (len(load), 1))
        converged = np.zeros(len(load), dtype=np.bool_)
        for held in np.unique(ratio, axis=0):
            at = np.flatnonzero((ratio == held).all(axis=1))
            part = None if injected is None else injected[at]
            states = self._states(self._held(held).solve(load[at], part, nodes="all"))
            found[0][at], converged[at] = states.v, states.converged
        return AcStates(found[0], ratio, closed, converged)

    def _columns(
        self, load: ComplexArray, generation: ComplexArray | None, power: ComplexArray
    ) -> tuple[ComplexArray, ComplexArray | None]:
        if self._by_element:
            return np.ascontiguousarray(np.concatenate([load, -power], axis=1)), generation
        at = np.searchsorted(self._with.retained, self.feeder.retained)
        shape = (len(load), len(self._with.retained))
        wide, injected = np.zeros(shape, dtype=np.complex128), np.zeros(shape, dtype=np.complex128)
        wide[:, at] = load
        if generation is not None:
            injected[:, at] = generation
        injected += np.asarray((self._shares @ power.T).T)
        return wide, injected

    @cached_property
    def _shares(self) -> sp.csr_array:
        """Complex (retained node with units, unit)."""
        shares = self._with.pv_shares.tocsr()[self._with.retained]
        return sp.csr_array(shares[:, len(self.feeder.pv) :])

    @property
    def _closed(self) -> FloatArray:
        """Switched capacitors as the file has them."""
        return np.array([float(bank.closed) for bank in self.feeder.as_operated.capacitors])

    def _states(self, solution: Solution) -> AcStates:
        n, feeder = len(solution.converged), self.feeder
        v = np.empty((n, len(feeder.nodes)), dtype=np.complex128)
        v[:, feeder.energised], v[:, feeder.slack] = solution.v, feeder.v_slack
        if isinstance(solution, OperatedSolution):
            closed = solution.capacitors.astype(np.float64)
            return AcStates(v, ratios(feeder, solution.taps), closed, solution.converged)
        ratio = np.tile(frozen_ratios(feeder), (n, 1))
        return AcStates(v, ratio, np.tile(self._closed, (n, 1)), solution.converged)

    def _held(self, held: FloatArray) -> Solver:
        """A solver whose regulators stand at given ratios."""
        key = tuple(held.tolist())
        if key not in self._fixed:
            regulators = self.feeder.as_operated.regulators
            pairs = zip(regulators, key, strict=True)
            taps = tuple(Tap(each.transformer, each.winding, value) for each, value in pairs)
            if self._by_element:
                feeder = replace(self._with, taps=taps)
                self._fixed[key] = OperatedSolver(feeder, controls="frozen", threads=self._threads)
            else:
                feeder = replace(self._with, taps=taps, y=admittance_at(self._with, held))
                self._fixed[key] = BatchSolver(feeder, threads=self._threads)
        return self._fixed[key]


def with_units(feeder: Feeder, units: Sequence[Unit], *, as_loads: bool) -> Feeder:
    """The feeder with a load, or a PV system, for every unit, after its own."""
    if as_loads:
        loads = tuple(Load(unit.name, unit.branches, _NO_LOAD_KW, 0.0, "wye") for unit in units)
        return replace(feeder, loads=(*feeder.loads, *loads))
    pv = tuple(PVSystem(unit.name, unit.branches, unit.kva, max(unit.kw_max, 0.0)) for unit in units)
    return replace(feeder, pv=(*feeder.pv, *pv))


def unit_shares(feeder: Feeder, units: Sequence[Unit]) -> ComplexArray:
    """Complex (node, unit): nodal power injected per unit of complex power, at nominal phasors."""
    found = with_units(feeder, units, as_loads=False).pv_shares.toarray()
    return np.asarray(found[:, len(feeder.pv) :])


def admittance_at(feeder: Feeder, held: FloatArray) -> sp.csc_array:
    """`y` with regulators at given ratios and switched capacitors as the file has them."""
    operation = feeder.as_operated
    n, rows, columns, values = len(feeder.nodes), [], [], []
    for regulator, ratio in zip(operation.regulators, held.tolist(), strict=True):
        for inner, outer in regulator.phases:
            rows.append(inner)
            columns.append(outer)
            values.append(1.0 / ratio)
    row, column = (np.concatenate([np.arange(n), part]).astype(np.int64) for part in (rows, columns))
    joined = sp.csc_array(
        (np.concatenate([np.ones(n), values]), (row, column)), shape=(len(operation.nodes), n)
    )
    y = joined.T @ operation.y @ joined
    base_kva = feeder.base_mva * KW_PER_MW
    stamps = sp.lil_array((n, n), dtype=np.complex128)
    for bank in operation.capacitors:
        for pair in bank.branches if bank.closed else ():
            ends = [node for node in pair if node != GROUND]
            rated = bank.rated_kv / feeder.base_kv[ends[0]]
            share = 1j * bank.kvar / base_kva / len(bank.branches) / rated**2
            for a in ends:
                for b in ends:
                    stamps[a, b] += share if a == b else -share
    return sp.csc_array(y + stamps.tocsc())
