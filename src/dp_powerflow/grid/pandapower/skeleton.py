"""Nodes and admittances of a pandapower net: a node per bus, or one for each of its three phases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import divide, multiply, unit
from dp_powerflow.grid.feeder import GROUND, Line
from dp_powerflow.grid.operation import Branch
from dp_powerflow.grid.pandapower.circuit import Circuit, TwoPorts
from dp_powerflow.grid.pandapower.sequences import source_impedances
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

PHASES = 3

_ANGLE_STEP_DEG = 30.0
_PHASE_ANGLES_DEG = (0.0, -120.0, 120.0)
_NEAR_IDEAL = 2.0**-20
"""Positive-sequence impedance of a source over its negative one; in `runpp_3ph` it is 0."""
_SEQUENCES = (0, 1, 2)


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A feeder without what is connected to it; its fields are those of `Feeder`.

    Attributes
    ----------
    nodes_of_bus : index of a bus of the net → its node, or the nodes of its three phases.
    """

    nodes: tuple[str, ...]
    base_kv: FloatArray
    base_mva: float
    y: sp.csc_array
    slack: IntArray
    v_slack: ComplexArray
    nominal_angle_deg: FloatArray
    lines: tuple[Line, ...]
    nodes_of_bus: dict[int, tuple[int, ...]]

    def is_source(self, bus: int) -> bool:
        """Whether the bus itself is an ideal source."""
        return self.nodes_of_bus[bus][0] in self.slack

    def branches(self, bus: int, *, delta: bool, phase: int | None = None) -> tuple[Branch, ...]:
        """Where an element is connected: to all phases of a bus, or to one of them.

        In a delta phase 0 is from the first phase to the second, 1 from the second to the third.
        """
        nodes = self.nodes_of_bus[bus]
        if len(nodes) == 1:
            return ((nodes[0], GROUND),)
        pairs = [(node, nodes[(k + 1) % PHASES] if delta else GROUND) for k, node in enumerate(nodes)]
        return tuple(pairs) if phase is None else (pairs[phase],)

    def branch_kv(self, branch: Branch) -> float:
        """Rated voltage between the two ends of a branch [kV]."""
        line_to_neutral = float(self.base_kv[branch[0]])
        return line_to_neutral if branch[1] == GROUND else line_to_neutral * float(np.sqrt(PHASES))


def balanced(circuit: Circuit, base_mva: float) -> Skeleton:
    """One node per bus stands for its three phases.

    Parameters
    ----------
    base_mva : power base per phase [MVA].
    """
    scale = float(circuit.net.sn_mva) / (PHASES * base_mva)
    tt, ff, ft, tf = (part * scale for part in circuit.two_ports())
    primitives = np.stack([np.stack([ff, ft], axis=1), np.stack([tf, tt], axis=1)], axis=1)
    return Skeleton(
        nodes=circuit.nodes,
        base_kv=circuit.base_kv / np.sqrt(PHASES),
        base_mva=PHASES * base_mva,
        y=sp.csc_array(circuit.admittance() * scale),
        slack=np.flatnonzero(circuit.is_slack),
        v_slack=circuit.v_slack,
        nominal_angle_deg=_nominal(circuit.angle_deg()),
        lines=circuit.lines(primitives),
        nodes_of_bus={bus: (node,) for bus, node in circuit.node_of_bus.items()},
    )


