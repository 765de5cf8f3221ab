"""Gaussian noise: two ways to find σ, and the units that one (ε, δ) of noise may cover.

`analytic` is the exact calibration (Balle and Wang, arXiv 1805.06530v2): μ = Δ/σ is the largest whose curve
δ(ε; μ) passes through (ε, δ). `classical` is σ = Δ√(2 ln(1.25/δ))/ε, which the paper uses and which is only
proved for ε ≤ 1; `true_delta` says what it really gives (paper correction 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import gdp_delta, gdp_mu
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.sources import Guarantee

Calibration = Literal["analytic", "classical"]


@dataclass(frozen=True)
class GaussianNoise:
    """Independent N(0, σ²) on every real number of a vector.

    Attributes
    ----------
    sensitivity : Δ₂ of the whole vector that one (ε, δ) covers.
    epsilon, delta : what the noise is calibrated to.
    """

    sensitivity: float
    epsilon: float
    delta: float
    calibration: Calibration = "analytic"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sensitivity) and self.sensitivity > 0.0):
            raise PrivacyError("Gaussian noise needs a finite, positive sensitivity")
        if self.calibration not in ("analytic", "classical"):
            raise PrivacyError(f"calibration must be analytic or classical, not {self.calibration!r}")
        if not (self.epsilon > 0.0 and 0.0 < self.delta < 1.0):
            raise PrivacyError("Gaussian noise needs a positive ε and a δ between 0 and 1")

    @property
    def sigma(self) -> float:
        """Standard deviation of every real number."""
        if self.calibration == "classical":
            return self.sensitivity * math.sqrt(2.0 * math.log(1.25 / self.delta)) / self.epsilon
        return self.sensitivity / gdp_mu(self.epsilon, self.delta)

    @property
    def true_delta(self) -> float:
        """δ that σ really gives at ε."""
        return gdp_delta(self.epsilon, self.sensitivity / self.sigma)

    @property
    def holds(self) -> bool:
        """Whether (ε, δ) is what σ gives."""
        return self.true_delta <= self.delta * (1.0 + 1e-9)

    @property
    def remark(self) -> str:
        """How σ was found, with its true δ where that is another."""
        if self.holds:
            return f"{self.calibration} Gaussian mechanism, σ = {self.sigma:.4g}"
        return (
            f"classical formula, σ = {self.sigma:.4g}: its δ at this ε is {self.true_delta:.3g}, "
            f"not {self.delta:.3g}"
        )

    def claim(self, adjacency: str) -> Guarantee:
        """What noise that is drawn once claims; all that follows is post-processing."""
        return Guarantee(self.epsilon, self.delta, "any number of days", adjacency, self.holds, self.remark)

    def on_real(self, values: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Noisy copy of real values."""
        return np.asarray(values + self.sigma * generator.standard_normal(values.shape))

    def on_complex(self, values: ComplexArray, generator: np.random.Generator) -> ComplexArray:
        """Noisy copy of complex values; real and imaginary parts are separate real numbers."""
        pair = generator.standard_normal((*values.shape, 2))
        return np.asarray(values + self.sigma * (pair[..., 0] + 1j * pair[..., 1]))


@dataclass(frozen=True)
class NoiseUnit:
    """What one (ε, δ) of Gaussian noise covers, and how its σ is found.

    Attributes
    ----------
    key : in names of files.
    title : in tables and figures.
    calibration : of σ.
    whole_day : True covers what the paper's table of sensitivities does: the voltages of a day together
        (√T) and all loads of a day at once (√(n_L·T)). False covers the voltages of one step, as the paper's
        ε of its own mechanism does, and one node's day of loads (√T), nearly the unit of the load model.
    """

    key: str
    title: str
    calibration: Calibration
    whole_day: bool

    def covered(self, steps: int) -> int:
        """Steps of voltages that are covered together, of a day of so many."""
        return steps if self.whole_day else 1

    def covered_loads(self, steps: int, n_loads: int) -> int:
        """Active loads that are covered together."""
        return steps * (n_loads if self.whole_day else 1)

    def noise(self, sensitivity: float, epsilon: float, delta: float) -> GaussianNoise:
        """Noise for Δ₂ of all that is covered."""
        return GaussianNoise(sensitivity, epsilon, delta, self.calibration)


STEP = NoiseUnit("step", "one step, analytic σ", "analytic", whole_day=False)
DAY = NoiseUnit("day", "a day, analytic σ", "analytic", whole_day=True)
PAPER_STEP = NoiseUnit("paper-step", "one step, the paper's σ", "classical", whole_day=False)
PAPER_DAY = NoiseUnit("paper-day", "a day, the paper's σ: its table", "classical", whole_day=True)
UNITS = (STEP, DAY, PAPER_STEP, PAPER_DAY)
"""Columns of the experiments. The last is the paper's table of sensitivities as printed."""
