"""Spectral norms of operators that are only known by what they do to a vector."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, svds

from dp_powerflow.errors import FeederError
from dp_powerflow.units import ComplexArray

Map = Callable[[ComplexArray], ComplexArray]

_DENSE_BELOW = 32


def spectral_norm(apply: Map, adjoint: Map, shape: tuple[int, int]) -> float:
    """Largest singular value of an operator, by Lanczos to machine precision.

    Parameters
    ----------
    apply, adjoint : x ↦ A·x and y ↦ Aᴴ·y; they also take matrices, column by column.
    shape : (rows, columns) of A.
    """
    if min(shape) == 0:
        return 0.0
    if min(shape) < _DENSE_BELOW:
        return _dense_norm(apply, adjoint, shape)
    operator = LinearOperator(shape, matvec=apply, rmatvec=adjoint, dtype=np.complex128)
    # A fixed start makes the result reproducible; a generic direction meets every singular vector.
    angle = np.arange(min(shape)) * (np.sqrt(5.0) - 1.0) * np.pi
    start = np.cos(angle) + 1j * np.sin(angle * np.sqrt(2.0))
    try:
        values = svds(operator, k=1, v0=start, return_singular_vectors=False, maxiter=20 * max(shape))
    except ArpackNoConvergence:
        raise FeederError(
            "a matrix norm of the network did not converge; check the feeder's impedances"
        ) from None
    return float(values[0])


def _dense_norm(apply: Map, adjoint: Map, shape: tuple[int, int]) -> float:
    if shape[1] <= shape[0]:
        columns = [apply(unit) for unit in np.eye(shape[1], dtype=np.complex128)]
    else:
        columns = [adjoint(unit) for unit in np.eye(shape[0], dtype=np.complex128)]
    return float(np.linalg.norm(np.column_stack(columns), 2))