def three_phase(circuit: Circuit, base_mva: float) -> Skeleton:
    """A node per phase and bus; the sources are three nodes each, behind their impedances.

    Parameters
    ----------
    base_mva : power base per phase [MVA].
    """
    scale = float(circuit.net.sn_mva) / (PHASES * base_mva)
    ports = [circuit.two_ports(sequence) for sequence in _SEQUENCES]
    n, sources = len(circuit.nodes), np.flatnonzero(circuit.is_slack)
    behind = n + np.arange(len(sources))
    sequences = [circuit.entries(each, circuit.ends) for each in ports]
    rows, columns = sequences[0][1]
    blocks = _in_phases(*(values * scale for values, _ in sequences))
    tie = _source_ties(circuit, base_mva, sources)
    y = _spread(
        np.concatenate([blocks, tie, -tie, -tie, tie]),
        np.concatenate([rows, sources, sources, behind, behind]),
        np.concatenate([columns, sources, behind, sources, behind]),
        n + len(sources),
    )
    names = [*circuit.buses, *(f"emf({circuit.buses[k]})" for k in sources)]
    angles = np.concatenate([circuit.angle_deg(), circuit.angle_deg()[sources]])
    base_kv = np.concatenate([circuit.base_kv, circuit.base_kv[sources]]) / np.sqrt(PHASES)
    turn = unit(np.array(_PHASE_ANGLES_DEG))
    return Skeleton(
        nodes=tuple(f"{name}.{phase + 1}" for name in names for phase in range(PHASES)),
        base_kv=np.repeat(base_kv, PHASES),
        base_mva=base_mva,
        y=y,
        slack=np.arange(PHASES * n, PHASES * (n + len(sources))),
        v_slack=np.concatenate([multiply(np.full(PHASES, v), turn) for v in circuit.v_slack]),
        nominal_angle_deg=_nominal(np.add.outer(angles, np.array(_PHASE_ANGLES_DEG)).ravel()),
        lines=circuit.lines(_primitives(ports, scale)),
        nodes_of_bus={
            bus: tuple(range(PHASES * node, PHASES * (node + 1))) for bus, node in circuit.node_of_bus.items()
        },
    )


def _in_phases(y0: ComplexArray, y1: ComplexArray, y2: ComplexArray) -> ComplexArray:
    """Complex (k, 3, 3) admittances between phases of k admittances in sequences, T·diag(y)·T⁻¹."""
    forward, backward = (np.full(len(y0), phasor) for phasor in unit(np.array(_PHASE_ANGLES_DEG))[1:])
    own = (y0 + y1 + y2) / PHASES
    after = (y0 + multiply(y1, forward) + multiply(y2, backward)) / PHASES
    before = (y0 + multiply(y1, backward) + multiply(y2, forward)) / PHASES
    rows = ((own, before, after), (after, own, before), (before, after, own))
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def _primitives(ports: list[TwoPorts], scale: float) -> ComplexArray:
    """Complex (branch, 6, 6) of branches given by their two-ports in the three sequences."""
    tt, ff, ft, tf = (_in_phases(*(each[k] * scale for each in ports)) for k in range(4))
    return np.concatenate([np.concatenate([ff, ft], axis=2), np.concatenate([tf, tt], axis=2)], axis=1)


def _source_ties(circuit: Circuit, base_mva: float, sources: IntArray) -> ComplexArray:
    """Complex (source, 3, 3) admittance between every source and its bus."""
    position = {int(node): k for k, node in enumerate(sources)}
    y0, y1, y2 = np.zeros((3, len(sources)), dtype=np.complex128)
    for bus, z0, z2 in source_impedances(circuit.net, base_mva):
        k = position[circuit.node_of_bus[bus]]
        zero, negative = divide(np.ones(2, dtype=np.complex128), np.array([z0, z2]))
        y0[k] += zero
        y1[k] += negative / _NEAR_IDEAL
        y2[k] += negative
    return _in_phases(y0, y1, y2)


def _spread(blocks: ComplexArray, rows: IntArray, columns: IntArray, size: int) -> sp.csc_array:
    """Sum of blocks, each at its row and column of blocks; entries that are zero are left out."""
    phase = np.arange(PHASES)
    at = np.broadcast_to(PHASES * rows[:, None, None] + phase[:, None], blocks.shape)
    to = np.broadcast_to(PHASES * columns[:, None, None] + phase, blocks.shape)
    y = sp.csr_matrix((blocks.ravel(), (at.ravel(), to.ravel())), shape=(PHASES * size,) * 2)
    y.sum_duplicates()
    y.eliminate_zeros()
    return sp.csc_array(y)


def _nominal(angle_deg: FloatArray) -> FloatArray:
    """The nearest multiples of 30°, in (−180°, 180°]."""
    steps = np.round(angle_deg / _ANGLE_STEP_DEG)
    return np.asarray(180.0 - np.mod(180.0 - steps * _ANGLE_STEP_DEG, 360.0))
