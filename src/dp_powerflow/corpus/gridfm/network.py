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

from dp_powerflow._bits.elementary import degrees, modulus, multiply, unit
from dp_powerflow.corpus.gridfm.branches import GridfmBranches, branches_of, shunts_of
from dp_powerflow.corpus.gridfm.schema import GridfmStyle as GridfmStyle
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import GROUND, Feeder, Load
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

SN_MVA = 100.0
"""Power base [MVA] that the tools of gridfm-datakit assume unless told otherwise."""
MERGED_ABOVE_MVA = 1e6
"""Admittance [MVA at 1 p.u.] from which a branch without a tap is a switch of next to no impedance: 1 MVA
through it drops less than 1e-6 p.u. Lines and transformers of distribution feeders stay below 1e5."""
_ROUNDING = 1e-13
"""Share of the sum of magnitudes below which a sum of admittances is rounding."""
_TOLERANCE = 1e-12
_STEP_DEG = 30.0


@dataclass(frozen=True, eq=False)
class PublishedNetwork:
    """The nodes of a published network, in the order of the tables, and the admittances between them.

    Attributes
    ----------
    y : sparse complex (node, node) [p.u. of sn_mva], rows sorted.
    sn_mva : power base of the admittances [MVA].
    reference : (slack,) nodes with a source, sorted.
    v_reference : complex (slack,) their voltages [p.u.], in the frame of `y`.
    loaded : (loaded,) nodes that may draw or inject power.
    angle_deg : (node,) nominal angle, a multiple of 30.
    phase : (node,) number of the phase.
    row : (node,) row in `data/` of the release, -1 for a node that is not released.
    vn_kv : (node,) base voltage [kV], ones where not published.
    turn_deg : (node,) angle that the voltages are turned back by: zeros, or the nominal angles.
    """

    y: sp.csr_array
    sn_mva: float
    reference: IntArray
    v_reference: ComplexArray
    loaded: IntArray
    angle_deg: FloatArray
    phase: IntArray
    row: IntArray
    vn_kv: FloatArray
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
        return shunts_of(self.y, self.branches)

    def turned(self) -> PublishedNetwork:
        """The network with every voltage turned back by its nominal angle."""
        if np.array_equal(self.turn_deg, self.angle_deg):
            return self
        back = self.angle_deg - self.turn_deg
        return self._in_frame(back, self.angle_deg)

    def as_phasors(self) -> PublishedNetwork:
        """The network with voltages as they are."""
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
        tight = found.magnitude * self.sn_mva >= MERGED_ABOVE_MVA
        tight &= (found.tap == 1.0) & (self.angle_deg[i] == self.angle_deg[j])
        tight &= ~np.isin(i, self.reference) & ~np.isin(j, self.reference)
        pairs = sp.coo_array((np.ones(int(np.sum(tight))), (i[tight], j[tight])), shape=(self.n, self.n))
        _, group = connected_components(pairs.tocsr(), directed=False)
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
            row=_first_rows(self.row, bus_of, n),
            **{name: getattr(self, name)[first] for name in ("angle_deg", "phase", "vn_kv", "turn_deg")},
        )

    def solve(
        self, injected: ComplexArray, threads: int | None = 1, *, allow_failures: bool = False
    ) -> ComplexArray:
        """Complex (scenario, node) voltages [p.u.], in the frame of `y`.

        Parameters
        ----------
        injected : complex (scenario, loaded) constant power [MW + j·Mvar].
        allow_failures : NaN where there is no solution, instead of an error.
        """
        solver, position = self._solver(threads)
        power = np.ascontiguousarray(injected, dtype=np.complex128)
        solution = solver.solve(np.zeros_like(power), power, nodes="all")
        if not allow_failures:
            solution.raise_if_failed()
        v = np.empty((len(power), self.n), dtype=np.complex128)
        v[:, position] = solution.v
        v[:, self.reference] = self.v_reference
        return v

    def _solver(self, threads: int | None) -> tuple[BatchSolver, IntArray]:
        """A solver on a base of 1 MVA, and the nodes in its order."""
        kept = self.__dict__.get("_kept_solver")
        if kept is None:
            feeder, position = published_feeder(self)
            kept = BatchSolver(feeder, tolerance=_TOLERANCE, threads=threads), position
            object.__setattr__(self, "_kept_solver", kept)
        return kept

    def __getstate__(self) -> dict[str, object]:
        """Without the solver, which is made again where it is used."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept_solver"}


def turned_back(v: ComplexArray, by_deg: FloatArray) -> ComplexArray:
    """v·e^(−j·by), exactly v where nothing is turned."""
    return np.asarray(np.where(by_deg == 0.0, v, multiply(v, unit(-by_deg))))


@dataclass(frozen=True, eq=False)
class NodeFacts:
    """What is said of the nodes of a feeder in its tables.

    Attributes
    ----------
    order : (node,) node k is node order[k] of the feeder; None keeps the order of the feeder.
    released : how many of the nodes, in this order, are the rows of `data/`.
    vn_kv : (node,) base voltages to publish [kV], in the order of the feeder; None writes ones.
    phase : (node,) numbers of the phases, in the order of the feeder; None takes them from nominal angles.
    """

    order: IntArray | None = None
    released: int = 0
    vn_kv: FloatArray | None = None
    phase: IntArray | None = None


def network_of(feeder: Feeder, facts: NodeFacts | None = None, *, sn_mva: float = SN_MVA) -> PublishedNetwork:
    """The nodes of a feeder. It is the whole network: publish it of a twin only, never of a true network.

    Nothing but Y, the slack, the retained nodes, the nominal angles and the power base of the feeder is read.
    """
    facts = NodeFacts() if facts is None else facts
    n, phase, vn_kv = len(feeder.nodes), facts.phase, facts.vn_kv
    order = np.arange(n) if facts.order is None else np.asarray(facts.order, dtype=np.int64)
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise CorpusError(f"the order of the buses must be a permutation of the {n} nodes of the feeder")
    if not 0.0 < sn_mva < np.inf:
        raise CorpusError("the power base sn_mva of the gridfm tables must be a positive number of MVA")
    kv = np.ones(n) if vn_kv is None else np.asarray(vn_kv, dtype=np.float64)
    if kv.shape != (n,) or not np.all((kv > 0.0) & np.isfinite(kv)):
        raise CorpusError(f"vn_kv needs a positive base voltage for each of the {n} nodes of the feeder")
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    y = sp.csr_array(sp.csr_array(feeder.y)[order, :][:, order] * (feeder.base_mva / sn_mva))
    y.sum_duplicates()
    y.eliminate_zeros()
    slack = np.argsort(place[feeder.slack])
    angle = feeder.nominal_angle_deg[order] + 0.0
    return PublishedNetwork(
        y=y,
        sn_mva=float(sn_mva),
        reference=place[feeder.slack][slack],
        v_reference=feeder.v_slack[slack],
        loaded=np.sort(place[feeder.retained]),
        angle_deg=angle,
        phase=phases_of(angle) if phase is None else np.asarray(phase, dtype=np.int64)[order],
        row=np.where(np.arange(n) < facts.released, np.arange(n), -1),
        vn_kv=kv[order],
        turn_deg=np.zeros(n),
    )


def phases_of(angle_deg: FloatArray) -> IntArray:
    """1, 2 or 3 by the nominal angle: 0, −120 or 120 degrees, up to 30 behind or 60 ahead of them."""
    return np.asarray(1 + np.floor((30.0 - angle_deg) % 360.0 / 120.0), dtype=np.int64)


def nominal_angles(v: ComplexArray) -> FloatArray:
    """The multiple of 30 degrees next to the angle of a voltage, in (-180, 180]."""
    steps = np.floor(degrees(v) / _STEP_DEG + 0.5) * _STEP_DEG
    return np.asarray(np.where(steps <= -180.0, steps + 360.0, steps) + 0.0)


def summed(values: ComplexArray, row: IntArray, column: IntArray, n: int) -> sp.csr_array:
    """Sparse (n, n) sums of the values of an entry, without those that cancel but for rounding."""
    y, size = (_csr(part, row, column, n) for part in (values, modulus(values) + 0j))
    found = sp.coo_array(y)
    there = modulus(found.data) > _ROUNDING * size.data.real
    return _csr(found.data[there], found.coords[0][there], found.coords[1][there], n)


def _csr(values: NDArray[Any], row: IntArray, column: IntArray, n: int) -> sp.csr_array:
    y = sp.csr_array(sp.coo_array((values, (row, column)), shape=(n, n)))
    y.sum_duplicates()
    return y


def _first_rows(row: IntArray, bus_of: IntArray, n: int) -> IntArray:
    released = np.flatnonzero(row >= 0)
    found = np.full(n, -1, dtype=np.int64)
    for node in released[np.argsort(-row[released])]:
        found[bus_of[node]] = row[node]
    return found


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
        y=sp.csc_array(network.y[order, :][:, order] * network.sn_mva),
        slack=np.arange(len(energised), network.n),
        v_slack=network.v_reference,
        nominal_angle_deg=network.angle_deg[order],
        loads=loads,
        pv=(),
        lines=(),
    )
    return feeder, energised
