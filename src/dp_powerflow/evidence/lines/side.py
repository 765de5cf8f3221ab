"""One of the two networks a loss compares: its power flow, its Jacobian, its branch.

Retained nodes with a random load of their own are *released*; the others (PV only) are *hidden*: whoever
holds the released voltages computes theirs from the network he supposes (paper correction 12).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.norms import DENSE_UP_TO
from dp_powerflow.grid.reduction import Network
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, real_form
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

SOLVER_TOLERANCE = 1e-11
_SAME_VOLTAGE = 1e-6
_HIDDEN_TOLERANCE = 1e-12
_HIDDEN_ITERATIONS = 60


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
