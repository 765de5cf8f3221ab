"""How far a feeder is from its own file, as the program that the file was written for solves it. INTERNAL."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import DpPowerflowError, FeederError, PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import (
    DSSException,
    DssOrigin,
    Properties,
    build_circuit,
    declared_voltages,
    enabled_names,
    run,
)
from dp_powerflow.grid.opendss.operation import OTHER_SOURCES
from dp_powerflow.grid.operation import CONSTANT_POWER
from dp_powerflow.grid.pandapower.engine import FEEDING, LEFT_OUT, require, third_party_warnings
from dp_powerflow.grid.pandapower.reader import PandapowerOrigin
from dp_powerflow.powerflow.batch import BatchSolver, Solution
from dp_powerflow.powerflow.operated import PER_NOMINAL, OperatedSolver
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

LEVELS: FloatArray = (np.array([2, 6, 10, 14, 16]) + 0.5) / PER_NOMINAL
"""Loads over nominal ones that are compared. They stand in the middle of rows of the solver's table of taps,
which are found from neutral: without generation, a snapshot that starts there stays there."""
OWN = 1.0
"""Level of the file's own loads, which are not touched."""
SAME_PU = 1e-5
"""Largest difference from OpenDSS that needs no explanation [p.u.]."""
_CHECKED: FloatArray = LEVELS[1:2]
_PROTECTION = ("fuse", "recloser", "relay")
_SHOWN = 3
_JITTER = 10.0
"""How often the engine's own unrest at a node may be found again in a difference there."""
_ROUNDS = 300
_TOLERANCES = (1e-10, 1e-6, 1e-4)
_STILL, _ALMOST_STILL = 1e-8, 1e-4
_VOLTS_PER_KV = 1000.0
_PHASES = "abc"
_SMALL_BASE_MVA = 0.01
"""Of `runpp_3ph`, which stops at a mismatch that is relative to the base."""


@dataclass(frozen=True)
class Comparison:
    """Largest differences of voltages at all nodes [p.u.], over the snapshots that were compared.

    Attributes
    ----------
    against : in words, what was compared, or why nothing was.
    snapshots : that both programs solve.
    same_states : of these, how many have the same taps and capacitors; None where the feeder as operated was
        not compared.
    operated_pu : of the feeder as operated, None if it was not compared.
    same_states_pu : of the feeder as operated where the states are the same, None if they never are.
    frozen_pu : of the frozen frame, None if it was not compared.
    worst : nodes that are farthest apart, and by how much, where the controls here start from where those of
        the other program rest: nothing explains what is left. None if it was not compared.
    """

    against: str
    snapshots: int = 0
    same_states: int | None = None
    operated_pu: float | None = None
    same_states_pu: float | None = None
    frozen_pu: float | None = None
    worst: dict[str, float] | None = None

    def refused(self, accepted: float | None = None) -> str | None:
        """INTERNAL. Why a feeder is not the one of its OpenDSS file; None if it is.

        Parameters
        ----------
        accepted : difference that is declared to be accepted [p.u.], if any.
        """
        if self.worst is None:
            unknown = f"the feeder as read cannot be compared with OpenDSS on its file ({self.against})"
            return None if accepted else f"{unknown}; correct that, or declare feeder.accept_difference"
        far = {node: apart for node, apart in self.worst.items() if apart > max(accepted or 0.0, SAME_PU)}
        if not far:
            return None
        largest = max(far.values())
        power = f"{10.0 ** math.ceil(math.log10(largest)):.0e}" if math.isfinite(largest) else "1"
        return (
            f"the feeder as read is not the one that OpenDSS solves: voltages at {', '.join(far)} differ by "
            f"up to {power} p.u., and nothing that is left out explains it; change what the file has there, "
            f"or declare feeder.accept_difference = {power}, which the manifest states"
        )


def compare(feeder: Feeder) -> Comparison:
    """Compare a feeder with OpenDSS, or pandapower, on the file that it was read from."""
    try:
        if isinstance(feeder.origin, DssOrigin):
            return _differences(feeder, *_with_opendss(feeder, feeder.origin, LEVELS))
        if isinstance(feeder.origin, PandapowerOrigin):
            return _with_pandapower(feeder, feeder.origin)
    except DpPowerflowError as error:
        return Comparison(f"not measured: {error}")
    return Comparison("not measured: the feeder was read from no file")


