"""Gaussian noise on voltages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.mechanisms.noise import GaussianNoise
from dp_powerflow_paper.sources import Guarantee


@dataclass(frozen=True)
class GaussianOnVoltages:
    """Independent noise on real and imaginary part of every voltage.

    Attributes
    ----------
    noise : its size [p.u.].
    guarantee, for_loads : what it claims for network and loads, given the sensitivity it was made for.
    on : key of its standard deviation.
    """

    noise: GaussianNoise
    guarantee: Guarantee
    for_loads: Guarantee | None = None
    on: str = "noise"
    name: str = "Gaussian noise on voltages"

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of real and imaginary part [p.u.]."""
        return {self.on: self.noise.sigma}

    def add(self, v: ComplexArray, generator: np.random.Generator) -> ComplexArray:
        """Noisy copy; NaN stays."""
        return self.noise.on_complex(v, generator)
