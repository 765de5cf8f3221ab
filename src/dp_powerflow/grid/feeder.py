"""A feeder: nodes, admittances, loads, generation, and lines one by one.

The records here are what every source of feeders (OpenDSS, pandapower, the built-in tables) is
translated into. The rest of the program knows nothing else of a network. All of it is PRIVATE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow._bits.elementary import unit
from dp_powerflow.grid.operation import CONSTANT_POWER, InverterCurve, Operation, Response, without_nodes
from dp_powerflow.grid.quantities import LINE, SWITCH, TRANSFORMER, Quantity
from dp_powerflow.grid.refusals import refusal, said
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray, kw_to_pu

TAPS_SOLVED = "solved once at nominal load, then frozen"
"""`Feeder.taps_from` where the taps are a function of the network."""
TAPS_NOT_FOUND = "neutral; none were found at nominal load"
"""Of a twin whose loads OpenDSS cannot solve for at nominal size: controls that act start from there."""
NO_REGULATORS = "no regulators"
TAPS_GIVEN = "given as input"
TAPS_INTERNAL = "solved on the true network; INTERNAL"
"""Written by `inspect --save-taps`: good for the true network, never for a twin."""
TAPS_DECLARED = "declared: "
"""Start of `Feeder.taps_from` where the taps are stated as public; the name of the source follows."""
_MOVED = "between two nodes draw negative power at one of them; drawn node by node, each has half"
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
    rated_kv : voltage across a branch at which it draws that power [kV], None for the base voltage.
    response : how its power follows from the voltage; the frozen frame takes every load as constant power.
    label : public class of the customer, None if the file declares none.
    """

    name: str
    branches: tuple[tuple[int, int], ...]
    kw: float
    kvar: float
    connection: str
    label: str | None = None
    rated_kv: float | None = None
    response: Response = CONSTANT_POWER

    @property
    def constant_power(self) -> bool:
        """Whether the file declares it so."""
        return self.response.constant_power


