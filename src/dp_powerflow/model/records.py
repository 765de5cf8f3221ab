"""PRIVATE. The records of one class as the estimators see them: log loads, one record after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dp_powerflow.units import FloatArray

_CHUNK_VALUES = 1 << 19  # 4 MB of float64 at a time


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """PRIVATE. Log loads of the records of one class (for reactive load: p and q side by side).

    Parameters
    ----------
    log_load
        (record, day, step) [log kW, or log of kW per public scale]. With unit `load-point` a record is a
        load point with all its days; with `load-point-day` every record has one day.
    count
        Number of records: public, or a released noisy count if the class of a record is private.
    """

    log_load: FloatArray
    count: float

    @property
    def n_steps(self) -> int:
        return int(self.log_load.shape[-1])

    def contributions(
        self, of: Callable[[FloatArray], FloatArray], *, values_per_step: int = 1
    ) -> Iterator[FloatArray]:
        """Contributions (record, dimension), chunk by chunk; `of` maps (record, day, step) to them.

        `values_per_step` sizes the chunks: how many numbers `of` makes of one step of a record.
        """
        n_records, n_days, n_steps = self.log_load.shape
        size = max(1, _CHUNK_VALUES // (n_steps * max(n_days, values_per_step)))
        for start in range(0, n_records, size):
            yield of(self.log_load[start : start + size])

    def __repr__(self) -> str:
        return f"Records({self.log_load.shape[1]} days × {self.n_steps} steps, PRIVATE)"


def symmetric_to_vector(matrices: FloatArray) -> FloatArray:
    """(..., K, K) symmetric → (..., K(K+1)/2), off-diagonals times √2: L2 norm = Frobenius norm."""
    size = matrices.shape[-1]
    rows, columns = np.triu_indices(size)
    weight = np.where(rows == columns, 1.0, np.sqrt(2.0))
    result: FloatArray = matrices[..., rows, columns] * weight
    return result


def vector_to_symmetric(vector: FloatArray, size: int) -> FloatArray:
    """Inverse of `symmetric_to_vector` for one vector (K(K+1)/2,)."""
    rows, columns = np.triu_indices(size)
    values = vector / np.where(rows == columns, 1.0, np.sqrt(2.0))
    matrix = np.zeros((size, size))
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return matrix
