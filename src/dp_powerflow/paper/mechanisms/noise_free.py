"""The noise-free baseline: true loads on the true network. It hides nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.paper.mechanisms.interface import Cost, Setting
from dp_powerflow.units import ComplexArray


@dataclass(frozen=True, eq=False)
class NoiseFree:
    """AC power flow with the true loads."""

    setting: Setting
    name: str = "noise-free"
    protects: str = "nothing"

    def cost(self) -> Cost:
        """Nothing is claimed."""
        return Cost(network=None, loads=None)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """The true voltages; the generator is not asked."""
        return self.setting.solve(self.setting.first_days(days))
