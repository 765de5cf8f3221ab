"""The fixed point on dense matrices, with nothing but array operations.

Slow and plain on purpose: the tests hold the compiled solver against it. It is written to the array API
standard, so the same code solves NumPy arrays and, through `array-api-compat`, torch tensors on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from dp_powerflow.errors import MissingExtraError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.batch import (
    Nodes,
    Solution,
    Solver,
    checked_output,
    checked_pair,
    refuse_bad_power,
    wye_only,
)
from dp_powerflow.powerflow.devices import VoltVar, curve_arrays
from dp_powerflow.powerflow.factor import EPS, FLOOR_FACTOR, no_load_voltage
from dp_powerflow.units import ComplexArray


class ReferenceSolver(Solver):
    """The same interface as `BatchSolver`, on dense arrays of any array library.

    Given arrays that are not NumPy's, the fields of the solution are of their kind and on their device.
    """

    def __init__(
        self,
        feeder: Feeder,
        *,
        tolerance: float = 1e-8,
        max_iterations: int = 500,
        voltvar: VoltVar | None = None,
    ) -> None:
        super().__init__(feeder, tolerance)
        self._max_iterations = max_iterations
        self._voltvar = voltvar
        energised = feeder.energised
        y = sp.csc_array(feeder.y)[:, energised][energised]
        w = no_load_voltage(feeder)
        self._at = np.searchsorted(energised, feeder.retained)
        # At rows of switches (1e6 p.u.) a mismatch below this is rounding, not error.
        self._constants = {
            "y_t": np.ascontiguousarray(y.toarray().T),
            "z_t": np.ascontiguousarray(_inverse_columns(y, self._at).T),
            "w": w,
            "limit": tolerance + FLOOR_FACTOR * EPS * (abs(y) @ abs(w)) * abs(w),
            "injects": np.eye(len(energised), dtype=np.complex128)[self._at],
        } | _segments(voltvar, len(self._at))

    def solve(
        self,
        load: Any,
        generation: Any = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> Solution:
        """Voltages of every snapshot; the mismatch is measured at all energised nodes with the original Y."""
        self._asked(nodes)
        if isinstance(load, np.ndarray):
            load, generation = checked_pair(self._feeder, load, generation)
            generation = generation if len(generation) else None
        xp, constants = _namespace(load), {}
        for name, value in self._constants.items():
            constants[name] = xp.asarray(value, device=load.device)
        self._refuse_bad_power(xp, load, generation)
        v, iterations = _fixed_point(xp, constants, load, generation, self._tolerance, self._max_iterations)
        mismatch, converged = _measure(xp, constants, v, load, generation)
        v = xp.where(converged[:, None], v, xp.nan)
        if nodes == "retained":
            v = xp.take(v, xp.asarray(self._at, device=load.device), axis=1)
        if out is not None:
            buffer = checked_output((int(v.shape[0]), int(v.shape[1])), out)
            buffer[...] = v
            v = buffer
        return Solution(v, converged, iterations, mismatch)

    def _refuse_bad_power(self, xp: Any, load: Any, generation: Any) -> None:
        finite = xp.all(xp.isfinite(load), axis=1)
        if generation is not None:
            finite = finite & xp.all(xp.isfinite(generation), axis=1)
        strict = xp.asarray(wye_only(self._feeder), device=load.device)
        negative = xp.any((xp.real(load) < 0.0) & strict, axis=1)
        count = [int(xp.sum(xp.astype(flags, xp.int64))) for flags in (~finite, negative)]
        refuse_bad_power(count[0], count[1], int(load.shape[0]))


def _inverse_columns(y: sp.csc_array, columns: np.ndarray) -> ComplexArray:
    """Columns of Y⁻¹, refined in extended precision."""
    lu = splu(y)
    exact = sp.csr_array(y).astype(np.clongdouble)
    unit = np.zeros((y.shape[0], len(columns)), dtype=np.complex128)
    unit[columns, np.arange(len(columns))] = 1.0
    z = lu.solve(unit)
    for _ in range(2):
        z = z + lu.solve((unit - exact @ z.astype(np.clongdouble)).astype(np.complex128))
    return np.asarray(z)


def _segments(voltvar: VoltVar | None, n: int) -> dict[str, np.ndarray]:
    """Volt-var curves as (segment, retained) arrays; all zero where there is none."""
    knots, base, slopes = curve_arrays(() if voltvar is None else voltvar.curves)
    curve_of = np.full(n, -1) if voltvar is None else voltvar.curve_of
    has = curve_of >= 0
    return {
        "left": knots[curve_of, :-1].T.copy(),
        "right": knots[curve_of, 1:].T.copy(),
        "slope": np.where(has, slopes[curve_of].T, 0.0),
        "base": np.where(has, base[curve_of], 0.0),
    }


def _injection(xp: Any, constants: dict[str, Any], v: Any, load: Any, generation: Any) -> Any:
    """s = g·exp(jφ(|v|)) − load (Eq. voltvar)."""
    if generation is None:
        return -load
    u = xp.abs(v)
    q = xp.zeros_like(u) + constants["base"]
    for k in range(constants["slope"].shape[0]):
        left, right = constants["left"][k, :], constants["right"][k, :]
        inside = xp.minimum(xp.maximum(u, left), right) - left
        q = q + constants["slope"][k, :] * inside
    return generation * (xp.sqrt(1.0 - q * q) + 1j * q) - load


def _fixed_point(
    xp: Any, constants: dict[str, Any], load: Any, generation: Any, tolerance: float, max_iterations: int
) -> tuple[Any, Any]:
    """v at all energised nodes and the iterations of every snapshot."""
    injects, w = constants["injects"], constants["w"]
    w_retained = injects @ w
    v = xp.zeros_like(load) + w_retained
    x = xp.zeros((load.shape[0], w.shape[0]), dtype=load.dtype, device=load.device)
    iterations = xp.zeros(load.shape[0], dtype=xp.int64, device=load.device)
    active = xp.ones(load.shape[0], dtype=xp.bool, device=load.device)
    for _ in range(max_iterations):
        s = _injection(xp, constants, v, load, generation)
        current = xp.conj(s / v)
        moved = current @ constants["z_t"]
        x = xp.where(active[:, None], moved, x)
        v = w_retained + x @ injects.T
        iterations = iterations + xp.astype(active, xp.int64)
        s = _injection(xp, constants, v, load, generation)
        mismatch = xp.max(xp.abs(v * xp.conj(current) - s), axis=1)
        # Freeze what has converged, and what has diverged past return.
        active = active & (mismatch > 0.1 * tolerance) & (mismatch < 1e6)
        if not bool(xp.any(active)):
            break
    return w + x, iterations


def _measure(xp: Any, constants: dict[str, Any], v: Any, load: Any, generation: Any) -> tuple[Any, Any]:
    """Largest power mismatch over all energised nodes, with the original Y, and whether it is small."""
    injects, w = constants["injects"], constants["w"]
    current = (v - w) @ constants["y_t"]
    s = _injection(xp, constants, v @ injects.T, load, generation) @ injects
    mismatch = xp.abs(v * xp.conj(current) - s)
    return xp.max(mismatch, axis=1), xp.all(mismatch <= constants["limit"], axis=1)


def _namespace(array: Any) -> Any:
    """Array-API namespace of an array."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    try:
        from array_api_compat import array_namespace
    except ImportError:
        raise MissingExtraError("array-api-compat", "ml") from None
    return array_namespace(array)
