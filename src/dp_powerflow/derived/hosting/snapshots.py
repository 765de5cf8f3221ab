"""Snapshots of drawn days with one more PV system, solved as many as are asked for at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dp_powerflow.derived.hosting.limits import Bounds
from dp_powerflow.errors import ConfigError, PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder, PVSystem
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.powerflow.voltvar import VoltVar
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

MOST_PHASORS = 1 << 21
"""Voltages, loads and injections that are held at once: 32 MiB each."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Snapshots without new PV, and what they are held to.

    Attributes
    ----------
    load : complex (snapshot, column) drawn [p.u.].
    generation : complex (snapshot, column) that is there already [p.u.]; None without any.
    sun : (snapshot,) share of peak irradiance.
    states : integer (snapshot, control) taps and capacitors; no column where nothing moves.
    bounds : of every snapshot.
    """

    load: ComplexArray
    generation: ComplexArray | None
    sun: FloatArray
    states: IntArray
    bounds: Bounds

    def __len__(self) -> int:
        return len(self.load)


class Hosts(Protocol):
    """The network with a place for a PV system at every candidate."""

    @property
    def width(self) -> int:
        """Figures of one snapshot, for what is solved at once."""

    def voltages(self, rows: Rows, at: IntArray, candidate: IntArray, power: ComplexArray) -> ComplexArray:
        """Complex (solution, energised) [p.u.] of snapshots `at` with power at a candidate; NaN if none."""


def margins(
    hosts: Hosts, rows: Rows, at: IntArray, candidate: IntArray, power: ComplexArray
) -> tuple[FloatArray, IntArray]:
    """Margin and code (`Bounds.margins`) of snapshots with new PV, whatever their number.

    Parameters
    ----------
    at, candidate : (solution,) snapshot, and place of the PV system.
    power : complex (solution,) that it injects [p.u.].
    """
    order = np.argsort(at, kind="stable")
    margin = np.empty(len(at))
    code = np.empty(len(at), dtype=np.int64)
    size = max(1, MOST_PHASORS // hosts.width)
    for first in range(0, len(at), size):
        some = order[first : first + size]
        v = hosts.voltages(rows, at[some], candidate[some], power[some])
        margin[some], code[some] = rows.bounds.margins(v, at[some])
    return margin, code


@dataclass(frozen=True, eq=False)
class FixedHosts:
    """Of the fixed frame: one constant power per node."""

    solver: BatchSolver
    columns: IntArray
    places: IntArray

    @property
    def width(self) -> int:
        """Of voltages, loads and injections."""
        feeder = self.solver.feeder
        return len(feeder.energised) + 2 * len(feeder.retained)

    def voltages(self, rows: Rows, at: IntArray, candidate: IntArray, power: ComplexArray) -> ComplexArray:
        """As of `Hosts`."""
        shape = (len(at), len(self.solver.feeder.retained))
        load, injected = (np.zeros(shape, dtype=np.complex128) for _ in range(2))
        load[:, self.columns] = rows.load[at]
        if rows.generation is not None:
            injected[:, self.columns] = rows.generation[at]
        injected[np.arange(len(at)), self.places[candidate]] += power
        return self.solver.solve(load, injected, nodes="all").v


@dataclass(frozen=True, eq=False)
class _OperatedHosts:
    """Of the feeder as operated."""

    solver: OperatedSolver
    existing: int

    @property
    def width(self) -> int:
        """Of voltages, loads and injections."""
        feeder = self.solver.feeder
        return len(feeder.energised) + len(feeder.loads) + len(feeder.pv)


class HeldHosts(_OperatedHosts):
    """With taps and capacitors where they are on the drawn day."""

    def voltages(self, rows: Rows, at: IntArray, candidate: IntArray, power: ComplexArray) -> ComplexArray:
        """As of `Hosts`."""
        injected = _injected(self, rows, at, candidate, power)
        return self.solver.solve_held(rows.states[at], rows.load[at], injected, nodes="all")


class ActingHosts(_OperatedHosts):
    """With controls that act; `at` is of whole days where they remember."""

    def voltages(self, rows: Rows, at: IntArray, candidate: IntArray, power: ComplexArray) -> ComplexArray:
        """As of `Hosts`."""
        injected = _injected(self, rows, at, candidate, power)
        return self.solver.solve(rows.load[at], injected, nodes="all").v


def _injected(
    hosts: _OperatedHosts, rows: Rows, at: IntArray, candidate: IntArray, power: ComplexArray
) -> ComplexArray:
    """Complex (solution, PV system): what is there already, and the new one."""
    injected = np.zeros((len(at), len(hosts.solver.feeder.pv)), dtype=np.complex128)
    if rows.generation is not None:
        injected[:, : hosts.existing] = rows.generation[at]
    injected[np.arange(len(at)), hosts.existing + candidate] = power
    return injected


@dataclass(frozen=True, eq=False)
class Prepared:
    """Solvers of a study.

    Attributes
    ----------
    base : without new PV, as the release solves it.
    held : with new PV, snapshot by snapshot: of the fixed frame, or taps as drawn.
    acting : with new PV and acting controls; None where none act.
    """

    base: Solver
    held: FixedHosts | HeldHosts
    acting: ActingHosts | None


def prepared(base: Solver, candidates: IntArray, most_kva: float) -> Prepared:
    """Solvers with one more PV system at every candidate.

    Parameters
    ----------
    candidates : (candidate,) nodes of the feeder.
    most_kva : largest apparent power of a new system [kVA].

    Raises
    ------
    PowerFlowError
        If another engine than the package's own solves the study.
    """
    feeder = base.feeder
    wider = with_places(feeder, candidates, most_kva)
    if isinstance(base, OperatedSolver):
        held = HeldHosts(base.on(wider, controls="frozen"), len(feeder.pv))
        moves = base.controls != "frozen" and bool(
            feeder.as_operated.regulators or feeder.as_operated.capacitors
        )
        return Prepared(base, held, ActingHosts(base.on(wider), len(feeder.pv)) if moves else None)
    if isinstance(base, BatchSolver):
        columns = np.searchsorted(wider.retained, feeder.retained)
        places = np.searchsorted(wider.retained, candidates)
        curves = _curves(base.voltvar, columns, places, len(wider.retained))
        return Prepared(base, FixedHosts(base.on(wider, curves), columns, places), None)
    raise PowerFlowError(
        "hosting capacity is computed by the package's own solvers; derive it from a release with "
        "release.solver = 'batch'"
    )


def with_places(feeder: Feeder, candidates: IntArray, most_kva: float) -> Feeder:
    """The feeder with one more PV system, between node and ground, at every candidate."""
    new = [
        PVSystem(f"new at {feeder.nodes[k]}", ((int(k), GROUND),), most_kva, most_kva)
        for k in candidates.tolist()
    ]
    return replace(feeder, pv=(*feeder.pv, *new))


def _curves(known: VoltVar | None, columns: IntArray, places: IntArray, size: int) -> VoltVar | None:
    """The curves of a study: a new system follows the first where its node has none."""
    if known is None or not known.curves:
        return None
    curve_of = np.full(size, -1, dtype=np.int64)
    curve_of[columns] = known.curve_of
    new = places[curve_of[places] < 0]
    curve_of[new] = 0
    return VoltVar(known.curves, curve_of)


def turned(base: Solver) -> bool:
    """Whether PV systems of a study follow a volt-var curve, so that no power factor can be chosen."""
    if isinstance(base, OperatedSolver):
        return base.volt_var is not None
    return isinstance(base, BatchSolver) and base.voltvar is not None


def per_kw(feeder: Feeder, power_factor: float, *, absorbs: bool) -> complex:
    """Complex power injected by 1 kW of PV [p.u.]."""
    if not 0.0 < power_factor <= 1.0:
        raise ConfigError("power_factor lies above 0 and is at most 1")
    tangent = float(np.sqrt(1.0 - power_factor**2)) / power_factor
    return complex(1.0, -tangent if absorbs else tangent) / (feeder.base_mva * KW_PER_MW)
