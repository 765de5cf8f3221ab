"""The two networks a loss compares: the true one, and a neighbour with one line changed.

A change is a matrix added to the line's primitive admittance, so its effect on the reduced network has the
rank of the line's conductors, whatever its size. A `Side` is one of the two made ready: its power flow, its
Jacobian, its branch. Retained nodes with a random load of their own are *released*; the others (PV only) are
*hidden*: whoever holds the released voltages computes theirs from the network he supposes (paper
correction 12).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.buses import islanded_nodes
from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.reduction import DENSE_UP_TO, Network
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, real_form
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

_SERIES_TOLERANCE = 1e-6
_ROUNDING = 1e-12
SOLVER_TOLERANCE = 1e-11
_SAME_VOLTAGE = 1e-6
_HIDDEN_TOLERANCE = 1e-12
_HIDDEN_ITERATIONS = 60


@dataclass(frozen=True, eq=False)
class Neighbour:
    """One line, changed.

    Attributes
    ----------
    what : in words, such as "admittance × 1.01".
    change : complex (node of the line, node of the line) [p.u.], added to the line's primitive.
    size : x of a scaled line, None for other changes.
    """

    line: Line
    what: str
    change: ComplexArray
    size: float | None = None


def scaled(line: Line, x: float) -> Neighbour:
    """All of the line's admittance, shunts included, times (1 + x)."""
    if not (np.isfinite(x) and x > -1.0 and x != 0.0):
        raise PrivacyError("a line can be scaled by 1 + x with x above −1 and not 0")
    return Neighbour(line, f"admittance × {1.0 + x:g}", np.asarray(x * line.primitive), float(x))


def scaled_both_ways(lines: Iterable[Line], x: float) -> tuple[Neighbour, ...]:
    """Every line times (1 + x) and times (1 − x), line by line."""
    return tuple(scaled(line, sign * x) for line in lines for sign in (1.0, -1.0))


def turned(line: Line, x: float) -> Neighbour:
    """The line's series resistance times (1 + x), its reactance as it is: another R/X ratio."""
    if not (np.isfinite(x) and x > -1.0 and x != 0.0):
        raise PrivacyError("a line's R/X ratio can be changed by a factor 1 + x with x above −1 and not 0")
    series, _ = _series_and_shunt(line)
    impedance = np.linalg.inv(series)
    other = np.linalg.inv(impedance + x * impedance.real)
    return Neighbour(line, f"R/X × {1.0 + x:g}", _of_series(other - series))


def recoded(feeder: Feeder, line: Line, donor: Line) -> Neighbour:
    """The line with the conductors of another line (impedance per metre), at its own length."""
    if line.length_m is None or donor.length_m is None:
        raise PrivacyError("conductors can be swapped between lines of known length only")
    kilovolt = feeder.base_kv[[line.nodes[0], donor.nodes[0]]]
    if len(line.nodes) != len(donor.nodes) or not np.isclose(*kilovolt):
        raise PrivacyError("conductors can be swapped between lines of equal phases and base voltage only")
    series, shunt = _series_and_shunt(line)
    other, other_shunt = _series_and_shunt(donor)
    ratio = donor.length_m / line.length_m
    change = _of_series(ratio * other - series)
    m = len(series)
    change[:m, :m] += other_shunt / ratio - shunt
    change[m:, m:] += other_shunt / ratio - shunt
    return Neighbour(line, f"conductors of code {donor.code}", change)


def opened(feeder: Feeder, line: Line) -> Neighbour:
    """The line or switch opened; refused where that leaves a node without supply."""
    found = Neighbour(line, "opened", np.asarray(-line.primitive))
    if islanded_nodes(with_change(feeder, found)):
        raise PrivacyError(
            "opening this line leaves nodes without supply, so the neighbour is not a network that can be "
            "released; choose a line or switch in a loop"
        )
    return found


def closed(line: Line) -> Neighbour:
    """A switch that is open, and so not among the feeder's lines, closed."""
    return Neighbour(replace(line, primitive=np.zeros_like(line.primitive)), "closed", line.primitive.copy())


