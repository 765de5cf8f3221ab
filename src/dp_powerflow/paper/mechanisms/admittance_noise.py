"""Gaussian noise on the entries of Y_full, as is: no structure is restored, failures stay visible.

The noise is drawn once; what is computed from the noisy matrix is post-processing, whatever the number of
days. The variant in the lines' own parameters is the twin network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import FeederError, PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.paper.mechanisms.interface import BY_RADIUS, Cost, Guarantee, Setting
from dp_powerflow.paper.mechanisms.noise import Calibration, GaussianNoise
from dp_powerflow.powerflow.reference import ReferenceSolver
from dp_powerflow.units import ComplexArray

_MAX_ITERATIONS = 100
"""Of the fixed point on the noisy, dense matrix; what has not converged by then has failed."""


@dataclass(frozen=True, eq=False)
class AdmittanceNoise:
    """True loads on a network each of whose matrix entries is noisy: sparsity and symmetry are lost."""

    setting: Setting
    epsilon: float
    delta: float
    calibration: Calibration = "analytic"
    name: str = "noise on entries of Y"
    protects: str = "network"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every entry of Y_full [p.u.]; its sensitivity is r by definition."""
        return GaussianNoise(self.setting.radius, self.epsilon, self.delta, self.calibration)

    def cost(self) -> Cost:
        """One noisy matrix, any number of days; the loads are not protected."""
        noise = self.noise
        network = Guarantee(
            noise.epsilon, noise.delta, "any number of days", BY_RADIUS, noise.holds, noise.remark
        )
        return Cost(network=network, loads=None)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages on one noisy network; NaN where power flow fails, everywhere if it cannot be set up."""
        load = self.setting.first_days(days)
        flat = np.ascontiguousarray(load.reshape(-1, load.shape[-1]))
        try:
            solver = ReferenceSolver(self.noisy_feeder(generator), max_iterations=_MAX_ITERATIONS)
        except (FeederError, PowerFlowError):
            return np.full(load.shape, np.nan + 1j * np.nan)
        return np.asarray(solver.solve(flat).v.reshape(load.shape))

    def noisy_feeder(self, generator: np.random.Generator) -> Feeder:
        """The feeder with one draw of the noise on every entry."""
        feeder = self.setting.network.feeder
        noisy = self.noise.on_complex(feeder.y.toarray(), generator)
        return replace(feeder, y=sp.csc_array(noisy), origin=None)
