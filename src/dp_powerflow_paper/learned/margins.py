"""Public scaling of loads for a network: logs, so that −1 and 1 are the public margins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.units import FloatArray


@dataclass(frozen=True)
class LogMargins:
    """Margins of a relative load, known without looking at a reading.

    Attributes
    ----------
    low, high : of load over the public scale of its customer; loads outside are cut to them.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0.0 < self.low < self.high and math.isfinite(self.high)):
            raise LoadDataError("margins must be positive and finite, the lower one first")

    @property
    def _centre(self) -> float:
        return (math.log(self.high) + math.log(self.low)) / 2

    @property
    def _half(self) -> float:
        return (math.log(self.high) - math.log(self.low)) / 2

    def scaled(self, relative: FloatArray) -> FloatArray:
        """Relative loads as numbers from −1 to 1."""
        return np.asarray((np.log(np.clip(relative, self.low, self.high)) - self._centre) / self._half)

    def relative(self, scaled: FloatArray) -> FloatArray:
        """The way back."""
        return np.exp(np.clip(scaled, -1.0, 1.0) * self._half + self._centre)