def check_reading(feeder: Feeder, accepted: float | None, *, acting: bool) -> None:
    """Refuse a feeder whose solution differs from OpenDSS on its own file.

    The tests of this package compare the built-in feeders.

    Parameters
    ----------
    accepted : difference that is declared to be accepted [p.u.], if any.
    acting : whether its controls act; otherwise the frozen frame is compared, with every load of constant
        power by its own connection.
    """
    if not isinstance(feeder.origin, DssOrigin) or feeder.origin.public:
        return
    if acting:
        try:
            theirs, against = _with_opendss(feeder, feeder.origin, _CHECKED)
            worst = _resting(feeder, theirs, OperatedSolver(feeder, controls="snapshot"))
            found = Comparison(against, worst=worst)
        except DpPowerflowError as error:
            found = Comparison(f"not measured: {error}")
    else:
        found = _held_still(feeder)
    refused = found.refused(accepted)
    if refused is not None:
        raise FeederError(refused)


def _held_still(feeder: Feeder) -> Comparison:
    """The frozen frame, its loads by their own connections, against OpenDSS at the same taps."""
    if not isinstance(feeder.origin, DssOrigin):
        return Comparison("not measured")
    loads = tuple(replace(load, response=CONSTANT_POWER) for load in feeder.loads)
    try:
        theirs = declared_voltages(feeder)[feeder.energised]
    except FeederError as error:
        return Comparison(f"not measured: {error}")
    still = OperatedSolver(replace(feeder, operation=None, loads=loads), controls="frozen")
    ours = still.solve(feeder.nominal_load[None, :], nodes="all")
    return Comparison("OpenDSS at the same taps", worst=_worst(feeder, ours.v, theirs[None, :]))


def _worst(
    feeder: Feeder, ours: ComplexArray, theirs: ComplexArray, explained: FloatArray | float = 0.0
) -> dict[str, float]:
    """The nodes that are farthest apart in any snapshot; infinitely where there is no solution here.

    Parameters
    ----------
    explained : part of the differences that needs no other explanation [p.u.].
    """
    apart = np.nan_to_num((np.abs(ours - theirs) - explained).max(axis=0), nan=np.inf)
    order = np.argsort(-apart, kind="stable")[:_SHOWN]
    return {feeder.nodes[feeder.energised[k]]: float(apart[k]) for k in order}


@dataclass(frozen=True, eq=False)
class _Snapshots:
    """What another program found.

    Attributes
    ----------
    levels : (snapshot,) loads over nominal ones.
    sun : (snapshot,) irradiance of all PV systems, 1 at peak.
    v : complex (snapshot, node) [p.u.], NaN where it shows no voltage.
    moves : (snapshot, node) change of a voltage when a solution is solved again [p.u.].
    states : (snapshot, control) taps, then capacitors.
    settled : (snapshot,) whether it found a solution and its controls came to rest.
    """

    levels: FloatArray
    sun: FloatArray
    v: ComplexArray
    moves: FloatArray
    states: IntArray
    settled: BoolArray

    @classmethod
    def of(cls, rows: Sequence[_Row]) -> _Snapshots:
        """From rows of level, sun, voltages and their moves, states, and whether they settled."""
        levels, sun, v, moves, states, settled = (np.array(part) for part in zip(*rows, strict=True))
        return cls(levels, sun, v, moves, states.reshape(len(rows), -1).astype(np.int64), settled)

    def groups(self, feeder: Feeder) -> Iterator[tuple[IntArray, ComplexArray, ComplexArray | None]]:
        """Rows without sun, and with it; their loads, and the generation of all PV systems."""
        load = np.ascontiguousarray(self.levels[:, None] * feeder.nominal_load)
        for lit in (False, True):
            rows = np.flatnonzero((self.sun > 0.0) == lit)
            if len(rows):
                yield rows, load[rows], self.generation(feeder).by_system(rows) if lit else None

    def generation(self, feeder: Feeder) -> Generation:
        """Of all PV systems, one snapshot a day."""
        return Generation.from_irradiance(feeder, self.sun[:, None])


_Row = tuple[float, float, ComplexArray, FloatArray, list[int], bool]


