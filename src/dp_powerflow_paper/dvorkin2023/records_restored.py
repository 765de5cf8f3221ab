"""Repairs noisy power records: a function of what the mechanism has released and of public features.

It cannot see the true records: an import contract holds that, and a test compares bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PowerFlowError, require
from dp_powerflow.units import FloatArray

FIT, CLOSENESS = 1e-5, 1e-5
"""What distances of the weights and of the records count beside that of the loss."""


@dataclass(frozen=True, eq=False)
class NoisyRecords:
    """What the mechanism releases of the records.

    Attributes
    ----------
    power : (record,) with noise; may lie outside [0, 1].
    weights : (feature,) of the regression, with noise.
    loss : of the regression, with noise.
    """

    power: FloatArray
    weights: FloatArray
    loss: float


def restore_records(noisy: NoisyRecords, features: FloatArray, ridge: float) -> FloatArray:
    """(record,) power in [0, 1] whose regression has a loss and weights near the noisy ones.

        min |ℓ − ℓ̃| + 1e-5·‖w − w̃‖ + 1e-5·‖y − ỹ‖   over y in [0, 1]ⁿ, w, ℓ
        such that (XᵀX + λI)·w = Xᵀ·y,  ‖X·w − y‖² ≤ ℓ

    Parameters
    ----------
    features, ridge : X and λ, public.
    """
    cp = require("cvxpy", "opf")
    records, count = features.shape
    power, weights, loss = cp.Variable(records), cp.Variable(count), cp.Variable()
    gram = features.T @ features + ridge * np.eye(count)
    far = FIT * cp.norm(weights - noisy.weights) + CLOSENESS * cp.norm(power - noisy.power)
    problem = cp.Problem(
        cp.Minimize(cp.abs(loss - noisy.loss) + far),
        [
            power >= 0.0,
            power <= 1.0,
            gram @ weights == features.T @ power,
            cp.sum_squares(features @ weights - power) <= loss,
        ],
    )
    problem.solve(solver=cp.CLARABEL)
    if power.value is None:
        raise PowerFlowError(f"the noisy records cannot be repaired: the solver says '{problem.status}'")
    return np.asarray(np.clip(power.value, 0.0, 1.0))
