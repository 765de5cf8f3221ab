"""The conic program of one snapshot: least cost of units and import within limits, in changes from a state.

Variables: active and reactive power of every unit, then the ratios of regulators that are optimised. The cost
of import has the losses to second order, ‖W·z‖², so that the program is the Newton step of the AC problem but
for the curvature of voltages. Limits that no dispatch within the units' ratings can reach are left out; that
changes nothing, for they would not bind, and makes the program small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import require
from dp_powerflow.studies.dispatch.network import UNKNOWNS, LinDistFlow, P, Q, Tangent, U
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

SOLVED, INACCURATE, INFEASIBLE, FAILED = "solved", "inaccurate", "infeasible", "failed"
_STATUS = {"Solved": SOLVED, "AlmostSolved": INACCURATE, "PrimalInfeasible": INFEASIBLE}
_STATUS["AlmostPrimalInfeasible"] = INFEASIBLE
_SPAN = 0.1
"""What the change of a ratio is measured in, so that all variables are about 1."""


@dataclass(frozen=True, eq=False)
class Limits:
    """What must hold at every snapshot.

    Attributes
    ----------
    lowest, highest : (place,) voltage magnitudes [p.u.]; 0 and infinity for none.
    current : (place,) largest current that the branch above may deliver there [p.u.], infinity for none.
    """

    lowest: FloatArray
    highest: FloatArray
    current: FloatArray


@dataclass(frozen=True, eq=False)
class UnitArrays:
    """Units whose power is chosen.

    Attributes
    ----------
    shares : complex (place, unit) power injected per unit of complex power.
    rating : (unit,) apparent power [p.u.].
    lowest, highest : (unit,) active power [p.u.] of this snapshot.
    linear, quadratic : (unit,) cost, per p.u. and per p.u. squared.
    """

    shares: ComplexArray
    rating: FloatArray
    lowest: FloatArray
    highest: FloatArray
    linear: FloatArray
    quadratic: FloatArray


@dataclass(frozen=True, eq=False)
class TapChoice:
    """Regulators whose ratios are chosen, and what a move of one costs.

    Attributes
    ----------
    lowest, highest : (regulator,) range of the ratio.
    resting : (regulator,) where they stand without a reason to move.
    cost : per squared change of a ratio; so small that it only decides between equals.
    """

    lowest: FloatArray
    highest: FloatArray
    resting: FloatArray
    cost: float


@dataclass(frozen=True, eq=False)
class Point:
    """An AC solution, around which the program is written.

    Attributes
    ----------
    power : complex (unit,) of the units there [p.u.].
    u : (place,) squared voltages.
    received : complex (place,) power that the branch above delivers [p.u.].
    imported : active power of the sources [p.u.].
    """

    power: ComplexArray
    u: FloatArray
    received: ComplexArray
    imported: float


@dataclass(frozen=True, eq=False)
class Dispatch:
    """The solution of one program; NaN where there is none.

    Attributes
    ----------
    power : complex (unit,) [p.u.].
    ratio : (regulator,) ratios, continuous; those of the state where none is chosen.
    cost : of units and import, per p.u.
    gap : relative difference of the primal and the dual objective.
    u : (place,) squared voltages of the linear equations.
    received : complex (place,) power that branches deliver, of the linear equations.
    imported : active power of the sources, losses to second order [p.u.].
    price : complex (place,) cost of one more p.u. drawn there: active, and reactive as imaginary part.
    upper, lower : (place,) dual values of the voltage limits, per p.u. of squared voltage.
    flow : (place,) dual value of the current limit, per p.u. of current.
    """

    status: str
    power: ComplexArray
    ratio: FloatArray
    cost: float
    gap: float
    u: FloatArray
    received: ComplexArray
    imported: float
    price: ComplexArray
    upper: FloatArray
    lower: FloatArray
    flow: FloatArray


@dataclass(frozen=True, eq=False)
class Program:
    """What all snapshots have in common.

    Attributes
    ----------
    tolerance : of residuals and of the gap, relative.
    """

    network: LinDistFlow
    limits: Limits
    tolerance: float = 1e-8

    def solve(
        self, tangent: Tangent, point: Point, units: UnitArrays, price: float, taps: TapChoice | None = None
    ) -> Dispatch:
        """Least cost of one snapshot.

        Parameters
        ----------
        price : of import, per p.u.; also what export earns.
        taps : None for ratios that stay.
        """
        return _Snapshot(self, tangent, point, units, price, taps).solve()


class _Snapshot:
    """One program on its way from the tangent to the solution."""

    def __init__(
        self,
        program: Program,
        tangent: Tangent,
        point: Point,
        units: UnitArrays,
        price: float,
        taps: TapChoice | None,
    ) -> None:
        self.limits, self.tolerance = program.limits, program.tolerance
        self.tangent, self.point, self.units, self.price, self.taps = tangent, point, units, price, taps
        n, count = program.network.places, len(units.rating)
        self.n, self.count = n, count
        right = np.zeros((UNKNOWNS * n, 2 * count))
        right[:n, :count], right[n : 2 * n, :count] = -units.shares.real, -units.shares.imag
        right[:n, count:], right[n : 2 * n, count:] = units.shares.imag, -units.shares.real
        start = [point.power.real, point.power.imag]
        low, high = [units.lowest, -units.rating], [units.highest, units.rating]
        scale, at_once = [units.rating, units.rating], np.zeros(2 * count)
        if taps is not None:
            columns, imported = tangent.tap_columns()
            right, at_once = np.concatenate([right, columns], axis=1), np.concatenate([at_once, imported])
            start.append(tangent.ratio)
            low.append(taps.lowest)
            high.append(taps.highest)
            scale.append(np.full(len(tangent.ratio), _SPAN))
        self.start, self.scale = np.concatenate(start), np.concatenate(scale)
        self.low, self.high = np.concatenate(low), np.concatenate(high)
        self.z = tangent.changes(right)
        self.slope, _ = tangent.import_gradient()
        self.weight = tangent.loss_factor()
        self.imports = self.slope @ self.z + at_once
        self.losses = np.asarray(self.weight @ self.z)

    def solve(self) -> Dispatch:
        clarabel = require("clarabel", "opf")
        quadratic, linear = self._objective()
        rows, right, cones = self._constraints(clarabel)
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = self.tolerance
        solver = clarabel.DefaultSolver(
            sp.csc_matrix(np.triu(quadratic)), linear, sp.csc_matrix(rows), right, cones, settings
        )
        return self._found(solver.solve())

    def _objective(self) -> tuple[FloatArray, FloatArray]:
        """½·xᵀ·quadratic·x + linear·x over scaled changes x from the state."""
        units, count, price = self.units, self.count, self.price
        quadratic = 2.0 * max(price, 0.0) * (self.losses.T @ self.losses)
        linear = price * self.imports
        on = np.arange(count)
        quadratic[on, on] += 2.0 * units.quadratic
        linear[:count] += units.linear + 2.0 * units.quadratic * self.start[:count]
        if self.taps is not None:
            at = np.arange(2 * count, len(self.start))
            quadratic[at, at] += 2.0 * self.taps.cost
            linear[2 * count :] += 2.0 * self.taps.cost * (self.start[2 * count :] - self.taps.resting)
        return quadratic * self.scale * self.scale[:, None], linear * self.scale

    def _constraints(self, clarabel: Any) -> tuple[FloatArray, FloatArray, list[Any]]:
        """Rows, right-hand side and cones: right − rows·x lies in the cones."""
        n, count, limits = self.n, self.count, self.limits
        u = self.z[U * n : (U + 1) * n] * self.scale
        half = 0.5 * (self.high - self.low) / self.scale
        middle = (0.5 * (self.high + self.low) - self.start) / self.scale
        centre, reach = u @ middle, np.abs(u) @ half
        self.upper = _reached(limits.highest**2 - self.point.u, centre + reach)
        self.lower = _reached(self.point.u - limits.lowest**2, reach - centre)
        boxed = np.concatenate([np.arange(count), np.arange(2 * count, len(self.start))])
        box = np.eye(len(self.start))[boxed]
        rows = [box, -box, u[self.upper], -u[self.lower]]
        right = [
            ((self.high - self.start) / self.scale)[boxed],
            ((self.start - self.low) / self.scale)[boxed],
            (limits.highest**2 - self.point.u)[self.upper],
            (self.point.u - limits.lowest**2)[self.lower],
        ]
        self.plain = sum(len(part) for part in right)
        cones = [clarabel.NonnegativeConeT(self.plain)]
        cone_rows, cone_right = self._ratings()
        self.rated = self._rated(half, middle)
        for place in self.rated.tolist():
            rows_at, right_at = self._flow(place)
            cone_rows.append(rows_at)
            cone_right.append(right_at)
        cones += [clarabel.SecondOrderConeT(3)] * len(cone_rows)
        return np.concatenate([*rows, *cone_rows]), np.concatenate([*right, *cone_right]), cones

    def _ratings(self) -> tuple[list[FloatArray], list[FloatArray]]:
        """Cones of apparent power: |p + jq| ≤ rating, in shares of the rating."""
        count, found, right = self.count, [], []
        for k in range(count):
            rows = np.zeros((3, len(self.start)))
            rows[1, k] = rows[2, count + k] = -1.0
            found.append(rows)
            at = self.point.power[k] / self.units.rating[k]
            right.append(np.array([1.0, at.real, at.imag]))
        return found, right

    def _rated(self, half: FloatArray, middle: FloatArray) -> IntArray:
        """Places whose current limit some dispatch could reach."""
        limit, n, found = self.limits.current, self.n, np.zeros(self.n, dtype=np.bool_)
        at = np.flatnonzero(np.isfinite(limit))
        for part, value in ((P, self.point.received.real), (Q, self.point.received.imag)):
            z = self.z[part * n + at] * self.scale
            centre, reach = value[at] + z @ middle, np.abs(z) @ half
            most = np.abs(centre) + reach
            found[at] |= most > limit[at] * np.sqrt(self.point.u[at]) * 0.5
        return np.flatnonzero(found)

    def _flow(self, place: int) -> tuple[FloatArray, FloatArray]:
        """Cone of a current: |S| ≤ limit·|v|, with |v| linear."""
        n, limit, u = self.n, self.limits.current[place], self.point.u[place]
        root = float(np.sqrt(u))
        z = np.stack([self.z[part * n + place] for part in (U, P, Q)]) * self.scale
        s = self.point.received[place]
        rows = -np.stack([limit / (2.0 * root) * z[0], z[1], z[2]])
        return rows, np.array([limit * root, s.real, s.imag])

    def _found(self, solution: Any) -> Dispatch:
        status = _STATUS.get(str(solution.status), FAILED)
        n, count, point = self.n, self.count, self.point
        if status in (INFEASIBLE, FAILED):
            return nothing(status, n, count, len(self.tangent.ratio))
        change = np.asarray(solution.x) * self.scale
        x, z = self.start + change, self.z @ change
        lost = self.losses @ change
        imported = point.imported + float(self.imports @ change) + float(lost @ lost)
        units = self.units
        cost = float(units.linear @ x[:count] + units.quadratic @ x[:count] ** 2) + self.price * imported
        dual = np.asarray(solution.z)
        duals, gradient = self._duals(dual, 2.0 * max(self.price, 0.0) * (self.weight.T @ lost))
        price = self.tangent.prices(gradient)
        first, second = float(solution.obj_val), float(solution.obj_val_dual)
        return Dispatch(
            status=status,
            power=x[:count] + 1j * x[count : 2 * count],
            ratio=x[2 * count :] if self.taps is not None else self.tangent.ratio,
            cost=cost,
            gap=abs(first - second) / max(1.0, abs(cost)),
            u=point.u + z[U * n : (U + 1) * n],
            received=point.received + z[:n] + 1j * z[n : 2 * n],
            imported=imported,
            price=price[:n] + 1j * price[n : 2 * n],
            **duals,
        )

    def _duals(self, dual: FloatArray, gradient: FloatArray) -> tuple[dict[str, FloatArray], FloatArray]:
        """Dual values of the limits, and the gradient of the Lagrangian over z."""
        n = self.n
        gradient = gradient + self.price * self.slope
        upper, lower, flow = np.zeros(n), np.zeros(n), np.zeros(n)
        first = 2 * (self.count + len(self.start) - 2 * self.count)
        middle = first + int(self.upper.sum())
        upper[self.upper] = dual[first:middle]
        lower[self.lower] = dual[middle : self.plain]
        gradient[U * n : (U + 1) * n] += upper - lower
        after = self.plain + 3 * self.count
        for place, values in zip(self.rated.tolist(), dual[after:].reshape(-1, 3), strict=True):
            root = float(np.sqrt(self.point.u[place]))
            flow[place] = values[0] * root
            gradient[U * n + place] -= values[0] * self.limits.current[place] / (2.0 * root)
            gradient[P * n + place] -= values[1]
            gradient[Q * n + place] -= values[2]
        return {"upper": upper, "lower": lower, "flow": flow}, gradient


def nothing(status: str, places: int, units: int, regulators: int) -> Dispatch:
    """What is known of a snapshot without a dispatch."""
    nan, unknown = np.full(places, np.nan), complex(np.nan, np.nan)
    return Dispatch(
        status=status,
        power=np.full(units, unknown),
        ratio=np.full(regulators, np.nan),
        cost=float("nan"),
        gap=float("nan"),
        u=nan,
        received=np.full(places, unknown),
        imported=float("nan"),
        price=np.full(places, unknown),
        upper=nan,
        lower=nan,
        flow=nan,
    )


def _reached(room: FloatArray, most: FloatArray) -> BoolArray:
    """Limits that some dispatch could reach: the most it can add is the room, but for rounding, or more."""
    return np.asarray(most > room - 1e-9)
