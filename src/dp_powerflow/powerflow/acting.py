"""Regulators and capacitors that act in the frame of the paper: constant power, one figure per node.

The interface is that of `BatchSolver`; what is solved is the feeder as operated, with its loads replaced by
one of constant power at every retained node.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem
from dp_powerflow.powerflow.batch import Columns, Nodes, checked_pair, refuse_curves
from dp_powerflow.powerflow.operated import ControlMode, OperatedSolution, OperatedSolver
from dp_powerflow.powerflow.voltvar import VoltVar
from dp_powerflow.units import KW_PER_MW, ComplexArray


class ActingSolver:
    """Solves nodal loads of constant power with acting controls.

    Parameters
    ----------
    feeder : with its `operation`.
    controls, steps : as of `OperatedSolver`.
    tolerance, threads : likewise.
    voltvar : one curve at every node with PV, or None.
    """

    columns: Columns = "nodes"

    def __init__(
        self,
        feeder: Feeder,
        *,
        controls: ControlMode = "day",
        steps: int = 1,
        tolerance: float = 1e-8,
        threads: int | None = None,
        voltvar: VoltVar | None = None,
    ) -> None:
        if voltvar is not None and len(voltvar.curves) != 1:
            raise PowerFlowError("acting controls go with one volt-var curve for all nodes with PV")
        self._feeder, self._voltvar = feeder, voltvar
        self._settings = (controls, steps, tolerance)
        self._fed = np.flatnonzero(np.isin(feeder.retained, feeder.pv_shares.indices))
        self._solver = OperatedSolver(
            _nodal(feeder, self._fed.tolist()),
            controls=controls,
            steps=steps,
            tolerance=tolerance,
            threads=threads,
            volt_var=None if voltvar is None else voltvar.curves[0],
        )

    @property
    def feeder(self) -> Feeder:
        """The network that is solved."""
        return self._feeder

    def on(self, feeder: Feeder, *, threads: int | None = None) -> ActingSolver:
        """A solver of another feeder with the same settings; refused with volt-var curves."""
        refuse_curves(self._voltvar)
        controls, steps, tolerance = self._settings
        return ActingSolver(feeder, controls=controls, steps=steps, tolerance=tolerance, threads=threads)

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> OperatedSolution:
        """Voltages of every snapshot; parameters as of `BatchSolver.solve`."""
        load, injected = checked_pair(self._feeder, load, generation)
        fed = np.ascontiguousarray(injected[:, self._fed]) if len(injected) else None
        return self._solver.solve(load, fed, nodes=nodes, out=out)


def _nodal(feeder: Feeder, fed: list[int]) -> Feeder:
    """The feeder with one load of constant power at every retained node, and a PV system where it has any."""
    kw = -feeder.nominal_injection[feeder.retained] * feeder.base_mva * KW_PER_MW
    nodes = [feeder.nodes[k] for k in feeder.retained]
    loads = [
        Load(name, ((int(at), GROUND),), float(power.real), float(power.imag), "wye")
        for name, at, power in zip(nodes, feeder.retained, kw, strict=True)
    ]
    pv = [PVSystem(nodes[k], ((int(feeder.retained[k]), GROUND),), 0.0, 0.0) for k in fed]
    return replace(feeder, loads=tuple(loads), pv=tuple(pv))
