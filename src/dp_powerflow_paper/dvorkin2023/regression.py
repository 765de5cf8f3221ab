"""Power records of a plant, and the regression that they are for.

Records are pairs of public weather x and private power y in [0, 1]; neighbours differ in the power of one
record by at most α. With features X (record, feature) and a ridge λ the weights are w = M·y and the loss is
‖X·w − y‖² = ‖A·y‖², A = X·M − I. Weights and loss are released beside the records, since they are what the
records are used for, and each has a sensitivity that follows from the public X alone:

    weights, in ‖·‖₁:  α·max_j ‖M e_j‖₁
    loss:              max_j 2α·max(Σ_i G_ij⁺, Σ_i G_ij⁻) + α²·G_jj,   G = AᵀA

since a change of y_j by t moves the loss by 2t·(G y)_j + t²·G_jj and y lies in [0, 1]ⁿ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import FloatArray

FEATURES, WIDTH, RIDGE = 5, 0.5, 1e-3
"""k, γ and λ of the published experiment."""


def radial_features(x: FloatArray, count: int = FEATURES, width: float = WIDTH) -> FloatArray:
    """(record, feature) exp(−(γ·(x − μ_i))²), the centres μ_i evenly over the range of the public weather."""
    centres = np.linspace(x.min(), x.max(), count)
    return np.asarray(np.exp(-((width * (x[:, None] - centres)) ** 2)))


@dataclass(frozen=True, eq=False)
class Regression:
    """Ridge regression of power on public features.

    Attributes
    ----------
    features : (record, feature) X.
    ridge : λ.
    """

    features: FloatArray
    ridge: float = RIDGE

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or not self.ridge > 0.0:
            raise PrivacyError("a regression needs a matrix of features and a positive ridge")

    @cached_property
    def gram(self) -> FloatArray:
        """(feature, feature) XᵀX + λI."""
        return np.asarray(self.features.T @ self.features + self.ridge * np.eye(self.features.shape[1]))

    @cached_property
    def to_weights(self) -> FloatArray:
        """(feature, record) M: weights are M·y."""
        return np.asarray(np.linalg.solve(self.gram, self.features.T))

    @cached_property
    def curvature(self) -> FloatArray:
        """(record, record) G = AᵀA: the loss is yᵀ·G·y."""
        residual = self.features @ self.to_weights - np.eye(len(self.features))
        return np.asarray(residual.T @ residual)

    def weights(self, power: FloatArray) -> FloatArray:
        """(feature,) w = M·y."""
        return np.asarray(self.to_weights @ power)

    def loss(self, power: FloatArray) -> float:
        """‖X·w − y‖²."""
        return float(np.sum((self.features @ self.weights(power) - power) ** 2))

    def weight_sensitivity(self, change: float) -> float:
        """Largest change of the weights in ‖·‖₁ if one record's power changes by at most `change`."""
        return float(change * np.abs(self.to_weights).sum(axis=0).max())

    def loss_sensitivity(self, change: float) -> float:
        """Largest change of the loss if one record's power in [0, 1] changes by at most `change`."""
        rising, falling = (np.maximum(side, 0.0).sum(axis=0) for side in (self.curvature, -self.curvature))
        slope = np.maximum(rising, falling)
        return float(np.max(2.0 * change * slope + change**2 * np.diag(self.curvature)))

    def published_loss_sensitivity(self, change: float) -> float:
        """What the authors' public code takes for it: the second-order term alone. No bound."""
        return float(change**2 * np.diag(self.curvature).max())
