"""A published network node by node, and the two changes that make it easy to learn from.

*Turned back*: each node's voltage is turned by its nominal angle θ (a multiple of 30°), V′ = V·e^(−jθ), and
its currents with it, so Y′_ij = Y_ij·e^(j(θ_j − θ_i)). Powers stay what they are. All voltages are then close
to 1 and to each other, whatever their phase.

*Merged*: nodes joined by a switch of next to no impedance become one bus, Y′ = Mᵀ·Y·M. Their loads add up and
the power flow is solved again; without it a rounding of 32 bits times 1e5 p.u. hides every load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from dp_powerflow._bits.elementary import degrees, divide, joined, modulus, multiply, unit
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import GROUND, Feeder, Load
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

_SAME = 1e-12
"""Relative difference up to which two admittances are the same but for rounding."""
_TAP_DEVIATES = 1e-3
"""A ratio nearer to one than this is no tap."""
_TAP_AGREES = 0.1
"""How far the two ends of a branch may disagree on its tap, as a share of the tap's deviation from one."""


@dataclass(frozen=True, eq=False)
class GridfmBranches:
    """Branches, sorted by (from_bus, to_bus); all arrays (branch,), admittances [p.u. of `SN_MVA`].

    Attributes
    ----------
    r, x : series impedance [p.u.]; zero of a coupling of two phases that is turned back.
    tap : ratio, from side.
    shift_deg : phase shift, from side [degrees].
    yff, yft, ytf, ytt : complex two-port admittances; b is zero, charging is in the shunts of the buses.
    """

    from_bus: IntArray
    to_bus: IntArray
    r: FloatArray
    x: FloatArray
    tap: FloatArray
    shift_deg: FloatArray
    yff: ComplexArray
    yft: ComplexArray
    ytf: ComplexArray
    ytt: ComplexArray

    @property
    def count(self) -> int:
        """Number of branches."""
        return len(self.r)

    def at(self, which: IntArray) -> GridfmBranches:
        """Some of the branches."""
        return GridfmBranches(**{name: values[which] for name, values in vars(self).items()})

    def with_open(self, opened: GridfmBranches) -> GridfmBranches:
        """The same with branches out of service after them, which have no admittance."""
        none = {name: np.zeros_like(getattr(opened, name)) for name in ("yff", "yft", "ytf", "ytt")}
        both = [vars(self), vars(opened) | none]
        return GridfmBranches(**{name: np.concatenate([one[name] for one in both]) for name in both[0]})


def branches_of(y: sp.csr_array, turn_deg: FloatArray) -> GridfmBranches:
    """The branches of a network.

    Parameters
    ----------
    y : sparse complex (bus, bus) [p.u.].
    turn_deg : (bus,) angle that each voltage is turned back by; zeros for phasors as they are.
    """
    from_bus, to_bus, yft, ytf = _split_pairs(*_pairs(y), turn_deg)
    unlike = modulus(yft - ytf) > _SAME * np.maximum(modulus(yft), modulus(ytf))
    coupling = unlike & (turn_deg[from_bus] != turn_deg[to_bus])
    line = ~coupling
    shift, tap = np.zeros(len(yft)), np.ones(len(yft))
    shift[line] = _shift_deg(yft[line], ytf[line])
    yff = multiply(-yft, unit(-shift))
    ytt = np.where(coupling, -ytf, yff)
    lacking = y.diagonal() - _at_buses(y.shape[0], from_bus, to_bus, yff, ytt)
    tap[line] = _taps(lacking[from_bus[line]], lacking[to_bus[line]], yff[line])
    impedance = np.zeros_like(yff)
    impedance[line] = divide(np.ones_like(yff[line]), tap[line] * yff[line])
    return GridfmBranches(
        from_bus=from_bus,
        to_bus=to_bus,
        r=impedance.real.copy(),
        x=impedance.imag.copy(),
        tap=tap,
        shift_deg=shift,
        yff=joined(yff.real / tap, yff.imag / tap),
        yft=yft,
        ytf=ytf,
        ytt=np.asarray(ytt * tap, dtype=np.complex128),
    )


