"""Optimal dispatch of many snapshots: AC state, linear equations, conic program, correction, AC check.

A snapshot is written around the AC solution without units, solved, written again around the AC solution of
its dispatch (`corrections` times), and checked by AC power flow in the end. One that cannot be dispatched
keeps the state without units and is marked; none is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import require
from dp_powerflow.grid.feeder import Feeder, Load, PVSystem
from dp_powerflow.powerflow.batch import Solution, Solver
from dp_powerflow.powerflow.operated import OperatedSolution, frozen_ratios
from dp_powerflow.studies.dispatch.network import (
    UNKNOWNS,
    AcStates,
    BusTree,
    LinDistFlow,
    P,
    Q,
    Tangent,
    U,
    ratios,
)
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray, kw_to_pu

# --- the program of one snapshot ------------------------------------------------------------------------
# Least cost of units and import within limits, in changes from a state. Variables: active and reactive power
# of every unit. The cost of import has the losses to second order, ‖W·z‖², so that the program is the Newton
# step of the AC problem but for the curvature of voltages.
# Limits that no dispatch within the units' ratings can reach are left out; that changes nothing, for they
# would not bind, and makes the program small.
SOLVED, INACCURATE, INFEASIBLE, FAILED = "solved", "inaccurate", "infeasible", "failed"
_STATUS = {"Solved": SOLVED, "AlmostSolved": INACCURATE, "PrimalInfeasible": INFEASIBLE}
_STATUS["AlmostPrimalInfeasible"] = INFEASIBLE
_TOLERANCE = 1e-8
"""Of residuals and of the duality gap, relative."""


@dataclass(frozen=True, eq=False)
class DispatchLimits:
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
    cost : of units and import, per p.u.
    u : (place,) squared voltages of the linear equations.
    price : complex (place,) cost of one more p.u. drawn there: active, and reactive as imaginary part.
    upper, lower : (place,) dual values of the voltage limits, per p.u. of squared voltage.
    flow : (place,) dual value of the current limit, per p.u. of current.
    """

    status: str
    power: ComplexArray
    cost: float
    u: FloatArray
    price: ComplexArray
    upper: FloatArray
    lower: FloatArray
    flow: FloatArray


