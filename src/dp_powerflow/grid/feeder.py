"""A feeder: nodes, admittances, loads, generation, and lines one by one.

The records here are what every source of feeders (OpenDSS, pandapower, the built-in tables) is
translated into, and all that the rest of the program knows of a network. All of it is PRIVATE.

The positive figures of a network's elements that can be changed one by one.

A parameter has a level (metres, ohms per metre, per cent, kvar …) on its own scale. What is left of an
element once its levels are taken out is its shape: ratios between phases, R/X of a transformer. Shapes are
coarse: files hold short decimals, and ratios known to nine digits would give those decimals back, level
and all. What is not protected at all (`rounded`) keeps 24 bits, so that no last digit depends on a level.
A feeder rebuilt from other levels (`Rebuilder`) is a function of levels, shapes and public figures alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import unit
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.operation import CONSTANT_POWER, InverterCurve, Operation, Response
from dp_powerflow.grid.quantities import Protected, Quantity
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray, kw_to_pu

TAPS_SOLVED = "solved once at nominal load, then frozen"
"""`Feeder.taps_from` where the taps are a function of the network."""
TAPS_NOT_FOUND = "neutral; none were found at nominal load"
"""Of a twin whose loads OpenDSS cannot solve for at nominal size: controls that act start from there."""
NO_REGULATORS = "no regulators"
TAPS_GIVEN = "given as input"
TAPS_INTERNAL = "solved on the true network; INTERNAL"
"""Written by `inspect --save-taps`: good for the true network, never for a twin."""
TAPS_DECLARED = "declared: "
"""Start of `Feeder.taps_from` where somebody states the taps as public; who, follows."""
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
        self._refuse_no_voltage()
        for load in self.loads:
            if not (math.isfinite(load.kw) and math.isfinite(load.kvar)):
                raise FeederError(f"the power of load '{load.name}' is no number; correct the file")
        moved = len({name for name, *_ in self._levelled})
        note = f"{moved} of {len(self.loads)} loads {_MOVED}"
        if moved and not any(known.endswith(_MOVED) for known in self.notes):
            object.__setattr__(self, "notes", (*self.notes, note))

    def _refuse_no_voltage(self) -> None:
        """Refuse what draws power between two nodes of the same phase: no current of any size could."""
        phasor = self._phasor
        elements: tuple[Load | PVSystem, ...] = (*self.loads, *self.pv)
        for name, branches in ((element.name, element.branches) for element in elements):
            if any(GROUND not in (i, j) and phasor[i] == phasor[j] for i, j in branches):
                raise FeederError(
                    f"'{name}' stands between two nodes of the same phase, with no voltage across it; "
                    "correct its bus, or disable it"
                )

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
        """Load, node, and what makes its share of the load half of that of the branch [kW]."""
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


SHAPE_GRID = 2.0**-7
"""Grid of the entries of a shape, whose norm is about 1."""
_KEPT_BITS = 24


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
            raise FeederError(
                f"the record of the twin has no {key.quantity} of '{key.element}'; draw the twin again"
            )
        self._left.discard(key)
        return self._levels[key]

    def refuse_rest(self) -> None:
        if self._left:
            key = min(self._left)
            raise FeederError(
                f"the record of the twin has a {key.quantity} of '{key.element}', which the feeder does not; "
                "draw the twin again"
            )


@dataclass(frozen=True)
class CodedLine:
    """A line whose impedance per length is that of an entry of the file's catalogue of conductors.

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


def level_of(values: FloatArray) -> float:
    """Frobenius norm: the level of an array of figures that change together; 0 if all are."""
    return float(np.sqrt(np.sum(values * values)))


def shape_of(values: FloatArray) -> FloatArray:
    """The figures over their level, rounded to `SHAPE_GRID`, then of norm 1; zeros if all are zero."""
    level = level_of(values)
    if level == 0.0:
        return np.zeros_like(values)
    coarse = np.asarray(np.round(values / level / SHAPE_GRID) * SHAPE_GRID)
    return coarse / level_of(coarse)