def _split_pairs(
    i: IntArray, j: IntArray, forward: ComplexArray, backward: ComplexArray, turn_deg: FloatArray
) -> tuple[IntArray, IntArray, ComplexArray, ComplexArray]:
    """One branch per pair, or two: from, to, Yft and Ytf, sorted."""
    there_and_back = modulus(forward), modulus(backward)
    larger = np.maximum(*there_and_back)
    one = np.abs(there_and_back[0] - there_and_back[1]) <= _SAME * larger
    one |= turn_deg[i] != turn_deg[j]
    # Two-ports with |Yft| ≠ |Ytf| have no r, x, tap and shift. Such a pair is written as two parallel
    # branches: the mean of both directions (no shift), and half their difference, whose sign the direction
    # turns (a shift of 90°).
    two = ~one
    mean, half = 0.5 * (forward[two] + backward[two]), 0.5 * (forward[two] - backward[two])
    from_bus, to_bus = np.concatenate([i[one], i[two], i[two]]), np.concatenate([j[one], j[two], j[two]])
    yft = np.concatenate([forward[one], mean, half])
    ytf = np.concatenate([backward[one], mean, -half])
    size = np.maximum(modulus(yft), modulus(ytf))
    there = size > _SAME * np.concatenate([larger[one], larger[two], larger[two]])
    sequence = np.lexsort((to_bus, from_bus))
    sequence = sequence[there[sequence]]
    return from_bus[sequence], to_bus[sequence], yft[sequence], ytf[sequence]


def _pairs(y: sp.csr_array) -> tuple[IntArray, IntArray, ComplexArray, ComplexArray]:
    """Every coupled pair i < j with Y_ij and Y_ji."""
    entries = sp.coo_array(y)
    upper = sp.csr_array(sp.triu(entries, 1))
    lower = sp.csr_array(sp.tril(entries, -1).T)
    pattern = sp.coo_array(abs(upper) + abs(lower))
    sequence = np.lexsort((pattern.col, pattern.row))
    i, j = pattern.row[sequence].astype(np.int64), pattern.col[sequence].astype(np.int64)
    if len(i) == 0:
        raise CorpusError("the feeder has no two nodes that are coupled, so there is no branch to write")
    return i, j, np.asarray(upper[i, j]), np.asarray(lower[i, j])


def _shift_deg(yft: ComplexArray, ytf: ComplexArray) -> FloatArray:
    """Phase shift of branches with |Yft| = |Ytf|; half a turn more makes x positive, as in a transformer."""
    half = 0.5 * degrees(divide(yft, ytf))
    symmetric = modulus(yft - ytf) <= _SAME * modulus(yft)
    reactance_is_positive = multiply(-yft, unit(-half)).imag < 0.0
    turned = np.where(reactance_is_positive, half, half - np.copysign(180.0, half))
    return np.asarray(np.where(symmetric, 0.0, turned))


def _taps(at_from: ComplexArray, at_to: ComplexArray, series: ComplexArray) -> FloatArray:
    """Ratios that explain shunts of opposite sign at the two ends of a branch.

    With ratio one everywhere, a transformer of ratio t leaves the shunts y/t − y at its from side and
    y·t − y at its to side: the two ends agree on t. Any ratio gives the same Y, since shunts make up for it;
    the right one spares the buses at a regulator shunts thousands of times their lines.
    """
    first, second = (1.0 + divide(shunt, series) for shunt in (at_from, at_to))
    positive = (first.real > 0.0) & (second.real > 0.0)
    ratio = np.sqrt(np.where(positive, second.real, 1.0) / np.where(positive, first.real, 1.0))
    deviation = np.abs(ratio - 1.0)
    agree = modulus(multiply(first, second) - 1.0) <= _TAP_AGREES * deviation
    return np.asarray(np.where(positive & agree & (deviation > _TAP_DEVIATES), ratio, np.ones(len(series))))


def _at_buses(
    n: int, from_bus: IntArray, to_bus: IntArray, at_from: ComplexArray, at_to: ComplexArray
) -> ComplexArray:
    """Complex (bus,) sums over the branch ends at each bus."""
    sums = np.zeros(n, dtype=np.complex128)
    np.add.at(sums, from_bus, at_from)
    np.add.at(sums, to_bus, at_to)
    return sums


