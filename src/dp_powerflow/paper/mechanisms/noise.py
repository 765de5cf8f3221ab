"""Gaussian noise on voltages or loads, calibrated two ways.

`analytic` is the exact calibration (Balle and Wang, arXiv 1805.06530v2): μ = Δ/σ is the largest whose curve
δ(ε; μ) passes through (ε, δ). `classical` is σ = Δ√(2 ln(1.25/δ))/ε, which the paper uses and which is only
proved for ε ≤ 1; `true_delta` says what it really gives (PAPER_NOTES 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.accounting import gdp_delta, gdp_mu
from dp_powerflow.units import ComplexArray, FloatArray

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

    def on_real(self, values: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Noisy copy of real values."""
        return np.asarray(values + self.sigma * generator.standard_normal(values.shape))

    def on_complex(self, values: ComplexArray, generator: np.random.Generator) -> ComplexArray:
        """Noisy copy of complex values; real and imaginary parts are separate real numbers."""
        pair = generator.standard_normal((*values.shape, 2))
        return np.asarray(values + self.sigma * (pair[..., 0] + 1j * pair[..., 1]))
