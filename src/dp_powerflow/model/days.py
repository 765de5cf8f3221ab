"""Draw loads from a law and solve them: the only place where that is done.

What is released, certified, audited and compared goes through `solve_days`, so it is one mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.sample import LoadBlock, LoadSource
from dp_powerflow.powerflow.batch import Nodes, Solution, Solver
from dp_powerflow.units import ComplexArray, IntArray, kw_to_pu


@dataclass(frozen=True, eq=False)
class SolvedDays:
    """Consecutive days of loads and their power flow.

    Parameters
    ----------
    first_day
        Index of the first day.
    steps
        Steps of a day.
    positions
        (node,) nodes with a random load of their own, among `feeder.retained`.
    load
        Complex (snapshot, retained) drawn [p.u.]; 0 at nodes without a load of their own.
    generation
        Complex (snapshot, retained) injected before volt-var [p.u.], None without any.
    solution
        Power flow of every snapshot; whether all are solved is for the caller to ask.
    """

    first_day: int
    steps: int
    positions: IntArray
    load: ComplexArray
    generation: ComplexArray | None
    solution: Solution

    @property
    def days(self) -> int:
        """Number of days."""
        return len(self.load) // self.steps

    @property
    def drawn(self) -> ComplexArray:
        """Complex (day, step, node) loads of the nodes of the law [p.u.]."""
        return np.asarray(self.load[:, self.positions].reshape(self.days, self.steps, -1))

    @property
    def v(self) -> ComplexArray:
        """Complex (day, step, solved node) voltages [p.u.], NaN where power flow failed."""
        return np.asarray(self.solution.v.reshape(self.days, self.steps, -1))


def solve_days(
    solver: Solver,
    source: LoadSource,
    block: int = 0,
    *,
    generation: ComplexArray | None = None,
    nodes: Nodes = "retained",
) -> SolvedDays:
    """Draw one block of days and solve its power flow.

    Parameters
    ----------
    solver : Solver
        Of the feeder to solve on: the true one, a twin or a neighbour; it holds the volt-var control.
    source : LoadSource
        Where the loads come from: a `LoadSampler` of the law.
    block : int
        Number of the block. The loads are a function of the source and this number, not of the feeder.
    generation : complex (step, retained), optional
        Public generation of a day before volt-var [p.u.], the same every day.
    nodes : "retained" or "all"
        Whose voltages to give: nodes with load or generation, or every energised node.

    Returns
    -------
    SolvedDays
        Loads and solution; failed snapshots stay in it, marked.

    Raises
    ------
    PrivacyError
        If the law is for other nodes than the feeder has.
    """
    drawn = source.block(block)
    steps = drawn.load_kw.shape[2]
    load = nodal_load(source.law, drawn, len(solver.feeder.retained))
    injected = None if generation is None else np.tile(generation, (len(load) // steps, 1))
    solution = solver.solve(load, injected, nodes=nodes)
    positions: IntArray = np.arange(load.shape[1]) if source.law.positions is None else source.law.positions
    return SolvedDays(drawn.first_day, steps, positions, load, injected, solution)


def nodal_load(law: LoadLaw, drawn: LoadBlock, retained: int) -> ComplexArray:
    """Drawn loads in their places: complex (snapshot, retained) [p.u.], 0 at nodes that the law is not for.

    Raises
    ------
    PrivacyError
        If the law is for other nodes than the feeder has.
    """
    active, reactive = (kw_to_pu(power, law.base_mva) for power in (drawn.load_kw, drawn.load_kvar))
    count, days, steps = active.shape
    if count > retained or (law.positions is None and count != retained):
        raise PrivacyError(
            f"the load law is of {count} nodes, but the feeder has {retained} with load or generation; say "
            "which of them the law is for"
        )
    load = np.zeros((days * steps, retained), dtype=np.complex128)
    positions = slice(None) if law.positions is None else law.positions
    load[:, positions] = (active + 1j * reactive).reshape(count, days * steps).T
    return load
