"""The fixed point on dense matrices: for networks with noise on every entry of Y, and as an oracle of tests.

Slow and plain on purpose; the compiled solvers of the package are held against it.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from dp_powerflow import Feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.lowlevel import Solver, VoltVar
from dp_powerflow.powerflow.batch import Nodes, Solution, checked_output, checked_pair
from dp_powerflow.powerflow.factor import no_load_voltage, rounding_floor
from dp_powerflow.units import ComplexArray, IntArray


class DenseSolver(Solver):
    """The same interface as `BatchSolver`; the mismatch is measured at all nodes with the original Y."""

    def __init__(
        self,
        feeder: Feeder,
        *,
        tolerance: float = 1e-8,
        max_iterations: int = 500,
        voltvar: VoltVar | None = None,
    ) -> None:
        super().__init__(feeder, tolerance)
        self._max_iterations, self._voltvar = max_iterations, voltvar
        y = sp.csc_array(feeder.y)[:, feeder.energised][feeder.energised]
        self._at = np.searchsorted(feeder.energised, feeder.retained)
        self._y, self._z, self._w = y.toarray(), _inverse_columns(y, self._at), no_load_voltage(feeder)
        # At rows of switches (1e6 p.u.) a mismatch below this is rounding, not error.
        self._limit = tolerance + rounding_floor(sp.csr_array(y), self._w)

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> Solution:
        """Voltages of every snapshot; parameters as of `BatchSolver.solve`."""
        places = np.searchsorted(self._feeder.energised, self._asked(nodes))
        load, generation = checked_pair(self._feeder, load, generation)
        if not (np.isfinite(load).all() and np.isfinite(generation).all()):
            raise PowerFlowError("snapshots hold NaN or infinite power; fill or drop the gaps before solving")
        at, w = self._at, self._w
        x = np.zeros((len(load), len(w)), dtype=np.complex128)
        v = w[at] + x[:, at]
        iterations = np.zeros(len(load), dtype=np.int64)
        active = np.ones(len(load), dtype=np.bool_)
        for _ in range(self._max_iterations):
            current = np.conj(self._injection(v, load, generation) / v)
            x = np.where(active[:, None], current @ self._z.T, x)
            v = w[at] + x[:, at]
            iterations += active
            mismatch = np.abs(v * np.conj(current) - self._injection(v, load, generation)).max(axis=1)
            # Freeze what has converged, and what has diverged past return.
            active &= (mismatch > 0.1 * self._tolerance) & (mismatch < 1e6)
            if not active.any():
                break
        v, injected = w + x, np.zeros_like(x)
        injected[:, at] = self._injection(v[:, at], load, generation)
        mismatches = np.abs(v * np.conj(x @ self._y.T) - injected)
        converged = (mismatches <= self._limit).all(axis=1)
        found = checked_output((len(load), len(places)), out)
        found[...] = np.where(converged[:, None], v[:, places], np.nan)
        return Solution(found, converged, iterations, mismatches.max(axis=1))

    def _injection(self, v: ComplexArray, load: ComplexArray, generation: ComplexArray) -> ComplexArray:
        """s = g·exp(jφ(|v|)) − load (Eq. voltvar)."""
        if not len(generation):
            return -load
        return generation * (1.0 if self._voltvar is None else self._voltvar.rotation(np.abs(v))) - load


def _inverse_columns(y: sp.csc_array, columns: IntArray) -> ComplexArray:
    """Columns of Y⁻¹, refined in extended precision."""
    lu = splu(y)
    exact = sp.csr_array(y).astype(np.clongdouble)
    unit = np.zeros((y.shape[0], len(columns)), dtype=np.complex128)
    unit[columns, np.arange(len(columns))] = 1.0
    z = lu.solve(unit)
    for _ in range(2):
        z = z + lu.solve((unit - exact @ z.astype(np.clongdouble)).astype(np.complex128))
    return np.asarray(z)
