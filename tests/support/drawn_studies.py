"""Studies of public feeders under loads that are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.studies.study import GivenDays, GivenLaw, Study
from dp_powerflow.units import FloatArray


def given_study(feeder: Feeder, shape: FloatArray | None = None, *, by_load: bool = False) -> Study:
    """Nominal loads of a feeder times a shape (day, step); 1 by default, three days of four steps.

    Parameters
    ----------
    by_load : whether columns are the loads of the feeder, solved as operated, not nodes.
    """
    of_day = np.ones((3, 4)) if shape is None else shape
    positions, nominal_kw = feeder.drawn_loads() if by_load else feeder.loaded_nodes()
    law = GivenLaw(of_day.shape[1], feeder.base_mva, positions)
    load_kw = nominal_kw[:, None, None] * of_day

    def solver(threads: int | None) -> Solver:
        return OperatedSolver(feeder) if by_load else BatchSolver(feeder)

    return Study(
        feeder=feeder,
        source=GivenDays(law, load_kw, 0.3 * load_kw),
        make_solver=solver,
        released=feeder.energised,
        node_ids=tuple(f"n{k:03d}" for k in range(len(feeder.energised))),
    )


def stretched(feeder: Feeder, factor: float) -> Feeder:
    """The same feeder with all lengths times a factor; its impedances stay."""
    lines = tuple(
        line if line.length_m is None else replace(line, length_m=factor * line.length_m)
        for line in feeder.lines
    )
    return replace(feeder, lines=lines)