@dataclass(frozen=True)
class PVSystem:
    """One photovoltaic system, its power shared equally by its branches.

    Attributes
    ----------
    kva, kw_peak : rating of the inverter [kVA], power at full irradiance [kW].
    cut_in_fraction : share of the rating below which it is off.
    rated_kv : voltage across a branch that `response` is relative to [kV], None for the base voltage.
    response : constant power within its limits of voltage.
    tan_theta : reactive over active power, positive if injected, without a curve.
    curve : volt-var control by a curve of the file.
    """

    name: str
    branches: tuple[tuple[int, int], ...]
    kva: float
    kw_peak: float
    cut_in_fraction: float = 0.0
    rated_kv: float | None = None
    response: Response = CONSTANT_POWER
    tan_theta: float = 0.0
    curve: InverterCurve | None = None


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
    operation : the feeder with nothing frozen; None where its source has no taps that move and no capacitor
        that is switched, so that `y` is all there is.
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
    operation: Operation | None = None

    def __post_init__(self) -> None:
        # Between two nodes of the same phase no current of any size could draw power.
        phasor = self._phasor
        elements: tuple[Load | PVSystem, ...] = (*self.loads, *self.pv)
        for name, branches in ((element.name, element.branches) for element in elements):
            if any(GROUND not in (i, j) and phasor[i] == phasor[j] for i, j in branches):
                raise refusal("feeder.same-phase", name=name)
        for load in self.loads:
            if not (math.isfinite(load.kw) and math.isfinite(load.kvar)):
                raise refusal("feeder.load-power", load=load)
        moved = len({name for name, *_ in self._levelled})
        note = f"{moved} of {len(self.loads)} loads {_MOVED}"
        if moved and not any(known.endswith(_MOVED) for known in self.notes):
            object.__setattr__(self, "notes", (*self.notes, note))

    def __repr__(self) -> str:
        return f"Feeder({self.name!r}, {len(self.nodes)} nodes, {len(self.loads)} loads)"

    @cached_property
    def node_index(self) -> dict[str, int]:
        """Name of a node → its index."""
        return {name: k for k, name in enumerate(self.nodes)}

    @cached_property
    def as_operated(self) -> Operation:
        """What the solver of the feeder as operated reads; trivial where nothing moves."""
        return self.operation or Operation(self.nodes, self.y)

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

    @cached_property
    def nominal_kw(self) -> FloatArray:
        """(node,) active load that stands at every node where loads are drawn node by node [kW].

        It is that of `nominal_injection`, but for a load between two nodes with so low a power factor (below
        0.5 in a delta) that its wye equivalent draws negative active power at one of them. There each node
        has half: what is drawn has the power factor of its class, not of the file. Totals of loads stay.
        """
        nominal_kw: FloatArray = -self.nominal_injection.real * self.base_mva * KW_PER_MW
        for _, node, change_kw in self._levelled:
            nominal_kw[node] += change_kw
        return nominal_kw

    @cached_property
    def _levelled(self) -> tuple[tuple[str, int, float], ...]:
        """Load, node, and what makes its share of the load half of the branch's [kW]."""
        phasor = self._phasor
        found: list[tuple[str, int, float]] = []
        for load in self.loads:
            power = complex(load.kw, load.kvar) / max(len(load.branches), 1)
            for branch in load.branches if load.kw > 0.0 else ():
                shares = [(node, (power * share).real) for node, share in wye_equivalent(branch, phasor)]
                if any(kw < 0.0 for _, kw in shares):
                    found += [(load.name, node, power.real / len(shares) - kw) for node, kw in shares]
        return tuple(found)

    def loaded_nodes(self) -> tuple[IntArray, FloatArray]:
        """Positions among `retained` of the nodes with nominal active load, and that load [kW]."""
        nominal_kw = self.nominal_kw[self.retained]
        positions = np.flatnonzero(nominal_kw > 0.0)
        return positions, nominal_kw[positions]

    def drawn_loads(self) -> tuple[IntArray, FloatArray]:
        """Positions among `loads` of those with nominal active load, and that load [kW]."""
        positions = np.array([k for k, load in enumerate(self.loads) if load.kw > 0.0], dtype=np.int64)
        return positions, np.array([self.loads[k].kw for k in positions], dtype=np.float64)

    @cached_property
    def _phasor(self) -> ComplexArray:
        """Complex (node,) nominal voltage [p.u.]: of modulus 1, or 0 at a neutral node."""
        phasor = unit(self.nominal_angle_deg)
        phasor[self.neutral] = 0.0
        return phasor

    def _shares(self, branches: tuple[tuple[tuple[int, int], ...], ...]) -> sp.csc_array:
        phasor = self._phasor
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
    At the nominal phasors these are constants, so the law of the loads does not depend on Y. At a neutral
    node, whose phasor is 0, nothing is drawn.
    """
    i, j = branch
    if j == GROUND or phasor[j] == 0.0:
        return ((i, 1.0 + 0.0j),)
    if i == GROUND or phasor[i] == 0.0:
        return ((j, 1.0 + 0.0j),)
    first, second = complex(phasor[i]), complex(phasor[j])
    across = first - second
    return ((i, first / across), (j, -second / across))


# ----------------------------------------------------------------------------------------------------------
# Buses: which nodes form one, and which buses an element joins.


@dataclass(frozen=True, eq=False)
class BusGraph:
    """The buses of a feeder and what joins them.

    Attributes
    ----------
    names : of the buses, in the order of their first nodes.
    bus_of : integer (node,) bus of every node of the feeder; a source belongs to the bus that it feeds.
    phase : integer (node,) number of its conductor, as the feeder names it; 1 for a balanced node.
    kind_of : pair of buses, the smaller number first → what joins them: a line, else a switch, else a
        transformer.
    source : boolean (bus,) whether it has a source.
    """

    names: tuple[str, ...]
    bus_of: IntArray
    phase: IntArray
    kind_of: dict[tuple[int, int], str]
    source: BoolArray

    @classmethod
    def of(cls, feeder: Feeder) -> BusGraph:
        """The buses of a feeder, from the names of its nodes, the pattern of `y` and its lines."""
        slack = set(feeder.slack.tolist())
        named = [bus_name(node, is_source=k in slack) for k, node in enumerate(feeder.nodes)]
        names = tuple(dict.fromkeys(named))
        number = {name: k for k, name in enumerate(names)}
        bus_of = np.array([number[name] for name in named], dtype=np.int64)
        source = np.zeros(len(names), dtype=np.bool_)
        source[bus_of[feeder.slack]] = True
        phase = np.array([int(node.rsplit(".", 1)[1]) for node in feeder.nodes], dtype=np.int64)
        return cls(names, bus_of, phase, _kinds(feeder, bus_of), source)


def bus_name(node: str, *, is_source: bool = False) -> str:
    """Name of the bus of a node, "bus.phase" or, of a source, "emf(bus).phase"."""
    name = node.rsplit(".", 1)[0]
    return name.removeprefix("emf(").removesuffix(")") if is_source else name


def _kinds(feeder: Feeder, bus_of: IntArray) -> dict[tuple[int, int], str]:
    """Every pair of buses between which `y` has an entry, and what joins it."""
    by_kind: dict[str, set[tuple[int, int]]] = {LINE: set(), SWITCH: set()}
    for line in feeder.lines:
        ends = sorted({int(bus_of[node]) for node in line.nodes})
        by_kind[SWITCH if line.is_switch else LINE].update(combinations(ends, 2))
    pattern = sp.coo_array(feeder.y)
    entries = pattern.data != 0
    rows, columns = (bus_of[axis[entries]] for axis in pattern.coords)
    coupled = np.unique(np.stack([rows, columns], axis=1)[rows != columns], axis=0)
    pairs = sorted({(min(pair), max(pair)) for pair in coupled.tolist()})
    return {
        pair: next((kind for kind, joined in by_kind.items() if pair in joined), TRANSFORMER)
        for pair in pairs
    }


def islanded_nodes(feeder: Feeder) -> list[str]:
    """Names of the nodes that no chain of admittances connects to a slack node."""
    return [feeder.nodes[k] for k in np.flatnonzero(~fed_nodes(feeder.y, feeder.slack))]


def fed_nodes(y: sp.csc_array, sources: IntArray) -> BoolArray:
    """(node,) whether a chain of admittances leads from a source to it."""
    _, component = connected_components(sp.csr_array(y != 0), directed=False)
    return np.isin(component, component[sources])


Connected = TypeVar("Connected", Load, PVSystem)


def without_islands(feeder: Feeder) -> Feeder:
    """The feeder without its islanded nodes and everything connected to them, stated in its notes."""
    dead = set(islanded_nodes(feeder))
    if not dead:
        return feeder
    kept = np.array([k for k, name in enumerate(feeder.nodes) if name not in dead])
    moved = {int(old): new for new, old in enumerate(kept)} | {GROUND: GROUND}

    def kept_of(elements: tuple[Connected, ...]) -> tuple[Connected, ...]:
        return tuple(
            replace(each, branches=tuple((moved[i], moved[j]) for i, j in each.branches))
            for each in elements
            if all(node in moved for branch in each.branches for node in branch)
        )

    lines = tuple(
        replace(line, nodes=tuple(moved[k] for k in line.nodes))
        for line in feeder.lines
        if all(k in moved for k in line.nodes)
    )
    rest: dict[str, Any] = {"loads": kept_of(feeder.loads), "pv": kept_of(feeder.pv), "lines": lines}
    lost = {kind: len(getattr(feeder, kind)) - len(elements) for kind, elements in rest.items()}
    return replace(
        feeder,
        nodes=tuple(feeder.nodes[k] for k in kept),
        base_kv=feeder.base_kv[kept],
        y=feeder.y[kept, :][:, kept],
        slack=np.array([moved[int(k)] for k in feeder.slack]),
        nominal_angle_deg=feeder.nominal_angle_deg[kept],
        neutral=np.array([moved[int(k)] for k in feeder.neutral if int(k) in moved], dtype=np.int64),
        **rest,
        notes=(*feeder.notes, said("note.islands", dead=len(dead), **lost)),
        operation=feeder.operation and without_nodes(feeder.operation, kept.tolist()),
    )


# ----------------------------------------------------------------------------------------------------------
# The figures of a network that noise may cover.


@dataclass(frozen=True, order=True)
class ParameterKey:
    """Which figure of which element."""

    quantity: Quantity
    element: str


Levels = Mapping[ParameterKey, float]


class Record:
    """Levels of a twin, each to be taken once: one that is missing is never replaced by a true figure."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._left = set(levels)

    def take(self, key: ParameterKey) -> float:
        if key not in self._levels:
            raise refusal("feeder.record-lacks", key=key)
        self._left.discard(key)
        return self._levels[key]

    def refuse_rest(self) -> None:
        if self._left:
            key = min(self._left)
            raise refusal("feeder.record-has-more", key=key)


@dataclass(frozen=True)
class CodedLine:
    """A line with the impedance per length of an entry of the file's catalogue of conductors.

    Attributes
    ----------
    candidates : every entry of the catalogue that fits the line's phases, in the order of their names.
    """

    line: str
    code: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class NetworkParameters:
    """Every parameter of a feeder; PRIVATE.

    Attributes
    ----------
    levels : all of them positive; a parameter that is zero, such as the resistance of an ideal reactance,
        has no level and stays zero.
    coded : lines with an entry of a catalogue.
    compensating : elements that feed in reactive power as a capacitor does, and have no level.
    """

    levels: Levels
    coded: tuple[CodedLine, ...] = ()
    compensating: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"NetworkParameters(PRIVATE, {len(self.levels)} levels)"
