"""DP-GMM + Gaussian voltage noise: loads from the private model, noise for the network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.evidence.margins import draw_days
from dp_powerflow.paper.mechanisms.interface import BY_RADIUS, Cost, Guarantee, Setting
from dp_powerflow.paper.mechanisms.joint_noise import covered_unit
from dp_powerflow.paper.mechanisms.noise import Calibration, GaussianNoise
from dp_powerflow.paper.mechanisms.sensitivity import Sensitivities
from dp_powerflow.units import ComplexArray


@dataclass(frozen=True, eq=False)
class GmmVoltageNoise:
    """Power flow of loads drawn from a released model, with noise for Δ₂^(Y).

    Attributes
    ----------
    law : of the synthetic loads, fitted under differential privacy.
    loads : what the fit claims.
    covered : steps that one (ε, δ) covers together: 1, or T for the paper's table (√T).
    """

    setting: Setting
    law: NodeLaw
    loads: Guarantee
    sensitivities: Sensitivities
    epsilon: float
    delta: float
    covered: int = 1
    calibration: Calibration = "analytic"
    name: str = "DP-GMM + voltage noise"
    protects: str = "network and loads"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        reach = math.sqrt(self.covered) * self.sensitivities.network
        return GaussianNoise(reach, self.epsilon, self.delta, self.calibration)

    def cost(self) -> Cost:
        """Noise for the network; the loads are post-processing of the fit."""
        noise = self.noise
        network = Guarantee(
            noise.epsilon,
            noise.delta,
            covered_unit(self.covered),
            BY_RADIUS,
            self.sensitivities.proved and noise.holds,
            f"{noise.remark}; sensitivity: {self.sensitivities.source}",
        )
        return Cost(network=network, loads=self.loads)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy voltages of synthetic days."""
        clean = self.setting.solve(draw_days(self.law, days, generator))
        return self.noise.on_complex(clean, generator)