# --- ours --------------------------------------------------------------------------------------------------
def _differences(feeder: Feeder, theirs: _Snapshots, against: str) -> Comparison:
    solver = None if feeder.as_operated.refused else OperatedSolver(feeder, controls="snapshot")
    worst = _held_still(feeder).worst if solver is None else _resting(feeder, theirs, solver)
    try:
        frozen = _frozen(feeder, theirs)
    except PowerFlowError as error:
        return Comparison(f"not measured: {error}", worst=worst)
    settled = theirs.settled & ((theirs.levels != OWN) | (theirs.levels == OWN).all())
    v, solved = frozen.v, frozen.converged
    same = np.zeros_like(solved)
    if solver is not None:
        v, solved = frozen.v.copy(), frozen.converged.copy()
        for rows, load, generation in theirs.groups(feeder):
            found = solver.solve(load, generation, nodes="all")
            states = np.concatenate([found.taps, found.capacitors], axis=1)
            v[rows], solved[rows] = found.v, found.converged
            same[rows] = (states == theirs.states[rows]).all(axis=1)
    usable = settled & solved
    if not usable.any():
        return Comparison(f"not measured: no snapshot is solved here and by {against}", worst=worst)
    found_frozen = Comparison(
        against,
        snapshots=int(usable.sum()),
        frozen_pu=_largest(frozen.v, theirs.v, usable & frozen.converged),
        worst=worst,
    )
    if solver is None:
        return found_frozen
    return replace(
        found_frozen,
        same_states=int((usable & same).sum()),
        operated_pu=_largest(v, theirs.v, usable),
        same_states_pu=_largest(v, theirs.v, usable & same),
    )


def _resting(feeder: Feeder, theirs: _Snapshots, solver: OperatedSolver) -> dict[str, float] | None:
    """The worst nodes where the controls here start from where the other program's rest.

    Where controls rest depends on where they start; at the same place both programs must agree that they do.
    Those of a reversible regulator, which has a direction as well as a tap, are held there.
    """
    if not theirs.settled.any() or not isinstance(feeder.origin, DssOrigin):
        return None
    if any(regulator.reverse for regulator in feeder.as_operated.regulators):
        solver = solver.on(feeder, controls="frozen")
    v, at = np.empty_like(theirs.v), theirs.settled
    for rows, load, generation in theirs.groups(feeder):
        v[rows] = solver.solve_from(theirs.states[rows], load, generation, nodes="all")
    return _worst(feeder, v[at], theirs.v[at], _JITTER * theirs.moves[at])


def _largest(ours: ComplexArray, theirs: ComplexArray, usable: BoolArray) -> float | None:
    apart = np.abs(ours - theirs)[usable]
    seen = apart[np.isfinite(apart)]
    return float(seen.max()) if len(seen) else None


def _frozen(feeder: Feeder, theirs: _Snapshots) -> Solution:
    """The frozen frame: fixed taps, every load constant power at its nodes, PV at unit power factor."""
    power = np.ascontiguousarray(theirs.levels[:, None] * -feeder.nominal_injection[feeder.retained])
    injected = theirs.generation(feeder).of(np.arange(len(power))) if theirs.sun.any() else None
    return BatchSolver(feeder).solve(power, injected, nodes="all")


# --- OpenDSS -----------------------------------------------------------------------------------------------
def _with_opendss(feeder: Feeder, origin: DssOrigin, chosen: FloatArray) -> tuple[_Snapshots, str]:
    # A reversible regulator of the engine keeps its direction whatever is reset: a circuit for each level.
    alone = any(regulator.reverse for regulator in feeder.as_operated.regulators)
    every = [OWN, *chosen.tolist()]
    plain = not any("PV system" in words for words in feeder.as_operated.left_out)
    sunny = bool(feeder.pv) and not alone and plain
    groups = [[level] for level in every] if alone else [every]
    rows: list[_Row] = []
    for levels in groups:
        engine = _AsItIs(feeder, origin)
        rows += engine.snapshots(levels, sunny=sunny)
    theirs = _Snapshots.of(rows)
    sun = ", without generation of PV" + " and in full sun" * sunny if feeder.pv else ""
    off = f", without {', '.join(engine.disabled)}" if engine.disabled else ""
    loads = f"loads {chosen[0]:.2f} to {chosen[-1]:.2f} of nominal{sun}{off}"
    exact = f", exact to {engine.moves:.1g} p.u. itself" if engine.moves > _STILL else ""
    against = f"OpenDSS, the file's own models and controls from neutral, {loads}{exact}"
    return theirs, against


