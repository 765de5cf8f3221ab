"""Repairs noisy capacities and records: functions of what a mechanism has released and of public figures.

Nothing here can see the true figures: an import contract holds that, and a test compares bytes.

Least-cost dispatch within capacities of lines: the program that capacities are released for.

Flows are linear in the power fed in, f = F·(g − d): DC power flow on a meshed grid, the sums below every line
on a radial one. Overload can be priced at ψ:

    C(k; f̄) = min c'g + ψ·1's   such that 1'g = 1'd,  0 ≤ g ≤ ḡ,  |F·(g − d)| ≤ f̄ + s,  s ≥ 0

The dual of a line's two limits is then at most ψ, so that C changes by at most ψ·α if one capacity changes by
α. Without a price a capacity can make the program infeasible, and no such bound exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from dp_powerflow.errors import FeederError, PowerFlowError, require
from dp_powerflow.units import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Records:
    """PUBLIC. Situations in which the grid is dispatched.

    Attributes
    ----------
    price : (record, generator) of a unit of energy.
    demand : (record, node).
    most : (record, generator) largest power.
    """

    price: FloatArray
    demand: FloatArray
    most: FloatArray

    def __len__(self) -> int:
        return len(self.price)


@dataclass(frozen=True, eq=False)
class DispatchCase:
    """A grid, its generators and its records; the capacities of its lines are not here.

    Attributes
    ----------
    flows : (line, node) F.
    generators : (generator,) nodes.

    Raises
    ------
    FeederError : the generators cannot meet the demand of some record, whatever the capacities.
    """

    name: str
    flows: FloatArray
    generators: IntArray
    records: Records

    def __post_init__(self) -> None:
        demand, most = self.records.demand.sum(axis=1), self.records.most.sum(axis=1)
        if np.any(demand < 0.0) or np.any(demand > most):
            raise FeederError("the generators must be able to meet the demand of every record")

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self.flows)

    @property
    def dearest(self) -> float:
        """Largest price of any generator in any record."""
        return float(self.records.price.max())

    def costs(self, capacity: FloatArray, overload_price: float | None = None) -> FloatArray:
        """(record,) least costs; infinite where nothing is feasible.

        Parameters
        ----------
        capacity : (line,).
        overload_price : ψ; None lets no line be overloaded.
        """
        program = _Program(self, overload_price)
        return np.array([program.cost(record, capacity) for record in range(len(self.records))])

    def only(self, chosen: IntArray) -> DispatchCase:
        """With some of the records."""
        of = self.records
        kept = Records(of.price[chosen], of.demand[chosen], of.most[chosen])
        return DispatchCase(self.name, self.flows, self.generators, kept)


class _Program:
    """The program of a case, set up once; records change its prices and limits and start where it ended."""

    def __init__(self, case: DispatchCase, overload_price: float | None) -> None:
        highs = require("highspy", "opf")
        self._case, self._optimal = case, highs.HighsModelStatus.kOptimal
        into, lines = sp.csc_array(case.flows[:, case.generators]), sp.eye_array(case.lines)
        sides = [] if overload_price is None else [-lines, lines]
        limits = sp.hstack([into, *sides])
        balance = np.zeros((1, limits.shape[1]))
        balance[0, : len(case.generators)] = 1.0
        matrix = sp.csc_array(sp.vstack([limits, sp.csc_array(balance)]))
        program = highs.HighsLp()
        program.num_row_, program.num_col_ = matrix.shape
        program.col_cost_ = np.full(matrix.shape[1], overload_price or 0.0)
        program.col_lower_ = np.zeros(matrix.shape[1])
        program.col_upper_ = np.full(matrix.shape[1], highs.kHighsInf)
        program.row_lower_ = program.row_upper_ = np.zeros(matrix.shape[0])
        program.a_matrix_.format_ = highs.MatrixFormat.kColwise
        program.a_matrix_.start_, program.a_matrix_.index_ = matrix.indptr, matrix.indices
        program.a_matrix_.value_ = matrix.data
        self._solver = highs.Highs()
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        self._solver.passModel(program)

    def cost(self, record: int, capacity: FloatArray) -> float:
        """Least cost of a record."""
        case, records, solver = self._case, self._case.records, self._solver
        columns = np.arange(len(case.generators), dtype=np.int32)
        rows = np.arange(case.lines + 1, dtype=np.int32)
        fixed, total = case.flows @ records.demand[record], records.demand[record].sum()
        solver.changeColsCost(len(columns), columns, records.price[record])
        solver.changeColsBounds(len(columns), columns, np.zeros(len(columns)), records.most[record])
        edges = (np.append(fixed - capacity, total), np.append(fixed + capacity, total))
        solver.changeRowsBounds(len(rows), rows, *edges)
        solver.run()
        if solver.getModelStatus() != self._optimal:
            return float("inf")
        return float(solver.getInfo().objective_function_value)


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


def repair(noisy: NoisyCapacities, case: DispatchCase) -> FloatArray:
    """(line,) capacities under which every chosen record has a dispatch of at most the released cost.

    min Σ r_k + ‖φ − φ̃‖₁   such that c_k'g_k − C̃_k ≤ r_k,  g_k feasible within φ,  r ≥ 0
    """
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
    return repair(NoisyCapacities(noisy, tuple(chosen.tolist()), tuple(most.tolist())), case)


def _placed(block: sp.csr_array, start: int, width: int) -> sp.csr_array:
    """The block as columns `start` … of a matrix of that width."""
    rows, columns = block.shape
    before, after = sp.csr_array((rows, start)), sp.csr_array((rows, width - start - columns))
    return sp.csr_array(sp.hstack([before, block, after]))


FIT, CLOSENESS = 1e-5, 1e-5
"""What distances of the weights and of the records count beside that of the loss."""


@dataclass(frozen=True, eq=False)
class NoisyRecords:
    """What the mechanism releases of the records.

    Attributes
    ----------
    power : (record,) with noise; may lie outside [0, 1].
    weights : (feature,) of the regression, with noise.
    loss : of the regression, with noise.
    """

    power: FloatArray
    weights: FloatArray
    loss: float


def restore_records(noisy: NoisyRecords, features: FloatArray, ridge: float) -> FloatArray:
    """(record,) power in [0, 1] whose regression has a loss and weights near the noisy ones.

        min |ℓ − ℓ̃| + 1e-5·‖w − w̃‖ + 1e-5·‖y − ỹ‖   over y in [0, 1]ⁿ, w, ℓ
        such that (XᵀX + λI)·w = Xᵀ·y,  ‖X·w − y‖² ≤ ℓ

    Parameters
    ----------
    features, ridge : X and λ, public.
    """
    cp = require("cvxpy", "opf")
    records, count = features.shape
    power, weights, loss = cp.Variable(records), cp.Variable(count), cp.Variable()
    gram = features.T @ features + ridge * np.eye(count)
    far = FIT * cp.norm(weights - noisy.weights) + CLOSENESS * cp.norm(power - noisy.power)
    problem = cp.Problem(
        cp.Minimize(cp.abs(loss - noisy.loss) + far),
        [
            power >= 0.0,
            power <= 1.0,
            gram @ weights == features.T @ power,
            cp.sum_squares(features @ weights - power) <= loss,
        ],
    )
    problem.solve(solver=cp.CLARABEL)
    if power.value is None:
        raise PowerFlowError(f"the noisy records cannot be repaired: the solver says '{problem.status}'")
    return np.asarray(np.clip(power.value, 0.0, 1.0))
