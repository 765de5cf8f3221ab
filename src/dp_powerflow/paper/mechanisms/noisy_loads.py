"""Noisy loads + Gaussian voltage noise: noise on the load matrix instead of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow.paper.mechanisms.interface import BY_RADIUS, Cost, Guarantee, Setting
from dp_powerflow.paper.mechanisms.joint_noise import covered_unit
from dp_powerflow.paper.mechanisms.noise import Calibration, GaussianNoise
from dp_powerflow.paper.mechanisms.sensitivity import Sensitivities
from dp_powerflow.units import ComplexArray

ONE_NODE_DAY = "histories in which one node has other loads on one day"
WHOLE_DAY = "histories that differ in all loads of one day"


@dataclass(frozen=True, eq=False)
class NoisyLoads:
    """True active loads with noise, clipped to the public range, through power flow; noise on the voltages.

    Attributes
    ----------
    p_min : smallest load of the public range [p.u.]; the largest is p_min + `setting.load_range`.
    all_loads : True for the paper's √(n_L·T)·Δ_load, which hides all loads of a day at once; False for
        √T·Δ_load, one node's day, nearly the unit the load model is fitted for.
    covered : steps that the network's (ε, δ) covers together: 1, or T for the paper's table (√T).
    """

    setting: Setting
    sensitivities: Sensitivities
    p_min: float
    epsilon: float
    epsilon_load: float
    delta: float
    delta_load: float
    all_loads: bool = False
    covered: int = 1
    calibration: Calibration = "analytic"
    name: str = "noisy loads + voltage noise"
    protects: str = "network and loads"

    @property
    def load_noise(self) -> GaussianNoise:
        """What is added to every active load [p.u.]."""
        count = self.setting.steps * (self.setting.n_loads if self.all_loads else 1)
        reach = math.sqrt(count) * self.setting.load_range
        return GaussianNoise(reach, self.epsilon_load, self.delta_load, self.calibration)

    @property
    def voltage_noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        reach = math.sqrt(self.covered) * self.sensitivities.network
        return GaussianNoise(reach, self.epsilon, self.delta, self.calibration)

    def cost(self) -> Cost:
        """Noise for each secret; the loads' is proved by the range they are clipped to."""
        on_loads, on_voltages = self.load_noise, self.voltage_noise
        network = Guarantee(
            on_voltages.epsilon,
            on_voltages.delta,
            covered_unit(self.covered),
            BY_RADIUS,
            self.sensitivities.proved and on_voltages.holds,
            f"{on_voltages.remark}; sensitivity: {self.sensitivities.source}",
        )
        adjacency = WHOLE_DAY if self.all_loads else ONE_NODE_DAY
        loads = Guarantee(
            on_loads.epsilon, on_loads.delta, "any number of days", adjacency, on_loads.holds, on_loads.remark
        )
        return Cost(network=network, loads=loads)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy voltages of noisy loads."""
        clean = self.setting.solve(self.noisy_load(generator, days))
        return self.voltage_noise.on_complex(clean, generator)

    def noisy_load(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Complex (day, step, node) noisy loads [p.u.]; q follows p at the node's nominal power factor."""
        p_max = self.p_min + self.setting.load_range
        true = np.clip(self.setting.first_days(days).real, self.p_min, p_max)
        active = np.clip(self.load_noise.on_real(true, generator), self.p_min, p_max)
        nominal = -self.setting.network.feeder.nominal_injection[self.setting.network.retained]
        return np.asarray(active * (1.0 + 1j * nominal.imag / nominal.real))