class _AsItIs:
    """The circuit of the file with its own models and controls; what the feeder leaves out is disabled.

    Attributes
    ----------
    disabled : what the feeder leaves out, in words.
    moves : largest change of a voltage when a solution is solved again [p.u.]: how exact the engine is.
    """

    def __init__(self, feeder: Feeder, origin: DssOrigin) -> None:
        self._feeder, self._origin = feeder, origin
        self.moves = 0.0
        self._engine = build_circuit(origin)
        self._circuit = self._engine.ActiveCircuit
        kept = {unit.name for unit in feeder.as_operated.generators}
        others = (*OTHER_SOURCES, "storagecontroller", *_PROTECTION)
        found = {kind: enabled_names(self._engine, kind) for kind in others}
        units = enabled_names(self._engine, "generator")
        found["generator"] = [name for name in units if name not in kept]
        for kind, names in found.items():
            self._switch("Disable", kind, names)
        self._switched = list(self._settled_switches())
        self.disabled = [f"{len(names)} of class {kind}" for kind, names in found.items() if names]
        self._solar = {kind: enabled_names(self._engine, kind) for kind in ("pvsystem", "invcontrol")}
        for name in self._solar["invcontrol"]:  # the engine stops 2.5 % off the curve unless told otherwise
            self._text(f'Edit "InvControl.{name}" VarChangeTolerance=1e-5 VoltageChangeTolerance=1e-6')
        self._text(f"Set Mode=Snapshot MaxControlIter={_ROUNDS} MaxIterations=500")
        self._numbers = {name.lower(): k + 1 for k, name in enumerate(self._circuit.Loads.AllNames)}

    def _settled_switches(self) -> Iterator[str]:
        """Commands that put switches where their controls have them: a reset moves them to their normal."""
        controls = enabled_names(self._engine, "swtcontrol")
        with suppress(DSSException):
            if controls:
                self._circuit.Solution.Solve()
        for name in controls:
            own = Properties(self._engine, "swtcontrol", name)
            switch, terminal = own.text("switchedobj"), int(own.number("switchedterm"))
            self._circuit.SetActiveElement(switch)
            opened = self._circuit.ActiveCktElement.IsOpen(terminal, 0)
            yield f'{"Open" if opened else "Close"} "{switch}" {terminal}'
        self._switch("Disable", "swtcontrol", controls)

    def snapshots(self, levels: Sequence[float], *, sunny: bool) -> list[_Row]:
        """Every load level from neutral taps without PV; then, from there, in full sun if asked."""
        rows: list[_Row] = []
        for level in levels:
            self._begin(level)
            for kind, names in self._solar.items():
                self._switch("Disable", kind, names)
            rows.append((level, 0.0, *self._solved()))
            if sunny:
                for kind, names in self._solar.items():
                    self._switch("Enable", kind, names)
                for systems in self._circuit.PVSystems:
                    systems.Irradiance = 1.0
                rows.append((level, 1.0, *self._solved()))
        return rows

    def _begin(self, level: float) -> None:
        operation, circuit = self._feeder.as_operated, self._circuit
        self._text("Reset Controls")
        for command in self._switched:
            self._text(command)
        for regulator in operation.regulators:
            circuit.Transformers.Name, circuit.Transformers.Wdg = regulator.transformer, regulator.winding
            circuit.Transformers.Tap = 1.0
        for bank in operation.capacitors:
            circuit.Capacitors.Name = bank.name
            circuit.Capacitors.States = [int(bank.closed)]
            circuit.SetActiveElement(f"capacitor.{bank.name}")
            element = circuit.ActiveCktElement
            (element.Close if bank.closed else element.Open)(1, 0)
        if level == OWN:
            return
        self._text("Set LoadMult=1")
        for load in self._feeder.loads:
            circuit.Loads.idx = self._numbers[load.name]
            circuit.Loads.kW, circuit.Loads.kvar = level * load.kw, level * load.kvar

    def _solved(self) -> tuple[ComplexArray, FloatArray, list[int], bool]:
        """Voltages, their moves, states, and whether there is a solution with controls at rest.

        Controls act only where the engine calls a solution converged, which at nodes that nothing feeds it
        may never do at a tight tolerance: then a wider one is tried, and the solution is made exact with the
        controls off. Whether it stands still is seen at the feeder's own nodes.
        """
        solution, settled = self._circuit.Solution, False
        with suppress(DSSException):  # raised where controls hunt
            for tolerance in _TOLERANCES:
                self._text(f"Set ControlMode=Static Tolerance={tolerance}")
                solution.Solve()
                settled = bool(solution.Converged and solution.ControlIterations < _ROUNDS)
                if settled:
                    break
        self._text(f"Set ControlMode=Off Tolerance={_TOLERANCES[0]}")
        solution.Solve()
        before = self._voltages()
        solution.Solve()
        v = self._voltages()
        moves = np.abs(v - before)
        settled = settled and float(moves.max()) < _ALMOST_STILL
        if settled:
            self.moves = max(self.moves, float(moves.max()))
        return v, moves, self._states(), settled

    def _voltages(self) -> ComplexArray:
        feeder = self._feeder
        at = {name.lower(): k for k, name in enumerate(self._circuit.YNodeOrder)}
        volts = np.asarray(self._engine.YMatrix.getV()).view(np.complex128)[1:]
        missing = [feeder.nodes[k] for k in feeder.energised if feeder.nodes[k] not in at]
        if missing:
            raise PowerFlowError("the feeder has nodes that its file does not have")
        order = [at[feeder.nodes[k]] for k in feeder.energised]
        return np.asarray(volts[order] / (_VOLTS_PER_KV * feeder.base_kv[feeder.energised]))

    def _states(self) -> list[int]:
        found, circuit = [], self._circuit
        for regulator in self._feeder.as_operated.regulators:
            circuit.Transformers.Name, circuit.Transformers.Wdg = regulator.transformer, regulator.winding
            found.append(round((float(circuit.Transformers.Tap) - 1.0) / regulator.step))
        for bank in self._feeder.as_operated.capacitors:
            circuit.Capacitors.Name = bank.name
            found.append(int(circuit.Capacitors.States[0]))
        return found

    def _switch(self, verb: str, kind: str, names: Iterable[str]) -> None:
        for name in names:
            self._text(f'{verb} "{kind}.{name}"')

    def _text(self, command: str) -> None:
        run(self._engine, command, self._origin)