def with_change(feeder: Feeder, neighbour: Neighbour) -> Feeder:
    """The feeder of the neighbour."""
    nodes = np.asarray(neighbour.line.nodes)
    at = np.ix_(nodes, nodes)
    y = sp.lil_array(feeder.y)
    block = y[at].toarray() + neighbour.change
    # What an opened line leaves behind in its own entries is rounding, not an admittance.
    block[np.abs(block) <= _ROUNDING * np.abs(neighbour.change)] = 0.0
    y[at] = block
    y = sp.csc_array(y)
    y.eliminate_zeros()
    lines = tuple(
        replace(line, primitive=line.primitive + neighbour.change) if line is neighbour.line else line
        for line in feeder.lines
    )
    return replace(feeder, y=y, lines=lines, origin=None)


def _series_and_shunt(line: Line) -> tuple[ComplexArray, ComplexArray]:
    """Series admittance, and the shunt at each end: complex (conductor, conductor) [p.u.]."""
    m, odd = divmod(len(line.nodes), 2)
    whole = line.primitive
    size = float(np.abs(whole).max())
    if (
        odd
        or np.abs(whole[:m, m:] - whole[m:, :m]).max() > _SERIES_TOLERANCE * size
        or np.abs(whole[:m, :m] - whole[m:, m:]).max() > _SERIES_TOLERANCE * size
        or np.linalg.cond(whole[:m, m:]) > 1e12
    ):
        raise PrivacyError("this line is not a series impedance with equal shunts; it can only be scaled")
    series = np.asarray(-whole[:m, m:])
    return series, np.asarray(whole[:m, :m] - series)


def _of_series(series: ComplexArray) -> ComplexArray:
    """Primitive of a series admittance by itself."""
    return np.block([[series, -series], [-series, series]])


@dataclass(frozen=True, eq=False)
class Seen:
    """What released voltages imply on a network: all voltages and injections of the retained nodes.

    Attributes
    ----------
    v, s : complex (snapshot, retained) [p.u.].
    on_branch : (snapshot,) whether v is certified to be what the solver finds for s.
    """

    v: ComplexArray
    s: ComplexArray
    on_branch: BoolArray


