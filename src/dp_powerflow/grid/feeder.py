"""A feeder: nodes, admittances, loads, generation, and lines one by one.

The records here are what every source of feeders (OpenDSS, pandapower, the built-in tables) is
translated into, and all that the rest of the program knows of a network. All of it is PRIVATE.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.phasors import unit
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray, kw_to_pu

TAPS_SOLVED = "solved once at nominal load, then frozen"
"""`Feeder.taps_from` where the taps are a function of the network."""
NO_REGULATORS = "no regulators"
GROUND = -1
"""Index that stands for ground where a node index is expected."""


@dataclass(frozen=True, eq=False)
class Line:
    """One line or switch, kept as a record so that it can be perturbed by itself.

    Attributes
    ----------
    nodes : indices of its energised conductors, first terminal then second; ground left out.
    primitive : complex (len(nodes), len(nodes)) [p.u.], its own contribution to `Feeder.y`.
    length_m : length [m], None where the source states no unit.
    """

    name: str
    nodes: tuple[int, ...]
    primitive: ComplexArray
    length_m: float | None
    is_switch: bool
    code: str | None = None


@dataclass(frozen=True)
class Load:
    """One load as the feeder's file declares it.

    Attributes
    ----------
    branches : pairs of node indices between which the load draws equal shares; `GROUND` for a
        grounded or neutral terminal.
    kw, kvar : total nominal power of the load [kW], [kvar].
    constant_power : whether the file declares it so; every other model is replaced.
    label : public class of the customer, None if the file declares none.
    """

    name: str
    branches: tuple[tuple[int, int], ...]
    kw: float
    kvar: float
    connection: str
    constant_power: bool = True
    label: str | None = None


@dataclass(frozen=True)
class PVSystem:
    """One photovoltaic system, its power shared equally by its branches."""

    name: str
    branches: tuple[tuple[int, int], ...]
    kva: float
    kw_peak: float
    cut_in_fraction: float = 0.0


@dataclass(frozen=True)
class Tap:
    """Tap ratio of one winding of a regulating transformer [p.u. of nominal turns]."""

    transformer: str
    winding: int
    ratio: float


@dataclass(frozen=True, eq=False)
class Feeder:
    """A network without its loads and generation, and what is connected to it.

    Attributes
    ----------
    nodes : names, "bus.phase"; the last ones are the slack nodes, ideal EMFs ("emf(bus).phase").
    base_kv : (node,) line-to-neutral base voltage [kV].
    base_mva : power base of a node [MVA]: of one phase, or of the three phases of a balanced node.
    y : sparse complex (node, node) [p.u.], "Y_full" of the paper; slack nodes included, no loads,
        no generation.
    slack : (slack,) indices of the slack nodes.
    v_slack : complex (slack,) their voltages [p.u.].
    nominal_angle_deg : (node,) 0, −120, 120, or shifted by a transformer's vector group: a
        multiple of 30°, so that it tells nothing of the impedances.
    taps_from : in words, where the tap positions come from.
    notes : what had to be replaced or left out when the source was read.
    neutral : indices of the nodes at ground potential (neutral conductors).
    origin : what an engine of the same source needs to build the circuit again, None if there is none.
    """

    name: str
    nodes: tuple[str, ...]
    base_kv: FloatArray
    base_mva: float
    y: sp.csc_array
    slack: IntArray
    v_slack: ComplexArray
    nominal_angle_deg: FloatArray
    loads: tuple[Load, ...]
    pv: tuple[PVSystem, ...]
    lines: tuple[Line, ...]
    taps: tuple[Tap, ...] = ()
    taps_from: str = NO_REGULATORS
    coordinates: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    neutral: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    origin: object = None

    def __repr__(self) -> str:
        return f"Feeder({self.name!r}, {len(self.nodes)} nodes, {len(self.loads)} loads)"

    @cached_property
    def node_index(self) -> dict[str, int]:
        """Name of a node → its index."""
        return {name: k for k, name in enumerate(self.nodes)}

    @cached_property
    def energised(self) -> IntArray:
        """Indices of all nodes but the slack."""
        return np.setdiff1d(np.arange(len(self.nodes)), self.slack)

    @cached_property
    def load_shares(self) -> sp.csc_array:
        """Complex (node, load): nodal power drawn per unit of complex load power."""
        return self._shares(tuple(load.branches for load in self.loads))

    @cached_property
    def pv_shares(self) -> sp.csc_array:
        """Complex (node, PV system): nodal power injected per unit of complex PV power."""
        return self._shares(tuple(pv.branches for pv in self.pv))

    @cached_property
    def nominal_load(self) -> ComplexArray:
        """Complex (load,) nominal power of every load [p.u.]."""
        power = np.array([complex(load.kw, load.kvar) for load in self.loads], dtype=np.complex128)
        return np.asarray(kw_to_pu(power.real, self.base_mva) + 1j * kw_to_pu(power.imag, self.base_mva))

    @cached_property
    def nominal_injection(self) -> ComplexArray:
        """Complex (node,) injection s of all loads at nominal power, negative for a load [p.u.]."""
        return np.asarray(-(self.load_shares @ self.nominal_load))

    @cached_property
    def retained(self) -> IntArray:
        """R: indices of the nodes that carry a load or generation."""
        loaded = np.union1d(self.load_shares.indices, self.pv_shares.indices)
        return np.asarray(loaded, dtype=np.int64)

    @cached_property
    def zero_injection(self) -> IntArray:
        """Z: indices of the nodes without load, generation or source."""
        return np.setdiff1d(self.energised, self.retained)

    def loaded_nodes(self) -> tuple[IntArray, FloatArray]:
        """Positions among `retained` of the nodes with nominal active load, and that load [kW]."""
        nominal_kw = -self.nominal_injection[self.retained].real * self.base_mva * KW_PER_MW
        positions = np.flatnonzero(nominal_kw > 0.0)
        return positions, nominal_kw[positions]

    def _shares(self, branches: tuple[tuple[tuple[int, int], ...], ...]) -> sp.csc_array:
        phasor = unit(self.nominal_angle_deg)
        rows: list[int] = []
        columns: list[int] = []
        values: list[complex] = []
        for column, pairs in enumerate(branches):
            for pair in pairs:
                for node, share in wye_equivalent(pair, phasor):
                    rows.append(node)
                    columns.append(column)
                    values.append(share / len(pairs))
        shape = (len(self.nodes), len(branches))
        return sp.csc_array((values, (rows, columns)), shape=shape, dtype=np.complex128)


def wye_equivalent(branch: tuple[int, int], phasor: ComplexArray) -> tuple[tuple[int, complex], ...]:
    """Nodal powers that stand for one unit of power drawn between two nodes.

    A current that flows from node i to node j takes S·v_i/(v_i − v_j) from i and −S·v_j/(v_i − v_j) from j.
    At the nominal phasors these are constants, so the law of the loads does not depend on Y.
    """
    i, j = branch
    if j == GROUND:
        return ((i, 1.0 + 0.0j),)
    if i == GROUND:
        return ((j, 1.0 + 0.0j),)
    first, second = complex(phasor[i]), complex(phasor[j])
    across = first - second
    return ((i, first / across), (j, -second / across))