class _Program:
    """The program of one snapshot, on its way from the tangent to the solution.

    Parameters
    ----------
    price : of import, per p.u.; also what export earns.
    """

    def __init__(
        self, limits: DispatchLimits, tangent: Tangent, point: Point, units: UnitArrays, price: float
    ) -> None:
        self.limits, self.tangent, self.point = limits, tangent, point
        self.units, self.price = units, price
        n, count = tangent.network.places, len(units.rating)
        self.n, self.count = n, count
        right = np.zeros((UNKNOWNS * n, 2 * count))
        right[:n, :count], right[n : 2 * n, :count] = -units.shares.real, -units.shares.imag
        right[:n, count:], right[n : 2 * n, count:] = units.shares.imag, -units.shares.real
        self.start = np.concatenate([point.power.real, point.power.imag])
        self.low = np.concatenate([units.lowest, -units.rating])
        self.high = np.concatenate([units.highest, units.rating])
        self.scale = np.concatenate([units.rating, units.rating])
        self.z = tangent.changes(right)
        self.slope, _ = tangent.import_gradient()
        self.weight = tangent.loss_factor()
        self.imports = self.slope @ self.z
        self.losses = np.asarray(self.weight @ self.z)

    def solve(self) -> Dispatch:
        """Least cost."""
        clarabel = require("clarabel", "opf")
        quadratic, linear = self._objective()
        rows, right, cones = self._constraints(clarabel)
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _TOLERANCE
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
        box = np.eye(len(self.start))[:count]
        rows = [box, -box, u[self.upper], -u[self.lower]]
        right = [
            ((self.high - self.start) / self.scale)[:count],
            ((self.start - self.low) / self.scale)[:count],
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
            return nothing(status, n, count)
        change = np.asarray(solution.x) * self.scale
        x, z = self.start + change, self.z @ change
        lost = self.losses @ change
        imported = point.imported + float(self.imports @ change) + float(lost @ lost)
        units = self.units
        cost = float(units.linear @ x[:count] + units.quadratic @ x[:count] ** 2) + self.price * imported
        dual = np.asarray(solution.z)
        duals, gradient = self._duals(dual, 2.0 * max(self.price, 0.0) * (self.weight.T @ lost))
        price = self.tangent.prices(gradient)
        return Dispatch(
            status=status,
            power=x[:count] + 1j * x[count:],
            cost=cost,
            u=point.u + z[U * n : (U + 1) * n],
            price=price[:n] + 1j * price[n : 2 * n],
            **duals,
        )

    def _duals(self, dual: FloatArray, gradient: FloatArray) -> tuple[dict[str, FloatArray], FloatArray]:
        """Dual values of the limits, and the gradient of the Lagrangian over z."""
        n = self.n
        gradient = gradient + self.price * self.slope
        upper, lower, flow = np.zeros(n), np.zeros(n), np.zeros(n)
        first = 2 * self.count
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


def nothing(status: str, places: int, units: int) -> Dispatch:
    """What is known of a snapshot without a dispatch."""
    nan, none = np.full(places, np.nan), float("nan")
    return Dispatch(status, np.full(units, complex(none, none)), none, nan, nan * (1 + 1j), nan, nan, nan)


def _reached(room: FloatArray, most: FloatArray) -> BoolArray:
    """Limits that some dispatch could reach: the most it can add is the room, but for rounding, or more."""
    return np.asarray(most > room - 1e-9)


# --- many snapshots ---------------------------------------------------------------------------------------
_NO_LOAD_KW = -1e-6
"""Nominal power of a unit that stands among the loads: negative, so that it may inject."""


@dataclass(frozen=True)
class Unit:
    """One unit: an inverter with storage, a generator, or photovoltaics.

    Attributes
    ----------
    branches : pairs of node indices between which it injects equal shares, as of a load.
    kva : rating of its apparent power [kVA].
    kw_max, kw_min : range of its active power [kW]; negative for one that can draw.
    cost_per_kwh, cost_per_kw2h : cost of p kW for an hour, cost_per_kwh·p + cost_per_kw2h·p².
    sun : whether `kw_max` is multiplied by the irradiance.
    """

    name: str
    branches: tuple[tuple[int, int], ...]
    kva: float
    kw_max: float
    kw_min: float = 0.0
    cost_per_kwh: float = 0.0
    cost_per_kw2h: float = 0.0
    sun: bool = False


class UnitsPowerFlow:
    """Power flow of a feeder with units, by the solver that the study names.

    Parameters
    ----------
    solver : of the feeder without units; what it takes as loads and generation is kept.
    units : where power is injected.
    """

    def __init__(self, solver: Solver, units: Sequence[Unit]) -> None:
        self.feeder = solver.feeder
        self._by_element = solver.columns == "elements"
        self._with = with_units(self.feeder, units, as_loads=self._by_element)
        self._solver: Solver = solver.on(self._with)

    def solve(self, load: ComplexArray, generation: ComplexArray | None, power: ComplexArray) -> AcStates:
        """Voltages of every snapshot.

        Parameters
        ----------
        load, generation : as the solver of the study takes them; whole days where its controls remember.
        power : complex (snapshot, unit) injected [p.u.].
        """
        return self._states(self._solver.solve(*self._columns(load, generation, power), nodes="all"))

    def _columns(
        self, load: ComplexArray, generation: ComplexArray | None, power: ComplexArray
    ) -> tuple[ComplexArray, ComplexArray | None]:
        if self._by_element:
            return np.ascontiguousarray(np.concatenate([load, -power], axis=1)), generation
        at = np.searchsorted(self._with.retained, self.feeder.retained)
        shape = (len(load), len(self._with.retained))
        wide, injected = np.zeros(shape, dtype=np.complex128), np.zeros(shape, dtype=np.complex128)
        wide[:, at] = load
        if generation is not None:
            injected[:, at] = generation
        injected += np.asarray((self._shares @ power.T).T)
        return wide, injected

    @cached_property
    def _shares(self) -> sp.csr_array:
        """Complex (retained node with units, unit)."""
        shares = self._with.pv_shares.tocsr()[self._with.retained]
        return sp.csr_array(shares[:, len(self.feeder.pv) :])

    def _states(self, solution: Solution) -> AcStates:
        n, feeder = len(solution.converged), self.feeder
        v = np.empty((n, len(feeder.nodes)), dtype=np.complex128)
        v[:, feeder.energised], v[:, feeder.slack] = solution.v, feeder.v_slack
        if isinstance(solution, OperatedSolution):
            closed = solution.capacitors.astype(np.float64)
            return AcStates(v, ratios(feeder, solution.taps), closed, solution.converged)
        closed = np.array([float(bank.closed) for bank in feeder.as_operated.capacitors])
        ratio, closed = (np.tile(each, (n, 1)) for each in (frozen_ratios(feeder), closed))
        return AcStates(v, ratio, closed, solution.converged)


def with_units(feeder: Feeder, units: Sequence[Unit], *, as_loads: bool) -> Feeder:
    """The feeder with a load, or a PV system, for every unit, after its own."""
    if as_loads:
        loads = tuple(Load(unit.name, unit.branches, _NO_LOAD_KW, 0.0, "wye") for unit in units)
        return replace(feeder, loads=(*feeder.loads, *loads))
    pv = tuple(PVSystem(unit.name, unit.branches, unit.kva, max(unit.kw_max, 0.0)) for unit in units)
    return replace(feeder, pv=(*feeder.pv, *pv))


def unit_shares(feeder: Feeder, units: Sequence[Unit]) -> ComplexArray:
    """Complex (node, unit): nodal power injected per unit of complex power, at nominal phasors."""
    found = with_units(feeder, units, as_loads=False).pv_shares.toarray()
    return np.asarray(found[:, len(feeder.pv) :])


NO_POWER_FLOW, UNCHECKED, LEFT_OUT = "no power flow", "unchecked", "left out"
"""Of a snapshot: no AC solution without units; none with its dispatch; not asked for."""
STATUSES = (SOLVED, INACCURATE, "infeasible", "failed", NO_POWER_FLOW, UNCHECKED, LEFT_OUT)
_USABLE = (SOLVED, INACCURATE)
_AT_ONCE = 64
"""Snapshots whose linear equations are written together."""


@dataclass(frozen=True, eq=False)
class Snapshots:
    """What is dispatched.

    Attributes
    ----------
    load, generation : as the solver takes them, complex (snapshot, column) [p.u.]; generation may be None.
    price_per_kwh : (snapshot,) of import, also what export earns.
    sun : (snapshot,) share of peak irradiance.
    chosen : (snapshot,) whether to dispatch it; the others have units without power.
    """

    load: ComplexArray
    generation: ComplexArray | None
    price_per_kwh: FloatArray
    sun: FloatArray
    chosen: BoolArray

    def __len__(self) -> int:
        return len(self.load)


@dataclass(frozen=True, eq=False)
class Dispatched:
    """Dispatch of some snapshots, in kW and per kWh; NaN where a snapshot has none.

    Attributes
    ----------
    status : (snapshot,) one of `STATUSES`.
    corrected : (snapshot,) how often the dispatch was written again around its own AC solution.
    power : complex (snapshot, unit) [kW + j·kvar].
    cost : (snapshot,) of units and import after the AC check, per hour; of import alone without a dispatch.
    linear_cost : (snapshot,) what the program found.
    import_kw : (snapshot,) active power of the sources after the AC check.
    base : AC states without units.
    checked : AC states with the dispatch.
    linear_vm : (snapshot, place) voltage magnitudes of the linear equations [p.u.].
    price : complex (snapshot, place) cost of one more kW, and kvar, drawn there for an hour.
    upper, lower : (snapshot, place) what 1 p.u. of a voltage limit would save per hour.
    flow_dual : (snapshot, place) what 1 p.u. of a current limit would save per hour.
    """

    status: tuple[str, ...]
    corrected: IntArray
    power: ComplexArray
    cost: FloatArray
    linear_cost: FloatArray
    import_kw: FloatArray
    base: AcStates
    checked: AcStates
    linear_vm: FloatArray
    price: ComplexArray
    upper: FloatArray
    lower: FloatArray
    flow_dual: FloatArray

    def at(self, which: IntArray) -> Dispatched:
        """Some of the snapshots."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        status = tuple(self.status[k] for k in which.tolist())
        return Dispatched(status=status, **{k: v[which] for k, v in parts.items() if k != "status"})


@dataclass(frozen=True)
class Options:
    """How snapshots are dispatched.

    Attributes
    ----------
    v_min, v_max : voltage magnitudes that every node must keep [p.u.].
    corrections : how often a dispatch is written again around its own AC solution.
    per_kw : dispatched powers are multiples of 1/per_kw kW, as they are published; 0 for no grid.
    """

    v_min: float = 0.95
    v_max: float = 1.05
    corrections: int = 1
    per_kw: float = 1024.0


class Dispatcher:
    """Dispatches units of one feeder.

    Parameters
    ----------
    solver : of the feeder without units, as the study solves it.
    units : what is dispatched.
    ampacity : bus → current that the branch above it may deliver per phase [A]; others have no limit.

    Examples
    --------
    >>> import numpy as np, dp_powerflow as dpf
    >>> from dp_powerflow.powerflow.batch import BatchSolver
    >>> feeder = dpf.open_feeder("ieee13")
    >>> unit = Unit("u", feeder.loads[0].branches, kva=200.0, kw_max=150.0, cost_per_kwh=0.05)
    >>> dispatcher = Dispatcher(BatchSolver(feeder), [unit], Options(v_min=0.9, v_max=1.1))
    >>> load = -0.8 * feeder.nominal_injection[feeder.retained][None]
    >>> one = np.ones(1)
    >>> found = dispatcher.run(Snapshots(load, None, 0.1 * one, one, one > 0))
    >>> found.status, found.power.real.round(2).tolist()
    (('solved',), [[150.0]])
    """

    def __init__(
        self,
        solver: Solver,
        units: Sequence[Unit],
        options: Options | None = None,
        ampacity: dict[str, float] | None = None,
    ) -> None:
        self.options, self.units = options or Options(), tuple(units)
        self.flow = UnitsPowerFlow(solver, self.units)
        feeder = self.flow.feeder
        self.tree = BusTree.of(feeder)
        self.network = LinDistFlow(self.tree)
        n = self.network.places
        self._base_kva = feeder.base_mva * KW_PER_MW
        self._there = self.network.number >= 0
        self._shares = unit_shares(feeder, self.units)[self.network.node_of]
        self.limits = DispatchLimits(
            np.full(n, self.options.v_min), np.full(n, self.options.v_max), self._currents(ampacity or {})
        )

    def run(self, snapshots: Snapshots) -> Dispatched:
        """Dispatch and check every snapshot; whole days where the solver's controls remember."""
        count = len(snapshots)
        none = np.zeros((count, len(self.units)), dtype=np.complex128)
        base = self.flow.solve(snapshots.load, snapshots.generation, none)
        found = self._solve(snapshots, base, none, np.flatnonzero(snapshots.chosen & base.converged))
        corrected = np.zeros(count, dtype=np.int64)
        power, checked = self._checked(snapshots, found)
        for _ in range(self.options.corrections):
            usable = [k for k in found if checked.converged[k] and found[k].status in _USABLE]
            if not usable:
                break
            for k, dispatch in self._solve(snapshots, checked, power, np.sort(usable)).items():
                if dispatch.status in _USABLE:
                    found[k] = dispatch
                    corrected[k] += 1
            power, checked = self._checked(snapshots, found)
        return self._gathered(snapshots, base, found, checked, corrected)

    # ---------------------------------------------------------------------------------- inside

    def _currents(self, ampacity: dict[str, float]) -> FloatArray:
        """(place,) current limits [p.u.]."""
        feeder, found = self.flow.feeder, np.full(self.network.places, np.inf)
        balanced = bool(np.all(feeder.nominal_angle_deg % 120.0 == 0.0)) and self.tree.m == 1
        phases = 3.0 if balanced else 1.0  # that a node stands for
        for k, bus in enumerate(self.tree.buses):
            if bus in ampacity:
                for place in self.network.number[k][self.network.number[k] >= 0].tolist():
                    kv = float(feeder.base_kv[self.network.node_of[place]])
                    found[place] = ampacity[bus] * kv * phases / (feeder.base_mva * KW_PER_MW)
        return found

    def _solve(
        self, snapshots: Snapshots, states: AcStates, power: ComplexArray, which: IntArray
    ) -> dict[int, Dispatch]:
        """Solutions of the programs of some snapshots around given states."""
        found = {}
        for start in range(0, len(which), _AT_ONCE):
            chosen = which[start : start + _AT_ONCE]
            some = states[chosen]
            flows, tangents = self.network.flows(some), self.network.tangents(some)
            imported = self.network.imported(flows).real
            for at, (k, tangent) in enumerate(zip(chosen.tolist(), tangents, strict=True)):
                point = Point(
                    power=power[k],
                    u=np.abs(some.v[at][self.network.node_of]) ** 2,
                    received=flows.received[at][self._there],
                    imported=float(imported[at]),
                )
                units, price = self.unit_arrays(float(snapshots.sun[k])), float(snapshots.price_per_kwh[k])
                found[k] = _Program(self.limits, tangent, point, units, price).solve()
        return found

    def unit_arrays(self, sun: float) -> UnitArrays:
        """Units at one irradiance; costs per kWh are per p.u. of the base."""
        base, units = self._base_kva / KW_PER_MW, self.units
        highest = [unit.kw_max * (sun if unit.sun else 1.0) for unit in units]
        return UnitArrays(
            shares=self._shares,
            rating=kw_to_pu(np.array([unit.kva for unit in units]), base),
            lowest=kw_to_pu(np.minimum([unit.kw_min for unit in units], highest), base),
            highest=kw_to_pu(np.array(highest), base),
            linear=np.array([unit.cost_per_kwh for unit in units]),
            quadratic=np.array([unit.cost_per_kw2h for unit in units]) * self._base_kva,
        )

    def _checked(self, snapshots: Snapshots, found: dict[int, Dispatch]) -> tuple[ComplexArray, AcStates]:
        """Power of every snapshot, 0 where there is none, and its AC solution."""
        power = np.zeros((len(snapshots), len(self.units)), dtype=np.complex128)
        for k, dispatch in found.items():
            if np.isfinite(dispatch.power).all():
                power[k] = self._on_grid(dispatch.power)
        return power, self.flow.solve(snapshots.load, snapshots.generation, power)

    def _on_grid(self, power: ComplexArray) -> ComplexArray:
        """The power that is published and checked: what the program found, on the grid."""
        if not self.options.per_kw:
            return power
        counts = power * (self._base_kva * self.options.per_kw)
        return (np.rint(counts.real) + 1j * np.rint(counts.imag)) / (self._base_kva * self.options.per_kw)

    def _gathered(
        self,
        snapshots: Snapshots,
        base: AcStates,
        found: dict[int, Dispatch],
        checked: AcStates,
        corrected: IntArray,
    ) -> Dispatched:
        count, n = len(snapshots), self.network.places
        empty = nothing(LEFT_OUT, n, len(self.units))
        each = [found.get(k, empty) for k in range(count)]
        status = [dispatch.status for dispatch in each]
        for k in range(count):
            if not base.converged[k]:
                status[k] = NO_POWER_FLOW
            elif not checked.converged[k] and k in found:
                status[k] = UNCHECKED
        import_kw = self._import_kw(checked)
        power = np.stack([self._on_grid(dispatch.power) for dispatch in each]) * self._base_kva
        vm = np.sqrt(np.maximum(np.stack([dispatch.u for dispatch in each]), 0.0))
        # A limit v² is moved by 2·v for every p.u. of v.
        limits = self.limits
        return Dispatched(
            status=tuple(status),
            corrected=corrected,
            power=power,
            cost=self._cost(power) + snapshots.price_per_kwh * import_kw,
            linear_cost=np.array([dispatch.cost for dispatch in each]) * self._base_kva,
            import_kw=import_kw,
            base=base,
            checked=checked,
            linear_vm=vm,
            price=np.stack([dispatch.price for dispatch in each]),
            upper=np.stack([dispatch.upper for dispatch in each]) * 2.0 * limits.highest * self._base_kva,
            lower=np.stack([dispatch.lower for dispatch in each]) * 2.0 * limits.lowest * self._base_kva,
            flow_dual=np.stack([dispatch.flow for dispatch in each]) * self._base_kva,
        )

    def _cost(self, power_kw: ComplexArray) -> FloatArray:
        """(snapshot,) of the units, per hour; 0 without a dispatch."""
        p = np.where(np.isfinite(power_kw.real), power_kw.real, 0.0)
        linear = np.array([unit.cost_per_kwh for unit in self.units])
        quadratic = np.array([unit.cost_per_kw2h for unit in self.units])
        return np.asarray(p @ linear + p**2 @ quadratic)

    def _import_kw(self, states: AcStates) -> FloatArray:
        found = np.full(len(states.converged), np.nan)
        at = np.flatnonzero(states.converged)
        for start in range(0, len(at), _AT_ONCE):
            part = at[start : start + _AT_ONCE]
            found[part] = self.network.imported(self.network.flows(states[part])).real * self._base_kva
        return found