class Side:
    """A network made ready for many snapshots.

    On a large network nothing dense is made: currents come from sparse solves, and every branch is certified
    by the solver itself. Hidden nodes are not supported there.

    Parameters
    ----------
    released : positions, among the retained nodes, of those whose voltages are released.
    """

    def __init__(self, feeder: Feeder, released: IntArray, *, dense_up_to: int = DENSE_UP_TO) -> None:
        network = Network(feeder, dense_up_to=dense_up_to)
        self._network = network
        self.b = network.b
        self.v_slack = feeder.v_slack
        self.released = released
        self.hidden: IntArray = np.setdiff1d(np.arange(network.n), released)
        # One thread each: lines, not snapshots, are shared out among threads.
        self.solver = BatchSolver(feeder, tolerance=SOLVER_TOLERANCE, threads=1)
        self._jacobian = JacobianBatch.from_feeder(feeder, threads=1)
        if network.large and len(self.hidden):
            raise PrivacyError(
                "losses per line are not there for large feeders with nodes that carry generation but no load"
            )
        self._reach: FloatArray | None = None
        if not network.large:
            impedance = np.linalg.inv(self.y)
            self._reach = np.abs(impedance)
            self._idle = -impedance @ self.b
            self._hidden_impedance = np.linalg.inv(self.y[np.ix_(self.hidden, self.hidden)])

    @property
    def y(self) -> ComplexArray:
        """Y: complex (retained, retained), dense; of a network that is not large."""
        return self._network.y

    def current(self, v: ComplexArray) -> ComplexArray:
        """Y·v + b for v (snapshot, retained)."""
        return np.asarray(self._network.apply(np.ascontiguousarray(v.T)).T + self.b)

    def solve(self, load: ComplexArray, generation: ComplexArray) -> Seen:
        """Power flow of loads and generation, complex (snapshot, retained) [p.u.]."""
        solution = self.solver.solve(load, generation if generation.any() else None)
        return Seen(solution.v, np.asarray(generation - load), solution.converged)

    def log_volume(self, seen: Seen) -> FloatArray:
        """log|det ∂S/∂v| of the released nodes, but for Π|v|² of these: (snapshot,).

        |det J|/|det J_PP| with P the hidden nodes; the factors |v|² of the hidden nodes cancel.
        """
        value = self._jacobian.log_abs_det(seen.v, seen.s)
        if len(self.hidden):
            a, c = diagonal_terms(seen.v[:, self.hidden], seen.s[:, self.hidden])
            own = real_form(self.y[np.ix_(self.hidden, self.hidden)], a, c)
            value = value - np.linalg.slogdet(own)[1]
        return value

    def on_branch(self, v: ComplexArray, s: ComplexArray, generation: ComplexArray) -> BoolArray:
        """Whether the solver is certified to find v for the injections s = generation − load: (snapshot,).

        Where the fixed point is proved to converge to v nothing is solved. With d = max|x_k − v_k|/|v_k|
        an iterate x moves to distance at most ξ·d/(1 − d) of its fixed point v,
        ξ = max_j Σ_k|Z_jk|·|s_k|/(|v_j|·|v_k|): nearer while ξ < 1 − d. The start is the no-load voltage.
        Elsewhere the solver itself is asked.
        """
        certified = np.zeros(len(v), dtype=np.bool_)
        if self._reach is not None:
            size = np.abs(v)
            xi = ((np.abs(s) / size) @ self._reach.T / size).max(axis=1)
            start = (np.abs(self._idle - v) / size).max(axis=1)
            certified = np.asarray(xi < 1.0 - start)
        load = generation - s
        ask = np.flatnonzero(~certified & np.isfinite(load).all(axis=1) & (load.real >= 0.0).all(axis=1))
        if len(ask):
            found = self.solve(load[ask], generation[ask])
            certified[ask] = found.on_branch & (np.abs(found.v - v[ask]).max(axis=1) < _SAME_VOLTAGE)
        return certified

    def explain(self, v: ComplexArray, generation: ComplexArray) -> Seen:
        """What the released voltages in `v` imply here; voltages of hidden nodes are computed anew."""
        if not len(self.hidden):
            s = v * np.conj(self.current(v))
            return Seen(v, s, self.on_branch(v, s, generation))
        v = v.copy()
        found = self._hidden_voltages(v, generation[:, self.hidden])
        s = v * np.conj(self.current(v))
        s[:, self.hidden] = generation[:, self.hidden]
        return Seen(v, s, np.asarray(found & self.on_branch(v, s, generation)))

    def _hidden_voltages(self, v: ComplexArray, s: ComplexArray) -> BoolArray:
        """Solve the hidden nodes' own equations in place; whether that is proved to have one answer nearby.

        The fixed point u ↦ w + Z_PP·conj(s/u), w the voltages without generation: with
        ξ = max_j Σ_k|Z_jk|·|s_k|/(|w_j||w_k|) < 1/4 it contracts on |u_k − w_k| ≤ |w_k|/2.
        """
        hidden, z = self.hidden, self._hidden_impedance
        others = v.copy()
        others[:, hidden] = 0.0
        idle = -(others @ self.y[hidden].T + self.b[hidden]) @ z.T
        xi = ((np.abs(s) / np.abs(idle)) @ np.abs(z).T / np.abs(idle)).max(axis=1)
        u = idle
        moved = np.inf
        for _ in range(_HIDDEN_ITERATIONS):
            following = idle + np.conj(s / u) @ z.T
            moved = np.abs(following - u).max(axis=1)
            u = following
            if np.all(moved < _HIDDEN_TOLERANCE):
                break
        v[:, hidden] = u
        return np.asarray((xi < 0.25) & (moved < _HIDDEN_TOLERANCE))
