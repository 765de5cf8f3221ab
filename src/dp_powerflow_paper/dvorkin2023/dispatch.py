"""Least-cost dispatch within capacities of lines: the program that capacities are released for.

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

from dp_powerflow.errors import FeederError, require
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