SN_MVA = 100.0
"""Power base [MVA] that the tools of gridfm-datakit assume unless told otherwise."""
MERGED_ABOVE_MVA = 1e6
"""Admittance [MVA at 1 p.u.] from which a branch without a tap is a switch of next to no impedance: 1 MVA
through it drops less than 1e-6 p.u. Lines and transformers of distribution feeders stay below 1e5."""
_ROUNDING = 1e-13
"""Share of the sum of magnitudes below which a sum of admittances is rounding."""
_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class PublishedNetwork:
    """The nodes of a published network, in the order of the tables, and the admittances between them.

    Attributes
    ----------
    y : sparse complex (node, node) [p.u. of `SN_MVA`], rows sorted.
    reference : (slack,) nodes with a source, sorted.
    v_reference : complex (slack,) their voltages [p.u.], in the frame of `y`.
    loaded : (loaded,) nodes that may draw or inject power.
    angle_deg : (node,) nominal angle, a multiple of 30.
    phase : (node,) number of the phase.
    row : (node,) row in `data/` of the release, -1 for a node that is not released.
    turn_deg : (node,) angle that the voltages are turned back by: zeros, or the nominal angles.
    """

    y: sp.csr_array
    reference: IntArray
    v_reference: ComplexArray
    loaded: IntArray
    angle_deg: FloatArray
    phase: IntArray
    row: IntArray
    turn_deg: FloatArray

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.angle_deg)

    @cached_property
    def branches(self) -> GridfmBranches:
        """Every pair of coupled nodes as a branch."""
        return branches_of(self.y, self.turn_deg)

    @cached_property
    def shunt(self) -> ComplexArray:
        """Complex (node,) GS + j·BS [p.u.]: what the diagonal of Y has beyond its branches."""
        of = self.branches
        return np.asarray(self.y.diagonal() - _at_buses(self.n, of.from_bus, of.to_bus, of.yff, of.ytt))

    def turned(self) -> PublishedNetwork:
        """The network with every voltage turned back by its nominal angle."""
        if np.array_equal(self.turn_deg, self.angle_deg):
            return self
        return self._in_frame(self.angle_deg - self.turn_deg, self.angle_deg)

    def as_phasors(self) -> PublishedNetwork:
        """The network with its voltages unturned."""
        return self._in_frame(-self.turn_deg, np.zeros(self.n)) if self.turn_deg.any() else self

    def _in_frame(self, back_deg: FloatArray, turn_deg: FloatArray) -> PublishedNetwork:
        entries = sp.coo_array(self.y)
        row, column = entries.coords
        factor = unit(back_deg[column] - back_deg[row])
        same = back_deg[column] == back_deg[row]
        values = np.where(same, entries.data, multiply(entries.data, factor))
        return replace(
            self,
            y=_csr(values, row, column, self.n),
            v_reference=turned_back(self.v_reference, back_deg[self.reference]),
            turn_deg=turn_deg,
        )

    def groups(self) -> IntArray:
        """(node,) bus of each node if switches of next to no impedance are merged; numbered as they come."""
        found = self.turned().branches
        i, j = found.from_bus, found.to_bus
        tight = modulus(found.yft) * SN_MVA >= MERGED_ABOVE_MVA
        tight &= (found.tap == 1.0) & (self.angle_deg[i] == self.angle_deg[j])
        tight &= ~np.isin(i, self.reference) & ~np.isin(j, self.reference)
        group = _parts(i[tight], j[tight], self.n)
        _, first, number = np.unique(group, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(first))[number], dtype=np.int64)

    def merged(self, bus_of: IntArray) -> PublishedNetwork:
        """The network with the nodes of a group as one bus, which has the first of their rows."""
        entries = sp.coo_array(self.y)
        row, column = (bus_of[axis] for axis in entries.coords)
        n = int(bus_of.max()) + 1
        first = np.unique(bus_of, return_index=True)[1]
        return replace(
            self,
            y=summed(entries.data, row, column, n),
            reference=np.sort(bus_of[self.reference]),
            loaded=np.unique(bus_of[self.loaded]),
            row=first_rows(self.row, bus_of, n),
            **{name: getattr(self, name)[first] for name in ("angle_deg", "phase", "turn_deg")},
        )

    def solve(self, injected: ComplexArray, *, allow_failures: bool = False) -> ComplexArray:
        """Complex (scenario, node) voltages [p.u.], in the frame of `y`.

        Parameters
        ----------
        injected : complex (scenario, loaded) constant power [MW + j·Mvar].
        allow_failures : NaN where there is no solution, instead of an error.
        """
        solver, position = self._solver
        power = np.ascontiguousarray(injected, dtype=np.complex128)
        solution = solver.solve(np.zeros_like(power), power, nodes="all")
        if not allow_failures:
            solution.raise_if_failed()
        v = np.empty((len(power), self.n), dtype=np.complex128)
        v[:, position] = solution.v
        v[:, self.reference] = self.v_reference
        return v

    @cached_property
    def _solver(self) -> tuple[BatchSolver, IntArray]:
        """A solver on a base of 1 MVA, and the nodes in its order."""
        feeder, position = published_feeder(self)
        return BatchSolver(feeder, tolerance=_TOLERANCE, threads=1), position

    def __getstate__(self) -> dict[str, object]:
        """Without the solver, which is made again where it is used."""
        return {name: value for name, value in self.__dict__.items() if name != "_solver"}


