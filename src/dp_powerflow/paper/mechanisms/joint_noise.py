"""Joint voltage noise: one Gaussian mechanism on the true voltages protects network and loads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow.paper.mechanisms.interface import BY_RADIUS, Cost, Guarantee, Setting
from dp_powerflow.paper.mechanisms.noise import Calibration, GaussianNoise
from dp_powerflow.paper.mechanisms.sensitivity import Sensitivities
from dp_powerflow.units import ComplexArray


@dataclass(frozen=True, eq=False)
class JointVoltageNoise:
    """True voltages with noise for the larger of the two sensitivities, at the smaller of the two budgets.

    Attributes
    ----------
    epsilon, epsilon_load : targets for network and loads; the noise is calibrated to the smaller.
    covered : steps that one (ε, δ) covers together: 1, or T for the paper's table (√T).
    """

    setting: Setting
    sensitivities: Sensitivities
    epsilon: float
    epsilon_load: float
    delta: float
    covered: int = 1
    calibration: Calibration = "analytic"
    name: str = "joint voltage noise"
    protects: str = "network and loads"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        larger = max(self.sensitivities.network, self.sensitivities.load)
        budget = min(self.epsilon, self.epsilon_load)
        return GaussianNoise(math.sqrt(self.covered) * larger, budget, self.delta, self.calibration)

    def cost(self) -> Cost:
        """The same claim for both secrets; they change one at a time."""
        noise = self.noise
        proved = self.sensitivities.proved and noise.holds
        remark = f"{noise.remark}; sensitivity: {self.sensitivities.source}"

        def claim(adjacency: str) -> Guarantee:
            return Guarantee(
                noise.epsilon, noise.delta, covered_unit(self.covered), adjacency, proved, remark
            )

        span = "at one step" if self.covered == 1 else f"at {self.covered} steps"
        loads = f"histories in which one node has another load within its range {span}"
        return Cost(network=claim(BY_RADIUS), loads=claim(loads))

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy true voltages."""
        return self.noise.on_complex(self.setting.solve(self.setting.first_days(days)), generator)


def covered_unit(covered: int) -> str:
    """Words for the steps that a claim covers."""
    return "step" if covered == 1 else f"{covered} steps"
