"""Attack on capacities released of a true network: impedances between the source and every node.

docs/explanation/twin.md has the equations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order

from dp_powerflow.grid.feeder import BusGraph, Feeder
from dp_powerflow.studies.hosting import Hosted
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

_ROUNDS = 200
_STEP = 0.5
_MOST_SQUARE = 1e6
_MINUTES = 24 * 60


@dataclass(frozen=True, eq=False)
class SeenCapacities:
    """What a release shows of some nodes on some days.

    Attributes
    ----------
    p : (day, node) active power at the binding step, capacity times irradiance [p.u.].
    v0 : (day, node) highest voltage without PV at that step, of the node and those beyond it [p.u.].
    tangent : reactive over active power, positive if injected.
    """

    p: FloatArray
    v0: FloatArray
    tangent: float = 0.0

    @classmethod
    def of(cls, hosted: Hosted, v: ComplexArray) -> SeenCapacities:
        """What is seen in capacities and in the released voltages of the same days.

        Parameters
        ----------
        v : complex (snapshot, energised node) without new PV [p.u.].
        """
        study, kind = hosted.study, hosted.kind
        assert study.irradiance is not None
        days = np.arange(len(hosted.steps))[:, None]
        at = np.maximum(hosted.minute, 0) * study.steps // _MINUTES
        sun = study.irradiance[days % len(study.irradiance), at]
        nodes = np.searchsorted(study.feeder.energised, study.released[hosted.places])
        tangent = float(np.sqrt(1.0 - kind.power_factor**2)) / kind.power_factor
        return cls(
            hosted.kw(hosted.steps) * sun / (study.feeder.base_mva * KW_PER_MW),
            _highest_beyond(study.feeder, np.abs(v))[days * study.steps + at, nodes],
            -tangent if kind.reactive == "absorbed" else tangent,
        )


def path_impedances(active: SeenCapacities, reactive: SeenCapacities, v_max: float) -> ComplexArray:
    """Impedance between source and node as an attacker finds it, median over days.

    Parameters
    ----------
    active, reactive : capacities at unit power factor, and at another one.
    v_max : the public limit [p.u.].

    Returns
    -------
    Complex (node,) [p.u.]; wrong where another node of the feeder meets the limit first, NaN where a capacity
    is 0 on most days.
    """
    u, tangent = v_max * v_max, reactive.tangent
    first, second = (np.where(seen.p > 0.0, seen.p, np.nan) for seen in (active, reactive))
    rise, other = u - active.v0**2, u - reactive.v0**2
    r = rise / (2.0 * first)
    x = np.zeros_like(r)
    for _ in range(_ROUNDS):
        square = np.minimum(r * r + x * x, _MOST_SQUARE)
        new_r = (rise + square * first**2 / u) / (2.0 * first)
        both = (other + square * second**2 * (1.0 + tangent**2) / u) / (2.0 * second)
        new_x = (both - new_r) / tangent
        r, x = r + _STEP * (new_r - r), x + _STEP * (new_x - x)
    found = np.empty(r.shape[1], dtype=np.complex128)
    found.real, found.imag = (np.median(part, axis=0) for part in (r, x))
    return found


def _highest_beyond(feeder: Feeder, size: FloatArray) -> FloatArray:
    """(snapshot, energised) highest voltage of a node and those of its phase that are fed through its bus."""
    graph, found = BusGraph.of(feeder), size.copy()
    column = {
        (int(graph.bus_of[node]), int(graph.phase[node])): k
        for k, node in enumerate(feeder.energised.tolist())
    }
    fed_by = _fed_by(graph)
    for bus, parent in reversed(fed_by.items()):
        for phase in {phase for of, phase in column if of == bus and (parent, phase) in column}:
            near, far = column[parent, phase], column[bus, phase]
            found[:, near] = np.maximum(found[:, near], found[:, far])
    return found


def _fed_by(graph: BusGraph) -> dict[int, int]:
    """Bus → the bus that feeds it, as a walk from the sources meets them."""
    count, found = len(graph.source), dict[int, int]()
    one, other = np.array(list(graph.kind_of)).T
    joined = sp.csr_array((np.ones(len(one)), (one, other)), shape=(count, count))
    for source in np.flatnonzero(graph.source).tolist():
        order, fed_by = breadth_first_order(joined, source, directed=False)
        found |= {bus: int(fed_by[bus]) for bus in order[1:].tolist()}
    return found


def true_impedances(feeder: Feeder, taps: IntArray, nodes: IntArray) -> ComplexArray:
    """PRIVATE. Impedance between source and node, complex (node,) [p.u.], at these taps.

    Parameters
    ----------
    taps : (regulator,) steps away from neutral.
    nodes : of the feeder.
    """
    operation, n = feeder.as_operated, len(feeder.nodes)
    ratios = np.zeros((len(operation.nodes), n))
    ratios[:n] = np.eye(n)
    for regulator, tap in zip(operation.regulators, taps.tolist(), strict=True):
        for inner, outer in regulator.phases:
            ratios[inner, outer] = 1.0 / (1.0 + tap * regulator.step)
    y = ratios.T @ operation.y.toarray() @ ratios
    z = np.linalg.inv(y[np.ix_(feeder.energised, feeder.energised)])
    at = np.searchsorted(feeder.energised, nodes)
    return np.asarray(z[at, at])