# --- pandapower --------------------------------------------------------------------------------------------
def _with_pandapower(feeder: Feeder, origin: PandapowerOrigin) -> Comparison:
    if feeder.as_operated.regulators or feeder.as_operated.refused:
        return Comparison("not measured: pandapower's power flow does not move taps")
    pandapower = require("pandapower")
    net = copy.deepcopy(origin.net)
    for kind in (*FEEDING, *LEFT_OUT):
        if kind in net:
            net[kind]["in_service"] = False
    name = "runpp_3ph" if origin.by_phase else "runpp"
    if origin.by_phase:
        net.sn_mva = min(float(net.sn_mva), _SMALL_BASE_MVA)
    options = {"tolerance_mva": 1e-9 * float(net.sn_mva), "max_iteration": 50}
    try:
        with third_party_warnings():
            getattr(pandapower, name)(net, numba=False, calculate_voltage_angles=True, **options)
    except pandapower.LoadflowNotConverged:
        return Comparison(f"not measured: {name} finds no solution at nominal load")
    v = np.full(len(feeder.nodes), np.nan, dtype=np.complex128)
    for bus, node in origin.node_of_bus.items():
        for k, phase in enumerate(_PHASES if origin.by_phase else ("",)):
            row = net.res_bus_3ph.loc[bus] if phase else net.res_bus.loc[bus]
            middle = f"_{phase}" if phase else ""
            angle = np.deg2rad(row[f"va{middle}_degree"])
            v[feeder.node_index[node] + k] = row[f"vm{middle}_pu"] * np.exp(1j * angle)
    seen = v[None, feeder.energised]
    none = np.zeros((1, 0), dtype=np.int64)
    theirs = _Snapshots(np.ones(1), np.zeros(1), seen, np.zeros(seen.shape), none, np.ones(1, bool))
    return _differences(feeder, theirs, f"pandapower's {name}, nominal loads without generation")