def rounded(values: FloatArray) -> FloatArray:
    """Public figures to 24 bits: what an engine computes from them in another order comes out the same."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_KEPT_BITS), exponent - _KEPT_BITS))


def significant(values: FloatArray, digits: int) -> FloatArray:
    """Public figures to so many significant decimal digits, each the nearest double of its decimal."""
    array = np.asarray(values, dtype=np.float64)
    nearest = [float(f"{value:.{digits - 1}e}") for value in array.ravel().tolist()]
    return np.array(nearest, dtype=np.float64).reshape(array.shape)


_COARSE, _FLOOR = 0.08, 1e-6
_TWO_ENDS = 2
_UNMOVED = (
    "keeps its figures when its length, R and X are replaced; make it a switch, or give it R and X that "
    "count beside its charging"
)


Rebuilt = tuple[Feeder, Feeder, Feeder]
"""A feeder, the same rebuilt at its own levels, and at larger ones."""


def lines_rebuilt_wrongly(feeders: Rebuilt, protected: Protected) -> Iterator[FeederError]:
    """Every reason why the lines of a feeder are not what its levels make of them."""
    true, same, other = feeders
    if same.nodes != true.nodes or other.nodes != true.nodes:
        yield FeederError(
            "the feeder cannot be rebuilt from its figures, as it has other nodes then; simplify the names "
            "and figures of its file"
        )
        return
    wrong: dict[str, list[str]] = {}
    for line, again, stretched in zip(true.lines, same.lines, other.lines, strict=True):
        if line.is_switch or len(line.nodes) < _TWO_ENDS:
            continue
        series, shunt = _line_is_close(line.primitive, again.primitive)
        if not (series and shunt):
            words = _what_to_do(line, protected, series=series)
            wrong.setdefault(f"cannot be rebuilt from {words}", []).append(line.name)
        elif _close(again.primitive, stretched.primitive):
            wrong.setdefault(_UNMOVED, []).append(line.name)
    for words, names in wrong.items():
        more = f", as {len(names) - 1} more lines," if len(names) > 1 else ""
        yield FeederError(f"line '{names[0]}'{more} {words}")


def others_rebuilt_wrongly(feeders: Rebuilt, levels: Levels) -> Iterator[FeederError]:
    """Every reason why all else is not."""
    if any(each.nodes != feeders[0].nodes for each in feeders):
        return
    rest, again_rest, stretched_rest = (_without_lines(each) for each in feeders)
    if rest.shape != again_rest.shape or not _close(rest, again_rest):
        yield FeederError(
            "a transformer, capacitor or shunt of the feeder cannot be rebuilt from its figures, as a "
            "capacitor given by cuf or cmatrix; give it by kvar"
        )
    shunts = {key for key in levels if key.quantity in (Quantity.TRANSFORMER, Quantity.CAPACITOR)}
    if shunts and abs(again_rest - stretched_rest).max() == 0.0:
        yield FeederError(
            "transformers and capacitors keep their figures when these are replaced; leave out "
            "network.transformers and network.capacitors"
        )


def _what_to_do(line: Line, protected: Protected, *, series: bool) -> str:
    if line.code is not None and protected.lines == "length":
        return "its length and its code; give it the figures of its code"
    if not series:
        return "its length, R and X; state its impedance by symmetric rmatrix and xmatrix"
    if protected.charging:
        return "its length, R, X and charging; state it by these alone"
    return (
        "its length, R and X, as its charging is far from network.c_nf_per_km; set network.charging_epsilon, "
        "such as 0.5, for charging with a level of its own"
    )


def _line_is_close(one: ComplexArray, other: ComplexArray) -> tuple[bool, bool]:
    """Whether series impedances, and charging, of two lines agree to the coarseness of shapes.

    Shapes are ratios of impedances: where phases are coupled so closely that the impedance is almost
    singular, admittances differ more.
    """
    if _close(one, other):
        return True, True
    if len(one) % 2:
        return False, False
    m = len(one) // 2
    between = [y[:m, m:] for y in (one, other)]
    try:
        series = _close(np.linalg.inv(between[0]), np.linalg.inv(between[1]))
    except np.linalg.LinAlgError:
        series = False
    shunts = [y[:m, :m] + part for y, part in zip((one, other), between, strict=True)]
    largest = float(np.abs(one).max())
    return series, bool(np.abs(shunts[0] - shunts[1]).max() <= _COARSE * largest + _FLOOR)


def _without_lines(feeder: Feeder) -> sp.csc_array:
    """What of Y is not of lines: transformers, sources, and capacitors that no control switches.

    Those of a twin start closed, wherever the true lines have led a control.
    """
    y = feeder.as_operated.y if feeder.as_operated.capacitors else feeder.y
    rows = [np.repeat(line.nodes, len(line.nodes)) for line in feeder.lines]
    columns = [np.tile(line.nodes, len(line.nodes)) for line in feeder.lines]
    values = [line.primitive.ravel() for line in feeder.lines]
    if not values:
        return y
    places = (np.concatenate(rows).astype(np.int64), np.concatenate(columns).astype(np.int64))
    lines = sp.coo_array((np.concatenate(values), places), shape=y.shape)
    return sp.csc_array(y - lines.tocsc())


def _close(one: ComplexArray | sp.csc_array, other: ComplexArray | sp.csc_array) -> bool:
    """Whether admittances agree to the coarseness of shapes, each beside those of its row and column."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        largest = np.abs(one).max(axis=1)
        scales = np.sqrt(np.outer(largest, largest))
        return bool(np.all(np.abs(one - other) <= _COARSE * scales + _FLOOR))
    first, second = sp.csr_array(one), sp.csr_array(other)
    difference = abs(first - second).tocoo()
    size = np.asarray(abs(first).max(axis=1).todense()).ravel()
    scale = np.sqrt(size[difference.row] * size[difference.col])
    return bool(np.all(difference.data <= _COARSE * scale + _FLOOR))
