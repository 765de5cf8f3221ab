"""The programs of optimal dispatch by cvxpy: the peer of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from dp_powerflow.studies.dispatch.dispatcher import DispatchLimits, Point, UnitArrays
from dp_powerflow.studies.dispatch.network import UNKNOWNS, P, Q, Tangent, U
from dp_powerflow.units import ComplexArray, FloatArray


@dataclass(frozen=True, eq=False)
class PeerDispatch:
    """What cvxpy found.

    Attributes
    ----------
    power : complex (unit,) [p.u.]; None where there is none.
    cost : of units and import, per p.u.
    """

    status: str
    power: ComplexArray | None
    cost: float


def solve_with_cvxpy(
    limits: DispatchLimits, tangent: Tangent, point: Point, units: UnitArrays, price: float
) -> PeerDispatch:
    """Least cost of one snapshot, ratios as they stand; parameters as of `Program.solve`."""
    n, count = tangent.network.places, len(units.rating)
    p, q = cp.Variable(count), cp.Variable(count)
    z = _columns(tangent, units)
    change = cp.hstack([p - point.power.real, q - point.power.imag])
    u = point.u + z[U * n : (U + 1) * n] @ change
    slope, _ = tangent.import_gradient()
    lost = (tangent.loss_factor() @ z) @ change
    imported = point.imported + (slope @ z) @ change + (cp.sum_squares(lost) if price > 0.0 else 0.0)
    within = [p >= units.lowest, p <= units.highest, u >= limits.lowest**2]
    if np.isfinite(limits.highest).all():
        within.append(u <= limits.highest**2)
    within.append(cp.norm(cp.vstack([p, q]), 2, axis=0) <= units.rating)
    at = np.flatnonzero(np.isfinite(limits.current))
    if len(at):
        flow = [value[at] + z[part * n + at] @ change for part, value in _parts(point)]
        root = np.sqrt(point.u[at])
        most = limits.current[at] * root
        most = most + np.diag(limits.current[at] / (2.0 * root)) @ (z[U * n + at] @ change)
        within.append(cp.norm(cp.vstack(flow), 2, axis=0) <= most)
    cost = units.linear @ p + units.quadratic @ cp.square(p) + price * imported
    problem = cp.Problem(cp.Minimize(cost), within)
    problem.solve(solver=cp.CLARABEL)
    found = None if p.value is None else np.asarray(p.value + 1j * q.value)
    return PeerDispatch(str(problem.status), found, float(problem.value))


def _columns(tangent: Tangent, units: UnitArrays) -> FloatArray:
    """(unknown, variable): how the network answers to p and q of the units."""
    n = tangent.network.places
    right = np.zeros((UNKNOWNS * n, 2 * len(units.rating)))
    right[: 2 * n] = np.block(
        [[-units.shares.real, units.shares.imag], [-units.shares.imag, -units.shares.real]]
    )
    return tangent.changes(right)


def _parts(point: Point) -> tuple[tuple[int, FloatArray], tuple[int, FloatArray]]:
    return (P, point.received.real), (Q, point.received.imag)
