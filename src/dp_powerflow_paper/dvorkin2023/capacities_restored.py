"""Repairs noisy capacities: a function of what the mechanism has released and of public records.

It cannot see the true capacities: an import contract holds that, and a test compares bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from dp_powerflow.errors import PowerFlowError, require
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2023.dispatch import DispatchCase


@dataclass(frozen=True, eq=False)
class NoisyCapacities:
    """What the mechanism has released so far.

    Attributes
    ----------
    capacity : (line,) with noise; may be negative.
    chosen : records that were selected, in order; one may come again.
    costs : (chosen,) their least costs, with noise.
    """

    capacity: FloatArray
    chosen: tuple[int, ...] = ()
    costs: tuple[float, ...] = ()


class Repair(Protocol):
    """Gives capacities under which the chosen records cost about what was released."""

    def __call__(self, noisy: NoisyCapacities, case: DispatchCase) -> FloatArray:
        """(line,) capacities."""


def repair_objective(noisy: NoisyCapacities, case: DispatchCase, capacity: FloatArray) -> float:
    """Σ |C̃_k − C_k(φ)| + ‖φ − φ̃‖₁, infinite where a chosen record is infeasible."""
    far = float(np.abs(capacity - noisy.capacity).sum())
    costs = case.only(np.array(noisy.chosen, dtype=np.int64)).costs(capacity)
    return far + float(np.abs(costs - noisy.costs).sum())


@dataclass(frozen=True)
class ConvexRepair:
    """The upper side: every chosen record has a feasible dispatch that costs at most what was released.

    min Σ r_k + ‖φ − φ̃‖₁   such that c_k'g_k − C̃_k ≤ r_k,  g_k feasible within φ,  r ≥ 0
    """

    def __call__(self, noisy: NoisyCapacities, case: DispatchCase) -> FloatArray:
        """A linear program."""
        lines, count, chosen = case.lines, len(case.generators), len(noisy.chosen)
        # Columns: φ, |φ − φ̃|, then (g_k, r_k) of every chosen record.
        width = 2 * lines + chosen * (count + 1)
        price = np.concatenate(
            [np.zeros(lines), np.ones(lines), np.tile(np.append(np.zeros(count), 1.0), chosen)]
        )
        eye = sp.identity(lines, format="csr")
        rows: list[sp.csr_array] = [_placed(eye, 0, width) - _placed(eye, lines, width)]
        rows.append(-_placed(eye, 0, width) - _placed(eye, lines, width))
        right: list[FloatArray] = [noisy.capacity, -noisy.capacity]
        balance, demand = [], []
        bounds: list[tuple[float, float | None]] = [(0.0, None)] * (2 * lines)
        into = sp.csr_array(case.flows[:, case.generators])
        for k, record in enumerate(noisy.chosen):
            start = 2 * lines + k * (count + 1)
            fixed = case.flows @ case.records.demand[record]
            rows += [sign * _placed(into, start, width) - _placed(eye, 0, width) for sign in (1.0, -1.0)]
            right += [fixed, -fixed]
            cost = np.append(case.records.price[record], -1.0)
            rows.append(_placed(sp.csr_array(cost[None]), start, width))
            right.append(np.array([noisy.costs[k]]))
            balance.append(_placed(sp.csr_array(np.append(np.ones(count), 0.0)[None]), start, width))
            demand.append(case.records.demand[record].sum())
            bounds += [(0.0, float(most)) for most in case.records.most[record]] + [(0.0, None)]
        solved = linprog(
            price,
            A_ub=sp.vstack(rows),
            b_ub=np.concatenate(right),
            A_eq=sp.vstack(balance) if balance else None,
            b_eq=demand or None,
            bounds=bounds,
            method="highs",
        )
        if solved.status != 0:
            raise PowerFlowError(f"the noisy capacities cannot be repaired: {solved.message}")
        return np.asarray(solved.x[:lines])


def repaired_unasked(
    noisy: FloatArray, case: DispatchCase, count: int, generator: np.random.Generator
) -> FloatArray:
    """(line,) capacities repaired for some public records, none of whose true costs was asked.

    No dispatch of a record costs more than its demand at its dearest generator: so much may it cost.

    Parameters
    ----------
    noisy : (line,) with noise.
    count : of records, taken at random.
    """
    chosen = generator.choice(len(case.records), size=min(count, len(case.records)), replace=False)
    records = case.records
    most = records.demand[chosen].sum(axis=1) * records.price[chosen].max(axis=1)
    return ConvexRepair()(NoisyCapacities(noisy, tuple(chosen.tolist()), tuple(most.tolist())), case)


def _placed(block: sp.csr_array, start: int, width: int) -> sp.csr_array:
    """The block as columns `start` … of a matrix of that width."""
    rows, columns = block.shape
    before, after = sp.csr_array((rows, start)), sp.csr_array((rows, width - start - columns))
    return sp.csr_array(sp.hstack([before, block, after]))


@dataclass(frozen=True)
class ExactRepair:
    """Both sides: every chosen record's dispatch is optimal within φ, by its optimality conditions (SCIP).

    Attributes
    ----------
    seconds : most time that the solver may take; it then gives the best that it has.
    gap : relative gap at which it stops.
    """

    seconds: float = 60.0
    gap: float = 1e-4

    def __call__(self, noisy: NoisyCapacities, case: DispatchCase) -> FloatArray:
        """A mixed-integer program: complementarity as special ordered sets."""
        scip = require("pyscipopt", "milp")
        model = scip.Model()
        model.hideOutput()
        model.setParam("limits/time", self.seconds)
        model.setParam("limits/gap", self.gap)
        capacity = [model.addVar(lb=0.0) for _ in range(case.lines)]
        apart = _distances(model, capacity, noisy.capacity)
        for record, stated in zip(noisy.chosen, noisy.costs, strict=True):
            cost = _optimal(model, scip.quicksum, case, record, capacity)
            apart += _distances(model, [cost], np.array([stated]))
        model.setObjective(scip.quicksum(apart))
        model.optimize()
        if not model.getNSols():
            raise PowerFlowError(
                f"SCIP found no repair of the capacities in {self.seconds:g} s; allow more time"
            )
        return np.array([model.getVal(variable) for variable in capacity])


def _distances(model: Any, expressions: Sequence[Any], targets: FloatArray) -> list[Any]:
    """|expression − target| of each, as variables to be minimised."""
    found = []
    for expression, target in zip(expressions, targets.tolist(), strict=True):
        apart = model.addVar(lb=0.0)
        model.addCons(expression - target <= apart)
        model.addCons(target - expression <= apart)
        found.append(apart)
    return found


def _optimal(model: Any, total: Any, case: DispatchCase, record: int, capacity: list[Any]) -> Any:
    """Cost of an optimal dispatch of a record within the capacities; adds its optimality conditions."""
    records, into = case.records, case.flows[:, case.generators]
    price, most = records.price[record].tolist(), records.most[record].tolist()
    power = [model.addVar(lb=0.0, ub=limit) for limit in most]
    model.addCons(total(power) == float(records.demand[record].sum()))
    balance_price = model.addVar(lb=None)
    fixed = case.flows @ records.demand[record]
    pull: list[list[Any]] = [[] for _ in power]
    for line, limit in enumerate(capacity):
        terms = [(k, float(into[line, k])) for k in np.flatnonzero(into[line]).tolist()]
        flow = total(weight * power[k] for k, weight in terms) - float(fixed[line])
        for sign in (1.0, -1.0):
            dual, room = model.addVar(lb=0.0), model.addVar(lb=0.0)
            model.addCons(room == limit - sign * flow)
            model.addConsSOS1([dual, room])
            for k, weight in terms:
                pull[k].append(sign * weight * dual)
    for k, limit in enumerate(most):
        above, below, room = (model.addVar(lb=0.0) for _ in range(3))
        model.addCons(room == limit - power[k])
        model.addConsSOS1([above, room])
        model.addConsSOS1([below, power[k]])
        model.addCons(price[k] - balance_price + total(pull[k]) + above - below == 0.0)
    return total(cost * output for cost, output in zip(price, power, strict=True))