def turned_back(v: ComplexArray, by_deg: FloatArray) -> ComplexArray:
    """v·e^(−j·by), exactly v where nothing is turned."""
    return np.asarray(np.where(by_deg == 0.0, v, multiply(v, unit(-by_deg))))


def network_of(
    feeder: Feeder, order: IntArray | None = None, *, released: int = 0, phase: IntArray | None = None
) -> PublishedNetwork:
    """The nodes of a feeder. It is the whole network: publish it of a twin only, never of a true network.

    Nothing but Y, the slack, the retained nodes, the nominal angles and the power base of the feeder is read.

    Parameters
    ----------
    order : (node,) node k is node order[k] of the feeder; None keeps the order of the feeder.
    released : how many of the nodes, in this order, are the rows of `data/`.
    phase : (node,) numbers of the phases, in the order of the feeder; None takes them from nominal angles.
    """
    n = len(feeder.nodes)
    order = np.arange(n) if order is None else np.asarray(order, dtype=np.int64)
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise CorpusError(f"the order of the buses must be a permutation of the {n} nodes of the feeder")
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    y = sp.csr_array(sp.csr_array(feeder.y)[order, :][:, order] * (feeder.base_mva / SN_MVA))
    y.sum_duplicates()
    y.eliminate_zeros()
    slack = np.argsort(place[feeder.slack])
    angle = feeder.nominal_angle_deg[order] + 0.0
    return PublishedNetwork(
        y=y,
        reference=place[feeder.slack][slack],
        v_reference=feeder.v_slack[slack],
        loaded=np.sort(place[feeder.retained]),
        angle_deg=angle,
        phase=phases_of(angle) if phase is None else np.asarray(phase, dtype=np.int64)[order],
        row=np.where(np.arange(n) < released, np.arange(n), -1),
        turn_deg=np.zeros(n),
    )


def phases_of(angle_deg: FloatArray) -> IntArray:
    """1, 2 or 3 by the nominal angle: 0, −120 or 120 degrees, up to 30 behind or 60 ahead of them."""
    return np.asarray(1 + np.floor((30.0 - angle_deg) % 360.0 / 120.0), dtype=np.int64)


def summed(values: ComplexArray, row: IntArray, column: IntArray, n: int) -> sp.csr_array:
    """Sparse (n, n) sums of the values of an entry, without those that cancel but for rounding."""
    y, size = (_csr(part, row, column, n) for part in (values, modulus(values) + 0j))
    found = sp.coo_array(y)
    there = modulus(found.data) > _ROUNDING * size.data.real
    return _csr(found.data[there], found.coords[0][there], found.coords[1][there], n)


def _parts(i: IntArray, j: IntArray, n: int) -> IntArray:
    """(node,) number of the part that a node is joined to."""
    pattern = sp.coo_array((np.ones(len(i)), (i, j)), shape=(n, n))
    return np.asarray(connected_components(pattern.tocsr(), directed=False)[1], dtype=np.int64)


def _csr(values: NDArray[Any], row: IntArray, column: IntArray, n: int) -> sp.csr_array:
    y = sp.csr_array(sp.coo_array((values, (row, column)), shape=(n, n)))
    y.sum_duplicates()
    return y


def first_rows(row: IntArray, bus_of: IntArray, n: int) -> IntArray:
    """(bus,) the first row of its nodes, -1 if none is released."""
    released, none = row >= 0, len(row)
    found = np.full(n, none, dtype=np.int64)
    np.minimum.at(found, bus_of[released], row[released])
    return np.where(found < none, found, -1)


def published_feeder(network: PublishedNetwork) -> tuple[Feeder, IntArray]:
    """What the solver takes, sources last, on a base of 1 MVA; and the energised nodes in its order."""
    energised = np.setdiff1d(np.arange(network.n), network.reference)
    order = np.concatenate([energised, network.reference])
    place = np.empty(network.n, dtype=np.int64)
    place[order] = np.arange(network.n)

    loads = tuple(Load(str(k), ((int(place[k]), GROUND),), 0.0, 0.0, "wye") for k in network.loaded)
    feeder = Feeder(
        name="published",
        nodes=tuple(str(k) for k in order),
        base_kv=np.ones(network.n),
        base_mva=1.0,
        y=sp.csc_array(network.y[order, :][:, order] * SN_MVA),
        slack=np.arange(len(energised), network.n),
        v_slack=network.v_reference,
        nominal_angle_deg=network.angle_deg[order],
        loads=loads,
        pv=(),
        lines=(),
    )
    return feeder, energised


