"""Power flow of a feeder as it is operated: regulators and capacitors act, loads answer to their voltage.

Same interface as `BatchSolver`, but loads come one by one and not summed per node. The equations, the order
of the controls and what "converged" means are in `docs/explanation/power-flow.md`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem
from dp_powerflow.grid.operation import InverterCurve
from dp_powerflow.powerflow._kernels.devices import OF, A, B, new_work
from dp_powerflow.powerflow._kernels.newton_operated import nodal_powers
from dp_powerflow.powerflow._kernels.operated import (
    CONVERGED,
    GIVEN_UP,
    ITERATIONS,
    LOCKED,
    RESULT_COLUMNS,
    REVERSED,
    ROUNDS,
    STATUS,
    Jobs,
    Limits,
    Memory,
    new_cache,
    new_lanes,
    new_states,
    run_jobs,
)
from dp_powerflow.powerflow._kernels.simd import LANES
from dp_powerflow.powerflow._kernels.solve import NEGATIVE, NOT_FINITE, Check
from dp_powerflow.powerflow.batch import (
    Columns,
    Nodes,
    Solution,
    checked_output,
    checked_pair,
    checked_threads,
    in_threads,
    refuse_bad_power,
    refuse_curves,
)
from dp_powerflow.powerflow.devices import VoltVar, VoltVarCurve
from dp_powerflow.powerflow.operated_plan import prepare_operated
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, IntArray

ControlMode = Literal["frozen", "snapshot", "day"]
"""Taps stay where the feeder has them; every snapshot starts from the table of taps; every day does, and
keeps its taps from step to step."""


def days_at_once(controls: ControlMode) -> int:
    """Days that cost hardly more than one, as they are solved side by side; 1 where days are no unit."""
    return LANES if controls == "day" else 1


NodalPower = tuple[IntArray, ComplexArray]
"""Nodes in ascending order, and complex (snapshot, node) power [p.u.]."""
LEVELS = 25
"""Load levels of the table of taps."""
PER_NOMINAL = 16.0
"""Levels between no load and nominal load."""
_DECIDE, _EARLY, _SWITCH = 1e-8, 1e-3, 1e-7
"""Mismatch [p.u.] at which regulators decide in any case, at which they do if the answer is clear, and at
which capacitors decide."""
_SWEEPS = 30
_FORECAST = 1e-2
"""Square of the share of the tolerance that the foretold mismatch may have for a sweep to be the last."""
_TASK, _MOST_DAYS = 512, 8 * LANES
"""Snapshots of one task of a thread, and days if those are more."""


@dataclass(frozen=True, eq=False)
class OperatedSolution(Solution):
    """Voltages of a batch of snapshots, and what the controls did.

    Attributes
    ----------
    taps : (snapshot, regulator) steps away from neutral.
    capacitors : (snapshot, bank) 1 closed, 0 open.
    rounds : (snapshot,) times that controls moved.
    locked : (snapshot,) whether a control hunted and was locked.
    reversed : (snapshot,) whether a reversible regulator worked by its settings for power backwards.
    """

    taps: IntArray
    capacitors: IntArray
    rounds: IntArray
    locked: BoolArray
    reversed: BoolArray


class OperatedSolver:
    """Solves batches of snapshots, or of days, of one feeder as operated, on all cores.

    Parameters
    ----------
    feeder : with its `operation`; without one, nothing moves and loads still answer to the voltage.
    controls : whether taps and capacitors move, and what they start from.
    steps : snapshots of one day; with "day" a batch is a whole number of days.
    tolerance : largest power mismatch [p.u.] of a converged snapshot; where rounding hides more, 0.1 W at
        most.
    threads : None for one per core.
    volt_var : curve of every PV system, instead of those of the file.
    file_curves : whether PV systems follow the curves of the file where `volt_var` names none.
    """

    columns: Columns = "elements"

    def __init__(
        self,
        feeder: Feeder,
        *,
        controls: ControlMode = "snapshot",
        steps: int = 1,
        tolerance: float = 1e-8,
        threads: int | None = None,
        volt_var: VoltVarCurve | None = None,
        file_curves: bool = True,
    ) -> None:
        if not 0.0 < tolerance < 1.0:
            raise PowerFlowError("the tolerance must lie between 0 and 1 p.u., such as 1e-8")
        if controls not in ("frozen", "snapshot", "day"):
            raise PowerFlowError(f"controls must be 'frozen', 'snapshot' or 'day', not {controls!r}")
        if steps < 1:
            raise PowerFlowError("a day has at least one step")
        self._feeder, self._controls, self._steps = feeder, controls, steps
        self._tolerance, self._threads = float(tolerance), checked_threads(threads)
        self._volt_var, self._file_curves = volt_var, file_curves
        self._arrays = prepare_operated(feeder, volt_var, self._tolerance, file_curves=file_curves)
        self._memory = threading.local()
        self._first = self._frozen_states() if controls == "frozen" else self._table()

    @property
    def feeder(self) -> Feeder:
        """The network that is solved."""
        return self._feeder

    @property
    def first_states(self) -> IntArray:
        """(level, control) table that taps and capacitors start from, regulators first."""
        return self._first

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> OperatedSolution:
        """Voltages of every snapshot.

        Parameters
        ----------
        load : complex (snapshot, load) power drawn at rated voltage [p.u.], in the order of `feeder.loads`.
        generation : complex (snapshot, PV system) power injected before any volt-var [p.u.]; of systems with
            a curve the active part counts.
        nodes : "retained", or "all" for every energised node; then the mismatch is measured at all of them.
        out : complex (snapshot, node) to write into.
        """
        steps = self._steps if self._controls == "day" else 1
        if len(load) % steps:
            raise PowerFlowError(f"{len(load)} snapshots are no whole number of days of {steps} steps")
        return self._run(load, generation, nodes, out, self._first, steps)

    def on(
        self, feeder: Feeder, *, controls: ControlMode | None = None, threads: int | None = 1
    ) -> OperatedSolver:
        """A solver with the same settings of another feeder, such as one with more PV systems."""
        return OperatedSolver(
            feeder,
            controls=controls or self._controls,
            steps=self._steps,
            tolerance=self._tolerance,
            threads=threads,
            volt_var=self._volt_var,
            file_curves=self._file_curves,
        )

    def solve_held(
        self,
        states: IntArray,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
    ) -> ComplexArray:
        """Voltages with taps and capacitors held where they are told to be; for a "frozen" solver.

        Parameters
        ----------
        states : integer (snapshot, control) taps of regulators, then states of capacitors. Rows that follow
            each other and are equal are solved together, so sort them.
        load, generation, nodes : as of `solve`.

        Returns
        -------
        Complex (snapshot, node) [p.u.], NaN where there is no solution.
        """
        if self._controls != "frozen":
            raise PowerFlowError('controls are held by a solver with controls="frozen" only')
        wanted = self._feeder.retained if nodes == "retained" else self._feeder.energised
        v = np.empty((len(load), len(wanted)), dtype=np.complex128)
        new = np.flatnonzero((states[1:] != states[:-1]).any(axis=1)) + 1
        edges = [0, *new.tolist(), len(load)] if len(load) else [0]
        for first, last in pairwise(edges):
            rows = slice(first, last)
            injected = None if generation is None else generation[rows]
            held = np.ascontiguousarray(states[first : first + 1])
            self._run(load[rows], injected, nodes, v[rows], held, 1)
        return v

    def solve_from(
        self, states: IntArray, load: ComplexArray, generation: ComplexArray | None = None
    ) -> ComplexArray:
        """Voltages at all nodes with controls that start from the given states; parameters as of `solve`."""
        return self._run(load, generation, "all", None, np.ascontiguousarray(states[None, :]), 1).v

    @property
    def volt_var(self) -> VoltVarCurve | None:
        """Curve of every PV system; None without one, or where those of the file count."""
        return self._volt_var

    @property
    def controls(self) -> ControlMode:
        """Whether taps and capacitors move, and what they start from."""
        return self._controls

    def powers(
        self, load: ComplexArray, generation: ComplexArray | None, solution: OperatedSolution
    ) -> tuple[ComplexArray, ComplexArray]:
        """Power that loads draw, and that PV systems and generators inject, at every energised node.

        Parameters
        ----------
        load, generation : as given to `solve`.
        solution : of all nodes.

        Returns
        -------
        Two complex (snapshot, energised node) arrays [p.u.], at the voltages of the solution.
        """
        spread = []
        for nodes, power in self.device_powers(load, generation, solution):
            spread.append(np.zeros_like(solution.v))
            spread[-1][:, np.searchsorted(self._feeder.energised, nodes)] = power
        return spread[0], spread[1]

    def device_powers(
        self, load: ComplexArray, generation: ComplexArray | None, solution: OperatedSolution
    ) -> tuple[NodalPower, NodalPower]:
        """The same without nodes that have no load, or no PV system or generator."""
        feeder, a, n = self._feeder, self._arrays, len(load)
        if solution.v.shape[1] != len(feeder.energised):
            raise PowerFlowError('powers need the voltages of all nodes; solve with nodes="all"')
        injected = self._injected(generation, n)
        last, device = len(a.fixed) - len(feeder.as_operated.capacitors), a.plain.table[:, OF]
        loads, at = np.asarray(load).shape[1], a.position[feeder.energised]
        columns = np.full((3, len(a.position)), -1, dtype=np.int64)
        columns[0, at] = np.arange(len(at))
        nodes = []
        for of, column in (device < loads, columns[1]), ((device >= loads) & (device < last), columns[2]):
            nodes.append(feeder.energised[np.isin(at, a.plain.table[of][:, [A, B]])])
            column[a.position[nodes[-1]]] = np.arange(len(nodes[-1]))
        drawn, fed = (np.zeros((n, len(each)), dtype=np.complex128) for each in nodes)
        given = (np.asarray(load), injected if len(injected) else np.empty((n, 0), dtype=np.complex128))
        nodal_powers(
            a.plain, (columns[0], columns[1], columns[2]), (*given, a.fixed), solution.v, (drawn, fed), last
        )
        return (nodes[0], drawn), (nodes[1], fed)

    # ---------------------------------------------------------------------------------- inside

    def _run(
        self,
        load: ComplexArray,
        generation: ComplexArray | None,
        nodes: Nodes,
        out: ComplexArray | None,
        first: IntArray,
        steps: int,
    ) -> OperatedSolution:
        feeder, arrays, acting = self._feeder, self._arrays, self._controls != "frozen"
        load = _checked(load, len(feeder.loads), "load", "load of the feeder")
        n = len(load)
        injected = self._injected(generation, n)
        if nodes not in ("retained", "all"):
            raise PowerFlowError(f"nodes must be 'retained' or 'all', not {nodes!r}")
        wanted = feeder.retained if nodes == "retained" else feeder.energised
        v = checked_output((n, len(wanted)), out)
        regulators = len(feeder.as_operated.regulators)
        count = regulators + len(feeder.as_operated.capacitors)
        jobs = Jobs(
            load=load.view(np.float64),
            generation=injected.view(np.float64),
            fixed=arrays.fixed,
            out=v.view(np.float64),
            targets=arrays.position[wanted],
            states=np.zeros((n, count), dtype=np.int64),
            result=np.zeros((n, RESULT_COLUMNS), dtype=np.int64),
            mismatch=np.full(n, np.nan),
            first_states=first,
            levels=PER_NOMINAL,
            steps=steps,
            acting=acting and count > 0,
            limits=Limits(
                tolerance=self._tolerance,
                decide=_DECIDE,
                early=_EARLY,
                switch=_SWITCH,
                slack_v=arrays.slack_v,
                forecast=_FORECAST,
                most_sweeps=_SWEEPS,
            ),
        )
        check = arrays.core_check if nodes == "retained" else arrays.full_check
        self._share(jobs, check, np.arange(n // steps))
        # Where the last sweep was foretold too kindly, the job is done again without foretelling.
        unsure = (jobs.result[:, CONVERGED] == 0) & (jobs.result[:, GIVEN_UP] == 0)
        again = np.unique(np.flatnonzero(unsure) // steps)
        if len(again):
            jobs.result[:, ROUNDS].reshape(-1, steps)[again] = 0
            self._share(jobs._replace(limits=jobs.limits._replace(forecast=0.0)), check, again)
        result = jobs.result
        status = result[:, STATUS]
        refuse_bad_power(int(np.sum(status == NOT_FINITE)), int(np.sum(status == NEGATIVE)), n)
        return OperatedSolution(
            v,
            result[:, CONVERGED] == 1,
            result[:, ITERATIONS],
            jobs.mismatch,
            jobs.states[:, :regulators],
            jobs.states[:, regulators:],
            result[:, ROUNDS],
            result[:, LOCKED] == 1,
            result[:, REVERSED] == 1,
        )

    def _share(self, jobs: Jobs, check: Check, chosen: IntArray) -> None:
        """Solve the chosen jobs on threads."""
        a = self._arrays
        network = (a.plan, a.branches, a.plain, a.controls, check)
        # Lanes of a task go idle one after the other at its end: as long a task as keeps all threads busy.
        share = -(-len(chosen) // self._threads)
        task = max(_TASK // jobs.steps, min(share, _MOST_DAYS))
        in_threads(
            lambda first: run_jobs(chosen[first : first + task], network, self._own_memory(), jobs),
            range(0, len(chosen), task),
            self._threads,
        )

    def _own_memory(self) -> Memory:
        found: Memory | None = getattr(self._memory, "arrays", None)
        if found is None:
            a = self._arrays
            size = (len(a.plan.w_re), a.plan.phases, a.rows, len(a.branches.table), len(a.fixed))
            found = (
                new_work(*size),
                new_work(*size),
                new_states(a.controls),
                new_cache(a.plan, a.controls),
                new_lanes(),
                a.slow.for_thread(),
            )
            self._memory.arrays = found
        return found

    def _injected(self, generation: ComplexArray | None, n: int) -> ComplexArray:
        """Active power of every PV system, and what its control makes reactive power of."""
        systems = self._feeder.pv
        if generation is None or not systems:
            return np.empty((0, 0), dtype=np.complex128)
        power = _checked(generation, len(systems), "generation", "PV system of the feeder").copy()
        if len(power) != n:
            raise PowerFlowError(f"generation has {len(power)} snapshots but load has {n}")
        if self._volt_var is not None:
            power.imag = 0.0
            return power
        base_kva = self._feeder.base_mva * 1000.0
        for k, pv in enumerate(systems):
            active = power[:, k].real
            rated = pv.kva / base_kva
            if self._file_curves and isinstance(pv.curve, InverterCurve):
                room = np.sqrt(np.maximum(rated * rated - active * active, 0.0))
                power[:, k].imag = room if pv.curve.reference == "available" else rated
        return power

    def _frozen_states(self) -> IntArray:
        """Taps where the feeder has them, capacitors as the file has them."""
        operation = self._feeder.as_operated
        ratio = {(tap.transformer.lower(), tap.winding): tap.ratio for tap in self._feeder.taps}
        states = []
        for regulator in operation.regulators:
            exact = (ratio.get((regulator.transformer, regulator.winding), 1.0) - 1.0) / regulator.step
            states.append(round(exact))
        states += [int(bank.closed) for bank in operation.capacitors]
        return np.array([states], dtype=np.int64).reshape(1, -1)

    def _table(self) -> IntArray:
        """Where controls settle at multiples of the nominal load, from neutral taps."""
        operation = self._feeder.as_operated
        neutral = [0] * len(operation.regulators) + [int(bank.closed) for bank in operation.capacitors]
        start = np.array([neutral], dtype=np.int64).reshape(1, -1)
        if not neutral:
            return start
        level = (np.arange(LEVELS) + 0.5) / PER_NOMINAL
        load = level[:, None] * self._feeder.nominal_load[None, :]
        found = self._run(np.ascontiguousarray(load), None, "retained", None, start, 1)
        states = np.concatenate([found.taps, found.capacitors], axis=1)
        for k in range(LEVELS):
            if not found.converged[k]:
                states[k] = states[k - 1] if k else start[0]
        return np.ascontiguousarray(states)


def _checked(power: ComplexArray, width: int, name: str, what: str) -> ComplexArray:
    array = np.asarray(power)
    if array.dtype.kind not in "fc":
        raise PowerFlowError(f"{name} must be an array of complex numbers, not of {array.dtype}")
    if array.ndim != 2 or array.shape[1] != width:
        raise PowerFlowError(
            f"{name} has shape {array.shape}; it must be (snapshot, {width}), a column for every {what}"
        )
    return np.ascontiguousarray(array, dtype=np.complex128)


class ActingSolver:
    """Solves nodal loads of constant power with acting controls.

    Parameters
    ----------
    feeder : with its `operation`.
    controls, steps : as of `OperatedSolver`.
    tolerance, threads : likewise.
    voltvar : one curve at every node with PV, or None.
    """

    columns: Columns = "nodes"

    def __init__(
        self,
        feeder: Feeder,
        *,
        controls: ControlMode = "day",
        steps: int = 1,
        tolerance: float = 1e-8,
        threads: int | None = None,
        voltvar: VoltVar | None = None,
    ) -> None:
        if voltvar is not None and len(voltvar.curves) != 1:
            raise PowerFlowError("acting controls go with one volt-var curve for all nodes with PV")
        self._feeder, self._voltvar = feeder, voltvar
        self._settings = (controls, steps, tolerance)
        self._fed = np.flatnonzero(np.isin(feeder.retained, feeder.pv_shares.indices))
        self._solver = OperatedSolver(
            _nodal(feeder, self._fed.tolist()),
            controls=controls,
            steps=steps,
            tolerance=tolerance,
            threads=threads,
            volt_var=None if voltvar is None else voltvar.curves[0],
        )

    @property
    def feeder(self) -> Feeder:
        """The network that is solved."""
        return self._feeder

    def on(self, feeder: Feeder, *, threads: int | None = None) -> ActingSolver:
        """A solver of another feeder with the same settings; refused with volt-var curves."""
        refuse_curves(self._voltvar)
        controls, steps, tolerance = self._settings
        return ActingSolver(feeder, controls=controls, steps=steps, tolerance=tolerance, threads=threads)

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> OperatedSolution:
        """Voltages of every snapshot; parameters as of `BatchSolver.solve`."""
        load, injected = checked_pair(self._feeder, load, generation)
        fed = np.ascontiguousarray(injected[:, self._fed]) if len(injected) else None
        return self._solver.solve(load, fed, nodes=nodes, out=out)


def _nodal(feeder: Feeder, fed: list[int]) -> Feeder:
    """The feeder with one load of constant power at every retained node, and a PV system where it has any."""
    kw = -feeder.nominal_injection[feeder.retained] * feeder.base_mva * KW_PER_MW
    nodes = [feeder.nodes[k] for k in feeder.retained]
    loads = [
        Load(name, ((int(at), GROUND),), float(power.real), float(power.imag), "wye")
        for name, at, power in zip(nodes, feeder.retained, kw, strict=True)
    ]
    pv = [PVSystem(nodes[k], ((int(feeder.retained[k]), GROUND),), 0.0, 0.0) for k in fed]
    return replace(feeder, loads=tuple(loads), pv=tuple(pv))