_TURN_OF_PHASES = 120.0


@dataclass(frozen=True, eq=False)
class PublishedLine:
    """A line, or a transformer without a ratio, between two places.

    Attributes
    ----------
    first, second : (phase,) its nodes at either end, phase by phase.
    series : complex (phase, phase) admittance from the first end to the second [p.u.], in the frame of the
        network.
    """

    first: IntArray
    second: IntArray
    series: ComplexArray

    @property
    def nodes(self) -> IntArray:
        """Both ends."""
        return np.concatenate([self.first, self.second])

    def added(self, share: float) -> tuple[IntArray, IntArray, ComplexArray]:
        """Rows, columns and values that this share of the line adds to Y."""
        a, b = self.first, self.second
        ends = ((a, a, 1.0), (b, b, 1.0), (a, b, -1.0), (b, a, -1.0))
        rows = np.concatenate([np.repeat(at, len(to)) for at, to, _ in ends])
        columns = np.concatenate([np.tile(to, len(at)) for at, to, _ in ends])
        values = np.concatenate([sign * share * self.series.ravel() for *_, sign in ends])
        return rows, columns, values


def lines_of(network: PublishedNetwork) -> tuple[PublishedLine, ...]:
    """The lines of a network, in the order of their first nodes; regulators and sources are none."""
    place = places_of(network)
    found = network.turned().branches
    i, j = found.from_bus, found.to_bus
    straight = (network.angle_deg[i] == network.angle_deg[j]) & (found.tap == 1.0) & (place[i] != place[j])
    tapped = set(map(tuple, np.sort(place[np.stack([i, j])[:, found.tap != 1.0]], axis=0).T.tolist()))
    ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for a, b in zip(i[straight].tolist(), j[straight].tolist(), strict=True):
        near, far = (a, b) if place[a] < place[b] else (b, a)
        ends.setdefault((int(place[near]), int(place[far])), []).append((near, far))
    sources = set(place[network.reference].tolist())
    lines = []
    for pair, nodes in ends.items():
        if pair in tapped or sources & set(pair):
            continue
        nodes.sort(key=lambda both: network.angle_deg[both[0]])
        first, second = (np.array(side, dtype=np.int64) for side in zip(*nodes, strict=True))
        if len({float(network.angle_deg[node]) for node in first}) == len(first):
            lines.append(PublishedLine(first, second, -network.y[first][:, second].toarray()))
    return tuple(sorted(lines, key=lambda line: (line.first.min(), line.second.min())))


def places_of(network: PublishedNetwork) -> IntArray:
    """(node,) number of the bus that a node is a phase of."""
    entries = sp.coo_array(network.as_phasors().y)
    i, j = entries.coords
    angle = network.angle_deg
    phases = (angle[i] != angle[j]) & (angle[i] % _TURN_OF_PHASES == angle[j] % _TURN_OF_PHASES)
    within = phases & (entries.data.imag > 0.0)
    return _parts(i[within], j[within], network.n)


def with_shares(
    network: PublishedNetwork, lines: tuple[PublishedLine, ...], shares: FloatArray
) -> PublishedNetwork:
    """The network with each line's admittance times its share; shares above 0 of a new line add it.

    Parameters
    ----------
    shares : (line,) what is added of every line: -1 takes it out, 0 leaves it, 0.2 makes it 20 % stronger.
    """
    entries = sp.coo_array(network.y)
    parts = [(*entries.coords, entries.data)]
    parts += [line.added(share) for line, share in zip(lines, shares.tolist(), strict=True) if share]
    rows, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    return replace(network, y=summed(values, rows, columns, network.n))


def supplied(network: PublishedNetwork) -> BoolArray:
    """(node,) whether a source feeds it, phase by phase: a coupling of two phases feeds nothing."""
    entries = sp.coo_array(network.y)
    i, j = entries.coords
    angle = network.angle_deg
    alike = angle[i] == angle[j]
    across = angle[i] % _TURN_OF_PHASES != angle[j] % _TURN_OF_PHASES  # windings of a transformer
    feeds = alike | across
    part = _parts(i[feeds], j[feeds], network.n)
    return np.isin(part, part[network.reference])
